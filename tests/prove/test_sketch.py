"""Sketches of parts add up to the sketch of the whole, and their distance is the tensors'."""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwright.probe.sketch import BUCKETS, Part, sketch, whole


@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    dim=st.integers(0, 3),
    cut=st.integers(0, 7),
)
def test_boxes_add_up(shape, dim, cut):
    tensor = torch.randn(shape, dtype=torch.float64)
    dim, total = dim % len(shape), torch.zeros(BUCKETS + 1, dtype=torch.float64)
    cut = min(cut, shape[dim])
    for start, length in ((0, cut), (cut, shape[dim] - cut)):
        offsets, sizes = [0] * len(shape), list(shape)
        offsets[dim], sizes[dim] = start, length
        part = Part(tuple(shape), tuple(offsets), tuple(sizes))
        total += sketch(tensor.narrow(dim, start, length), part, 3)
    assert torch.allclose(total, sketch(tensor, whole(shape), 3), atol=1e-10)


@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=3), cuts=st.lists(st.integers(0, 64000))
)
def test_ranges_of_flattened_elements_add_up(shape, cuts):
    tensor = torch.randn(shape, dtype=torch.float64)
    flat, count = tensor.flatten(), tensor.numel()
    edges = sorted({0, count, *(c % (count + 1) for c in cuts)})
    total = sum(sketch(flat[a:b], Part(tuple(shape), flat=(a, b)), 5) for a, b in pairwise(edges))
    assert torch.allclose(total, sketch(tensor, whole(shape), 5), atol=1e-9)


def test_the_distance_is_unbiased_and_as_exact_as_said():
    generator = torch.Generator().manual_seed(0)
    found = []
    for seed in range(300):
        tensor = torch.randn((37, 53), generator=generator, dtype=torch.float64)
        made = sketch(tensor, whole(tensor.shape), seed)
        found.append(float(made[:-1].square().sum() / made[-1]))
    assert abs(np.mean(found) - 1) < 4 * np.sqrt(2 / BUCKETS / 300)
    assert np.std(found) < 1.3 * np.sqrt(2 / BUCKETS)


def test_the_two_ways_of_adding_are_one():
    # Few rows are scattered, many are multiplied: the same tensor as [15 + 1, C] and in one piece.
    tensor = torch.randn((16, 70), dtype=torch.float64)
    parts = [Part((16, 70), (r, 0), (n, 70)) for r, n in ((0, 15), (15, 1))]
    total = sketch(tensor[:15], parts[0], 1) + sketch(tensor[15:], parts[1], 1)
    assert torch.allclose(total, sketch(tensor, whole((16, 70)), 1), atol=1e-11)
