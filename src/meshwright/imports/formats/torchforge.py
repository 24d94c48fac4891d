"""torchforge: its trainer is torchtitan's, in a table beside the actors and services that run around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.imports.formats import torchtitan
from meshwright.imports.interpolate import resolved
from meshwright.imports.reading import Given, Reading


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is one of its runs: a trainer of torchtitan's with actors, or processes beside one's tables."""
    trainer = data.get("trainer")
    inside = isinstance(trainer, dict) and torchtitan.is_config(trainer)
    return (inside and bool({"actors", "services"} & set(data))) or (
        isinstance(data.get("processes"), dict) and torchtitan.is_config(data)
    )


def read(data: dict[str, Any], given: Given, folder: Path | None = None) -> Reading:
    """Return what the trainer of such a run trains.

    Raises:
        SpecError: a value that cannot be.
    """
    whole = resolved(data, dict(given.variables))
    trainer = whole.get("trainer")
    reinforced = isinstance(trainer, dict)
    table = dict(trainer) if isinstance(trainer, dict) else dict(whole)
    started = table.pop("processes", None)
    actors = whole.get("actors")
    if isinstance(actors, dict):
        started = actors.get("trainer", started)
    reading = torchtitan.read_toml(table, given, [], folder)
    reading.format = "torchforge YAML"
    if isinstance(started, dict):
        hosts, each = started.get("hosts") or 1, started.get("procs") or 0
        if isinstance(hosts, int) and isinstance(each, int) and each:
            reading.hosts, reading.per_host, reading.counts_itself = hosts, each, True
    if reinforced:
        reading.note("the trainer is priced, not generation, reference or rewards")
        reading.guess("--seq", f"sequences have at most {reading.seq_len} tokens; that is taken for all")  # fmt: skip
    return reading
