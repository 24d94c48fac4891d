"""Training logs: what frameworks print, warm-up aside. Lines written here are synthetic."""

from __future__ import annotations

import json

import msgspec
import pytest
from shared_traces import shared

from meshwright.cli import run
from meshwright.diagnose.examine import diagnose
from meshwright.diagnose.records import Diagnosis


def figures(tmp_path, lines):
    file = tmp_path / "log"
    file.write_text("\n".join(lines) + "\n")
    return diagnose([str(file)])[0]


FRAMEWORKS = {
    "megatron": (
        " iteration {n:8d}/ 100 | consumed samples: 64 | elapsed time per iteration (ms): {ms:.1f} | "
        "throughput per GPU (TFLOP/s/GPU): 410.0 | global batch size: 64 | lm loss: 2.0E+00 |"
    ),
    "megatron seconds": " iteration {n:8d}/ 100 | elapsed time per iteration (s): {s:.3f} | lm loss: 2.0E+00 |",
    "nanotron": (
        "01/02/2026 10:00:00 [INFO|DP=0]: iteration: {n} / 100 | elapsed_time_per_iteration_ms: {ms:.1f} | "
        "tokens_per_sec_per_gpu: 11.4K | lm_loss: 2.0"
    ),
    "nemo": "Training epoch 0, iteration {n}/99 | global_step: {n} | reduced_train_loss: 2.0 | train_step_timing in s: {s:.3f}",
    "nanogpt": "iter {n}: loss 2.0000, time {ms:.2f}ms, mfu 41.00%",
    "deepspeed": "steps: {n} loss: 2.0000 iter time (s): {s:.3f} samples/sec: 85.3",
    "llm.c": "step {n:4d}/100 | loss 2.000000 (+0.00z)| norm 1.0 (+0.00z)| lr 1.00e-04 | {ms:.2f} ms | 55.2% bf16 MFU | 100000 tok/s",
    "composer": "[batch={n}/100]:\n\t Train throughput/batches_per_sec: {rate:.6f}\n\t Train loss/train/total: 2.0",
    "torchtitan": "[rank0]:[titan] 2026-01-02 10:{min:02d}:{sec:06.3f} - root - INFO - step: {n:2d}  loss:  2.0000  memory: 30.99GiB(32.62%)  tps: 7,000  tflops: 400.00  mfu: 41.00%",
    "tqdm": "  {n}%|#  | {n}/100 [{min:02d}:{sec:02.0f}<10:00, {s:.3f}s/it]",
}


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_step_time_without_warm_up(tmp_path, framework):
    lines, clock = [], 0.0
    for n in range(1, 13):
        seconds = 30.0 if n == 1 else 3.0
        clock += seconds
        minute, second = divmod(clock, 60)
        lines.append(
            FRAMEWORKS[framework].format(
                n=n, s=seconds, ms=1e3 * seconds, rate=1 / seconds, min=int(minute), sec=second
            )
        )
    found = figures(tmp_path, lines)
    assert found.figures["step_time_s"] == pytest.approx(3.0, rel=0.01)
    assert found.healthy


def test_memory_that_grows_is_a_leak_and_steady_memory_is_not(tmp_path):
    line = "step: {n} loss: 2.0 memory: {m:.2f}GiB(30%) tps: 7,000"
    grown = figures(tmp_path, [line.format(n=n, m=20 + 0.5 * n) for n in range(40)])
    assert grown.causes[0].kind == "leak"
    assert grown.figures["memory_growth_bytes_per_step"] == pytest.approx(0.5 * 2**30, rel=0.05)
    flat = figures(tmp_path, [line.format(n=n, m=20 + 0.5 * (n > 1)) for n in range(40)])
    assert flat.healthy


def test_a_lasting_slowdown_is_found_and_noise_is_not(tmp_path):
    def log(times):
        return [f"step: {n} loss: 2.0 step_time: {t:.4f}s" for n, t in enumerate(times)]

    noisy = [1.0 + 0.02 * ((7 * n) % 5) for n in range(60)]
    assert figures(tmp_path, log(noisy)).healthy
    slow = noisy[:30] + [1.4 * t for t in noisy[30:]]
    found = figures(tmp_path, log(slow))
    assert found.causes[0].gain_fraction == pytest.approx(1 - 1 / 1.4, abs=0.02)


def test_regular_long_steps_are_named(tmp_path):
    times = [4.0 if n % 10 == 9 else 1.0 for n in range(60)]
    found = figures(tmp_path, [f"step: {n} step_time: {t}s" for n, t in enumerate(times)])
    assert found.causes[0].kind == "evaluation-or-checkpoint"
    assert found.causes[0].gain_fraction == pytest.approx(18 / 78, abs=0.01)


def test_a_loader_that_is_waited_for(tmp_path):
    lines = [f"step: {n} step_time: 2.0s data_time: 1.5s" for n in range(8)]
    found = figures(tmp_path, lines)
    assert found.causes[0].kind == "input-bound"
    assert found.causes[0].gain_fraction == pytest.approx(0.75)


