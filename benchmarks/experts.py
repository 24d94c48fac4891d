"""Published layouts of experts against the planner's own choice, by the planner's own model.

    python benchmarks/experts.py --write docs/experts.md

Recipes are rows of the published tables that state a whole layout (NVIDIA's Megatron-Bridge and DGX
Cloud recipes, torchtitan's, InternEvo's, XTuner's …) and figures from papers (expert_layouts.toml, a
source each). Each is asked three things: may its framework run it, does it fit by the estimate, and how
much faster the planner claims to be under the same framework, model, devices and batch.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from expert_witnesses import Witness, witness_of
from meshwright.costs.columns import layers_per_rank
from meshwright.costs.step import estimate
from meshwright.evidence.import_rows import import_row
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.measured import measured_step_time_s
from meshwright.evidence.rows import published_rows
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.neighbours import why_lost
from meshwright.planner.odds import FALLBACKS, WANTED
from meshwright.planner.solve import solve
from meshwright.planner.space import Constraints
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError
from meshwright.specs.jobs import load_job
from meshwright.specs.layout import Layout

TABLES = (
    "nvidia_megatron_bridge", "nvidia_dgxc_benchmarking", "megatron_moe_modelzoo_qwen3", "torchtitan",
    "mlperf_training", "xtuner", "mtnlg_530b",
)  # fmt: skip
"""Tables whose rows are layouts that their authors recommend, not sweeps of bad and good ones."""
AT_MOST = 0.10
"""Gain over the expert from which the planner owes an explanation."""
NEAR = 0.08
"""Error of a step time within which a claim of more than `AT_MOST` is not an error of the expert's own estimate."""


@dataclass(frozen=True)
class Recipe:
    """A published layout as a question and its expert's answer."""

    name: str
    source: str
    question: Question
    layout: Layout
    measured_s: float = math.nan
    """Step time that the source measured."""


@dataclass(frozen=True)
class Verdict:
    """What the planner says of a recipe; times in seconds, gain as a fraction of the expert's step."""

    name: str
    source: str
    devices: str
    experts: bool
    expert: str
    ours: str
    refused: str
    fits: bool
    fit_probability: float
    expert_step_s: float
    our_step_s: float
    gain: float
    why: str
    witness: Witness | None
    measured_rate: float
    """What the expert's layout was measured to do where there is a witness; tokens a second and device."""
    measured_s: float = math.nan
    """What a step of the expert's own run took."""
    bolder_gain: float = math.nan
    """The gain of a choice that need not fit with more than `FALLBACKS[0]`."""


def from_tables(tables: Iterable[str]) -> Iterator[Recipe]:
    """The recipes of some published tables on several devices.

    A source that measured several layouts of one question recommends the fastest: the others are there to
    show by how much. Layouts that nobody measured count as recommended.
    """
    fastest: dict[tuple[object, ...], tuple[float, Recipe]] = {}
    for seconds, asked, recipe in _published(tables):
        held = fastest.get(asked)
        if math.isnan(seconds):
            fastest[(*asked, recipe.layout.label())] = (seconds, recipe)
        elif held is None or seconds < held[0]:
            fastest[asked] = (seconds, recipe)
    for _, recipe in fastest.values():
        yield recipe


def _published(tables: Iterable[str]) -> Iterator[tuple[float, tuple[object, ...], Recipe]]:
    """(measured step time, what was asked and by whom, recipe) of every row that states a layout."""
    for row in published_rows(tables):
        text = f"{row['notes']} {row['setup']}"
        if contradicts_itself(row):
            continue
        if row["outcome"] not in ("", "ok") or any(
            word in text for word in ("CHECK", "DUPLICATE", "SUSPECT", "INCONSISTENT")
        ):
            continue
        if not row.count("tp") or not row.count("gpus"):
            continue
        try:
            run = import_row(row)
        except SkipRow:
            continue
        if run.gpus < 8 or run.job.frozen:
            continue
        asked = (
            row.table, run.model.name, run.cluster.device.name, run.gpus, run.job.seq_len,
            run.job.global_batch, run.job.precision.compute,
        )  # fmt: skip
        question = Question(run.model, run.cluster, run.job)
        measured_s = measured_step_time_s(row, run)
        recipe = Recipe(row["model"], row["source"], question, run.layout, measured_s)
        yield measured_s, asked, recipe


