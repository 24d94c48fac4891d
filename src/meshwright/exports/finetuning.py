"""Fine-tuning plans for TRL, axolotl and LLaMA-Factory, with the DeepSpeed file that shards them.

Each is the one file that its tool is started with. The data set is filled in where its
script starts; what else a plan does not know (learning rate) is a value to change, said in a note. `meshwright fits` reads the files back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import yaml

from meshwright.exports import accelerate, seeing
from meshwright.exports.adapter_names import adapter_names
from meshwright.exports.bundle import comment, steps, tuning_rate
from meshwright.exports.freezing import llama_factory_words
from meshwright.exports.inputs import PLACEHOLDER
from meshwright.exports.model_names import repository
from meshwright.exports.tuning_attention import axolotl_words, keeps_scores, trl_words
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import GROUPS, Finetune
from meshwright.specs.job import Job
from meshwright.specs.job_words import quantises_experts, without_master
from meshwright.specs.plan import Plan

_OPTIMIZERS = {
    "adamw": "adamw_torch_fused", "adamw-bf16": "adamw_torch_fused", "adafactor": "adafactor",
    "adam8bit": "adamw_bnb_8bit", "paged-adamw": "paged_adamw_32bit", "sgd": "sgd",
    "paged-adam8bit": "paged_adamw_8bit", "lion": "lion_32bit", "lion8bit": "lion_8bit",
}  # fmt: skip
"""Our optimizer → transformers' `optim`."""


def tuning_of(plan: Plan) -> Finetune:
    """How a plan fine-tunes.

    Raises:
        SpecError: it trains from the start.
    """
    tune = plan.job.finetune
    if tune is None:
        raise SpecError(
            "finetune", None, "this target fine-tunes: plan with --finetune full, lora or qlora"
        )
    return tune


def _optimizer(job: Job) -> str:
    name = _OPTIMIZERS.get(job.optimizer.name)
    if name is None:
        raise SpecError("optimizer", job.optimizer.name, f"one of {', '.join(_OPTIMIZERS)}")
    return name


def _model_name(plan: Plan) -> str:
    return repository(plan.model) or plan.model.name


def _length(job: Job, epochs: str) -> dict[str, int]:
    """How long a run is: the steps that its tokens fill, else once through the data."""
    return {"max_steps": steps(job)} if job.token_budget else {epochs: 1}


def _replicas_only(plan: Plan, title: str) -> None:
    """Refuse what the files of a tool say nothing of.

    Raises:
        SpecError: a sequence or a layer is split among devices.
    """
    for axis in ("tp", "cp"):
        if (degree := getattr(plan.layout, axis)) > 1:
            raise SpecError(
                f"layout.{axis}",
                degree,
                f"{title}'s own file has data parallelism only; plan again with --{axis} 1",
            )


def _accumulation(plan: Plan) -> int:
    return plan.layout.micro_batches(plan.job.global_batch)


def deepspeed_stage(plan: Plan) -> int:
    """The ZeRO stage of the file that goes beside a tool's own; 0: none does.

    One device shards nothing, and yet DeepSpeed alone keeps its optimizer in host memory.
    """
    if plan.layout.zero or not {"optimizer", "parameters"} & set(plan.layout.offload):
        return plan.layout.zero
    return 3 if "parameters" in plan.layout.offload else 2


def brings_deepspeed(plan: Plan, tool: str) -> bool:
    """Whether DeepSpeed is what shards: not where TRL leaves that to accelerate's FSDP2, nor where axolotl runs its own."""
    by_accelerate = tool == "trl" and splits_layers(plan) and not by_deepspeed(plan)
    own = tool == "axolotl" and _shards_itself(plan)
    return deepspeed_stage(plan) > 0 and not by_accelerate and not own


def _shards_itself(plan: Plan) -> bool:
    """Whether axolotl's FSDP2 keeps what was priced and DeepSpeed would not: whole weights of 16 bits, moments too.

    Source: axolotl/monkeypatch/accelerate/fsdp2.py, whose `fsdp2_prepare_model` shards weights as they were loaded;
    accelerate's own, which it replaces, makes 32-bit ones of them.
    """
    layout, job = plan.layout, plan.job
    whole = job.finetune is not None and not job.finetune.adapts
    narrow = without_master(job) and job.optimizer.name == "adamw-bf16" and whole
    away = set(layout.offload)
    return (
        narrow
        and layout.zero == 3
        and layout.cp == 1
        and away in (set(), {"optimizer", "parameters"})
    )


