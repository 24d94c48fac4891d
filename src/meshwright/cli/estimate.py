"""`meshwright estimate`: price one layout."""

from __future__ import annotations

import typer

from meshwright.cli import inputs, options


def command(
    *,
    question: options.QuestionOptions,
    tp: int = typer.Option(1, min=1, help="Tensor-parallel degree."),
    pp: int = typer.Option(1, min=1, help="Pipeline-parallel degree."),
    dp: int | None = typer.Option(None, min=1, help="Data-parallel degree; default: what is left."),
    cp: int = typer.Option(1, min=1, help="Context-parallel degree."),
    ep: int = typer.Option(1, min=1, help="Expert-parallel degree."),
    etp: int = typer.Option(1, min=1, help="Tensor-parallel degree inside an expert."),
    zero: int = typer.Option(0, min=0, max=3, help="ZeRO stage."),
    shard: int = typer.Option(0, min=0, help="ZeRO shard degree (HSDP); 0: all of dp · cp."),
    micro_batch: int = typer.Option(1, min=1, help="Sequences per micro-batch."),
    virtual_stages: int = typer.Option(1, min=1, help="Model chunks per pipeline rank."),
    schedule: str | None = typer.Option(
        None, help="Pipeline schedule; default 1f1b or interleaved."
    ),
    recompute: str = typer.Option("none", help="none, selective or full."),
    recompute_layers: int = typer.Option(0, min=0, help="Layers per stage to recompute; 0: all."),
    sequence_parallel: bool | None = typer.Option(
        None, "--sequence-parallel/--no-sequence-parallel", help="Default: on when tp > 1."
    ),
    rank_order: str | None = typer.Option(None, help="Axes from the fastest rank digit outwards."),
    cp_method: str | None = typer.Option(None, help="all-gather, ring, ulysses or hierarchical."),
    recompute_modules: str | None = typer.Option(
        None, help="What selective recomputation runs again, with commas between."
    ),
    offload: str | None = typer.Option(None, help="What lives in host memory, with commas."),
    stage_layers: str | None = typer.Option(None, help="Layers of each virtual stage, as 3,4,4,3."),
    stage_recompute_layers: str | None = typer.Option(
        None, help="Layers that each virtual stage recomputes in full, as 2,1,0,0."
    ),
    as_json: options.AsJson = False,
    output: options.Output = None,
) -> None:
    """Price one layout: memory per stage against capacity, and step time opened up.

    Exits with 1 when the layout does not fit.
    """
    from meshwright.cli.output import print_json
    from meshwright.planner.plan import price_layout
    from meshwright.specs.plan import save_plan

    model, cluster, job = inputs.read_question(question)
    layout = inputs.build_layout(
        cluster,
        {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep, "etp": etp},
        {
            "zero": zero, "shard": shard, "micro_batch": micro_batch, "schedule": schedule,
            "virtual_stages": virtual_stages, "recompute": recompute,
            "recompute_layers": recompute_layers, "sequence_parallel": sequence_parallel,
            "rank_order": rank_order, "cp_method": cp_method,
            "recompute_modules": recompute_modules.split(",") if recompute_modules else None,
            "offload": offload.split(",") if offload else None,
            "stage_layers": inputs.read_numbers(stage_layers, "--stage-layers"),
            "stage_recompute_layers": inputs.read_numbers(
                stage_recompute_layers, "--stage-recompute-layers"
            ),
        },
    )  # fmt: skip
    priced = price_layout(model, cluster, job, layout, command=inputs.command_line())
    if output:
        save_plan(priced, output)
    if as_json:
        print_json(priced.plain())
    else:
        from meshwright.cli.render import show_plan

        show_plan(priced, defence=False, written=output)
    if not priced.fits:
        raise typer.Exit(1)
