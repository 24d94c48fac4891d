"""What stands around a table, or is told beside it, of all its rows: device, length, model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from meshwright.evidence import heads
from meshwright.evidence.spellings import NO_BATCH, in_the_schema
from meshwright.specs.errors import SpecError, shorten

Table = list[dict[str, str]]

_DEVICE = (
    r"(?:GB[23]00|B[23]00|GH200|H[12]00|H800|H20|A100|A800|V100|L40S|L40|L4|A10G?|A40|A6000|RTX ?(?:A|PRO )?\d{4}|"
    r"[345]090|MI\d{3}[XA]?|TPU ?v\d\w{0,2}|v\d[ep]?-\d+|Gaudi ?\d|910[BC]\d?|Atlas \d{3}\w? \w+|Trainium ?\d?)"
)
_NAMED = re.compile(
    rf"(?:(?<![\w.])(\d{{1,5}}) ?[x×]? ?(?:NVIDIA |AMD )?)?(?<![\w.-])({_DEVICE}(?:[ -]?(?:SXM\d?|PCIe|NVL))?"
    r"(?:[ -]?\(?\d{2,3} ?Gi?B?\b)?)(?:(?=s\b)|(?!\w))",
    re.IGNORECASE,
)
_LENGTHS = (
    r"(?:seq(?:uence)?s?[-_ ]?len(?:gth)?s?|context(?:[-_ ](?:length|window))?|max(?:imum)?[-_ ]length)\W{0,3}(?:is|of|was|to|set to)?\W{0,3}(\d[\d,]*k?)\b",
    r"\b(\d[\d,]*k?)(?:[- ]tokens?)?[- ](?:sequence|context|seq)[-_ ]?(?:len|window)",
)


def told_by(text: str, names_a_model: Callable[[str], bool]) -> dict[str, str]:
    """Return what a text says of runs, where it says one thing only: `gpu`, `gpus`, `seq_len`; `model` by its last heading."""
    told: dict[str, str] = {}
    found = _NAMED.findall(text)
    phrases = {re.sub(r"[\s(]+", " ", phrase).strip(): None for _, phrase in found}
    keys = {_key(phrase) for phrase in phrases}
    if len(keys) == 1 and "" not in keys:
        told["gpu"] = max(phrases, key=len)
        counts = {count for count, _ in found if count}
        if len(counts) == 1:
            told["gpus"] = counts.pop()
    lengths = {
        one.lower().replace(",", "") for p in _LENGTHS for one in re.findall(p, text, re.IGNORECASE)
    }
    if len(lengths) == 1:
        told["seq_len"] = lengths.pop()
    headings = re.findall(
        r"^[ \t]{0,8}#{1,6} +(.{1,120})$|^[ \t]{0,8}\*\*(.{1,120}?)\*\*:?[ \t]{0,8}$",
        text,
        re.MULTILINE,
    )
    for heading in reversed(["".join(pair).strip(" #*") for pair in headings]):
        if names_a_model(heading):
            told |= {"model": heading, "settings": heading}
            break
    return told


def _key(phrase: str) -> str:
    from meshwright.evidence.machines import SkipRow, device_key
    from meshwright.evidence.rows import Row

    try:
        return device_key(Row("around", {"gpu": phrase}))
    except SkipRow:
        return ""


def given(pairs: list[str]) -> dict[str, str]:
    """Return `column=value` pairs of a command line as columns of all rows that leave them blank.

    Raises:
        SpecError: no pair, or a column that describes no run.
    """
    told = {}
    for pair in pairs:
        head, separator, value = pair.partition("=")
        column = heads.column_of(head.strip())
        if not (head.strip() and separator and value.strip()) or column == heads.MEASURED:
            raise SpecError(
                "set",
                shorten(pair, str),
                "COLUMN=VALUE is expected, as gpu='8x A100 80GB' or seq_len=4096",
            )
        told[head.strip()] = value.strip()
    return told


def read_with(
    table: Table,
    told: Mapping[str, str],
    names_a_model: Callable[[str], bool],
    first: int,
    whole: bool,
) -> Table:
    """Return a table's rows in the schema, their blanks filled with what is told of all of them.

    `whole`: only where no row at all fills a column, as what stands around a table is no cell of it.
    """
    plain = in_the_schema(table, names_a_model, first)
    if not told or not plain:
        return plain
    filled = [dict(row) for row in table]
    for head, value in told.items():
        column = heads.column_of(head)
        blank = [_blank(row, column) for row in plain]
        for cells, is_blank in zip(filled, blank, strict=True):
            if is_blank and (all(blank) or not whole):
                cells.pop(head, None)
                cells[head] = value
    rows = in_the_schema(filled, names_a_model, first)
    if whole:
        for before, row in zip(plain, rows, strict=True):
            said = [
                f"{c}={told[c]} (around the table)"
                for c in told
                if _blank(before, c) and row.get(c)
            ]
            row["read_as"] = "; ".join(filter(None, [row.get("read_as", ""), *said]))
    return rows


def _blank(row: Mapping[str, str], column: str) -> bool:
    if column in ("setup", heads.SAID, heads.ACCUMULATION):
        return True
    if column in ("micro_batch", "global_batch", heads.BATCH) and NO_BATCH in row.get(
        "read_as", ""
    ):
        return True
    return not row.get(column, "").strip()
