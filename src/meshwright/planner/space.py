"""The space of layouts: every combination of axes that could run, generated in columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from pydantic import field_validator

from meshwright.costs.columns import RANK_ORDERS, RECOMPUTES, LayoutColumns
from meshwright.costs.pipeline import CODE
from meshwright.planner.legality import Question, legal
from meshwright.specs.base import Spec
from meshwright.specs.errors import SpecError
from meshwright.specs.frameworks import Framework, framework
from meshwright.specs.layout import AXES

MEMORY_MARGIN = 0.05
"""Share of a layout's modelled peak kept free for what the memory model gets wrong."""


class Constraints(Spec):
    """What the user fixes or forbids. None leaves an axis free."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    virtual_stages: int | None = None
    zero: int | None = None
    shard: int | None = None
    micro_batch: int | None = None
    recompute: str | None = None
    sequence_parallel: bool | None = None
    schedule: str | None = None
    rank_order: str | None = None
    max_tp: int | None = None
    max_pp: int | None = None
    no_recompute: bool = False

    @field_validator("rank_order")
    @classmethod
    def _known_axes(cls, order: str | None) -> str | None:
        if order is not None and sorted(order.split("-")) != sorted(AXES):
            raise SpecError(
                "rank_order", order, "each of tp, cp, ep, dp, pp once, as tp-cp-ep-pp-dp"
            )
        return order


@dataclass
class Tally:
    """Combinations removed before pricing, by reason."""

    removed: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, count: int) -> None:
        """Add to a reason's count."""
        if count:
            self.removed[reason] = self.removed.get(reason, 0) + count


def offered(question: Question) -> Framework:
    """The framework whose choices the search offers where the user fixes none.

    A job of no framework is offered what Megatron-Core and all that is built on it can run: any
    schedule of the literature beside any ZeRO stage would be a plan that nothing can start.
    """
    name = question.job.framework
    return framework("megatron" if name == "any" else name)


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def enumerate_layouts(
    question: Question, constraints: Constraints, tally: Tally
) -> Iterator[LayoutColumns]:
    """Yield tables of legal layouts, one per (tp, cp, pp, ep); illegal ones are counted in `tally`.

    Degrees that cannot divide heads, layers, experts or the batch are never generated; the tally
    counts what the remaining rules of `legality` remove.
    """
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
                for ep in _choices(_expert_degrees(question, dp * cp * tp), constraints.ep, None):
                    table = _inner(question, constraints, tp, cp, pp, dp, ep)
                    alive, removed = legal(question, table)
                    for reason, count in removed.items():
                        tally.add(reason, count)
                    if alive.all():
                        yield table
                    elif alive.any():
                        yield table.take(alive)


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


def _inner(
    question: Question, constraints: Constraints, tp: int, cp: int, pp: int, dp: int, ep: int
) -> LayoutColumns:
    """All combinations of the remaining choices at fixed degrees."""
    job, layers = question.job, question.model.layers
    micro = [d for d in divisors(job.global_batch // dp) if d <= max(64, 16384 // job.seq_len)]
    micro = [constraints.micro_batch] if constraints.micro_batch else micro
    schedules = _schedules(question, constraints, pp, layers)
    replicas = dp * cp
    can = offered(question)
    zeros = (can.zero_stages(tp=tp, pp=pp) if replicas > 1 else ()) or (0,)
    if constraints.zero is not None:
        zeros = (constraints.zero,)
    shards = [0, *shard_degrees(question, tp=tp, cp=cp, pp=pp, dp=dp)]
    if constraints.shard is not None:
        shards = [constraints.shard]
    pairs = [(zero, shard) for zero in zeros for shard in (shards if zero >= 1 else [0])]
    modes = range(len(RECOMPUTES))
    if constraints.no_recompute:
        modes = range(1)
    if constraints.recompute is not None:
        modes = range(
            RECOMPUTES.index(constraints.recompute), RECOMPUTES.index(constraints.recompute) + 1
        )
    sequence = [0, 1] if tp > 1 else [0]
    if tp > 1 and can.experts_need_sequence_parallel and question.model.experts:
        sequence = [1]
    if constraints.sequence_parallel is not None:
        sequence = [int(constraints.sequence_parallel)]
    # Two placements differ only when both pipeline and data groups could be the inner ones.
    orders = [0, 1] if pp > 1 and replicas > 1 and tp * cp < question.cluster.fast_domain else [0]
    names: tuple[str, ...] = RANK_ORDERS
    if constraints.rank_order is not None:
        names = tuple(dict.fromkeys((*RANK_ORDERS, constraints.rank_order)))
        orders = [names.index(constraints.rank_order)]
    grids = np.meshgrid(
        np.arange(len(schedules)), np.arange(len(pairs)), np.array(micro), np.array(list(modes)),
        np.array(sequence), np.array(orders), indexing="ij",
    )  # fmt: skip
    which, pair, micro_batch, recompute, sp, order = (
        grid.ravel().astype(np.int64) for grid in grids
    )
    rows = len(which)

    def full(value: int) -> np.ndarray:
        return np.full(rows, value, dtype=np.int64)

    schedule_table, pair_table = np.array(schedules), np.array(pairs)
    return LayoutColumns(
        dp=full(dp), tp=full(tp), pp=full(pp), cp=full(cp), ep=full(ep), etp=full(1),
        virtual_stages=schedule_table[which, 1], zero=pair_table[pair, 0], shard=pair_table[pair, 1],
        micro_batch=micro_batch, recompute=recompute, recompute_layers=full(0),
        recompute_split=full(0),
        sequence_parallel=sp, schedule=schedule_table[which, 0], rank_order=order,
        first_layers=full(0), middle_layers=full(0), last_layers=full(0), orders=names,
    )  # fmt: skip


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
