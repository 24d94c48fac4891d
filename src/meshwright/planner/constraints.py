"""What a user fixes or forbids of a layout, and the count of what rules remove."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import Field, field_validator

from meshwright.specs.base import Spec
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.layout import (
    AXES,
    SCHEDULES,
    ContextMethod,
    Layout,
    Offload,
    Recompute,
    RecomputeModule,
)


class Constraints(Spec):
    """What the user fixes or forbids. None leaves an axis free."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    virtual_stages: int | None = None
    zero: int | None = None
    shard: int | None = None
    micro_batch: int | None = None
    recompute: Recompute | None = None
    recompute_modules: tuple[RecomputeModule, ...] | None = None
    offload: tuple[Offload, ...] | None = Field(
        None, description="what lives in host memory; None: whatever makes the best plan"
    )
    sequence_parallel: bool | None = None
    cp_method: ContextMethod | None = None
    schedule: str | None = None
    rank_order: str | None = None
    max_tp: int | None = None
    max_pp: int | None = None
    no_recompute: bool = False
    fit_probability: float | None = Field(
        None, gt=0, lt=1, description="with which the winner must fit; None: 90 %"
    )

    @field_validator("recompute_modules", "offload", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        """Names with commas, and `none`, as a command line has them."""
        if not isinstance(value, str):
            return value
        return () if value.strip() == "none" else tuple(part.strip() for part in value.split(","))

    @field_validator("schedule")
    @classmethod
    def _known_schedule(cls, name: str | None) -> str | None:
        if name is not None and name not in SCHEDULES:
            raise SpecError("schedule", name, nearest(name, SCHEDULES))
        return name

    @field_validator("rank_order")
    @classmethod
    def _known_axes(cls, order: str | None) -> str | None:
        if order is not None and sorted(order.split("-")) != sorted(AXES):
            raise SpecError(
                "rank_order", order, "each of tp, cp, ep, dp, pp once, as tp-cp-ep-pp-dp"
            )
        return order


def allows(constraints: Constraints, layout: Layout) -> bool:
    """Whether a layout keeps to what the user fixed or forbade."""
    fixed = (
        "tp", "pp", "dp", "cp", "ep", "etp", "virtual_stages", "zero", "shard", "micro_batch",
        "recompute", "recompute_modules", "offload", "sequence_parallel", "cp_method", "schedule", "rank_order",
    )  # fmt: skip
    for name in fixed:
        wanted = getattr(constraints, name)
        if wanted is not None and getattr(layout, name) != wanted:
            return False
    return (
        layout.tp <= (constraints.max_tp or layout.tp)
        and layout.pp <= (constraints.max_pp or layout.pp)
        and not (constraints.no_recompute and layout.recompute != "none")
    )


@dataclass
class Tally:
    """Combinations removed before pricing, by reason."""

    removed: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, count: int) -> None:
        """Add to a reason's count."""
        if count:
            self.removed[reason] = self.removed.get(reason, 0) + count

    def add_all(self, removed: dict[str, int]) -> None:
        """Add to several reasons' counts."""
        for reason, count in removed.items():
            self.add(reason, count)
