"""Configurations as a tracker of runs keeps them: every value in a table of its own, the model's beside the trainer's."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.options import counted

_LEAST = 5


def unwrapped(data: dict[str, Any]) -> dict[str, Any]:
    """A table of `name: {value: …, desc: …}`, as Weights & Biases writes its `config.yaml`, without those inner tables; others as they are."""
    held = {name: one for name, one in data.items() if isinstance(one, dict) and "value" in one and set(one) <= {"value", "desc"}}  # fmt: skip
    if len(held) < _LEAST or len(held) < len(data) - 1:  # a version stands beside them
        return data
    return _model_apart({name: one["value"] for name, one in held.items() if not name.startswith("_")})  # fmt: skip


_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads")
_OF_MODELS = frozenset({
    "model_type", "num_key_value_heads", "intermediate_size", "vocab_size", "max_position_embeddings", "head_dim", "tie_word_embeddings", "hidden_act",
    "num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "sliding_window", "layer_types", "attention_bias",
    "use_parallel_residual", "rotary_pct", *_SIZES,
})  # fmt: skip
"""Fields of a model's configuration that say its shape."""
_SAY_LITTLE = re.compile(
    r"architectures|base_model_\w+|\w+_token_id|chunk_size_feed_forward|classifier_dropout|encoder_no_repeat_ngram_size|id2label(?:\..*)?|label2id(?:\..*)?"
    r"|initializer_range|is_(?:decoder|encoder_decoder)|layer_norm_eps|rms_norm_eps|length_penalty|model/num_parameters|num_(?:beam_groups|beams|return_sequences)"
    r"|no_repeat_ngram_size|output_(?:attentions|hidden_states|scores)|partial_rotary_factor|rope_\w+|rotary_emb_base|return_dict\w*|transformers_version"
    r"|typical_p|diversity_penalty|min_length|repetition_penalty|top_[kp]|do_sample|early_stopping|torchscript|pruned_heads|add_cross_attention"
    r"|tie_encoder_decoder|tokenizer_class|problem_type|task_specific_params|use_bfloat16|remove_invalid_values|pretraining_tp|hidden_dropout|mlp_bias"
    r"|max_window_layers|use_sliding_window|bad_words_ids|suppress_tokens|begin_suppress_tokens|exponential_decay_length_penalty|cross_attention_hidden_size"
    r"|decoder_start_token_id|finetuning_task|forced_\w+|prefix|sep_token_id|tf_legacy_loss|temperature|quantization_config(?:\..*)?"
    r"|mp_parameters|fp16_(?:backend|opt_level)|half_precision_backend|past_index|skip_memory_metrics|accelerator_config\.(?:even_batches|use_seedable_sampler|split_batches|non_blocking)"
)
"""Fields of transformers' configurations, of generation and of a trainer's past, which say nothing of a step."""


def _model_apart(data: dict[str, Any]) -> dict[str, Any]:
    """A trainer's arguments with the model's configuration, which the tracker lays among them, in a table of its own."""
    if not isinstance(data.get("model_type"), str) or not all(counted(data.get(one)) for one in _SIZES):  # fmt: skip
        return data
    if "per_device_train_batch_size" not in data:
        return data
    shape = {name: one for name, one in data.items() if name in _OF_MODELS and one is not None}
    rest = {name: one for name, one in data.items() if name not in _OF_MODELS and not _SAY_LITTLE.fullmatch(name)}  # fmt: skip
    if isinstance(settings := rest.get("accelerator_config"), dict):
        rest["accelerator_config"] = {name: one for name, one in settings.items() if not _SAY_LITTLE.fullmatch(f"accelerator_config.{name}")}  # fmt: skip
    return {**rest, "model_config": shape}
