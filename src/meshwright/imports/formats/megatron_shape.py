"""The architecture that the flags of Megatron-LM and its forks describe."""

from __future__ import annotations

import itertools
import re
from typing import Any

from meshwright.exports.megatron_model import read_pattern
from meshwright.imports.formats.megatron_mixers import count_blocks, mixed, variant
from meshwright.imports.names import PLANNED, model_named
from meshwright.imports.options import Missing, Options
from meshwright.imports.reading import Reading
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model

_POSITIONS = {
    "rope": "rope", "rotary": "rope", "yarn": "rope", "mrope": "rope", "learned_absolute": "learned",
    "absolute": "learned", "learned": "learned", "alibi": "alibi", "none": "none",
}  # fmt: skip
GPT2_VOCABULARY = 50_257
_TOKENIZERS = {"gpt2bpetokenizer": GPT2_VOCABULARY, "llama2tokenizer": 32_000, "gpt2": GPT2_VOCABULARY}  # fmt: skip
_HYBRID = (
    "hybrid-layer-pattern", "hybrid-override-pattern", "is-hybrid-model", "hybrid-attention-ratio",
    "heterogeneous-layers-config-path", "heterogeneous-layers-config-encoded-json",
)  # fmt: skip
SEEING = ("model-provider", "vision-model-type", "language-model-type", "freeze-ViT")
"""Options that only models of images and text have."""
_SCRATCH = (
    "mamba-state-dim",
    "mamba-num-heads",
    "linear-attention-freq",
    "experimental-attention-variant",
    "full-attention-interval",
    "use-triton-gdn",
)


