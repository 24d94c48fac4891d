"""When nothing fits: the smallest shortfall, and the cheapest ways out, each priced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.costs.step import capacity_bytes
from meshwright.planner.legality import Question
from meshwright.planner.odds import FALLBACKS, MEMORY_MARGIN, Odds
from meshwright.planner.search import SearchResult, search
from meshwright.planner.space import Constraints
from meshwright.specs.cluster import Cluster
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.quantities import format_bytes, format_seconds


def ways_out(question: Question, constraints: Constraints, result: SearchResult) -> list[str]:
    """Return sentences: the shortfall first, then up to three priced ways out, cheapest first."""
    over = result.over_memory
    sentences = [_shortfall(question, result)]
    options: list[tuple[float, str]] = []
    options += _more_devices(question, constraints)
    options += _shorter_sequence(question, constraints)
    options += _relaxed(question, constraints)
    if over.columns.rows:
        options += _offload(question, result)
    options.sort(key=lambda option: option[0])
    return sentences + [sentence for _, sentence in options[:3]]


def _shortfall(question: Question, result: SearchResult) -> str:
    over = result.over_memory if result.over_memory.columns.rows else result.gambles
    if result.gambles.columns.rows and over.peak_bytes.min() > result.gambles.peak_bytes.min():
        over = result.gambles
    if not over.columns.rows:
        return "no layout is legal under these constraints"
    lightest = int(np.argmin(over.peak_bytes))
    surest = Odds.of(question).room(FALLBACKS[-1])
    short = float(over.peak_bytes[lightest]) * surest - capacity_bytes(question.cluster)
    label = over.columns.layout(lightest).label()
    return (
        f"nothing fits on {question.cluster.gpus} × {question.cluster.device.name}: the lightest "
        f"layout, {label}, is short of {format_bytes(max(short, 0.0))} per device to fit at even odds"
    )


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
    return [(0.5, f"without the constraints given: {label}, {time} a step")]


def _offload(question: Question, result: SearchResult) -> list[tuple[float, str]]:
    """Optimizer states in host memory, moved over PCIe once a step (ZeRO-Offload, 2101.06840)."""
    from meshwright.costs.step import price

    over = result.over_memory
    table = price(question.model, question.cluster, question.job, over.columns)
    heaviest = table.memory.heaviest()
    names = ("first", "middle", "last")
    optimizer = np.choose(heaviest, [table.memory.parts[name]["optimizer"] for name in names])
    left = (over.peak_bytes - optimizer) * (1 + MEMORY_MARGIN)
    fits = np.flatnonzero(left <= capacity_bytes(question.cluster))
    if not len(fits):
        return []
    pcie_bytes_s = 25e9
    total = over.step_time_s + 2.0 * optimizer / pcie_bytes_s
    best = int(fits[np.argmin(total[fits])])
    return [
        (
            float(total[best] / over.step_time_s.min()),
            f"optimizer states in host memory ({format_bytes(float(optimizer[best]))} per device): "
            f"{over.columns.layout(best).label()}, about {format_seconds(float(total[best]))} a step "
            f"with PCIe at 25 GB/s",
        )
    ]
