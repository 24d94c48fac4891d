"""`meshwright export`: a plan in the language of the tools people already run."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from meshwright.exports.bundle import Bundle


def command(
    plan: str = typer.Argument(..., help="A plan file (TOML or JSON), or - for standard input."),
    to: str = typer.Option("", "--to", help="Target; `--to list` shows them all."),
    launches: str | None = typer.Option(
        None,
        "--for",
        help="The framework that a launcher starts (default: the plan's); measure: a measurement of its cluster.",
    ),
    output: str | None = typer.Option(
        None, "-o", "--output", help="Write the files to this folder."
    ),
    everything: str | None = typer.Option(
        None, "--all", help="Write every target that can express the plan under this folder."
    ),
    nearest: bool = typer.Option(
        False,
        "--nearest",
        help="Where the target cannot express the plan, write the nearest it can.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the files as one JSON document."),
) -> None:
    """Write a plan as the files of a framework or a launcher, ready to start.

    Without -o the files are printed. What a target cannot express is an error that names it and
    the nearest layout the target can run; --nearest writes that one instead, priced anew, with
    its plan beside it, and says what changed.
    """
    from meshwright.cli.inputs import command_line
    from meshwright.cli.output import print_json
    from meshwright.exports.targets import TARGETS, export, nearest_expressible
    from meshwright.specs.errors import SpecError
    from meshwright.specs.plan import load_plan, plan_text

    if to == "list":
        _list_targets(as_json)
        return
    if not to and everything is None:
        raise SpecError("--to", to, f"a target is expected: {', '.join(TARGETS)} (or --all DIR)")
    loaded = load_plan(plan)
    stamp = command_line()
    if everything is not None:
        if to:
            raise SpecError("--all", everything, "give either --to or --all")
        if nearest:
            raise SpecError("--nearest", True, "goes with one target (--to), not with --all")
        _export_all(loaded, everything, stamp, as_json)
        return
    changes: tuple[str, ...] = ()
    if nearest:
        loaded, changes = nearest_expressible(loaded, to, launches=launches, command=stamp)
    bundle = export(loaded, to, launches=launches, command=stamp)
    if changes:
        bundle = replace(bundle, files=dict(bundle.files) | {"plan.toml": plan_text(loaded)})
    for change in changes:
        print(f"changed: {change}", file=sys.stderr)
    for note in bundle.notes:
        print(f"note: {note}", file=sys.stderr)
    if as_json:
        print_json({
            "target": bundle.target, "start": bundle.start, "files": dict(bundle.files),
            "changes": list(changes), "notes": list(bundle.notes),
        })  # fmt: skip
        return
    if output is None:
        _print_files(bundle)
        return
    for path in bundle.write(output):
        print(path)
    print(f"start with: cd {shlex.quote(output)} && {bundle.start}")


def _print_files(bundle: Bundle) -> None:
    if len(bundle.files) == 1:
        sys.stdout.write(next(iter(bundle.files.values())))
        return
    for name, text in bundle.files.items():
        print(f"=== {name} ===")
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
    print(f"=== start with: {bundle.start} ===")


def _list_targets(as_json: bool) -> None:
    from meshwright.cli.output import print_json, print_table
    from meshwright.exports.targets import FINETUNERS, FRAMEWORKS, LAUNCHERS

    rows = [[name, f.title, f.version, "framework"] for name, f in FRAMEWORKS.items()]
    rows += [[name, f.title, f.version, "fine-tuning"] for name, f in FINETUNERS.items()]
    rows += [[name, one.title, "", f"launcher ({one.file})"] for name, one in LAUNCHERS.items()]
    if as_json:
        keys = ("name", "title", "version", "kind")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    print_table("Export targets", ["target", "tool", "version", "what it is"], rows)


def _export_all(plan: object, folder: str, stamp: str, as_json: bool) -> None:
    from pathlib import Path

    from meshwright.cli.output import print_json, print_table
    from meshwright.exports.targets import default_framework, export_all, nearest_expressible
    from meshwright.specs.errors import SpecError
    from meshwright.specs.plan import Plan

    assert isinstance(plan, Plan)
    made, refused = export_all(plan, command=stamp)
    if not made:
        # The plan's own framework speaks, where it is one of those that were asked.
        own = default_framework(plan)
        first = own if own in refused else next(iter(refused))
        try:
            nearest_expressible(plan, first, command=stamp)
            further = f"; `meshwright export --to {first} --nearest` writes the nearest plan it can"
        except SpecError:
            further = "; no other layout would change that"
        raise SpecError(
            "plan",
            plan.layout.label(),
            f"no target can express it; {first}: {refused[first]}{further}",
        )
    for name, bundle in made.items():
        bundle.write(Path(folder) / name)
    if as_json:
        print_json({
            "made": {name: {"files": list(b.files), "start": b.start} for name, b in made.items()},
            "refused": refused,
        })  # fmt: skip
        return
    rows = [[name, ", ".join(bundle.files), bundle.start] for name, bundle in made.items()]
    print_table(f"Written under {folder}", ["target", "files", "start with"], rows)
    if refused:
        print_table("Not expressible", ["target", "why"], [list(pair) for pair in refused.items()])
