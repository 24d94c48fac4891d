"""What ranks of a measured host share: its cores, and its network card.

The stages of a pipeline that share a host are at different points of their work, so that each may find
cores and card free while others wait. Together they cannot do more than the host can.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshwright.costs import synchronous as count
from meshwright.costs.columns import Floats, LayoutColumns
from meshwright.costs.measured_step import AXIS_PART, Setup, kinds, layer_ledger, messages_s
from meshwright.costs.stages import ROLES


def _ranks_of(columns: LayoutColumns) -> dict[str, Floats]:
    """Pipeline ranks of each role."""
    return {
        "first": np.ones(columns.rows),
        "middle": np.maximum(columns.pp - 2, 0).astype(np.float64),
        "last": (columns.pp > 1).astype(np.float64),
    }


def shared_cores_s(
    setup: Setup,
    busy: Mapping[str, Mapping[str, tuple[Floats, Floats]]],
    total: Floats,
    rest: Floats,
) -> Floats:
    """What a step takes longer because all ranks of a host compute on the same cores.

    Without a pipeline every rank is in the same phase, which the crowd's slowdown already has. With one
    the cores have at least the mean rank's work at full crowding. Collectives are no such work: they wait
    for their wire, and were timed among the ranks that talk at once.
    """
    columns = setup.columns
    if setup.machine.cluster.shared_cores is None:
        return np.zeros(columns.rows)
    work, messages = np.zeros(columns.rows), np.zeros(columns.rows)
    for role, many in _ranks_of(columns).items():
        for part, (forward, backward) in busy[role].items():
            if part in AXIS_PART.values():
                messages = messages + many * (forward + backward)
            else:
                work = work + many * (forward + backward)
    crowds = setup.cores_crowd, setup.cores_stage_crowd
    ratio = setup.machine.slowdown(crowds[0]) / setup.machine.slowdown(crowds[1])
    mean = setup.micro_batches * (work * ratio + messages) / columns.pp
    least = mean + rest
    return np.where(columns.pp > 1, np.maximum(least - total, 0.0), 0.0)


def shared_card_s(setup: Setup, total: Floats, rest: Floats) -> dict[str, Floats]:
    """What collectives of several stages wait for their host's network card, by the part of their axis.

    A stage's collectives are priced as if those of other stages left the card to them; a step is never
    shorter than the messages of all stages of a host one after another.
    """
    columns, ranks = setup.columns, _ranks_of(setup.columns)
    shapes = count.Shapes.of(setup.model, setup.job, columns)
    busy = {axis: np.zeros(columns.rows) for axis in AXIS_PART}
    shares, m = setup.host_stages / columns.pp, setup.micro_batches.astype(np.float64)
    for backward in (False, True):
        for moe in kinds(setup.model):
            held = setup.layers.moe if moe else setup.layers.dense
            layers = sum((ranks[role] * held[role] for role in ROLES), np.zeros(columns.rows))
            ledger = layer_ledger(shapes, moe, backward=backward)
            for axis, time in messages_s(setup, ledger).items():
                busy[axis] = busy[axis] + layers * shares * time
        for end in (count.head, count.embedding):
            for axis, time in messages_s(setup, end(shapes, backward=backward)).items():
                busy[axis] = busy[axis] + shares * time
    for axis in busy:
        degree = getattr(columns, axis).astype(np.float64)
        local = setup.machine.local_members(degree, setup.distances[axis].astype(np.float64))
        busy[axis] = m * np.where(degree > local, busy[axis], 0.0)
    card = sum(busy.values(), np.zeros(columns.rows))
    waits = np.where(setup.host_stages > 1, np.maximum(card + rest - total, 0.0), 0.0)
    of = waits / np.maximum(card, 1e-30)
    return {AXIS_PART[axis]: of * time for axis, time in busy.items()}
