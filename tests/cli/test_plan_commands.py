"""plan, estimate, compare and explain, run as a user would: through the command line."""

import json
import subprocess
import sys
import tomllib

import pytest

from meshwright.cli import run
from meshwright.specs.plan import load_plan


def call(capsys, *arguments):
    code = run([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def plan_file(tmp_path, capsys):
    path = tmp_path / "plan.toml"
    code, _, _ = call(
        capsys, "plan", "llama3-8b", "-c", "h100:1x8", "--seq", 4096, "--global-batch", 64,
        "--brief", "-o", path,
    )  # fmt: skip
    assert code == 0
    return path


def test_plan_prints_the_defence_and_writes_the_plan(tmp_path, capsys):
    path = tmp_path / "plan.toml"
    code, out, _ = call(
        capsys, "plan", "llama3-70b", "--cluster", "h100:8x8", "--seq", 8192,
        "--global-batch", "4M-tokens", "-o", path,
    )  # fmt: skip
    assert code == 0
    for words in ("Memory", "Time", "Decision trees", "Why not", "What would change", "priced"):
        assert words in out
    data = tomllib.loads(path.read_text())
    assert data["job"]["global_batch"] == 512
    assert (
        data["layout"]["tp"] * data["layout"]["pp"] * data["layout"]["dp"] * data["layout"]["cp"]
        == 64
    )


def test_plan_json_has_what_is_promised(capsys):
    code, out, _ = call(
        capsys, "plan", "llama3-8b", "-c", "h100:1x8", "--seq", 4096, "--global-batch", 64, "--json"
    )
    assert code == 0
    data = json.loads(out)
    for key in ("dp", "tp", "pp", "cp", "ep", "virtual_stages", "zero", "shard", "micro_batch",
                "recompute", "sequence_parallel", "schedule"):  # fmt: skip
        assert key in data["layout"]
    for key in ("step_time_s", "tokens_per_s_per_gpu", "mfu", "peak_memory_bytes", "memory_parts",
                "time_parts"):  # fmt: skip
        assert key in data["estimate"]
    assert data["fits"] is True
    assert all({"layout", "why_not"} <= set(a) for a in data["alternatives"])
    assert data["flip_points"]
    assert data["searched"]["priced"] > 100
    assert data["searched"]["pruned"]
    parts = data["estimate"]["time_parts"].values()
    assert sum(parts) == pytest.approx(data["estimate"]["step_time_s"], rel=1e-12)


def test_estimate_that_does_not_fit_exits_with_1(capsys):
    code, out, _ = call(
        capsys, "estimate", "llama3-70b", "-c", "h100:8x8", "--seq", 8192, "--global-batch", 512,
        "--tp", 1, "--json",
    )  # fmt: skip
    assert code == 1
    assert json.loads(out)["fits"] is False


def test_estimate_prices_the_layout_it_was_given(capsys):
    code, out, _ = call(
        capsys, "estimate", "llama3-70b", "-c", "h100:8x8", "--seq", 8192, "--global-batch", 512,
        "--tp", 8, "--pp", 4, "--dp", 2, "--micro-batch", 1, "--recompute", "selective",
        "--zero", 1, "--json",
    )  # fmt: skip
    assert code == 0
    layout = json.loads(out)["layout"]
    assert (layout["tp"], layout["pp"], layout["dp"], layout["zero"]) == (8, 4, 2, 1)
    assert layout["recompute"] == "selective"
    assert layout["sequence_parallel"] is True


def test_nothing_fits_exits_with_1_and_says_the_ways_out(capsys):
    code, _, err = call(capsys, "plan", "llama3-405b", "-c", "h100:1x4", "--global-batch", 64)
    assert code == 1
    assert "short of" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "lama3-70b", "-c", "h100:8x8"], "llama3-70b"),
        (["plan", "llama3-70b", "-c", "h1000:8x8"], "h100"),
        (["plan", "llama3-70b", "-c", "h100:8x8", "--precision", "bf15"], "bf16"),
        (["plan", "llama3-70b", "-c", "h100:8x8", "--global-batch", "-3"], "global"),
        (["plan", "llama3-70b", "-c", "h100:8x8", "--reserve", "6"], "6GiB"),
        (["plan", "llama3-70b", "-c", "h100:8x8", "--reserve", "6.5"], "6.5GiB"),
        (["plan", "llama3-70b", "-c", "h100:8x8", "--seq", "banana"], "--seq"),
        (["plan", "llama3-70b", "-c", "h100:8x8", "--framework", "megatrn"], "megatron"),
        (["plan", "llama3-70b", "-c", "h100:8x8", "--objective", "joy"], "time, memory, cost"),
        (
            ["plan", "llama3-70b", "-c", "h100:8x8", "--tp", "7"],
            "tp = 7 does not divide 64 devices",
        ),
        (["estimate", "llama3-70b", "-c", "h100:8x8", "--tp", "7"], "64 devices"),
        (["estimate", "llama3-70b", "-c", "h100:8x8", "--tp", "8", "--schedule", "2f2b"], "1f1b"),
        (["explain", "nowhere.toml"], "nowhere.toml"),
        (["plan", "llama3-70b"], "--cluster"),
        (["plan", "llama3-70b", "-c", "h100:8x8", "--tpp", "8"], "--tp"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(arguments, words, capsys):
    code, out, err = call(capsys, *arguments)
    assert code == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in out + err


def test_an_unwritable_output_leaves_nothing(tmp_path, capsys):
    target = tmp_path / "missing" / "plan.toml"
    code, _, err = call(
        capsys, "plan", "llama3-8b", "-c", "h100:1x8", "--global-batch", 64, "--brief", "-o", target
    )
    assert code == 2
    assert "cannot be written" in err
    assert not target.exists()


def test_compare_names_what_differs(plan_file, tmp_path, capsys):
    other = tmp_path / "other.json"
    call(capsys, "estimate", "llama3-8b", "-c", "h100:1x8", "--seq", 4096, "--global-batch", 64,
         "--tp", 8, "-o", other)  # fmt: skip
    code, out, _ = call(capsys, "compare", plan_file, other)
    assert code == 0
    assert "layout.tp" in out
    assert "faster per device" in out
    code, out, _ = call(capsys, "compare", plan_file, other, "--json")
    assert json.loads(out)["verdict"]


def test_explain_defends_a_plan_that_was_only_priced(plan_file, capsys):
    code, out, _ = call(capsys, "explain", plan_file, "--markdown")
    assert code == 0
    for heading in ("## Memory per stage", "## Step time", "## The decision trees", "## Why not"):
        assert heading in out
    code, out, _ = call(capsys, "explain", plan_file, "--json")
    cited = json.loads(out)["nearest_runs"]
    assert len(cited) == 3
    assert all(run["measured_s"] > 0 and run["predicted_s"] > 0 for run in cited)


def test_help_imports_neither_numpy_nor_pydantic():
    code = (
        "import sys; from meshwright.cli import run; run(['--help']);"
        "bad = {'numpy', 'torch', 'fastapi', 'meshwright.costs'} & set(sys.modules);"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_python_api_is_the_same():
    import meshwright as mw

    made = mw.plan(
        mw.load_model("llama3-8b"),
        mw.load_cluster("h100:1x8"),
        mw.Job(seq_len=4096, global_batch=64),
        defend=False,
    )
    again = mw.price_layout(made.model, made.cluster, made.job, made.layout)
    assert again.estimate == made.estimate


def test_the_pareto_front_gets_slower_and_lighter(capsys):
    code, out, _ = call(
        capsys, "plan", "llama3-8b", "-c", "h100:1x8", "--seq", 4096, "--global-batch", 64,
        "--brief", "--pareto", "--json",
    )  # fmt: skip
    assert code == 0
    front = [point["estimate"] for point in json.loads(out)["pareto"]]
    assert len(front) > 1
    times = [point["step_time_s"] for point in front]
    peaks = [point["peak_memory_bytes"] for point in front]
    assert times == sorted(times)
    assert peaks == sorted(peaks, reverse=True)


def test_adapters_of_expert_models_sit_on_attention_unless_told_otherwise(tmp_path, capsys):
    made = tmp_path / "plan.toml"
    tuned = ["plan", "qwen3-30b-a3b", "-c", "h100:1x2", "--finetune", "lora", "--seq", "1024"]
    assert run([*tuned, "-o", str(made)]) == 0
    assert load_plan(made).job.finetune.targets == ("q", "k", "v", "o")
    assert "adapters are on attention alone" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("cluster", "method", "precision", "optimizer"),
    [("t4:1x1", "qlora", "fp16", "adamw"), ("v100:1x4", "full", "fp16", "adamw"),
     ("h100:1x1", "full", "pure-bf16", "adamw-bf16")],
)  # fmt: skip
def test_fine_tuning_is_in_what_the_device_computes(
    tmp_path, cluster, method, precision, optimizer
):
    made = tmp_path / "plan.toml"
    asked = ["plan", "llama3.2-1b", "-c", cluster, "--finetune", method, "--seq", "1024"]
    assert run([*asked, "-o", str(made)]) == 0
    job = load_plan(made).job
    assert (job.precision.name, job.optimizer.name) == (precision, optimizer)