def _fsdp2(plan: Plan) -> dict[str, Any]:
    """axolotl's words for its FSDP2 (utils/schemas/fsdp.py); recomputation is its own there, not the Trainer's."""
    sharding = {
        "offload_params": "parameters" in plan.layout.offload,
        # Each layer as the model's own class names it.
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "state_dict_type": "SHARDED_STATE_DICT", "reshard_after_forward": True,
        # The last weights whole, as other software reads them.
        "final_state_dict_type": "FULL_STATE_DICT",
        # One process of a host reads the checkpoint, not each of them.
        "cpu_ram_efficient_loading": True, "activation_checkpointing": plan.layout.recompute == "full",
    }  # fmt: skip
    return {"gradient_checkpointing": False, "fsdp_version": 2, "fsdp_config": sharding}


def _deepspeed(plan: Plan) -> dict[str, Any]:
    """A DeepSpeed file whose sizes transformers fills in."""
    layout = plan.layout
    zero: dict[str, Any] = {"stage": deepspeed_stage(plan), "overlap_comm": True}
    if zero["stage"] == 3:
        # Weights are saved whole, as other software reads them, not as shards to be joined by a script.
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    for what, key in (("optimizer", "offload_optimizer"), ("parameters", "offload_param")):
        if what in layout.offload:
            zero[key] = {"device": "cpu", "pin_memory": True}
    auto = "auto"
    return {
        "zero_optimization": zero, _half(plan): {"enabled": auto}, "gradient_clipping": auto,
        "train_micro_batch_size_per_gpu": auto, "gradient_accumulation_steps": auto,
        "train_batch_size": auto,
    }  # fmt: skip


_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def _half(plan: Plan) -> str:
    """The 16-bit precision under TrainingArguments' and DeepSpeed's name; in fp16 both scale the losses."""
    return "fp16" if plan.job.precision.compute == "fp16" else "bf16"


def _quantised(tune: Finetune) -> dict[str, Any]:
    if tune.storage == "int8":
        return {"load_in_8bit": True}
    if tune.storage in ("nf4", "fp4"):
        return {"load_in_4bit": True, "bnb_4bit_quant_type": tune.storage}
    return {}


def axolotl(plan: Plan) -> dict[str, Any]:
    """The content of axolotl's YAML file."""
    tune, layout, job = tuning_of(plan), plan.layout, plan.job
    data: dict[str, Any] = {"base_model": _model_name(plan)}
    if tune.adapts:
        data |= {
            "adapter": "qlora" if tune.method == "qlora" else "lora",
            "lora_r": tune.rank,
            "lora_alpha": int(tune.alpha),
            "lora_dropout": tune.dropout,
        }
        if seeing.seen_by("axolotl", plan):
            data["lora_target_modules"] = seeing.language_pattern(adapter_names(plan.model, tune))
        elif tune.targets == GROUPS["all-linear"]:
            data["lora_target_linear"] = True
        else:
            data["lora_target_modules"] = adapter_names(plan.model, tune)
        data |= {"peft_use_dora": True} if tune.method == "dora" else {}
        loaded = _quantised(tune)
        # axolotl quantises to nf4, twice, and takes other words in a table of their own.
        kind = loaded.pop("bnb_4bit_quant_type", "nf4")
        other: dict[str, Any] = {} if kind == "nf4" else {"bnb_4bit_quant_type": kind}
        if tune.method == "qlora" and not tune.double_quantization:
            other["bnb_4bit_use_double_quant"] = False
        if quantises_experts(plan.model, job):
            data["quantize_moe_experts"] = (
                True  # one parameter a layer, which bitsandbytes passes over
            )
        data |= loaded | ({"bnb_config_kwargs": other} if other else {})
    data |= {
        "sequence_len": job.seq_len, "sample_packing": True, "pad_to_sequence_len": True,
        "micro_batch_size": layout.micro_batch, "gradient_accumulation_steps": _accumulation(plan),
        "optimizer": _optimizer(job), "bf16": _half(plan) == "bf16", **({"fp16": True} if _half(plan) == "fp16" else {}),
        **axolotl_words(plan),
        "gradient_checkpointing": layout.recompute == "full",
        "learning_rate": tuning_rate(job), **_length(job, "num_epochs"), "lr_scheduler": "cosine",
        "datasets": [{"path": PLACEHOLDER, "type": "alpaca"}], "output_dir": "outputs",
    }  # fmt: skip
    data |= seeing.axolotl_words(plan)
    if layout.cp > 1:
        data["context_parallel_size"] = layout.cp
    if job.loss in ("liger", "cut"):
        data["plugins"] = [f"axolotl.integrations.{_PLUGINS[job.loss]}"]
        data["liger_fused_linear_cross_entropy" if job.loss == "liger" else "cut_cross_entropy"] = (
            True
        )
    if "activations" in layout.offload:
        data["activation_offloading"] = True
    if brings_deepspeed(plan, "axolotl"):
        data["deepspeed"] = "deepspeed.json"
    elif deepspeed_stage(plan):
        data |= _fsdp2(plan)
    return data


