"""Megatron-Bridge: recipes in Python, and run_recipe's overrides."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.code.expressions import module_of
from meshwright.imports.code.follow import call_function, functions, parse_module
from meshwright.imports.code.values import Made, Module, Unknown
from meshwright.imports.formats.bridge_flags import flags_of
from meshwright.imports.formats.bridge_overrides import (
    adapted,
    other_kinds,
    override,
    reshaped,
    switched_off,
)
from meshwright.imports.formats.bridge_precision import precision_words
from meshwright.imports.formats.bridge_programs import (
    by_name,
    layout_letters,
    library_layout,
    recipe_of,
    started,
)
from meshwright.imports.formats.megatron import read as read_flags
from meshwright.imports.names import guess_model, model_named, refuse_other
from meshwright.imports.options import Missing, Options
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.words import shown, unset
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text
from meshwright.specs.model import Model

_TASK = re.compile(r"_(pretrain|sft|finetune|peft|lora).*")  # after the model, in a recipe's name


def is_recipe(text: str) -> bool:
    """Whether a Python file makes a configuration of Megatron-Bridge."""
    return "ConfigContainer" in text or "megatron.bridge" in text


def is_bridge(program: str, words: list[str]) -> bool:
    """Whether a command runs a Megatron-Bridge recipe."""
    text = " ".join(words)
    return bool(re.search(r"--recipe[ =]", text)) and (
        "finetune" in program or "recipe" in program or "pretrain" in program
    )


def read_words(
    words: list[str], given: Given, folder: Path | None, built: Model | None = None
) -> Reading:
    """Return what run_recipe runs: a recipe, and overrides of its fields.

    `built` is the model that a program hands to the recipe in place of the recipe's own.

    Raises:
        SpecError: a field cannot be, or the model is not known.
    """
    recipe = _option(words, "--recipe")
    if unset(recipe):
        raise Missing("--recipe", unset(recipe)[0], shown(recipe))
    flags = flags_of(words)
    base: dict[str, Any] = {}
    model = given.model or built
    named = ""
    if recipe and built is None and not {"num-layers", "hidden-size"} <= set(flags):
        found = _recipe_at(folder, recipe)
        if found is not None:
            base, named = _fields(found)
        named = named or _TASK.sub("", recipe).replace("_", "-")
        model = model or model_named(named)
    off = switched_off(words, recipe if built is None else "")
    if str(override(words, "train.skip_train")).lower() == "true":
        raise SpecError("train.skip_train", True, "does not train; a training run is expected")
    if given.model is None and model is not None and not base:
        model = reshaped(model, words, flags)
        off += other_kinds(words)
    if given.model is None:
        refuse_other((named or recipe).replace("_", "-"))
        if "vlm" in _option(words, "--step_func"):
            refuse_other("vlm")
    merged = {**base, **flags}
    if not {"bf16", "fp16"} & set(merged) and "mixed_precision=" not in " ".join(words):
        merged["bf16"] = True
    reading = megatron(merged, given, model, named, "Megatron-Bridge overrides")
    for field, what in off:
        reading.unmodelled(field, what)
    if merged.get("bf16") is True and not base and "mixed_precision" not in " ".join(words):
        reading.guess(
            "mixed_precision", "it is the recipe's; bf16_mixed, as they usually have it, is taken"
        )
    if recipe and built is None and not base and "num-layers" not in flags:
        reading.note(f"the recipe {recipe} is not here: only overrides are read", "--recipe")
    scheme = _option(words, "--peft_scheme", "--peft")
    if scheme in ("lora", "dora") or (not scheme and not base and re.search(r"_(peft|lora)(_|$)", recipe)):  # fmt: skip
        rank, alpha = (override(words, f"peft.{field}") for field in ("dim", "alpha"))
        adapters(
            reading, method=scheme or "lora", rank=int(rank) if rank.isdigit() else 32, alpha=float(alpha) if alpha.isdigit() else 0.0,
            targets=re.findall(r"\w+", override(words, "peft.target_modules")) or None, option="peft.target_modules",
        )  # fmt: skip
        if not rank.isdigit():
            reading.guess("--peft", "the rank of the adapters is the recipe's; 32 is taken")
    return reading


def _option(words: list[str], *names: str) -> str:
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else words[index + 1] if index + 1 < len(words) else ""
    return ""


def _recipe_at(folder: Path | None, recipe: str) -> Made | None:
    """The configuration that a recipe's function returns, where its file lies beside the script."""
    if folder is None or not recipe.isidentifier():
        return None
    family = recipe.split("_")[0]
    for tail in (f"recipes/{family}/{family}.py", f"src/megatron/bridge/recipes/{family}/h100/{family}.py",
                 f"{recipe}.py"):  # fmt: skip
        path = beside(folder, tail)
        if path is None:
            continue
        module = parse_module(read_text(path), str(path), path.parent)
        for node in functions(module):
            if node.name == recipe:
                made = call_function(module, node, [], {})
                return made if isinstance(made, Made) else None
    return None


