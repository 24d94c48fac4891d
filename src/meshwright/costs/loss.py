"""The loss: how many logits are alive at once, and which products are made again."""

from __future__ import annotations

import numpy as np

from meshwright.costs.columns import Floats, Ints
from meshwright.costs.frameworks import Behaviour
from meshwright.specs.job import Job
from meshwright.specs.model import Model

CHUNKS = 8
"""Chunks of the sequence: torchtune's num_output_chunks, and torchtitan's."""

CHUNK_LOGIT_BYTES = 10.0
"""Of a chunk's logit: 16 bits, its fp32 copy, the fp32 gradient."""

LIGER_LOGIT_BYTES = 6.0
"""Liger's kernel writes the gradient over the chunk's logits, beside their fp32 copy."""


def loss_of(job: Job, behaviour: Behaviour) -> str:
    """The kind of loss that runs: the job's, or its framework's default."""
    return behaviour.loss if job.loss == "framework" else job.loss


def loss_memory_bytes(
    model: Model, job: Job, behaviour: Behaviour, tokens: Ints | Floats, vocab: Floats
) -> Floats:
    """Bytes alive at the loss's peak beyond its input, of a micro-batch of `tokens` on one rank.

    Args:
        model: the architecture.
        job: names the loss.
        behaviour: the framework's bytes per logit and its default loss.
        tokens: of the micro-batch, shape (rows,).
        vocab: rows of the head that the rank multiplies with, shape (rows,).

    `liger`: the chunk is as many tokens as make its logits as large as the input (Hsu et al. 2024,
    arXiv 2410.10989 §3.2); the gradients of the input and of the head are made in the forward.
    `cut`: no logits (Wijmans et al. 2024, arXiv 2411.09009); the input's gradient in fp32.
    """
    kind = loss_of(job, behaviour)
    count = np.asarray(tokens, dtype=np.float64)
    whole = count * vocab * behaviour.logits_bytes
    if kind == "full":
        return whole
    gradient = count * model.hidden * job.precision.activation_bytes
    if kind == "chunked":
        return np.asarray(np.ceil(count / CHUNKS) * vocab * CHUNK_LOGIT_BYTES + gradient)
    of_head = 0.0 if head_frozen(job) else job.precision.parameter_bytes * vocab * model.hidden
    if kind == "liger":
        pieces = 2.0 ** np.ceil(np.log2(np.maximum(np.ceil(vocab / model.hidden), 1.0)))
        chunk = np.ceil(count / pieces)
        return np.asarray(chunk * vocab * LIGER_LOGIT_BYTES + gradient + of_head)
    return np.asarray(2.0 * gradient)


def head_frozen(job: Job) -> bool:
    """Whether the head's weight needs no gradient."""
    tune = job.finetune
    if tune is None:
        return False
    if tune.adapts:
        return "head" not in tune.train
    return "head" in tune.freeze


def head_products(job: Job, behaviour: Behaviour) -> float:
    """How often the head's forward product is made: again in backward where logits were not kept."""
    return 2.0 if loss_of(job, behaviour) in ("chunked", "cut") else 1.0
