"""Which GPU is a rank's: as torchrun, SLURM and MPI say it, and never silently none."""

import pytest
import torch

from meshwright.engine.parallel import backend
from meshwright.specs.errors import SpecError

NAMES = [name for pair in backend._LOCAL for name in pair]


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    for name in (*NAMES, "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def _gpus(monkeypatch, count):
    # No machine here has a GPU: only their number is made up.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(("number", "count"), backend._LOCAL)
def test_every_starter_tells_the_rank_of_its_machine(number, count, monkeypatch):
    _gpus(monkeypatch, 8)
    monkeypatch.setenv(number, "5")
    monkeypatch.setenv(count, "8")
    assert backend.place() == (5, 8)
    monkeypatch.delenv(count)
    assert backend.place() == (5, 8)


def test_fewer_gpus_than_ranks_are_not_passed_over_in_silence(monkeypatch):
    _gpus(monkeypatch, 2)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(SpecError, match="2 GPUs"):
        backend.place()
    _gpus(monkeypatch, 0)
    assert backend.place() == (0, 4)


def test_ranks_on_gpus_must_know_which_is_theirs(monkeypatch):
    _gpus(monkeypatch, 8)
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(SpecError, match="which picks the GPU"):
        backend.place()
    _gpus(monkeypatch, 0)
    assert backend.place() == (0, 1)
