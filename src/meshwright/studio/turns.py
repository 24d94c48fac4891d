"""Whose turn it is: few long requests work at once, the others wait, and who has left is not worked for.

Threads that plan share one interpreter. Were every request given one, a few dozen long ones would
keep a quick one waiting for minutes; so what may take long stands in a line, and what is looked up
goes past it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from threading import Event
from typing import Any

AT_ONCE = 4
"""Long requests that work at the same time; threads of the server are left for the quick ones."""

ASKED_BY_QUERY = frozenset(
    {"/api/plan", "/api/defence", "/api/price", "/api/prices", "/api/timeline"}
)
"""What computes from a query; all else that is got is looked up."""

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


def may_take_long(method: str, path: str) -> bool:
    """Whether a request computes its answer from what the client sends."""
    if not path.startswith("/api/"):
        return False
    return method == "POST" or path.startswith("/api/sim/") or path in ASKED_BY_QUERY


class Turns:
    """The line of long requests of one server."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._free = asyncio.Semaphore(at_once)

    async def take(self, receive: Receive) -> bool:
        """Wait for a turn; False if the client left before it came. Every turn is given `back`."""
        if not self._free.locked():
            return await self._free.acquire()
        turn = asyncio.create_task(self._free.acquire())
        left = asyncio.create_task(_left(receive))
        await asyncio.wait({turn, left}, return_when=asyncio.FIRST_COMPLETED)
        there = not left.done()
        left.cancel()
        if there:
            return turn.result()
        turn.cancel()
        with suppress(asyncio.CancelledError):
            await turn
            self.back()  # it came in the same moment
        return False

    def back(self) -> None:
        """Let the next one work."""
        self._free.release()


@asynccontextmanager
async def given_up_with(receive: Receive, given_up: Event) -> AsyncIterator[None]:
    """Set the event if the client leaves while the block works."""

    async def watch() -> None:
        await _left(receive)
        given_up.set()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()


async def _left(receive: Receive) -> None:
    pause_s = 0.0
    while (await receive())["type"] != "http.disconnect":
        # The rest of a request comes once; what comes again and again must not hold the loop.
        await asyncio.sleep(pause_s)
        pause_s = 0.1
