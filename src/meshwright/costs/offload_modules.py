"""What parts of a layer keep for backward, by the names under which Megatron-Core moves them to host memory.

Source: transformer/transformer_config.py, `offload_modules`: the input of each named part leaves. A dense FFN's
own products are not among them.
"""

from __future__ import annotations

import numpy as np

from meshwright.costs.columns import Floats, LayoutColumns
from meshwright.costs.frameworks import Behaviour
from meshwright.costs.kernels import ceil_div
from meshwright.costs.mixers import layer_shares
from meshwright.costs.offload import in_host
from meshwright.costs.recompute_modules import runs_again
from meshwright.costs.routing import hottest_rank
from meshwright.specs.job import Job
from meshwright.specs.model import Model


def input_bytes(
    model: Model, job: Job, behaviour: Behaviour, columns: LayoutColumns, *, moe: bool
) -> Floats:
    """Bytes of one layer and micro-batch that the rows' named parts keep in host memory; shape (rows,).

    Norms inside a fused product keep their input once; where a part runs again, its input stays needed.
    """
    element = job.precision.activation_bytes
    quantised = behaviour.saves_quantised_inputs and job.precision.compute in ("fp8", "fp4")
    of_input = 1.0 if quantised else element
    tp = columns.tp.astype(np.float64)
    split = np.where(columns.sequence_parallel > 0, tp, 1.0)
    tokens = (columns.micro_batch * ceil_div(job.seq_len, columns.cp)).astype(np.float64)
    attention = layer_shares(model, moe=moe).attention
    latent = model.latent_attention
    if latent is not None:
        each = 2 * (latent.nope_head_dim + latent.rope_head_dim) + latent.v_head_dim
        mixed = model.heads * each / tp
    else:
        mixed = (model.heads + 2 * model.kv_share * model.kv_heads) * model.head_dim / tp
    hidden = model.hidden / split
    per_token = {
        "attn_norm": attention * hidden * element,
        "qkv_linear": attention * hidden * of_input,
        "core_attn": attention * mixed * element,
        "attn_proj": attention * model.attention_width / tp * of_input,
        "mlp_norm": hidden * element,
    }
    if moe and model.experts is not None:
        hot = hottest_rank(job.routing, model.experts.experts, columns.ep, at_peak=True)
        copies = model.experts.top_k * columns.etp / tp * hot
        inner = (2.0 if model.gated else 1.0) * model.experts.ffn / columns.etp
        inside = ~runs_again(columns, "moe")
        per_token["expert_fc1"] = np.where(inside, copies * model.expert_hidden * of_input, 0.0)
        per_token["moe_act"] = np.where(inside, copies * inner * element, 0.0)
    total = np.zeros(columns.rows)
    for name, size in per_token.items():
        total = total + np.where(in_host(columns, name), size, 0.0)  # type: ignore[arg-type]
    return tokens * total
