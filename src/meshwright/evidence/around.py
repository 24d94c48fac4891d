"""What stands around a table, or is told beside it, of all its rows: device, length, model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from meshwright.evidence import heads
from meshwright.evidence.batches import accumulation
from meshwright.evidence.instances import DEVICE, HOST_GPUS, machine_of
from meshwright.evidence.named import programs_by_kind, programs_named
from meshwright.evidence.remarks import remarked
from meshwright.evidence.spellings import BATCHES_EACH, NO_BATCH, NODES_TIMES, YES, in_the_schema
from meshwright.evidence.stated import says
from meshwright.specs.errors import SpecError, shorten

Table = list[dict[str, str]]

_NUMBERS = {"one": 1, "a single": 1, "single": 1, "two": 2, "four": 4, "eight": 8}
_NAMED = re.compile(
    rf"(?:(?<![\w.])(\d{{1,5}}|{'|'.join(_NUMBERS)}) ?[x×]? ?(?:NVIDIA |AMD (?:Instinct )?)?)?(?<![\w.-])({DEVICE}(?:[ -]?(?:SXM\d?|PCIe|NVL))?"
    r"(?:[ -]?\(?\d{2,3} ?Gi?B?\b)?)(?:(?=s\b)|(?!\w))",
    re.IGNORECASE,
)
_LENGTHS = (
    r"(?:seq\w{0,6}s?[-_ ]?len(?:gth)?s?|context(?:[-_ ](?:length|window))?|max(?:imum)?[-_ ](?:seq\w{0,6}[-_ ])?len(?:gth)?)\W{0,3}(?:is|of|was|to|set to)?\W{0,3}(\d[\d,]*k?)\b",
    r"\b(\d(?:[\d,]*\d)?k?)(?:[- ]tokens?)?[- ](?:sequence|context|seq)[-_ ]?(?:len|window)",
    r"\b(?:seq|ctx)[=: ]{1,2}(\d[\d,]*k?)\b",
    r"\b(\d{1,4}k)[- ](?:long )?sequences\b",
)
_HEADING = re.compile(
    r"^[ \t]{0,8}#{1,6} +(.{1,120})$|^[ \t]{0,8}\*\*(.{1,120}?)\*\*:?[ \t]{0,8}$", re.MULTILINE
)
_LINE = re.compile(
    r"^[ \t>]{0,8}(?:[-*+•] +)?\**([A-Za-z][\w /#()-]{0,40}?)\**[ \t]{0,2}[:：]\**[ \t]{0,4}(\S.{0,300})$",
    re.MULTILINE,
)
"""A line that says one thing: `- **Sequence length:** 4096`."""
_MODEL = re.compile(
    r"(?<![\w./-])((?:[A-Za-z][\w.]{0,20}/)?[A-Z][A-Za-z]{1,14}(?:[- ]?\d(?:\.\d)?)?(?:[- ](?:[A-Z][a-z]{1,8}|v\d))?[- ]?"
    r"(?:XL|\(?~?\d+(?:\.\d+)?[BM]\)?(?:-A\d+(?:\.\d+)?B)?))(?![\w.]*\w)|\b(TinyLlama|GPT-?2[- ]?XL)\b"
)
"""A model as sentences name one: a family and a size."""


def told_by(text: str, names_a_model: Callable[[str], bool]) -> dict[str, str]:
    """Return what a text says of runs, where it says one thing only: device, devices, length; the model by its last
    heading, else by the one that its sentences name; and what its lines of `head: value` say."""
    told: dict[str, str] = {}
    found = _NAMED.findall(text)
    phrases = {re.sub(r"[\s(]+", " ", phrase).strip(): None for _, phrase in found}
    keys = {_key(phrase) for phrase in phrases}
    if len(keys) == 1 and ("" not in keys or len(phrases) == 1):
        told["gpu"] = max(phrases, key=len)  # one without a preset is refused by its name
        counts = {str(_NUMBERS.get(count.lower(), count)) for count, _ in found if count}
        if len(counts) == 1 and (gpus := _on_hosts(text, int(counts.pop()), keys.pop())):
            told["gpus"] = gpus
    lengths = {
        one.lower().replace(",", "") for p in _LENGTHS for one in re.findall(p, text, re.IGNORECASE)
    }
    if len(lengths) == 1:
        told["seq_len"] = lengths.pop()
    told |= said_in_lines(text, names_a_model)
    told |= {column: value for column, value in _in_sentences(text).items() if column not in told}
    names = _settings(text[-_NEAR:], only_names=True)
    headings = ["".join(pair).strip(" #*") for pair in _HEADING.findall(text)]
    for heading in reversed(headings):
        if names_a_model(heading):
            return told | {"model": heading} | joined_by_column(_settings(heading), names)
    if "model" not in told and (named := _one_model(text, names_a_model)):
        told["model"] = named
    return told | names


_ADAPTERS = re.compile(
    r"(?<![a-z])(Q?-?LoRA)(?![a-z])(?:[ (,]{1,3}(?:with )?r(?:ank)?[ =:]{1,3}(\d+))?", re.IGNORECASE
)
"""Adapters with their rank: `LoRA r=8`, `QLoRA (rank 64)`."""


def _settings(text: str, only_names: bool = False) -> dict[str, str]:
    """The software that a text names, where it is one program, with torch.compile; a heading's other words beside it."""
    names = programs_named(text)
    if len(names) > 1:
        return {}
    words = [*names, *(["torch.compile"] if says(r"torch\.?compile\b", text) else [])]
    adapters = {
        " r=".join(filter(None, (kind.lower(), rank))) for kind, rank in _ADAPTERS.findall(text)
    }
    if says(r"per[- ](?:device|GPU) batch sizes? (?:of|is|was|are)\b", text):
        words.append(BATCHES_EACH)
    if only_names and len(adapters) == 1 and not re.search(r"\bfull\b", text, re.IGNORECASE):
        words.append(adapters.pop())
    settings = "; ".join(words) if only_names else text
    return {"settings": settings} if settings else {}


