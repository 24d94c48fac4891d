"""nanotron: a plan as its YAML, and back.

Follows `src/nanotron/config/config.py` and `parallelism_config.py` of huggingface/nanotron (main,
April 2026); mesh order pp, dp, tp from the outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from meshwright.exports.bundle import comment, learning_rate, steps, template, warmup
from meshwright.exports.canonical import canonical
from meshwright.exports.families import computes_otherwise
from meshwright.exports.hf_families import ACTIVATIONS
from meshwright.exports.inputs import SAVED_EVERY, TOKENS
from meshwright.exports.limit_rules import Problem
from meshwright.exports.limits import Limits
from meshwright.exports.model_names import repository
from meshwright.specs.model import Model
from meshwright.specs.numerics import numerics_of
from meshwright.specs.plain_families import plain_family
from meshwright.specs.plan import Plan

GPT2_TOKENS = 50_257
ENGINES = {"1f1b": "1f1b", "gpipe": "afab"}


_NO_ROPE = {"smollm3": 4}
"""Families whose every so many layers have no rotary positions: `no_rope_layer` of its Qwen2 architecture."""


def _problems(model: Model) -> Iterator[Problem]:
    every = _NO_ROPE.get(model.family)
    if every and model.layers % every:
        yield Problem("model.layers", model.layers, f"leaves positions out of every {every}th of layers that {every} divides")  # fmt: skip
    if not every:
        yield from computes_otherwise(model)
    if (not every and plain_family(model) != "llama") or model.qkv_bias:
        yield Problem("model.family", model.family, "is exported with its Llama architecture")
    elif model.head_dim * model.heads != model.hidden:
        says = f"has heads of hidden / heads = {model.hidden / model.heads:g}"
        yield Problem("model.head_dim", model.head_dim, says)


LIMITS = Limits("nanotron", "nanotron", _problems)
VERSION = LIMITS.can.checked


def _wide(plan: Plan) -> bool:
    """Whether gradients and the optimizer's weights have 32 bits: one switch brings both (helpers.py)."""
    return plan.job.precision.master_bytes > 0


def config(plan: Plan) -> dict[str, Any]:
    """The content of the YAML file."""
    layout, job, model = canonical(plan.layout, plan.model), plan.job, plan.model
    numerics, every = numerics_of(model), _NO_ROPE.get(model.family)
    shape: dict[str, Any] = {"is_llama_config": True}
    if every:
        shape = {"is_qwen2_config": True, "no_rope_layer": every}
    return {
        "checkpoints": {
            "checkpoint_interval": SAVED_EVERY, "checkpoints_path": "checkpoints",
            "checkpoints_path_is_shared_file_system": True, "resume_checkpoint_path": None,
            "save_initial_state": False,
        },
        "data_stages": [{
            "name": "Training", "start_training_step": 1,
            # Random tokens where nobody names others; nanotron ends where a data set is smaller than the run.
            "data": {"dataset": None, "num_loading_workers": 1, "seed": 42},
        }],
        "general": {
            "benchmark_csv_path": None, "consumed_train_samples": None,
            "ignore_sanity_checks": True, "project": "meshwright", "run": "plan", "seed": 42,
            "step": None,
        },
        "lighteval": None,
        "logging": {
            "iteration_step_info_interval": 1, "log_level": "info", "log_level_replica": "info",
        },
        "model": {
            "ddp_bucket_cap_mb": 25, "dtype": "bfloat16", "init_method": {"std": 0.02},
            "make_vocab_size_divisible_by": 1,
            "model_config": {
                "bos_token_id": 1, "eos_token_id": 2, "hidden_act": ACTIVATIONS[numerics.activation],
                "hidden_size": model.hidden, "initializer_range": 0.02,
                "intermediate_size": model.ffn, **shape,
                "max_position_embeddings": job.seq_len, "num_attention_heads": model.heads,
                "num_hidden_layers": model.layers, "num_key_value_heads": model.kv_heads,
                "pad_token_id": None, "pretraining_tp": 1, "rms_norm_eps": numerics.norm_epsilon,
                "rope_scaling": None, "rope_theta": numerics.rope_theta, "tie_word_embeddings": model.tied_embeddings,
                "use_cache": True, "vocab_size": model.vocab,
            },
        },
        "optimizer": {
            "accumulate_grad_in_fp32": _wide(plan), "clip_grad": 1.0,
            "learning_rate_scheduler": {
                "learning_rate": learning_rate(job), "lr_decay_starting_step": None, "lr_decay_steps": None,
                "lr_decay_style": "cosine", "lr_warmup_steps": warmup(job), "lr_warmup_style": "linear",
                "min_decay_lr": 0.1 * learning_rate(job),
            },
            "optimizer_factory": {
                "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "name": "adamW",
                "torch_adam_is_fused": True,
            },
            "weight_decay": 0.1, "zero_stage": layout.zero,
        },
        "parallelism": {
            "dp": layout.dp, "pp": layout.pp, "tp": layout.tp,
            "pp_engine": ENGINES[layout.schedule],
            "tp_mode": "REDUCE_SCATTER" if layout.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": layout.sequence_parallel,
            "recompute_layer": layout.recompute == "full", "expert_parallel_size": 1,
        },
        "profiler": None,
        "tokenizer": {
            "tokenizer_max_length": None, "tokenizer_name_or_path": repository(model) or "gpt2",
            "tokenizer_revision": None,
        },
        "tokens": {
            "batch_accumulation_per_replica": layout.micro_batches(job.global_batch),
            "limit_test_batches": 0, "limit_val_batches": 0,
            "micro_batch_size": layout.micro_batch, "sequence_length": job.seq_len,
            "train_steps": steps(job), "val_check_interval": -1,
        },
    }  # fmt: skip


def notes(plan: Plan) -> tuple[str, ...]:
    """What the file leaves out of the model, or of its text, which costs nothing."""
    found = []
    if _wide(plan) != (plan.job.precision.gradient_bytes >= 4):
        found.append(
            f"the plan prices gradients of {8 * plan.job.precision.gradient_bytes:g} bits; nanotron's have "
            f"{32 if _wide(plan) else 16}, as the weights that its optimizer updates"
        )
    if numerics_of(plan.model).rope_scaling is not None:
        found.append(
            "positions turn by their base alone, without the model's stretching of long ones"
        )
    if repository(plan.model) is None and plan.model.vocab < GPT2_TOKENS:
        found.append(
            f"tokenizer_name_or_path is yours to fill in: GPT-2's {GPT2_TOKENS} tokens are more than the model's"
        )
    return tuple(found)


def files(plan: Plan, command: str) -> dict[str, str]:
    """`nanotron.yaml`, and the program that completes it and starts nanotron's own of the same name."""
    text = comment(plan, command, f"nanotron {VERSION}") + yaml.safe_dump(
        config(plan), sort_keys=False
    )
    stamp = comment(plan, command, f"nanotron {VERSION}").rstrip()
    return {
        "nanotron.yaml": text,
        "run_train.py": template("run_train.py", {"STAMP": stamp, "ASKED": TOKENS}),
    }