_PLUGINS = {"liger": "liger.LigerPlugin", "cut": "cut_cross_entropy.CutCrossEntropyPlugin"}


def llama_factory(plan: Plan) -> dict[str, Any]:
    """The content of LLaMA-Factory's YAML file."""
    _replicas_only(plan, "LLaMA-Factory")
    tune, layout, job = tuning_of(plan), plan.layout, plan.job
    data: dict[str, Any] = {
        "model_name_or_path": _model_name(plan),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora" if tune.adapts else "full",
        **llama_factory_words(plan.model, tune),
    }
    if tune.adapts:
        linear = tune.targets == GROUPS["all-linear"]
        data |= {
            "lora_rank": tune.rank,
            "lora_alpha": int(tune.alpha),
            "lora_dropout": tune.dropout,
            "lora_target": "all" if linear else ",".join(adapter_names(plan.model, tune)),
        }
        data |= {"use_dora": True} if tune.method == "dora" else {}
        if tune.storage != "16-bit":
            data |= {
                "quantization_bit": 8 if tune.storage == "int8" else 4,
                "quantization_method": "bnb",
            }
            if tune.storage in ("nf4", "fp4"):
                data |= {
                    "quantization_type": tune.storage,
                    "double_quantization": tune.double_quantization,
                }
    data |= {
        # A data set of the hub: its own list of data lies in its repository alone.
        "dataset": PLACEHOLDER, "dataset_dir": "ONLINE", "template": "default", "cutoff_len": job.seq_len, "packing": True,
        "neat_packing": job.document_masking,
        "per_device_train_batch_size": layout.micro_batch,
        "gradient_accumulation_steps": _accumulation(plan), "optim": _optimizer(job), _half(plan): True,
        "disable_gradient_checkpointing": layout.recompute != "full", "flash_attn": "disabled" if keeps_scores(job) else "fa2",
        "learning_rate": tuning_rate(job), **_length(job, "num_train_epochs"), "output_dir": "outputs",
    }  # fmt: skip
    data |= seeing.llama_factory_words(plan.model, job)
    if job.loss == "liger":
        data["enable_liger_kernel"] = True
    if deepspeed_stage(plan):
        data["deepspeed"] = "deepspeed.json"
    return data


def trl(plan: Plan) -> dict[str, Any]:
    """The content of the YAML file that `trl sft --config` reads."""
    tune, layout, job = tuning_of(plan), plan.layout, plan.job
    split, shared = splits_layers(plan), by_deepspeed(plan)
    data: dict[str, Any] = {"model_name_or_path": _model_name(plan), "dtype": _DTYPES[_half(plan)]}
    if tune.adapts:
        data |= {
            "use_peft": True,
            "lora_r": tune.rank,
            "lora_alpha": int(tune.alpha),
            "lora_dropout": tune.dropout,
            "lora_target_modules": _trl_targets(plan, tune),
        }
        data |= {"use_dora": True} if tune.method == "dora" else {}
        data |= _quantised(tune)
        if tune.double_quantization:
            data["use_bnb_nested_quant"] = True
        if plan.layout.zero == 3 and tune.storage in ("nf4", "fp4"):
            # Shards are cut from numbers of the compute type, not from packed bytes (axolotl and LLaMA-Factory say so themselves).
            data["bnb_4bit_quant_storage"] = data["dtype"]
    data |= {
        "max_length": job.seq_len, "bf16": _half(plan) == "bf16", **({"fp16": True} if _half(plan) == "fp16" else {}),
        **packed(plan), **trl_words(plan),
        "per_device_train_batch_size": layout.micro_batch,
        "gradient_accumulation_steps": _accumulation(plan), "optim": _optimizer(job),
        # FSDP2 recomputes where it shards; transformers refuses both at once.
        "gradient_checkpointing": layout.recompute == "full" and (shared or not split), "learning_rate": tuning_rate(job),
        # Plain text: tokenizers of base models have no template for chats.
        **_length(job, "num_train_epochs"), "dataset_name": PLACEHOLDER, "output_dir": "outputs",
    }  # fmt: skip
    if layout.cp > 1:
        # Of torch's two chunks a rank balance a causal mask; Ulysses has one, and whole heads.
        data["pad_to_multiple_of"] = layout.cp if shared else 2 * layout.cp
    if job.loss == "liger":
        data["use_liger_kernel"] = True
    elif job.loss == "chunked":
        data["loss_type"] = (
            "chunked_nll"  # 1.16's only one, under the name that earlier versions know, too
        )
    if "activations" in layout.offload:
        data["activation_offloading"] = True
    if deepspeed_stage(plan) and not split:
        data["deepspeed"] = "deepspeed.json"
    return data


