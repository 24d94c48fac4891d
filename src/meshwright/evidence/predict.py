"""Price tables of runs: rows of one (model, cluster, job) go through the cost model together."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.costs.columns import from_layouts
from meshwright.costs.confidence import memory_range, time_range
from meshwright.costs.step import EstimateColumns, capacity_bytes, price
from meshwright.evidence.import_rows import Run, import_row
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.possible import as_well, other_readings
from meshwright.evidence.rows import Row
from meshwright.planner.odds import MEMORY_MARGIN
from meshwright.specs.errors import SpecError, shorten
from meshwright.specs.plan import Range

GIB = 2.0**30

COLUMNS = (
    "id", "status", "reason", "predicted_iter_time_s", "predicted_tokens_per_s_per_gpu",
    "predicted_peak_mem_gib", "predicted_fits", "assumed", "iter_time_low_s", "iter_time_high_s",
    "peak_mem_low_gib", "peak_mem_high_gib",
)  # fmt: skip
"""Columns of a table of predictions; what was measured should lie between `low` and `high` in four rows of five."""

NOT_IN_CONVENTION: dict[str, tuple[str, ...]] = {
    "allocated": ("context", "communicators", "fragmentation"),
    "reserved": ("context", "communicators"),
    "device": (),
}
"""Parts of the modelled memory that a way of measuring does not see: the CUDA context and NCCL's
buffers are outside PyTorch's allocator, whose fragmentation is reserved but not allocated."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the cost model says of one row."""

    id: str
    run: Run | None
    reason: str = ""
    iter_time_s: float = math.nan
    tokens_per_s_per_gpu: float = math.nan
    peak_memory_bytes: float = math.nan
    device_memory_bytes: float = math.nan
    fits: bool = True
    """The planner's verdict, with the margin that it keeps."""
    as_well: tuple[tuple[float, float], ...] = ()
    """Step times (s) and peaks (bytes) of what the row's blanks may as well mean (`evidence.possible`)."""

    def ranges(self) -> tuple[Range, Range]:
        """Where its step time (s) and its peak memory (bytes) should lie; only of a row with a price."""
        time, memory = self._own_ranges()
        times, peaks = ([one[kind] for one in self.as_well] for kind in (0, 1))
        return (
            Range(low=min(time.low, *times), high=max(time.high, *times), basis=time.basis)
            if times
            else time,
            Range(low=min(memory.low, *peaks), high=max(memory.high, *peaks), basis=memory.basis)
            if peaks
            else memory,
        )

    def _own_ranges(self) -> tuple[Range, Range]:
        assert self.run is not None
        run = self.run
        return (
            time_range(run.model, run.cluster, run.job, run.gpus, self.iter_time_s, as_read=True),
            memory_range(
                run.model, run.cluster, run.job, run.gpus, self.peak_memory_bytes, as_read=True
            ),
        )

    def impossible(self) -> bool:
        """Whether the device has less memory than the low end of what the run should need."""
        assert self.run is not None
        return not self.fits and self._own_ranges()[1].low > self.run.cluster.device.memory_bytes

    @property
    def priced(self) -> bool:
        """Whether the row has a price."""
        return self.run is not None and not self.reason


def predict(
    rows: Iterable[Row],
    progress: Callable[[int], None] | None = None,
    as_user: bool = False,
    possible: bool = False,
) -> list[Prediction]:
    """Price rows, in their order; a row that cannot be priced says why.

    `as_user`: knowing of each row's source only the framework's name.

    `possible`: assuming of a row's blanks only what fits its device, where anything does, with ranges that hold what
    the blanks may as well mean (`evidence.possible`).

    `progress`, if given, is called with the number of rows priced since the last call.
    """
    rows = list(rows)
    result: list[Prediction | None] = [None] * len(rows)
    groups: dict[str, list[tuple[int, Run]]] = {}
    for index, row in enumerate(rows):
        try:
            run = import_row(row, as_user)
        except SkipRow as skip:
            result[index] = Prediction(row.id, None, str(skip))
            continue
        groups.setdefault(group_key(run), []).append((index, run))
    for members in groups.values():
        for (index, _), prediction in zip(
            members, _predict_all([run for _, run in members]), strict=True
        ):
            result[index] = _as_well(_that_fits(prediction)) if possible else prediction
        if progress is not None:
            progress(len(members))
    return [prediction for prediction in result if prediction is not None]


