"""NeuronX Distributed Training's YAML: NeMo's tables, with the degrees in one of their own, on Trainium."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.formats import megatron
from meshwright.imports.interpolate import resolved
from meshwright.imports.names import model_named
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.imports.script_devices import count_cores
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

EDITS = {"tp": "distributed_strategy.tensor_model_parallel_size", "pp": "distributed_strategy.pipeline_model_parallel_size",
         "cp": "distributed_strategy.context_parallel_size", "micro_batch": "data.micro_batch_size"}  # fmt: skip
_OF_MODEL = {
    "num_kv_heads": "num-query-groups", "encoder_seq_length": "seq-length", "num_attention_heads": "num-attention-heads",
    "num_layers": "num-layers", "hidden_size": "hidden-size", "ffn_hidden_size": "ffn-hidden-size", "vocab_size": "vocab-size",
    "max_position_embeddings": "max-position-embeddings", "position_embedding_type": "position-embedding-type",
    "hidden_dropout": "hidden-dropout", "attention_dropout": "attention-dropout",
}  # fmt: skip
_MODULES = {"coreattention": "core_attn", "llamamlp": "mlp", "mixtralmlp": "mlp", "llamarmsnorm": "layernorm"}  # fmt: skip
_PRECISION = {
    "mixed_precision": "bf16-fp32-grads", "mixed_precisionsr": "bf16-fp32-grads", "bf16sr": "pure-bf16",
    "fp32": "fp32", "autocast": "fp32", "manual": "bf16-fp32-grads",
}  # fmt: skip


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is such a YAML."""
    strategy = data.get("distributed_strategy")
    return (
        isinstance(strategy, dict)
        and "tensor_model_parallel_size" in strategy
        and isinstance(data.get("model"), dict)
    )


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what such a YAML runs.

    Raises:
        SpecError: a value that cannot be, or a model that is not modelled.
    """
    options = Options(flattened(resolved(_told(data), dict(given.variables))))
    options.guessing = given.guess
    reading = Reading("NeuronX Distributed Training YAML", options=dict(EDITS))
    reading.likely = "trainium2" if "trn2" in str(data).lower() else "trainium1"
    reading.model = given.model or _model(options, reading)
    reading.micro_batch = options.whole("data.micro_batch_size", "model.micro_batch_size")
    reading.global_batch = options.whole("data.global_batch_size", "model.global_batch_size")
    reading.seq_len = options.whole("data.seq_length", "model.encoder_seq_length")
    reading.hosts = options.whole("trainer.num_nodes", default=1, least=1)
    reading.per_host = options.whole("trainer.devices")
    known = given.cluster.device.preset if given.cluster is not None else ""
    count_cores(reading, known, options.whole("trainer.lnc", "distributed_strategy.lnc", "lnc"))
    _layout(options, reading)
    _job(options, reading)
    _aligned(options, reading)
    options.finish(reading, "neuron", "common", strict=given.strict)
    return reading


def _told(data: dict[str, Any]) -> dict[str, Any]:
    """The tables with what refers to its own table (`${.encoder_seq_length}`) filled."""
    model = dict(data["model"])
    for name, value in model.items():
        found = re.fullmatch(r"\$\{\.(\w+)\}", str(value))
        if found and not isinstance(model.get(found.group(1)), (dict, list)):
            model[name] = model.get(found.group(1))
    return {**data, "model": model}


def _model(options: Options, reading: Reading) -> Model | None:
    """The model by its sizes, or, of a Hugging Face configuration beside it, by the names around it."""
    layers, hidden = options.whole("model.num_layers"), options.whole("model.hidden_size")
    if options.has("model.num_attention_heads"):
        from meshwright.imports.formats.megatron_shape import read_shape

        return read_shape(Options(_flags(options), "--"), reading, dialect="megatron")
    names = [options.loose(one) for one in ("exp_manager.checkpoint_callback_params.filename", "name", "data.train_dir",
                                            "data.tokenizer.type", "model.model_config")]  # fmt: skip
    for name in names:
        found = model_named(re.sub(r"--.*|^hf_|^megatron_", "", name).replace("_", "-"))
        if found is not None and (not hidden or found.hidden == hidden):
            said = f"{found.name}, by the names around it, is taken"
            if layers and layers != found.layers:
                found = found.but(layers=layers)
                said += f", of {layers} layers"
            reading.guess("--model", f"the shape is in {options.loose('model.model_config')[-60:] or 'a file of its own'}; {said}")  # fmt: skip
            return found
    if layers:
        reading.note(f"the file says {layers} layers of width {hidden}; the rest is in {options.loose('model.model_config')[-60:]}", "model.model_config")  # fmt: skip
    return None


def _flags(options: Options) -> dict[str, Any]:
    """The fields of a model by Megatron-LM's options."""
    flags: dict[str, Any] = {}
    for field, flag in _OF_MODEL.items():
        value = options.raw(f"model.{field}")
        if value is not None:
            flags[flag] = value
    if "glu" in options.word("model.activation"):
        flags["swiglu"] = True
    if "rms" in options.word("model.normalization"):
        flags["normalization"] = "RMSNorm"
    if not options.flag("model.has_bias", default=True):
        flags["disable-bias-linear"] = True
    if not options.flag("model.share_embeddings_and_output_weights", default=True):
        flags["untie-embeddings-and-output-weights"] = True
    if options.whole("model.moe.num_experts") > 1:
        flags |= {"num-experts": options.whole("model.moe.num_experts"), "moe-router-topk": options.whole("model.moe.top_k", default=1),
                  "moe-layer-freq": str(options.whole("model.moe.frequency", default=1))}  # fmt: skip
    for field, flag in (("data.tokenizer.type", "tokenizer-type"), ("data.tokenizer.vocab_file", "vocab-file")):  # fmt: skip
        if options.loose(field):
            flags[flag] = options.loose(field)
    return flags


