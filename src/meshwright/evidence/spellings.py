"""Tables as people write them: other names of columns, and numbers among words, in the evidence schema's terms.

`GPUs: 4x8`, `seq len: 2k`, `bs 4 ga 8`, `TP8` and `7B` are numbers to whoever wrote them. A column that is not in
the schema says something of the run (`LoRA rank`, `optimizer`) unless its name is one of what was measured.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping

_NAMES: dict[str, str] = {
    "id": "id run name row experiment",
    "source": "source url link reference",
    "gpu": "gpu device accelerator hardware gputype gpumodel gpuname devicetype card chip instance machine",
    "gpus": "gpus numgpus ngpus ngpu gpucount numberofgpus worldsize devices numdevices chips ofgpus",
    "gpus_per_node": "gpuspernode gpusnode gpupernode nprocpernode devicespernode",
    "interconnect": "interconnect network fabric",
    "model": "model modelname llm basemodel",
    "params_b": "paramsb params parameters size modelsize paramsbillion",
    "layers": "layers numlayers nlayers", "hidden": "hidden hiddensize dmodel hiddendim width",
    "heads": "heads numheads attentionheads nheads", "kv_heads": "kvheads numkvheads querygroups numquerygroups",
    "ffn": "ffn ffnhiddensize intermediatesize dff", "vocab": "vocab vocabsize",
    "seq_len": "seqlen seq sequence sequencelength seqlength contextlength context ctx ctxlen contextlen maxseqlen "
    "maxseqlength maxlength blocksize tokenspersample s",
    "precision": "precision dtype datatype mixedprecision",
    "tp": "tp tensorparallel tensorparallelsize tensorparallelism tpsize tpdegree",
    "pp": "pp pipelineparallel pipelineparallelsize pipelineparallelism ppsize ppdegree",
    "vpp": "vpp vp virtualpipeline virtualstages", "dp": "dp dataparallel dataparallelsize dpsize replicas",
    "cp": "cp contextparallel contextparallelsize cpsize", "ep": "ep expertparallel expertparallelsize epsize",
    "experts": "experts numexperts", "topk": "topk moetopk expertstoken",
    "zero_or_fsdp": "zeroorfsdp zero zerostage fsdp sharding strategy dpstrategy distributedstrategy shardingstrategy",
    "sequence_parallel": "sequenceparallel sp",
    "micro_batch": "microbatch mbs microbatchsize perdevicebatchsize perdevicetrainbatchsize batchsizepergpu "
    "batchpergpu bspergpu localbatchsize batchsizeperdevice bsgpu",
    "global_batch": "globalbatch gbs globalbatchsize totalbatchsize effectivebatchsize totalbatch",
    "recompute": "recompute recomputation activationcheckpointing gradientcheckpointing checkpointing ac gradckpt",
    "schedule": "schedule pipelineschedule ppschedule",
    "setup": "setup framework software library remarks details configuration config settings",
}  # fmt: skip
_COLUMNS = {name: column for column, names in _NAMES.items() for name in names.split()}
"""Columns by how people head them, in small letters and figures alone."""

_ACCUMULATION = frozenset(["ga", "gas", "gradaccum", "gradacc", "gradientaccumulation", "accumulation", "gradientaccumulationsteps", "accumulationsteps", "gradaccumsteps"])  # fmt: skip
_BARE_BATCH = frozenset(["batchsize", "bs", "batch", "trainbatchsize"])
"""A batch, and not whose: a step's, or a device's."""
MANY = 4
"""Sequences a replica from which on a bare batch is taken for a whole step's."""
_NODES = frozenset(["nodes", "numnodes", "nnodes", "hosts", "numberofnodes"])
_SAYS_NOTHING = re.compile(
    r"measured|memory|\bmem\b|vram|peak|time|second|throughput|tok|sample|flop|\bmfu\b|\bhfu\b|\btgs\b|\btps\b|speed|loss|"
    r"accuracy|score|date|note|comment|outcome|status|oom|cost|price|\bdraw\b|step|util|power|author",
    re.IGNORECASE,
)
"""Columns of what a run did, which no prediction may see, and of who wrote it."""

_DEGREES = ("tp", "pp", "vpp", "dp", "cp", "ep")
_BATCH = re.compile(
    r"(?:bs|mbs|batch(?: size)?|micro[- ]?batch)? ?[=:]? ?(\d+)\W{0,3}(?:ga|gas|grad\w*[- ]?accum\w*|accum\w*)(?:[- ]steps)? ?[=:]? ?(\d+)",
    re.IGNORECASE,
)
_TIMES = re.compile(r"^\s*(\d[\d,]*)\s*(?:nodes?|hosts?)?\s*[x×*]\s*(\d[\d,]*)?\b", re.IGNORECASE)
_SLICE = re.compile(r"\bv(\d(?:p|e|[- ]?lite(?:pod)?)?)-(\d{1,5})\b", re.IGNORECASE)
"""A TPU slice by its name, which counts cores of the versions that have two a chip: `v5p-512`, `v5e-256`."""
_NODES_OF = re.compile(r"^\s*(\d+)\s*(?:nodes?|hosts?)\D{1,20}(\d+)", re.IGNORECASE)


