"""Cutting sequences so that every slice takes the same time under causal attention."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.errors import SpecError

FloatArray = NDArray[np.float64]


def time_balanced_slices(seq_len: int, slices: int, attention_share: float) -> tuple[int, ...]:
    """Return the lengths of slices that take equal time, in tokens (longest first).

    The first x of a sequence (as a fraction) costs (1 - a) x + a x²: what is linear in tokens, and
    causal attention, where later tokens look at more. Cuts are where that reaches k / slices
    (the computation-wise partition of Seq1F1B, arXiv 2406.03488, section 3.4).

    Args:
        seq_len: tokens of the sequence.
        slices: how many pieces.
        attention_share: a, the share of a whole sequence's forward spent on attention scores.

    Raises:
        SpecError: fewer tokens than slices, or a share outside 0 to 1.
    """
    if not 1 <= slices <= seq_len:
        raise SpecError("slices", slices, f"between 1 and {seq_len} slices fit {seq_len} tokens")
    _check_share(attention_share)
    a = attention_share
    cuts = [0]
    for k in range(1, slices):
        target = k / slices
        # The root in the form that does not cancel when a is small.
        root = math.sqrt((1 - a) ** 2 + 4 * a * target)
        x = 2 * target / ((1 - a) + root)
        least, most = cuts[-1] + 1, seq_len - (slices - k)
        cuts.append(min(max(round(x * seq_len), least), most))
    cuts.append(seq_len)
    return tuple(int(n) for n in np.diff(cuts))


def slice_times(lengths: tuple[int, ...], attention_share: float) -> FloatArray:
    """Return each slice's share of a whole sequence's time; they add up to 1.

    Raises:
        SpecError: a share outside 0 to 1.
    """
    _check_share(attention_share)
    cuts = np.concatenate([[0.0], np.cumsum(lengths)]) / sum(lengths)
    cost = (1 - attention_share) * cuts + attention_share * cuts**2
    return np.diff(cost)


def _check_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise SpecError("attention_share", share, "a share between 0 and 1 is expected")
