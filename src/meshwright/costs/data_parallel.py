"""Exposed time of gradient reduction and parameter gathering, by ZeRO stage, in columns."""

from __future__ import annotations

import numpy as np

from meshwright.costs import pipeline
from meshwright.costs.collectives import all_gather, all_reduce, broadcast, reduce_scatter
from meshwright.costs.columns import Floats, Ints, LayoutColumns, distinct
from meshwright.costs.fabric import Fabric, place
from meshwright.costs.frameworks import Behaviour
from meshwright.costs.memory import MemoryColumns
from meshwright.costs.processors import check_s
from meshwright.costs.stages import StageLayers
from meshwright.costs.states import expert_shard_degree
from meshwright.costs.tables import table

PESSIMISTIC_TRAFFIC = 1.35
"""How much slower data-parallel traffic may be than modelled, for ranking: the 90th percentile of
the collective model's error between nodes (docs/collectives.md) and a busy network."""

OWNED_MATRICES = 5
"""Large matrices of a layer that ranks own whole (`zero1_owners`): queries, keys and values in one, the output,
three of the FFN (InternLM/InternEvo, internlm/model/modeling_internlm.py). Norms go with their neighbours."""


def data_parallel_s(
    framework: Behaviour,
    fabric: Fabric,
    columns: LayoutColumns,
    distances: dict[str, Ints],
    used: MemoryColumns,
    times: pipeline.StageTimes,
    layers: StageLayers,
    micro_batches: Ints,
    gradient_bytes: float,
) -> tuple[Floats, Floats]:
    """Exposed time of gradient reduction and parameter gathering for the heaviest rank.

    `gradient_bytes` is what a gradient takes on the wire: the job's, whose frameworks' exports ask for it.

    Returns it as modelled, and with all this traffic slower by `PESSIMISTIC_TRAFFIC`: what hides
    today may then stick out, which a factor on the exposed time would miss.

    ZeRO-0 all-reduces gradients; ZeRO-1 reduce-scatters them and all-gathers parameters; ZeRO-2
    keeps only its shard of the gradients, so every micro-batch reduces all of them; ZeRO-3 also
    gathers parameters again for each forward and backward, unless the framework keeps them
    gathered throughout a pipeline's step. With HSDP the shards are then all-reduced among the replicas.
    """
    rows, inverse = distinct(
        columns.dp, columns.tp, columns.pp, columns.cp, columns.ep, columns.etp, columns.zero,
        columns.shard, columns.rank_order, columns.first_layers, columns.last_layers,
        pipeline.copies_of_parameters(columns),
        pipeline.head_on_first_rank(columns).astype(np.int64),
    )  # fmt: skip
    few = columns.take(rows)
    stride = np.where(
        few.cp > 1, np.minimum(distances["dp"][rows], distances["cp"][rows]), distances["dp"][rows]
    )
    exposed, worst = np.zeros(columns.rows), np.zeros(columns.rows)
    for role, forward, backward in (
        ("first", times.first_forward, times.first_backward),
        ("middle", times.middle_forward, times.middle_backward),
        ("last", times.last_forward, times.last_backward),
    ):
        state = used.states[role]
        total, slower = np.zeros(columns.rows), np.zeros(columns.rows)
        dense = (state.dense_parameters, state.dense_gathered)
        expert = (state.expert_parameters, state.expert_gathered)
        for (parameters, gathered), group, near in (
            (dense, few.dp * few.cp, stride),
            (expert, expert_shard_degree(few), few.ep * few.etp),
        ):
            if not gathered.any():
                continue
            pieces = _pieces(framework, few, parameters[rows], layers.total(role)[rows])
            sizes = (parameters[rows] * gradient_bytes, gathered[rows])
            traffic = _traffic(fabric, few, sizes, pieces, group, near)
            if framework.zero1_owners:
                owners = np.minimum(group, OWNED_MATRICES * layers.total(role)[rows])
                traffic |= _by_owners(fabric, few, sizes, owners, group, near, traffic)
            here = {name: time[inverse] for name, time in traffic.items()}
            if framework.collectives_checked:
                calls = _calls(framework, few, pieces, layers.total(role)[rows])
                waits = _checks_s(few, calls, group)[inverse] * _rounds(columns, micro_batches)
                total, slower = total + waits, slower + waits
            hidden = (pieces[inverse], forward, backward, micro_batches)
            total = total + _exposed_of_group(framework, columns, here, *hidden)
            slow = {name: PESSIMISTIC_TRAFFIC * time for name, time in here.items()}
            slower = slower + _exposed_of_group(framework, columns, slow, *hidden)
        exposed, worst = np.maximum(exposed, total), np.maximum(worst, slower)
    return exposed, worst


