"""Longest path over a step graph: plain Python, numba when asked for, NumPy for many at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.simulator.graph import StepGraph
from meshwright.specs.errors import SpecError

FloatArray = NDArray[np.float64]
Engine = Literal["auto", "python", "numba"]
AUTO_NUMBA_NODES = 400_000
"""From here on numba's import and compilation (about 2 s) pay for themselves."""


class LongestPath:
    """End times of a graph's nodes for any durations; what does not change is prepared once."""

    def __init__(self, graph: StepGraph, engine: Engine = "auto") -> None:
        self.graph = graph
        self.engine = _choose(engine, graph.nodes)
        if self.engine == "numba":
            kernels = _numba_kernels()
            if not kernels["is_order"](graph.offsets, graph.waits, _scratch(graph)):
                _ = graph.order  # explains the deadlock
            self._run = kernels["run"]
        else:
            order = graph.order
            self._order = order
            self._steps = (
                order.tolist(),
                graph.previous[order].tolist(),
                graph.waits[order].tolist(),
            )

    def ends(self, durations: FloatArray) -> FloatArray:
        """Return when every node ends, shape (nodes,), everything starting at 0."""
        graph = self.graph
        if self.engine == "numba":
            ends = np.empty(graph.nodes)
            self._run(graph.offsets, graph.waits, durations, ends, _scratch(graph))
            return ends
        end = [0.0] * (graph.nodes + 1)  # the last entry is what -1 reads
        for i, before, needed, duration in zip(
            *self._steps, durations[self._order].tolist(), strict=True
        ):
            a, b = end[before], end[needed]
            end[i] = (a if a > b else b) + duration
        return np.array(end[:-1])

    def ends_of_many(self, durations: FloatArray) -> FloatArray:
        """Return end times of many variants at once.

        Args:
            durations: shape (nodes, variants).

        Returns:
            End times, shape (nodes, variants).
        """
        graph = self.graph
        ends: FloatArray = np.zeros((graph.nodes + 1, durations.shape[1]))
        for level in graph.levels:
            ready = np.maximum(ends[graph.previous[level]], ends[graph.waits[level]])
            ends[level] = ready + durations[level]
        return np.asarray(ends[:-1])


def starts(graph: StepGraph, ends: FloatArray) -> FloatArray:
    """Return when every node starts: when its stream is free and its input is there."""
    known = np.append(ends, 0.0)
    return np.maximum(known[graph.previous], known[graph.waits])


def binding(graph: StepGraph, ends: FloatArray) -> NDArray[np.int32]:
    """Return the node that each one really waited for (its own stream wins ties), -1 for none."""
    known = np.append(ends, 0.0)
    by_input = known[graph.waits] > known[graph.previous]
    return np.where(by_input, graph.waits, graph.previous)


def slack(graph: StepGraph, ends: FloatArray, durations: FloatArray) -> FloatArray:
    """Return how much later each node could end without delaying the last one, shape (nodes,)."""
    latest = [float(ends.max())] * (graph.nodes + 1)
    order = graph.order[::-1]
    for i, before, needed, duration in zip(
        order.tolist(),
        graph.previous[order].tolist(),
        graph.waits[order].tolist(),
        durations[order].tolist(),
        strict=True,
    ):
        start = latest[i] - duration
        if start < latest[before]:
            latest[before] = start
        if start < latest[needed]:
            latest[needed] = start
    return np.maximum(np.array(latest[:-1]) - ends, 0.0)


def _choose(engine: Engine, nodes: int) -> str:
    if engine == "python":
        return "python"
    if engine == "numba":
        _numba_kernels()
        return "numba"
    if nodes < AUTO_NUMBA_NODES:
        return "python"
    try:
        _numba_kernels()
    except SpecError:
        return "python"
    return "numba"


def _scratch(graph: StepGraph) -> NDArray[np.int32]:
    return graph.offsets[:-1].copy()


@cache
def _numba_kernels() -> dict[str, Callable[..., Any]]:
    try:
        import numba
    except ImportError:
        raise SpecError("engine", "numba", "install the extra: meshwright[fast]") from None

    @numba.njit(cache=True, fastmath=False)  # type: ignore[untyped-decorator]
    def run(
        offsets: Any, waits: Any, durations: Any, ends: Any, cursor: Any
    ) -> bool:  # pragma: no cover - compiled
        for i in range(len(ends)):
            ends[i] = -1.0
        queues = len(offsets) - 1
        moved = True
        while moved:
            moved = False
            for q in range(queues):
                i = first = cursor[q]
                clock = ends[i - 1] if i > offsets[q] else 0.0
                while i < offsets[q + 1]:
                    needed = waits[i]
                    if needed >= 0:
                        ready = ends[needed]
                        if ready < 0.0:
                            break
                        if ready > clock:
                            clock = ready
                    clock += durations[i]
                    ends[i] = clock
                    i += 1
                if i != first:
                    cursor[q] = i
                    moved = True
        return bool((cursor == offsets[1:]).all())

    def is_order(offsets: Any, waits: Any, cursor: Any) -> bool:
        zeros = np.zeros(len(waits))
        return bool(run(offsets, waits, zeros, np.empty(len(waits)), cursor))

    return {"run": run, "is_order": is_order}
