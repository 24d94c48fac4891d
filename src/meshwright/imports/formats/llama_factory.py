"""LLaMA-Factory's YAML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.imports.formats import hf, mcore_adapter
from meshwright.imports.names import model_named, refuse_other
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import PROJECTOR, Given, Reading
from meshwright.imports.script_devices import take_resources
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import adapters, frozen_part, trained
from meshwright.specs.errors import SpecError
from meshwright.specs.job import OPTIMIZERS, RECIPES

if TYPE_CHECKING:
    from meshwright.imports.shell.state import Script


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is LLaMA-Factory's."""
    return ("model_name_or_path" in data or "model" in data) and bool(
        {"finetuning_type", "stage", "dist_config", "model_class"} & set(data)
    )


_TRAINS = ("stage", "do_train", "dataset", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "num_train_epochs", "max_steps", "output_dir")  # fmt: skip
"""What a configuration has that trains, of which one for chat has none."""


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what a LLaMA-Factory configuration runs.

    Raises:
        SpecError: it does not train, or a value cannot be.
    """
    if {"dist_config", "model_class"} & set(data):
        return _second(data, given)
    reading = Reading("LLaMA-Factory YAML", options=dict(hf.EDITS))
    options = Options(flattened(data))
    if (
        options.has("do_train")
        and not options.flag("do_train")
        and not options.has("per_device_train_batch_size")
    ):
        raise SpecError("do_train", False, "this configuration does not train")
    if options.flag("do_predict") and not options.flag("do_train"):
        raise SpecError("do_predict", True, "this configuration answers a data set; it does not train")  # fmt: skip
    if options.has("export_dir"):
        raise SpecError(
            "export_dir",
            options.loose("export_dir"),
            "this configuration exports weights; it does not train",
        )
    if not options.has(*_TRAINS):
        raise SpecError("file", "the configuration", "does not train: it names a model for chat or export, and neither a stage, data, a batch nor do_train")  # fmt: skip
    if options.has("infer_backend", "chat_template") and not options.has(
        "per_device_train_batch_size", "do_train"
    ):
        raise SpecError(
            "infer_backend",
            options.loose("infer_backend"),
            "this configuration serves; it does not train",
        )
    return fill(options, reading, given, folder)


def _length(options: Options, reading: Reading) -> None:
    """Settle the cut of a sequence; LLaMA-Factory's ancestors cut prompt and answer each."""
    sides = [options.whole(name) for name in ("max_source_length", "max_target_length")]
    if "cutoff_len" in options:
        return
    options.values["cutoff_len"] = sum(sides) if all(sides) else 2048
    if not all(sides):
        reading.guess("--seq", "cutoff_len is not set; LLaMA-Factory's own, 2048, is taken")