def _trl_targets(plan: Plan, tune: Finetune) -> list[str]:
    """Matrices with adapters; one word alone is `all-linear` or a pattern (trainer/model_config.py)."""
    if seeing.seen_by("trl", plan):
        return [seeing.language_pattern(adapter_names(plan.model, tune))]
    linear = tune.targets == GROUPS["all-linear"]
    return ["all-linear"] if linear else adapter_names(plan.model, tune)


def packed(plan: Plan) -> dict[str, Any]:
    """Rows of whole length, whose documents see each other, or not, as the plan was priced.

    FSDP2's context parallelism drops the mask between documents, so TRL refuses to pack beside it; beside
    Ulysses it packs, and PyTorch's own attention, which the export asks for there, keeps no documents apart.
    """
    apart = plan.layout.cp > 1 and (not by_deepspeed(plan) or plan.job.document_masking)
    if apart or seeing.seen_by("trl", plan):  # nothing is packed around images
        return {"packing": False}
    if plan.job.document_masking:
        return {"packing": True, "padding_free": True}
    return {"packing": True, "packing_strategy": "wrapped"}


def by_deepspeed(plan: Plan) -> bool:
    """Whether sequences are split by Ulysses, which accelerate hands to DeepSpeed's engine (`sp_size`)."""
    return plan.layout.cp > 1 and plan.layout.cp_method == "ulysses"


def splits_layers(plan: Plan) -> bool:
    """Whether a plan splits layers or sequences, which TRL leaves to accelerate's own configuration."""
    return plan.layout.tp > 1 or plan.layout.cp > 1


def _trl_files(plan: Plan, command: str) -> dict[str, str]:
    found = _yaml_files("trl", trl)(plan, command)
    if by_deepspeed(plan):
        config = accelerate.deepspeed_config(plan, "deepspeed.json")
        found["accelerate.yaml"] = comment(plan, command, "trl") + yaml.safe_dump(
            config, sort_keys=False
        )
    elif splits_layers(plan):
        config = accelerate.config(plan)
        # A published model names its layers itself; one shaped like Llama has a class of its own.
        config.get("fsdp_config", {}).pop("fsdp_transformer_layer_cls_to_wrap", None)
        tune = plan.job.finetune
        if "fsdp_config" in config and (tune is None or tune.storage == "16-bit"):
            # One process of a host reads the checkpoint, not each of them.
            config["fsdp_config"]["fsdp_cpu_ram_efficient_loading"] = True
        text = comment(plan, command, "trl") + yaml.safe_dump(config, sort_keys=False)
        found["accelerate.yaml"] = text
    return found


def _yaml_files(
    name: str, made: Callable[[Plan], dict[str, Any]]
) -> Callable[[Plan, str], dict[str, str]]:
    def files(plan: Plan, command: str) -> dict[str, str]:
        text = comment(plan, command, name) + yaml.safe_dump(made(plan), sort_keys=False)
        found = {f"{name}.yaml": text}
        if brings_deepspeed(plan, name):
            found["deepspeed.json"] = json.dumps(_deepspeed(plan), indent=2) + "\n"
        return found

    return files


FILES = {
    "trl": _trl_files,
    "axolotl": _yaml_files("axolotl", axolotl),
    "llama-factory": _yaml_files("llama-factory", llama_factory),
}
WORDS: dict[str, tuple[str, ...]] = {
    "trl": ("-m", "trl.scripts.sft", "--config", "trl.yaml"),
    "axolotl": ("-m", "axolotl.cli.train", "axolotl.yaml"),
    "llama-factory": ("-m", "llamafactory.launcher", "llama-factory.yaml"),
}
"""What each rank runs under torchrun: each tool's own module."""
