"""From a row's model columns to a Model: printed dimensions first, public architectures second."""

from __future__ import annotations

import math
import re
from typing import Any

from meshwright.costs.parameters import count_parameters
from meshwright.evidence.known_models import known_architecture, of_a_near_size
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

_GPT_NAMES = re.compile(
    r"\bgpt(?!-?oss)|gpt[-_ ]?[23]|\bopt[- _]?\d|bloom|pythia|neox|megatron|\bmt-?nlg|turing|"
    r"santacoder|starcoder|cerebras|nemotron-?4|\bph[iI]-?[12]\b",
    re.IGNORECASE,
)
"""Names of models without a gated FFN."""

GPT2_VOCAB, LLAMA_VOCAB = 50257, 32000
"""Vocabularies to assume: of GPTs and of Megatron's tests (its GPT2BPETokenizer), and of others."""

SAME_SIZE = 1.35
"""Factor between a printed size and a known architecture's from which on they are two models."""

SHAPE_WEIGHT = 0.1
"""How much a shape unlike GPT-3's counts against a parameter count that is missed."""

_SPARSE = re.compile(
    r"-A\d+(?:\.\d+)?B|MoE|(?<!\d)\d+x\d+(?:\.\d+)?B|(?<!\d)\d+B-\d+E\b", re.IGNORECASE
)
"""Names that say that only a part of the model is active."""

_ACTIVE = re.compile(r"(?<!\d)\d+(?:\.\d+)?B-\d+E\b", re.IGNORECASE)
"""The active size before a number of experts, as Llama 4 prints both."""

_NOT_A_DECODER = re.compile(
    r"nemotron[-_ ](3(?![\d.]*\d*B)|v3|h\b|nano|super|ultra)|wan2|gemma4|mamba|hybrid|rwkv|\bbert|\bvit\b|\bt5|diffusion|sdxl|flux|"
    r"whisper|llava|[-_ ]vl\b|\bdit\b|resnet|qwen3[-_ ]next|qwen3\.5|kimi[-_ ]linear",
    re.IGNORECASE,
)


def model_of(row: Row, rule: SourceRule, seq_len: int, assumed: list[str]) -> Model:
    """Return the architecture of a row; what the row leaves open is added to `assumed`.

    Raises:
        SkipRow: neither dimensions nor a known name, or a kind of layer that Model cannot express.
    """
    arguments = megatron_arguments(row)
    strange = _NOT_A_DECODER.search(row["model"]) and known_architecture(row["model"]) is None
    if strange or "hybrid-layer-pattern" in arguments:
        raise SkipRow(
            f"not all layers of {row['model']!r} are attention, and their kinds are not known here by this name: "
            "a preset's is expected (`meshwright models`)"
        )
    fields = _dimensions(row, rule, assumed)
    fields |= _from_arguments(arguments)
    named = fields.pop("_named", False)
    base = (
        {"family": fields.get("family", "llama")} if named else _family(row, rule, fields, assumed)
    )
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
    if further := _further(row, rule, arguments):
        base["predict_layers"] = further
        assumed.append(f"predict_layers={further}")
    base["name"] = row["model"] or "custom"
    base["source"] = base.get("source") or row["source"]
    if not named:
        _tie(row, base)
    if told := re.search(r"tied?_?(?:word_)?emb\w*[=: ]+(\w+)|(embeddings? tied)", row["setup"]):
        base["tied_embeddings"] = bool(told[2]) or told[1].lower() in ("true", "1", "yes")
    if window := re.search(r"sliding[-_ ]window\w*[=: ]+(\d+)", row["setup"], re.IGNORECASE):
        base["window"] = int(window[1])
    try:
        return Model.parse(base)
    except SpecError as error:
        raise SkipRow(f"model: {error}") from None


def _further(row: Row, rule: SourceRule, arguments: dict[str, Any]) -> int:
    """Layers that predict further tokens: those that a row names, else those that its source documents."""
    if "mtp-num-layers" in arguments:
        return int(arguments["mtp-num-layers"] or 0)
    text = f"{row['model']}; {row['setup']}"
    if re.search(r"(?:w/o|without|no) MTP\b", text, re.IGNORECASE):
        return 0
    if named := re.search(r"\bmtp[-_ ](?:num[-_ ]layers|depth)?\W{1,2}(\d)\b", text, re.IGNORECASE):
        return int(named[1])
    if re.search(r"(?:w/|with|\+) ?MTP\b", text, re.IGNORECASE):
        return 1
    return int(rule.default("predict_layers") or 0)


