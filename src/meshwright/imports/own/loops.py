"""A loop of one's own that lies beside the script which starts it: its defaults, what it makes, the command over both."""

from __future__ import annotations

import ast
import math
import posixpath
import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import program_beside
from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import defaults_of, dotted, parse_python, without_comments
from meshwright.imports.formats.hf_launcher import one_process
from meshwright.imports.formats.lightning import of_fabric
from meshwright.imports.launch import Launch
from meshwright.imports.other_models import refuse_program
from meshwright.imports.own import commands as usual_commands
from meshwright.imports.own import option_names, usual
from meshwright.imports.own.answers import of_answers
from meshwright.imports.own.arguments import own_defaults, typed
from meshwright.imports.own.asked import asks_for_experts
from meshwright.imports.own.layers import (
    FLOORS,
    SHARED_STEPS,
    fuses_loss,
    lay_out,
    of_bmtrain,
    own_adapters,
    recomputes,
    says_compiled,
)
from meshwright.imports.own.made_with import mixes_experts, picked_by, without_takers
from meshwright.imports.own.program_settings import program_settings
from meshwright.imports.own.sizes import (
    SEVERAL,
    SHARDS,
    build,
    optimize,
    said_by,
    store,
    texts_beside,
)
from meshwright.imports.own.tables import inert
from meshwright.imports.reading import Given, Reading
from meshwright.imports.tasks import name_made, name_task
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text

_TRAINS = re.compile(r"\.backward\(|\bbackward\(")
_OF_A_LIBRARY = re.compile(
    r"\b(?:Seq2Seq)?TrainingArguments\b|HfArgumentParser|TrlParser|\bAccelerator\(|deepspeed\.initialize\(|\bMosaic|composer"
)
_TRAINER = re.compile(r"(?<!class )\b(\w*Trainer)\(")
_SPAWNS = re.compile(r"\bspawn\(|\bmp\.Process\(")
_CONFIGURED = re.compile(r"exec\(\s*open\(")
"""nanoGPT's way: a command's words count over the program's constants, which are its defaults."""
_FABRIC = re.compile(r"\bFabric\(")
_NARROW = re.compile(r"(?i)16|8|half")
"""A width below 32 bits, as options spell it."""
_AUTOCASTS = re.compile(r"\bautocast\(")
_NARROWS = re.compile(
    r"(?i)autocast|b?float16|\.half\(|\bb?fp?16|\bamp\b|precision|(?<![a-z_])deepspeed"
)
_WIDTHS = {"mixed_precision", "precision", "dtype", "torch_dtype", "compute_dtype", "bf16", "fp16", "use_bf16", "use_fp16"}  # fmt: skip
_SWITCHES = (
    "bf16",
    "fp16",
    "use_bf16",
    "use_fp16",
    "amp",
    "use_amp",
    "mixed_precision",
    "use_mixed_precision",
)
_RENAMED = {"use_muon": "use_muon"}
"""Names whose last part says enough, in whatever table of the command line they stand."""
COPIES = re.compile(r"\bDistributedDataParallel\(|\bDDP\(")
_MOST = 400_000


def is_a_library_s(text: str) -> bool:
    """Whether a program leaves its loop to a library: to a trainer that is no class of its own, or to an engine."""
    trainers = set(_TRAINER.findall(text)) - set(re.findall(r"class (\w*Trainer)\b", text))
    return bool(trainers) or _OF_A_LIBRARY.search(text) is not None


_MODEL = re.compile(r"\b(\w+(?:LMHeadModel|ForCausalLM))\(")
_FROM_TRANSFORMERS = re.compile(r"(?m)^[^\S\n]*from transformers\b[\w.]* import (\([^)]*\)|[^\n]*)")


def makes_a_library_s(text: str) -> bool:
    """Whether a program builds its model of a class of transformers' that it imports, by a configuration of its own."""
    imported = " ".join(one.group(1) for one in _FROM_TRANSFORMERS.finditer(text))
    return any(one in re.findall(r"\w+", imported) for one in _MODEL.findall(text))


