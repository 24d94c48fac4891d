"""The published runs that are most like a plan: evidence that a reader can check."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from meshwright.costs.kernels import generation
from meshwright.costs.parameters import count_parameters
from meshwright.evidence.import_rows import Run, import_row
from meshwright.evidence.machines import SkipRow, device_key
from meshwright.evidence.measured import absolute_time_trusted, measured_step_time_s
from meshwright.evidence.predict import predict_runs
from meshwright.evidence.rows import Row, published_rows
from meshwright.specs.cluster import Cluster
from meshwright.specs.devices import load_device
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model

OTHER_GENERATION = 3.0
"""Distance between devices of two generations."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A published run beside what is predicted for it."""

    id: str
    source: str
    device: str
    model: str
    gpus: int
    layout: str
    measured_s: float
    predicted_s: float
    distance: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_s / self.measured_s - 1.0

    def sentence(self) -> str:
        """One line that cites the run."""
        return (
            f"{self.model} on {self.gpus} x {self.device}, {self.layout}: measured "
            f"{self.measured_s:.3g} s, predicted {self.predicted_s:.3g} s "
            f"({100 * self.error:+.0f} %) [{self.source}]"
        )

    def plain(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "id": self.id, "source": self.source, "device": self.device, "model": self.model,
            "gpus": self.gpus, "layout": self.layout, "measured_s": self.measured_s,
            "predicted_s": self.predicted_s, "distance": round(self.distance, 3),
        }  # fmt: skip


@cache
def _trusted_rows() -> tuple[Row, ...]:
    return tuple(row for row in published_rows() if row.scorable and absolute_time_trusted(row))


@cache
def _published(index: int) -> tuple[Run, float, float] | None:
    """The run of a trusted row, its measured seconds and its parameters; None where it has no time or no price."""
    row = _trusted_rows()[index]
    try:
        run = import_row(row)
    except SkipRow:
        return None
    measured = measured_step_time_s(row, run)
    return None if math.isnan(measured) else (run, measured, _size(run.model))


def _size(model: Model) -> float:
    return float(count_parameters(model).total)


def nearest_runs(
    model: Model, cluster: Cluster, job: Job, layout: Layout, count: int = 3
) -> list[Neighbour]:
    """Return the published runs nearest to a plan by device, model, scale, sequence and layout.

    Distances add: a factor of two in parameters, devices or sequence counts 1, another device
    generation 3, another precision 1, each factor of two in tp, pp or the expert degree ½. At most
    one run per source table and model is returned, so that the three say different things.
    """
    size = _size(model)
    device = generation(cluster.device)
    # Reading a row costs a thousand times what its columns cost: it is read once nothing can be nearer.
    waiting = [
        (_at_least(row, device, layout), False, index) for index, row in enumerate(_trusted_rows())
    ]
    heapq.heapify(waiting)
    result: list[Neighbour] = []
    seen: set[tuple[str, str]] = set()
    while waiting and len(result) < count:
        distance, is_read, index = heapq.heappop(waiting)
        found = _published(index)
        if found is None:
            continue
        run, measured, held = found
        if not is_read:
            distance = _distance(run, held, size, device, cluster, job, layout)
            heapq.heappush(waiting, (distance, True, index))
            continue
        row = _trusted_rows()[index]
        key = (row.table, run.model.name)
        if key in seen:
            continue
        seen.add(key)
        result.append(
            Neighbour(
                id=row.id, source=row["source"], device=run.cluster.device.name,
                model=run.model.name, gpus=run.gpus, layout=run.layout.label(),
                measured_s=measured, predicted_s=predict_runs([run])[0].iter_time_s,
                distance=distance,
            )
        )  # fmt: skip
    return result


def _at_least(row: Row, device: str, layout: Layout) -> float:
    """A distance that a row's own columns give, which `_distance` of its run is never below."""
    gpus = row.count("gpus")
    distance = abs(math.log2(gpus / layout.world)) if gpus and gpus > 0 else 0.0
    try:
        theirs = generation(load_device(device_key(row)))
    except (SkipRow, SpecError):
        return distance
    return distance + (OTHER_GENERATION if theirs != device else 0.0)


def _distance(
    run: Run, held: float, size: float, device: str, cluster: Cluster, job: Job, layout: Layout
) -> float:
    def doublings(a: float, b: float) -> float:
        return abs(math.log2(a / b))

    distance = doublings(held, size) + doublings(run.gpus, layout.world)
    distance += doublings(run.job.seq_len, job.seq_len)
    theirs = run.cluster.device
    if generation(theirs) != device:
        distance += OTHER_GENERATION
    elif theirs.name != cluster.device.name:
        distance += 0.5
    distance += run.job.precision.compute != job.precision.compute
    distance += (run.job.framework != job.framework) * 0.5
    for mine, other in (
        (layout.tp, run.layout.tp),
        (layout.pp, run.layout.pp),
        (layout.ep, run.layout.ep),
    ):
        distance += 0.5 * doublings(mine, other)
    return distance