def _dimensions(row: Row, rule: SourceRule, assumed: list[str]) -> dict[str, Any]:
    printed = {
        name: value
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
        if (value := row.count(name))
    }
    named = known_architecture(row["model"])
    if named is None or not _agrees(named, printed, _size_b(row)):
        named = of_a_near_size(row["model"], _size_b(row))
    if named is not None and _agrees(named, printed, _size_b(row)):
        told = {k: v for k, v in printed.items() if not (k == "ffn" and "experts" in named)}
        fields: dict[str, Any] = {**named, **told, "_named": True}
        if set(named) - {"source"} - set(told):
            assumed.append(f"architecture={named.get('source', row['model'])}")
    elif {"layers", "hidden", "heads"} <= printed.keys():
        fields = dict(printed)
    elif _SPARSE.search(row["model"]) or ((row.count("ep") or 1) > 1 and not row["hidden"]):
        raise SkipRow(
            f"the dimensions of {row['model']!r} are not known: layers, hidden, heads, experts"
        )
    else:
        fields = {**_from_parameter_count(row, assumed), **printed}
    if "ffn" not in fields:
        fields["ffn"] = _ffn(row, rule, fields)
        assumed.append(f"ffn={fields['ffn']}")
    if "vocab" not in fields:
        bpe = bool(megatron_arguments(row)) or bool(_GPT_NAMES.search(row["model"]))
        fields["vocab"] = int(rule.default("vocab") or (GPT2_VOCAB if bpe else LLAMA_VOCAB))
        assumed.append(f"vocab={fields['vocab']}")
    return fields


def _size_b(row: Row) -> float | None:
    """Billions of parameters that a row's name says (the larger where it says two), else its column."""
    printed = re.findall(
        r"(?<![\dA-Za-z.])(\d+(?:\.\d+)?) ?([BMT])(?![A-Za-z])",
        _ACTIVE.sub("", row["model"]),
        re.IGNORECASE,
    )
    if printed:
        return max(float(n) * {"M": 1e-3, "B": 1.0, "T": 1e3}[u.upper()] for n, u in printed)
    return row.number("params_b")


def _agrees(named: dict[str, Any], printed: dict[str, Any], size_b: float | None) -> bool:
    """Whether what a row prints is the named architecture, perhaps cut to fewer layers."""
    same = ("hidden", "heads", "kv_heads")
    if any(named.get(name, printed[name]) != printed[name] for name in same if name in printed):
        return False
    if size_b is None or "hidden" in printed:
        return True
    held = count_parameters(
        Model.parse({"name": "named", "source": "named", **_whole(named)})
    ).total
    return abs(math.log(held / (size_b * 1e9))) < math.log(SAME_SIZE)


