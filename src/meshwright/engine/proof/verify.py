"""Proof that a plan trains as one device would: parameter by parameter, step by step.

The reference (`reference.py`) shares no code with what trains; the plan runs through the optimizer,
schedule, clipping, checkpoint and wrappers that `train` uses. In fp64 the two may differ only by
summation order, so the bound is 1e-10 where real mistakes are 1e-3 and more. Gradients are compared,
not just losses: Adam hides wrong scales, and a stage whose gradients are zero still lets the loss
fall. In fp32 and bf16 the judge of `meshwright prove` decides.

A mutant per active axis has one reduction left out; a check that passes a mutant proves nothing.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from meshwright.engine.foreign.architecture import Architecture
from meshwright.engine.foreign.running import computed_by
from meshwright.engine.model.numerics import Numerics, default_numerics
from meshwright.engine.parallel.guards import check
from meshwright.engine.parallel.orders import read_csv
from meshwright.engine.proof.agreement import (
    DERIVATIVE_BOUND,
    FP64_BOUND,
    Differences,
    hold,
    merged,
    worst,
)
from meshwright.engine.proof.material import Course
from meshwright.engine.proof.runs import (
    Outcome,
    Task,
    alone,
    compared,
    moved_runs,
    plan,
    recording_folder,
    refer,
    shapes_of,
)
from meshwright.engine.proof.shrink import Case, lengthened, shrink
from meshwright.engine.proof.unmodified import count, small_cases
from meshwright.engine.proof.verdict import Mutant, Verdict, active_mutants
from meshwright.engine.ranks.processes import run_ranks
from meshwright.engine.recipe import Recipe
from meshwright.prove.verdict import Verdict as Judgement
from meshwright.prove.verdict import prove
from meshwright.specs.errors import SpecError
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.quantities import format_seconds

SHARPENED_AFTER = 6
"""Positions after which queries of long texts are sharpened in a proof, at the latest."""

BALANCE_LOSS = 0.05
"""Weight of the experts' balancing loss in a proof of a model that names none: it is proved too."""


