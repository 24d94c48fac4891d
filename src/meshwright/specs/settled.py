"""What running a plan's finalists came to: evidence that a plan file keeps."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.specs.base import Spec
from meshwright.specs.layout import Layout

ADVICE = "a ten-step run of both would settle it"
"""How the note of a plan ends whose finalists are too close to call; a settled plan has none."""

Outcome = Literal["fastest", "slower", "too close to call", "out of memory", "failed"]


class SettledRun(Spec):
    """One finalist, run for real."""

    layout: Layout
    outcome: Outcome
    predicted_s: float
    measured_s: float | None = Field(None, description="median step time; None: no step ended")
    error: float = Field(0.0, ge=0, description="of the measured time, relative, at the confidence")
    steps: int = 0
    peak_memory_bytes: float | None = None
    note: str = ""


class Settled(Spec):
    """A race of finalists and its rules."""

    date: str
    where: str
    confidence: float = Field(gt=0.5, lt=1)
    seconds: float
    runs: tuple[SettledRun, ...] = Field(min_length=1, description="fastest first")
    sentence: str
