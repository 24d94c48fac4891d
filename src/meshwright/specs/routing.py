"""How unevenly a router sends tokens to experts: an input of the plan, not an assumption.

Experts sit on ranks in groups, and a step waits for the rank whose experts got most. So what counts
is the load of the hottest of `groups` equal groups of experts over the mean load.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from meshwright.specs.base import Spec
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import parse_csv, parse_document, read_text

ROWS = 200_000
UNITS = 4096
"""Most rows and most experts (or ranks) of a file of counts."""


class HotGroup(Spec):
    """Load of the hottest of so many equal groups of experts over the mean load."""

    groups: int = Field(ge=1, le=UNITS)
    mean: float = Field(ge=1, description="averaged over layers and steps: what time follows")
    peak: float = Field(ge=1, description="95th percentile of them: what memory must hold")


MOST_CAPACITY = 64
"""Largest capacity factor: beyond it no expert is full."""


class Routing(Spec):
    """Where tokens go: evenly, by a power law of the experts' popularity, or as counted."""

    name: str = Field("balanced", max_length=200)
    power: float = Field(
        0.0, ge=0, le=4, description="the i-th most popular expert gets tokens as i**-power"
    )
    counted: tuple[HotGroup, ...] = Field((), description="from counts of a real run")
    capacity: float = Field(
        0.0,
        ge=0,
        le=MOST_CAPACITY,
        description="tokens beyond this many times an expert's even share are dropped; 0: none are",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.power and self.counted:
            raise SpecError("routing", self.name, "a power law or counts, not both")
        if 0 < self.capacity < 1:
            raise SpecError("capacity", self.capacity, "1 or more (0 drops nothing) is expected")
        return self

    @property
    def balanced(self) -> bool:
        """Whether every expert gets as many tokens."""
        return not self.power and not self.counted


def parse_routing(text: str, field: str = "routing") -> Routing:
    """Read `balanced`, `power:0.5` or the name of a file of token counts.

    A file is CSV or JSON: a row (or list) of counts per layer and step, a column per expert; columns
    that hold no counts (method, layer, iteration) are left out. One count a line is one row too, and so is a line
    for each expert with a column that names it (`expert,count`).
    The records of a run (`metrics.jsonl`) hold what its routers did.
    Columns r0, r1… or rank0, rank1… are counts per rank of a run: its hottest rank then stands for
    any expert-parallel degree, since which experts a rank held is not known.

    Raises:
        SpecError: neither, or a file without counts.
    """
    if text == "balanced":
        return Routing()
    kind, colon, rest = text.partition(":")
    if kind == "power" and colon:
        try:
            power = float(rest)
        except ValueError:
            raise SpecError(field, text, "a number is expected, as power:0.5") from None
        return Routing.parse({"name": text, "power": power}, field)
    rows, per_rank = _counts(text, field)
    return counted_routing(rows, Path(text).name, field, per_rank=per_rank)


def check_experts(routing: Routing, experts: int | None, name: str, field: str) -> None:
    """Refuse a routing that is of other experts than a model's.

    Raises:
        SpecError: no experts, or counts of another number of them.
    """
    if routing.balanced:
        return
    if experts is None:
        raise SpecError(field, routing.name, f"a model with experts is expected; {name} has none")
    counted = max((one.groups for one in routing.counted), default=2)
    if counted > 2 and counted != experts:
        raise SpecError(
            field,
            routing.name,
            f"counts of {name}'s {experts} experts are expected, not of {counted}",
        )


def counted_routing(
    rows: list[list[float]], name: str, field: str = "routing", *, per_rank: bool = False
) -> Routing:
    """Return the routing of counts: a list per layer and step, an entry per expert (or per rank).

    Raises:
        SpecError: no counts, rows of different lengths, or a row without tokens.
    """
    units = len(rows[0]) if rows else 0
    if units < 2 or units > UNITS or any(len(row) != units for row in rows):
        raise SpecError(field, name, f"rows of as many counts each are expected, 2 to {UNITS}")
    if any(min(row) < 0 or sum(row) <= 0 for row in rows):
        raise SpecError(field, name, "counts of at least 0 that add up to more are expected")
    counted = []
    sizes = [units] if per_rank else [d for d in range(2, units + 1) if units % d == 0]
    for groups in sizes:
        ratios = sorted(hottest(row, groups) for row in rows)
        counted.append(
            HotGroup(
                groups=2 if per_rank else groups,
                mean=sum(ratios) / len(ratios),
                peak=ratios[min(math.ceil(0.95 * len(ratios)), len(ratios)) - 1],
            )
        )
    return Routing(name=name, counted=tuple(counted))


def hottest(loads: list[float], groups: int) -> float:
    """Load of the hottest of `groups` equal groups of neighbours over the mean of all."""
    size = len(loads) // groups
    sums = [sum(loads[start : start + size]) for start in range(0, size * groups, size)]
    return max(sums) / (sum(sums) / groups)


def _counts(path: str, field: str) -> tuple[list[list[float]], bool]:
    """Rows of counts, and whether they are per rank."""
    if path.endswith(".jsonl"):
        return _counts_of_run(read_text(path, field), field, path), False
    if path.endswith(".json"):
        data = parse_document(read_text(path, field), ".json", field, path)
        lists = data if isinstance(data, list) else None
        if lists and not isinstance(lists[0], list):
            lists = [lists]
        if lists is None or not all(isinstance(row, list) for row in lists):
            raise SpecError(field, path, "a list of counts, or a list of such lists, is expected")
        return [[_number(value, field, path) for value in row] for row in lists], False
    text = read_text(path, field)
    first = text.split("\n", 1)[0]
    if "," not in first and _is_number(first.strip()):
        return [[_number(line, field, path) for line in text.split()]], False
    table = parse_csv(text, field, path, ROWS)
    if not table:
        raise SpecError(field, path, "holds no rows")
    if (listed := _listed(table, field, path)) is not None:
        return listed, False
    columns = _count_columns(list(table[0]), table)
    per_rank = bool(columns) and columns[0].rstrip("0123456789").lower().strip("_") in ("r", "rank")
    return [[_number(row[name], field, path) for name in columns] for row in table], per_rank


_EXPERT = ("expert", "expert_id", "expert_idx", "expert_index")
_COUNT = ("count", "counts", "tokens", "num_tokens", "token_count", "load", "frequency")


def _listed(table: list[dict[str, str]], field: str, path: str) -> list[list[float]] | None:
    """Rows of counts of a table that has a line for each expert; None of a table that has a column for each.

    Lines that agree in all other columns (layer, step…) are one row.
    """
    names = {name.strip().lower(): name for name in table[0]}
    expert, count = (
        next((names[one] for one in known if one in names), None) for known in (_EXPERT, _COUNT)
    )
    if expert is None or count is None:
        return None
    rows: dict[tuple[str, ...], dict[float, float]] = {}
    for line in table:
        of = tuple(value for name, value in line.items() if name not in (expert, count))
        row = rows.setdefault(of, {})
        which = _number(line[expert], field, path)
        row[which] = row.get(which, 0.0) + _number(line[count], field, path)
    everyone = sorted({which for row in rows.values() for which in row})
    return [[row.get(which, 0.0) for which in everyone] for row in rows.values()]


def _counts_of_run(text: str, field: str, path: str) -> list[list[float]]:
    """Rows of the records of kind `routing`; a line that was cut off is left out."""
    rows = []
    for line in text.splitlines():
        if '"routing"' not in line or not line.endswith("}"):
            continue
        record = parse_document(line, ".json", field, path)
        counts = record.get("counts") if isinstance(record, dict) else None
        if isinstance(counts, list) and all(isinstance(row, list) for row in counts):
            rows += [[_number(value, field, path) for value in row] for row in counts]
    if not rows:
        raise SpecError(field, path, "holds no record of routing: not a run with experts")
    return rows


def _count_columns(names: list[str], table: list[dict[str, str]]) -> list[str]:
    """Columns of counts: numbered alike (r0, r1… or expert_0…), else all that hold numbers."""
    stems: dict[str, list[str]] = {}
    for name in names:
        stem = name.rstrip("0123456789")
        if stem != name:
            stems.setdefault(stem, []).append(name)
    numbered = max(stems.values(), key=len, default=[])
    if len(numbered) >= 2:
        return numbered
    return [name for name in names if all(_is_number(row[name]) for row in table[:100])]


def _is_number(text: Any) -> bool:
    try:
        return math.isfinite(float(text))
    except (TypeError, ValueError):
        return False


def _number(value: Any, field: str, path: str) -> float:
    if isinstance(value, bool) or not _is_number(value):
        raise SpecError(field, path, f"counts are expected, not {str(value)[:40]!r}")
    return float(value)
