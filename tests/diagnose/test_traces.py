"""Profiler traces: shares by definition, ranks aligned, odd exporters. Traces made here are synthetic."""

from __future__ import annotations

import gzip
import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_traces import shared

from meshwright.cli import run
from meshwright.diagnose.examine import diagnose
from meshwright.diagnose.intervals import union
from meshwright.diagnose.sources import Source
from meshwright.specs.errors import SpecError
from meshwright.specs.trace_events import read_events


def kernel(name, start, length, stream=7, correlation=0, **args):
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length,
        "args": {"correlation": correlation, "stream": stream, **args},
    }  # fmt: skip


def launch(correlation, start):
    return {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": start,
        "dur": 2, "args": {"correlation": correlation},
    }  # fmt: skip


def step(number, start, length):
    return {
        "ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1,
        "ts": start, "dur": length,
    }  # fmt: skip


def write(path, events, rank=0, world=1, packed=False):
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "traceEvents": events,
        "traceName": "x",
    }
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return str(path)


NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_shares_by_definition(tmp_path):
    events = [
        kernel("gemm", 0, 400), kernel(NCCL, 300, 300, stream=20), kernel("gemm", 700, 300),
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": 9, "ts": 650, "dur": 100},
    ]  # fmt: skip
    found, _ = diagnose([write(tmp_path / "t", events, packed=True)])
    f = found.figures
    assert f["compute_share"] == pytest.approx(0.7)
    assert f["communication_share"] == pytest.approx(0.3)
    assert f["exposed_share"] == pytest.approx(0.2)
    assert f["idle_share"] == pytest.approx(0.05)
    assert f["exposed_copy_share"] == pytest.approx(0.05)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_unions_are_what_counting_cells_gives(pairs):
    start = np.array([a for a, _ in pairs], dtype=float)
    end = np.array([a + b for a, b in pairs], dtype=float)
    cells = {cell for a, b in pairs for cell in range(a, a + b)}
    joined = union(start, end)
    assert joined.total == len(cells)
    window = union(np.array([10.0]), np.array([30.0]))
    assert joined.overlap(window) == len(cells & set(range(10, 30)))


def test_a_late_host_is_told_from_a_busy_device(tmp_path):
    late, queued = [], []
    for n in range(50):
        late += [kernel("add_kernel", 100 * n, 40, correlation=n), launch(n, 100 * n - 5)]
        queued += [kernel("gemm", 100 * n, 98, correlation=n), launch(n, 2 * n)]
    found, _ = diagnose([write(tmp_path / "late", late)])
    assert found.causes[0].kind == "host-bound"
    assert found.causes[0].gain_fraction == pytest.approx(0.6, abs=0.02)
    found, _ = diagnose([write(tmp_path / "queued", queued)])
    assert found.healthy
    assert not found.causes


def test_waiting_for_the_loader(tmp_path):
    events = []
    for n in range(20):
        events += [kernel("gemm", 1000 * n, 500, correlation=n), launch(n, 1000 * n - 5)]
        events.append(
            {"ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
             "pid": 1, "tid": 1, "ts": 1000 * n + 520, "dur": 450}
        )  # fmt: skip
    found, _ = diagnose([write(tmp_path / "t", events)])
    assert found.causes[0].kind == "input-bound"
    assert found.causes[0].gain_fraction == pytest.approx(0.43, abs=0.03)


def test_the_rank_that_others_wait_for(tmp_path):
    paths = []
    for rank in range(4):
        work, events, clock = (1300 if rank == 2 else 1000), [], 0
        offset = 12_345_678 * rank  # hosts' clocks differ
        for n in range(12):
            end = clock + 1300 + 100
            events += [
                kernel("gemm", offset + clock, work, correlation=2 * n), launch(2 * n, offset),
                kernel(NCCL, offset + clock + work, end - clock - work, stream=20, correlation=2 * n + 1),
                launch(2 * n + 1, offset),
            ]  # fmt: skip
            clock = end
        paths.append(write(tmp_path / f"any{rank}", events, rank=rank, world=4))
    found, _ = diagnose(paths)
    slow = [cause for cause in found.causes if cause.kind == "slow-rank"]
    assert [cause.ranks for cause in slow] == [(2,)]
    assert slow[0].gain_fraction == pytest.approx(300 / 1400, abs=0.02)


def test_a_small_change_is_called_small(tmp_path):
    def steps(length):
        return [step(n, n * length, length) for n in range(5)] + [
            kernel("gemm", n * length, length - 5) for n in range(5)
        ]

    found, _ = diagnose([write(tmp_path / "a", steps(1000)), write(tmp_path / "b", steps(995))])
    assert found.healthy
    assert "small" in found.verdict
    assert found.figures["change_fraction"] == pytest.approx(0.005, abs=0.001)


@pytest.mark.parametrize(
    "event",
    [
        '{"ph":"X","cat":"kernel","name":"a},{b","pid":0,"tid":1,"ts":1,"dur":2}',
        '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":1,"ts":1,"dur":2,"args":{"x":[{"y":1},{"z":2}]}}',
        '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":1,"ts":1,"dur":2,"args":{"bandwidth (GB/s)": inf}}',
        '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":1,"ts":1,"dur":2,"args":{"bandwidth (GB/s)": -nan}}',
        '{"ph":"X","cat":"kernel","name":"C:\\path","pid":0,"tid":1,"ts":1,"dur":2}',
        '{"ph":"i","s":"g","name":"x","ts":1,"pid":"Spans","tid":"PyTorch Profiler","args":null}',
    ],
)
@pytest.mark.parametrize("size", [1, 5000])
def test_events_of_odd_exporters(tmp_path, monkeypatch, event, size):
    monkeypatch.setattr("meshwright.specs.trace_events.PIECE_BYTES", 4096)
    text = '{"traceEvents": [' + ",\n ".join([event] * size) + '], "traceName": "x"}'
    file = tmp_path / "t"
    file.write_text(text)
    facts: dict = {}
    with Source(name="t", path=file).open() as stream:
        pieces = list(read_events(stream, "t", facts))
    assert sum(len(piece) for piece in pieces) == size
    assert facts["traceName"] == "x"


