"""Rows of published measurements: reading them, and which of them may be scored."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from meshwright.evidence import heads, pasted
from meshwright.evidence.known_models import known_architecture
from meshwright.specs import foreign
from meshwright.specs.errors import SpecError, shorten

DESCRIBING = (
    "id", "source", "gpu", "gpus", "gpus_per_node", "interconnect", "model", "params_b", "layers",
    "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "precision", "tp", "pp", "vpp", "dp",
    "cp", "ep", "experts", "topk", "zero_or_fsdp", "sequence_parallel", "micro_batch",
    "global_batch", "recompute", "schedule", "setup",
)  # fmt: skip
"""Columns that describe a run. A predictor reads these and nothing else."""

COUNTS = (
    "gpus", "gpus_per_node", "params_b", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab",
    "seq_len", "tp", "pp", "vpp", "dp", "cp", "ep", "experts", "topk", "micro_batch",
    "global_batch",
)  # fmt: skip
"""Describing columns that hold numbers."""

MEASURED = (
    "measured_iter_time_s", "measured_tokens_per_s_per_gpu", "measured_tflops_per_gpu",
    "measured_mfu", "measured_peak_mem_gib",
)  # fmt: skip
"""Columns that hold what was measured."""

OTHER_TABLES = ("nccl", "hardware", "microbench_layer_times")
"""Tables that ship beside the runs and have schemas of their own."""

_LARGEST = 1e15
"""Of a number in a cell: what follows from it must fit 64 bits."""
_NOT_SCORED = re.compile(r"CHECK|DUPLICATE|SUSPECT|INCONSISTENT")


@dataclass(frozen=True, slots=True)
class Row:
    """One published run as its table prints it: every cell a string, blank where not stated."""

    table: str
    cells: dict[str, str]

    def __getitem__(self, column: str) -> str:
        return self.cells.get(column, "").strip()

    @property
    def id(self) -> str:
        """The row's identifier."""
        return self["id"]

    def number(self, column: str) -> float | None:
        """Return a cell as a number, or None where it is blank, no number, or beyond 1e15.

        A remark after the number is passed over: `64 (section text)`.
        """
        found = re.match(r"~?([-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?)(?=$|\s|\()", self[column])
        text = found.group(1).replace(",", "") if found else ""
        value = float(text) if 0 < len(text) < 40 else math.nan
        return value if abs(value) <= _LARGEST else None

    def count(self, column: str) -> int | None:
        """Return a cell as a whole number, or None where it is blank or not a number."""
        value = self.number(column)
        return None if value is None else round(value)

    def impossible(self) -> str:
        """The first describing column with a number that nothing can have, as `tp = -1`, or ""."""
        for column in COUNTS:
            text = self[column].replace(",", "")
            try:
                value = float(text) if len(text) < 40 else math.inf
            except ValueError:
                continue  # words: the source's way to say that it is not stated
            least = 1 if column == "gpus" else 0  # of a degree, 0 says that there is none
            if not least <= value <= _LARGEST:
                return f"{column} = {shorten(self[column])}"
        return ""

    def unread(self) -> list[str]:
        """Describing columns of numbers that hold words, as `tp='two' is no number`."""
        return [
            f"{column}={shorten(self[column])} is no number"
            for column in COUNTS
            if self[column] and self.number(column) is None
        ]

    def described(self) -> Row:
        """Return the row with only its describing columns: what a predictor may see."""
        return Row(self.table, {name: self[name] for name in DESCRIBING})

    @property
    def scorable(self) -> bool:
        """Whether the row's own remarks leave it fit to be scored."""
        return self["outcome"] != "fail" and not _NOT_SCORED.search(self["notes"])


def read_rows(path: str | Path, told: Mapping[str, str] | None = None) -> list[Row]:
    """Read a CSV table in the evidence schema, or tables as people head, fill and paste them.

    `told`: columns of all rows that leave them blank.

    Raises:
        SpecError: the file cannot be read, is not UTF-8, or no column says which model ran.
    """
    from meshwright.evidence.around import joined_by_column, one_each, read_with, told_by
    from meshwright.evidence.named import programs_named
    from meshwright.evidence.shapes import fill_shapes

    text = foreign.read_text(path, "rows", foreign.TABLE_BYTES)
    grids = pasted.tables(text)
    if not grids:
        table = _in_lines(foreign.parse_csv(pasted.with_commas(text), "rows", str(path)))
        found = [(table, "")]
        rows = read_with(table, told or {}, _names_a_model, 1, whole=False)
    else:
        prose = "\n".join(line for line in text.splitlines() if "|" not in line)
        found, properties = _apart(grids)
        everywhere = told_by(prose, _names_a_model)
        for near_only in _NEAR_ONLY:
            everywhere.pop(near_only, "")
        if len(programs := programs_named(text)) == 1:
            everywhere["settings"] = programs[0]
        read: list[list[dict[str, str]]] = []
        count = 1
        for (table, above), said in zip(found, properties, strict=True):
            near = joined_by_column(
                everywhere, one_each(said, _names_a_model), told_by(above, _names_a_model)
            )
            near = {name: value for name, value in near.items() if name not in (told or {})}
            first = read_with(table, near, _names_a_model, count, whole=True)
            read.append(_and_told(table, first, near, told or {}, count))
            count += len(table)
        of_runs = [_says_a_run(table) for table, _ in found]
        fill_shapes([row for one in read for row in one])
        runs = [
            one for one, is_run in zip(read, of_runs, strict=True) if is_run and _says_a_model(one)
        ]
        rows = [row for one in runs or read[:1] for row in one]
    if not _says_a_model(rows) and rows:
        heads_seen = list(found[0][0][0])[:8]
        seen = ", ".join(shorten(head, str, 24) for head in heads_seen)
        raise SpecError(
            "rows", str(path),
            "a column that names the model is expected (`model`, or layers and hidden size), or --set model=NAME; "
            f"its columns are {seen}",
        )  # fmt: skip
    return [Row(Path(path).stem, cells) for cells in rows]


