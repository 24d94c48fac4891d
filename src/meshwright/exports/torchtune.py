"""Fine-tuning plans for torchtune: one YAML of its distributed recipes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from meshwright.exports.bundle import comment, steps, tuning_rate
from meshwright.exports.freezing import frozen_problems
from meshwright.exports.inputs import PLACEHOLDER
from meshwright.exports.limit_rules import Problem
from meshwright.exports.model_names import repository
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import GROUPS, Finetune
from meshwright.specs.job import Job
from meshwright.specs.model import Model
from meshwright.specs.plan import Plan

BUILDERS = {
    # Preset: (module and builder of full weights, tokenizer, model_type of the checkpointer); 0.6.1.
    "llama2-7b": ("llama2.llama2_7b", "llama2.llama2_tokenizer", "LLAMA2"),
    "llama2-13b": ("llama2.llama2_13b", "llama2.llama2_tokenizer", "LLAMA2"),
    "llama2-70b": ("llama2.llama2_70b", "llama2.llama2_tokenizer", "LLAMA2"),
    "llama3-8b": ("llama3.llama3_8b", "llama3.llama3_tokenizer", "LLAMA3"),
    "llama3-70b": ("llama3.llama3_70b", "llama3.llama3_tokenizer", "LLAMA3"),
    "llama3.1-8b": ("llama3_1.llama3_1_8b", "llama3.llama3_tokenizer", "LLAMA3"),
    "llama3.1-70b": ("llama3_1.llama3_1_70b", "llama3.llama3_tokenizer", "LLAMA3"),
    "llama3.1-405b": ("llama3_1.llama3_1_405b", "llama3.llama3_tokenizer", "LLAMA3"),
    "llama3.2-1b": ("llama3_2.llama3_2_1b", "llama3.llama3_tokenizer", "LLAMA3_2"),
    "llama3.2-3b": ("llama3_2.llama3_2_3b", "llama3.llama3_tokenizer", "LLAMA3_2"),
    "mistral-7b": ("mistral.mistral_7b", "mistral.mistral_tokenizer", "MISTRAL"),
    "qwen2.5-0.5b": ("qwen2_5.qwen2_5_0_5b", "qwen2_5.qwen2_5_tokenizer", "QWEN2"),
    "qwen2.5-1.5b": ("qwen2_5.qwen2_5_1_5b_base", "qwen2_5.qwen2_5_tokenizer", "QWEN2"),
    "qwen2.5-3b": ("qwen2_5.qwen2_5_3b", "qwen2_5.qwen2_5_tokenizer", "QWEN2"),
    "qwen2.5-7b": ("qwen2_5.qwen2_5_7b_base", "qwen2_5.qwen2_5_tokenizer", "QWEN2"),
    "qwen2.5-14b": ("qwen2_5.qwen2_5_14b_base", "qwen2_5.qwen2_5_tokenizer", "QWEN2"),
    "qwen2.5-32b": ("qwen2_5.qwen2_5_32b_base", "qwen2_5.qwen2_5_tokenizer", "QWEN2"),
    "qwen2.5-72b": ("qwen2_5.qwen2_5_72b_base", "qwen2_5.qwen2_5_tokenizer", "QWEN2"),
    "gemma-2b": ("gemma.gemma_2b", "gemma.gemma_tokenizer", "GEMMA"),
    "gemma-7b": ("gemma.gemma_7b", "gemma.gemma_tokenizer", "GEMMA"),
    "gemma2-2b": ("gemma2.gemma2_2b", "gemma.gemma_tokenizer", "GEMMA2"),
    "gemma2-9b": ("gemma2.gemma2_9b", "gemma.gemma_tokenizer", "GEMMA2"),
    "gemma2-27b": ("gemma2.gemma2_27b", "gemma.gemma_tokenizer", "GEMMA2"),
}
SHARDS = {
    # Files of the published weights, as torchtune's own recipes list them; Llama 3 8B as 3.1 8B.
    **dict.fromkeys(("llama3.2-1b", "qwen2.5-0.5b", "qwen2.5-1.5b"), 1),
    **dict.fromkeys(("llama2-7b", "mistral-7b", "llama3.2-3b", "qwen2.5-3b", "gemma-2b"), 2),
    **dict.fromkeys(("llama2-13b", "gemma2-2b"), 3),
    **dict.fromkeys(("llama3-8b", "llama3.1-8b", "qwen2.5-7b", "gemma-7b"), 4),
    **dict.fromkeys(("qwen2.5-14b", "gemma2-9b"), 8),
    "llama2-70b": 15, "qwen2.5-32b": 17, "gemma2-27b": 24, "llama3-70b": 30, "llama3.1-70b": 30,
    "qwen2.5-72b": 37, "llama3.1-405b": 191,
}  # fmt: skip
_ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "output_proj"}
_MLP = {"gate", "up", "down"}
_OPTIMIZERS = {
    "adamw": "torch.optim.AdamW", "adamw-bf16": "torch.optim.AdamW", "adam8bit": "bitsandbytes.optim.AdamW8bit",
    "paged-adamw": "bitsandbytes.optim.PagedAdamW", "paged-adam8bit": "bitsandbytes.optim.PagedAdamW8bit",
    "sgd": "torch.optim.SGD", "sgd-momentum": "torch.optim.SGD",
}  # fmt: skip


_FOLDER = (
    "python -c 'import pathlib, torchtune; print(pathlib.Path(torchtune.__file__).parents[1])'"
)
"""Prints where torchtune is installed; its recipes lie beside it and are no package."""


def problems(model: Model, job: Job, cluster: Cluster) -> Iterator[Problem]:
    """Models without a builder in torchtune, and adapters that its builders have no words for."""
    if job.finetune is not None:
        yield from frozen_problems("torchtune", model, job.finetune)
    if model.name not in BUILDERS:
        families = dict.fromkeys(name.split("-")[0] for name in BUILDERS)
        yield Problem("model", model.name, f"0.6.1 builds presets of {', '.join(families)} alone")
        return
    tune = job.finetune
    if tune is not None and tune.adapts:
        try:
            _adapters(tune, BUILDERS[model.name][0].startswith("gemma"))
        except SpecError as error:
            yield Problem(error.field, error.value, error.remedy.removeprefix("torchtune "))


def folder_of(model: Model) -> str:
    """Where the files say that the published weights lie on every host."""
    return f"/tmp/{(repository(model) or model.name).rsplit('/', 1)[-1]}"


def downloads(model: Model) -> list[str]:
    """Shell lines that put the published weights there: torchtune loads from a folder alone."""
    source = repository(model)
    if source is None:
        return []
    return [f'hf download {source} --exclude "*.pth" --local-dir {folder_of(model)}']


def _weights(name: str) -> list[str] | dict[str, str]:
    """The files of a model's published weights, as `checkpoint_files` lists them."""
    count = SHARDS[name]
    if count == 1:
        return ["model.safetensors"]
    torch = name.startswith(("llama2", "mistral"))
    form = "pytorch_model-{}-of-{}.bin" if torch else "model-{}-of-{}.safetensors"
    return {"filename_format": form, "max_filename": f"{count:05}"}


