"""Reader of nccl-tests output: `all_reduce_perf` and its sisters, as they print to stdout.

The columns are `size count type redop root time algbw busbw #wrong` out of place, then `time algbw
busbw #wrong` in place; sizes in bytes, times in microseconds. Old versions print no root, an
all-gather may leave redop out, and people cut columns off and paste what `mpirun` or `srun` put
before each line: the time is the number whose next one is size / time.
The list of ranks above the rows says how many there are and on which hosts; without it, the ranks
follow from bus bandwidth over size / time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.costs.link_fit import MeasuredCollective
from meshwright.specs.errors import SpecError

_PROGRAMS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
_PROGRAM = re.compile(r"\b(" + "|".join(_PROGRAMS) + r")_perf\b")
_RANK = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\S+(?:\s+\[[^\]]*\])?\s*(.*)"
)
_ROW = re.compile(
    r"(?<!\S)(?:\S*[:>\]|])?\s*(\d+)\s+\d[\d.e+]*\s+"
    r"(?:u?int(?:8|32|64)|half|float|double|bfloat16|fp?8\w*)\s+([^\d\s-]\S*)?\s*(-?\d.*)"
)
"""Size, redop and the numbers after it, behind whatever a launcher prints first."""

PRINTED_DIGIT_BYTES_S = 0.01e9
"""Bandwidths are printed in GB/s to two digits."""


@dataclass(frozen=True)
class NcclRow:
    """One size: bytes, and the out-of-place time and bus bandwidth as printed."""

    size_bytes: float
    time_s: float
    busbw_bytes_s: float


@dataclass(frozen=True)
class NcclTable:
    """One run of an nccl-tests program."""

    collective: str
    ranks: int
    hosts: int
    device: str
    rows: tuple[NcclRow, ...]

    def measurements(self, gpus_per_node: int = 0) -> list[MeasuredCollective]:
        """Rows as the fit of links takes them; sizes of zero bytes are left out.

        With `gpus_per_node`, a run on fewer devices of each host than it has is spread over
        the hosts as it was.
        """
        local = self.ranks // self.hosts if self.hosts else gpus_per_node
        spread = self.hosts > 1 and 0 < local < gpus_per_node
        stride = gpus_per_node // local if spread else 1
        return [
            MeasuredCollective(self.collective, self.ranks, row.size_bytes, row.time_s, stride)
            for row in self.rows
            if row.size_bytes > 0 and row.time_s > 0
        ]


def parse_nccl_tests(
    text: str, collective: str | None = None, where: str = "nccl-tests"
) -> list[NcclTable]:
    """Read one or more runs from the text that nccl-tests printed.

    Args:
        text: everything from standard output; other programs' lines are passed over.
        collective: what was run, where the output does not name the program.
        where: what to call the text in an error: its file.

    Raises:
        SpecError: no rows, no ranks, or nothing says which collective it was.
    """
    tables: list[NcclTable] = []
    ranks: dict[int, tuple[str, str]] = {}
    lines: list[_Line] = []
    named = collective

    def close() -> None:
        if lines:
            tables.append(_table(named, ranks, lines, where))
            lines.clear()

    for line in text.splitlines():
        program = _PROGRAM.search(line)
        rank = _RANK.search(line)
        if program or (rank and lines):
            close()
        if program:
            named = _PROGRAMS[program.group(1)]
        if rank:
            if int(rank.group(1)) == 0:
                ranks.clear()
            ranks[int(rank.group(1))] = (rank.group(2), rank.group(3).strip())
        elif row := _ROW.search(line):
            lines.append(_line(row[1], row[2], row[3], line))
    close()
    if not tables:
        raise SpecError(
            where, text[:40], "no result lines: size, count, type, redop, root, time are expected"
        )
    return tables


def is_nccl_tests(text: str) -> bool:
    """Whether the text has a table of nccl-tests: its header names both bandwidths, or a program's."""
    return ("algbw" in text and "busbw" in text) or (
        bool(_PROGRAM.search(text)) and any(_ROW.search(line) for line in text.splitlines())
    )


