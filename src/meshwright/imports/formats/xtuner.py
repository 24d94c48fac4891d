"""XTuner's configurations, which are Python: mmengine's tables of version 0, `TrainerConfig` of version 1.

Nothing is run. Defaults: xtuner/model/sft.py, xtuner/tools/train.py and configs/deepspeed of version 0;
xtuner/v1/config/fsdp.py, loss/ce_loss.py and train/trainer.py of version 1.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import parse_python
from meshwright.imports.formats import accelerate
from meshwright.imports.formats.hf_sharding import deepspeed_named
from meshwright.imports.launch import Launch
from meshwright.imports.names import PLANNED, refuse_other
from meshwright.imports.options import counted, flags_of
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text
from meshwright.specs.job import RECIPES

_OLD = re.compile(r"^optim_wrapper\s*=\s*dict\(", re.M)
_NEW = re.compile(r"^from xtuner\.v1\b", re.M)
EDITS = {"micro_batch": "batch_size", "accumulation": "accumulative_counts"}


def is_config(text: str) -> bool:
    """Whether a Python text is a configuration of XTuner's."""
    return bool(_OLD.search(text) and "train_dataloader" in text) or bool(_NEW.search(text) and re.search(r"\b(?:TrainerConfig|WorkerConfig)\(", text))  # fmt: skip


_OF_TRAINER = re.compile(r"^framework\s*=\s*[\"']hugging_?face[\"']", re.M | re.I)


def of_trainer(text: str) -> bool:
    """Whether a configuration is of transformers' Trainer, in mmengine's tables (`dict(type=LoraConfig, r=16)`)."""
    return bool(
        _OF_TRAINER.search(text) and re.search(r"type\s*=\s*(?:\w+\.)*\w*TrainingArguments\b", text)
    )


def as_program(text: str) -> str:
    """Such a configuration as the program that it stands for: each table is the call of its type."""
    tree = parse_python(text)
    if tree is None:
        return text
    made = ast.unparse(ast.fix_missing_locations(_Called().visit(tree)))
    if re.search(r"^lora = ", made, re.M):  # XTuner puts the parts together (xtuner/tools/train.py)
        made += "\nmodel = get_peft_model(model, lora)"
    return f"{made}\ntrainer = Trainer(model=model, args=training_args)\n"


class _Called(ast.NodeTransformer):
    """Turns `dict(type=made, a=1)` into `made(a=1)`, inside first."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        kind = next((one.value for one in node.keywords if one.arg == "type"), None)
        plain = isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args
        if not plain or not isinstance(kind, (ast.Name, ast.Attribute)):
            return node
        return ast.Call(kind, [], [one for one in node.keywords if one.arg != "type"])


def reads(launch: Launch) -> bool:
    """Whether a command starts XTuner."""
    return launch.program == "xtuner train" or bool(re.search(r"xtuner[./](?:tools[./]train|v1[./]train[./]cli[./]sft)", launch.program))  # fmt: skip


def read_words(launch: Launch, given: Given, folder: Path | None) -> Reading:
    """Return what a command of XTuner's trains: the configuration that it names, its own words over it.

    Raises:
        SpecError: the configuration is not here, or a value in it cannot be.
    """
    flags = flags_of(launch.words)
    plain = next((one for one in launch.words if not one.startswith("-")), "")
    named = str(flags.get("config") or plain)
    path = beside(folder, named) if named.endswith(".py") else None
    if path is None:
        raise SpecError("config", named[-80:], "XTuner's configuration is not here (`xtuner copy-cfg` writes one): import the command beside it, or that file")  # fmt: skip
    text = read_text(path, "file")
    if of_trainer(text):
        from meshwright.imports import programs

        reading = programs.read(as_program(text), str(path), given, folder=path.parent)
    else:
        reading = read(text, str(path), given)
    reading.remarks = [one for one in reading.remarks if one.option != _SHARDS]
    reading.format = f"{reading.format}, named by a script"
    if isinstance(flags.get("deepspeed"), str):
        _deepspeed(str(flags["deepspeed"]), reading, given, path.parent)
    if launch.program == "xtuner train" and not launch.per_host:
        reading.devices = 1  # unless NPROC_PER_NODE starts torchrun
        reading.note("xtuner train starts one process where NPROC_PER_NODE is not set", "launcher")
    return reading


def read(text: str, name: str, given: Given) -> Reading:
    """Return what a configuration of XTuner's trains.

    Raises:
        SpecError: not Python, a value that cannot be, or no decoder of text.
    """
    tree = parse_python(text)
    if tree is None:
        raise SpecError("file", name, "is not valid Python")
    known = Known(tree)
    reading = Reading("XTuner configuration", options=dict(EDITS))
    reading.model = given.model
    if _NEW.search(text) and not _OLD.search(text):
        _new(tree, known, reading, name)
        return reading
    _old(tree, known, reading, name)
    reading.guess(_SHARDS, "is the command's: none is taken, a whole copy a device in the width of optim_wrapper")  # fmt: skip
    return reading


_SHARDS = "--deepspeed"


def _deepspeed(named: str, reading: Reading, given: Given, folder: Path) -> None:
    """DeepSpeed's file by its path, or one of XTuner's own by its name; both widths are "auto", and bf16 wins."""
    held = reading.job["precision"]
    deepspeed_named(named, reading, given, folder, None)
    reading.job["framework"] = "deepspeed"
    if re.fullmatch(r"deepspeed_zero[123](?:_offload)?", named):  # XTuner's own
        reading.remarks = [one for one in reading.remarks if one.option != "deepspeed"]
    if reading.job["precision"] == held:
        reading.job["precision"] = RECIPES["bf16"].model_dump()


def _tables(tree: ast.Module) -> dict[str, ast.expr]:
    """What the names of a configuration's own lines are set to, the last of a name."""
    return {
        one.targets[0].id: one.value
        for one in tree.body
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
    }


