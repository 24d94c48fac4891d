"""How commands print: a table for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Sequence
from typing import Any


def print_json(data: Any) -> None:
    """Print JSON to standard output, one indented document."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Container[int] = (),
    note: str = "",
) -> None:
    """Print a table fitted to the terminal; the columns numbered in `right` are right-aligned.

    Only the last column wraps, so that names and numbers stay on one line. Without a terminal
    (a pipe, a file) the table is as wide as its content.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console() if sys.stdout.isatty() else Console(width=200)
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for index, column in enumerate(columns):
        last = index == len(columns) - 1
        table.add_column(
            column,
            justify="right" if index in right else "left",
            no_wrap=not last,
            overflow="fold" if last else "ellipsis",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    if note:
        console.print(Text(note, style="dim"))
