"""When nothing fits: the smallest shortfall, and the cheapest ways out, each priced."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from meshwright.costs.columns import RECOMPUTES, Floats
from meshwright.costs.offload import host_link_bytes_s
from meshwright.costs.stages import ROLES
from meshwright.costs.step import EstimateColumns, capacity_bytes, price
from meshwright.planner.legality import Question
from meshwright.planner.odds import FALLBACKS, Odds
from meshwright.planner.search import SearchResult, search
from meshwright.planner.space import Constraints
from meshwright.specs.cluster import Cluster
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.frameworks import framework
from meshwright.specs.job import OPTIMIZERS, RECIPES, Framework
from meshwright.specs.job_words import job_lacks
from meshwright.specs.quantities import format_bytes, format_seconds

IN_BACKWARD = "optimizer_in_backward"
UPDATE_IN_BACKWARD: tuple[Framework, ...] = ("torchtune",)
"""Frameworks that fine-tune and can update weights as soon as their gradients are there."""


def ways_out(
    question: Question, constraints: Constraints, result: SearchResult, nearest: SearchResult
) -> list[str]:
    """Return sentences: the shortfall first, then up to three priced ways out, cheapest first.

    Args:
        question: what was asked.
        constraints: what the user fixed.
        result: every layout under them.
        nearest: what came nearest to fitting, also with other means.
    """
    over = result.over_memory
    sentences = [_shortfall(question, (result, nearest))]
    options: list[tuple[float, str]] = []
    options += _more_devices(question, constraints)
    options += _shorter_sequence(question, constraints)
    options += _relaxed(question, constraints)
    options += _updated_in_backward(question, constraints)
    if over.columns.rows:
        options += _activations_in_host(question, result)
    options.sort(key=lambda option: option[0])
    return sentences + [sentence for _, sentence in options[:3]]


def shortfall(question: Question, result: SearchResult) -> tuple[str, float] | None:
    """The lightest layout of those that do not fit, and the bytes a device that it lacks to fit at even odds.

    None where no layout is legal.
    """
    found = [one for one in (result.over_memory, result.gambles) if one.columns.rows]
    if not found:
        return None
    over = min(found, key=lambda one: float(one.peak_bytes.min()))
    lightest = int(np.argmin(over.peak_bytes))
    surest = Odds.of(question).room(FALLBACKS[-1])
    short = float(over.peak_bytes[lightest]) * surest - capacity_bytes(question.cluster)
    label = over.columns.layout(lightest).label()
    if question.job.loss != "framework":
        label += f" with the loss {question.job.loss}"
    return label, max(short, 0.0)


def _shortfall(question: Question, results: tuple[SearchResult, ...]) -> str:
    found = [one for result in results if (one := shortfall(question, result)) is not None]
    if not found:
        return "no layout is legal under these constraints"
    label, short = min(found, key=lambda one: one[1])
    return (
        f"nothing fits on {question.cluster.gpus} × {question.cluster.device.name}: the lightest "
        f"layout, {label} under {question.job.framework}, {lacking(short)} to fit at even odds"
    )


def lacking(short: float) -> str:
    """What a layout lacks: bytes a device, or room in a host for what it moves there (infinite)."""
    if math.isinf(short):
        return "has no room in its hosts for what it would have to move there"
    return f"is short of {format_bytes(short)} per device"


def _more_devices(question: Question, constraints: Constraints) -> list[tuple[float, str]]:
    for factor in (2, 4, 8, 16, 32):
        cluster = _larger(question.cluster, factor)
        if cluster is None:
            return []
        gpus = cluster.gpus
        bigger = replace(question, cluster=cluster)
        try:
            found = search(bigger, constraints, keep=10).ranked
        except ValueError:
            continue
        if found.columns.rows:
            time = float(found.step_time_s[0])
            return [
                (
                    float(factor),
                    f"{gpus} devices ({factor}× as many): {found.columns.layout(0).label()}, "
                    f"{format_seconds(time)} a step",
                )
            ]
    return []


def _larger(cluster: Cluster, factor: int) -> Cluster | None:
    """The same hosts, `factor` times as many; None when the links between them are not known."""
    nodes = cluster.nodes * factor
    if cluster.fast_domain < cluster.gpus:
        outermost = cluster.levels[-1]
        wider = outermost.model_copy(
            update={"domain": max(outermost.domain, nodes * cluster.gpus_per_node)}
        )
        return cluster.model_copy(update={"nodes": nodes, "levels": (*cluster.levels[:-1], wider)})
    try:
        # One host says nothing of its network: take the preset's.
        return load_cluster(f"{cluster.name.partition(':')[0]}:{nodes}x{cluster.gpus_per_node}")
    except SpecError:
        return None


def _shorter_sequence(question: Question, constraints: Constraints) -> list[tuple[float, str]]:
    job = question.job
    for factor in (2, 4, 8):
        length = job.seq_len // factor
        if length < 128:
            break
        shorter = replace(
            question, job=job.but(seq_len=length, global_batch=job.global_batch * factor)
        )
        try:
            found = search(shorter, constraints, keep=10).ranked
        except ValueError:
            continue
        if found.columns.rows:
            return [
                (
                    1.5 * factor,
                    f"sequences of {length} tokens: {found.columns.layout(0).label()}, "
                    f"{format_seconds(float(found.step_time_s[0]))} a step of as many tokens",
                )
            ]
    return []


def _relaxed(question: Question, constraints: Constraints) -> list[tuple[float, str]]:
    """What the user's own constraints cost."""
    if constraints == Constraints() and question.job.framework == "any":
        return []
    free = replace(question, job=question.job.but(framework="any"))
    try:
        found = search(free, Constraints(), keep=10).ranked
    except ValueError:
        return []
    if not found.columns.rows:
        return []
    label = found.columns.layout(0).label()
    time = format_seconds(float(found.step_time_s[0]))
    said = "without the constraints given"
    if constraints == Constraints():
        said = "with all that any framework can (`--framework any`, an upper bound)"
    return [(0.5, f"{said}: {label}, {time} a step")]


