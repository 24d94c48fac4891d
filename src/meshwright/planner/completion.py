"""Layouts changed by hand: degrees move together, and what cannot run has near ones that can.

A person who sets one degree leaves the others open. `completed` lets data parallelism make up the
devices, with what hangs on it; where that does not run, `nearest` finds the legal layouts that keep
what was set and change least of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshwright.costs.columns import RECOMPUTES, Floats, LayoutColumns, bits, concatenate
from meshwright.costs.pipeline import CODE
from meshwright.costs.step import estimates
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.space import Constraints, Tally, divisors, enumerate_layouts, offered
from meshwright.schedules.registry import family
from meshwright.specs.errors import SpecError
from meshwright.specs.layout import CONTEXT_METHODS, MODULES, Layout
from meshwright.specs.plan import Estimate

AXES = (
    "dp", "tp", "pp", "cp", "ep", "etp", "virtual_stages", "zero", "shard", "micro_batch",
    "recompute", "schedule", "sequence_parallel", "cp_method",
)  # fmt: skip
"""What can be set by hand."""

PRICED = 48
"""Nearest layouts that are priced, so that the faster of two equally near ones comes first."""

_WEIGHT = {
    "dp": 0.2,
    "virtual_stages": 0.5,
    "schedule": 0.5,
    "sequence_parallel": 0.3,
    "shard": 0.3,
    "cp_method": 0.3,
}
"""How much a change of an axis counts: 1 unless it usually follows from another."""
_DEGREES = ("dp", "tp", "pp", "cp", "ep", "micro_batch")


def completed(question: Question, base: Layout, wanted: Mapping[str, Any]) -> Layout:
    """Return the base with the wanted axes, and with what follows from them of itself.

    Data parallelism makes up the devices unless it was set; sequence parallelism, virtual stages,
    shard degree and named layers follow the degrees on which they hang.

    Raises:
        SpecError: an axis has a value that no layout has.
    """
    changes: dict[str, Any] = dict(wanted)

    def now(name: str) -> Any:
        return changes.get(name, getattr(base, name))

    rest = now("tp") * now("pp") * now("cp")
    if "dp" not in wanted and question.cluster.gpus % rest == 0:
        changes["dp"] = question.cluster.gpus // rest
    if "sequence_parallel" not in wanted and (now("tp") > 1) != (base.tp > 1):
        never = offered(question).sequence_parallel == "never"
        changes["sequence_parallel"] = now("tp") > 1 and not never
    if "etp" not in wanted and now("tp") % base.etp:
        changes["etp"] = 1
    changes |= _schedule(question.model.layers, base, changes, wanted)
    if now("pp") != base.pp or now("virtual_stages") != base.virtual_stages:
        changes |= {"stage_layers": None, "stage_recompute_layers": None}
    if "recompute" in wanted and wanted["recompute"] != base.recompute:
        usual = {"recompute_layers": 0, "stage_recompute_layers": None, "recompute_modules": ()}
        changes |= {name: value for name, value in usual.items() if name not in wanted}
    if "shard" not in wanted and base.shard:
        replicas = now("dp") * now("cp")
        if now("zero") == 0 or replicas % base.shard or base.shard >= replicas:
            changes["shard"] = 0
    return Layout.parse(base.plain() | changes, "layout")


def _schedule(
    layers: int, base: Layout, changes: dict[str, Any], wanted: Mapping[str, Any]
) -> dict[str, Any]:
    """The schedule and the number of virtual stages that go with each other, with pp and the layers."""
    pp = changes.get("pp", base.pp)
    schedule = wanted.get("schedule", base.schedule)
    virtual = wanted.get("virtual_stages", base.virtual_stages)
    if pp == 1:
        schedule = wanted.get("schedule", "1f1b")
        virtual = wanted.get("virtual_stages", 1)
    elif "virtual_stages" not in wanted and layers % (base.pp * virtual) == 0:
        # Chunks of whole layers, as before: no more of them than the layers of a rank allow.
        low, high = family(schedule).chunks
        if high > low and layers % (pp * virtual):
            virtual = max((v for v in divisors(virtual) if layers % (pp * v) == 0), default=1)
    if "schedule" in wanted and "virtual_stages" not in wanted:
        if schedule in ("gpipe", "1f1b"):
            virtual = 1
        elif schedule in ("zb-v", "v-half", "v-min", "dualpipe-v"):
            virtual = 2
    elif schedule == "interleaved" and virtual == 1:
        schedule = "1f1b"
    elif schedule == "1f1b" and virtual > 1:
        schedule = "interleaved"
    return {"schedule": schedule, "virtual_stages": virtual}


def why_not(question: Question, layout: Layout) -> str | None:
    """Return the sentence that says why a layout cannot run here, with its numbers, or None."""
    gpus, batch = question.cluster.gpus, question.job.global_batch
    if layout.world != gpus:
        axes = " · ".join(
            f"{a} {getattr(layout, a)}" for a in ("dp", "tp", "pp", "cp") if getattr(layout, a) > 1
        )
        return f"{axes or '1'} = {layout.world} devices, but the cluster has {gpus}"
    if batch % (layout.dp * layout.micro_batch):
        return (
            f"a global batch of {batch} does not divide into dp {layout.dp} · "
            f"micro-batch {layout.micro_batch}"
        )
    if layout.pp == 1 and (layout.virtual_stages > 1 or layout.schedule != "1f1b"):
        return "a schedule, or several chunks a rank, needs a pipeline: pp above 1"
    if layout.ep > 1 and question.model.experts is None:
        return "expert parallelism divides experts, and this model has none"
    return why_illegal(question, layout)


def nearest(
    question: Question, target: Layout, wanted: Mapping[str, Any], changed: str = "", most: int = 4
) -> list[tuple[Layout, Estimate]]:
    """Return the legal layouts that keep what is wanted and differ least from the target, nearest first.

    Where nothing legal has all that is wanted, the axis that was `changed` last is kept alone; where
    nothing has its value either, its nearest values that can be had.
    """
    known = {"schedule": CODE, "recompute": RECOMPUTES, "cp_method": CONTEXT_METHODS}
    keep = {
        name: value
        for name, value in wanted.items()
        if name in AXES and (name not in known or value in known[name])
    }
    if keep.get("ep", 1) > 1 and question.model.experts is None:
        return []
    last = {changed: keep[changed]} if changed in keep else {}
    attempts = [keep, last] if last else [keep]
    if not last:
        attempts += [{k: v for k, v in keep.items() if k != name} for name in keep]
    for fixed in attempts:
        if found := _near(question, target, fixed, most):
            return found
    others: dict[str, tuple[Layout, Estimate]] = {}
    for fixed in _near_values(question, last or keep):
        others |= {one.label(): (one, priced) for one, priced in _near(question, target, fixed, 2)}
        if len(others) >= most:
            break
    return list(others.values())[:most]


def _near_values(question: Question, keep: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One wanted number replaced by others that could be had, the nearest first."""
    attempts = []
    for name, value in keep.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            continue
        others = [d for d in divisors(question.cluster.gpus) if d != value]
        if name == "micro_batch":
            others = [d for d in divisors(question.job.global_batch) if d != value]
        others.sort(key=lambda d, value=value: abs(np.log2(d / value)))  # type: ignore[misc]
        attempts += [{name: d} for d in others[:4]]
    return attempts


