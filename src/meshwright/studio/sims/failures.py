"""Failures and checkpoints: the best interval, the goodput it leaves, and one run as luck had it."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from fastapi import Query
from typing_extensions import TypedDict

from meshwright.costs.reliability import best_interval_s, goodput, job_mtbf_s
from meshwright.specs.errors import SpecError
from meshwright.specs.quantities import format_seconds, parse_seconds
from meshwright.specs.stopping import go_on
from meshwright.studio.views import View, check, percent

MOST_EVENTS = 1500
MOST_FAILURES = 20_000


class RunEvent(TypedDict):
    """A stretch of the run: `run`, `checkpoint`, `lost` or `restart`."""

    time_s: float
    kind: str
    duration_s: float


class GoodputCurve(TypedDict):
    """Goodput against the time between checkpoints."""

    interval_s: list[float]
    goodput: list[float]


class FailuresData(TypedDict):
    """The expectation, and one simulated run."""

    best_interval_s: float
    interval_s: float
    goodput: float
    mtbf_s: float
    curve: GoodputCurve
    events: list[RunEvent]
    totals: dict[str, float]
    simulated_goodput: float


def failures(
    nodes: Annotated[int, Query(ge=1, le=100_000)] = 2048,
    mtbf_node: Annotated[
        str, Query(max_length=20, description="mean time between failures of one node")
    ] = "6300h",
    checkpoint: Annotated[str, Query(max_length=20, description="time one save takes")] = "60s",
    restart: Annotated[str, Query(max_length=20, description="from failure to work")] = "5min",
    interval: Annotated[
        str, Query(max_length=20, description="work between saves; 0: the best")
    ] = "0",
    days: Annotated[float, Query(gt=0, le=365, description="length of the simulated run")] = 3,
    seed: Annotated[int, Query(ge=0, le=9999)] = 0,
) -> View[FailuresData]:
    """Find the best time between checkpoints, and live through one run.

    Raises:
        SpecError: a duration cannot be read or is zero.
    """
    save = max(parse_seconds(checkpoint, "checkpoint"), 1e-3)
    again = parse_seconds(restart, "restart")
    node_s = parse_seconds(mtbf_node, "mtbf_node")
    if node_s <= 0:
        raise SpecError("mtbf_node", mtbf_node, "more than 0 is expected")
    mtbf = job_mtbf_s(node_s, nodes)
    count = days * 86400.0 / (mtbf + again)
    if not count <= MOST_FAILURES:
        raise SpecError(
            "mtbf_node",
            mtbf_node,
            f"the run would fail {count:.3g} times, at most {MOST_FAILURES:,} are simulated: fewer "
            "nodes, fewer days or a longer time between failures",
        )
    best = best_interval_s(checkpoint_s=save, mtbf_s=mtbf, restart_s=again)
    chosen = parse_seconds(interval, "interval") or best
    share, top = _useful([chosen, best], save, again, mtbf)
    taus = best * np.logspace(-1.6, 1.6, 65)
    events, totals = _live(chosen, save, again, mtbf, days * 86400.0, seed)
    lived = sum(totals.values())
    shares = _useful(taus.tolist(), save, again, mtbf)
    return {
        "summary": f"{nodes} nodes fail every {format_seconds(mtbf)}. Saving every "
        f"{format_seconds(chosen)} keeps {percent(share)} of the time as work that counts; the best, "
        f"every {format_seconds(best)}, keeps {percent(top)}.",
        "checks": [
            check("no other interval on the curve is better than the best", max(shares) <= top + 1e-9),
            check("the parts of the simulated run add up to its length",
                  abs(lived - days * 86400.0) < 1.0),
        ],
        "formulas": [
            {"name": "Time between failures of the job", "symbolic": "M_node/nodes",
             "substituted": f"{format_seconds(node_s)}/{nodes}", "value": format_seconds(mtbf),
             "source": "failures of nodes are independent; 6300 h is Llama 3's: 419 unexpected interruptions in 54 days on 2,048 nodes (arXiv 2407.21783, section 3.3.4)"},
            {"name": "Best work between checkpoints, first order", "symbolic": "√(2*δ*M)",
             "substituted": f"√(2*{format_seconds(save)}*{format_seconds(mtbf)})",
             "value": format_seconds(math.sqrt(2 * save * mtbf)),
             "source": "Young 1974, where a checkpoint is short against the time between failures"},
            {"name": "Best work between checkpoints, exactly", "symbolic": "argmax goodput",
             "substituted": "", "value": format_seconds(best),
             "source": "the optimum of the goodput below, which the picture marks"},
            {"name": "Goodput", "symbolic": "τ/(M*e^(R/M)*(e^((τ+δ)/M)-1))", "substituted": "",
             "value": percent(share), "source": "Daly 2006, equation 20"},
        ],
        "table": {
            "caption": "Goodput by the time between checkpoints",
            "columns": ["work between checkpoints", "goodput"],
            "rows": [[format_seconds(t), percent(s)]
                     for t, s in list(zip(taus.tolist(), shares, strict=True))[::4]],
        },
        "steps": [],
        "cli": f"meshwright goodput --nodes {nodes} --mtbf-node {mtbf_node} --checkpoint-cost {checkpoint}",
        "python": "from meshwright.costs.reliability import best_interval_s, goodput\n"
        f"times = dict(checkpoint_s={save:g}, mtbf_s={mtbf:g}, restart_s={again:g})\n"
        "best = best_interval_s(**times)\nprint(best, goodput(best, **times))",
        "data": {
            "best_interval_s": best, "interval_s": chosen, "goodput": share, "mtbf_s": mtbf,
            "curve": {"interval_s": taus.tolist(), "goodput": shares},
            "events": events, "totals": totals,
            "simulated_goodput": totals["run"] / lived,
        },
    }  # fmt: skip


def _useful(intervals: list[float], save: float, again: float, mtbf: float) -> list[float]:
    return [goodput(t, checkpoint_s=save, mtbf_s=mtbf, restart_s=again).useful for t in intervals]


def _live(
    interval: float, save: float, again: float, mtbf: float, end: float, seed: int
) -> tuple[list[RunEvent], dict[str, float]]:
    """Live through one run; long stretches without failure are drawn as one."""
    luck = np.random.default_rng(seed)
    events: list[RunEvent] = []
    totals = dict.fromkeys(("run", "checkpoint", "lost", "restart"), 0.0)
    fine = end / (interval + save) < MOST_EVENTS / 3

    def spend(now: float, kind: str, duration: float, drawn: bool = True) -> float:
        duration = min(duration, end - now)
        if duration > 0:
            totals[kind] += duration
            if drawn and len(events) < MOST_EVENTS:
                events.append({"time_s": now, "kind": kind, "duration_s": duration})
        return now + max(duration, 0.0)

    now = 0.0
    while now < end:
        go_on()
        alive = float(luck.exponential(mtbf))
        kept = int(alive // (interval + save))
        until = min(now + alive, end)
        whole = min(kept, int((until - now) // (interval + save)))
        if fine:
            for _ in range(whole):
                now = spend(spend(now, "run", interval), "checkpoint", save)
        elif whole:
            spend(now, "run", whole * (interval + save))
            totals["run"] -= whole * save
            totals["checkpoint"] += whole * save
            now += whole * (interval + save)
        if until >= end:
            now = spend(now, "run", min(interval, end - now))
            now = spend(now, "checkpoint", end - now)
            break
        now = spend(now, "lost", until - now)
        now = spend(now, "restart", again)
    return events, totals
