"""A layout changed by hand: completed, priced, compared with the plan, and taken along.

Only what a person set is sent; the rest is the plan's, with data parallelism making up the devices.
What cannot run is answered with a sentence and the nearest layouts that can, never with a figure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import Body, Query
from typing_extensions import TypedDict

from meshwright.planner.completion import completed, differences, nearest, why_not
from meshwright.planner.legality import Question
from meshwright.planner.plan import price_layout
from meshwright.planner.words import PART_WORDS
from meshwright.specs.errors import DoesNotFitError, SpecError
from meshwright.specs.frameworks import framework as framework_of
from meshwright.specs.frameworks import names_of_one_program, planned_as
from meshwright.specs.layout import Layout
from meshwright.specs.plan import Estimate, Plan
from meshwright.specs.quantities import format_bytes, format_seconds
from meshwright.studio.commands import Asked, AskedInQuery, Links, layout_links
from meshwright.studio.planning import PlanRequest, asked_by, axes_of, best_plan, read_asked
from meshwright.studio.questions import AUTO, MOST_DEVICES, read_model


class PriceProblem(TypedDict):
    """Why a layout cannot run."""

    field: str
    sentence: str


class Against(TypedDict):
    """A layout against the best one for the same question."""

    step_time_ratio: float
    memory_delta_bytes: float
    sentences: list[str]


class Completion(TypedDict):
    """A layout that can run, near one that cannot; `axes` is how to ask for it."""

    label: str
    changes: list[str]
    axes: dict[str, str]
    step_time_s: float
    peak_memory_bytes: float
    fits: bool


class PriceAnswer(TypedDict):
    """What one layout costs; `estimate`, `plan` and `links` are null where it cannot run."""

    layout: dict[str, Any]
    label: str
    changes: list[str]
    followed: list[str]
    axes: dict[str, str]
    estimate: dict[str, Any] | None
    accepted: bool
    problem: PriceProblem | None
    completions: list[Completion]
    against: Against | None
    plan: dict[str, Any] | None
    links: Links | None


class PriceRequest(PlanRequest):
    """A question with what was set of a layout, by the names of its fields."""

    layout: dict[str, Any]


Degree = Annotated[int | None, Query(ge=1, le=MOST_DEVICES)]
Layers = Annotated[str | None, Query(max_length=1200, pattern=r"^\d{1,4}(,\d{1,4})*$")]


def price_by_query(
    asked: AskedInQuery,
    dp: Degree = None,
    tp: Degree = None,
    pp: Degree = None,
    cp: Degree = None,
    ep: Degree = None,
    etp: Degree = None,
    v: Annotated[int | None, Query(ge=1, le=256, description="model chunks a rank")] = None,
    zero: Annotated[int | None, Query(ge=0, le=3)] = None,
    shard: Annotated[int | None, Query(ge=0, le=MOST_DEVICES)] = None,
    micro_batch: Degree = None,
    recompute: Annotated[str | None, Query(pattern="^(none|selective|full)$")] = None,
    recompute_layers: Annotated[int | None, Query(ge=0, le=4096)] = None,
    schedule: Annotated[str | None, Query(max_length=40)] = None,
    sequence_parallel: bool | None = None,
    rank_order: Annotated[str | None, Query(max_length=40)] = None,
    stage_layers: Layers = None,
    stage_recompute_layers: Layers = None,
    cp_method: Annotated[str | None, Query(max_length=40)] = None,
    recompute_modules: Annotated[str | None, Query(max_length=200)] = None,
    offload: Annotated[str | None, Query(max_length=200)] = None,
    changed: Annotated[str, Query(max_length=40, description="the axis set last")] = "",
) -> PriceAnswer:
    """Price a layout of which some axes are set, and say what it costs against the best one.

    Raises:
        SpecError: a name or quantity is not accepted.
    """
    fields = {
        "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp, "virtual_stages": v,
        "zero": zero, "shard": shard, "micro_batch": micro_batch, "recompute": recompute,
        "recompute_layers": recompute_layers, "schedule": schedule,
        "sequence_parallel": sequence_parallel, "rank_order": rank_order,
        "cp_method": cp_method, "recompute_modules": _names(recompute_modules),
        "offload": _names(offload), "stage_layers": _numbers(stage_layers),
        "stage_recompute_layers": _numbers(stage_recompute_layers),
    }  # fmt: skip
    wanted = {name: value for name, value in fields.items() if value is not None}
    changed = "virtual_stages" if changed == "v" else changed
    return _priced(read_asked(read_model(asked.model), asked), asked, wanted, changed)


def price_by_body(request: Annotated[PriceRequest, Body()]) -> PriceAnswer:
    """Price one layout of a preset or uploaded model; axes that are not set are the plan's.

    Raises:
        SpecError: a name, quantity or field is not accepted.
    """
    asked = asked_by(request)
    question = read_asked(read_model(request["model"]), asked)
    given = {name: value for name, value in request["layout"].items() if value is not None}
    try:
        wanted = _checked(given)
    except SpecError as error:
        return _refused(given, error.field, str(error))
    return _priced(question, asked, wanted, "")


def _names(text: str | None) -> tuple[str, ...] | None:
    return tuple(text.split(",")) if text else None


def _numbers(text: str | None) -> tuple[int, ...] | None:
    return None if text is None else tuple(int(part) for part in text.split(","))


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a layout with the types that they have, each by itself."""
    wanted: dict[str, Any] = {}
    for name, value in given.items():
        # A shard degree or layers a stage are legal only with other fields: those are checked later.
        alone = {"shard": {"dp": value}, "recompute_layers": {}}.get(name, {})
        if name in ("stage_layers", "stage_recompute_layers"):
            wanted[name] = value
            continue
        if isinstance(value, (int, float)) and abs(value) > MOST_DEVICES:
            raise SpecError(name, value, f"at most {MOST_DEVICES} here")
        wanted[name] = getattr(Layout.parse({name: value} | alone, "layout"), name)
    return wanted


