"""Reader of nccl-tests output: `all_reduce_perf` and its sisters, as they print to stdout.

The columns are `size count type redop root time algbw busbw #wrong` out of place (old versions
print no root), then `time algbw busbw #wrong` in place; sizes in bytes, times in microseconds.
The list of ranks above them says how many there are and on which hosts; without it, the ranks
follow from bus bandwidth over size / time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshwright.costs.collectives import bus_factor
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
_ROW = re.compile(r"^\s*\d+\s+\d+\s+\w+\s+\w+\s+-?\d+")


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
    rows: list[NcclRow] = []
    named = collective

    def close() -> None:
        if rows:
            tables.append(_table(named, ranks, rows, where))
            rows.clear()

    for line in text.splitlines():
        program = _PROGRAM.search(line)
        rank = _RANK.search(line)
        if program or (rank and rows):
            close()
        if program:
            named = _PROGRAMS[program.group(1)]
        if rank:
            if int(rank.group(1)) == 0:
                ranks.clear()
            ranks[int(rank.group(1))] = (rank.group(2), rank.group(3).strip())
        elif _ROW.match(line):
            rows.append(_row(line))
    close()
    if not tables:
        raise SpecError(
            where, text[:40], "no result lines: size, count, type, redop, root, time are expected"
        )
    return tables


def _row(line: str) -> NcclRow:
    cells = line.split()
    first = 5 if len(cells) % 4 == 1 else 4
    try:
        size, time_us, bus = float(cells[0]), float(cells[first]), float(cells[first + 2])
    except (IndexError, ValueError):
        raise SpecError("nccl-tests", line.strip(), "a row of numbers is expected") from None
    if not all(0 <= number < 1e18 for number in (size, time_us, bus)):
        raise SpecError("nccl-tests", line.strip(), "numbers from 0 to 1e18 are expected")
    return NcclRow(size, time_us * 1e-6, bus * 1e9)


def _table(
    named: str | None, ranks: dict[int, tuple[str, str]], rows: list[NcclRow], where: str
) -> NcclTable:
    largest = max(rows, key=lambda row: row.size_bytes)
    factor = largest.busbw_bytes_s * largest.time_s / max(largest.size_bytes, 1.0)
    n = max(ranks) + 1 if ranks else _ranks(named, factor, where)
    if named is None:
        # An all-reduce shows itself by its factor; the others look alike.
        if n > 2 and abs(factor / float(bus_factor("all_reduce", n)) - 1) < 0.02:
            named = "all_reduce"
        else:
            raise SpecError(
                where, None, f"the collective is not named; one of {', '.join(_PROGRAMS.values())}"
            )
    device = ranks[min(ranks)][1] if ranks else ""
    return NcclTable(named, n, len({host for host, _ in ranks.values()}), device, tuple(rows))


def _ranks(named: str | None, factor: float, where: str) -> int:
    """Ranks from busbw / algbw: 2(n-1)/n for all-reduce, (n-1)/n for the others."""
    share = factor / (2.0 if named == "all_reduce" else 1.0)
    scattered = named in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    if not (scattered and 0.4 < share < 0.9995):
        raise SpecError(where, None, "its lines '# Rank 0 … on HOST device' are expected")
    return round(1.0 / (1.0 - share))
