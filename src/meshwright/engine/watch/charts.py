"""Lines and stacked bars as SVG for the run report; colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 240, 66, 18, 12, 26
MOST_POINTS = 400
"""Points of a line; longer series are averaged in equal buckets."""

Show = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series over the steps: (step, value) in order."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One stacked bar: (part, size) from left to right."""

    name: str
    parts: Sequence[tuple[str, float]]
    total: str = ""
    """Shown at the bar's end; the sum by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What is drawn behind the lines: levels (name, value) and moments (what, step)."""

    levels: Sequence[tuple[str, float]] = ()
    moments: Sequence[tuple[str, float]] = field(default=())


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MOST_POINTS` points: the averages of equal buckets, at each bucket's last step."""
    finite = [point for point in points if math.isfinite(point[1])]
    size = math.ceil(len(finite) / MOST_POINTS)
    if size <= 1:
        return finite
    buckets = [finite[at : at + size] for at in range(0, len(finite), size)]
    return [(bucket[-1][0], sum(v for _, v in bucket) / len(bucket)) for bucket in buckets]


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that span [low, high]: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def line_chart(
    title: str, lines: Sequence[Line], show: Show, *, zero: bool = False, marks: Marks | None = None
) -> str:
    """A chart of lines over steps with axes, levels and moments; hovering tells the values.

    Args:
        title: for those who cannot see it.
        lines: the series; empty ones are left out.
        show: how to print a value.
        zero: whether the axis starts at zero.
        marks: levels such as a prediction, moments such as a restart.
    """
    marks = marks or Marks()
    drawn = [(line, thinned(line.points)) for line in lines]
    drawn = [(line, points) for line, points in drawn if points]
    if not drawn:
        return "<p class='none'>no steps</p>"
    values = [v for _, points in drawn for _, v in points] + [v for _, v in marks.levels]
    ticks = nice_ticks(0.0 if zero else min(values), max(values))
    low, high = ticks[0], ticks[-1]
    steps = [step for _, points in drawn for step, _ in points]
    first, last = min(steps), max(steps)
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(step: float) -> float:
        return LEFT + wide * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return TOP + tall * (1 - (value - low) / (high - low))

    parts = [
        f"<svg class='chart' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' "
        f"aria-label='{escape(title, True)}' data-first='{first:g}' data-last='{last:g}'>"
    ]
    parts += [
        f"<line class='grid' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y(tick):.1f}' "
        f"y2='{y(tick):.1f}'/><text x='{LEFT - 8}' y='{y(tick) + 4:.1f}' "
        f"text-anchor='end'>{escape(show(tick))}</text>"
        for tick in ticks
    ]
    whole = {round(tick) for tick in nice_ticks(first, last, 6)}
    parts += [
        f"<text x='{x(step):.1f}' y='{HEIGHT - BOTTOM + 17}' text-anchor='middle'>{step:,}</text>"
        for step in sorted(whole)
        if first <= step <= last
    ]
    parts.append(f"<text x='{LEFT - 8}' y='{HEIGHT - BOTTOM + 17}' text-anchor='end'>step</text>")
    for what, step in marks.moments:
        parts.append(
            f"<line class='moment' x1='{x(step):.1f}' x2='{x(step):.1f}' y1='{TOP}' "
            f"y2='{TOP + tall}'><title>{escape(what)}, step {step:g}</title></line>"
        )
    for name, value in marks.levels:
        parts.append(
            f"<line class='level' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y(value):.1f}' "
            f"y2='{y(value):.1f}'/><text class='level' x='{WIDTH - RIGHT - 4}' "
            f"y='{y(value) + (14 if y(value) < TOP + 14 else -6):.1f}' text-anchor='end'>"
            f"{escape(name)}</text>"
        )
    for line, points in drawn:
        parts.append(_path(line, points, x, y, show))
    parts.append("<g class='cursor'></g></svg>")
    return "".join(parts) + (legend([line for line, _ in drawn]) if len(drawn) > 1 else "")


def _path(
    line: Line, points: list[tuple[float, float]], x: Callable[[float], float],
    y: Callable[[float], float], show: Show,
) -> str:  # fmt: skip
    """The line, with what the page's script needs to tell a value under the pointer."""
    where = [(x(step), y(value)) for step, value in points]
    data = ";".join(
        f"{at:.1f},{up:.1f},{step:g},{escape(show(value), True)}"
        for (at, up), (step, value) in zip(where, points, strict=True)
    )
    name = escape(line.name, True)
    if len(points) == 1:
        (at, up), *_ = where
        return (
            f"<circle class='dot c{line.colour}' data-name='{name}' data-points='{data}' "
            f"cx='{at:.1f}' cy='{up:.1f}' r='3.5'/>"
        )
    path = "M" + "L".join(f"{at:.1f} {up:.1f}" for at, up in where)
    return f"<path class='line c{line.colour}' data-name='{name}' data-points='{data}' d='{path}'/>"


def legend(lines: Sequence[Line]) -> str:
    """Names of the series beside their colours."""
    keys = "".join(f"<span><i class='b{one.colour}'></i>{escape(one.name)}</span>" for one in lines)
    return f"<p class='legend'>{keys}</p>"


def stacked_bars(title: str, bars: Sequence[Bar], show: Show) -> str:
    """Bars of named parts on one scale; a part keeps its colour from bar to bar."""
    names = list(dict.fromkeys(name for bar in bars for name, size in bar.parts if size > 0))
    colours = {name: index % 8 + 1 for index, name in enumerate(names)}
    longest = max((sum(size for _, size in bar.parts) for bar in bars), default=0.0)
    if longest <= 0:
        return "<p class='none'>nothing to show</p>"
    row, left, right = 26, 150, 84
    wide, height = WIDTH - left - right, row * len(bars) + 6
    parts = [
        f"<svg class='bars' viewBox='0 0 {WIDTH} {height}' role='img' "
        f"aria-label='{escape(title, True)}'>"
    ]
    for number, bar in enumerate(bars):
        top, at = number * row + 4, float(left)
        parts.append(
            f"<text x='{left - 10}' y='{top + 13}' text-anchor='end'>{escape(bar.name)}</text>"
        )
        for name, size in bar.parts:
            if size <= 0:
                continue
            length = wide * size / longest
            parts.append(
                f"<rect class='b{colours[name]}' x='{at:.2f}' y='{top}' "
                f"width='{max(length - 1, 0.4):.2f}' height='18'>"
                f"<title>{escape(bar.name)}, {escape(name)}: {escape(show(size))}</title></rect>"
            )
            at += length
        total = bar.total or show(sum(size for _, size in bar.parts))
        parts.append(f"<text class='value' x='{at + 8:.1f}' y='{top + 13}'>{escape(total)}</text>")
    keys = "".join(f"<span><i class='b{colours[n]}'></i>{escape(n)}</span>" for n in names)
    return "".join(parts) + f"</svg><p class='legend'>{keys}</p>"
