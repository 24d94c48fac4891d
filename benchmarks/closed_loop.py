"""The closed loop on this machine: measure it, predict runs, make them, compare.

    python benchmarks/closed_loop.py [--cluster mine.toml] [--runs N] [--only TEXT] [--steps 8] [--starts 3]
                                     [--results FILE] [--again] [--markdown docs/measured.md] [--ranges]

Without `--cluster` the machine is measured first (two minutes). Every run's result is appended to
`--results` as it ends, and runs that are there already are not made again: stop it and start it at
will. `--runs N` makes at most N more; `--only TEXT` those whose name contains the text. `--again` makes
none: those that are there are predicted anew, from the cluster file as it is, by the code as it is.
`--markdown` writes the page from all results there are, `--ranges` the ranges that plans for a measured
machine print (costs/data/closed_loop.toml).

Runs are models from the lessons' toy to some 100 M parameters under every axis, on 1 to 8 ranks; none
is among the probes that `measure` fits the engine's own work to. The prediction is made from the
cluster file before the run. *wall* is the median step by the clock, of the median of several starts beside the predicted step time;
*processor* is the mean rank's main thread beside its predicted work, which other programs on the
machine change little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from meshwright import costs
from meshwright.costs.step import estimate
from meshwright.engine.model.toy import TOY
from meshwright.engine.proof.traffic import expected_sent_bytes
from meshwright.engine.run import precision_of
from meshwright.measure.runs import Steps, alone_s, run_here, tensor_bytes
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Experts, Model
from meshwright.specs.writing import write_atomically

MODELS = {
    "toy": TOY,
    "llama-3m": Model(name="llama-3m", layers=6, hidden=192, heads=6, kv_heads=2, head_dim=32,
                      ffn=512, vocab=1024),
    "gpt-12m": Model(name="gpt-12m", layers=8, hidden=320, heads=8, kv_heads=8, head_dim=40,
                     ffn=1280, vocab=4096, gated=False, norm="layernorm", norm_bias=True,
                     positions="learned", max_positions=512, qkv_bias=True, ffn_bias=True,
                     attention_out_bias=True, tied_embeddings=True),
    "qwen-8m": Model(name="qwen-8m", layers=6, hidden=256, heads=8, kv_heads=4, head_dim=32,
                     ffn=768, vocab=4096, qk_norm="head"),
    "llama-35m": Model(name="llama-35m", layers=8, hidden=512, heads=8, kv_heads=8, head_dim=64,
                       ffn=1408, vocab=8192),
    "llama-100m": Model(name="llama-100m", layers=10, hidden=768, heads=12, kv_heads=4, head_dim=64,
                        ffn=2304, vocab=16384),
    "experts-6m": Model(name="experts-6m", layers=4, hidden=192, heads=6, kv_heads=6, head_dim=32,
                        ffn=384, vocab=1024, experts=Experts(experts=8, top_k=2, ffn=256)),
}  # fmt: skip


def runs() -> list[tuple[str, Steps]]:
    """Every run by name."""
    found: list[tuple[str, Steps]] = []

    def add(model: str, layout: Layout, batch: int, seq: int, precision: str = "fp32") -> None:
        job = Job(
            seq_len=seq, global_batch=batch, precision=RECIPES[precision], framework="meshwright"
        )
        name = f"{model}, {layout.label()}, {batch}x{seq}, {precision}"
        found.append(
            (name, Steps(model=MODELS[model], layout=layout, job=job, steps=8, count=True))
        )

    one = Layout(micro_batch=8)
    for model, batch, seq in (
        ("toy", 16, 128), ("llama-3m", 8, 128), ("gpt-12m", 4, 128), ("qwen-8m", 4, 128),
        ("llama-35m", 2, 128), ("llama-100m", 2, 128), ("experts-6m", 8, 128),
    ):  # fmt: skip
        add(model, one.but(micro_batch=batch), batch, seq)
    add("llama-3m", Layout(micro_batch=2, recompute="full"), 8, 256)
    add("llama-3m", Layout(micro_batch=2, recompute="selective"), 8, 256)
    add("toy", Layout(micro_batch=4), 16, 128, "bf16")
    add("llama-3m", Layout(micro_batch=4), 4, 64, "bf16")
    for model, batch, seq in (("toy", 16, 128), ("llama-3m", 8, 128), ("gpt-12m", 8, 64)):
        share = batch // 2
        add(model, Layout(dp=2, micro_batch=share), batch, seq)
        add(model, Layout(dp=2, zero=3, micro_batch=share), batch, seq)
        add(model, Layout(tp=2, micro_batch=batch), batch, seq)
        add(model, Layout(pp=2, micro_batch=2, schedule="1f1b"), batch, seq)
    add("llama-35m", Layout(dp=2, zero=2, micro_batch=2), 4, 64)
    add("llama-35m", Layout(tp=2, micro_batch=2, sequence_parallel=True), 2, 128)
    add("llama-100m", Layout(dp=2, zero=1, micro_batch=1), 2, 64)
    add("llama-100m", Layout(pp=2, micro_batch=1, schedule="1f1b"), 4, 64)
    add("qwen-8m", Layout(dp=4, micro_batch=2), 8, 64)
    add("qwen-8m", Layout(dp=4, zero=1, micro_batch=2), 8, 64)
    add("qwen-8m", Layout(dp=2, tp=2, zero=2, micro_batch=2), 8, 64)
    add("qwen-8m", Layout(tp=2, pp=2, micro_batch=2, schedule="1f1b"), 8, 64)
    add("llama-3m", Layout(pp=4, micro_batch=1, schedule="1f1b"), 8, 64)
    add("llama-3m", Layout(pp=2, virtual_stages=3, micro_batch=1, schedule="interleaved"), 8, 64)
    add("toy", Layout(pp=4, micro_batch=2, schedule="gpipe"), 16, 128)
    add("toy", Layout(pp=2, virtual_stages=2, micro_batch=2, schedule="zb-v"), 16, 128)
    add("toy", Layout(tp=2, pp=2, virtual_stages=2, micro_batch=4, schedule="zb-v",
                      sequence_parallel=True), 16, 128)  # fmt: skip
    add("llama-3m", Layout(cp=2, micro_batch=4), 8, 128)
    add("llama-3m", Layout(cp=2, dp=2, zero=3, micro_batch=2), 8, 128)
    add("experts-6m", Layout(dp=2, ep=2, micro_batch=4), 8, 64)
    add("experts-6m", Layout(dp=4, ep=4, zero=2, micro_batch=2), 8, 64)
    add("toy", Layout(dp=8, micro_batch=2), 16, 128)
    add("toy", Layout(dp=2, tp=2, pp=2, micro_batch=2, schedule="1f1b"), 16, 128)
    add("qwen-8m", Layout(dp=4, tp=2, zero=3, micro_batch=1), 8, 64)
    add("llama-35m", Layout(dp=4, zero=3, micro_batch=1), 4, 64)
    add("toy", Layout(dp=2, zero=3, micro_batch=4), 16, 128, "bf16")
    add("toy", Layout(tp=2, pp=2, micro_batch=4, schedule="1f1b"), 16, 128, "bf16")
    return found


def predict(what: Steps, mine: str) -> dict[str, Any]:
    """What the cluster file says of a run."""
    cluster = load_cluster(f"{mine}:1x{what.layout.world}")
    foreseen = estimate(what.model, cluster, what.job, what.layout)
    told = foreseen.step_time_range
    return {
        "predicted_s": foreseen.step_time_s,
        "low_s": told.low if told else None, "high_s": told.high if told else None,
        "predicted_cpu_s": alone_s(cluster, what.model, what.job, what.layout),
        "predicted_tensor_bytes": tensor_bytes(foreseen),
        "predicted_process_bytes": foreseen.peak_memory_bytes,
        "parts_s": {k: v for k, v in foreseen.time_parts.items() if v},
    }  # fmt: skip


def compare(name: str, what: Steps, mine: str, starts: int) -> dict[str, Any]:
    """Predict, run, and put both beside each other.

    A run's pace depends on where its processes' memory came to lie, by a fifth from start to start on
    one idle machine; what is measured is the median of several starts.
    """
    foreseen = predict(what, mine)
    runs_made = [run_here(what) for _ in range(starts)]
    measured = runs_made[0]
    expected = expected_sent_bytes(
        what.model, what.layout, 0, global_batch=what.job.global_batch, seq_len=what.job.seq_len,
        precision=precision_of(what.job),
    )  # fmt: skip
    sent = {k: v for k, v in (measured.sent_bytes or {}).items() if k != "control" and v}
    known = {k: v for k, v in expected.items() if k != "control" and v}
    return {
        "name": name, "ranks": what.layout.world, "time": time.strftime("%Y-%m-%d %H:%M"),
        **foreseen,
        "step_s": statistics.median(statistics.median(one.step_s) for one in runs_made),
        "cpu_s": statistics.median(statistics.median(one.cpu_s) for one in runs_made),
        "tensor_bytes": max(measured.tensor_bytes),
        "process_bytes": statistics.median(max(one.process_bytes) for one in runs_made),
        "sent_bytes": sent, "expected_sent_bytes": known,
        "bytes_equal": all(abs(sent.get(k, 0.0) - v) < 0.5 for k, v in known.items()),
        "steps_s": [list(one.step_s) for one in runs_made],
    }  # fmt: skip


def ratios(rows: list[dict[str, Any]], measured: str, predicted: str) -> list[float]:
    """Absolute relative errors, smallest first."""
    return sorted(abs(row[predicted] / row[measured] - 1.0) for row in rows)


def at(errors: list[float], share: float) -> float:
    """A quantile."""
    return errors[min(int(share * len(errors)), len(errors) - 1)] if errors else float("nan")


def summary(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """(quantity, median, 90th percentile) of relative errors."""
    pairs = (
        ("step time by the clock", "step_s", "predicted_s"),
        ("processor time of a rank", "cpu_s", "predicted_cpu_s"),
        ("peak of tensors", "tensor_bytes", "predicted_tensor_bytes"),
        ("peak of the process", "process_bytes", "predicted_process_bytes"),
    )
    found = []
    for name, measured, predicted in pairs:
        errors = ratios(rows, measured, predicted)
        found.append((name, f"{100 * at(errors, 0.5):.1f} %", f"{100 * at(errors, 0.9):.1f} %"))
    return found


def ranges(rows: list[dict[str, Any]]) -> str:
    """costs/data/closed_loop.toml: what four in five runs measured over what was predicted."""
    lines = [
        "# Measured over predicted, of runs that were predicted from their machine's own measurement.",
        "# Written by benchmarks/closed_loop.py --ranges; 80 % of the runs lie between low and high.",
    ]
    for quantity, measured, predicted in (
        ("time", "step_s", "predicted_s"),
        ("memory", "process_bytes", "predicted_process_bytes"),
    ):
        found = sorted(row[measured] / row[predicted] for row in rows)
        cut = statistics.quantiles(found, n=10, method="inclusive")
        lines += ["", f"[{quantity}]", f"low = {cut[0]:.3f}", f"high = {cut[-1]:.3f}",
                  f"runs = {len(rows)}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def markdown(rows: list[dict[str, Any]], source: str) -> str:
    """docs/measured.md."""
    equal = sum(row["bytes_equal"] for row in rows)
    inside = sum(row["low_s"] <= row["step_s"] <= row["high_s"] for row in rows if row["low_s"])
    lines = [
        "# Predicted and measured on one's own machine", "",
        "Written by `python benchmarks/closed_loop.py --markdown docs/measured.md`: the machine is "
        "measured by `meshwright measure`, every run is predicted from that file alone and then made "
        "by the engine. None of the runs is among the probes that `measure` fits.", "",
        f"The machine: {source}.", "",
        f"{len(rows)} runs; bytes of rank 0 as predicted in {equal}; the step time inside its range in "
        f"{inside}.", "",
        "| relative error | median | 90th percentile |", "|---|---|---|",
        *(f"| {name} | {median} | {worst} |" for name, median, worst in summary(rows)), "",
        "| run | predicted | measured | ratio | processor, predicted | measured | ratio | "
        "tensors, ratio | process, ratio |", "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    lines.extend(
        f"| {row['name']} | {1e3 * row['predicted_s']:.1f} ms | {1e3 * row['step_s']:.1f} ms | "
        f"{row['predicted_s'] / row['step_s']:.2f} | {1e3 * row['predicted_cpu_s']:.1f} ms | "
        f"{1e3 * row['cpu_s']:.1f} ms | {row['predicted_cpu_s'] / row['cpu_s']:.2f} | "
        f"{row['predicted_tensor_bytes'] / row['tensor_bytes']:.2f} | "
        f"{row['predicted_process_bytes'] / row['process_bytes']:.2f} |"
        for row in rows
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cluster", default="")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--results", default="runs/closed_loop.jsonl")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--markdown", default="")
    parser.add_argument("--ranges", action="store_true")
    options = parser.parse_args()
    results = Path(options.results)
    results.parent.mkdir(parents=True, exist_ok=True)
    mine = options.cluster
    if not mine:
        mine = str(results.with_suffix(".toml"))
        if not Path(mine).exists():
            subprocess.run(
                [sys.executable, "-m", "meshwright", "measure", "-o", mine, "--ranks", "8",
                 "--seconds", "150", "--raw", str(results.with_suffix(".raw.json"))], check=True,
            )  # fmt: skip
    rows = (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )
    done = {row["name"] for row in rows}
    if options.again:
        by_name = dict(runs())
        rows = [row | predict(by_name[row["name"]], mine) for row in rows]
        write_atomically(results, "".join(json.dumps(row) + "\n" for row in rows))
    most = 0 if options.again else options.runs
    todo = [(n, w) for n, w in runs() if options.only in n and n not in done][:most]
    torch.set_num_threads(1)
    for index, (name, what) in enumerate(todo):
        what = Steps(model=what.model, layout=what.layout, job=what.job, steps=options.steps,
                     seconds=90.0, count=True)  # fmt: skip
        try:
            row = compare(name, what, mine, options.starts)
        except Exception as error:  # a run that fails is told, the others go on
            print(f"{name}: failed: {' '.join(str(error).split())[:200]}", flush=True)
            continue
        rows.append(row)
        with results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{index + 1}/{len(todo)} {name}: wall {1e3 * row['predicted_s']:.0f} | "
            f"{1e3 * row['step_s']:.0f} ms ({row['predicted_s'] / row['step_s']:.2f}), processor "
            f"{1e3 * row['predicted_cpu_s']:.0f} | {1e3 * row['cpu_s']:.0f} ms "
            f"({row['predicted_cpu_s'] / row['cpu_s']:.2f}), tensors "
            f"{row['predicted_tensor_bytes'] / row['tensor_bytes']:.2f}, process "
            f"{row['predicted_process_bytes'] / row['process_bytes']:.2f}, bytes "
            f"{'equal' if row['bytes_equal'] else 'DIFFER'}",
            flush=True,
        )
    if rows:
        for name, median, worst in summary(rows):
            print(f"{name}: median {median}, 90th percentile {worst}")
    if options.ranges and rows:
        data = Path(costs.__file__).parent / "data"
        write_atomically(data / "closed_loop.toml", ranges(rows))
    if options.markdown and rows:
        Path(options.markdown).write_text(markdown(rows, load_cluster(mine).source))


if __name__ == "__main__":
    main()
