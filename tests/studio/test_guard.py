"""The guard: who may call, what may be sent, and what every answer says to the browser."""

import json

import pytest
from starlette.testclient import TestClient

from meshwright.studio import guard
from meshwright.studio.app import create_app


@pytest.fixture(scope="module")
def client():
    return TestClient(create_app(), base_url="http://127.0.0.1:8000")


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost", "localhost:8000", "[::1]:8000"])
def test_loopback_names_are_answered(client, host):
    assert client.get("/api/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "0.0.0.0", "", "localhost.evil", "[::1", "@"]
)
def test_other_names_are_refused(client, host):
    answer = client.get("/api/health", headers={"host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["field"] == "Host"


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}],
)
def test_other_origins_are_refused(client, headers):
    assert client.get("/api/health", headers=headers).status_code == 403


def test_own_origin_is_answered(client):
    own = {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}
    assert client.get("/api/health", headers=own).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/health", "/api/none", "/api/sim/tensor?tp=3"])
def test_every_answer_carries_the_policy(client, path):
    answer = client.get(path)
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * 100_000, 422),
        (b'{"a":' * 40 + b"1" + b"}" * 40, 422),
        (b'{"a": NaN}', 422),
        (b" " * (guard.MAX_BODY_BYTES + 1), 413),
    ],
)
def test_bodies_are_bounded(client, body, status):
    answer = client.post("/api/none", content=body)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"field", "value", "remedy", "sentence"}


def test_brackets_inside_strings_are_not_depth(client):
    body = json.dumps({"a": '["[{' * 200 + "NaN"}).encode()
    assert client.post("/api/none", content=body).status_code == 404


def test_long_queries_are_refused(client):
    assert client.get("/api/health?" + "x" * 9000).status_code == 414


def test_paths_do_not_leave_the_page(client):
    for path in ("/../pyproject.toml", "/%2e%2e/app.py", "/..%2fapp.py", "/static/../../app.py"):
        assert "create_app" not in client.get(path).text


def test_a_body_of_quotes_or_brackets_is_refused_at_once(in_proportion):
    from meshwright.studio.guard import Refused, _check_shape

    def refused(body):
        with pytest.raises(Refused):
            _check_shape(body)

    for head, unit in ((b'{"a": "', b'\\"'), (b"", b'"'), (b"", b"[")):
        in_proportion(lambda size, head=head, unit=unit: refused(head + unit * size), 1_000_000)
    refused(b"[" * 40 + b"]" * 40)
    _check_shape(b"[" * 32 + b"]" * 32)
    _check_shape(b'{"a": [1, {"b": "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["}]}')


def test_a_run_of_endless_failures_is_refused():
    from meshwright.specs.errors import SpecError
    from meshwright.studio.sims.failures import failures

    with pytest.raises(SpecError, match="at most 20,000"):
        failures(100_000, "1ns", "60s", "0s", "0", 365, 0)
    with pytest.raises(SpecError, match="at most 20,000"):
        failures(100_000, "1s", "60s", "0s", "0", 365, 0)
