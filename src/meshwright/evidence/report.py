"""The scorecard as people read it: a table in the terminal, a Markdown page, an HTML page."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from importlib import resources

from meshwright.evidence.collective_rows import collective_score
from meshwright.evidence.score import Errors, Score, Scored, worst
from meshwright.evidence.validation import rule_lines, stored, validation_lines

HEAD = (
    "group", "rows", "priced", "timed", "median", "p90", "mean", "bias", "const", "runs",
    "median", "p90", "judged", "right", "false fit", "false misfit", "3-term", "sweeps",
    "regret", "p90", "tau",
)  # fmt: skip


def _number(value: float, digits: int = 1) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def _cells(score: Score) -> list[str]:
    time, memory, verdicts, sweeps = score.time, score.memory, score.verdicts, score.sweeps
    failures = verdicts.rows and not math.isnan(verdicts.false_fits)
    base = score.baseline_verdicts
    return [
        score.name, str(score.rows), str(score.priced),
        str(time.rows) if time.rows else "–",
        _number(time.median), _number(time.p90), _number(time.mean), _signed(time.bias),
        _number(score.baseline_time.median),
        str(memory.rows) if memory.rows else "–", _number(memory.median), _number(memory.p90),
        str(verdicts.rows) if failures else "–",
        _number(verdicts.accuracy) if failures else "–",
        _number(verdicts.false_fits), _number(verdicts.false_misfits) if failures else "–",
        _number(base.accuracy) if failures else "–",
        str(sweeps.sweeps) if sweeps.sweeps else "–",
        _number(sweeps.regret_mean), _number(sweeps.regret_p90), _number(sweeps.tau, 2),
    ]  # fmt: skip


def _signed(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:+.1f}"


PANELS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("Step time, relative error in %", (0, 1, 2, 3, 4, 5, 6, 7, 8)),
    ("Peak memory, relative error in %, and fit judged, in %", (0, *range(9, 17))),
    ("Choosing within measured sweeps", (0, *range(17, 21))),
)
"""What the terminal and the page show, panel by panel, as columns of `HEAD`."""


def _shown(score: Score, columns: tuple[int, ...]) -> bool:
    cells = _cells(score)
    return columns[1] == 1 or any(cells[c] != "–" for c in columns[1:])


def print_scores(scores: Sequence[Score], by: str) -> None:
    """Print the scorecard in the terminal, narrow enough for 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for title, columns in PANELS:
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column(by, no_wrap=True, max_width=21, overflow="ellipsis")
        for column in columns[1:]:
            table.add_column(HEAD[column], justify="right")
        for score in scores:
            if _shown(score, columns):
                cells = _cells(score)
                style = "bold" if score.name == "all" else None
                table.add_row(*(cells[c] for c in columns), style=style)
        console.print(table)
    console.print(
        "bias > 0: predicted too slow. const: median error of one constant MFU fitted to all "
        "rows. false fit: share of the runs that ran out of memory. 3-term: judged right by states + "
        "activations + logits under a cut chosen on these rows.",
        style="dim",
    )


TARGETS: tuple[tuple[str, str, str, float], ...] = (
    ("vtrain_singlenode", "time, mean error", "time.mean", 8.0),
    ("vtrain_multinode", "time, mean error", "time.mean", 7.0),
    ("korthikanti_2022_seqsel", "time, mean error", "time.mean", 3.0),
    ("simumax_b200", "time, mean error", "time.mean", 4.0),
    ("simumax_b200", "memory, mean error", "memory.mean", 1.0),
    ("nanotron_ultrascale_full", "time, mean error", "time.mean", 20.0),
    ("nanotron_ultrascale_full", "rank correlation in sweeps", "-sweeps.tau", 0.8),
    ("nanotron_ultrascale_full", "OOM classified right", "-verdicts.accuracy", 98.7),
    ("nanotron_ultrascale_full", "false fits", "verdicts.false_fits", 1.0),
    ("aleph_alpha_layouts_a100", "time, median error", "time.median", 7.0),
    ("aleph_alpha_layouts_a100", "OOM classified right", "-verdicts.accuracy", 95.0),
    ("megatron_ci_memory", "memory above 8 GiB, median error", "large_memory.median", 3.0),
    ("mosaic_llm_foundry_2023", "time, median error", "time.median", 8.0),
    ("nvidia_dgxc_benchmarking", "time, median error", "time.median", 8.0),
    ("nvidia_megatron_bridge", "time, median error", "time.median", 8.0),
    ("mlperf_training", "time, median error", "time.median", 8.0),
    ("megatron_lm_published", "time, median error", "time.median", 8.0),
    ("all", "time, median error", "time.median", 6.0),
    ("all", "time, 90th percentile", "time.p90", 20.0),
    ("all", "regret, mean", "sweeps.regret_mean", 3.0),
    ("all", "regret, 90th percentile", "sweeps.regret_p90", 8.0),
    ("all", "false fits", "verdicts.false_fits", 1.0),
)
"""What the project set out to reach: group, figure, where it is in a Score (`-`: larger is better),
and the bound."""


