"""`meshwright train`: run a plan on processes of this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import typer

from meshwright.cli import options, running


def command(
    *,
    what: options.What,
    data: str = typer.Option(
        "demo", "--data", help="Text or token files (.npy, .bin); demo ships."
    ),
    out: str = typer.Option(..., "--out", "-o", help="Folder for metrics and checkpoints."),
    tokenizer: str = typer.Option("", help="A tokenizer.json for the text; default: bytes."),
    cluster: options.RankCount = None,
    layout: options.RunLayoutOptions,
    steps: int = typer.Option(100, min=1, help="Optimizer steps in all."),
    seq: int | None = typer.Option(None, "--seq", min=1, help="Tokens per sequence; default 128."),
    global_batch: int | None = typer.Option(
        None, "--global-batch", min=1, help="Sequences per step; default 16."
    ),
    precision: str | None = typer.Option(None, help="A recipe; default the plan's, or fp32."),
    learning_rate: float = typer.Option(3e-3, min=0.0, help="Peak rate, after the warm-up."),
    clip: float = typer.Option(1.0, min=0.0, help="Largest gradient norm; 0: no clipping."),
    seed: int = typer.Option(0, help="Decides weights and data order."),
    init: str = typer.Option("", help="A Hugging Face checkpoint to start from."),
    export: str = typer.Option("", help="Write a Hugging Face checkpoint here at the end."),
    resume: str = typer.Option("", help="A run's folder, of this or any other layout."),
    save_every: int = typer.Option(0, min=0, help="Steps between checkpoints; 0: none."),
    keep: int = typer.Option(3, min=1, help="Checkpoints to keep."),
    max_restarts: int = typer.Option(3, min=0, help="Restarts from the newest checkpoint."),
    csv: options.Csv = "",
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    """Train a plan on real processes: one per rank, gloo on CPUs.

    Under torchrun or SLURM run `python -m meshwright.engine` with the same arguments instead.
    """
    subject = running.read_subject(what, cluster, layout)
    from meshwright.engine.data import tokenize
    from meshwright.engine.numerics import default_numerics
    from meshwright.engine.train import Run, check_run, prepare_out
    from meshwright.engine.weights import Checkpoint

    job = running.run_job(subject, seq, global_batch, precision)
    if tokenizer:
        target = Path(out) / "tokens.npy"
        tokenize(data, tokenizer, target)
        data = str(target)
    numerics = Checkpoint(init).numerics if init else default_numerics(subject.model)
    run = Run(
        model=subject.model, numerics=numerics, layout=subject.layout, job=job, data=data, out=out,
        steps=steps, learning_rate=learning_rate, clip=clip, seed=seed, init=init, export=export,
        resume=resume, save_every=save_every, keep=keep, csv=csv, warmup=min(10, steps),
    )  # fmt: skip
    check_run(run)
    folder = prepare_out(run)
    summary = _run(run, folder, max_restarts)
    if subject.plan is not None:
        summary["predicted"] = {
            "step_time_s": subject.plan.estimate.step_time_s,
            "peak_memory_bytes": subject.plan.estimate.peak_memory_bytes,
        }
    if as_json:
        from meshwright.cli.output import finite, print_json

        print_json(finite(summary))
    else:
        _show(summary, run)


def _run(run: Any, folder: Path, max_restarts: int) -> dict[str, Any]:
    """Start the ranks, draw their progress, write metrics.jsonl; returns the summary."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from meshwright.engine.processes import RankError
    from meshwright.engine.supervise import supervise

    console = Console(stderr=True)
    rates: list[float] = []
    losses: list[float] = []
    traffic: dict[str, Any] = {}
    with (folder / "metrics.jsonl").open("a" if run.resume else "w") as metrics, Progress(
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"), BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f} · {task.fields[rate]:,.0f} tokens/s · ETA"),
        TimeRemainingColumn(), console=console, disable=not sys.stderr.isatty(),
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=run.steps, loss=float("nan"), rate=0.0)

        def heard(rank: int, message: dict[str, Any]) -> None:
            metrics.write(json.dumps(message) + "\n")
            metrics.flush()
            if message["kind"] == "step":
                losses.append(message["loss"])
                rates.append(message["tokens_s"])
                progress.update(
                    task, completed=message["step"], loss=losses[-1],
                    rate=sorted(rates[-20:])[len(rates[-20:]) // 2],
                )  # fmt: skip
            elif message["kind"] == "ledger":
                traffic.update(sent=message["sent_bytes"], predicted=message["predicted_bytes"])
            elif message["kind"] == "resumed":
                console.print(f"resumed at step {message['step']}", style="dim")

        try:
            outcome = supervise(
                run, max_restarts=max_restarts if run.save_every else 0, on_message=heard
            )
        except RankError as error:
            progress.stop()
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(1) from None
    ranks, steady = outcome.ranks, sorted(rates[1:] or rates)
    return {
        "ranks": run.layout.world,
        "layout": run.layout.label(),
        "steps": ranks[0]["step"],
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "restarts": len(outcome.recoveries),
        "tokens_s": steady[len(steady) // 2] if steady else None,
        "peak_memory_bytes": [rank["peak_memory_bytes"] for rank in ranks],
        "rank0_sent_bytes_per_step": traffic.get("sent"),
        "rank0_predicted_bytes_per_step": traffic.get("predicted"),
        "out": run.out,
    }


def _show(summary: dict[str, Any], run: Any) -> None:
    if summary["last_loss"] is None:
        print(f"nothing to do: the checkpoint is already at step {summary['steps']}")
        return
    memory = max(summary["peak_memory_bytes"]) / 2**20
    print(
        f"trained {summary['steps']} steps of {run.model.name} on {summary['ranks']} ranks "
        f"({summary['layout']}): loss {summary['first_loss']:.3f} to {summary['last_loss']:.3f}, "
        f"{summary['tokens_s']:,.0f} tokens/s, at most {memory:,.0f} MiB resident per rank"
    )
    _show_traffic(summary)
    if summary["restarts"]:
        print(f"restarted {summary['restarts']} times from the newest checkpoint")
    if "predicted" in summary and summary["tokens_s"]:
        measured = run.job.tokens / summary["tokens_s"]
        predicted = summary["predicted"]["step_time_s"]
        print(f"step time: predicted {predicted:.3g} s, measured {measured:.3g} s")
    print(f"metrics: {Path(run.out) / 'metrics.jsonl'}")


def _show_traffic(summary: dict[str, Any]) -> None:
    """One line: what rank 0 sends per step on each axis, and whether the closed forms agree."""
    sent = {k: v for k, v in (summary["rank0_sent_bytes_per_step"] or {}).items() if v}
    sent.pop("control", None)  # losses and norms: a few bytes
    if not sent:
        return
    predicted = summary["rank0_predicted_bytes_per_step"]
    parts = []
    for axis, count in sent.items():
        known = predicted is not None and axis in predicted
        agrees = known and abs(predicted[axis] - count) <= 1e-9 * count
        verdict = " as predicted" if agrees else ""
        if known and not agrees:
            verdict = f" (predicted {predicted[axis] / 1e6:.3f} MB)"
        parts.append(f"{axis} {count / 1e6:.3f} MB{verdict}")
    print(f"rank 0 sends per step: {', '.join(parts)}")
