"""What a program at hand does to its model by its own lines: adapters, a loss without logits, recomputation, a mesh."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import program_beside
from meshwright.imports.code.branches import calls_reached
from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import dotted, parse_python
from meshwright.imports.own.arguments import known_by
from meshwright.imports.reading import Reading
from meshwright.specs.foreign import read_text

RECOMPUTES = ("gradient_checkpointing_enable", "activation_checkpointing_enable", "apply_activation_checkpointing", "checkpoint_wrapper")  # fmt: skip
"""Ends of the names of calls that recompute a model's layers."""
PREPARES = ("prepare_model_for_kbit_training", "prepare_model_for_int8_training")
"""PEFT's preparation of weights that are quantised, as it is called since 0.4 and before."""
_ADAPTERS = {"r": "lora_r", "lora_alpha": "lora_alpha", "target_modules": "lora_target_modules", "lora_dropout": "lora_dropout",
             "modules_to_save": "modules_to_save", "use_dora": "use_dora"}  # fmt: skip


_MAKES_ADAPTERS = re.compile(r"\bLoraConfig\(|(?<!class )\b\w*(?:LoRA|Lora)\w*\(")
_LAYER = re.compile(r"(?:\w+\.)*\w*(?:LoRA|Lora)(?!Config)\w*")
"""A layer with adapters that a program writes itself (`LinearLoRA(layer, r=…)`)."""


def own_adapters(program: str, folder: Path | None, said: dict[str, Any]) -> dict[str, Any]:
    """Adapters that a program at hand makes whatever it is told, by the names of command lines; empty without.

    Args:
        said: its command line and its defaults, which decide its branches.
    """
    path = program_beside(folder, program)
    text = "" if path is None else read_text(path, "file")
    tree = parse_python(text) if _MAKES_ADAPTERS.search(text) else None
    if tree is None:
        return {}
    known = known_by(tree, said)
    for node in calls_reached(tree, known.holds, certain=True):
        if ast.unparse(node.func).lower().endswith("loraconfig"):
            found = dict(known.keywords(node))
            return {"use_peft": True} | {
                ours: found[theirs]
                for theirs, ours in _ADAPTERS.items()
                if found.get(theirs) is not None
            }
        if made := adapted_layer(node, known):
            return made
    return {}


def recomputes_prepared(call: ast.Call, known: Known) -> bool:
    """Whether PEFT's preparation switches recomputation on: unless it is told not to; told what the trainer is, it adds nothing."""
    told = next((one.value for one in call.keywords if one.arg == "use_gradient_checkpointing"), None)  # fmt: skip
    told = call.args[1] if told is None and len(call.args) > 1 else told
    said = dict(known.keywords(call)).get("use_gradient_checkpointing")
    said = known.value(told) if said is None and told is not None else said
    if said is None and told is not None:
        return not ast.unparse(told).endswith("gradient_checkpointing")
    return said is None or said is True


def makes_none(program: str, folder: Path | None, said: dict[str, Any]) -> bool:
    """Whether a program at hand knows adapters and makes none by what it is told: a default rank alone says nothing.

    Args:
        said: its command line and its defaults, which decide its branches.
    """
    path = program_beside(folder, program)
    text = "" if path is None else read_text(path, "file")
    return "LoraConfig" in text and not own_adapters(program, folder, said)


def recomputes(tree: ast.AST, known: Known) -> bool:
    """Whether a program switches recomputation on by a call, where what it depends on does not deny it."""
    for call in calls_reached(tree, known.holds):
        called = dotted(call.func)
        if called.endswith(RECOMPUTES):
            return True
        if called.endswith(PREPARES) and recomputes_prepared(call, known):
            return True
    return any(_is_switch(node) for node in ast.walk(tree))


_SWITCH = re.compile(r"(?:\w+_)?model(?:\.\w+)*\.gradient_checkpointing")


