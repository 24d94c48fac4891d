"""How many layers of which kind the ranks of a pipeline hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.costs.columns import Floats, Ints, LayoutColumns, recomputed_by_role
from meshwright.costs.pipeline import head_on_first_rank
from meshwright.specs.model import Experts, Model

ROLES = ("first", "middle", "last")
"""Ranks that can be the heaviest: the first (embedding), one in between, the last (head)."""


def roles_in(columns: LayoutColumns) -> tuple[str, ...]:
    """Roles that some row's pipeline has: the last from two ranks on, one in between from three."""
    deepest = int(columns.pp.max(initial=1))
    return tuple(role for role, least in zip(ROLES, (1, 3, 2), strict=True) if deepest >= least)


@dataclass(frozen=True, slots=True)
class StageLayers:
    """Dense and mixture-of-experts layers per role; arrays of shape (rows,).

    `middle` is zero where pp ≤ 2. Where pp = 1 the first rank is also the last.
    """

    dense: dict[str, Floats]
    moe: dict[str, Floats]

    def total(self, role: str) -> Floats:
        """Layers of both kinds."""
        return self.dense[role] + self.moe[role]

    def middle_ranks(self, model: Model, pp: Ints) -> Floats:
        """Ranks between first and last, counted in the layers of the heaviest of them."""
        between = model.layers - self.total("first") - self.total("last")
        heaviest = self.total("middle")
        even = np.maximum(pp - 2, 0).astype(np.float64)
        counted = np.clip(between / np.where(heaviest > 0, heaviest, 1.0), 0.0, even)
        return np.where(heaviest > 0, counted, even)

    def recomputed_share(self, role: str, columns: LayoutColumns, middle: str = "most") -> Floats:
        """Share of a rank's layers that recompute, where any do: all, unless a number is given.

        Ranks in between that a split treats unequally count as the one with the `most` or with
        the `fewest` recomputed layers.
        """
        layers = np.maximum(self.total(role), 1.0)
        named = np.where(columns.recompute_layers > 0, columns.recompute_layers / layers, 1.0)
        if np.any(columns.recompute_split):
            split = recomputed_by_role(columns)[middle if role == "middle" else role]
            named = np.where(split >= 0, split / layers, named)
        return np.minimum(named, 1.0)


def stage_layers(model: Model, columns: LayoutColumns) -> StageLayers:
    """Return the layers of the first, the heaviest middle and the last rank.

    Without an explicit split, layers are as even as possible and the surplus goes to the ranks in
    the middle, away from the embedding and the head, as every framework that allows it advises.
    Leading dense layers of a mixture of experts sit on the first rank as far as they go.
    """
    pp = columns.pp
    base, surplus = model.layers // pp, model.layers % pp
    inner = np.maximum(pp - 2, 0)
    explicit = columns.named_stages
    middle = np.where(inner > 0, base + (surplus > 0), 0)
    # A surplus larger than the inner ranks can take one each of also reaches the last, then the first.
    last = base + (surplus > inner)
    first = base + (surplus > inner + 1)
    first = np.where(pp == 1, model.layers, np.where(explicit, columns.first_layers, first))
    last = np.where(pp == 1, 0, np.where(explicit, columns.last_layers, last))
    middle = np.where(explicit, columns.middle_layers, middle)
    counts = {"first": first, "middle": middle, "last": last}
    dense: dict[str, Floats] = {}
    moe: dict[str, Floats] = {}
    for role, layers in counts.items():
        if model.experts is None:
            dense[role] = layers.astype(np.float64)
            moe[role] = np.zeros(len(layers))
            continue
        if model.layer_kinds:
            moe[role] = _listed(model, role, layers)
            dense[role] = layers - moe[role]
            continue
        moe[role] = _interleaved(model.experts, model.layers, role, layers)
        dense[role] = layers - moe[role]
    return StageLayers(dense, moe)


def with_further(model: Model, columns: LayoutColumns, layers: StageLayers) -> StageLayers:
    """With the layers that predict further tokens, which stand behind the others where the head is.

    Each is a whole layer of the kind that the last one would be. Where a model lists blocks of one part each, it is one
    of those that mix tokens and one with experts (Nemotron 3's `*E`), each as the mean of its kind.
    """
    if not model.predict_layers:
        return layers
    on_first = head_on_first_rank(columns)
    dense, moe = dict(layers.dense), dict(layers.moe)
    sparse = model.is_moe_layer(model.layers)
    parted = any(kind.startswith("none+") for kind in model.layer_kinds)
    for role, holds in (("first", on_first), ("last", ~on_first)):
        depths = np.where(holds, float(model.predict_layers), 0.0)
        moe[role] = moe[role] + sparse * depths
        dense[role] = dense[role] + (parted or not sparse) * depths
    return StageLayers(dense, moe)


def _interleaved(experts: Experts, total: int, role: str, layers: Ints) -> Floats:
    """Mixture-of-experts layers among the first or last `layers` of `total`, or the most in between.

    Leading dense layers come first, then every period-th layer has experts, beginning at once: one
    layer has them whole, however long the period.
    """

    def before(end: Ints) -> Ints:
        return -(-np.maximum(end - experts.dense_layers, 0) // experts.period)

    count = np.asarray(layers, dtype=np.int64)
    everything = before(np.full_like(count, total))
    if role == "first":
        found = before(count)
    elif role == "last":
        found = everything - before(total - count)
    else:
        led = np.clip(experts.dense_layers - (total - count), 0, count)
        found = -(-(count - led) // experts.period)
    return found.astype(np.float64)


def _listed(model: Model, role: str, layers: Floats) -> Floats:
    """Mixture-of-experts layers among the first or last `layers`, or the mean number in between."""
    sparse = np.array([kind.endswith("+moe") for kind in model.layer_kinds], dtype=np.float64)
    count = np.asarray(layers, dtype=np.int64)
    before = np.concatenate([[0.0], np.cumsum(sparse)])
    if role == "first":
        return np.asarray(before[count])
    if role == "last":
        return np.asarray(before[-1] - before[model.layers - count])
    return np.asarray(count * sparse.mean())