def read(launch: Launch, given: Given, folder: Path | None) -> Reading | None:
    """What a loop at hand runs by a command; None where the program is no loop of its own.

    Raises:
        SpecError: a value that cannot be, or a model that is no decoder.
    """
    program = launch.program
    path = program_beside(folder, program)
    text = "" if path is None else read_text(path, "file", size_bytes=_MOST)
    if path is None:
        return None
    refuse_program(text, path.name)
    if not _TRAINS.search(text) or is_a_library_s(text) or makes_a_library_s(text):
        return None
    text = without_takers(text)
    said = {name: typed(value) for name, value in usual_commands.flags_of_words(launch).items()}
    own = _defaults(text) | own_defaults(program, folder)
    options = {**own, **said}
    tree = parse_python(text)
    others = texts_beside(text, path.parent)
    making = True
    picks = picked_by(tree, said) if tree is not None else ""
    if tree is not None and picks:
        own = own | said_by(tree, others, said)
        own.pop(SEVERAL, 0)
        said.pop(picks)
        own.pop(picks, None)
    if not option_names.says_enough({**own, **said}) or _CONFIGURED.search(text):
        own = own if tree is None else said_by(tree, others, said) | own
        own.pop(SEVERAL, 0)
        making = not option_names.says_batch(own)
    if not option_names.says_enough({**own, **said}):
        return None
    trees = [one for one in map(parse_python, (text, *others)) if one is not None]
    mixed = mixes_experts(trees, {**own, **said}) and given.model is None
    told = {one: own[one] for one in option_names.OF_EXPERTS if mixed and one in own}
    reading = read_loop(text, launch, own, {**told, **said}, given, folder, making)
    if mixed and reading.model is not None and reading.model.experts is None:
        raise asks_for_experts(path.name)
    code = [without_comments(one) for one in (text, *others)]
    if not {"optimizer", "optim"} & set(options):  # one that an option chooses is read by it
        optimize(reading, code[0], code[1:])
    store(reading, code[0], {**own, **said})
    for one in (path.name, str(said.get("algorithm", "")), str(said.get("rl_algorithm", ""))):
        name_task(reading, one)
    name_made(reading, text)
    of_answers(reading, {**own, **said}, text)
    build(reading, "\n".join(code), given, {**own, **said})
    return reading


def starts_others(program: str, folder: Path | None) -> bool:
    """Whether a program at hand starts the processes of its other devices by itself."""
    path = program_beside(folder, program)
    text = "" if path is None else read_text(path, "file", size_bytes=_MOST)
    return _SPAWNS.search(text) is not None or _FABRIC.search(text) is not None


def read_loop(
    text: str,
    launch: Launch,
    own: dict[str, Any],
    said: dict[str, Any],
    given: Given,
    folder: Path | None,
    making: bool = True,
) -> Reading:
    """What a loop runs by its own values and, over them, by a command's.

    Args:
        own: what the program takes where its command is silent.
        said: what the command says.
        making: whether what it makes a loader and a model with counts over `own`.

    Raises:
        SpecError: a value that cannot be, or a model that is no decoder.
    """
    program = launch.program
    name = posixpath.basename(program)
    made = _made(text, name, {**own, **said}) if making else {}
    flags = {**own, **made, **own_adapters(program, folder, {**own, **said}), **said}
    tree = parse_python(text)
    known = None if tree is None else Known(tree, {**own, **said})
    if tree is not None and known is not None and recomputes(tree, known):
        flags.setdefault("gradient_checkpointing", True)
    if SHARDS.search(text):
        flags.setdefault("sharding_strategy", "full_shard")
    elif COPIES.search(text):
        flags.setdefault("sharding_strategy", "ddp")
    switches = [flags[one] for one in _SWITCHES if one in flags]
    if switches and not any(switches) and all(isinstance(one, bool) for one in switches):
        flags["mixed_precision"] = "fp32"  # it would compute in fewer bits, was it told to
    elif _AUTOCASTS.search(text) and not any(_NARROW.search(str(flags.get(one, ""))) for one in ("mixed_precision", "precision")):  # fmt: skip
        width = str(flags.get("dtype", ""))  # which it hands to autocast
        flags["mixed_precision"] = (
            width
            if width in ("bfloat16", "float16", "float32")
            else "fp16"
            if "GradScaler" in text
            else "bf16"
        )
    elif not _NARROWS.search(text) and not _WIDTHS & set(flags):
        flags["mixed_precision"] = "fp32"  # nothing of it computes in fewer bits
    ranks = flags.pop("world_size", None) or _product(flags)
    if _FABRIC.search(text):  # whose words these are
        flags = {name: one for name, one in flags.items() if name not in ("devices", "num_nodes")}
    flags = {_RENAMED.get(name.rpartition(".")[2], name): value for name, value in flags.items()}
    reading = usual.read_table(
        flags, given, "script of a program of its own", inert, program=name[:60],
        assumed=frozenset(own.keys() - said.keys()),
    )  # fmt: skip
    if tree is not None and known is not None:
        lay_out(tree, known, reading)
        of_bmtrain(tree, known, reading)
        says_compiled(tree, known, reading)
    if (
        SHARED_STEPS.search(text)
        and reading.micro_batch
        and reading.accumulation > 1
        and not reading.global_batch
    ):
        reading.global_batch = reading.micro_batch * reading.accumulation
        reading.accumulation = 0
    fuses_loss(program, folder, reading)
    reading.floors = FLOORS.search(text) is not None
    if isinstance(ranks, int) and ranks > 0 and not (launch.hosts and launch.per_host):
        reading.devices = ranks
    elif tree is not None and known is not None and of_fabric(tree, known.value, reading):
        pass  # which starts a process a device by itself
    elif not _SPAWNS.search(text):
        one_process(launch, reading)
    return reading