def _is_switch(node: ast.AST) -> bool:
    """Whether a line sets the switch of a model's own layers (`model.transformer.gradient_checkpointing = True`)."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
        return False
    return node.value.value is True and any(_SWITCH.fullmatch(ast.unparse(one)) for one in node.targets)  # fmt: skip


def switches_on(tree: ast.AST, known: Known) -> bool:
    """Whether a program recomputes by a call that no unknown condition guards, whatever its trainer is told."""
    calls = calls_reached(tree, known.holds, certain=True)
    return any(dotted(call.func).endswith(RECOMPUTES) for call in calls)


def says_compiled(tree: ast.AST, known: Known, reading: Reading) -> None:
    """Name what the estimate does not price: that the program compiles its model, which no unknown condition guards."""
    calls = calls_reached(tree, known.holds, certain=True)
    if any(_COMPILES.search(dotted(one.func)) for one in calls):
        reading.unmodelled("compile", "torch.compile fuses kernels; the estimate runs PyTorch's own")  # fmt: skip


_COMPILES = re.compile(r"^(?:torch|(?:\w+\.)*model)\.compile$")
_NARROWED = re.compile(r"[\"'](?:lm_head|embed_tokens)[\"'] in name\b")
"""How QLoRA's script and those made from it cast head and embedding back to 16 bits."""


def upcasts(tree: ast.AST, known: Known) -> bool:
    """Whether PEFT's preparation keeps in fp32 what is not quantised, and nothing casts it back."""
    calls = calls_reached(tree, known.holds)
    prepares = any(dotted(one.func).endswith(PREPARES) for one in calls)
    return prepares and _NARROWED.search(ast.unparse(tree)) is None


_HELD = re.compile(r"teacher|ref_model|reference|reward|critic")
"""Names of models that a program holds beside the one that it trains."""
_LENGTHS = ("max_length", "max_seq_length", "model_max_length")
_SHORTEST = 16
"""A smaller length of texts is a part of one."""
_OF_TRAINER = ("optim", "bf16", "fp16", "gradient_checkpointing", "per_device_train_batch_size", "gradient_accumulation_steps")  # fmt: skip
"""What a program hands to the trainer itself."""
_LOADED = {"load_in_4bit": "load_in_4bit", "load_in_8bit": "load_in_8bit", "bnb_4bit_quant_type": "bnb_4bit_quant_type",
           "bnb_4bit_use_double_quant": "bnb_4bit_use_double_quant", "torch_dtype": "torch_dtype", "dtype": "torch_dtype"}  # fmt: skip
"""What weights are loaded with, by the names of command lines."""


def own_switches(program: str, folder: Path | None, said: dict[str, Any]) -> dict[str, Any]:
    """What a program at hand does whatever it is told: recomputes, loads in other widths, cuts at a length of its own.

    Args:
        said: its command line and its defaults, which decide its branches.
    """
    path = program_beside(folder, program)
    text = "" if path is None else read_text(path, "file")
    tree = parse_python(text) if "from_pretrained(" in text else None
    if tree is None:
        return {}
    known = known_by(tree, said)
    found: dict[str, Any] = {}
    cuts: list[int] = []
    beside = {one.value for one in ast.walk(tree) if isinstance(one, ast.Assign) and _HELD.search(ast.unparse(one.targets[0]))}  # fmt: skip
    for node in calls_reached(tree, known.holds, certain=True):
        called = ast.unparse(node.func)
        if called.endswith(RECOMPUTES):
            found["gradient_checkpointing"] = True
        elif called.endswith(PREPARES):
            again = recomputes_prepared(node, known)
            found |= {"prepare_model_for_kbit_training": True} | ({"gradient_checkpointing": True} if again else {})  # fmt: skip
        elif called.endswith(("Config", "Arguments", "Trainer")) and "Lora" not in called:
            words = dict(known.keywords(node))
            length = next((words[one] for one in _LENGTHS if isinstance(words.get(one), int)), 0)
            if length:
                found.setdefault("max_length", length)
            if called.endswith("Arguments") or "output_dir" in words:
                found |= {name: words[name] for name in _OF_TRAINER if words.get(name) is not None and name not in found}  # fmt: skip
        elif re.search(r"[tT]okenizer(?:\.\w+)?$", called):
            cut = dict(known.keywords(node)).get("max_length")
            cuts += [cut] if isinstance(cut, int) and not isinstance(cut, bool) else []
        if called.endswith(("ForCausalLM.from_pretrained", "BitsAndBytesConfig")) and node not in beside:  # fmt: skip
            for theirs, value in known.keywords(node):
                if theirs in _LOADED and value is not None:
                    found.setdefault(_LOADED[theirs], value)
    if cuts and max(cuts) >= _SHORTEST:
        found.setdefault("max_length", max(cuts))
    return found