def test_a_full_disk(tmp_path):
    lines = [f"step: {n} step_time: 2.0s" for n in range(8)]
    lines.append("OSError: [Errno 28] No space left on device")
    found = figures(tmp_path, lines)
    assert found.causes[0].kind == "wrong-configuration"
    assert "disk" in found.verdict


def test_json_follows_its_schema_and_the_page_has_its_order(tmp_path, capsys):
    file = tmp_path / "log"
    file.write_text("".join(f"step: {n} step_time: 2.0s data_time: 1.5s\n" for n in range(8)))
    assert run(["diagnose", str(file), "--json"]) == 0
    data = capsys.readouterr().out
    found = msgspec.json.decode(data, type=Diagnosis)
    assert set(json.loads(data)) == {"verdict", "healthy", "causes", "figures", "missing"}
    assert set(json.loads(data)["causes"][0]) == {
        "kind", "ranks", "where", "share_of_step", "gain_fraction", "confidence", "remedy", "evidence",
    }  # fmt: skip
    assert found.causes[0].kind == "input-bound"
    assert run(["diagnose", str(file), "--html", str(tmp_path / "page.html")]) == 0
    out = capsys.readouterr().out
    order = [out.index(word) for word in ("waits", "EVIDENCE", "WHAT TO CHANGE", "WHAT IT GAINS")]
    assert order == sorted(order)
    assert "input-bound" in (tmp_path / "page.html").read_text()


STATED = {
    # file: step time, tokens/s/GPU, peak or reserved memory (bytes), healthy
    "megatron_v100_n4_tp4_pp4.out": (1.3806, None, 27.477e9, False),
    "megatron_v100_n16_tp4_pp16.out": (2.741, None, None, False),
    "megatron_v100_n64_tp4_pp64.out": (6.715, None, None, False),
    "megatron_deepspeed3d_52B_n16_ds_on.out": (137.1, None, None, True),
    "megatron_deepspeed_zero_48B_n16.out": (123.9, None, None, True),
    "megatron_mixtral8x7b_16h100_after.log": (5.49, None, 54251 * 2**20, True),
    "hftrainer_zero3_n16_perf_mbs8.out": (136.5, None, None, True),
    "hftrainer_zero3_offload_n4.out": (58.3, None, None, True),
    "deepspeedchat_sft_opt1.3b.log": (0.7466, None, 22.95e9, True),
    "deepspeedchat_rlhf_opt1.3b_350m.log": (3.80, None, None, True),
    "torchtitan_llama3_8b_4node_bf16.log": (None, 6785, 68.57 * 2**30, True),
    "torchtitan_llama3_8b_4node_fp8_compile.log": (None, 7865, 63.48 * 2**30, True),
    "torchtitan_float8_rowwise.log": (1.167, 7022, 30.99 * 2**30, True),
    "nemo_llama54m_tp2_8gpu.log": (7.572, None, None, True),
    "nemo_straggler_detection_099.log": (7.6, None, None, True),
    "nanotron_tp1_dp2_2gpu.log": (11.5, 11400, None, True),
    "llmfoundry_30b_128gpu.log": (40.49, 810.3, 35.99e9, True),
    "nanogpt_124m_8a100.log": (0.5627, None, None, True),
    "axolotl_eval_hog.log": (6.35, None, None, False),
    "nemo_crash_at_step17_restart.log": (7.59, None, None, False),
}


@pytest.mark.parametrize("name", sorted(STATED))
def test_public_logs_within_rounding(name):
    found, _ = diagnose([str(shared(f"diagnose/logs/{name}"))])
    step, rate, memory, healthy = STATED[name]
    if step is not None:
        assert found.figures["step_time_s"] == pytest.approx(step, rel=0.005)
    if rate is not None:
        assert found.figures["tokens_per_s_per_gpu"] == pytest.approx(rate, rel=0.005)
    if memory is not None:
        assert found.figures["peak_memory_bytes"] == pytest.approx(memory, rel=0.005)
    assert found.healthy is healthy


def test_fail_slow_names_the_rank_and_the_kind():
    found, _ = diagnose([str(shared("diagnose/logs/greyhound_global_controller_localhost.log"))])
    assert (found.causes[0].kind, found.causes[0].ranks) == ("slow-rank", (1,))
    assert found.causes[0].gain_fraction == pytest.approx(1 - 1052.3 / 1471.5, abs=0.001)


def test_a_false_alarm_is_called_false():
    found, _ = diagnose([str(shared("diagnose/logs/nemo_straggler_detection_099.log"))])
    assert "false" in found.verdict
    assert not found.causes


def test_metrics_of_one_step_a_line_each_are_read_as_one_step(tmp_path):
    lines = [
        f"timing_s/step:   {40 + n}.5\ntiming_s/gen:   30.2 (72%)\ntiming_s/update_actor:  6.1\n"
        for n in range(3)
    ]
    (tmp_path / "log.txt").write_text("".join(lines))
    found = diagnose([str(tmp_path / "log.txt")])[0]
    assert found.figures["steps_read"] == 3
    assert "Generation is the bottleneck" in found.verdict
