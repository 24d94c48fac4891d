"""`meshwright import`: what people already run, as a plan that is priced and criticised."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import typer

from meshwright.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshwright.imports.critique import Critique
    from meshwright.imports.reading import Given, Imported
    from meshwright.specs.plan import Plan


def command(
    file: str = typer.Argument(
        ..., help="Script, recipe, log, configuration, or a folder of them."
    ),
    model: str | None = typer.Option(None, "--model", help="Where the file does not describe it."),
    cluster: str | None = typer.Option(
        None, "-c", "--cluster", help="What it runs on, as h100:8x8."
    ),
    seq: str | None = typer.Option(None, "--seq", help="Sequence length in tokens."),
    global_batch: str | None = typer.Option(None, "--global-batch", help="512 or 4M-tokens."),
    micro_batch: int | None = typer.Option(None, "--micro-batch", min=1, help="Per rank."),
    config: str | None = typer.Option(
        None, "--config", help="Which configuration, where a file registers several."
    ),
    setting: list[str] = typer.Option(
        [], "--set", help="NAME=value of a variable that the file leaves to its environment."
    ),
    arguments: str | None = typer.Option(
        None, "--args", help="The script's own arguments, in quotes."
    ),
    guess: bool = typer.Option(
        False, "--guess", help="Take the offered guess where the file does not say; each is marked."
    ),
    strict: bool = typer.Option(
        False, "--strict", help="Refuse options that are not known instead of naming them."
    ),
    compare: bool = typer.Option(True, help="Ask the planner what it would choose instead."),
    as_json: bool = typer.Option(False, "--json", help="Print plan and critique as JSON."),
    patch: str | None = typer.Option(
        None,
        "--patch",
        callback=options.writable,
        help="Write the file with its best change to this path.",
    ),
    output: str | None = typer.Option(
        None, "-o", "--output", callback=options.writable, help="Write the plan to this file."
    ),
) -> None:
    """Read a run of another tool: its plan, what it will use, and what the planner would change.

    The file is read as data and never executed. Exits with 1 when the run does not fit in memory.
    """
    from meshwright.cli.output import print_json
    from meshwright.imports.critique import price
    from meshwright.imports.files import import_file
    from meshwright.imports.reading import Given
    from meshwright.specs import load_cluster, load_model
    from meshwright.specs.plan import save_plan
    from meshwright.specs.quantities import parse_batch, parse_count

    length = parse_count(seq, "--seq") if seq is not None else None
    given = Given(
        model=load_model(model) if model is not None else None,
        cluster=load_cluster(cluster) if cluster is not None else None,
        seq_len=length,
        global_batch=parse_batch(global_batch, length or 4096, "--global-batch")
        if global_batch is not None
        else None,
        micro_batch=micro_batch,
        config=config or "",
        variables=_variables(setting),
        arguments=tuple(shlex.split(arguments)) if arguments else (),
        guess=guess,
        strict=strict,
    )
    imported = import_file(file, given)
    plan = price(imported, "meshwright " + shlex.join(sys.argv[1:]))
    text = _text(file)
    critique: Critique | None = None
    findings: list[dict[str, Any]] = []
    better: Plan | None = None
    if compare or patch is not None:
        findings, better, critique = _criticise(imported, plan, text, _rereader(file, given))
    patched = _patch(text, file, critique, patch) if patch is not None else ""
    if output is not None:
        save_plan(plan, output)
    if as_json:
        print_json(_data(imported, plan, findings, better))
    else:
        _show(imported, plan, findings, better, output)
        if patched:
            print(patched)
    if not plan.estimate.fits:
        raise typer.Exit(1)


def _variables(settings: list[str]) -> tuple[tuple[str, str], ...]:
    from meshwright.specs.errors import SpecError

    found: list[tuple[str, str]] = []
    for one in settings:
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            raise SpecError("--set", one, "NAME=value is expected")
        found.append((name.strip().lstrip("$"), value))
    return tuple(found)


def _text(file: str) -> str:
    """The file's own text, for the lines to change; empty for a folder or standard input."""
    from pathlib import Path

    from meshwright.specs.foreign import read_text

    return read_text(file) if file != "-" and Path(file).is_file() else ""


def _rereader(file: str, given: Given) -> Callable[[str], Imported]:
    """Reads a changed text as the file itself was read."""
    from pathlib import Path

    from meshwright.imports.files import import_text

    folder = None if file == "-" else Path(file).parent
    return lambda text: import_text(text, file, given, folder)


def _own_findings(plan: Plan) -> list[dict[str, Any]]:
    """What the run's own estimate shows."""
    from meshwright.specs.quantities import format_bytes

    findings: list[dict[str, Any]] = []
    estimate = plan.estimate
    if not estimate.fits:
        over = estimate.peak_memory_bytes - estimate.capacity_bytes
        largest = max(estimate.memory_parts, key=lambda part: estimate.memory_parts[part])
        findings.append(
            {
                "severity": "error",
                "finding": f"does not fit: {format_bytes(over)} over; the largest part is {largest} "
                f"({format_bytes(estimate.memory_parts[largest])})",
            }
        )
    if estimate.bubble_fraction > 0.1:
        findings.append(
            {
                "severity": "warning",
                "finding": f"{estimate.bubble_fraction:.0%} of the pipeline's time is bubble",
            }
        )
    return findings


