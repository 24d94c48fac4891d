"""Schemathesis reads the OpenAPI document and tries to break every endpoint, within bounds."""

import pytest
from hypothesis import HealthCheck, settings

from meshwright.studio.app import create_app

schemathesis = pytest.importorskip("schemathesis", reason="the `browser` group is not installed")
checks = schemathesis.checks

studio = create_app()


async def as_browsed(scope, receive, send):
    """The studio as a browser on this machine calls it: schemathesis names its host otherwise."""
    if scope["type"] == "http":
        headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
        scope = {**scope, "headers": [*headers, (b"host", b"127.0.0.1:8000")]}
    await studio(scope, receive, send)


schema = schemathesis.openapi.from_asgi("/api/openapi.json", as_browsed)

SOUND = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
)


@pytest.mark.slow
@schema.parametrize()
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_breaks_the_server_or_its_contract(case):
    case.call_and_validate(checks=SOUND)
