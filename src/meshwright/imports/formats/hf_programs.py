"""What programs on top of TrainingArguments set themselves: ms-swift, QLoRA's script, open-instruct, and any at hand."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.imports.beside import beside, program_beside
from meshwright.imports.formats import deepspeed_chat, open_instruct
from meshwright.imports.formats.hf_lengths import LENGTHS
from meshwright.imports.own.layers import handed, own_switches
from meshwright.imports.own.program_settings import UNSLOTH_LOSS
from meshwright.imports.reading import PROJECTOR, Reading
from meshwright.imports.tasks import refuse_task
from meshwright.specs.foreign import read_text

if TYPE_CHECKING:
    from meshwright.imports.shell.state import Script


def is_swift(program: str) -> bool:
    """Whether a command trains with ms-swift."""
    return bool(re.match(r"swift (?:sft|pt|rlhf|dpo)\b", program)) or bool(
        re.search(
            r"(?:^|/)(?:swift[./]cli[./](?:sft|pt|rlhf)|llm_(?:sft|pt|rlhf|dpo))(?:\.py)?$", program
        )
    )


def is_swift_table(data: dict[str, Any]) -> bool:
    """Whether a table is the arguments of ms-swift: its tuner by its word beside a model and data."""
    return bool({"tuner_type", "train_type"} & set(data)) and isinstance(data.get("model"), str)


_QUANTISES = {
    "load_in_4bit",
    "load_in_8bit",
    "bits",
    "quantization_bit",
    "use_4bit_quantization",
    "use_4bit",
    "q_lora",
}


def set_defaults(
    program: str, values: dict[str, Any], reading: Reading, own: dict[str, Any], folder: Path | None
) -> None:
    """What programs on top of TrainingArguments set themselves where nothing is said."""
    if is_swift(program):
        swift_defaults(values, reading)
    elif deepspeed_chat.is_one(values, own):
        deepspeed_chat.settle(values, own, reading)
    elif posixpath.basename(program) == "qlora.py":
        _qlora_defaults(values, reading)
    elif "qlora" in posixpath.basename(program).lower() and not _QUANTISES & {*values, *own}:
        if {"lora_r", "lora_rank", "use_lora", "use_peft"} & set(values):
            values["load_in_4bit"] = True
            reading.guess("--load_in_4bit", "is what the program is called after: frozen weights in 4 bits are taken")  # fmt: skip
    elif re.fullmatch(r"unsloth[-_]cli(?:\.py)?", posixpath.basename(program)) and not own:
        _unsloth_defaults(values, reading)
    elif "fastchat" in program and not own:
        _fastchat_defaults(posixpath.basename(program), values, reading)
    elif re.search(r"(?:^|[_-])lora(?:[_.-]|$)", posixpath.basename(program).lower()) and not (
        any("lora" in name or "peft" in name for name in {**own, **values})
        or beside(folder, program) is not None  # it says itself what it adds
    ):
        values["use_lora"] = True
        reading.guess("--use_lora", "is what the program is called after: adapters are taken")
    elif open_instruct.is_one(program):
        open_instruct.settle(program, values, reading)


_OF_THEMSELVES = {"no_cuda"}
"""Options whose own name begins so."""


def negated(values: dict[str, Any], own: dict[str, Any]) -> None:
    """`--no_X` turns off what is on by itself (transformers' HfArgumentParser, argparse's BooleanOptionalAction)."""
    for name in [name for name in values if name.startswith("no_")]:
        if values[name] is True and name not in own and name not in _OF_THEMSELVES:
            del values[name]
            values[name.removeprefix("no_")] = False


def set_switches(
    program: str, folder: Path | None, values: dict[str, Any], own: dict[str, Any]
) -> None:
    """Add what a program does by its own lines, where no option of the same kind is said."""
    fixed = handed(program, folder)
    dead = {
        "max_length": LENGTHS,
        "packing": ("packing",),
    }  # the trainer gets what the program writes
    for name in (one for fix in fixed for one in dead[fix]):
        values.pop(name, None)
        own.pop(name, None)
    values |= fixed
    for name in _unheard_lengths(program, folder):
        if values.pop(name, None) is not None or own.pop(name, None) is not None:
            values.setdefault("max_length", 1024)  # TRL's own, for which the program says nothing
    made = own_switches(program, folder, {**own, **values})
    kinds = (
        ("gradient_checkpointing", "activation_checkpointing"), LENGTHS, ("load_in_4bit", "load_in_8bit", "use_4bit_quantization", "bits"),
        ("torch_dtype", "dtype"), ("bnb_4bit_quant_type",), ("bnb_4bit_use_double_quant",), ("optim",), ("bf16", "fp16", "mixed_precision"),
        ("per_device_train_batch_size", "per_device_batch_size"), ("gradient_accumulation_steps",), ("prepare_model_for_kbit_training",),
    )  # fmt: skip
    for names in kinds:
        if not any(name in values or name in own for name in names):
            values |= {name: made[name] for name in names if name in made}


_TRL_PARSED = re.compile(r"\b(?:SFT|DPO|KTO|ORPO|CPO|Reward)Config\b\s*[,)\]]")
_HANDED_ON = re.compile(r"\basdict\(|\bvars\(|\bgetattr\(|__dict__")


def _unheard_lengths(program: str, folder: Path | None) -> list[str]:
    """Lengths that a program declares beside TRL's own settings and hands to nothing: no text is cut at them."""
    path = program_beside(folder, program)
    text = "" if path is None else read_text(path, "file")
    if _TRL_PARSED.search(text) is None or _HANDED_ON.search(text):
        return []
    declared = [one for one in ("max_seq_length", "max_seq_len") if re.search(rf"^\s+{one}\s*:", text, re.M)]  # fmt: skip
    return [one for one in declared if re.search(rf"\.{one}\b|[\"']{one}[\"']", text) is None]


