"""`meshwright fits`: will the run that a configuration file starts fit on these devices?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from meshwright.cli import options

if TYPE_CHECKING:
    from meshwright.exports.tuning import Tuning
    from meshwright.planner.fits import Verdict
    from meshwright.specs.model import Model


def command(
    config: str = typer.Argument(
        ..., help="axolotl, LLaMA-Factory, TRL, torchtune, verl, accelerate or DeepSpeed file."
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
    odds: float = typer.Option(
        0.9, min=0.01, max=0.999, help="Probability of fitting that counts as yes."
    ),
    as_json: options.AsJson = False,
) -> None:
    """Say whether a fine-tuning run fits, before it is started; for people and for CI.

    Exits with 0 when it fits, 1 when it does not (with priced ways down), 2 when the file, the model
    or the devices cannot be read.
    """
    from meshwright.cli.inputs import read_cluster, read_model
    from meshwright.cli.output import print_json
    from meshwright.exports.tuning import read_tuning
    from meshwright.planner.fits import verdict
    from meshwright.specs.errors import SpecError
    from meshwright.specs.quantities import parse_count

    machines = read_cluster(cluster, None)
    tuning = read_tuning(config, machines.gpus)
    if not (model or tuning.model):
        raise SpecError("--model", None, f"the {tuning.tool} file names no model: give one")
    shape = read_model(model) if model else _model_of(tuning)
    if zero is not None:
        tuning.zero = zero
    if seq:
        tuning.job = tuning.job.but(seq_len=parse_count(seq, "--seq"))
    answer = verdict(shape, machines, tuning, odds)
    if as_json:
        print_json(_plain(shape.name, tuning, answer))
    else:
        _show(shape.name, machines.device.name, tuning, answer)
    if not answer.fits:
        raise typer.Exit(1)


def _model_of(tuning: Tuning) -> Model:
    """The architecture that the file's model has: by its name, or that of what it was made from.

    Raises:
        SpecError: neither is a preset.
    """
    from meshwright.exports.tuning import plainer_name, size_in
    from meshwright.specs import load_model
    from meshwright.specs.errors import SpecError

    try:
        return load_model(tuning.model)
    except SpecError as error:
        first = error
    size = size_in(tuning.model)
    for guess, why in ((plainer_name(tuning.model), "by its name"), (size, "a typical one")):
        try:
            shape = load_model(guess or "")
        except SpecError:
            continue
        tuning.assumed.append(f"{tuning.model} has the shape of {shape.name}, {why}")
        return shape
    raise SpecError(
        "--model", tuning.model, f"no preset of this name: give one, or its config.json ({first})"
    )


def _plain(model: str, tuning: Tuning, answer: Verdict) -> dict[str, Any]:
    return {
        "fits": answer.fits, "odds": answer.odds, "model": model, "tool": tuning.tool,
        "job": tuning.job.plain(), "layout": answer.layout.plain(),
        "estimate": answer.estimate.plain(), "assumed": tuning.assumed, "unread": tuning.unread,
        "ways_down": [
            {
                "change": way.change, "fits": way.fits, "odds": way.odds,
                "peak_memory_bytes": way.estimate.peak_memory_bytes,
                "step_time_s": way.estimate.step_time_s,
            }
            for way in answer.ways
        ],
    }  # fmt: skip


def _show(model: str, device: str, tuning: Tuning, answer: Verdict) -> None:
    from meshwright.cli.output import print_lines, print_table
    from meshwright.cli.render import PHASE_WORDS
    from meshwright.planner.words import MEMORY_WORDS
    from meshwright.specs.quantities import format_bytes, format_seconds

    estimate, job = answer.estimate, tuning.job
    tune = job.finetune.label() if job.finetune else "all weights"
    span = estimate.peak_memory_range
    around = f" ({format_bytes(span.low)} – {format_bytes(span.high)})" if span else ""
    devices = f"{answer.layout.world} × {device}"
    parts = sorted(estimate.memory_parts.items(), key=lambda part: -part[1])[:6]
    room = estimate.peak_memory_bytes <= estimate.capacity_bytes
    said = "fits" if answer.fits else "MAY NOT FIT" if room else "DOES NOT FIT"
    lines = [
        f"{said}: {model}, {tune}, on {devices} ({answer.odds:.0%} likely to fit)",
        f"  peak {format_bytes(estimate.peak_memory_bytes)}{around} of "
        f"{format_bytes(estimate.capacity_bytes)} a device",
        "  " + " · ".join(f"{MEMORY_WORDS.get(n, n)} {format_bytes(v)}" for n, v in parts),
        f"  {tuning.tool}: micro-batch {tuning.micro_batch} × {job.seq_len} tokens, "
        f"{tuning.accumulate} accumulated, ZeRO-{tuning.zero}, {job.optimizer.name}, "
        f"{'recomputing' if tuning.recompute else 'not recomputing'} activations",
        f"  step {format_seconds(estimate.step_time_s)}, "
        f"{estimate.tokens_per_s_per_gpu:,.0f} tokens/s per device",
    ]
    if estimate.memory_phases:
        phases = [f"{PHASE_WORDS[n]} {format_bytes(v)}" for n, v in estimate.memory_phases.items()]
        lines.insert(3, "  by phase: " + " · ".join(phases))
    lines += [f"  assumed: {what}" for what in tuning.assumed]
    if tuning.unread:
        lines.append(f"  not read, and may change memory: {', '.join(tuning.unread[:12])}")
    print_lines(*lines)
    if answer.ways:
        print_table(
            "Ways down" if not answer.fits else "Lighter still",
            ["change", "peak", "odds", "step"],
            [
                [way.change, format_bytes(way.estimate.peak_memory_bytes), f"{way.odds:.0%}",
                 format_seconds(way.estimate.step_time_s)]
                for way in answer.ways
            ],
            right=range(1, 4),
        )  # fmt: skip