def _inside(node: ast.expr | None, *names: str) -> ast.expr | None:
    """A value in tables of tables, by its names."""
    for name in names:
        pairs: list[tuple[Any, ast.expr]] = []
        if isinstance(node, ast.Call):
            pairs = [(one.arg, one.value) for one in node.keywords]
        elif isinstance(node, ast.Dict):
            pairs = [(getattr(key, "value", None), one) for key, one in zip(node.keys, node.values, strict=True)]  # fmt: skip
        node = next((value for key, value in pairs if key == name), None)
    return node


def _old(tree: ast.Module, known: Known, reading: Reading, name: str) -> None:
    tables = _tables(tree)
    model, wrapper = tables.get("model"), tables.get("optim_wrapper")
    kind = _word(_inside(model, "type"))
    if re.search(r"LLaVA|InternVL|DeepseekVL|Vision", kind):
        raise SpecError("model.type", kind, f"trains a vision-language model: {PLANNED}")

    def value(place: ast.expr | None) -> Any:
        return None if place is None else known.value(place)

    loaded = _inside(model, "llm") or _inside(model, "model")
    reading.model_name = str(value(_inside(loaded, "pretrained_model_name_or_path")) or known.names.get("pretrained_model_name_or_path") or "")  # fmt: skip
    if reading.model is None:
        refuse_other(reading.model_name)
    reading.seq_len = counted(known.names.get("max_packed_length")) or counted(known.names.get("max_length"))  # fmt: skip
    loader = tables.get("train_dataloader")
    reading.micro_batch = counted(value(_inside(loader, "batch_size"))) or 1
    reading.accumulation = counted(value(_inside(wrapper, "accumulative_counts"))) or 1
    shared = counted(known.names.get("sequence_parallel_size")) or 1
    if shared > 1:
        reading.layout |= {"cp": shared, "cp_method": "ulysses"}
        again = any(isinstance(one, ast.AugAssign) and ast.unparse(one.target) == "accumulative_counts" for one in tree.body)  # fmt: skip
        reading.accumulation *= shared if again else 1
    off = value(_inside(model, "use_activation_checkpointing")) is False
    reading.layout["recompute"] = "none" if off else "full"
    width = str(value(_inside(wrapper, "dtype")) or "float16")
    mixed = "Amp" in _word(_inside(wrapper, "type"))
    recipe = ("bf16" if "bf" in width else "fp16") if mixed else "fp32"
    reading.job = {"framework": "xtuner", "precision": RECIPES[recipe].model_dump()}
    _optimizer(_word(tables.get(_word(_inside(wrapper, "optimizer", "type")), _inside(wrapper, "optimizer", "type"))), reading)  # fmt: skip
    if value(_inside(model, "use_varlen_attn")):
        reading.job["document_masking"] = True
    _adapters(model, loaded, value, reading)
    name_task(reading, {"RewardModel": "reward"}.get(kind, kind))
    if not reading.seq_len:
        raise SpecError("max_length", name, "the configuration does not say how long a sequence is")


def _adapters(
    model: ast.expr | None, loaded: ast.expr | None, value: Any, reading: Reading
) -> None:
    lora, stored = _inside(model, "lora"), _inside(loaded, "quantization_config")
    if lora is None:
        return
    four, eight = (value(_inside(stored, f"load_in_{bits}bit")) for bits in (4, 8))
    kept = str(value(_inside(stored, "bnb_4bit_quant_type")) or "nf4")
    adapters(
        reading, rank=counted(value(_inside(lora, "r"))) or 8, alpha=float(value(_inside(lora, "lora_alpha")) or 0),
        dropout=float(value(_inside(lora, "lora_dropout")) or 0), targets=value(_inside(lora, "target_modules")),
        bits=4 if four else 8 if eight else 0, storage=kept if four else "",
        twice=bool(value(_inside(stored, "bnb_4bit_use_double_quant"))) if four else None, option="lora.target_modules",
        whole=value(_inside(lora, "modules_to_save")),
    )  # fmt: skip


