"""`meshwright train`: run a plan on processes of this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from meshwright.cli import options, running
from meshwright.specs.errors import SpecError
from meshwright.specs.layout import Layout

if TYPE_CHECKING:
    from meshwright.engine.run import Run


def command(
    *,
    what: options.What,
    data: str = typer.Option(
        "demo",
        "--data",
        help="Text, token files (.npy, .bin), records (.jsonl), or a blend of "
        "them: 0.7:web.npy,0.3:code.npy; demo ships.",
    ),
    out: str = typer.Option(..., "--out", "-o", help="Folder for metrics and checkpoints."),
    tokenizer: str = typer.Option("", help="A tokenizer.json for the text; default: bytes."),
    cluster: options.RankCount = None,
    layout: options.RunLayoutOptions,
    steps: int | None = options.training("steps"),
    seq: int | None = typer.Option(None, "--seq", min=1, help="Tokens per sequence; default 128."),
    global_batch: int | None = typer.Option(
        None, "--global-batch", min=1, help="Sequences per step; default 16."
    ),
    precision: str | None = typer.Option(
        None, help="A recipe; default the plan's, or fp32. bf16: gradients add up in fp32."
    ),
    learning_rate: float | None = options.training("learning_rate"),
    warmup: int | None = options.training("warmup"),
    lr_schedule: str | None = options.training("lr_schedule"),
    least_rate: float | None = options.training("least_rate"),
    beta1: float | None = options.training("beta1"),
    beta2: float | None = options.training("beta2"),
    weight_decay: float | None = options.training("weight_decay"),
    clip: float | None = options.training("clip"),
    seed: int | None = options.training("seed"),
    init: str = options.training("init"),
    export: str = options.training("export"),
    resume: str = options.training("resume"),
    allow_changes: bool = options.training("allow_changes"),
    save_every: int = options.training("save_every"),
    keep: int = options.training("keep"),
    max_restarts: int = typer.Option(3, min=0, help="Restarts from the newest checkpoint."),
    fewer_ranks: bool = typer.Option(
        False, "--fewer-ranks", help="Go on without a rank that no restart brings back."
    ),
    collective_timeout: float = typer.Option(
        120.0, "--collective-timeout", min=1.0, help="Seconds that ranks wait for a silent one."
    ),
    validation_data: str = options.training("validation_data"),
    validate_every: int = options.training("validate_every"),
    validate_batches: int = options.training("validate_batches"),
    balance_loss: float | None = options.training("balance_loss"),
    predict_layers: options.PredictLayers = None,
    predict_weight: float | None = options.training("predict_weight"),
    csv: options.Csv = "",
    transformers: options.ForeignConfig = "",
    dropout: options.DropoutRate = None,
    document_masking: options.DocumentMasking = None,
    end_token: int | None = typer.Option(
        None, min=0, help="Ends a document in token files; default: the tokenizer's."
    ),
    compile_layers: bool = typer.Option(
        False, "--compile", help="Let torch.compile fuse each layer's operations."
    ),
    profile: str = options.training("profile"),
    history: bool = typer.Option(
        True, "--history/--no-history", help="Keep this run's speed in the local history."
    ),
    tensorboard: bool | None = typer.Option(
        None, "--tensorboard/--no-tensorboard", help="Event files; default: if it is installed."
    ),
    as_json: bool = typer.Option(
        False, "--json", help="Print every record as a line of JSON, the summary last."
    ),
) -> None:
    """Train a plan on real processes: one per rank, gloo on CPUs.

    With --fewer-ranks, a run that loses a rank for good goes on from the newest checkpoint under
    the layout that the planner finds fastest for the others, and says so.

    Under torchrun or SLURM run `python -m meshwright.engine` with the same arguments instead.
    """
    subject = running.predicting(running.read_subject(what, cluster, layout), predict_layers)
    from meshwright.engine.admission import check_run, prepare_out
    from meshwright.engine.ranks.supervise import PATIENCE
    from meshwright.engine.resuming import held_options
    from meshwright.engine.run import Run, starting_numerics

    job = running.run_job(subject, seq, global_batch, precision)
    job = running.regularised(job, dropout, document_masking)
    data, ends = running.as_tokens(data, tokenizer, Path(out), "tokens")
    if validation_data:
        validation_data, _ = running.as_tokens(
            validation_data, tokenizer, Path(out), "validation-tokens"
        )
    end_token = ends if end_token is None else end_token
    foreign = running.foreign_of(what, subject.model, transformers)
    if foreign is not None:
        subject = running.for_modules(subject, layout)
    numerics = starting_numerics(
        subject.model, foreign, init=init, resume=resume, balance_loss=balance_loss,
        predict_weight=predict_weight,
    )  # fmt: skip
    from meshwright.engine.watch.meter import default_cluster
    from meshwright.specs.clusters import load_cluster

    held = held_options(
        {
            "steps": steps, "learning_rate": learning_rate, "warmup": warmup,
            "lr_schedule": lr_schedule, "least_rate": least_rate, "beta1": beta1, "beta2": beta2,
            "weight_decay": weight_decay, "clip": clip, "seed": seed,
        },
        resume,
    )  # fmt: skip
    hardware = subject.plan.cluster if subject.plan else default_cluster(subject.layout.world)
    asked = (subject.model, subject.layout, job)
    as_planned = subject.plan and asked == (
        subject.plan.model,
        subject.plan.layout,
        subject.plan.job,
    )
    run = Run(
        model=subject.model, numerics=numerics, layout=subject.layout, job=job, data=data, out=out,
        init=init, export=export, resume=resume, allow_changes=allow_changes, save_every=save_every,
        keep=keep, csv=csv, foreign=foreign, validation_data=validation_data,
        validate_every=validate_every, validate_batches=validate_batches,
        profile=profile, compile=compile_layers,
        end_token=-1 if end_token is None else end_token,
        cluster=load_cluster(cluster) if cluster else hardware,
        predicted=subject.plan.estimate if subject.plan and as_planned and not cluster else None,
        **held,
    )  # fmt: skip
    check_run(run)
    prepare_out(run)
    replan = None
    if fewer_ranks:
        replan = _replanner(run)
        max_restarts += PATIENCE * run.layout.world
    _run(run, max_restarts, collective_timeout, replan, tensorboard, as_json, history=history)


def _replanner(run: Run) -> Callable[[int], Layout]:
    """What finds the layout for fewer ranks.

    Raises:
        SpecError: a run that nothing else could be planned for.
    """
    from meshwright.cli.replanning import replanner

    if run.foreign is not None:
        raise SpecError("fewer_ranks", True, "transformers' modules run the layout they are given")
    if not run.save_every or run.cluster is None:
        raise SpecError("fewer_ranks", True, "needs --save-every, and --cluster to plan for")
    return replanner(run.model, run.job, run.cluster)


def _run(
    run: Run,
    max_restarts: int,
    collective_timeout_s: float,
    replan: Callable[[int], Layout] | None,
    tensorboard: bool | None,
    as_json: bool,
    *,
    history: bool = False,
) -> None:
    """Start the ranks, show their progress, write the records."""
    from meshwright.cli.watching import watching
    from meshwright.engine.ranks.processes import RankError
    from meshwright.engine.ranks.supervise import supervise
    from meshwright.engine.watch.report import recording

    with (
        watching(run.steps, as_json) as echo,
        recording(run, echo=echo, tensorboard=tensorboard) as recorder,
    ):
        try:
            outcome = supervise(
                run, max_restarts=max_restarts if run.save_every else 0, on_message=recorder.hear,
                replan=replan, collective_timeout_s=collective_timeout_s,
            )  # fmt: skip
        except RankError as error:
            echo({"kind": "end"})
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(1) from None
        summary = recorder.finish(
            peak_memory_bytes=[rank["peak_memory_bytes"] for rank in outcome.ranks], out=run.out
        )
    if history:
        from meshwright.measure.history import remember

        remember(run.model, run.job, run.layout, summary)
    if not as_json:
        show_summary(summary)


def show_summary(summary: dict[str, Any]) -> None:
    """Print what a run came to, measured beside predicted."""
    from meshwright.cli.output import print_lines, print_table
    from meshwright.engine.watch.recorder import comparison, speed_line

    if summary["steps"] is None:
        print("nothing to do: the checkpoint is already at the last step")
        return
    held_out = summary["validation_loss"]
    print_lines(
        f"trained {summary['steps']} steps of {summary['model']} on {summary['ranks']} ranks "
        f"({summary['layout']}): loss {summary['first_loss']:.3f} to {summary['last_loss']:.3f}, "
        + (f"validation loss {held_out:.3f}, " if held_out is not None else "")
        + f"{summary['tokens_s']:,.0f} tokens/s",
        speed_line(summary),
    )
    foreseen = summary["predicted"]
    rows = comparison(summary)
    print_table(
        "Predicted and measured", ["", "predicted", "measured", "measured / predicted"], rows,
        {1, 2, 3}, f"Predicted by {foreseen['by']}." if foreseen else "",
    )  # fmt: skip
    if summary["restarts"]:
        print(f"restarted {summary['restarts']} times from the newest checkpoint")
    print(f"report: {Path(summary['out']) / 'report.html'}, records: metrics.jsonl beside it")
