"""Fast-LLM's YAML: a decoder built of blocks, ZeRO and depth-first or breadth-first accumulation."""

from __future__ import annotations

from typing import Any

from meshwright.imports.names import PLANNED, refuse_other
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shapes import llama_like
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

EDITS = {"zero": "model.multi_stage.zero_stage", "tp": "model.distributed.tensor_parallel"}
_SPLIT = "model.distributed."
_BASE = "model.base_model."
_NAMES = {
    "layers": (f"{_BASE}decoder.num_blocks", f"{_BASE}transformer.num_layers"),
    "hidden": (f"{_BASE}hidden_size", f"{_BASE}transformer.hidden_size"),
    "heads": (f"{_BASE}decoder.block.mixer.heads", f"{_BASE}transformer.num_attention_heads"),
    "kv_heads": (f"{_BASE}decoder.block.mixer.head_groups", f"{_BASE}transformer.head_groups"),
    "head_dim": (f"{_BASE}decoder.block.mixer.head_size", f"{_BASE}transformer.kv_channels"),
    "ffn": (f"{_BASE}decoder.block.mlp.intermediate_size", f"{_BASE}transformer.ffn_hidden_size"),
    "vocab": (f"{_BASE}embeddings.vocab_size", f"{_BASE}vocab_size"),
}


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is Fast-LLM's."""
    model = data.get("model")
    if not isinstance(model, dict):
        return False
    return bool({"multi_stage", "distributed"} & set(model)) and (
        "base_model" in model or "pretrained" in data
    )


def _degrees(options: Options, reading: Reading) -> None:
    """How the model is split."""
    tp = options.whole(f"{_SPLIT}tensor_parallel", default=1) or 1
    pp = options.whole(f"{_SPLIT}pipeline_parallel", default=1) or 1
    reading.layout = {
        "zero": min(options.whole("model.multi_stage.zero_stage"), 3),
        "tp": tp,
        "pp": pp,
        "sequence_parallel": tp > 1 and options.flag(f"{_SPLIT}sequence_tensor_parallel"),
        "recompute": "full" if options.word(f"{_BASE}transformer.full_recompute_level") else "none",
    }
    if pp > 1:
        reading.layout["schedule"] = (
            "looped-bfs" if options.whole("model.multi_stage.layers_per_stage") else "gpipe"
        )
    sp = options.whole(f"{_SPLIT}sequence_data_parallel", default=1) or 1
    if sp > 1:
        reading.layout |= {"cp": sp, "cp_method": "all-gather"}


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what a Fast-LLM configuration trains.

    Raises:
        SpecError: a value that cannot be, blocks of several kinds, or no model where none is given.
    """
    options = Options(flattened(data))
    reading = Reading("Fast-LLM YAML", options=dict(EDITS))
    mixer = options.word(f"{_BASE}decoder.block.mixer.type", default="attention")
    if mixer != "attention" or options.has(f"{_BASE}decoder.blocks"):
        raise SpecError(f"{_BASE}decoder", mixer, f"layers of several kinds are not modelled: {PLANNED} of attention")  # fmt: skip
    reading.model = given.model
    if reading.model is None and options.has(*_NAMES["hidden"]):
        gated = options.flag(f"{_BASE}decoder.block.mlp.gated", f"{_BASE}transformer.gated")
        kind = options.word(
            f"{_BASE}decoder.block.normalization.type",
            f"{_BASE}transformer.normalization.type",
            default="layer_norm",
        )
        reading.model = llama_like(
            options, _NAMES, gated=gated, norm="rmsnorm" if "rms" in kind else "layernorm",
            tied_embeddings=options.flag(f"{_BASE}tied_embedding_weight", f"{_BASE}tie_word_embeddings", default=False),
        )  # fmt: skip
    reading.model_name = options.loose("pretrained.path")
    if reading.model is None:
        refuse_other(reading.model_name)
    # A micro-batch is counted in tokens since 2025, in rows of `batch.sequence_length` before.
    reading.seq_len = options.whole("batch.sequence_length", "data.maximum_document_length")
    tokens = options.whole("data.micro_batch_size")
    reading.micro_batch = options.whole("batch.micro_batch_size") or (
        max(1, tokens // reading.seq_len) if tokens and reading.seq_len else 0
    )
    reading.global_batch = options.whole("batch.batch_size")
    reading.accumulation = (
        options.whole(
            "batch.depth_first_micro_batches", "schedule.depth_first_micro_batches", default=1
        )
        or 1
    )
    _degrees(options, reading)
    compute = options.word(f"{_SPLIT}compute_dtype", f"{_SPLIT}training_dtype", default="fp32")
    # 32-bit master weights and gradients, a 16-bit copy to compute with.
    recipe = (
        RECIPES["bf16-fp32-grads"]
        if compute in ("bf16", "bfloat16")
        else RECIPES["fp16" if "16" in compute else "fp32"]
    )
    reading.job = {"framework": "any", "precision": recipe.model_dump()}
    window = options.whole(f"{_BASE}decoder.block.mixer.window_size")
    if window and reading.model is not None and given.model is None and window < reading.seq_len:
        reading.model = reading.model.but(window=window)
    options.finish(reading, "fast_llm", "common", strict=given.strict)
    return reading
