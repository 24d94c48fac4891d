"""Tables as people write them: other names of columns, and numbers among words, in the evidence schema's terms.

`GPUs: 4x8`, `seq len: 2k`, `bs 4 ga 8`, `TP8` and `7B` are numbers to whoever wrote them. A column that is not in
the schema says something of the run (`LoRA rank`, `optimizer`) unless its name is one of what was measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from meshwright.evidence import heads

MOST_AT_ONCE = 2**17
"""Tokens from which on no device takes a batch at once."""
MANY = 4
"""Sequences a replica from which on a bare batch is taken for a whole step's."""

_DEGREES = ("tp", "pp", "vpp", "dp", "cp", "ep")
_BATCH = re.compile(
    r"(?:bs|mbs|batch(?: size)?|micro[- ]?batch)? ?[=:]? ?(\d+)\W{0,3}(?:ga|gas|grad\w*[- ]?accum\w*|accum\w*)(?:[- ]steps)? ?[=:]? ?(\d+)",
    re.IGNORECASE,
)
_TIMES = re.compile(r"^\s*(\d[\d,]*)\s*(?:nodes?|hosts?)?\s*[x×*]\s*(\d[\d,]*)?\b", re.IGNORECASE)
_SLICE = re.compile(r"\bv(\d(?:p|e|[- ]?lite(?:pod)?)?)-(\d{1,5})\b", re.IGNORECASE)
"""A TPU slice by its name, which counts cores of the versions that have two a chip: `v5p-512`, `v5e-256`."""
_NODES_OF = re.compile(r"^\s*(\d+)\s*(?:nodes?|hosts?)\D{1,20}(\d+)", re.IGNORECASE)


def in_the_schema(
    table: list[dict[str, str]], names_a_model: Callable[[str], bool] | None = None, first: int = 1
) -> list[dict[str, str]]:
    """Return a table's rows under the schema's columns, with numbers as numbers.

    What a column of no schema says is added to `setup` as `name: value`. Rows without a name are counted from
    `first` on. Where no head says `model`, the column does whose cells `names_a_model` knows most of; a row without
    model or device, but with others, is of those of the row above it, as in a table of merged cells.
    """
    model = _models_head(table, names_a_model) if names_a_model else ""
    found = [_row(cells, index, model) for index, cells in enumerate(table, start=first)]
    for column in ("model", "gpu"):
        _fill_down(found, column)
    _all_steps(found)
    return found


_TAKEN = re.compile(r"batch (\d+) is a (step|device)'s")


def _all_steps(rows: list[dict[str, str]]) -> None:
    """A head means one thing: where a bare batch of some row can only be a step's, those of the others are."""
    taken = [(row, found) for row in rows if (found := _TAKEN.fullmatch(row.get("read_as", "")))]
    if not any(found[2] == "step" for _, found in taken):
        return
    for row, found in taken:
        replicas, number = _replicas(row), int(found[1])
        if found[2] == "device" and replicas > 1 and number % replicas == 0:
            row["global_batch"], row["micro_batch"] = found[1], ""
            row["read_as"] = f"batch {number} is a step's"


def _models_head(table: list[dict[str, str]], known: Callable[[str], bool]) -> str:
    """The head of the column whose cells name models, where no head says so."""
    if not table or any(
        heads.column_of(head) in ("model", "layers", "params_b") for head in table[0]
    ):
        return ""
    told = {
        head: sum(known(row.get(head, "")) for row in table)
        for head in table[0]
        if heads.column_of(head) in (heads.SAID, "id", "setup", heads.MEASURED)
    }
    best = max(told, key=lambda head: told[head], default="")
    return best if best and told[best] else ""


_SHAPE = ("layers", "hidden", "params_b", "seq_len", "global_batch", "micro_batch", "gpus")


def _fill_down(rows: list[dict[str, str]], column: str) -> None:
    """Blank cells of a column that the rows above fill, in rows that are not blank altogether."""
    above = ""
    for row in rows:
        if row.get(column, "").strip():
            above = row[column]
            continue
        told = any(row.get(name, "").strip() for name in _SHAPE)
        described = column == "model" and (row.get("layers") or row.get("params_b"))
        if above and column in row and told and not described:
            row[column] = above


