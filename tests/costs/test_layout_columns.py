"""Columns of layouts give back the layouts that they were made from."""

import pytest

from meshwright.costs.columns import concatenate, from_layouts
from meshwright.specs.layout import Layout

UNEVEN = Layout(pp=9, stage_layers=(9, 11, 11, 11, 11, 11, 11, 10, 9))
"""94 layers on nine stages: no two numbers for the stages in between describe them."""
CHUNKS = Layout(pp=2, virtual_stages=2, schedule="interleaved", stage_layers=(3, 4, 4, 3))


@pytest.mark.parametrize("layout", [UNEVEN, CHUNKS, Layout(pp=4), Layout(dp=8, zero=3)])
def test_a_row_is_the_layout_that_it_was_made_from(layout):
    assert from_layouts([Layout(pp=2), layout]).layout(1) == layout


def test_tables_with_other_stages_of_their_own_are_stacked():
    both = concatenate([from_layouts([UNEVEN]), from_layouts([CHUNKS, UNEVEN])])
    assert [both.layout(row) for row in range(3)] == [UNEVEN, CHUNKS, UNEVEN]
