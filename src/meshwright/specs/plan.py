"""Estimates and plans: what a layout is predicted to cost, and the layout that was chosen."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import tomli_w
from pydantic import Field

from meshwright.specs.base import Spec
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_data
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.quantities import format_bytes, format_seconds
from meshwright.specs.settled import Settled
from meshwright.specs.writing import write_atomically

SCHEMA_VERSION = 1


class StageMemory(Spec):
    """Predicted peak memory of one pipeline rank, by named part."""

    stage: int
    layers: int
    total_bytes: float
    parts: dict[str, float]


class Range(Spec):
    """An interval that should hold the measured value about 80 % of the time."""

    low: float
    high: float
    basis: str = Field("", description="what the interval rests on")

    def probability_below(self, value: float) -> float:
        """Probability that the measured value is at most `value`.

        The interval's ends are the 10th and the 90th percentile of a log-normal distribution:
        errors of a cost model multiply.
        """
        if self.high <= self.low or self.low <= 0 or value <= 0:
            return float(value >= self.high)
        z = _z_of_ends() * (2 * math.log(value / self.low) / math.log(self.high / self.low) - 1)
        return NormalDist().cdf(z)

    def quantile(self, probability: float) -> float:
        """The value that the measured one stays below with a probability between 0 and 1."""
        if self.high <= self.low or self.low <= 0:
            return self.high
        share = (NormalDist().inv_cdf(probability) / _z_of_ends() + 1) / 2
        return self.low * (self.high / self.low) ** share


def _z_of_ends() -> float:
    """Standard deviations between the middle of a range and its ends."""
    return NormalDist().inv_cdf(0.9)


class Estimate(Spec):
    """Predicted memory and step time of one layout. Parts add up to their total."""

    step_time_s: float
    tokens_per_s_per_gpu: float
    mfu: float = Field(description="model FLOP/s over peak, as a fraction")
    hfu: float = Field(description="executed FLOP/s (with recomputation) over peak, as a fraction")
    bubble_fraction: float = Field(description="idle share of the pipeline's makespan")
    peak_memory_bytes: float = Field(description="of the heaviest stage")
    capacity_bytes: float = Field(description="memory that one device offers to the program")
    fits: bool
    memory_parts: dict[str, float] = Field(description="of the heaviest stage; sums to the peak")
    time_parts: dict[str, float] = Field(description="sums to step_time_s")
    stages: tuple[StageMemory, ...] = ()
    traffic_bytes: dict[str, float] = Field(
        default_factory=dict, description="bytes one device sends per step, by axis"
    )
    memory_phases: dict[str, float] = Field(
        default_factory=dict,
        description="bytes of the heaviest stage per phase of a step, where they are counted apart",
    )
    step_time_range: Range | None = None
    peak_memory_range: Range | None = None
    pessimistic_s: float | None = Field(
        None, description="step time with hard-to-predict parts at their bad end; ranks layouts"
    )
    fit_probability: float | None = Field(
        None, ge=0, le=1, description="that the peak stays within the device's memory"
    )

    @property
    def memory_too_close(self) -> bool:
        """Whether the peak's range holds the capacity: whether it fits is then too close to call."""
        span = self.peak_memory_range
        return span is not None and span.low <= self.capacity_bytes < span.high


class Alternative(Spec):
    """A layout that was not chosen, and the line that says why."""

    axis: str = Field(description="what differs from the chosen layout")
    layout: Layout
    estimate: Estimate | None = None
    why_not: str


class FrameworkAnswer(Spec):
    """The best that one framework can do, and why it was not chosen."""

    framework: str
    layout: Layout | None = Field(None, description="None: nothing legal, or nothing fits")
    step_time_s: float | None = None
    pessimistic_s: float | None = Field(None, description="what frameworks are ranked by")
    peak_memory_bytes: float | None = None
    fit_probability: float | None = None
    why_not: str = Field("", description="empty: this one was chosen")


