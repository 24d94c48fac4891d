"""A short run of the fuzzing command: every reader answers or refuses in one sentence."""

import importlib.util
import sys
from pathlib import Path

import pytest

from meshwright.specs import traced

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
spec = importlib.util.spec_from_file_location("fuzz", BENCHMARKS / "fuzz.py")
fuzz = importlib.util.module_from_spec(spec)
sys.modules["fuzz"] = fuzz
spec.loader.exec_module(fuzz)


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """A reader's preparation takes the time of counting away, from this process too: others get it back."""
    monkeypatch.setattr(traced, "PATIENCE_S", traced.PATIENCE_S)


SLOW = ("rows: calibrate", "checkpoint folder", "tokens", "tokenizer")
"""Left to the command: fits, and what needs torch in every process."""


@pytest.mark.parametrize(
    "reader", [r for r in fuzz.READERS if r.name not in SLOW], ids=lambda r: r.name
)
def test_no_reader_breaks(reader):
    tally = fuzz.run_reader(reader, seed=7, count=24)
    assert tally.inputs == 24 and tally.answered + tally.refused == 24, dict(tally.faults)


def test_what_counts_as_a_fault(tmp_path):
    """The judge itself: a traceback, a hang, memory and a number without a word are told apart."""

    def reader(call):
        return fuzz.Reader("x", lambda: [("a.json", b'{"a": 1}')], call)

    def eat(path):
        return len(bytearray(3 * 2**30))

    assert list(fuzz.run_reader(reader(lambda path: 1 / 0), 1, 1).faults) == ["traceback"]
    assert list(fuzz.run_reader(reader(eat), 1, 1).faults) == ["memory"]
    assert list(fuzz.run_reader(reader(lambda path: [float("nan")]), 1, 1).faults) == ["not finite"]
    assert list(fuzz.run_reader(reader(lambda path: sys.exit(3)), 1, 1).faults) == ["died"]
