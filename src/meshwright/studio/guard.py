"""What stands before every request: host allow-list, same origin, size and depth of bodies, CSP.

A page on another site can make a browser send requests to a loopback server, by address or by a
DNS name that it points here (rebinding). So only loopback names are answered, and only pages that
this server itself delivered may call it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import msgspec

from meshwright.specs.stopping import stopped_by
from meshwright.studio.turns import Turns, given_up_with, may_take_long

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 1 << 20
MAX_UPLOAD_BYTES = 128 << 20
UPLOADS = frozenset({"/api/diagnose"})
"""Paths that take files as they are: logs, traces, dumps; anything else is small and JSON."""
MAX_QUERY_BYTES = 8192
MAX_DEPTH = 32
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
HEADERS = {
    b"content-security-policy": (
        b"default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}


class Refused(Exception):
    """A request that is turned away before any endpoint sees it."""

    def __init__(self, status: int, field: str, value: str, remedy: str) -> None:
        self.status = status
        self.field = field
        self.value = value
        self.remedy = remedy
        super().__init__(f"{field}: {remedy}")


class Guard:
    """ASGI middleware around the studio's application."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._turns = Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that may not pass, or hand it on with its body read and checked."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message.get("headers", ())}
                extra = [(name, value) for name, value in HEADERS.items() if name not in present]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            _check_origin(scope)
            body = await _checked_body(scope, receive)
        except Refused as refusal:
            await _refuse(refusal, send_guarded)
            return
        if not may_take_long(scope["method"], scope["path"]):
            await self.app(scope, _replay(body, receive), send_guarded)
            return
        if not await self._turns.take(receive):
            return  # nobody is there to be answered
        given_up = Event()
        try:
            with stopped_by(given_up):
                async with given_up_with(receive, given_up):
                    await self.app(scope, _replay(body, receive), send_guarded)
        finally:
            self._turns.back()


def _check_origin(scope: Scope) -> None:
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    host = headers.get(b"host", "")
    if _name_of(f"//{host}") not in LOOPBACK:
        raise Refused(403, "Host", host[:80], "only loopback names are answered (127.0.0.1)")
    origin = headers.get(b"origin", "")
    same = not origin or _netloc_of(origin) == host
    if not same or headers.get(b"sec-fetch-site", "same-origin") == "cross-site":
        raise Refused(403, "Origin", origin[:80], "only the studio's own page may call this server")
    if len(scope.get("query_string", b"")) > MAX_QUERY_BYTES:
        raise Refused(414, "query", "…", f"at most {MAX_QUERY_BYTES} bytes")


def _netloc_of(url: str) -> str:
    """Return the `host:port` of a URL, or an empty string when it is no URL."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def _name_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


async def _checked_body(scope: Scope, receive: Receive) -> bytes:
    if scope["method"] in ("GET", "HEAD", "OPTIONS"):
        return b""
    files = scope.get("path") in UPLOADS
    most = MAX_UPLOAD_BYTES if files else MAX_BODY_BYTES
    chunks, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > most:
            raise Refused(413, "body", f"> {most} bytes", f"at most {most >> 20} MiB is accepted")
        chunks.append(chunk)
        more = message.get("more_body", False)
    body = b"".join(chunks)
    if not files:
        _check_shape(body)
    return body


def _check_shape(body: bytes) -> None:
    if not body:
        return
    # Python's own parser, which comes next, lets NaN, lone surrogates and more through.
    try:
        data = msgspec.json.decode(body)
    except RecursionError:
        raise Refused(422, "body", f"> {MAX_DEPTH} levels", "nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        shown = body[:40].decode("ascii", "replace")
        raise Refused(422, "body", shown, f"is not JSON ({error})") from None
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        tables = [one for one in level if isinstance(one, (dict, list))]
        level = [v for one in tables for v in (one.values() if isinstance(one, dict) else one)]
    if any(isinstance(one, (dict, list)) for one in level) or tables:
        raise Refused(422, "body", f"> {MAX_DEPTH} levels", "nested too deeply")


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replay() -> MutableMapping[str, Any]:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _refuse(refusal: Refused, send: Send) -> None:
    sentence = f"{refusal.field} = {refusal.value!r}: {refusal.remedy}"
    problem = {
        "field": refusal.field,
        "value": refusal.value,
        "remedy": refusal.remedy,
        "sentence": sentence,
    }
    body = json.dumps({"error": problem}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