_NEAR_ONLY = (
    "settings", "zero_or_fsdp", "recompute", "precision", "tp", "pp", "cp", "ep", "layers", "heads", "hidden", "vocab",
    "kv_heads", "ffn", "params_b", "number of gpus", "gradient accumulation",
)  # fmt: skip
"""What only the text before a table tells of it, and no sentence elsewhere on its page."""


def _apart(
    grids: list[tuple[pasted.Grid, str]],
) -> tuple[list[tuple[list[dict[str, str]], str]], list[list[tuple[str, str]]]]:
    """Tables of runs with the text before each, and what the tables of properties before each say.

    A table that says one thing a line (`Parameter | Value`) is a run only where the page has no other.
    """
    from meshwright.evidence.turned import one_header, turned, uncrossed

    straight = [(uncrossed(one_header(grid), _names_a_model), above) for grid, above in grids]
    tables = [(turned(grid), above, grid) for grid, above in straight]
    single = [lines is not grid and len(lines) == 2 for lines, _, grid in tables]
    found, properties = [], []
    said: list[tuple[str, str]] = []
    passed = ""
    for (lines, above, _), alone in zip(tables, single, strict=True):
        if alone and not all(single):
            said = [*said, *list(zip(*lines, strict=True))[1:]]
            passed += above + "\n"
            continue
        found.append((_with_header(lines), passed + above))
        properties.append(said)
        passed = ""
    return found, properties


def _in_lines(table: list[dict[str, str]]) -> list[dict[str, str]]:
    """A CSV's runs in lines, also where they stand in its columns."""
    from meshwright.evidence.turned import turned, uncrossed

    if not table:
        return table
    grid = [list(table[0]), *(list(row.values()) for row in table)]
    lines = turned(uncrossed(grid, _names_a_model))
    return table if lines is grid else _with_header(lines)


def _and_told(
    table: list[dict[str, str]],
    read: list[dict[str, str]],
    near: Mapping[str, str],
    told: Mapping[str, str],
    first: int,
) -> list[dict[str, str]]:
    """The rows with what is told of all of them, beside what stood around their table."""
    from meshwright.evidence.around import read_with

    if not told:
        return read
    noted = [one.get("read_as", "") for one in read]
    with_near = [
        {**cells, **{k: v for k, v in near.items() if f"{k}={v} (around" in note}}
        for cells, note in zip(table, noted, strict=True)
    ]
    return read_with(with_near, told, _names_a_model, first, whole=False)


_RUNS = {
    "gpu", "gpus", "seq_len", "micro_batch", "global_batch", "tp", "pp", "dp", "recompute", "precision", heads.BATCH, heads.NODES,
    heads.BATCH_TOKENS, heads.MEASURED,
}  # fmt: skip


def _says_a_run(table: list[dict[str, str]]) -> bool:
    """Whether a head tells of devices, lengths, batches or degrees."""
    columns = {heads.column_of(head) for row in table[:1] for head in row}
    return bool(columns & _RUNS) or any(heads.joined(head) for row in table[:1] for head in row)


def _says_a_model(rows: list[dict[str, str]]) -> bool:
    return any({"model", "layers", "params_b"} & row.keys() for row in rows)


def _with_header(grid: pasted.Grid) -> list[dict[str, str]]:
    """Lines of cells under their header; what a line has beyond it is passed over, a head said twice is numbered."""
    header: list[str] = []
    for index, cell in enumerate(grid[0]):
        name = cell or f"column {index + 1}"
        header.append(name if name not in header else f"{name} ({index + 1})")
    return [
        dict(zip(header, [*line, *[""] * len(header)], strict=False))
        for line in grid[1:]
        if any(line)
    ]


def _names_a_model(cell: str) -> bool:
    """Whether a cell names an architecture that is known here, or a size as models have."""
    if not cell.strip() or len(cell) > 200:
        return False
    return known_architecture(cell) is not None


def _parse(text: str, table: str, where: str) -> list[Row]:
    return [Row(table, cells) for cells in foreign.parse_csv(text, "rows", where)]


def table_names() -> list[str]:
    """Names of the tables of runs that ship with the package."""
    folder = resources.files("meshwright.evidence").joinpath("tables")
    names = (entry.name.removesuffix(".csv") for entry in folder.iterdir())
    return sorted(name for name in names if name not in OTHER_TABLES and not name.startswith("."))


def published_rows(tables: Iterable[str] | None = None) -> list[Row]:
    """Return the published runs that ship with the package, of all tables or of some.

    Raises:
        SpecError: no such table.
    """
    rows: list[Row] = []
    for name in tables if tables is not None else table_names():
        rows += _parse(read_table(name), name, name)
    return rows


def read_table(name: str) -> str:
    """Return the text of a shipped table (`nccl` and `hardware` included).

    Raises:
        SpecError: no such table.
    """
    file = resources.files("meshwright.evidence").joinpath(f"tables/{name}.csv")
    if not file.is_file():
        raise SpecError("table", name, f"shipped tables: {', '.join(table_names())}")
    return file.read_text(encoding="utf-8")
