"""Balancing stages: the exact contiguous partition of unequal layers, with recomputation.

Each stage takes consecutive layers. Among all partitions that fit every stage's memory, the one
with the fastest slowest stage is found, and among those the one with the least total time. A layer
may be recomputed: less memory per micro-batch in flight, more backward time. Because a 1F1B stage
s holds pp - s micro-batches, early stages recompute more (AdaPipe, Sun et al. 2024, ASPLOS).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from meshwright.specs.errors import DoesNotFitError, SpecError


@dataclass(frozen=True)
class LayerCost:
    """One layer, as balancing sees it.

    Attributes:
        letter: E embedding, t transformer layer, m multi-token prediction, L head and loss: the
            letters of Megatron's pipeline layout.
        time_s: forward and backward of one micro-batch.
        state_bytes: parameters, gradients and optimizer on one rank.
        activation_bytes: kept per micro-batch in flight.
        recompute_s: backward time that recomputing the layer adds.
        recomputed_bytes: kept per micro-batch in flight when it is recomputed; equal to
            `activation_bytes` where it cannot be.
    """

    letter: str
    time_s: float
    state_bytes: float = 0.0
    activation_bytes: float = 0.0
    recompute_s: float = 0.0
    recomputed_bytes: float | None = None

    @property
    def saved_bytes(self) -> float:
        """Bytes per micro-batch in flight that recomputing frees."""
        if self.recomputed_bytes is None:
            return 0.0
        return self.activation_bytes - self.recomputed_bytes


@dataclass(frozen=True)
class Stage:
    """One stage of a partition: layers `first` up to but not including `last`."""

    first: int
    last: int
    time_s: float
    memory_bytes: float
    recomputed: tuple[int, ...]


@dataclass(frozen=True)
class Partition:
    """Stages in order. `slowest_s` is what one more micro-batch costs."""

    layers: tuple[LayerCost, ...]
    stages: tuple[Stage, ...]

    @property
    def slowest_s(self) -> float:
        """Time of the slowest stage."""
        return max(stage.time_s for stage in self.stages)

    def step_s(self, micro_batches: int) -> float:
        """Return the 1F1B step without messages: (m - 1) · slowest + one pass through all stages.

        Exact when the slowest stage is busy from its first to its last micro-batch.
        """
        return (micro_batches - 1) * self.slowest_s + sum(stage.time_s for stage in self.stages)

    def megatron_layout(self) -> str:
        """Return the string for Megatron's `--pipeline-model-parallel-layout`."""
        words = [
            _run_lengths("".join(layer.letter for layer in self.layers[s.first : s.last]))
            for s in self.stages
        ]
        parts: list[str] = []
        at = 0
        while at < len(words):
            same = 1
            while at + same < len(words) and words[at + same] == words[at]:
                same += 1
            repeats = same - (at + same == len(words))  # the last stage has no bar behind it
            if repeats > 1:
                parts.append(f"({words[at]}|)*{repeats},")
                at += repeats
            else:
                parts.append(words[at] + ("|" if at + 1 < len(words) else ""))
                at += 1
        return "".join(parts).rstrip(",")

    def torch_split_points(self, pattern: str = "layers.{}") -> list[str]:
        """Return the modules that begin a stage, for torch's `pipeline(..., split_spec)`.

        Only transformer layers are counted; an embedding belongs to the first stage, a head to the
        last, as in torchtitan.

        Raises:
            SpecError: a stage begins with neither a transformer layer nor what follows the last.
        """
        points = []
        for stage in self.stages[1:]:
            inside = self.layers[stage.first : stage.last]
            if not inside or inside[0].letter != "t":
                what = inside[0].letter if inside else "nothing"
                raise SpecError("split_points", what, "torch splits before transformer layers only")
            before = sum(layer.letter == "t" for layer in self.layers[: stage.first])
            points.append(pattern.format(before))
        return points

    def stage_layers(self) -> tuple[int, ...]:
        """Return transformer layers per stage: `Layout.stage_layers`."""
        return tuple(
            sum(layer.letter == "t" for layer in self.layers[s.first : s.last]) for s in self.stages
        )


def _run_lengths(letters: str) -> str:
    words, at = [], 0
    while at < len(letters):
        same = len(letters[at:]) - len(letters[at:].lstrip(letters[at]))
        words.append(letters[at] + (f"*{same}" if same > 2 else letters[at] * (same - 1)))
        at += same
    return "".join(words)


Front = list[tuple[float, float, tuple[int, ...]]]
"""Choices of layers to recompute: (bytes saved, time added, layers), no choice beaten by another."""


