"""`meshwright dryrun`: a plan on virtual ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from meshwright.cli import options, running


def command(
    *,
    what: options.What,
    cluster: options.RankCount = None,
    seq: int | None = typer.Option(None, min=1, help="Tokens per sequence; default: the plan's."),
    global_batch: int | None = typer.Option(None, min=1, help="Sequences per step."),
    precision: str | None = typer.Option(None, help="A precision recipe; default: the plan's."),
    layout: options.RunLayoutOptions,
    stages: str = typer.Option("", help="Pipeline ranks to trace, such as 0,1,7; default: all."),
    processes: int = typer.Option(2, min=1, max=64, help="Ranks traced at the same time."),
    as_json: options.AsJson = False,
    output: Path | None = typer.Option(None, "-o", "--output", help="Also write the JSON here."),
) -> None:
    """Trace a plan of any size on this machine: memory and bytes of each rank, no GPU.

    The engine's own program runs one step for one rank of each pipeline stage, on tensors
    without data and a process group without peers. Exits with 1 if the bytes counted differ from
    the closed forms.
    """
    import json

    from meshwright.cli.output import print_json

    subject = running.read_subject(what, cluster, layout)
    job = _job(subject, seq, global_batch, precision)
    wanted = _stages(stages)
    from meshwright.engine.dryrun import dry_run

    try:
        result = dry_run(
            subject.model, subject.layout, job, wanted, processes, on_progress=running.progress
        )
    finally:
        running.progress("")
    if output is not None:
        from meshwright.specs.plan import write_atomically

        write_atomically(output, json.dumps(result.plain(), indent=2) + "\n")
    if as_json:
        print_json(result.plain())
    else:
        _show(result)
    if not result.traffic_equal:
        raise typer.Exit(1)


def _job(subject: Any, seq: int | None, global_batch: int | None, precision: str | None) -> Any:
    """The plan's job; without a plan two micro-batches per stage, in bf16, 4096 tokens long."""
    from meshwright.specs.jobs import precision_recipe

    changes: dict[str, Any] = {}
    if subject.plan is None:
        layout = subject.layout
        least = 1 if layout.pp == 1 else 2 * layout.pp
        changes["global_batch"] = layout.dp * layout.micro_batch * least
        if subject.model.positions == "learned":
            changes["seq_len"] = min(subject.job.seq_len, subject.model.max_positions)
    if seq is not None:
        changes["seq_len"] = seq
    if global_batch is not None:
        changes["global_batch"] = global_batch
    if precision is not None:
        changes["precision"] = precision_recipe(precision)
    return subject.job.but(**changes)


def _stages(text: str) -> list[int] | None:
    from meshwright.specs.errors import SpecError

    if not text:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SpecError("stages", text, "numbers with commas are expected, such as 0,1,7") from None


def _show(result: Any) -> None:
    from meshwright.cli.output import print_lines, print_table

    rows = [
        [
            str(r.pp_rank), f"{r.parameters / 1e6:,.2f} M", _gib(r.parameter_bytes),
            _gib(r.gradient_bytes), _gib(r.optimizer_bytes),
            _gib(r.peak_bytes - r.peak_parts["activations"]), _gib(r.predicted_state_bytes),
            _gib(r.peak_bytes), _gib(r.predicted_peak_bytes),
        ]
        for r in result.traced
    ]  # fmt: skip
    print_table(
        f"{result.model} under {result.layout}, {result.ranks} virtual ranks, "
        f"{result.global_batch} × {result.seq_len} tokens",
        ["stage", "local params", "params", "grads", "optimizer", "states at peak", "predicted",
         "peak", "predicted"],
        rows, set(range(9)),
        "GiB per rank. Params, grads and optimizer are what stays between steps; states at peak add "
        "gathered parameters and unsharded gradients. Peak: all tensors alive at once in a step "
        "after the first. The cost model prices the first, the second and the last stage.",
        optional=(1,),
    )  # fmt: skip
    parts = list(result.traced[0].peak_parts)
    rows = [[str(r.pp_rank), *(_gib(r.peak_parts.get(p, 0)) for p in parts)] for r in result.traced]
    print_table("The peak, by part (GiB)", ["stage", *parts], rows, set(range(len(parts) + 1)))
    axes = sorted({axis for r in result.traced for axis in r.sent_bytes})
    rows = []
    for r in result.traced:
        rows.append([str(r.pp_rank), "counted", *(_gb(r.sent_bytes.get(axis)) for axis in axes)])
        rows.append(["", "predicted", *(_gb(r.predicted_sent_bytes.get(axis)) for axis in axes)])
    print_table(
        "Sent per rank and step, by axis (GB)", ["stage", "", *axes], rows,
        set(range(2, len(axes) + 2)),
    )  # fmt: skip
    same = "equal" if result.traffic_equal else "DO NOT equal"
    print_lines(
        f"Counted bytes {same} the closed forms. Traced {len(result.traced)} ranks, each for "
        f"{result.ranks_per_stage} alike, in {result.seconds:.0f} s."
    )


def _gib(size: float | None) -> str:
    return "–" if size is None else f"{size / 2**30:,.3f}"


def _gb(size: float | None) -> str:
    return "–" if size is None else f"{size / 1e9:,.6f}"
