"""The odds that a layout fits: what the memory model's own errors say about a predicted peak."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costs.confidence import memory_range
from meshwright.planner.legality import Question
from meshwright.specs.plan import Range

MEMORY_MARGIN = 0.05
"""Share of a layout's modelled peak that is kept free in any case."""
WANTED = 0.9
"""Probability with which a winner must fit unless the user asks for another."""
FALLBACKS = (0.75, 0.5)
"""What is accepted, in this order, where nothing fits with the probability that is wanted."""


@dataclass(frozen=True, slots=True)
class Odds:
    """How measured peaks lie around predicted ones for the kind of run that a question asks about."""

    spread: Range | None

    @staticmethod
    def of(question: Question) -> Odds:
        """Return what the published runs of this kind say (see `costs.confidence`)."""
        cluster = question.cluster
        return Odds(memory_range(question.model, cluster, question.job, cluster.gpus, 1.0))

    def room(self, probability: float) -> float:
        """How many times its predicted peak a layout needs, to fit with a probability."""
        least = 1.0 + MEMORY_MARGIN if probability >= FALLBACKS[0] else 1.0
        return max(self.spread.quantile(probability), least) if self.spread else least

    def fits(self, peak_bytes: float, capacity_bytes: float) -> float:
        """Probability that a layout with this predicted peak fits."""
        if self.spread is None:
            return float(peak_bytes * (1.0 + MEMORY_MARGIN) <= capacity_bytes)
        return self.spread.probability_below(capacity_bytes / peak_bytes)
