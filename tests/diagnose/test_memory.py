"""Memory snapshots and timelines. Snapshots made here are synthetic, in PyTorch's layout."""

from __future__ import annotations

import gzip
import json
import pickle

import numpy as np
import pytest
from shared_traces import shared

from meshwright.cli import run
from meshwright.diagnose.examine import diagnose
from meshwright.diagnose.memory_records import place, timeline

MIB = 2**20


def frames(name):
    return [
        {"name": "empty", "filename": "/x/site-packages/torch/nn/functional.py", "line": 1},
        {"name": name, "filename": "train.py", "line": 7},
    ]


def snapshot(steps=40, leak=False, oom=None, unused=0):
    """Each step makes and frees a block; a leaking one keeps another."""
    events, address, live = [], 0, 0
    for _ in range(steps):
        address += 1
        events.append(
            {"action": "alloc", "addr": address, "size": 100 * MIB, "frames": frames("step")}
        )
        kept = address
        if leak:
            address += 1
            live += 10 * MIB
            events.append(
                {"action": "alloc", "addr": address, "size": 10 * MIB, "frames": frames("log_loss")}
            )
        events += [
            {"action": action, "addr": kept, "size": 100 * MIB, "frames": []}
            for action in ("free_requested", "free_completed")
        ]
    if oom is not None:
        events.append({"action": "oom", "size": oom, "device_free": 0, "frames": frames("step")})
    size = live + unused + 200 * MIB
    segment = {
        "total_size": size, "allocated_size": live + 200 * MIB, "active_size": live + 200 * MIB,
        "blocks": [{"state": "active_allocated", "size": live + 200 * MIB, "frames": frames("model")}],
    }  # fmt: skip
    return {"segments": [segment], "device_traces": [events], "allocator_settings": {}}


def write(path, content, as_json):
    path.write_bytes(json.dumps(content).encode() if as_json else pickle.dumps(content, 4))
    return str(path)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_leak_is_named_by_its_place_and_a_steady_run_is_not(tmp_path, as_json):
    found, _ = diagnose([write(tmp_path / "a", snapshot(leak=True), as_json)])
    assert [cause.kind for cause in found.causes] == ["leak"]
    assert "log_loss (train.py:7)" in found.verdict
    assert found.figures["leaked_bytes"] == 400 * MIB
    found, _ = diagnose([write(tmp_path / "b", snapshot(), as_json)])
    assert found.healthy
    assert found.figures["peak_memory_bytes"] == 300 * MIB


def test_full_or_fragmented(tmp_path):
    found, _ = diagnose([write(tmp_path / "a", snapshot(oom=150 * MIB, unused=200 * MIB), False)])
    assert found.causes[0].kind == "fragmentation"
    found, _ = diagnose([write(tmp_path / "b", snapshot(oom=150 * MIB), False)])
    assert found.causes[0].kind == "out-of-memory"


def test_a_malicious_snapshot_is_not_run(tmp_path, capsys):
    target = tmp_path / "was-run"

    class Evil:
        def __reduce__(self):
            return (open, (str(target), "w"))

    file = tmp_path / "x"
    file.write_bytes(
        pickle.dumps({"segments": [Evil()], "device_traces": [], "allocator_settings": {}})
    )
    assert run(["diagnose", str(file)]) == 2
    assert not target.exists()
    assert capsys.readouterr().err.count("\n") == 1


def test_a_timeline_counts_what_was_there_before():
    rows = np.array(
        [[-1, 1, 100, 0], [10, 2, 50, 4], [20, 3, -50, 4], [20, 3, 50, 5], [30, 4, -50, 5]]
    )
    table, times = timeline(rows)
    assert times.tolist() == [-1, 10, 20, 30]
    assert table[:, 0].tolist() == [100] * 4
    assert table[:, 4].tolist() == [0, 50, 0, 0]
    assert table[:, 5].tolist() == [0, 0, 50, 0]


def test_published_timeline_row():
    raw = gzip.decompress(shared("diagnose/hta/memory_timeline.raw.gz").read_bytes())
    table, _ = timeline(np.array(json.loads(raw), dtype=np.int64))
    row = [102440608, 102228128, 19395584, 0, 2618160128, 58417152, 41811968, 25494440]
    assert table[744].tolist() == row
    found, _ = diagnose([str(shared("diagnose/hta/memory_timeline.raw.gz"))])
    assert found.figures["peak_memory_bytes"] == table.sum(axis=1).max()


def test_a_place_is_the_user_s_line_among_frames_of_libraries_and_of_c():
    frames = [
        {"name": "torch::unwind::unwind()", "filename": "??", "line": 0},
        {"name": "NativeCachingAllocator::malloc(void**)", "filename": "", "line": 0},
        {"name": "at::native::empty_cuda()", "filename": "RegisterCUDA.cpp", "line": 0},
        {"name": "forward", "filename": "/x/site-packages/torch/nn/modules/linear.py", "line": 116},
        {"name": "step", "filename": "/home/me/train.py", "line": 12},
        {"name": "Py_BytesMain", "filename": "/src/Modules/main.c", "line": 0},
    ]
    assert place(frames) == "step (/home/me/train.py:12)"
    assert place(frames[:4]).startswith("forward")
    assert place(frames[:3]) == "at::native::empty_cuda()"
    assert place([]) == "unknown place"
