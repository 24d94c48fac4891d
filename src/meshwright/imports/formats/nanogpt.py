"""nanoGPT and its copies: constants of a program, over them a file of constants, over them `--name=value`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.code.syntax import parse_python
from meshwright.imports.launch import Launch
from meshwright.imports.options import Options
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.imports.shell.words import unmarked
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

_SHAPE = {"n_layer", "n_head", "n_embd", "block_size"}
_DEFAULTS: dict[str, Any] = {
    # karpathy/nanoGPT train.py; a copy at hand says its own.
    "batch_size": 12, "block_size": 1024, "gradient_accumulation_steps": 40, "n_layer": 12, "n_head": 12, "n_embd": 768,
    "dropout": 0.0, "bias": False, "dtype": "bfloat16", "compile": True, "init_from": "scratch",
}  # fmt: skip
_VOCAB = 50_304
"""GPT-2's 50,257 rounded up to a multiple of 64, as the program does without a data set's own."""


def reads(launch: Launch, folder: Path | None) -> bool:
    """Whether a command starts such a program: by its own text, or by the files of constants that it names."""
    return bool(set(_constants(launch.program, folder)) >= _SHAPE) or any(
        {"n_layer", "n_embd"} <= set(_constants(word, folder)) for word in _files(launch)
    )


def read_words(launch: Launch, given: Given, folder: Path | None) -> Reading:
    """Return what such a command runs.

    Raises:
        SpecError: a value that cannot be.
    """
    program = _constants(launch.program, folder)
    values = dict(program or _DEFAULTS)
    for word in _files(launch):
        path = beside(folder, word)
        if path is None:
            raise SpecError("file", word, "is not here: give its folder, too")
        values |= _constants(word, folder)
    for word in launch.words:
        found = re.fullmatch(r"--(\w+)=(.*)", unmarked(word))
        if found:
            values[found.group(1)] = found.group(2)
    options = Options(values, "--")
    options.guessing = given.guess
    reading = Reading(
        "nanoGPT command", options={"micro_batch": "--batch_size", "accumulation": "--gradient_accumulation_steps"}
    )  # fmt: skip
    path = beside(folder, launch.program)
    text = (
        read_text(path, "file")
        if path is not None
        else "gradient_accumulation_steps //= ddp_world_size"
    )
    _batches(options, reading, launch, text)
    _model(options, reading, given)
    _job(options, reading)
    return reading


def _files(launch: Launch) -> list[str]:
    """Words of a command that are files of constants, as the program's configurator takes them."""
    words = [unmarked(word) for word in launch.words]
    return [word for word in words if word.endswith(".py") and not word.startswith("-")]


def is_constants(tree: ast.Module) -> bool:
    """Whether a Python file is constants of such a program, or the program with all of them at its top."""
    found = _assigned(tree)
    alone = all(isinstance(node, (ast.Assign, ast.Expr, ast.Import)) for node in tree.body)
    sizes = {"batch_size", "block_size", "n_layer", "n_embd", "gradient_accumulation_steps"} & set(found)  # fmt: skip
    return (alone and len(sizes) > 1) or (set(found) >= _SHAPE and "batch_size" in found)


def read_constants(tree: ast.Module, given: Given) -> Reading:
    """Return what nanoGPT runs with such a file.

    Raises:
        SpecError: a value that cannot be.
    """
    found = _assigned(tree)
    if found.get("eval_only") is True:
        raise SpecError("eval_only", True, "evaluates a model; it does not train")
    options = Options({**_DEFAULTS, **found}, "")
    options.assumed = set(_DEFAULTS) - set(found)
    options.guessing = given.guess
    reading = Reading(
        "nanoGPT constants", options={"micro_batch": "batch_size", "accumulation": "gradient_accumulation_steps"}
    )  # fmt: skip
    _batches(options, reading, None, "gradient_accumulation_steps //= ddp_world_size")
    reading.guess("gradient_accumulation_steps", "counts the micro-batches of all devices together, as in current versions; those of each in older ones")  # fmt: skip
    _model(options, reading, given)
    _job(options, reading)
    if "gradient_accumulation_steps" not in found:
        reading.guess("gradient_accumulation_steps", "40, nanoGPT's own, is taken")
    return reading


