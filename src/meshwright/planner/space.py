"""The space of layouts: every combination of axes that could run, generated in columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from pydantic import Field, field_validator

from meshwright.costs.columns import (
    RANK_ORDERS,
    RECOMPUTES,
    Bools,
    Ints,
    LayoutColumns,
    bits,
    concatenate,
)
from meshwright.costs.frameworks import behaviour
from meshwright.costs.pipeline import CODE
from meshwright.planner.legality import (
    OTHER_RULES,
    SHARDING_RULES,
    Question,
    legal,
)
from meshwright.specs.base import Spec
from meshwright.specs.errors import SpecError
from meshwright.specs.frameworks import Framework, framework
from meshwright.specs.layout import (
    AXES,
    CONTEXT_METHODS,
    MODULES,
    OFFLOADS,
    ContextMethod,
    Layout,
    Offload,
    RecomputeModule,
)


class Constraints(Spec):
    """What the user fixes or forbids. None leaves an axis free."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    virtual_stages: int | None = None
    zero: int | None = None
    shard: int | None = None
    micro_batch: int | None = None
    recompute: str | None = None
    recompute_modules: tuple[RecomputeModule, ...] | None = None
    offload: tuple[Offload, ...] | None = Field(
        None, description="what lives in host memory; None: whatever makes the best plan"
    )
    sequence_parallel: bool | None = None
    cp_method: ContextMethod | None = None
    schedule: str | None = None
    rank_order: str | None = None
    max_tp: int | None = None
    max_pp: int | None = None
    no_recompute: bool = False
    fit_probability: float | None = Field(
        None, gt=0, lt=1, description="with which the winner must fit; None: 90 %"
    )

    @field_validator("recompute_modules", "offload", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        """Names with commas, and `none`, as a command line has them."""
        if not isinstance(value, str):
            return value
        return () if value.strip() == "none" else tuple(part.strip() for part in value.split(","))

    @field_validator("rank_order")
    @classmethod
    def _known_axes(cls, order: str | None) -> str | None:
        if order is not None and sorted(order.split("-")) != sorted(AXES):
            raise SpecError(
                "rank_order", order, "each of tp, cp, ep, dp, pp once, as tp-cp-ep-pp-dp"
            )
        return order


def allows(constraints: Constraints, layout: Layout) -> bool:
    """Whether a layout keeps to what the user fixed or forbade."""
    fixed = (
        "tp", "pp", "dp", "cp", "ep", "etp", "virtual_stages", "zero", "shard", "micro_batch",
        "recompute", "recompute_modules", "offload", "sequence_parallel", "cp_method", "schedule", "rank_order",
    )  # fmt: skip
    for name in fixed:
        wanted = getattr(constraints, name)
        if wanted is not None and getattr(layout, name) != wanted:
            return False
    return (
        layout.tp <= (constraints.max_tp or layout.tp)
        and layout.pp <= (constraints.max_pp or layout.pp)
        and not (constraints.no_recompute and layout.recompute != "none")
    )


@dataclass
class Tally:
    """Combinations removed before pricing, by reason."""

    removed: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, count: int) -> None:
        """Add to a reason's count."""
        if count:
            self.removed[reason] = self.removed.get(reason, 0) + count

    def add_all(self, removed: dict[str, int]) -> None:
        """Add to several reasons' counts."""
        for reason, count in removed.items():
            self.add(reason, count)


def offered(question: Question) -> Framework:
    """The framework whose choices the search offers where the user fixes none."""
    return framework(question.job.framework)


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


@dataclass(frozen=True)
class Heads:
    """Layouts that differ in more than how states are sharded; each stands for all ways to shard it.

    `columns` holds each head sharded as far as its framework may, so that no way to shard it holds
    less; `group` says of each row which of `ways` it has: arrays of (ZeRO stage, shard degree).
    """

    columns: LayoutColumns
    group: Ints
    ways: tuple[Ints, ...]

    @property
    def counts(self) -> Ints:
        """Layouts that each head stands for; shape (rows,)."""
        return np.array([len(ways) for ways in self.ways], dtype=np.int64)[self.group]

    def take(self, index: Ints | Bools) -> Heads:
        """Return the chosen rows."""
        return Heads(self.columns.take(index), self.group[index], self.ways)

    def expand(self, index: Ints | slice) -> LayoutColumns:
        """Every way to shard the chosen heads."""
        group = self.group[index]
        rows = np.arange(self.columns.rows)[index]
        each = [self.ways[code] for code in group]
        pairs = np.concatenate(each)
        table = self.columns.take(np.repeat(rows, [len(ways) for ways in each]))
        return replace(table, zero=pairs[:, 0].copy(), shard=pairs[:, 1].copy())


def enumerate_layouts(
    question: Question, constraints: Constraints, tally: Tally
) -> Iterator[LayoutColumns]:
    """Yield tables of legal layouts; illegal ones are counted in `tally`.

    Degrees that cannot divide heads, layers, experts or the batch are never generated; the tally
    counts what the remaining rules of `legality` remove.
    """
    for heads in enumerate_heads(question, constraints, tally):
        for start, stop in _even_cuts(heads.counts, TABLE):
            table = heads.expand(slice(start, stop))
            alive, removed = legal(question, table, SHARDING_RULES)
            tally.add_all(removed)
            if alive.any():
                yield table if alive.all() else table.take(alive)


TABLE = 16_384
"""Layouts in a table: few enough to stay in a processor's cache, enough to be worth a call."""


