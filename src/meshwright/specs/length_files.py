"""Lengths of examples from the files that people have: JSON a line, arrays, histograms, gzipped or not."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import MIB, open_stream
from meshwright.specs.lengths import Lengths

BYTES_PER_TOKEN = 4.0
"""Of UTF-8 text under the tokenizers of current models, where a file holds text and no lengths: a letter of English
is one byte, and four of them are a token; a character of Chinese or Japanese is three, and about one."""
TOKENS_PER_MESSAGE = 5
"""That templates put around a message: `<|im_start|>role`, a new line, `<|im_end|>` and another, and as many of Llama's."""
WHOLE_BYTES = 256 * MIB
"""Of a file that is read whole; of a longer one the examples in as many bytes at its start stand for all."""
_LINE_BYTES = WHOLE_BYTES
_FILE_BYTES = 2**50
_LENGTH = re.compile(r"[0-9]{1,15}")
_LENGTHS = ("length", "len", "num_tokens", "n_tokens", "token_count", "tokens")
_IDS = ("input_ids", "token_ids", "ids", "tokens")
_CHATS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat", "turns")
_PAIRS = (("prompt", "completion"), ("prompt", "response"), ("instruction", "output"), ("instruction", "response"),
          ("question", "answer"), ("query", "response"), ("query", "answer"), ("text",), ("content",))  # fmt: skip
"""What holds an example's text, by name; what stands beside it (addresses, dates, sources) is no text."""
_BESIDE = ("system", "input", "context", "history", "tools")
"""What formats add to those."""
_WRAPPED = ("data", "train", "examples", "instances", "rows", "samples")


def load_lengths(path: str | Path, progress: Callable[[int], None] | None = None) -> Lengths:
    """Read lengths: JSON a line, a JSON array of examples, or a histogram {length: count}; gzip is unpacked.

    An example is a number, its token ids, or a table with its number of tokens (`length`, `num_tokens` …), its
    `input_ids`, or text: chats (`messages`, `conversations`), prompts with completions, instructions, preferences
    (two sequences each), or plain text, whose tokens are estimated from its bytes.

    Args:
        path: the file, or `-`.
        progress: told the number of examples read so far.

    Raises:
        SpecError: no such file, not UTF-8, or an example that says no length, with its line.
    """
    name = Path(path).name
    with open_stream(path, "lengths", _FILE_BYTES, unpack=True) as stream:
        first, number = _first_line(stream, name)
        value, well = _value(first)
        more = stream.peek(1)[:1] if hasattr(stream, "peek") else b""
        if well and (more or not isinstance(value, (dict, list))):
            return _of_lines(_lines(stream, first, number, name), name, progress)
        rest = stream.read(WHOLE_BYTES)
        if well and not rest.strip():
            return _of_document(value, name)
        document, whole = _value(_text(first.encode() + b"\n" + rest, name, number))
        if not whole and first.lstrip()[:1] not in ("[", "{"):
            raise SpecError(
                "lengths", first[:40], f"{name}, line {number}: a JSON value is expected"
            )
        if not whole:
            what = (
                f"its first {WHOLE_BYTES // MIB} MiB are no whole JSON document"
                if len(rest) == WHOLE_BYTES
                else "neither a JSON value a line nor one JSON document"
            )
            raise SpecError("lengths", name, f"{what} (line {number} begins with {first[:40]!r})")
    return _of_document(document, name)


def _first_line(stream: BinaryIO, name: str) -> tuple[str, int]:
    """The first line that is not blank, and its number; an empty text at the end."""
    number = 0
    while line := stream.readline(_LINE_BYTES):
        number += 1
        text = _text(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, name, number)
        if text:
            return text, number
    raise SpecError("lengths", name, "at least one example is expected")


def _text(line: bytes, name: str, number: int) -> str:
    try:
        return line.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise SpecError("lengths", name, f"line {number} is not UTF-8 text") from None


def _value(text: str) -> tuple[Any, bool]:
    """What JSON text says, and whether it is JSON."""
    try:
        return json.loads(text), True
    except (ValueError, RecursionError):
        return None, False


def _lines(stream: BinaryIO, first: str, number: int, name: str) -> Iterator[tuple[int, Any]]:
    """Number and value of each line that is not blank, up to `WHOLE_BYTES`; then -1."""
    line: str = first
    read = len(first)
    while True:
        if line:
            value, well = _value(line)
            if not well:
                raise SpecError(
                    "lengths", line[:40], f"{name}, line {number}: a JSON value is expected"
                )
            yield number, value
        if read >= WHOLE_BYTES:
            yield -1, None
            return
        raw = stream.readline(_LINE_BYTES)
        if not raw:
            return
        read += len(raw)
        number += 1
        line = _text(raw, name, number)