def _constants(named: str, folder: Path | None) -> dict[str, Any]:
    """What the file of constants that a command names assigns."""
    path = beside(folder, named) if named.endswith(".py") else None
    tree = parse_python(read_text(path, "file")) if path is not None else None
    return {} if tree is None else _assigned(tree)


def _assigned(tree: ast.Module | None) -> dict[str, Any]:
    """What a file's top level assigns to plain names: numbers, truths and texts."""
    found: dict[str, Any] = {}
    for node in tree.body if tree is not None else []:
        if (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
        ):
            value = _constant(node.value)
            if value is not None:
                found[node.targets[0].id] = value
    return found


def _constant(node: ast.expr) -> Any:
    """A constant, or a product of whole numbers (`5 * 8`)."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = [_constant(node.left), _constant(node.right)]
        if all(isinstance(one, int) and abs(one) < 1 << 31 for one in sides):
            return sides[0] * sides[1]
    if isinstance(node, ast.IfExp):  # `'bfloat16' if torch.cuda.is_bf16_supported() else 'float16'`
        return _constant(node.body)
    return None


def _batches(options: Options, reading: Reading, launch: Launch | None, text: str) -> None:
    reading.micro_batch = options.whole("batch_size", default=12, least=1)
    reading.seq_len = options.whole("block_size", default=1024, least=1)
    steps = options.whole("gradient_accumulation_steps", default=1, least=1)
    if re.search(r"gradient_accumulation_steps\s*//?=\s*\w*world_size", text):
        # The file counts the steps of all ranks together.
        reading.global_batch = steps * reading.micro_batch
    else:
        reading.accumulation = steps
    reading.layout["zero"] = 0
    if launch is None:
        return
    started = any(word.rsplit("/", 1)[-1] in ("torchrun", "torch.distributed.run", "torch.distributed.launch") for word in launch.launcher)  # fmt: skip
    if not started:
        reading.devices = 1
        reading.note("python alone starts one process: one device is priced", "launcher")


def _model(options: Options, reading: Reading, given: Given) -> None:
    start = options.loose("init_from")
    if given.model is not None:
        reading.model = given.model
    elif start.startswith("gpt2"):
        reading.model_name = start
    else:
        width, heads = (
            options.whole("n_embd", least=1, default=768),
            options.whole("n_head", least=1, default=12),
        )
        reading.model = Model.parse(
            {
                "name": "imported", "layers": options.whole("n_layer", least=1, default=12), "hidden": width, "heads": heads,
                "kv_heads": options.whole("n_kv_head", "n_kv_heads") or heads, "head_dim": width // heads,
                "ffn": 4 * width, "vocab": options.whole("vocab_size") or _VOCAB, "gated": False, "norm": "layernorm",
                "positions": "learned", "max_positions": reading.seq_len, "tied_embeddings": True,
                **({"qkv_bias": True, "attention_out_bias": True, "ffn_bias": True, "norm_bias": True} if options.flag("bias") else {}),
            },
            "model",
        )  # fmt: skip
        reading.guess("--model", f"what model.py builds is taken as nanoGPT's: learned positions, tied embeddings, {reading.model.vocab:,} tokens")  # fmt: skip


def _job(options: Options, reading: Reading) -> None:
    dtype = options.word("dtype", default="bfloat16")
    recipe = RECIPES["fp32"]
    if dtype in ("bfloat16", "float16"):
        # Autocast over 32-bit weights: their gradients are of that width, too.
        half = "bf16" if dtype == "bfloat16" else "fp16"
        recipe = recipe.but(name=half, compute=half, activation_bytes=2)
    reading.job["precision"] = recipe.model_dump()
    reading.job["framework"] = "fsdp"
    dropout = options.number("dropout")
    if 0 < dropout < 1:
        reading.job["dropout"] = dropout
    reading.layout["recompute"] = "none"
    name = options.word("optimizer_name", "optimizer", "optim", default="adamw")
    reading.job["optimizer"] = optimizer_or_adamw(reading, name, "optimizer_name").model_dump()
    if options.flag("compile"):
        reading.unmodelled(
            "compile", "torch.compile fuses kernels; the estimate runs PyTorch's own"
        )
