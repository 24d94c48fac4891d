"""Fine-tuning plans for verl: the words of its supervised trainer on the FSDP engine."""

from __future__ import annotations

from meshwright.exports.adapter_names import adapter_names
from meshwright.exports.bundle import steps, tuning_rate
from meshwright.exports.fabric import check_hosts
from meshwright.exports.model_names import repository
from meshwright.exports.tuning_attention import EAGER, keeps_scores
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import GROUPS, Finetune
from meshwright.specs.model import Model
from meshwright.specs.plan import Plan


def fields(plan: Plan) -> dict[str, str]:
    """Fields of verl's configuration and their values, as Hydra reads them.

    Raises:
        SpecError: no fine-tuning, adapters that PEFT has no names for here, or only part of what offloads.
    """
    tune, layout, job = plan.job.finetune, plan.layout, plan.job
    if tune is None:
        raise SpecError(
            "finetune", None, "this target fine-tunes: plan with --finetune full or lora"
        )
    away = set(layout.offload) - {"activations"}
    hosts, per_host = check_hosts(plan)
    pure = job.precision.master_bytes == 0 and job.precision.parameter_bytes == 2
    said: dict[str, object] = {
        "data.train_batch_size": job.global_batch,
        "data.micro_batch_size_per_gpu": layout.micro_batch,
        "data.use_dynamic_bsz": False,
        "data.max_length": job.seq_len,
        "data.truncation": "right",
        "model.path": repository(plan.model) or plan.model.name,
        "model.enable_gradient_checkpointing": layout.recompute == "full",
        "model.enable_activation_offload": "activations" in layout.offload,
        "model.use_remove_padding": job.document_masking or layout.cp > 1,
        "model.use_liger": job.loss == "liger",
        "engine.strategy": "fsdp2",
        "engine.model_dtype": "bfloat16" if pure else "fp32",
        "engine.reshard_after_forward": layout.zero == 3,
        "engine.fsdp_size": layout.shard or -1,
        "engine.ulysses_sequence_parallel_size": layout.cp,
        "engine.offload_policy": bool(away),
        "optim.lr": tuning_rate(job),
        "trainer.nnodes": hosts,
        "trainer.n_gpus_per_node": per_host,
        "trainer.total_epochs": 1,
        "trainer.logger": "[console]",
    }
    if job.token_budget:
        # It ends with whichever comes first; an epoch has one step at least.
        said |= {"trainer.total_training_steps": steps(job), "trainer.total_epochs": steps(job)}
    if keeps_scores(job):
        said["+model.override_config.attn_implementation"] = EAGER
    if tune.adapts:
        said |= _adapters(plan.model, tune)
    return {name: str(value) for name, value in said.items()}


def _adapters(model: Model, tune: Finetune) -> dict[str, object]:
    linear = tune.targets == GROUPS["all-linear"]
    named = "all-linear" if linear else f"[{','.join(adapter_names(model, tune))}]"
    return {
        "model.lora_rank": tune.rank,
        "model.lora_alpha": int(tune.alpha),
        "model.target_modules": named,
    }


def files(plan: Plan, command: str) -> dict[str, str]:
    """No file of its own: verl takes its fields as words."""
    return {}


def words(plan: Plan) -> tuple[str, ...]:
    """What each rank runs."""
    said = (f"{name}={value}" for name, value in fields(plan).items())
    return ("-m", "verl.trainer.sft_trainer", *said)
