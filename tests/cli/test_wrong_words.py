"""What people type first and wrongly: one sentence that names the word and what would be accepted."""

import json
import os
import sys

import pytest

from meshwright.cli import run
from meshwright.diagnose.examine import diagnose

PLAN = ["plan", "llama3-8b", "-c", "h100:1x8"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([*PLAN, "--recompute", "some"], "recompute = 'some': input should be 'none', "),
        ([*PLAN, "--schedule", "1f2b"], "schedule = '1f2b': did you mean 1f1b"),
        ([*PLAN, "--tp", "eight"], "--tp = 'eight': should be a valid integer"),
        ([*PLAN, "--zero=4"], "--zero = '4': should be less than or equal to 3"),
        ([*PLAN, "--capacity-factor"], "requires an argument. Drop tokens beyond"),
        ([*PLAN, "--rank-order", "tp-dp"], "rank_order = 'tp-dp': each of tp"),
        ([*PLAN, "--finetune", "lora", "--targets", "q_prj"], "--finetune.targets = 'q_prj'"),
        (["plan", "llama3-8b", "-c", "64xH100"], "behind the device: h100:64"),
        (["plan", "llama3-8b", "-c", "8 x RTX 4090"], "behind the device: rtx-4090:8"),
        (["plan", "llama3-8b", "-c", "h100x8"], "behind the device: h100:8"),
        (["plan", "llama3-8b", "-c", "0xh100"], "did you mean h100"),
    ],
)
def test_a_wrong_word_is_named_with_what_is_meant(words, sentence, capsys):
    assert run(words) == 2
    told = capsys.readouterr().err
    assert sentence in told and told.count("\n") == 1


@pytest.mark.parametrize("name", ["allreduce", "AllReduce", "all_reduce", "all-reduce"])
def test_a_collective_has_every_spelling(name, capsys):
    assert run(["collective", name, "--size", "2GB", "--ranks", "8", "--bandwidth", "25GB/s"]) == 0
    assert "all-reduce of 2 GB" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["measure", "-o"],
        [*PLAN, "--output"],
        ["simulate", "--schedule", "1f1b", "--pp", "2", "--microbatches", "4", "--svg"],
        ["scorecard", "--markdown"],
        ["diagnose", "nothing.log", "--html"],
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(words, tmp_path, capsys):
    assert run([*words, str(tmp_path / "nowhere" / "file")]) == 2
    captured = capsys.readouterr()
    assert "its folder does not exist" in captured.err and not captured.out


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_folder_without_room_for_names_is_refused_before_the_work(capsys):
    assert run([*PLAN, "-o", "/proc/self/plan.toml"]) == 2
    assert "takes no new files" in capsys.readouterr().err


def test_one_card_is_told_apart_from_a_whole_host(tmp_path, capsys):
    file = tmp_path / "axolotl.yml"
    file.write_text(
        "base_model: NousResearch/Meta-Llama-3-8B\nadapter: qlora\nload_in_4bit: true\nsequence_len: 512\n"
        "micro_batch_size: 1\nlora_r: 8\nlora_target_linear: true\nbf16: true\ngradient_checkpointing: true\n"
    )
    run(["fits", str(file), "-c", "rtx4090"])
    assert "one device is rtx4090:1x1" in capsys.readouterr().out
    run(["fits", str(file), "-c", "rtx4090:1x1"])
    assert "one device is" not in capsys.readouterr().out


def test_another_tools_file_is_no_plan_and_the_sentence_says_who_reads_it(tmp_path, capsys):
    file = tmp_path / "axolotl.yml"
    file.write_text("base_model: NousResearch/Meta-Llama-3-8B\nadapter: qlora\n")
    for command in ("explain", "simulate", "goodput"):
        assert run([command, str(file)]) == 2
        told = capsys.readouterr().err
        assert "is no plan file" in told and "meshwright import" in told


def test_measuring_needs_torch_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["measure", "-o", str(tmp_path / "mine.toml")]) == 2
    assert "meshwright[engine]" in capsys.readouterr().err


def _run(seconds: float) -> str:
    start = {
        "kind": "start",
        "generation": 0,
        "ranks": 1,
        "steps": 12,
        "model_flops_per_token": 1.0,
    }
    steps = [
        {"kind": "step", "step": number, "loss": 2.0, "step_time_s": seconds, "tokens_s": 10.0}
        for number in range(1, 13)
    ]
    return "".join(json.dumps(one) + "\n" for one in (start, *steps))


def test_the_last_run_in_a_folder_is_the_one_diagnosed(tmp_path):
    """An earlier run's records keep a number; each is read as what it is."""
    (tmp_path / "metrics.jsonl").write_text(_run(2.0))
    (tmp_path / "metrics.1.jsonl").write_text(_run(9.0))
    assert diagnose([str(tmp_path)])[0].figures["step_time_s"] == 2.0
    assert diagnose([str(tmp_path / "metrics.1.jsonl")])[0].figures["step_time_s"] == 9.0