def _near(
    question: Question, target: Layout, fixed: Mapping[str, Any], most: int
) -> list[tuple[Layout, Estimate]]:
    try:
        tables = list(enumerate_layouts(question, Constraints.parse(dict(fixed)), Tally()))
    except SpecError:
        return []
    if not tables:
        return []
    columns = concatenate(tables)
    far = _distance(columns, target)
    for name, value in fixed.items():
        far[getattr(columns, name) != _code(name, value)] = np.inf
    if fixed.get("virtual_stages", 1) > 1 or fixed.get("schedule", "1f1b") != "1f1b":
        far[columns.pp == 1] = np.inf
    rows = np.argsort(far, kind="stable")[:PRICED]
    rows = rows[np.isfinite(far[rows])]
    if not len(rows):
        return []
    layouts = [columns.layout(int(row)) for row in rows]
    priced = estimates(question.model, question.cluster, question.job, layouts)
    order = sorted(
        range(len(rows)),
        key=lambda i: (not priced[i].fits, round(float(far[rows[i]]), 6), priced[i].step_time_s),
    )
    found: dict[tuple[object, ...], tuple[Layout, Estimate]] = {}
    for i in order:  # one of each kind: choices that differ in details are no choice
        found.setdefault(_kind(layouts[i]), (layouts[i], priced[i]))
    return list(found.values())[:most]


