"""The recorded walk: complete, consistent, and what the engine still does."""

import pytest

from meshwright.studio.sims.walk import recorded, walk


@pytest.mark.parametrize("layout", ["dp4", "tp4", "pp4", "zero3", "dp2tp2pp2"])
def test_the_recorded_ledger_is_consistent(layout):
    answer = walk(layout)
    assert all(c["holds"] for c in answer["checks"])
    assert len(answer["steps"]) == len(answer["data"]["events"])
    assert len(answer["data"]["ranks"]) == (8 if layout == "dp2tp2pp2" else 4)


def test_who_talks_along_which_axis():
    sent = {name: walk(name)["data"]["bytes_by_axis"] for name in recorded()}
    assert sent["tp4"]["data"] == sent["tp4"]["pipeline"] == 0 < sent["tp4"]["tensor"]
    assert sent["pp4"]["data"] == sent["pp4"]["tensor"] == 0 < sent["pp4"]["pipeline"]
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
