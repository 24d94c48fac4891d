"""`meshwright scorecard`: predictions against measurements."""

from __future__ import annotations

import typer

from meshwright.cli import options


def command(
    rows: list[str] = typer.Argument(
        None, help="CSV tables in the evidence schema; none: the published rows that ship."
    ),
    by: str = typer.Option("source", "--by", help="Group by source, gpu or framework."),
    as_json: bool = typer.Option(False, "--json", help="Print the scores as JSON."),
    leave_out: str = typer.Option(
        "",
        "--leave-out",
        help="Fit without each source in turn and predict it: `source`. Takes minutes.",
    ),
    as_user: bool = typer.Option(
        False, "--as-user", help="Know nothing of a source but its framework's name."
    ),
    stored: bool = typer.Option(
        False, "--stored", help="With --leave-out: the shipped result, without fitting again."
    ),
    html: str = typer.Option(
        "",
        "--html",
        callback=options.writable,
        help="Write a self-contained page with scatter plots.",
    ),
    markdown: str = typer.Option(
        "", "--markdown", callback=options.writable, help="Write the accuracy page (Markdown)."
    ),
) -> None:
    """Score the cost model on published measurements, next to two baselines.

    Errors are relative, in percent: of step time, of peak memory; a positive bias predicts too
    much. With --leave-out each source is predicted with constants fitted to the others: what a
    source that nobody tuned for may expect. `false fits` are runs that ran out of memory but were said to fit. Regret is how much
    slower than the best measured layout of a sweep the one is that meshwright ranks first.
    """
    from dataclasses import asdict

    from rich.console import Console

    from meshwright.cli.output import print_json
    from meshwright.evidence.collective_rows import collective_score
    from meshwright.evidence.predict import predict
    from meshwright.evidence.report import accuracy_page, html_page, print_scores
    from meshwright.evidence.rows import Row, published_rows, read_rows
    from meshwright.evidence.score import scorecard
    from meshwright.specs.errors import SpecError
    from meshwright.specs.writing import write_atomically

    if by not in ("source", "gpu", "framework"):
        raise SpecError("by", by, "one of source, gpu, framework")
    if leave_out and (leave_out != "source" or rows):
        told = "with the published rows, `source` is what can be left out"
        raise SpecError("leave-out", leave_out, told)
    if leave_out:
        _left_out("as a user" if as_user else "left out", stored, as_json)
        return
    table: list[Row] = []
    for path in rows or []:
        table += read_rows(path)
    table = table if rows else published_rows()
    with Console(stderr=True).status(f"pricing {len(table)} rows"):
        predictions = predict(table, as_user=as_user)
        scores, scored = scorecard(table, predictions, by)
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
    for path in filter(None, (html, markdown)):
        print(f"written: {path}")


def _left_out(mode: str, shipped: bool, as_json: bool) -> None:
    """Print the figures of left-out sources: the shipped ones, or fitted now."""
    from rich.console import Console

    from meshwright.cli.output import print_json
    from meshwright.evidence import validation
    from meshwright.evidence.constants import fitted_constants
    from meshwright.evidence.fit import Problem, cases_of, fit
    from meshwright.evidence.rows import published_rows

    if shipped:
        result = validation.stored()
    else:
        console = Console(stderr=True)
        rows = published_rows()
        with console.status("fitting all sources") as status:
            fitted = fit(Problem(cases_of(rows), fitted_constants()), status.update)
            sources = sorted({case.source for case in fitted.problem.cases})
            constants = validation.left_out_constants(fitted, sources)
            result = validation.validate(rows, constants, status.update).validation
    if as_json:
        print_json({"mode": mode, "scores": result.scores[mode], "alike": result.alike[mode]})
        return
    print("\n".join(validation.table_lines(result, mode)))
