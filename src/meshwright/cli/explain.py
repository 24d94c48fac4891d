"""`meshwright explain`: the defence of a plan."""

from __future__ import annotations

import typer

from meshwright.cli import inputs


def command(
    plan: str = typer.Argument(..., help="A plan file, or - for standard input."),
    markdown: bool = typer.Option(False, help="Print Markdown."),
    as_json: bool = inputs.AS_JSON,
    output: str | None = inputs.OUTPUT,
) -> None:
    """Print the defence of a plan in full: memory, time, neighbours, decision trees, flip points.

    A plan that was only priced is defended against its neighbours now.
    """
    from meshwright.planner.defence import defend
    from meshwright.planner.report import markdown_report

    loaded = defend(inputs.read_plan(plan))
    if output:
        inputs.write_text(output, markdown_report(loaded))
    if as_json:
        inputs.print_json(loaded.plain())
    elif markdown:
        print(markdown_report(loaded))
    elif not output:
        from meshwright.cli.render import show_plan

        show_plan(loaded, defence=True, written=None)