def _tokens(name: str, component: str, folder: str) -> dict[str, str]:
    """Where a tokenizer's files lie in the folder of the published weights."""
    if component.startswith("qwen"):
        return {"path": f"{folder}/vocab.json", "merges_file": f"{folder}/merges.txt"}
    inside = {"llama3.1-405b": "original/mp8/"}.get(name, "original/")
    return {"path": f"{folder}/{inside if component.startswith('llama3') else ''}tokenizer.model"}


def _adapters(tune: Finetune, tied: bool) -> dict[str, Any]:
    chosen = set(tune.targets)
    strange = chosen - set(_ATTENTION) - _MLP - {"head"}
    if strange or (chosen & _MLP and not chosen >= _MLP):
        raise SpecError(
            "finetune.targets",
            list(tune.targets),
            "torchtune adapts q, k, v, o one by one, the whole feed-forward "
            f"({', '.join(GROUPS['all-linear'])} is all) and the head",
        )
    if tied and "head" in chosen:
        raise SpecError(
            "finetune.targets",
            list(tune.targets),
            "torchtune does not adapt Gemma's head, which is its embedding",
        )
    if not chosen & set(_ATTENTION):
        raise SpecError("finetune.targets", list(tune.targets), "torchtune adapts at least one matrix of attention")  # fmt: skip
    if tune.storage not in ("16-bit", "nf4") or (
        tune.storage == "nf4" and not tune.double_quantization
    ):
        raise SpecError("finetune.storage", tune.storage, "torchtune keeps frozen weights in bf16, or in nf4 quantised twice")  # fmt: skip
    words: dict[str, Any] = {
        "lora_attn_modules": [_ATTENTION[one] for one in tune.targets if one in _ATTENTION],
        "apply_lora_to_mlp": bool(chosen & _MLP), **({} if tied else {"apply_lora_to_output": "head" in chosen}),
        "lora_rank": tune.rank, "lora_alpha": int(tune.alpha), "lora_dropout": tune.dropout,
    }  # fmt: skip
    if tune.method == "dora":
        words["use_dora"] = True
    if tune.storage == "nf4":
        words["quantize_base"] = True
    return words


