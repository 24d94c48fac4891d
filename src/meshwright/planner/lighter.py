"""Where nothing fits surely: the loss without all its logits, then ever more in host memory.

A sequence of a million tokens fails on its logits before anything else; a loss that never holds all of
them costs at most the head's product once more. What lives in host memory travels every step. So the loss
comes first, and where the layouts found fit with all logits as well, the job stays as it was.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.costs.frameworks import behaviour
from meshwright.costs.loss import loss_of
from meshwright.planner.legality import Question
from meshwright.planner.odds import WANTED, Odds
from meshwright.planner.offloading import fitting_in_host, offload_choices
from meshwright.planner.search import SearchResult, join, reprice, search
from meshwright.planner.space import Constraints
from meshwright.specs.errors import SpecError
from meshwright.specs.frameworks import framework
from meshwright.specs.job import Job, Loss

WORTH = 1.25
"""How much slower than a layout that fits with lower odds one may be that fits as surely as asked for."""
SMALL_LOSSES: tuple[Loss, ...] = ("liger", "cut", "chunked")
"""Losses that hold few logits at once, the cheapest first: Liger's makes no product twice."""


def small_loss(job: Job) -> Job | None:
    """The job with the cheapest loss of its framework that holds few logits; None where it names one."""
    if job.loss != "framework":
        return None
    has = [loss for loss in SMALL_LOSSES if loss in framework(job.framework).losses]
    if not has or loss_of(job, behaviour(job)) != "full":
        return None
    return job.but(loss=has[0])


def lighter(
    question: Question, constraints: Constraints, result: SearchResult
) -> tuple[Question, SearchResult]:
    """The first of a smaller loss and of more in host memory under which something fits.

    Returns the question as it was then asked: its job may name another loss. Where nothing fits, what comes
    nearest.
    """
    job = small_loss(question.job)
    asked, found = question, result
    if job is not None:
        asked = replace(question, job=job)
        found = _searched(asked, constraints) or result
    if not found.ranked.columns.rows:
        found = fitting_in_host(asked, constraints, found)
    if not found.ranked.columns.rows:
        return _nearest(asked, constraints) or (question, result)
    found = surer(asked, constraints, replace(found, searched=result.searched))
    if asked is question:
        return question, found
    return _with_all_logits(question, found) or (asked, found)


def surer(question: Question, constraints: Constraints, result: SearchResult) -> SearchResult:
    """What fits as surely as was asked for with something in host memory, if it costs little.

    A search that finds nothing so sure falls back on lower odds. Before that is accepted, host memory
    may be the better answer: at most `WORTH` times as slow.
    """
    wanted = constraints.fit_probability or WANTED
    if not result.ranked.columns.rows or result.fit_probability >= wanted:
        return result
    empty = replace(result, ranked=result.ranked.take(np.zeros(0, dtype=np.int64)))
    limit = float(result.ranked.pessimistic_s[0]) * WORTH
    found = fitting_in_host(question, constraints, empty, surely=wanted)
    rows = np.flatnonzero(found.ranked.pessimistic_s <= limit)
    if not len(rows):
        return result
    gambles = join([result.ranked, result.gambles])
    return replace(found, ranked=found.ranked.take(rows), gambles=gambles)


def _nearest(question: Question, constraints: Constraints) -> tuple[Question, SearchResult] | None:
    """What comes nearest to fitting where nothing fits: with all in host memory that may live there."""
    choices = offload_choices(question, constraints)
    most = constraints.but(offload=choices[-1]) if choices else constraints
    try:
        return question, search(question, most)
    except SpecError:
        return None


def _searched(question: Question, constraints: Constraints) -> SearchResult | None:
    try:
        return search(question, constraints, bounded=True)
    except SpecError:
        return None


def _with_all_logits(
    question: Question, found: SearchResult
) -> tuple[Question, SearchResult] | None:
    """The same layouts under the job as it was asked for, if any of them fits that way, too."""
    room = Odds.of(question).room(found.fit_probability)
    priced = reprice(question, found.ranked.columns, room)
    rows = np.flatnonzero(priced.fits)
    if not len(rows):
        return None
    order = rows[np.argsort(priced.pessimistic_s[rows], kind="stable")]
    return question, replace(found, ranked=priced.take(order))
