"""The toy model's step on real ranks, event by event, from a recorded ledger.

`recorded/walk.json` is what `meshwright walk -o walk.json` wrote: the ledger of real processes. It
ships with the package so that the page needs no torch; a test runs the walk again and compares.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

from fastapi import Query
from typing_extensions import TypedDict

from meshwright.studio.views import Check, Formula, Step, View, check, decimal_bytes

RegimeName = Literal["dp4", "tp4", "pp4", "zero3", "dp2tp2pp2"]


class WalkRank(TypedDict):
    """A rank: its place on each axis, and the part of the model that it holds."""

    rank: int
    dp: int
    pp: int
    tp: int
    holds: str


class WalkEvent(TypedDict):
    """One thing that one rank did."""

    step: int
    rank: int
    phase: Literal["forward", "backward", "reduce", "update", "step"]
    kind: Literal["compute", "send", "receive", "collective"]
    axis: str
    title: str
    peers: list[int]
    bytes: float
    layer: int
    micro: int


class AxisBytes(TypedDict):
    """Bytes that all ranks send in the step, by axis."""

    data: float
    tensor: float
    pipeline: float


class WalkData(TypedDict):
    """A recorded step."""

    layers: int
    ranks: list[WalkRank]
    events: list[WalkEvent]
    bytes_by_axis: AxisBytes
    source: str


@cache
def recorded() -> dict[str, Any]:
    """Return the recorded regimes by name."""
    file = resources.files("meshwright.studio").joinpath("recorded/walk.json")
    regimes: dict[str, Any] = json.loads(file.read_text("utf-8"))["regimes"]
    return regimes


def walk(
    layout: Annotated[RegimeName, Query(description="how the toy model is cut")] = "dp4",
) -> View[WalkData]:
    """Tell one training step of the toy model on real ranks, from its ledger."""
    regime = recorded()[layout]
    data: WalkData = regime["walk"]
    totals = data["bytes_by_axis"]
    talks = [e for e in data["events"] if e["axis"] and e["kind"] in ("collective", "send")]
    counted = dict.fromkeys(("data", "tensor", "pipeline"), 0.0)
    for event in talks:
        counted[event["axis"]] += event["bytes"]
    by_rank = regime["bytes_per_rank"]
    predicted = all(r["sent_bytes_by_axis"] == r["predicted_bytes_by_axis"] for r in by_rank)
    proof = regime["proof"]
    checks: list[Check] = [
        check("the events' bytes add up to the ledger's", counted == dict(totals)),
        check("bytes sent on every rank equal the cost model's, exactly", predicted),
        check(
            f"gradients equal one device's to {proof['max_abs_error']:.1g} "
            f"(bound {proof['bound']:.0g})",
            proof["passed"] and proof["max_abs_error"] <= proof["bound"],
        ),
    ]
    exchanges = len({(e["step"], e["title"], min([e["rank"], *e["peers"]])) for e in talks})
    total = totals["data"] + totals["tensor"] + totals["pipeline"]
    ranks = data["ranks"]
    formulas: list[Formula] = [
        {
            "name": "Model states per rank, fp32 with AdamW",
            "symbolic": "weights+gradients+moments",
            "substituted": "+".join(
                f"{by_rank[0][part]:,}"
                for part in ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
            ),
            "value": decimal_bytes(_states(by_rank[0])),
            "source": "counted on rank 0",
        }
    ]
    return {
        "summary": f"{regime['title'].capitalize()} on {len(ranks)} ranks: {exchanges} exchanges, "
        f"{decimal_bytes(total)} sent by all ranks in one step, "
        f"{decimal_bytes(_states(by_rank[0]))} of states on rank 0.",
        "checks": checks,
        "formulas": formulas,
        "table": {
            "caption": "What each rank holds and sends in one step",
            "columns": ["rank", "dp", "pp", "tp", "holds", "states", "sent"],
            "rows": [
                [
                    rank["rank"], rank["dp"], rank["pp"], rank["tp"], rank["holds"],
                    decimal_bytes(_states(held)), decimal_bytes(_sent(held)),
                ]
                for rank, held in zip(ranks, by_rank, strict=True)
            ],
        },
        "steps": [_told(event) for event in data["events"]],
        "cli": f"meshwright walk --only {layout}",
        "python": f"from meshwright.engine.proof.walk import walk\nwalk(({layout!r},))",
        "data": {**data, "source": f"{data['source']}, recorded by `meshwright walk`"},
    }  # fmt: skip


def _states(held: dict[str, Any]) -> float:
    return float(held["parameter_bytes"] + held["gradient_bytes"] + held["optimizer_bytes"])


def _sent(held: dict[str, Any]) -> float:
    return float(sum(v for axis, v in held["sent_bytes_by_axis"].items() if axis != "control"))


def _told(event: WalkEvent) -> Step:
    size = f", {decimal_bytes(event['bytes'])}" if event["bytes"] else ""
    partners = f" with {', '.join(map(str, event['peers']))}" if event["peers"] else ""
    sentence = f"Rank {event['rank']}: {event['title']}{size}{partners}."
    return {"title": event["title"], "sentence": sentence, "check": "", "holds": True}
