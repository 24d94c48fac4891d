"""A served studio and a Chromium, once for each file of tests that drive the page."""

from __future__ import annotations

import socket
import threading

import pytest


@pytest.fixture(scope="module")
def api():
    from starlette.testclient import TestClient

    from meshwright.studio.app import create_app

    return TestClient(create_app(), base_url="http://127.0.0.1:8000")


@pytest.fixture(scope="module")
def base():
    import uvicorn

    from meshwright.studio.app import create_app

    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def chrome():
    from browsing import QUIET, find_chromium
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=find_chromium(playwright), args=list(QUIET)
        )
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def shared(chrome, base):
    """One page for all tests that only read: a fresh context costs a second."""
    from browsing import Visit

    visit = Visit(chrome, base)
    yield visit
    visit.context.close()


@pytest.fixture
def visit(shared):
    shared.wrong.clear()
    shared.page.set_viewport_size({"width": 1280, "height": 800})
    yield shared
    assert not shared.wrong


@pytest.fixture
def fresh(chrome, base):
    """A page with its own storage, for tests that leave traces."""
    from browsing import Visit

    one = Visit(chrome, base)
    yield one
    one.context.close()
    assert not one.wrong