_HOSTS = re.compile(
    rf"\b(\d{{1,5}}|{'|'.join(_NUMBERS)}) (?:\w+ )?(?:nodes?|servers?|hosts?|machines?)\b",
    re.IGNORECASE,
)
_EACH = re.compile(
    rf"\b(\d{{1,2}}|{'|'.join(_NUMBERS)}) (?:GPU|device|chip|NPU|accelerator)s? (?:each|per (?:node|host|server|machine))\b",
    re.IGNORECASE,
)


def _on_hosts(text: str, gpus: int, key: str) -> str:
    """Devices of a text that counts them once, beside its hosts: as many as a usual host has are those of each one."""
    counts = {int(_NUMBERS.get(one.lower(), one)) for one in _HOSTS.findall(text)}
    if not counts or counts == {1}:
        return str(gpus)
    each = re.search(r"GPUs? (?:each|per (?:node|host|server))\b", text, re.IGNORECASE)
    if len(counts) > 1:
        return ""
    hosts = counts.pop()
    if (numbered := _EACH.search(text)) is not None:  # what is counted before the name are hosts
        return str(hosts * int(_NUMBERS.get(numbered[1].lower(), numbered[1])))
    return str(hosts * gpus if each or gpus == HOST_GPUS.get(key, 8) else gpus)


def _one_model(text: str, names_a_model: Callable[[str], bool]) -> str:
    """The model that a text names, if it names a single one."""
    found = {"".join(pair) for pair in _MODEL.findall(text)}
    known = {
        re.sub(r"[^a-z0-9.]", "", name.lower()): name
        for name in sorted(found)
        if names_a_model(name)
    }
    return next(iter(known.values())) if len(known) == 1 else ""


_BATCHES = (
    (heads.BATCH_TOKENS, r"batch[^.|]{0,24}?\b2(?:\^|\*\*)(\d{2})\b|2(?:\^|\*\*)(\d{2}) tokens (?:per|a) step"),
    ("micro_batch", r"\b(?:micro|local|per[- ](?:device|gpu))(?:[-_ ]train)?[-_ ]batch(?:[-_ ]sizes?)?(?:[=: ]{1,3}|,? (?:of|is|was|to) )(\d+)\b(?!\d|\^|\*\*|[.,]\d)"),
    ("global_batch", r"\b(?:global|total|effective)(?:[-_ ]train)?[-_ ]batch(?:[-_ ]sizes?)?(?:[=: ]{1,3}|,? (?:of|is|was|to) )(\d+)\b(?!\d|\^|\*\*|[.,]\d)"),
    (heads.BATCH, r"(?<!micro[-_ ])(?<!global[-_ ])(?<!total[-_ ])(?<!local[-_ ])(?<!effective[-_ ])(?<!device[-_ ])\bbatch[-_ ]sizes?(?:[=: ]{1,3}|,? (?:of|is|was|to) )(\d+)\b(?!\d|\^|\*\*|[.,]\d)(?! ?[kM]?\w* tok)"),
)  # fmt: skip
"""Batches as sentences say them; two to a power is a batch of tokens."""
_DIMENSIONS = (
    ("layers", r"(?<![\w.-])(\d{1,3}) (?:transformer |decoder )?layers?\b|\bn_?layers?\W{1,3}(\d{1,3})\b"),
    ("kv_heads", r"(?<![\w.-])(\d{1,3}) (?:kv|key[- ]value)[- ]heads\b|\bn_?kv_?heads?\W{1,3}(\d{1,3})\b"),
    ("ffn", r"\b(?:ffn|mlp|intermediate)(?:[-_ ](?:hidden[-_ ])?(?:size|dim\w*))?[=: ]{1,3}(\d[\d,]{2,6})\b"),
    ("params_b", r"(?<![\w.])(\d{1,4}(?:\.\d+)? ?[MB])[- ]?param"),
    ("heads", r"(?<![\w.-])(\d{1,3}) (?:attention )?heads\b|\bn_?heads?\W{1,3}(\d{1,3})\b"),
    ("hidden", r"\b(?:hidden(?:[-_ ](?:size|dim\w*))?|d_?model|n_?embd|dim)\W{1,3}(\d[\d,]{2,6})\b"),
    ("vocab", r"\bvocab(?:ulary)?(?:[-_ ]?size)?(?:[=: ]{1,3}| (?:of|is) )(\d[\d,]{3,7})\b"),
)  # fmt: skip
"""A model's dimensions as sentences say them, and its size."""
_KEPT = ("zero_or_fsdp", "recompute", "precision", "tp", "pp", "cp", "ep")


