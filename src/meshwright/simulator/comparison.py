"""Every schedule side by side for one shape: bubble, memory, messages, or the reason against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.schedules import FAMILIES, Shape, build, refusal
from meshwright.schedules.communication import message_counts
from meshwright.schedules.registry import ANY, resolve
from meshwright.simulator.evaluate import Simulator


@dataclass(frozen=True)
class Row:
    """One schedule for one shape; numbers are None where it is illegal.

    Attributes:
        variant: what tells rows of one schedule apart, such as "limit 2 pp"; often empty.
        reason: why it is refused, or None.
        speedup: 1F1B's makespan over this one's, minus 1.
        peak_in_flight: micro-batches of one rank, per rank.
        parameters: model shares a rank holds, relative to one pipeline.
        messages: most messages that one rank sends per step.
        split_backward: whether the backward must run in two halves.
        note: what to know before choosing it.
    """

    schedule: str
    variant: str
    virtual_stages: int
    reason: str | None
    bubble_span: float | None = None
    bubble_makespan: float | None = None
    makespan: float | None = None
    speedup: float | None = None
    peak_in_flight: tuple[float, ...] = ()
    parameters: int = 1
    messages: int | None = None
    split_backward: bool = False
    note: str = ""

    @property
    def legal(self) -> bool:
        """Whether the schedule can run the shape."""
        return self.reason is None


def compare_schedules(shape: Shape, chunk_counts: Sequence[int] = (2, 4)) -> list[Row]:
    """Evaluate every schedule for one shape.

    Args:
        shape: ranks, micro-batches, times and message time; its virtual stages are ignored.
        chunk_counts: virtual stages to try for schedules that allow any number.

    Raises:
        SpecError: the shape makes no sense for any schedule.
    """
    reference = Simulator(build("1f1b", pp=shape.pp, micro_batches=shape.micro_batches))
    one_f_one_b = reference.makespan_s(shape.times, shape.comm)
    rows = []
    for name, kind in FAMILIES.items():
        fewest, most = kind.chunks
        counts = [v for v in chunk_counts if v >= fewest] if most == ANY else [fewest]
        if name == "zb-h1":
            counts = [1, *counts]
        for v in counts or [fewest]:
            for variant, one in _variants(name, replace(shape, virtual_stages=v)):
                rows.append(_row(name, variant, one, one_f_one_b))
    return rows


def _variants(name: str, shape: Shape) -> list[tuple[str, Shape]]:
    if name == "zb-auto" and not shape.memory_limit:
        limits = [(f"limit {word}", factor * shape.pp) for word, factor in (("pp", 1), ("2 pp", 2))]
        return [(word, replace(shape, memory_limit=float(limit))) for word, limit in limits]
    if name == "seq-1f1b":
        counts = [shape.slices] if shape.slices else [2, 4]
        return [(f"{k} slices", replace(shape, slices=k)) for k in counts]
    return [("", replace(shape, slices=0))]


def _row(name: str, variant: str, shape: Shape, one_f_one_b: float) -> Row:
    kind, shape = FAMILIES[name], resolve(name, shape)
    reason = refusal(name, shape)
    if reason is not None:
        return Row(name, variant, shape.virtual_stages, reason, parameters=kind.parameters)
    schedule = build(name, **vars(shape))
    timeline = Simulator(schedule).run(shape.times, shape.comm, attribute=False)
    note = ""
    if schedule.asynchronous:
        note = f"not synchronous: up to {shape.pp} weight versions, no bubble once it runs"
    elif timeline.bubble.makespan - timeline.bubble.span > 0.01:
        note = "its span bubble needs an optimizer that does not wait for all ranks"
    elif bool(schedule.overlapped.any()):
        note = "without the gain of overlapping forward and backward (see --pair-ratio)"
    elif schedule.slices > 1:
        note = "slices must take equal time"
    return Row(
        schedule=name,
        variant=variant,
        virtual_stages=schedule.virtual_stages,
        reason=None,
        bubble_span=timeline.bubble.span,
        bubble_makespan=timeline.bubble.makespan,
        makespan=timeline.makespan_s,
        speedup=one_f_one_b / timeline.makespan_s - 1 if timeline.makespan_s else 0.0,
        peak_in_flight=tuple(timeline.peak_in_flight),
        parameters=kind.parameters,
        messages=max(message_counts(schedule)),
        split_backward=kind.split_backward,
        note=note,
    )
