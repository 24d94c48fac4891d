"""Programs that take what they train from outside: their command line, a configuration, or what calls them."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from meshwright.imports.code.syntax import dotted
from meshwright.specs.errors import SpecError

OF_A_TABLE = re.compile(r"(?:\w+\()?\w*(?:cfg|conf|config|settings|params)\w*(?:\[|\.get\()")
"""A value out of a table that the program reads from a file."""
_OF_AN_OBJECT = re.compile(r"(?:self\.)?\w*(?:cfg|conf|config|args|settings|params)\w*(?:\.\w+)+")
"""A value out of an object that somebody else makes."""
_LOADS = re.compile(r"\b(?:yaml\.\w{0,20}load|json\.load|OmegaConf\.load|toml\w{0,10}\.load)\(")
"""A program that reads a table from a file: what it would take without one is not what it runs."""
_TOLD = "takes model and batch from {}: give the script or the file that it is started with"


_OF_NO_RUN = frozenset({"num_workers", "use_gpu", "device_map", "output_dir", "trust_remote_code", "inference_mode", "use_cache"})  # fmt: skip
"""Settings that what serves or only helps has, too."""
_SAY_LITTLE = ("use_peft", "prepare_model_for_kbit_training", "gradient_checkpointing", "device_map", "dataset_text_field", "report_to", "packing", "use_cache")  # fmt: skip
"""Settings that a library of functions has, too, whose caller says the rest."""


def refuse_told_outside(text: str, name: str, tree: ast.Module, found: dict[str, Any]) -> None:
    """Refuse a program that says too little of a run by itself; `found` loses its `_tabled`.

    Raises:
        SpecError: it takes model and batch from somewhere else.
    """
    silent = all(key.startswith("_") or key in _SAY_LITTLE for key in found)
    if silent and "_unsloth" not in found and re.search(r"\w+_args\b|\bcfg\.|\bconfig\.", text):
        raise SpecError("config", name, _TOLD.format("what calls it"))
    told = found.get("_open") or {}
    opened = [one for one in told.values() if OF_A_TABLE.match(one)]
    opened += [told["per_device_train_batch_size"]] if _OF_AN_OBJECT.fullmatch(told.get("per_device_train_batch_size", "")) else []  # fmt: skip
    if opened and "model_name_or_path" not in found and "_unsloth" not in found:
        raise SpecError("config", name, _TOLD.format("its configuration"))
    if not {"model_name_or_path", "_unsloth", "_shape"} & set(found) and _is_handed_its_model(tree):
        raise SpecError("config", name, _TOLD.format("what calls it"))
    tabled = found.pop("_tabled", False) and _LOADS.search(text)
    if tabled and not {"model_name_or_path", "_unsloth", "_shape"} & set(found):
        raise SpecError("config", name, _TOLD.format("its configuration"))
    if not {"model_name_or_path", "per_device_train_batch_size"} & set(found):
        _refuse_parts(text, name, found)
        if re.search(r"_batch_size\s*=\s*(?:\w+\.)*(?:args|config|cfg)\b", text):
            raise SpecError("config", name, _TOLD.format("what calls it"))


def _is_handed_its_model(tree: ast.Module) -> bool:
    """Whether every trainer's model is a parameter of a function that nothing in the program calls."""
    called = {dotted(one.func).rpartition(".")[2] for one in ast.walk(tree) if isinstance(one, ast.Call)}  # fmt: skip
    handed = []
    for function in [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]:
        own = {one.arg for one in (*function.args.args, *function.args.kwonlyargs)}
        for call in [one for one in ast.walk(function) if isinstance(one, ast.Call)]:
            model = next((one.value for one in call.keywords if one.arg == "model"), None)
            if model is None or not dotted(call.func).endswith("Trainer"):
                continue
            outside = isinstance(model, ast.Name) and model.id in own
            handed.append(outside and function.name not in called)
    return bool(handed) and all(handed)


def _refuse_parts(text: str, name: str, found: Mapping[str, Any]) -> None:
    """Refuse a program that names neither model nor batch and is told both from outside.

    Raises:
        SpecError: by its command line, or by what calls its functions.
    """
    said = {key for key in found if not key.startswith("_")}
    whence = ""
    if re.search(r"HfArgumentParser|TrlParser|parse_args", text):
        whence = "its command line"
    elif (
        re.search(r"^class \w*Trainer\(", text, re.M)
        or not re.search(r"(?<!class )\b(?:Training)?\w*(?:Arguments|Config)\(", text)
        or (said and said <= _OF_NO_RUN)
    ):
        whence = "what calls it"
    if whence:
        raise SpecError("config", name, _TOLD.format(whence))