def handed(program: str, folder: Path | None) -> dict[str, Any]:
    """What a program at hand writes out itself where it makes its trainer: no option of its own changes that."""
    path = program_beside(folder, program)
    text = "" if path is None else read_text(path, "file")
    tree = parse_python(text) if "Trainer(" in text else None
    found: dict[str, Any] = {}
    for node in ast.walk(tree) if tree is not None else []:
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Trainer")):
            continue
        words = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}  # fmt: skip
        length = next((words[one] for one in _LENGTHS if type(words.get(one)) is int), 0)
        found |= {"max_length": length} if length else {}
        found |= {"packing": words["packing"]} if isinstance(words.get("packing"), bool) else {}
    return found


_FUSED = re.compile(
    r"\bLigerFusedLinearCrossEntropyLoss\(|\bLigerForCausalLMLoss\(|^\s*apply_liger_kernel_to_\w+\((?![^()]*fused_linear_cross_entropy\s*=\s*False)",
    re.M,
)
_CUT = re.compile(r"^[^\S\n]*from cut_cross_entropy(?:\.\w+)* import\b", re.M)


def fuses_loss(program: str, folder: Path | None, reading: Reading) -> None:
    """Take the loss that a program at hand makes itself without whole logits: Liger's, or Apple's cut cross-entropy."""
    path = program_beside(folder, program)
    text = "" if path is None else read_text(path, "file")
    kind = "liger" if _FUSED.search(text) else "cut" if _CUT.search(text) else ""
    if kind and "loss" not in reading.job:
        reading.job["loss"] = kind
        reading.note("the program computes its loss without whole logits", program[-60:])


def adapted_layer(node: ast.Call, known: Known) -> dict[str, Any]:
    """Adapters that a call of a layer of the program's own makes, by the names of command lines; empty where it is none."""
    if not _LAYER.fullmatch(ast.unparse(node.func)):
        return {}
    found = dict(known.keywords(node))
    rank = next((found[one] for one in ("r", "rank") if found.get(one)), None)
    if not isinstance(rank, int):
        return {}
    made = {"use_peft": True, "lora_r": rank, "lora_target_modules": "all-linear"}
    alpha = found.get("alpha", found.get("lora_alpha"))
    return made | ({"lora_alpha": alpha} if isinstance(alpha, (int, float)) else {})


SHARED_STEPS = re.compile(
    r"(?:\b\w*acc\w*\s*//=|=\s*(?:int\()?(?:\w+\.)*\w*acc\w*\s*//?)\s*(?:\w+\.)*\(?\w*(?:world_?size|num_processes|n_?gpus|num_gpus)\b(?:\(\))?",
    re.IGNORECASE,
)
"""A program that divides its micro-batches of a step among the ranks: they are those of all ranks together."""
SHARED_BATCH = re.compile(r"(?i)\b\w*batch\w*\s*=\s*(?:int\(|max\(1,\s*)?(?:\w+\.)*\w*batch_size\s*//?\s*(?:\w+\.)*\(?\w*(?:world_?size|num_processes|n_?gpus|num_gpus)\b")  # fmt: skip
"""A program that divides a batch of all devices among them."""


