"""What is left out unpriced could not have won: corners by their floors, frameworks by their bounds."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costs.step import capacity_bytes
from meshwright.planner import heads
from meshwright.planner.constraints import Constraints
from meshwright.planner.flips import with_memory, with_network
from meshwright.planner.heads import Stream, heads_of
from meshwright.planner.legality import Question
from meshwright.planner.search import search
from meshwright.planner.stacks import solve_all, under
from meshwright.specs.clusters import load_cluster
from meshwright.specs.encoders import Encoder
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.model import Experts, Model
from meshwright.specs.models import load_model

SMALL = Model(
    name="small", layers=12, hidden=2048, heads=16, kv_heads=8, head_dim=128, ffn=5632, vocab=32000
)
ROUTED = SMALL.but(
    name="routed", experts=Experts(experts=16, top_k=2, ffn=1408, dense_layers=1), ffn=5632
)
ODD = SMALL.but(name="odd", layers=13, hidden=4096, heads=32, ffn=14336, vocab=128256)
SEEING = SMALL.but(
    name="seeing",
    encoder=Encoder(
        parameters=420_000_000, family="qwen3_vl", layers=27, hidden=1152, heads=16, ffn=4304, patches=2304, joined=4,
    ),
)  # fmt: skip
MODELS = [SMALL, ROUTED, ODD, SEEING, load_model("nemotron-h-8b"), load_model("gpt-oss-20b")]
CLUSTERS = ["h100:1x8", "a100-80g:2x8", "a100-40g:4x4", "gb200:2x4", "mi300x:2x8"]
QUESTIONS = st.builds(
    lambda model, cluster, seq, batch, name: Question(
        model, load_cluster(cluster), under(Job(seq_len=seq, global_batch=batch), name)
    ),
    st.sampled_from(MODELS), st.sampled_from(CLUSTERS), st.sampled_from([2048, 16384]),
    st.sampled_from([32, 96, 256]), st.sampled_from(["any", "megatron", "nemo", "torchtitan", "nanotron"]),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _by_floors(monkeypatch):
    """Even small questions are opened by their floors, a few corners at a time."""
    monkeypatch.setattr(heads, "FEW", 0)
    monkeypatch.setattr(heads, "AT_ONCE", 64)
    heads.forget()
    yield
    heads.forget()


def _opened(question: Question) -> Stream:
    stream = Stream(question, Constraints())
    stream.open(np.arange(len(stream.corners)))
    return stream


@settings(max_examples=12, deadline=None, derandomize=True)
@given(question=QUESTIONS)
def test_no_head_is_faster_or_lighter_than_its_corner_allows(question):
    try:
        stream = _opened(question)
        found = stream.bounded()
    except SpecError:
        return
    of = np.searchsorted(stream._first, found.place, side="right") - 1
    assert (found.time_s >= stream.floor_s[of]).all()
    assert (found.peak >= stream.floor_bytes[of]).all()
    assert (stream.floor_s > 0).all()
    assert (stream.floor_bytes > 0).all()
    fastest = np.full(len(stream.corners), np.inf)
    np.minimum.at(fastest, of, found.time_s)
    # A floor that bounded nothing would pass the above.
    assert np.median((stream.floor_s / fastest)[np.isfinite(fastest)]) > 0.4


@settings(max_examples=6, deadline=None, derandomize=True)
@given(question=QUESTIONS, share=st.sampled_from([0.3, 1.0, 2.0]))
def test_the_order_of_heads_does_not_depend_on_what_is_opened(question, share):
    """Corner by corner gives what everything at once does, also after another memory was asked about."""
    asked = with_memory(question, share)
    try:
        whole = search(asked)
    except SpecError:
        return
    search(question, bounded=True)
    bounded = search(asked, bounded=True)
    assert bounded.fit_probability == whole.fit_probability
    for part in ("ranked", "gambles"):
        one, other = getattr(bounded, part), getattr(whole, part)
        assert (one.columns.rows > 0) == (other.columns.rows > 0)
        if other.columns.rows:
            assert one.columns.layout(0) == other.columns.layout(0)
            assert one.pessimistic_s[0] == other.pessimistic_s[0]
            assert one.step_time_s[0] == other.step_time_s[0]
            assert one.peak_bytes[0] == other.peak_bytes[0]


def test_what_cannot_win_stays_closed():
    question = Question(
        load_model("qwen3-30b-a3b"), load_cluster("h100:8x8"), under(Job(), "megatron")
    )
    found = search(question, bounded=True)
    stream = _kept(question)
    assert stream.rows < 0.5 * sum(one.rows for one in stream.corners)
    best = float(found.ranked.pessimistic_s[0])
    assert stream.next_floor(capacity_bytes(question.cluster)) > best
    assert found.searched.pruned["cannot beat the best (bound on time)"] > found.searched.priced


@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    model=st.sampled_from([SMALL, ROUTED, SEEING, ODD]),
    cluster=st.sampled_from(CLUSTERS),
    factor=st.sampled_from([0.25, 4.0]),
    share=st.sampled_from([0.4, 1.0]),
)
def test_the_winner_alone_is_the_winner_of_all(model, cluster, factor, share):
    question = Question(model, load_cluster(cluster), Job(seq_len=4096, global_batch=64))
    asked = with_memory(with_network(question, factor), share)
    every = solve_all(asked, Constraints())[0]
    alone = solve_all(asked, Constraints(), winner_only=True)[0]
    assert len(alone) <= len(every)
    assert (alone[0].choice is None) == (every[0].choice is None)
    if every[0].choice is not None:
        assert alone[0].layout == every[0].layout
        assert alone[0].question.job.framework == every[0].question.job.framework
        assert alone[0].choice.score == every[0].choice.score


def _kept(question: Question, constraints: Constraints | None = None) -> Stream:
    with heads_of(question, constraints or Constraints()) as stream:
        return stream


def test_heads_are_kept_while_only_memory_changes():
    question = Question(SMALL, load_cluster("h100:1x8"), under(Job(), "megatron"))
    first = _kept(question)
    assert _kept(with_memory(question, 0.5)) is first
    assert _kept(question, Constraints(fit_probability=0.99)) is first
    assert _kept(question, Constraints(tp=1)) is not first
    other = replace(question, job=question.job.but(global_batch=8))
    assert _kept(other) is not first


@pytest.mark.parametrize("name", ["deepspeed", "nanotron", "megatron"])
def test_what_is_missing_where_nothing_fits_is_said_of_the_lightest(name):
    """The fastest layouts that do not fit are not the lightest."""
    job = under(Job(seq_len=32768, global_batch=16), name)
    question = Question(load_model("mixtral-8x22b"), load_cluster("h100:2x8"), job)
    whole, bounded = search(question, keep=10**6), search(question, bounded=True)
    assert not whole.ranked.columns.rows and not bounded.ranked.columns.rows
    assert bounded.over_memory.peak_bytes.min() == whole.over_memory.peak_bytes.min()
    assert bounded.searched.priced <= whole.searched.priced


def test_threads_that_ask_the_same_get_what_one_alone_gets():
    """A page asks for its plan, prices and defence at once, each in a thread of the server."""
    asked = Question(
        load_model("llama2-13b"), load_cluster("h100:2x8"),
        under(Job(seq_len=4096, global_batch=128), "megatron"),
    )  # fmt: skip
    alone = search(asked, bounded=True).ranked

    def ask(_):
        return search(asked, bounded=True).ranked

    for _ in range(3):
        heads.forget()
        with ThreadPoolExecutor(6) as threads:
            for found in threads.map(ask, range(6)):
                assert found.columns.layout(0) == alone.columns.layout(0)
                assert np.array_equal(found.pessimistic_s, alone.pessimistic_s)