SMALL_TENSOR_GROUP = 8
"""Tensor parallelism that stays inside a host of the nanotron sweep."""


def _is_small_tensor_group(one: Scored) -> bool:
    inside = one.run.layout.tp <= SMALL_TENSOR_GROUP
    return one.row.table == "nanotron_ultrascale_full" and inside and not math.isnan(one.measured_s)


def figure(score: Score, path: str) -> float:
    """Return a figure of a score by its dotted path."""
    part, name = path.removeprefix("-").split(".")
    return float(getattr(getattr(score, part), name))


def accuracy_page(scores: Sequence[Score], scored: Sequence[Scored]) -> str:
    """Return docs/accuracy.md: targets, table, worst rows, and the limits written by hand."""
    by_name = {score.name: score for score in scores}
    total = by_name["all"]
    timed = total.time
    lines = [
        "# Accuracy",
        "",
        "<!-- Written by `meshwright scorecard --markdown docs/accuracy.md`; the part under",
        '"What limits it" is kept in evidence/data/limits.md, the ablations are written by',
        "benchmarks/ablations.py. -->",
        "",
        f"{total.rows} published runs, {total.priced} priced "
        f"({100 * total.priced / total.rows:.1f} %), {timed.rows} with a step time that can be "
        f"scored, {total.memory.rows} with a peak memory, {total.verdicts.rows} judged for fit.",
        "Constants belong to devices, links, kernels and frameworks; none to a row, a source or a model. "
        "They are fitted by one command (`python benchmarks/fit_constants.py --write`), every source "
        "weighing alike, from priors of data sheets, papers and microbenchmarks. What a source documents "
        "of its software and cluster (evidence/data/sources.toml, which cites where) says which apply.",
        "A positive bias means predicted too slow (or too large).",
        "",
        *validation_lines(stored()),
        "",
        "## Fitted figures against the earlier targets",
        "",
        "| group | figure | reached | target | |",
        "|---|---|--:|--:|---|",
    ]
    lines += _targets(by_name, scored)
    lines += ["", "## By source"]
    for title, columns in PANELS:
        lines += ["", f"{title}.", "", *_markdown_table(scores, columns)]
    lines += [
        "",
        "`const` is the median error of one constant MFU fitted to all rows; `3-term` the "
        "share of fits judged right by states + activations + logits under a cut chosen on these "
        "rows. Regret: how much slower than the best measured layout of a sweep is the one that "
        "is ranked first. Repeated runs of one layout count as one choice with their mean time; "
        "repeats alone are no sweep.",
        "",
        "## The worst twenty step times",
        "",
        "| row | device | run | measured | predicted | error | what the row left open |",
        "|---|---|---|--:|--:|--:|---|",
    ]
    lines += _worst_lines(scored)
    lines += ["", _limits(), "", *rule_lines(stored())]
    return "\n".join(lines) + "\n"


def _targets(by_name: Mapping[str, Score], scored: Sequence[Scored]) -> list[str]:
    """Rows of the table of targets: what is reached beside what was wanted."""
    lines = []
    for name, label, path, bound in TARGETS:
        if name not in by_name:
            continue
        value = figure(by_name[name], path)
        larger = path.startswith("-")
        good = value >= bound if larger else value <= bound
        sign = "≥" if larger else "≤"
        digits = 2 if "tau" in path else 1
        lines.append(
            f"| {name} | {label} | {_number(value, digits)} | {sign} {bound:g} | "
            f"{'met' if good else 'missed'} |"
        )
    if small := [one for one in scored if _is_small_tensor_group(one)]:
        rate = Errors.of(one.measured_s / one.predicted_s - 1.0 for one in small).median
        lines.append(
            f"| nanotron_ultrascale_full, tp ≤ {SMALL_TENSOR_GROUP} ({len(small)} rows) | throughput, "
            f"median error | {_number(rate, 1)} | ≤ 8 | {'met' if rate <= 8 else 'missed'} |"
        )
    nccl = collective_score()
    lines.append(
        f"| nccl above 1 MiB ({nccl.rows} rows, see collectives.md) | median error, % | "
        f"{_number(nccl.median, 1)} | ≤ 10 | {'met' if nccl.median <= 10 else 'missed'} |"
    )
    return lines


def _worst_lines(scored: Sequence[Scored]) -> list[str]:
    """Rows of the table of the runs that are predicted worst."""
    return [
        f"| {one.row.id} | {one.run.cluster.device.name} | {one.run.model.name}, "
        f"{one.run.gpus} GPUs, {one.run.layout.label()} | {one.measured_s:.3g} s | "
        f"{one.predicted_s:.3g} s | {100 * one.time_error:+.0f} % | "
        f"{'; '.join(one.run.assumed) or 'nothing'} |"
        for one in worst(scored, 20, lambda s: s.time_error)
    ]


def _limits() -> str:
    """The parts of the page that are not figures of this run: limits by hand, noise, reach, ablations."""
    folder = resources.files("meshwright.evidence").joinpath("data")
    names = ("limits.md", "floor.md", "ceiling.md", "ablations.md")
    return "\n\n".join(folder.joinpath(name).read_text("utf-8").strip() for name in names)


