"""From a row's model columns to a Model: printed dimensions first, public architectures second."""

from __future__ import annotations

import math
import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from meshwright.evidence.machines import SkipRow
from meshwright.evidence.rows import Row
from meshwright.evidence.software import SourceRule, megatron_arguments
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Experts, LatentAttention, Model

GPT: dict[str, Any] = {
    "family": "gpt", "gated": False, "norm": "layernorm", "norm_bias": True, "qkv_bias": True,
    "attention_out_bias": True, "ffn_bias": True, "tied_embeddings": True, "positions": "learned",
}  # fmt: skip
MPT: dict[str, Any] = {
    "family": "mpt", "gated": False, "norm": "layernorm", "tied_embeddings": True,
    "positions": "learned",
}  # fmt: skip
LLAMA: dict[str, Any] = {"family": "llama"}
FAMILIES = {"gpt": GPT, "mpt": MPT, "llama": LLAMA}

_NOT_A_DECODER = re.compile(r"nemotron[-_ ](3|v3|h)|wan2|gemma4|mamba|hybrid", re.IGNORECASE)


@cache
def _architectures() -> list[dict[str, Any]]:
    file = resources.files("meshwright.evidence").joinpath("data/architectures.toml")
    return list(tomllib.loads(file.read_text("utf-8"))["architecture"])


def known_architecture(name: str) -> dict[str, Any] | None:
    """Return the fields of the public architecture that a printed name means, if any."""
    for entry in _architectures():
        if re.search(entry["match"], name, re.IGNORECASE) and not (
            "exclude" in entry and re.search(entry["exclude"], name, re.IGNORECASE)
        ):
            return {k: v for k, v in entry.items() if k not in ("match", "exclude")}
    return None


