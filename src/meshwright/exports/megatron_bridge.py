"""Megatron-Bridge: a plan as overrides of a recipe (`run_recipe.py --recipe R model.x=y …`), and back.

Its configuration objects are Megatron-Core's own, so the overrides are the flags of Megatron-LM
under the names of the fields. The base recipe sets nothing but defaults (`vanilla_gpt`), except for
multi-head latent attention, which only the DeepSeek-V3 recipe's model provider has. A model that flags have no words
for is built by its bridge from a config.json (`bridged`); the overrides then leave its shape alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from meshwright.exports import megatron
from meshwright.exports.bridged import PROGRAM, bridged
from meshwright.exports.canonical import canonical
from meshwright.exports.limit_rules import Problem
from meshwright.exports.megatron_model import Flags, band_fields, model_problems, read_pattern
from meshwright.specs.model import Model
from meshwright.specs.numerics import numerics_of
from meshwright.specs.plan import Plan

RECIPES = {False: "vanilla_gpt_pretrain_config", True: "deepseek_v3_pretrain_config"}
"""Base recipe by whether the model has latent attention."""


def _problems(model: Model) -> Iterator[Problem]:
    yield from () if bridged(model) else model_problems(model)


LIMITS = replace(megatron.LIMITS, title="Megatron-Bridge", framework="nemo", extra=_problems)
VERSION = LIMITS.can.checked

_SAME = {
    "model": (
        "num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "seq-length",
        "position-embedding-type", "normalization", "attention-dropout", "hidden-dropout",
        "kv-channels", "add-qkv-bias", "qk-layernorm", "window-size", "window-attn-skip-freq",
        "multi-latent-attention", "kv-lora-rank", "q-lora-rank", "qk-head-dim",
        "qk-pos-emb-head-dim", "v-head-dim", "moe-router-topk", "moe-ffn-hidden-size", "moe-expert-capacity-factor",
        "cuda-graph-impl",
        "moe-token-dispatcher-type", "moe-flex-dispatcher-backend", "moe-grouped-gemm", "moe-router-load-balancing-type",
        "moe-aux-loss-coeff", "moe-shared-expert-intermediate-size", "moe-shared-expert-gate",
        "moe-router-enable-expert-bias", "moe-router-score-function", "moe-router-pre-softmax", "moe-layer-freq",
        "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size",
        "expert-model-parallel-size", "expert-tensor-parallel-size", "sequence-parallel",
        "pipeline-model-parallel-layout", "recompute-granularity", "recompute-method",
        "recompute-num-layers", "attention-backend", "vocab-size", "cp-comm-type",
        "rotary-base", "rotary-percent", "rope-scaling-factor", "rope-type", "rotary-scaling-factor", "mscale",
        "mscale-all-dim", "moe-router-dtype", "moe-router-num-groups", "moe-router-group-topk",
        "moe-router-topk-scaling-factor", "moe-router-bias-update-rate", "init-method-std",
        "init-model-with-meta-device", "softmax-type", "glu-linear-offset",
        "activation-func-clamp-value",
        "yarn-original-max-position-embeddings", "yarn-beta-fast", "yarn-beta-slow",
    ),
    "train": ("micro-batch-size", "global-batch-size", "train-iters"),
    "ddp": (
        "use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather",
        "use-megatron-fsdp", "data-parallel-sharding-strategy",
        "num-distributed-optimizer-instances",
    ),
    "dist": ("use-tp-pp-dp-mapping", "distributed-timeout-minutes"),
    "checkpoint": ("ckpt-format",),
    "optimizer": ("optimizer", "lr", "min-lr", "clip-grad", "weight-decay", "sgd-momentum",
                  "adam-beta1", "adam-beta2", "adam-eps"),
}  # fmt: skip
_RENAMED = {
    "num-query-groups": "model.num_query_groups",
    "num-experts": "model.num_moe_experts",
    "norm-epsilon": "model.layernorm_epsilon",
    "use-rope-scaling": "model.rope_scaling",
    "rotary-seq-len-interpolation-factor": "model.seq_len_interpolation_factor",
    "num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
    "recompute-modules": "model.recompute_modules",
    "cuda-graph-modules": "model.cuda_graph_modules",
    "offload-modules": "model.offload_modules",
    "fine-grained-activation-offloading": "model.fine_grained_activation_offloading",
    "fine-grained-offloading-max-inflight-offloads": "model.fine_grained_offloading_max_inflight_offloads",
    "te-rng-tracker": "model.use_te_rng_tracker",
}
_FIELD = {
    flag: f"{table}.{flag.replace('-', '_')}" for table, flags in _SAME.items() for flag in flags
}
_FIELD |= _RENAMED
_LATENT_NEUTRAL = {
    # What the DeepSeek-V3 recipe sets otherwise than the flags of Megatron-LM do where they are silent.
    "model.q_lora_rank": "null", "model.moe_router_score_function": "softmax", "model.moe_router_pre_softmax": "false",
    "model.moe_router_num_groups": "null", "model.moe_router_group_topk": "null",
    "model.moe_router_topk_scaling_factor": "null", "model.moe_router_enable_expert_bias": "false",
    "model.moe_layer_freq": "1", "model.moe_shared_expert_intermediate_size": "null",
    "model.moe_shared_expert_overlap": "false", "model.moe_flex_dispatcher_backend": "null",
    "model.mtp_num_layers": "null", "model.pipeline_model_parallel_layout": "null",
    "model.cuda_graph_scope": "null", "model.make_vocab_size_divisible_by": "128",
    "model.deallocate_pipeline_outputs": "true", "tokenizer.use_tokenizer_vocab_size": "false",
    "model.sequence_parallel": "false", "model.recompute_granularity": "null",
    "model.recompute_modules": "null", "model.recompute_method": "null", "model.recompute_num_layers": "null",
    "ddp.overlap_grad_reduce": "false", "ddp.overlap_param_gather": "false",
    **{f"optimizer.{state}": "torch.float32" for state in ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")},
}  # fmt: skip
_MIXED = {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_current_scaling_mixed",
          "fp4": "bf16_with_nvfp4_mixed"}  # fmt: skip


def notes(plan: Plan) -> tuple[str, ...]:
    """What its named precision does beside what the plan priced."""
    if plan.job.precision.compute != "fp8":
        return ()
    return (
        f"{_MIXED['fp8']} keeps weights in 8 bits and computes the first and the last layer in 16: "
        "less memory and a little more time than the plan priced",
    )


def words(plan: Plan) -> tuple[str, ...]:
    """The words after torchrun's: the recipe runner, the recipe, and the overrides."""
    given = [f"{field}={value}" for field, value in overrides(plan).items()]
    if bridged(plan.model):
        return (PROGRAM, "--recipe", RECIPES[False], *given)
    recipe = RECIPES[plan.model.latent_attention is not None]
    runner = '"${MEGATRON_BRIDGE:-.}/scripts/training/run_recipe.py"'
    return (runner, "--recipe", recipe, *given)