def _whole(named: dict[str, Any]) -> dict[str, Any]:
    """The fields of a known architecture with those that follow from others."""
    heads, hidden = int(named["heads"]), int(named["hidden"])
    whole = {"kv_heads": heads, "head_dim": max(1, hidden // heads), **named}
    if whole.get("positions") == "learned":
        whole.setdefault("max_positions", 2048)
    return whole


def _ffn(row: Row, rule: SourceRule, fields: dict[str, Any]) -> int:
    """The FFN's width where a row prints none: what its parameter count leaves, else the family's."""
    hidden, layers = int(fields["hidden"]), int(fields["layers"])
    gated = rule.family == "llama" or (not rule.family and not _GPT_NAMES.search(row["model"]))
    billions = row.number("params_b")
    if gated and billions and "vocab" in fields and not row["experts"]:
        kv_share = int(fields.get("kv_heads", fields["heads"])) / int(fields["heads"])
        attention = 2.0 * hidden**2 * (1.0 + kv_share)
        rest = billions * 1e9 - 2.0 * fields["vocab"] * hidden - layers * attention
        width = rest / (3.0 * hidden * layers)
        if 2.0 * hidden < width < 6.0 * hidden:
            return round(width / 256) * 256
    if gated and not megatron_arguments(row):
        return math.ceil(8 * hidden / 3 / 256) * 256
    return 4 * hidden


def _tie(row: Row, fields: dict[str, Any]) -> None:
    """Tie head and embedding where the printed parameter count says so better than untied."""
    billions = row.number("params_b")
    if not billions or "tied_embeddings" in fields or fields.get("experts"):
        return
    try:
        counts = {
            tied: count_parameters(Model.parse({**fields, "tied_embeddings": tied})).total
            for tied in (False, True)
        }
    except SpecError:
        return
    fields["tied_embeddings"] = abs(math.log(counts[True] / (billions * 1e9))) < abs(
        math.log(counts[False] / (billions * 1e9))
    )


def _family(
    row: Row, rule: SourceRule, fields: dict[str, Any], assumed: list[str]
) -> dict[str, Any]:
    """The kind of layer of a model that only its dimensions describe.

    A source's documented family; else the model's name; else the kind whose parameter count is
    nearer to the printed one; else an FFN of exactly four widths is a GPT's.
    """
    if rule.family:
        return dict(FAMILIES[rule.family])
    if _GPT_NAMES.search(row["model"]):
        family = "gpt"
    elif billions := row.number("params_b"):
        counts = {}
        for name, kind in (("llama", LLAMA), ("gpt", GPT)):
            matrices = 4 if kind is GPT else 6
            per_layer = 4 * fields["hidden"] ** 2 + matrices // 2 * fields["hidden"] * fields["ffn"]
            counts[name] = fields["layers"] * per_layer + 2 * fields["vocab"] * fields["hidden"]
        family = min(counts, key=lambda name: abs(math.log(counts[name] / (billions * 1e9))))
    else:
        family = "gpt" if fields.get("ffn") == 4 * fields["hidden"] else "llama"
    assumed.append(f"family={family}")
    told = dict(FAMILIES[family])
    if re.search(r"rotary|rope|RMS", f"{row['model']} {row['setup']}", re.IGNORECASE):
        told["positions"] = "rope"
    return told


def _from_parameter_count(row: Row, assumed: list[str]) -> dict[str, Any]:
    """Dimensions near GPT-3's shape (hidden = 128 · layers) with the printed parameter count.

    A name of no GPT gets a gated FFN with as many weights, as in Llama.

    Raises:
        SkipRow: the row prints no parameter count either.
    """
    billions = row.number("params_b")
    if billions is None:
        billions = _size_b(row)
        if billions is None:
            raise SkipRow("neither dimensions, nor a known architecture, nor a parameter count")
    count = billions * 1e9
    gpt = not row["model"] or bool(_GPT_NAMES.search(row["model"]))
    vocab = row.count("vocab") or (GPT2_VOCAB if gpt else LLAMA_VOCAB)
    layers, hidden = _usual_shape(count, (1 if gpt else 2) * vocab)
    assumed.append(f"layers={layers}, hidden={hidden} (from the parameter count)")
    shape = {"layers": layers, "hidden": hidden, "heads": hidden // 128}
    if gpt:
        return {**shape, "ffn": 4 * hidden, **GPT}
    return {**shape, "ffn": round(8 * hidden / 3 / 256) * 256, **LLAMA}


def _usual_shape(count: float, vocabularies: int) -> tuple[int, int]:
    """Layers and width of a model of `count` parameters, near GPT-3's aspect and of sizes that divide.

    Widths are whole heads of 128, from 4,096 on in multiples of eight heads, so that tensor parallelism
    has something to split; layers are multiples of four, as published models have.
    """

    def off(shape: tuple[int, int]) -> float:
        layers, hidden = shape
        held = 12.0 * layers * hidden**2 + vocabularies * hidden
        return abs(math.log(held / count)) + SHAPE_WEIGHT * abs(math.log(hidden / (128.0 * layers)))

    widths = (*range(256, 4096, 128), *range(4096, 32769, 1024))
    return min(((layers, hidden) for hidden in widths for layers in range(4, 257, 4)), key=off)


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
    known = base.get("experts")
    if known and not arguments and (not count or count == known["experts"]):
        return dict(known)
    if not count or count < 2:
        return None
    width = int(arguments.get("moe-ffn-hidden-size", 0)) or int(base["ffn"])
    dense = re.match(r"\(\[0\]\*(\d+)", str(arguments.get("moe-layer-freq", "")))
    return Experts(
        experts=count,
        top_k=min(row.count("topk") or 2, count),
        ffn=width,
        shared_ffn=int(arguments.get("moe-shared-expert-intermediate-size", 0)),
        dense_layers=min(int(dense.group(1)), int(base["layers"])) if dense else 0,
    ).model_dump()