def _in_sentences(text: str) -> dict[str, str]:
    """Batches, sharding, recomputation, precision and degrees of which the sentences of a text name one each."""
    found: dict[str, set[str]] = {}
    for column, pattern in _BATCHES:
        for groups in re.findall(pattern, text, re.IGNORECASE):
            number = "".join(groups)
            power = column == heads.BATCH_TOKENS
            found.setdefault(column, set()).add(str(2 ** int(number)) if power else number)
    for sentence in re.split(r"(?<=[.;!?])\s+|\n", text[-_NEAR:]):
        counts: dict[str, str] = {}
        remarked(counts, sentence)
        for column in _SAID_SHORTLY:
            if value := counts.get(column, "").strip():
                found.setdefault(column, set()).add(value)
        if (steps := accumulation(sentence)) is not None:
            found.setdefault(heads.ACCUMULATION, set()).add(str(steps))
        if (nodes := NODES_TIMES.search(sentence)) is not None:
            found["gpus"] = {str(int(nodes[1]) * int(nodes[2]))}
        (read,) = in_the_schema([{"model": "x", "setup": sentence}])
        for column in _KEPT:
            if value := read.get(column, "").strip():
                found.setdefault(column, set()).add(value.lower())
    for column, pattern in _DIMENSIONS:
        for groups in re.findall(pattern, text, re.IGNORECASE):
            found.setdefault(column, set()).add(
                "".join([groups] if isinstance(groups, str) else groups).replace(",", "")
            )
    told = {column: values.pop() for column, values in found.items() if len(values) == 1}
    if "micro_batch" in told or "global_batch" in told or heads.BATCH_TOKENS in told:
        told.pop(heads.BATCH, "")
    return {_AS_HEAD.get(column, column): value for column, value in told.items()}


_AS_HEAD = {
    heads.BATCH: "batch size", heads.BATCH_TOKENS: "global batch tokens", heads.ACCUMULATION: "gradient accumulation",
    "gpus": "number of gpus",
}  # fmt: skip
_SAID_SHORTLY = ("micro_batch", "global_batch", heads.BATCH, "gpus")
"""Of what remarks abbreviate (`MBS4/GBS128`, `64 GPUs, bs 1`), what sentences say of all runs, too."""
_NEAR = 2000
"""Characters before a table in which sentences speak of its runs."""


_COUNTED = (
    "gpus", "gpus_per_node", "params_b", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "tp", "pp", "vpp",
    "dp", "cp", "ep", "experts", "topk", "micro_batch", "global_batch", heads.BATCH, heads.NODES, heads.ACCUMULATION,
)  # fmt: skip
_COMPILED = re.compile(r"(?:torch[. ]?)?compil(?:e[dr]?|ation)$", re.IGNORECASE)
_YES = re.compile(rf"(?:{YES})(?!\w)", re.IGNORECASE)
_DEGREES_TOLD = re.compile(r"\b(?:TP|PP|DP|CP|EP|FSDP)\d?\W?\d", re.IGNORECASE)


def said_in_lines(text: str, names_a_model: Callable[[str], bool]) -> dict[str, str]:
    """What lines of `head: value` say, each head by its own words, where no two lines of a column differ."""
    return one_each(_LINE.findall(text), names_a_model)


