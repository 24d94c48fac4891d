"""How commands print: a table for people, JSON for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Container, Sequence
from typing import Any


def print_json(data: Any) -> None:
    """Print JSON to standard output, one indented ASCII document that any parser reads.

    Raises:
        ValueError: a number is not finite; JSON has no word for it.
    """
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def finite(data: Any) -> Any:
    """Return the data with None for every number that is not finite, as a diverged run's loss."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def print_lines(*lines: str) -> None:
    """Print sentences, wrapped to the terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console() if sys.stdout.isatty() else Console(width=200)
    for line in lines:
        console.print(Text(line))


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Container[int] = (),
    note: str = "",
    optional: Sequence[int] = (),
) -> None:
    """Print a table fitted to the terminal; the columns numbered in `right` are right-aligned.

    Only the last column wraps. Where the terminal is too narrow, `optional` columns are left out in
    the order given, so that no name or number is cut. Without a terminal (a pipe, a file) the table
    is as wide as its content.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console() if sys.stdout.isatty() else Console(width=200)
    kept = _columns_that_fit(columns, rows, optional, console.width)
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for index in kept:
        last = index == kept[-1]
        table.add_column(
            columns[index],
            justify="right" if index in right else "left",
            no_wrap=not last,
            overflow="fold" if last else "ellipsis",
        )
    for row in rows:
        table.add_row(*(Text(row[index]) for index in kept))
    console.print(table)
    if len(kept) < len(columns):
        left_out = ", ".join(columns[index] for index in range(len(columns)) if index not in kept)
        console.print(Text(f"Left out in this width: {left_out}.", style="dim"))
    if note:
        console.print(Text(note, style="dim"))


def _columns_that_fit(
    columns: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[int], width: int
) -> list[int]:
    """Columns to show: all that fit, the last one wrapped to no less than 24 characters."""
    kept = list(range(len(columns)))
    wide = [max(map(len, (columns[i], *(row[i] for row in rows)))) for i in kept]
    for leave in (*optional, None):
        needed = sum(wide[i] + 3 for i in kept[:-1]) + min(wide[kept[-1]], 24) + 2
        if needed <= width or leave is None:
            break
        kept.remove(leave)
    return kept
