"""What `meshwright measure` found on the user's own machine, as a cluster file keeps it.

Times of an operation are sums of counts times seconds: a call costs its host time, and each
multiply-add, element or byte its own. The counts are the cost model's, the seconds are measured.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from meshwright.specs.base import Spec
from meshwright.specs.errors import SpecError


class ModuleTimes(Spec):
    """Seconds per unit of one module's forward and backward, by the name of the unit."""

    forward: dict[str, float]
    backward: dict[str, float] = Field(default_factory=dict)
    spread: float = Field(
        0.0, ge=0, description="half the middle half of repeats over their median"
    )
    error: float = Field(
        0.0, ge=0, description="median relative error of the fit to its own points"
    )

    @model_validator(mode="after")
    def _positive(self) -> Self:
        for way in ("forward", "backward"):
            for name, seconds in getattr(self, way).items():
                if not 0 <= seconds < 1e6:
                    raise SpecError(f"{way}.{name}", seconds, "seconds per unit, 0 or more")
        return self


class MeasuredCollective(Spec):
    """Times of one collective by size, for groups of `members` while `active` ranks communicate."""

    collective: str
    members: int = Field(ge=2)
    active: int = Field(ge=1, description="ranks of a host that communicate at the same time")
    level: str = Field("", description="the level between hosts of each of which one is a member")
    sizes_bytes: tuple[float, ...] = Field(min_length=1)
    times_s: tuple[float, ...] = Field(min_length=1)
    spread: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if len(self.sizes_bytes) != len(self.times_s):
            raise SpecError("times_s", len(self.times_s), f"{len(self.sizes_bytes)} are expected")
        if list(self.sizes_bytes) != sorted(set(self.sizes_bytes)) or self.sizes_bytes[0] <= 0:
            raise SpecError("sizes_bytes", self.sizes_bytes, "growing sizes of at least 1 byte")
        if min(self.times_s) <= 0:
            raise SpecError("times_s", min(self.times_s), "more than 0 is expected")
        return self


class SharedCores(Spec):
    """Processor cores that the ranks of a host share, and how much slower they get together."""

    cores: float = Field(gt=0, description="cores that the ranks may run on")
    hosts: int = Field(
        1,
        ge=1,
        description="hosts of the cluster on one machine with these cores: containers, emulated hosts",
    )
    ranks: tuple[int, ...] = Field((1,), description="ranks computing at once on these cores")
    slowdown: tuple[float, ...] = Field((1.0,), description="their time over that of one alone")
    disturbed: float = Field(
        1.0, ge=1, description="how much longer other programs made it take while it was measured"
    )

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if len(self.ranks) != len(self.slowdown) or not self.ranks or self.ranks[0] != 1:
            raise SpecError("slowdown", self.slowdown, "one for each of `ranks`, 1 rank first")
        if list(self.ranks) != sorted(set(self.ranks)) or min(self.slowdown) <= 0:
            raise SpecError("ranks", self.ranks, "growing numbers of ranks, positive slowdowns")
        return self


class MeasuredDevice(Spec):
    """What was measured of a device whose kernels run on the thread that issues them (a CPU)."""

    modules: dict[str, dict[str, ModuleTimes]] = Field(
        description="by precision (fp32, bf16) and module (linear, rmsnorm, attention…)"
    )
    engine_s: dict[str, float] = Field(
        default_factory=dict,
        description="seconds of the engine's own work: per step, micro-batch, layer, unit…",
    )
    process_bytes: float = Field(0.0, ge=0, description="of a rank's process before any tensor")
