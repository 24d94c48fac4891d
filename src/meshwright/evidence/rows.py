"""Rows of published measurements: reading them, and which of them may be scored."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from meshwright.specs.errors import SpecError

DESCRIBING = (
    "id", "source", "gpu", "gpus", "gpus_per_node", "interconnect", "model", "params_b", "layers",
    "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "precision", "tp", "pp", "vpp", "dp",
    "cp", "ep", "experts", "topk", "zero_or_fsdp", "sequence_parallel", "micro_batch",
    "global_batch", "recompute", "schedule", "setup",
)  # fmt: skip
"""Columns that describe a run. A predictor reads these and nothing else."""

MEASURED = (
    "measured_iter_time_s", "measured_tokens_per_s_per_gpu", "measured_tflops_per_gpu",
    "measured_mfu", "measured_peak_mem_gib",
)  # fmt: skip
"""Columns that hold what was measured."""

OTHER_TABLES = ("nccl", "hardware", "microbench_layer_times")
"""Tables that ship beside the runs and have schemas of their own."""

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
        """Return a cell as a number, or None where it is blank or not a number."""
        text = self[column].replace(",", "")
        try:
            return float(text) if text else None
        except ValueError:
            return None

    def count(self, column: str) -> int | None:
        """Return a cell as a whole number, or None where it is blank or not a number."""
        value = self.number(column)
        return None if value is None else round(value)

    def described(self) -> Row:
        """Return the row with only its describing columns: what a predictor may see."""
        return Row(self.table, {name: self[name] for name in DESCRIBING})

    @property
    def scorable(self) -> bool:
        """Whether the row's own remarks leave it fit to be scored."""
        return self["outcome"] != "fail" and not _NOT_SCORED.search(self["notes"])


def read_rows(path: str | Path) -> list[Row]:
    """Read a CSV table in the evidence schema; unknown columns are kept, missing ones are blank.

    Raises:
        SpecError: the file cannot be read, is not UTF-8, or has no `id` column.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError("rows", str(path), f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise SpecError("rows", str(path), "is not UTF-8 text") from None
    return _parse(text, Path(path).stem, str(path))


def _parse(text: str, table: str, where: str) -> list[Row]:
    reader = csv.DictReader(io.StringIO(text))
    if "id" not in (reader.fieldnames or ()):
        raise SpecError("rows", where, "a CSV table with a header and an `id` column is expected")
    return [Row(table, {k: v or "" for k, v in cells.items() if k}) for cells in reader]


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
