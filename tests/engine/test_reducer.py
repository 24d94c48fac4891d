"""Buckets of gradients: cut by size and type, sent in one order, summed over ranks."""

import torch
from torch import nn

from meshwright.engine.parallel.reducer import GradientReducer, _cut
from meshwright.engine.ranks.processes import run_ranks


def test_buckets_hold_neighbours_of_one_type_up_to_the_size():
    sizes = [(4, torch.float32), (4, torch.float32), (9, torch.float32), (2, torch.bfloat16)]
    parameters = [nn.Parameter(torch.zeros(count, dtype=kind)) for count, kind in sizes]
    found = [[p.numel() for p in bucket] for bucket in _cut(parameters, 32)]
    assert found == [[4, 4], [9], [2]]


def _reduce_on_rank(micro_batches: int) -> list[list[float]]:
    """Two layers used in opposite orders on the two ranks, one bucket each; gradients after."""
    rank = torch.distributed.get_rank()
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    reducer = GradientReducer([first, second], torch.distributed.group.WORLD, bucket_bytes=1)
    found = []
    for step in range(2):
        first.grad = second.grad = None
        reducer.start(micro_batches)
        for _ in range(micro_batches):
            weight = 1.0 + rank + step
            pair = (first, second) if rank == 0 else (second, first)
            out = (pair[0] * weight).cumsum(0) * pair[1]  # gradients arrive in another order
            out.sum().backward()
        reducer.finish()
        found.append([*first.grad.tolist(), *second.grad.tolist()])
    return found


def test_ranks_get_the_sum_over_ranks_and_micro_batches():
    ranks = run_ranks(_reduce_on_rank, 2, 3)
    assert ranks[0] == ranks[1]
    # Rank 0 computes sum(cumsum(w f) s): d/df = w·(3, 2, 1), d/ds = w·(1, 2, 3); rank 1 swapped.
    for step, (one, two) in enumerate(((1.0, 2.0), (2.0, 3.0))):
        down, up = [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]
        of_first = [3 * (one * d + two * u) for d, u in zip(down, up, strict=True)]
        of_second = [3 * (one * u + two * d) for d, u in zip(down, up, strict=True)]
        assert ranks[0][step] == of_first + of_second


def _forget_a_gradient() -> str:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    reducer = GradientReducer([used, unused], torch.distributed.group.WORLD)
    reducer.start(1)
    used.sum().backward()
    try:
        reducer.finish()
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_parameter_without_gradient_is_an_error():
    assert run_ranks(_forget_a_gradient, 1) == ["a parameter got no gradient"]