def _of_document(document: Any, name: str) -> Lengths:
    """Lengths of a JSON document: a histogram, an array of examples, also under one name, or one example."""
    if isinstance(document, dict) and document and all(map(_LENGTH.fullmatch, document)):
        return _histogram(document, name)
    if isinstance(document, dict):
        wrapped = [document[key] for key in _WRAPPED if isinstance(document.get(key), list)]
        document = wrapped[0] if wrapped else [document]
    if not isinstance(document, list):
        document = [document]
    return _of_lines(enumerate(document, 1), name, None, unit="example")


def _of_lines(
    examples: Iterable[tuple[int, Any]],
    name: str,
    progress: Callable[[int], None] | None,
    unit: str = "line",
) -> Lengths:
    tokens: list[int] = []
    estimated, empty, part, count = False, 0, False, 0
    for number, example in examples:
        if number < 0:
            part = True
            break
        found, guessed = _lengths_of(example)
        if not found:
            raise SpecError(
                "lengths",
                f"{name}, {unit} {number}",
                "a number, token ids, a count of tokens or text is expected",
            )
        count += 1
        held = [length for length in found if length > 0]
        empty += not held
        tokens += held
        estimated = estimated or guessed
        if progress is not None and count % 1000 == 0:
            progress(count)
    if not tokens:
        raise SpecError("lengths", name, "at least one example that is not empty is expected")
    return Lengths(tuple(tokens), estimated, examples=count, empty=empty, part=part)


def _histogram(table: dict[str, Any], name: str) -> Lengths:
    total = 0.0
    for key, count in table.items():
        if isinstance(count, bool) or not isinstance(count, (int, float)) or not count >= 0:
            raise SpecError(f"lengths.{key}", count, "a count of examples is expected")
        total += count
    if not 0 < total < math.inf:
        raise SpecError("lengths", name, "a histogram with at least one example is expected")
    # Ten thousand examples stand for any number of them.
    scale = min(1.0, 10_000 / total)
    tokens = [
        max(int(key), 1)
        for key, count in table.items()
        for _ in range(round(count * scale) or (count > 0))
    ]
    return Lengths(tuple(tokens))


def _whole(value: Any) -> int | None:
    """A count of tokens; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        return None
    return max(int(value), 1)


def _ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int for one in value[:100])


def _lengths_of(example: Any) -> tuple[list[int], bool]:
    """Tokens of an example's sequences, and whether they are estimated; nothing where it says none."""
    if (count := _whole(example)) is not None:
        return [count], False
    if isinstance(example, str):
        return [_tokens(example)], True
    if isinstance(example, list) and example:
        if _ids(example):
            return [len(example)], False
        return ([_tokens(example)], True) if isinstance(example[0], dict) else ([], False)
    if not isinstance(example, dict):
        return [], False
    for key in _LENGTHS:
        if (count := _whole(example.get(key))) is not None:
            return [count], False
    for key in _IDS:
        if key in example and _ids(example[key]):
            return [len(example[key])], False
    return _of_text(example), True


def _of_text(example: dict[str, Any]) -> list[int]:
    """Estimated tokens of the sequences that a table of text makes: two of a preference, else one."""
    beside = sum(_tokens(example[key]) for key in _BESIDE if key in example)
    prompt = _tokens(example.get("prompt"))
    if "chosen" in example and "rejected" in example:
        return [prompt + beside + _tokens(example[key]) for key in ("chosen", "rejected")]
    for key in _CHATS:
        if isinstance(example.get(key), list):
            return [_tokens(example[key]) + beside]
    for keys in _PAIRS:
        if all(key in example for key in keys):
            return [sum(_tokens(example[key]) for key in keys) + beside]
    spoken = [value for value in example.values() if isinstance(value, (str, list, dict))]
    return [sum(map(_tokens, spoken))] if any(map(_tokens, spoken)) else []


def _tokens(value: Any) -> int:
    """Estimated tokens of text, of a message with its template, or of a list of either."""
    if isinstance(value, str):
        return math.ceil(len(value.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN)
    if isinstance(value, list):
        return sum(map(_tokens, value))
    if not isinstance(value, dict):
        return 0
    if "role" in value or "from" in value:
        said = sum(
            _tokens(value.get(key))
            for key in ("content", "value", "reasoning_content", "thinking", "tool_calls")
        )
        return said + TOKENS_PER_MESSAGE
    if isinstance(value.get("type"), str) and value["type"] != "function":  # a part of a message
        return _tokens(value.get("text"))
    return _tokens(json.dumps(value, ensure_ascii=False))
