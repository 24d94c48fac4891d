"""Price an imported run and say what it wastes: the gain, the risk, and the lines to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.costs.step import estimate as estimate_of
from meshwright.costs.step import estimates
from meshwright.exports.canonical import canonical
from meshwright.exports.fabric import resize
from meshwright.imports.edits import candidates_for
from meshwright.imports.overlaps import RISK, WHAT, overlap_edits, overlapped, same_run
from meshwright.imports.patch import Edit, apply_edits
from meshwright.imports.reading import Imported
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.plan import price_layout
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.frameworks import framework
from meshwright.specs.layout import Layout
from meshwright.specs.plan import Estimate, Plan
from meshwright.specs.quantities import format_bytes

_OFFLOADED = {
    "optimizer": ("optimizer",),
    "parameters": ("parameters",),
    "activations": ("activations",),
}
_HOST_BYTES_S = 25e9
"""What a PCIe 4.0 x16 slot moves in one direction: of every second that an offload may take at least."""
_OF_FRAMEWORK = "the framework"
"""How the sentences of rules about frameworks begin: a real run may do what the table does not know."""
_LEAST_GAIN = 0.02
_MOST = 4


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the run: what it gains and risks, and the edits of its file."""

    what: str
    layout: Layout
    gain: float
    peak_memory_bytes: float
    risk: str
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class Critique:
    """An imported run, priced, and what would change it for the better, best first."""

    plan: Plan
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = field(default=())


def price(imported: Imported, command: str = "") -> Plan:
    """Price the layout as it stands, on as many devices as it starts; what is offloaded is not held.

    Raises:
        SpecError: the layout cannot run; the message says which rule it breaks.
    """
    cluster = resize(imported.cluster, imported.layout.world)
    plan, beyond = _priced(imported, cluster, command)
    estimate = without_offloaded(plan.estimate, unpriced_offload(imported))
    notes = (
        f"imported: {imported.format}",
        *imported.notes,
        *beyond,
        *_offload_notes(plan.estimate, unpriced_offload(imported)),
    )
    return plan.but(estimate=estimate.model_dump(), fits=estimate.fits, notes=notes)


def _priced(imported: Imported, cluster: Cluster, command: str) -> tuple[Plan, tuple[str, ...]]:
    """The priced plan; what the table of frameworks does not know is said, and priced all the same."""
    model, job, layout = imported.model, imported.job, imported.layout
    sentence = why_illegal(Question(model, cluster, job), layout)
    if sentence is None or not sentence.startswith(_OF_FRAMEWORK):
        return price_layout(model, cluster, job, layout, command=command), ()
    priced = estimate_of(model, cluster, job, layout)
    plan = Plan(
        command=command, model=model, cluster=cluster, job=job, layout=layout, estimate=priced,
        fits=priced.fits,
    )  # fmt: skip
    return plan, (
        f"{sentence}, says the table of frameworks of {job.framework}; priced as the file has it",
    )


def unpriced_offload(imported: Imported) -> frozenset[str]:
    """What a run keeps in host memory that its layout does not name, so that no estimate prices it."""
    return imported.offload - frozenset(imported.layout.offload)


def without_offloaded(estimate: Estimate, offload: frozenset[str]) -> Estimate:
    """An estimate whose device memory leaves out what is kept on the host."""
    away = _away(estimate, offload)
    if not away:
        return estimate
    parts = {name: 0.0 if name in away else size for name, size in estimate.memory_parts.items()}
    peak = sum(parts.values())
    return estimate.but(
        memory_parts=parts, peak_memory_bytes=peak, fits=peak <= estimate.capacity_bytes,
        peak_memory_range=None, fit_probability=None, stages=(), memory_phases={},
    )  # fmt: skip


def _away(estimate: Estimate, offload: frozenset[str]) -> dict[str, float]:
    names = [name for what in sorted(offload) for name in _OFFLOADED.get(what, ())]
    return {name: estimate.memory_parts[name] for name in names if estimate.memory_parts.get(name)}


def _offload_notes(estimate: Estimate, offload: frozenset[str]) -> Iterator[str]:
    for name, size in _away(estimate, offload).items():
        yield (
            f"{name} ({format_bytes(size)} a device) are kept in host memory: moving them once each way takes "
            f"at least {2 * size / _HOST_BYTES_S:.2g} s, which the step time leaves out"
        )


