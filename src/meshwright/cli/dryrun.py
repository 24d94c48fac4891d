"""`meshwright dryrun`: a plan on virtual ranks."""

from __future__ import annotations

from collections.abc import Iterable
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
    stages: str = typer.Option(
        "", help="Pipeline ranks to trace, such as 0,1,7, or all; default: each kind's first."
    ),
    predict_layers: options.PredictLayers = None,
    processes: int = typer.Option(2, min=1, max=64, help="Ranks traced at the same time."),
    as_json: options.AsJson = False,
    output: Path | None = typer.Option(
        None, "-o", "--output", callback=options.writable, help="Also write the JSON here."
    ),
) -> None:
    """Trace a plan of any size on this machine: memory and bytes of each rank, no GPU.

    The engine's own program runs one step for one rank of each pipeline stage, on tensors
    without data and a process group without peers. Exits with 1 if the bytes counted differ from
    the closed forms.
    """
    import json

    from meshwright.cli.output import print_json, print_lines

    subject = running.predicting(running.read_subject(what, cluster, layout), predict_layers)
    job = _job(subject, seq, global_batch, precision)
    wanted = _stages(stages, subject.layout.pp)
    from meshwright.engine.parallel.guards import check, likeness

    # Before torch is imported, which takes seconds.
    model = likeness(subject.model)
    check(model, subject.layout, global_batch=job.global_batch, seq_len=job.seq_len)
    from meshwright.engine.proof.dryrun import dry_run

    try:
        result = dry_run(
            subject.model, subject.layout, job, wanted, processes, on_progress=running.progress
        )
    finally:
        running.progress("")
    if output is not None:
        from meshwright.specs.writing import write_atomically

        write_atomically(output, json.dumps(result.plain(), indent=2) + "\n")
    if as_json:
        print_json(result.plain())
    else:
        _show(result)
        if model.family != subject.model.family:
            print_lines(
                f"The engine does not have {subject.model.family}'s arithmetic: traced were its shapes "
                f"in {model.family}'s, so memory of what differs is not seen."
            )
    if not result.traffic_equal:
        raise typer.Exit(1)


def _job(subject: Any, seq: int | None, global_batch: int | None, precision: str | None) -> Any:
    """The plan's job; without a plan two micro-batches per stage, in bf16, 4096 tokens long."""
    job, layout = subject.job, subject.layout
    if subject.plan is None:
        least = 1 if layout.pp == 1 else 2 * layout.pp
        length = job.seq_len
        if subject.model.positions == "learned":
            length = min(length, subject.model.max_positions)
        job = running.changed(job, length, layout.dp * layout.micro_batch * least, None)
    return running.changed(job, seq, global_batch, precision)


def _stages(text: str, pp: int) -> list[int] | None:
    from meshwright.specs.errors import SpecError

    if not text:
        return None
    if text == "all":
        return list(range(pp))
    try:
        wanted = [int(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(
            "stages", text, "numbers with commas, such as 0,1,7, or all are expected"
        ) from None
    for stage in wanted:
        if not 0 <= stage < pp:
            raise SpecError("stages", stage, f"0 to {pp - 1} are expected")
    return wanted


PARTS = ("parameters", "gathered", "gradients", "optimizer", "activations")
"""What the engine's footprint tells apart."""


def _show(result: Any) -> None:
    from meshwright.cli.output import print_lines, print_table

    name, unit = _unit((report.peak_bytes for report in result.traced), _MEMORY_UNITS)
    print_table(
        f"{result.model} under {result.layout}: {result.ranks} virtual ranks, "
        f"{result.global_batch} × {result.seq_len} tokens a step",
        ["stage", name, *PARTS, "peak", "error"],
        [row for report in result.traced for row in _memory_rows(report, unit)],
        set(range(2, len(PARTS) + 4)),
        "What lives at the peak of a step after the first, per rank. Measured: every tensor that the "
        "engine's program holds. Predicted: the cost model, at the moment it takes for the peak. "
        "Outside a tensor, on a GPU, come context, communicators and the allocator's gaps: "
        "`meshwright estimate` adds them.",
    )
    axes = sorted({axis for r in result.traced for axis in r.sent_bytes})
    name, unit = _unit((b for r in result.traced for b in r.sent_bytes.values()), _TRAFFIC_UNITS)
    rows = []
    for r in result.traced:
        counted, formula = r.sent_bytes, r.predicted_sent_bytes
        rows.append([str(r.pp_rank), "counted", *(_in(counted.get(a), unit) for a in axes)])
        rows.append(["", "predicted", *(_in(formula.get(a), unit) for a in axes)])
    if axes:
        print_table(
            "Sent per rank and step, by axis",
            ["stage", name, *axes],
            rows,
            set(range(2, len(axes) + 2)),
        )
    print_lines(_summary(result))


def _memory_rows(report: Any, unit: float) -> list[list[str]]:
    measured, predicted = report.peak_parts, report.predicted_peak_parts
    return [
        [str(report.pp_rank), "measured", *(_in(measured[part], unit) for part in PARTS),
         _in(report.peak_bytes, unit), ""],
        ["", "predicted", *(_in(predicted[part], unit) for part in PARTS),
         _in(report.predicted_peak_bytes, unit), f"{report.peak_error:+.1%}"],
    ]  # fmt: skip


def _summary(result: Any) -> str:
    """What was run, what it stands for, and whether counts and predictions agree."""
    name, unit = _unit((report.peak_bytes for report in result.traced), _MEMORY_UNITS)
    worst = max((report.peak_error for report in result.traced), key=abs)
    heaviest = max(result.traced, key=lambda report: report.peak_bytes)
    same = "equal the closed forms" if result.traffic_equal else "DO NOT equal the closed forms"
    ranks = ", ".join(str(report.rank) for report in result.traced)
    several = len(result.traced) > 1
    traced = [report.pp_rank for report in result.traced]
    missing = [stage for stage in range(result.stages) if stage not in traced]
    return (
        f"Heaviest traced: stage {heaviest.pp_rank}, {_in(heaviest.peak_bytes, unit)} {name}. Predicted "
        f"peaks are within {abs(worst):.1%}; counted bytes {same}.\n"
        f"Traced {'ranks' if several else 'rank'} {ranks}{', one a stage' if several else ''}; "
        f"the {result.ranks_per_stage} ranks of a stage hold and send the same. "
        f"{_untraced(missing)}Took {result.seconds:.0f} s."
    )


def _untraced(stages: list[int]) -> str:
    if not stages:
        return ""
    names = ", ".join(map(str, stages))
    return (
        f"Not traced: stage{'s' if len(stages) > 1 else ''} {names} (--stages all traces every "
        "one). "
    )


_MEMORY_UNITS = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))
_TRAFFIC_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def _unit(sizes: Iterable[float], units: tuple[tuple[str, float], ...]) -> tuple[str, float]:
    """The largest unit that makes the largest size at least one."""
    largest = max(sizes, default=0.0)
    return next((unit for unit in units if largest >= unit[1]), units[-1])


def _in(size: float | None, unit: float) -> str:
    return "–" if size is None else f"{size / unit:,.3f}"