def _row(cells: Mapping[str, str], index: int, model: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    said: list[str] = []
    for head, cell in cells.items():
        column = "model" if head == model else heads.column_of(head)
        if (parts := heads.joined(head)) and _take_apart(parts, cell, found):
            continue
        if column == "gpu" and re.fullmatch(r"\s*(?![2-5]0[5-9]0\b)\d[\d,]*\s*", cell):
            column = "gpus"
        if column == heads.ACCUMULATION:
            said += [f"gradient accumulation {cell}"] * bool(cell.strip())
        elif column == heads.BATCH_TOKENS:
            said += [f"global batch tokens={cell.strip()}"] * bool(cell.strip())
        elif column == heads.CHECKPOINTED:
            _checkpointed(cell, found, said)
        elif column == heads.SAID:
            said += [f"{head}: {cell}"] * bool(cell.strip())
        elif column == heads.MEASURED:
            found[head] = cell
        elif column == "zero_or_fsdp":
            found.setdefault(column, "")
            found[column] = found[column] or _sharding(head, cell)
        elif not found.get(column, "").strip():
            found[column] = cell
        elif column == "setup":
            found[column] += f"; {cell}" * bool(cell.strip())
    found["setup"] = "; ".join(filter(None, [found.get("setup", "").strip(), *said]))
    found["id"] = found.get("id", "").strip() or f"row {index}"
    _counted(found)
    _cut(found)
    return found


def _take_apart(parts: tuple[str, ...], cell: str, found: dict[str, str]) -> bool:
    """Fill the columns that one head joins from a cell of as many numbers: `TP/PP/CP` of `2/1/4`."""
    numbers = re.findall(r"\d+", cell)
    if len(numbers) != len(parts):
        return False
    for column, number in zip(parts, numbers, strict=True):
        if column == heads.ACCUMULATION:
            found["setup"] = f"{found.get('setup', '')}; gradient accumulation {number}".lstrip(
                "; "
            )
        elif column and not found.get(column, "").strip():
            found[column] = number
    return True


def _sharding(head: str, cell: str) -> str:
    """What a cell says of sharding that only means something under its head: `3` under ZeRO, `4` under FSDP degree."""
    text = cell.strip()
    optimizer = re.search(r"optim", head, re.IGNORECASE)
    if re.fullmatch(r"[0-3]", text) and re.search(r"zero|stage", head, re.IGNORECASE):
        return f"ZeRO-{text}"
    if re.fullmatch(r"\d{1,5}", text) and re.search(r"fsdp|shard", head, re.IGNORECASE):
        return f"FSDP={text}"
    if re.fullmatch(r"yes|true|on|enabled?|✓|✅|x", text, re.IGNORECASE):
        if re.search(r"parallel[-_ ]optim", head, re.IGNORECASE):
            return "ZeRO-2"  # MindSpore's, whose configurations call it ZeRO-2's equal
        if optimizer:
            return "distributed optimizer"
        return "FSDP" if re.search("fsdp", head, re.IGNORECASE) else cell
    return cell


def _checkpointed(cell: str, found: dict[str, str], said: list[str]) -> None:
    """Layers that are computed again: none, some or, where no number says otherwise, all."""
    layers = re.match(r"\s*(\d+)", cell)
    if layers is None or found.get("recompute", "").strip():
        return
    found["recompute"] = "full" if int(layers[1]) else "none"
    said += [f"recompute {layers[1]} layers"] * bool(int(layers[1]))


def _counted(found: dict[str, str]) -> None:
    """Devices: `8x A100`, `4x8`, `2 nodes x 8 GPUs`, and a column of nodes."""
    gpu, gpus = found.get("gpu", ""), found.get("gpus", "")
    before = re.match(r"\s*(\d{1,6})\s*[x×*]\s*(?=[A-Za-z])(.+)", gpu)
    if before is not None:
        found["gpu"] = before[2]
        gpus = gpus.strip() or before[1]
    both = re.match(r"\s*(\d{1,6})\s*[x×*]\s*(?=[A-Za-z])(.+)", gpus)
    named = both or re.match(
        r"\s*(\d{1,6})\s*[x×*]?\s*((?:NVIDIA |AMD )?[A-Z]{1,3}\d{2,3}\w*.*)", gpus
    )
    if named is not None:
        gpus = named[1]
        found["gpu"] = found.get("gpu", "").strip() or named[2]
    if (rest := re.match(r"\s*\d+\s*[x×*]\s*\d+\s+([A-Za-z].*)", gpus)) and not re.match(
        r"GPU|node|device|card|chip", rest[1], re.IGNORECASE
    ):
        found["gpu"] = found.get("gpu", "").strip() or rest[1]
    if times := (_NODES_OF.match(gpus) or _TIMES.match(gpus)):
        first, second = (int(one.replace(",", "")) if one else 1 for one in times.groups())
        gpus = str(first * second)
        if times[2] and second <= 16:
            found["gpus_per_node"] = found.get("gpus_per_node", "").strip() or str(second)
    nodes = re.match(r"\s*(\d+)", found.pop(heads.NODES, ""))
    if nodes is not None:
        each = re.match(r"\s*(\d+)", found.get("gpus_per_node", ""))
        if not gpus.strip():
            gpus = str(int(nodes[1]) * (int(each[1]) if each else 8))
        elif each is None and (whole := re.match(r"\s*(\d+)\s*$", gpus)):
            found["gpus_per_node"] = str(max(1, int(whole[1]) // max(1, int(nodes[1]))))
    if not gpus.strip() and (slice_ := _SLICE.search(found.get("gpu", ""))):
        two_cores = slice_[1].lower() in ("2", "3", "4", "5p")
        gpus = str(int(slice_[2]) // (2 if two_cores else 1))
    if gpus or "gpus" in found:
        found["gpus"] = gpus


def _cut(found: dict[str, str]) -> None:
    """Lengths, sizes, degrees and batches as numbers."""
    if found.get("seq_len", "").strip():
        found["seq_len"] = _length(found["seq_len"])
    if size := re.match(
        r"\s*~?(\d+(?:\.\d+)?) ?([MBT])\b", found.get("params_b", ""), re.IGNORECASE
    ):
        found["params_b"] = f"{float(size[1]) * {'M': 1e-3, 'B': 1.0, 'T': 1e3}[size[2].upper()]:g}"
    for axis in _DEGREES:
        written = re.match(rf"\s*(?:{axis}|x)? ?[=:-]? ?(\d+)(?:[- ]?(?:way|x)\b)?\s*$", found.get(axis, ""), re.IGNORECASE)  # fmt: skip
        if written is not None:
            found[axis] = written[1]
    for column in ("micro_batch", "global_batch"):
        both = _BATCH.search(found.get(column, ""))
        if both is not None:
            found[column] = "" if column == "global_batch" else both[1]
            found["micro_batch"] = both[1]
            found["setup"] = f"{found['setup']}; gradient accumulation {both[2]}".lstrip("; ")
        else:
            only = re.match(r"\s*(?:bs|mbs|gbs|batch)? ?[=:]? ?(\d[\d,]*)\s*(?=$|[A-Za-z/(])", found.get(column, ""), re.IGNORECASE)  # fmt: skip
            if only is not None:
                found[column] = only[1]
    if not found.get("model", "").strip() and not found.get("hidden", "").strip() and size:
        found["model"] = size[0].strip()
    words = f"{found.get('zero_or_fsdp', '')}; {found['setup']}"
    _said_degrees(found, words)
    _said(found, words)
    _whose_batch(found)
    _no_batch(found)


_AXIS_WORDS = {"tp": "tensor", "pp": "pipeline", "dp": "data", "cp": "context", "ep": "expert"}


def _in_words(axis: str, words: str) -> re.Match[str] | None:
    """A degree spelt out: `tensor parallel size 8`, `expert-parallelism=4`, `8-way tensor parallelism`."""
    if axis not in _AXIS_WORDS:
        return None
    named = rf"{_AXIS_WORDS[axis]}(?:[-_ ]model)?[-_ ]parallel(?:ism)?"
    return re.search(
        rf"{named}(?:[-_ ](?:size|degree))?(?: ?[=:] ?| (?:of )?)(\d{{1,4}})\b(?!\.)",
        words,
        re.IGNORECASE,
    ) or re.search(rf"\b(\d{{1,4}})-way {named}", words, re.IGNORECASE)


def _said_degrees(found: dict[str, str], words: str) -> None:
    """Degrees that only a remark says, where the devices can be cut so."""
    told = {}
    for axis in _DEGREES:
        pattern = rf"(?<![\w.]){axis}(?: ?[=:] ?| |-)?(\d{{1,4}})\b(?!\.)"
        if not found.get(axis, "").strip() and (
            one := re.search(pattern, words, re.IGNORECASE) or _in_words(axis, words)
        ):
            told[axis] = one[1]
    if not found.get("cp", "").strip() and (one := _SEQUENCES.search(words)):
        told.setdefault("cp", one[1])
    split = math.prod(_whole(told.get(axis) or found.get(axis, "")) for axis in ("tp", "pp", "cp"))
    if not found.get("gpus", "").strip() or _whole(found["gpus"]) % split == 0:
        found.update(told)


_SEQUENCES = re.compile(
    r"(?:\bulysses[-_ ]?(?:sp|size|degree)?|(?<![\w.])sp|sequence[-_ ]parallel[-_ ](?:size|degree))(?: ?[=:] ?|[- ])(\d{1,3})\b",
    re.IGNORECASE,
)
"""Ranks that share a sequence: `sp=4`, `ulysses 8`."""
_SHARDED = (
    (r"(?<![a-z])(?:ds|deep ?speed)[-_ ]?z(?:ero)?[-_ ]?([0-3])(?![0-9])", r"ZeRO-\1"),
    (r"\bZeRO[-_ ]?(?:stage)?[-_ ]?([0-3])(?![0-9])(?! ?\+\+)|\bstage[-_ ]([0-3])\b", ""),
    (r"\bHSDP\b|\bSHARD_GRAD_OP\b|\bFSDP-?v?2\b|\bFSDP ?= ?\d+|\bFSDP1?\b|\bDDP\b", ""),
)
_CHECKPOINTS = r"(?:gradient|activation)[-_ ](?:check ?point\w*|recompute\w*)|\bgrad[-_ ]ckpt\b"
_KEEPS = (
    ("none", rf"(?:\bno|\bwithout|\bw/o) (?:{_CHECKPOINTS})|(?:{_CHECKPOINTS})(?: ?[=:] ?| )(?:off|false|disabled|none|no)\b"),
    ("selective", r"selective[-_ ](?:recomp\w+|activation|AC\b|check\w+)|\bSAC\b"),
    ("full", rf"{_CHECKPOINTS}|\bfull[-_ ](?:recomp\w+|AC\b|activation)|recompute[-_ ]full"),
)  # fmt: skip
"""How states are sharded and what is computed again, where only a remark says so."""

_SAID = (
    ("global_batch", r"\b(?:gbs|global[-_ ]?batch(?:[-_ ]?size)?)[=: ]{0,2}(\d[\d,]*)\b(?! ?[kM]?\w* tok)"),
    ("micro_batch", r"\b(?:mbs|micro[-_ ]?batch(?:[-_ ]?size)?|per[-_ ]device[-_ ](?:train[-_ ])?batch[-_ ]size)[=: ]{0,2}(\d+)\b"),
    ("micro_batch", r"\b(?:bs|batch(?:[-_ ]?size)?)[=: ]{0,2}(\d+) ?(?:/|per)[- ]?(?:gpu|device)"),
    ("gpus", r"(?<![\w.])(\d{1,5}) (?:GPUs|NPUs|HPUs|TPUs|chips)\b"),
    (heads.BATCH, r"\b(?:bs|batch(?:[-_ ]?size)?)[=: ]{0,2}(\d+)\b"),
    ("seq_len", r"\b(?:seq(?:uence)?(?:[-_ ]?len(?:gth)?)?|SL|ctx|context(?:[-_ ]length)?|(?:max|packed) (?:length|to))[=: ]{0,2}(\d[\d.,]*[kK]?)\b"),
)  # fmt: skip
"""Batches and lengths as a remark has them: `MBS1 GBS256`, `bs 2/GPU`, `seq 2048`."""


def _said(found: dict[str, str], words: str) -> None:
    """Batches, lengths, sharding and recomputation that only a remark says."""
    if not found.get("zero_or_fsdp", "").strip():
        for pattern, written in _SHARDED:
            if one := re.search(pattern, words, re.IGNORECASE):
                found["zero_or_fsdp"] = one.expand(written) if written else one[0]
                break
    if not found.get("recompute", "").strip():
        kept = (kind for kind, pattern in _KEEPS if re.search(pattern, words, re.IGNORECASE))
        found["recompute"] = next(kept, "")
    for column, pattern in _SAID:
        batch = column == heads.BATCH and (
            found.get("micro_batch", "").strip() or found.get("global_batch", "").strip()
        )
        told = re.search(pattern, words, re.IGNORECASE)
        if told is not None and not batch and not found.get(column, "").strip():
            found[column] = told[1].replace(",", "") if column != "seq_len" else _length(told[1])


NO_BATCH = "no batch is told: one sequence a device at a time"
TIMES_A_STEP, TIMES_A_STAGE = 8, 4
"""How often in a step, and at least for each stage: what a step costs whatever its batch is then a small part."""


def _no_batch(found: dict[str, str]) -> None:
    """What a rate hardly depends on is assumed where nothing tells it."""
    told = ("micro_batch", "global_batch")
    if (
        any(found.get(column, "").strip() for column in told)
        or not found.get("seq_len", "").strip()
    ):
        return
    if not re.search(
        r"accum|batch|\bbs\b|\bGAS?\b|micro_num|tokens", found["setup"], re.IGNORECASE
    ):
        found["micro_batch"] = "1"
        found["read_as"] = NO_BATCH
        times = max(TIMES_A_STEP, TIMES_A_STAGE * _whole(found.get("pp", "")))
        found["setup"] = f"{found['setup']}; gradient accumulation {times}".lstrip("; ")


def _whose_batch(found: dict[str, str]) -> None:
    """A bare batch is a step's where it says so or has several sequences for each replica, else a device's."""
    replica = re.match(r"\s*(\d[\d,]*)", found.pop(heads.REPLICA_BATCH, ""))
    if replica is not None and not found.get("global_batch", "").strip():
        found["global_batch"] = str(int(replica[1].replace(",", "")) * _replicas(found))
    cell = found.pop(heads.BATCH, "")
    if not cell.strip() or (
        found.get("micro_batch", "").strip() and found.get("global_batch", "").strip()
    ):
        return
    if both := _BATCH.search(cell):
        column, number = "micro_batch", both[1]
        found["setup"] = f"{found['setup']}; gradient accumulation {both[2]}".lstrip("; ")
    elif only := re.match(r"\D{0,12}(\d[\d,]*)", cell):
        number = only[1].replace(",", "")
        replicas = _replicas(found)
        told = re.search(r"global|total|effective", cell, re.IGNORECASE)
        many = replicas > 1 and int(number) >= MANY * replicas and int(number) % replicas == 0
        tokens = int(number) * _whole(found.get("seq_len", ""))
        whole = told or many or (tokens > MOST_AT_ONCE and int(number) % replicas == 0)
        column = "global_batch" if whole and not re.search(r"per|/", cell) else "micro_batch"
    else:
        return
    if not found.get(column, "").strip():
        found[column] = number
        found["read_as"] = (
            f"batch {number} is {'a step' if column == 'global_batch' else 'a device'}'s"
        )


def _replicas(found: Mapping[str, str]) -> int:
    """Data-parallel ranks: stated, else what devices and the other degrees leave."""
    if found.get("dp", "").strip():
        return _whole(found["dp"])
    split = math.prod(_whole(found.get(axis, "")) for axis in ("tp", "pp", "cp"))
    return max(1, _whole(found.get("gpus", "")) // split)


def _length(text: str) -> str:
    """`2k` and `1M` tokens as numbers."""
    found = re.match(r"\s*~?(\d+(?:\.\d+)?) ?([KM])\b", text, re.IGNORECASE)
    if found is None:
        return text
    return str(round(float(found[1]) * 2 ** (10 if found[2] in "kK" else 20)))


def _whole(text: str) -> int:
    """A cell's leading whole number, else 1."""
    found = re.match(r"\s*(\d{1,9})", text)
    return max(1, int(found[1])) if found else 1
