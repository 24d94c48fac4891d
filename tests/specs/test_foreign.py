"""Foreign data: whatever somebody else wrote is plain, bounded data or one sentence."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.specs import foreign
from meshwright.specs.errors import SpecError, shorten


def refused(call, *words):
    with pytest.raises(SpecError) as raised:
        call()
    sentence = str(raised.value)
    assert len(sentence) < 800 and "\n" not in sentence
    for word in words:
        assert word in sentence, sentence
    return sentence


def one_sentence_at_most(call):
    sentence = ""
    try:
        call()
    except SpecError as error:
        sentence = str(error)
    assert "\n" not in sentence


# --- files ---------------------------------------------------------------------------------------


def test_only_regular_files_are_opened(tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    link = tmp_path / "link.json"
    link.symlink_to("/dev/zero")
    for path in ("/dev/zero", "/dev/null", str(link), fifo, tmp_path):
        refused(lambda path=path: foreign.read_bytes(path), "regular file")
        refused(lambda path=path: list(foreign.read_lines(path)), "regular file")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (loop, tmp_path / "absent", "a\0b", "x" * 5000, "\udc80"):
        refused(lambda path=path: foreign.read_data(path), "cannot be read")


def test_a_link_to_a_regular_file_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1}')
    (tmp_path / "b.json").symlink_to(tmp_path / "a.json")
    assert foreign.read_data(tmp_path / "b.json") == {"a": 1}


def test_sizes_are_checked_before_reading(tmp_path):
    big = tmp_path / "big.json"
    with big.open("wb") as stream:
        stream.truncate(10**12)  # sparse: reading it would take forever
    refused(lambda: foreign.read_data(big), "larger than 16 MiB")


def test_gzip_is_unpacked_only_to_its_budget(tmp_path):
    bomb = gzip.compress(bytes(64 * 2**20), mtime=0)
    assert len(bomb) < 100_000
    refused(lambda: foreign.gunzip(bomb, "trace", "bomb", 2**20), "larger than 1 MiB")
    path = tmp_path / "bomb.gz"
    path.write_bytes(bomb)

    def stream():
        with foreign.open_stream(path, "trace", 2**20, unpack=True) as opened:
            opened.read()

    refused(stream, "larger than 1 MiB")
    members = gzip.compress(b"one") + gzip.compress(b"two") + bytes(512)
    assert foreign.gunzip(members, "trace", "x", 100) == b"onetwo"
    assert foreign.gunzip(b"plain", "trace", "x", 100) == b"plain"
    refused(lambda: foreign.gunzip(bomb[:-9], "trace", "x", 2**30), "whole gzip file")
    refused(lambda: foreign.gunzip(b"\x1f\x8bzzzz", "trace", "x", 100), "gzip")


@given(st.binary(max_size=3000), st.integers(1, 4000))
@settings(max_examples=30, deadline=None)
def test_streams_give_exactly_the_bytes_or_refuse(content, budget):
    packed = gzip.compress(content)
    if len(content) <= budget:
        assert foreign.gunzip(packed, "f", "n", budget) == content
    else:
        refused(lambda: foreign.gunzip(packed, "f", "n", budget), "larger")


def test_standard_input_has_a_budget(monkeypatch):
    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            buffer[:] = b"x" * len(buffer)
            return len(buffer)

    monkeypatch.setattr("sys.stdin", type("In", (), {"buffer": io.BufferedReader(Endless())}))
    refused(lambda: foreign.read_data("-"), "larger than 16 MiB")


def test_long_lines_and_other_encodings(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"a\xff\r\nb\n" + b"c" * 5000)
    lines = foreign.read_lines(path, line_bytes=100)
    assert next(lines) == "a�" and next(lines) == "b"
    refused(lambda: next(lines), "line of more than 100 bytes")
    refused(lambda: foreign.read_text(path), "not UTF-8")
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert foreign.read_data(path) == {"a": 1}  # as editors on Windows write it


# --- documents -----------------------------------------------------------------------------------

TEN = "\n".join(f"k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 9)}]" for n in range(1, 10))
MERGES = "\n".join(f"k{n}: &k{n} {{<<: [{', '.join([f'*k{n - 1}'] * 9)}]}}" for n in range(1, 10))


@pytest.mark.parametrize(
    ("suffix", "text", "word"),
    [
        (".json", "[" * 100_000, "levels"),
        (".json", "[" * 80 + "]" * 80, "levels"),
        (".json", '{"a": 1, "a": 2}', "'a' is given twice"),
        (".json", '{"a": NaN}', "finite"),
        (".json", '{"a": -Infinity}', "finite"),
        (".json", '{"a": 1e999}', "finite"),
        (".json", '{"a": 99999999999999999999}', "64 bits"),
        (".json", '{"a": ' + "9" * 5000 + "}", "JSON"),
        (".json", '{"a": "\\ud800"}', "half of a character"),
        (".yaml", "k0: &k0 [1]\n" + TEN, "aliases counted"),
        (".yaml", "k0: &k0 {a: 1}\n" + MERGES, "aliases counted"),
        (".yaml", "a: &a [*a]", "inside itself"),
        (".yaml", "a: &a {b: *a}", "inside itself"),
        (".yaml", "[" * 2000 + "]" * 2000, "levels"),
        (".yaml", "a: 1\na: 2", "'a' is given twice"),
        (".yaml", "a: .nan", "finite"),
        (".yaml", "a: 1:" + ":".join(["59"] * 200_000), "digits"),
        (".yaml", "a: " + "9" * 5000, "digits"),
        (".yaml", "!!python/object/apply:os.system [echo]", "YAML"),
        (".yaml", "a: !!float abc", "YAML"),
        (".yaml", "a: !!int ''", "YAML"),
        (".yaml", "? [1]\n: 2", "not text"),
        (".yaml", "a: [", "YAML"),
        (".yaml", "--- a\n--- b", "YAML"),
        (".yaml", "a: " + "x" * 2_000_000, "larger"),
        (".toml", "a = inf", "finite"),
        (".toml", "a = 0x" + "f" * 40, "64 bits"),
        (".toml", "a = 1\na = 2", "TOML"),
        (".toml", ".".join(["a"] * 500_000) + " = 1", "dotted"),
        (".toml", "[" + ".".join(["a"] * 500_000) + "]\n" + "b = 1\n" * 9, "dotted"),
        (".toml", '["' + '"."'.join(["a"] * 500_000) + '"]', "dotted"),
        (".toml", "a = " + "[" * 5000 + "]" * 5000, "levels"),
        (".toml", "a = " + "[" * 80 + "]" * 80, "levels"),
    ],
)
@pytest.mark.timeout(100)  # milliseconds, where the parser alone takes minutes
def test_documents_beyond_the_limits(suffix, text, word):
    refused(lambda: foreign.parse_document(text, suffix, "file", "name"), word)


def test_too_many_values():
    small = foreign.Limits(nodes=100)
    for suffix in (".json", ".yaml"):
        text = '{"a": [' + "1," * 99 + "1]}"
        refused(
            lambda s=suffix, t=text: foreign.parse_document(t, s, "f", "n", small), "100 values"
        )


def test_documents_that_are_fine():
    yaml = "on: 1\n1: {a: &x [2, 3.5]}\nday: 2024-01-02\nb: *x\nc: {<<: {d: 4}, e: }"
    assert foreign.parse_yaml(yaml, "f", "n") == {
        "on": 1, "1": {"a": [2, 3.5]}, "day": "2024-01-02", "b": [2, 3.5], "c": {"d": 4, "e": None},
    }  # fmt: skip
    assert foreign.parse_toml("a.b = [1, 2.5]\nd = 2024-01-02", "f", "n") == {
        "a": {"b": [1, 2.5]},
        "d": "2024-01-02",
    }
    sentences = "note = '" + "one. two. " * 60 + "'"
    assert foreign.parse_toml(sentences, "f", "n")["note"].startswith("one. two.")
    lenient = foreign.Limits(any_number=True, last_wins=True)
    text = '{"limit": [0.0, Infinity], "length": 1000000000000000019884624838656, "a": 1, "a": 2}'
    assert foreign.parse_json(text, "f", "n", lenient) == {
        "limit": [0.0, float("inf")],
        "length": 1e30,
        "a": 2,
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(JSON)
@settings(max_examples=150, deadline=None)
def test_plain_data_comes_back_as_it_was_written(data):
    assert foreign.parse_json(json.dumps(data), "f", "n") == data
    assert foreign.unpickle(pickle.dumps(data), "f", "n") == data


@given(st.text(max_size=200), st.sampled_from([".json", ".yaml", ".toml"]))
@settings(max_examples=300, deadline=None)
def test_any_text_is_data_or_one_sentence(text, suffix):
    one_sentence_at_most(lambda: foreign.parse_document(text, suffix, "f", "n"))


# --- tables and pickles --------------------------------------------------------------------------


def test_tables():
    assert foreign.parse_csv("a,b\n1,2\n\n3\n", "f", "n") == [
        {"a": "1", "b": "2"},
        {"a": "3", "b": ""},
    ]
    refused(lambda: foreign.parse_csv("", "f", "n"), "header")
    refused(lambda: foreign.parse_csv("a,a\n1,2", "f", "n"), "'a' twice")
    refused(lambda: foreign.parse_csv("a,b\n1,2,3", "f", "n"), "line 2 has 3 cells")
    refused(lambda: foreign.parse_csv('a,b\n"1,2', "f", "n"), "CSV")
    refused(lambda: foreign.parse_csv("a\n" + "x" * 200_000, "f", "n"), "CSV")
    refused(lambda: foreign.parse_csv("a\n" + "1\n" * 20, "f", "n", rows=10), "10 rows")


def test_a_pickle_runs_nothing(tmp_path):
    canary = tmp_path / "canary"

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(canary),)

    for protocol in range(6):
        refused(lambda p=protocol: foreign.unpickle(pickle.dumps(Evil(), p), "f", "n"), "run code")
    assert not canary.exists()
    cycle: list = []
    cycle.append(cycle)
    refused(lambda: foreign.unpickle(pickle.dumps(cycle), "f", "n"), "levels")
    shared: object = 0
    for _ in range(40):
        shared = (shared, shared)
    refused(lambda: foreign.unpickle(pickle.dumps(shared), "f", "n"), "values")
    huge_memo = b"]r\xff\xff\xff\x7f."
    assert foreign.unpickle(huge_memo, "f", "n") == []  # the compiled unpickler takes 32 GiB here


@given(st.binary(max_size=60), st.integers(0, 200), JSON)
@settings(max_examples=300, deadline=None)
def test_damaged_pickles_are_one_sentence(noise, at, data):
    whole = pickle.dumps(data)
    at = min(at, len(whole))
    for raw in (noise, whole[:at] + noise + whole[at:], whole[:at]):
        one_sentence_at_most(lambda raw=raw: foreign.unpickle(raw, "f", "n"))


# --- what an error shows -------------------------------------------------------------------------


@given(JSON)
@settings(max_examples=150, deadline=None)
def test_shortened_values_begin_as_their_repr(data):
    whole = repr(data)
    short = shorten(data)
    assert short == whole or (len(short) <= 80 and short.endswith(("...", "]", "}")))
    if len(whole) <= 60:
        assert short == whole


def test_shortening_does_not_build_the_rest():
    shared: object = ["x"]
    for _ in range(60):
        shared = [shared, shared]
    cycle: dict = {}
    cycle["self"] = cycle
    for value in (shared, cycle, 10**100_000, "x" * 10**8, [0] * 10**7):
        tracemalloc.start()
        str(SpecError("field", value, "no"))
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 1_000_000


@pytest.mark.parametrize("length", range(70, 90))
def test_of_a_path_of_any_length_the_line_is_told(length):
    short = shorten("/" + "x" * (length - 3) + ":3")
    assert short.endswith(":3'") and len(short) <= 80


def test_of_a_long_path_the_sentence_keeps_the_end():
    path = "/data/" + "deep/" * 30 + "config.json"
    said = str(SpecError("init", path, "cannot be read"))
    assert said.startswith("init = '/data/deep/") and said.endswith("config.json': cannot be read")
    assert len(said) < 130