def _priced(question: Question, asked: Asked, wanted: dict[str, Any], changed: str) -> PriceAnswer:
    best = _best(question, asked.objective)
    base = best.layout if best else Layout()
    if best:  # under the framework that the plan chose, on the devices that it uses
        question = replace(question, cluster=best.cluster, job=best.job)
    free = best is not None and asked.framework == AUTO
    try:
        layout = completed(question, base, wanted)
        if free:
            question = _named(question, planned_as(question.job.framework, layout.zero))
        sentence = why_not(question, layout)
    except SpecError as error:
        refused = _refused(wanted, error.field, str(error))
        near = _nearest(question, base, wanted, changed, free)
        refused["completions"] = [_completion(base, one, priced) for one, priced in near]
        return refused
    if sentence is not None:
        if sentence.startswith("the framework"):
            sentence = framework_of(question.job.framework).title + sentence[len("the framework") :]
        near = _nearest(question, layout, wanted, changed, free)
        refused = _refused(layout.plain(), "layout", sentence, layout.label())
        refused["completions"] = [_completion(base, one, priced) for one, priced in near]
        refused["changes"], refused["axes"] = differences(base, layout), axes_of(layout)
        return refused
    links = layout_links(asked, question.job, layout)
    made = price_layout(
        question.model, question.cluster, question.job, layout, command=links["cli"]
    )
    changes = differences(base, layout)
    named = {f"{phrase} " for phrase in differences(base, _only(base, layout, wanted))}
    return {
        "layout": layout.plain(),
        "label": layout.label(),
        "changes": changes,
        "followed": [one for one in changes if f"{one} " not in named],
        "axes": axes_of(layout),
        "estimate": made.estimate.plain(),
        "accepted": True,
        "problem": None,
        "completions": [],
        "against": None if best is None else _against(best, made.estimate, layout),
        "plan": made.plain(),
        "links": links,
    }


def _named(question: Question, framework: str) -> Question:
    return replace(question, job=question.job.but(framework=framework))


def _nearest(
    question: Question, target: Layout, wanted: dict[str, Any], changed: str, free: bool
) -> list[tuple[Layout, Estimate]]:
    """The nearest layouts that run, those first that keep what was set by hand.

    `free`: nobody asked for a framework, so that what shares a program counts as one.
    """
    names = names_of_one_program(question.job.framework) if free else (question.job.framework,)
    found: dict[str, tuple[Layout, Estimate]] = {}
    for name in names:
        for one, priced in nearest(_named(question, name), target, wanted, changed):
            found.setdefault(one.label(), (one, priced))

    def keeps(layout: Layout) -> bool:
        return all(getattr(layout, name, value) == value for name, value in wanted.items())

    return sorted(found.values(), key=lambda each: not keeps(each[0]))[:4]


