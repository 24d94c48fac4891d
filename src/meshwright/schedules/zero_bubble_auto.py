"""Automatic zero-bubble schedules under a memory limit: ZB-1p, ZB-2p and anything between.

The search of Qi et al. 2024 (arXiv 2401.10241, section 3.1) in our own form: a greedy dispatcher
with a few yes-or-no policies, run for every combination of them, and the best result kept.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import product

from meshwright.schedules.ops import Kind, Schedule, from_lists, loop_placement
from meshwright.schedules.zero_bubble import zb_h1, zb_h2
from meshwright.specs.stopping import go_on

_ROUND = 1e-9


@dataclass(frozen=True)
class Policy:
    """Choices of the dispatcher.

    Attributes:
        delay_first_backward: run one more warm-up forward although the first I is due before it
            ends, when memory allows.
        fill_early: run a W as soon as the next I or F is not ready, even if it cannot finish
            before that one is.
    """

    delay_first_backward: bool
    fill_early: bool


@dataclass
class _Rank:
    stage: int
    clock: float = 0.0
    forwards: int = 0
    inputs: int = 0
    weights: int = 0
    held: float = 0.0
    ops: list[tuple[int, int, int]] = field(default_factory=list)
    last_was_forward: bool = False


@dataclass(frozen=True)
class Problem:
    """What the dispatcher is asked for; times of one micro-batch on one rank.

    Attributes:
        limit: micro-batches of activations that a rank may hold.
        kept: share of a micro-batch's activations still held between its I and its W.
    """

    pp: int
    micro_batches: int
    forward: float
    backward_input: float
    backward_weight: float
    comm: float
    limit: float
    kept: float


def zb_auto(problem: Problem) -> Schedule:
    """Search the schedule with the smallest bubble whose ranks hold at most `limit` micro-batches.

    With a limit of pp this is the paper's ZB-1p, with 2 pp its ZB-2p.
    """
    pp, m = problem.pp, problem.micro_batches
    candidates = [dispatch(problem, Policy(*choice)) for choice in product((False, True), repeat=2)]
    hand_made = [zb_h1(pp, m)] if problem.limit >= min(pp, m) else []
    if problem.limit >= min(2 * pp - 1, m):
        hand_made.append(zb_h2(pp, m))
    candidates += [[list(s.ops(rank)) for rank in range(pp)] for s in hand_made]
    best = min((c for c in candidates if c is not None), key=lambda c: cost(problem, c))
    return from_lists("zb-auto", best, micro_batches=m, stage_rank=loop_placement(pp, 1))


def cost(problem: Problem, ranks: list[list[tuple[int, int, int]]]) -> tuple[float, float]:
    """Return the longest span of a rank and the makespan, under the problem's times."""
    took = (problem.forward, problem.backward_input + problem.backward_weight,
            problem.backward_input, problem.backward_weight)  # fmt: skip
    ended: dict[tuple[int, int, int], float] = {}
    clock, at, begun = [0.0] * problem.pp, [0] * problem.pp, [-1.0] * problem.pp
    moved = True
    while moved:
        moved = False
        for r, queue in enumerate(ranks):
            while at[r] < len(queue):
                kind, stage, unit = queue[at[r]]
                ready = 0.0
                if kind == Kind.F and stage:
                    ready = ended.get((Kind.F, stage - 1, unit), -1.0) + problem.comm
                elif kind == Kind.I and stage < problem.pp - 1:
                    ready = ended.get((Kind.I, stage + 1, unit), -1.0) + problem.comm
                if ready == problem.comm - 1.0:
                    break
                start = max(clock[r], ready)
                if begun[r] < 0:
                    begun[r] = start
                clock[r] = ended[(kind, stage, unit)] = start + took[kind]
                at[r] += 1
                moved = True
    spans = [end - start for end, start in zip(clock, begun, strict=True)]
    return round(max(spans), 9), round(max(clock), 9)