def overrides(plan: Plan) -> dict[str, str]:
    """Field of the configuration → value as Hydra reads it."""
    model, job = plan.model, plan.job
    built = bridged(model)
    flags = megatron.run_flags(plan) if built else megatron.all_flags(plan)
    found: dict[str, str] = {}
    for flag, value in flags.items():
        if flag in _FIELD:
            found[_FIELD[flag]] = _hydra(flag, value, plan)
    # The data set would make a mask of each sample, 16 GiB of 128k tokens, which the step does not hand on.
    found["dataset.create_attention_mask"] = "false"
    found |= _beside_its_shape(plan, flags) if built else _shape(plan, flags, found)
    # Recipes bring optimizer states of their own precision; the plan prices fp32 ones.
    found["optimizer.use_precision_aware_optimizer"] = "false"
    found["tokenizer.vocab_size"] = str(model.vocab)
    found["dataset.seq_length"] = str(job.seq_len)
    sharded = canonical(plan.layout, model).zero > 0
    found["optimizer.use_distributed_optimizer"] = _bool(sharded)
    found["ddp.use_distributed_optimizer"] = _bool(sharded)
    found["ddp.grad_reduce_in_fp32"] = _bool(job.precision.gradient_reduce_bytes >= 4)
    found["mixed_precision"] = _MIXED.get(job.precision.compute, "null")
    # Recipes warm up over 500 or 2,000 steps, which a short run does not have: Megatron-Core refuses it.
    found |= {
        "scheduler.lr_warmup_iters": "0",
        "scheduler.lr_warmup_fraction": str(flags["lr-warmup-fraction"]),
    }
    if job.precision.compute == "fp32" and plan.layout.pp > 1:
        found["model.pipeline_dtype"] = "torch.float32"  # else the recipe of the precision says it
    if model.latent_attention is not None and not built:
        found |= {name: value for name, value in _LATENT_NEUTRAL.items() if name not in found}
        scaling = numerics_of(model).rope_scaling
        band = band_fields(scaling) if scaling is not None else {}
        found |= {f"model.{name}": value for name, value in band.items()}
    if flags.get("te-rng-tracker"):
        found["rng.te_rng_tracker"] = "true"
    if flags.get("no-check-for-nan-in-loss-and-grad"):
        found["rerun_state_machine.check_for_nan_in_loss"] = "false"
        found["ddp.check_for_nan_in_grad"] = "false"
    found["logger.log_interval"], found["validation.eval_iters"] = "1", "0"
    return found


