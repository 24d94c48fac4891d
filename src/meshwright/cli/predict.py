"""`meshwright predict`: price a table of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from meshwright.cli import options

if TYPE_CHECKING:
    from meshwright.evidence.predict import Prediction
    from meshwright.evidence.rows import Row

MOST_SAID = 8
"""Assumptions that the summary of a table written to a file prints."""


def command(
    rows: str = typer.Argument(..., help="Table of runs, CSV or as pasted."),
    output: str = typer.Option(
        "", "-o", "--output", callback=options.writable, help="Write the predictions as CSV here."
    ),
    told: list[str] = typer.Option(
        [],
        "--set",
        help="COLUMN=VALUE of all rows that leave it blank: gpu='8x A100 80GB', seq_len=4096.",
    ),
    as_json: bool = typer.Option(
        False, "--json", help="Print a summary and the predictions as JSON."
    ),
) -> None:
    """Price every run of a table: step time, throughput, peak memory, whether it fits.

    Reads only the columns that describe a run; anything measured may be blank. Heads and cells may
    be as people write them (`GPUs: 4x8`, `seq len: 2k`, `TP8`, `bs 4 ga 8`); a page with its tables
    (Markdown, HTML, LaTeX) is read as it is. Every row gets a price or a
    reason, what the row left open is listed under `assumed`, and what is measured should lie between
    `low` and `high` in four rows of five. What the table says was measured is compared at the end;
    `meshwright calibrate` learns from it.
    """
    from collections import Counter

    from rich.console import Console

    from meshwright.cli.output import print_json
    from meshwright.evidence.around import given
    from meshwright.evidence.predict import predict, predictions_csv, predictions_plain
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
    if table and not priced:
        _nothing_priced(str(rows), len(table), reasons.most_common(1)[0])
    beside = _measured_beside(table, predictions)
    if as_json:
        summary = {"rows": len(table), "priced": len(priced), "skipped": dict(reasons)}
        print_json(summary | {"measured": beside, "predictions": predictions_plain(predictions)})
        return
    if not output:
        print(text, end="")
        for line in _in_words(beside):
            console.print(line, highlight=False)
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
    for line in _in_words(beside):
        print(line)


def _nothing_priced(name: str, rows: int, most: tuple[str, int]) -> None:
    """Refuse a table of which no row says enough.

    Raises:
        SpecError: always; with the reason that most rows have.
    """
    from meshwright.specs.errors import SpecError

    reason, count = most
    raise SpecError(
        "rows", name, f"none of its {rows} rows can be priced; {count} of them: {reason}"
    )


def _measured_beside(
    rows: Sequence[Row], predictions: Sequence[Prediction]
) -> dict[str, dict[str, float]]:
    """Of what the table says was measured: how many, and the errors of the predictions in percent."""
    from meshwright.evidence.measured import measured_memory_bytes, measured_step_time_s
    from meshwright.evidence.score import Errors

    errors: dict[str, list[float]] = {"step_time": [], "peak_memory": []}
    for row, made in zip(rows, predictions, strict=True):
        if made.run is None:
            continue
        time, memory = measured_step_time_s(row, made.run), measured_memory_bytes(row)
        errors["step_time"].append(made.iter_time_s / time - 1)
        errors["peak_memory"].append(made.peak_memory_bytes / memory - 1)
    return {
        what: {
            "rows": found.rows,
            "median_error_percent": round(found.median, 1),
            "median_signed_percent": round(found.bias, 1),
        }
        for what, found in ((what, Errors.of(values)) for what, values in errors.items())
        if found.rows
    }


def _in_words(beside: dict[str, dict[str, float]]) -> list[str]:
    """The comparison, a line each: which way the predictions err, too."""
    names = {"step_time": ("step times", "slow", "fast"), "peak_memory": ("peaks of memory", "large", "small")}  # fmt: skip
    lines = []
    for what, found in beside.items():
        name, more, less = names[what]
        signed = found["median_signed_percent"]
        lines.append(
            f"{found['rows']} measured {name}: {found['median_error_percent']:g} % off in the middle, "
            f"{abs(signed):g} % too {more if signed > 0 else less}"
        )
    return lines
