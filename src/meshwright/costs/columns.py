"""Layouts as columns: one NumPy array per choice, so that one layout and a million cost alike.

Every function of `costs` takes these columns (or arrays derived from them) and computes element by
element. Nothing depends on how many rows there are, so the price of a layout has the same bits
alone and inside a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.layout import AXES, CONTEXT_METHODS, MODULES, OFFLOADS, SCHEDULES, Layout

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RECOMPUTES = ("none", "selective", "full")
RANK_ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "tp-pp-cp-ep-dp", "dp-cp-ep-tp-pp")
"""Rank orders with a code of their own; columns may carry others in `extra_orders`."""


@dataclass(frozen=True, slots=True)
class LayoutColumns:
    """A table of layouts; all arrays have shape (rows,).

    `recompute`, `schedule` and `rank_order` hold positions in `RECOMPUTES`, `SCHEDULES` and
    `orders`. `first_layers`, `middle_layers` and `last_layers` are the layers of the first rank,
    of the heaviest rank in between and of the last rank of a pipeline; 0 means as even as possible.
    `stage_split` holds positions in `stage_splits`, each the layers of every stage that these stand for.
    `recompute_split` holds positions in `splits`, each the layers that every virtual stage
    recomputes in full; the empty one means as `recompute_layers` says. `recompute_modules` and
    `offload` are bits of `MODULES` and `OFFLOADS`, `cp_method` a position in `CONTEXT_METHODS`.
    """

    dp: Ints
    tp: Ints
    pp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    virtual_stages: Ints
    zero: Ints
    shard: Ints
    micro_batch: Ints
    recompute: Ints
    recompute_layers: Ints
    recompute_split: Ints
    sequence_parallel: Ints
    schedule: Ints
    rank_order: Ints
    first_layers: Ints
    middle_layers: Ints
    last_layers: Ints
    recompute_modules: Ints
    offload: Ints
    cp_method: Ints
    stage_split: Ints
    orders: tuple[str, ...] = RANK_ORDERS
    splits: tuple[tuple[int, ...], ...] = ((),)
    stage_splits: tuple[tuple[int, ...], ...] = ((),)

    @property
    def rows(self) -> int:
        """How many layouts there are."""
        return len(self.dp)

    @property
    def named_stages(self) -> Bools:
        """Rows whose layers per rank are named; one of those numbers may be 0."""
        return (self.first_layers > 0) | (self.middle_layers > 0) | (self.last_layers > 0)

    @property
    def shard_degree(self) -> Ints:
        """Ranks of one ZeRO shard group; 1 where nothing is sharded."""
        whole = np.where(self.shard > 0, self.shard, self.dp * self.cp)
        return np.where(self.zero > 0, whole, 1)

    def take(self, index: Ints | Bools) -> LayoutColumns:
        """Return the chosen rows."""
        return LayoutColumns(
            **{name: getattr(self, name)[index] for name in ARRAYS},
            orders=self.orders,
            splits=self.splits,
            stage_splits=self.stage_splits,
        )

    def slice(self, start: int, stop: int) -> LayoutColumns:
        """Return rows start…stop without copying."""
        return LayoutColumns(
            **{name: getattr(self, name)[start:stop] for name in ARRAYS},
            orders=self.orders,
            splits=self.splits,
            stage_splits=self.stage_splits,
        )

    def layout(self, row: int) -> Layout:
        """Return one row as a Layout."""
        values = {name: int(getattr(self, name)[row]) for name in ARRAYS}
        for where in ("first", "middle", "last"):
            values.pop(f"{where}_layers")
        stage_layers = self.stage_splits[values.pop("stage_split")] or None
        again = self.splits[values.pop("recompute_split")] or None
        values["recompute"] = RECOMPUTES[values["recompute"]]  # type: ignore[assignment]
        values["schedule"] = SCHEDULES[values["schedule"]]  # type: ignore[assignment]
        values["rank_order"] = self.orders[values["rank_order"]]  # type: ignore[assignment]
        values["sequence_parallel"] = bool(values["sequence_parallel"])
        values["recompute_modules"] = named(values["recompute_modules"], MODULES)  # type: ignore[assignment]
        values["offload"] = named(values["offload"], OFFLOADS)  # type: ignore[assignment]
        values["cp_method"] = CONTEXT_METHODS[values["cp_method"]]  # type: ignore[assignment]
        return Layout.model_validate(
            {**values, "stage_layers": stage_layers, "stage_recompute_layers": again}
        )


def bits(names: Sequence[str], among: Sequence[str]) -> int:
    """Names as bits: bit i for the i-th of `among`."""
    return sum(1 << among.index(name) for name in names)


def named(code: int, among: Sequence[str]) -> tuple[str, ...]:
    """The names that bits stand for."""
    return tuple(name for place, name in enumerate(among) if code >> place & 1)


ARRAYS = tuple(
    f.name for f in fields(LayoutColumns) if f.name not in ("orders", "splits", "stage_splits")
)
"""Names of the array fields, in order."""


def concatenate(tables: Sequence[LayoutColumns]) -> LayoutColumns:
    """Stack tables that share their rank orders and splits; layers of stages each may name its own."""
    named = tuple(dict.fromkeys(split for table in tables for split in table.stage_splits))
    arrays = {name: np.concatenate([getattr(t, name) for t in tables]) for name in ARRAYS}
    places = [np.array([named.index(split) for split in t.stage_splits]) for t in tables]
    arrays["stage_split"] = np.concatenate(
        [place[t.stage_split] for place, t in zip(places, tables, strict=True)]
    )
    one = tables[0]
    return LayoutColumns(**arrays, orders=one.orders, splits=one.splits, stage_splits=named)


def from_layouts(layouts: Sequence[Layout]) -> LayoutColumns:
    """Build columns from layouts.

    Raises:
        ValueError: never for layouts that validated; unequal interior stages are reduced to their
            heaviest, as every closed form needs only the first, the heaviest middle and the last.
    """
    orders = tuple(dict.fromkeys([*RANK_ORDERS, *(layout.rank_order for layout in layouts)]))
    splits = tuple(
        dict.fromkeys([(), *(layout.stage_recompute_layers or () for layout in layouts)])
    )
    named = tuple(dict.fromkeys([(), *(layout.stage_layers or () for layout in layouts)]))
    rows = [_row(layout, orders, splits, named) for layout in layouts]
    table = np.array(rows, dtype=np.int64).reshape(len(rows), len(ARRAYS))
    return LayoutColumns(
        **{name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(ARRAYS)},
        orders=orders,
        splits=splits,
        stage_splits=named,
    )


def _row(
    layout: Layout,
    orders: tuple[str, ...],
    splits: tuple[tuple[int, ...], ...],
    named: tuple[tuple[int, ...], ...],
) -> list[int]:
    first = middle = last = 0
    if layout.stage_layers is not None:
        per_rank = layers_per_rank(layout, layout.stage_layers)
        first, last = per_rank[0], per_rank[-1]
        middle = max(per_rank[1:-1], default=0)
    return [
        layout.dp, layout.tp, layout.pp, layout.cp, layout.ep, layout.etp, layout.virtual_stages,
        layout.zero, layout.shard, layout.micro_batch, RECOMPUTES.index(layout.recompute),
        layout.recompute_layers, splits.index(layout.stage_recompute_layers or ()), int(layout.sequence_parallel), SCHEDULES.index(layout.schedule),
        orders.index(layout.rank_order), first, middle, last,
        bits(layout.recompute_modules, MODULES), bits(layout.offload, OFFLOADS),
        CONTEXT_METHODS.index(layout.cp_method), named.index(layout.stage_layers or ()),
    ]  # fmt: skip


def layers_per_rank(layout: Layout, per_stage: Sequence[int]) -> list[int]:
    """Sum over each pipeline rank's chunks of a number of layers per virtual stage."""
    return _per_rank(per_stage, layout.pp, layout.schedule)