def _only(base: Layout, layout: Layout, wanted: dict[str, Any]) -> Layout:
    """The base with nothing but what was set by hand; not necessarily a layout that runs."""
    return base.model_copy(update={name: getattr(layout, name) for name in wanted})


def _best(question: Question, objective: str) -> Plan | None:
    try:
        return best_plan(question, objective)
    except (DoesNotFitError, SpecError):
        return None


def _completion(base: Layout, layout: Layout, priced: Estimate) -> Completion:
    return {
        "label": layout.label(), "changes": differences(base, layout), "axes": axes_of(layout),
        "step_time_s": priced.step_time_s, "peak_memory_bytes": priced.peak_memory_bytes,
        "fits": priced.fits,
    }  # fmt: skip


def _refused(fields: dict[str, Any], field: str, sentence: str, label: str = "") -> PriceAnswer:
    return {
        "layout": fields, "label": label, "changes": [], "followed": [], "axes": {},
        "estimate": None, "accepted": False, "problem": {"field": field, "sentence": sentence},
        "completions": [], "against": None, "plan": None, "links": None,
    }  # fmt: skip


def _against(best: Plan, priced: Estimate, layout: Layout) -> Against:
    ratio = priced.step_time_s / best.estimate.step_time_s
    delta = priced.peak_memory_bytes - best.estimate.peak_memory_bytes
    changes = differences(best.layout, layout)
    if not changes:
        sentences = ["This is the plan itself."]
        return {"step_time_ratio": ratio, "memory_delta_bytes": delta, "sentences": sentences}
    pace = (
        "as fast as"
        if abs(ratio - 1) < 0.0005
        else (f"{ratio - 1:.1%} slower than" if ratio > 1 else f"{1 - ratio:.1%} faster than")
    )
    sentences = [
        f"With {', '.join(changes)} it is {pace} the plan and needs "
        f"{format_bytes(abs(delta))} {'more' if delta >= 0 else 'less'} at the peak."
    ]
    sentences += _worst_case(best.estimate, priced, ratio)
    if not priced.fits:
        heaviest = max(priced.stages, key=lambda stage: stage.total_bytes)
        short = heaviest.total_bytes - priced.capacity_bytes
        sentences.append(f"It does not fit: {format_bytes(short)} over on stage {heaviest.stage}.")
    sentences += _changes(best.estimate.time_parts, priced.time_parts, PART_WORDS, format_seconds)
    memory = {name: name.replace("_", " ") for name in priced.memory_parts}
    sentences += _changes(best.estimate.memory_parts, priced.memory_parts, memory, format_bytes)
    return {"step_time_ratio": ratio, "memory_delta_bytes": delta, "sentences": sentences}


def _worst_case(best: Estimate, priced: Estimate, ratio: float) -> list[str]:
    """Why a layout that looks better was not chosen."""
    slow, slower = best.pessimistic_s, priced.pessimistic_s
    if ratio >= 0.9995 or not priced.fits or slow is None or slower is None:
        return []
    if slower > slow:
        return [
            f"It was not chosen because plans are ranked with what is hard to predict at its bad end: "
            f"{format_seconds(slower)} then, against {format_seconds(slow)}."
        ]
    if (priced.fit_probability or 1) < (best.fit_probability or 1):
        return [f"It was not chosen because it fits with {priced.fit_probability:.0%} only."]
    return []


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
                f"{way}: {words.get(name, name)}, {_shown(before.get(name), show)} → "
                f"{_shown(after[name], show)}."
            )
    return said


def _shown(value: float | None, show: Any) -> str:
    return str(show(value)) if value else "none"


ROUTES = (
    ("GET", "/api/price", price_by_query, PriceAnswer),
    ("POST", "/api/price", price_by_body, PriceAnswer),
)
"""Method, path, function and answer type of each endpoint."""
