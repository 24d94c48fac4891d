"""What a file is, told from what it holds; its name never counts."""

from __future__ import annotations

import re
from typing import Literal

from meshwright.diagnose.sources import Source

Artefact = Literal[
    "text", "nccl-dump", "ring", "trace", "operations", "memory-snapshot", "memory-timeline",
    "metrics", "plan", "foreign-json", "binary", "empty",
]  # fmt: skip

_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_JSON = re.compile(rb'\s*(?:\{\s*["}]|\[\s*[\[{"\]]|\[\s*-?\d[\d.]*\s*,)')
"""A table or list as JSON writes it; a log's `[rank0]:` or a dictionary as Python prints it is not."""
_TIMELINE = re.compile(rb"\s*\[\s*\[\s*-?\d+\s*,\s*\d\s*,\s*-?\d+\s*,\s*\d\s*\]")
"""[time, action, bytes, category]"""
_RING = b"MWFLIGHT"
_PARQUET = b"PAR1"


def recognise(source: Source) -> Artefact:
    """Say what a source is from its first bytes.

    Raises:
        SpecError: it cannot be read.
    """
    head = source.head()
    if not head.strip(b"\0 \r\n\t"):
        return "empty"
    if head.startswith(_RING):
        return "ring"
    if head.startswith(_PARQUET):
        return "operations"
    if _PICKLE.match(head):
        return _pickle(head)
    if _JSON.match(head):
        return _json(head)
    if b"\0" in head[:4096] or head.lstrip()[:9].lower() in (b"<!doctype", b"<html>", b"<html lan"):
        return "binary"
    return _text(head)


def _pickle(head: bytes) -> Artefact:
    if (b"segments" in head and b"device_traces" in head) or b"allocator_settings" in head:
        return "memory-snapshot"
    if b"pg_config" in head or b"nccl_version" in head or b"collective_seq_id" in head:
        return "nccl-dump"
    if b"block" in head and b"total_size" in head:
        return "memory-snapshot"
    return "binary"


def _json(head: bytes) -> Artefact:
    if b'"traceEvents"' in head or (b'"schemaVersion"' in head and b'"deviceProperties"' in head):
        return "trace"
    if b'"collective_seq_id"' in head or (b'"pg_config"' in head and b'"version"' in head):
        return "nccl-dump"
    if b'"device_traces"' in head or (b'"segments"' in head and b'"total_size"' in head):
        return "memory-snapshot"
    if _TIMELINE.match(head):
        return "memory-timeline"
    if b'"ph"' in head and b'"ts"' in head:
        return "operations" if _is_pipeline_events(head) else "trace"
    if re.match(rb'\s*\{\s*"(?:1|\d+)"\s*:\s*\{', head) and b'"fwd_' in head:
        return "operations"
    if b'"fwd_minibatch"' in head or b'"fwd_start"' in head:
        return "operations"
    first = head.split(b"\n", 1)[0]
    if first.rstrip().endswith(b"}") and re.search(rb'"(?:step|loss|step_time_s|kind)"', first):
        return "metrics"
    if b'"traceName"' in head or b'"baseTimeNanoseconds"' in head or b'"distributedInfo"' in head:
        return "trace"
    if b'"model"' in head and b'"layout"' in head and b'"cluster"' in head:
        return "plan"
    return "foreign-json"


def _is_pipeline_events(head: bytes) -> bool:
    """Begin and end of forwards and backwards alone, as pipeline tracers write them."""
    names = set(re.findall(rb'"name"\s*:\s*"([^"]*)"', head))
    return bool(names & {b"forward", b"backward"}) and b'"cat": "kernel"' not in head


def _text(head: bytes) -> Artefact:
    if b"meshwright_version" in head and b"[layout]" in head:
        return "plan"
    return "text"