def criticise(
    imported: Imported, plan: Plan, text: str = "", reread: Callable[[str], Imported] | None = None
) -> Critique:
    """Try every single change of the layout that could help; keep those that fit and gain over 2 %.

    Lines to change are only offered where the file with them, read again, runs what was priced.

    Args:
        text: of the file, where lines to change are wanted.
        reread: reads a changed text as the file was read.
    """
    question = Question(plan.model, plan.cluster, plan.job)
    known = why_illegal(question, plan.layout)
    recompute = framework(plan.job.framework).recompute
    tried: list[tuple[str, str, Layout]] = []
    for what, risk, change in _candidates(plan):
        try:
            layout = canonical(plan.layout.but(**change), plan.model)
        except SpecError:
            continue
        broken = why_illegal(question, layout)
        if layout.recompute not in (*recompute, plan.layout.recompute):
            continue  # hidden behind another rule that the run breaks already
        if layout != plan.layout and (broken is None or broken == known):
            tried.append((what, risk, layout))
    priced = (
        estimates(plan.model, plan.cluster, plan.job, [layout for *_, layout in tried])
        if tried
        else []
    )
    found: list[Change] = []
    for (what, risk, layout), raw in zip(tried, priced, strict=True):
        estimate = without_offloaded(raw, unpriced_offload(imported))
        gain = plan.estimate.step_time_s / estimate.step_time_s - 1
        rescued = estimate.fits and not plan.estimate.fits
        if rescued or (estimate.fits and gain > _LEAST_GAIN):
            found.append(Change(what, layout, gain, estimate.peak_memory_bytes, risk))
    hidden = overlapped(imported, plan)
    if hidden is not None:
        estimate = without_offloaded(hidden[1], unpriced_offload(imported))
        gain = plan.estimate.step_time_s / estimate.step_time_s - 1
        if estimate.fits and gain > _LEAST_GAIN:
            found.append(Change(WHAT, plan.layout, gain, estimate.peak_memory_bytes, RISK))
    found.sort(key=lambda one: -one.gain)
    found = found[:_MOST]
    if text and reread is not None:
        found = [_with_lines(change, imported, plan, text, reread) for change in found]
    return Critique(plan, tuple(found))


def _with_lines(
    change: Change, imported: Imported, plan: Plan, text: str, reread: Callable[[str], Imported]
) -> Change:
    """A change with the first lines that, read again, give its layout and its job."""
    hidden = overlapped(imported, plan) if change.what == WHAT else None
    job = imported.job if hidden is None else hidden[0]
    places = (
        candidates_for(text, imported, plan.layout, change.layout)
        if hidden is None
        else overlap_edits(text, imported)
    )
    for edits in places:
        try:
            back = reread(apply_edits(text, list(edits)))
        except SpecError:
            continue
        same = canonical(back.layout, back.model) == canonical(change.layout, back.model)
        if same and back.model == imported.model and same_run(back.job, job):
            return replace(change, edits=edits)
    return change


def _candidates(plan: Plan) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(what changes, its risk, the fields of the layout) of every single change."""
    layout, batch = plan.layout, plan.job.global_batch
    same = "none for the numbers: the same sums in another order"
    if layout.recompute != "none":
        off = {"recompute": "none", "recompute_layers": 0, "stage_recompute_layers": None}
        yield (
            "keep all activations instead of recomputing",
            "memory: activations grow with the sequence",
            off,
        )
        if layout.recompute == "full":
            yield (
                "recompute the attention core only",
                "memory: activations grow with the sequence",
                {**off, "recompute": "selective"},
            )
    elif not plan.estimate.fits:
        yield "recompute all layers", "a third more forward time", {"recompute": "full"}
    if layout.zero == 0 and layout.dp * layout.cp > 1:
        yield "shard the optimizer (ZeRO-1)", "checkpoints change their form", {"zero": 1}
    if layout.zero == 3:
        yield (
            "keep gathered weights through the backward (ZeRO-2)",
            "memory: whole weights stay",
            {"zero": 2},
        )
    if layout.tp > 1 and not layout.sequence_parallel:
        yield (
            "split norms along the sequence (sequence parallelism)",
            same,
            {"sequence_parallel": True},
        )
    for factor in (2, 4):
        if batch % (layout.dp * layout.micro_batch * factor) == 0:
            yield (
                f"micro-batches of {layout.micro_batch * factor}",
                "memory: activations grow with them",
                {"micro_batch": layout.micro_batch * factor},
            )
    for axis in ("tp", "pp", "cp"):
        size = getattr(layout, axis)
        if size > 1 and size % 2 == 0:
            change = {axis: size // 2, "dp": layout.dp * 2, "shard": 0}
            if axis == "pp":
                change |= {"stage_layers": None, "stage_recompute_layers": None}
            if batch % (layout.dp * 2 * layout.micro_batch) == 0:
                yield (
                    f"{axis} {size // 2} instead of {size}, more replicas",
                    "memory: each device holds more",
                    change,
                )
    if layout.pp > 1 and layout.virtual_stages == 1 and plan.model.layers % (2 * layout.pp) == 0:
        yield (
            "two chunks a stage (interleaved)",
            "more messages between stages",
            {"virtual_stages": 2, "schedule": "interleaved", "stage_layers": None},
        )