def one_each(
    pairs: Iterable[tuple[str, str]], names_a_model: Callable[[str], bool]
) -> dict[str, str]:
    """Heads and values that describe a run, those left out of which a column has several or that say nothing."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for head, value in pairs:
        column, value = heads.column_of(head.strip()), value.strip().strip("*_` ")
        if column == heads.SAID and _DEGREES_TOLD.search(value):
            column = "setup"
        if column == heads.SAID and _COMPILED.match(head) and _YES.match(value):
            column, head, value = "setup", "settings", "torch.compile"
        if column == heads.SAID and (
            programs_named(head) or re.match(r"(?:py)?torch\b", head, re.IGNORECASE)
        ):
            column, value = "setup", f"{head} {value}"
            head = "settings"
        if column in (heads.SAID, heads.MEASURED, "id", "source") or not value or len(value) > 160:
            continue
        if column in _COUNTED and not re.match(r"~?\d", value):
            continue
        if column == "gpu" and not _NAMED.search(value) and machine_of(value) is None:
            continue
        if column == "model" and not names_a_model(value):
            continue
        found.setdefault(column, {})[value.lower()] = (head.strip(), value)
    several = ("setup",)
    return {
        head: value
        for column, values in found.items()
        if len(values) == 1 or column in several
        for head, value in values.values()
    }


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
    has_model = any(heads.column_of(head) == "model" for head in told)
    for head, value in told.items():
        column = heads.column_of(head)
        if whole and column == "params_b" and (has_model or _any(plain, "model")):
            continue  # a named model has its own size
        fitting = [_fitting(row, value) if whole and column == "setup" else value for row in plain]
        blank = [
            _blank(row, column) and bool(part) for row, part in zip(plain, fitting, strict=True)
        ]
        for cells, is_blank, part in zip(filled, blank, fitting, strict=True):
            if is_blank and (all(blank) or not whole or column == "setup"):
                cells.pop(head, None)
                cells[head] = part
    rows = in_the_schema(filled, names_a_model, first)
    if whole:
        for before, row in zip(plain, rows, strict=True):
            said = [
                f"{head}={value} (around the table)"
                for head, value in told.items()
                if _taken(before, row, heads.column_of(head))
            ]
            row["read_as"] = "; ".join(filter(None, [row.get("read_as", ""), *said]))
    return rows


def _any(rows: Table, column: str) -> bool:
    return any(row.get(column, "").strip() for row in rows)


def _fitting(row: Mapping[str, str], value: str) -> str:
    """Of remarks told of all rows those that do not speak against what a row says itself."""
    return "; ".join(part for part in value.split("; ") if not _otherwise(row, part))


def _otherwise(row: Mapping[str, str], value: str) -> bool:
    """Whether a row names another program, or a way of tuning of its own, than what is told of all."""
    own, told = programs_by_kind(row.get("setup", "")), programs_by_kind(value)
    return (bool(own) and bool(told) and own.keys() != told.keys()) or bool(
        _METHOD.search(row.get("setup", "")) and _METHOD.search(value)
    )


_METHOD = re.compile(
    r"(?<![a-z])Q?-?LoRA(?![a-z])|\bmethod\b|fine-?tun|\bfull[-_ ]?(?:rank|param)", re.IGNORECASE
)


def joined_by_column(*told: Mapping[str, str]) -> dict[str, str]:
    """What several places tell, by column: the last one that speaks of a column counts; remarks are kept side by side."""
    found: dict[str, tuple[str, str]] = {}
    settings: list[str] = []
    for one in told:
        for head, value in one.items():
            column = heads.column_of(head)
            if column == "setup":
                settings.append(value)
            else:
                found[column] = (head, value)
    kept = dict(found.values())
    return kept | {"settings": "; ".join(dict.fromkeys(settings))} if settings else kept


def _taken(before: Mapping[str, str], row: Mapping[str, str], column: str) -> bool:
    """Whether a row has by what was told what it had not by itself."""
    if column in (heads.BATCH, heads.BATCH_TOKENS):
        batches = ("micro_batch", "global_batch")
        return (
            any(_blank(before, one) and row.get(one) for one in batches)
            or column == heads.BATCH_TOKENS
        )
    return column not in ("setup", heads.SAID) and _blank(before, column) and bool(row.get(column))


def _blank(row: Mapping[str, str], column: str) -> bool:
    if column in ("setup", heads.SAID, heads.ACCUMULATION):
        return True
    if column in ("micro_batch", "global_batch", heads.BATCH) and NO_BATCH in row.get(
        "read_as", ""
    ):
        return True
    return not row.get(column, "").strip()