def read_shape(options: Options, reading: Reading, *, dialect: str, refuse: bool = True) -> Model:
    """Return the architecture.

    Args:
        refuse: models that are no decoder-only transformer; else their flags only count as read.
        dialect: `megatron`, `megatron-deepspeed` or `bloom`: their defaults differ.

    Raises:
        SpecError: a needed flag is missing or impossible, or the model is no decoder-only
            transformer.
    """
    if refuse:
        _refuse(options)
    else:
        options.raw(*_HYBRID, *_SCRATCH)
    count_blocks(options)
    layers, hidden = _needed(options, "num-layers"), _needed(options, "hidden-size")
    heads = _needed(options, "num-attention-heads")
    if not 1 <= layers <= 10_000:
        raise SpecError("--num-layers", layers, "between 1 and 10000 layers are expected")
    gated, ffn = _ffn(options, hidden)
    # Each is asked for on its own: what is not asked for counts as not understood.
    unbiased, used = options.flag("disable-bias-linear"), options.flag("use-bias", default=True)
    biased = used and not unbiased
    of_queries = options.flag("add-qkv-bias", "qkv-bias", "add-bias-linear-qkv")
    norm = options.word("normalization", "norm-dtype", default="layernorm")
    rms = options.flag("use-rmsnorm", "use-rms-norm", "rms-norm", "RMSNorm") or norm == "rmsnorm"
    latent = _latent(options)
    positions = _positions(options)
    fields: dict[str, Any] = {
        "name": "imported",
        "family": "gpt" if positions == "learned" else "bloom" if positions == "alibi" else "llama",
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _kv_heads(options, heads),
        "kv_owners": _kv_owners(options, layers),
        "head_dim": latent["nope_head_dim"] + latent["rope_head_dim"]
        if latent
        else options.whole("kv-channels", default=hidden // heads if heads else 0),
        "ffn": ffn,
        "vocab": _vocabulary(options, reading),
        "gated": gated,
        "tied_embeddings": not options.flag("untie-embeddings-and-output-weights"),
        "norm": "rmsnorm" if rms else "layernorm",
        "norm_bias": not rms,
        "norms_per_layer": 4
        if options.flag("sandwich-norm", "use-post-norm", "post-self-attn-layernorm")
        else 2,
        "embedding_norm": options.flag("embed-layernorm", "embedding-layernorm"),
        # With latent attention the flag norms the latents, which every such model has.
        "qk_norm": "head" if options.flag("qk-layernorm", "qk-norm") and not latent else "none",
        "qkv_bias": biased or of_queries,
        "attention_out_bias": biased,
        "attention_sinks": options.word("softmax-type") == "learnable",
        "ffn_bias": biased,
        "positions": positions,
        "max_positions": _table_of_positions(options, reading) if positions == "learned" else 0,
        "parallel_block": options.flag("parallel-attn", "use-parallel-residual", "gpt-j-residual"),
        "latent_attention": latent,
        "experts": _experts(options, reading, layers, ffn, biased, dialect),
    }
    fields |= _window(options, reading) | mixed(options, fields)
    options.raw("max-position-embeddings", "no-position-embedding", "squared-relu", "xielu", "openai-gelu",
                "apply-layernorm-1p", "group-query-attention")  # fmt: skip
    return Model.parse(fields, "model")


_POSITIONS_TAKEN = 2048
"""Rows of a table of positions that nothing states, as the first GPT of Megatron-LM had."""


def _kv_owners(options: Options, layers: int) -> int:
    """Layers with keys and values of their own in MindSpeed-LLM's Hunyuan-Large; 0: every.

    Counted from one, each layer whose number the factor divides takes over those of the layer before it
    (its hunyuan_large_attention.py).
    """
    if not (options.has("cla-share-factor") and options.flag("share-kvstates")):
        return 0
    factor = options.whole("cla-share-factor", default=1)
    return layers - layers // factor if factor > 1 else 0


def _table_of_positions(options: Options, reading: Reading) -> int:
    """Rows of the table of learned positions: as many as a sequence has tokens, where nothing else is said."""
    said = options.whole("max-position-embeddings", default=options.whole("seq-length", default=0))
    if not said:
        reading.guess("--max-position-embeddings", f"is not stated in the file; {_POSITIONS_TAKEN} is taken")  # fmt: skip
    return said or _POSITIONS_TAKEN


def _is_off(value: object) -> bool:
    """Whether a value is what a framework's own configuration says of a part that is not there."""
    return str(value).strip().lower() in ("none", "null", "", "false", "0", "0.0")


def _refuse(options: Options) -> None:
    """Refuse what is no decoder-only transformer, naming what it is instead."""
    for name in _HYBRID[4:] if variant(options) == "hybrid" else _HYBRID:
        if options.has(name) and not _is_off(options.values[name]):
            raise SpecError(
                f"--{name}",
                options.loose(name),
                "layers of several kinds (state-space, hybrid) are "
                f"not modelled: {PLANNED} of one kind of layer",
            )
    for name in () if variant(options) else _SCRATCH:
        if options.has(name) and not _is_off(options.values[name]):
            raise SpecError(
                f"--{name}",
                options.loose(name),
                "linear or state-space attention is not modelled: "
                "meshwright plans softmax attention",
            )
    for name in SEEING[1:]:  # the first is slime's, too
        if options.has(name) and not _is_off(options.values[name]):
            raise SpecError(f"--{name}", options.loose(name), f"trains a vision-language model: {PLANNED}")  # fmt: skip
    sides = [options.raw(name) for name in ("img-h", "patch-dim")]
    if all(sides) and [str(one) for one in sides] != [
        "224",
        "16",
    ]:  # what a print of all arguments has
        raise SpecError("--img-h", sides[0], f"trains a vision-language model: {PLANNED}")
    if re.search(r"bert|(?:^|/)vocab\.txt$", options.loose("vocab-file").lower()) and "gpt" not in options.word("tokenizer-type"):  # fmt: skip
        raise SpecError("--vocab-file", options.loose("vocab-file"), f"is an encoder's (BERT's word pieces): {PLANNED}")  # fmt: skip
    for name in (
        "encoder-num-layers",
        "encoder-seq-length",
        "decoder-num-layers",
        "bert-no-binary-head",
    ):
        if options.has(name) and not options.has("num-layers"):
            raise SpecError(
                f"--{name}",
                options.loose(name),
                f"an encoder or encoder-decoder model is not modelled: {PLANNED}",
            )


def _needed(options: Options, name: str) -> int:
    if name not in options and options.has("use-checkpoint-args"):
        raise SpecError(f"--{name}", None, "is in the checkpoint that the run starts from (--use-checkpoint-args): give --model")  # fmt: skip
    if name not in options:
        raise SpecError(
            f"--{name}", None, "Megatron-LM needs this flag to describe the model (or give --model)"
        )
    return options.whole(name)


def _ffn(options: Options, hidden: int) -> tuple[bool, int]:
    activation = options.word("glu-activation")
    gated = options.flag("swiglu", "quick-geglu", "gated-linear-unit", "geglu") or bool(activation)
    gated |= options.flag("swiglu-fusion")
    # Yuan's fork, known by the filter before its attention, keeps four widths with any activation.
    narrow = gated and not activation and not options.has("use-lf-gate", "lf-conv2d-group")
    usual = int(hidden * 8 / 3) // 64 * 64 if narrow else 4 * hidden
    multiple = options.whole("multiple-of") if narrow else 0
    if multiple:  # FlagScale rounds up, as Llama's own code does
        wide = int(int(hidden * 8 / 3) * options.number("hidden-dim-multiplier", default=1.0))
        usual = -(-wide // multiple) * multiple
    return gated, options.whole("ffn-hidden-size", "intermediate-size", default=usual)


def _positions(options: Options) -> str:
    said = options.word("position-embedding-type", default="")
    positions = _POSITIONS.get(said) if said else "learned"
    if options.flag("use-rotary-position-embeddings", "use-rotary", "use-rope"):
        positions = "rope"
    elif options.flag("use-alibi", "use-alibi-position-embeddings", "use-alibi-mask"):
        positions = "alibi"
    elif not said and options.has("rotary-base", "rotary-percent"):
        positions = "rope"
    elif not said and options.flag("no-position-embedding"):
        positions = "none"
    if positions is None or (said and said not in _POSITIONS):
        raise SpecError(
            "--position-embedding-type", said, "rope, learned_absolute, alibi or none can be priced"
        )
    for name in ("rotary-base", "rotary-percent", "rope-theta", "rotary-scaling-factor", "use-rope-scaling",
                 "rope-scaling-factor"):  # fmt: skip
        options.raw(name)
    return positions


def _kv_heads(options: Options, heads: int) -> int:
    if options.word("attention-head-type") == "multiquery" or options.flag("multi-query-attention"):
        return 1
    groups = options.whole(
        "num-query-groups", "num-key-value-heads", "num-attention-heads-kv", "n-head-kv", "num-kv-heads",
    )  # fmt: skip
    if not groups:
        return heads
    grouped = options.flag("group-query-attention", default=True)
    if options.has("num-query-groups") and "group-query-attention" not in options:
        # Megatron-LM reads the number of groups only beside the switch; its YAML and the forks
        # that follow other names need no switch.
        grouped = not options.has("num-layers") or groups > 1
    return groups if grouped else heads


def _latent(options: Options) -> dict[str, int] | None:
    names = ("q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim")
    if not options.flag("multi-latent-attention"):
        options.raw(*names)  # what a table of defaults carries for models that have it
        return None
    options.raw("kv-channels")
    return {
        "q_rank": options.whole("q-lora-rank"),
        "kv_rank": options.whole("kv-lora-rank", default=32),
        "nope_head_dim": options.whole("qk-head-dim", "qk-nope-head-dim", default=128),
        "rope_head_dim": options.whole("qk-pos-emb-head-dim", "qk-rope-head-dim", default=64),
        "v_head_dim": options.whole("v-head-dim", default=128),
    }


def _window(options: Options, reading: Reading) -> dict[str, int]:
    text = options.text("window-size", "sliding-window-size", "sliding-window")
    if not text:
        return {}
    first = re.search(r"\d+", text)
    if first is None or text.strip().startswith(("-1", "(-1")):
        return {}
    width = int(first.group()) + (1 if "," in text or " " in text.strip() else 0)
    skip = options.text("window-attn-skip-freq", default="1")
    if skip.isdigit():
        period = int(skip)
    else:
        kinds = [int(digit) for digit in re.findall(r"[01]", skip)]
        globals_at = [index for index, kind in enumerate(kinds) if not kind]
        gaps = {b - a for a, b in itertools.pairwise(globals_at)}
        period = gaps.pop() if len(gaps) == 1 else 1
        if gaps:
            reading.unmodelled(
                "--window-attn-skip-freq",
                "an irregular pattern of windows; every layer is priced with the window",
            )
    return {"window": width, "window_period": max(period, 1)}


def _vocabulary(options: Options, reading: Reading) -> int:
    """Rows of the embedding before padding."""
    for name in ("padded-vocab-size", "pad-vocab-size-to", "vocab-size"):
        found = options.whole(name)
        if found:
            return found
    extra = options.whole("extra-vocab-size", "vocab-extra-ids")
    tokenizer = options.word(
        "tokenizer-type", default="gpt2bpetokenizer" if "merge-file" in options else ""
    )
    if tokenizer in _TOKENIZERS:
        return _in_name(options, reading, _TOKENIZERS[tokenizer]) + extra
    named = options.loose("tokenizer-model", "tokenizer-name-or-path", "hf-tokenizer-path", "patch-tokenizer-type",
                          "load", "hf-checkpoint")  # fmt: skip
    alike = model_named(named) if named else None
    size = alike.vocab if alike is not None else 128_000
    whose = f"{alike.name}'s" if alike is not None else "a usual one"
    reading.guess("--model", f"the vocabulary is in a tokenizer's file; {whose}, {size}, is taken")
    return size + extra


def _in_name(options: Options, reading: Reading, usual: int) -> int:
    """The size that a vocabulary's path says, where it says another than its tokenizer usually has."""
    path = options.loose("vocab-file", "tokenizer-model").removeprefix(
        "True"
    )  # an empty variable's
    sizes = [int(one) for one in re.findall(r"(?<!\d)\d{5,6}(?!\d)", path)]
    sizes += [
        1024 * int(one) for one in re.findall(r"(?<![\da-z])(\d{2,3})k(?![a-z\d])", path.lower())
    ]
    told = next((size for size in sizes if 10_000 <= size <= 400_000), 0)
    if not told and re.search(
        r"(?i)llama-?[23]?-?tokenizer|sentencepiece", options.word("tokenizer-type")
    ):
        # Their class reads anybody's vocabulary; only a path that says Llama says its size.
        alike = model_named(path.rsplit("/", 2)[-2]) if path.count("/") > 1 else None
        if alike is not None:
            return alike.vocab
        if path and not re.search(r"(?i)llama-?2|llama/|mistral", path):
            reading.guess(
                "--model", f"the vocabulary is in {path[-60:]}; {usual}, Llama's, is taken"
            )
    named = path.rsplit("/", 1)[-1]
    if not told and usual == _TOKENIZERS["gpt2"] and path and not re.search(r"(?i)gpt-?_?2|^vocab", named if "/" not in path else path):  # fmt: skip
        reading.guess("--model", f"the vocabulary is in {path[-60:]}; {usual}, GPT-2's, is taken")
    if not told or told == usual:
        return usual
    reading.guess("--model", f"the vocabulary is in {path[-60:]}; {told}, by its name, is taken")
    return told


def _experts(
    options: Options, reading: Reading, layers: int, ffn: int, biased: bool, dialect: str
) -> dict[str, Any] | None:
    said = options.raw("num-experts", "moe-num-experts")
    if said is None:
        options.raw(
            "moe-layer-freq",
            "moe-router-topk",
            "moe-ffn-hidden-size",
            "moe-shared-expert-intermediate-size",
        )
        return None
    counts = [
        int(one)
        for one in re.findall(
            r"\d+", " ".join(map(str, said if isinstance(said, list) else [said]))
        )
    ]
    if not counts or max(counts) <= 1:
        return None
    if len(set(counts)) > 1:
        raise SpecError(
            "--num-experts",
            " ".join(map(str, counts)),
            "another number of experts in every layer "
            "is not modelled: one number for all is expected",
        )
    residual = options.word("mlp-type") == "residual"
    fields: dict[str, Any] = {
        "experts": counts[0],
        "top_k": options.whole("moe-router-topk", "topk", "moe-topk", "moe-top-k", default=1 if dialect != "megatron" or options.has("moe-num-experts") else 2),
        "ffn": options.whole("moe-ffn-hidden-size", "moe-intermediate-size", default=ffn),
        "shared_ffn": options.whole("moe-shared-expert-intermediate-size", "shared-moe-ffn-hidden-size",
                                    default=ffn if residual else 0),
        "shared_gate": options.flag("moe-shared-expert-gate", "shared-expert-gate") or residual,
        # A trained bias comes with those of all linear layers (core/transformer/moe/router.py); the one that
        # balances experts is adjusted by a rule.
        "router_bias": biased and dialect == "megatron",
        "expert_bias": biased,
        "latent": options.whole("moe-latent-size", default=0),
    }  # fmt: skip
    if dialect != "megatron":
        interval = options.whole("expert-interval", default=2, least=1)
        return fields | {"dense_layers": interval - 1, "period": interval}
    kinds = read_pattern(options.text("moe-layer-freq", default="1").strip().strip("\"'"), layers)
    dense = kinds.index(1) if 1 in kinds else len(kinds)
    later = [index for index, kind in enumerate(kinds) if kind]
    period = later[1] - later[0] if len(later) > 1 else 1
    if kinds != [int(i >= dense and (i - dense) % period == 0) for i in range(layers)]:
        reading.unmodelled("--moe-layer-freq", "an irregular pattern of experts; every "
                           f"{period}. layer after the first {dense} is priced with them")  # fmt: skip
    return fields | {"dense_layers": dense, "period": period}


def skip_shape(options: Options, reading: Reading, model: Model) -> None:
    """Flags of the shape count as read, and are checked, where the user says which model it is."""
    whole = (
        options.has("num-layers")
        and options.has("hidden-size")
        and options.has("num-attention-heads")
    )
    try:
        found = read_shape(options, Reading(""), dialect="megatron", refuse=False)
        if (found.layers, found.hidden) != (model.layers, model.hidden):
            reading.note(
                f"the file describes {found.layers} layers of width {found.hidden}; --model says "
                f"{model.layers} of {model.hidden}"
            )
    except Missing:
        pass
    except SpecError as error:
        if whole or "number is expected" in error.remedy:
            raise