class FlipPoint(Spec):
    """A change of circumstances at which another layout would be chosen."""

    quantity: str = Field(description="what would have to change, with its unit")
    current: float = Field(allow_inf_nan=False)
    threshold: float = Field(allow_inf_nan=False)
    direction: str = Field(description="above or below the threshold the choice changes")
    becomes: str = Field(description="the layout that would then be chosen")
    framework: str = Field("", description="the framework that would then be chosen")
    sentence: str


class Searched(Spec):
    """How much of the space was looked at."""

    priced: int = 0
    pruned: dict[str, int] = Field(default_factory=dict, description="combinations by reason")
    seconds: float = 0.0


class Plan(Spec):
    """A chosen layout with everything needed to run it, check it and argue for it."""

    schema_version: int = SCHEMA_VERSION
    meshwright_version: str = ""
    command: str = Field("", description="the command line that made the plan")
    model: Model
    cluster: Cluster
    job: Job
    layout: Layout
    estimate: Estimate
    fits: bool
    objective: str = "time"
    frameworks: tuple[FrameworkAnswer, ...] = Field(
        (), description="what each framework would do, best first; empty where one was asked for"
    )
    alternatives: tuple[Alternative, ...] = ()
    flip_points: tuple[FlipPoint, ...] = ()
    searched: Searched = Searched()
    notes: tuple[str, ...] = Field((), description="assumptions and warnings, a sentence each")
    settled: Settled | None = Field(
        None, description="the race of its finalists, by `meshwright settle`"
    )

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        """What a plan shows of itself where a session prints it: the file has the rest."""
        return [
            ("model", self.model.name),
            ("cluster", self.cluster.name),
            ("layout", self.layout.label()),
            ("step_time", format_seconds(self.estimate.step_time_s)),
            ("peak_memory", format_bytes(self.estimate.peak_memory_bytes)),
            ("fits", self.fits),
        ]

    def _repr_markdown_(self) -> str:
        """The same as a notebook shows it, with what each framework would do."""
        estimate = self.estimate
        odds = estimate.fit_probability
        lines = [
            f"**{self.model.name}** on **{self.cluster.name}**: `{self.layout.label()}`",
            "",
            "| step time | tokens/s per device | MFU | peak memory | fits |",
            "|---|---|---|---|---|",
            f"| {format_seconds(estimate.step_time_s)} | {estimate.tokens_per_s_per_gpu:,.0f} | {estimate.mfu:.1%} "
            f"| {format_bytes(estimate.peak_memory_bytes)} of {format_bytes(estimate.capacity_bytes)} "
            f"| {'yes' if self.fits else 'no'}{'' if odds is None else f', with {odds:.0%}'} |",
        ]
        if self.frameworks:
            lines += ["", "| framework | layout | step time | why not |", "|---|---|---|---|"]
        for one in self.frameworks:
            time = "" if one.step_time_s is None else format_seconds(one.step_time_s)
            layout = "" if one.layout is None else f"`{one.layout.label()}`"
            lines.append(f"| {one.framework} | {layout} | {time} | {one.why_not or 'chosen'} |")
        return "\n".join(lines)


def load_plan(path: str | Path) -> Plan:
    """Read a plan file (TOML or JSON).

    Raises:
        SpecError: not a plan, or one of a newer schema.
    """
    data = read_data(path, "plan")
    version = data.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise SpecError(
            "schema_version", version, f"this version reads plans up to schema {SCHEMA_VERSION}"
        )
    if not {"model", "cluster", "job", "layout"} & data.keys():
        raise SpecError(
            "plan", str(path), "is no plan file, as `meshwright plan -o` writes it; `meshwright import` reads other tools' files"
        )  # fmt: skip
    return Plan.parse(data)


def plan_text(plan: Plan) -> str:
    """A plan as TOML, as `save_plan` writes it."""
    return tomli_w.dumps(plan.plain())


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan as TOML, or as JSON when the name ends so; all or nothing.

    Raises:
        SpecError: the file cannot be written.
    """
    json_wanted = str(path).endswith(".json")
    text = json.dumps(plan.plain(), indent=2) + "\n" if json_wanted else plan_text(plan)
    write_atomically(path, text)