def _product(flags: dict[str, Any]) -> int | None:
    """The devices that a program takes whose degrees are said, that of data among them; None where they are not."""
    degrees = [flags[one] for one in option_names.DEGREES if type(flags.get(one)) is int]
    return math.prod(degrees) if "dp_size" in flags and len(degrees) > 1 else None


_MADE = ("gradient_checkpointing", "load_in_4bit", "bnb_4bit_quant_type", "torch_dtype", "max_length",
         "per_device_train_batch_size", "gradient_accumulation_steps", "model_name_or_path", "optim")  # fmt: skip


def _made(text: str, name: str, said: dict[str, Any]) -> dict[str, Any]:
    """What the loop makes its model and its loader with, by its own lines."""
    try:
        found = program_settings(text, name, said)
    except SpecError:
        return {}
    return {key: found[key] for key in _MADE if found.get(key) not in (None, "")}


def _defaults(text: str) -> dict[str, Any]:
    """Defaults of a function or a dataclass that a library makes the command line of (fastcore, Fire, jsonargparse, tyro, Typer)."""
    tree = parse_python(text)
    if tree is None:
        return {}
    made = _taken(tree)
    started = [
        one for one in ast.walk(tree)
        if (isinstance(one, ast.ClassDef) and one.name in made)
        or (isinstance(one, ast.FunctionDef) and (one.name in made or _decorated(one)))
    ]  # fmt: skip
    known = Known(tree) if started else Known(ast.Module(body=[], type_ignores=[]))
    found: dict[str, Any] = {}
    for node in started:
        if isinstance(node, ast.ClassDef):
            found |= Known(ast.Module(body=[node], type_ignores=[])).declared
        else:
            for arg, default in defaults_of(node):
                value = known.value(default)
                if value not in (None, "", False):
                    found[arg.arg] = value
    return {name: value for name, value in found.items() if not isinstance(value, dict)}


_CALLERS = ("CLI", "tyro.cli", "fire.Fire", "Fire", "typer.run", "auto_cli", "defopt.run")
_DECORATORS = ("call_parse", "command", "argbind.bind", "chz.entrypoint")


def _taken(tree: ast.Module) -> set[str]:
    """Names of what is handed to a library that makes a command line of it."""
    return {
        dotted(node.args[0]).rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args and dotted(node.func).endswith(_CALLERS)
    }


def _decorated(node: ast.FunctionDef) -> bool:
    words = [ast.unparse(one).partition("(")[0] for one in node.decorator_list]
    return any(one.endswith(_DECORATORS) for one in words)