def contradicts_itself(row: Any) -> bool:
    """Whether the accumulation that a row states is not what its batch and degrees make."""
    stated = re.search(r"\bGA=(\d+)", row["setup"])
    counts = [row.count(name) for name in ("gpus", "tp", "pp", "micro_batch", "global_batch")]
    if stated is None or any(count is None for count in counts):
        return False
    gpus, tp, pp, micro, batch = counts
    replicas = gpus // (tp * pp * (row.count("cp") or 1))
    return int(stated[1]) * replicas * micro != batch


def from_papers(path: Path) -> Iterator[Recipe]:
    """The layouts that papers and pages print; `tokens_per_s` is what a device was measured to do."""
    for entry in tomllib.loads(path.read_text("utf-8"))["recipe"]:
        question = Question(
            load_model(entry["model"]), load_cluster(entry["cluster"]), load_job(entry["job"])
        )
        tokens = question.job.global_batch * question.job.seq_len / question.cluster.gpus
        seconds = tokens / entry["tokens_per_s"] if "tokens_per_s" in entry else math.nan
        layout = Layout.parse(entry["layout"])
        yield Recipe(entry["name"], entry["source"], question, layout, seconds)


@cache
def entries(kind: str) -> list[dict[str, str]]:
    """What is known of sources: `release`, what they ran where today's framework of that name can do more, and
    `sweep`, tables that show one method and not their authors' fastest layout."""
    path = Path(__file__).parent / "data" / "expert_layouts.toml"
    found: list[dict[str, str]] = tomllib.loads(path.read_text("utf-8"))[kind]
    return found


def swept(source: str) -> str:
    """What the table of a source is there to show; empty where its layouts are its authors' choice."""
    return next((one["of"] for one in entries("sweep") if re.search(one["source"], source)), "")


def as_released(recipe: Recipe) -> Recipe:
    """The recipe under the release that its authors had, where the table of frameworks has that release."""
    for entry in entries("release"):
        if re.search(entry["source"], recipe.source) and re.search(entry["model"], recipe.name):
            job = recipe.question.job.but(framework=entry["framework"])
            return replace(recipe, question=replace(recipe.question, job=job))
    return recipe


def judge(recipe: Recipe) -> Verdict | None:
    """Hold a recipe against the planner; None where the planner has no answer of its own."""
    recipe = as_released(recipe)
    question, layout = recipe.question, recipe.layout
    refused = why_illegal(question, layout) or ""
    try:
        expert = estimate(question.model, question.cluster, question.job, layout)
        solution = solve(question, Constraints())
        bolder = solve(question, Constraints(fit_probability=FALLBACKS[0]))
    except SpecError as error:
        print(f"{recipe.name}: {error}", file=sys.stderr)
        return None
    if solution.choice is None or bolder.choice is None:
        return None
    best = estimate(question.model, question.cluster, question.job, solution.layout)
    gain = 1 - best.step_time_s / expert.step_time_s
    boldest = estimate(question.model, question.cluster, question.job, bolder.layout)
    cluster = question.cluster
    large = abs(gain) > AT_MOST
    found = witness_of(question, layout, recipe.measured_s) if large else None
    witness, measured_rate = found or (None, math.nan)
    return Verdict(
        recipe.name, recipe.source, f"{cluster.gpus} × {cluster.device.name}",
        question.model.experts is not None, _shown(layout), _shown(solution.layout), refused,
        expert.fits, expert.fit_probability or 0.0, expert.step_time_s, best.step_time_s, gain,
        why_lost(question, best, expert, layout) if large else "", witness, measured_rate,
        recipe.measured_s, 1 - boldest.step_time_s / expert.step_time_s,
    )  # fmt: skip


def _shown(layout: Layout) -> str:
    """A layout's label, with the layers of its first, its fullest and its last rank where they are named."""
    if layout.stage_layers is None:
        return layout.label()
    ranks = layers_per_rank(layout, layout.stage_layers)
    return f"{layout.label()} layers:{ranks[0]}/{max(ranks)}/{ranks[-1]}"