def with_commas(text: str) -> str:
    """Return a table that tabs, semicolons or bars separate (Markdown's, too) as CSV; any other as it is."""
    head = text.lstrip("\ufeff\r\n ").split("\n", 1)[0]
    separator = next((one for one in ("|", "\t", ";") if one in head), "")
    if not separator or (separator != "|" and "," in head):
        return text
    lines = text.strip().splitlines()
    try:
        if separator == "|":
            table = [line.strip().strip("|").split("|") for line in lines]
        else:
            table = list(csv.reader(lines, delimiter=separator))
    except csv.Error:
        return text
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for cells in ([cell.strip() for cell in line] for line in table):
        if any(cells) and not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            writer.writerow(cells)
    return out.getvalue()


def in_the_schema(table: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return a table's rows under the schema's columns, with numbers as numbers.

    What a column of no schema says is added to `setup` as `name: value`. Rows without a name are counted.
    """
    return [_row(cells, index) for index, cells in enumerate(table, start=1)]


def _row(cells: Mapping[str, str], index: int) -> dict[str, str]:
    found: dict[str, str] = {}
    said: list[str] = []
    for head, cell in cells.items():
        short = re.sub(r"[^a-z0-9]", "", head.lower().replace("#", "num"))
        short = short if short in _COLUMNS else re.sub(r"^num(?=gpus$|nodes$)|of$", "", short)
        if head in _NAMES or head.startswith("measured_"):
            found[head] = cell
        elif short in _ACCUMULATION:
            said += [f"gradient accumulation {cell}"] * bool(cell.strip())
        elif short in _NODES:
            found.setdefault("_nodes", cell)
        elif short in _BARE_BATCH:
            found.setdefault("_batch", cell)
        elif short in _COLUMNS and not found.get(_COLUMNS[short], "").strip():
            found[_COLUMNS[short]] = cell
        elif not _SAYS_NOTHING.search(head) and cell.strip():
            said.append(f"{head}: {cell}")
        else:
            found[head] = cell
    found["setup"] = "; ".join(filter(None, [found.get("setup", "").strip(), *said]))
    found["id"] = found.get("id", "").strip() or f"row {index}"
    _counted(found)
    _cut(found)
    return found


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
    nodes = re.match(r"\s*(\d+)", found.pop("_nodes", ""))
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


def _said_degrees(found: dict[str, str], words: str) -> None:
    """Degrees that only a remark says, where the devices can be cut so."""
    told = {}
    for axis in _DEGREES:
        pattern = rf"(?<![\w.]){axis}(?: ?[=:] ?| |-)?(\d{{1,4}})\b(?!\.)"
        if not found.get(axis, "").strip() and (one := re.search(pattern, words, re.IGNORECASE)):
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
    (r"\b(?:ds|deep ?speed)[-_ ]?z(?:ero)?[-_ ]?([0-3])\b", r"ZeRO-\1"),
    (r"\bZeRO[-_ ]?(?:stage)?[-_ ]?([0-3])\b(?! ?\+\+)|\bstage[-_ ]([0-3])\b", ""),
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
    ("_batch", r"\b(?:bs|batch(?:[-_ ]?size)?)[=: ]{0,2}(\d+)\b"),
    ("seq_len", r"\b(?:seq(?:uence)?(?:[-_ ]?len(?:gth)?)?|ctx|context(?:[-_ ]length)?|(?:max|packed) (?:length|to))[=: ]{0,2}(\d[\d.,]*[kK]?)\b"),
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
        batch = column == "_batch" and (
            found.get("micro_batch", "").strip() or found.get("global_batch", "").strip()
        )
        told = re.search(pattern, words, re.IGNORECASE)
        if told is not None and not batch and not found.get(column, "").strip():
            found[column] = told[1].replace(",", "") if column != "seq_len" else _length(told[1])


def _whose_batch(found: dict[str, str]) -> None:
    """A bare batch is a step's where it says so or has several sequences for each replica, else a device's."""
    cell = found.pop("_batch", "")
    if not cell.strip() or (
        found.get("micro_batch", "").strip() and found.get("global_batch", "").strip()
    ):
        return
    if both := _BATCH.search(cell):
        column, number = "micro_batch", both[1]
        found["setup"] = f"{found['setup']}; gradient accumulation {both[2]}".lstrip("; ")
    elif only := re.match(r"\D{0,12}(\d[\d,]*)", cell):
        number = only[1].replace(",", "")
        split = math.prod(_whole(found.get(axis, "")) for axis in ("tp", "pp", "cp"))
        replicas = max(1, _whole(found.get("gpus", "")) // split)
        told = re.search(r"global|total|effective", cell, re.IGNORECASE)
        whole = told or (
            replicas > 1 and int(number) >= MANY * replicas and int(number) % replicas == 0
        )
        column = "global_batch" if whole and not re.search(r"per|/", cell) else "micro_batch"
    else:
        return
    if not found.get(column, "").strip():
        found[column] = number
        found["read_as"] = (
            f"batch {number} is {'a step' if column == 'global_batch' else 'a device'}'s"
        )


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
