"""`meshwright trace`: measured steps out of a run's profiler traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from meshwright.cli import options


def command(
    *,
    run: Path = typer.Argument(..., help="A run's folder, or a folder of its traces."),
    step: int | None = typer.Option(None, min=1, help="The step to show; default: the last."),
    pipeline: int | None = typer.Option(
        None, min=0, help="The pipeline that begins with this rank; default: the first."
    ),
    svg: Path | None = typer.Option(
        None, "--svg", callback=options.writable, help="Write a picture."
    ),
    output: Path | None = typer.Option(
        None,
        "-o",
        "--output",
        callback=options.writable,
        help="Write the timeline as columnar JSON.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the numbers as JSON."),
    width: int = typer.Option(0, "--width", help="Columns of the timeline; 0: the terminal's."),
) -> None:
    """Show a profiled step as it ran: the pipeline's timeline, its bubble, the collectives.

    Reads the traces of `train --profile`. Beside what was measured stands the same order with the
    same durations and messages that take no time: the difference is what waiting cost.
    """
    from meshwright.engine.watch.trace import measured_steps, read_traces
    from meshwright.specs.errors import SpecError

    found = measured_steps(read_traces(run), pipeline)
    numbers = [one.number for one in found]
    if step is not None and step not in numbers:
        raise SpecError("step", step, f"profiled were {numbers}")
    shown = found[numbers.index(step) if step is not None else -1]
    _write(shown, svg, output)
    if as_json:
        from meshwright.cli.output import print_json

        print_json({"steps": [_plain(one) for one in found]})
        return
    _print(shown, width)


def _form(time_s: float) -> str:
    from meshwright.specs.quantities import format_seconds

    return format_seconds(time_s) if time_s else "0 s"


def _write(shown: Any, svg: Path | None, output: Path | None) -> None:
    import json

    from meshwright.specs.writing import write_atomically

    if svg is not None:
        from meshwright.simulator.render_svg import svg_timeline

        write_atomically(svg, svg_timeline(shown.timeline, format_time=_form))
    if output is not None:
        from meshwright.simulator.columnar import columnar

        write_atomically(output, json.dumps(columnar(shown.timeline)))


def _plain(one: Any) -> dict[str, Any]:
    from dataclasses import asdict

    bubble = one.timeline.bubble
    return {
        "step": one.number, "pipeline": one.pipeline, "step_s": one.step_s,
        "makespan_s": one.timeline.makespan_s, "replayed_makespan_s": one.replayed.makespan_s,
        "bubble": {"span": bubble.span, "makespan": bubble.makespan,
                   "attribution": bubble.attribution},
        "replayed_bubble": one.replayed.bubble.makespan,
        "busy_s": one.timeline.busy_s.tolist(),
        "collectives": {
            str(rank): {axis: asdict(moved) for axis, moved in axes.items()}
            for rank, axes in one.collectives.items()
        },
    }  # fmt: skip


def _print(shown: Any, width: int) -> None:
    from rich.console import Console

    from meshwright.cli.output import print_table
    from meshwright.cli.simulate_view import CAUSES
    from meshwright.simulator.render_terminal import terminal_timeline

    console = Console(width=width or None)
    timeline, bubble = shown.timeline, shown.timeline.bubble
    schedule = timeline.schedule
    console.print(
        f"[bold]step {shown.number}[/], measured: {schedule.name if schedule.pp > 1 else 'no pipeline'}"
        f", {schedule.pp} ranks, {schedule.micro_batches} micro-batches",
        highlight=False,
    )
    colour = console.color_system is not None
    console.print(terminal_timeline(timeline, console.width, colour=colour, format_time=_form))
    causes = sorted(bubble.attribution.items(), key=lambda part: -abs(part[1]))
    named = [f"{CAUSES[name]} {share:.2%}" for name, share in causes if abs(share) >= 5e-5]
    lines = [
        f"makespan {_form(timeline.makespan_s)}, step {_form(shown.step_s)} with gradient reduction "
        "and optimizer, under the profiler",
        f"bubble {bubble.makespan:.2%} of the makespan: {', '.join(named)}",
        f"replayed without waiting for messages: makespan {_form(shown.replayed.makespan_s)}, bubble "
        f"{shown.replayed.bubble.makespan:.2%}",
    ]
    for line in lines:
        console.print(line, highlight=False)
    rows = [
        [str(rank), axis, str(moved.calls), f"{moved.payload_bytes:,}", _form(moved.in_flight_s),
         f"{moved.in_flight_s / shown.step_s:.1%}"]
        for rank, axes in shown.collectives.items()
        for axis, moved in axes.items()
    ]  # fmt: skip
    if rows:
        print_table(
            "Collectives of the step",
            ["rank", "axis", "calls", "bytes", "in flight", "of the step"],
            rows,
            {0, 2, 3, 4, 5},
            "Bytes: whole tensors. In flight: at least one was under way, hidden or not.",
        )
