"""The page of a diagnosis: the same answer as HTML, with its timelines."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from meshwright.diagnose.records import Diagnosis, Part
from meshwright.diagnose.verdict import confidence_word
from meshwright.specs.quantities import format_bytes, format_seconds
from meshwright.specs.writing import write_atomically


def figure_lines(figures: Mapping[str, float | int | str | None]) -> list[str]:
    """Figures with their units, as lines of a page."""
    return [f"{name}: {_form(name, value)}" for name, value in figures.items() if value is not None]


def _form(name: str, value: float | int | str) -> str:
    if isinstance(value, str):
        return value
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith(("tokens_per_s_per_gpu", "per_s")):
        return f"{value:,.1f}"
    if name.endswith("flops_per_s_per_gpu"):
        return f"{value / 1e12:,.1f} TFLOP/s"
    if name.endswith("_s"):
        return format_seconds(value) if value else "0 s"
    if name.endswith(("_share", "_fraction")) or name in ("mfu", "mfu_printed"):
        return f"{value:.1%}"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def render(found: Diagnosis, parts: Sequence[Part]) -> str:
    """Return the page as HTML."""
    say = html.escape
    rows = []
    for cause in found.causes:
        gain = "" if cause.gain_fraction is None else f"{cause.gain_fraction:.1%}"
        evidence = "".join(
            f"<li><code>{say(e.file)}{'' if e.line is None else f':{e.line}'}"
            f"{'' if e.event is None else f' [{say(e.event)}]'}</code> {say(e.text)}</li>"
            for e in cause.evidence
        )
        rows.append(
            f"<section><h2>{say(cause.kind)} <small>{say(cause.where)}"
            f"{' · ranks ' + say(', '.join(map(str, cause.ranks))) if cause.ranks else ''}</small></h2>"
            f"<p><b>change:</b> {say(cause.remedy)}</p>"
            f"<p><b>gains:</b> {gain + ' of the step' if gain else 'not to be computed from what is here'}"
            f" · {confidence_word(cause.confidence)} ({cause.confidence:.0%})</p><ul>{evidence}</ul></section>"
        )
    pictures = "".join(f"<figure>{one}</figure>" for part in parts for one in part.pictures)
    figures = "".join(f"<li>{say(line)}</li>" for line in figure_lines(found.figures))
    missing = "".join(f"<li>{say(line)}</li>" for line in found.missing)
    return _PAGE.format(
        verdict=say(found.verdict), causes="".join(rows), pictures=pictures, figures=figures,
        missing=f"<h2>What could not be told, and what would tell</h2><ul>{missing}</ul>" if missing else "",
    )  # fmt: skip


def write_page(path: str | Path, found: Diagnosis, parts: Sequence[Part]) -> None:
    """Write the page; all or nothing.

    Raises:
        SpecError: the file cannot be written.
    """
    write_atomically(path, render(found, parts))


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Diagnosis</title>
<meta name="viewport" content="width=device-width"><style>
body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}}
h1{{font-size:1.4rem}}h2{{font-size:1.1rem;margin-bottom:.2rem}}small{{color:#57606a;font-weight:400}}
code{{font-size:.85em}}section{{border-left:3px solid #0969da;padding-left:1rem;margin:1.2rem 0}}
figure{{margin:1rem 0;overflow-x:auto}}li{{overflow-wrap:anywhere}}
@media(prefers-color-scheme:dark){{body{{background:#0d1117;color:#e6edf3}}small{{color:#8b949e}}}}
</style><h1>{verdict}</h1>{causes}{pictures}<h2>Figures</h2><ul>{figures}</ul>{missing}</html>
"""
