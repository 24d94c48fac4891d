"""`meshwright predict`: price a table of runs."""

from __future__ import annotations

import typer

MOST_SAID = 8
"""Assumptions that the summary of a table written to a file prints."""


def command(
    rows: str = typer.Argument(..., help="Table of runs, CSV or as pasted."),
    output: str = typer.Option("", "-o", "--output", help="Write the predictions as CSV here."),
    told: list[str] = typer.Option(
        [],
        "--set",
        help="COLUMN=VALUE of all rows that leave it blank: gpu='8x A100 80GB', seq_len=4096.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print a summary as JSON."),
) -> None:
    """Price every run of a table: step time, throughput, peak memory, whether it fits.

    Reads only the columns that describe a run; anything measured may be blank. Heads and cells may
    be as people write them (`GPUs: 4x8`, `seq len: 2k`, `TP8`, `bs 4 ga 8`); a page with its tables
    (Markdown, HTML, LaTeX) is read as it is. Every row gets a price or a
    reason, what the row left open is listed under `assumed`, and what is measured should lie between
    `low` and `high` in four rows of five.
    """
    from collections import Counter

    from rich.console import Console

    from meshwright.cli.output import print_json
    from meshwright.evidence.around import given
    from meshwright.evidence.predict import predict, predictions_csv
    from meshwright.evidence.rows import read_rows
    from meshwright.specs.writing import write_atomically

    table = read_rows(rows, given(told))
    console = Console(stderr=True)
    with console.status(f"pricing {len(table)} rows"):
        predictions = predict(table, possible=True)
    text = predictions_csv(predictions)
    priced = [one for one in predictions if one.priced]
    reasons = Counter(one.reason for one in predictions if not one.priced)
    if output:
        write_atomically(output, text)
    if as_json:
        summary = {"rows": len(table), "priced": len(priced), "skipped": dict(reasons)}
        print_json(summary)
        return
    if not output:
        print(text, end="")
        return
    share = 100.0 * len(priced) / len(table) if table else 0.0
    print(f"{len(priced)} of {len(table)} rows priced ({share:.1f} %), written to {output}")
    for reason, count in reasons.most_common(10):
        print(f"  {count} skipped: {reason}")
    assumed = Counter(one for made in priced if made.run for one in made.run.assumed)
    if assumed:
        print("assumed, most often first (column `assumed` has all of them):")
    for words, count in assumed.most_common(MOST_SAID):
        print(f"  {count} rows: {words}")
