"""Hand-written loops on real ranks: right ones are found equal, bugs are caught and named.

`benchmarks/prove_bugs.py` runs all cases; here is one of each way of going wrong.
"""

import pytest

prove_bugs = pytest.importorskip("prove_bugs")
pytestmark = pytest.mark.dist

CHOSEN = (
    "data_parallel: right", "data_parallel: right (dtype bfloat16)", "tensor_parallel: right",
    "pipeline: right", "data_parallel: mean-of-means (uneven True)",
    "data_parallel: accumulation-not-averaged (clip 0.5)", "data_parallel: not-reduced",
    "data_parallel: all-1.01 (dtype bfloat16)", "data_parallel: state-lost",
    "data_parallel: decay-on-norms", "data_parallel: experts-scaled (experts 4)", "tensor_parallel: norms-not-reduced",
    "tensor_parallel: no-sum-in-backward", "pipeline: tied-not-summed", "pipeline: stage-norm (clip 0.5)",
    "context_parallel: positions",
)  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("recordings")


@pytest.fixture(scope="module")
def reference(root):
    return prove_bugs.make_reference(root)


def test_all_chosen_cases_exist():
    assert set(CHOSEN) <= {case.title for case in prove_bugs.CASES}


@pytest.mark.parametrize("title", CHOSEN)
def test_verdict(title, root, reference):
    case = next(c for c in prove_bugs.CASES if c.title == title)
    verdict = prove_bugs.judge(case, root, reference(case))
    assert prove_bugs.right(case, prove_bugs.answer(verdict)), verdict.sentence
    plain = verdict.plain()
    assert plain["equal"] == (case.cause == "")
    if not plain["equal"]:
        assert plain["first_step"] is not None
        assert plain["largest_relative_error"] > plain["bound"]
        assert plain["evidence"]
