"""`meshwright calibrate`: fit a cluster's constants to measurements."""

from __future__ import annotations

import typer


def command(
    cluster: str = typer.Option(
        ..., "--cluster", help="The cluster to start from: a preset such as h100:4x8, or a file."
    ),
    sources: list[str] = typer.Option(
        ..., "--from", help="nccl-tests output (text) or a CSV of runs; may be given several times."
    ),
    output: str = typer.Option("", "-o", "--output", help="Write the calibrated cluster here."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Fit your own cluster to your own measurements.

    Reads nccl-tests output and tables of runs in the evidence schema (with their measured
    columns), fits only the constants that these data identify, says which, and by how much the
    error fell. The result is a cluster file that every command accepts.
    """
    from dataclasses import asdict

    import tomli_w
    from rich.console import Console
    from rich.table import Table

    from meshwright.cli.output import print_json
    from meshwright.costs.link_fit import MeasuredCollective
    from meshwright.evidence.calibrate import calibrate
    from meshwright.evidence.nccl_tests import parse_nccl_tests
    from meshwright.evidence.rows import Row, read_rows
    from meshwright.specs.clusters import load_cluster
    from meshwright.specs.foreign import TABLE_BYTES, read_text
    from meshwright.specs.writing import write_atomically

    base = load_cluster(cluster)
    timings: list[MeasuredCollective] = []
    rows: list[Row] = []
    for source in sources:
        if source.endswith(".csv"):
            rows += read_rows(source)
            continue
        text = read_text(source, "from", TABLE_BYTES, errors="replace")
        for run in parse_nccl_tests(text, where=source):
            timings += run.measurements(base.gpus_per_node)
    with Console(stderr=True).status("fitting"):
        result = calibrate(base, timings, rows)
    if output:
        write_atomically(output, tomli_w.dumps(result.cluster.plain()))
    if as_json:
        plain = {
            "measurements": result.measurements,
            "median_error_before": result.error_before,
            "median_error_after": result.error_after,
            "constants": [asdict(constant) for constant in result.constants],
            "skipped": list(result.skipped),
        }
        print_json(plain)
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("constant", overflow="fold")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    table.add_column("unit")
    table.add_column("")
    for constant in result.constants:
        note = "" if constant.identified else "not in these data"
        table.add_row(
            constant.name.removeprefix("levels.").removesuffix("_bytes_s").removesuffix("_s"),
            f"{constant.before:.4g}",
            f"{constant.after:.4g}",
            constant.unit,
            note,
        )
    Console().print(table)
    print(
        f"\nmedian error over {result.measurements} measurements: "
        f"{100 * result.error_before:.1f} % before, {100 * result.error_after:.1f} % after"
    )
    for line in result.skipped[:5]:
        print(f"skipped {line}")
    if len(result.skipped) > 5:
        print(f"… and {len(result.skipped) - 5} more")
    if output:
        print(f"written to {output}")
