"""`meshwright compare`: two plans side by side."""

from __future__ import annotations

import typer

from meshwright.cli import options


def command(
    first: str = typer.Argument(..., help="A plan file."),
    second: str = typer.Argument(..., help="Another plan file."),
    as_json: options.AsJson = False,
) -> None:
    """Compare two plans: what differs in them, and what that costs in time and memory."""
    from meshwright.cli.output import print_json
    from meshwright.planner.comparison import compare
    from meshwright.specs.plan import load_plan

    result = compare(load_plan(first), load_plan(second))
    if as_json:
        print_json(result.plain())
    else:
        from meshwright.cli.render import show_comparison

        show_comparison(result)
