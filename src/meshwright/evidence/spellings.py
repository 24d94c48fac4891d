"""Tables as people write them: other names of columns, and numbers among words, in the evidence schema's terms.

`GPUs: 4x8`, `seq len: 2k`, `bs 4 ga 8`, `TP8` and `7B` are numbers to whoever wrote them. A column that is not in
the schema says something of the run (`LoRA rank`, `optimizer`) unless its name is one of what was measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from meshwright.evidence import heads
from meshwright.evidence.cells import MEASURED_CELL, device_in_heads, devices_head, models_head
from meshwright.evidence.instances import Machine, machines_in, names_a_device
from meshwright.evidence.printed import printed
from meshwright.evidence.remarks import DEGREES, degrees_remarked, length, remarked, whole

MOST_AT_ONCE = 2**17
"""Tokens from which on no device takes a batch at once."""
MANY = 4
"""Sequences a replica from which on a bare batch is taken for a whole step's."""

_BATCH = re.compile(
    r"(?:bs|mbs|batch(?: size)?|micro[- ]?batch)? ?[=:]? ?(\d+)\W{0,3}(?:ga|gas|grad\w*[- ]?accum\w*|accum\w*)(?:[- ]steps)? ?[=:]? ?(\d+)",
    re.IGNORECASE,
)
_LATER = re.compile(
    r"^\s*(\d+)\b.*?\b(?:ga|gas|grad\w*[- ]?acc\w*|accum\w*)(?:[- ]steps)? ?[=:]? ?(\d+)",
    re.IGNORECASE,
)
"""A batch and, somewhere after it, its accumulation: `2 (x4 GPUs, GA=8)`."""
_TIMES = re.compile(r"^\s*(\d[\d,]*)\s*(?:nodes?|hosts?)?\s*[x×*]\s*(\d[\d,]*)?\b", re.IGNORECASE)
_SLICE = re.compile(r"\bv(\d(?:p|e|[- ]?lite(?:pod)?)?)-(\d{1,5})\b", re.IGNORECASE)
"""A TPU slice by its name, which counts cores of the versions that have two a chip: `v5p-512`, `v5e-256`."""
NODES_TIMES = re.compile(
    r"(?<![\w.])(\d{1,5}) ?(?:nodes?|hosts?|servers?)\s*(?:[x×*]|of|with)\s*(\d{1,2})(?!\w|\.\d)",
    re.IGNORECASE,
)
"""Hosts and the devices of each, among other words: `B200, 32 nodes x 8 GPUs`."""
_BEHIND = re.compile(r"[A-Za-z]\w*[- ]?\w*\s+[x×]\s*(\d{1,4})\s*$")
"""A number of devices behind their name: `A100-SXM4-80GB x4`."""
_NODES_OF = re.compile(r"^\s*(\d+)\s*(?:nodes?|hosts?)\D{1,20}(\d+)", re.IGNORECASE)


def in_the_schema(
    table: list[dict[str, str]], names_a_model: Callable[[str], bool] | None = None, first: int = 1
) -> list[dict[str, str]]:
    """Return a table's rows under the schema's columns, with numbers as numbers.

    What a column of no schema says is added to `setup` as `name: value`. Rows without a name are counted from
    `first` on. Where no head says `model`, the column does whose cells `names_a_model` knows most of; a row without
    model or device, but with others, is of those of the row above it, as in a table of merged cells.
    """
    model = models_head(table, names_a_model) if names_a_model else ""
    device = devices_head(table)
    in_heads = device_in_heads(table) if not device else ""
    found = [_row(cells, index, model, device) for index, cells in enumerate(table, start=first)]
    for row in found:
        if in_heads and not row.get("gpu", "").strip():
            row["gpu"] = in_heads
    for column in ("model", "gpu"):
        _fill_down(found, column)
    _all_steps(found)
    for row in found:
        printed(row)
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
            said = f"{column}={above} (of a row above)"
            row["read_as"] = "; ".join(filter(None, [row.get("read_as", ""), said]))


