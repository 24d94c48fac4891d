"""A model as a Hugging Face `config.json` (transformers 5 names), for the targets that load one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from meshwright.exports.bundle import STAMP_KEY, stamp_data, template
from meshwright.exports.hf_classes import has_causal, has_images, keeps_every_score
from meshwright.exports.hf_families import ACTIVATIONS, WRITERS, ZERO_NORMS, lost, rope, shape
from meshwright.exports.limit_rules import Problem
from meshwright.exports.tuning_attention import EAGER, FLASH, bends_scores, keeps_scores
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.hf_carried import carried, class_family
from meshwright.specs.job import Job
from meshwright.specs.model import Model
from meshwright.specs.numerics import numerics_of
from meshwright.specs.plain_families import OTHERWISE, plain_family
from meshwright.specs.plan import Plan

_PLAIN = {
    "llama": "LlamaDecoderLayer", "mistral": "MistralDecoderLayer",
    "qwen2": "Qwen2DecoderLayer", "qwen3": "Qwen3DecoderLayer",
    "mixtral": "MixtralDecoderLayer", "gpt2": "GPT2Block",
}  # fmt: skip
"""The plainest families (`specs.plain_families`), and the class of one of their layers."""
_LENGTH = 4096
"""Tokens of the configuration by which a family is tried."""


def hf_problems(model: Model) -> Iterator[Problem]:
    """Why an architecture has no configuration among the families written here, and carries none that builds it."""
    if hf_family(model) is not None or own_config(model) is not None:
        return
    own = model.family in WRITERS and not model.unusual()
    if model.family in OTHERWISE and not own:
        lacks = f"has no words for it: {model.name} {OTHERWISE[model.family]}"
    elif own:
        part = _lost(model)
        lacks = f"gets its model from a Hugging Face config.json, which has no words for {part} of this one"
    else:
        lacks = f"gets its model from a Hugging Face config.json, written here for {', '.join((*_PLAIN, *WRITERS))}"
    yield Problem("model.family", model.family, lacks)


def hf_family(model: Model) -> str | None:
    """The Hugging Face model_type with exactly this architecture, if it is one we write.

    A plain one where it computes the same, since most software knows it; else the model's own family.
    """
    plain = plain_family(model)
    if plain is not None:
        return plain
    own = model.family in WRITERS and not model.unusual()
    return model.family if own and not _lost(model) else None


def own_config(model: Model) -> dict[str, Any] | None:
    """The config.json that a model carries, where no family written here says it and transformers has its class.

    Of a multimodal one this is the language model and its encoder.
    """
    if hf_family(model) is not None:
        return None
    config = carried(model)
    family = str(config.get("model_type")) if config else ""
    return config if has_causal(family) or has_images(family) else None


def _lost(model: Model) -> str:
    """The first part of a model that its family's configuration would lose; "" where it says all of it."""
    return lost(model, WRITERS[model.family][0](model, _LENGTH))


def attention_problems(model: Model, job: Job, cluster: Cluster) -> Iterator[Problem]:
    """Kernels that a plan prices and transformers does not have for this model on these devices."""
    if keeps_scores(job):
        return
    if own_config(model) is not None and keeps_every_score(class_family(model)):
        says = 'has attention that keeps all its scores alone: a --job file with attention_kernel = "unfused" prices them'
        yield Problem("job.attention_kernel", job.attention_kernel, says)
    priced = 'a --job file with attention_kernel = "unfused" prices them'
    if model.attention_sinks:
        says = f"computes attention with sinks by keeping all its scores: {priced}"
        yield Problem("model.attention_sinks", True, says)
    elif bends_scores(model) and not (cluster.device.has_bf16 and job.precision.compute in _HALF):
        says = f"bends scores in FlashAttention, which takes 16 bits on Ampere and newer; elsewhere it keeps all of them: {priced}"
        yield Problem("job.attention_kernel", job.attention_kernel, says)


_HALF = ("bf16", "fp16")


