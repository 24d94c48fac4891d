"""The chosen layout's neighbours: one step either way on each axis, and why each lost."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.costs.columns import RECOMPUTES, from_layouts, named
from meshwright.costs.offload import host_short_bytes
from meshwright.costs.step import estimates, price
from meshwright.planner.corners import largest_divisor, offered
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.odds import WANTED, Odds
from meshwright.planner.space import Constraints, divisors, recompute_modes, shard_degrees
from meshwright.planner.words import PART_WORDS
from meshwright.specs.frameworks import framework
from meshwright.specs.layout import MODULES, Layout
from meshwright.specs.plan import Alternative, Estimate
from meshwright.specs.quantities import format_bytes, format_seconds


def neighbours(
    question: Question, chosen: Layout, best: Estimate, wanted: float = WANTED
) -> tuple[Alternative, ...]:
    """Price one step either way on every axis and say in a line why it was not chosen."""
    near = steps(question, chosen)
    sentences = [why_illegal(question, layout) for _, layout in near]
    legal = [layout for (_, layout), sentence in zip(near, sentences, strict=True) if not sentence]
    priced = iter(estimates(question.model, question.cluster, question.job, legal))
    found = []
    for (axis, layout), sentence in zip(near, sentences, strict=True):
        if sentence is not None:
            why = f"cannot run: {sentence}"
            found.append(Alternative(axis=axis, layout=layout, why_not=why))
            continue
        other = next(priced)
        why = why_lost(question, best, other, layout, wanted)
        found.append(Alternative(axis=axis, layout=layout, estimate=other, why_not=why))
    return tuple(found)


def why_lost(
    question: Question, best: Estimate, other: Estimate, layout: Layout, wanted: float = WANTED
) -> str:
    """One line: out of memory by how much and where, or slower by how much and through what."""
    if layout.offload and (short := _host_short_bytes(question, layout)) > 0:
        return f"more than its hosts hold, by {format_bytes(short)} each"
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
    if grown[0][1] == "pipeline_bubble":
        cause += f" of {_filled(layout, question.job.global_batch)}"
    if change > 0.005:
        return f"{change:.1%} slower: more time in {cause} ({grown[0][0]:+.3g} s)"
    odds = Odds.of(question).fits(other.peak_memory_bytes, other.capacity_bytes)
    if odds < wanted:
        speed = "as fast" if abs(change) < 0.0005 else f"{-change:+.1%} in speed"
        return f"{speed}, but fits with {odds:.0%} only ({wanted:.0%} is asked for)"
    worst = _worst(other) / _worst(best) - 1.0
    if worst > 0.0005 and change < -0.0005:
        return (
            f"{-change:.1%} faster if the model is exactly right (less {gained}), {worst:.1%} slower "
            f"({format_seconds(_worst(other))} against {format_seconds(_worst(best))}) once {cause} "
            f"is priced pessimistically"
        )
    return f"as fast within half a percent ({change:+.2%}); {_tie_breaker(best, other)}"


def _filled(layout: Layout, global_batch: int) -> str:
    """How many micro-batches fill how many stages, from which a reader can work out a bubble."""
    chunks = f" of {layout.virtual_stages} chunks" if layout.virtual_stages > 1 else ""
    return f"{layout.micro_batches(global_batch)} micro-batches on {layout.pp} stages{chunks}"


def _host_short_bytes(question: Question, layout: Layout) -> float:
    columns = from_layouts([layout])
    table = price(question.model, question.cluster, question.job, columns)
    return float(host_short_bytes(question.cluster, table.memory.moved)[0])


def _worst(priced: Estimate) -> float:
    return priced.pessimistic_s or priced.step_time_s


def _tie_breaker(best: Estimate, other: Estimate) -> str:
    if other.peak_memory_bytes > best.peak_memory_bytes * 1.01:
        return f"needs {format_bytes(other.peak_memory_bytes - best.peak_memory_bytes)} more memory"
    return "too close to call: measure both"


def steps(question: Question, chosen: Layout) -> list[tuple[str, Layout]]:
    """Layouts one step from the chosen one, each with what differs from it.

    Everything else is kept where it can be: data parallelism makes up the devices, and what could
    not be kept is said.
    """
    found = []
    for axis, layout in _steps(question, chosen):
        other = _runnable(question, layout)
        if other is not None and other != chosen:
            found.append((axis + _also(axis, chosen, other), other))
    return found


def _runnable(question: Question, layout: Layout) -> Layout | None:
    """The layout with the least changed that its new degrees do not allow."""
    batch = question.job.global_batch
    changes: dict[str, object] = {}
    if batch % layout.dp:
        return layout
    micro = largest_divisor(batch // layout.dp, layout.micro_batch)
    changes["micro_batch"] = micro
    if layout.recompute_layers >= -(-question.model.layers // layout.pp):
        changes["recompute_layers"] = 0  # all that a rank has
    ranks = layout.dp * layout.cp * layout.tp
    if question.model.experts is not None and layout.ep > 1:
        fitting = [
            d
            for d in divisors(question.model.experts.experts)
            if d <= layout.ep and ranks % (d * layout.etp) == 0
        ]
        changes["ep"] = max(fitting, default=1)
    if layout.schedule == "interleaved":
        layers, pp = question.model.layers, layout.pp
        can_name = offered(question).stage_layers
        fitting = [
            v
            for v in range(1, layout.virtual_stages + 1)
            if v == 1 or can_name or layers % (pp * v) == 0 or (layers + 2) % (pp * v) == 0
        ]
        virtual = max(v for v in fitting if v * pp <= layers or v == 1)
        if batch // (layout.dp * micro) < pp:
            virtual = 1
        if virtual != layout.virtual_stages:
            changes |= {
                "virtual_stages": virtual,
                "schedule": "interleaved" if virtual > 1 else "1f1b",
                "stage_layers": None,
                "stage_recompute_layers": None,
            }
    return layout.but(**changes)


def _recomputes(mode: str, modules: tuple[str, ...]) -> str:
    return f"{mode} ({', '.join(modules)})" if modules else mode


_SHOWN = {
    "tp": "tp", "pp": "pp", "dp": "dp", "cp": "cp", "ep": "ep", "etp": "etp",
    "virtual_stages": "virtual stages", "micro_batch": "micro-batch", "zero": "ZeRO",
    "shard": "shard degree", "schedule": "schedule", "recompute": "recompute",
    "sequence_parallel": "sequence parallel", "recompute_layers": "recomputed layers",
    "stage_layers": "layers per stage", "stage_recompute_layers": "recomputed layers per stage",
    "recompute_modules": "recomputed modules", "cp_method": "context method", "offload": "offload",
}  # fmt: skip


def _also(axis: str, chosen: Layout, other: Layout) -> str:
    """What had to change beside the axis that was asked about."""
    changed = []
    for name, word in _SHOWN.items():
        before, after = getattr(chosen, name), getattr(other, name)
        if before == after or axis.startswith(f"{word} "):
            continue
        if name == "schedule" and (chosen.virtual_stages > 1) != (other.virtual_stages > 1):
            continue  # interleaved is what more than one virtual stage is called
        if name == "sequence_parallel" and (chosen.tp > 1) != (other.tp > 1):
            continue
        if name.startswith("recompute_") and axis.startswith("recompute"):
            continue
        if name == "cp_method" and axis.startswith("context parallelism by"):
            continue
        changed.append(f"{word} {_value(before)} → {_value(after)}")
    return f" (with {', '.join(changed)})" if changed else ""


def _value(value: object) -> str:
    if value is None:
        return "even"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _steps(question: Question, chosen: Layout) -> Iterator[tuple[str, Layout]]:
    """Layouts one step from the chosen one; data parallelism or the pipeline makes up the devices."""
    yield from _degree_steps(question, chosen)
    if question.model.experts:
        yield from _expert_steps(question, chosen)
    for value in (chosen.micro_batch // 2, chosen.micro_batch * 2):
        if value:
            yield f"micro-batch {chosen.micro_batch} → {value}", chosen.but(micro_batch=value)
    for value in (chosen.zero - 1, chosen.zero + 1):
        if 0 <= value <= 3:
            yield (
                f"ZeRO {chosen.zero} → {value}",
                chosen.but(zero=value, shard=chosen.shard if value else 0),
            )
    yield from _shard_steps(question, chosen)
    yield from _memory_steps(question, chosen)
    yield from _sequence_steps(question, chosen)
    yield from _schedule_steps(question, chosen)


def _degree_steps(question: Question, chosen: Layout) -> Iterator[tuple[str, Layout]]:
    """The next smaller and larger degree of each axis."""
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


def _memory_steps(question: Question, chosen: Layout) -> Iterator[tuple[str, Layout]]:
    """Other recomputation, of modules or of layers, and everything back on the device."""
    for mode, code in recompute_modes(question, Constraints()):
        modules = named(code, MODULES)
        if (RECOMPUTES[mode], modules) != (chosen.recompute, chosen.recompute_modules):
            yield (
                f"recompute {_recomputes(chosen.recompute, chosen.recompute_modules)} → "
                f"{_recomputes(RECOMPUTES[mode], modules)}",
                chosen.but(
                    recompute=RECOMPUTES[mode],
                    recompute_modules=modules,
                    recompute_layers=0,
                    stage_recompute_layers=None,
                ),
            )
    for count in (-chosen.virtual_stages, chosen.virtual_stages):
        layers = chosen.recompute_layers + count
        if chosen.recompute_layers and 0 < layers <= question.model.layers // chosen.pp:
            yield (
                f"recomputed layers {chosen.recompute_layers} → {layers}",
                chosen.but(recompute_layers=layers),
            )
    if chosen.offload:
        yield f"offload {', '.join(chosen.offload)} → none", chosen.but(offload=())


def _sequence_steps(question: Question, chosen: Layout) -> Iterator[tuple[str, Layout]]:
    """Other ways to share a sequence: the method of context parallelism, sequence parallelism."""
    if chosen.cp > 1:
        for method in framework(question.job.framework).context_methods_of(question.model):
            if method != chosen.cp_method:
                yield (
                    f"context parallelism by {chosen.cp_method} → {method}",
                    Layout.parse(chosen.model_dump() | {"cp_method": method}),
                )
    if chosen.tp > 1:
        before, after = ("on", "off") if chosen.sequence_parallel else ("off", "on")
        yield (
            f"sequence parallel {before} → {after}",
            chosen.but(sequence_parallel=not chosen.sequence_parallel),
        )


def _expert_steps(question: Question, chosen: Layout) -> Iterator[tuple[str, Layout]]:
    experts = question.model.experts
    assert experts is not None
    for axis, word, sizes in (
        ("ep", "ep", divisors(experts.experts)),
        (
            "etp",
            "etp",
            divisors(chosen.tp) if framework(question.job.framework).has("etp") else [1],
        ),
    ):
        current = getattr(chosen, axis)
        lower = max((s for s in sizes if s < current), default=None)
        higher = min((s for s in sizes if s > current), default=None)
        for value in (lower, higher):
            if value is not None:
                yield f"{word} {current} → {value}", chosen.but(**{axis: value})


def _shard_steps(question: Question, chosen: Layout) -> Iterator[tuple[str, Layout]]:
    if chosen.zero == 0:
        return
    whole = chosen.dp * chosen.cp
    sizes = [
        *shard_degrees(question, tp=chosen.tp, cp=chosen.cp, pp=chosen.pp, dp=chosen.dp),
        whole,
    ]
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
    changes: dict[str, object] = {axis: value}
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
    replicas = others["cp"] * int(str(changes.get("dp", chosen.dp)))
    if chosen.shard and (replicas % chosen.shard or chosen.shard % others["cp"]):
        changes["shard"] = 0
    if axis == "tp":
        changes["sequence_parallel"] = value > 1 and (chosen.sequence_parallel or chosen.tp == 1)
        if value % chosen.etp:
            changes["etp"] = 1
    pp = changes.get("pp", chosen.pp)
    if pp != chosen.pp:
        changes |= {"stage_layers": None, "stage_recompute_layers": None}
    if pp == 1:
        changes |= {"virtual_stages": 1, "schedule": "1f1b"}
    return chosen.but(**changes)
