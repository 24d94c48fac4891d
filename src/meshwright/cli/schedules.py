"""`meshwright schedules`: every pipeline schedule side by side."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from meshwright.cli import options

if TYPE_CHECKING:
    from meshwright.simulator.comparison import Row


def command(
    pp: int = typer.Option(..., "--pp", help="Pipeline ranks."),
    micro_batches: int = typer.Option(
        ..., "--microbatches", "--micro-batches", "-m", help="Micro-batches per step."
    ),
    virtual_stages: str = typer.Option(
        "2,4", "--virtual-stages", "-v", help="Chunks per rank to try, where any number is allowed."
    ),
    times: str = typer.Option(
        "1,1,1", "--times", help="Forward, input gradient, weight gradient of one micro-batch."
    ),
    comm: float = typer.Option(0.0, "--comm", help="Time of one message between stages."),
    memory_limit: float = typer.Option(
        0.0, "--memory-limit", help="Micro-batches a rank may hold, for zb-auto."
    ),
    as_json: options.AsJson = False,
) -> None:
    """Compare all schedules: bubble, memory, messages, and why one is not legal.

    The bubble of the makespan is what a step with a global gradient norm pays; that of the span is
    what the zero-bubble papers report. Peak in flight counts micro-batches of one rank's share.
    """
    from meshwright.cli.output import print_json
    from meshwright.cli.simulate import parse_times
    from meshwright.schedules import Shape
    from meshwright.simulator.comparison import compare_schedules
    from meshwright.specs.errors import SpecError

    try:
        counts = [int(part) for part in virtual_stages.split(",")]
    except ValueError:
        raise SpecError("--virtual-stages", virtual_stages, "numbers, as 2,4") from None
    shape = Shape(pp, micro_batches, memory_limit=memory_limit, times=parse_times(times), comm=comm)
    rows = compare_schedules(shape, counts)
    if as_json:
        print_json(
            {
                "pp": pp,
                "micro_batches": micro_batches,
                "times": list(shape.times),
                "comm": comm,
                "schedules": [{"legal": row.legal, **asdict(row)} for row in rows],
            }
        )
        return
    _print(rows, f"pp {pp}, {micro_batches} micro-batches, F,I,W = {times}, comm {comm:g}")


def _print(rows: list[Row], title: str) -> None:
    from meshwright.cli.output import print_table

    table = []
    notes: dict[str, list[str]] = {}
    legal = sorted((r for r in rows if r.legal), key=lambda r: (r.makespan or 0, r.schedule))
    for row in legal:
        peaks = row.peak_in_flight
        assert row.bubble_makespan is not None
        assert row.bubble_span is not None
        twice = "two copies of the parameters" if row.parameters == 2 else ""
        for note in filter(None, (row.note, twice)):
            notes.setdefault(note, []).append(_name(row))
        table.append(
            [
                _name(row),
                f"{row.bubble_makespan:.1%}",
                f"{row.bubble_span:.1%}",
                f"{row.speedup:+.0%}",
                f"{max(peaks):g}",
                str(row.messages),
                "I+W" if row.split_backward else "B",
            ]
        )
    print_table(
        title,
        ["schedule", "bubble", "of span", "vs 1F1B", "peak", "sends", "backward"],
        table,
        right=set(range(1, 6)),
        note=EXPLANATION,
    )
    for note, names in notes.items():
        print(f"{', '.join(dict.fromkeys(names))}: {note}")
    refused = [row for row in rows if not row.legal]
    if refused:
        print()
        print_table(
            "Not legal here",
            ["schedule", "why"],
            [[_name(row), row.reason or ""] for row in refused],
        )


EXPLANATION = (
    "bubble: idle share of the makespan; of span: as in the zero-bubble papers; peak: most "
    "micro-batches in flight on a rank; sends: messages of the busiest rank; v: chunks per rank; "
    "backward I+W: needs the backward in two halves"
)


def _name(row: Row) -> str:
    """Return a short name that tells rows apart: `interleaved v4`, `zb-auto limit 2 pp`."""
    chunks = f" v{row.virtual_stages}" if row.virtual_stages > 1 else ""
    return row.schedule + chunks + (f" {row.variant}" if row.variant else "")
