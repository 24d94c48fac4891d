"""`meshwright walk`: the toy model through every axis, on real ranks."""

from __future__ import annotations

import sys

import typer

from meshwright.cli import options, running


def command(
    only: str = typer.Option(
        "", help="One regime: one, dp4, tp4, pp4, zero3, recompute, dp2tp2 or dp2tp2pp2."
    ),
    as_json: options.AsJson = False,
    markdown: bool = typer.Option(False, "--markdown", help="Print Markdown."),
    output: str | None = typer.Option(
        None, "-o", "--output", callback=options.writable, help="Write JSON or Markdown here."
    ),
) -> None:
    """Walk the toy model on one rank, on 4 in six ways (ZeRO-3 and recomputation too), and on 8.

    Shows what each rank holds, computes, sends and receives, as recorded from a running step;
    ends with the bytes per rank and the proof that each way equals one device.
    """
    import json

    from meshwright.specs.errors import SpecError, nearest
    from meshwright.specs.writing import write_atomically

    running.need_torch()
    from meshwright.engine.proof.walk import REGIMES, walk
    from meshwright.engine.proof.walk_story import plain, story

    if only and only not in REGIMES:
        raise SpecError("only", only, nearest(only, REGIMES))
    regimes = walk((only,) if only else tuple(REGIMES), on_progress=running.progress)
    running.progress("")
    as_data = as_json or (output or "").endswith(".json")
    text = json.dumps(plain(regimes), indent=1) + "\n" if as_data else story(regimes)
    if output:
        write_atomically(output, text)
        print(f"wrote {output}")
    elif as_data or markdown or not sys.stdout.isatty():
        sys.stdout.write(text)
    else:
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text))
    if not all(regime.proof.passed for regime in regimes):
        raise typer.Exit(1)
