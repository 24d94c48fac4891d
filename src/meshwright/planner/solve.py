"""Answering one question: search, recompute only what memory asks for, simulate, look around.

`solve` is the whole way from a question to a layout. The plan calls it once, and whatever claims
what would be chosen under other circumstances (flip points) calls it again under them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.costs.columns import from_layouts
from meshwright.planner.finalists import Choice, choose
from meshwright.planner.legality import Question, legal
from meshwright.planner.lighter import lighter, surer
from meshwright.planner.neighbours import steps
from meshwright.planner.odds import Odds
from meshwright.planner.partial_recompute import partly_recomputed
from meshwright.planner.search import Candidates, SearchResult, reprice, search, undominated
from meshwright.planner.space import Constraints, allows
from meshwright.specs.layout import Layout

GAIN = 1e-4
"""Share of the step that a neighbour must gain to be taken instead."""
ROUNDS = 6
"""Times that the search looks around its choice at most."""


@dataclass(frozen=True)
class Solution:
    """A question with its answer; `choice` is None where nothing fits."""

    question: Question
    result: SearchResult
    choice: Choice | None

    @property
    def layout(self) -> Layout:
        """The layout chosen.

        Raises:
            AttributeError: nothing fits.
        """
        assert self.choice is not None
        return self.choice.layout


def solve(question: Question, constraints: Constraints, objective: str = "time") -> Solution:
    """Find the best layout.

    Raises:
        SpecError: no layout is legal under the constraints.
    """
    result = search(question, constraints, objective=objective, bounded=True)
    return answer(question, constraints, result, objective)


def first_of(question: Question, result: SearchResult) -> Solution:
    """The best of the search as it is: for what is too far behind to be worth more."""
    ranked = result.ranked
    return Solution(question, result, _as_choice(ranked) if ranked.columns.rows else None)


def answer(
    question: Question, constraints: Constraints, result: SearchResult, objective: str = "time"
) -> Solution:
    """Choose from what a search found."""
    if not result.ranked.columns.rows:
        question, result = lighter(question, constraints, result)
    elif objective == "time":
        result = surer(question, constraints, result)
    ranked = result.ranked
    if not ranked.columns.rows:
        return Solution(question, result, None)
    if objective == "memory":
        return Solution(question, result, _as_choice(ranked))
    room = Odds.of(question).room(result.fit_probability)
    more = partly_recomputed(question, constraints, result, room)
    front = ranked.take(undominated(ranked))
    choice = choose(question, front, more, room)
    choice = _improved(question, constraints, ranked, choice, room)
    return Solution(question, result, choice)


def _improved(
    question: Question, constraints: Constraints, ranked: Candidates, choice: Choice, room: float
) -> Choice:
    """Step to a better neighbour while there is one, never to a layout that another beats twice.

    A layout that is both slower and heavier than another, by the figures shown, is not recommended:
    whatever the pessimistic reading says of the two, nobody could defend it.
    """
    seen = {choice.layout}
    for _ in range(ROUNDS):
        better = _better(_around(question, constraints, ranked, choice, room))
        if better is None or better.columns.layout(0) in seen:
            return choice
        choice = _as_choice(better)
        seen.add(choice.layout)
    return choice


def _around(
    question: Question, constraints: Constraints, ranked: Candidates, choice: Choice, room: float
) -> Candidates:
    """The choice first, then its legal neighbours and what beats it twice, all that fit, priced."""
    near = [other for _, other in steps(question, choice.layout) if allows(constraints, other)]
    beats = (ranked.step_time_s < choice.closed_form_s) & (ranked.peak_bytes < choice.peak_bytes)
    near += [ranked.columns.layout(int(row)) for row in np.flatnonzero(beats)[:1]]
    columns = from_layouts([choice.layout, *near])
    alive, _ = legal(question, columns)
    alive[0] = True
    priced = reprice(question, columns.take(alive), room)
    priced.fits[0] = True
    return priced.take(np.flatnonzero(priced.fits))


def _better(around: Candidates) -> Candidates | None:
    """Where to step from the first: to what beats it twice, else to what ranks better."""
    step, peak = around.step_time_s[0], around.peak_bytes[0]
    twice = (around.step_time_s < step) & (around.peak_bytes < peak)
    beaten = (around.step_time_s > step) & (around.peak_bytes > peak)
    faster = (around.pessimistic_s < around.pessimistic_s[0] * (1 - GAIN)) & ~beaten
    rows = np.flatnonzero(twice) if twice.any() else np.flatnonzero(faster)
    if not len(rows):
        return None
    return around.take(rows[np.argmin(around.pessimistic_s[rows])][None])


def _as_choice(priced: Candidates) -> Choice:
    """The first of some candidates, by the closed forms alone."""
    return Choice(
        priced.columns.layout(0), float(priced.step_time_s[0]), None,
        float(priced.pessimistic_s[0]), float(priced.peak_bytes[0]),
    )  # fmt: skip