def _pieces(framework: Behaviour, few: LayoutColumns, parameters: Floats, layers: Floats) -> Floats:
    """Communication goes in pieces: a bucket at a time, or under ZeRO-3 a layer at a time."""
    least = framework.bucket_parameters_per_rank * few.dp * few.cp
    bucket = np.maximum(np.maximum(framework.bucket_parameters, least), 1.0)
    buckets = np.maximum(np.ceil(parameters / bucket), 1.0)
    if not framework.zero1_bucketed:
        buckets = np.where(few.zero == 1, np.maximum(2.0 * layers, 1.0), buckets)
    if framework.bucket_parameters == 0:
        buckets = np.maximum(layers, 1.0)
    return np.where(few.zero == 3, np.maximum(layers, 1.0), buckets)


def _calls(framework: Behaviour, few: LayoutColumns, pieces: Floats, layers: Floats) -> Floats:
    """Collectives that one pass over all parameters calls for, whatever messages they become.

    What waits for the last backward goes in one coalesced call. What is reduced beside backward goes
    bucket by bucket, and a large weight is a bucket by itself: two a layer.
    """
    at_once = (few.zero == 1) & (not framework.zero1_bucketed)
    at_once = at_once | ((few.pp > 1) & (not framework.overlapped_in_pipeline))
    return np.where(at_once, 1.0, np.minimum(pieces, np.maximum(2.0 * layers, 1.0)))


