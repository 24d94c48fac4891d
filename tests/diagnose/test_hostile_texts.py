"""Values that no program prints, in the places where programs print values: an answer, never a crash."""

from __future__ import annotations

import msgspec
import pytest

from meshwright.diagnose.examine import diagnose
from meshwright.diagnose.log_reading import read_log
from meshwright.diagnose.page import render
from meshwright.diagnose.text_values import count, decimal, rank_of, size_bytes

VALUES = [
    "1.2.3",
    "0",
    "0.0",
    "-1",
    "1e400",
    "nan",
    "inf",
    "9" * 30,
    "9" * 5000,
    "1,2,3",
    ".",
    "²",
    "٣",
    "",
]
LINES = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {v} GiB. GPU {v} has a total capacity of {v} "
    "TB of which {v} bytes is free. Process {v} has {v} GiB memory in use. Of the allocated memory {v} GiB is "
    "allocated by PyTorch, and {v} GiB is reserved by PyTorch but unallocated.",
    "buf = torch.empty(({v}, s0), dtype=torch.float32) CUDA out of memory. Tried to allocate 2 GiB",
    " iteration {v}/ {v} | elapsed time per iteration (ms): {v} | global batch size: {v} | lm loss: {v} |",
    "step: {v} loss: {v} memory: {v}GiB memory: {v}TB({v}%) tps: {v} tflops: {v} mfu: {v}%",
    "[Rank {v}] (after {v} iterations) memory (MB) | max allocated: {v} | max reserved: {v}",
    "{{'loss': {v}, 'grad_norm': {v}, 'learning_rate': {v}, 'epoch': {v}}}",
    "{{'train_runtime': {v}, 'train_samples_per_second': {v}, 'train_steps_per_second': {v}}}",
    " 50%|##   | {v}/{v} [{v}:{v}<{v}:{v},  {v}s/it]",
    "[INFO] OVERFLOW! Rank {v} Skipping step. Attempted loss scale: {v}, reducing to {v}",
    "forward_microstep: {v} | backward_microstep: {v} | step_microstep: {v} | backward_allreduce_microstep: {v}",
    "min_iter={v}, slow_iter={v}",
    "change point found, degradation={v}",
    "Computation result of rank {v} collected = (Perf: min=1 avg={v})\n"
    "Computation result of rank 1 collected = (Perf: min=1 avg={v})",
    "GPU relative performance\nRank={v} Node=a Score={v}",
    "[rank{v}]:[E ProcessGroupNCCL.cpp:616] [PG ID {v} PG GUID {v}(default_pg) Rank {v}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={v}, OpType=ALLREDUCE, NumelIn={v}, NumelOut={v}, Timeout(ms)={v}) ran for {v} "
    "milliseconds before timing out.",
    "[PG ID 0 Rank {v}] Timeout at NCCL work: {v}, last enqueued NCCL work: {v}, last completed NCCL work: {v}.",
    "Duplicate GPU detected : rank {v} and rank {v} both on CUDA device {v}",
    "Rank {v} failed to pass monitoredBarrier in {v} ms; missing ranks: {v}, {v}",
    "using world size: {v}, data-parallel-size: {v}, pipeline-model-parallel size: {v}\n"
    "  global_batch_size ........ {v}\n  micro_batch_size ........ {v}\n  pipeline_model_parallel_size ........ {v}",
    "Num examples = {v}\nTotal train batch size (w. parallel) = {v}\nTotal optimization steps = {v}",
    "[batch={v}/{v}]:\n  Train throughput/batches_per_sec: {v}\n  Train loss/train/total: {v}",
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value[:8]}x{len(value)}")
def test_no_value_in_no_line_is_more_than_a_text(tmp_path, value):
    file = tmp_path / "log"
    for line in [*LINES, "\n".join(LINES)]:
        file.write_text((line.format(v=value) + "\n") * 9)
        found, parts = diagnose([str(file)])
        render(found, parts)
        msgspec.json.encode(found.plain())


def test_a_line_of_any_shape_is_read_in_a_time_that_its_length_bounds(in_proportion):
    for text in (" ", "a", "A ", "9", "_", "rank ", "[Rank 1] Watchdog ", "loss: ", "Error "):
        in_proportion(lambda size, text=text: read_log([text * (size // len(text))], "x"), 32_000)


def test_what_is_a_number_and_what_is_not():
    assert decimal("1,234.5") == 1234.5
    assert [decimal(text) for text in ("1.2.3", "", "1e400", "nan")] == [None] * 4
    assert count("1,024") == 1024
    assert [count(text) for text in (None, "", "-1", "²", "9" * 16)] == [None] * 5
    assert size_bytes("1.5", "TB") == 1.5e12
    assert size_bytes("2", "GiB") == size_bytes(f"{2**31}", "bytes") == 2**31
    assert size_bytes("1", "XB") is size_bytes("9" * 30, "TiB") is None
    assert rank_of("[rank12]: RuntimeError") == rank_of("  rank      : 12 (local_rank: 4)") == 12
    assert rank_of("[rank99999999]: x") is rank_of("a frankrank1: x") is None


def test_a_number_with_two_points_is_no_loss(tmp_path):
    file = tmp_path / "log"
    file.write_text("step: 1 loss: 1.2.3 step_time: 2.0s\nstep: 2 loss: 2.5 step_time: 2.0s\n")
    assert diagnose([str(file)])[0].figures["loss_first"] == 2.5


def test_nothing_free_is_a_figure_too(tmp_path):
    file = tmp_path / "log"
    file.write_text(
        "CUDA out of memory. Tried to allocate 1.00 TB. GPU 0 has a total capacity of 80.00 GiB of which 0 bytes is "
        "free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but "
        "unallocated.\n"
    )
    figures = diagnose([str(file)])[0].figures
    assert (figures["free_memory_bytes"], figures["oom_requested_bytes"]) == (0, 1e12)


def test_one_skipped_step_is_said_in_the_singular(tmp_path):
    file = tmp_path / "log"
    file.write_text("[INFO] OVERFLOW! Skipping step. Attempted loss scale: 8, reducing to 4\n")
    assert (
        "1 step was skipped while the loss scale came down to 4,"
        in diagnose([str(file)])[0].verdict
    )


def test_a_long_log_takes_time_in_proportion(tmp_path, in_proportion):
    """60,000 steps took the square of their number once: a quarter of an hour."""
    path = tmp_path / "long.log"
    causes = {}

    def read(steps):
        path.write_text(
            "".join(
                f"step: {n}  loss: 3.1  step_time_s: {0.5 + 0.1 * (n > 0.7 * steps)}\n"
                for n in range(steps)
            )
        )
        causes[steps] = diagnose([str(path)])[0]

    in_proportion(read, 8_000)
    found = causes[8_000]
    assert found.figures["slowdown"] == pytest.approx(1.2, rel=0.01)
    assert int(found.causes[0].where.rsplit(" ", 1)[1]) == pytest.approx(5_600, rel=0.01)