def _per_rank(per_stage: Sequence[int], pp: int, schedule: str) -> list[int]:
    """V-shaped schedules place virtual stage i and its mirror on one rank; all others go round."""
    totals = [0] * pp
    for stage, layers in enumerate(per_stage):
        turn, place = divmod(stage, pp)
        if schedule in V_SCHEDULES and turn % 2:
            place = pp - 1 - place
        totals[place] += layers
    return totals


def recomputed_by_role(columns: LayoutColumns) -> dict[str, Ints]:
    """Layers that a rank recomputes where a split over stages names them, else -1; shape (rows,).

    `first`, `last`, and of the ranks in between the `fewest` (their memory is never priced too
    low) and the `most` (nor their time).
    """
    found = {key: np.full(columns.rows, -1) for key in ("first", "fewest", "most", "last")}
    for row in np.flatnonzero(columns.recompute_split):
        ranks = _per_rank(
            columns.splits[columns.recompute_split[row]],
            int(columns.pp[row]),
            SCHEDULES[columns.schedule[row]],
        )
        inner = ranks[1:-1] or [0]
        for key, value in (
            ("first", ranks[0]), ("fewest", min(inner)), ("most", max(inner)), ("last", ranks[-1]),
        ):  # fmt: skip
            found[key][row] = value
    return found


V_SCHEDULES = frozenset({"zb-v", "v-half", "v-min", "dualpipe-v"})
"""Schedules whose second chunk runs back through the ranks."""


def strides(columns: LayoutColumns) -> dict[str, Ints]:
    """Rank distance between neighbours of each axis, from the rank order; shape (rows,).

    Expert parallelism does not multiply the world: its ranks are those of tp·cp·dp, with the
    `etp` ranks of one expert adjacent, as in Megatron-Core's expert rank generator.
    """
    sizes = {
        "tp": columns.tp,
        "cp": columns.cp,
        "ep": np.ones_like(columns.ep),
        "dp": columns.dp,
        "pp": columns.pp,
    }
    result = {axis: np.ones_like(columns.dp) for axis in AXES}
    for code in np.unique(columns.rank_order):
        here = columns.rank_order == code
        step = np.ones_like(columns.dp)
        for axis in columns.orders[code].split("-"):
            result[axis] = np.where(here, step, result[axis])
            step = step * sizes[axis]
    result["ep"] = columns.etp.copy()
    return result


def distinct(*fields: Ints) -> tuple[Ints, Ints]:
    """Find the distinct combinations of some whole-number columns.

    Returns (rows, inverse): `rows` are positions of one representative each, and
    `something(rows)[inverse]` spreads a result computed once per combination back over all rows.
    Costs that depend on few columns are priced this way: a search repeats each of them a
    thousandfold.
    """
    packed = np.zeros(len(fields[0]), dtype=np.int64)
    for field in fields:
        packed = packed * (int(field.max(initial=0)) + 1) + field
    _, rows, inverse = np.unique(packed, return_index=True, return_inverse=True)
    return rows, inverse
