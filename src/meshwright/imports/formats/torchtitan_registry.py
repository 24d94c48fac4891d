"""torchtitan's Python registries: one configuration of a file, or the one that a command names."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.code.expressions import CONVERTED
from meshwright.imports.code.follow import call_function, functions, parse_module
from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import parse_python
from meshwright.imports.code.values import Made, Module, Unknown
from meshwright.imports.formats.torchtitan import (
    EDITS,
    fill,
    is_config,
    named,
    overridden,
    read_toml,
)
from meshwright.imports.names import PLANNED
from meshwright.imports.options import Options, flags_of
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_named
from meshwright.imports.shell.words import unmarked
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.foreign import read_text
from meshwright.specs.job import FP4, RECIPES

_ROOTS = ("models", "experiments", "experiments/rl/examples")
_MODES = {"full": "full", "selective": "selective", "none": "none"}


@dataclass
class Recipe:
    """What one configuration of a registry says: fields by dotted name, and what its objects are."""

    module: str
    flavor: str
    values: dict[str, Any] = field(default_factory=dict)
    recompute: str = "selective"
    precision: str = ""
    documents: bool = False
    muon: bool = False
    hub: str = ""
    by_name: bool = False
    chunked: bool = False


def is_command(program: str, words: list[str]) -> bool:
    """Whether a command trains with torchtitan what its registry calls by a name."""
    flags = flags_of(words)
    ours = re.search(r"(?:^|[./])torchtitan[./](?:\w+[./])*train(?:\.py)?$", program)
    dotted = sum(name.startswith(("training.", "parallelism.")) for name in flags)
    return (ours is not None or dotted > 2) and {"module", "config"} <= set(flags)


def read_command(words: list[str], given: Given, folder: Path | None) -> Reading:
    """Return what `--module M --config C` of torchtitan runs, its other words over it.

    Raises:
        SpecError: no registry at hand and none of torchtitan's own has that configuration.
    """
    flags = flags_of(words)
    module, config = (unmarked(str(flags[name])) for name in ("module", "config"))
    paths = [f"torchtitan/{root}/{module}/config_registry.py" for root in _ROOTS]
    paths.append(module.replace(".", "/") + "/config_registry.py")
    path = next((one for name in paths if (one := beside(folder, name)) is not None), None)
    if path is not None:
        parsed = parse_module(read_text(path, "--module"), str(path), path.parent)
        recipe = _registered(parsed, str(path), config)
    else:
        said = overridden(words)
        enough = {"training.seq_len", "training.local_batch_size"} <= set(said)
        known = config in _recipes()["recipes"].get(module, {})
        recipe = Recipe(module, config) if enough and not known else _shipped(module, config)
    reading = _read(recipe, config, given, overridden(words), folder)
    reading.format = f"torchtitan recipe {config}, named by a script"
    if path is None and recipe.flavor == config and not known:
        reading.guess("--config", f"the registry of --module {module} is not here: only what the command says is read; torchtitan's selective recomputation is taken")  # fmt: skip
    elif path is None:
        reading.note(
            f"is read as torchtitan's own registry of {_recipes()['read']} has it", "--config"
        )
    return reading


def read_constants(words: list[str], given: Given, folder: Path | None) -> Reading | None:
    """What a Python file with torchtitan's tables as dictionaries runs, where a command names one as its configuration.

    Raises:
        SpecError: a value that cannot be.
    """
    named_file = unmarked(str(flags_of(words).get("job.config-file", "")))
    path = beside(folder, named_file) if named_file.endswith(".py") else None
    tree = parse_python(read_text(path, "--job.config_file")) if path is not None else None
    if tree is None:
        return None
    known = Known(tree)
    data = {name: value for name, value in known.names.items() if isinstance(value, dict)}
    if not is_config(data):
        return None
    reading = read_toml(data, given, words)
    reading.format = "torchtitan's tables in Python, named by a script"
    return reading


_ABSENT = re.compile(r"(llama3|llama4|deepseek_v3|qwen3|gpt_oss)_(\w+)\.toml")


def read_absent(
    program: str, words: list[str], given: Given, folder: Path | None
) -> Reading | None:
    """What a command runs whose TOML is not here, by the TOML's name and what stands over it; None where that says too little.

    Raises:
        SpecError: a value that cannot be.
    """
    path = unmarked(str(flags_of(words).get("job.config-file", "")))
    found = _ABSENT.fullmatch(path.rsplit("/", 1)[-1])
    if found is None or "torchtitan" not in f"{program} {path}" or beside(folder, path) is not None:
        return None
    flavor = found.group(2).upper().replace("X", "x")
    data = {"model": {"name": found.group(1), "flavor": flavor.removesuffix("_A3B").replace("_", ".")}}  # fmt: skip
    said = overridden(words)
    reading = read_toml(data, given, words)
    reading.format = "torchtitan command"
    left = [one for one in ("training.seq_len", "training.local_batch_size", "activation_checkpoint.mode") if one not in said]  # fmt: skip
    also = f"; {', '.join(left)} are torchtitan's own" if left else ""
    reading.guess("--job.config_file", f"{found.group(0)} is not here: its model by its name, and what the command says over it, are taken{also}")  # fmt: skip
    return reading


@cache
def _recipes() -> dict[str, Any]:
    text = resources.files("meshwright.imports").joinpath("data/torchtitan_recipes.toml").read_text("utf-8")  # fmt: skip
    return tomllib.loads(text)


def _shipped(module: str, config: str) -> Recipe:
    family = _recipes()["recipes"].get(module)
    if family is None or config not in family:
        known = [name for one in _recipes()["recipes"].values() for name in one]
        raise SpecError("--config", config, f"the registry of --module {module} is not here: {nearest(config, known)}")  # fmt: skip
    return Recipe(module=module, **family[config])


def read_registry(module: Module, name: str, given: Given) -> Reading:
    """Return what one configuration of a Python registry runs.

    Raises:
        SpecError: there are several and none is chosen, or none with that name.
    """
    known = _configurations(module)
    if not known:
        raise SpecError(
            "file", name, "no function that returns a trainer's configuration was found"
        )
    chosen = given.chosen(known, "this file registers {} configurations")
    return _read(_registered(module, name, chosen), chosen, given, {}, module.folder)


def _configurations(module: Module) -> dict[str, ast.FunctionDef]:
    return {
        node.name: node
        for node in functions(module)
        if not node.name.startswith("_") and _is_config(node) and not _takes_more(node)
    }


def _takes_more(node: ast.FunctionDef) -> bool:
    """Whether a function needs an argument, as one that changes another's configuration does."""
    return len(node.args.args) > len(node.args.defaults)


