"""The Python of Jupyter notebooks, beside their lines for a shell and their cells in other languages."""

from __future__ import annotations

import ast
import re

from meshwright.imports.code.syntax import parse_python
from meshwright.specs import foreign
from meshwright.specs.errors import SpecError

MAGIC = re.compile(r"^([ \t]*)(?:!(?!=)|%(?=%?[A-Za-z]))(?:.*\\\n)*.*$", re.M)
"""A notebook's line for its shell or itself, with the lines that continue it; `!=` and `% x` go on with an expression."""


def parsed(text: str) -> ast.Module | None:
    """A program, also with a notebook's lines for its shell; None where it is no Python."""
    plain = parse_python(text)  # a line may begin with % inside an expression
    return plain if plain is not None else parse_python(MAGIC.sub(r"\1pass", text))


def code_cells(text: str, field: str, name: str) -> list[str]:
    """The texts of a notebook's code cells.

    Raises:
        SpecError: no JSON document with cells.
    """
    limits = foreign.Limits(any_number=True, last_wins=True)
    data = foreign.parse_json(text, field, name, limits)
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list):
        raise SpecError(field, name, "is no notebook: a list of cells is expected")
    found = []
    for cell in cells:
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source")
            found.append("".join(map(str, source)) if isinstance(source, list) else str(source))
    return found


def program_of(cells: list[str]) -> str:
    """The Python of code cells, without those that are in another language."""
    return "\n".join(
        said
        for said in cells
        if not re.match(r"\s*%%(?!capture|time)", said) and parsed(said) is not None
    )