def config(plan: Plan) -> dict[str, Any]:
    """The content of the YAML file.

    Raises:
        SpecError: no fine-tuning.
    """
    tune, layout, job = plan.job.finetune, plan.layout, plan.job
    if tune is None:
        raise SpecError(
            "finetune", None, "this target fine-tunes: plan with --finetune full, lora or qlora"
        )
    builder, tokenizer, kind = BUILDERS[plan.model.name]
    module, name = builder.split(".")
    folder = folder_of(plan.model)
    model: dict[str, Any] = {"_component_": f"torchtune.models.{builder}"}
    if tune.adapts:
        model = {
            "_component_": f"torchtune.models.{module}.lora_{name}",
            **_adapters(tune, module.startswith("gemma")),
        }
    component = _OPTIMIZERS[job.optimizer.name]
    optimizer: dict[str, Any] = {"_component_": component, "lr": tuning_rate(job)}
    if job.optimizer.name == "sgd-momentum":
        optimizer["momentum"] = 0.9
    loss = (
        "torch.nn.CrossEntropyLoss"
        if job.loss == "full"
        else "torchtune.modules.loss.CEWithChunkedOutputLoss"
    )
    data: dict[str, Any] = {
        "output_dir": "outputs",
        "model": model,
        "tokenizer": {"_component_": f"torchtune.models.{tokenizer}", **_tokens(plan.model.name, tokenizer, folder),
                      "max_seq_len": job.seq_len},
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer", "checkpoint_dir": folder,
            "checkpoint_files": _weights(plan.model.name),
            "recipe_checkpoint": None, "output_dir": "${output_dir}", "model_type": kind,
        },
        "resume_from_checkpoint": False,
        "dataset": {"_component_": "torchtune.datasets.alpaca_dataset", "source": PLACEHOLDER, "packed": True},
        "seed": None, "shuffle": True,
        "batch_size": layout.micro_batch,
        "gradient_accumulation_steps": layout.micro_batches(job.global_batch),
        "optimizer": optimizer,
        "optimizer_in_bwd": bool(job.framework_options.get("optimizer_in_backward")),
        "lr_scheduler": {"_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup", "num_warmup_steps": 100},
        "loss": {"_component_": loss},
        "epochs": 1, "max_steps_per_epoch": steps(job) if job.token_budget else None, "clip_grad_norm": None, "compile": False,
        "device": "cuda", "dtype": "bf16",
        "enable_activation_checkpointing": layout.recompute == "full",
        "enable_activation_offloading": "activations" in layout.offload,
        "fsdp_cpu_offload": "parameters" in layout.offload,
        "metric_logger": {"_component_": "torchtune.training.metric_logging.StdoutLogger", "log_dir": "${output_dir}/logs"},
        "log_every_n_steps": 1, "log_peak_memory_stats": True,
    }  # fmt: skip
    if layout.tp > 1:
        data["tensor_parallel_dim"] = layout.tp
        data["tensor_parallel_plan"] = {"_component_": "torchtune.models.llama3.base_llama_tp_plan"}
    return data


def files(plan: Plan, command: str) -> dict[str, str]:
    """`torchtune.yaml`."""
    text = comment(plan, command, "torchtune 0.6.1") + yaml.safe_dump(config(plan), sort_keys=False)
    return {"torchtune.yaml": text}


def words(plan: Plan) -> tuple[str, ...]:
    """What each rank runs: the recipe that belongs to the plan's method."""
    tune = plan.job.finetune
    kind = "lora" if tune is not None and tune.adapts else "full"
    return (
        f'"${{TORCHTUNE:-$({_FOLDER})}}/recipes/{kind}_finetune_distributed.py"',
        "--config",
        "torchtune.yaml",
    )
