"""Prices of every layout that one is likely to set by hand, as a table of answers.

An exported site has no engine to ask. It holds this table for each of its plans, so that a layout
changed by hand still has its own figures: exactly those of `/api/price`, rounded to five digits.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from typing_extensions import TypedDict

from meshwright.costs.columns import RECOMPUTES, LayoutColumns, concatenate, from_layouts
from meshwright.costs.step import capacity_bytes, price
from meshwright.planner.legality import Question
from meshwright.planner.space import Constraints, Tally, enumerate_layouts, offered
from meshwright.specs.layout import CONTEXT_METHODS, SCHEDULES
from meshwright.studio.commands import AskedInQuery, layout_links
from meshwright.studio.planning import best_plan, read_asked
from meshwright.studio.questions import read_model

MOST_ROWS = 6000
"""Rows of a table, the fastest: about 300 kB as text, a fifth of that compressed."""
OVER = 2.0
"""Layouts that need more than this many times the memory there is are left out."""


class PriceTable(TypedDict):
    """Legal layouts as columns, the plan's own first; `cli` ends where the layout's options begin."""

    dp: list[int]
    tp: list[int]
    pp: list[int]
    cp: list[int]
    ep: list[int]
    v: list[int]
    zero: list[int]
    shard: list[int]
    micro_batch: list[int]
    recompute: list[int]
    schedule: list[int]
    sequence_parallel: list[int]
    step_time_s: list[float]
    peak_memory_bytes: list[float]
    bubble_fraction: list[float]
    cp_method: list[int]
    methods: list[str]
    recomputes: list[str]
    schedules: list[str]
    capacity_bytes: float
    mfu_times_s: float
    tokens_per_device: float
    gpus: int
    cli: str


def prices(asked: AskedInQuery) -> PriceTable:
    """Price the layouts around a plan: usual rank order, whole shard groups.

    Raises:
        SpecError: a name or quantity is not accepted.
        DoesNotFitError: nothing fits, so that there is no plan to change.
    """
    made = best_plan(read_asked(read_model(asked.model), asked), asked.objective)
    question, base = Question(made.model, made.cluster, made.job), made.layout
    table = _around(question)
    columns = concatenate([from_layouts([base]), table]) if _plain(base) else table
    priced = price(question.model, question.cluster, question.job, columns)
    fits = priced.memory.peak <= OVER * capacity_bytes(question.cluster)
    order = np.argsort(np.where(fits, priced.step_time_s, np.inf), kind="stable")[:MOST_ROWS]
    rows = order[fits[order]]
    columns = columns.take(rows)
    best = made.estimate
    words = layout_links(asked, question.job, base)["cli"]
    names = ("dp", "tp", "pp", "cp", "ep", "zero", "shard", "micro_batch", "recompute")
    found: dict[str, Any] = {name: getattr(columns, name).tolist() for name in names}
    found |= {
        "v": columns.virtual_stages.tolist(),
        "schedule": columns.schedule.tolist(),
        "sequence_parallel": columns.sequence_parallel.tolist(),
        "step_time_s": _digits(priced.step_time_s[rows]),
        "peak_memory_bytes": _digits(priced.memory.peak[rows]),
        "bubble_fraction": _digits(priced.bubble_fraction[rows]),
        "cp_method": columns.cp_method.tolist(),
        "methods": list(CONTEXT_METHODS),
        "recomputes": list(RECOMPUTES),
        "schedules": list(SCHEDULES),
        "capacity_bytes": best.capacity_bytes,
        "mfu_times_s": best.mfu * best.step_time_s,
        "tokens_per_device": best.tokens_per_s_per_gpu * best.step_time_s,
        "gpus": question.cluster.gpus,
        "cli": words.split(" --dp ")[0],
    }
    return cast(PriceTable, found)


def _plain(layout: Any) -> bool:
    """Whether a layout is all that the table's columns say of it."""
    named = (layout.stage_layers, layout.recompute_layers, layout.recompute_modules, layout.offload)
    return not any(named) and layout.etp == 1


def _around(question: Question) -> LayoutColumns:
    """Legal layouts with the usual rank order, whole shard groups and the usual split of norms."""
    columns = concatenate(list(enumerate_layouts(question, Constraints(), Tally())))
    usual = (columns.rank_order == 0) & (columns.shard == 0) & (columns.etp == 1)
    usual &= (columns.recompute_modules == 0) & (columns.offload == 0)
    never = offered(question).sequence_parallel == "never"
    return columns.take(usual & (columns.sequence_parallel == ((columns.tp > 1) & (not never))))


def _digits(values: np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


ROUTES = (("GET", "/api/prices", prices, PriceTable),)
"""Method, path, function and answer type of each endpoint."""