def _that_fits(prediction: Prediction) -> Prediction:
    """A row's price or, where even the low end of its memory is more than the device has, that of the nearest
    reading of its blanks for which it is not."""
    if not prediction.priced or prediction.run is None or not prediction.impossible():
        return prediction
    for other in other_readings(prediction.run):
        (found,) = _predict_all([other])
        if found.priced and not found.impossible():
            return found
    return prediction


def _as_well(prediction: Prediction) -> Prediction:
    """The same with the prices of what the row's blanks may as well mean."""
    if not prediction.priced or prediction.run is None:
        return prediction
    others = [one for other in as_well(prediction.run) for one in _predict_all([other])]
    told = tuple((one.iter_time_s, one.peak_memory_bytes) for one in others if one.priced)
    return replace(prediction, as_well=told) if told else prediction


def _predict_all(runs: Sequence[Run]) -> list[Prediction]:
    """Price runs together; where one of them cannot be priced, each on its own."""
    try:
        found = predict_runs(runs)
    except (SpecError, ArithmeticError, ValueError, LookupError) as error:
        if len(runs) > 1:
            return [one for run in runs for one in _predict_all([run])]
        return [Prediction(runs[0].id, None, shorten(str(error), str, 40))]
    return [
        one
        if math.isfinite(one.iter_time_s) and math.isfinite(one.peak_memory_bytes)
        else Prediction(one.id, None, "its numbers lead to no finite price")
        for one in found
    ]


def group_key(run: Run) -> str:
    """Runs of one key share model, cluster and job, so they are priced in one table."""
    return "\n".join(
        (run.model.model_dump_json(), run.cluster.model_dump_json(), run.job.model_dump_json())
    )


def predict_runs(runs: Sequence[Run]) -> list[Prediction]:
    """Price runs that share model, cluster and job."""
    first = runs[0]
    columns = from_layouts([run.layout for run in runs])
    table = price(first.model, first.cluster, first.job, columns)
    capacity = capacity_bytes(first.cluster)
    return [_prediction(run, table, index, capacity) for index, run in enumerate(runs)]


def _prediction(run: Run, table: EstimateColumns, index: int, capacity: float) -> Prediction:
    time = float(table.step_time_s[index])
    device = float(table.memory.peak[index])
    return Prediction(
        id=run.id,
        run=run,
        iter_time_s=time,
        tokens_per_s_per_gpu=run.job.tokens / (time * run.gpus),
        peak_memory_bytes=memory_in_convention(
            table, index, run.memory_convention, run.memory_rank, capacity
        ),
        device_memory_bytes=device,
        fits=device * (1 + MEMORY_MARGIN) <= capacity,
    )


def memory_in_convention(
    table: EstimateColumns,
    index: int,
    convention: str,
    rank: str = "heaviest",
    capacity: float = math.inf,
) -> float:
    """Peak bytes of a rank (`first`, `last` or the `heaviest`) as a convention counts them.

    Blocks that are only cached are reserved too, as far as the device's `capacity` goes.
    """
    hidden = NOT_IN_CONVENTION[convention]
    totals = {
        role: float(table.memory.total[role][index])
        - sum(float(parts[name][index]) for name in hidden)
        for role, parts in table.memory.parts.items()
        if table.memory.total[role][index] > 0
    }
    if convention != "allocated":
        for role, total in totals.items():
            room = max(capacity - float(table.memory.total[role][index]), 0.0)
            totals[role] = total + min(float(table.memory.cached[role][index]), room)
    return totals["first"] if len(totals) == 1 else totals.get(rank, max(totals.values()))


def predictions_csv(predictions: Iterable[Prediction]) -> str:
    """Return predictions as CSV text with `COLUMNS`; numbers to six significant digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in predictions_plain(predictions):
        writer.writerow([_cell(one.get(name)) for name in COLUMNS])
    return out.getvalue()


def predictions_plain(predictions: Iterable[Prediction]) -> list[dict[str, Any]]:
    """Predictions under the names of `COLUMNS`, values as they are; a skipped one has its reason only."""
    plain = []
    for one in predictions:
        if not one.priced:
            plain.append({"id": one.id, "status": "skipped", "reason": one.reason})
            continue
        assert one.run is not None
        time, memory = one.ranges()
        values: list[Any] = [
            one.id, "priced", "", one.iter_time_s, one.tokens_per_s_per_gpu,
            one.peak_memory_bytes / GIB, one.fits, "; ".join(one.run.assumed), time.low, time.high,
            memory.low / GIB, memory.high / GIB,
        ]  # fmt: skip
        plain.append(dict(zip(COLUMNS, values, strict=True)))
    return plain


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str("" if value is None else value)
