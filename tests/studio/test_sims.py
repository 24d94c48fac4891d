"""Every simulation: its shape, its invariants, and its refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ConfigDict, TypeAdapter
from starlette.testclient import TestClient

from meshwright.specs.errors import SpecError
from meshwright.studio.app import SIMULATIONS, create_app
from meshwright.studio.sims.data_parallel import data_parallel
from meshwright.studio.sims.tensor import tensor


@pytest.fixture(scope="module")
def client():
    return TestClient(create_app(), base_url="http://127.0.0.1:8000")


@pytest.mark.parametrize("sim", SIMULATIONS, ids=lambda sim: sim.id)
def test_default_answers_keep_their_shape_and_hold(client, sim):
    answer = client.get(f"/api/sim/{sim.id}")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    TypeAdapter(sim.data, config=ConfigDict(extra="forbid")).validate_python(body)
    assert body["summary"]
    assert body["checks"] and all(check["holds"] for check in body["checks"]), body["checks"]
    assert all(step["holds"] for step in body["steps"])
    assert client.get(f"/api/sim/{sim.id}").content == answer.content, "same query, same answer"


@pytest.mark.parametrize("split", ["column", "row", "mlp", "heads"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_split_products_equal_the_whole(split, tp):
    for seed in range(5):
        answer = tensor(split, tp, seed)
        assert answer["data"]["equal"]
        assert all(c["holds"] for c in answer["checks"])
        kinds = [s["collective"]["kind"] for s in answer["data"]["steps"] if s["collective"]]
        assert ("all-reduce" in kinds) == (split != "column" and tp > 1)


def test_a_column_split_concatenates():
    data = tensor("column", 2)["data"]
    x, w, y = (np.array(m["values"]) for m in data["whole"])
    assert np.array_equal(x @ w, y)
    parts = [np.array(r["items"][2]["values"]) for r in data["steps"][0]["ranks"]]
    assert np.array_equal(np.hstack(parts), y)


def test_tp_must_divide():
    with pytest.raises(SpecError, match="tp"):
        tensor("row", 3)


@given(
    dp=st.integers(1, 8), per=st.integers(2, 6), uneven=st.integers(0, 1), seed=st.integers(0, 99)
)
def test_replicas_equal_one_device(dp, per, uneven, seed):
    answer = data_parallel(dp, dp * per, seed, uneven)
    assert all(c["holds"] for c in answer["checks"])
    step = answer["data"]["steps"][1]["replicas"]
    gradients = np.array([r["gradient"] for r in step])
    sizes = [len(r["examples"]) for r in step]
    assert sorted(e for r in step for e in r["examples"]) == list(range(dp * per))
    full = np.array(answer["data"]["reference"]["gradient"])
    assert np.allclose(np.average(gradients, axis=0, weights=sizes), full)


def test_the_plain_mean_is_wrong_for_unequal_shards():
    step = data_parallel(4, 16, 0, 2)["data"]["steps"][1]["replicas"]
    full = data_parallel(4, 16, 0, 2)["data"]["reference"]["gradient"]
    assert not np.allclose(np.mean([r["gradient"] for r in step], axis=0), full, rtol=1e-3)