def _qlora_defaults(values: dict[str, Any], reading: Reading) -> None:
    """QLoRA's own script: adapters of rank 64 on 4-bit weights, recomputed, unless it is told not to."""
    if str(values.get("full_finetune", False)).lower() != "true":
        values.setdefault("use_lora", True)
        values.setdefault("lora_r", 64)
        values.setdefault("bits", 4)
        reading.note("is this script's default where it is not set", "--bits, --lora_r")
    values.setdefault("gradient_checkpointing", True)


def _unsloth_defaults(values: dict[str, Any], reading: Reading) -> None:
    """Unsloth's own command line (unsloth-cli.py), which trains adapters on one device."""
    usual = {"r": 16, "lora_alpha": 16, "max_seq_length": 2048, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4,
             "optim": "adamw_8bit", "use_gradient_checkpointing": "unsloth", "bf16": True, "lora_target_modules": "all-linear"}  # fmt: skip
    values |= {name: one for name, one in usual.items() if name not in values} | {"use_peft": True}
    values.setdefault("lora_r", values.pop("r"))
    values.pop("dtype", None)
    reading.devices = 1
    reading.job["loss"] = UNSLOTH_LOSS
    reading.note("Unsloth's own count where the command is silent", "unsloth-cli.py")


def _fastchat_defaults(base: str, values: dict[str, Any], reading: Reading) -> None:
    """FastChat's own options (fastchat/train/train.py, train_lora.py)."""
    if not set(LENGTHS) & set(values):
        values["model_max_length"] = 512
        reading.note("512 is FastChat's own where it is not set", "--model_max_length")
    if base.startswith("train_lora"):
        usual = {"lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "lora_target_modules": ["q_proj", "v_proj"]}  # fmt: skip
        values |= {name: one for name, one in usual.items() if name not in values}
        reading.note("8, on q and v, is FastChat's own where it is not set", "--lora_r")


_OLD_SWIFT = {"sft_type": "train_type", "batch_size": "per_device_train_batch_size"}
"""How ms-swift 2 called what ms-swift 3 and 4 call otherwise (swift/llm/utils/argument.py of 2.x)."""


def spread_over_devices(
    program: str, environment: Mapping[str, str], script: Script, reading: Reading
) -> None:
    """Say that one process of ms-swift has its layers on several devices, which no layout here has."""
    several = environment.get("NPROC_PER_NODE") or script.value("NPROC_PER_NODE") or "1"
    if not program.startswith("swift ") or several != "1":
        return
    seen = environment.get("CUDA_VISIBLE_DEVICES") or script.value("CUDA_VISIBLE_DEVICES")
    count = len(seen.split(",")) if re.fullmatch(r"\d+(,\d+)+", seen) else 1
    if count > 1:
        reading.unmodelled("CUDA_VISIBLE_DEVICES", f"one process spreads the layers over {count} devices, which work one after another; a copy a device is priced")  # fmt: skip


def swift_defaults(values: dict[str, Any], reading: Reading) -> None:
    """What ms-swift takes where its command or its YAML says nothing (swift/trainers/arguments.py)."""
    for old, new in _OLD_SWIFT.items():
        if old in values:
            values.setdefault(new, values.pop(old))
    refuse_task("--task_type", values.pop("task_type", None))
    if (
        "use_galore" in values
    ):  # swift/arguments: a rank of 128, and an optimizer for each weight on its own
        values.setdefault("galore_rank", 128)
        values.setdefault("galore_layerwise", values.pop("galore_optim_per_parameter", False))
    if "model" in values:  # beside it these are how the trained model calls itself
        for name in ("model_name", "model_author"):
            values.pop(name, None)
    _swift_precision(values, reading)
    # swift/arguments/tuner_args.py: of a multimodal model the language model alone trains unless told otherwise.
    reading.encoder_frozen = str(values.pop("freeze_vit", True)).lower() != "false"
    if str(values.pop("freeze_aligner", True)).lower() == "false" and reading.encoder_frozen:
        reading.unmodelled("--freeze_aligner", PROJECTOR)
    if "gradient_checkpointing" not in values:
        values["gradient_checkpointing"] = True
        reading.note("is ms-swift's default, on", "--gradient_checkpointing")
    micro = values.setdefault("per_device_train_batch_size", 1)
    if "gradient_accumulation_steps" not in values and str(micro).isdigit() and int(micro) > 0:
        if "global_batch_size" not in values and int(micro) < _SWIFT_BATCH:
            world = reading.world()
            steps = math.ceil(_SWIFT_BATCH / int(micro) / world) if world else 0
            ours = "gradient_accumulation_steps" if steps else "global_batch_size"
            values[ours] = steps or _SWIFT_BATCH
        reading.note(f"is not set: ms-swift takes as many as make {_SWIFT_BATCH} samples of all devices", "--gradient_accumulation_steps")  # fmt: skip
    if values.pop("packing", False) not in (False, "false", "False"):
        values |= {"packing": True, "padding_free": True}  # its packed samples keep apart
        if str(values.get("packing_length", "")).isdigit():
            values["max_length"] = values.pop("packing_length")
    moved = [values.pop(name, False) for name in _BETWEEN]
    if any(one not in (False, "false", "False") for one in moved):
        reading.unmodelled("--offload_model, --offload_optimizer", "weights and states leave the device while answers are generated, not during the step")  # fmt: skip
    if "target_regex" in values:  # goes before names of layers, as PEFT's own pattern
        values["target_modules"] = values.pop("target_regex")
    chosen_tuner(values, reading)


_SWIFT_BATCH = 16
_BETWEEN = ("offload_model", "offload_optimizer")
"""What ms-swift's GRPO moves to host memory between its steps."""


def _swift_precision(values: dict[str, Any], reading: Reading) -> None:
    """ms-swift computes in what the weights are loaded in, mixed (swift/arguments/base_args/model_args.py)."""
    if {"bf16", "fp16"} & set(values):
        return
    if not {"torch_dtype", "dtype"} & set(values):
        values["torch_dtype"] = "bfloat16"
        reading.note("ms-swift computes in the weights' own precision, bf16", "--torch_dtype")
    width = str(values.get("torch_dtype", values.get("dtype"))).removeprefix("torch.")
    values["fp16" if width in ("float16", "fp16", "float32", "fp32") else "bf16"] = True


_OF_TUNER = (
    (("lora_rank", "lora_r"), 8), (("lora_alpha",), 32), (("lora_dropout", "lora_dropout_p"), 0.05),
    (("target_modules", "lora_target_modules", "lora_target", "target_regex", "target_parameters"), "all-linear"),
)  # fmt: skip


def chosen_tuner(values: dict[str, Any], reading: Reading) -> None:
    """ms-swift's `--tuner_type` (older: `--train_type`) decides over a rank that is there anyway."""
    kind = str(values.pop("tuner_type", None) or values.pop("train_type", None) or "lora").lower()
    values.setdefault("use_lora", kind != "full")
    if values["use_lora"]:  # ms-swift's own, where nothing is said (swift/arguments/tuner_args.py)
        for names, usual in _OF_TUNER:
            if not any(name in values for name in names):
                values[names[0]] = usual
    if kind not in ("lora", "full"):  # the model's own weights wait in all of them
        reading.unmodelled("tuner_type", f"{kind} is not modelled; adapters of LoRA's shape are priced")  # fmt: skip
    if values.get("lisa_activated_layers") not in (None, "", "0", 0):
        reading.unmodelled("lisa_activated_layers", "so many layers train at a time, beside embedding and head; the estimate trains all")  # fmt: skip


def trl_packing(found: dict[str, Any], reading: Reading) -> None:
    """How TRL packs where nothing is said: whole documents, without padding and kept apart (trl/trainer/sft_trainer.py, 1.x)."""
    if found.get("packing") is True and not {"packing_strategy", "padding_free", "_unsloth"} & set(found):  # fmt: skip
        found["packing_strategy"] = "bfd"
        reading.guess("packing_strategy", "is not set: TRL 1.x puts whole documents together and keeps them apart (bfd), which is taken; older releases cut and mix them")  # fmt: skip


def trl_precision(found: dict[str, Any], reading: Reading) -> None:
    """The width of products that TRL takes where nothing is said."""
    plain = {"bf16", "fp16", "torch_dtype", "dtype", "deepspeed", "mixed_precision", "precision", "_unsloth"} & set(found)  # fmt: skip
    if not plain and "precision" not in reading.job:
        found["bf16"] = True
        reading.guess("bf16", "neither bf16 nor fp16 is set: TRL 1.x computes in bf16 then (older releases in fp32); bf16 is taken")  # fmt: skip


def trl_defaults(found: dict[str, Any], reading: Reading) -> None:
    """What TRL's own configurations take today where a program says nothing (trl/trainer/base_config.py, 1.x)."""
    if "loss" not in reading.job and not {"_unsloth", "use_liger_kernel", "use_liger"} & set(found):
        reading.job["loss"] = "chunked"
        reading.guess("loss_type", "TRL makes no whole logits since 1.16, which is taken; older releases hold them, too")  # fmt: skip
    trl_precision(found, reading)
    trl_packing(found, reading)
    if "gradient_checkpointing" not in found:
        found["gradient_checkpointing"] = True
        reading.guess("gradient_checkpointing", "is not set: on in TRL 1.x (off in older releases); on is taken")  # fmt: skip
    if not any(name in found for name in (*LENGTHS, "max_completion_length", "max_prompt_length")):
        found["max_length"] = 1024
        reading.guess("max_length", "is not set: TRL's own, 1,024 tokens, is taken")
