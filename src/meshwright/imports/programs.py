"""A training program of one's own around transformers' Trainer, TRL or Unsloth, read without running it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from meshwright.imports.code.libraries import ASKED_OF_DEVICE
from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import parse_python
from meshwright.imports.config_classes import family_of
from meshwright.imports.formats import hf, lightning
from meshwright.imports.formats.hf_lengths import LENGTHS
from meshwright.imports.formats.hf_programs import trl_defaults
from meshwright.imports.names import PLANNED, model_named
from meshwright.imports.options import Options
from meshwright.imports.other_models import refuse_other_bases, refuse_other_classes
from meshwright.imports.own.arguments import tables_beside
from meshwright.imports.own.imported import imported_settings
from meshwright.imports.own.layers import (
    SHARED_BATCH,
    SHARED_STEPS,
    lay_out,
    narrowed,
    says_compiled,
)
from meshwright.imports.own.made_models import made_model
from meshwright.imports.own.option_names import NAMES
from meshwright.imports.own.parts import parts_of
from meshwright.imports.own.program_settings import (
    UNSLOTH,
    UNSLOTH_LOSS,
    program_settings,
    unsloth_recomputes,
)
from meshwright.imports.own.sizes import texts_beside
from meshwright.imports.own.tables import inert
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.state import Script
from meshwright.imports.tasks import name_made, name_task
from meshwright.specs.errors import SpecError

_LIBRARIES = re.compile(
    r"^[^\S\n]*(?:from |import (?:[\w.]+, ?){0,9})(?:transformers|trl|unsloth)\b", re.M
)

_INERT = ("random_state", "drop_last", "local_files_only", "prefetch_factor", "pin_memory", "use_rslora", "token", "trust_remote_code", "task_type",
          "dataset_num_proc", "dataset_text_field", "fast_inference", "gpu_memory_utilization",
          "max_lora_rank", "float8_kv_cache", "use_exact_model_name", "fix_tokenizer")  # fmt: skip
"""Arguments of what a program makes beside the trainer that change no memory, time or numbers of it."""


_ADAPTED = ("finetune_language_layers", "finetune_attention_modules", "finetune_mlp_modules")
"""Unsloth's switches of what has adapters."""
_WRAPS = r"(?:DistributedDataParallel|DDP|FSDP|FullyShardedDataParallel|fully_shard)$"
_LOOP = r"\bDistributedDataParallel\(|\bDDP\(|\bFSDP\(|\bFullyShardedDataParallel\(|\bfully_shard\("
"""What a loop of one's own wraps its model in."""


_LOADED = re.compile(r"(?:ForCausalLM|LMHeadModel)(?:\.from_\w+)?\(")
_STEPS = re.compile(r"\.backward\((?:.|\n){0,4000}?\.step\(")
"""A loop that trains a model of the library's, on the one device that it is started on."""
_SPREADS = re.compile(
    rf"{_LOOP}|\bAccelerator\(|init_process_group\(|init_distributed\(|deepspeed\.initialize\(|\bFabric\(|\bspawn\("
)


def is_program(text: str) -> bool:
    """Whether a Python text makes a trainer of transformers, TRL or Unsloth."""
    if _LIBRARIES.search(text) is None:
        return False
    made = re.search(rf"Trainer\(|\bAccelerator\(|{_LOOP}", text)
    if (
        made is not None
        and "Trainer" in made.group(0)
        and "Arguments" not in text
        and _is_own(text)
    ):
        return False
    return made is not None or (
        _LOADED.search(text) is not None and _STEPS.search(text) is not None
    )


_OWN_TRAINER = re.compile(
    r"(?m)^[^\S\n]*from (?!(?:transformers|trl|unsloth|peft|optimum|accelerate|sentence_transformers|swift|llamafactory|composer|lightning|pytorch_lightning|llmfoundry|adapters|setfit|verl|openrlhf)\b)[\w.]+ import (\([^)]*\)|[^\n]*)"
)


def _is_own(text: str) -> bool:
    """Whether every trainer that a program makes is of its own package."""
    made = set(re.findall(r"(?<!class )\b(\w*Trainer)\(", text))
    imported = {name for one in _OWN_TRAINER.findall(text) for name in re.findall(r"\w+", one)}
    return bool(made) and made <= imported


