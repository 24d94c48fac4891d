"""Primus: a YAML that names a framework, a model's file and overrides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.formats import bridge, maxtext, megatron, torchtitan
from meshwright.imports.formats.bridge_flags import flags_of
from meshwright.imports.formats.megatron_switches import NEGATED
from meshwright.imports.interpolate import merged, read_table, resolved
from meshwright.imports.launch import Launch, launch_option
from meshwright.imports.names import model_named
from meshwright.imports.options import Options, counted, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.words import shown
from meshwright.imports.tuning import adapters
from meshwright.imports.word_overrides import overridden
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

_OTHER = ("diffusion", "flux", "wan", "hybrid", "mamba", "zebra", "rl", "posttrain")


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is Primus's."""
    return isinstance(data.get("modules"), dict)


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what a Primus configuration runs.

    Raises:
        SpecError: no trainer, or a value that cannot be.
    """
    data = resolved(data, dict(given.variables))
    module = next(
        (
            part
            for part in data["modules"].values()
            if isinstance(part, dict) and "framework" in part
        ),
        None,
    )
    if module is None:
        raise SpecError("modules", None, "no module with a framework was found")
    framework = str(module["framework"])
    overrides = module.get("overrides") if isinstance(module.get("overrides"), dict) else {}
    named = str(module.get("model", ""))
    base = _config(folder, framework, "models", named)
    trainer = _config(folder, framework, "modules", str(module.get("config", "")))
    values = merged(merged(base, trainer), overrides or {})
    values = resolved(values, dict(given.variables))
    title = f"Primus YAML ({framework})"
    if framework == "megatron":
        reading = _megatron(values, given, title, named, set(overrides or {}) | set(base))
    elif framework == "megatron_bridge":
        beside_modules = {key: table for key, table in data.items() if key != "modules" and isinstance(table, dict)}  # fmt: skip
        reading = _bridge(
            values, given, title, str(values.get("hf_path") or base.get("hf_path") or named), beside_modules
        )  # fmt: skip
    elif framework == "torchtitan":
        reading = _torchtitan(values, given, title)
    elif framework == "maxtext":
        reading = maxtext.read(
            {**values, "model_name": values.get("model_name") or named.removesuffix(".yaml")},
            given,
            folder,
        )
        reading.format = title
    else:
        raise SpecError(
            "framework", framework, "megatron, megatron_bridge, torchtitan or maxtext is expected"
        )
    reading.device = reading.device or _device(folder)
    if not base and named:
        reading.note(f"the model's file {named} is not here", "model")
    return reading


_PROGRAM = re.compile(r"(?:^|/)primus/cli/main\.py$|^primus\.cli\.main$|^primus-cli\b")


def reads(launch: Launch) -> bool:
    """Whether a command is Primus's own: `primus-cli … -- train pretrain --config FILE` or what it starts."""
    words = [*launch.program.split()[1:], *launch.words]
    return bool(_PROGRAM.search(launch.program.split(" ")[0])) and "train" in words


def read_words(launch: Launch, given: Given, folder: Path | None) -> Reading:
    """Return what such a command runs: its configuration with the command's words over the overrides.

    Raises:
        SpecError: no configuration is named or at hand, or a value that cannot be.
    """
    words = launch.words[launch.words.index("train") + 1 :] if "train" in launch.words else launch.words  # fmt: skip
    named = launch_option(words, ("config", "exp"))
    path = beside(folder, named)
    if path is None:
        raise SpecError("--config", shown(named), "the configuration is not here: Primus's command takes model and batch from it")  # fmt: skip
    data = read_table(path)
    if not is_config(data):
        raise SpecError("--config", path.name, "no configuration of Primus's: a table of modules is expected")  # fmt: skip
    for module in data["modules"].values():
        if isinstance(module, dict) and "framework" in module:
            said = overridden(module.get("overrides") or {}, words)
            off = {key: None for key, value in said.items() if value in ("None", "null")}
            module["overrides"] = said | off
    reading = read(data, given, path.parent)
    reading.format += ", named by a script"
    return reading


def _bridge(values: dict[str, Any], given: Given, title: str, named: str, tables: dict[str, dict[str, Any]]) -> Reading:  # fmt: skip
    """A Megatron-Bridge recipe of Primus: its overrides are Megatron-LM's words, its model is Hugging Face's.

    Args:
        tables: fields of the recipe's own tables (`peft`, `model`, …) that the file sets beside its modules.
    """
    peft = str(values.pop("peft", "") or "")
    named = re.sub(r"(?:_lora|_sft|_pretrain|_peft|_finetune|\.yaml).*", "", named)
    words = (
        ["mixed_precision=bf16_mixed"]
        if not {"bf16", "fp16", "mixed_precision"} & set(values)
        else []
    )
    words += [f"model.{key}={value}" for key, value in values.items()
             if isinstance(value, (str, int, float)) and key not in ("recipe", "flavor", "hf_path")]  # fmt: skip
    tuned = tables.get("peft", {})
    words += [f"{name}.{key}={value}" for name, table in tables.items() if name != "peft" for key, value in table.items() if isinstance(value, (str, int, float))]  # fmt: skip
    reading = bridge.megatron(
        flags_of(words), given, given.model or model_named(named), named, title
    )
    if peft and peft.lower() != "none":
        rank, alpha = counted(tuned.get("dim")), counted(tuned.get("alpha"))
        adapters(reading, method=peft.lower(), rank=rank or 16, alpha=float(alpha), targets=tuned.get("target_modules"), option="peft.target_modules")  # fmt: skip
        if not rank:
            reading.guess("peft", "the rank of the adapters is the recipe's; 16 is taken")
    flavor = str(values.get("flavor") or "")
    narrow = re.search(r"(?i)(?:mx|nv)?fp[48]", flavor)
    if narrow and not {"fp8", "fp4", "mixed_precision", "precision_config"} & set(values):
        reading.unmodelled("flavor", f"{flavor[:60]}: products in {narrow.group()}, by its name; 16 bits are priced")  # fmt: skip
    return reading


