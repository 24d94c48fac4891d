"""Out-of-memory and watchdog texts: cause and restraint. Texts written here are synthetic."""

from __future__ import annotations

import pytest
from shared_traces import shared

from meshwright.diagnose.examine import diagnose
from meshwright.diagnose.oom_messages import read_message

GIB = 2**30


def verdict(tmp_path, text):
    file = tmp_path / "anything"
    file.write_text(text)
    return diagnose([str(file)])[0]


@pytest.mark.parametrize(
    ("text", "tried", "total", "allocated", "unallocated"),
    [
        (
            "CUDA out of memory. Tried to allocate 1.67 GiB (GPU 0; 3.95 GiB total capacity; 2.50 GiB "
            "already allocated; 770.00 MiB free; 3.00 GiB reserved in total by PyTorch)",
            1.67, 3.95, 2.5, 0.5,
        ),
        (
            "HIP out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacty of 64.00 GiB of "
            "which 0 bytes is free. Of the allocated memory 40.00 GiB is allocated by PyTorch, and "
            "20.00 GiB is reserved by PyTorch but unallocated.",
            2.0, 64.0, 40.0, 20.0,
        ),
        (
            "MPS backend out of memory (MPS allocated: 17.00 GiB, other allocations: 1.00 GiB, max "
            "allowed: 18.13 GiB). Tried to allocate 1.00 GiB on private pool.",
            1.0, 18.13, 17.0, None,
        ),
    ],
)  # fmt: skip
def test_three_generations_of_the_message(text, tried, total, allocated, unallocated):
    message = read_message(text, "x", 1)
    assert message.tried == pytest.approx(tried * GIB)
    assert message.total == pytest.approx(total * GIB)
    assert message.allocated == pytest.approx(allocated * GIB)
    if unallocated is None:
        assert message.unallocated is None
    else:
        assert message.unallocated == pytest.approx(unallocated * GIB, rel=1e-6)


def _oom(tried, total, free, allocated, unused, extra=""):
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried} GiB. GPU 1 has a total "
        f"capacity of {total} GiB of which {free} GiB is free. Including non-PyTorch memory, this process "
        f"has {allocated + unused + 0.5} GiB memory in use. Of the allocated memory {allocated} GiB is "
        f"allocated by PyTorch, and {unused} GiB is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
        f"avoid fragmentation.\n{extra}"
    )


def test_fragmentation_gets_the_setting_only_where_it_is_the_cure(tmp_path):
    found = verdict(tmp_path, _oom(2.0, 79.25, 1.25, 55.0, 22.5))
    assert found.causes[0].kind == "fragmentation"
    assert "expandable_segments:True" in found.causes[0].remedy
    found = verdict(tmp_path, _oom(2.0, 79.25, 1.25, 76.0, 1.5))
    assert found.causes[0].kind == "out-of-memory"
    assert "no cure" in found.causes[0].remedy


def test_a_setting_that_is_on_is_not_advised_again(tmp_path):
    asked = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    found = verdict(tmp_path, asked + _oom(2.0, 79.25, 1.25, 55.0, 22.5))
    assert found.causes[0].kind == "fragmentation"
    assert "already on" in found.verdict
    assert not found.causes[0].remedy.startswith("set PYTORCH")


def test_another_process_on_the_gpu(tmp_path):
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total "
        "capacity of 79.25 GiB of which 1.25 GiB is free. Process 4242 has 60.00 GiB memory in use. "
        "Including non-PyTorch memory, this process has 18.00 GiB memory in use. Of the allocated memory "
        "17.00 GiB is allocated by PyTorch, and 0.25 GiB is reserved by PyTorch but unallocated."
    )
    found = verdict(tmp_path, text)
    assert "4242" in found.verdict
    assert "end the other processes" in found.causes[0].remedy


def _timeout(rank, seq, op="ALLREDUCE", numel=1024, group="PG ID 0 PG GUID 0(default_pg) "):
    return (
        f"[rank{rank}]:[E1122 10:00:00.0 ProcessGroupNCCL.cpp:616] [{group}Rank {rank}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, "
        f"NumelOut={numel}, Timeout(ms)=600000) ran for 600071 milliseconds before timing out."
    )


