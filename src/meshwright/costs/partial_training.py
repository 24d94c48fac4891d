"""What a step spares where only some layers' weights train (`frozen_layers`, `in_turn`).

A gradient goes down to the lowest weight that trains and no further: layers below it have no backward, layers above
that do not train pass it on (half of a backward's products), and neither is computed again, because a checkpoint of
LLaMA-Factory's is one of a layer with a weight that trains (src/llamafactory/model/model_utils/checkpointing.py).
Layers trained in turn (BAdam, arXiv 2404.02827) are each the trained one equally often, so in the mean half of the
others lie below it. Without a pipeline: the tools that train so have none.
"""

from __future__ import annotations

import numpy as np

from meshwright.costs import encoders, flops
from meshwright.costs.columns import Floats, LayoutColumns
from meshwright.specs.job import Job
from meshwright.specs.model import Model

PASSED_ON = 0.5
"""Share of the products of a layer's backward that make the gradient of its input."""
Parts = dict[str, tuple[Floats, Floats]]


def trained_shares(model: Model, job: Job) -> tuple[float, float]:
    """Shares of the layers that train, and of those that pass a gradient on without training."""
    tune = job.finetune
    if tune is None or tune.adapts:
        return 1.0, 0.0
    if tune.in_turn:
        trained = min(tune.in_turn / model.layers, 1.0)
        return trained, 0.5 * (1.0 - trained)
    still = min(tune.frozen_layers / model.layers, 1.0)
    return 1.0 - still, 0.0 if "embedding" in tune.freeze else still


def spared(model: Model, job: Job, columns: LayoutColumns, parts: Parts) -> Parts:
    """A stage's (forward, backward) seconds by part, less the backward that no weight asks for."""
    trained, passed = trained_shares(model, job)
    if trained == 1.0:
        return parts
    shares = dict.fromkeys(parts, trained + passed)
    shares |= {"matmul": trained + PASSED_ON * passed, "recompute": trained}
    shares |= {"embedding_and_head": 1.0, "encoder": 1.0}
    alone = columns.pp == 1
    return {
        name: (forward, backward * np.where(alone, shares[name], 1.0))
        for name, (forward, backward) in parts.items()
    }


def model_flops_per_token(model: Model, job: Job) -> float:
    """Model FLOPs of one token of a job; of layers that do not train, what their gradients ask for."""
    trained, passed = trained_shares(model, job)
    whole = flops.model_flops_per_token(model, job.seq_len, frozen=job.frozen)
    whole += encoders.flops_per_token(model, job)
    if trained == 1.0:
        return whole
    products = 2.0 * (flops.matmul_parameters(model) - model.vocab * model.hidden)
    attention = flops.attention_flops_per_token(model, job.seq_len)
    spared_products = 2.0 * products * (1.0 - trained - PASSED_ON * passed)
    return whole - spared_products - 2.0 * attention * (1.0 - trained - passed)
