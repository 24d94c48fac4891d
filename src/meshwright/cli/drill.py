"""`meshwright drill`: break a run on purpose and measure how it recovers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import typer

from meshwright.cli import options, running

_FORM = "rank=1@step=10; may be given several times."


def command(
    *,
    what: options.What,
    kill: list[str] = typer.Option([], help=f"Kill a rank: {_FORM}"),
    stop: list[str] = typer.Option([], help=f"Freeze a rank: {_FORM}"),
    throw: list[str] = typer.Option([], "--raise", help=f"Raise on a rank: {_FORM}"),
    kill_save: list[str] = typer.Option([], help="Kill a rank while it saves that step."),
    full_disk: list[str] = typer.Option([], help="Let writes fail while that step is saved."),
    kill_restart: list[str] = typer.Option([], help="Kill a rank, and again as it restarts."),
    data: str = typer.Option("demo", "--data", help="A text file or a folder of them; demo ships."),
    steps: int = typer.Option(12, min=1, help="Optimizer steps of each run."),
    save_every: int = typer.Option(4, min=1, help="Steps between checkpoints."),
    freeze: float = typer.Option(8.0, min=1.0, help="Seconds until a frozen rank is noticed."),
    out: str | None = typer.Option(None, "--out", "-o", help="Keep the runs in this folder."),
    cluster: options.RankCount = None,
    layout: options.RunLayoutOptions,
    seq: int | None = typer.Option(None, "--seq", min=1, help="Tokens per sequence; default 32."),
    global_batch: int | None = typer.Option(None, "--global-batch", min=1, help="Default 8."),
    as_json: options.AsJson = False,
) -> None:
    """Run a plan undisturbed, then once per fault, and compare the final parameters bit by bit.

    Reports how fast each fault was noticed, how many steps were lost, who was blamed, and whether
    the recovered run ended exactly where the undisturbed one did. Exits with 1 if one did not.
    Without a fault named, a rank is killed half-way.
    """
    from meshwright.cli.output import print_json

    subject = running.read_subject(what, cluster, layout)
    from meshwright.engine.drill import Drill, drill
    from meshwright.engine.faults import Fault
    from meshwright.engine.numerics import default_numerics
    from meshwright.engine.train import Run, check_run, prepare_out

    named = {
        "kill": kill, "stop": stop, "raise": throw, "kill-save": kill_save,
        "full-disk": full_disk, "kill-restart": kill_restart,
    }  # fmt: skip
    faults = [Fault.parse(kind, text) for kind, texts in named.items() for text in texts]
    last = subject.layout.world - 1
    faults = faults or [Fault(kind="kill", rank=last, step=max(1, steps // 2 + 1))]
    small = (seq or 32, global_batch or 8) if subject.plan is None else (seq, global_batch)
    job = running.run_job(subject, *small, None)

    def rehearse(folder: str) -> list[Drill]:
        run = Run(
            model=subject.model, numerics=default_numerics(subject.model), layout=subject.layout,
            job=job, data=data, out=folder, steps=steps, save_every=save_every, warmup=2,
        )  # fmt: skip
        check_run(run)
        prepare_out(run)
        return drill(run, faults, freeze_s=freeze, on_progress=running.progress)

    if out is not None:
        results = rehearse(out)
    else:
        with tempfile.TemporaryDirectory(prefix="meshwright-drill-") as folder:
            results = rehearse(str(Path(folder)))
    running.progress("")
    passed = all(result.recovered and result.bitwise_equal for result in results)
    if as_json:
        print_json({"passed": passed, "drills": [result.plain() for result in results]})
    else:
        _show(results, subject.layout.label(), passed)
    if not passed:
        raise typer.Exit(1)


def _show(results: list, label: str, passed: bool) -> None:  # type: ignore[type-arg]
    from meshwright.cli.output import print_table

    rows = [
        [
            str(result.fault),
            "-" if result.detection_s is None else f"{result.detection_s:.2f} s",
            f"{result.restart_s:.1f} s",
            str(result.lost_steps),
            "bit for bit" if result.bitwise_equal else "NO",
            f"rank {result.blamed_rank}: {result.reason}",
        ]
        for result in results
    ]
    columns = ["fault", "noticed in", "back in", "steps lost", "same end", "blamed"]
    good = sum(result.recovered and result.bitwise_equal for result in results)
    note = f"{good} of {len(results)} recovered to exactly the undisturbed run's parameters."
    print_table(f"Fault drill under {label}", columns, rows, {1, 2, 3}, note)
