"""One layout, chosen by hand: what it costs, and what it costs against the best one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Query
from typing_extensions import TypedDict

from meshwright.costs.step import estimate
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.words import PART_WORDS
from meshwright.specs.errors import DoesNotFitError, SpecError
from meshwright.specs.layout import Layout
from meshwright.specs.plan import Estimate
from meshwright.specs.quantities import format_bytes, format_seconds
from meshwright.studio.planning import PlanRequest, best_plan
from meshwright.studio.questions import MOST_DEVICES, Text, read_model, read_question


class PriceProblem(TypedDict):
    """Why a layout cannot run."""

    field: str
    sentence: str


class Against(TypedDict):
    """A layout against the best one for the same question."""

    step_time_ratio: float
    memory_delta_bytes: float
    sentences: list[str]


class PriceAnswer(TypedDict):
    """What one layout costs; `estimate` is an Estimate as JSON, or null where it cannot run."""

    layout: dict[str, Any]
    label: str
    estimate: dict[str, Any] | None
    accepted: bool
    problem: PriceProblem | None
    against: Against | None


class PriceRequest(PlanRequest):
    """A question with a layout."""

    layout: dict[str, Any]


def price_by_query(
    model: Text = "llama3-70b",
    cluster: Text = "h100:8x8",
    seq: Text = "8192",
    batch: Text = "4M-tokens",
    recipe: Text = "bf16",
    optimizer: Text = "adamw",
    objective: Annotated[str, Query(pattern="^(time|memory|cost)$")] = "time",
    dp: Annotated[int, Query(ge=1, le=MOST_DEVICES)] = 1,
    tp: Annotated[int, Query(ge=1, le=MOST_DEVICES)] = 1,
    pp: Annotated[int, Query(ge=1, le=4096)] = 1,
    cp: Annotated[int, Query(ge=1, le=4096)] = 1,
    ep: Annotated[int, Query(ge=1, le=4096)] = 1,
    v: Annotated[int, Query(ge=1, le=256, description="model chunks a rank")] = 1,
    zero: Annotated[int, Query(ge=0, le=3)] = 0,
    shard: Annotated[int, Query(ge=0, le=MOST_DEVICES)] = 0,
    micro_batch: Annotated[int, Query(ge=1, le=65_536)] = 1,
    recompute: Annotated[str, Query(pattern="^(none|selective|full)$")] = "none",
    schedule: Text = "1f1b",
    sequence_parallel: bool = False,
) -> PriceAnswer:
    """Price one layout and say what it costs against the best one.

    Raises:
        SpecError: a name or quantity is not accepted.
    """
    fields = {
        "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "virtual_stages": v, "zero": zero,
        "shard": shard, "micro_batch": micro_batch, "recompute": recompute, "schedule": schedule,
        "sequence_parallel": sequence_parallel,
    }  # fmt: skip
    question = read_question(read_model(model), cluster, seq, batch, recipe, optimizer)
    return _priced(question, fields, objective)


def price_by_body(request: Annotated[PriceRequest, Body()]) -> PriceAnswer:
    """Price one layout of a preset or uploaded model.

    Raises:
        SpecError: a name, quantity or field is not accepted.
    """
    job = request.get("job", {})
    question = read_question(
        read_model(request["model"]), request["cluster"], job.get("seq", "8192"),
        job.get("batch", "4M-tokens"), job.get("recipe", "bf16"), job.get("optimizer", "adamw"),
    )  # fmt: skip
    return _priced(question, request["layout"], request.get("objective", "time"))


def _priced(question: Question, fields: dict[str, Any], objective: str) -> PriceAnswer:
    try:
        layout = Layout.parse(fields, "layout")
        # The schedule's own rules are checked where a person would meet them: by the planner.
        if layout.schedule == "1f1b" and layout.virtual_stages > 1:
            layout = layout.but(schedule="interleaved")
        elif layout.schedule == "interleaved" and layout.virtual_stages == 1:
            layout = layout.but(schedule="1f1b")
        sentence = _cannot_run(question, layout)
    except SpecError as error:
        return _refused(fields, error.field, str(error))
    if sentence is not None:
        return _refused(layout.plain(), "layout", sentence, layout.label())
    priced = estimate(question.model, question.cluster, question.job, layout)
    return {
        "layout": layout.plain(),
        "label": layout.label(),
        "estimate": priced.plain(),
        "accepted": True,
        "problem": None,
        "against": _against(question, priced, layout, objective),
    }


def _cannot_run(question: Question, layout: Layout) -> str | None:
    if layout.world != question.cluster.gpus:
        axes = " · ".join(
            f"{a} {getattr(layout, a)}" for a in ("dp", "tp", "pp", "cp") if getattr(layout, a) > 1
        )
        return (
            f"{axes or '1'} = {layout.world} devices, but the cluster has {question.cluster.gpus}"
        )
    if question.job.global_batch % (layout.dp * layout.micro_batch):
        return (
            f"a global batch of {question.job.global_batch} does not divide into dp {layout.dp} · "
            f"micro-batch {layout.micro_batch}"
        )
    return why_illegal(question, layout)


def _refused(fields: dict[str, Any], field: str, sentence: str, label: str = "") -> PriceAnswer:
    return {
        "layout": fields, "label": label, "estimate": None, "accepted": False,
        "problem": {"field": field, "sentence": sentence}, "against": None,
    }  # fmt: skip


def _against(
    question: Question, priced: Estimate, layout: Layout, objective: str
) -> Against | None:
    try:
        best = best_plan(question, objective)
    except (DoesNotFitError, SpecError):
        return None
    ratio = priced.step_time_s / best.estimate.step_time_s
    delta = priced.peak_memory_bytes - best.estimate.peak_memory_bytes
    pace = "as fast as" if abs(ratio - 1) < 0.0005 else (
        f"{ratio - 1:.1%} slower than" if ratio > 1 else f"{1 - ratio:.1%} faster than"
    )  # fmt: skip
    sentences = [
        f"{layout.label()} is {pace} the plan, {best.layout.label()}, and needs "
        f"{format_bytes(abs(delta))} {'more' if delta >= 0 else 'less'} at the peak."
    ]
    if not priced.fits:
        heaviest = max(priced.stages, key=lambda stage: stage.total_bytes)
        short = heaviest.total_bytes - priced.capacity_bytes
        sentences.append(f"It does not fit: {format_bytes(short)} over on stage {heaviest.stage}.")
    sentences += _changes(best.estimate.time_parts, priced.time_parts, PART_WORDS, format_seconds)
    memory = {name: name.replace("_", " ") for name in priced.memory_parts}
    sentences += _changes(best.estimate.memory_parts, priced.memory_parts, memory, format_bytes)
    return {"step_time_ratio": ratio, "memory_delta_bytes": delta, "sentences": sentences}


def _changes(
    before: dict[str, float], after: dict[str, float], words: dict[str, str], show: Any
) -> list[str]:
    """The largest growth and the largest saving, if they matter."""
    change = {name: after[name] - before.get(name, 0.0) for name in after}
    floor = 0.004 * max(sum(before.values()), 1e-12)
    said = []
    for name in (max(change, key=lambda n: change[n]), min(change, key=lambda n: change[n])):
        if abs(change[name]) > floor:
            way = "More" if change[name] > 0 else "Less"
            said.append(
                f"{way}: {words.get(name, name)}, {show(before.get(name, 0.0))} → {show(after[name])}."
            )
    return said


ROUTES = (
    ("GET", "/api/price", price_by_query, PriceAnswer),
    ("POST", "/api/price", price_by_body, PriceAnswer),
)
"""Method, path, function and answer type of each endpoint."""
