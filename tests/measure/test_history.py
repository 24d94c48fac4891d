"""What `calibrate` learns from: our own runs, their history, and logs with a plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.cli import run as run_command
from meshwright.cli.calibrating import collectives_of, gather
from meshwright.costs.step import estimate
from meshwright.diagnose.sources import Source
from meshwright.diagnose.trace_reading import read_trace
from meshwright.evidence.calibrate import Sighting, calibrate
from meshwright.measure.history import history_path, read_history, remember
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model
from meshwright.specs.plan import Plan, save_plan

RECORDED = Path(__file__).parents[1] / "engine" / "data" / "recorded_run"


def test_a_run_is_remembered_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWRIGHT_HISTORY", str(tmp_path / "deep" / "history.jsonl"))
    model, job, layout = load_model("gpt2"), Job(seq_len=64, global_batch=4), Layout(dp=2)
    assert remember(model, job, layout, {"step_time_s": 0.5, "peak_memory_bytes": [1]})
    assert not remember(model, job, layout, {"step_time_s": None})
    (past,) = read_history(history_path())
    assert (past.model, past.layout, past.step_s) == (model, layout, 0.5)
    assert past.job.framework == "meshwright"
    text = history_path().read_text()
    assert str(tmp_path) not in text  # no paths
    history_path().write_text('{"step_time_s": 1}\n')
    with pytest.raises(SpecError, match="a run with its step_time_s"):
        list(read_history(history_path()))


def test_a_history_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    summary = {"step_time_s": 0.5}
    assert not remember(load_model("gpt2"), Job(), Layout(), summary, blocked / "history.jsonl")


def test_a_run_folder_calibrates_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    material = gather([str(RECORDED)], [], load_cluster("cpu:1x2"))
    (seen,) = material.sightings
    assert seen.run.layout.dp == 2 and seen.step_time_s > 0
    out = tmp_path / "mine.toml"
    command = ["calibrate", "--cluster", "cpu:1x2", "--from", str(RECORDED), "-o", str(out)]
    assert run_command(command) == 0
    told = capsys.readouterr().out
    assert "measured" in told and "80 % interval" in told
    fitted = load_cluster(str(out))
    after = estimate(seen.run.model, fitted, seen.run.job, seen.run.layout).step_time_s
    before = estimate(seen.run.model, load_cluster("cpu:1x2"), seen.run.job, seen.run.layout)
    assert abs(after - seen.step_time_s) < abs(before.step_time_s - seen.step_time_s)


def plan_for(tmp_path: Path) -> tuple[Plan, Path]:
    model, cluster, job = load_model("llama3-8b"), load_cluster("h100:1x8"), Job(global_batch=32)
    layout = Layout(dp=4, tp=2, micro_batch=1)
    priced = estimate(model, cluster, job, layout)
    plan = Plan(model=model, cluster=cluster, job=job, layout=layout, estimate=priced, fits=True)
    save_plan(plan, tmp_path / "plan.toml")
    return plan, tmp_path / "plan.toml"


def test_a_log_without_its_configuration_needs_a_plan(tmp_path: Path) -> None:
    plan, path = plan_for(tmp_path)
    slow = 1.3 * plan.estimate.step_time_s
    log = tmp_path / "train.log"
    log.write_text(
        "".join(
            f"iteration {n}/ 100 | elapsed time per iteration (ms): {1e3 * slow:.1f} | lm loss: 1.0E+00 |\n"
            for n in range(1, 9)
        )
    )
    cluster = load_cluster("h100:1x8")
    with pytest.raises(SpecError, match="--plan"):
        gather([str(log)], [], cluster)
    (seen,) = gather([str(log)], [str(path)], cluster).sightings
    assert seen.step_time_s == pytest.approx(slow, rel=1e-3)
    result = calibrate(cluster, sightings=[seen])
    assert result.error_after < 0.1 < result.error_before
    constants = {c.name: c for c in result.constants if c.identified}
    rate = constants["device.sustained_bf16"]
    assert rate.low < rate.after < rate.high < rate.before * 1.5
    assert result.alike  # one run cannot tell the rate from the bandwidth
    assert result.advice


def test_more_runs_narrow_the_intervals_towards_the_truth() -> None:
    base = load_cluster("h100:1x8")
    rates = {"sustained_bf16": 0.55}
    truth = base.but(device=base.device.but(matmul_efficiency=rates).model_dump())
    model = load_model("llama3-8b")
    seen = []
    for layout, batch in (
        (Layout(dp=8, zero=1, micro_batch=1), 32),
        (Layout(dp=4, tp=2, micro_batch=2), 32),
        (Layout(dp=2, tp=4, micro_batch=4), 64),
        (Layout(tp=8, micro_batch=2), 16),
    ):
        job = Job(global_batch=batch)
        time = estimate(model, truth, job, layout).step_time_s
        from meshwright.evidence.import_rows import Run

        run = Run("made up", model, base, job, layout, "allocated", "heaviest", ())
        seen.append(Sighting(run, time, "made up"))
    few, all_ = (calibrate(base, sightings=part) for part in (seen[:1], seen))

    def width(result: object) -> float:
        rate = next(c for c in result.constants if c.name == "device.sustained_bf16")  # type: ignore[attr-defined]
        return float(rate.high / rate.low)

    assert width(all_) < width(few)
    found = next(c for c in all_.constants if c.name == "device.sustained_bf16")
    assert found.after == pytest.approx(0.55, rel=0.1)
    assert all_.error_after < 0.03


def test_a_trace_gives_its_collectives(tmp_path: Path) -> None:
    """A made-up trace in PyTorch's form: waiting lengthens some kernels, the least is kept."""
    events = [
        {
            "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "pid": 0,
            "tid": 7, "ts": 1000.0 * n, "dur": 100.0 + 50.0 * n,
            "args": {"Collective name": "allreduce", "In msg nelems": 1048576,
                     "Out msg nelems": 1048576, "Group size": 8, "dtype": "BFloat16",
                     "device": 0, "stream": 7},
        }
        for n in range(4)
    ]  # fmt: skip
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    trace = read_trace(Source(name=str(file), path=file))
    (timing,) = collectives_of(trace, load_cluster("h100:1x8"))
    assert (timing.collective, timing.ranks, timing.size_bytes) == ("all_reduce", 8, 2097152.0)
    assert timing.time_s == pytest.approx(100e-6)
    with pytest.raises(SpecError, match="no collective"):
        collectives_of(trace, load_cluster("h100:1x4"))


