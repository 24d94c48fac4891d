"""CUDA graphs and capacity factors: choices that are priced beside a plan and taken when asked for.

Graphs spare the host its launches. What they gain in practice is disputed: the guides of their authors
report from nothing to a quarter of the step, for a Qwen3-30B-A3B on H100 a loss of 2 % (Megatron-Bridge,
docs/training/cuda-graphs.md), so a default does not rest on them. A capacity factor drops tokens: the
model trained is another one, so nobody but the user can choose it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.costs.routing import dropped_share
from meshwright.costs.step import estimate
from meshwright.planner.dispatchers import WORTH
from meshwright.planner.legality import Question, legal
from meshwright.planner.odds import Odds
from meshwright.planner.search import SearchResult, reprice
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.frameworks import framework
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Estimate
from meshwright.specs.routing import MOST_CAPACITY, Routing

OPTION = "graphs"
"""The option of a job's framework that names what CUDA graphs capture."""
KINDS = ("none", "layers", "all")
FACTOR = 1.25
"""The capacity factor whose gain is shown where routing is uneven: GShard's and Switch's usual one."""


def asked_graphs(job: Job, model: Model, kind: str) -> Job:
    """The job with CUDA graphs of a kind.

    Raises:
        SpecError: no such kind, or whole iterations of a mixture of experts.
    """
    if kind not in KINDS:
        raise SpecError("--cuda-graphs", kind, nearest(kind, KINDS))
    if kind == "all" and model.experts is not None:
        raise SpecError(
            "--cuda-graphs", kind,
            "layers is expected with experts: how many tokens each gets is not known before the step "
            "(a static budget, moe_expert_rank_capacity_factor, has no price here)",
        )  # fmt: skip
    return job.but(framework_options={**job.framework_options, OPTION: kind})


def asked_capacity(job: Job, model: Model, factor: float) -> Job:
    """The job with a capacity factor of its experts.

    Raises:
        SpecError: nothing to drop, or a factor below 1.
    """
    if model.experts is None:
        raise SpecError(
            "--capacity-factor", factor, f"a model with experts is expected; {model.name} has none"
        )
    if not (factor == 0 or 1 <= factor <= MOST_CAPACITY):
        raise SpecError(
            "--capacity-factor", factor, f"1 to {MOST_CAPACITY} is expected, or 0: drop nothing"
        )
    fields = {**job.routing.plain(), "capacity": factor}
    return job.but(routing=Routing.parse(fields, "--capacity-factor"))


def graphs_of(job: Job) -> str:
    """What a job's CUDA graphs capture: none, layers or all."""
    return str(job.framework_options.get(OPTION, "none"))


def faster_with_graphs(
    question: Question, best: Estimate, result: SearchResult
) -> tuple[Question, Layout] | None:
    """The fastest of the layouts found, with graphs of layers, where they gain enough; and its question."""
    job, ranked = question.job, result.ranked
    can = framework(job.framework)
    if OPTION in job.framework_options or "layers" not in can.graphs or can.name == "any":
        return None
    if question.cluster.device.vendor != "nvidia":
        return None
    if best.time_parts["launch"] < WORTH * best.step_time_s:
        return None
    captured = replace(
        question, job=job.but(framework_options={**job.framework_options, OPTION: "layers"})
    )
    alive, _ = legal(captured, ranked.columns)
    room = Odds.of(captured).room(result.fit_probability)
    priced = reprice(captured, ranked.columns.take(alive), room)
    rows = np.flatnonzero(priced.fits)
    if not len(rows):
        return None
    row = int(rows[np.argmin(priced.pessimistic_s[rows])])
    if priced.pessimistic_s[row] > (1 - WORTH) * (best.pessimistic_s or best.step_time_s):
        return None
    return captured, priced.columns.layout(row)


def graph_note(job: Job) -> list[str]:
    """How sure the memory of graphs of whole iterations is."""
    if graphs_of(job) != "all":
        return []
    return [
        "a graph of the whole iteration keeps a pool of memory of its own: counted are the inputs of all micro-batches "
        "and 5 % of what comes and goes, which one program was measured at; torchtitan measured 7 to 13 % of the peak, "
        "Megatron-Bridge's guide warns of 1.5 to 2 times, and the range reaches so far"
    ]


def capacity_note(question: Question, layout: Layout, best: Estimate) -> list[str]:
    """What a capacity factor does, or would do, where tokens go unevenly to experts."""
    job, experts = question.job, question.model.experts
    routing = job.routing
    if experts is None or not framework(job.framework).capacity_factor:
        return []
    if routing.capacity:
        return [
            f"a capacity factor of {routing.capacity:g} {_drops(routing, experts.experts)}: the model that "
            "trains is not the one without it"
        ]
    if routing.balanced:
        return []
    capped = routing.but(capacity=FACTOR)
    other = estimate(question.model, question.cluster, job.but(routing=capped), layout)
    gain = 1 - other.step_time_s / best.step_time_s
    if gain < WORTH:
        return []
    return [
        f"with a capacity factor of {FACTOR:g} this layout takes {gain:.1%} less time and "
        f"{_drops(capped, experts.experts)}, so another model trains: `--capacity-factor {FACTOR:g}` plans for it"
    ]


def _drops(routing: Routing, experts: int) -> str:
    share = dropped_share(routing, experts)
    if share is None:
        return "drops what its experts get beyond it"
    return f"drops {share:.1%} of the routed tokens"
