"""Is it good? What the cost model expects of a log's configuration, beside what the log reports."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshwright.costs.flops import model_flops_per_token
from meshwright.diagnose.log_reading import LogReading
from meshwright.diagnose.records import Evidence, Part, of
from meshwright.diagnose.text_values import count
from meshwright.evidence.calibrate import resized
from meshwright.evidence.machines import SkipRow, device_key
from meshwright.evidence.rows import Row
from meshwright.specs.cluster import Cluster
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import DoesNotFitError, SpecError
from meshwright.specs.plan import Plan
from meshwright.specs.quantities import format_seconds

TOLERANCE = 0.3
"""The cost model is within this of most published runs that it was not fitted to; a gap below it
says nothing of the run."""
MUCH_BUBBLE = 0.4
"""From this bubble fraction on the configuration itself is at fault, not its price."""
MOST_OPERATIONS = 1_000_000
"""Of a schedule that is simulated for a log: stages × micro-batches."""
PLENTY = 4
"""Micro-batches per stage from which the bubble of 1F1B is under a fifth."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A configuration that can be priced, and what was assumed for it."""

    plan: Plan
    notes: tuple[str, ...]


def compare(part: Part, reading: LogReading, plan: Plan | None, cluster: Cluster | None) -> None:
    """Put beside a log's speed what is expected of it, and what would be faster."""
    shape = _pipeline_of(reading)
    if shape is not None:
        _bubble(part, reading, *shape)
    if not _has_speed(part):
        return
    setting = setting_of(part, reading, plan, cluster)
    if setting is None:
        return
    _speed(part, setting.plan)
    _gap(part, reading, setting)
    _nearest(part, setting.plan)
    _planner(part, setting.plan)


def _has_speed(part: Part) -> bool:
    return any(name in part.figures for name in ("step_time_s", "tokens_per_s_per_gpu"))


def cluster_of(reading: LogReading, world: int) -> Cluster | None:
    """The cluster that a log's words name, if they do."""
    words = reading.words
    text = words.get("device") or words.get("device_word")
    if text is None:
        return None
    try:
        key = device_key(Row("log", {"gpu": text}))
        host = reading.setting("gpus_per_node") or min(8, world)
        if world % host:
            host = world
        return load_cluster(f"{key}:{max(1, world // host)}x{host}")
    except (SkipRow, SpecError):
        return None


def setting_of(
    part: Part, reading: LogReading, plan: Plan | None, cluster: Cluster | None
) -> Setting | None:
    """What a log's run was: the plan given, else its own print-out; None, and why in `part.missing`."""
    if plan is not None:
        return Setting(plan, ())
    if len(reading.table) < 20:
        part.missing.append("the plan (--plan): whether this speed is good for the configuration")
        return None
    from meshwright.imports.files import import_text
    from meshwright.imports.reading import Given
    from meshwright.planner.plan import price_layout

    world = reading.setting("world") or count(_argument(reading, "world_size")) or 0
    on = cluster or cluster_of(reading, world or 8)
    if on is not None and 0 < world < on.gpus:
        on = resized(on, world)
    if on is None:
        part.missing.append("what it ran on (--cluster, as h100:8x8): whether this speed is good")
        return None
    try:
        got = import_text("\n".join(_modern(reading.table)), reading.name, Given(cluster=on))
        priced = price_layout(got.model, got.cluster, got.job, got.layout)
    except (SpecError, DoesNotFitError) as error:
        part.missing.append(f"a plan (--plan): the log's configuration cannot be priced ({error})")
        return None
    return Setting(priced, got.notes)


def _modern(table: list[str]) -> list[str]:
    """The table of arguments with the names of 2021 as they are called now."""
    said = list(table)
    if any(re.search(r"\bcheckpoint_activations \.{2,}\s*True", line) for line in table):
        said += [
            "  recompute_granularity ........ full",
            "  recompute_method ........ uniform",
            "  recompute_num_layers ........ 1",
        ]
    return said


def _speed(part: Part, plan: Plan) -> None:
    """Tokens per second and MFU by one convention, whatever the log's own."""
    figures, job = part.figures, plan.job
    step = figures.get("step_time_s")
    if "tokens_per_s_per_gpu" not in figures and isinstance(step, float):
        figures["tokens_per_s_per_gpu"] = job.tokens / step / plan.layout.world
    rate = figures.get("tokens_per_s_per_gpu")
    if not isinstance(rate, float):
        return
    if "step_time_s" not in figures:
        figures["step_time_s"] = job.tokens / rate / plan.layout.world
    try:
        peak = plan.cluster.device.peak(job.precision.compute)
    except SpecError:
        return
    flops = model_flops_per_token(plan.model, job.seq_len) * rate
    if "mfu" in figures:
        figures["mfu_printed"] = figures["mfu"]
    figures["mfu"] = round(flops / peak, 4)