@dataclass(frozen=True)
class _Line:
    """A row before it is known which of its numbers is the time."""

    size_bytes: float
    reduces: bool
    numbers: tuple[float, ...]
    text: str

    def row(self, first: int) -> NcclRow:
        time_us, _, bus = self.numbers[first : first + 3]
        return NcclRow(self.size_bytes, time_us * 1e-6, bus * 1e9)

    def misses(self, first: int) -> float:
        """How far size / time is from the number beside it, relative to what printing allows."""
        if len(self.numbers) < first + 3 or self.numbers[first] <= 0:
            return math.inf
        rate = self.size_bytes / self.numbers[first] * 1e6
        return abs(self.numbers[first + 1] * 1e9 - rate) / (0.01 * rate + PRINTED_DIGIT_BYTES_S)


def _line(size: str, redop: str | None, rest: str, text: str) -> _Line:
    numbers = []
    for cell in rest.split()[:4]:  # root, time, algbw, busbw
        try:
            numbers.append(float(cell))
        except ValueError:
            break
    if not all(abs(number) < 1e18 for number in (float(size), *numbers)):
        raise SpecError("nccl-tests", text.strip(), "numbers up to 1e18 are expected")
    return _Line(float(size), redop not in (None, "none"), tuple(numbers), text)


def _table(
    named: str | None, ranks: dict[int, tuple[str, str]], lines: list[_Line], where: str
) -> NcclTable:
    largest = max(lines, key=lambda line: line.size_bytes)
    first = min((0, 1), key=largest.misses)  # with a root before the time, or without
    if largest.misses(first) > 1:
        raise SpecError(
            where,
            largest.text.strip(),
            "a row with time, size / time and bus bandwidth is expected",
        )
    rows = tuple(line.row(first) for line in lines if len(line.numbers) >= first + 3)
    factor, error = _bus_factor(rows)
    named = named or _named(largest.reduces, factor, where)
    n = max(ranks) + 1 if ranks else _ranks(named, factor, error, where)
    device = ranks[min(ranks)][1] if ranks else ""
    return NcclTable(named, n, len({host for host, _ in ranks.values()}), device, rows)


def _bus_factor(rows: Sequence[NcclRow]) -> tuple[float, float]:
    """Bus bandwidth over size / time of the row that tells it best, and what printing leaves open."""
    best = max(rows, key=lambda row: row.busbw_bytes_s)
    rate = best.size_bytes / best.time_s if best.time_s else math.inf
    return best.busbw_bytes_s / rate, 2 * PRINTED_DIGIT_BYTES_S / max(rate, 1.0) + 1e-4


def _named(reduces: bool, factor: float, where: str) -> str:
    """The collective of a table that names none: its file may, and an all-reduce shows itself.

    No other has a bus factor above one; between two ranks, and among those that do not reduce,
    they look alike.
    """
    told = [name for word, name in _PROGRAMS.items() if word in where.lower().replace("-", "_")]
    if len(told) == 1:
        return told[0]
    if factor > 1.02:
        return "all_reduce"
    if reduces and factor < 0.98:
        return "reduce_scatter"
    raise SpecError(
        "from", where,
        f"the collective is not named; a file name with one of {', '.join(_PROGRAMS)} would tell",
    )  # fmt: skip


def _ranks(named: str, factor: float, error: float, where: str) -> int:
    """Ranks from busbw / algbw: 2(n-1)/n for all-reduce, (n-1)/n for the others.

    Of the counts that the printed digits allow, the power of two, or else the nearest.
    """
    share = factor / (2.0 if named == "all_reduce" else 1.0)
    error /= 2.0 if named == "all_reduce" else 1.0
    scattered = named in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    if scattered and factor == 0.0:
        raise SpecError(
            "from",
            where,
            "bus bandwidths are expected: of 0, every process was alone (a build without MPI=1 runs a test in each)",
        )
    if not (scattered and 0.4 < share < 1 - error):
        raise SpecError("from", where, "its lines '# Rank 0 … on HOST device' are expected")
    least, most = (
        1 / (1 - share + error),
        1 / (1 - share - error) if share + error < 1 else math.inf,
    )
    power = 2 ** round(math.log2(1 / (1 - share)))
    return power if least <= power <= most else max(2, round(1 / (1 - share)))
