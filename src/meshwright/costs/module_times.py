"""Forward time of the modules of a layer, which recomputing them adds to its backward."""

from __future__ import annotations

import numpy as np

from meshwright.costs.columns import Floats, LayoutColumns
from meshwright.costs.kernels import ceil_div, stream_time_s
from meshwright.costs.layer_setting import LayerKeys, LayerModel
from meshwright.costs.linears import (
    Matrices,
    attention_matrices,
    dense_matrices,
    latent_matrices,
    matmul_times,
)
from meshwright.costs.mixers import layer_shares
from meshwright.costs.recompute_modules import runs_again
from meshwright.specs.model import Model

NAMED = ("layernorm", "moe_act", "mla_up_proj", "mlp", "moe", "shared_experts")
"""Modules with a price of their own; `core_attn` is the attention that a layer's time names."""


def module_times_s(
    setting: LayerModel,
    keys: LayerKeys,
    forward: dict[str, Floats],
    experts_s: Floats,
    routed: Floats,
    *,
    moe: bool,
) -> dict[str, Floats]:
    """Forward time of each module of a layer, which naming it for recomputation adds to backward.

    `experts_s` is the time of the routed experts' products, `routed` the token copies they process.
    """
    model, job = setting.model, setting.job
    tokens = keys.micro_batch * ceil_div(job.seq_len, keys.cp)
    element = job.precision.activation_bytes
    share = layer_shares(model, moe=moe)
    low_rank = model.latent_attention
    norms = (1.0 if moe else 0.0) + (share.attention if low_rank else 0.0)
    shared = tokens * model.hidden / np.where(keys.sequence_parallel > 0, keys.tp, 1)
    found = {name: np.zeros(len(tokens)) for name in NAMED}
    found["layernorm"] = stream_time_s(setting.kernels, 2.0 * norms * shared * element, norms)
    if low_rank is not None:
        up = [attention_matrices(model, keys)[place] for place in _up_projections(model)]
        found["mla_up_proj"] = share.attention * matmul_times(setting, tokens, up)[0]
    if not moe:
        found["mlp"] = share.ffn * _products_s(setting, keys, dense_matrices(model, keys, False))
        return found
    assert model.experts is not None
    inputs = 3.0 if model.gated else 2.0
    width = model.experts.ffn / keys.etp
    found["moe_act"] = stream_time_s(setting.kernels, routed * inputs * element * width, 1.0)
    # The router's product comes first; those into and out of experts' width are last.
    beside = dense_matrices(model, keys, True)
    latent = latent_matrices(model, keys)
    router, shared_ffn = beside[:1], beside[1 : len(beside) - len(latent)]
    found["shared_experts"] = _products_s(setting, keys, shared_ffn)
    permuted = stream_time_s(setting.kernels, routed * model.expert_hidden * 4.0 * element, 2.0)
    found["moe"] = (
        experts_s + forward["expert_parallel"] + found["moe_act"] + permuted
        + found["shared_experts"] + _products_s(setting, keys, router + latent)
    )  # fmt: skip
    return found


def _products_s(setting: LayerModel, keys: LayerKeys, matrices: Matrices) -> Floats:
    tokens = keys.micro_batch * ceil_div(setting.job.seq_len, keys.cp)
    return matmul_times(setting, tokens, matrices)[0]


def _up_projections(model: Model) -> tuple[int, ...]:
    """Places of the up-projections among the matrices of latent attention."""
    latent = model.latent_attention
    assert latent is not None
    return (1, 3) if latent.q_rank else (2,)


def repeated_s(
    columns: LayoutColumns, modules: dict[str, Floats], core_attention: Floats
) -> Floats:
    """What the rows' modules add to one layer's backward; every argument of shape (rows,)."""
    whole_moe = runs_again(columns, "moe")
    total = np.where(runs_again(columns, "core_attn"), core_attention, 0.0)
    for name, time in modules.items():
        here = runs_again(columns, name)
        if name in ("moe_act", "shared_experts"):
            here = here & ~whole_moe
        total = total + np.where(here, time, 0.0)
    return total