def fill(
    options: Options,
    reading: Reading,
    given: Given,
    folder: Path | None,
    script: Script | None = None,
) -> Reading:
    """Add what LLaMA-Factory's words say to a reading, of its YAML or of its command.

    Raises:
        SpecError: a value that cannot be.
    """
    kind = options.word("finetuning_type", default="lora")
    bits = _width(options)
    _length(options, reading)
    if options.has("ray_num_workers", "ray_run_name") and not reading.world():
        each = options.whole("resources_per_worker.GPU", default=1) or 1
        reading.devices = (options.whole("ray_num_workers", default=1) or 1) * each
        options.read |= take_resources(options.values, reading)
    rank = options.whole("lora_rank", default=8) or 8
    options.raw("quantization_method")
    off, twice = (
        options.flag("disable_gradient_checkpointing"),
        options.flag("double_quantization", default=True),
    )
    storage = options.word("quantization_type", default="nf4")
    beside = options.raw("additional_target")
    if options.flag("resize_vocab") and not beside and kind in ("lora", "oft"):
        beside = "embed_tokens,lm_head"  # model/adapter.py: new rows train with the matrices that have them
    if reading.job.get("framework") != "deepspeed":
        reading.job["framework"] = "llama-factory"
    dora = options.flag("use_dora")
    if options.word("stage") == "dpo" and options.word("pref_loss") in ("orpo", "simpo"):
        name_task(reading, options.word("pref_loss"))  # which hold no reference
    # hparams/finetuning_args.py: of a multimodal model the language model alone trains unless told otherwise.
    reading.encoder_frozen = options.flag("freeze_vision_tower", default=True)
    if not options.flag("freeze_multi_modal_projector", default=True) and reading.encoder_frozen:
        reading.unmodelled("freeze_multi_modal_projector", PROJECTOR)
    reading.image_pixels = options.whole("image_max_pixels")
    reading = hf.fill(options, reading, given, folder, script)
    if kind == "oft":
        reading.unmodelled(
            "finetuning_type", "orthogonal fine-tuning; priced as LoRA of the default rank"
        )
        options.read |= {name for name in options.values if name.startswith("oft_")}
        reading.remarks = [one for one in reading.remarks if not one.option.startswith("oft_")]
    if kind in ("lora", "oft"):
        adapters(
            reading, rank=rank, alpha=options.number("lora_alpha", default=2.0 * rank),
            targets=options.raw("lora_target", "lora_target_modules"), bits=bits if bits in (4, 8) else 0,
            method="dora" if dora else "lora", dropout=options.number("lora_dropout"), option="lora_target",
            twice=twice, storage=storage if bits == 4 and storage in ("nf4", "fp4") else "",
            whole=beside,
        )  # fmt: skip
        _as_stored(reading)
    else:
        reading.job.pop("finetune", None)
        if kind == "freeze":
            _frozen(options, reading)
        elif options.flag("use_badam") and options.word("badam_mode", default="layer") == "layer":
            _in_turn(options, reading)
    if options.flag("enable_liger_kernel") and options.word("stage", default="sft") in (
        "sft",
        "pt",
    ):
        reading.job["loss"] = (
            "liger"  # other stages need the logits (model/model_utils/liger_kernel.py)
        )
        reading.remarks = [
            r for r in reading.remarks if not r.option.endswith("enable_liger_kernel")
        ]
    if options.flag("use_unsloth_gc", "use_unsloth") and not off:
        reading.offload.add(
            "activations"
        )  # layers' inputs wait in host memory (model_utils/checkpointing.py)
    if any(name in options.values for name in mcore_adapter.NAMES):
        _megatron(options, reading)
        return reading
    said = {"gradient_checkpointing", "enable_gradient_checkpointing"} & set(options.values)
    if not said and not off:
        # LLaMA-Factory checkpoints every layer unless it is told not to.
        reading.layout["recompute"] = "full"
    return reading


def _width(options: Options) -> int:
    """Bits of the frozen weights; LLamaTuner, which has these words, too, has one switch more."""
    bits = options.whole("quantization_bit", "quant_bit")
    if not options.has("use_qlora"):
        return bits
    return (bits or 4) if options.flag("use_qlora") else 0


_LAYERS = ("freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules")


def _forget(reading: Reading, options: Options, *names: str) -> None:
    """Take back remarks on words that are understood after all."""
    options.read |= set(names)
    reading.remarks = [one for one in reading.remarks if one.option not in names]


def _frozen(options: Options, reading: Reading) -> None:
    """The last layers train, and what `freeze_extra_modules` names (model/adapter.py _setup_freeze_tuning)."""
    last = options.whole("freeze_trainable_layers", default=2, least=-9999)
    modules = options.word("freeze_trainable_modules", default="all")
    model = reading.model or model_named(reading.model_name)
    if model is None or last <= 0 or options.flag("use_llama_pro"):
        frozen_part(reading, "finetuning_type")
        return
    extra = options.loose("freeze_extra_modules") or ""
    still = [one for one in ("embedding", "head") if one not in trained(extra)]
    reading.job["finetune"] = {
        "method": "full", "freeze": still, "frozen_layers": max(model.layers - last, 0),
    }  # fmt: skip
    _forget(reading, options, *_LAYERS)
    if modules != "all":
        reading.unmodelled(
            "freeze_trainable_modules", f"of the last layers only {modules} train; all of them are counted"
        )  # fmt: skip


