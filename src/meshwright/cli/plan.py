"""`meshwright plan`: choose the best layout and defend it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from meshwright.cli import inputs, options

if TYPE_CHECKING:
    from meshwright.planner.space import Constraints
    from meshwright.specs.layout import Layout
    from meshwright.specs.plan import Estimate, Plan


def command(
    *,
    question: options.QuestionOptions,
    objective: str = typer.Option(
        "time", help="Rank by time, memory, or cost per token (may leave devices unused)."
    ),
    max_days: float | None = typer.Option(
        None, help="With --objective cost: how long --tokens may take."
    ),
    top: int = typer.Option(5, min=0, max=100, help="Runners-up of another shape to keep."),
    constraint: options.ConstraintOptions,
    lengths: str | None = typer.Option(
        None, help="Lengths of the data's examples: JSONL of examples, or {length: count} as JSON."
    ),
    padded: bool = typer.Option(
        False, "--padded", help="With --lengths: examples are padded, not packed; plan for that."
    ),
    brief: bool = typer.Option(False, help="Only the plan, not its defence."),
    markdown: bool = typer.Option(False, help="Print the defence as Markdown."),
    pareto: bool = typer.Option(False, help="Also show the front of step time against memory."),
    as_json: options.AsJson = False,
    output: options.Output = None,
) -> None:
    """Choose the best parallel layout for a model on a cluster, and defend it.

    Exits with 1, and three priced ways out, when nothing fits.
    """
    from meshwright.cli.output import print_json
    from meshwright.cli.progress import counting
    from meshwright.exports.expressible import require_expressible, unwritten, why_unwritten
    from meshwright.planner.data_choice import longest, padded_plan
    from meshwright.planner.data_notes import length_notes
    from meshwright.planner.legality import Question
    from meshwright.planner.plan import plan
    from meshwright.planner.space import Constraints
    from meshwright.specs.errors import SpecError
    from meshwright.specs.length_files import load_lengths
    from meshwright.specs.plan import save_plan

    constraints = Constraints.parse(options.chosen(constraint))
    model, cluster, job = inputs.read_question(question, compares=True)
    if inputs.names_framework(question):
        require_expressible(model, job, cluster)
    with counting("examples read") as progress:
        data = load_lengths(lengths, progress) if lengths else None
    if padded:
        if data is None:
            raise SpecError("padded", True, "--lengths says how long the examples are")
        job = longest(Question(model, cluster, job), data).job
    with counting("layouts priced") as progress:
        made = plan(
            model, cluster, job, constraints=constraints, objective=objective,
            max_days=max_days, top=top, defend=not brief, command=inputs.command_line(), progress=progress,
            refuses=why_unwritten,
        )  # fmt: skip
    if data is not None and padded:
        made = padded_plan(made, constraints, data, defend=not brief)
    elif data is not None:
        made = made.but(notes=(*made.notes, *length_notes(made, data)))
    made = made.but(notes=(*made.notes, *unwritten(made.model, made.job, made.cluster)))
    if output:
        save_plan(made, output)
    front = _front(made, constraints) if pareto else []
    if as_json:
        points = [
            {"layout": layout.plain(), "estimate": estimate.plain()} for layout, estimate in front
        ]
        print_json(made.plain() | ({"pareto": points} if pareto else {}))
    elif markdown:
        from meshwright.planner.report import markdown_report

        print(markdown_report(made))
    else:
        from meshwright.cli.render import show_plan

        show_plan(made, defence=not brief, written=output)
        if front:
            _show_front(front)


def _front(made: Plan, constraints: Constraints) -> list[tuple[Layout, Estimate]]:
    from meshwright.planner.legality import Question
    from meshwright.planner.plan import pareto_front
    from meshwright.planner.search import search

    question = Question(made.model, made.cluster, made.job)
    return pareto_front(question, search(question, constraints))


def _show_front(front: list[tuple[Layout, Estimate]]) -> None:
    from meshwright.cli.output import print_table
    from meshwright.specs.quantities import format_bytes, format_seconds

    rows = [
        [
            format_seconds(estimate.step_time_s),
            format_bytes(estimate.peak_memory_bytes),
            f"{estimate.mfu:.1%}",
            layout.label(),
        ]
        for layout, estimate in front
    ]
    print_table(
        "Faster or lighter: nothing beats these in both",
        ["step", "memory", "MFU", "layout"],
        rows,
        right={0, 1, 2},
    )
