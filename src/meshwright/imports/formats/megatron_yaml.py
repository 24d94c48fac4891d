"""A YAML of Megatron-LM arguments: its functional tests, MoE-ModelZoo, NeMo-like launchers."""

from __future__ import annotations

from typing import Any

from meshwright.imports.formats import megatron
from meshwright.imports.formats.bridge_flags import RENAMED
from meshwright.imports.formats.megatron_switches import NEGATED
from meshwright.imports.interpolate import resolved
from meshwright.imports.options import Options
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.words import unset
from meshwright.specs.errors import SpecError

_TABLES = ("MODEL_ARGS", "model_args", "args", "TRAINING_ARGS")


_STRATEGY = "trainer.strategy."


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table holds Megatron-LM arguments."""
    return _arguments(data) is not None or _is_core(data)


def _is_core(data: dict[str, Any]) -> bool:
    """Whether a table is what Megatron-LM's own `--yaml-cfg` takes: fields by their names in the code."""
    return all(isinstance(data.get(name), dict) for name in ("language_model", "model_parallel"))


_CORE = {
    "num_moe_experts": "num-experts", "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
}  # fmt: skip


def core_flags(data: dict[str, Any]) -> dict[str, Any]:
    """Megatron-LM's flags of such a table; what is off, or left to the program, is no flag."""
    fields = {k: v for k, v in data.items() if not isinstance(v, (dict, list))}
    fields |= data["language_model"] | data["model_parallel"]
    flags = {
        _CORE.get(str(name), str(name).replace("_", "-")): value
        for name, value in fields.items()
        if value is not None and value is not False and not isinstance(value, (dict, list))
    }
    if flags.pop("activation-func", "") == "swiglu" or flags.pop("gated-linear-unit", False):
        flags["swiglu"] = True
    for field, flag in NEGATED.items():
        flags.pop(field.replace("_", "-"), None)  # Megatron-LM's own way unless it is switched off
        if fields.get(field) is False:
            flags[flag] = True
    if not flags.get("fp8"):
        flags = {name: value for name, value in flags.items() if not name.startswith("fp8")}
    if not flags.get("num-experts"):
        flags = {name: value for name, value in flags.items() if not name.startswith("moe-")}
    if not flags.get("tp-comm-overlap"):
        flags = {name: value for name, value in flags.items() if not name.startswith("tp-comm")}
    return flags


def _arguments(data: dict[str, Any]) -> dict[str, Any] | None:
    for name in _TABLES:
        table = data.get(name)
        if isinstance(table, dict) and any(str(key).startswith(("--", _STRATEGY)) for key in table):
            return table
    if any(str(key).startswith("--") for key in data):
        return data
    return None


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what the arguments run.

    Raises:
        SpecError: a flag is missing, impossible, or of a model that is not modelled.
    """
    if _is_core(data):
        core = Options(core_flags(resolved(data, dict(given.variables))), "--")
        core.read |= {name for name in core.values if name.endswith("-fusion")}
        return megatron.read(core, given, "Megatron-LM YAML")
    table = resolved(data, dict(given.variables))
    for key in ("MODE", "TEST_TYPE"):
        if str(data.get(key, "")).lower() == "inference":
            raise SpecError(key, data[key], "an inference run; a training run is expected")
    arguments = _arguments(table) or {}
    if not any(str(name).startswith("--") for name in arguments):
        return _nemo(arguments, given)
    flags = {
        str(name).lstrip("-").replace("_", "-"): value
        for name, value in arguments.items()
        if value is not False
    }
    missing = sorted(
        {name for value in flags.values() if isinstance(value, str) for name in unset(value)}
    )
    if missing:  # a launcher fills the table in, and names the experts' dispatcher beside it
        flags.setdefault("moe-token-dispatcher-type", "alltoall")
    reading = megatron.read(Options(flags, "--"), given, "Megatron-LM YAML")
    if missing:
        reading.note(f"left to the environment: {', '.join(missing[:6])} (--set gives them)")
    return reading


def _nemo(arguments: dict[str, Any], given: Given) -> Reading:
    """Overrides of a NeMo 2 recipe with dotted names: `trainer.strategy.tensor_model_parallel_size`."""
    flags: dict[str, Any] = {"bf16": True, "attention-dropout": 0.0, "hidden-dropout": 0.0,
                             "use-distributed-optimizer": True}  # fmt: skip
    for name, value in arguments.items():
        where, _, field = str(name).rpartition(".")
        if where in ("trainer.strategy", "data", "model.config") and value is not False:
            flag = field.replace("_", "-")
            flags[RENAMED.get(flag, flag)] = value
    if given.model is None and "num-layers" not in flags:
        raise SpecError(
            "--model", None, "this format does not describe the model: name it, as llama3-8b"
        )
    reading = megatron.read(Options(flags, "--"), given, "NeMo 2 overrides", recipe=True)
    for name, size in (("trainer.num_nodes", "hosts"), ("trainer.devices", "per_host")):
        count = arguments.get(name)
        if isinstance(count, int) and count > 0:
            setattr(reading, size, count)
    reading.job["framework"] = "nemo"
    return reading