def _updated_in_backward(question: Question, constraints: Constraints) -> list[tuple[float, str]]:
    """Whole weights fine-tuned without a place for their gradients, where a framework updates in backward."""
    job = question.job
    if job.finetune is None or job.finetune.adapts or IN_BACKWARD in job.framework_options:
        return []
    options = {**job.framework_options, IN_BACKWARD: True}
    for name in UPDATE_IN_BACKWARD:
        plain = job.but(framework=name, framework_options=options, precision=RECIPES["pure-bf16"])
        for optimizer in (plain.optimizer, OPTIMIZERS["paged-adam8bit"]):
            other = plain.but(optimizer=optimizer)
            if job_lacks(other, framework(name)):
                continue
            try:
                ranked = search(replace(question, job=other), constraints, keep=10).ranked
            except ValueError:
                continue
            if ranked.columns.rows:
                seconds = format_seconds(float(ranked.step_time_s[0]))
                sentence = (
                    f"{framework(name).title} with {optimizer.name} on 16-bit weights that are updated in backward "
                    f"(framework_options.{IN_BACKWARD} in a job file): {ranked.columns.layout(0).label()}, "
                    f"{seconds} a step"
                )
                return [(0.9, sentence)]
    return []


def _part(table: EstimateColumns, name: str) -> Floats:
    """One memory part of the heaviest rank; shape (rows,)."""
    heaviest = table.memory.heaviest()
    return np.choose(heaviest, [table.memory.parts[role][name] for role in ROLES])


def _activations_in_host(question: Question, result: SearchResult) -> list[tuple[float, str]]:
    """Layers' inputs in host memory between forward and backward, logits in chunks.

    Two layers' worth stays on the device: one in use, one on its way. What travels hides behind the
    layer that computes; what is left over is added to the step.
    """
    columns = result.over_memory.columns
    full = columns.take(columns.recompute == RECOMPUTES.index("full"))
    if not full.rows:
        return []
    job = question.job if question.job.loss != "framework" else question.job.but(loss="chunked")
    table = price(question.model, question.cluster, job, full)
    activations = _part(table, "activations")
    layers = np.maximum(question.model.layers / full.pp, 1.0)
    moved = activations * np.maximum(1.0 - 2.0 / layers, 0.0)
    room = Odds.of(question).room(FALLBACKS[0])
    fits = np.flatnonzero((table.memory.peak - moved) * room <= capacity_bytes(question.cluster))
    if not len(fits):
        return []
    link = host_link_bytes_s(question.cluster)
    travel = 2.0 * moved * table.micro_batches / link
    total = table.step_time_s + np.maximum(travel - table.step_time_s, 0.0)
    best = int(fits[np.argmin(total[fits])])
    chunks = " and the loss in chunks" if job.loss != question.job.loss else ""
    return [
        (
            float(total[best] / table.step_time_s.min()),
            f"activations in host memory ({format_bytes(float(moved[best]))} per device){chunks}: "
            f"{full.layout(best).label()}, about {format_seconds(float(total[best]))} a step with "
            f"a host link of {link / 1e9:.0f} GB/s",
        )
    ]
