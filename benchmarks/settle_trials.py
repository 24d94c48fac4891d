"""Does `settle` pick the finalist that is truly fastest, and what does it save?

    python benchmarks/settle_trials.py --cluster mine.toml [--trials 40] [--seed 0]
                                       [--results FILE] [--markdown docs/settled.md]

A trial is a question drawn at random (model, batch, length, ranks), planned for the cluster file that
`meshwright measure` wrote here. Its finalists race as under `meshwright settle`; then every one makes 50
steps, in turns, so that what else the machine does falls on all alike, and the least median is the
truth. A pick is right where it is that layout, or within a hundredth of it, which is what the race calls
a tie. Time is that of steps alone.
Trials are appended to `--results`; those that are there are not made again.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from pathlib import Path
from typing import Any

from meshwright.engine.model.toy import TOY
from meshwright.engine.parallel.guards import check
from meshwright.engine.ranks.processes import run_ranks
from meshwright.measure.racing import TIE
from meshwright.measure.runs import WARM_UP
from meshwright.measure.settle import Finish, Heat, Report, finalists, race_rank, stepper, timed_s
from meshwright.planner.plan import plan
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.model import Model

STEPS = 50
MODELS = (
    TOY,
    Model(name="small", layers=4, hidden=96, heads=4, kv_heads=2, head_dim=24, ffn=256, vocab=512),
    Model(name="deep", layers=8, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=128, vocab=256),
    Model(name="wide", layers=2, hidden=256, heads=4, kv_heads=4, head_dim=64, ffn=768, vocab=1024),
)


def both_rank(heat: Heat, report: Report) -> tuple[Finish, list[list[float]]]:
    """The race, and then every finalist's steps to the end, in an order drawn anew each time."""
    finish = race_rank(heat, report)
    steps = [stepper(heat, layout) for layout in heat.layouts]
    times: list[list[float]] = [[] for _ in steps]
    for number in range(-WARM_UP, STEPS):
        for at in random.Random(number).sample(range(len(steps)), len(steps)):
            taken = timed_s(steps[at])
            times[at] += [taken] if number >= 0 else []
    return finish, times


def trial(seed: int, mine: str, most: int) -> dict[str, Any] | None:
    """One question: planned, raced, and every finalist run alone; None: nothing to settle."""
    drawn = random.Random(seed)
    model, ranks = drawn.choice(MODELS), drawn.choice((2, 4))
    job = Job(
        seq_len=drawn.choice((32, 64)),
        global_batch=drawn.choice((8, 16)),
        precision=RECIPES["fp32"],
        framework="meshwright",
    )
    made = plan(model, load_cluster(f"{mine}:1x{ranks}"), job)
    racers = finalists(made, most)
    for layout, _ in racers:
        check(model, layout, global_batch=job.global_batch, seq_len=job.seq_len)
    if len(racers) < 2:
        return None
    layouts = tuple(layout for layout, _ in racers)
    heat = Heat(model=model, job=job, layouts=layouts, confidence=0.95, most_rounds=STEPS,
                seconds=300.0, seed=seed)  # fmt: skip
    # The race tells its progress, to which nobody listens here.
    finish, alone = run_ranks(
        both_rank, ranks, heat, on_message=lambda rank, message: None, timeout_s=600.0
    )[0]
    assert finish.leader is not None
    medians = [statistics.median(times) for times in alone]
    warm = [statistics.median(finish.times_s[r]) * WARM_UP for r in range(len(layouts))]
    return {
        "seed": seed, "name": f"{model.name}, {job.global_batch}x{job.seq_len}, {ranks} ranks",
        "layouts": [layout.label() for layout in layouts],
        "medians_s": medians, "picked": finish.leader, "tied": finish.tied, "rounds": finish.rounds,
        "truth": min(range(len(medians)), key=medians.__getitem__),
        "race_s": sum(sum(times) for times in finish.times_s.values()) + sum(warm),
        "full_s": sum(sum(times) for times in alone) + sum(WARM_UP * m for m in medians),
    }  # fmt: skip


def slower(row: dict[str, Any]) -> float:
    """How much slower the pick is than the truth, as a share."""
    return float(row["medians_s"][row["picked"]]) / min(row["medians_s"]) - 1.0


def summary(rows: list[dict[str, Any]]) -> str:
    """What the trials came to, in one sentence."""
    exact = sum(row["picked"] == row["truth"] for row in rows)
    right = sum(slower(row) <= TIE for row in rows)
    share = sum(row["race_s"] for row in rows) / sum(row["full_s"] for row in rows)
    return (
        f"{len(rows)} trials: the pick is the truly fastest in {exact}, or within "
        f"{100 * TIE:.0f} % of it in {right}; the mean pick is "
        f"{100 * statistics.fmean(slower(row) for row in rows):.1f} % slower than the fastest; the "
        f"races took {100 * share:.0f} % of the time of {STEPS} steps of every finalist"
    )


def markdown(rows: list[dict[str, Any]]) -> str:
    """docs/settled.md."""
    lines = [
        "# Settled, and run to the end", "",
        "Written by `python benchmarks/settle_trials.py --markdown docs/settled.md`: random questions "
        "planned for this machine's own file; the finalists race as under `meshwright settle`, then each "
        f"makes {STEPS} steps, in turns.", "",
        f"{summary(rows)}.", "",
        "| question | picked | fastest | pick slower by | rounds | race over full |",
        "|---|---|---|--:|--:|--:|",
        *(f"| {row['name']} | {row['layouts'][row['picked']]} | {row['layouts'][row['truth']]} | "
          f"{100 * slower(row):.1f} % | {row['rounds']}{' (tie)' if row['tied'] else ''} | "
          f"{row['race_s'] / row['full_s']:.2f} |" for row in rows),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cluster", required=True, help="what `meshwright measure` wrote here")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--finalists", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", default="runs/settle_trials.jsonl")
    parser.add_argument("--markdown", default="")
    options = parser.parse_args()
    results = Path(options.results)
    results.parent.mkdir(parents=True, exist_ok=True)
    rows = (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )
    seed = max((row["seed"] for row in rows), default=options.seed - 1)
    while len(rows) < options.trials:
        seed += 1
        try:
            row = trial(seed, options.cluster, options.finalists)
        except SpecError as error:  # a question that the engine does not run is told
            print(f"{seed}: not run: {error}", flush=True)
            continue
        if row is None:
            print(f"{seed}: nothing to settle", flush=True)
            continue
        rows.append(row)
        with results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{len(rows)}/{options.trials} {row['name']}: {row['layouts'][row['picked']]}, "
              f"{100 * slower(row):.1f} % slower than the fastest, {row['rounds']} rounds, "
              f"{row['race_s']:.1f} of {row['full_s']:.1f} s", flush=True)  # fmt: skip
    print(summary(rows))
    if options.markdown:
        Path(options.markdown).write_text(markdown(rows))


if __name__ == "__main__":
    main()
