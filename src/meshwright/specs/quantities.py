"""Quantities with units, in and out: `70B`, `80GiB`, `400Gb/s`, `4k`, `4M-tokens`.

GB is 1e9 bytes and GiB is 2**30 bytes, always. A bandwidth in bits (`Gb/s`) becomes bytes/s.
"""

from __future__ import annotations

import math
import re

from meshwright.specs.errors import SpecError

_DECIMAL = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_BYTES = {
    "b": 1.0,
    "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
}  # fmt: skip
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SECOND_PARTS = {"ns": 1e9, "us": 1e6, "µs": 1e6, "ms": 1e3}
"""Divisors, because 5 / 1e6 is the float nearest to 5 µs and 5 * 1e-6 is not."""
_NUMBER = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*$")


def _split(text: object, field: str, examples: str) -> tuple[float, str]:
    if isinstance(text, bool) or not isinstance(text, (int, float, str)):
        raise SpecError(field, text, f"a quantity is expected, such as {examples}")
    if isinstance(text, (int, float)):
        number, unit = float(text), ""
    else:
        match = _NUMBER.match(text[:64])
        if not match or len(text) > 64:
            raise SpecError(field, text, f"a quantity is expected, such as {examples}")
        number, unit = float(match.group(1)), match.group(2)
    if not math.isfinite(number) or number < 0:
        raise SpecError(field, text, f"a finite quantity of at least 0 is expected ({examples})")
    return number, unit


def parse_count(text: object, field: str = "count") -> int:
    """Parse a count with a decimal suffix: `70B` is 70e9, `4k` is 4000 (`4Ki` is 4096).

    Raises:
        SpecError: not a number with one of the suffixes k, M, B (or G), T, Ki, Mi.
    """
    number, unit = _split(text, field, "4096, 4k, 4M, 70B")
    binary = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}
    factor = _DECIMAL.get(unit.lower(), binary.get(unit.lower()))
    if factor is None or number * factor > 1e18:
        raise SpecError(field, text, "a count is expected, such as 4096, 4k, 4M, 70B")
    count = round(number * factor)
    if abs(number * factor - count) > 1e-9 * max(count, 1):
        raise SpecError(field, text, "a whole number is expected, such as 4096 or 1.5k")
    return count


def parse_length(text: object, field: str = "seq_len") -> int:
    """Parse a sequence length in tokens: `8k` is 8192 and `1M` is 1,048,576, as the field says them.

    A length of `8k` is a power of two in every published model; `8000` is still 8000.

    Raises:
        SpecError: not a whole number, or not one with a suffix.
    """
    if isinstance(text, str) and (match := re.fullmatch(r"\s*([0-9]+)\s*([kKmM])\s*", text[:64])):
        return parse_count(f"{match.group(1)}{match.group(2)}i", field)
    return parse_count(text, field)


def parse_bytes(text: object, field: str = "size") -> float:
    """Parse a size in bytes: `80GiB`, `80GB`, `2 MiB`; a bare number is bytes.

    Raises:
        SpecError: the unit is not one of B, kB…TB, KiB…TiB.
    """
    number, unit = _split(text, field, "80GiB, 80GB, 512MiB")
    if unit == "":
        return number
    if unit[-1:] == "b" and unit.lower() in _BYTES and len(unit) > 1:
        raise SpecError(field, text, "lower-case b means bits; write GB or GiB for a size in bytes")
    factor = _BYTES.get(unit.lower())
    if factor is None:
        raise SpecError(field, text, "a size is expected, such as 80GiB, 80GB, 512MiB")
    return number * factor


def parse_bandwidth(text: object, field: str = "bandwidth") -> float:
    """Parse a bandwidth to bytes/s: `400Gb/s` (or `400Gbit`, `400Gbps`) is 50e9, `50GB/s` too.

    Raises:
        SpecError: the text does not say bits or bytes per second.
    """
    number, unit = _split(text, field, "400Gb/s, 50GB/s")
    if unit == "":
        return number
    bare = unit.replace("bit/s", "b/s").replace("bit", "b/s").replace("bps", "b/s")
    bare = bare.replace("b/s/s", "b/s").replace("Bps", "B/s")
    match = re.fullmatch(r"([kKMGT]?)(i?)([bB])/s", bare)
    if not match:
        raise SpecError(field, text, "a bandwidth is expected, such as 400Gb/s or 50GB/s")
    prefix, binary, what = match.groups()
    power = ["", "k", "m", "g", "t"].index(prefix.lower())
    scale = (2.0**10 if binary else 1e3) ** power
    return number * scale / (8 if what == "b" else 1)


