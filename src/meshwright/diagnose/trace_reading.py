"""One trace as columns: what ran on the device, who launched it, what the program said it was doing."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from meshwright.diagnose.sources import Source
from meshwright.diagnose.trace_kernels import (
    COMMUNICATION,
    COMPUTE,
    GPU_CATEGORIES,
    is_communication,
)
from meshwright.specs.errors import SpecError
from meshwright.specs.stopping import go_on
from meshwright.specs.trace_events import Event, Progress, read_events

KINDS = (COMPUTE, COMMUNICATION, "copy", "fill")
_KIND_AT = {kind: at for at, kind in enumerate(KINDS)}
MAX_EVENTS = 60_000_000
MAX_MICROSECONDS = 1e18
"""Times beyond this are of no clock."""

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)|(?:train(?:ing)?_)?step\s*[#:]?\s*(\d+)")
_SAID = re.compile(
    r"dataloader|data_loading|get_batch|next_batch|load_batch|fetch_batch|batch_generator|"
    r"optimizer\.|Optimizer|checkpoint|save_state|torch\.save|\bsave\b|evaluat(?!e_function)|validation|"
    r"\bgc\b|gc\.collect|garbage|PP:|forward_step|backward_step|ProfilerStep|zero_grad|clip_grad|"
    r"cudaDeviceSynchronize|cudaStreamSynchronize|aten::item|_local_scalar_dense|cudaMalloc|cudaFree|"
    r"record_param_comms|\bstep \d+$|stage \d+ micro-batch|gloo:|nccl:",
    re.IGNORECASE,
)
_HOST = {
    "cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver", "hip_runtime",
    "overhead", "operator", "runtime", "python_function_call",
}  # fmt: skip


class Arguments(msgspec.Struct, gc=False):
    """Arguments of a device event or a launch."""

    correlation: int | str | None = None
    collective: str | None = msgspec.field(default=None, name="Collective name")
    elements_in: int | str | None = msgspec.field(default=None, name="In msg nelems")
    elements_out: int | str | None = msgspec.field(default=None, name="Out msg nelems")
    group_size: int | str | None = msgspec.field(default=None, name="Group size")
    dtype: str | None = None
    group: str | int | None = msgspec.field(default=None, name="Process Group Name")
    group_text: str | None = msgspec.field(default=None, name="Process Group Description")
    ranks: str | list[int] | None = msgspec.field(default=None, name="Process Group Ranks")
    seq: int | str | None = msgspec.field(default=None, name="Seq")


_ARGUMENTS = msgspec.json.Decoder(Arguments)


@dataclass(slots=True)
class Said:
    """A range that the program or the framework named, on the host."""

    name: str
    start: float
    end: float
    tid: str
    category: str


@dataclass(slots=True)
class Trace:
    """One rank's trace; times in seconds of its own clock."""

    file: str
    facts: dict[str, Any]
    rank: int | None
    start: NDArray[np.float64]
    """Of device events, in order of start."""
    end: NDArray[np.float64]
    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    stream: NDArray[np.int32]
    correlation: NDArray[np.int64]
    names: list[str]
    launched: NDArray[np.float64]
    """When the host called for each device event; NaN where the trace does not tell."""
    calls: dict[int, Arguments]
    """Arguments of communication kernels, by index of the event."""
    said: list[Said]
    steps: dict[int, tuple[float, float]]
    events: int
    other_devices: int = 0

    def of(self, kind: str) -> NDArray[np.bool_]:
        """Which events are of a kind."""
        return np.asarray(self.kind == _KIND_AT[kind])