def _registered(module: Module, name: str, chosen: str) -> Recipe:
    """One configuration of a registry, followed."""
    known = _configurations(module)
    if chosen not in known:
        raise SpecError("--config", chosen, nearest(chosen, known))
    made = call_function(module, known[chosen], [], {})
    if not isinstance(made, Made):
        raise SpecError("--config", chosen, "what this function returns cannot be followed")
    spec = made.fields.get("model_spec") or made.fields.get("model")
    folder = Path(name).resolve().parent.name
    if "diffusion" in str(made.name).lower() or folder == "flux":
        raise SpecError("file", name, f"an image model: {PLANNED}")
    fields = spec.fields if isinstance(spec, Made) else {}
    flavor = next((one for one in getattr(spec, "args", []) if isinstance(one, str)), "")
    flavor = flavor or next(
        (str(fields[k]) for k in ("flavor", "size") if isinstance(fields.get(k), str)), ""
    )
    flavor = flavor or _flavor_called(known[chosen])
    by_name = None if flavor else re.search(r"_(\d+(?:\.\d+)?[bm])(?:_|$)", chosen)
    flavor = by_name.group(1).upper() if by_name is not None else flavor
    recipe = Recipe(_module_name(module, folder), flavor, by_name=by_name is not None)
    if "Controller" in str(made.name):
        raise SpecError("--config", chosen, "is a loop of reinforcement learning, which generates and trains in turns: its trainer alone is no run that can be read here")  # fmt: skip
    for table in _TABLES:
        part = made.fields.get(table)
        if isinstance(part, Made):
            recipe.values |= {
                f"{table}.{key}": value
                for key, value in part.fields.items()
                if not isinstance(value, (Made, Unknown)) and "Made(" not in repr(value)
            }
    recipe.recompute = _recomputes(made)
    recipe.chunked = "Chunked" in str(getattr(made.fields.get("loss"), "name", ""))
    if CONVERTED in made.fields:  # graph_trainer: its own selective recomputation, and whole logits
        recipe.recompute = "none" if recipe.recompute == "none" else "selective"
        recipe.values.pop("activation_checkpoint.mode", None)
        recipe.chunked = False
    hub = made.fields.get("hf_model")
    recipe.hub = hub if isinstance(hub, str) and "debug" not in recipe.flavor else ""
    dumped = repr(fields)
    if "Float8" in dumped or "MXFP8" in dumped or "mxfp8" in dumped:
        recipe.precision = "fp8"
    if "nvfp4" in dumped.lower():
        recipe.precision = "fp4"
    recipe.documents = fields.get("attn_backend") in ("varlen", "flex")
    kind = str(getattr(made.fields.get("optimizer"), "name", ""))
    recipe.muon = re.search(r"muon", kind, re.IGNORECASE) is not None
    return recipe