def _row(cells: Mapping[str, str], index: int, model: str = "", device: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    said: list[str] = []
    for head, cell in cells.items():
        column = "model" if head == model else heads.column_of(head)
        if head == device and names_a_device(cell):
            if column in ("setup", heads.SAID):
                said.append(cell)
            column = "gpu"
        if (parts := heads.joined(head)) and _take_apart(parts, cell, found):
            continue
        if column == heads.NODES and machines_in(cell) is not None:
            column = "gpu"
        if column == "gpu" and re.fullmatch(r"\s*(?![2-5]0[5-9]0\b)\d[\d,]*\s*", cell):
            column = "gpus"
        if column == "gpu" and MEASURED_CELL.match(cell) and not names_a_device(cell):
            found[f"{head} memory"] = cell  # `GPU: 13.7GB` is what was used
            continue
        if column == heads.ACCUMULATION:
            said += [f"gradient accumulation {cell}"] * bool(cell.strip())
        elif column == heads.BATCH_TOKENS:
            said += [f"global batch tokens={cell.strip().lstrip('~≈ ')}"] * bool(cell.strip())
        elif column == heads.CHECKPOINTED:
            _checkpointed(cell, found, said)
        elif column == heads.SAID and MEASURED_CELL.match(cell):
            found[head] = cell
        elif column == heads.SAID:
            said += [_switched(head, cell) or f"{head}: {cell}"] * bool(cell.strip())
        elif column == heads.MEASURED:
            found[head] = cell
            said += ["nvidia-smi"] * ("nvidia-smi" in head.lower())  # how memory was counted
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


YES = r"yes|true|on|enabled?|✓|✅"
"""What a cell says where its head is on."""
_SWITCH = re.compile(r"(?:use|uses|enable|enabled|with)[-_ ](\w[\w .-]*)", re.IGNORECASE)


def _switched(head: str, cell: str) -> str:
    """What a column of yes and no says in words: `use_unsloth` of `true` is unsloth, of `false` no unsloth."""
    named = _SWITCH.fullmatch(head.strip())
    if named is None:
        return ""
    if re.fullmatch(rf"\s*(?:{YES})\s*", cell, re.IGNORECASE):
        return named[1]
    off = re.fullmatch(r"\s*(?:no|false|off|disabled?|✗|❌)\s*", cell, re.IGNORECASE)
    return f"no {named[1]}" if off else ""


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
    if re.fullmatch(rf"{YES}|x", text, re.IGNORECASE):
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
    if each := _PER_HOST.match(gpus):
        found["gpus_per_node"] = found.get("gpus_per_node", "").strip() or each[1]
        gpus = ""
    if (machines := machines_in(gpu)) is not None:
        gpus = _of_machines(found, gpus, *machines)
    before = re.match(r"\s*(\d{1,6})\s*[x×*]\s*(?=[A-Za-z])(.+)", gpu)
    if (
        before is None
        and (spaced := re.match(r"\s*(\d{1,6})\s+(.+)", gpu))
        and names_a_device(spaced[2])
    ):
        before = spaced
    if before is not None and machines is None:
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
    elif not gpus.strip() and (inside := NODES_TIMES.search(gpu)):
        gpus = str(int(inside[1]) * int(inside[2]))
        found["gpus_per_node"] = found.get("gpus_per_node", "").strip() or inside[2]
    elif not gpus.strip() and machines is None and (behind := _BEHIND.search(gpu)):
        gpus = behind[1]
    nodes = re.match(r"\s*(\d+)", found.pop(heads.NODES, ""))
    if nodes is not None:
        each = re.match(r"\s*(\d+)", found.get("gpus_per_node", ""))
        if not gpus.strip():
            gpus = str(int(nodes[1]) * (int(each[1]) if each else 8))
        elif each is None and (total := re.match(r"\s*(\d+)\s*$", gpus)):
            found["gpus_per_node"] = str(max(1, int(total[1]) // max(1, int(nodes[1]))))
    if not gpus.strip() and (slice_ := _SLICE.search(found.get("gpu", ""))):
        two_cores = slice_[1].lower() in ("2", "3", "4", "5p")
        gpus = str(int(slice_[2]) // (2 if two_cores else 1))
    if gpus or "gpus" in found:
        found["gpus"] = gpus


_FAMILIES = re.compile(
    r"(?<![\w/-])(Llama[- ]?[23](?:\.\d)?|LLaMA|Qwen[- ]?[\d.]*\d|Mistral|Gemma(?:[- ]?\d)?|OPT|Pythia|Falcon|BLOOM|GPT-?[23])(?![\w-])",
    re.IGNORECASE,
)
_SPACED = ("gpus", "hidden", "ffn", "vocab", "seq_len", "micro_batch", "global_batch", heads.BATCH)
"""Columns of numbers that people write with a blank between thousands."""
_PER_HOST = re.compile(
    r"\s*(\d{1,3})\s*(?:x\s*)?(?:(?:GPU|device|core|chip)s?\s*)?(?:per|/|a|each)\s*(?:node|host|instance|machine|server)\b",
    re.IGNORECASE,
)


def _of_machines(found: dict[str, str], gpus: str, number: int | None, machine: Machine) -> str:
    """Devices of machines that a cell names: so many of them, or those that its parenthesis counts.

    What counts twice as many devices a host as Trainium's machine has chips counts NeuronCores.
    """
    inside = re.search(r"\(\s*(?:\d+\s*nodes?,?\s*)?(\d{1,6})\s*[x×*]", found["gpu"])
    each = found.get("gpus_per_node", "").strip()
    if machine.device.startswith("Trainium") and each == str(2 * machine.devices):
        found["gpu"] += " (NeuronCores)"
    elif not each:
        found["gpus_per_node"] = str(machine.devices)
    if gpus.strip():
        return gpus
    if inside is not None:
        return inside[1]
    return str(number * machine.devices) if number else ""


def _cut(found: dict[str, str]) -> None:
    """Lengths, sizes, degrees and batches as numbers."""
    noted = ""
    for column in _SPACED:
        if (cell := found.get(column, "")) and re.match(
            r"\s*\d{1,3}(?:[ '’\u2009\u202f]\d{3})+(?!\d)", cell
        ):
            found[column] = re.sub(r"(?<=\d)[ '’\u2009\u202f](?=\d{3}(?!\d))", "", cell)
    if spread := re.match(
        r"\s*(\d[\d,.]*\s?[kKM]?)\s*(?:-|–|to|\.\.)\s*\d", found.get("seq_len", "")
    ):
        noted = f"of lengths {found['seq_len'].strip()} the first is taken"
        found["seq_len"] = spread[1]
    if found.get("seq_len", "").strip():
        found["seq_len"] = length(found["seq_len"])
    if size := re.match(
        r"\s*~?(\d+(?:\.\d+)?) ?([MBT])\b", found.get("params_b", ""), re.IGNORECASE
    ):
        found["params_b"] = f"{float(size[1]) * {'M': 1e-3, 'B': 1.0, 'T': 1e3}[size[2].upper()]:g}"
    for axis in DEGREES:
        written = re.match(rf"\s*(?:{axis}|x)? ?[=:-]? ?(\d+)(?:[- ]?(?:way|x)\b)?\s*$", found.get(axis, ""), re.IGNORECASE)  # fmt: skip
        if written is not None:
            found[axis] = written[1]
    for column in ("micro_batch", "global_batch"):
        both = _BATCH.search(found.get(column, "")) or _LATER.search(found.get(column, ""))
        if both is not None:
            of_a_step = column == "global_batch" and re.match(r"\s*\d", found[column])
            found[column] = both[1] if of_a_step or column == "micro_batch" else ""
            found["micro_batch"] = found.get("micro_batch", "") if of_a_step else both[1]
            found["setup"] = f"{found['setup']}; gradient accumulation {both[2]}".lstrip("; ")
        else:
            only = re.match(r"\s*(?:bs|mbs|gbs|batch)? ?[=:]? ?(\d[\d,]*)\s*(?=$|[A-Za-z/(])", found.get(column, ""), re.IGNORECASE)  # fmt: skip
            if only is not None:
                found[column] = only[1]
    if not found.get("model", "").strip() and not found.get("hidden", "").strip() and size:
        found["model"] = size[0].strip()
    if re.fullmatch(r"\s*\d+(?:\.\d+)? ?[BM]\s*", found.get("model", ""), re.IGNORECASE):
        families = {one.lower(): one for one in _FAMILIES.findall(found["setup"])}
        if len(families) == 1:  # a size alone, of a family that a remark names
            found["model"] = f"{families.popitem()[1]} {found['model'].strip()}"
    words = f"{found.get('zero_or_fsdp', '')}; {found['setup']}"
    degrees_remarked(found, words)
    remarked(found, words)
    _whose_batch(found)
    _no_batch(found)
    if noted:
        found["read_as"] = "; ".join(filter(None, [found.get("read_as", ""), noted]))


BATCHES_EACH = "batches of each device"
"""Said of rows whose bare batches are a device's, in the words of what stands around them."""
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
        times = max(TIMES_A_STEP, TIMES_A_STAGE * whole(found.get("pp", "")))
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
    if both := _BATCH.search(cell) or _LATER.search(cell):
        column, number = "micro_batch", both[1]
        found["setup"] = f"{found['setup']}; gradient accumulation {both[2]}".lstrip("; ")
    elif only := re.match(r"\D{0,12}(\d[\d,]*)", cell):
        number = only[1].replace(",", "")
        replicas = _replicas(found)
        told = re.search(r"global|total|effective", cell, re.IGNORECASE)
        many = replicas > 1 and int(number) >= MANY * replicas and int(number) % replicas == 0
        tokens = int(number) * whole(found.get("seq_len", ""))
        each = BATCHES_EACH in found["setup"]
        of_a_step = (
            told or (many and not each) or (tokens > MOST_AT_ONCE and int(number) % replicas == 0)
        )
        column = "global_batch" if of_a_step and not re.search(r"per|/", cell) else "micro_batch"
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
        return whole(found["dp"])
    split = math.prod(whole(found.get(axis, "")) for axis in ("tp", "pp", "cp"))
    return max(1, whole(found.get("gpus", "")) // split)