def _word(node: ast.expr | None) -> str:
    """The last part of a name: `torch.optim.AdamW` is `AdamW`."""
    return "" if node is None else ast.unparse(node).rpartition(".")[2].strip("'\"")


def _optimizer(name: str, reading: Reading) -> None:
    found = optimizer_or_adamw(reading, name, "optim_type")
    reading.job["optimizer"] = found.model_dump()


_CLASS = re.compile(r"(Qwen|GptOss|DeepSeek|Glm|InternS)(\w*?)Config$")


def _new(tree: ast.Module, known: Known, reading: Reading, name: str) -> None:
    calls = {_word(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    trainer = calls.get(
        "TrainerConfig", calls.get("WorkerConfig")
    )  # the latter trains between rollouts

    def said(call: ast.expr | None, field: str, default: Any) -> Any:
        found = _inside(call, field)
        value = None if found is None else known.value(found)
        if found is not None and value is None:
            reading.guess(field, f"is {ast.unparse(found)[:60]}; {default} is taken")
        return default if value is None else value

    classes = [one for one in calls if _CLASS.fullmatch(one)]
    if any("VL" in one or "Vision" in one for one in classes) and "only_llm_forward" not in ast.unparse(tree):  # fmt: skip
        raise SpecError("model_cfg", classes[0], f"trains a vision-language model: {PLANNED}")
    loaded = _inside(trainer, "load_from") or _inside(trainer, "tokenizer_path")
    reading.model_name = str((known.value(loaded) if loaded is not None else None) or "")
    reading.model_name = reading.model_name or next((_spelled(one) for one in classes), "")
    if loaded is not None and not reading.model_name:
        reading.model_left = ("load_from", ast.unparse(loaded)[:40])
    fsdp = calls.get("FSDPConfig")
    ratio = float(said(fsdp, "recompute_ratio", 1.0))
    reading.layout = {
        "zero": 3 if said(fsdp, "reshard_after_forward", True) else 2, "recompute": "full" if ratio > 0 else "none",
        "tp": counted(said(fsdp, "tp_size", 1)) or 1, "ep": counted(said(fsdp, "ep_size", 1)) or 1,
    }  # fmt: skip
    if 0 < ratio < 1:
        reading.unmodelled("recompute_ratio", f"{ratio:g} of the layers are recomputed; all are priced")  # fmt: skip
    if (shared := counted(said(trainer, "sp_size", 1)) or 1) > 1:
        reading.layout |= {"cp": shared, "cp_method": "ulysses"}
    if said(fsdp, "cpu_offload", False):
        reading.offload |= {"optimizer", "parameters"}
    loader = calls.get("DataloaderConfig")
    reading.seq_len = counted(said(loader, "pack_max_length", 0))
    reading.micro_batch = 1
    reading.global_batch = counted(said(trainer, "global_batch_size", 0))
    if "TrainerConfig" not in calls:
        _answers(known, said(trainer, "optimizer_steps", 1), reading)
    reading.job = {"framework": "fsdp", "precision": RECIPES["bf16"].model_dump(), "document_masking": True}  # fmt: skip
    accelerate.gradients_of_32_bits(reading)
    if said(calls.get("CELossConfig"), "mode", "eager") in ("chunk", "liger"):
        reading.job["loss"] = "liger"
    if "Float8Config" in calls:
        reading.unmodelled("float8_cfg", "products in 8 bits; bf16 is priced")
    optimizer = calls.get("MuonConfig", calls.get("AdamWConfig"))
    _optimizer("muon" if optimizer is not None and "Muon" in _word(optimizer.func) else "adamw", reading)  # fmt: skip
    if said(calls.get("AdamWConfig"), "swap_optimizer", False):
        reading.offload.add("optimizer")
    if not reading.seq_len:
        raise SpecError("pack_max_length", name, "the configuration does not say how long a packed row is")  # fmt: skip


def _answers(known: Known, steps: Any, reading: Reading) -> None:
    """The answers that a step of reinforcement learning trains on, each taken to fill a row."""
    prompts, repeats = (counted(known.names.get(one)) for one in ("train_batch_size", "prompt_repeat_k"))  # fmt: skip
    if prompts and repeats:
        reading.global_batch = max(1, prompts * repeats // (counted(steps) or 1))
        reading.guess("--global-batch", f"{reading.global_batch} answers are packed; each is taken to fill a row")  # fmt: skip
    name_task(reading, "grpo")


def _spelled(kind: str) -> str:
    """A model by the name of its class: `Qwen3MoE30BA3Config` is `Qwen3-30B-A3B`."""
    found = re.fullmatch(r"(Qwen\d)(?:Dense|MoE)(\d+(?:P\d)?B)(A\d+)?Config", kind)
    if found is None:
        return kind.removesuffix("Config")
    active = f"-{found.group(3)}B" if found.group(3) else ""
    return f"{found.group(1)}-{found.group(2).replace('P', '.')}{active}"
