"""`meshwright calibrate`: fit a cluster's constants to measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from meshwright.cli import options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshwright.evidence.calibrate import Calibration
    from meshwright.evidence.calibrate_fit import Constant

MOST_SKIPPED = 5
"""Skipped measurements that are named; the others are counted."""


def command(
    cluster: str = typer.Option(
        ..., "--cluster", help="The cluster to start from: a preset such as h100:4x8, or a file."
    ),
    sources: list[str] = typer.Option(
        [],
        "--from",
        help="Training log, run folder, metrics.jsonl, settled plan, Kineto trace, nccl-tests output or table of runs (CSV, Markdown, HTML); "
        "may be given several times.",
    ),
    plans: list[str] = typer.Option(
        [], "--plan", help="The plan of a log that does not print its configuration; one a log."
    ),
    advise: int = typer.Option(
        0,
        "--advise",
        min=0,
        max=20,
        help="Only say which so many runs of the --plan to measure first.",
    ),
    output: str = typer.Option(
        "", "-o", "--output", callback=options.writable, help="Write the calibrated cluster here."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Fit your own cluster to your own measurements.

    Reads training logs of the frameworks that `diagnose` knows, folders of `meshwright train`, the
    local history of runs, plans that `meshwright settle` raced, profiler traces (their collectives), nccl-tests output, and tables of runs
    as `predict` reads them, with what was measured (`step time (s)`, `tokens/s/GPU`). Fits only the constants that these data identify, each with an 80 %
    interval, says which it cannot tell apart, what one further run would tell most, and by how much
    the error fell. The result is a cluster file that every command accepts. With --plan and --advise 3, and
    nothing measured yet, it says which three of the plan's layouts to run first.
    """
    import tomli_w
    from rich.console import Console

    from meshwright.cli.calibrating import gather
    from meshwright.cli.output import finite, print_json
    from meshwright.evidence.calibrate import calibrate
    from meshwright.specs.clusters import load_cluster
    from meshwright.specs.errors import SpecError
    from meshwright.specs.quantities import counted
    from meshwright.specs.writing import write_atomically

    base = load_cluster(cluster)
    if advise:
        _advise(base, plans, advise, as_json)
        return
    if not sources:
        raise SpecError("--from", None, "a log, trace, table or run to calibrate on is expected")
    material = gather(sources, plans, base)
    with Console(stderr=True).status("fitting"):
        result = calibrate(base, material.timings, material.rows, material.sightings)
    if output:
        write_atomically(output, tomli_w.dumps(result.cluster.plain()))
    skipped = [*material.skipped, *result.skipped]
    if as_json:
        print_json(finite(_as_data(result, skipped)))
        return
    if result.constants:
        _print_constants(result.constants)
    for source, measured, before, after in result.rows[:20]:
        print(
            f"{source}: measured {1e3 * measured:.1f} ms, predicted {1e3 * before:.1f} before "
            f"({before / measured - 1:+.0%}), {1e3 * after:.1f} after ({after / measured - 1:+.0%})"
        )
    if result.refused:
        print(result.refused)
    for line in result.alike:
        print(line)
    if result.advice:
        print(f"next: {result.advice}")
    print(
        f"\nmedian error over {counted(result.measurements, 'measurement')}: "
        f"{100 * result.error_before:.1f} % before, {100 * result.error_after:.1f} % after"
    )
    for line in skipped[:MOST_SKIPPED]:
        print(f"skipped {line}")
    if len(skipped) > MOST_SKIPPED:
        print(f"… and {len(skipped) - MOST_SKIPPED} more")
    if output:
        print(f"written to {output}")


def _advise(cluster: Any, plans: list[str], count: int, as_json: bool) -> None:
    """Print the layouts of plans, chosen and alternative, whose times would tell most of the others'."""
    from meshwright.cli.calibrating import runs_of
    from meshwright.cli.output import print_json
    from meshwright.evidence.telling import most_telling
    from meshwright.specs.errors import SpecError
    from meshwright.specs.plan import load_plan

    if not plans:
        raise SpecError("--plan", None, "the plan whose layouts may be measured is expected")
    runs = [run for path in plans for run in runs_of(load_plan(path), path)]
    chosen = [runs[at] for at in most_telling(cluster, runs, count)]
    if as_json:
        print_json([{"source": run.id, "layout": run.layout.plain()} for run in chosen])
        return
    print(f"of {len(runs)} layouts, measure first (their times would narrow the others' most):")
    for run in chosen:
        print(f"  {run.layout.label()}  ({run.model.name}, {run.gpus} devices)")


def _as_data(result: Calibration, skipped: list[str]) -> dict[str, Any]:
    """Everything that was found, as `--json` prints it."""
    from dataclasses import asdict

    return {
        "measurements": result.measurements,
        "median_error_before": result.error_before,
        "median_error_after": result.error_after,
        "constants": [asdict(constant) for constant in result.constants],
        "skipped": skipped,
        "runs": [
            {"source": source, "measured_s": measured, "before_s": before, "after_s": after}
            for source, measured, before, after in result.rows
        ],
        "alike": list(result.alike),
        "refused": result.refused,
        "advice": result.advice,
    }


def _print_constants(constants: Iterable[Constant]) -> None:
    """A line for each constant: before, after, and how sure."""
    import math

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name, justify in (("constant", "left"), ("before", "right"), ("after", "right")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    table.add_column("unit")
    table.add_column("80 % interval")
    silent = []
    for constant in constants:
        name = constant.name.removeprefix("levels.").removeprefix("device.")
        name = name.removesuffix("_bytes_s").removesuffix("_s")
        if not constant.identified:
            silent.append(name)
            continue
        interval = f"{constant.low:.3g} to {constant.high:.3g}"
        table.add_row(
            name, f"{constant.before:.4g}", f"{constant.after:.4g}", constant.unit,
            "" if math.isnan(constant.low) else interval,
        )  # fmt: skip
    if table.row_count:
        Console().print(table)
    if silent:
        print(f"not in these data: {', '.join(silent)}")