@dataclass(slots=True)
class _Columns:
    start: array[float] = field(default_factory=lambda: array("d"))
    end: array[float] = field(default_factory=lambda: array("d"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    name: array[int] = field(default_factory=lambda: array("i"))
    stream: array[int] = field(default_factory=lambda: array("i"))
    device: array[int] = field(default_factory=lambda: array("i"))
    correlation: array[int] = field(default_factory=lambda: array("q"))
    call_correlation: array[int] = field(default_factory=lambda: array("q"))
    call_start: array[float] = field(default_factory=lambda: array("d"))
    calls: dict[int, Arguments] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    streams: dict[tuple[Any, Any], int] = field(default_factory=dict)
    devices: dict[Any, int] = field(default_factory=dict)
    said: list[Said] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)
    boring: set[Any] = field(default_factory=set)
    """Names of host ranges that say nothing of use."""


def read_trace(source: Source, progress: Progress | None = None) -> Trace:
    """Read a trace in pieces.

    Raises:
        SpecError: no trace, damaged, or too many events.
    """
    facts: dict[str, Any] = {}
    columns, events = _Columns(), 0
    with source.open() as stream:
        for piece in read_events(stream, source.name, facts, progress):
            go_on()
            events += len(piece)
            if events > MAX_EVENTS:
                raise SpecError("artefact", source.name, f"has more than {MAX_EVENTS:,} events")
            _take(columns, piece)
    return _whole(source.name, facts, columns, events)


def _take(columns: _Columns, events: list[Event]) -> None:
    """Sort events into the columns; this loop sees every event of a trace, so it calls little."""
    roles, boring = columns.roles, columns.boring
    for event in events:
        if event.ph != "X" and event.ph != "":
            continue
        category = event.cat or ""
        role = roles.get(category)
        if role is None:
            role = roles[category] = _role(category)
        if role == "" or (role == _HOST_RANGE and event.name in boring):
            continue
        try:
            start = float(event.ts or 0.0)
            length = float(event.dur or 0.0)
        except ValueError:
            continue
        if not (abs(start) < MAX_MICROSECONDS and 0 <= length < MAX_MICROSECONDS):
            continue  # also what is no number
        if role == _HOST_RANGE:
            _host_range(columns, event, category, start, length)
        elif role == _HOST_CALL:
            _host_call(columns, event, category, start, length)
        else:
            _device_event(columns, event, role, start, length)


_HOST_RANGE, _HOST_CALL = "host range", "host call"


def _role(category: str) -> str:
    """What events of a category are: a kind of device event, a host's range or call, or nothing."""
    low = category.lower()
    if low in GPU_CATEGORIES:
        return GPU_CATEGORIES[low]
    if low not in _HOST:
        return ""
    return _HOST_CALL if "runtime" in low or "driver" in low else _HOST_RANGE


def _device_event(columns: _Columns, event: Event, kind: str, start: float, length: float) -> None:
    name = str(event.name)
    arguments = _arguments(event.args)
    if kind == COMPUTE and is_communication(name):
        kind = COMMUNICATION
        if arguments is not None:
            columns.calls[len(columns.start)] = arguments
    columns.start.append(start * 1e-6)
    columns.end.append((start + length) * 1e-6)
    columns.kind.append(_KIND_AT[kind])
    columns.name.append(columns.names.setdefault(name, len(columns.names)))
    place = (event.pid, event.tid)
    columns.stream.append(columns.streams.setdefault(place, len(columns.streams)))
    columns.device.append(columns.devices.setdefault(event.pid, len(columns.devices)))
    columns.correlation.append(_number(arguments.correlation if arguments else None))


def _host_call(columns: _Columns, event: Event, category: str, start: float, length: float) -> None:
    """A call of the driver: a launch, or a synchronisation that says so."""
    name = str(event.name)
    if "aunch" in name or "Memcpy" in name or "Memset" in name:
        arguments = _arguments(event.args)
        if arguments is not None and arguments.correlation is not None:
            columns.call_correlation.append(_number(arguments.correlation))
            columns.call_start.append(start * 1e-6)
    elif event.name not in columns.boring:
        _host_range(columns, event, category, start, length)


def _host_range(
    columns: _Columns, event: Event, category: str, start: float, length: float
) -> None:
    """A range that the program or the framework named."""
    name = str(event.name)
    if category != "user_annotation" and _SAID.search(name) is None:
        columns.boring.add(event.name)
        return
    columns.said.append(
        Said(name, start * 1e-6, (start + length) * 1e-6, f"{event.pid}/{event.tid}", category)
    )


def _arguments(raw: msgspec.Raw) -> Arguments | None:
    if not raw:
        return None
    try:
        return _ARGUMENTS.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _number(value: int | str | None) -> int:
    try:
        number = int(value) if value is not None else -1
    except ValueError:
        return -1
    return number if abs(number) < 1 << 62 else -1


def _whole(file: str, facts: dict[str, Any], columns: _Columns, events: int) -> Trace:
    start = np.frombuffer(columns.start, dtype=np.float64) if columns.start else np.zeros(0)
    device = np.array(columns.device, dtype=np.int32)
    others = 0
    keep = np.arange(len(start))
    if len(columns.devices) > 1:
        counts = np.bincount(device)
        others = int((counts > 0.05 * counts.max()).sum()) - 1
        keep = np.flatnonzero(device == counts.argmax())
    order = keep[np.argsort(start[keep], kind="stable")]
    correlation = np.array(columns.correlation, dtype=np.int64)[order]
    place = {int(old): new for new, old in enumerate(order)} if columns.calls else {}
    return Trace(
        file=file, facts=facts, rank=_rank(facts), start=start[order],
        end=np.array(columns.end, dtype=np.float64)[order],
        kind=np.array(columns.kind, dtype=np.int8)[order],
        name=np.array(columns.name, dtype=np.int32)[order],
        stream=np.array(columns.stream, dtype=np.int32)[order], correlation=correlation,
        names=list(columns.names), launched=_launched(columns, correlation),
        calls={place[at]: call for at, call in columns.calls.items() if at in place},
        said=columns.said, steps=_steps(columns.said), events=events, other_devices=others,
    )  # fmt: skip


def _launched(columns: _Columns, correlation: NDArray[np.int64]) -> NDArray[np.float64]:
    """When the host called for each event, by correlation."""
    called = np.array(columns.call_correlation, dtype=np.int64)
    moments = np.array(columns.call_start, dtype=np.float64)
    found = np.full(len(correlation), np.nan)
    if not len(called):
        return found
    order = np.argsort(called, kind="stable")
    called, moments = called[order], moments[order]
    at = np.clip(np.searchsorted(called, correlation), 0, len(called) - 1)
    known = (called[at] == correlation) & (correlation >= 0)
    found[known] = moments[at[known]]
    return found


def _rank(facts: dict[str, Any]) -> int | None:
    info = facts.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    own = facts.get("meshwright")
    if rank is None and isinstance(own, dict):
        rank = own.get("rank")
    return rank if isinstance(rank, int) and rank >= 0 else None


def _steps(said: list[Said]) -> dict[int, tuple[float, float]]:
    """Steps that the profiler or the program named, on the host."""
    found: dict[int, tuple[float, float]] = {}
    for one in said:
        match = _STEP.fullmatch(one.name)
        if match is not None and one.end > one.start:
            found.setdefault(int(match[1] or match[2]), (one.start, one.end))
    return found
