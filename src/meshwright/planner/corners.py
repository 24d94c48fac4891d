"""The corners of the space: every combination of degrees, and what is left to choose at each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from meshwright.costs.columns import RANK_ORDERS, RECOMPUTES, Ints, LayoutColumns, bits
from meshwright.costs.frameworks import behaviour
from meshwright.costs.pipeline import CODE
from meshwright.planner.constraints import Constraints, Tally
from meshwright.planner.legality import Question
from meshwright.specs.frameworks import Framework, framework
from meshwright.specs.layout import (
    CONTEXT_METHODS,
    MODULES,
    OFFLOAD_MODULES,
    OFFLOADS,
    Offload,
    OffloadModule,
    RecomputeModule,
)


def offered(question: Question) -> Framework:
    """The framework whose choices the search offers where the user fixes none."""
    return framework(question.job.framework)


ROUTED: tuple[OffloadModule, ...] = ("expert_fc1", "moe_act")
"""Parts that only layers of experts have."""


def in_words_of(question: Question, wanted: tuple[Offload, ...]) -> tuple[Offload, ...]:
    """What a framework moves where activations are asked for: parts of layers, if it names them by part."""
    has = offered(question).offload
    if "activations" not in wanted or not set(OFFLOAD_MODULES) & set(has):
        return wanted
    routed = () if question.model.experts is not None else ROUTED
    parts = [part for part in OFFLOAD_MODULES if part in has and part not in routed]
    return (*(one for one in wanted if one != "activations"), *parts)


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is at most `most`; 1 where that is below 1."""
    return next((d for d in range(most, 0, -1) if number % d == 0), 1)


class Degrees(NamedTuple):
    """Degrees of every axis."""

    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    etp: int


class Choices(NamedTuple):
    """What is left to choose at given degrees: values of each axis, as columns hold them."""

    schedules: tuple[tuple[int, int], ...]
    """Schedule and virtual stages."""
    micro: tuple[int, ...]
    modes: tuple[tuple[int, int], ...]
    """Recomputation and bits of its modules."""
    sequence: tuple[int, ...]
    orders: tuple[int, ...]
    methods: tuple[int, ...]


@dataclass(frozen=True)
class Corner:
    """All layouts at some degrees: what is left to choose, and the ways to shard each."""

    at: Degrees
    choices: Choices
    ways: Ints
    zero: int
    """The highest ZeRO stage of the ways: no way to shard holds less."""

    @property
    def rows(self) -> int:
        """Heads, legal or not."""
        rows = 1
        for axis in self.choices:
            rows *= len(axis)
        return rows