def test_the_absent_rank_is_named_only_if_the_others_speak(tmp_path):
    found = verdict(tmp_path, "\n".join(_timeout(rank, 77) for rank in (0, 1, 3)))
    assert found.causes[0].kind == "missing-collective"
    assert found.causes[0].ranks == (2,)
    found = verdict(tmp_path, _timeout(7, 77))
    assert found.causes[0].ranks == ()
    assert "does not tell" in found.verdict


def test_a_rank_that_is_behind_in_the_same_group(tmp_path):
    lines = [_timeout(rank, 77) for rank in (0, 1, 3)] + [_timeout(2, 76)]
    found = verdict(tmp_path, "\n".join(lines))
    assert found.causes[0].ranks == (2,)


def test_numbers_of_unnamed_groups_are_not_compared(tmp_path):
    lines = [_timeout(0, 50_000, group=""), _timeout(1, 21_000, group="")]
    found = verdict(tmp_path, "\n".join(lines))
    assert found.causes[0].kind == "unknown"
    assert "cannot be compared" in found.verdict


def test_different_sizes_of_the_same_collective(tmp_path):
    lines = [_timeout(0, 9, "ALLGATHER", 512), _timeout(1, 9, "ALLGATHER", 480)]
    found = verdict(tmp_path, "\n".join(lines))
    assert found.causes[0].kind == "mismatched-collective"
    assert found.causes[0].ranks == (0, 1)


def test_saving_alone_is_told_from_a_missing_rank(tmp_path):
    lines = ["Saving model checkpoint to out/step-50", *(_timeout(rank, 77) for rank in (1, 2, 3))]
    found = verdict(tmp_path, "\n".join(lines))
    assert found.causes[0].kind == "evaluation-or-checkpoint"
    assert found.causes[0].ranks == (0,)


def test_an_error_of_the_device_comes_before_its_shadows(tmp_path):
    lines = [
        "[rank5]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        *(_timeout(rank, 77) for rank in range(8) if rank != 5),
    ]
    found = verdict(tmp_path, "\n".join(lines))
    assert found.causes[0].kind == "gpu-error"
    assert found.causes[0].ranks == (5,)


def test_a_text_that_says_nothing(tmp_path):
    found = verdict(tmp_path, "hello\nworld\n")
    assert not found.healthy
    assert "does not tell" in found.verdict


EXPECTED = {
    # id: (kind, ranks, words of the verdict or remedy, words that must not be advised first)
    "d01": ("out-of-memory", (), "205,"), "d02": ("out-of-memory", (), "cross-entropy"),
    "d03": ("fragmentation", (), "expandable_segments:True"),
    "d04": ("out-of-memory", (), "checkpointing"), "d05": ("out-of-memory", (), "no cure"),
    "d06": ("out-of-memory", (), "eval_accumulation_steps"), "d07": ("out-of-memory", (), "no cure"),
    "d08": ("out-of-memory", (), "offload"), "d09": ("missing-collective", (0,), "batches"),
    "d10": ("mismatched-collective", (22, 110), "262144"),
    "d11": ("mismatched-collective", (0, 2), "pad"), "d12": ("wrong-configuration", (), "start-up"),
    "d13": ("evaluation-or-checkpoint", (), "save"), "d14": ("missing-collective", (), "save_state"),
    "d15": ("evaluation-or-checkpoint", (0,), "save"), "d16": ("unknown", (), "does not tell"),
    "d17": ("mismatched-collective", (0, 1), "drop"), "d18": ("unknown", (), "not which"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_texts_from_public_issues(name):
    found, _ = diagnose([str(shared(f"diagnose/oom_watchdog/texts/{name}.txt"))])
    kind, ranks, words = EXPECTED[name]
    assert (found.causes[0].kind, found.causes[0].ranks) == (kind, ranks)
    assert words in found.verdict + found.causes[0].remedy