def _refuse_other(text: str, name: str) -> None:
    """Refuse a program that trains something else than a decoder of text."""
    if re.search(
        r"^[^\S\n]+(?:mm_)?vision_tower\w*[^\S\n]*:|\bmodel\.config\.vision_config\b", text, re.M
    ):
        raise SpecError("config", name, f"trains a vision-language model: {PLANNED}")
    refuse_other_classes(text, name)
    if re.search(r"^(?:import|from) (?:pytest|unittest)\b", text, re.M) and re.search(
        r"def test_\w+\(", text
    ):
        raise SpecError("file", name, "describes no training run of its own: it tests a program")
    if re.search(r"\b\w+ForMaskedLM\b", text) and "CausalLM" not in text:
        raise SpecError("config", name, f"trains an encoder: {PLANNED}")
    if re.search(r"^[^\S\n]*from composer import\b", text, re.M) and re.search(r"OmegaConf|DictConfig", text):  # fmt: skip
        raise SpecError("config", name, "takes model and batch from its configuration: give the script or the file that it is started with")  # fmt: skip
    if re.search(r"^[^\S\n]*(?:from|import) diffusers\b", text, re.M):
        raise SpecError("config", name, f"trains a diffusion model: {PLANNED}")
    if _classifies(text) and "Reward" not in text:
        raise SpecError("config", name, f"trains a classifier of sequences: {PLANNED}")


def _classifies(text: str) -> bool:
    """Whether a program's model has a head of classes; what is commented out does not count."""
    code = re.sub(r"(?m)^[^\S\n]*#.*$", "", text)
    return "ForSequenceClassification." in code and not re.search(
        r"ForCausalLM|FastLanguageModel", code
    )


_STAGES = {"sft": {"stage": "sft"}}
"""What a program's first trainer says of its task, by itself."""


def read(
    text: str,
    name: str,
    given: Given,
    said: dict[str, Any] | None = None,
    reading: Reading | None = None,
    folder: Path | None = None,
    script: Script | None = None,
) -> Reading:
    """Return what such a program runs.

    Args:
        said: what the command that starts it says, by the names of the program's own options.
        reading: what its launcher says already.
        folder: where files that it names lie.
        script: what starts it, and may have written them.

    Raises:
        SpecError: not Python, or a value that cannot be.
    """
    text, written = _written(text)
    _refuse_other(text, name)
    near = _near(name, folder)
    found = narrowed(text) | program_settings(
        text, name, said, imported_settings(text, near), tables_beside(folder), parts_of(text, near)
    )
    kinds = ("_python", "_unsloth", "_trainer", "_larger", "_shape", "_open", "_heard", "_elsewhere", "_turns")  # fmt: skip
    made = {key: found.pop(key, None) for key in kinds}
    _told(found, said or {}, made["_heard"] or set(), bool(made["_shape"]), name)
    if not {"model_name_or_path", "_unsloth"} & set(found) and not made["_shape"]:
        refuse_other_bases(text, texts_beside(text, folder), name)
    for key, value in (found.pop("model_init_kwargs", None) or {}).items():
        found.setdefault(str(key), value)
    computed = _computed(made["_open"], found)
    reading = reading or Reading("Hugging Face Trainer program", options=dict(hf.EDITS))
    if re.search(r"CUDA_VISIBLE_DEVICES[\"']\]\s*=\s*[\"'](?:-1)?[\"']", text):
        reading.unmodelled("CUDA_VISIBLE_DEVICES", "hides every device: the run is on processors; the cluster's devices are priced")  # fmt: skip
    _say_how_read(made, found, written, reading)
    named = str(found.get("model_name_or_path") or "")
    if made["_shape"] and given.model is None and model_named(named) is None:
        found.pop("model_name_or_path", None)  # where what it builds was saved, if anything
        _built(made["_shape"], reading)
    if made["_unsloth"]:
        found = UNSLOTH | found
        found.setdefault("target_modules", "all-linear")  # of `get_peft_model`, where none are said
        _unsloth(found, reading)
    found = _of_adapters(found)
    _aside(found, reading)
    if re.search(rf"(?:{ASKED_OF_DEVICE})\(", text):
        reading.note(
            "what the program asks of its device (CUDA, bf16) counts as there", "torch.cuda"
        )
    if not made["_trainer"]:
        _looped(text, said, reading, made["_trainer"] is None and not name.endswith(".ipynb"))
        name_made(reading, text)
    _share_out(text, found, reading.world())
    _by_library(text, found, reading)
    if lightning.is_one(text):
        found = lightning.translated(text, found, reading)
    kind = made["_trainer"]
    if kind and kind != "sft":  # over what the names of its outputs say
        name_task(reading, kind)
    reading = hf.fill(
        Options(found | _STAGES.get(str(made["_trainer"]), {})), reading, given, folder, script
    )
    if computed:
        told = ", ".join(f"{key} from {text}" for key, text in computed.items())
        if "per_device_train_batch_size" in computed:
            reading.remarks = [one for one in reading.remarks if one.option != "--micro-batch"]
        reading.guess("program", f"computes {told}: what is usual where nothing is said is taken")
    if kind not in (
        "",
        "sft",
    ):  # no trainer, or one of its own whose name says no task that is known
        name_task(reading, Path(name).name)
    if _classifies(text) and not reading.task:
        reading.unmodelled("num_labels", "the head has as many outputs as labels; one of the whole vocabulary is priced")  # fmt: skip
    return reading


