"""How an input of benchmarks/fuzz.py is damaged: by its structure where it has one, and by bytes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import re
from pathlib import Path
from typing import Any

SPECIAL = ("absent", "folder", "device", "endless device", "pipe", "empty", "huge", "loop")
"""Files that are none."""

VALUES: tuple[Any, ...] = (
    0, -1, 1, 2, -128, 10**6, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30), 0.0, -0.0, 0.5,
    1e-300, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), True, False, None, "", "x",
    "nan", "inf", "1e999", "-5", "1e400", "0x10", "٣", "x" * 5000, "<img src=x onerror=alert(1)>",
    "\x1b[2J", "a\nb", "\u202e", "\ud800", "../../etc/passwd", "/dev/zero", "$(id)", "{{x}}", "[/b]",
    [], {}, [[]], [None], {"": 0}, [1, "a", None], {"a": {"b": []}}, 10**4000, "9" * 400,
)  # fmt: skip
TOKENS = (
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"NaN", b"-Infinity", b"1e999", b"9" * 400, b"[" * 3000,
    b"{" * 3000, b'"', b"'", b"\n", b"\r", b",", b":", b"<<: *a\n", b"&a [*a]", b"!!python/none x",
    b"- " * 2000, b"a." * 3000, b"%", b"\\", b"${", b"$(", b"((" * 800, b"=" * 50, b"#", b"\t",
    b"--x " * 200, b"|\n", b"*9" * 60, b" " * 5000, b"\xe2\x80\xa8", b"1" + b"0" * 30, b"-" * 100,
)  # fmt: skip


def special(kind: str, target: Path) -> None:
    """Put something that is no regular file of this content where a reader looks."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if kind == "folder":
        target.mkdir()
    elif kind == "device":
        target.symlink_to("/dev/null")
    elif kind == "endless device":
        target.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(target)
    elif kind == "empty":
        target.write_bytes(b"")
    elif kind == "loop":
        target.symlink_to(target)
    elif kind == "huge":
        with target.open("wb") as stream:
            stream.truncate(10**12)


def mutate(content: bytes, suffix: str, draw: random.Random) -> bytes:
    """Return a damaged copy: of the structure in two of three cases, of the bytes in the third."""
    packed = content[:2] == b"\x1f\x8b"
    inner = gzip.decompress(content) if packed and draw.random() < 0.8 else content
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        inner = _structure(inner, suffix, draw) if draw.random() < 0.67 else _bytes(inner, draw)
    return gzip.compress(inner, 1) if packed and inner is not content else inner


def _structure(content: bytes, suffix: str, draw: random.Random) -> bytes:
    text = content.decode("utf-8", "replace")
    if suffix in (".json", ".gz") or text.lstrip()[:1] in ("{", "["):
        try:
            return json.dumps(_changed(json.loads(text), draw)).encode("utf-8", "replace")
        except (ValueError, RecursionError):
            pass
    if suffix == ".jsonl":
        lines = text.split("\n")
        at = draw.randrange(len(lines))
        try:
            lines[at] = json.dumps(_changed(json.loads(lines[at]), draw))
        except (ValueError, RecursionError):
            lines.insert(at, draw.choice(lines))
        return "\n".join(lines).encode("utf-8", "replace")
    if suffix == ".csv":
        return _cell(text, draw)
    return _scalar(text, draw)


def _changed(data: Any, draw: random.Random) -> Any:
    """A copy of parsed data with one value replaced, left out, doubled or put deeper."""
    path: list[tuple[Any, Any]] = []
    here = data
    while isinstance(here, (dict, list)) and here and (not path or draw.random() < 0.85):
        key = draw.choice(list(here)) if isinstance(here, dict) else draw.randrange(len(here))
        path.append((here, key))
        here = here[key]
    if not path:
        return draw.choice(VALUES)
    holder, key = path[-1]
    action = draw.random()
    if action < 0.6:
        holder[key] = draw.choice(VALUES)
    elif action < 0.7:
        del holder[key]
    elif action < 0.8 and isinstance(holder[key], (int, float)) and abs(holder[key]) < 1e100:
        holder[key] = holder[key] * draw.choice((-1, 2, 3, 0.5, 1000, 10**9, 10**18))
    elif action < 0.9:
        deep: Any = holder[key]
        for _ in range(draw.choice((1, 2, 50, 200))):
            deep = [deep] if draw.random() < 0.5 else {"a": deep}
        holder[key] = deep
    elif isinstance(holder, dict):
        holder[draw.choice(("", "x", key * 2 if isinstance(key, str) else "y"))] = holder[key]
    else:
        holder.extend(holder[:1] * draw.choice((1, 10, 1000)))
    return data


def _cell(text: str, draw: random.Random) -> bytes:
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error:
        return text.encode("utf-8", "replace")
    row = rows[draw.randrange(len(rows))] if rows else []
    if row:
        value = draw.choice([v for v in VALUES if not isinstance(v, (list, dict))])
        shown = "" if value is None else value if isinstance(value, str) else _short(value)
        row[draw.randrange(len(row))] = shown
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue().encode("utf-8", "replace")


def _scalar(text: str, draw: random.Random) -> bytes:
    """Replace a number or a word of a text without a structure that is known here."""
    found = list(re.finditer(r"[\w.+-]+", text[:200_000]))
    if not found:
        return text.encode("utf-8", "replace")
    one, value = draw.choice(found), draw.choice(VALUES)
    shown = value if isinstance(value, str) else _short(value)
    return (text[: one.start()] + shown + text[one.end() :]).encode("utf-8", "replace")


def _short(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 1000:
        return "1" + "0" * 4000
    return json.dumps(value)


def _bytes(content: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(content) + 1)
    action = draw.random()
    if action < 0.25 and content:
        flipped = bytearray(content)
        flipped[at % len(content)] ^= 1 << draw.randrange(8)
        return bytes(flipped)
    if action < 0.4:
        return content[:at]
    if action < 0.75:
        return content[:at] + draw.choice(TOKENS) + content[at:]
    other = draw.randrange(len(content) + 1)
    piece = content[min(at, other) : max(at, other)][:20_000]
    if action < 0.85:
        return content[:at] + piece * draw.choice((1, 3)) + content[at:]
    return content.replace(piece, b"", 1) if piece else content
