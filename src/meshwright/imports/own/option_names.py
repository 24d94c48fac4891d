"""The names that most programs give to their options."""

from __future__ import annotations

from collections.abc import Iterable

LAYERS = ("num_layers", "n_layers", "n_layer", "num_hidden_layers", "nlayers", "depth")
HIDDEN = ("hidden_size", "hidden_width", "d_model", "n_embd", "dim", "emb_dim", "embd_dim", "embed_dim", "hidden_dim", "model_dim", "n_embed", "embedding_dim", "hidden_states")  # fmt: skip
HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "nheads")
KV_HEADS = ("num_key_value_heads", "n_kv_heads", "num_kv_heads", "num_query_groups", "n_query_groups", "kvheads", "n_kv_head")  # fmt: skip
FFN = ("intermediate_size", "ffn_hidden_size", "intermediate_dim", "ffn_dim", "d_ff", "mlp_dim", "feed_forward_dim")  # fmt: skip
LENGTHS = (
    "global_max_sequence_length",
    "max_context_width", "max_sequence_length", "max_seq_length", "max_seq_len", "seq_length", "seq_len", "sequence_length", "block_size",
    "context_length", "context_len", "ctx_len", "cutoff_len", "sequence_len", "max_length", "model_max_length", "max_position_embeddings",
    "context_size", "context_window", "train_batch_len", "max_context_length", "max_len", "n_ctx", "n_positions", "max_tokens_count",
)  # fmt: skip
MICRO = (
    "micro_batch_size", "micro_batch", "per_device_train_batch_size", "micro_train_batch_size", "batch_size_per_device", "train_batch_size_per_device", "device_batch_size",
    "train_micro_batch_size", "batch_size_per_gpu", "per_gpu_batch_size", "per_device_batch_size", "per_gpu_train_batch_size",
    "micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu", "batch_size_training", "train_batch_size", "batch_size", "bs", "mbs",
)  # fmt: skip
STEPS = ("gradient_accumulation_steps", "grad_accumulation_steps", "accumulate_grad_batches", "gradient_accumulation",
          "grad_accum", "grad_accumulation", "accumulation_steps", "acc_steps", "grad_acc", "grad_acc_steps", "grad_accum_steps",
          "accum_steps", "accum_freq")  # fmt: skip
ANSWERS = ("num_generations", "group_size", "num_return_sequences", "n_samples_per_prompt", "num_samples_per_prompt", "samples_per_prompt",
           "rollouts_per_prompt", "num_rollouts", "num_answers_per_question")  # fmt: skip
"""How many answers a model gives to a prompt that is trained on."""
ANSWER_LENGTHS = ("max_gen_len", "max_new_tokens", "max_completion_length", "max_response_length", "max_answer_len", "gen_length")  # fmt: skip
BATCHES = (
    "global_batch_size",
    "total_batch_size",
    "global_train_batch_size",
    "world_batch_size",
    "effective_batch_size",
)
BATCHES_OF_TOKENS = (
    "global_batch_tokens", "total_batch_tokens", "batch_size_tokens", "global_batch_size_tokens", "total_batch_size_tokens", "tokens_per_batch",
    "tokens_per_step", "batch_tokens", "train_batch_tokens", "batch_size_in_tokens", "global_batch_size_in_tokens",
)  # fmt: skip
TOKENS = 65_536
"""From here on a batch is one of tokens."""
NAMES = ("model_name_or_path", "model_name", "model_id", "base_model", "pretrained_model_name_or_path", "pretrained_model_name", "hf_model",
         "config_name", "model_path", "model_variant", "init_ckpt", "model_dir", "hf_model_name_or_path", "model")  # fmt: skip
TRAINS = ("lr", "learning_rate", "num_train_epochs", "num_epochs", "epochs", "max_steps", "optimizer", "weight_decay", "train_iters")  # fmt: skip
FSDP = (
    "enable_fsdp",
    "use_fsdp",
    "fsdp_train",
    "train_fsdp",
    "fsdp_enabled",
    "use_fsdp2",
    "enable_fsdp2",
    "with_fsdp",
)
"""Switches of FSDP by their names."""
DEGREES = ("dp_size", "tp_size", "pp_size", "cp_size")
"""Degrees of a program that says all of them, and so how many devices it takes."""
ROTARY = ("use_rotary_embeddings", "use_rotary", "use_rope", "use_rotary_emb")
"""Switches of rotary positions where a program has several kinds."""
TIES = (
    "tie_word_embeddings",
    "tie_embeddings",
    "tied_embeddings",
    "weight_tying",
    "tie_weights",
    "share_embeddings",
)
"""Switches of one table for tokens in and out."""
UNITS = ("activation_function", "hidden_act", "activation", "act_fn", "mlp_type", "ffn_type")
"""Names under which a program says what its FFNs compute: a gate where it ends in `glu`."""
EXPERTS = (
    "num_experts",
    "n_experts",
    "n_routed_experts",
    "num_local_experts",
    "num_routed_experts",
    "moe_num_experts",
)
CHOSEN = (
    "num_experts_per_tok",
    "top_k_experts",
    "experts_per_token",
    "moe_top_k",
    "n_activated_experts",
    "top_k",
    "num_active_experts",
)
EXPERT_FFN = (
    "moe_intermediate_size",
    "expert_intermediate_dim",
    "expert_intermediate_size",
    "moe_hidden_dim",
    "expert_dim",
    "moe_inter_dim",
    "moe_ffn_hidden_size",
    "expert_hidden_dim",
)
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts")
OF_EXPERTS = tuple(
    one for one in (*EXPERTS, *CHOSEN, *EXPERT_FFN, *SHARED_EXPERTS) if one != "top_k"
)
"""What describes experts; a bare `top_k` is one of sampling, too."""


def says_enough(names: Iterable[str]) -> bool:
    """Whether options describe or name a model, and say a batch or a sequence."""
    names = set(names)
    shape = bool(names & set(LAYERS)) and bool(names & set(HIDDEN))
    return (shape or bool(names & set(NAMES))) and bool(names & {*LENGTHS, *MICRO, *BATCHES})


def says_batch(names: Iterable[str]) -> bool:
    """Whether options say how many sequences a step or a device takes."""
    return bool({*MICRO, *BATCHES} & set(names))


def says_tokens(names: Iterable[str]) -> bool:
    """Whether options say a batch or a sequence, in sequences or in tokens."""
    return bool({*MICRO, *BATCHES, *BATCHES_OF_TOKENS, *LENGTHS} & set(names))
