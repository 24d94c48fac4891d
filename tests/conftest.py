"""Settings that all rooms' tests share."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run: a red test is red because of the code, never because of luck. A
# machine that others use too makes timings unreliable; pytest-timeout bounds the whole test.
settings.register_profile(
    "meshwright", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("meshwright")

# Runs that tests make are nobody's history.
os.environ.setdefault("MESHWRIGHT_HISTORY", os.devnull)

# A shell that starts the tests in its background has SIGINT ignored, and so would all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = {
    line
    for line in (Path(__file__).parent / "long.txt").read_text().splitlines()
    if line and not line.startswith("#")
}


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    """Mark what `long.txt` lists."""
    for item in items:
        node = item.nodeid
        if {node, node.split("[")[0], node.split("::")[0]} & LONG:
            item.add_marker("long")


@pytest.fixture
def in_proportion():
    """A check that work of `size` parts costs in proportion to them, on a machine of any speed.

    The same work is timed at an eighth of the size: eight times as much is proportion, 64 times a square.
    """

    def check(work: Callable[[int], object], size: int) -> None:
        def least(parts: int) -> float:
            costs = []
            for _ in range(2):
                began = time.process_time()
                work(parts)
                costs.append(time.process_time() - began)
            return min(costs)

        assert least(size) <= 24 * max(least(size // 8), 0.005)

    return check
