"""The order of operations, against torch's own listings of its six sound schedules."""

from __future__ import annotations

import pytest

from meshwright.schedules import build, validate
from meshwright.schedules.looped import interleaved
from meshwright.schedules.zero_bubble import zb_h1

visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")

PP = (1, 2, 3, 4, 8)
MICRO_BATCHES = (1, 3, 4, 5, 8, 16, 17)


def torch_order(name, pp, micro_batches, chunks):
    """Return torch's order without gradient reductions, or None if torch refuses the shape."""
    try:
        listing = visualizer.get_schedule_ops(name, pp, micro_batches, chunks)
    except ValueError:
        return None
    rows = []
    for row in listing:
        actions = [a for action in row if action for a in (action.sub_actions or (action,))]
        rows.append([str(a) for a in actions if "REDUCE_GRAD" not in str(a)])
    return rows


def our_order(schedule):
    validate(schedule)
    return [[str(op) for op in schedule.ops(rank)] for rank in range(schedule.pp)]


def torch_group(pp, micro_batches):
    return micro_batches // max(1, micro_batches // pp)


CASES = {
    "GPipe": ([None], lambda p, m, v: build("gpipe", pp=p, micro_batches=m)),
    "Interleaved1F1B": ([2, 3], lambda p, m, v: interleaved(p, m, v, torch_group(p, m))),
    "LoopedBFS": (
        [2, 3],
        lambda p, m, v: build("looped-bfs", pp=p, micro_batches=m, virtual_stages=v),
    ),
    "InterleavedZeroBubble": ([2, 3], lambda p, m, v: zb_h1(p, m, v, torch_group(p, m))),
    "ZBVZeroBubble": ([2], lambda p, m, v: build("zb-v", pp=p, micro_batches=m)),
    "DualPipeV": ([2], lambda p, m, v: build("dualpipe-v", pp=p, micro_batches=m)),
}


@pytest.mark.parametrize("name", CASES)
def test_same_order_as_torch(name):
    chunk_counts, ours = CASES[name]
    compared = 0
    for pp in PP:
        if name == "ZBVZeroBubble" and pp == 1:
            continue  # torch's V has no fold there
        for micro_batches in MICRO_BATCHES:
            for chunks in chunk_counts:
                theirs = torch_order(name, pp, micro_batches, chunks)
                if theirs is None:
                    continue
                assert our_order(ours(pp, micro_batches, chunks)) == theirs
                compared += 1
    assert compared >= 12
