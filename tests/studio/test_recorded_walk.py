"""The recorded walk: complete, consistent, and what the engine still does."""

import pytest

from meshwright.studio.sims.walk import recorded, walk


@pytest.mark.parametrize("layout", [*recorded()])
def test_the_recorded_ledger_is_consistent(layout):
    answer = walk(layout)
    assert all(c["holds"] for c in answer["checks"])
    data = answer["data"]
    assert len(answer["steps"]) == len(data["frames"]) == data["events"][-1]["step"] + 1
    assert len(data["ranks"]) == {"one": 1, "dp2tp2pp2": 8}.get(layout, 4)
    for rank, counted in zip(data["ranks"], recorded()[layout]["bytes_per_rank"], strict=True):
        for state, total in (("parameters", "parameter"), ("gradients", "gradient"), ("optimizer", "optimizer")):  # fmt: skip
            held = [part[state] for part in rank["held"].values()]
            assert sum(held) == counted[f"{total}_bytes"]
        last = [event for event in data["events"] if event["rank"] == rank["rank"]][-1]
        assert last["phase"] == "update" and last["live"][1] == counted["gradient_bytes"]


def test_what_is_drawn_is_what_each_axis_does():
    """Cut by tensor, dealt out by layers, copied by data: from the bytes that ranks counted."""
    whole = walk("one")["data"]["whole"]
    held = {name: [rank["held"] for rank in walk(name)["data"]["ranks"]] for name in recorded()}
    assert all(rank == whole for rank in held["dp4"] + held["recompute"])
    assert [list(rank) for rank in held["pp4"]] == [
        ["embed", "layers.0"], ["layers.1"], ["layers.2"], ["layers.3", "head"],
    ]  # fmt: skip
    for part, states in whole.items():
        for rank in held["zero3"]:
            assert {k: 4 * v for k, v in rank[part].items()} == states
        for rank in held["tp4"]:
            assert states["parameters"] / 4 <= rank[part]["parameters"] < states["parameters"] / 3
    # Matrices halved and norms whole by tensor; twins hold the same.
    whole_layer = whole["layers.0"]["parameters"]
    for rank in held["dp2tp2"]:
        assert whole_layer / 2 < rank["layers.0"]["parameters"] < whole_layer * 0.51


def test_activations_come_and_go_and_recomputation_keeps_few():
    def most(name):
        events = walk(name)["data"]["events"]
        return max(e["live"][2] for e in events if e["rank"] == 0 and e["phase"] == "forward")

    assert most("recompute") < most("dp4") / 5
    for name in ("one", "dp4", "tp4", "pp4"):
        own = [e["live"][2] for e in walk(name)["data"]["events"] if e["rank"] == 0]
        assert own[0] < 0.1 * max(own) and own[-1] < 0.1 * max(own)
    # A gathered layer is dropped again.
    gathered = [e["live"][0] for e in walk("zero3")["data"]["events"] if e["rank"] == 0]
    assert gathered[-1] == 0 < max(gathered) < walk("one")["data"]["ranks"][0]["held"]["layers.0"]["parameters"] * 2  # fmt: skip


def test_who_talks_along_which_axis():
    sent = {name: walk(name)["data"]["bytes_by_axis"] for name in recorded()}
    assert sent["tp4"]["data"] == sent["tp4"]["pipeline"] == 0 < sent["tp4"]["tensor"]
    assert sent["pp4"]["data"] == sent["pp4"]["tensor"] == 0 < sent["pp4"]["pipeline"]
    ratio = sum(sent["tp4"].values()) / sum(sent["pp4"].values())
    assert 19 < ratio < 21  # "some twenty times", the lesson on layers says
    # Half as much again, but for the head and its norm: last in the forward, first in the backward,
    # they stay gathered in between. Each of 4 ranks sends 3/4 of what a gather moves.
    head_bytes = 4 * (512 * 64 + 64)
    again = 4 * 3 / 4 * head_bytes
    assert sent["zero3"]["data"] == 1.5 * sent["dp4"]["data"] - again
    assert all(value > 0 for value in sent["dp2tp2pp2"].values())


@pytest.mark.dist
@pytest.mark.slow
def test_the_engine_still_walks_as_recorded():
    pytest.importorskip("torch")
    from meshwright.engine.proof.walk import walk as run
    from meshwright.engine.proof.walk_story import plain

    fresh = plain(run(("pp4",)))["regimes"]["pp4"]
    old = recorded()["pp4"]
    assert fresh["bytes_per_rank"] == old["bytes_per_rank"]
    assert fresh["walk"]["bytes_by_axis"] == old["walk"]["bytes_by_axis"]

    def by_rank(regime):
        events = regime["walk"]["events"]
        return [[e["title"] for e in events if e["rank"] == rank] for rank in range(4)]

    assert by_rank(fresh) == by_rank(old)
    assert [r["held"] for r in fresh["walk"]["ranks"]] == [r["held"] for r in old["walk"]["ranks"]]

    def most(regime):
        return [
            max(e["live"][2] for e in regime["walk"]["events"] if e["rank"] == r) for r in range(4)
        ]

    assert most(fresh) == pytest.approx(most(old), rel=0.25)  # transfers end when they end
