"""`meshwright explain`: the defence of a plan."""

from __future__ import annotations

import typer

from meshwright.cli import inputs, options


def command(
    plan: str = typer.Argument(..., help="A plan file, or - for standard input."),
    markdown: bool = typer.Option(False, help="Print Markdown."),
    as_json: options.AsJson = False,
    output: options.Output = None,
) -> None:
    """Print the defence of a plan in full: memory, time, neighbours, decision trees, flip points.

    Ends with the published runs that are most like it: what they measured, and what is predicted for
    them. A plan that was only priced is defended against its neighbours now.
    """
    from meshwright.cli.output import print_json
    from meshwright.evidence.nearest import nearest_runs
    from meshwright.planner.defence import defend
    from meshwright.planner.report import markdown_report
    from meshwright.specs.plan import load_plan

    loaded = defend(load_plan(plan))
    cited = nearest_runs(loaded.model, loaded.cluster, loaded.job, loaded.layout)
    heading = "The published runs most like it"
    lines = ["", f"## {heading}", "", *(f"- {run.sentence()}" for run in cited), ""]
    if output:
        inputs.write_text(output, markdown_report(loaded) + "\n".join(lines))
    if as_json:
        print_json(loaded.plain() | {"nearest_runs": [run.plain() for run in cited]})
    elif markdown:
        print(markdown_report(loaded) + "\n".join(lines))
    elif not output:
        from rich.console import Console

        from meshwright.cli.render import show_plan

        show_plan(loaded, defence=True, written=None)
        console = Console(highlight=False)
        console.print(f"\n[bold]{heading}[/bold]")
        for run in cited:
            console.print(f"  · {run.sentence()}", markup=False)