def verify(
    model: Model,
    layout: Layout,
    *,
    numerics: Numerics | None = None,
    precision: str = "fp64",
    steps: int = 3,
    mutants: bool = True,
    max_ranks: int = 24,
    seed: int = 0,
    csv: str = "",
    documents: bool = False,
    dropout: float = 0.0,
    foreign: Architecture | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Verdict:
    """Compare a plan with one device over `steps` SGD-momentum steps and as many of AdamW.

    With `documents` the sequences are packed from several, with attention inside each only; with
    `dropout` both sides drop numbers at that rate. Where transformers' modules compute the model
    (`foreign`), the other side is transformers' own whole model in fp64.

    Raises:
        SpecError: the combination is one that the engine refuses.
        RankError: a rank failed.
    """
    fixed = read_csv(csv).micro_batches if csv else 0
    # The plan itself must be one the engine runs, not only its small likeness.
    check(
        model, layout,
        global_batch=layout.dp * layout.micro_batch * (fixed or 2 * layout.pp),
        seq_len=2 * layout.cp * layout.tp, csv=csv, foreign=foreign,
    )  # fmt: skip
    if foreign is None:
        likeness = shrink(model, layout, max_ranks, fixed)
    else:
        if precision == "fp64":
            raise SpecError(
                "precision", precision, "transformers computes norms in fp32: fp32 or bf16"
            )
        foreign, likeness = small_cases(foreign, model, layout, max_ranks, fixed)
    cases = [replace(case, documents=documents, dropout=dropout) for case in likeness.cases]
    if csv and cases[0].layout.pp != layout.pp:
        raise SpecError("max_ranks", max_ranks, f"a schedule file needs all {layout.world} ranks")
    proved = []
    for case in cases:
        check(
            case.model, case.layout, global_batch=case.global_batch, seq_len=case.seq_len, csv=csv,
            foreign=foreign,
        )  # fmt: skip
        runs = courses(
            case, steps, precision, mutants=mutants and case is cases[0], csv=csv, foreign=foreign
        )
        numbers = proved_numerics(case.model, numerics, foreign)
        with tempfile.TemporaryDirectory(prefix="meshwright-proof-") as folder:
            task = Task(runs, numbers, seed, folder, precision, csv, foreign=foreign)
            proved.append(_prove(case, task, on_progress))
    return replace(
        _together(proved, likeness.not_covered, precision, steps), computed_by=computed_by(foreign)
    )


def proved_numerics(
    model: Model, numerics: Numerics | None = None, foreign: Architecture | None = None
) -> Numerics:
    """The numerics of a proof: the given or the model's own, so that nothing of them stays unused.

    Experts are balanced, and queries sharpened already at the lengths of a proof.
    """
    if foreign is not None:
        return numerics or Numerics()
    found = numerics or default_numerics(model)
    found = found.but(temperature_floor=min(found.temperature_floor, SHARPENED_AFTER))
    if model.experts is not None and not found.balance_loss:
        return found.but(balance_loss=BALANCE_LOSS)
    return found


def courses(
    case: Case,
    steps: int,
    precision: str = "fp64",
    *,
    mutants: bool = True,
    csv: str = "",
    foreign: Architecture | None = None,
) -> tuple[Course, ...]:
    """The training runs of a proof.

    SGD, whose steps scale with the gradient, through the wrappers of mixed precision; AdamW with
    `train`'s settings, clipped, saved and resumed half-way; in fp64 one step on long sequences.
    """
    sgd = Recipe(optimizer="sgd-momentum", learning_rate=0.05, warmup=2, steps=steps + 2,
                 weight_decay=0.0, clip=0.0)  # fmt: skip
    # Its rate falls from the second step on; that of SGD rises.
    adamw = Recipe(learning_rate=1e-3, warmup=0, steps=steps + 2, weight_decay=0.1, clip=0.5)
    exact = precision == "fp64"
    found = [
        Course(name="sgd", case=case, recipe=sgd, steps=steps, wrapped=exact),
        Course(name="adamw", case=case, recipe=adamw, steps=steps,
               saved_after=steps - 1 if exact else 0),
    ]  # fmt: skip
    if exact and not csv and (long := lengthened(case)) is not None:
        found.append(Course(name="long", case=long, recipe=sgd, steps=1))
    for name, _ in active_mutants(case, foreign) if mutants else ():
        if name != "tokens" or exact:  # a mean of means is off by less than a router that flips
            found.append(
                Course(
                    name=f"without-{name}", case=case, recipe=sgd, steps=1, mutant=name, like="sgd"
                )
            )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Proved:
    """What came of one case."""

    case: Case
    equal: bool
    error: float
    where: str
    bound: float
    allowed: float
    by_course: dict[str, float]
    mutants: tuple[Mutant, ...]
    derivatives: float
    parameters: int
    cause: str


def expected(ranks: int, alone_s: float) -> str:
    """How long so many ranks take at most, by what one process took that started and computed all of it."""
    cores = os.cpu_count() or 1
    most_s = math.ceil(ranks / cores) * alone_s
    return f"{format_seconds(most_s)} or less, as one took {format_seconds(alone_s)} and {cores} run at once"


def _prove(case: Case, task: Task, on_progress: Callable[[str], None]) -> _Proved:
    on_progress("the reference in fp64, in one process")
    began = time.monotonic()
    derivatives = max(run_ranks(refer, 1, task)[0].values(), default=0.0)
    alone_s = time.monotonic() - began
    if task.precision != "fp64":
        on_progress(f"one device in {task.precision}")
        run_ranks(alone, 1, task)
    on_progress(
        f"{len(task.courses)} runs on {case.layout.world} ranks under {case.layout.label()}: "
        f"{expected(case.layout.world, alone_s)}"
    )
    ranks: list[list[Outcome]] = run_ranks(plan, case.layout.world, task, timeout_s=1800.0)
    left_out = dict(active_mutants(case, task.foreign))
    shapes = shapes_of(task, case)
    wanted = set(shapes)
    equal, by_course, mutants = True, {}, []
    everything: Differences = {}
    judged: dict[str, Judgement] = {}
    strayed = ""
    bound, limits = FP64_BOUND, dict.fromkeys(wanted, FP64_BOUND)
    for course in task.courses:
        outcomes = compared(ranks, course.name)
        if task.precision == "fp64":
            found = merged(one.differences for one in outcomes)
            right, (error, where) = hold(found), worst(found)
        else:
            judgement = _judge(task, course)
            judged[course.name] = judgement
            right, found, bound = judgement.equal, {}, judgement.comparison.rounding
            check_ = judgement.comparison.decisive or judgement.comparison.worst
            error, where = check_.error, check_.name or check_.what
            limit = check_.bound
            updates = merged(one.updates for one in outcomes)
            if right and not all(share <= 1.0 for share in updates.values()):
                right, (error, where), limit = False, worst(updates), 1.0
                strayed = f"{course.name}: weights are not what their own gradients make of them"
        if course.mutant:
            mutants.append(
                Mutant(axis=course.mutant, left_out=left_out[course.mutant], error=error,
                       where=where, caught=not right)
            )  # fmt: skip
            continue
        names = {name for one in outcomes for name in one.names}
        equal = equal and right and names == wanted
        by_course[course.name] = error
        if task.precision == "fp64":
            everything = merged([everything, found])
        elif where not in everything or error > everything[where]:
            everything[where], limits[where] = error, limit
    equal = equal and derivatives <= DERIVATIVE_BOUND
    error, where = worst(everything)
    return _Proved(
        case, equal, error, where, bound, limits.get(where, bound), by_course, tuple(mutants), derivatives,
        count(shapes),
        "" if equal else strayed or _cause(task, judged),
    )  # fmt: skip


def _judge(task: Task, course: Course) -> Judgement:
    """`prove`'s verdict between the reference's recording of a course and the plan's."""
    own = next(one for one in task.courses if one.name == (course.like or course.name))
    exact, planned = (
        recording_folder(task, own, "reference"),
        recording_folder(task, course, "plan"),
    )
    measured = None if task.precision == "fp64" else recording_folder(task, own, "alone")
    moved = [recording_folder(task, own, f"moved-{number}") for number in range(moved_runs(task))]
    return prove(exact, planned, measured, moved)


def _cause(task: Task, judged: dict[str, Judgement]) -> str:
    """What `prove` says of the first training run that differs."""
    for course in task.courses:
        if course.mutant:
            continue
        judgement = judged.get(course.name) or _judge(task, course)
        if not judgement.equal:
            return f"{course.name}: {judgement.sentence}"
    return ""


def _together(
    proved: list[_Proved], not_covered: tuple[str, ...], precision: str, steps: int
) -> Verdict:
    """One verdict over all cases."""
    equal = all(one.equal for one in proved)
    leading = max(proved, key=lambda one: (not one.equal, one.error))
    first = proved[0]
    by_course: dict[str, float] = {}
    for one in proved:
        by_course = merged([by_course, one.by_course])
    notes = [note for one in proved for note in one.case.shrunk]
    return Verdict(
        passed=equal and all(mutant.caught for mutant in first.mutants), equal=equal,
        bound=leading.bound, max_abs_error=leading.error, allowed=leading.allowed,
        worst_parameter=leading.where,
        ranks=max(one.case.layout.world for one in proved),
        layout=" and ".join(one.case.layout.label() for one in proved), precision=precision,
        metric="absolute" if precision == "fp64" else "relative to the tensor's norm",
        steps=steps, parameters=max(one.parameters for one in proved), mutants=first.mutants,
        shrunk=tuple(dict.fromkeys(notes)), not_covered=not_covered, courses=by_course,
        derivative_error=max(one.derivatives for one in proved),
        cause=next((one.cause for one in proved if one.cause), ""),
    )  # fmt: skip