def read_recipe(module: Module, name: str, given: Given) -> Reading:
    """Return what one recipe of a Python file runs.

    Raises:
        SpecError: there are several and none is chosen, or none with that name.
    """
    home: dict[str, Module] = {}
    known = {node.name: node for node in functions(module) if not node.name.startswith("_")
             and (re.search(r"(pretrain|sft|peft|finetune|_config$)", node.name)) and _returns(node)}  # fmt: skip
    for alias, (source, original) in module.imports.items():
        # A file of other names for recipes of its neighbours.
        if re.search(r"_config$|_recipe$", alias) and not alias.startswith("_") and ".training." not in source:  # fmt: skip
            other = module_of(module, source)
            target = other.names.get(original) if other is not None else None
            if other is not None and isinstance(target, ast.FunctionDef) and _returns(target):
                known[alias] = target
                home[alias] = other
    begun = started(module) if not given.config else None
    if begun is not None:
        main, by = begun
        flags, hub = _fields(main)
        made_by = recipe_of(main)
        if (
            made_by
            and made_by not in module.imports
            and not (known or hub or "num-layers" in flags)
        ):
            raise _told_outside(made_by)
        if not known or hub or "num-layers" in flags:
            reading = _read_made(main, recipe_of(main), module, given)
            if by == "distill":
                name_task(reading, by)
            if recipe_of(main) in module.imports:
                reading.note(f"the recipe {recipe_of(main)} is not here: only what the program changes is read", "config")  # fmt: skip
            return reading
    if not known:
        raise SpecError(
            "file", name, "describes no training run: no function in it returns a configuration"
        )
    chosen = given.chosen(known, "this file holds {} recipes")
    if given.model is None:
        refuse_other(chosen, described=True)  # its fields may say what a state-space model is of
    first = known[chosen].args.args[:1]
    if (
        first
        and not known[chosen].args.defaults
        and re.fullmatch(r"(?:parsed_|cli_)?args|namespace", first[0].arg)
    ):
        raise _told_outside(chosen)
    made = call_function(home.get(chosen, module), known[chosen], [], {})
    if not isinstance(made, Made):
        raise SpecError("--config", chosen, "what this function returns cannot be followed")
    return _read_made(made, chosen, module, given)


def _told_outside(what: str) -> SpecError:
    return SpecError("config", what, "takes model and batch from its command line: give the script or the file that it is started with")  # fmt: skip


def _read_made(made: Made, chosen: str, module: Module, given: Given) -> Reading:
    """What a configuration that was followed runs; `chosen` is its recipe's name."""
    flags, named = _fields(made)
    if "pipeline-model-parallel-layout" not in flags and (layout := library_layout(module, flags)):
        flags["pipeline-model-parallel-layout"] = layout
    if not named and "num-layers" not in flags:
        named = _TASK.sub("", chosen).replace("_", "-")
    if given.model is None:
        described = "hybrid-layer-pattern" in flags or model_named(named) is not None
        for one in (named, chosen):
            refuse_other(one, described=described)
        provider = made.fields.get("model")
        source = (
            module.imports.get(provider.name, ("", ""))[0] if isinstance(provider, Made) else ""
        )
        refuse_other(source.rpartition(".models.")[2].partition(".")[0], described=described)
    model = given.model or (model_named(named) if named else None)
    reading = megatron(
        flags,
        given,
        model,
        named,
        f"Megatron-Bridge recipe {chosen}" if chosen else "Megatron-Bridge program",
    )
    by_name(chosen, reading)
    peft = made.fields.get("peft")
    if isinstance(peft, Made) or "peft" in chosen or "lora" in chosen:
        adapted(peft if isinstance(peft, Made) else Made("LoRA"), reading)
    return reading


def _returns(node: ast.FunctionDef) -> bool:
    """Whether a function returns a configuration: anything but a model alone, by what it declares."""
    if node.returns is not None and re.search(r"Provider|Dataset|PEFT", ast.unparse(node.returns)):
        return False
    found = [one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value]
    parts = (re.match(r"(?!ConfigContainer)[A-Z]\w*Config\(", ast.unparse(one)) for one in found)
    return bool(found) and not all(parts)  # a tokenizer's or a data set's alone is no run's


