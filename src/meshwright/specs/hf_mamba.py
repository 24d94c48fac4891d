"""Reads models of state-space layers alone: Mamba, Falcon-Mamba and Mamba-2."""

from __future__ import annotations

from meshwright.specs.hf_config import Config, UndescribedError
from meshwright.specs.hf_dense import Fields
from meshwright.specs.hf_kinds import layer_kinds


def mamba(config: Config) -> Fields:
    """Mamba and Falcon-Mamba: a mixer behind one norm in every layer, and no FFN.

    Raises:
        SpecError: a key is impossible.
    """
    if config.flag("use_bias", default=False):
        raise UndescribedError("config.use_bias", True, "biased projections are not supported")
    hidden = config.whole("hidden_size", "d_model", default=768)
    inner = config.whole("intermediate_size", default=config.whole("expand", default=2) * hidden)
    rank = config.data.get("time_step_rank", "auto")
    config.read |= {"time_step_rank"}
    mixer = {
        "kind": "mamba", "heads": inner, "head_dim": 1, "norm": False,
        "key_dim": config.whole("state_size", default=16),
        "conv": config.whole("conv_kernel", default=4),
        "rank": rank if isinstance(rank, int) else -(-hidden // 16),
        "bias": False, "conv_bias": config.flag("use_conv_bias", default=True),
    }  # fmt: skip
    return _stack(config, hidden, inner, mixer, layers=32, vocab=50280, tied=True)


def mamba2(config: Config) -> Fields:
    """Mamba-2: the same stack with heads.

    Raises:
        SpecError: a key is impossible.
    """
    hidden = config.whole("hidden_size", "d_model", default=4096)
    config.read |= {"expand"}  # heads and their width say the same
    heads = config.whole("num_heads", default=128)
    width = config.whole("head_dim", default=64)
    mixer = {
        "kind": "mamba2", "heads": heads, "head_dim": width,
        "key_heads": config.whole("n_groups", default=8),
        "key_dim": config.whole("state_size", default=128),
        "conv": config.whole("conv_kernel", default=4),
        "bias": config.flag("use_bias", default=False),
        "conv_bias": config.flag("use_conv_bias", default=True),
    }  # fmt: skip
    return _stack(config, hidden, heads * width, mixer, layers=64, vocab=32768, tied=False)


def _stack(
    config: Config, hidden: int, inner: int, mixer: Fields, layers: int, vocab: int, tied: bool
) -> Fields:
    """The fields that both share; a model without attention or FFN has a head and an FFN of no use."""
    count = config.whole("num_hidden_layers", "n_layer", default=layers)
    return {
        "layers": count, "hidden": hidden, "heads": 1, "kv_heads": 1, "head_dim": 1, "ffn": inner,
        "vocab": config.whole("vocab_size", default=vocab),
        "tied_embeddings": config.flag("tie_word_embeddings", default=tied),
        "norms_per_layer": 1, "positions": "none", "mixer": mixer,
        "layer_kinds": layer_kinds(["mamba"] * count, ["none"] * count),
    }  # fmt: skip
