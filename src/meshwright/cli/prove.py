"""`meshwright prove`: are two recorded trainings one?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from meshwright.cli import options


def command(
    *,
    recordings: list[str] = typer.Argument(
        None,
        metavar="A B",
        help="Folders that meshwright.probe.record wrote; A is the reference. With --script: further "
        "layouts, then the script's own words (behind -- if they begin with a dash).",
    ),
    reference: Path | None = typer.Option(
        None, help="A repetition of A in another order or precision: bounds are measured on it."
    ),
    script: Path | None = typer.Option(
        None, help="A training script that calls meshwright.probe.record: run it under each layout."
    ),
    layouts: list[str] = typer.Option(
        [],
        "--layouts",
        help="With --script: the layouts, the reference first, as --layouts dp1 dp2 tp2.",
    ),
    out: Path = typer.Option(Path("runs/prove"), help="With --script: where recordings go."),
    timeout_s: float = typer.Option(600.0, min=1.0, help="With --script: for one launch."),
    as_json: options.AsJson = False,
) -> None:
    """Prove that a changed layout of *any* framework still trains the same.

    Record a few steps of your own loop with `meshwright.probe` under both layouts, then compare:
    equal up to rounding, or wrong from which step, at which tensor, and the likely cause. Exits with 0
    if equal, 1 if not, 2 if the recordings cannot be compared.
    """
    from meshwright.prove.launch import is_label
    from meshwright.prove.verdict import prove
    from meshwright.specs.errors import SpecError

    if script is not None:
        words = list(recordings or ())
        while words and is_label(words[0]):
            layouts = [*layouts, words.pop(0)]
        pairs = _launch(script, layouts, out, timeout_s, words)
    else:
        if layouts:
            raise SpecError("layouts", layouts[0], "only with --script")
        if len(recordings or ()) != 2:
            raise SpecError("recordings", len(recordings or ()), "two folders: the reference first")
        pairs = [(Path(recordings[0]), Path(recordings[1]))]
    verdicts = [prove(first, second, reference) for first, second in pairs]
    if as_json:
        _print_plain(verdicts, alone=script is None)
    else:
        for (first, second), verdict in zip(pairs, verdicts, strict=True):
            _show(first, second, verdict)
    if not all(verdict.equal for verdict in verdicts):
        raise typer.Exit(1)


def _launch(
    script: Path, layouts: list[str], out: Path, timeout_s: float, words: list[str]
) -> list[tuple[Path, Path]]:
    from meshwright.cli import running
    from meshwright.prove.launch import launch
    from meshwright.specs.errors import SpecError

    labels = [label for text in layouts for label in text.split(",")]
    if len(labels) < 2:
        raise SpecError("layouts", " ".join(labels), "two at least, as --layouts dp1 dp2")
    folders = []
    for label in labels:
        running.progress(f"{script.name} under {label}")
        folders.append(launch(script, label, out, timeout_s, words))
    running.progress("")
    return [(folders[0], folder) for folder in folders[1:]]


def _print_plain(verdicts: list[Any], *, alone: bool) -> None:
    from meshwright.cli.output import finite, print_json

    plain = [finite(verdict.plain()) for verdict in verdicts]
    print_json(plain[0] if alone else {"proofs": plain})


def _show(first: Path, second: Path, verdict: Any) -> None:
    from meshwright.cli.output import print_lines

    lines = [f"{second} against {first}", "", verdict.sentence]
    if verdict.cause is not None and not verdict.equal:
        lines += ["", f"What to change: {verdict.cause.remedy}."]
    lines += ["", "Evidence"] + [f"  - {line}" for line in verdict.evidence()]
    if notes := verdict.notes():
        lines += ["Not seen"] + [f"  - {line}" for line in notes]
    print_lines(*lines)