def _of_adapters(found: dict[str, Any]) -> dict[str, Any]:
    """Settings with what they say of adapters by the names of command lines; without, where the whole model trains."""
    if found.pop("full_finetuning", False):
        # Unsloth turns its own 4 bits off, and its `get_peft_model` gives the model back as it is.
        adapters = ("r", "load_in_4bit", "use_peft", "target_modules")
        found = {
            key: value
            for key, value in found.items()
            if key not in adapters and not key.startswith("lora_")
        }
    elif found.get("r"):
        found["use_peft"], found["lora_r"] = True, found.pop("r")
    if found.get("bias") == "none":
        del found["bias"]
    return found


def _share_out(text: str, found: dict[str, Any], world: int) -> None:
    """Divide among the ranks what the program divides among them: its micro-batches of a step, or its batch."""
    micro, steps = found.get("per_device_train_batch_size"), found.get("gradient_accumulation_steps")  # fmt: skip
    if SHARED_STEPS.search(text) and isinstance(micro, int) and isinstance(steps, int):
        found["global_batch_size"] = micro * steps
        del found["gradient_accumulation_steps"]
    if SHARED_BATCH.search(text) and world > 1 and isinstance(micro, int) and micro % world == 0:
        found["per_device_train_batch_size"] = micro // world
        if found.get("per_device_eval_batch_size") == micro:
            found["per_device_eval_batch_size"] = micro // world


def _computed(left: dict[str, str] | None, found: dict[str, Any]) -> dict[str, str]:
    """Settings that the program computes and nobody followed, by the expression; weights' width is taken as bf16 then."""
    computed = {key: text for key, text in (left or {}).items() if key not in found}
    if {"bf16", "fp16"} & set(computed) and not {"bf16", "fp16"} & set(found):
        found["bf16"] = True  # what trains today
    if {"torch_dtype", "dtype"} & set(computed) and not {"torch_dtype", "dtype", "_unsloth"} & {*found}:  # fmt: skip
        found["torch_dtype"] = "bfloat16"
    if "target_modules" in computed or (
        found.get("use_peft") and "lora_r" in found and "r" not in found
    ):
        found.setdefault("target_modules", "all-linear")  # named somewhere: PEFT's own do not count
    return computed


def _say_how_read(
    made: dict[str, Any], found: dict[str, Any], written: bool, reading: Reading
) -> None:
    """What a reader should know of where the settings come from."""
    if made["_elsewhere"] and not {"use_peft", "load_in_4bit", "load_in_8bit"} & set(found):
        reading.guess("model", "is made in a file that is not followed: adapters, quantised weights or recomputation that it makes there are not seen")  # fmt: skip
    if written:
        reading.note("the program writes the one that trains; that one is read", "file")
    for key, count in (made["_turns"] or {}).items():
        reading.note(f"the program trains with {count} values in turn; the first is read", key)
    for key in made["_larger"] or ():
        reading.note("the program chooses between two values; the larger is taken", key)


def _aside(found: dict[str, Any], reading: Reading) -> None:
    """Take out what changes nothing, and name what is not priced beside the trainer."""
    for key in _INERT:
        found.pop(key, None)
    for key in _ADAPTED:
        if found.pop(key, True) is False:
            reading.unmodelled(key, "these layers have no adapters; all that are named are priced with them")  # fmt: skip
    if (
        found.pop("device_map", None) in ("auto", "balanced", "balanced_low_0", "sequential")
        and not reading.world()
    ):
        reading.unmodelled("device_map", "one process spreads the layers over all devices that it sees, which work one after another; a copy a device is priced")  # fmt: skip


_STORES = re.compile(r"quant|offload|compile|fp8|int8|int4")
"""Options whose branch changes memory in ways that no configuration object shows."""
_CHOOSES = {"dtype", "torch_dtype", "precision", "mixed_precision", "optimizer", "optim", "optimizer_name", "total_batch_size", "global_batch_size"}  # fmt: skip
"""Options that a program compares with words and numbers: it heard them, and nothing that it makes shows them."""


def _told(
    found: dict[str, Any], said: dict[str, Any], heard: set[str], shaped: bool, name: str
) -> None:
    """Add what a command line says that nobody followed through the program: it is read by its usual meaning, or named."""
    followed = {name for name in heard - _CHOOSES if not _STORES.search(name)} | {"config"}
    for key, value in said.items():  # in the command's order, so that two readings say the same
        if not (key in followed or inert(key) or name.endswith(".ipynb")):
            found.setdefault(key, value)
    for key in ("ds_config", "deepspeed_config", "deepspeed_config_file"):
        if str(said.get(key)).endswith(".json"):  # handed to DeepSpeed, whatever opens it
            found.setdefault(key, said[key])
    if "model_name_or_path" not in found and not shaped:
        model = next((said[one] for one in NAMES if said.get(one)), None)
        found |= {"model_name_or_path": str(model)} if model else {}


