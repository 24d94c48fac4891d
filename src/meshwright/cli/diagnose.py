"""`meshwright diagnose`: whatever a run left behind, its cause and what the change gains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from meshwright.cli import options

if TYPE_CHECKING:
    from meshwright.diagnose.records import Cause, Diagnosis


def command(
    *,
    artefacts: list[str] = typer.Argument(
        None, help="Files or folders that a run left; - for a pasted text."
    ),
    plan: str | None = typer.Option(None, "--plan", help="What the run was meant to be."),
    cluster: str | None = typer.Option(
        None, "-c", "--cluster", help="What it ran on, as h100:8x8, where nothing says."
    ),
    html: str | None = typer.Option(
        None, "--html", callback=options.writable, help="Write a page with the timelines here."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the diagnosis as JSON."),
    schema: bool = typer.Option(False, "--schema", help="Print the JSON Schema and stop."),
) -> None:
    """Say why a run is slow, hangs or ran out of memory, what to change, and what that gains.

    Takes profiler traces, flight-recorder dumps, logs, out-of-memory and watchdog texts, memory
    snapshots, operation tables, and our own runs; each is recognised by what it holds.
    """
    from meshwright.cli.output import print_json

    if schema:
        from meshwright.diagnose.records import schema as published

        print_json(published())
        return
    from meshwright.diagnose.examine import diagnose
    from meshwright.specs import load_cluster
    from meshwright.specs.errors import SpecError
    from meshwright.specs.plan import load_plan

    if not artefacts:
        raise SpecError("artefact", None, "a file, a folder, or - for standard input is expected")
    meant = load_plan(plan) if plan is not None else None
    on = load_cluster(cluster) if cluster is not None else None
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        found, parts = diagnose(
            artefacts,
            plan=meant,
            cluster=on,
            progress=lambda what: status.update(f"reading {what}"),
        )
    if html is not None:
        from meshwright.diagnose.page import write_page

        write_page(html, found, parts)
    if as_json:
        print_json(found.plain())
    else:
        _show(found)


def _show(found: Diagnosis) -> None:
    from meshwright.cli.output import print_lines
    from meshwright.diagnose.page import figure_lines
    from meshwright.diagnose.verdict import confidence_word

    leading = found.causes[0] if found.causes and not found.healthy else None
    certain = f" [{confidence_word(leading.confidence)}]" if leading is not None else ""
    print_lines(found.verdict.rstrip(".") + "." + certain)
    evidence = [line for cause in found.causes[:4] for line in _evidence(cause)]
    _block("evidence", list(dict.fromkeys(evidence))[:10])
    _block(
        "what to change", [_numbered(i, c.remedy, found) for i, c in enumerate(found.causes[:4], 1)]
    )
    _block(
        "what it gains", [_numbered(i, _gain(c), found) for i, c in enumerate(found.causes[:4], 1)]
    )
    _block("figures", figure_lines(found.figures))
    _block("what could not be told, and what would tell", list(found.missing))


def _numbered(number: int, text: str, found: Diagnosis) -> str:
    return text if len(found.causes) == 1 else f"{number}. {text}"


def _evidence(cause: Cause) -> list[str]:
    lines = []
    for one in cause.evidence[:4]:
        place = one.file
        if one.line is not None:
            place += f":{one.line}"
        elif one.event is not None:
            place += f" [{one.event}]"
        rank = f" rank {one.rank}" if one.rank is not None else ""
        moment = f" at {one.time_s:.3f} s" if one.time_s is not None else ""
        lines.append(f"{place}{rank}{moment}: {one.text}")
    return lines


def _gain(cause: Cause) -> str:
    if cause.gain_fraction is None:
        return f"{cause.kind}: not to be computed from what is here"
    return f"{cause.kind}: {cause.gain_fraction:.1%} of the step"


def _block(title: str, lines: list[str]) -> None:
    from meshwright.cli.output import print_lines

    if lines:
        print()
        print_lines(title.upper(), *(f"  {line}" for line in lines))