def summary(found: list[Verdict]) -> dict[str, Any]:
    """The figures that count."""
    kinds = {
        "dense": [v for v in found if not v.experts],
        "experts": [v for v in found if v.experts],
    }
    return {
        "recipes": len(found),
        "refused": sum(bool(v.refused) for v in found),
        "does_not_fit": sum(not v.fits for v in found),
        **{
            f"{kind}_within_10_percent": [sum(v.gain <= AT_MOST for v in some), len(some)]
            for kind, some in kinds.items()
        },
        **{
            f"{kind}_or_measured": [
                sum(v.gain <= AT_MOST or v.witness is not None for v in some), len(some)
            ]
            for kind, some in kinds.items()
        },
        **{
            f"{kind}_without_sweeps": [
                sum(v.gain <= AT_MOST for v in some if not swept(v.source)),
                sum(not swept(v.source) for v in some),
            ]
            for kind, some in kinds.items()
        },
        **{
            f"{kind}_bolder": [sum(v.bolder_gain <= AT_MOST for v in some), len(some)]
            for kind, some in kinds.items()
        },
    }  # fmt: skip


def page(found: list[Verdict], unanswered: list[str]) -> str:
    """The page as Markdown."""
    figures = summary(found)
    dense, routed = (figures[f"{kind}_within_10_percent"] for kind in ("dense", "experts"))
    more_dense, more_routed = (figures[f"{kind}_or_measured"][0] for kind in ("dense", "experts"))
    chosen_dense, chosen_routed = (
        figures[f"{kind}_without_sweeps"] for kind in ("dense", "experts")
    )
    bold_dense, bold_routed = (figures[f"{kind}_bolder"][0] for kind in ("dense", "experts"))
    lines = [
        "# Is it what experts chose?", "",
        "Written by `python benchmarks/experts.py --write docs/experts.md`. Every published layout (of "
        "several that one source measured for one question, the fastest) is "
        "priced by the same model as the planner's own choice under the same framework, model, devices "
        f"and batch, by default one that fits with {WANTED:.0%}; the gain is what the planner claims over the expert, so a large one is more likely "
        "an error of the cost model than of the expert. It is not where another layout of the same model "
        "was measured to be faster per device than the expert's, on the same device, at the same length "
        "and no lower precision: the last section names that run. `layers:19/21/19` are those of the first, the fullest and "
        "the last rank of a pipeline whose stages are named.", "",
        "| figure | value |", "|---|--:|",
        f"| recipes | {figures['recipes']} |",
        f"| refused (the framework could not run it, we say) | {figures['refused']} |",
        f"| do not fit, by the estimate, on what they ran on | {figures['does_not_fit']} |",
        f"| left out: the planner finds nothing that fits | {len(unanswered)} |",
        f"| dense: the planner claims at most 10 % more | {dense[0]} of {dense[1]} |",
        f"| mixtures of experts: the same | {routed[0]} of {routed[1]} |",
        f"| dense, without tables that show one method: at most 10 % more | {chosen_dense[0]} of {chosen_dense[1]} |",
        f"| mixtures of experts: the same | {chosen_routed[0]} of {chosen_routed[1]} |",
        f"| dense: at most 10 % more, or another layout was measured to be faster | {more_dense} of {dense[1]} |",
        f"| mixtures of experts: the same | {more_routed} of {routed[1]} |",
        f"| dense: at most 10 % more, where our choice need fit with {FALLBACKS[0]:.0%} only | {bold_dense} of {dense[1]} |",
        f"| mixtures of experts: the same | {bold_routed} of {routed[1]} |", "",
    ]  # fmt: skip
    for title, some in (
        ("Dense models", [v for v in found if not v.experts]),
        ("Mixtures of experts", [v for v in found if v.experts]),
    ):
        lines += [f"## {title}", "", "| recipe | devices | expert's layout | ours | expert | ours | "
                  "claimed gain | expert's fits |", "|---|---|---|---|--:|--:|--:|--:|"]  # fmt: skip
        for v in sorted(some, key=lambda v: (v.name, v.devices, v.expert)):
            fits = f"{v.fit_probability:.0%}" + ("" if v.fits else " (no)")
            lines.append(
                f"| {v.name} | {v.devices} | {v.expert} | {v.ours} | {v.expert_step_s:.3g} s | "
                f"{v.our_step_s:.3g} s | {v.gain:+.1%} | {fits} |"
            )
        lines.append("")
    large = [v for v in found if v.gain > AT_MOST]
    if large:
        sweeps = sum(bool(swept(v.source)) for v in large)
        chosen = [v for v in large if not swept(v.source)]
        ran = [v for v in chosen if math.isfinite(v.measured_s)]
        right = sum(abs(v.expert_step_s / v.measured_s - 1) < NEAR for v in ran)
        beaten = sum(v.witness is not None for v in chosen)
        lines += [
            "## Where the planner claims more than 10 %", "",
            f"{sweeps} of these {len(large)} are rows of sweeps: tables that show one method on a layout of its own "
            "(context parallelism at growing lengths, asynchronous tensor parallelism, pipeline schedules), not "
            f"what their authors would choose for speed. They count like the others. Of the other {len(chosen)}, {len(ran)} were run by "
            f"those who publish them: {right} took what is estimated within {NEAR:.0%}, and beside {beaten} of the {len(chosen)} another layout was "
            "measured to be faster.", "",
        ]  # fmt: skip
        lines += [
            f"- {v.name} on {v.devices}, {v.expert} against {v.ours}: the expert's layout is {v.why}."
            f"{_own_run(v)}{_seen(v)}{_shows(v)}"
            for v in large
        ]
        lines.append("")
    if unanswered:
        lines += ["", "## Left out", ""]
        lines += [
            f"- {one}: under its framework nothing fits by the estimate." for one in unanswered
        ]
    refused = [v for v in found if v.refused]
    if refused:
        lines += ["## Refused", ""]
        lines += [f"- {v.name} on {v.devices}, {v.expert}: {v.refused}." for v in refused]
        lines.append("")
    return "\n".join(lines)


