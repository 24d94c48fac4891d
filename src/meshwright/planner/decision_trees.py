"""The two decision trees of the lessons, walked with one model's numbers, and who is right.

The first tree puts fully sharded data parallelism before tensor parallelism when a model does not
fit one device; the second puts tensor parallelism first. The planner prices both answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.costs.columns import from_layouts
from meshwright.costs.step import capacity_bytes, estimate, price
from meshwright.planner.legality import Question, legal
from meshwright.planner.search import reprice
from meshwright.planner.space import divisors
from meshwright.specs.frameworks import framework
from meshwright.specs.layout import Layout
from meshwright.specs.plan import Estimate
from meshwright.specs.quantities import format_bytes, format_seconds


@dataclass(frozen=True)
class Step:
    """One question of a tree, the evidence, and the answer."""

    question: str
    evidence: str
    answer: str


@dataclass(frozen=True)
class Walk:
    """A tree walked to its end."""

    tree: str
    steps: tuple[Step, ...]
    layout: Layout | None
    estimate: Estimate | None


def walk_trees(question: Question) -> tuple[Walk, Walk, str]:
    """Walk both trees and return them with a sentence that says which answer is better here."""
    sharded, tensor = walk_sharding_first(question), walk_tensor_first(question)
    return sharded, tensor, _verdict(sharded, tensor)


def _states(question: Question) -> float:
    """Bytes of weights, gradients and optimizer on one device; adapters' few beside frozen weights."""
    from meshwright.costs.parameters import count_parameters

    if question.job.finetune is None:
        return count_parameters(question.model).total * question.job.state_bytes
    held = price(question.model, question.cluster, question.job, from_layouts([Layout()])).memory
    parts = held.parts["first"]
    return sum(float(parts[name][0]) for name in ("parameters", "gradients", "optimizer"))


def _fits_steps(question: Question) -> list[Step]:
    states, capacity = _states(question), capacity_bytes(question.cluster)
    node = capacity * question.cluster.gpus_per_node
    evidence = f"model states {format_bytes(states)} against {format_bytes(capacity)} per device"
    steps = [
        Step("Does the model fit one device?", evidence, "yes" if states < 0.8 * capacity else "no")
    ]
    evidence = f"{format_bytes(states)} against {format_bytes(node)} per node"
    steps.append(Step("Does it fit one node?", evidence, "yes" if states < 0.8 * node else "no"))
    if (cp := _context(question)) > 1:
        evidence = f"{question.job.seq_len:,} tokens against {LONG:,} a rank"
        steps.append(Step("Is the sequence long?", evidence, f"yes: cp {cp}"))
    if question.model.experts is not None:
        ep = _experts(question, question.cluster.gpus)
        evidence = f"{question.model.experts.experts} experts on links that {question.cluster.fast_domain} devices share"
        answer = f"yes: ep up to {ep}"
        if not framework(question.job.framework).has("ep"):
            evidence = f"{question.model.experts.experts} experts, and a framework without expert parallelism"
            answer = "yes: each rank holds them all"
        steps.append(Step("Are there experts?", evidence, answer))
    return steps