def balance(
    layers: Sequence[LayerCost],
    stages: int,
    *,
    memory_bytes: float | Sequence[float] = math.inf,
    in_flight: float | Sequence[float] = 1.0,
) -> Partition:
    """Partition layers over stages, exactly.

    Args:
        layers: in the order of the model.
        stages: how many; every stage gets at least one layer.
        memory_bytes: what a stage may hold, one number or one per stage.
        in_flight: micro-batches in flight at each stage's peak: pp - s for 1F1B.

    Raises:
        SpecError: fewer layers than stages, or lists of the wrong length.
        DoesNotFitError: no partition fits the memory, even with everything recomputed.
    """
    count = len(layers)
    if not 1 <= stages <= count:
        raise SpecError("stages", stages, f"between 1 and the number of layers, {count}")
    limits = _per_stage(memory_bytes, stages, "memory_bytes")
    flights = _per_stage(in_flight, stages, "in_flight")
    table = _Segments(layers)
    times = [[[math.inf] * (count + 1) for _ in range(count + 1)] for _ in range(stages)]
    for s in range(stages):
        for i in range(s, count - (stages - s) + 1):
            for j in range(i + 1, count - (stages - s - 1) + 1):
                times[s][i][j] = table.time_s(i, j, limits[s], flights[s])
    slowest = _least_bottleneck(times, stages, count)
    if math.isinf(slowest):
        raise DoesNotFitError(
            f"no partition of {count} layers over {stages} stages fits their memory, even with "
            "every layer recomputed"
        )
    bounds = _least_total(times, stages, count, slowest)
    result = []
    for s, (i, j) in enumerate(bounds):
        time_s, memory, chosen = table.best(i, j, limits[s], flights[s])
        result.append(Stage(i, j, time_s, memory, chosen))
    return Partition(tuple(layers), tuple(result))


def _per_stage(value: float | Sequence[float], stages: int, name: str) -> list[float]:
    if isinstance(value, (int, float)):
        return [float(value)] * stages
    if len(value) != stages:
        raise SpecError(name, list(value), f"one number, or one per stage ({stages})")
    return [float(v) for v in value]


def _least_bottleneck(times: list[list[list[float]]], stages: int, count: int) -> float:
    """Return the smallest possible time of the slowest stage."""
    best = [0.0] + [math.inf] * count
    for s in range(stages):
        best = [
            min((max(best[i], times[s][i][j]) for i in range(s, j)), default=math.inf)
            for j in range(count + 1)
        ]
    return best[count]


def _least_total(
    times: list[list[list[float]]], stages: int, count: int, slowest: float
) -> list[tuple[int, int]]:
    """Return the stages' bounds of least total time with no stage above `slowest`."""
    bound = slowest * (1 + 1e-12)
    total = [0.0] + [math.inf] * count
    choices: list[list[int]] = []
    for s in range(stages):
        fresh, chosen = [math.inf] * (count + 1), [0] * (count + 1)
        for j in range(s + 1, count + 1):
            for i in range(s, j):
                if times[s][i][j] <= bound and total[i] + times[s][i][j] < fresh[j]:
                    fresh[j], chosen[j] = total[i] + times[s][i][j], i
        total = fresh
        choices.append(chosen)
    bounds, j = [], count
    for s in reversed(range(stages)):
        bounds.append((choices[s][j], j))
        j = choices[s][j]
    return bounds[::-1]


class _Segments:
    """Times and memory of runs of layers, with the best choice of what to recompute."""

    def __init__(self, layers: Sequence[LayerCost]) -> None:
        self.layers = layers
        self._fronts: dict[tuple[int, int], Front] = {}
        self._time = _sums(layer.time_s for layer in layers)
        self._state = _sums(layer.state_bytes for layer in layers)
        self._activation = _sums(layer.activation_bytes for layer in layers)

    def front(self, i: int, j: int) -> Front:
        """Return the undominated choices for layers i to j, by bytes saved."""
        found = self._fronts.get((i, j))
        if found is None:
            if i == j:
                found = [(0.0, 0.0, ())]
            else:
                found = _extend(self.front(i, j - 1), j - 1, self.layers[j - 1])
            self._fronts[i, j] = found
        return found

    def best(
        self, i: int, j: int, limit: float, flight: float
    ) -> tuple[float, float, tuple[int, ...]]:
        """Return time, memory and recomputed layers; the time is infinite if nothing fits."""
        base = self._time[j] - self._time[i]
        state = self._state[j] - self._state[i]
        activation = self._activation[j] - self._activation[i]
        excess = state + flight * activation - limit
        if excess <= 0 or math.isinf(limit):
            return base, state + flight * activation, ()
        front = self.front(i, j)
        needed = excess / flight if flight > 0 else math.inf
        at = bisect_left(front, needed * (1 - 1e-12), key=lambda choice: choice[0])
        if at == len(front):
            return math.inf, math.inf, ()
        saved, extra, chosen = front[at]
        return base + extra, state + flight * (activation - saved), chosen

    def time_s(self, i: int, j: int, limit: float, flight: float) -> float:
        """Return the least time of layers i to j within the limit."""
        return self.best(i, j, limit, flight)[0]


def _sums(values: Iterable[float]) -> list[float]:
    return [0.0, *accumulate(values)]


def _extend(front: Front, index: int, layer: LayerCost) -> Front:
    """Return the choices with one more layer, recomputed or not, that no other choice beats."""
    if layer.saved_bytes <= 0:
        return front
    grown = [
        (saved + layer.saved_bytes, extra + layer.recompute_s, (*chosen, index))
        for saved, extra, chosen in front
    ]
    kept: Front = []
    # From most saved to least: a choice stays if it is cheaper than all that save more.
    for choice in sorted(front + grown, key=lambda c: (-c[0], c[1])):
        if not kept or choice[1] < kept[-1][1] - 1e-15:
            kept.append(choice)
    return kept[::-1]
