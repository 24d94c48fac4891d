"""`meshwright plan`: choose the best layout and defend it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from meshwright.cli import inputs

if TYPE_CHECKING:
    from meshwright.planner.space import Constraints
    from meshwright.specs.layout import Layout
    from meshwright.specs.plan import Estimate, Plan


def command(
    model: str = inputs.MODEL,
    cluster: str = inputs.CLUSTER,
    job: str | None = inputs.JOB,
    seq: str | None = inputs.SEQ,
    global_batch: str | None = inputs.BATCH,
    precision: str | None = inputs.PRECISION,
    optimizer: str | None = inputs.OPTIMIZER,
    framework: str | None = inputs.FRAMEWORK,
    tokens: str | None = inputs.TOKENS,
    reserve: str | None = inputs.RESERVE,
    objective: str = typer.Option("time", help="Rank by time, memory or cost."),
    top: int = typer.Option(5, min=0, max=100, help="Runners-up of another shape to keep."),
    tp: int | None = typer.Option(None, min=1, help="Fix the tensor-parallel degree."),
    pp: int | None = typer.Option(None, min=1, help="Fix the pipeline-parallel degree."),
    dp: int | None = typer.Option(None, min=1, help="Fix the data-parallel degree."),
    cp: int | None = typer.Option(None, min=1, help="Fix the context-parallel degree."),
    ep: int | None = typer.Option(None, min=1, help="Fix the expert-parallel degree."),
    zero: int | None = typer.Option(None, min=0, max=3, help="Fix the ZeRO stage."),
    micro_batch: int | None = typer.Option(None, min=1, help="Fix the micro-batch."),
    virtual_stages: int | None = typer.Option(None, min=1, help="Fix the virtual stages."),
    schedule: str | None = typer.Option(None, help="Fix the pipeline schedule."),
    recompute: str | None = typer.Option(None, help="Fix recomputation: none, selective, full."),
    max_tp: int | None = typer.Option(None, min=1, help="Largest tensor-parallel degree."),
    max_pp: int | None = typer.Option(None, min=1, help="Largest pipeline-parallel degree."),
    no_recompute: bool = typer.Option(False, "--no-recompute", help="Never recompute."),
    brief: bool = typer.Option(False, help="Only the plan, not its defence."),
    markdown: bool = typer.Option(False, help="Print the defence as Markdown."),
    pareto: bool = typer.Option(False, help="Also show the front of step time against memory."),
    as_json: bool = inputs.AS_JSON,
    output: str | None = inputs.OUTPUT,
) -> None:
    """Choose the best parallel layout for a model on a cluster, and defend it.

    Exits with 1, and three priced ways out, when nothing fits.
    """
    from meshwright.cli.progress import counting
    from meshwright.planner.plan import plan
    from meshwright.planner.space import Constraints
    from meshwright.specs.plan import save_plan

    constraints = Constraints.parse(
        {
            "tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep, "zero": zero,
            "micro_batch": micro_batch, "virtual_stages": virtual_stages, "schedule": schedule,
            "recompute": recompute, "max_tp": max_tp, "max_pp": max_pp, "no_recompute": no_recompute,
        }
    )  # fmt: skip
    loaded_model = inputs.read_model(model)
    loaded_cluster = inputs.read_cluster(cluster, reserve)
    loaded_job = inputs.read_job(job, seq, global_batch, precision, optimizer, framework, tokens)
    with counting("layouts priced") as progress:
        made = plan(
            loaded_model, loaded_cluster, loaded_job, constraints=constraints, objective=objective,
            top=top, defend=not brief, command=inputs.command_line(), progress=progress,
        )  # fmt: skip
    if output:
        save_plan(made, output)
    front = _front(made, constraints) if pareto else []
    if as_json:
        points = [
            {"layout": layout.plain(), "estimate": estimate.plain()} for layout, estimate in front
        ]
        inputs.print_json(made.plain() | ({"pareto": points} if pareto else {}))
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
