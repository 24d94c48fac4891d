"""Floating-point operations of a model: what the mathematics needs, whatever the layout."""

from __future__ import annotations

from meshwright.costs.mixers import equivalent_keys
from meshwright.costs.parameters import count_parameters
from meshwright.specs.model import TABLES, Indexer, Model


def matmul_parameters(model: Model) -> float:
    """Parameters that one token is multiplied with: active, without the embedding lookup.

    A tied head counts: its product is done although its parameters are the embedding's. Tables that
    layers look up (Gemma 4's) do not.
    """
    counts = count_parameters(model)
    lookups = counts.embedding + counts.positions + counts.encoder
    lookups += model.extra_parameters.get(TABLES, 0)
    head = model.vocab * model.hidden if model.tied_embeddings else 0
    return float(counts.active - lookups + head)


def attention_flops_per_token(model: Model, seq_len: int) -> float:
    """Forward FLOPs of the score and value products per token, over the full length.

    4·s·h per layer (Megatron-LM, arXiv 2104.04473 appendix), not halved for the causal mask, which
    is the convention of PaLM's and Megatron's MFU.
    """
    latent = model.latent_attention
    if latent is not None:
        width = model.heads * (latent.nope_head_dim + latent.rope_head_dim + latent.v_head_dim) / 2
    else:
        width = float(model.heads * model.head_dim)
    if model.layer_kinds:
        return _mixed_flops_per_token(model, seq_len, width)
    reach = float(seq_len)
    if model.indexer is not None:
        # Attention meets the keys that the indexer picks; the indexer itself scores all of them.
        indexer = model.indexed_share * _indexer_flops_per_token(model.indexer, seq_len)
        return (4.0 * min(seq_len, model.indexer.top_k) * width + indexer) * model.layers
    if model.window and model.window < seq_len:
        share = (model.window_period - 1) / model.window_period if model.window_period > 1 else 1.0
        reach = share * model.window + (1 - share) * seq_len
    return 4.0 * reach * width * model.layers


def _indexer_flops_per_token(indexer: Indexer, seq_len: int) -> float:
    """Scores of one layer's indexer, over as many keys as it has for a sequence."""
    return 2.0 * seq_len / indexer.compress * indexer.heads * indexer.head_dim


def _mixed_flops_per_token(model: Model, seq_len: int, width: float) -> float:
    """The same where layers differ: windows, sparse attention, and linear mixers' own products."""
    total, picked = 0.0, model.picked_share
    for kind in model.layer_kinds:
        mixer = kind.partition("+")[0]
        if mixer in ("attention", "both"):
            keys = min(seq_len, model.indexer.top_k) if model.indexer else seq_len
            total += 4.0 * (picked * keys + (1 - picked) * seq_len) * width
            if model.indexer is not None:
                indexer = _indexer_flops_per_token(model.indexer, seq_len)
                total += picked * model.indexed_share * indexer
        elif mixer == "window":
            total += 4.0 * min(seq_len, model.window or seq_len) * width
        if mixer in ("linear", "both") and model.mixer is not None:
            each = model.mixer.key_dim + model.mixer.head_dim
            total += 2.0 * equivalent_keys(model.mixer) * model.mixer.heads * each
    return total


def model_flops_per_token(model: Model, seq_len: int, frozen: bool = False) -> float:
    """Model FLOPs of training on one token: forward once, backward twice, nothing recomputed.

    6N + 12·L·s·h, after PaLM (arXiv 2204.02311, appendix B), with N the parameters a token is
    multiplied with. Of `frozen` weights no gradient is computed: 4N; adapters are not counted.
    """
    matmul = (2.0 if frozen else 3.0) * 2.0 * matmul_parameters(model)
    return matmul + 3.0 * attention_flops_per_token(model, seq_len)


def recomputed_flops_per_token(model: Model, seq_len: int, mode: str) -> float:
    """FLOPs per token that recomputation repeats: all layers' forward, or their attention's."""
    if mode == "none":
        return 0.0
    attention = attention_flops_per_token(model, seq_len)
    if mode == "selective":
        return attention
    head = float(model.vocab * model.hidden)
    return 2.0 * (matmul_parameters(model) - head) + attention
