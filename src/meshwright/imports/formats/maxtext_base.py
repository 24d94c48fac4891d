"""What a MaxText configuration stands on: MaxText's own base.yml, another at hand, a named model's file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.interpolate import read_table
from meshwright.imports.names import PLANNED, model_named
from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.specs.errors import SpecError

OF_BASE = {
    "dtype": "bfloat16", "weight_dtype": "float32", "remat_policy": "full", "attention": "autoselected", "opt_type": "adamw",
    "mu_dtype": "", "per_device_batch_size": 12.0, "max_target_length": 2048, "gradient_accumulation_steps": 1,
    "optimizer_memory_host_offload": False, "parameter_memory_host_offload": False, "quantization": "", "dropout_rate": 0.0,
    "shard_optimizer_over_data": False, "dcn_data_parallelism": -1, "ici_fsdp_parallelism": -1, "ici_data_parallelism": 1,
    "ici_tensor_parallelism": 1, "ici_expert_parallelism": 1, "ici_context_parallelism": 1, "ici_pipeline_parallelism": 1,
}  # fmt: skip
"""What MaxText's own base.yml says (src/maxtext/configs/base.yml) of memory and time."""


BASE_SIZES = {
    "base_num_decoder_layers": 16, "base_emb_dim": 2048, "base_num_query_heads": 16, "base_num_kv_heads": 16,
    "base_mlp_dim": 7168, "head_dim": 128, "vocab_size": 32_000,
}  # fmt: skip
"""The model of MaxText's own base.yml, which trains where nothing names another."""


def changed_base(path: Path) -> dict[str, Any]:
    """What a base.yml at hand says otherwise than MaxText's own."""
    found = read_table(path)
    usual = OF_BASE | BASE_SIZES
    return {name: found[name] for name, value in usual.items() if found.get(name, value) != value}


def model_file(named: str, folder: Path) -> Path | None:
    """The file of a model's sizes, where a configuration's folder or a checkout of MaxText above it has one."""
    places = ("models", "configs/models", "MaxText/configs/models", "src/MaxText/configs/models", "src/maxtext/configs/models")  # fmt: skip
    return next((path for one in places if (path := beside(folder, f"{one}/{named}.yml"))), None)


def with_base(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A configuration over those that it names as its base, four deep at most.

    Raises:
        SpecError: one of them is of what serves.
    """
    for _ in range(4):
        named = data.pop("base_config", None)
        if not isinstance(named, str):
            break
        if re.search(r"(?:^|[/_])inference", named):
            raise SpecError("base_config", named[-60:], "serves a model; it does not train")
        path = beside(folder, named)
        if path is not None and path.name == "base.yml":
            return {**changed_base(path), **data}
        if path is None:
            return {**data, "base_config": named}  # which is said
        data = {**read_table(path), **data}
    return data


def absent(named: str) -> dict[str, Any]:
    """What a configuration's name says of it, where it is named and is not here."""
    said: dict[str, Any] = {"base_config": named}
    stem = Path(named).stem.replace("_", "-")
    preset = model_named(stem)
    if preset is not None and preset.name == stem:
        said["model_name"] = stem
    return said | ({"hardware": "gpu"} if "/gpu/" in named else {})


def below(options: Options, reading: Reading) -> None:
    """Say of a configuration that is not here that MaxText's own values stand for it.

    Raises:
        SpecError: it is the one of reinforcement, which has the batch and the number of answers; or what is
            trained sees pictures, too.
    """
    if options.flag("use_multimodal"):
        raise SpecError("use_multimodal", True, f"trains a vision-language model: {PLANNED}")
    named = options.loose("base_config")
    if not named or named.rpartition("/")[2] == "base.yml":
        return
    if re.search(r"(?:^|[/_])rl[_.]", named) and not options.has(
        "batch_size", "train_micro_batch_size"
    ):
        raise SpecError("base_config", named[-60:], "the configuration is not here: a reinforcement's batch and number of answers are in it")  # fmt: skip
    reading.guess("base_config", f"{named[-60:]} is not here; MaxText's own values are taken for what it says")  # fmt: skip