def _kind(layout: Layout) -> tuple[object, ...]:
    return (
        layout.dp, layout.tp, layout.pp, layout.cp, layout.ep, layout.zero, layout.micro_batch,
        layout.schedule,
    )  # fmt: skip


def _code(name: str, value: Any) -> int:
    """A wanted value as the columns hold it."""
    if name == "recompute":
        return RECOMPUTES.index(value)
    if name == "schedule":
        return CODE[value]
    if name == "cp_method":
        return CONTEXT_METHODS.index(value)
    return int(value)


def _distance(columns: LayoutColumns, target: Layout) -> Floats:
    """How much each row differs from a layout: axes that differ, and degrees by their ratio too."""
    far = np.zeros(columns.rows)
    for name in AXES:
        have, want = getattr(columns, name), _code(name, getattr(target, name))
        weight = _WEIGHT.get(name, 1.0)
        if name == "cp_method":  # it means nothing without context parallelism
            far += weight * ((have != want) & (columns.cp > 1))
            continue
        if name == "shard":  # all of dp · cp, whether written as 0 or in full
            have, want = columns.shard_degree, target.shard_degree
        far += weight * (have != want)
        if name in _DEGREES:
            far += 0.25 * weight * np.abs(np.log2(have / want))
    modules = columns.recompute_modules != bits(target.recompute_modules, MODULES)
    return far + 0.4 * (columns.rank_order != 0) + 0.5 * modules


_SHOWN = {
    "dp": "dp", "tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "etp": "etp",
    "virtual_stages": "chunks a rank", "zero": "ZeRO", "shard": "shard degree",
    "micro_batch": "micro-batch", "recompute": "recompute", "recompute_layers": "recomputed layers",
    "recompute_modules": "recomputed modules", "offload": "offload", "cp_method": "context method",
    "schedule": "schedule", "sequence_parallel": "sequence parallel", "rank_order": "rank order",
    "stage_layers": "layers a stage", "stage_recompute_layers": "recomputed layers a stage",
}  # fmt: skip


def differences(before: Layout, after: Layout) -> list[str]:
    """What differs between two layouts, a phrase each: `dp 2 → 1`, `schedule 1f1b → zb-v`."""
    said = []
    for name, word in _SHOWN.items():
        old, new = getattr(before, name), getattr(after, name)
        if name == "shard":
            old, new = before.shard_degree, after.shard_degree
            # The group grows with dp where it is all of them: then dp says it.
            whole = before.shard in (0, before.dp * before.cp)
            if before.zero == 0 or after.zero == 0 or (whole and after.shard == 0):
                continue
        if name == "cp_method" and before.cp == after.cp == 1:
            continue
        if old != new:
            said.append(f"{word} {_value(old)} → {_value(new)}")
    return said


def _value(value: object) -> str:
    if value is None:
        return "even"
    if isinstance(value, bool):
        return "on" if value else "off"
    if value == ():
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