def _candidates(question: Question, wanted: dict[str, int]) -> list[Layout]:
    """Fill in what a tree leaves open: micro-batch, recomputation, sequence parallelism."""
    cluster = question.cluster
    cp = _context(question)
    fixed = wanted.get("tp", 1) * wanted.get("pp", 1) * cp
    if cluster.gpus % fixed:
        return []
    dp = cluster.gpus // fixed
    ep = _experts(question, dp * cp * wanted.get("tp", 1))
    chunks = _virtual(question, wanted.get("pp", 1))
    found = []
    for micro_batch in (d for d in divisors(max(question.job.global_batch // dp, 1)) if d <= 16):
        for recompute in ("none", "selective", "full"):
            layout = Layout(
                dp=dp, tp=wanted.get("tp", 1), pp=wanted.get("pp", 1), zero=wanted.get("zero", 0),
                cp=cp, ep=ep, virtual_stages=chunks,
                schedule="interleaved" if chunks > 1 else "1f1b",
                micro_batch=micro_batch, recompute=recompute,
                sequence_parallel=wanted.get("tp", 1) > 1,
            )  # fmt: skip
            found.append(layout)
    return found


LONG = 32_768
"""Tokens from which the trees split a sequence, and how many a rank is left with."""


def _context(question: Question) -> int:
    """Context parallelism of a long sequence: a rank gets at most `LONG` tokens of it."""
    length = question.job.seq_len
    if not framework(question.job.framework).has("cp"):
        return 1
    degrees = [
        d for d in divisors(question.cluster.gpus) if length % (2 * d) == 0 and length // d <= LONG
    ]
    return min(degrees, default=1) if length > LONG else 1


def _experts(question: Question, ranks: int) -> int:
    """Expert parallelism inside the fast domain, as far as experts and ranks divide."""
    experts = question.model.experts
    if experts is None or not framework(question.job.framework).has("ep"):
        return 1
    degrees = [
        d for d in divisors(experts.experts) if d <= question.cluster.fast_domain and ranks % d == 0
    ]
    return max(degrees, default=1)


def _virtual(question: Question, pp: int) -> int:
    """Virtual stages of a pipeline: the fewest above one that divide its layers, up to four."""
    if pp == 1 or "interleaved" not in framework(question.job.framework).schedules:
        return 1
    layers = question.model.layers
    return min((v for v in range(2, 5) if layers % (pp * v) == 0), default=1)


def _best(question: Question, wanted: list[dict[str, int]]) -> tuple[Layout, Estimate] | None:
    """The fastest candidate that fits; what a framework shards as another one is priced as that."""
    layouts = [layout for choice in wanted for layout in _candidates(question, choice)]
    other = framework(question.job.framework).shards_as
    here = [one for one in layouts if not other or one.zero < 2]
    found = [_fastest(question, here)]
    if other:
        sharded = replace(question, job=question.job.but(framework=other))
        found.append(_fastest(sharded, [one for one in layouts if one.zero >= 2]))
    return min((one for one in found if one), key=lambda one: one[1].step_time_s, default=None)


def _fastest(question: Question, layouts: list[Layout]) -> tuple[Layout, Estimate] | None:
    if not layouts:
        return None
    columns = from_layouts(layouts)
    alive, _ = legal(question, columns)
    rows = np.flatnonzero(alive)
    if not len(rows):
        return None
    candidates = reprice(question, columns.take(rows))
    times = np.where(candidates.fits, candidates.step_time_s, np.inf)
    best = int(np.argmin(times))
    if not candidates.fits[best]:
        return None
    layout = layouts[int(rows[best])]
    return layout, estimate(question.model, question.cluster, question.job, layout)


def _pipelines(question: Question, tp: int) -> list[int]:
    rest = question.cluster.gpus // tp
    return [d for d in divisors(rest) if 1 < d <= question.model.layers]


def _node_tp(question: Question) -> int:
    degrees = [d for d in divisors(question.model.heads) if d <= question.cluster.fast_domain]
    return max((d for d in degrees if question.cluster.gpus % d == 0), default=1)


def _walk(question: Question, name: str, steps: list[Step], wanted: list[dict[str, int]]) -> Walk:
    if not framework(question.job.framework).has("pp"):
        # What a tree gives to a pipeline, a framework without one shards.
        wanted = [*wanted, {"zero": 3}, {"tp": _node_tp(question), "zero": 3}]
    found = _best(question, wanted)
    if found is None:
        steps.append(Step("Which layout follows?", "none of its shapes fits", "nothing fits"))
        return Walk(name, tuple(steps), None, None)
    layout, priced = found
    evidence = (
        f"{format_bytes(priced.peak_memory_bytes)} of {format_bytes(priced.capacity_bytes)}, "
        f"{format_seconds(priced.step_time_s)} a step"
    )
    other = framework(question.job.framework).shards_as
    if other and layout.zero >= 2:
        evidence += f" under {other}"
    steps.append(Step("Which layout follows?", evidence, layout.label()))
    return Walk(name, tuple(steps), layout, priced)


def walk_sharding_first(question: Question) -> Walk:
    """Walk the tree that shards a model before it cuts its matrices."""
    name = "sharding first: fits one device → DP; fits one node → FSDP; else 3D"
    steps = _fits_steps(question)
    tp = _node_tp(question)
    if steps[0].answer == "yes":
        wanted = [{"zero": 0}, {"zero": 1}]
    elif steps[1].answer == "yes":
        wanted = [{"zero": 3}]
    else:
        wanted = [{"tp": tp, "pp": pp, "zero": 1} for pp in _pipelines(question, tp)]
    return _walk(question, name, steps, wanted)


def walk_tensor_first(question: Question) -> Walk:
    """Walk the tree that cuts matrices before it shards a model."""
    name = "tensor parallelism first: fast links → TP; nodes → PP + DP; still too big → ZeRO"
    steps = _fits_steps(question)[:1]
    if steps[0].answer == "yes":
        return _walk(question, name, steps, [{"zero": 0}])
    domain, tp = question.cluster.fast_domain, _node_tp(question)
    evidence = f"{domain} devices share the innermost links at {question.cluster.levels[0].bandwidth_bytes_s / 1e9:.0f} GB/s"
    steps.append(
        Step("Fast links inside a node?", evidence, f"yes: tp {tp}" if domain > 1 else "no")
    )
    nodes = question.cluster.nodes
    steps.append(Step("Several nodes?", f"{nodes} nodes", "yes: pp and dp" if nodes > 1 else "no"))
    pipelines = [1, *_pipelines(question, tp)] if nodes > 1 else [1]
    plain = [{"tp": tp, "pp": pp, "zero": 0} for pp in pipelines]
    found = _best(question, plain)
    steps.append(
        Step(
            "Still out of memory?",
            "without ZeRO " + (found[0].label() if found else "nothing") + " fits",
            "no" if found else "yes: ZeRO",
        )
    )
    wanted = (
        plain if found else [{"tp": tp, "pp": pp, "zero": z} for pp in pipelines for z in (1, 3)]
    )
    return _walk(question, name, steps, wanted)


def _verdict(sharded: Walk, tensor: Walk) -> str:
    if sharded.estimate is None and tensor.estimate is None:
        return "neither tree finds a layout that fits"
    if sharded.estimate is None:
        return "only the tensor-parallel tree finds a layout that fits"
    if tensor.estimate is None:
        return "only the sharding tree finds a layout that fits"
    assert sharded.layout is not None
    assert tensor.layout is not None
    if sharded.layout == tensor.layout:
        return "both trees agree here"
    faster, slower = sorted((sharded, tensor), key=lambda w: w.estimate.step_time_s)  # type: ignore[union-attr]
    assert faster.estimate is not None
    assert slower.estimate is not None
    assert faster.layout is not None
    gain = slower.estimate.step_time_s / faster.estimate.step_time_s - 1
    if gain < 0.005:
        return "the trees disagree, but their answers are equally fast here"
    return (
        f"the trees disagree; here {faster.layout.label()} ({faster.tree.split(':')[0]}) is "
        f"{gain:.0%} faster"
    )
