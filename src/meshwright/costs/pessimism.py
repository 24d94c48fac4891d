"""A step's time with everything that is hard to predict at the bad end of its range.

A search exploits the errors of its cost model: of a hundred thousand layouts it finds the one whose
cost is most underestimated. So layouts are ranked by this time, not by the nominal one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from meshwright.costs.columns import Floats

if TYPE_CHECKING:
    from meshwright.costs.step import EstimateColumns

PESSIMISM: Mapping[str, float] = {
    "tensor_parallel": 0.25, "context_parallel": 0.25, "expert_parallel": 0.35,
    "pipeline_p2p": 0.50, "pipeline_bubble": 0.15,
    "launch": 0.25, "elementwise": 0.10, "recompute": 0.0, "step_overhead": 0.5, "offload": 0.25,
}  # fmt: skip
"""How much worse each part may be than modelled when ranking: communication most, products least."""


def pessimistic_s(estimates: EstimateColumns) -> Floats:
    """Step time with every part that is hard to predict at the bad end of its range; shape (rows,)."""
    return without_sharding_s(estimates) + _sharding_s(estimates)


def without_sharding_s(estimates: EstimateColumns) -> Floats:
    """The same without what depends on how states are sharded: traffic of data parallelism, optimizer.

    It bounds from below the time of every way to shard the same layout.
    """
    parts = estimates.time_parts
    total = estimates.step_time_s - parts["data_parallel"] - parts["optimizer"]
    for name, extra in PESSIMISM.items():
        total = total + extra * parts[name]
    return total


def _sharding_s(estimates: EstimateColumns) -> Floats:
    return estimates.data_parallel_worst_s + estimates.time_parts["optimizer"]
