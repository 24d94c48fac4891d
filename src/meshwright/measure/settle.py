"""Settling a plan: its finalists run for real, the measured best wins, the plan keeps the evidence."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.measure.racing import Race
from meshwright.measure.runs import WARM_UP
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Estimate, Plan
from meshwright.specs.quantities import counted
from meshwright.specs.settled import ADVICE, Outcome, Settled, SettledRun

Report = Callable[[Any], None]

HERE = "this machine's processes"
"""Where a race was run that took no command."""

MEMORY_SIGNS = ("out of memory", "can't allocate", "SIGKILL", "OutOfMemory", "Cannot allocate")
"""In what a rank says, or in how it ends, where memory was what it lacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """What ranks race: layouts of one size, and the rules."""

    model: Model
    job: Job
    layouts: tuple[Layout, ...]
    confidence: float
    most_rounds: int
    seconds: float
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    """How a heat ended, the same on every rank."""

    times_s: dict[int, list[float]]
    out: dict[int, str]
    errors: dict[int, float]
    leader: int | None
    tied: bool
    rounds: int


def finalists(plan: Plan, most: int = 4) -> list[tuple[Layout, Estimate]]:
    """The chosen layout and the alternatives that may be faster: whose ranges overlap with its own.

    Only alternatives that fit and use as many ranks as the chosen one, fastest predicted first.
    """
    chosen = plan.estimate
    high = chosen.step_time_range.high if chosen.step_time_range else chosen.step_time_s
    found = {plan.layout.label(): (plan.layout, chosen)}
    for alternative in plan.alternatives:
        layout = alternative.layout
        if layout.world != plan.layout.world:
            continue
        priced = alternative.estimate
        if priced is None:  # it cannot run, as its own sentence says
            continue
        low = priced.step_time_range.low if priced.step_time_range else priced.step_time_s
        if priced.fits and low <= high:
            found.setdefault(layout.label(), (layout, priced))
    others = sorted(list(found.values())[1:], key=lambda pair: pair[1].step_time_s)
    return [found[plan.layout.label()], *others][:most]


def cost_s(racers: Sequence[tuple[Layout, Estimate]], most_rounds: int) -> float:
    """Seconds that a race may take at most, steps alone, by prediction."""
    return (most_rounds + WARM_UP) * sum(priced.step_time_s for _, priced in racers)


def race_rank(heat: Heat, report: Report) -> Finish:
    """Race as one rank; every rank calls it. Times are the slowest rank's."""
    import torch
    import torch.distributed as dist

    ends = time.monotonic() + heat.seconds
    race = Race(len(heat.layouts), heat.confidence, heat.most_rounds, heat.seed)
    first = dist.get_rank() == 0
    steps: dict[int, Callable[[], None]] = {}
    for runner, layout in enumerate(heat.layouts):
        if first:
            report({"kind": "building", "runner": runner})
        try:
            steps[runner] = stepper(heat, layout)
            for _ in range(WARM_UP):
                steps[runner]()
        except (MemoryError, RuntimeError, SpecError) as error:
            steps.pop(runner, None)
            if not isinstance(error, SpecError) and not _of_memory(str(error)):
                raise
            race.drop(runner, "out of memory" if _of_memory(str(error)) else "failed")
        _same(runner in steps)
    while not race.over:
        found: dict[int, float] = {}
        for runner in race.order():
            if first:
                report({"kind": "racing", "runner": runner, "round": race.rounds + 1,
                        "left": len(race.left)})  # fmt: skip
            found[runner] = timed_s(steps[runner])
        for runner in race.round(found):
            del steps[runner]
        over = torch.tensor([time.monotonic() > ends], dtype=torch.float64)
        dist.broadcast(over, 0)
        if float(over):
            break
    return Finish(
        race.times, race.out, {r: race.error(r) for r in range(race.runners)}, race.leader(),
        race.tied, race.rounds,
    )  # fmt: skip


def _same(built: bool) -> None:
    """Whether a runner was built must be known to all: ranks that disagree cannot go on together."""
    import torch
    import torch.distributed as dist

    least = torch.tensor([float(built), -float(built)], dtype=torch.float64)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    if float(least[0]) != -float(least[1]):
        raise RuntimeError("out of memory on some ranks only")