def _gap(part: Part, reading: LogReading, setting: Setting) -> None:
    step, expected = part.figures.get("step_time_s"), setting.plan.estimate.step_time_s
    if not isinstance(step, float):
        return
    part.figures["expected_step_time_s"] = expected
    part.figures["expected_over_measured"] = round(expected / step, 4)
    parts = setting.plan.estimate.time_parts
    for name, value in sorted(parts.items(), key=lambda item: -item[1])[:5]:
        part.figures[f"expected_{name}_s"] = value
    gap = 1 - expected / step
    named = ", ".join(
        f"{name} {format_seconds(value)}"
        for name, value in sorted(parts.items(), key=lambda item: -item[1])[:3]
    )
    if gap > TOLERANCE:
        part.findings.append(
            of("unknown", f"The step takes {format_seconds(step)} where {format_seconds(expected)} are expected "
               f"of this configuration ({named}): {gap:.0%} are not explained by it",
               "profile a step on all ranks; the usual suspects in order: the network (NCCL_DEBUG=INFO names "
               "the transport), kernels that fell back, the host", confidence=0.5,
               where="step time against the cost model", share_of_step=round(gap, 4),
               evidence=(Evidence(file=reading.name, text=f"median step {step:.4g} s"),))
        )  # fmt: skip
        part.missing.append("profiler traces of a step on all ranks: what the unexplained part is")
    else:
        part.healthy.append(
            f"{format_seconds(step)} a step where the cost model expects {format_seconds(expected)} ({named})"
        )


def _nearest(part: Part, plan: Plan) -> None:
    from meshwright.evidence.nearest import nearest_runs

    found = nearest_runs(plan.model, plan.cluster, plan.job, plan.layout, count=1)
    for one in found:
        if one.distance < 6:
            part.figures["nearest_published_run"] = one.sentence()


def _planner(part: Part, plan: Plan) -> None:
    from meshwright.planner.plan import plan as choose

    try:
        better = choose(plan.model, plan.cluster, plan.job, defend=False)
    except (SpecError, DoesNotFitError):
        return
    ours, theirs = plan.estimate.step_time_s, better.estimate.step_time_s
    if theirs < 0.97 * ours:
        part.figures["planner_layout"] = better.layout.label()
        part.figures["planner_gain_fraction"] = round(1 - theirs / ours, 4)


def _argument(reading: LogReading, name: str) -> str | None:
    for line in reading.table:
        if match := re.search(rf"\b{name} \.{{2,}}\s*(\S+)", line):
            return match[1]
    return None


def _pipeline_of(reading: LogReading) -> tuple[int, int, int] | None:
    """Stages, micro-batches and virtual stages that a log's arguments give."""

    def number(name: str) -> int | None:
        return count(_argument(reading, name)) or None

    pp = number("pipeline_model_parallel_size") or reading.setting("pp")
    batch, micro = number("global_batch_size"), number("micro_batch_size")
    if pp is None or pp < 2 or batch is None or micro is None:
        return None
    dp = number("data_parallel_size") or reading.setting("dp") or 1
    virtual = number("num_virtual_stages_per_pipeline_rank") or number(
        "virtual_pipeline_model_parallel_size"
    )
    return pp, max(batch // (micro * max(dp, 1)), 1), virtual or 1


def _bubble(part: Part, reading: LogReading, pp: int, micro: int, virtual: int) -> None:
    """The bubble of the schedule itself, and the step of more micro-batches, both simulated."""
    from meshwright.schedules import build
    from meshwright.simulator.evaluate import Simulator

    def per_micro_batch(count: int) -> tuple[float, float]:
        if virtual > 1 and count % pp == 0:
            schedule = build("interleaved", pp=pp, micro_batches=count, virtual_stages=virtual)
        else:
            schedule = build("1f1b", pp=pp, micro_batches=count)
        line = Simulator(schedule).run((1.0, 1.0, 1.0))
        return line.makespan_s / count, line.bubble.makespan

    more = max(PLENTY * pp, micro)
    if pp * more > MOST_OPERATIONS:
        return
    now, bubble = per_micro_batch(micro)
    part.figures["bubble_fraction"] = round(bubble, 4)
    part.figures["micro_batches"], part.figures["pipeline_stages"] = micro, pp
    if bubble < 0.1:
        return
    gain = 1 - per_micro_batch(more)[0] / now
    line = next((n for n in reading.table if "global_batch_size" in n), "")
    part.findings.append(
        of("bubble", f"{bubble:.0%} of the pipeline's time is bubble: {micro} micro-batches on {pp} stages",
           f"use at least {PLENTY * pp} micro-batches a step (a larger global batch or smaller micro-batches), or "
           "fewer stages; interleaved stages divide the rest", confidence=0.9, where=f"pipeline of {pp} stages",
           share_of_step=round(float(bubble), 4), gain_fraction=round(float(gain), 4),
           layout_cost=bool(bubble < MUCH_BUBBLE),
           evidence=(Evidence(file=reading.name, text=line.strip()[:200]),))
    )  # fmt: skip
