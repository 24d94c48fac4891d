"""Patterns that meet foreign text of any length cost time in proportion to it, and still read it."""

import pytest

from meshwright.diagnose.log_reading import _RESTART
from meshwright.diagnose.oom_messages import _BUFFER
from meshwright.engine.data import _WEIGHTED
from meshwright.evidence.architectures import _ACTIVE, _SPARSE
from meshwright.exports.megatron_read import _LOG_LINE
from meshwright.imports.document_text import _tamed, _without_placeholders
from meshwright.imports.formats.hf import is_trainer_text
from meshwright.imports.names import _EXPERTS, _NOISE
from meshwright.lessons.expressions import _PLACE
from meshwright.lessons.prose import _LINK

CHARACTERS = 120_000


@pytest.mark.parametrize(
    ("look", "unit", "head"),
    [
        (_tamed, "{", ".Values."),
        (_without_placeholders, " ", "{a:"),
        (is_trainer_text, "\n", ""),
        (_PLACE.search, "{", ""),
        (_LINK.search, "[", ""),
        (_LOG_LINE.match, "rank", ""),
        (_LOG_LINE.match, " ", "rank0"),
        (_LOG_LINE.match, " ", "0:"),
        (_LOG_LINE.match, " ", "a .. x"),
        (_BUFFER.search, "empty_strided_", ""),
        (_BUFFER.search, "empty_strided_a((1)", ""),
        (_RESTART.search, "worker_group", ""),
        (_NOISE.search, "0", ""),
        (_EXPERTS.search, "0", ""),
        (_SPARSE.search, "0", ""),
        (_ACTIVE.search, "0", ""),
        (_WEIGHTED.fullmatch, "0", ""),
    ],
)
def test_long_runs_of_what_a_pattern_accepts_cost_in_proportion(in_proportion, look, unit, head):
    texts = {
        size: head + unit * (size // len(unit)) + "\x01" for size in (CHARACTERS, CHARACTERS // 8)
    }
    in_proportion(lambda size: look(texts[size]), CHARACTERS)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("  hidden_size ............ 4096  ", ("hidden_size", "4096")),
        ("[rank 12]:   seq_length ..... 2048", ("seq_length", "2048")),
        ("0: rank ...... 0", ("rank", "0")),
        ("data_path ....... ['a b', 'c']", ("data_path", "['a b', 'c']")),
    ],
)
def test_a_line_of_megatrons_arguments_is_read_with_its_rank(line, found):
    assert _LOG_LINE.match(line).groups() == found


def test_templates_and_names_are_read_as_before():
    assert _tamed("a: {{ .Values.x }}/{{- y }}") == "a: left-to-helm/left-to-helm"
    unfilled = '{"a": LR, "b": , "c":\n  WORD }'
    assert _without_placeholders(unfilled) == '{"a": "auto", "b": "auto", "c":\n  "auto" }'
    assert _NOISE.sub("", "llama-7b-20240101") == "llama-7b"
    assert _EXPERTS.search("mixtral-8x7b")
    assert _WEIGHTED.fullmatch("0.5:a").groups() == ("0.5", "a")
    assert _WEIGHTED.fullmatch(".5:a")[1] == ".5" and _WEIGHTED.fullmatch("2:a")[1] == "2"