def _device(folder: Path | None) -> str:
    found = next(
        (
            part
            for part in reversed(folder.parts if folder is not None else ())
            if part.startswith("MI")
        ),
        "",
    )
    return found.lower()


def _config(
    folder: Path | None, framework: str, kind: str, named: str, depth: int = 0
) -> dict[str, Any]:
    """A file of Primus's own configurations with what it extends; empty where it is not at hand."""
    if folder is None or not named or depth > 6:
        return {}
    path = beside(folder, f"primus/configs/{kind}/{framework}/{named}")
    if path is None:
        return {}
    data = read_table(path)
    found: dict[str, Any] = {}
    below = data.pop("extends", None) or data.pop("bases", None) or []
    for one in below if isinstance(below, list) else [below]:
        found = merged(found, _config(folder, framework, kind, str(one), depth + 1))
    return merged(found, data)


def _megatron(
    values: dict[str, Any], given: Given, title: str, named: str, said: set[str]
) -> Reading:
    flags: dict[str, Any] = {}
    for key, value in values.items():
        if value is None or value is False or isinstance(value, dict):
            continue
        name = str(key).replace("_", "-")
        flags[
            {"virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank"}.get(
                name, name
            )
        ] = value
    off = [flag for key, flag in NEGATED.items() if values.get(key) is False and key in said]
    flags |= dict.fromkeys(off, True)
    said = said | {flag.replace("-", "_") for flag in off}
    for name in [one for one in flags if one.startswith("mamba-")]:
        if name.replace("-", "_") not in said:
            del flags[name]  # a default for layers that a model may have
    flags.pop("add-bias-linear", None)  # Megatron-LM's own way unless it is switched off
    if values.get("add_bias_linear") is False:  # whoever says so: it is a part of the model
        flags["disable-bias-linear"] = True
    if any(
        word in str(values.get("model_type", "")) + named.lower() for word in _OTHER
    ) or values.get("is_hybrid_model"):
        raise SpecError(
            "model",
            named or values.get("model_type"),
            "no decoder-only transformer of softmax attention",
        )
    if values.get("group_query_attention") is False and "group_query_attention" in said:
        flags.pop("num-query-groups", None)
    moved = flags.pop("offload", None)
    fp8 = values.get("fp8")
    if isinstance(fp8, str) and fp8 not in ("none", "null"):
        flags["fp8"] = fp8
    if not any(name in values for name in ("bf16", "fp16")):
        flags["bf16"] = True
    if "num-layers" not in flags and given.model is None:
        known = model_named(named.removesuffix(".yaml").replace("_", "-"))
        if known is None:
            raise SpecError(
                "--model",
                None,
                f"the model's file {named} is not here: name the model, as llama3-8b",
            )
        from dataclasses import replace

        given = replace(given, model=known)
    for flag in ("attention-dropout", "hidden-dropout"):
        # Primus's language models train without dropout unless a file says otherwise.
        flags.setdefault(flag, 0.0)
    options = Options(flags)
    # Primus's own defaults are no choice of this file: only what it or its model states is named.
    options.read |= {name for name in flags if name.replace("-", "_") not in said}
    reading = megatron.read(options, given, title)
    if moved:
        reading.unmodelled("offload", "activations of offload_ops go to host memory between their passes; not priced")  # fmt: skip
    reading.options = {
        key: value.lstrip("-").replace("-", "_") for key, value in reading.options.items()
    }
    return reading


def _torchtitan(values: dict[str, Any], given: Given, title: str) -> Reading:
    options = Options(flattened(values))
    reading = Reading(title, options={k: f"parallelism.{v}" for k, v in torchtitan.EDITS.items()})
    torchtitan.named(reading, given, options.text("model.name"), options.text("model.flavor"))
    torchtitan.fill(options, reading, "parallelism.", "training.")
    torchtitan.checkpointing(
        options, reading, options.word("activation_checkpoint.mode", default="selective")
    )
    converters = str(options.raw("model.converters") or "").lower()
    if any(word in converters for word in ("float8", "mx", "fp8")) or options.flag(
        "primus_turbo.enable_fp8"
    ):
        reading.job["precision"] = RECIPES["fp8"].model_dump()
    options.finish(reading, "torchtitan", "common", strict=given.strict)
    return reading
