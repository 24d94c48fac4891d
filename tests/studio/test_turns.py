"""Many long requests at once: quick ones go past them, and who has left is not computed for."""

import asyncio
import threading
import time

import pytest

from meshwright.planner.plan import plan
from meshwright.schedules import build
from meshwright.specs.clusters import load_cluster
from meshwright.specs.models import load_model
from meshwright.specs.stopping import StoppedError, go_on, stopped_by
from meshwright.studio.guard import Guard
from meshwright.studio.sims.failures import failures
from meshwright.studio.turns import AT_ONCE


class Client:
    """One request to an application, and its answer."""

    def __init__(self, app, method, path):
        self.scope = {
            "type": "http", "method": method, "path": path, "query_string": b"",
            "headers": [(b"host", b"127.0.0.1")],
        }  # fmt: skip
        self.answered, self.gone, self.asked = False, asyncio.Event(), False
        self.task = asyncio.create_task(app(self.scope, self.receive, self.send))

    async def receive(self):
        if not self.asked:
            self.asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.answered = True


def slow_app(go, began):
    async def app(scope, receive, send):
        began.append(scope["path"])
        assert (await receive())["type"] == "http.request"
        if "health" not in scope["path"]:
            await go.wait()
        await send({"type": "http.response.start", "headers": []})

    return app


async def settle():
    for _ in range(50):
        await asyncio.sleep(0)


def test_forty_five_long_requests_do_not_silence_the_server():
    async def scene():
        go, began = asyncio.Event(), []
        app = Guard(slow_app(go, began))
        long = [Client(app, "POST", "/api/plan") for _ in range(30)]
        long += [Client(app, "GET", "/api/sim/failures") for _ in range(10)]
        long += [Client(app, "GET", "/api/plan") for _ in range(5)]
        await settle()
        assert len(began) == AT_ONCE
        quick = Client(app, "GET", "/api/health")
        await settle()
        assert quick.answered
        for client in long[AT_ONCE:40]:  # their pages were closed
            client.gone.set()
        await settle()
        assert all(client.task.done() for client in long[AT_ONCE:40])
        go.set()
        await asyncio.gather(*(client.task for client in long))
        return long, began

    long, began = asyncio.run(scene())
    assert len(began) == AT_ONCE + 1 + 5  # those at work, the quick one, and who stayed
    assert [client.answered for client in long] == [True] * AT_ONCE + [False] * 36 + [True] * 5


def test_a_turn_that_fails_is_given_back():
    async def scene():
        async def broken(scope, receive, send):
            raise ValueError

        app = Guard(broken)
        clients = [Client(app, "POST", "/api/plan") for _ in range(3 * AT_ONCE)]
        return await asyncio.gather(*(c.task for c in clients), return_exceptions=True)

    assert all(isinstance(error, ValueError) for error in asyncio.run(scene()))


def test_who_leaves_is_not_worked_for_any_more():
    """A real thread, as the server's endpoints have; it looks whether to stop, and does."""

    async def scene():
        began, ended = threading.Event(), []

        def work():
            began.set()
            try:
                while True:
                    go_on()
                    time.sleep(0.001)
            except StoppedError:
                ended.append("stopped")

        async def app(scope, receive, send):
            await receive()
            await asyncio.to_thread(work)

        client = Client(Guard(app), "POST", "/api/plan")
        while not began.is_set():
            await asyncio.sleep(0.001)
        assert not ended
        client.gone.set()
        await asyncio.wait_for(client.task, 30)
        return ended

    assert asyncio.run(scene()) == ["stopped"]


LONG = {
    "planner": lambda: plan(load_model("llama3-8b"), load_cluster("h100:2x8")),
    "zero-bubble schedules": lambda: build("zb-auto", pp=4, micro_batches=8),
    "failures": lambda: failures(nodes=100),
}


@pytest.mark.parametrize("name", LONG)
def test_long_work_looks_whether_to_stop(name):
    event = threading.Event()
    event.set()
    with stopped_by(event), pytest.raises(StoppedError):
        LONG[name]()
