"""A plan and its defence as Markdown."""

from __future__ import annotations

from meshwright.planner.decision_trees import walk_trees
from meshwright.planner.legality import Question
from meshwright.planner.words import MEMORY_WORDS, PART_WORDS
from meshwright.specs.plan import Estimate, Plan
from meshwright.specs.quantities import format_bytes, format_count, format_seconds
from meshwright.specs.settled import Settled


def settled_lines(settled: Settled) -> list[str]:
    """A line per finalist of a race, fastest first."""
    found = []
    for run in settled.runs:
        measured = "no step" if run.measured_s is None else f"{format_seconds(run.measured_s)}"
        if run.measured_s is not None and run.steps > 1:
            measured += f" ± {100 * run.error:.1f} % over {run.steps} steps"
        predicted = format_seconds(run.predicted_s)
        found.append(f"{run.layout.label()}: {run.outcome}, {measured} (predicted {predicted})")
    return found


def markdown_report(plan: Plan) -> str:
    """Return the whole defence of a plan as a Markdown document."""
    return "\n".join(
        [
            *_head(plan),
            *_memory(plan),
            *_time(plan),
            *_frameworks(plan),
            *_trees(plan),
            *_alternatives(plan),
            *_end(plan),
        ]
    )


def _head(plan: Plan) -> list[str]:
    job, cluster, estimate = plan.job, plan.cluster, plan.estimate
    schedule = f"{plan.layout.schedule} schedule, " if plan.layout.pp > 1 else ""
    span = estimate.step_time_range
    interval = f" ({format_seconds(span.low)} to {format_seconds(span.high)})" if span else ""
    held = estimate.peak_memory_range
    peaks = f" ({format_bytes(held.low)} to {format_bytes(held.high)})" if held else ""
    lines = [
        f"# {plan.model.name} on {cluster.gpus} × {cluster.device.name}",
        "",
        f"**{plan.layout.label()}** ({schedule}rank order {plan.layout.rank_order})",
        "",
        f"{job.global_batch} sequences of {job.seq_len} tokens a step "
        f"({format_count(job.tokens)} tokens), {job.precision.name}, {job.optimizer.name}.",
        "",
        "| figure | value |",
        "|---|---|",
        f"| framework | {job.framework} |",
        f"| step time | {format_seconds(estimate.step_time_s)}{interval} |",
        f"| throughput | {estimate.tokens_per_s_per_gpu:,.0f} tokens/s per device |",
        f"| MFU / HFU | {estimate.mfu:.1%} / {estimate.hfu:.1%} |",
        f"| bubble | {estimate.bubble_fraction:.1%} |",
        f"| peak memory | {format_bytes(estimate.peak_memory_bytes)}{peaks} of "
        f"{format_bytes(estimate.capacity_bytes)}{_odds(estimate)} |",
    ]
    if job.token_budget:
        run_s = job.token_budget / job.tokens * estimate.step_time_s
        lines.append(f"| {format_count(job.token_budget)} tokens | {format_seconds(run_s)} |")
    return lines


def _odds(estimate: Estimate) -> str:
    odds = estimate.fit_probability
    return "" if odds is None else f", fits with {odds:.0%}"


def _frameworks(plan: Plan) -> list[str]:
    if not plan.frameworks:
        return []
    lines = [
        "",
        "## Frameworks",
        "",
        "| framework | layout | step | at worst | memory | fits | why not |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in plan.frameworks:
        cells = [
            one.framework,
            one.layout.label() if one.layout else "–",
            format_seconds(one.step_time_s) if one.step_time_s else "–",
            format_seconds(one.pessimistic_s) if one.pessimistic_s else "–",
            format_bytes(one.peak_memory_bytes) if one.peak_memory_bytes else "–",
            "–" if one.fit_probability is None else f"{one.fit_probability:.0%}",
            one.why_not or "**chosen**",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _memory(plan: Plan) -> list[str]:
    stages = plan.estimate.stages
    header = " | ".join(f"stage {stage.stage}" for stage in stages)
    lines = [
        "",
        "## Memory per stage",
        "",
        f"| part | {header} |",
        "|---" * (len(stages) + 1) + "|",
    ]
    for name in plan.estimate.memory_parts:
        sizes = [stage.parts.get(name, 0.0) for stage in stages]
        if any(sizes):
            cells = " | ".join(format_bytes(size) for size in sizes)
            lines.append(f"| {MEMORY_WORDS.get(name, name)} | {cells} |")
    totals = " | ".join(f"**{format_bytes(stage.total_bytes)}**" for stage in stages)
    return [*lines, f"| **total** | {totals} |"]


def _time(plan: Plan) -> list[str]:
    lines = ["", "## Step time, opened up", "", "| part | time | share |", "|---|---|---|"]
    estimate = plan.estimate
    for name, value in sorted(estimate.time_parts.items(), key=lambda item: -item[1]):
        if value == 0:
            continue
        lines.append(
            f"| {PART_WORDS.get(name, name)} | {format_seconds(value)} | "
            f"{value / estimate.step_time_s:.1%} |"
        )
    return lines


def _trees(plan: Plan) -> list[str]:
    sharded, tensor, verdict = walk_trees(Question(plan.model, plan.cluster, plan.job))
    lines = ["", "## The decision trees", ""]
    for walk in (sharded, tensor):
        lines.append(f"*{walk.tree}*")
        lines.append("")
        lines += [f"- {step.question} **{step.answer}** ({step.evidence})" for step in walk.steps]
        lines.append("")
    return [*lines, f"{verdict[0].upper()}{verdict[1:]}; the search chose {plan.layout.label()}."]


def _alternatives(plan: Plan) -> list[str]:
    if not plan.alternatives:
        return []
    lines = [
        "",
        "## Why not…",
        "",
        "| change | layout | step | at worst | memory | why it lost |",
        "|---|---|---|---|---|---|",
    ]
    for other in plan.alternatives:
        step = format_seconds(other.estimate.step_time_s) if other.estimate else "–"
        peak = format_bytes(other.estimate.peak_memory_bytes) if other.estimate else "–"
        slowest = other.estimate.pessimistic_s if other.estimate else None
        worst = format_seconds(slowest) if slowest else "–"
        lines.append(
            f"| {other.axis} | {other.layout.label()} | {step} | {worst} | {peak} | {other.why_not} |"
        )
    return lines


def _end(plan: Plan) -> list[str]:
    lines: list[str] = []
    if plan.flip_points:
        lines += ["", "## What would change the choice", ""]
        lines += [f"- {flip.sentence}" for flip in plan.flip_points]
    if plan.searched.priced > 1:
        lines += ["", f"{plan.searched.priced:,} layouts priced; removed before that or after:", ""]
        lines += [f"- {count:,}: {reason}" for reason, count in plan.searched.pruned.items()]
    if plan.settled:
        lines += ["", "## Settled by running it", "", plan.settled.sentence + ".", ""]
        lines += [f"- {line}" for line in settled_lines(plan.settled)]
    if plan.notes:
        lines += ["", "## Assumptions and warnings", "", *(f"- {note}" for note in plan.notes)]
    return [*lines, ""]