def model_of(row: Row, rule: SourceRule, seq_len: int, assumed: list[str]) -> Model:
    """Return the architecture of a row; what the row leaves open is added to `assumed`.

    Raises:
        SkipRow: neither dimensions nor a known name, or a kind of layer that Model cannot express.
    """
    arguments = megatron_arguments(row)
    if _NOT_A_DECODER.search(row["model"]) or "hybrid-layer-pattern" in arguments:
        raise SkipRow("state-space, vision or mixed layers are not modelled")
    fields = _dimensions(row, rule, assumed)
    fields |= _from_arguments(arguments)
    if not row["layers"] and (cut := rule.default("layers")):
        fields["layers"] = int(cut)
        assumed.append(f"layers={cut}")
    family = FAMILIES[rule.family]
    named = fields.pop("_named", False)
    base = dict(family) if not named else {"family": fields.get("family", "llama")}
    base |= fields
    if arguments:
        base |= _megatron_flags(arguments)
    if base.get("positions", "rope") == "learned":
        base.setdefault("max_positions", seq_len)
    heads, hidden = int(base["heads"]), int(base["hidden"])
    base.setdefault("kv_heads", heads)
    base.setdefault("head_dim", max(1, hidden // heads))
    experts = _experts(row, base, arguments)
    if experts is not None:
        base["experts"] = experts
    if "ultrascale" in row["source"] and hidden <= 3072:
        base["tied_embeddings"] = True
    base["name"] = row["model"] or "custom"
    base["source"] = base.get("source") or row["source"]
    try:
        return Model.parse(base)
    except SpecError as error:
        raise SkipRow(f"model: {error}") from None


def _dimensions(row: Row, rule: SourceRule, assumed: list[str]) -> dict[str, Any]:
    printed = {
        name: value
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
        if (value := row.count(name))
    }
    if {"layers", "hidden", "heads"} <= printed.keys():
        fields: dict[str, Any] = dict(printed)
        named = None
    else:
        named = known_architecture(row["model"])
        if named is not None:
            assumed.append(f"architecture={named['source']}")
            fields = {**named, **printed, "_named": True}
        else:
            fields = {**_from_parameter_count(row, assumed), **printed}
    hidden = int(fields["hidden"])
    if "ffn" not in fields:
        fields["ffn"] = _ffn(row, rule, hidden)
        assumed.append(f"ffn={fields['ffn']}")
    if "vocab" not in fields:
        fields["vocab"] = int(rule.default("vocab") or 32000)
        assumed.append(f"vocab={fields['vocab']}")
    return fields


def _ffn(row: Row, rule: SourceRule, hidden: int) -> int:
    if "ultrascale" in row["source"]:  # its 80B and 469B models, where a failed run prints no width
        return {8192: 28672, 16384: 53248}.get(hidden, 4 * hidden)
    if rule.family == "llama" and not megatron_arguments(row):
        return math.ceil(8 * hidden / 3 / 256) * 256
    return 4 * hidden


def _from_parameter_count(row: Row, assumed: list[str]) -> dict[str, Any]:
    """Dimensions of a GPT-3-like shape (hidden = 128 · layers) with the printed parameter count.

    Raises:
        SkipRow: the row prints no parameter count either.
    """
    billions = row.number("params_b")
    if billions is None:
        match = re.search(r"([\d.]+) ?([BM])\b", row["model"])
        if not match:
            raise SkipRow("neither dimensions, nor a known architecture, nor a parameter count")
        billions = float(match.group(1)) * (1.0 if match.group(2) == "B" else 1e-3)
    layers = max(4, round((billions * 1e9 / (12 * 128**2)) ** (1 / 3)))
    hidden = max(256, round(math.sqrt(billions * 1e9 / (12 * layers)) / 128) * 128)
    assumed.append(f"layers={layers}, hidden={hidden} (from the parameter count)")
    return {"layers": layers, "hidden": hidden, "heads": hidden // 128, "ffn": 4 * hidden, **GPT}


def _from_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Fields of Model that Megatron arguments give."""
    fields: dict[str, Any] = {}
    if "kv-channels" in arguments:
        fields["head_dim"] = int(arguments["kv-channels"])
    if str(arguments.get("vocab-size", "")).isdigit():
        fields["vocab"] = int(arguments["vocab-size"])
    elif arguments.get("tokenizer-type") in ("GPTSentencePieceTokenizer",):
        fields["vocab"] = 256000
    elif arguments.get("tokenizer-type") in ("Llama2Tokenizer",):
        fields["vocab"] = 32000
    if arguments.get("multi-latent-attention"):
        fields["latent_attention"] = LatentAttention(
            q_rank=int(arguments.get("q-lora-rank", 0)),
            kv_rank=int(arguments.get("kv-lora-rank", 32)),
            nope_head_dim=int(arguments.get("qk-head-dim", 128)),
            rope_head_dim=int(arguments.get("qk-pos-emb-head-dim", 64)),
            v_head_dim=int(arguments.get("v-head-dim", 128)),
        ).model_dump()
    return fields


def _megatron_flags(arguments: dict[str, Any]) -> dict[str, Any]:
    """What switches of Megatron-LM change of a GPT."""
    fields: dict[str, Any] = {}
    if arguments.get("swiglu"):
        fields["gated"] = True
    if arguments.get("disable-bias-linear"):
        fields |= {"ffn_bias": False, "attention_out_bias": False, "qkv_bias": False}
    if arguments.get("normalization") == "RMSNorm":
        fields |= {"norm": "rmsnorm", "norm_bias": False}
    if arguments.get("untie-embeddings-and-output-weights"):
        fields["tied_embeddings"] = False
    if arguments.get("position-embedding-type") in ("rope", "none"):
        fields["positions"] = arguments["position-embedding-type"]
    return fields


def _experts(row: Row, base: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any] | None:
    count = row.count("experts")
    if not count:
        return base.get("experts")
    width = int(arguments.get("moe-ffn-hidden-size", 0)) or int(base["ffn"])
    dense = re.match(r"\(\[0\]\*(\d+)", str(arguments.get("moe-layer-freq", "")))
    return Experts(
        experts=count,
        top_k=min(row.count("topk") or 2, count),
        ffn=width,
        shared_ffn=int(arguments.get("moe-shared-expert-intermediate-size", 0)),
        dense_layers=min(int(dense.group(1)), int(base["layers"])) if dense else 0,
    ).model_dump()
