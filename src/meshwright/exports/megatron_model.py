"""A model as Megatron-LM's architecture flags."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import groupby

from meshwright.exports.families import computes_otherwise
from meshwright.exports.limit_rules import Problem
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model
from meshwright.specs.numerics import RopeScaling, numerics_of, renormalizes_routing

Flags = dict[str, str | bool]
"""Flag (without dashes) → its value; True for a flag that takes none."""

_POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}


def model_problems(model: Model) -> Iterator[Problem]:
    """Parts of an architecture that Megatron-LM's flags cannot describe."""
    yield from computes_otherwise(model)
    dense = model.moe_layers < model.layers
    numerics = numerics_of(model)
    acts = ("silu", "quick-gelu") if model.gated else ("gelu", "gelu-tanh", "relu2")
    scaling = numerics.rope_scaling.kind if numerics.rope_scaling else ""
    stretched = ("", "yarn") if model.latent_attention else ("", "llama3", "linear", "yarn")
    checks: list[tuple[str, object, bool, str]] = [
        ("positions", model.positions, model.positions == "alibi", "has no ALiBi positions"),
        ("embedding_norm", True, model.embedding_norm, "has no norm after the embedding"),
        ("parallel_block", True, model.parallel_block, "puts attention and FFN in sequence"),
        ("norms_per_layer", model.norms_per_layer, model.norms_per_layer != 2, "has two norms a layer"),
        ("final_norm", False, not model.final_norm, "always ends with a norm"),
        ("norm", model.norm, model.norm == "none", "needs a norm"),
        ("numerics.activation", numerics.activation, numerics.activation not in acts,
         f"has the activations {', '.join(acts)} {'with' if model.gated else 'without'} a gate"),
        ("numerics.rope_scaling", scaling, scaling not in stretched, "has no such rotary scaling"),
        ("qk_norm", model.qk_norm, model.qk_norm == "full", "normalises queries and keys per head only"),
        ("head_bias", True, model.head_bias, "has no bias in the LM head"),
        ("ffn_bias", model.ffn_bias, dense and model.ffn_bias != model.attention_out_bias,
         "gives biases to all linear layers or none"),
        ("qkv_bias", False, model.attention_out_bias and not model.qkv_bias, "gives biases to all linear layers"),
        ("experts.router_bias", True,
         bool(model.experts and model.experts.router_bias) and not model.attention_out_bias,
         "trains a bias in the router only with biases in all linear layers"),
        ("extra_parameters", model.extra_parameters, bool(model.extra_parameters),
         "has no flag for extra parameters"),
        ("numerics.router_renormalizes", False, _sigmoid_shares(model), "scales the weights that a sigmoid gives to add up to one"),
    ]  # fmt: skip
    for name, value, wrong, lacks in checks:
        if wrong:
            yield Problem(f"model.{name}", value, lacks)


def _sigmoid_shares(model: Model) -> bool:
    """Whether several experts' weights are a sigmoid's as they are."""
    several = model.experts is not None and model.experts.top_k > 1
    return several and numerics_of(model).router == "sigmoid" and not renormalizes_routing(model)


def unsaid(model: Model) -> tuple[str, ...]:
    """What Megatron-Core's configuration has a field for, and the command line no flag."""
    scaling = numerics_of(model).rope_scaling
    band = band_fields(scaling) if model.latent_attention and scaling is not None else {}
    if not band:
        return ()
    given = ", ".join(f"{name} {value}" for name, value in band.items())
    return (
        f"Megatron-LM has no flag for {given} of the model's YaRN: positions are stretched by the usual band, 32 to 1 "
        "turns of 4,096 positions (--to megatron-bridge says the model's own)",
    )


def band_fields(scaling: RopeScaling) -> dict[str, str]:
    """Fields of `MLATransformerConfig` where YaRN's band is not as by default: 32 to 1 turns of 4,096 positions."""
    if scaling.kind != "yarn":
        return {}
    given = {
        "original_max_position_embeddings": (scaling.original_positions, 4096),
        "beta_fast": (scaling.beta_fast, 32),
        "beta_slow": (scaling.beta_slow, 1),
    }
    return {name: f"{value:g}" for name, (value, usual) in given.items() if value not in (0, usual)}


