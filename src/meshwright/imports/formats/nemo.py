"""NeMo: the YAML of its first generation, and NeMo RL's."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from meshwright.imports.formats import megatron
from meshwright.imports.interpolate import merged, resolved, words_to_table
from meshwright.imports.names import PLANNED, model_named
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_named
from meshwright.imports.shell.words import unmarked, unset
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

_FIELDS = {
    # Field of NeMo's model table → Megatron-LM's flag, where the spelling differs.
    "encoder_seq_length": "seq-length", "tensor_model_parallel_size": "tensor-model-parallel-size",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank", "num_moe_experts": "num-experts",
    "activations_checkpoint_granularity": "recompute-granularity", "activations_checkpoint_method": "recompute-method",
    "activations_checkpoint_num_layers": "recompute-num-layers", "rotary_percentage": "rotary-percent",
}  # fmt: skip
_DETAILS = (
    ("fp8", "fp8"),
    ("reduce_amax", "fp8"),
    ("cpu_offloading_", "cpu_offloading"),
    ("fsdp_", "fsdp"),
)
_USUAL = {
    "transformer_block_type": ("pre_ln", "norms stand elsewhere in a layer; before attention and FFN they are priced"),
    "ffn_dropout": (0, "dropout inside the FFN; not priced"),
    "gradient_as_bucket_view": (True, "gradients are copied to buckets: more memory than estimated"),
    "normalize_attention_scores": (True, "attention is not scaled; numerics only"),
    "attention_type": ("multihead", "another attention; multi-head attention is priced"),
    "headscale": (False, "heads are scaled by weights of their own; not priced"),
}  # fmt: skip
"""Fields of a model that have no flag: the usual value, and what another one means."""
EDITS = {
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size", "micro_batch": "micro_batch_size",
}  # fmt: skip
_GATED = ("swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu", "fast-reglu", "quick-geglu")


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is of NeMo's first generation."""
    model = data.get("model")
    # NeMo-Aligner's take what the checkpoint says for granted: degrees and sizes are not repeated.
    return (
        isinstance(model, dict)
        and bool({"tensor_model_parallel_size", "mcore_gpt", "megatron_amp_O2"} & set(model))
        and ("trainer" in data or "exp_manager" in data)
    )


def whole(data: dict[str, Any]) -> dict[str, Any]:
    """A table as it is; where it is such a file's `model` alone, as a checkpoint holds it (`model_config.yaml`), in its place."""
    alone = {"encoder_seq_length", "num_layers"} <= set(data) and {"mcore_gpt", "megatron_amp_O2"} & set(data)  # fmt: skip
    return {"model": data, "trainer": {}} if alone else data