def _checks_s(few: LayoutColumns, calls: Floats, group: Ints) -> Floats:
    """Host time of checking one pass of collectives over all parameters, which nothing hides."""
    shard = np.where(few.zero > 0, np.minimum(few.shard_degree, group), group)
    return calls * check_s(shard) + check_s(np.maximum(group // shard, 1))


def _rounds(columns: LayoutColumns, micro_batches: Ints) -> Floats:
    """Passes of collectives over all parameters in a step: reduce, and with shards gather."""
    m = micro_batches.astype(np.float64)
    return np.choose(columns.zero, [np.ones_like(m), np.full_like(m, 2.0), m + 1.0, 3.0 * m])


def _traffic(
    fabric: Fabric,
    few: LayoutColumns,
    sizes: tuple[Floats, Floats],
    pieces: Floats,
    group: Ints,
    stride: Ints,
) -> dict[str, Floats]:
    """Time of each collective over all parameters of a rank, whatever it may hide behind.

    `sizes` are the bytes of gradients to reduce and of weights to gather.
    """
    gradient_size, gather_size = sizes
    shard = np.where(few.zero > 0, np.minimum(few.shard_degree, group), group)
    outer = np.maximum(group // shard, 1)
    whole = place(fabric, group, stride=stride)
    sharded = place(fabric, shard, stride=stride)
    replicated = place(fabric, outer, stride=stride * shard)
    return {
        "reduce_all": pieces * all_reduce(fabric, gradient_size / pieces, whole),
        "scatter": pieces * reduce_scatter(fabric, gradient_size / pieces, sharded),
        "gather": pieces * all_gather(fabric, gather_size / pieces, sharded),
        "among_replicas": all_reduce(fabric, gradient_size / shard, replicated),
    }


def _by_owners(
    fabric: Fabric,
    few: LayoutColumns,
    sizes: tuple[Floats, Floats],
    owners: Floats,
    group: Ints,
    stride: Ints,
    otherwise: dict[str, Floats],
) -> dict[str, Floats]:
    """ZeRO-1's traffic where whole tensors have owners: a reduction to each of them, a broadcast from each.

    Unlike one collective over all shards, every message goes round all members before the next one has, so
    the time grows with owners times members.
    """
    shard = np.where(few.zero > 0, np.minimum(few.shard_degree, group), group)
    several = np.maximum(np.minimum(owners, shard), 1.0)
    sharded = place(fabric, shard, stride=stride)
    reduced, gathered = (several * broadcast(fabric, size / several, sharded) for size in sizes)
    return {
        "scatter": np.where(few.zero == 1, reduced, otherwise["scatter"]),
        "gather": np.where(few.zero == 1, gathered, otherwise["gather"]),
    }


def _exposed_of_group(
    framework: Behaviour,
    columns: LayoutColumns,
    traffic: dict[str, Floats],
    pieces: Floats,
    forward: Floats,
    backward: Floats,
    micro_batches: Ints,
) -> Floats:
    """Step time that the collectives of one kind of parameters add, by ZeRO stage.

    What overlaps hides behind the last micro-batch's backward (and the first one's forward), all
    but one piece: the last to be produced has nothing left to hide behind. Interleaved chunks are
    done with their gradients one after another while the others still work (`_window`).
    """
    window = _window(columns, micro_batches)
    reducing, gathering = framework.reduce_overlapped, framework.gather_overlapped
    scatter, gather = traffic["scatter"], traffic["gather"]
    replicas = traffic["among_replicas"]
    zero = columns.zero
    whole = (zero == 0) | ((zero == 1) & framework.zero1_all_reduce)
    first = np.where(whole, traffic["reduce_all"], scatter + replicas)
    gather_once = np.where(zero > 0, gather, 0.0)
    parameters_once = _exposed(gather_once, window * forward, gather_once / pieces, gathering)
    behind = window * backward
    if not framework.overlapped_in_pipeline:
        behind = np.where(columns.pp > 1, 0.0, behind)
    once = _exposed(first, behind, first / pieces, reducing) + parameters_once
    tail = _exposed(replicas, backward, replicas / pieces, reducing)
    every = micro_batches * _exposed(scatter, backward, scatter / pieces, reducing)
    again = _exposed(gather, forward, gather / pieces, gathering)
    both = _exposed(gather + scatter, backward, (gather + scatter) / pieces, gathering)
    result = np.where(zero == 2, every + tail + parameters_once, once)
    three = micro_batches * (again + both) + tail
    if framework.pipeline_unsharded:
        three = np.where(columns.pp > 1, once, three)
    return np.where(zero == 3, three, result)


def _window(columns: LayoutColumns, micro_batches: Ints) -> Floats:
    """Micro-batches of a rank's backward that its data-parallel traffic may hide behind.

    One without interleaving. Of v chunks the first to finish leaves the other v − 1 the backward of
    p micro-batches each: Megatron's interleaved order takes p micro-batches of one chunk at a time
    (arXiv 2104.04473 §2.2).
    """
    v = np.maximum(columns.virtual_stages, 1)
    turns = np.minimum(columns.pp, micro_batches)
    together = (columns.schedule == pipeline.CODE["interleaved"]) & (v > 1)
    return np.where(together, (turns * (v - 1) + 1) / v, 1.0)


def _exposed(time: Floats, behind: Floats, least: Floats, overlapped: bool) -> Floats:
    """Step time that communication adds: what sticks out, and what its hidden part slows down."""
    if not overlapped:
        return time
    out = np.maximum(time - behind, least)
    return out + overlap_slowdown() * (time - out)


def overlap_slowdown() -> float:
    """Extra compute time per second of communication hidden behind it, from data/overlap.toml."""
    return float(table("overlap")["slowdown"]["per_hidden_second"])