def _near(name: str, folder: Path | None) -> Path | None:
    """Where Python looks for modules: beside the program, whatever folder its script was started in."""
    return Path(name).parent if folder is not None and Path(name).is_file() else folder


def _looped(text: str, said: dict[str, Any] | None, reading: Reading, alone: bool) -> None:
    """How a loop of one's own lays its devices out and shards its model.

    Args:
        alone: whether it is a loop indeed, in a program.
    """
    if alone and said is None and not _SPREADS.search(text) and not reading.world():
        reading.devices = 1
        reading.note("a loop that starts no other process: one device is priced", "launcher")
    if (tree := parse_python(text)) is not None:
        known = Known(tree, said)
        lay_out(tree, known, reading)
        says_compiled(tree, known, reading)
    if re.search(r"\bFSDP\(|FullyShardedDataParallel\(|\bfully_shard\(", text):
        reading.layout["zero"] = 3


def _written(text: str) -> tuple[str, bool]:
    """The program that trains: the text itself, or a program that it holds as a text and writes."""
    tree = parse_python(text)
    if tree is None:
        return text, False
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.search(
            rf"Trainer$|Accelerator$|{_WRAPS}", ast.unparse(node.func)
        ):
            return text, False
    inner = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_program(node.value)
    ]
    return next(((one, True) for one in inner if parse_python(one) is not None), (text, False))


def _built(shape: tuple[str, list[tuple[str, Any]]], reading: Reading) -> None:
    """Take the model that the program builds by itself."""
    called, arguments = shape
    said = {key: value for key, value in arguments if isinstance(value, (int, float, bool))}
    left = [key for key, value in arguments if value is None]
    reading.model = made_model(family_of(called), said, left, reading)
    usual = 0.1 if family_of(called) in ("gpt2", "opt") else 0.0  # the classes' own
    dropped = [said.get(name) for name in ("resid_pdrop", "hidden_dropout", "dropout")]
    reading.job["dropout"] = next((float(one) for one in dropped if one is not None), usual)


_TRL_TRAINER = re.compile(r"\b(?:SFT|DPO|KTO|GRPO|RLOO)Trainer\(")
_TRL_CONFIG = re.compile(r"\b(?:SFT|DPO|KTO|Reward|GRPO|RLOO)Config\(")


def _by_library(text: str, found: dict[str, Any], reading: Reading) -> None:
    """What libraries around the trainer set where a program says nothing."""
    if re.search(r"\bfsdp_v2\.use_fsdp_v2\(", text):
        found.setdefault("fsdp", "full_shard")  # optimum-tpu's: parameters over all chips, by SPMD
    if "deepspeed_plugin" in text and "deepspeed" not in found and "framework" not in reading.job:
        reading.guess("sharding", "DeepSpeed's stage is in accelerate's configuration that starts the program, which is not here: whole copies are taken; import the command with it")  # fmt: skip
    if "SFTTrainer(" in text and "TrainingArguments(" in text and not {*LENGTHS} & set(found):
        found["max_length"] = 1024
        reading.guess("max_length", "is not set: TRL's own, 1,024 tokens, is taken")
    made_away = _TRL_TRAINER.search(text) and "TrainingArguments(" not in text
    if _TRL_CONFIG.search(text) or made_away:
        trl_defaults(found, reading)


_TRAINED_WHOLE = ("lm_head", "embed_tokens")


def _unsloth(found: dict[str, object], reading: Reading) -> None:
    """What Unsloth does by itself."""
    reading.devices = 1
    reading.note("Unsloth trains on one device", "FastLanguageModel")
    reading.job["loss"] = UNSLOTH_LOSS
    targets = found.get("target_modules")
    if isinstance(targets, list) and (whole := [one for one in targets if one in _TRAINED_WHOLE]):
        # Unsloth trains these in full, as PEFT's `modules_to_save` (unsloth/models/llama.py).
        found["target_modules"] = [one for one in targets if one not in _TRAINED_WHOLE]
        saved = found.get("modules_to_save")
        found["modules_to_save"] = [*(saved if isinstance(saved, list) else []), *whole]
    if not {"bf16", "fp16"} & set(found):
        found["bf16"] = True  # weights and arithmetic in 16 bits, whichever the device has
    asked = found.pop("use_gradient_checkpointing")
    found["gradient_checkpointing"], offloads = unsloth_recomputes(asked)
    if offloads:
        reading.offload.add("activations")