def _fields(made: Made) -> tuple[dict[str, Any], str]:
    """(Megatron-LM flags, the model's hub name) of a configuration."""
    words: list[str] = []
    for table in (
        "model",
        "train",
        "optimizer",
        "ddp",
        "dataset",
        "tokenizer",
        "scheduler",
        "comm_overlap",
        "dist",
    ):
        part = made.fields.get(table)
        values = part.fields if isinstance(part, Made) else part if isinstance(part, dict) else {}
        for key, value in values.items():
            if not isinstance(value, (str, int, float, list, tuple)):
                if isinstance(value, Unknown) and value.text.startswith("torch."):
                    words.append(f"{table}.{key}={value.text.removeprefix('torch.')}")
                continue
            if isinstance(value, list) and value and not isinstance(value[0], (str, int, float)):
                if not all(isinstance(one, list) for one in value):
                    continue  # stages that a loop puts together
                value = layout_letters(value)
                if "t" not in value:
                    continue  # made from a number of layers that the file does not state
            text = str(value).lower() if isinstance(value, bool) else str(value)
            words.append(f"{table}.{key}={text}")
    words += precision_words(made.fields.get("mixed_precision"))
    flags = flags_of(words)
    if str(flags.get("cuda-graph-impl", "none")) == "none":
        flags.pop("cuda-graph-scope", None)
    model = made.fields.get("model")
    for field, flag in (
        ("seq_length", "seq-length"),
        ("virtual_pipeline_model_parallel_size", "num-virtual-stages-per-pipeline-rank"),
    ):
        value = made.get(f"model.{field}")
        if isinstance(value, int) and value:
            flags.setdefault(flag, str(value))
    if made.get("ddp.use_megatron_fsdp") is True:
        flags["use-megatron-fsdp"] = True
        flags.setdefault(
            "data-parallel-sharding-strategy",
            str(made.get("ddp.data_parallel_sharding_strategy", "no_shard")),
        )
    return flags, _hub(model)


def _hub(model: Any) -> str:
    current = model
    for _ in range(6):
        if not isinstance(current, Made):
            return ""
        loaded = current.name.endswith("from_hf_pretrained")  # by a hub's name, or from a folder
        for one in [*current.args, *current.fields.values()]:
            if isinstance(one, str) and (re.fullmatch(r"[\w.-]+/[\w.-]+", one) or (loaded and "/" in one)):  # fmt: skip
                return one
        if current.name.endswith("ModelProvider") or re.search(r"Provider\w{0,80}$", current.name):
            # `Qwen3ModelProvider8B`, and `NemotronHModel47BProvider`.
            bare = re.sub(
                r"Model(\d\w{0,20}B)Provider$", r"ModelProvider\1", current.name.rsplit(".", 1)[-1]
            )
            size = re.search(r"Provider(\w{1,80})$", bare)
            family = bare.split("ModelProvider")[0]
            # `Qwen3ModelProvider1P7B`: a P is the point of 1.7.
            return (
                f"{family}-{re.sub('(?<=[0-9])P(?=[0-9])', '.', size.group(1))}" if size else family
            )
        current = current.parent
    return ""


def guess_or_ask(named: str, given: Given) -> Model:
    """A typical model of the size that a recipe's name states, where guesses are taken.

    Raises:
        SpecError: they are not, or the name states no size.
    """
    guessed = guess_model(named) if named else None
    if guessed is not None and given.guess:
        return guessed
    offer = (
        f" (a guess by its size: --model {guessed.name.removeprefix('typical-')}, taken with --guess)"
        if guessed
        else ""
    )
    raise SpecError("--model", None, f"the recipe names {named or 'a model'}, which is no preset: "
                    f"give a preset, its config.json or a size{offer}")  # fmt: skip


def megatron(
    flags: dict[str, Any], given: Given, model: Model | None, named: str, title: str
) -> Reading:
    """Read Megatron-LM flags with the defaults of Megatron-Bridge.

    Raises:
        SpecError: a value that cannot be, or no model.
    """
    for flag in ("attention-dropout", "hidden-dropout"):
        flags.setdefault(flag, "0.0")
    flags.setdefault("use-distributed-optimizer", True)
    guessed = None
    if model is None and "num-layers" not in flags:
        model = guessed = guess_or_ask(named, given)
    if model is not None and "num-layers" not in flags:
        from dataclasses import replace

        given = replace(given, model=model)
    options = Options(flags, "--")
    reading = read_flags(options, given, title, recipe=True)
    if guessed is not None:
        reading.guess("--model", f"{named} is no preset; a typical shape of its size is taken")
    reading.options = {
        key: value.lstrip("-").replace("-", "_") for key, value in reading.options.items()
    }
    return reading