FLOORS = re.compile(
    r"(?i)\b\w*batch\w*\s*=\s*\w*batch\w*\s*//\s*(?:\w+\.)*\w*(?:devices|world_?size|gpus|processes)\b"
)
"""A program that gives each device its whole part of a batch, and drops what is left."""


_AXES = {"tp": "tp", "tensor": "tp", "model": "tp", "pp": "pp", "pipeline": "pp", "cp": "cp", "context": "cp", "ep": "ep", "expert": "ep"}  # fmt: skip


def lay_out(tree: ast.AST, known: Known, reading: Reading) -> None:
    """Take the degrees of the first device mesh that a program makes, or lets Lightning make, with sizes that it says itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func).endswith("ModelParallelStrategy"):
            said = dict(known.keywords(node))
            if isinstance(size := said.get("tensor_parallel_size"), int) and size > 1:
                reading.layout["tp"] = size
            return
        if not (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith(("init_device_mesh", "DeviceMesh"))
        ):
            continue
        words = {one.arg: one.value for one in node.keywords}
        shape = words.get("mesh_shape") or (node.args[1] if len(node.args) > 1 else None)
        names = known.value(words["mesh_dim_names"]) if "mesh_dim_names" in words else None
        if not isinstance(shape, (ast.Tuple, ast.List)) or not isinstance(names, (tuple, list)):
            continue
        sizes = [known.value(one) for one in shape.elts]
        for name, size in zip(names, sizes, strict=False):
            axis = _AXES.get(str(name).lower(), "")
            if axis and isinstance(size, int) and size > 1 and axis not in reading.layout:
                reading.layout[axis] = size
                reading.guess(
                    "init_device_mesh", f"its dimension {name} of {size} is taken for {axis}"
                )
        return


def of_bmtrain(tree: ast.AST, known: Known, reading: Reading) -> None:
    """Take what BMTrain does with a model: its blocks shard weights and recompute unless told otherwise (bmtrain/block_layer.py)."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and re.fullmatch(r"bmt(?:rain)?\.init_distributed", ast.unparse(node.func))):  # fmt: skip
            continue
        words = dict(known.keywords(node))
        for theirs, axis in (("tp_size", "tp"), ("pipe_size", "pp")):
            size = words.get(theirs)
            if isinstance(size, int) and size > 1:
                reading.layout[axis] = size
        reading.layout |= {"zero": 3, "recompute": "full"}
        reading.remarks = [one for one in reading.remarks if one.option not in ("sharding", "recompute")]  # fmt: skip
        reading.guess("bmtrain", "its blocks shard weights, gradients and states (ZeRO-3) and recompute, unless told otherwise")  # fmt: skip
        return


_CASTS = re.compile(
    r"\bMixedPrecision(?:Policy)?\(\s*param_dtype\s*=\s*torch\.(bfloat16|float16)\b"
)
_CASTS_NOT = re.compile(r"mixed_precision\s*(?::\s*bool\s*)?=\s*False\b|Trainer\(|Arguments\(")
"""A switch that is off by itself, or a trainer with options of its own."""


def narrowed(text: str) -> dict[str, Any]:
    """In which width a loop of one's own computes, where it casts by itself, or lets FSDP cast."""
    cast = _CASTS.search(text)
    if cast is not None and _CASTS_NOT.search(text) is None:
        return {"bf16": True} if cast.group(1) == "bfloat16" else {"fp16": True}
    if not re.search(r"\bautocast\(", text) or re.search(
        r"\bAccelerator\(|Trainer\(|Arguments\(", text
    ):
        return {}
    return {"bf16": True} if "bfloat16" in text or "GradScaler" not in text else {"fp16": True}