@pytest.mark.parametrize(
    "line",
    ["[" * 9000, '{"step_time_s": 1e999}', '{"step_time_s": -1.0}',
     '{"step_time_s": 1.0, "job": [1]}'],
)  # fmt: skip
def test_a_line_that_is_no_run_is_refused(tmp_path: Path, line: str) -> None:
    job = {"seq_len": 64, "global_batch": 4}
    whole = {
        "model": load_model("gpt2").plain(),
        "layout": {"dp": 1},
        "job": job,
        "step_time_s": 1.0,
    }
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps(whole) + "\n", "utf-8")
    assert list(read_history(path))
    path.write_text(
        (line if line[0] == "[" else json.dumps(whole | json.loads(line))) + "\n", "utf-8"
    )
    with pytest.raises(SpecError):
        list(read_history(path))


MEGATRON = """using world size: 16, data-parallel-size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 4
------------------------ arguments ------------------------
""" + "".join(
    f"  {name} {'.' * (40 - len(name))} {value}\n"
    for name, value in {
        "adam_beta1": 0.9, "adam_beta2": 0.999, "attention_dropout": 0.1, "bf16": False,
        "clip_grad": 1.0, "ffn_hidden_size": 8192, "fp16": True, "global_batch_size": 4,
        "hidden_dropout": 0.1, "hidden_size": 2048, "lr": 1e-4, "max_position_embeddings": 1024,
        "micro_batch_size": 1, "num_attention_heads": 16, "num_layers": 8,
        "padded_vocab_size": 50304, "pipeline_model_parallel_size": 4, "seq_length": 1024,
        "tensor_model_parallel_size": 4, "train_iters": 100, "weight_decay": 0.1, "world_size": 16,
        "data_parallel_size": 1, "use_checkpoint_lr_scheduler": False,
    }.items()
)  # fmt: skip


def test_a_log_s_own_world_counts_and_not_the_cluster_s_size(tmp_path: Path) -> None:
    """A run on two hosts of a large cluster: the rest of it is no data parallelism of the run."""
    log = tmp_path / "train.log"
    log.write_text(MEGATRON + "".join(
        f" iteration {n}/ 100 | elapsed time per iteration (ms): 500.0 | lm loss: 1.0E+00 |\n"
        for n in range(1, 9)
    ))  # fmt: skip
    (seen,) = gather([str(log)], [], load_cluster("v100:32x8")).sightings
    assert seen.run.layout.world == 16 and seen.run.layout.dp == 1
    (exact,) = gather([str(log)], [], load_cluster("v100:2x8")).sightings
    assert exact.run.layout == seen.run.layout
    log.write_text("nothing of a step\n" * 9)
    with pytest.raises(SpecError, match="tells no time or speed"):
        gather([str(log)], [], load_cluster("v100:2x8"))
