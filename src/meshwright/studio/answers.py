"""Answers and refusals as JSON, encoded by msgspec without a detour through other objects."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from meshwright.specs.base import Spec
from meshwright.specs.errors import DoesNotFitError, SpecError
from meshwright.studio.views import Refusal


def encode(value: Any) -> bytes:
    """Encode plain data, with NumPy arrays as lists, as JSON; not-a-number becomes null."""
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Spec):
        return value.plain()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def as_json(answer: Callable[..., Any]) -> Callable[..., Response]:
    """Turn a function that returns plain data into an endpoint with the same parameters."""

    @functools.wraps(answer)
    def endpoint(*args: Any, **kwargs: Any) -> Response:
        return Response(encode(answer(*args, **kwargs)), media_type="application/json")

    endpoint.__signature__ = inspect.signature(answer, eval_str=True)  # type: ignore[attr-defined]
    return endpoint


def refusal(field: str, value: object, remedy: str) -> Refusal:
    """Return the body of a 4xx answer."""
    error = SpecError(field, value, remedy)
    shown = value if isinstance(value, str) else repr(value)
    return {
        "error": {"field": field, "value": shown[:200], "remedy": remedy, "sentence": str(error)}
    }


async def on_spec_error(_: Request, error: Exception) -> Response:
    """Answer 422 with the sentence of a `SpecError`."""
    assert isinstance(error, SpecError)
    body = refusal(error.field, error.value, error.remedy)
    return Response(encode(body), status_code=422, media_type="application/json")


async def on_does_not_fit(_: Request, error: Exception) -> Response:
    """Answer 409 when a valid question has no layout that fits and the endpoint cannot say so."""
    assert isinstance(error, DoesNotFitError)
    body = refusal("plan", "", str(error))
    return Response(encode(body), status_code=409, media_type="application/json")


async def on_stopped(_: Request, __: Exception) -> Response:
    """End a request whose client has left; 499 as other servers call it, seen by nobody."""
    return Response(status_code=499)


async def on_invalid_request(_: Request, error: Exception) -> Response:
    """Answer 422 with our one sentence about the first thing that FastAPI did not accept."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"][1:]) or "body"
    message = str(first["msg"]).removeprefix("Value error, ")
    body = refusal(path, first.get("input"), message[:1].lower() + message[1:])
    return Response(encode(body), status_code=422, media_type="application/json")


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer the framework's own refusals (405 and the like) in our shape."""
    assert isinstance(error, HTTPException)
    body = refusal("request", f"{request.method} {request.url.path}"[:80], str(error.detail))
    return Response(
        encode(body),
        status_code=error.status_code,
        media_type="application/json",
        headers=dict(error.headers or {}),
    )
