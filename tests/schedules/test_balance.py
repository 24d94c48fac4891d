"""Stage balancing against brute force, and the layout strings other tools read."""

from __future__ import annotations

import itertools
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.schedules.balance import LayerCost, balance
from meshwright.specs.errors import DoesNotFitError, SpecError

layer = st.builds(
    LayerCost,
    letter=st.just("t"),
    time_s=st.integers(1, 9).map(float),
    state_bytes=st.integers(0, 5).map(float),
    activation_bytes=st.integers(2, 6).map(float),
    recompute_s=st.integers(1, 4).map(float),
    recomputed_bytes=st.sampled_from([0.0, 1.0, None]),
)


def brute_force(layers, stages, memory, flights):
    """Return (slowest, total) over all cuts and all choices of what to recompute."""
    best = (math.inf, math.inf)
    for cuts in itertools.combinations(range(1, len(layers)), stages - 1):
        bounds = [0, *cuts, len(layers)]
        times = []
        for s in range(stages):
            part = layers[bounds[s] : bounds[s + 1]]
            fitting = math.inf
            for again in itertools.product((False, True), repeat=len(part)):
                held = sum(x.state_bytes for x in part)
                time = sum(x.time_s for x in part)
                for x, r in zip(part, again, strict=True):
                    smaller = x.recomputed_bytes is not None and r
                    held += flights[s] * (x.recomputed_bytes if smaller else x.activation_bytes)
                    time += x.recompute_s if r else 0
                if held <= memory + 1e-9:
                    fitting = min(fitting, time)
            times.append(fitting)
        best = min(best, (max(times), sum(times)))
    return best


@settings(max_examples=120, deadline=None)
@given(
    layers=st.lists(layer, min_size=2, max_size=7),
    stages=st.integers(1, 3),
    memory=st.integers(4, 60),
)
def test_the_partition_is_the_best_there_is(layers, stages, memory):
    stages = min(stages, len(layers))
    flights = [float(stages - s) for s in range(stages)]
    slowest, total = brute_force(layers, stages, memory, flights)
    if math.isinf(slowest):
        with pytest.raises(DoesNotFitError):
            balance(layers, stages, memory_bytes=memory, in_flight=flights)
        return
    found = balance(layers, stages, memory_bytes=memory, in_flight=flights)
    assert found.slowest_s == pytest.approx(slowest)
    assert sum(s.time_s for s in found.stages) == pytest.approx(total)
    assert all(s.memory_bytes <= memory + 1e-9 for s in found.stages)
    assert [s.first for s in found.stages[1:]] == [s.last for s in found.stages[:-1]]


def llama(layers=32, head=2.6):
    return [LayerCost("E", 0.05), *[LayerCost("t", 1.0)] * layers, LayerCost("L", head)]


def test_a_heavy_head_takes_layers_off_the_last_stage():
    found = balance(llama(), 4)
    assert found.stage_layers() == (8, 9, 9, 6)
    assert found.slowest_s == pytest.approx(9.0)
    assert found.stages[-1].time_s == pytest.approx(6 + 2.6)


def test_early_stages_recompute_more_under_1f1b():
    layers = [LayerCost("t", 3.0, 1.0, 4.0, 1.0, 0.5)] * 16
    flights = [4.0, 3.0, 2.0, 1.0]
    found = balance(layers, 4, memory_bytes=44.0, in_flight=flights)
    recomputed = [len(stage.recomputed) for stage in found.stages]
    assert recomputed == sorted(recomputed, reverse=True)
    assert recomputed[0] > recomputed[-1] == 0


def expand(layout):
    """Expand a layout the way Megatron reads it: x*n, (…)*n, commas ignored, | between stages."""
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m.group(1) * int(m.group(2)), layout)
    text = re.sub(r"([A-Za-z])\*(\d+)", lambda m: m.group(1) * int(m.group(2)), text)
    return text.replace(",", "").split("|")


@given(layers=st.integers(1, 40), stages=st.integers(1, 12), head=st.floats(0.1, 6))
def test_megatron_layout_says_the_same_as_the_partition(layers, stages, head):
    model = llama(layers, head)
    stages = min(stages, len(model))
    found = balance(model, stages)
    letters = ["".join(x.letter for x in model[s.first : s.last]) for s in found.stages]
    assert expand(found.megatron_layout()) == letters


def test_torch_split_points():
    found = balance([LayerCost("E", 0.0), *[LayerCost("t", 1.0)] * 8, LayerCost("L", 0.0)], 4)
    assert found.stage_layers() == (2, 2, 2, 2)
    assert found.torch_split_points() == ["layers.2", "layers.4", "layers.6"]
    assert found.megatron_layout() == "Ett|(tt|)*2,ttL"


def test_bad_shapes():
    with pytest.raises(SpecError, match="stages"):
        balance(llama(2), 9)
    with pytest.raises(SpecError, match="in_flight"):
        balance(llama(), 4, in_flight=[1.0])