def dispatch(problem: Problem, policy: Policy) -> list[list[tuple[int, int, int]]] | None:
    """Run one dispatcher over time; None if its choices get stuck on memory."""
    ranks = [_Rank(stage) for stage in range(problem.pp)]
    forward_end: list[list[float]] = [[] for _ in ranks]
    input_end: list[list[float]] = [[] for _ in ranks]
    waiting = [(0.0, -stage) for stage in range(problem.pp)]  # deeper stages first in a tie
    heapq.heapify(waiting)
    blocked: set[int] = set()
    while waiting:
        go_on()
        _, negative = heapq.heappop(waiting)
        rank = ranks[-negative]
        kind = _decide(problem, policy, rank, forward_end, input_end)
        if kind is None:
            coming = [
                arrival
                for arrival in _arrivals(problem, rank, forward_end, input_end)
                if arrival is not None and arrival > rank.clock + _ROUND
            ]
            if not coming:
                blocked.add(rank.stage)  # until a neighbour produces what it waits for
                continue
            rank.clock = min(coming)
        else:
            _run(problem, rank, kind, forward_end, input_end)
            served = rank.stage + {Kind.F: 1, Kind.I: -1}.get(kind, 0)
            if served in blocked:
                blocked.discard(served)
                heapq.heappush(waiting, (ranks[served].clock, -served))
        if rank.weights < problem.micro_batches:
            heapq.heappush(waiting, (rank.clock, -rank.stage))
    return None if blocked else [rank.ops for rank in ranks]


def _run(
    problem: Problem, rank: _Rank, kind: Kind,
    forward_end: list[list[float]], input_end: list[list[float]],
) -> None:  # fmt: skip
    if kind == Kind.F:
        rank.ops.append((kind, rank.stage, rank.forwards))
        rank.clock += problem.forward
        rank.forwards += 1
        rank.held += 1
        forward_end[rank.stage].append(rank.clock)
    elif kind == Kind.I:
        rank.ops.append((kind, rank.stage, rank.inputs))
        rank.clock += problem.backward_input
        rank.inputs += 1
        rank.held -= 1 - problem.kept
        input_end[rank.stage].append(rank.clock)
    else:
        rank.ops.append((kind, rank.stage, rank.weights))
        rank.clock += problem.backward_weight
        rank.weights += 1
        rank.held -= problem.kept
    if kind != Kind.W:
        rank.last_was_forward = kind == Kind.F


def _arrivals(
    problem: Problem, rank: _Rank, forward_end: list[list[float]], input_end: list[list[float]]
) -> tuple[float | None, float | None]:
    """Return when the next forward and the next I can start, None where that is not known yet."""
    s = rank.stage
    forward: float | None = None
    if rank.forwards < problem.micro_batches:
        if s == 0:
            forward = 0.0
        elif rank.forwards < len(forward_end[s - 1]):
            forward = forward_end[s - 1][rank.forwards] + problem.comm
    backward: float | None = None
    if rank.inputs < rank.forwards:
        if s == problem.pp - 1:
            backward = forward_end[s][rank.inputs]
        elif rank.inputs < len(input_end[s + 1]):
            backward = input_end[s + 1][rank.inputs] + problem.comm
    return forward, backward


def _first_input_arrival(problem: Problem, stage: int) -> float:
    """Return when micro-batch 0 comes back to a stage if nothing holds it up."""
    hops = problem.pp - 1 - stage
    outward = problem.pp * problem.forward + (problem.pp - 1) * problem.comm
    return outward + hops * (problem.backward_input + problem.comm)


def _decide(
    problem: Problem, policy: Policy, rank: _Rank,
    forward_end: list[list[float]], input_end: list[list[float]],
) -> Kind | None:  # fmt: skip
    """Choose what a rank does at its clock, or None to wait."""
    now = rank.clock + _ROUND
    forward, backward = _arrivals(problem, rank, forward_end, input_end)
    fits = rank.held + 1 <= problem.limit + _ROUND
    forward_ready = forward is not None and forward <= now and fits
    input_ready = backward is not None and backward <= now
    if rank.inputs == 0 and rank.stage < problem.pp - 1 and not input_ready:
        if not forward_ready:
            return None
        due = _first_input_arrival(problem, rank.stage)
        in_time = rank.clock + problem.forward <= due + _ROUND
        return Kind.F if in_time or policy.delay_first_backward else None
    pending = rank.inputs - rank.weights
    if input_ready and forward_ready:
        return Kind.I if rank.last_was_forward or rank.inputs == 0 else Kind.F
    if input_ready:
        # A forward that memory alone holds back is worth a W first, on all but the last rounds.
        wants_forward = forward is not None and forward <= now and not fits
        return Kind.W if wants_forward and pending and not rank.last_was_forward else Kind.I
    if forward_ready:
        return Kind.F
    if not pending:
        return None
    known = [a for a, usable in ((forward, fits), (backward, True)) if a is not None and usable]
    fits_gap = not known or min(known) - rank.clock >= problem.backward_weight - _ROUND
    return Kind.W if policy.fill_early or fits_gap else None
