"""Reading what nccl-tests (and rccl-tests) print."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshwright.specs.errors import SpecError

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """One line of a benchmark: a collective of `size_bytes` over `ranks` devices."""

    operation: str
    ranks: int
    size_bytes: float
    time_s: float


def _result_line(line: str) -> tuple[float, float, float, float] | None:
    """(size, time in µs, algbw, busbw) of a result line; None for any other line.

    A line is size, count, type, operator, root (absent in old versions), then time, algbw, busbw
    and errors, out of place and often in place again.
    """
    cells = line.split()
    if len(cells) < 8 or not (cells[0].isdigit() and cells[1].isdigit()):
        return None
    first = 5 if len(cells) % 4 == 1 else 4
    try:
        time, algorithm, bus = (float(cell) for cell in cells[first : first + 3])
    except ValueError:
        return None
    return float(cells[0]), time, algorithm, bus


def parse_nccl_tests(text: str, where: str = "nccl-tests") -> list[CollectiveTime]:
    """Return the out-of-place times of an nccl-tests log, seconds.

    The operation is taken from the program's name or the "Collective test" line, the ranks from the
    "Rank … device" lines, or else from the ratio of bus to algorithm bandwidth.

    Raises:
        SpecError: the text holds no results, or does not say which operation they are of.
    """
    operation = next(
        (name for name in OPERATIONS if re.search(name.replace("_", "_?"), text, re.IGNORECASE)),
        None,
    )
    if operation is None:
        raise SpecError(
            "from", where, f"the operation is not named; expected one of {', '.join(OPERATIONS)}"
        )
    listed = len(re.findall(r"^#\s+Rank\s+\d+", text, re.MULTILINE))
    found: list[CollectiveTime] = []
    for line in text.splitlines():
        result = _result_line(line)
        if result is None or result[0] <= 0 or result[1] <= 0:
            continue
        size, time, algorithm, bus = result
        ranks = listed or _ranks(operation, algorithm, bus)
        if ranks > 1:
            found.append(CollectiveTime(operation, ranks, size, time * 1e-6))
    if not found:
        raise SpecError("from", where, "no result lines of nccl-tests were found")
    return found


def _ranks(operation: str, algorithm: float, bus: float) -> int:
    """Ranks from busbw / algbw: 2(n-1)/n for all-reduce, (n-1)/n otherwise."""
    if algorithm <= 0 or bus <= 0:
        return 0
    share = bus / algorithm / (2.0 if operation == "all_reduce" else 1.0)
    return round(1.0 / (1.0 - share)) if share < 1.0 else 0
