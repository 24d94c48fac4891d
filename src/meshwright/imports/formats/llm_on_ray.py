"""llm-on-ray's pre-training: a Python literal of Megatron-DeepSpeed's options, with the workers that Ray starts."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.formats import megatron
from meshwright.imports.formats.megatron_switches import NEGATED
from meshwright.imports.options import Options, counted, flattened
from meshwright.imports.reading import Given, Reading

_ELSEWHERE = re.compile(r"train_|gradient_accumulation_steps|(?:fp16|bf16|bfloat16)\.|zero_optimization\.(?:stage$|offload)")  # fmt: skip
"""What of DeepSpeed's table Megatron's reader has read."""


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table holds Megatron's options beside Ray's."""
    return isinstance(data.get("megatron_config"), dict) and isinstance(data.get("ray_config"), dict)  # fmt: skip


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what such a table trains.

    Raises:
        SpecError: an option is missing, impossible, or of a model that is not modelled.
    """
    told = dict(data["megatron_config"])
    config = told.get("deepspeed_config")
    config = config if isinstance(config, dict) else {}
    flags = {name.replace("_", "-"): one for name, one in told.items() if one is not None and one is not False and name != "deepspeed_config"}  # fmt: skip
    for field, flag in NEGATED.items():
        flags.pop(field.replace("_", "-"), None)  # Megatron's own way unless it is switched off
        if told.get(field) is False:
            flags[flag] = True
    reading = megatron.read(Options(flags, "--"), given, "llm-on-ray configuration", "megatron-deepspeed", config)  # fmt: skip
    rest = Options(flattened(config))
    rest.read |= {name for name in rest.values if _ELSEWHERE.match(name)}
    rest.finish(reading, "deepspeed", "common", strict=given.strict)
    scaling = data["ray_config"].get("scaling_config")
    scaling = scaling if isinstance(scaling, dict) else {}
    reading.devices = counted(scaling.get("num_workers"))
    if scaling.get("use_gpu") is False:
        reading.note("Ray's workers have no GPU", "ray_config.scaling_config.use_gpu")
    return reading
