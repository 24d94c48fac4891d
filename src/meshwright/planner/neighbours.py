"""The chosen layout's neighbours: one step either way on each axis, and why each lost."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.costs.step import estimates
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.space import MEMORY_MARGIN, divisors, shard_degrees
from meshwright.planner.words import PART_WORDS
from meshwright.specs.layout import Layout
from meshwright.specs.plan import Alternative, Estimate
from meshwright.specs.quantities import format_bytes


def neighbours(question: Question, chosen: Layout, best: Estimate) -> tuple[Alternative, ...]:
    """Price one step either way on every axis and say in a line why it was not chosen."""
    steps = list(_steps(question, chosen))
    sentences = [why_illegal(question, layout) for _, layout in steps]
    legal = [layout for (_, layout), sentence in zip(steps, sentences, strict=True) if not sentence]
    priced = iter(estimates(question.model, question.cluster, question.job, legal))
    found = []
    for (axis, layout), sentence in zip(steps, sentences, strict=True):
        if sentence is not None:
            why = f"cannot run: {sentence}"
            found.append(Alternative(axis=axis, layout=layout, why_not=why))
            continue
        other = next(priced)
        why = why_lost(question, best, other, layout)
        found.append(Alternative(axis=axis, layout=layout, estimate=other, why_not=why))
    return tuple(found)


def why_lost(question: Question, best: Estimate, other: Estimate, layout: Layout) -> str:
    """One line: out of memory by how much and where, or slower by how much and through what."""
    if not other.fits:
        heaviest = max(other.stages, key=lambda stage: stage.total_bytes)
        short = heaviest.total_bytes - other.capacity_bytes
        return f"out of memory by {format_bytes(short)} on stage {heaviest.stage}"
    change = other.step_time_s / best.step_time_s - 1.0
    grown = sorted(
        ((other.time_parts[name] - best.time_parts[name], name) for name in other.time_parts),
        reverse=True,
    )
    cause = PART_WORDS[grown[0][1]]
    gained = PART_WORDS[grown[-1][1]]
    if grown[0][1] == "tensor_parallel" and layout.tp > question.cluster.fast_domain:
        cause += (
            f" that cross nodes (tp {layout.tp} > {question.cluster.fast_domain} per fast domain)"
        )
    if change > 0.005:
        return f"{change:.1%} slower: more time in {cause} ({grown[0][0]:+.3g} s)"
    if other.peak_memory_bytes * (1 + MEMORY_MARGIN) > other.capacity_bytes:
        free = 1.0 - other.peak_memory_bytes / other.capacity_bytes
        return (
            f"{-change:+.1%} in speed, but only {free:.1%} of memory would be free: less than the "
            f"{MEMORY_MARGIN:.0%} kept for what the memory model gets wrong"
        )
    if change < -0.005:
        return (
            f"{-change:.1%} faster if the model is exactly right (less {gained}), slower once "
            f"{cause} is priced pessimistically"
        )
    return f"as fast within half a percent ({change:+.2%}); {_tie_breaker(best, other)}"


def _tie_breaker(best: Estimate, other: Estimate) -> str:
    if other.peak_memory_bytes > best.peak_memory_bytes * 1.01:
        return f"needs {format_bytes(other.peak_memory_bytes - best.peak_memory_bytes)} more memory"
    return "too close to call: measure both"


def _steps(question: Question, chosen: Layout) -> Iterator[tuple[str, Layout]]:
    """Layouts one step from the chosen one; data parallelism or the pipeline makes up the devices."""
    world = chosen.world
    for axis, sizes in (
        ("tp", divisors(question.model.heads)),
        ("pp", divisors(world)),
        ("cp", [d for d in divisors(world) if d <= 64]),
    ):
        current = getattr(chosen, axis)
        lower = max((s for s in sizes if s < current and world % s == 0), default=None)
        higher = min((s for s in sizes if s > current and world % s == 0), default=None)
        for value in (lower, higher):
            if value is not None and (layout := _rebalanced(chosen, axis, value)):
                yield f"{axis} {current} → {value}", layout
    if question.model.experts:
        sizes = divisors(question.model.experts.experts)
        lower = max((s for s in sizes if s < chosen.ep), default=None)
        higher = min((s for s in sizes if s > chosen.ep), default=None)
        for value in (lower, higher):
            if value is not None:
                yield f"ep {chosen.ep} → {value}", chosen.but(ep=value)
    for value in (chosen.micro_batch // 2, chosen.micro_batch * 2):
        if value:
            yield f"micro-batch {chosen.micro_batch} → {value}", chosen.but(micro_batch=value)
    for value in (chosen.zero - 1, chosen.zero + 1):
        if 0 <= value <= 3:
            yield f"ZeRO {chosen.zero} → {value}", chosen.but(zero=value, shard=0)
    yield from _shard_steps(question, chosen)
    modes = ("none", "selective", "full")
    for mode in modes:
        if mode != chosen.recompute:
            yield (
                f"recompute {chosen.recompute} → {mode}",
                chosen.but(recompute=mode, recompute_layers=0, stage_recompute_layers=None),
            )
    for count in (-chosen.virtual_stages, chosen.virtual_stages):
        layers = chosen.recompute_layers + count
        if chosen.recompute_layers and 0 < layers <= question.model.layers // chosen.pp:
            yield (
                f"recomputed layers {chosen.recompute_layers} → {layers}",
                chosen.but(recompute_layers=layers),
            )
    if chosen.tp > 1:
        word = "off" if chosen.sequence_parallel else "on"
        yield (
            f"sequence parallel {word}",
            chosen.but(sequence_parallel=not chosen.sequence_parallel),
        )
    yield from _schedule_steps(question, chosen)


def _shard_steps(question: Question, chosen: Layout) -> Iterator[tuple[str, Layout]]:
    if chosen.zero == 0:
        return
    whole = chosen.dp * chosen.cp
    sizes = [
        *shard_degrees(question, tp=chosen.tp, cp=chosen.cp, pp=chosen.pp, dp=chosen.dp), whole
    ]  # fmt: skip
    current = chosen.shard or whole
    lower = max((s for s in sizes if s < current), default=None)
    higher = min((s for s in sizes if s > current), default=None)
    for value in (lower, higher):
        if value is not None:
            yield (
                f"shard degree {current} → {value}",
                chosen.but(shard=0 if value == whole else value),
            )


def _schedule_steps(question: Question, chosen: Layout) -> Iterator[tuple[str, Layout]]:
    if chosen.pp == 1:
        return
    layers = question.model.layers
    sizes = [
        v
        for v in range(1, layers // chosen.pp + 1)
        if v == 1 or layers % (chosen.pp * v) == 0 or (layers + 2) % (chosen.pp * v) == 0
    ]
    lower = max((v for v in sizes if v < chosen.virtual_stages), default=None)
    higher = min((v for v in sizes if v > chosen.virtual_stages), default=None)
    for value in (lower, higher):
        if value is not None:
            schedule = "1f1b" if value == 1 else "interleaved"
            yield (
                f"virtual stages {chosen.virtual_stages} → {value}",
                chosen.but(
                    virtual_stages=value,
                    schedule=schedule,
                    stage_layers=None,
                    stage_recompute_layers=None,
                ),
            )


def _rebalanced(chosen: Layout, axis: str, value: int) -> Layout | None:
    """Change one degree and let dp, else pp, make up the number of devices."""
    changes: dict[str, object] = {
        axis: value,
        "shard": 0,
        "stage_layers": None,
        "stage_recompute_layers": None,
    }
    world = chosen.world
    others = {name: getattr(chosen, name) for name in ("tp", "pp", "cp")} | {axis: value}
    rest = others["tp"] * others["pp"] * others["cp"]
    if world % rest == 0:
        changes["dp"] = world // rest
    else:
        fixed = others["tp"] * others["cp"] * chosen.dp
        if axis == "pp" or world % fixed:
            return None
        changes["pp"] = world // fixed
    if axis == "tp" and value == 1:
        changes["sequence_parallel"] = False
    if changes.get("pp", chosen.pp) == 1 or (axis == "pp" and chosen.virtual_stages > 1):
        changes |= {"virtual_stages": 1, "schedule": "1f1b"}
    if chosen.ep > 1:
        ranks = others["tp"] * others["cp"] * int(str(changes.get("dp", chosen.dp)))
        if ranks % chosen.ep:
            changes["ep"] = 1
    return chosen.but(**changes)