def timed_s(step: Callable[[], None]) -> float:
    """Seconds of one step on the slowest rank; every rank calls it."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    began = time.perf_counter()
    step()
    slowest = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def stepper(heat: Heat, layout: Layout) -> Callable[[], None]:
    """A step of a layout, built on this rank; every rank calls both."""
    import torch

    from meshwright.engine.model.numerics import default_numerics
    from meshwright.engine.parallel.program import Program
    from meshwright.engine.run import precision_of

    program = Program(
        heat.model, default_numerics(heat.model), layout, global_batch=heat.job.global_batch,
        seq_len=heat.job.seq_len, precision=precision_of(heat.job), dropout=heat.job.dropout,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(program.optimizer_groups(0.1), lr=1e-3, fused=True)
    generator = torch.Generator().manual_seed(1)
    shape = (heat.job.global_batch, heat.job.seq_len + 1)
    rows = torch.randint(0, heat.model.vocab, shape, generator=generator)
    tokens, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def step() -> None:
        program.step(optimizer, tokens, targets, clip=1.0)

    return step


def _of_memory(text: str) -> bool:
    return any(sign in text for sign in MEMORY_SIGNS)


def race_here(heat: Heat, report: Report) -> Finish:
    """Race on this machine's processes; a runner that takes a rank's memory is out, the others go on.

    Raises:
        RankError: a rank failed for another reason.
    """
    from meshwright.engine.ranks.processes import RankError, run_ranks

    gone: dict[int, str] = {}
    left, at = list(range(len(heat.layouts))), [0]

    def hear(_rank: int, message: Any) -> None:
        at[0] = left[message["runner"]]
        report(message | {"runner": at[0]})

    while left:
        layouts = tuple(heat.layouts[runner] for runner in left)
        now = Heat(
            model=heat.model, job=heat.job, layouts=layouts, confidence=heat.confidence,
            most_rounds=heat.most_rounds, seconds=heat.seconds, seed=heat.seed,
        )  # fmt: skip
        try:
            finish: Finish = run_ranks(
                race_rank, layouts[0].world, now, on_message=hear,
                timeout_s=2.0 * heat.seconds + 300.0,
            )[0]  # fmt: skip
        except RankError as error:
            if not _of_memory(f"{error} {error.details}"):
                raise
            gone[at[0]] = "out of memory"
            left.remove(at[0])
            continue
        return Finish(
            {left[r]: times for r, times in finish.times_s.items()},
            gone | {left[r]: why for r, why in finish.out.items()},
            {left[r]: value for r, value in finish.errors.items()},
            None if finish.leader is None else left[finish.leader],
            finish.tied,
            finish.rounds,
        )
    return Finish({}, gone, {}, None, False, 0)


def settled(
    plan: Plan, racers: Sequence[tuple[Layout, Estimate]], finish: Finish, *,
    confidence: float, seconds: float, where: str,
) -> Plan:  # fmt: skip
    """The plan with the measured best as its layout, and the race as its evidence.

    Raises:
        SpecError: no finalist ran.
    """
    if finish.leader is None:
        raise SpecError(
            "plan",
            plan.layout.label(),
            "none of its finalists runs here: "
            + ", ".join(f"{racers[r][0].label()} {why}" for r, why in finish.out.items()),
        )
    runs = []
    for runner, (layout, priced) in enumerate(racers):
        times = finish.times_s.get(runner, [])
        outcome: Outcome = "too close to call"
        if runner == finish.leader:
            outcome = "fastest"
        elif runner in finish.out:
            told = finish.out[runner]
            outcome = told if told in ("slower", "out of memory") else "failed"  # type: ignore[assignment]
        runs.append(
            SettledRun(
                layout=layout, outcome=outcome, predicted_s=priced.step_time_s,
                measured_s=statistics.median(times) if times else None,
                error=finish.errors.get(runner, 0.0), steps=len(times),
            )
        )  # fmt: skip
    runs.sort(key=lambda run: (run.outcome != "fastest", run.measured_s or float("inf")))
    evidence = Settled(
        date=time.strftime("%Y-%m-%d"), where=where, confidence=confidence, seconds=seconds,
        runs=tuple(runs), sentence=sentence(runs, confidence),
    )  # fmt: skip
    layout, priced = racers[finish.leader]
    changes: dict[str, Any] = {"settled": evidence.model_dump(exclude_unset=True)}
    if layout != plan.layout:
        changes |= {
            "layout": layout.model_dump(exclude_unset=True),
            "estimate": priced.model_dump(exclude_unset=True), "fits": priced.fits,
            "alternatives": (), "flip_points": (),
            "notes": (*_still_true(plan.notes), f"{plan.layout.label()} was chosen by prediction; "
                      f"measured, {layout.label()} is faster"),
        }  # fmt: skip
    else:
        changes["notes"] = _still_true(plan.notes)
    return plan.but(**changes)


def _still_true(notes: Sequence[str]) -> tuple[str, ...]:
    """A plan's notes without the advice to settle it."""
    return tuple(note for note in notes if not note.endswith(ADVICE))


def spread(run: SettledRun) -> str:
    """How sure a time is, as text; of one step nothing is known."""
    return f" ± {100 * run.error:.1f} %" if run.steps > 1 else ""


def sentence(runs: Sequence[SettledRun], confidence: float) -> str:
    """What a person wants to know of a race."""
    best = runs[0]
    assert best.measured_s is not None
    text = (
        f"measured here, {counted(best.steps, 'step')} each way: {best.layout.label()} takes "
        f"{1e3 * best.measured_s:.1f} ms{spread(best)}"
    )
    others = [run for run in runs[1:] if run.measured_s]
    if others:
        second = others[0]
        assert second.measured_s is not None
        more = second.measured_s / best.measured_s - 1.0
        sure = (
            f"slower at {100 * confidence:.0f} % confidence"
            if second.outcome == "slower"
            else "too close to call"
        )
        text += f", the next, {second.layout.label()}, {100 * more:+.1f} % ({sure})"
    lost = [run for run in runs if run.outcome == "out of memory"]
    if lost:
        text += f"; out of memory: {', '.join(run.layout.label() for run in lost)}"
    return text