_TABLES = ("parallelism", "training", "compile", "optimizer", "debug", "comm", "activation_checkpoint", "experimental", "quantize",
           "float8", "mx", "memory_estimation")  # fmt: skip
"""Tables of a configuration that could change a plan; what is new in one is named."""


def _recomputes(made: Made) -> str:
    """What `activation_checkpoint` of a configuration recomputes: an object of a mode's class, or a mode's name."""
    checkpoint = made.fields.get("activation_checkpoint")
    if checkpoint is None:
        return "none" if "activation_checkpoint" in made.fields else "selective"
    mode = checkpoint.fields.get("mode") if isinstance(checkpoint, Made) else None
    if str(mode) in _MODES:
        return _MODES[str(mode)]
    text = checkpoint.name if isinstance(checkpoint, Made) else "Selective"
    return "full" if "Full" in text else "selective" if "Selective" in text else "none"


def _read(
    recipe: Recipe, config: str, given: Given, said: dict[str, Any], folder: Path | None
) -> Reading:
    reading = Reading(f"torchtitan recipe {config}", options=dict(EDITS))
    named(reading, given, recipe.module, recipe.flavor, folder)
    if recipe.by_name and given.model is None:
        reading.guess("--config", f"the model's size is not followed through the file; {recipe.flavor}, by the configuration's name, is taken")  # fmt: skip
    if recipe.hub and given.model is None:
        reading.model_name = recipe.hub
    options = Options(recipe.values | said)
    fill(options, reading, "parallelism.", "training.")
    mode = options.word("activation_checkpoint.mode")
    reading.layout["recompute"] = _MODES.get(mode, recipe.recompute)
    if recipe.precision:
        kind = FP4 if recipe.precision == "fp4" else RECIPES[recipe.precision]
        reading.job["precision"] = kind.model_dump()
    if recipe.chunked:
        reading.job["loss"] = "chunked"
    if recipe.documents:
        reading.job["document_masking"] = True
    if recipe.muon:
        reading.job["optimizer"] = optimizer_named("muon", "optimizer").model_dump()
    options.finish(reading, "torchtitan", "common", strict=given.strict)
    return reading


def _flavor_called(node: ast.FunctionDef) -> str:
    """What a function asks its registry of models for, where the registry itself cannot be followed."""
    for inner in ast.walk(node):
        if not isinstance(inner, ast.Call) or not ast.unparse(inner.func).endswith(
            "model_registry"
        ):
            continue
        values = [
            *inner.args,
            *(one.value for one in inner.keywords if one.arg in ("flavor", "size")),
        ]
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                return value.value
    return ""


def _is_config(node: Any) -> bool:
    annotation = node.returns
    if annotation is not None and "Config" in ast.unparse(annotation):
        return True
    return annotation is None and any(
        isinstance(inner, ast.Call)
        and ast.unparse(inner.func).endswith(("Trainer.Config", "JobConfig"))
        for inner in ast.walk(node)
    )


def _module_name(module: Module, folder: str) -> str:
    """Which family the registry's flavours belong to: its import of model_registry, or its folder."""
    source, _ = module.imports.get("model_registry", ("", ""))
    last = source.rstrip(".").rsplit(".", 1)[-1]
    return last if last and last != "model" else folder