def _markdown_table(scores: Sequence[Score], columns: tuple[int, ...]) -> list[str]:
    head = [HEAD[column] for column in columns]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    for score in scores:
        if not _shown(score, columns):
            continue
        cells = _cells(score)
        lines.append("| " + " | ".join(cells[column] for column in columns) + " |")
    return lines


_PALETTE = (
    "#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5",
    "#9c6b4e", "#9498a0",
)  # fmt: skip


def html_page(scores: Sequence[Score], scored: Sequence[Scored]) -> str:
    """Return a self-contained page: two scatter plots as SVG and the table."""
    times = [
        (one.row.table, one.measured_s, one.predicted_s, one.row.id)
        for one in scored
        if one.absolute and not math.isnan(one.measured_s)
    ]
    memory = [
        (one.row.table, one.measured_bytes / 2**30, one.predicted_bytes / 2**30, one.row.id)
        for one in scored
        if not math.isnan(one.measured_bytes)
    ]
    groups = sorted({point[0] for point in (*times, *memory)})
    colours = {name: _PALETTE[index % len(_PALETTE)] for index, name in enumerate(groups)}
    legend = "".join(
        f'<span><i style="background:{colours[name]}"></i>{html.escape(name)}</span>'
        for name in groups
    )
    head = "".join(f"<th>{html.escape(name)}</th>" for name in HEAD)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(score)) + "</tr>"
        for score in scores
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>meshwright scorecard</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1180px;
  padding: 0 1rem; color: #1b1e23; background: #fff }}
h1 {{ font-size: 1.5rem }} .plots {{ display: flex; flex-wrap: wrap; gap: 1.5rem }}
.legend span {{ margin-right: 1rem; white-space: nowrap }}
.legend i {{ display: inline-block; width: .7em; height: .7em; border-radius: 50%;
  margin-right: .35em }}
.scroll {{ overflow-x: auto }} table {{ border-collapse: collapse; font-size: 13px }}
th, td {{ padding: .25rem .5rem; text-align: right; border-bottom: 1px solid #ddd }}
th:first-child, td:first-child {{ text-align: left }} tr:last-child {{ font-weight: 600 }}
svg text {{ font-size: 12px; fill: #444 }}
@media (prefers-color-scheme: dark) {{ body {{ background: #16181d; color: #e6e8eb }}
  th, td {{ border-color: #333 }} svg text {{ fill: #bbb }} }}
</style></head><body><h1>meshwright scorecard</h1>
<p>Each dot is one published run. On the diagonal, prediction and measurement agree; the dashed
lines are 20 % away.</p>
<div class="plots">{_scatter("Step time (s)", times, colours)}
{_scatter("Peak memory (GiB)", memory, colours)}</div>
<p class="legend">{legend}</p>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
</body></html>
"""


def _scatter(
    title: str, points: Sequence[tuple[str, float, float, str]], colours: dict[str, str]
) -> str:
    size, left, bottom, top = 540, 56, 44, 30
    if not points:
        return ""
    values = [value for point in points for value in point[1:3] if value > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    span = size - left - 12

    def x(value: float) -> float:
        return left + span * (math.log10(max(value, 10.0**low)) - low) / (high - low)

    def y(value: float) -> float:
        return size - bottom - (x(value) - left) * (size - bottom - top) / span

    parts = [
        f'<svg viewBox="0 0 {size + 20} {size}" width="{size + 20}" role="img" aria-label="{title}: '
        f'predicted over measured"><text x="{left}" y="18" font-weight="600">{title}</text>'
    ]
    for power in range(low, high + 1):
        tick = 10.0**power
        parts.append(
            f'<path d="M{x(tick):.1f} {top}V{size - bottom}M{left} {y(tick):.1f}H{size - 12}" '
            'stroke="#8884" fill="none"/>'
            f'<text x="{x(tick):.1f}" y="{size - bottom + 18}" text-anchor="middle">{tick:g}</text>'
            f'<text x="{left - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for factor, dash in (
        (1.0, ""),
        (1.2, ' stroke-dasharray="4 4"'),
        (1 / 1.2, ' stroke-dasharray="4 4"'),
    ):
        begin, end = 10.0**low, 10.0**high
        parts.append(
            f'<line x1="{x(begin):.1f}" y1="{y(begin * factor):.1f}" x2="{x(end):.1f}" '
            f'y2="{y(end * factor):.1f}" stroke="#888"{dash}/>'
        )
    for name, measured, predicted, label in points:
        parts.append(
            f'<circle cx="{x(measured):.1f}" cy="{y(predicted):.1f}" r="2.4" '
            f'fill="{colours[name]}" fill-opacity=".6"><title>{html.escape(label)}: measured '
            f"{measured:.4g}, predicted {predicted:.4g}</title></circle>"
        )
    middle = left + span / 2
    parts.append(
        f'<text x="{middle}" y="{size - 6}" text-anchor="middle">measured</text>'
        f'<text x="14" y="{size / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {size / 2})">predicted</text></svg>'
    )
    return "".join(parts)
