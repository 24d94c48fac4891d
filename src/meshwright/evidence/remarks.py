"""What only a row's remarks say: degrees, batches, lengths, sharding, recomputation, precision."""

from __future__ import annotations

import math
import re

from meshwright.evidence import heads

DEGREES = ("tp", "pp", "vpp", "dp", "cp", "ep")
"""Columns of degrees."""

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


def degrees_remarked(found: dict[str, str], words: str) -> None:
    """Degrees that only a remark says, where the devices can be cut so."""
    told = {}
    for axis in DEGREES:
        named = "(?:tp|op(?=[=:]))" if axis == "tp" else axis  # Alpa's operators in parallel
        pattern = rf"(?<![\w.]){named}(?: ?[=:] ?| |-)?(\d{{1,4}})\b(?!\.)"
        if not found.get(axis, "").strip() and (
            one := re.search(pattern, words, re.IGNORECASE) or _in_words(axis, words)
        ):
            told[axis] = one[1]
    if not found.get("cp", "").strip() and (one := _SEQUENCES.search(words)):
        told.setdefault("cp", one[1])
    if not (found.get("cp", "").strip() or "cp" in told) and (one := _OVER.search(words)):
        told["cp"] = one[1] or one[2]
    split = math.prod(whole(told.get(axis) or found.get(axis, "")) for axis in ("tp", "pp", "cp"))
    if not found.get("gpus", "").strip() or whole(found["gpus"]) % split == 0:
        found.update(told)


_SEQUENCES = re.compile(
    r"(?:\bulysses[-_ ]?(?:sp|size|degree)?|(?<![\w.])sp|sequence[-_ ]parallel[-_ ](?:size|degree))(?: ?[=:] ?|[- ])(\d{1,3})\b",
    re.IGNORECASE,
)
"""Ranks that share a sequence: `sp=4`, `ulysses 8`."""
_OVER = re.compile(
    r"(?:ring[- ]attention|ulysses|(?:context|sequence)[- ]parallel\w*) (?:over|across|on|of) (\d{1,4})\b|"
    r"\b(\d{1,4})-way (?:ring[- ]attention|ulysses|(?:context|sequence)[- ]parallel)",
    re.IGNORECASE,
)
"""The same in words: `ring attention over 8 GPUs`."""
_SHARDED = (
    (r"(?<![a-z])(?:ds|deep ?speed)[-_ ]?z(?:ero)?[-_ ]?([0-3])(?![0-9])", r"ZeRO-\1"),
    (r"\bZeRO[-_ ]?(?:stage)?[-_ ]?([0-3])(?![0-9])(?! ?\+\+)|\bstage[-_ ]([0-3])\b", ""),
    (r"\breplicated\b", "DDP"),
    (r"\bfully[- ]sharded\b|\bfull[ _]shard\b", "FSDP"),
    (r"\bHSDP\b|\bSHARD_GRAD_OP\b|\bFSDP-?v?2\b|\bFSDP ?= ?\d+|\bFSDP1?\b|\bDDP\b", ""),
)
_CHECKPOINTS = r"(?:gradient|activation)[-_ ](?:check ?point\w*|recompute\w*)|\bgrad[-_ ]ckpt\b"
_KEEPS = (
    ("none", rf"(?:\bno|\bwithout|\bw/o)[-_ ](?:{_CHECKPOINTS}|re-?comput\w*|AC\b)|(?:{_CHECKPOINTS})(?: ?[=:] ?| )(?:off|false|disabled|none|no)\b"),
    ("selective", r"selective[-_ ](?:per[- ]\w+ )?(?:recomp\w+|activation|AC\b|check\w+)|\bsel-AC\b|\bSAC\b"),
    ("full", rf"{_CHECKPOINTS}|use_remat ?[=:] ?true|\bfull[-_ ](?:recomp\w+|AC\b|activation)|recompute[-_ ]full"),
)  # fmt: skip
"""How states are sharded and what is computed again, where only a remark says so."""

