"""Readers of families whose layers differ: linear and sparse attention, windows, experts by list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.specs.errors import SpecError
from meshwright.specs.hf_config import Config, UndescribedError
from meshwright.specs.hf_deepseek_v4 import deepseek_v4
from meshwright.specs.hf_dense import Fields, llama, mistral
from meshwright.specs.hf_gemma4 import gemma4
from meshwright.specs.hf_indexed import glm4_moe_lite, sparse_attention
from meshwright.specs.hf_kinds import LINEAR, layer_kinds, mixers_of
from meshwright.specs.hf_lfm2 import lfm2, lfm2_moe
from meshwright.specs.hf_mamba import mamba, mamba2
from meshwright.specs.hf_nas import nemotron_nas
from meshwright.specs.hf_sparse import deepseek, experts_of


def _qwen3_next(config: Config) -> Fields:
    fields = _gated_delta(config)
    layers = fields["layers"]
    step = config.whole("decoder_sparse_step", default=1)
    dense = config.layers_named("mlp_only_layers")
    ffns = [
        "moe" if index not in dense and (index + 1) % step == 0 else "dense"
        for index in range(layers)
    ]
    return _with_experts(config, fields, ffns)


def _qwen3_5(config: Config) -> Fields:
    fields = _gated_delta(config)
    mixers = fields.pop("_mixers")
    return {**fields, "layer_kinds": layer_kinds(mixers, ["dense"] * len(mixers))}


def _qwen3_5_moe(config: Config) -> Fields:
    fields = _gated_delta(config)
    return _with_experts(config, fields, ["moe"] * fields["layers"])


def _with_experts(config: Config, fields: Fields, ffns: list[str]) -> Fields:
    shared = config.whole("shared_expert_intermediate_size", default=512, least=0)
    mixers = fields.pop("_mixers")
    return {
        **fields,
        "experts": experts_of(
            experts=config.whole("num_experts", default=512),
            top_k=config.whole("num_experts_per_tok", default=10),
            ffn=config.whole("moe_intermediate_size", default=512),
            shared_ffn=shared,
            shared_gate=shared > 0,
        ),
        "layer_kinds": layer_kinds(mixers, ffns),
    }


def _gated_delta(config: Config) -> Fields:
    """Qwen3-Next and its successors: three gated delta nets, then gated attention."""
    fields = llama(config.spelt(intermediate_size=config.whole("intermediate_size", default=5632)))
    interval = config.whole("full_attention_interval", default=4)
    mixers = mixers_of(
        config,
        fields["layers"],
        lambda index: "full_attention" if (index + 1) % interval == 0 else "linear_attention",
    )
    fields.update(
        kv_heads=config.whole("num_key_value_heads", default=fields["kv_heads"]),
        head_dim=config.whole("head_dim", default=256), qk_norm="head", attention_gate=config.flag("attn_output_gate", default=True),
        ffn_bias=False, attention_out_bias=config.flag("attention_bias", default=False),
        mixer=gated_delta(config) if any(one in LINEAR for one in mixers) else None,
        _mixers=mixers,
    )  # fmt: skip
    return fields


def gated_delta(config: Config) -> Fields:
    """A gated delta net as Qwen3-Next's configurations spell it."""
    return {
        "kind": "gated-delta",
        "heads": config.whole("linear_num_value_heads", default=32),
        "head_dim": config.whole("linear_value_head_dim", default=128),
        "key_heads": config.whole("linear_num_key_heads", default=16),
        "key_dim": config.whole("linear_key_head_dim", default=128),
        "conv": config.whole("linear_conv_kernel_dim", default=4),
    }


def _mamba2(
    config: Config, prefix: str, heads: int, head_dim: int, state: int, bias: str = ""
) -> dict[str, Any]:
    config.read.add(f"{prefix}expand")  # heads and their width say the same
    return {
        "kind": "mamba2",
        "heads": config.whole(f"{prefix}n_heads", "mamba_num_heads", default=heads),
        "head_dim": config.whole(f"{prefix}d_head", "mamba_head_dim", default=head_dim),
        "key_heads": config.whole(f"{prefix}n_groups", "n_groups", default=1),
        "key_dim": config.whole(f"{prefix}d_state", "ssm_state_size", default=state),
        "conv": config.whole(f"{prefix}d_conv", "conv_kernel", default=4),
        "bias": config.flag(bias or f"{prefix}proj_bias", default=False),
        "conv_bias": config.flag(f"{prefix}conv_bias", "use_conv_bias", default=True),
    }


_NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _nemotron_h(config: Config) -> Fields:
    """Nemotron-H and Nemotron 3: every block is a mixer or an FFN, with one norm."""
    pattern = config.data.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        blocks = [_NEMOTRON.get(letter, letter) for letter in pattern]
    else:
        blocks = [str(one) for one in config.layers_named("layers_block_type")]
    if not blocks or any(
        block not in (*_NEMOTRON.values(), *LINEAR, "full_attention") for block in blocks
    ):
        raise SpecError(
            "config.hybrid_override_pattern", pattern, "M, *, - and E for each block are expected"
        )
    mixers = ["none" if block in ("mlp", "moe") else block for block in blocks]
    ffns = [{"mlp": "dense", "moe": "moe"}.get(block, "none") for block in blocks]
    fields = llama(config.spelt(num_hidden_layers=len(blocks)))
    bias = config.flag("mlp_bias", default=False)
    fields.update(
        head_dim=config.whole("head_dim", "attention_head_dim", default=128), gated=False,
        kv_heads=config.whole("num_key_value_heads", default=8), norms_per_layer=1, ffn_bias=bias,
        positions="none", mixer=_mamba2(config, "mamba_", 128, 64, 128, bias="use_bias"),
        layer_kinds=layer_kinds(mixers, ffns),
    )  # fmt: skip
    if "moe" in ffns:
        fields["experts"] = experts_of(
            experts=config.whole("n_routed_experts", default=8),
            top_k=config.whole("num_experts_per_tok", default=2),
            ffn=config.whole("moe_intermediate_size", default=7688),
            shared_ffn=config.whole("moe_shared_expert_intermediate_size", default=7688, least=0)
            * min(config.whole("n_shared_experts", default=1, least=0), 1),
            latent=config.whole("moe_latent_size", default=0, least=0),
        )
    return fields


def _granite_hybrid(config: Config) -> Fields:
    fields = llama(config)
    plain = config.data.get("model_type") == "granitemoeshared"
    mixers = mixers_of(config, fields["layers"], lambda _: "attention" if plain else "mamba")
    count = config.whole("num_local_experts", default=8, least=0)
    shared = config.whole("shared_intermediate_size", default=1024, least=0)
    fields.update(
        kv_heads=config.whole("num_key_value_heads", default=fields["heads"]),
        ffn_bias=False,
        mixer=_mamba2(config, "mamba_", 128, 64, 256),
    )
    if config.data.get("mamba_d_head") in (None, "auto"):
        expanded = config.whole("mamba_expand", default=2) * fields["hidden"]
        fields["mixer"]["head_dim"] = expanded // fields["mixer"]["heads"]
    if not count:
        kinds = layer_kinds(mixers, ["dense"] * len(mixers))
        return {**fields, "ffn": shared, "layer_kinds": kinds}
    routed = experts_of(
        experts=count,
        top_k=config.whole("num_experts_per_tok", default=2),
        ffn=fields["ffn"],
        shared_ffn=shared,
    )
    return {**fields, "experts": routed, "layer_kinds": layer_kinds(mixers, ["moe"] * len(mixers))}


def _bamba(config: Config) -> Fields:
    fields = llama(config)
    listed = config.layers_named("attn_layer_indices")
    mixers = mixers_of(
        config, fields["layers"], lambda index: "attention" if index in listed else "mamba"
    )
    mixer = _mamba2(config, "mamba_", 128, 64, 256)
    if config.data.get("mamba_d_head") in (None, "auto"):
        expanded = config.whole("mamba_expand", default=2) * fields["hidden"]
        mixer["head_dim"] = expanded // mixer["heads"]
    kinds = layer_kinds(mixers, ["dense"] * len(mixers))
    fields["kv_heads"] = config.whole("num_key_value_heads", default=8)
    return {**fields, "mixer": mixer, "layer_kinds": kinds}