def _layout(options: Options, reading: Reading) -> None:
    get = "distributed_strategy."
    stages = options.whole(f"{get}virtual_pipeline_model_parallel_size", default=1) or 1
    cp = options.whole(f"{get}context_parallel_size", default=1, least=1)
    ulysses = options.flag("model.fusions.ulysses_attention")
    options.raw("model.fusions.ring_attention")
    flags = Options({}, "--")
    granularity = options.word("model.activations_checkpoint_granularity")
    modules = options.text("model.activations_checkpoint_recompute")
    if granularity not in ("", "none", "null"):
        flags.values["recompute-granularity"] = granularity
        words = re.sub(r"[\[\]'\",]", " ", modules).lower().split()
        flags.values["recompute-modules"] = " ".join(_MODULES.get(one, one) for one in words)
    pp = options.whole(f"{get}pipeline_model_parallel_size", default=1, least=1)
    reading.layout = {
        "tp": options.whole(f"{get}tensor_model_parallel_size", default=1, least=1),
        "pp": pp,
        "cp": cp,
        "cp_method": "ulysses" if ulysses else "ring",
        "sequence_parallel": options.flag(f"{get}sequence_parallel"),
        "zero": 1 if options.flag(f"{get}zero1", default=True) else 0,
        "virtual_stages": stages if pp > 1 else 1,
        "schedule": "interleaved" if stages > 1 and pp > 1 else "1f1b",
        **megatron.recomputation(flags, reading, stages),
    }
    experts = options.whole(f"{get}expert_model_parallel_size", default=1, least=1)
    if reading.model is not None and reading.model.experts:
        reading.layout["ep"] = experts


def _job(options: Options, reading: Reading) -> None:
    kind = options.word("precision.type", default="mixed_precision")
    if kind not in _PRECISION:
        raise SpecError("precision.type", kind, f"one of {', '.join(_PRECISION)} is expected")
    recipe = RECIPES[_PRECISION[kind]]
    if kind == "autocast":
        recipe = recipe.but(name="bf16", compute="bf16", activation_bytes=2)
    if kind == "manual":
        recipe = recipe.but(
            master_bytes=4 if options.flag("precision.master_weights") else 0,
            gradient_bytes=4 if options.flag("precision.fp32_grad_acc") else 2,
        )
    options.raw("precision.master_weights", "precision.fp32_grad_acc")
    reading.job = {
        "precision": recipe.model_dump(),
        "framework": "megatron",
        "attention_kernel": "flash"
        if options.flag("model.fusions.flash_attention", default=True)
        or options.flag("model.fusions.ring_attention")
        else "unfused",
        "dropout": options.number("model.hidden_dropout"),
    }
    name = options.loose("model.optim.name") or "adamw"
    found = optimizer_or_adamw(reading, name.lower().removesuffix("_fp32optstate"), "model.optim.name", shown=name)  # fmt: skip
    reading.job["optimizer"] = found.model_dump()
    if options.flag("precision.fp32_grads_cc"):
        reading.job["precision"]["gradient_reduce_bytes"] = 4
    reading.note("NeuronX Distributed is priced as Megatron-LM, whose parallelism it has", "framework")  # fmt: skip
    if options.whole("distributed_strategy.kv_replicator", default=1) > 1:
        reading.note("keys and values are repeated so that every tensor rank has some", "distributed_strategy.kv_replicator")  # fmt: skip


def _aligned(options: Options, reading: Reading) -> None:
    """Fine-tuning: its task and its adapters."""
    get = "model_alignment_strategy."
    for task in ("dpo", "orpo"):
        if any(name.startswith(f"{get}{task}.") for name in options.values):
            reading.task, reading.reference = task, task == "dpo"
    rank = options.whole(f"{get}peft.lora_rank")
    if rank:
        adapters(reading, rank=rank, alpha=options.number(f"{get}peft.lora_alpha"), targets=options.raw(f"{get}peft.target_modules"),
                 dropout=options.number(f"{get}peft.lora_dropout"), option=f"{get}peft.target_modules")  # fmt: skip