def _beside(imported: Imported, plan: Plan, better: Plan) -> dict[str, Any]:
    """What the planner's own choice would gain."""
    from meshwright.imports.critique import unpriced_offload, without_offloaded
    from meshwright.specs.quantities import format_seconds

    estimate = plan.estimate
    theirs = without_offloaded(better.estimate, unpriced_offload(imported)).step_time_s
    ours = estimate.step_time_s
    times = f"step {format_seconds(theirs)} instead of {format_seconds(ours)}"
    chooses = f"the planner chooses {better.layout.label()}"
    if not estimate.fits:
        return {"severity": "change", "finding": f"{chooses}, which fits: {times}"}
    if theirs < 0.99 * ours:
        more = f"{ours / theirs - 1:.0%} more tokens per second"
        return {"severity": "change", "finding": f"{chooses}: {times}, {more}"}
    return {"severity": "ok", "finding": "the planner finds nothing over 1 % faster"}


def _criticise(
    imported: Imported, plan: Plan, text: str, reread: Callable[[str], Imported]
) -> tuple[list[dict[str, Any]], Plan | None, Critique]:
    from meshwright.imports.critique import criticise
    from meshwright.planner.plan import plan as choose
    from meshwright.specs.errors import DoesNotFitError, SpecError
    from meshwright.specs.quantities import format_bytes

    findings, estimate = _own_findings(plan), plan.estimate
    critique = criticise(imported, plan, text, reread)
    for change in critique.changes:
        lines = [edit.text() for edit in change.edits]
        findings.append(
            {
                "severity": "change",
                "finding": f"{change.what}: {change.gain:+.0%} tokens per second, peak "
                f"{format_bytes(change.peak_memory_bytes)} of {format_bytes(estimate.capacity_bytes)}; "
                f"risk: {change.risk}",
                "lines": lines,
            }
        )
    try:
        better = choose(plan.model, plan.cluster, plan.job, defend=False, command=plan.command)
    except (DoesNotFitError, SpecError) as error:
        held = "the run fits because it offloads; " if imported.offload and estimate.fits else ""
        held += "without offload " if imported.offload else ""
        findings.append(
            {"severity": "note", "finding": f"{held}the planner finds no layout: {error}"}
        )
        return findings, None, critique
    findings.append(_beside(imported, plan, better))
    return findings, better, critique


def _patch(text: str, file: str, critique: Critique | None, target: str) -> str:
    """Write the file with the best change that it has lines for; return what was done."""
    from meshwright.imports.patch import apply_edits
    from meshwright.specs.errors import SpecError
    from meshwright.specs.writing import write_atomically

    if not text:
        raise SpecError("--patch", file, "a file is expected, not a folder or standard input")
    changes = [one for one in critique.changes if one.edits] if critique is not None else []
    if not changes:
        return f"nothing to change in {file}: no single change of its lines gains over 2 %"
    write_atomically(target, apply_edits(text, list(changes[0].edits)), "--patch")
    return f"{target} written: {changes[0].what}"


def _data(
    imported: Imported, plan: Plan, findings: list[dict[str, Any]], better: Plan | None
) -> dict[str, Any]:
    return {
        "format": imported.format,
        "plan": plan.plain(),
        "findings": findings,
        "planner": better.plain() if better is not None else None,
    }


def _show(
    imported: Imported,
    plan: Plan,
    findings: list[dict[str, Any]],
    better: Plan | None,
    output: str | None,
) -> None:
    from meshwright.cli.output import print_table
    from meshwright.specs.quantities import format_bytes, format_seconds

    def column(one: Plan) -> list[str]:
        e = one.estimate
        return [
            one.layout.label(), format_seconds(e.step_time_s), f"{e.mfu:.1%}",
            f"{e.bubble_fraction:.1%}", f"{e.tokens_per_s_per_gpu:,.0f}",
            f"{format_bytes(e.peak_memory_bytes)} of {format_bytes(e.capacity_bytes)}",
            "yes" if e.fits else "no",
        ]  # fmt: skip

    names = ["layout", "step time", "MFU", "bubble", "tokens/s per GPU", "peak memory", "fits"]
    columns = [names, column(plan)] + ([column(better)] if better is not None else [])
    heads = ["", "as it stands"] + (["the planner's"] if better is not None else [])
    title = f"{imported.format}: {plan.model.name} on {plan.cluster.name}"
    print_table(title, heads, [list(row) for row in zip(*columns, strict=True)])
    for finding in findings:
        print(f"{finding['severity'].upper():8} {finding['finding']}")
        for line in finding.get("lines", ()):
            print(f"         {line}")
    for note in plan.notes:
        print(f"NOTE     {note}")
    if output is not None:
        print(f"plan written to {output}")
