"""Quantities with units, in and out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs import quantities as q
from meshwright.specs.errors import SpecError


@pytest.mark.parametrize(
    ("text", "count"),
    [("70B", 70e9), ("4k", 4000), ("4Ki", 4096), ("1.5M", 1.5e6), ("15T", 15e12), (4096, 4096),
     (" 8 k ", 8000), ("1e3", 1000)],
)  # fmt: skip
def test_counts(text, count):
    assert q.parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("4k", 4096), ("128K", 131072), ("1M", 2**20), ("8000", 8000), (4096, 4096), ("1.5k", 1500)],
)
def test_lengths_are_what_the_field_calls_them(text, tokens):
    assert q.parse_length(text) == tokens


@pytest.mark.parametrize("text", ["4096.5", 4096.5, "1.0001k", "0.5"])
def test_a_count_is_whole(text):
    with pytest.raises(SpecError, match="a whole number"):
        q.parse_count(text)


def test_a_batch_in_tokens_is_near_whole_sequences():
    assert q.parse_batch("4M-tokens", 8192) == 512
    with pytest.raises(SpecError, match="4096-tokens or 8192-tokens"):
        q.parse_batch("5000-tokens", 4096)


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GiB", 80 * 2**30), ("80GB", 80e9), ("512 MiB", 2**29), ("2TB", 2e12), (1e9, 1e9)],
)
def test_sizes(text, size):
    assert q.parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "rate"),
    [("400Gb/s", 50e9), ("400Gbit/s", 50e9), ("400Gbps", 50e9), ("50GB/s", 50e9),
     ("50GiB/s", 50 * 2**30), ("3.35TB/s", 3.35e12), ("25GBps", 25e9)],
)  # fmt: skip
def test_bandwidths(text, rate):
    assert q.parse_bandwidth(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5us", 5e-6), ("5µs", 5e-6), ("10ms", 0.01), ("3h", 10800), ("2d", 172800), (1, 1)],
)
def test_durations_are_the_nearest_float(text, seconds):
    assert q.parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("parse", "text"),
    [(q.parse_count, "seven"), (q.parse_count, "7Q"), (q.parse_count, "-7"),
     (q.parse_bytes, "80Gb"), (q.parse_bytes, "80 parsecs"), (q.parse_bandwidth, "400G"),
     (q.parse_seconds, "5 fortnights"), (q.parse_count, True), (q.parse_count, None)],
)  # fmt: skip
def test_refusals_name_the_field(parse, text):
    with pytest.raises(SpecError) as error:
        parse(text, "my.field")
    assert error.value.field == "my.field"


@given(st.integers(1, 10**15))
def test_formatted_counts_parse_back_closely(count):
    assert q.parse_count(q.format_count(count)) == pytest.approx(count, rel=5e-3)


@pytest.mark.parametrize(
    ("form", "value", "shown"),
    [(q.format_count, 999.9e6, "1B"), (q.format_count, 999.4e6, "999M"), (q.format_seconds, 0.9997, "1 s"),
     (q.format_seconds, 999.7, "1000 s"), (q.format_seconds, 999.7e-6, "1 ms"), (q.format_seconds, 0.9990, "999 ms")],
)  # fmt: skip
def test_what_rounds_up_to_a_unit_is_shown_in_it(form, value, shown):
    assert form(value) == shown


@given(st.floats(100, 1e15))
def test_formatted_sizes_parse_back_closely(size):
    assert q.parse_bytes(q.format_bytes(size)) == pytest.approx(size, rel=0.01)
