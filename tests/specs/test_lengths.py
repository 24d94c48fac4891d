"""Lengths as a distribution: read from what people have, packed, padded and cut."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planner.data_notes import length_notes
from meshwright.planner.plan import price_layout
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.length_files import load_lengths
from meshwright.specs.lengths import Lengths, packed
from meshwright.specs.models import load_model


@given(st.lists(st.integers(1, 512), min_size=1, max_size=200))
def test_packing_loses_nothing_and_overfills_nothing(lengths):
    sequences = packed(lengths, 512)
    assert sorted(length for one in sequences for length in one) == sorted(lengths)
    assert all(sum(one) <= 512 for one in sequences)
    # No two sequences could have been one: best fit decreasing never opens one too early.
    halves = [one for one in sequences if sum(one) <= 256]
    assert len(halves) <= 1


def test_examples_as_long_as_the_sequence_waste_nothing():
    use = Lengths((1024,)).use(1024, micro_batch=4, ranks=8)
    assert (use.packed_fill, use.padded_fill, use.cut, use.slowest_rank) == (1.0, 1.0, 0.0, 1.0)
    assert use.examples_per_sequence == 1.0


def test_short_examples_fill_a_sequence_only_when_packed():
    use = Lengths((64, 64, 64, 900)).use(1024, micro_batch=8, ranks=16)
    assert use.packed_fill > 0.9
    assert use.padded_fill < 0.5
    assert use.slowest_rank > 1.0
    assert use.examples_per_sequence > 3


def test_a_plan_says_what_the_data_makes_of_it():
    job = Job(seq_len=2048, global_batch=64, finetune=finetune_recipe("lora"), framework="trl")
    layout = Layout(dp=8, micro_batch=4)
    made = price_layout(load_model("llama3.2-1b"), load_cluster("h100:1x8"), job, layout)
    short, exact = (length_notes(made, Lengths(tokens)) for tokens in ((100, 200, 1900), (2048,)))
    assert "padding" in short[1] and "wait" in short[1]
    assert f"{made.estimate.tokens_per_s_per_gpu:,.0f} tokens of data per second" in exact[0]
    assert "0% of what it computes is padding" in exact[1]
    assert "cut off" in length_notes(made, Lengths((9000,)))[2]
    dropping = made.but(job=job.but(framework="axolotl"))
    assert "leaves out whole" in length_notes(dropping, Lengths((9000, 1000)))[2]
    said = length_notes(made, Lengths((9,), examples=5, empty=2, part=True))
    assert "first 5 examples" in said[2] and "2 of the data's" in said[3]


def test_what_is_too_long_is_cut():
    assert Lengths((3000, 1000)).use(2000).cut == pytest.approx(0.25)


def test_the_files_people_have(tmp_path):
    def read(text, name="data.jsonl"):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return load_lengths(path)

    assert read("10\n20\n").tokens == (10, 20)
    assert read('{"num_tokens": 7}\n{"input_ids": [1, 2, 3]}\n').tokens == (7, 3)
    chat = read(json.dumps({"messages": [{"role": "user", "content": "x" * 396}]}) + "\n")
    assert chat.estimated
    assert chat.tokens == (104,)
    histogram = read('{"128": 3000000, "4096": 1000000}', "histogram.json")
    assert histogram.mean == pytest.approx((3 * 128 + 4096) / 4, rel=0.01)


def _chat(*said):
    return [{"role": "user", "content": one} for one in said]


@pytest.mark.parametrize(
    ("example", "lengths"),
    [
        ({"messages": _chat("a" * 40, "b" * 80)}, (40,)),
        ({"messages": _chat([{"type": "text", "text": "a" * 40}, {"type": "image_url", "image_url": "x" * 999}])}, (15,)),
        ({"conversations": [{"from": "gpt", "value": "a" * 40}], "id": "x" * 400}, (15,)),
        ({"prompt": _chat("a" * 40), "completion": _chat("b" * 40)}, (30,)),
        ({"prompt": "a" * 40, "chosen": "b" * 40, "rejected": "c" * 80}, (20, 30)),
        ({"instruction": "a" * 40, "input": "b" * 8, "output": "c" * 40, "text": "x" * 400}, (22,)),
        ({"text": "a" * 40, "url": "x" * 400}, (10,)),
        ({"text": "数据" * 20}, (30,)),
        ({"tokens": [1, 2, 3]}, (3,)),
        ([1, 2, 3, 4], (4,)),
        ("a" * 40, (10,)),
    ],
)  # fmt: skip
def test_what_formats_hold_besides_text_is_not_counted(tmp_path, example, lengths):
    path = tmp_path / "data.jsonl"
    path.write_text((json.dumps(example, ensure_ascii=False) + "\n") * 2, "utf-8")
    assert load_lengths(path).tokens == lengths * 2


ROWS = [{"text": "a" * 40}, {"text": "b\u2028" * 10}, {"text": ""}, {"text": "c" * 80}]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)


@pytest.mark.parametrize(
    "raw",
    [
        LINES.encode(), b"\xef\xbb\xbf" + LINES.encode(), LINES.replace("\n", "\r\n").encode(),
        ("\n\n" + LINES.replace("\n", "\n\n") + "\n\n").encode(), gzip.compress(LINES.encode(), mtime=0),
        json.dumps(ROWS).encode(), json.dumps(ROWS, indent=1).encode(), json.dumps({"data": ROWS}).encode(),
    ],
)  # fmt: skip
def test_files_as_they_are_written(tmp_path, raw):
    path = tmp_path / "data.jsonl"
    path.write_bytes(raw)
    found = load_lengths(path)
    assert (found.tokens, found.examples, found.empty) == ((10, 10, 20), 4, 1)


def test_of_a_long_file_the_beginning_is_read_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr("meshwright.specs.length_files.WHOLE_BYTES", 200)
    path = tmp_path / "data.jsonl"
    path.write_text('{"num_tokens": 7}\n' * 100)
    found = load_lengths(path)
    assert found.part
    assert 5 < found.examples < 20


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (LINES.replace('"c', "c").encode(), "line 4: a JSON value"),
        (LINES.replace("c", "é").encode("latin-1", "replace"), "line 4 is not UTF-8"),
        (b"\n", "at least one example"),
        (b'{"text": ""}\n{"text": ""}', "that is not empty"),
        (b"[1, 2", "line 1 begins with"),
    ],
)
def test_the_line_that_is_wrong_is_named(tmp_path, raw, words):
    path = tmp_path / "data.jsonl"
    path.write_bytes(raw)
    with pytest.raises(SpecError, match=words):
        load_lengths(path)


@pytest.mark.parametrize(
    "text", ["", "not json\n", '{"a": 1}\n', '{"128": -1}', '{"128": 0}', "[true]"]
)
def test_what_says_no_length_is_refused(tmp_path, text):
    path = tmp_path / "data.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(SpecError):
        load_lengths(path)


@pytest.mark.parametrize(
    "text",
    ['{"128": NaN}', '{"128": 1e999}', '{"128": 1e308, "256": 1e308}', '{"²": 1}', "[" * 9000,
     '{"' + "9" * 5000 + '": 1}', '{"length": 1e999}\n', "{" * 500 + "\n"],
)  # fmt: skip
def test_numbers_and_nesting_beyond_reason_are_refused_in_one_sentence(tmp_path, text):
    path = tmp_path / "data.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(SpecError):
        load_lengths(path)
