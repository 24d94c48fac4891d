"""Work that nobody waits for any more: it looks now and then whether to stop.

Whoever starts long work in a thread (the studio, for a page) sets an event that the work sees through a
context variable; loops that can take seconds call `go_on` once a round.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event


class StoppedError(Exception):
    """The work was given up because nobody waits for its answer."""


_stop: ContextVar[Event | None] = ContextVar("stop", default=None)


@contextmanager
def stopped_by(event: Event) -> Iterator[None]:
    """Make the work inside, and in threads started with this context, end when the event is set."""
    token = _stop.set(event)
    try:
        yield
    finally:
        _stop.reset(token)


def go_on() -> None:
    """Return at once, or end the work if it was given up.

    Raises:
        StoppedError: nobody waits for the answer.
    """
    event = _stop.get()
    if event is not None and event.is_set():
        raise StoppedError