def _even_cuts(counts: Ints, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose counts add up to about `size`."""
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):
        done = ends[start - 1] if start else 0
        stop = max(int(np.searchsorted(ends, done + size, side="right")), start + 1)
        yield start, stop
        start = stop


def enumerate_heads(question: Question, constraints: Constraints, tally: Tally) -> Iterator[Heads]:
    """Yield legal heads, many degrees to a table; what rules remove is counted in layouts."""
    waiting: list[LayoutColumns] = []
    group: list[int] = []
    ways: list[Ints] = []
    rows = 0
    for table, pairs in _tables(question, constraints, tally):
        waiting.append(table)
        group.append(table.rows)
        ways.append(pairs)
        rows += table.rows
        if rows >= TABLE:
            yield from _legal_heads(question, waiting, group, ways, tally)
            waiting, group, ways, rows = [], [], [], 0
    if waiting:
        yield from _legal_heads(question, waiting, group, ways, tally)


def _legal_heads(
    question: Question, tables: list[LayoutColumns], sizes: list[int], ways: list[Ints],
    tally: Tally,
) -> Iterator[Heads]:  # fmt: skip
    heads = Heads(
        concatenate(tables), np.repeat(np.arange(len(sizes), dtype=np.int64), sizes), tuple(ways)
    )
    alive, removed = legal(question, heads.columns, OTHER_RULES, heads.counts)
    tally.add_all(removed)
    if alive.any():
        yield heads if alive.all() else heads.take(alive)


def _tables(
    question: Question, constraints: Constraints, tally: Tally
) -> Iterator[tuple[LayoutColumns, Ints]]:
    """Combinations at fixed degrees, and the ways to shard each; one per (tp, cp, pp, ep, etp)."""
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
                for ep in _choices(_expert_degrees(question, dp * cp * tp), constraints.ep, None):
                    for etp in _choices(
                        _expert_tensor_degrees(question, tp), constraints.etp, None
                    ):
                        yield (
                            _inner(question, constraints, pairs, Degrees(tp, cp, pp, dp, ep, etp)),
                            pairs,
                        )


def _choices(free: list[int], fixed: int | None, most: int | None) -> list[int]:
    if fixed is not None:
        return [fixed]
    return [value for value in free if most is None or value <= most]


def _tensor_degrees(question: Question, world: int) -> list[int]:
    model = question.model
    if not offered(question).has("tp"):
        return [1]
    return [d for d in divisors(model.heads) if model.ffn % d == 0 and world % d == 0]


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


class Degrees(NamedTuple):
    """Degrees of every axis."""

    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    etp: int


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


def _inner(question: Question, constraints: Constraints, pairs: Ints, at: Degrees) -> LayoutColumns:
    """All combinations of the remaining choices at fixed degrees, sharded as far as may be."""
    job, layers = question.job, question.model.layers
    micro = [d for d in divisors(job.global_batch // at.dp) if d <= max(64, 16384 // job.seq_len)]
    micro = [constraints.micro_batch] if constraints.micro_batch else micro
    schedules = _schedules(question, constraints, at.pp, layers)
    modes = recompute_modes(question, constraints)
    sequence = [0, 1] if at.tp > 1 else [0]
    if at.tp > 1 and offered(question).experts_need_sequence_parallel and question.model.experts:
        sequence = [1]
    if constraints.sequence_parallel is not None:
        sequence = [int(constraints.sequence_parallel)]
    # Two placements differ only when both pipeline and data groups could be the inner ones.
    inside = at.tp * at.cp < question.cluster.fast_domain
    orders = [0, 1] if at.pp > 1 and at.dp * at.cp > 1 and inside else [0]
    names: tuple[str, ...] = RANK_ORDERS
    if constraints.rank_order is not None:
        names = tuple(dict.fromkeys((*RANK_ORDERS, constraints.rank_order)))
        orders = [names.index(constraints.rank_order)]
    methods = _context_methods(question, constraints, at)
    grids = np.meshgrid(
        np.arange(len(schedules)), np.array(micro), np.arange(len(modes)), np.array(sequence),
        np.array(orders), np.array(methods), indexing="ij",
    )  # fmt: skip
    which, micro_batch, mode, sp, order, method = (grid.ravel().astype(np.int64) for grid in grids)
    rows = len(which)

    def full(value: int) -> np.ndarray:
        return np.full(rows, value, dtype=np.int64)

    schedule_table, mode_table = np.array(schedules), np.array(modes)
    return LayoutColumns(
        dp=full(at.dp), tp=full(at.tp), pp=full(at.pp), cp=full(at.cp), ep=full(at.ep),
        etp=full(at.etp), virtual_stages=schedule_table[which, 1],
        zero=full(_most_sharded(question, pairs, at)), shard=full(0),
        micro_batch=micro_batch, recompute=mode_table[mode, 0], recompute_layers=full(0),
        recompute_split=full(0),
        sequence_parallel=sp, schedule=schedule_table[which, 0], rank_order=order,
        first_layers=full(0), middle_layers=full(0), last_layers=full(0),
        recompute_modules=mode_table[mode, 1],
        offload=full(bits(constraints.offload or (), OFFLOADS)), cp_method=method, orders=names,
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


def _most_sharded(question: Question, pairs: Ints, at: Degrees) -> int:
    """The highest ZeRO stage of some pairs that the framework runs; the highest if it runs none."""
    can = offered(question).zero_stages(tp=at.tp, pp=at.pp)
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