def _in_turn(options: Options, reading: Reading) -> None:
    """BAdam: each layer trains for some steps, the others wait without gradients (arXiv 2404.02827)."""
    reading.job["finetune"] = {"method": "full", "freeze": ["embedding", "head"], "in_turn": 1}
    # Weights wait in 16 bits; the layer whose turn it is has 32-bit weights and moments beside them.
    reading.job["precision"] = RECIPES["bf16"].model_dump()
    reading.job["optimizer"] = OPTIMIZERS["adamw"].model_dump()
    _forget(reading, options, "use_badam", "bf16")
    reading.unmodelled(
        "use_badam", "a step takes less time than one that trains every layer, which is priced"
    )


def _as_stored(reading: Reading) -> None:
    """Where no precision is set, frozen weights are loaded and multiplied as stored (model/patcher.py patch_config)."""
    if any(one.option == "bf16" and "fp32" in one.text for one in reading.remarks):
        reading.job["precision"] = RECIPES["bf16"].model_dump()
        reading.remarks = [one for one in reading.remarks if one.option != "bf16"]
        reading.guess("bf16", "neither bf16 nor fp16 is set: LLaMA-Factory computes in what the checkpoint is stored in; bf16 is taken")  # fmt: skip


def _megatron(options: Options, reading: Reading) -> None:
    """Training by mcore_adapter (USE_MCA=1), which these words ask for: its own trainer, optimizer and recomputation."""
    mcore_adapter.layout(options, reading, sharded=False, parts=False, wide=False)
    told = {name for name in options.values if name in options.read}
    rest = Options(
        {name: options.values[name] for name in options.values if name not in told}, options.prefix
    )
    reading.remarks = [one for one in reading.remarks if one.kind != "unread"]
    rest.finish(reading, "roll", "megatron", "hf", "common")
    _forget(reading, options, "use_mca")
    reading.note("Megatron's words ask for mcore_adapter, which LLaMA-Factory takes with USE_MCA=1", "tensor_model_parallel_size")  # fmt: skip


def _second(data: dict[str, Any], given: Given) -> Reading:
    """A configuration of LLaMA-Factory's second version, which has its own trainer on FSDP2 or DeepSpeed."""
    options = Options(flattened(data))
    options.guessing = given.guess
    reading = Reading("LLaMA-Factory v1 YAML", options={"micro_batch": "micro_batch_size"})
    reading.model = given.model
    reading.model_name = options.loose("model")
    if reading.model is None:
        refuse_other(reading.model_name)
    kind = options.word("dist_config.name", default="fsdp2")
    cp = options.whole("dist_config.cp_size", default=1) or 1
    reading.layout = {
        "zero": 3, "cp": cp, "ep": options.whole("dist_config.ep_size", default=1) or 1,
        "tp": options.whole("dist_config.tp_size", default=1) or 1,
        "recompute": "full" if options.flag("enable_activation_checkpointing", default=True) else "none",
    }  # fmt: skip
    if cp > 1:
        reading.layout["cp_method"] = (
            "ulysses"
            if "ulysses" in options.word("dist_config.cp_mode", default="ulysses")
            else "ring"
        )
    reading.micro_batch = options.whole("micro_batch_size", default=1)
    reading.global_batch = options.whole("global_batch_size")
    reading.seq_len = options.whole("cutoff_len", default=2048)
    if options.flag("dist_config.offload_params"):
        reading.offload |= {"optimizer", "parameters"}
    recipe = RECIPES["bf16" if options.flag("bf16") else "fp32"].but(
        gradient_bytes=4, gradient_reduce_bytes=4
    )
    reading.job = {
        "framework": "deepspeed" if kind == "deepspeed" else "llama-factory",
        "precision": recipe.model_dump(),
    }
    peft = options.word("peft_config.name")
    if peft == "lora":
        bits = options.whole("quant_config.quantization_bit", "quant_config.bits")
        adapters(reading, rank=options.whole("peft_config.r", "peft_config.lora_rank", default=8) or 8,
                 alpha=options.number("peft_config.lora_alpha"), targets=options.raw("peft_config.target_modules"),
                 bits=bits if bits in (4, 8) else 0, option="peft_config.target_modules")  # fmt: skip
    elif peft:
        frozen_part(reading, "peft_config.name")
    options.read |= {name for name in options.values if "." in name}
    options.finish(reading, "hf", "common", strict=given.strict)
    return reading