def model_flags(model: Model, seq_len: int) -> Flags:
    """Architecture flags of a model; vocabulary is that of the null tokenizer, unpadded."""
    flags: Flags = {
        "num-layers": str(model.layers),
        "hidden-size": str(model.hidden),
        "ffn-hidden-size": str(model.ffn),
        "num-attention-heads": str(model.heads),
        "seq-length": str(seq_len),
        "max-position-embeddings": str(max(seq_len, model.max_positions)),
        "position-embedding-type": _POSITIONS[model.positions],
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "norm-epsilon": f"{numerics_of(model).norm_epsilon:g}",
        "attention-dropout": "0.0",
        "hidden-dropout": "0.0",
    }
    if model.positions == "rope":
        flags |= _rotary(model)
    if model.latent_attention is None:
        flags["kv-channels"] = str(model.head_dim)
    if model.kv_heads != model.heads and model.latent_attention is None:
        flags |= {"group-query-attention": True, "num-query-groups": str(model.kv_heads)}
    activation = numerics_of(model).activation
    if model.gated:
        flags["quick-geglu" if activation == "quick-gelu" else "swiglu"] = True
        if activation == "quick-gelu":
            # GPT-OSS: x · sigmoid(1.702 x) · (1 + gate), both clamped at 7.
            flags |= {"glu-linear-offset": "1.0", "activation-func-clamp-value": "7.0"}
    elif activation == "relu2":
        flags["squared-relu"] = True
    if not model.tied_embeddings:
        flags["untie-embeddings-and-output-weights"] = True
    if not model.attention_out_bias:
        flags["disable-bias-linear"] = True
        if model.qkv_bias:
            flags["add-qkv-bias"] = True
    if model.attention_sinks:
        flags["softmax-type"] = "learnable"
    if model.qk_norm == "head":
        flags["qk-layernorm"] = True
    if model.window:
        flags["window-size"] = f"{model.window - 1},0"
        if model.window_period > 1:
            flags["window-attn-skip-freq"] = str(model.window_period)
    return flags | _latent(model) | _experts(model)


def _rotary(model: Model) -> Flags:
    """Base and scaling of rotary positions; latent attention scales as YaRN unless told not to."""
    numerics = numerics_of(model)
    flags: Flags = {"rotary-base": str(round(numerics.rope_theta))}
    if numerics.rotary_share not in (None, 1.0):
        flags["rotary-percent"] = f"{numerics.rotary_share:g}"
    scaling = numerics.rope_scaling
    if scaling is None:
        # Latent attention turns in one kernel by YaRN alone (MLATransformerConfig), which is on unless told otherwise.
        own: Flags = {"rope-type": "rope", "no-rope-fusion": True}
        return flags | (own if model.latent_attention else {})
    if scaling.kind == "llama3":
        return flags | {"use-rope-scaling": True, "rope-scaling-factor": f"{scaling.factor:g}"}
    if scaling.kind == "linear":
        return flags | {"rotary-seq-len-interpolation-factor": str(round(scaling.factor))}
    if model.latent_attention:
        return flags | {
            "rope-type": "yarn",
            "rotary-scaling-factor": f"{scaling.factor:g}",
            "mscale": f"{scaling.mscale:g}",
            "mscale-all-dim": f"{scaling.mscale_all_dim:g}",
        }
    whole: Flags = {} if scaling.truncate else {"no-yarn-correction-range-round-to-int": True}
    return flags | whole | {
        "position-embedding-type": "yarn",
        "rotary-scaling-factor": f"{scaling.factor:g}",
        "yarn-original-max-position-embeddings": str(scaling.original_positions),
        "yarn-beta-fast": f"{scaling.beta_fast:g}",
        "yarn-beta-slow": f"{scaling.beta_slow:g}",
    }  # fmt: skip