_SAID = (
    ("global_batch", r"\b(?:gbs|global[-_ ]?batch(?:[-_ ]?size)?)[=: ]{0,2}(\d[\d,]*)\b(?! ?[kM]?\w* tok)"),
    ("micro_batch", r"\b(?:mbs|micro[-_ ]?batch(?:[-_ ]?size)?|per[-_ ]device[-_ ](?:train[-_ ])?batch[-_ ]size)[=: ]{0,2}(\d+)\b"),
    ("micro_batch", r"\b(?:bs|batch(?:[-_ ]?size)?)[=: ]{0,2}(\d+) ?(?:/|per)[- ]?(?:gpu|device)"),
    ("micro_batch", r"\bmicro ?[=:] ?(\d+)\b"),
    ("global_batch", r"\bglobal ?[=:] ?(\d+)\b"),
    ("gpus", r"(?<![\w.])(\d{1,5}) (?:GPUs|NPUs|HPUs|TPUs|chips)\b"),
    (heads.BATCH, r"\b(?:bs|(?:train[-_ ])?batch(?:[-_ ]?size)?)[=: ]{0,2}(\d+)\b"),
    ("seq_len", r"\b(?:seq(?:uence)?(?:[-_ ]?len(?:gth)?)?|SL|ctx|context(?:[-_ ]length)?|(?:max|packed) (?:length|to))[=: ]{0,2}(\d[\d.,]*[kK]?)\b"),
)  # fmt: skip
"""Batches and lengths as a remark has them: `MBS1 GBS256`, `bs 2/GPU`, `seq 2048`."""


_PRECISIONS = re.compile(
    r"(?<![\w-])(?:(mx|nv)?fp[48](?![\w]*[-_ ]?(?:adam\w*|optim\w*|all-?gather|gather|weights?|kv))(?:_\w+)?|float[48](?:\w*)|"
    r"bf16(?:-mixed|-true)?|bfloat16|fp16(?:-mixed)?|float16|nvfp4\w*|mxfp8\w*)(?![\w.])",
    re.IGNORECASE,
)
_NO_PRECISION = re.compile(
    r"(?:grad\w*|master|moments?|states?|reduc\w*|param\w*|logits?|loss|residual|storage|base|optimizer|accum\w*|all-?gather)"
    r"[-_ ]?(?:dtype|precision|in|are|:|=)?[-_ :=]{0,2}$",
    re.IGNORECASE,
)


def _precision(words: str) -> str:
    """The number format that a remark names for a run, if it names one: `float8 + torch.compile`, `None (bfloat16)`."""
    found = {
        one[0].lower(): None
        for one in _PRECISIONS.finditer(words)
        if not _NO_PRECISION.search(words[: one.start()])
    }
    kinds = {_kind(one) for one in found}
    return next(iter(found)) if len(kinds) == 1 else ""


def _kind(name: str) -> str:
    name = name.replace("float", "fp").replace("bfp", "bf")
    return next(
        (one for one in ("mxfp8", "nvfp4", "fp8", "fp4", "bf16", "fp16") if one in name), name
    )


def remarked(found: dict[str, str], words: str) -> None:
    """Batches, lengths, sharding, recomputation and precision that only a remark says."""
    if not found.get("precision", "").strip() and (named := _precision(words)):
        found["precision"] = named
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
            found[column] = told[1].replace(",", "") if column != "seq_len" else length(told[1])


def length(text: str) -> str:
    """`2k` and `1M` tokens as numbers."""
    found = re.match(r"\s*~?(\d+(?:\.\d+)?) ?([KM])\b", text, re.IGNORECASE)
    if found is None:
        return text
    return str(round(float(found[1]) * 2 ** (10 if found[2] in "kK" else 20)))


def whole(text: str) -> int:
    """A cell's leading whole number, else 1."""
    found = re.match(r"\s*(\d{1,9})", text)
    return max(1, int(found[1])) if found else 1
