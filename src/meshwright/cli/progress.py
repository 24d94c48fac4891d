"""A counter on standard error that appears only when work takes more than a moment."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counting(what: str, after_s: float = 1.0) -> Iterator[Callable[[int], None]]:
    """Yield a function to report a running count with; prints to a terminal only."""
    started = time.monotonic()
    shown = False
    live = sys.stderr.isatty()

    def report(count: int) -> None:
        nonlocal shown
        if live and time.monotonic() - started > after_s:
            shown = True
            print(f"\r{count:,} {what}", end="", file=sys.stderr, flush=True)

    try:
        yield report
    finally:
        if shown:
            print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
