"""`meshwright report`: a run's folder as one page."""

from __future__ import annotations

from pathlib import Path

import typer

from meshwright.cli import options


def command(
    *,
    run: Path = typer.Argument(..., help="A run's folder, or its metrics.jsonl."),
    output: Path | None = typer.Option(
        None,
        "-o",
        "--output",
        callback=options.writable,
        help="The page; default: report.html in the folder.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the run's summary as JSON."),
) -> None:
    """Write the page of a run: loss, speed, memory, predicted beside measured, what failed.

    `train` writes it by itself; this makes it anew, or from the records of a run that was killed.
    """
    from meshwright.engine.watch.report import NAME, page_of
    from meshwright.specs.writing import write_atomically

    if as_json:
        from meshwright.cli.output import print_json
        from meshwright.engine.watch.runlog import read_log, summarise

        print_json(summarise(read_log(run)))
        return
    target = output or (run if run.is_dir() else run.parent) / NAME
    write_atomically(target, page_of(run))
    print(f"written to {target}")
