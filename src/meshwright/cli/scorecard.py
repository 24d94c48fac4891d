"""`meshwright scorecard`: predictions against measurements."""

from __future__ import annotations

import typer


def command(
    rows: list[str] = typer.Argument(
        None, help="CSV tables in the evidence schema; none: the published rows that ship."
    ),
    by: str = typer.Option("source", "--by", help="Group by source, gpu or framework."),
    as_json: bool = typer.Option(False, "--json", help="Print the scores as JSON."),
    html: str = typer.Option("", "--html", help="Write a self-contained page with scatter plots."),
    confidence: str = typer.Option(
        "", "--confidence", help="Write the ranges of each kind of run (TOML)."
    ),
    markdown: str = typer.Option("", "--markdown", help="Write the accuracy page (Markdown)."),
) -> None:
    """Score the cost model on published measurements, next to two baselines.

    Errors are relative, in percent: of step time, of peak memory; a positive bias predicts too
    much. `false fits` are runs that ran out of memory but were said to fit. Regret is how much
    slower than the best measured layout of a sweep the one is that meshwright ranks first.
    """
    from dataclasses import asdict

    from rich.console import Console

    from meshwright.cli.output import print_json
    from meshwright.evidence.collective_rows import collective_score
    from meshwright.evidence.confidence import confidence_toml
    from meshwright.evidence.predict import predict
    from meshwright.evidence.report import accuracy_page, html_page, print_scores
    from meshwright.evidence.rows import Row, published_rows, read_rows
    from meshwright.evidence.score import scorecard
    from meshwright.specs.errors import SpecError
    from meshwright.specs.writing import write_atomically

    if by not in ("source", "gpu", "framework"):
        raise SpecError("by", by, "one of source, gpu, framework")
    table: list[Row] = []
    for path in rows or []:
        table += read_rows(path)
    table = table if rows else published_rows()
    with Console(stderr=True).status(f"pricing {len(table)} rows"):
        predictions = predict(table)
        scores, scored = scorecard(table, predictions, by)
    if confidence:
        write_atomically(confidence, confidence_toml(scored))
    if html:
        write_atomically(html, html_page(scores, scored))
    if markdown:
        write_atomically(markdown, accuracy_page(scores, scored))
    if as_json:
        report: dict[str, object] = {"by": by, "scores": [score.plain() for score in scores]}
        if not rows:
            report["collectives"] = asdict(collective_score())
        print_json(report)
        return
    print_scores(scores, by)
    if not rows:
        nccl = collective_score()
        print(
            f"Collectives above 1 MiB: {nccl.rows} rows, median error {nccl.median:.1f} %, "
            f"90th percentile {nccl.p90:.1f} % (docs/collectives.md)"
        )
    for path in filter(None, (confidence, html, markdown)):
        print(f"written: {path}")