def _beside_its_shape(plan: Plan, flags: Flags) -> dict[str, str]:
    """What is said of a model that a bridge builds: its sequence, how tokens reach experts, nothing predicted further."""
    found = {"model.seq_length": str(plan.job.seq_len), "model.mtp_num_layers": "null"}
    if plan.model.experts is not None and "moe-token-dispatcher-type" not in flags:
        found["model.moe_token_dispatcher_type"] = "alltoall"
    return found


def _shape(plan: Plan, flags: Flags, given: dict[str, str]) -> dict[str, str]:
    """What of a model's shape has no flag of its name, or other names here; renames those of `given`."""
    model, found = plan.model, dict[str, str]()
    if (
        flags["position-embedding-type"] == "yarn"
    ):  # whose fields have other names outside latent attention
        found["model.yarn_rotary_scaling_factor"] = given.pop("model.rotary_scaling_factor")
        rounded = "no-yarn-correction-range-round-to-int" not in flags
        found["model.yarn_correction_range_round_to_int"] = _bool(rounded)
    found["model.add_bias_linear"] = _bool(model.attention_out_bias)
    found["model.share_embeddings_and_output_weights"] = _bool(model.tied_embeddings)
    found["model.gated_linear_unit"] = _bool(model.gated)
    gate = "quick_gelu" if flags.get("quick-geglu") else "silu"
    plain = "squared_relu" if flags.get("squared-relu") else "gelu"
    found["model.activation_func"] = gate if model.gated else plain
    return found | _kernels(plan, flags)


def _kernels(plan: Plan, flags: Flags) -> dict[str, str]:
    """Fused kernels as Megatron-LM's own arguments have them; the recipe's model begins without, and with a mask.

    Its configuration refuses a fused GELU without biases and a squared ReLU (transformer_config.py).
    """
    model, found = plan.model, {"model.bias_dropout_fusion": "true"}
    if model.gated or (model.attention_out_bias and not flags.get("squared-relu")):
        found["model.bias_activation_fusion"] = "true"
    if flags["position-embedding-type"] == "rope" and not flags.get("no-rope-fusion"):
        found["model.apply_rope_fusion"] = "true"
    if flags.get("no-gradient-accumulation-fusion"):
        found["model.gradient_accumulation_fusion"] = "false"
    return found


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _hydra(flag: str, value: str | bool, plan: Plan) -> str:
    if value is True:
        return "true"
    if flag == "moe-layer-freq":
        return json.dumps(read_pattern(str(value), plan.model.layers), separators=(",", ":"))
    if flag in megatron.LISTED:
        return f"[{str(value).replace(' ', ',')}]"
    if flag == "window-size":
        return f"[{value}]"
    if flag == "pipeline-model-parallel-layout":
        return f'"{value}"'
    return str(value)
