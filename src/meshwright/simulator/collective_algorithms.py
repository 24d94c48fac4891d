"""The algorithms: ring, trees, halving-doubling, hierarchies, tori, NVLS, pairwise.

Each builder appends the messages of one collective to a `Program`. A torus of dimensions
(d0, d1, …) runs rings along each dimension in turn; a hierarchy of g ranks in k nodes is the
torus (g, k) and recursive halving-doubling the torus (2, 2, …), so one builder makes all three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from meshwright.simulator.collective_steps import Op, Program
from meshwright.specs.errors import SpecError, nearest

MAX_MESSAGES = 400_000
RINGS = ("all_reduce", "all_gather", "reduce_scatter")
"""Collectives that can run on a ring for each network card."""


def build(
    collective: str,
    algorithm: str,
    ranks: int,
    *,
    local: int | None = None,
    dims: Sequence[int] | None = None,
    pipeline: int = 8,
) -> Program:
    """Build the messages of a collective.

    Args:
        collective: all_reduce, reduce_scatter, all_gather, broadcast, all_to_all or send_recv.
        algorithm: one of `ALGORITHMS[collective]`.
        ranks: members of the group, at least 2.
        local: ranks per node, for `hierarchical` and `rail-rings`.
        dims: sizes of the torus, innermost first, for `torus`.
        pipeline: chunks that follow each other, for trees and broadcasts.

    Raises:
        SpecError: the algorithm does not exist or cannot run on this group.
    """
    name = collective.replace("-", "_")
    if name not in ALGORITHMS:
        raise SpecError("collective", collective, nearest(name, ALGORITHMS))
    if algorithm not in ALGORITHMS[name]:
        raise SpecError("algorithm", algorithm, f"{collective} has {', '.join(ALGORITHMS[name])}")
    if ranks < 2:
        raise SpecError("ranks", ranks, "at least two ranks are needed to communicate")
    if pipeline < 1:
        raise SpecError("pipeline", pipeline, "at least one chunk is expected")
    lanes = {"nvls": pipeline, "rail-rings": local or 1}.get(algorithm, 1)
    if 2 * ranks * max(ranks, pipeline) * lanes > MAX_MESSAGES:
        raise SpecError("ranks", ranks, "too many messages to list; price it without --steps")
    sizes = _sizes(algorithm, ranks, local, dims)
    return ALGORITHMS[name][algorithm](name, ranks, sizes, pipeline)


def _sizes(
    algorithm: str, ranks: int, local: int | None, dims: Sequence[int] | None
) -> tuple[int, ...]:
    if algorithm in ("hierarchical", "rail-rings"):
        if local is None or local < 1 or ranks % local:
            raise SpecError("local", local, f"a divisor of the {ranks} ranks is expected")
        return (local, ranks // local)
    if algorithm == "torus":
        if not dims or prod(dims) != ranks or min(dims) < 1:
            raise SpecError("dims", dims, f"sizes whose product is {ranks} are expected")
        return tuple(dims)
    if algorithm == "halving-doubling":
        return (2,) * (ranks.bit_length() - 1)
    return (ranks,)


def _torus_position(sizes: Sequence[int]) -> tuple[int, ...]:
    """Rank that owns each chunk after rings along all dimensions, the first one outermost."""
    owners = []
    for chunk in range(prod(sizes)):
        rank, left, scale, width = 0, chunk, 1, prod(sizes)
        for size in sizes:
            width //= size
            rank += left // width * scale
            left %= width
            scale *= size
        owners.append(rank)
    return tuple(owners)


def _rings(program: Program, step: int, sizes: Sequence[int], axis: int, op: Op) -> int:
    """One ring along `axis` through every line of the torus; returns the next step.

    Reducing, the member at coordinate i ends with block i; copying, it starts with it.
    """
    n, size = prod(sizes), sizes[axis]
    scale = prod(sizes[:axis])
    width = n // (scale * size)
    for s in range(size - 1):
        for rank in range(n):
            coordinate = rank // scale % size
            ahead = rank + ((coordinate + 1) % size - coordinate) * scale
            block = (coordinate - s - (op == "reduce")) % size
            base, left = 0, n
            for a in range(axis):
                left //= sizes[a]
                base += rank // prod(sizes[:a]) % sizes[a] * left
            program.send(step + s, rank, ahead, base + block * width, op, width)
    return step + size - 1


def _torus(collective: str, ranks: int, sizes: tuple[int, ...], pipeline: int) -> Program:
    """Ring, hierarchical, torus, and halving-doubling for powers of two."""
    inside = prod(sizes)
    if inside != ranks:
        return _folded(collective, ranks, sizes)
    names = {1: "ring", 2: "hierarchical"}
    program = Program(
        collective, names.get(len(sizes), "torus"), ranks, ranks, _torus_position(sizes)
    )
    step = 0
    if collective != "all_gather":
        for axis in range(len(sizes)):
            step = _rings(program, step, sizes, axis, "reduce")
    if collective != "reduce_scatter":
        for axis in reversed(range(len(sizes))):
            step = _rings(program, step, sizes, axis, "copy")
    return program


def _rail_rings(collective: str, ranks: int, sizes: tuple[int, ...], pipeline: int) -> Program:
    """A ring for each rank of a node, entering and leaving the node by a card of its own.

    Every rank's share is cut into as many slices; slice j goes round ring j, which visits the
    local ranks from j on.
    """
    local, nodes = sizes
    program = Program(collective, "rail-rings", ranks, ranks * local)
    rings = [
        [node * local + (j + i) % local for node in range(nodes) for i in range(local)]
        for j in range(local)
    ]
    step = 0
    passes: list[Op] = ["reduce"] if collective != "all_gather" else []
    for op in [*passes, *(["copy"] if collective != "reduce_scatter" else [])]:
        for s in range(ranks - 1):
            for j, order in enumerate(rings):
                for i, rank in enumerate(order):
                    owner = order[(i - s - (op == "reduce")) % ranks]
                    ahead = order[(i + 1) % ranks]
                    chunk = owner * local + j
                    kind: Op = "reduce" if op == "reduce" else "copy"
                    program.send(step + s, rank, ahead, chunk, kind, lane=j, ordered=False)
        step += ranks - 1
    return program


def _folded(collective: str, ranks: int, sizes: tuple[int, ...]) -> Program:
    """Halving-doubling beyond a power of two: the rest fold in first and are served last."""
    power = prod(sizes)
    if collective != "all_reduce":
        raise SpecError("ranks", ranks, f"a power of two is expected for {collective}")
    program = Program(collective, "halving-doubling", ranks, power, _torus_position(sizes))
    for extra in range(power, ranks):
        program.send(0, extra, extra - power, 0, "reduce", power)
    step = 1
    for axis in range(len(sizes)):
        step = _rings(program, step, sizes, axis, "reduce")
    for axis in reversed(range(len(sizes))):
        step = _rings(program, step, sizes, axis, "copy")
    for extra in range(power, ranks):
        program.send(step, extra - power, extra, 0, "copy", power)
    return program


def double_binary_trees(ranks: int) -> tuple[list[int], list[int]]:
    """Parents (-1 at the root) in two trees; the leaves of one are inner ranks of the other.

    The first is the in-order tree on 1..n, where odd numbers are leaves; the second mirrors it
    (n even) or shifts it by one (n odd). Sanders, Speck, Träff (2009), section 3.
    """
    parent = [-1] * ranks
    for number in range(1, ranks + 1):
        low = number & -number
        above = (number ^ low) | (low << 1)
        above = above if above <= ranks else number ^ low
        parent[number - 1] = above - 1
    # Rank r plays the part of rank turned[r] in the second tree.
    turned = [ranks - 1 - r if ranks % 2 == 0 else (r + 1) % ranks for r in range(ranks)]
    second = [-1] * ranks
    for rank, above in enumerate(parent):
        if above >= 0:
            second[turned[rank]] = turned[above]
    return parent, second


def _depths(parent: list[int]) -> list[int]:
    def depth(rank: int) -> int:
        return 0 if parent[rank] < 0 else 1 + depth(parent[rank])

    return [depth(rank) for rank in range(len(parent))]


def _double_tree(collective: str, ranks: int, sizes: tuple[int, ...], pipeline: int) -> Program:
    """Half the chunks up and down each of two trees, following each other."""
    program = Program(collective, "tree", ranks, 2 * pipeline)
    for tree, parent in enumerate(double_binary_trees(ranks)):
        depth = _depths(parent)
        deepest = max(depth)
        by_depth = [r for level in range(deepest + 1) for r in range(ranks) if depth[r] == level]
        for c in range(pipeline):
            chunk = tree * pipeline + c
            for rank in reversed(by_depth):
                if parent[rank] >= 0:
                    step = c + deepest - depth[rank]
                    program.send(
                        step, rank, parent[rank], chunk, "reduce", lane=tree, ordered=False
                    )
            for rank in by_depth:
                if parent[rank] >= 0:
                    # A lane a child: a parent forwards to both children at once.
                    step = c + deepest + depth[rank] - 1
                    lane = 2 + 2 * ranks * tree + rank
                    program.send(step, parent[rank], rank, chunk, lane=lane, ordered=False)
    return program


def _nvls(collective: str, ranks: int, sizes: tuple[int, ...], pipeline: int) -> Program:
    """In-switch reduction: the switch adds a chunk, its owner reads it and multicasts it."""
    program = Program(collective, "nvls", ranks, ranks * pipeline, switches=1)
    switch = ranks
    for turn in range(ranks * pipeline):
        slice_, owner = divmod(turn, ranks)
        chunk = owner * pipeline + slice_
        for rank in range(ranks):
            program.send(turn, rank, switch, chunk, "reduce", ordered=False)
        program.send(turn + 1, switch, owner, chunk, lane=-1 - owner, ordered=False)
        if collective == "all_reduce":
            program.send(turn + 2, owner, switch, chunk, lane=1, ordered=False)
            for rank in range(ranks):
                if rank != owner:
                    program.send(turn + 3, switch, rank, chunk, lane=1 + rank, ordered=False)
    return program


def _direct(collective: str, ranks: int, sizes: tuple[int, ...], pipeline: int) -> Program:
    """Everyone to everyone, a different partner in each step."""
    program = Program(collective, "pairwise", ranks, ranks)
    for s in range(1, ranks):
        for rank in range(ranks):
            peer = (rank + s) % ranks
            if collective == "all_to_all":
                program.send(s - 1, rank, peer, rank * ranks + peer)
            elif collective == "all_gather":
                program.send(s - 1, rank, peer, rank)
            else:
                program.send(s - 1, rank, peer, peer, "reduce")
    return program


def _hierarchical_all_to_all(
    collective: str, ranks: int, sizes: tuple[int, ...], pipeline: int
) -> Program:
    """First to the local rank on the receiver's rail, then one larger message a node."""
    local, nodes = sizes
    # A buffer is ordered by the receiver's local index, then by its node.
    position = tuple(node * local + j for j in range(local) for node in range(nodes))
    program = Program(collective, "hierarchical", ranks, ranks, position)
    for s in range(1, local):
        for rank in range(ranks):
            node, j = divmod(rank, local)
            peer = (j + s) % local
            chunk = rank * ranks + peer * nodes
            program.send(s - 1, rank, node * local + peer, chunk, count=nodes)
    for s in range(1, nodes):
        for rank in range(ranks):
            node, j = divmod(rank, local)
            there = (node + s) % nodes
            first = node * local * ranks + j * nodes + there
            dst = there * local + j
            program.send(local + s - 2, rank, dst, first, count=local, stride=ranks)
    return program