def needs_flash(plan: Plan) -> bool:
    """Whether an exported script asks for FlashAttention, which bends scores as PyTorch's own attention cannot."""
    return bends_scores(plan.model) and not keeps_scores(plan.job)


def first_numbers(model: Model, *, deepspeed: bool = False) -> str:
    """The part of a script that gives a model made there its first numbers: ours, or those that its class draws."""
    ours = own_config(model) is None
    which = "first_numbers" if ours else "own_numbers"
    made = () if deepspeed else ("blank",)
    drawn = () if ours else ("own_drawn",)
    parts = (*made, *drawn, f"{which}_deepspeed" if deepspeed else which)
    return "\n\n".join(template(part, {}) for part in parts).rstrip()


def first_norm(model: Model) -> float:
    """What a norm's weight begins with: some families add one to it."""
    return 0.0 if hf_family(model) in ZERO_NORMS else 1.0


def hf_config(model: Model, job: Job) -> dict[str, Any]:
    """The configuration that builds this architecture, with the kernel of its attention where it is not the usual.

    Raises:
        SpecError: no family written here has this architecture.
    """
    kernel = {"attn_implementation": EAGER} if keeps_scores(job) else {}
    if not kernel and bends_scores(model):
        kernel = {"attn_implementation": FLASH}
    return _shape(model, job.seq_len) | kernel


def config_file(plan: Plan, command: str) -> str:
    """The text of a plan's `config.json`, stamped."""
    config = hf_config(plan.model, plan.job)
    config[STAMP_KEY] = stamp_data(plan, command, "transformers 5")
    return json.dumps(config, indent=2) + "\n"


def _shape(model: Model, seq_len: int) -> dict[str, Any]:
    if (own := own_config(model)) is not None:
        return _trained(own, seq_len)
    family = _written(model)
    if family in WRITERS:
        return WRITERS[family][0](model, seq_len)
    numerics = numerics_of(model)
    if family == "gpt2":
        return {
            "model_type": "gpt2", "n_layer": model.layers, "n_embd": model.hidden,
            "n_head": model.heads, "n_inner": model.ffn, "vocab_size": model.vocab,
            "n_positions": max(model.max_positions, seq_len),
            "activation_function": ACTIVATIONS[numerics.activation],
            "layer_norm_epsilon": numerics.norm_epsilon, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
            "tie_word_embeddings": model.tied_embeddings,
        }  # fmt: skip
    config = shape(model, family, seq_len) | {
        "rms_norm_eps": numerics.norm_epsilon,
        "hidden_act": ACTIVATIONS[numerics.activation],
        "rope_parameters": rope(numerics),
    }
    if family in ("llama", "qwen3"):
        config["attention_bias"] = model.qkv_bias
    if family == "mistral":
        config["sliding_window"] = model.window
    if family == "mixtral" and model.experts is not None:
        config |= {
            "num_local_experts": model.experts.experts,
            "num_experts_per_tok": model.experts.top_k,
            "intermediate_size": model.experts.ffn,
        }
    return config


def _trained(config: dict[str, Any], seq_len: int) -> dict[str, Any]:
    """A published configuration for training: no cache of keys, which recomputation would fill twice, and positions enough."""
    found = {key: _trained(inner, seq_len) if isinstance(inner, dict) and "hidden_size" in inner else inner
             for key, inner in config.items()}  # fmt: skip
    longest = found.get("max_position_embeddings")
    if isinstance(longest, int) and longest < seq_len:
        found["max_position_embeddings"] = seq_len
    return found | {"use_cache": False}


def _written(model: Model) -> str:
    family = hf_family(model)
    if family is None:
        raise SpecError("model.family", model.family, next(hf_problems(model)).lacks)
    return family


def layer_class(model: Model) -> str | None:
    """The class of one transformer layer, the unit that FSDP shards; None where a model's own class names it.

    Raises:
        SpecError: no family written here has this architecture.
    """
    if own_config(model) is not None:
        return None
    family = _written(model)
    return WRITERS[family][1] if family in WRITERS else _PLAIN[family]
