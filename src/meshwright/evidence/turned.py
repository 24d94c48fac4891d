"""Tables whose runs stand in columns, and tables of two columns that say one thing a line, laid as runs in lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from meshwright.evidence import heads
from meshwright.evidence.named import programs_named
from meshwright.evidence.pasted import Grid

_COMPARES = re.compile(
    r"^(?:ratio|delta|Δ|diff\w*|change|gain|improve\w*|speed-?up|savings?|notes?|comments?|remarks?|reduction|"
    r"description|meaning|default|unit|vs\b.*|差异|备注|说明|是否.*|变化)\b|^Δ",
    re.IGNORECASE,
)
"""Heads of columns that compare or explain the others, and are no run."""
FEWEST = 2
"""Labels of a first column that must be heads before it is taken for the header."""


def _known(label: str) -> bool:
    if not label.strip() or (column := heads.column_of(label)) in (heads.SAID, "id"):
        return False
    return column != heads.MEASURED or not programs_named(label)  # MindSpeed is no speed


def one_header(grid: Grid) -> Grid:
    """Return a table whose header stands in two lines, as spanning cells leave it, with one: `Parallelism | TP`."""
    if len(grid) < 3 or len(grid[0]) != len(grid[1]):
        return grid
    upper, lower = grid[0], grid[1]
    spans = any(a.strip() and a == b for a, b in pairwise(upper))
    holes = any(cell.strip() for cell in upper) and not all(cell.strip() for cell in upper[1:])
    numbers = any(re.match(r"\s*[~<≈]?\d", cell) for cell in lower)
    known = sum(
        _known(cell) or _known(f"{cell} {above}") for above, cell in zip(upper, lower, strict=True)
    )
    if not (spans or holes) or numbers or known < FEWEST:
        return grid
    return [[_both(above, cell) for above, cell in zip(upper, lower, strict=True)], *grid[2:]]


def _both(above: str, below: str) -> str:
    """One head of two: the lower one where it says which column it is, else both together."""
    above, below = above.strip(), below.strip()
    if not above or not below or above == below:
        return above or below
    together = (below, f"{below} {above}", f"{above} {below}")
    return next((one for one in together if _known(one)), together[2])


_SIZE = re.compile(r"\s*~?\d+(?:\.\d+)?\s?[BM]\s*$", re.IGNORECASE)


_LENGTH_BEHIND = re.compile(r"(.*\S)\s*\((\d{3,7}|\d{1,4}k)\)\s*$", re.IGNORECASE)
_BATCH_BEHIND = re.compile(r"\((?:batch(?: size)?|bs|mbs)\W{0,2}(\d{1,4})\)", re.IGNORECASE)


def uncrossed(grid: Grid, names_a_model: Callable[[str], bool] | None = None) -> Grid:
    """Return a table of methods by models, whose heads are the models, with a line for each of both.

    Heads may name a model and a length, cells what was measured and its batch: `Llama-3-8B (2048)` above
    `3550 (batch: 8)`.
    """
    if len(grid) < 2:
        return grid

    def named(head: str) -> bool:
        return bool(_SIZE.match(head)) or bool(names_a_model and names_a_model(head))

    models = [index for index, head in enumerate(grid[0]) if named(head)]
    others = [index for index in range(len(grid[0])) if index not in models]
    if len(models) < 2 or len(others) > 1 or (others and others[0] != 0):
        return grid
    label = [(grid[0][index].strip() or "config") for index in others]
    lines = []
    for line in grid[1:]:
        for index in models:
            if cell := _cell(line, index):
                told = _LENGTH_BEHIND.match(grid[0][index])
                batch = _BATCH_BEHIND.search(cell)
                model, length = told.groups() if told else (grid[0][index].strip(), "")
                before = [_cell(line, at) for at in others]
                lines.append([*before, model, length, batch[1] if batch else "", cell])
    header = [*label, "model", "seq_len", "batch", "measured"]
    filled = [at for at in range(len(header)) if any(line[at] for line in lines)]
    return [[one[at] for at in filled] for one in [header, *lines]]


def turned(grid: Grid) -> Grid:
    """Return a table with its runs in lines: as it is, or turned where its first column holds the heads.

    It does where at least half of the labels below its corner are heads, and fewer of those beside it.
    """
    if len(grid) < FEWEST + 1 or len(grid[0]) < 2:
        return grid
    labels = [line[0] for line in grid[1:] if line and any(line)]
    across = [cell for cell in grid[0][1:] if cell.strip()]
    down = sum(map(_known, labels))
    if (
        down < FEWEST
        or 2 * down < len(labels)
        or sum(map(_known, across)) * len(labels) >= down * len(across)
    ):
        return grid
    lines = [line for line in grid[1:] if line and line[0].strip()]
    runs = [
        index
        for index, head in enumerate(grid[0])
        if index
        and not _COMPARES.search(head.strip())
        and any(_cell(line, index) for line in lines)
    ]
    return [["config", *(line[0] for line in lines)]] + [
        [_title(grid[0][index]), *(_cell(line, index) for line in lines)] for index in runs
    ]


def _title(head: str) -> str:
    """A run's head; of a table of properties (`Parameter | Value`) it says nothing."""
    return (
        ""
        if re.fullmatch(
            r"\s*(?:values?|settings?|details?|specs?|取?值|配置)\s*", head, re.IGNORECASE
        )
        else head
    )


def _cell(line: list[str], index: int) -> str:
    return line[index].strip() if index < len(line) else ""