def _ring_broadcast(collective: str, ranks: int, sizes: tuple[int, ...], pipeline: int) -> Program:
    program = Program(collective, "ring", ranks, pipeline)
    for chunk in range(pipeline):
        for rank in range(ranks - 1):
            program.send(chunk + rank, rank, rank + 1, chunk)
    return program


def _binomial_broadcast(
    collective: str, ranks: int, sizes: tuple[int, ...], pipeline: int
) -> Program:
    program = Program(collective, "tree", ranks, 1)
    step, have = 0, 1
    while have < ranks:
        for rank in range(min(have, ranks - have)):
            program.send(step, rank, rank + have, 0)
        step, have = step + 1, 2 * have
    return program


def _message(collective: str, ranks: int, sizes: tuple[int, ...], pipeline: int) -> Program:
    program = Program(collective, "direct", ranks, 1)
    program.send(0, 0, 1, 0)
    return program


Builder = Callable[[str, int, tuple[int, ...], int], Program]

_REDUCING: dict[str, Builder] = {
    "ring": _torus,
    "halving-doubling": _torus,
    "hierarchical": _torus,
    "torus": _torus,
    "rail-rings": _rail_rings,
}
ALGORITHMS: dict[str, dict[str, Builder]] = {
    "all_reduce": {**_REDUCING, "tree": _double_tree, "nvls": _nvls},
    "reduce_scatter": {**_REDUCING, "pairwise": _direct, "nvls": _nvls},
    "all_gather": {**_REDUCING, "pairwise": _direct},
    "broadcast": {"ring": _ring_broadcast, "tree": _binomial_broadcast},
    "all_to_all": {"pairwise": _direct, "hierarchical": _hierarchical_all_to_all},
    "send_recv": {"direct": _message},
}
"""What can be listed as messages: collective → algorithm → builder."""