def _flags(data: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """The fields of a NeMo YAML as the Megatron options that they set."""
    flags: dict[str, Any] = {}
    for key, value in model.items():
        if isinstance(value, (dict, list)) or value is None or value is False:
            continue
        if any(str(key).startswith(part) and not model.get(switch) for part, switch in _DETAILS):
            continue  # details of what is off
        flags[_FIELDS.get(str(key), str(key).replace("_", "-"))] = value
    train = model.get("data", {}).get("train_ds") if isinstance(model.get("data"), dict) else None
    for key in ("micro_batch_size", "global_batch_size"):
        if isinstance(train, dict) and isinstance(train.get(key), int):
            flags.setdefault(key.replace("_", "-"), train[key])
    if isinstance(train, dict) and isinstance(train.get("max_seq_length"), int):
        flags.setdefault("seq-length", train["max_seq_length"])
    activation = str(model.get("activation", "gelu"))
    if activation in _GATED:
        flags["swiglu"] = True
    if model.get("bias") is False:
        flags["disable-bias-linear"] = True
    if model.get("num_query_groups"):
        flags["group-query-attention"] = True
    if model.get("share_embeddings_and_output_weights") is False:
        flags["untie-embeddings-and-output-weights"] = True
    if "rms" in str(model.get("normalization", "")):
        flags["normalization"] = "RMSNorm"
    trainer = data.get("trainer") if isinstance(data.get("trainer"), dict) else {}
    precision = str((trainer or {}).get("precision", "bf16"))
    flags["bf16" if "bf16" in precision else "fp16" if "16" in precision else "params-fp32"] = True
    if model.get("fp8"):
        flags["fp8"] = "hybrid"
    tokenizer = model.get("tokenizer")
    for key, flag in (
        ("type", "tokenizer-type"),
        ("model", "tokenizer-model"),
        ("vocab_file", "vocab-file"),
    ):
        value = tokenizer.get(key) if isinstance(tokenizer, dict) else None
        if isinstance(value, str) and value and not unset(value):
            flags[flag] = value
    _optimizer(flags, model)
    old = not any(model.get(name) for name in ("mcore_gpt", "transformer_engine", "use_flash_attention"))  # fmt: skip
    if old and "num_layers" in model:  # apex's layers, whose attention holds its scores
        flags["transformer-impl"] = "local"
    flags["tp-comm-overlap"] = bool(model.get("ub_tp_comm_overlap"))
    said = model.get("data")
    for key in ("reset_attention_mask", "reset_position_ids"):
        if isinstance(said, dict) and said.get(key) is True:
            flags[key.replace("_", "-")] = True
    if model.get("overlap_p2p_comm") is False and model.get("virtual_pipeline_model_parallel_size"):
        flags["no-overlap-p2p-communication"] = True
    flags.setdefault("attention-dropout", 0.1)
    return flags


def _optimizer(flags: dict[str, Any], model: dict[str, Any]) -> None:
    """The optimizer's flags; apex's distributed one reduces beside the backward unless it is told otherwise."""
    optim = model.get("optim") if isinstance(model.get("optim"), dict) else {}
    assert isinstance(optim, dict)
    name = str(optim.get("name", "distributed_fused_adam"))
    flags["use-distributed-optimizer"] = "distributed" in name or bool(
        model.get("use_distributed_optimizer")
    )
    flags["optimizer"] = optimizer_named(name, "model.optim.name").name.replace("adamw", "adam")
    flags["use-distributed-optimizer"] |= optim.get("use_distributed_optimizer") is True
    reduced, gathered = (optim.get(key, optim.get(other)) for key, other in (
        ("overlap_grad_sync", "overlap_grad_reduce"), ("overlap_param_sync", "overlap_param_gather")))  # fmt: skip
    flags["overlap-grad-reduce"] = name != "mcore_distributed_optim" if reduced is None else bool(reduced)  # fmt: skip
    flags["overlap-param-gather"] = bool(gathered)
    if isinstance(optim.get("bucket_size"), int):
        flags["ddp-bucket-size"] = optim["bucket_size"]
    if optim.get("fp8_param_gather") is True and (model.get("fp8") or model.get("fp4")):
        flags["fp8-param-gather"] = True
    if "bf16" in str(optim.get("grad_sync_dtype", "")) and flags.get("bf16"):
        flags["grad-reduce-in-bf16"] = True


_COMMAND = frozenset({"tensor_model_parallel_size", "pipeline_model_parallel_size", "megatron_amp_O2", "global_batch_size", "restore_from_path"})  # fmt: skip


def is_command(words: list[str]) -> bool:
    """Whether a command's words override a configuration of NeMo's first generation."""
    table = words_to_table(words)
    model, trainer = table.get("model"), table.get("trainer")
    ours = isinstance(model, dict) and len(_COMMAND & set(model)) > 1
    return ours and isinstance(trainer, dict) and bool({"devices", "num_nodes"} & set(trainer))


def read_words(words: list[str], given: Given) -> Reading:
    """Return what a command runs whose configuration is not at hand: what its words say of it.

    Raises:
        SpecError: a value that cannot be, or no model that is known.
    """
    table = words_to_table(words)
    restored = str(table["model"].get("restore_from_path") or "").removesuffix(".nemo")
    named = model_named(unmarked(restored)) if given.model is None and "num_layers" not in table["model"] else None  # fmt: skip
    # Fine-tuning's own configurations set no dropout beside the checkpoint's.
    usual = {"hidden_dropout": 0.0, "attention_dropout": 0.0} if restored else {}
    reading = read({"model": usual, "trainer": {}}, given if named is None else replace(given, model=named), words)  # fmt: skip
    reading.format = "NeMo command"
    if named is not None:
        reading.guess("--model", f"what describes the model is in its checkpoint; {named.name}, by that one's name, is taken")  # fmt: skip
    reading.guess("--config-name", "this configuration of NeMo's is not here: what the command does not set is taken as the usual")  # fmt: skip
    return reading


_WITHOUT_ATTENTION = re.compile(r"hyena|mamba|griffin")
"""NeMo's models that mix tokens by other means, by the name of a run, of a specification or of a model's table."""


def read(data: dict[str, Any], given: Given, overrides: list[str]) -> Reading:
    """Return what a NeMo YAML runs.

    Raises:
        SpecError: a value that cannot be, or a model that is not modelled.
    """
    data = resolved(merged(data, words_to_table(overrides)), dict(given.variables))
    model = data["model"]
    sets = model.get("data") if isinstance(model.get("data"), dict) else {}
    if "test_ds" in sets and "train_ds" not in sets:
        raise SpecError("model.data", None, "holds a test set alone: it evaluates, and does not train")  # fmt: skip
    mixes = _WITHOUT_ATTENTION.search(" ".join(map(str, (data.get("name"), model.get("spec_name"), *model))))  # fmt: skip
    if mixes is not None:
        raise SpecError("model", mixes.group(), "not modelled: meshwright plans softmax-attention transformers")  # fmt: skip
    _refuse_other(model, data)
    flags = _flags(data, model)
    trainer = data.get("trainer") if isinstance(data.get("trainer"), dict) else {}
    options = Options(flags)
    options.read |= {
        "params-fp32",
        "activation",
        "bias",
        "precision",
        "share-embeddings-and-output-weights",
        "optim",
        "max-position-embeddings",
        "answer-only-loss",
        "base-config",
        "name",
        "gc-interval-train",
        "gc-interval-valid",
        "ub-tp-comm-overlap",
    }
    launched = data.get("run") if given.model is None and "num_layers" not in model else None
    named = str(launched.get("model_train_name", "")) if isinstance(launched, dict) else ""
    if (known := model_named(named)) is not None:
        given = replace(given, model=known)
    reading = megatron.read(options, given, "NeMo YAML", recipe=True)
    if known is not None:
        reading.guess("run.model_train_name", f"what describes the model is in its checkpoint; {known.name}, by this name, is taken")  # fmt: skip
    reading.options = dict(EDITS)
    devices, hosts = (trainer or {}).get("devices"), (trainer or {}).get("num_nodes")
    reading.per_host = devices if isinstance(devices, int) and devices > 0 else 0
    reading.hosts = hosts if isinstance(hosts, int) else 0
    reading.job["framework"] = "nemo"
    if not flags["tp-comm-overlap"]:  # the framework's recipes have it
        reading.job["framework_options"] = {**reading.job.get("framework_options", {}), "tensor_overlapped": False}  # fmt: skip
    if "pretrained_checkpoint" in data and "tensor_model_parallel_size" not in model:
        _restored(reading)
    for stage in _STAGES & set(trainer or {}):  # NeMo-Aligner's: `trainer.dpo`
        name_task(reading, stage)
    _whole_weights(model, flags, reading)
    _rest(data, model, given, reading)
    return reading


_STAGES = frozenset({"ppo", "dpo", "kto", "rm", "spin", "sft", "rs", "knowledge_distillation"})
"""What NeMo-Aligner trains for, by the table of its trainer."""


def _whole_weights(model: dict[str, Any], flags: dict[str, Any], reading: Reading) -> None:
    """Without `megatron_amp_O2` weights and gradients are 32 bits wide and cast where they are used."""
    half = "bf16" if flags.get("bf16") else "fp16" if flags.get("fp16") else ""
    if half and not model.get("megatron_amp_O2") and "num_layers" in model:
        recipe = RECIPES["fp32"].but(name=half, compute="fp8" if model.get("fp8") else half, activation_bytes=2)  # fmt: skip
        reading.job["precision"] = recipe.model_dump()


def _rest(data: dict[str, Any], model: dict[str, Any], given: Given, reading: Reading) -> None:
    """What the tables beside the model's own fields say: adapters, FSDP, and all that is in no list."""
    for field, (usual, what) in _USUAL.items():
        if model.get(field, usual) not in (usual, None):
            reading.unmodelled(f"model.{field}", what)
    activation = str(model.get("activation", "gelu"))
    if activation not in (*_GATED, "gelu", "squared-relu", "relu", "openai-gelu", "quick-gelu"):
        reading.unmodelled(
            "model.activation", f"{activation[:40]} is not known; a plain FFN is priced"
        )
    tables = {f"model.{key}": value for key, value in model.items() if isinstance(value, (dict, list)) and value}  # fmt: skip
    others = {key: value for key, value in data.items() if key != "model"}
    options = Options(flattened({**others, **tables}))
    scheme = options.word("model.peft.peft_scheme")
    if scheme not in ("", "none", "null"):
        get = "model.peft.lora_tuning."
        if "lora" not in scheme:
            raise SpecError("model.peft.peft_scheme", scheme, f"trains other parts beside a frozen model: lora, or none, is expected ({PLANNED})")  # fmt: skip
        adapters(reading, rank=options.whole(f"{get}adapter_dim", default=32), alpha=options.number(f"{get}alpha"),
                 targets=options.raw(f"{get}target_modules"), dropout=options.number(f"{get}adapter_dropout"),
                 option=f"{get}target_modules")  # fmt: skip
    if model.get("fsdp") is True:
        kind = str(model.get("fsdp_sharding_strategy", "full"))
        reading.layout["zero"] = 2 if kind == "grad" else 3
        if kind == "hybrid":
            reading.unmodelled("model.fsdp_sharding_strategy", "shards inside a host and copies between hosts; one group of all is priced")  # fmt: skip
    if options.flag("model.mcore_customization_config.parallel_attention") and reading.model is not None:  # fmt: skip
        reading.model = reading.model.but(parallel_block=True)
    options.finish(reading, "nemo1", "common", strict=given.strict)


def _restored(reading: Reading) -> None:
    """Degrees of a run that goes on from a checkpoint and leaves them to it: the least that its batch allows."""
    world, micro, batch = reading.world(), reading.micro_batch or 1, reading.global_batch
    tp = next((t for t in (1, 2, 4, 8) if world and batch and batch % max(1, world // t * micro) == 0), 1)  # fmt: skip
    reading.layout["tp"] = tp
    reading.guess("model.tensor_model_parallel_size", f"is the restored checkpoint's: {tp}, the least that the batch allows, is taken")  # fmt: skip


def _refuse_other(model: dict[str, Any], data: dict[str, Any]) -> None:
    """Refuse encoders, encoder-decoders and models of pictures or sound."""
    named = f"{data.get('name', '')} {model.get('target', '')} {(data.get('run') or {}).get('name', '') if isinstance(data.get('run'), dict) else ''}"
    two = isinstance(model.get("encoder"), dict) or isinstance(model.get("decoder"), dict)
    found = re.search(
        r"(?<![a-z])(t5|mt5|ul2|bart|bert|retro|clip|siglip|vit|neva|llava|sd|asr|whisper)(?![a-z0-9])",
        named.lower(),
    )
    if "virtual_prompt_style" in model or "task_templates" in model:
        raise SpecError("model", "virtual_prompt_style", f"trains prompts beside a frozen model: {PLANNED}")  # fmt: skip
    tables = model.get("data")
    if isinstance(tables, dict) and "validation_ds" in tables and "train_ds" not in tables and not {"optim", "micro_batch_size"} & set(model):  # fmt: skip
        raise SpecError("model.data", "validation_ds", "an evaluation: there is no training data and no optimizer")  # fmt: skip
    if two or found or "vision" in model:
        raise SpecError(
            "model",
            found.group(1) if found else "encoder and decoder",
            f"trains another kind of model: {PLANNED}",
        )
