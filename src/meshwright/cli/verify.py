"""`meshwright verify`: prove that a plan trains as one device would."""

from __future__ import annotations

import sys
from typing import Any

import typer

from meshwright.cli import options, running


def command(
    *,
    what: options.What,
    cluster: options.RankCount = None,
    layout: options.RunLayoutOptions,
    precision: str | None = typer.Option(
        None, help="fp64, fp32 or bf16; default fp64, with transformers' modules fp32."
    ),
    steps: int = typer.Option(3, min=1, max=50, help="Steps of each optimizer."),
    max_ranks: int = typer.Option(24, min=1, max=96, help="Shrink layouts above this."),
    mutants: bool = typer.Option(True, help="Also run plans with one reduction left out."),
    csv: options.Csv = "",
    transformers: options.ForeignConfig = "",
    dropout: options.DropoutRate = None,
    document_masking: options.DocumentMasking = None,
    predict_layers: options.PredictLayers = None,
    as_json: options.AsJson = False,
) -> None:
    """Prove that a plan's gradients equal single-device training, parameter by parameter.

    Real processes run the plan on a small model of the same structure. Exits with 1 if a
    difference exceeds the bound, or if a run with one reduction left out is not noticed.
    """
    from meshwright.cli.output import finite, print_json
    from meshwright.specs.errors import SpecError, nearest

    subject = running.predicting(running.read_subject(what, cluster, layout), predict_layers)
    from meshwright.engine.proof.runs import PRECISIONS
    from meshwright.engine.proof.verify import verify
    from meshwright.engine.ranks.processes import RankError

    foreign = running.foreign_of(what, subject.model, transformers)
    precision = precision or ("fp64" if foreign is None else "fp32")
    if precision not in PRECISIONS:
        raise SpecError("precision", precision, nearest(precision, PRECISIONS))
    job = running.regularised(subject.job, dropout, document_masking)
    if foreign is not None:
        from meshwright.engine.foreign.running import check_foreign_job

        check_foreign_job(job)
        subject = running.for_modules(subject, layout)
    try:
        verdict = verify(
            subject.model, subject.layout, precision=precision, steps=steps, mutants=mutants,
            max_ranks=max_ranks, csv=csv, documents=job.document_masking, dropout=job.dropout,
            foreign=foreign,
            on_progress=running.progress,
        )  # fmt: skip
    except RankError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        running.progress("")
    if as_json:
        print_json(finite(verdict.plain()))
    else:
        _show(verdict, subject.model.name)
    if not verdict.passed:
        raise typer.Exit(1)


_SCALARS = ("loss", "grad_norm")


def _error(size: float, where: str) -> str:
    """The difference that is largest against its bound; named where it is no tensor's."""
    return f"{size:.1e} ({where.replace('_', ' ')})" if where in _SCALARS else f"{size:.1e}"


def _show(verdict: Any, name: str) -> None:
    from meshwright.cli.output import print_table
    from meshwright.specs.quantities import counted

    kind = "" if verdict.precision == "fp64" else " (relative)"
    rows = [
        [
            "the plan",
            f"{verdict.steps} SGD-momentum + {verdict.steps} AdamW steps"
            + (", saved and resumed, long sequences" if "long" in verdict.courses else ""),
            _error(verdict.max_abs_error, verdict.worst_parameter),
            "equal" if verdict.equal else "DIFFERENT",
        ]
    ]
    rows += [
        ["mutant", f"without {m.left_out}", _error(m.error, m.where),
         "caught" if m.caught else "MISSED"]
        for m in verdict.mutants
    ]  # fmt: skip
    outcome = "Proved" if verdict.passed else "NOT proved" if verdict.equal else "NOT equal"
    caught = sum(m.caught for m in verdict.mutants)
    trained = counted(verdict.ranks, "rank") + (" trains" if verdict.ranks == 1 else " train")
    error = _error(verdict.max_abs_error, verdict.worst_parameter)
    if not verdict.equal:
        found = f"{name} on {counted(verdict.ranks, 'rank')} and on one device differ, by up to {error}{kind}"
    elif verdict.precision == "fp64":
        found = f"{trained} {name} as one device does, every gradient within {verdict.bound:.0e}"
    else:
        found = (
            f"{trained} {name} as one device does, every gradient and update within what rounding explains, "
            f"nearest to it {error} of {verdict.allowed:.1e}{kind}"
        )
    note = (
        f"{outcome}: {found}; {caught} of {len(verdict.mutants)} mutants caught. "
        f"Worst: {verdict.worst_parameter or 'none'}."
    )
    if verdict.shrunk:
        note += "\nMade smaller for the proof, structure kept: " + "; ".join(verdict.shrunk) + "."
    if verdict.not_covered:
        note += "\nNot covered: " + "; ".join(verdict.not_covered) + "; raise --max-ranks."
    if verdict.cause:
        note += f"\nAs `prove` sees it, {verdict.cause}"
    title = f"{name} ({verdict.computed_by}) under {verdict.layout}, {verdict.precision}, {verdict.parameters:,} parameters"
    print_table(title, ["run", "what", "largest error", "verdict"], rows, {2}, note)
