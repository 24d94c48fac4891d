"""Memory of every rank over the time of one step, by part, with the moment and cause of its peak."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.schedules.ops import Kind, Op, Schedule
from meshwright.simulator.timeline import Timeline

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MemoryModel:
    """What ranks hold.

    Attributes:
        activation_bytes: of one unit on one stage, from its F to its W or B; a scalar or shape
            (stages,).
        resident_bytes: what is there all the time, by part (parameters, gradients, optimizer…);
            each a scalar or shape (pp,).
        kept_for_weights: share of the activations that stays from I to W. 1 is cautious: torch
            frees little before W.
    """

    activation_bytes: ArrayLike
    resident_bytes: dict[str, ArrayLike] = field(default_factory=dict)
    kept_for_weights: float = 1.0


@dataclass(frozen=True, eq=False)
class RankMemory:
    """One rank's memory over a step.

    Attributes:
        time_s: shape (changes,), moments at which the activations held change.
        activations_bytes: shape (changes,), held from that moment on.
        resident_bytes: parts that do not change, by name.
        peak_bytes: the most that is held, resident parts included.
        peak_s: when that is first reached.
        cause: the forward whose activations made the peak.
        in_flight_at_peak: units (chunks, slices) whose activations are held then.
    """

    time_s: FloatArray
    activations_bytes: FloatArray
    resident_bytes: dict[str, float]
    peak_bytes: float
    peak_s: float
    cause: Op | None
    in_flight_at_peak: int

    @property
    def parts_at_peak(self) -> dict[str, float]:
        """Bytes by part at the peak; they add up to `peak_bytes`."""
        resident = sum(self.resident_bytes.values())
        return {**self.resident_bytes, "activations": self.peak_bytes - resident}


def memory_over_time(timeline: Timeline, model: MemoryModel) -> list[RankMemory]:
    """Return every rank's memory over the step, in rank order."""
    schedule = timeline.schedule
    per_stage = np.broadcast_to(
        np.asarray(model.activation_bytes, dtype=np.float64), (schedule.stages,)
    )
    change = per_stage[schedule.stage] * _shares(schedule, model.kept_for_weights)
    moment = np.where(schedule.kind == Kind.F, timeline.start, timeline.end)
    resident = {
        name: np.broadcast_to(np.asarray(value, dtype=np.float64), (schedule.pp,))
        for name, value in model.resident_bytes.items()
    }
    return [
        _rank_memory(
            timeline, rank, moment, change, {n: float(v[rank]) for n, v in resident.items()}
        )
        for rank in range(schedule.pp)
    ]


def _shares(schedule: Schedule, kept: float) -> FloatArray:
    table = np.zeros(len(Kind))
    table[[Kind.F, Kind.B, Kind.I, Kind.W]] = (1.0, -1.0, kept - 1.0, -kept)
    return table[schedule.kind]


def _rank_memory(
    timeline: Timeline, rank: int, moment: FloatArray, change: FloatArray, fixed: dict[str, float]
) -> RankMemory:
    schedule = timeline.schedule
    ops = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
    # A pair that runs together allocates before it frees: of equal moments, frees come first only
    # when they end before the next forward starts, which is the order of the rank anyway.
    order = np.argsort(moment[ops], kind="stable")
    held = np.cumsum(change[ops][order])
    base = sum(fixed.values())
    if not len(held):
        return RankMemory(np.zeros(0), np.zeros(0), fixed, base, 0.0, None, 0)
    top = int(held.argmax())
    kinds = schedule.kind[ops][order][: top + 1]
    count = int((kinds == Kind.F).sum() - ((kinds == Kind.B) | (kinds == Kind.W)).sum())
    return RankMemory(
        time_s=moment[ops][order],
        activations_bytes=held,
        resident_bytes=fixed,
        peak_bytes=base + float(held[top]),
        peak_s=float(moment[ops][order][top]),
        cause=timeline.op(ops.start + int(order[top])),
        in_flight_at_peak=count,
    )