def _latent(model: Model) -> Flags:
    latent = model.latent_attention
    if latent is None:
        return {}
    flags: Flags = {
        "multi-latent-attention": True,
        "kv-lora-rank": str(latent.kv_rank),
        "qk-head-dim": str(latent.nope_head_dim),
        "qk-pos-emb-head-dim": str(latent.rope_head_dim),
        "v-head-dim": str(latent.v_head_dim),
        # The norms on the compressed queries, keys and values, which every such model has.
        "qk-layernorm": True,
    }
    if model.hidden % model.heads:
        # Asked for where the width does not divide among the heads (arguments.py), though nothing here is so wide.
        flags["kv-channels"] = str(latent.v_head_dim)
    if latent.q_rank:
        flags["q-lora-rank"] = str(latent.q_rank)
    return flags


def _experts(model: Model) -> Flags:
    experts = model.experts
    if experts is None:
        return {}
    flags: Flags = {
        "num-experts": str(experts.experts),
        "moe-router-topk": str(experts.top_k),
        "moe-ffn-hidden-size": str(experts.ffn),
        "moe-token-dispatcher-type": "alltoall",
        "moe-grouped-gemm": True,
        "moe-router-load-balancing-type": "aux_loss",
        "moe-aux-loss-coeff": "1e-2",
    }
    if experts.latent:
        flags["moe-latent-size"] = str(experts.latent)
    if experts.shared_ffn:
        flags["moe-shared-expert-intermediate-size"] = str(experts.shared_ffn)
        if experts.shared_gate:
            flags["moe-shared-expert-gate"] = True
    flags |= _router(model)
    if experts.dense_layers or experts.period > 1:
        flags["moe-layer-freq"] = _pattern([model.is_moe_layer(i) for i in range(model.layers)])
    return flags


def _router(model: Model) -> Flags:
    """How the router scores, groups and scales; with a bias per expert it balances by that bias."""
    numerics = numerics_of(model)
    flags: Flags = {"moe-router-dtype": "fp32"}
    if numerics.router == "sigmoid":
        flags["moe-router-score-function"] = "sigmoid"
    elif not renormalizes_routing(model) or (model.experts and model.experts.top_k == 1):
        # Shares of all experts; else the softmax is over the chosen ones, whose weights add up to one.
        flags["moe-router-pre-softmax"] = True
    if numerics.router_groups > 1:
        flags |= {
            "moe-router-num-groups": str(numerics.router_groups),
            "moe-router-group-topk": str(numerics.router_group_top_k),
        }
    if numerics.router_scaling != 1:
        flags["moe-router-topk-scaling-factor"] = f"{numerics.router_scaling:g}"
    if numerics.router_balances:
        # DeepSeek-V3 (arXiv 2412.19437 §2.1.2, §4.2): a bias moved by 0.001 a step balances, and a
        # loss per sequence of weight 0.0001 guards.
        flags |= {
            "moe-router-enable-expert-bias": True,
            "moe-router-bias-update-rate": "1e-3",
            "moe-router-load-balancing-type": "seq_aux_loss",
            "moe-aux-loss-coeff": "1e-4",
        }
    return flags


def _pattern(kinds: list[bool]) -> str:
    return "+".join(f"[{int(kind)}]*{len(list(run))}" for kind, run in groupby(kinds))


def read_pattern(text: str, layers: int) -> list[int]:
    """Expand Megatron's layer frequency: `2`, or a list expression such as `[0]*3+[1]*58`.

    The expression is read as data (lists, + and * only), never evaluated as a program.

    Raises:
        SpecError: neither a number nor such an expression of the right length.
    """
    field = "--moe-layer-freq"
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        value = _expand(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(field, text, "a number or a list such as [0]*3+[1]*58") from None
    if isinstance(value, int):
        return [int(i % max(value, 1) == 0) for i in range(layers)]
    if len(value) != layers:
        raise SpecError(field, text, f"one entry for each of the {layers} layers is expected")
    return value


def _expand(node: ast.expr) -> int | list[int]:
    if isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= 10_000:
        return node.value
    if isinstance(node, ast.List):
        items = [_expand(item) for item in node.elts]
        return [item for item in items if isinstance(item, int)]
    if isinstance(node, ast.BinOp):
        left, right = _expand(node.left), _expand(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            if len(left) * right > 100_000:
                raise ValueError("too long")
            return left * right
    raise ValueError("not a layer pattern")
