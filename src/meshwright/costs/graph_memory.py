"""What CUDA graphs hold in a rank's memory, of its layers or of a whole iteration; bytes in columns of shape (rows,)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.costs.columns import Floats
from meshwright.costs.tables import table

if TYPE_CHECKING:
    from meshwright.costs.rank_memory import Rank


def graph_bytes(rank: Rank) -> Floats:
    """Static buffers of CUDA graphs of layers, which stay allocated from one replay to the next.

    Each layer has a graph for every micro-batch in flight, with a tensor that its input is copied to and
    one for its output (Transformer Engine, pytorch/graph.py make_graphed_callables); a layer of experts
    hands the normed input of its experts on, too. That is 4.3 GB for 8B at 8,192 tokens and 5.4 GB for
    70B in four stages, where NVIDIA's guide says a few gigabytes and, with a pipeline, up to over 10
    (Megatron-Bridge, docs/performance-guide).
    """
    columns = rank.columns
    if rank.behaviour.graphs != "layers":
        return np.zeros(columns.rows)
    split = np.where(columns.sequence_parallel > 0, columns.tp, 1)
    width = rank.tokens * float(rank.model.hidden) * rank.job.precision.activation_bytes / split
    tensors = 2.0 * rank.layers.dense[rank.role] + 3.0 * rank.layers.moe[rank.role]
    return np.asarray(rank.flight * tensors * width)


def iteration_graph_bytes(rank: Rank, moving: Floats) -> Floats:
    """What a graph of the whole iteration holds beyond eager steps, of which `moving` bytes come and go.

    Megatron-Core (core/full_cuda_graph.py) runs some steps eagerly and captures the next one into a pool of its
    own. torch returns the eager steps' free segments first (torch/cuda/graphs.py), and within a capture blocks are
    given out and taken back as ever, so there is no second copy of the activations: only what those segments that
    hold something else by then do not give back, and gaps of two pools (`pool_share`). Inputs
    of every micro-batch are copied to places that stay, on the ranks that read them.
    """
    if rank.behaviour.graphs != "all":
        return np.zeros(rank.columns.rows)
    known = table("memory")["graphs"]
    reads = 1.0 if rank.role == "first" else np.where(rank.has_head, 1.0, 0.0)
    inputs = reads * rank.micro_batches * rank.tokens * float(known["input_bytes_per_token"])
    return np.asarray(inputs + float(known["pool_share"]) * moving)