def corners(question: Question, constraints: Constraints, tally: Tally) -> Iterator[Corner]:
    """Every combination of degrees with what is left to choose there."""
    world = question.cluster.gpus
    for tp in _choices(_tensor_degrees(question, world), constraints.tp, constraints.max_tp):
        for cp in _choices(_context_degrees(question, world // tp), constraints.cp, None):
            for pp in _choices(
                _pipeline_degrees(question, world // tp // cp), constraints.pp, constraints.max_pp
            ):
                if world % (tp * cp * pp):
                    continue
                dp = world // (tp * cp * pp)
                if constraints.dp is not None and dp != constraints.dp:
                    continue
                if question.job.global_batch % dp:
                    tally.add("batch", 1)
                    continue
                pairs = _ways(question, constraints, tp=tp, cp=cp, pp=pp, dp=dp)
                left = _left(question, constraints, Degrees(tp, cp, pp, dp, 1, 1))
                zero = _most_sharded(question, pairs, tp=tp, pp=pp)
                for ep in _choices(_expert_degrees(question, dp * cp * tp), constraints.ep, None):
                    for etp in _choices(
                        _expert_tensor_degrees(question, tp), constraints.etp, None
                    ):
                        yield Corner(Degrees(tp, cp, pp, dp, ep, etp), left, pairs, zero)


def _choices(free: list[int], fixed: int | None, most: int | None) -> list[int]:
    if fixed is not None:
        return [fixed]
    return [value for value in free if most is None or value <= most]


def _tensor_degrees(question: Question, world: int) -> list[int]:
    model = question.model
    if not offered(question).has("tp"):
        return [1]
    widths = (model.heads, *model.split_widths)
    return [d for d in divisors(world) if all(width % d == 0 for width in widths)]


def _context_degrees(question: Question, rest: int) -> list[int]:
    # Below 2,048 tokens per rank a ring step is all latency; no framework's recipes go there.
    most = max(question.job.seq_len // 2048, 1) if offered(question).has("cp") else 1
    return [
        d for d in divisors(rest) if (d <= most and question.job.seq_len % (2 * d) == 0) or d == 1
    ]


def _pipeline_degrees(question: Question, rest: int) -> list[int]:
    deepest = question.model.layers if offered(question).has("pp") else 1
    return [d for d in divisors(rest) if d <= deepest]


def _expert_degrees(question: Question, ranks: int) -> list[int]:
    experts = question.model.experts
    if experts is None or not offered(question).has("ep"):
        return [1]
    return [d for d in divisors(experts.experts) if ranks % d == 0]


def _expert_tensor_degrees(question: Question, tp: int) -> list[int]:
    experts = question.model.experts
    if experts is None or not offered(question).has("etp"):
        return [1]
    return [d for d in divisors(tp) if experts.ffn % d == 0]


def shard_degrees(question: Question, *, tp: int, cp: int, pp: int, dp: int) -> list[int]:
    """ZeRO shard degrees below all replicas (HSDP) that are worth pricing, ascending.

    A shard group that ends inside a link domain leaves fast links unused, and one that spills over
    a border pays for slow ones: so the degrees that fill a domain of some level, with data ranks
    inside or outside pipeline ranks, and every power of two between them. All divide dp · cp and
    are made of whole context-parallel groups, as device meshes are.
    """
    replicas = dp * cp
    borders = {
        level.domain // (tp * inside) for level in question.cluster.levels for inside in (1, pp)
    }
    powers = {2**exponent for exponent in range(1, replicas.bit_length())}
    return sorted(
        degree
        for degree in borders | powers
        if 1 < degree < replicas and replicas % degree == 0 and degree % cp == 0
    )


UNEVEN = (2, 3, 4)
"""Virtual stages that are considered though the layers do not divide by them."""


def _ways(
    question: Question, constraints: Constraints, *, tp: int, cp: int, pp: int, dp: int
) -> Ints:
    """Pairs of ZeRO stage and shard degree to consider; shape (ways, 2)."""
    replicas = dp * cp
    can = offered(question)
    zeros: tuple[int, ...] = (can.zero_stages(tp=tp, pp=pp) if replicas > 1 else ()) or (0,)
    if constraints.zero is not None:
        zeros = (constraints.zero,)
    shards = [0, *shard_degrees(question, tp=tp, cp=cp, pp=pp, dp=dp)]
    if constraints.shard is not None:
        shards = [constraints.shard]
    pairs = [(zero, shard) for zero in zeros for shard in (shards if zero >= 1 else [0])]
    return np.array(pairs, dtype=np.int64)


def _left(question: Question, constraints: Constraints, at: Degrees) -> Choices:
    """The remaining choices at degrees; those of the experts' axes do not matter to them."""
    job, layers = question.job, question.model.layers
    micro = [d for d in divisors(job.global_batch // at.dp) if d <= max(64, 16384 // job.seq_len)]
    micro = [constraints.micro_batch] if constraints.micro_batch else micro
    sequence = [0, 1] if at.tp > 1 else [0]
    if at.tp > 1 and offered(question).experts_need_sequence_parallel and question.model.experts:
        sequence = [1]
    if constraints.sequence_parallel is not None:
        sequence = [int(constraints.sequence_parallel)]
    # Two placements differ only when both pipeline and data groups could be the inner ones.
    inside = at.tp * at.cp < question.cluster.fast_domain
    orders = [0, 1] if at.pp > 1 and at.dp * at.cp > 1 and inside else [0]
    if constraints.rank_order is not None:
        orders = [_orders(constraints).index(constraints.rank_order)]
    return Choices(
        tuple(_schedules(question, constraints, at.pp, layers)),
        tuple(micro),
        tuple(recompute_modes(question, constraints)),
        tuple(sequence),
        tuple(orders),
        tuple(_context_methods(question, constraints, at)),
    )


def _orders(constraints: Constraints) -> tuple[str, ...]:
    """Names of the rank orders that columns may have."""
    if constraints.rank_order is None:
        return RANK_ORDERS
    return tuple(dict.fromkeys((*RANK_ORDERS, constraints.rank_order)))


@lru_cache(maxsize=512)
def _grid(choices: Choices) -> Ints:
    """All combinations of the choices, a column each: schedule, virtual stages, micro-batch,
    recomputation, its modules, sequence parallelism, rank order, context method."""
    grids = np.meshgrid(*(np.arange(len(axis)) for axis in choices), indexing="ij")
    which, micro, mode, sequence, order, method = (grid.ravel() for grid in grids)
    schedules, modes = np.array(choices.schedules), np.array(choices.modes)
    return np.stack([
        schedules[which, 0], schedules[which, 1], np.array(choices.micro)[micro], modes[mode, 0],
        modes[mode, 1], np.array(choices.sequence)[sequence], np.array(choices.orders)[order],
        np.array(choices.methods)[method],
    ]).astype(np.int64)  # fmt: skip


def columns_at(constraints: Constraints, some: Sequence[Corner]) -> LayoutColumns:
    """All combinations at some corners, sharded as far as may be."""
    sizes = [corner.rows for corner in some]
    schedule, virtual, micro, mode, modules, sequence, order, method = np.concatenate(
        [_grid(corner.choices) for corner in some], axis=1
    )
    fixed = np.array([(*corner.at, corner.zero) for corner in some], dtype=np.int64)
    tp, cp, pp, dp, ep, etp, zero = np.repeat(fixed.T, sizes, axis=1)
    none = np.zeros(len(tp), dtype=np.int64)
    return LayoutColumns(
        dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, virtual_stages=virtual,
        zero=zero, shard=none, micro_batch=micro, recompute=mode, recompute_layers=none,
        recompute_split=none, sequence_parallel=sequence, schedule=schedule, rank_order=order,
        first_layers=none, middle_layers=none, last_layers=none, stage_split=none, recompute_modules=modules,
        offload=none + bits(constraints.offload or (), OFFLOADS), cp_method=method,
        orders=_orders(constraints),
    )  # fmt: skip


def recompute_modes(question: Question, constraints: Constraints) -> list[tuple[int, int]]:
    """(mode, bits of modules) to consider: none, selective as the framework means it, by module, full.

    Where attention's kernel keeps no scores, recomputing attention alone frees next to nothing.
    """
    can, job = offered(question), question.job
    if constraints.recompute_modules is not None:
        return [(1, bits(constraints.recompute_modules, MODULES))]
    known = behaviour(job)
    useless = known.selective == "attention" and known.attention_kernel != "unfused"
    modes = [(RECOMPUTES.index(mode), 0) for mode in can.recompute]
    if useless and can.recompute_modules:
        modes.remove((1, 0))
    modes += [(1, bits(names, MODULES)) for names in _module_sets(question, can)]
    if constraints.no_recompute:
        modes = [(0, 0)]
    if constraints.recompute is not None:
        wanted = RECOMPUTES.index(constraints.recompute)
        modes = [mode for mode in modes if mode[0] == wanted] or [(wanted, 0)]
    return sorted(modes)


def _module_sets(question: Question, can: Framework) -> list[tuple[RecomputeModule, ...]]:
    """Sets of modules worth pricing, from the cheapest to run again: each holds the ones before."""
    model, chosen = question.model, []
    cheap: list[RecomputeModule] = ["layernorm", "moe_act"] if model.experts else []
    steps: list[list[RecomputeModule]] = [cheap]
    steps += [["mla_up_proj"]] if model.latent_attention else []
    steps += [["moe"]] if model.experts else [["mlp"]]
    found: list[RecomputeModule] = []
    for step in steps:
        found += [name for name in step if name in can.recompute_modules]
        if found and tuple(found) not in chosen:
            chosen.append(tuple(found))
    return chosen


LONG = 8192
"""Tokens of a sequence above which every way to meet other ranks' keys is searched, not the first alone:
below, context parallelism is of so low a degree that they cost alike."""


def _context_methods(question: Question, constraints: Constraints, at: Degrees) -> list[int]:
    """Positions in `CONTEXT_METHODS` of the ways to meet the keys of other context-parallel ranks."""
    if at.cp == 1:
        return [0]
    if constraints.cp_method is not None:
        return [CONTEXT_METHODS.index(constraints.cp_method)]
    names = offered(question).context_methods_of(question.model)
    codes = [CONTEXT_METHODS.index(name) for name in CONTEXT_METHODS if name in names] or [0]
    if question.job.seq_len <= LONG and "ring" in names:
        return [CONTEXT_METHODS.index("ring")]
    return codes if question.job.seq_len > LONG else codes[:1]


def _most_sharded(question: Question, pairs: Ints, *, tp: int, pp: int) -> int:
    """The highest ZeRO stage of some pairs that the framework runs; the highest if it runs none."""
    can = offered(question).zero_stages(tp=tp, pp=pp)
    stages = [int(zero) for zero in pairs[:, 0] if int(zero) in can]
    return max(stages or [int(pairs[:, 0].max())])


def _schedules(
    question: Question, constraints: Constraints, pp: int, layers: int
) -> list[tuple[int, int]]:
    """(schedule code, virtual stages) to consider at a pipeline degree."""
    if pp == 1:
        return [(CODE[constraints.schedule or "1f1b"], 1)]
    chunks = [
        v
        for v in range(2, layers // pp + 1)
        if layers % (pp * v) == 0 or (layers + 2) % (pp * v) == 0
    ]
    if len(chunks) < 2 and offered(question).stage_layers:
        # 61 or 94 layers divide by next to nothing: the chunks' layers are named instead.
        chunks = sorted({*chunks, *(v for v in UNEVEN if pp * v <= layers)})
    options = [("1f1b", 1)] + [("interleaved", v) for v in chunks]
    if "zb-v" in offered(question).schedules:
        options += [("zb-v", 2)] if layers >= 2 * pp else []
    if constraints.schedule is not None:
        options = [o for o in options if o[0] == constraints.schedule] or [
            (constraints.schedule, constraints.virtual_stages or 1)
        ]
    if constraints.virtual_stages is not None:
        options = [(name, v) for name, v in options if v == constraints.virtual_stages] or options[
            :0
        ]
    return [(CODE[name], v) for name, v in options] or [(CODE["1f1b"], 1)]
