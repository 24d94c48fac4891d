"""`meshwright settle`: the finalists of a plan, run for real."""

from __future__ import annotations

import sys
import time
from typing import Any

import typer

from meshwright.cli import options, running


def command(
    plan: str = typer.Argument(..., help="A plan file."),
    output: str = typer.Option(
        "", "-o", "--output", callback=options.writable, help="Write here instead of into the plan."
    ),
    finalists: int = typer.Option(4, "--finalists", min=2, max=16, help="At most so many race."),
    steps: int = typer.Option(50, "--steps", min=4, max=10_000, help="At most so many steps each."),
    seconds: float = typer.Option(
        300.0, "--seconds", min=1.0, max=86_400.0, help="No round begins after so long."
    ),
    confidence: float = typer.Option(0.95, min=0.6, max=0.999, help="At which one is out."),
    launch: str = typer.Option(
        "", "--launch", help="A command that runs {plan} elsewhere and prints its framework's log."
    ),
    learn: str = typer.Option(
        "",
        "--learn",
        callback=options.writable,
        help="Write the plan's cluster here, calibrated on what was measured.",
    ),
    seed: int = typer.Option(0, help="Draws the order within each round."),
    as_json: options.AsJson = False,
) -> None:
    """Race a plan's finalists for a few steps each; the measured best wins.

    Finalists are the chosen layout and the alternatives whose ranges overlap with its own. They take
    turns step by step, and one is out as soon as it is slower at the stated confidence. Running out
    of memory is a result. The plan file keeps the evidence, and `explain` cites it. With --learn mine.toml
    the cluster's constants are fitted to the race, for the next plan.

    Here they run on the engine's own processes. With --launch 'bash run.sh {plan}' each runs where that
    command takes it, for as long as it lasts, and step times are read from the log that it prints.
    """
    from meshwright.cli.output import print_json
    from meshwright.measure.settle import HERE, cost_s, settled
    from meshwright.measure.settle import finalists as choose
    from meshwright.specs.plan import load_plan, save_plan

    loaded = load_plan(plan)
    racers = choose(loaded, finalists)
    if len(racers) < 2:
        told = "no alternative's range overlaps with the chosen layout's"
        if loaded.settled is not None:
            told = f"it was, on {loaded.settled.date}: {loaded.settled.sentence}"
        print(f"nothing to settle: {told}", file=sys.stderr if as_json else sys.stdout)
        if as_json:
            print_json(loaded.settled.plain() if loaded.settled else {})
        return
    expected = min(cost_s(racers, steps), seconds)
    print(
        f"{len(racers)} finalists, at most {steps} steps each: about {expected:.0f} s of steps on "
        f"{loaded.layout.world} ranks ({expected * loaded.layout.world / 3600:.2f} device-hours), and "
        "less where one is soon out",
        file=sys.stderr,
    )
    began = time.monotonic()
    if launch:
        from meshwright.cli.launching import race_by_command

        finish = race_by_command(loaded, racers, launch, confidence, seconds)
        where = launch.split()[0]
    else:
        finish = _race(loaded, racers, steps, seconds, confidence, seed)
        where = HERE
    result = settled(
        loaded, racers, finish, confidence=confidence, seconds=time.monotonic() - began, where=where
    )
    save_plan(result, output or plan)
    learned = _learn(result, output or plan, learn) if learn else ""
    if as_json:
        assert result.settled is not None
        print_json(result.settled.plain())
    else:
        _show(result, output or plan)
        print(learned or f"next: meshwright calibrate --cluster CLUSTER --from {output or plan} "
              "fits a cluster's constants to these times")  # fmt: skip


def _learn(plan: Any, path: str, learn: str) -> str:
    """Fit the plan's cluster to the race and write it; returns what became of it, in a sentence."""
    import tomli_w

    from meshwright.cli.calibrating import sightings_of
    from meshwright.evidence.calibrate import calibrate
    from meshwright.specs.writing import write_atomically

    found = calibrate(plan.cluster, sightings=sightings_of(plan, path))
    write_atomically(learn, tomli_w.dumps(found.cluster.plain()))
    if found.refused:
        return f"{found.refused}; {learn} has the cluster as it was"
    return (
        f"calibrated on {found.measurements} layouts: predictions of them are off by "
        f"{100 * found.error_before:.1f} % before, {100 * found.error_after:.1f} % after; written to {learn}"
    )


def _race(plan: Any, racers: Any, steps: int, seconds: float, confidence: float, seed: int) -> Any:
    running.need_torch()
    from meshwright.costs.parameters import count_parameters
    from meshwright.engine.parallel.guards import check, check_job
    from meshwright.engine.ranks.preflight import check_states
    from meshwright.engine.ranks.processes import RankError
    from meshwright.measure.settle import Heat, race_here

    check_job(plan.job)
    weights = count_parameters(plan.model).total
    for layout, _ in racers:
        check(plan.model, layout, global_batch=plan.job.global_batch, seq_len=plan.job.seq_len)
        check_states(
            weights, plan.model, plan.job, layout, field="plan",
            way_out="race it on its cluster with --launch 'COMMAND {plan}'",
        )  # fmt: skip
    heat = Heat(
        model=plan.model, job=plan.job, layouts=tuple(layout for layout, _ in racers),
        confidence=confidence, most_rounds=steps, seconds=seconds, seed=seed,
    )  # fmt: skip

    def show(message: dict[str, Any]) -> None:
        label = racers[message["runner"]][0].label()
        if message["kind"] == "racing":
            running.progress(f"round {message['round']}, {message['left']} left: {label}")
        else:
            running.progress(f"building {label}")

    try:
        return race_here(heat, show)
    except RankError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        running.progress("")


def _show(plan: Any, path: str) -> None:
    from meshwright.cli.output import print_lines, print_table
    from meshwright.measure.settle import spread
    from meshwright.specs.quantities import format_seconds

    rows = [
        (run.layout.label(), run.outcome, format_seconds(run.predicted_s),
         "–" if run.measured_s is None else f"{format_seconds(run.measured_s)}{spread(run)}",
         str(run.steps))
        for run in plan.settled.runs
    ]  # fmt: skip
    columns = ["layout", "", "predicted", "measured", "steps"]
    print_table("Settled", columns, rows, {2, 3, 4})
    print_lines(plan.settled.sentence, f"written to {path}")