def _jamba(config: Config) -> Fields:
    fields = llama(config)
    layers, hidden = fields["layers"], fields["hidden"]

    def periodic(what: str, index: int, period: int, offset: int) -> bool:
        step = config.whole(f"{what}_layer_period", default=period)
        return index % step == config.whole(f"{what}_layer_offset", default=offset, least=0)

    mixers = mixers_of(
        config, layers, lambda index: "attention" if periodic("attn", index, 8, 4) else "mamba"
    )
    if config.flag("mamba_proj_bias", default=False):
        raise UndescribedError(
            "config.mamba_proj_bias", True, "biased projections are not supported"
        )
    count = config.whole("num_experts", default=16)
    ffns = ["moe" if count > 1 and periodic("expert", i, 2, 1) else "dense" for i in range(layers)]
    rank = config.data.get("mamba_dt_rank", "auto")
    fields.update(
        kv_heads=config.whole("num_key_value_heads", default=8), positions="none",
        qkv_bias=False, attention_out_bias=False, ffn_bias=False,
        mixer={
            "kind": "mamba", "heads": config.whole("mamba_expand", default=2) * hidden,
            "head_dim": 1, "key_dim": config.whole("mamba_d_state", default=16),
            "conv": config.whole("mamba_d_conv", default=4),
            "rank": rank if isinstance(rank, int) else -(-hidden // 16),
            "bias": False, "conv_bias": config.flag("mamba_conv_bias", default=True),
            "norm": False, "inner_norms": True,
        },
        layer_kinds=layer_kinds(mixers, ffns),
    )  # fmt: skip
    if "moe" in ffns:
        fields["experts"] = experts_of(
            experts=count, top_k=config.whole("num_experts_per_tok", default=2), ffn=fields["ffn"]
        )
    return fields


def _kimi_linear(config: Config) -> Fields:
    spelt = {
        "q_lora_rank": None,
        "moe_layer_freq": 1,
        "n_routed_experts": config.data.get("num_experts", 256),
        "num_experts_per_tok": config.data.get("num_experts_per_token", 8),
        "n_shared_experts": config.data.get("num_shared_experts", 1),
    }
    stated = {key: value for key, value in config.data.items() if key in spelt}
    fields = deepseek(config.spelt(**{**spelt, **stated, "head_dim": None}))
    layers = fields["layers"]
    own = config.data.get("linear_attn_config")
    own = own if isinstance(own, dict) else {}
    full = own.get("full_attn_layers")
    if isinstance(full, list):  # counted from 1 in the published files
        attending = {one - 1 for one in full if isinstance(one, int)}
        mixers = mixers_of(
            config, layers, lambda index: "attention" if index in attending else "kda"
        )
    else:
        mixers = mixers_of(
            config,
            layers,
            lambda index: "attention" if (index + 1) % 4 == 0 or index == layers - 1 else "kda",
        )
    leading = config.whole("first_k_dense_replace", default=1, least=0)
    given = [str(one) for one in config.layers_named("mlp_layer_types")]
    ffns = ["moe" if one == "sparse" else "dense" for one in given] or [
        "dense" if index < leading else "moe" for index in range(layers)
    ]
    linear = Config(own)
    head = linear.whole("head_dim", default=config.whole("linear_head_dim", default=128))
    heads = linear.whole("num_heads", default=config.whole("linear_num_heads", default=32))
    taps = config.whole("linear_conv_kernel_dim", "short_conv_kernel_size", default=4)
    full_gates = config.data.get("model_type") == "bailing_hybrid"
    whole_rank = full_gates or linear.flag("use_full_rank_gate", default=False)
    fields.update(
        mixer={
            "kind": "kda", "heads": heads, "head_dim": head, "key_heads": heads, "key_dim": head,
            "conv": linear.whole("short_conv_kernel_size", default=taps),
            "rank": 0 if whole_rank else head,
        },
        layer_kinds=layer_kinds(mixers, ffns), positions="none",
    )  # fmt: skip
    if full_gates:  # a gate a head on latent attention's output
        gates = sum(kind.startswith("attention") for kind in fields["layer_kinds"])
        gates *= fields["hidden"] * fields["heads"]
        fields["extra_parameters"] = {"attention gates": gates}
    return fields


def _minimax(config: Config) -> Fields:
    """MiniMax-Text-01: lightning attention, softmax attention in some layers."""
    fields = mistral(config)
    fields["window"] = 0
    listed = config.layers_named("attn_type_list")
    if listed and len(listed) != fields["layers"]:
        raise SpecError(
            "config.attn_type_list", len(listed), f"one kind for each of {fields['layers']} layers"
        )
    mixers = mixers_of(
        config, fields["layers"],
        lambda index: ("full_attention" if listed[index] else "linear_attention")
        if listed else ("linear_attention" if index % 2 else "full_attention"),
    )  # fmt: skip
    fields.update(
        mixer={
            "kind": "lightning", "heads": fields["heads"], "head_dim": fields["head_dim"],
            "key_heads": fields["heads"], "key_dim": fields["head_dim"],
        },
        experts=experts_of(
            experts=config.whole("num_local_experts", default=8),
            top_k=config.whole("num_experts_per_tok", default=2), ffn=fields["ffn"],
        ),
        layer_kinds=layer_kinds(mixers, ["moe"] * fields["layers"]),
    )  # fmt: skip
    return fields


def _ernie_moe(config: Config) -> Fields:
    fields = llama(config)
    layers = fields["layers"]
    first = config.whole("moe_layer_start_index", default=1, least=0)
    last = config.data.get("moe_layer_end_index", -1)
    last = layers - 1 if not isinstance(last, int) or last < 0 else last
    step = config.whole("moe_layer_interval", default=1)
    ffns = [
        "moe" if first <= index <= last and (index + 1) % step == 0 else "dense"
        for index in range(layers)
    ]
    width = config.whole("moe_intermediate_size", default=1536)
    bias = config.flag("use_bias", default=False)
    fields.update(
        kv_heads=config.whole("num_key_value_heads", default=4),
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
        qkv_bias=bias, attention_out_bias=bias, ffn_bias=bias, head_bias=bias,
        experts=experts_of(
            experts=config.whole("moe_num_experts", default=64),
            top_k=config.whole("moe_k", default=6), ffn=width,
            shared_ffn=width * config.whole("moe_num_shared_experts", default=2, least=0),
            router_bias=True,
        ),
        layer_kinds=layer_kinds(["attention"] * layers, ffns),
    )  # fmt: skip
    return fields


def _afmoe(config: Config) -> Fields:
    """Arcee's Trinity: gated attention in windows, experts behind some dense layers, four norms a layer."""
    if config.flag("attention_bias", default=False):
        raise UndescribedError(
            "config.attention_bias", True, "a gate beside biases is not supported"
        )
    fields = llama(config)
    layers = fields["layers"]
    every = config.whole("global_attn_every_n_layers", default=4)
    mixers = mixers_of(
        config,
        layers,
        lambda index: "sliding_attention" if (index + 1) % every else "full_attention",
    )
    dense = min(config.whole("num_dense_layers", default=1, least=0), layers)
    width = config.whole("moe_intermediate_size", default=1408)
    fields.update(
        head_dim=config.whole("head_dim", default=128), qk_norm="head", attention_gate=True,
        norms_per_layer=4, ffn_bias=False, window=config.whole("sliding_window", default=1024),
        experts=experts_of(
            experts=config.whole("num_experts", default=64),
            top_k=config.whole("num_experts_per_tok", default=6), ffn=width,
            shared_ffn=width * config.whole("num_shared_experts", default=2, least=0),
            router_bias=True,
        ),
        layer_kinds=layer_kinds(mixers, ["dense"] * dense + ["moe"] * (layers - dense)),
    )  # fmt: skip
    config.read |= {"num_expert_groups", "num_limited_groups"}  # how the router chooses, no size
    return fields


def _falcon_h1(config: Config) -> Fields:
    """Attention and a state-space mixer side by side in every layer."""
    fields = llama(config)
    mixer = _mamba2(config, "mamba_", 128, 8, 256)
    if config.flag("projectors_bias", default=False) != mixer["bias"]:
        raise UndescribedError(
            "config.projectors_bias", not mixer["bias"], "the same as mamba_proj_bias is expected"
        )
    inner = config.whole("mamba_d_ssm", default=1024)
    mixer.update(
        head_dim=inner // mixer["heads"], norm=config.flag("mamba_rms_norm", default=False)
    )
    kinds = layer_kinds(["both"] * fields["layers"], ["dense"] * fields["layers"])
    fields["kv_heads"] = config.whole("num_key_value_heads", default=8)
    return {**fields, "mixer": mixer, "layer_kinds": kinds}


HYBRID: dict[str, Callable[[Config], Fields]] = {
    "qwen3_next": _qwen3_next, "qwen3_5_text": _qwen3_5, "qwen3_5_moe_text": _qwen3_5_moe,
    "nemotron_h": _nemotron_h, "nemotron-nas": nemotron_nas, "lfm2": lfm2, "lfm2_moe": lfm2_moe, "granitemoehybrid": _granite_hybrid, "bamba": _bamba,
    "jamba": _jamba, "kimi_linear": _kimi_linear, "bailing_hybrid": _kimi_linear,
    "minimax": _minimax, "deepseek_v32": sparse_attention, "deepseek_v4": deepseek_v4, "glm_moe_dsa": sparse_attention,
    "glm4_moe_lite": glm4_moe_lite, "ernie4_5_moe": _ernie_moe, "falcon_h1": _falcon_h1,
    "ministral3": mistral, "afmoe": _afmoe, "mamba": mamba, "falcon_mamba": mamba, "mamba2": mamba2, "gemma4_text": gemma4, "gemma4_unified_text": gemma4,
}  # fmt: skip
"""Reader of each of these `model_type`s."""
