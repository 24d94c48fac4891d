"""Selective recomputation by module: what a layer no longer keeps, and what it runs again.

Modules are Megatron-Core's (`core/transformer/transformer_config.py`, recompute_modules). Those that
drop a module's output alone (`layernorm`, `moe_act`, `mla_up_proj`) run again what makes it; those
that wrap a module (`mlp`, `moe`, `shared_experts`, `core_attn`) keep its input, which the layer keeps
anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.costs.columns import Bools, Floats, LayoutColumns
from meshwright.costs.frameworks import Behaviour
from meshwright.costs.kernels import ceil_div
from meshwright.costs.mixers import layer_shares
from meshwright.costs.routing import hottest_rank
from meshwright.specs.job import Job
from meshwright.specs.layout import MODULES
from meshwright.specs.model import Model


def runs_again(columns: LayoutColumns, module: str) -> Bools:
    """Rows whose selective recomputation names a module; shape (rows,)."""
    return (columns.recompute_modules >> MODULES.index(module)) & 1 > 0


@dataclass(frozen=True, slots=True)
class FfnBytes:
    """Saved bytes per unit of an FFN's width, of its last product's input alone, and per hidden width of a
    copy routed to an expert."""

    unit: float
    last_input: float
    routed: float


def dropped_bytes(
    model: Model,
    job: Job,
    behaviour: Behaviour,
    columns: LayoutColumns,
    ffn: FfnBytes,
    *,
    moe: bool,
) -> Floats:
    """Bytes per micro-batch that one layer keeps without modules, and not with the rows' modules.

    Counted as `costs.memory.activation_bytes_per_layer` counts them. A norm whose output the product
    after it makes for itself (Transformer Engine's fused norm and linear) drops nothing: only the norm
    before routed experts and, with latent attention, the one before attention are modules.
    """
    element = job.precision.activation_bytes
    tp = columns.tp.astype(np.float64)
    tokens = (columns.micro_batch * ceil_div(job.seq_len, columns.cp)).astype(np.float64)
    split = np.where(columns.sequence_parallel > 0, tp, 1.0)
    share = layer_shares(model, moe=moe)
    quantised = behaviour.saves_quantised_inputs and job.precision.compute in ("fp8", "fp4")
    of_input = 1.0 if quantised else element
    latent = model.latent_attention
    norms = (1.0 if moe else 0.0) + (share.attention if latent else 0.0)
    per_token = {"layernorm": norms * model.hidden * of_input / split}
    if latent is not None:
        heads = np.ceil(model.heads / tp)
        each = 2 * (latent.nope_head_dim + latent.rope_head_dim) + latent.v_head_dim
        per_token["mla_up_proj"] = share.attention * heads * each * element
    if moe:
        assert model.experts is not None
        hot = hottest_rank(job.routing, model.experts.experts, columns.ep, at_peak=True)
        copies = model.experts.top_k * columns.etp / tp * hot
        inner = copies * model.experts.ffn / columns.etp
        shared = ffn.unit * model.experts.shared_ffn / tp
        per_token["moe_act"] = ffn.last_input * inner
        per_token["shared_experts"] = shared
        whole = ffn.unit * inner + copies * model.expert_hidden * ffn.routed + shared
        per_token["moe"] = whole
    else:
        per_token["mlp"] = ffn.unit * share.ffn * model.ffn / tp
    whole_moe = runs_again(columns, "moe") & moe
    dropped = np.zeros(columns.rows)
    for module, size in per_token.items():
        inside = module in ("moe_act", "shared_experts")
        here = runs_again(columns, module) & ~(whole_moe & inside)
        dropped = dropped + np.where(here, size, 0.0)
    return np.where(columns.recompute == 1, tokens * dropped, 0.0)


def repeated_flops_per_token(model: Model, modules: tuple[str, ...], attention: float) -> float:
    """FLOPs per token that recomputing some modules repeats; `attention` is that of its scores."""
    inputs = 3 if model.gated else 2
    experts = model.experts
    moe_layers = model.moe_layers
    dense_layers = model.layers - moe_layers
    found = {"core_attn": attention, "mlp": 2.0 * inputs * model.hidden * model.ffn * dense_layers}
    if experts is not None:
        shared = 2.0 * inputs * model.hidden * experts.shared_ffn * moe_layers
        visited = inputs * model.expert_hidden * experts.ffn * experts.top_k
        routed = 2.0 * (visited + 2 * experts.latent * model.hidden) * moe_layers
        found |= {"shared_experts": shared, "moe": routed + shared}
    if (latent := model.latent_attention) is not None:
        up = model.heads * (latent.nope_head_dim + latent.v_head_dim) * latent.kv_rank
        if latent.q_rank:
            up += model.heads * (latent.nope_head_dim + latent.rope_head_dim) * latent.q_rank
        found["mla_up_proj"] = 2.0 * up * model.layers
    wanted = [m for m in modules if not (m == "shared_experts" and "moe" in modules)]
    return sum(found.get(module, 0.0) for module in wanted)