def _shows(verdict: Verdict) -> str:
    """The sentence on a table that is there to show something else than a fast layout."""
    of = swept(verdict.source)
    return f" A sweep, which its authors made to show {of}." if of else ""


def _own_run(verdict: Verdict) -> str:
    """What the expert's own run took beside our estimate of it, by which a reader sees whom to doubt."""
    if not math.isfinite(verdict.measured_s):
        return ""
    off = verdict.expert_step_s / verdict.measured_s - 1
    judged = (
        "the estimate is right"
        if abs(off) < 0.05
        else ("the claim is doubtful by as much" if off > 0 else "it was slower than estimated")
    )
    return f" Its own run took {verdict.measured_s:.3g} s where {verdict.expert_step_s:.3g} s are estimated ({off:+.0%}: {judged})."


def _seen(verdict: Verdict) -> str:
    """The sentence on the run that was measured to be faster."""
    one = verdict.witness
    if one is None:
        return ""
    return (
        f" Measured: {one.layout} on {one.gpus} under {one.framework} in {one.compute} did {one.tokens_per_s:,.0f} tokens/s "
        f"a device ({one.source}), the expert's layout {verdict.measured_rate:,.0f}."
    )


def main() -> None:
    """Judge all recipes and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="write this Markdown file")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument("--only", default="", help="recipes whose name holds this")
    parser.add_argument("--tables", nargs="*", default=TABLES)
    options = parser.parse_args()
    papers = from_papers(Path(__file__).parent / "data" / "expert_layouts.toml")
    found: list[Verdict] = []
    unanswered: list[str] = []
    for recipe in (*from_tables(options.tables), *papers):
        if options.only.lower() in recipe.name.lower():
            verdict = judge(recipe)
            if verdict is None:
                cluster = recipe.question.cluster
                unanswered.append(
                    f"{recipe.name} on {cluster.gpus} × {cluster.device.name}, {recipe.layout.label()}"
                )
            else:
                found.append(verdict)
                print(f"{len(found):4} {verdict.gain:+6.1%} {verdict.name}", file=sys.stderr)
    if options.write:
        options.write.write_text(page(found, unanswered), "utf-8")
    if options.json:
        print(json.dumps([asdict(verdict) for verdict in found], indent=1))
    print(json.dumps(summary(found), indent=1), file=sys.stderr)


if __name__ == "__main__":
    main()
