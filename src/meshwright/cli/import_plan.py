"""`meshwright import`: what people already run, as a plan that is priced and criticised."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from meshwright.imports.reading import Imported
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
    output: str | None = typer.Option(None, "-o", "--output", help="Write the plan to this file."),
) -> None:
    """Read a run of another tool: its plan, what it will use, and what the planner would change.

    The file is read as data and never executed. Exits with 1 when the run does not fit in memory.
    """
    from meshwright.cli.output import print_json
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
    plan = _price(imported)
    findings, better = _criticise(plan) if compare else ([], None)
    if output is not None:
        save_plan(plan, output)
    if as_json:
        print_json(_data(imported, plan, findings, better))
    else:
        _show(imported, plan, findings, better, output)
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


def _price(imported: Imported) -> Plan:
    """Price the layout as it stands, on as many devices as it starts."""
    from meshwright.planner.plan import price_layout

    plan = price_layout(
        imported.model, _resized(imported), imported.job, imported.layout,
        command="meshwright " + shlex.join(sys.argv[1:]),
    )  # fmt: skip
    return plan.but(notes=(f"imported: {imported.format}", *imported.notes))


def _resized(imported: Imported) -> Any:
    """The cluster with as many hosts as the run starts, where it starts fewer than there are."""
    from meshwright.exports.fabric import resize

    return resize(imported.cluster, imported.layout.world)


def _criticise(plan: Plan) -> tuple[list[dict[str, str]], Plan | None]:
    from meshwright.planner.plan import plan as choose
    from meshwright.specs.errors import DoesNotFitError, SpecError
    from meshwright.specs.quantities import format_bytes, format_seconds

    findings: list[dict[str, str]] = []
    estimate = plan.estimate
    if not estimate.fits:
        over = estimate.peak_memory_bytes - estimate.capacity_bytes
        largest = max(estimate.memory_parts, key=lambda part: estimate.memory_parts[part])
        findings.append({
            "severity": "error",
            "finding": f"does not fit: {format_bytes(over)} over; the largest part is {largest} "
            f"({format_bytes(estimate.memory_parts[largest])})",
        })  # fmt: skip
    if estimate.bubble_fraction > 0.1:
        findings.append({
            "severity": "warning",
            "finding": f"{estimate.bubble_fraction:.0%} of the pipeline's time is bubble",
        })  # fmt: skip
    try:
        better = choose(plan.model, plan.cluster, plan.job, defend=False, command=plan.command)
    except (DoesNotFitError, SpecError) as error:
        findings.append({"severity": "note", "finding": f"the planner finds no layout: {error}"})
        return findings, None
    ours, theirs = estimate.step_time_s, better.estimate.step_time_s
    times = f"step {format_seconds(theirs)} instead of {format_seconds(ours)}"
    if not estimate.fits:
        findings.append({
            "severity": "change",
            "finding": f"the planner chooses {better.layout.label()}, which fits: {times}",
        })  # fmt: skip
    elif theirs < 0.99 * ours:
        findings.append({
            "severity": "change",
            "finding": f"the planner chooses {better.layout.label()}: {times}, "
            f"{ours / theirs - 1:.0%} more tokens per second",
        })  # fmt: skip
    else:
        findings.append({"severity": "ok", "finding": "the planner finds nothing over 1 % faster"})
    return findings, better


def _data(
    imported: Imported, plan: Plan, findings: list[dict[str, str]], better: Plan | None
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
    findings: list[dict[str, str]],
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
    for note in plan.notes:
        print(f"NOTE     {note}")
    if output is not None:
        print(f"plan written to {output}")