def test_a_damaged_trace_costs_time_in_proportion_to_its_length(monkeypatch, in_proportion):
    """Every `}]` was tried as the end of the events, each by decoding all that stands before it."""
    monkeypatch.setattr("meshwright.specs.trace_events.PIECE_BYTES", 1 << 17)

    def read(events):
        for broken in (b"x", b'{"name": 1e}, '):
            raw = b'[{"ts": 1}, ' + broken + b'{"args": {"a": [{}]}}, ' * events
            with pytest.raises(SpecError, match="damaged"):
                list(read_events(io.BytesIO(raw), "t", {}))

    in_proportion(read, 20_000)


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.97])
def test_a_cut_trace_is_one_sentence(tmp_path, capsys, cut):
    text = json.dumps(
        {"schemaVersion": 1, "traceEvents": [kernel("gemm", n, 1) for n in range(500)]}
    )
    file = tmp_path / "t"
    file.write_text(text[: int(cut * len(text))])
    assert run(["diagnose", str(file)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "cut short" in err


@pytest.mark.parametrize("moment", ["1e308", '"nan"', '"inf"', "-1e300"])
def test_times_of_no_clock_are_passed_over(tmp_path, moment):
    events = json.dumps([kernel("gemm", n, 1) for n in range(4)])[1:-1]
    odd = f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":1,"ts":{moment},"dur":1}}'
    file = tmp_path / "t"
    file.write_text(f'{{"traceEvents": [{odd}, {events}]}}')
    found, _ = diagnose([str(file)])
    assert found.figures["span_s"] == pytest.approx(4e-6)


def test_a_deep_bomb_in_an_event(tmp_path, capsys):
    bomb = "[" * 200_000 + "]" * 200_000
    file = tmp_path / "t"
    file.write_text('{"traceEvents": [{"ph":"X","name":"k","args":{"x":' + bomb + "}}]}")
    assert run(["diagnose", str(file)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_gzip_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr("meshwright.diagnose.sources.MAX_BYTES", 1 << 20)
    file = tmp_path / "t"
    file.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (1 << 24)))
    with pytest.raises(SpecError):
        diagnose([str(file)])


PUBLISHED = {
    # file: compute, communication, exposed, idle (shares of the span), step in seconds
    "hta/nccl_data_rank0_of_2.json.gz": (0.175, 0.071, 0.060, 0.762, 0.2224),
    "hta/sampled_rank-0_of_128.json.gz": (0.172, 0.324, 0.276, None, None),
    "hta/sampled_rank-1_of_128.json.gz": (0.221, 0.308, 0.247, None, None),
    "hta/a100_rank3_of_8.json.gz": (0.606, 0.352, 0.189, 0.164, 0.0768),
    "hta/v100_rank0_of_1_ddp.json.gz": (0.975, 0.0, 0.0, 0.016, 0.0956),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_shares(name):
    found, _ = diagnose([str(shared(f"diagnose/{name}"))])
    compute, communication, exposed, idle, seconds = PUBLISHED[name]
    f = found.figures
    assert f["compute_share"] == pytest.approx(compute, abs=0.001)
    assert f["communication_share"] == pytest.approx(communication, abs=0.001)
    assert f["exposed_share"] == pytest.approx(exposed, abs=0.001)
    if idle is not None:
        assert f["idle_share"] == pytest.approx(idle, abs=0.001)
    if seconds is not None:
        assert f["step_time_s"] == pytest.approx(seconds, rel=0.002)


@pytest.mark.parametrize(
    ("device", "compute", "copy", "idle", "total"),
    [
        ("h100", 0.9686, 0.02165, 0.00975, 0.1599924),
        ("mi300", 0.97932, 0.00902, 0.01166, 0.1212672),
    ],
)
def test_tracelens_own_reference(device, compute, copy, idle, total):
    path = shared(f"diagnose/tracelens/{device}")
    found, _ = diagnose([str(next(iter(path.glob("*.json.gz"))))])
    assert found.healthy
    assert found.figures["span_s"] == pytest.approx(total, rel=1e-4)
    assert found.figures["compute_share"] == pytest.approx(compute, rel=0.001)
    assert found.figures["exposed_copy_share"] == pytest.approx(copy, rel=0.001)
    assert found.figures["idle_share"] == pytest.approx(idle, abs=0.001)


def test_one_change_before_and_after():
    folder = shared("diagnose/modded_nanogpt/2025-10-31_AdamSyncGradientHook")
    before, after = (next(iter(folder.glob(f"*{word}*.gz"))) for word in ("current", "hook"))
    found, _ = diagnose([str(before), str(after)])
    assert abs(found.figures["change_fraction"]) < 0.02
    assert "small" in found.verdict
    assert found.healthy


def test_a_name_that_is_not_utf8_is_read_with_a_mark_in_its_place():
    text = (
        b'{"traceEvents": [{"ph": "X", "name": "caf\xe9", "ts": 1, "dur": 2, "pid": 0, "tid": 0}]}'
    )
    (events,) = list(read_events(io.BytesIO(text), "t", {}))
    assert events[0].name == "caf\ufffd"
