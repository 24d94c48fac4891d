"""`meshwright fits`: will the run that a configuration file starts fit on these devices?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from meshwright.cli import options

if TYPE_CHECKING:
    from meshwright.imports.reading import Imported
    from meshwright.planner.fits import Verdict


def command(
    config: str = typer.Argument(
        ...,
        help="The file that the run is started with: axolotl, LLaMA-Factory, TRL, torchtune, verl, "
        "accelerate, DeepSpeed, or any other that `import` reads.",
    ),
    cluster: str = typer.Option(
        ..., "--cluster", "-c", help="device:nodesxgpus such as rtx4090:1x2, or a file."
    ),
    model: str | None = typer.Option(
        None, help="Preset, size or config.json, where the file's model is none of the presets."
    ),
    zero: int | None = typer.Option(
        None, min=0, max=3, help="ZeRO stage (3: FSDP), where the file does not say it."
    ),
    seq: str | None = typer.Option(None, help="Sequence length, instead of the file's."),
    micro_batch: int | None = typer.Option(
        None, "--micro-batch", min=1, help="Sequences a device, instead of the file's."
    ),
    entry: str | None = typer.Option(
        None, "--config", help="Which configuration, where a file registers several."
    ),
    odds: float = typer.Option(
        0.9, min=0.01, max=0.999, help="Probability of fitting that counts as yes."
    ),
    as_json: options.AsJson = False,
) -> None:
    """Say whether a training run fits, before it is started; for people and for CI.

    The file is read as `import` reads it, and never executed. What it leaves open is guessed and said.
    Exits with 0 when it fits, 1 when it does not (with priced ways down), 2 when the file, the model
    or the devices cannot be read.
    """
    from meshwright.cli.inputs import read_cluster, read_model
    from meshwright.cli.output import print_json, print_lines
    from meshwright.imports.files import import_file
    from meshwright.imports.reading import Given
    from meshwright.imports.tasks import PAIRED
    from meshwright.planner.fits import verdict
    from meshwright.specs import presets
    from meshwright.specs.quantities import parse_count

    machines = read_cluster(cluster, None)
    run = import_file(
        config,
        Given(
            model=read_model(model) if model else None,
            cluster=machines,
            seq_len=parse_count(seq, "--seq") if seq else None,
            micro_batch=micro_batch,
            config=entry or "",
            guess=True,
        ),
    )
    layout = run.layout if zero is None else run.layout.but(zero=zero)
    answer = verdict(
        run.model,
        run.cluster,
        run.job,
        layout,
        odds,
        paired=run.task in PAIRED,
        reference=run.reference,
    )
    if as_json:
        print_json(_plain(run, answer))
    else:
        _show(run, answer)
        if presets.known("devices", cluster) and machines.gpus > 1:
            print_lines(
                f"{cluster} alone is a host of {machines.gpus}; one device is {cluster}:1x1"
            )
    if not answer.fits:
        raise typer.Exit(1)


def _said(run: Imported, *kinds: str) -> list[str]:
    """The remarks of some kinds; what is trained on beside the plain step is priced here."""
    return [one.sentence() for one in run.remarks if one.kind in kinds and one.option != "task"]


def _task(run: Imported) -> str:
    from meshwright.imports.tasks import PAIRED

    held = "the untrained model is held in 16 bits beside the one that trains"
    said = [f"{run.task}: a sample is two sequences"] if run.task in PAIRED else []
    said += [held] if run.reference and not run.job.frozen else []
    said += ["answers are generated between the steps: that memory is not counted"] * (
        run.task in ("grpo", "ppo", "rloo")
    )
    return "; ".join(said)


def _plain(run: Imported, answer: Verdict) -> dict[str, Any]:
    return {
        "fits": answer.fits, "odds": answer.odds, "model": run.model.name, "tool": run.format,
        "job": run.job.plain(), "layout": answer.layout.plain(),
        "estimate": answer.estimate.plain(), "task": run.task, "reference": run.reference,
        "assumed": _said(run, "guess", "note"), "not_priced": _said(run, "unmodelled"),
        "unread": [one.option for one in run.remarks if one.kind == "unread"],
        "ways_down": [
            {
                "change": way.change, "fits": way.fits, "odds": way.odds,
                "peak_memory_bytes": way.estimate.peak_memory_bytes,
                "step_time_s": way.estimate.step_time_s,
            }
            for way in answer.ways
        ],
    }  # fmt: skip


def _show(run: Imported, answer: Verdict) -> None:
    from meshwright.cli.output import print_lines, print_table
    from meshwright.cli.render import PHASE_WORDS
    from meshwright.planner.words import MEMORY_WORDS
    from meshwright.specs.quantities import format_bytes, format_seconds

    estimate, job, layout = answer.estimate, run.job, answer.layout
    tune = job.finetune.label() if job.finetune else "all weights"
    span = estimate.peak_memory_range
    around = f" ({format_bytes(span.low)} – {format_bytes(span.high)})" if span else ""
    devices = f"{layout.world} × {run.cluster.device.name}"
    parts = sorted(estimate.memory_parts.items(), key=lambda part: -part[1])[:6]
    room = estimate.peak_memory_bytes <= estimate.capacity_bytes
    said = "fits" if answer.fits else "MAY NOT FIT" if room else "DOES NOT FIT"
    lines = [
        f"{said}: {run.model.name}, {tune}, on {devices} ({answer.odds:.0%} likely to fit)",
        f"  peak {format_bytes(estimate.peak_memory_bytes)}{around} of "
        f"{format_bytes(estimate.capacity_bytes)} a device",
        "  " + " · ".join(f"{MEMORY_WORDS.get(n, n)} {format_bytes(v)}" for n, v in parts),
        f"  {run.format}: {layout.label()} of {job.seq_len} tokens, "
        f"{job.global_batch} sequences a step, {job.precision.name}, {job.optimizer.name}",
        f"  step {format_seconds(estimate.step_time_s)}, "
        f"{estimate.tokens_per_s_per_gpu:,.0f} tokens/s per device",
    ]
    if estimate.memory_phases:
        phases = [f"{PHASE_WORDS[n]} {format_bytes(v)}" for n, v in estimate.memory_phases.items()]
        lines.insert(3, "  by phase: " + " · ".join(phases))
    if task := _task(run):
        lines.append(f"  {task}")
    lines += [f"  assumed: {what}" for what in _said(run, "guess")]
    lines += [f"  note: {what}" for what in _said(run, "note")]
    lines += [f"  not priced: {what}" for what in _said(run, "unmodelled")]
    unread = [one.option for one in run.remarks if one.kind == "unread"]
    if unread:
        lines.append(f"  not understood, and may change memory: {', '.join(unread[:12])}")
    print_lines(*lines)
    if answer.ways:
        print_table(
            "Ways down",
            ["change", "peak", "odds", "step"],
            [
                [way.change, format_bytes(way.estimate.peak_memory_bytes), f"{way.odds:.0%}",
                 format_seconds(way.estimate.step_time_s)]
                for way in answer.ways
            ],
            right=range(1, 4),
        )  # fmt: skip
