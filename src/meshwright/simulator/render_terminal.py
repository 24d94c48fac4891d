"""A timeline as coloured text that fits the terminal's width."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from meshwright.schedules.ops import Kind
from meshwright.simulator.timeline import Timeline

FloatArray = NDArray[np.float64]

STYLES: dict[Kind, tuple[str, str]] = {
    Kind.F: ("black on #7db7f0", "black on #5b9bdd"),
    Kind.B: ("black on #8fd18b", "black on #6cba68"),
    Kind.I: ("black on #6fd3c3", "black on #4dbbaa"),
    Kind.W: ("black on #f2c46d", "black on #dca94a"),
}
"""Two tones per kind; neighbouring micro-batches alternate, so that their border shows."""
HATCH: dict[Kind, tuple[str, str]] = {
    Kind.F: ("▒", "░"), Kind.B: ("█", "▓"), Kind.I: ("▙", "▚"), Kind.W: ("╳", "╱"),
}  # fmt: skip
"""The same without colour."""
IDLE = "·"
CUT = "  ⋯  "
NAMES = {Kind.F: "forward", Kind.B: "backward", Kind.I: "input grad", Kind.W: "weight grad"}
MOST_ROWS = 32


def terminal_timeline(
    timeline: Timeline,
    width: int,
    *,
    colour: bool = True,
    format_time: Callable[[float], str] = lambda t: f"{t:g}",
) -> RenderableType:
    """Draw one row per rank, a legend, and a time axis.

    A step with more operations than columns shows its first and last part with a gap between.

    Args:
        timeline: what to draw.
        width: columns to fill at most; at least 40 are used.
        colour: whether to colour; without, kinds are told apart by hatching.
        format_time: how to print a time.
    """
    schedule = timeline.schedule
    label = len(f"rank {schedule.pp - 1} ")
    columns = max(width, 40) - label - len(" 100.0%")
    makespan = timeline.makespan_s or 1.0
    times = _column_times(timeline, columns)
    rows: list[Text] = []
    shown, left_out = _ranks_to_show(schedule.pp)
    for rank in shown:
        if rank < 0:
            rows.append(Text(f"  ⋮   {left_out} ranks between", style="dim"))
            continue
        line = Text(f"rank {rank}".ljust(label), style="bold" if colour else "")
        line.append_text(_rank_row(timeline, rank, times, colour))
        line.append(f"{timeline.busy_s[rank] / makespan:>6.1%}", style="dim" if colour else "")
        rows.append(line)
    rows.append(_axis(label, times, makespan, format_time))
    rows.append(_legend(timeline, colour))
    return Group(*rows)


def _ranks_to_show(pp: int) -> tuple[list[int], int]:
    if pp <= MOST_ROWS:
        return list(range(pp)), 0
    half = MOST_ROWS // 2
    return [*range(half), -1, *range(pp - half, pp)], pp - 2 * half


def _column_times(timeline: Timeline, columns: int) -> FloatArray:
    """Return the time at the middle of each column; NaN marks the gap of a cut."""
    schedule, makespan = timeline.schedule, timeline.makespan_s or 1.0
    per_rank = len(schedule) / schedule.pp
    shown = columns - len(CUT)
    if per_rank <= columns:
        return (np.arange(columns) + 0.5) * makespan / columns
    # Wide enough that an operation takes some two columns.
    column_s = makespan / per_rank / 2.0
    left = (np.arange(shown - shown // 2) + 0.5) * column_s
    right = makespan - (np.arange(shown // 2)[::-1] + 0.5) * column_s
    return np.concatenate([left, np.full(len(CUT), np.nan), right])


def _rank_row(timeline: Timeline, rank: int, middles: FloatArray, colour: bool) -> Text:
    """Fill each column with the operation that runs at its middle."""
    schedule = timeline.schedule
    first, last = int(schedule.offsets[rank]), int(schedule.offsets[rank + 1])
    start, end = timeline.start[first:last], timeline.end[first:last]
    running = np.searchsorted(start, middles, side="right") - 1
    owner = np.where((running >= 0) & (middles < end[np.maximum(running, 0)]), running, -1)
    owner[np.isnan(middles)] = -2
    text = Text()
    borders = np.flatnonzero(np.diff(owner, prepend=-3, append=-3))
    for a, b in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        if owner[a] == -2:
            text.append(CUT, style="dim" if colour else "")
            continue
        if owner[a] < 0:
            text.append(IDLE * (b - a), style="dim" if colour else "")
            continue
        op = timeline.op(first + int(owner[a]))
        tone = op.unit % 2
        name = str(op.unit)
        fill = " " if colour else HATCH[op.kind][tone]
        # A label that fills its box runs into its neighbour's, unless colour parts two digits.
        fits = len(name) <= b - a - (0 if colour and len(name) == 1 else 1)
        body = name.center(b - a, fill) if fits else fill * (b - a)
        text.append(body, style=STYLES[op.kind][tone] if colour else "")
    return text


def _axis(
    label: int, times: FloatArray, makespan: float, format_time: Callable[[float], str]
) -> Text:
    """Return the time line: marks at quarters, or at both ends of a cut."""
    columns = len(times)
    cut = np.flatnonzero(np.isnan(times))
    if len(cut):
        before, after = int(cut[0]), int(cut[-1]) + 1
        half = (times[1] - times[0]) / 2
        marks = [(0, 0.0), (before, times[before - 1] + half), (columns, makespan)]
        marks.insert(2, (after, times[after] - half))
    else:
        marks = [(round(columns * part / 4), makespan * part / 4) for part in range(5)]
    line = [" "] * columns
    free = 0
    for number, (at, moment) in enumerate(marks):
        word = format_time(float(moment))
        inner = 0 < number < len(marks) - 1
        # At a cut the words stand on the side that they belong to.
        shift = (number == 1) * len(word) if len(cut) else len(word) // 2
        at = min(at - shift if inner else at, columns - len(word))
        if at >= free:
            line[at : at + len(word)] = word
            free = at + len(word) + 1
    return Text(" " * label + "".join(line)[:columns], style="dim")


def _legend(timeline: Timeline, colour: bool) -> Text:
    line = Text()
    present = set(np.unique(timeline.schedule.kind).tolist())
    for kind in Kind:
        if int(kind) in present:
            sample = f" {kind.name} " if colour else HATCH[kind][0] * 2
            line.append(sample, style=STYLES[kind][0] if colour else "")
            line.append(f" {NAMES[kind]}   ")
    line.append(f"{IDLE * 2} idle   numbers: ")
    line.append("micro-batch · slices + slice" if timeline.schedule.slices > 1 else "micro-batch")
    line.append("   right: busy share")
    return line
