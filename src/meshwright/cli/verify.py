"""`meshwright verify`: prove that a plan trains as one device would."""

from __future__ import annotations

import sys
from typing import Any

import typer

from meshwright.cli import running


def command(
    what: str = running.WHAT,
    cluster: str | None = running.CLUSTER,
    tp: int | None = running.TP,
    pp: int | None = running.PP,
    dp: int | None = running.DP,
    cp: int | None = running.CP,
    cp_method: str | None = running.CP_METHOD,
    ep: int | None = running.EP,
    zero: int | None = running.ZERO,
    shard: int | None = running.SHARD,
    micro_batch: int | None = running.MICRO_BATCH,
    virtual_stages: int | None = running.VIRTUAL_STAGES,
    schedule: str | None = running.SCHEDULE,
    recompute: str | None = running.RECOMPUTE,
    sequence_parallel: bool | None = running.SEQUENCE_PARALLEL,
    precision: str = typer.Option("fp64", help="fp64, fp32 or bf16."),
    steps: int = typer.Option(3, min=1, max=50, help="Steps of each optimizer."),
    max_ranks: int = typer.Option(16, min=1, max=64, help="Shrink layouts above this."),
    mutants: bool = typer.Option(True, help="Also run plans with one reduction left out."),
    csv: str = typer.Option("", help="A schedule file in torch's CSV format, instead of a name."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Prove that a plan's gradients equal single-device training, parameter by parameter.

    Real processes run the plan on a small model of the same structure. Exits with 1 if a
    difference exceeds the bound, or if a run with one reduction left out is not noticed.
    """
    from meshwright.cli.output import print_json
    from meshwright.specs.errors import SpecError, nearest

    options = {
        "tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep, "zero": zero, "shard": shard,
        "micro_batch": micro_batch, "virtual_stages": virtual_stages, "schedule": schedule,
        "recompute": recompute, "sequence_parallel": sequence_parallel, "cp_method": cp_method,
    }  # fmt: skip
    subject = running.read_subject(what, cluster, options)
    from meshwright.engine.processes import RankError
    from meshwright.engine.verify import PRECISIONS, verify

    if precision not in PRECISIONS:
        raise SpecError("precision", precision, nearest(precision, PRECISIONS))
    try:
        verdict = verify(
            subject.model, subject.layout, precision=precision, steps=steps, mutants=mutants,
            max_ranks=max_ranks, csv=csv, on_progress=running.progress,
        )  # fmt: skip
    except RankError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        running.progress("")
    if as_json:
        print_json(verdict.plain())
    else:
        _show(verdict, subject.model.name)
    if not verdict.passed:
        raise typer.Exit(1)


def _show(verdict: Any, name: str) -> None:
    from meshwright.cli.output import print_table

    kind = "" if verdict.precision == "fp64" else " (relative)"
    rows = [
        [
            "the plan",
            f"{verdict.steps} SGD-momentum + {verdict.steps} AdamW steps",
            f"{verdict.max_abs_error:.1e}",
            "equal" if verdict.max_abs_error <= verdict.bound else "DIFFERENT",
        ]
    ]
    rows += [
        ["mutant", f"without {m.left_out}", f"{m.error:.1e}", "caught" if m.caught else "MISSED"]
        for m in verdict.mutants
    ]
    outcome = "Proved" if verdict.passed else "NOT equal"
    caught = sum(m.caught for m in verdict.mutants)
    note = (
        f"{outcome}: {verdict.ranks} ranks train {name} as one device does, every gradient within "
        f"{verdict.bound:.0e}{kind}; {caught} of {len(verdict.mutants)} mutants caught. "
        f"Worst: {verdict.worst_parameter or 'none'}."
    )
    if verdict.shrunk:
        note += "\nMade smaller for the proof, structure kept: " + "; ".join(verdict.shrunk) + "."
    title = f"{name} under {verdict.layout}, {verdict.precision}, {verdict.parameters:,} parameters"
    print_table(title, ["run", "what", "largest error", "verdict"], rows, {2}, note)