def parse_seconds(text: object, field: str = "time") -> float:
    """Parse a duration to seconds: `10us`, `5 ms`, `50000h`; a bare number is seconds.

    Raises:
        SpecError: the unit is not one of ns, us, ms, s, min, h, d.
    """
    number, unit = _split(text, field, "10us, 5ms, 3h")
    if unit == "":
        return number
    if unit.lower() in _SECOND_PARTS:
        return number / _SECOND_PARTS[unit.lower()]
    factor = _SECONDS.get(unit.lower())
    if factor is None:
        raise SpecError(field, text, "a duration is expected, such as 10us, 5ms, 30s, 3h, 2d")
    return number * factor


def parse_batch(text: object, seq_len: int, field: str = "global_batch") -> int:
    """Parse a global batch to sequences: `512`, `512-sequences` or `4M-tokens`.

    Tokens are divided by `seq_len` and rounded to a number of sequences that devices can share:
    a multiple of the largest power of two that changes it by less than an eighth. `4M-tokens` at
    8,192 tokens is 512 sequences, not 488, as it is in every published recipe.

    Raises:
        SpecError: not a count, or fewer tokens than one sequence holds.
    """
    if isinstance(text, str):
        for suffix in ("-tokens", " tokens", "tokens"):
            if text.lower().endswith(suffix):
                tokens = parse_count(text[: -len(suffix)], field)
                if tokens < seq_len:
                    raise SpecError(
                        field, text, f"a batch holds at least one sequence of {seq_len} tokens"
                    )
                sequences = _shareable(tokens / seq_len)
                if abs(sequences * seq_len / tokens - 1) > 0.125:
                    below = tokens // seq_len * seq_len
                    raise SpecError(
                        field,
                        text,
                        f"not near a whole number of sequences of {seq_len} tokens: {below}-tokens "
                        f"or {below + seq_len}-tokens",
                    )
                return sequences
        for suffix in ("-sequences", "-seqs", " sequences", "-samples"):
            if text.lower().endswith(suffix):
                text = text[: -len(suffix)]
                break
    count = parse_count(text, field)
    if count < 1:
        raise SpecError(field, text, "at least one sequence is expected, as 512 or 4M-tokens")
    if isinstance(text, str) and not text.strip().isdigit() and count * seq_len > _MOST_MEANT:
        short = text.strip()
        raise SpecError(
            field,
            text,
            f"{count:,} sequences of {seq_len} tokens are {count * seq_len / 1e9:,.3g} billion tokens a step: "
            f"{short}-tokens says tokens, {count} as many sequences",
        )
    return count


_MOST_MEANT = 1e9
"""Tokens of a step from which on an abbreviated number of sequences is taken for a slip: published steps end below 0.2."""


def _shareable(sequences: float) -> int:
    step = 1
    while step * 8 <= sequences:
        step *= 2
    return max(round(sequences / step), 1) * step


def format_bytes(size_bytes: float) -> str:
    """Format bytes in binary units with three significant digits: `38.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size_bytes) < 1024 or unit == "TiB":
            digits = 0 if unit == "B" else (2 if abs(size_bytes) < 10 else 1)
            return f"{size_bytes:.{digits}f} {unit}"
        size_bytes /= 1024
    raise AssertionError("unreachable")


_ROUNDS_UP = 0.9995
"""From this share of a unit on three digits show the unit itself, not a thousand of the smaller one."""


def format_seconds(time_s: float) -> str:
    """Format a duration with a unit that keeps two to four digits: `1.85 s`, `12.4 ms`."""
    if time_s >= 172800:
        return f"{time_s / 86400:.1f} days"
    if time_s >= 7200:
        return f"{time_s / 3600:.1f} h"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if time_s >= _ROUNDS_UP * scale:
            return (
                f"{time_s / scale:.3g} {unit}" if time_s < 1000 * _ROUNDS_UP else f"{time_s:.0f} s"
            )
    return f"{time_s * 1e9:.3g} ns"


def format_count(count: float) -> str:
    """Format a large count with a decimal suffix: `70.6B`, `4.19M`, `131k`."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= _ROUNDS_UP * scale:
            return f"{count / scale:.3g}{suffix}"
    return f"{count:g}"


def counted(count: int, noun: str) -> str:
    """A number and its noun: 1 rank, 4 ranks."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
