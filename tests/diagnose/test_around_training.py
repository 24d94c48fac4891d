"""What stands before, behind and between a log's steps: data, drawing, an error that was overcome. Texts are synthetic."""

import json

import pytest

from meshwright.diagnose.examine import diagnose

LOSSES = "".join(
    f"{{'loss': {2 - step / 50}, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': {step / 9}}}\n"
    for step in range(9)
)
ENDED = "{'train_runtime': 90.0, 'train_samples_per_second': 9.0, 'train_steps_per_second': 0.1}\n"
LATE = 'Traceback (most recent call last):\n  File "/app/train.py", line 52, in {where}\n{error}\n'


def verdict(tmp_path, text):
    file = tmp_path / "log"
    file.write_text(text)
    return diagnose([str(file)])[0]


@pytest.mark.parametrize(
    ("where", "error", "healthy", "words"),
    [
        ("plot_loss", "ImportError: no display for that", True, "only draws or describes it"),
        ("main", "ValueError: matplotlib has no such style", True, "only draws or describes it"),
        ("main", "ModuleNotFoundError: No module named 'nowhere'", False, "training had ended"),
    ],
)
def test_an_error_behind_the_end_of_training_costs_no_step(tmp_path, where, error, healthy, words):
    late = LATE.format(where=where, error=error)
    found = verdict(tmp_path, LOSSES + ENDED + late)
    assert found.healthy is healthy and words in found.verdict
    assert words not in verdict(tmp_path, LOSSES + late).verdict  # it did not end: this stopped it


def _iteration(number):
    return (
        f" iteration {number}/ 500 | elapsed time per iteration (ms): 700{number % 10}.0 | global batch size: 8 | "
        f"lm loss: 2.{number}E+00 | grad norm: 0.7 |\n"
    )


def test_a_run_that_was_resumed_and_went_on_is_not_given_the_crash(tmp_path):
    crash = "DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error\n"
    first = "".join(map(_iteration, range(100, 105))) + crash
    again = " successfully loaded checkpoint from /ckpt at iteration 104\n"
    later = "".join(map(_iteration, range(105, 125)))
    assert not verdict(tmp_path, first).healthy
    whole = verdict(tmp_path, first + again + later)
    assert whole.healthy and "an error was overcome" in whole.verdict


TIMED_OUT = (
    "[E ProcessGroupNCCL.cpp:475] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, "
    "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800328 milliseconds before timing out.\n"
)


@pytest.mark.parametrize("bar", ["Running tokenizer on dataset:   9%|", "Map (num_proc=8):  41%|"])
def test_ranks_that_wait_for_prepared_data_are_told_so(tmp_path, bar):
    waiting = "".join(TIMED_OUT.format(rank) for rank in (1, 2, 3))
    found = verdict(tmp_path, f"{bar}███     | 28/296 [29:55<4:48:08, 15 examples/s]" + waiting)
    assert "Rank 0 prepares the data" in found.verdict and found.causes[0].ranks == (0,)
    assert "ddp_timeout" in found.causes[0].remedy
    # Steps between the two: the data were ready.
    found = verdict(tmp_path, f"{bar}███ | 28/28 [00:05<00:00]\n{_iteration(100)}" + waiting)
    assert "prepares the data" not in found.verdict


def test_calls_that_a_wrapper_reports_are_no_failed_collective(tmp_path):
    report = (
        "[I ProcessGroupWrapper.cpp:562] [Rank {}] Running collective: "
        "CollectiveFingerPrint(SequenceNumber={}, OpType=ALLREDUCE, TensorShape=[])\n"
    )
    text = report.format(0, 1277) + report.format(1, 1275)
    killed = "[ERROR] [launch.py:321:sigkill_handler] ['python'] exits with return code = -9\n"
    assert verdict(tmp_path, text + killed).causes[0].kind == "out-of-memory"


def test_a_message_that_the_terminal_wrapped_is_read_whole(tmp_path):
    found = verdict(
        tmp_path,
        "CUDA out of memory. Tried to allocate 1.25 GiB (GPU 1; 79.10 GiB total capacity; 76.13 GiB \n"
        "already allocated; 290.12 MiB free; 77.47 GiB reserved in total by PyTorch)\n",
    )
    assert "live tensors: 76.1 GiB" in found.verdict


def test_addresses_of_two_kinds_are_told(tmp_path):
    found = verdict(
        tmp_path, "RuntimeError: [enforce fail] ss1.ss_family == ss2.ss_family. 2 vs 10\n"
    )
    assert found.causes[0].kind == "wrong-configuration"
    assert "GLOO_SOCKET_IFNAME" in found.causes[0].remedy


def test_lines_of_mlperf_are_read_and_cut_ones_passed_over(tmp_path):
    def line(key, value, step):
        told = {"time_ms": 1, "key": key, "value": value, "metadata": {"step": step}}
        return f":::MLLOG {json.dumps(told)}\n"

    text = "".join(line("train_loss", 7 - step / 10, step) for step in range(5, 60, 5))
    text += "".join(
        line("tracked_stats", {"throughput": 256.0, "train_step_time": 1.5}, step)
        for step in range(5, 60, 5)
    )
    found = verdict(tmp_path, text + ':::MLLOG {"key": "train_loss", "val\n:::MLLOG [[[\n')
    assert found.healthy and found.figures["step_time_s"] == 1.5
    assert found.figures["samples_per_s"] == 256.0
    assert (found.figures["loss_first"], found.figures["loss_last"]) == (6.5, 1.5)
