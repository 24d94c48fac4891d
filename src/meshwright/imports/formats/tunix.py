"""Tunix: the training half of its commands and configurations, JAX meshes with the axes `fsdp` and `tp`.

Names and defaults: tunix/cli/config.py, tunix/cli/base_config.yaml and tunix/rl/rl_cluster.py of Tunix.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.interpolate import merged, read_table, words_to_table
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

_ROLES = ("actor_model_config.", "model_config.")


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is Tunix's: a model with a mesh, and how it trains."""
    model = data.get("model_config", data.get("actor_model_config"))
    trains = "rl_training_config" in data or "training_config" in data
    whole = trains and isinstance(model, dict) and ("mesh" in model or "model_id" in model)
    return whole or _is_short(data)


def _is_short(data: dict[str, Any]) -> bool:
    """Whether a program of its own keeps Tunix's model table beside `dataset` and `training`."""
    model = data.get("model")
    tables = isinstance(data.get("dataset"), dict) and isinstance(data.get("training"), dict)
    return tables and isinstance(model, dict) and isinstance(model.get("mesh"), dict) and bool({"remat_config", "lora_config"} & set(model))  # fmt: skip


def _in_full(data: dict[str, Any]) -> dict[str, Any]:
    """Such tables under Tunix's own names."""
    rows = data["dataset"]
    length = rows.get("max_length", rows.get("max_target_length", rows.get("max_seq_length")))
    named = {"batch_size": rows.get("batch_size"), "max_target_length": length}
    optimizer = data.get("optimizer")
    said = {"opt_type": optimizer.get("name", optimizer.get("opt_type"))} if isinstance(optimizer, dict) else {}  # fmt: skip
    known = {name: value for name, value in named.items() if value is not None}
    return {**known, "model_config": data["model"], "training_config": data["training"], "optimizer_config": said}  # fmt: skip


def is_command(program: str) -> bool:
    """Whether a program is one of Tunix's command line."""
    return re.search(r"(?:^|/)tunix[./]cli[./]\w+_main(?:\.py)?$", program) is not None


def read_words(program: str, words: list[str], given: Given, folder: Path | None) -> Reading:
    """Return what a Tunix command trains: its base file, the one that overrides it, its own words.

    Raises:
        SpecError: a value that cannot be.
    """
    said = words_to_table(words)
    over = said.pop("override_config_file", "")
    base = next((word for word in words if word.endswith((".yaml", ".yml")) and "=" not in word), "")  # fmt: skip
    above = beside(folder, str(over)) if over else None
    data = merged(read_table(above), said) if above is not None else said
    below = beside(folder, base) if base else None
    reading = read(data, given, read_table(below) if below is not None else {}, program)
    for named, path in ((str(over), above), (base, below)):
        if named and path is None:
            reading.guess("config", f"{named[-60:]} is not here; Tunix's own values are taken for what it says")  # fmt: skip
    return reading


def read(
    data: dict[str, Any], given: Given, base: dict[str, Any] | None = None, program: str = ""
) -> Reading:
    """Return what a Tunix configuration trains.

    Args:
        base: what it stands above; a role's model follows `model_config` where the role itself says nothing.

    Raises:
        SpecError: a value that cannot be.
    """
    if _is_short(data):
        data = _in_full(data)
    reinforced = "rl_training_config" in data or re.search(r"grpo|ppo", program) is not None
    own, below = flattened(data), flattened(base or {})
    options = Options(_chosen(own, below, _ROLES if reinforced else _ROLES[1:]))
    options.guessing = given.guess
    reading = Reading("Tunix configuration", likely="tpu-v5e")
    reading.model = given.model
    reading.model_name = options.loose("model.model_id", "model.model_name")
    sharded = _mesh(options, reading)
    _batches(options, reading, sharded, reinforced)
    table = "rl_training_config.actor_optimizer_config." if reinforced else "optimizer_config."
    optimizer = optimizer_or_adamw(reading, options.word(f"{table}opt_type", default="adamw"), f"{table}opt_type")  # fmt: skip
    reading.job = {"framework": "maxtext", "precision": RECIPES["pure-bf16"].model_dump(), "optimizer": optimizer.but(state_bytes=optimizer.state_bytes / 2).model_dump()}  # fmt: skip
    reading.note("Tunix is priced as MaxText, the JAX trainer that has been measured", "framework")
    if "bf" not in options.word("model.dtype", "model.load_dtype"):
        reading.guess("dtype", "weights are trained in the width that the checkpoint has; bf16 is taken")  # fmt: skip
    if rank := options.whole("model.lora_config.rank"):
        adapters(reading, rank=rank, alpha=options.number("model.lora_config.alpha", default=rank), targets=None,
                 bits=4 if options.word("model.lora_config.weight_qtype").endswith("4") else 0, option="lora_config.module_path")  # fmt: skip
        reading.unmodelled("lora_config.module_path", "which matrices have adapters; all are priced with them")  # fmt: skip
    if options.raw("critic_model_config.model_id", "critic_model_config.lora_config.rank") is not None:  # fmt: skip
        reading.unmodelled("critic_model_config", "a critic trains, too; the policy is priced")
    critic = "ppo" in program or any(name.startswith("critic_optimizer") or "critic_optimizer_config.opt_type" in name for name in own)  # fmt: skip
    name_task(reading, "ppo" if critic else "grpo" if reinforced else "")
    options.finish(reading, "tunix", "common", strict=given.strict)
    return reading


def _chosen(own: dict[str, Any], below: dict[str, Any], roles: tuple[str, ...]) -> dict[str, Any]:
    """The flat table with what trains called `model.`: a role's own word, then `model_config`'s, then the base's."""
    found = {name: value for name, value in {**below, **own}.items() if not name.startswith(_ROLES)}
    for table in (below, own):
        for role in reversed(roles):
            for name, value in table.items():
                if name.startswith(role) and value is not None:
                    found[f"model.{name.removeprefix(role)}"] = value
    return found


def _mesh(options: Options, reading: Reading) -> int:
    """Degrees by the mesh's shape and names; returns the ranks that hold a batch's parts."""
    shape = [int(one) for one in re.findall(r"\d+", options.loose("model.mesh.shape"))]
    axes = re.findall(r"\w+", options.loose("model.mesh.axis_names"))
    if len(shape) != len(axes) or not shape:
        if shape or axes:
            raise SpecError("mesh.shape", options.loose("model.mesh.shape"), f"as many sizes as axis_names {axes} are expected")  # fmt: skip
        return 1
    named = dict(zip(axes, shape, strict=True))
    reading.devices = math.prod(shape)
    tp, ep = named.pop("tp", 1), named.pop("expert", 1)
    # RematConfig of Tunix's models: none is 1, one block 2, every decoder layer 3.
    again = options.word("model.remat_config").rsplit(".", 1)[-1]
    if again.lower() in ("2", "block"):
        reading.unmodelled("remat_config", "attention alone runs again; nothing is priced so")
    reading.layout = {
        "tp": tp,
        "ep": ep,
        "zero": 3 if named.get("fsdp", 1) > 1 else 0,
        "recompute": "full" if again.lower() in ("3", "decoder") else "none",
    }
    for name in named.keys() - {"fsdp", "data", "dp"}:
        reading.unmodelled("mesh.axis_names", f"an axis {name}; its ranks are priced as shards")
    return math.prod(named.values()) * ep


def _batches(options: Options, reading: Reading, sharded: int, reinforced: bool) -> None:
    """Sequences of a step and of a pass: counted in prompts where each has several answers."""
    prompts = options.whole("batch_size", default=16) or 16
    if not reinforced:
        parts = options.whole("training_config.gradient_accumulation_steps", default=1) or 1
        reading.global_batch, micro = prompts * parts, prompts
        reading.seq_len = options.whole("max_target_length", default=256)
    else:
        answers = options.whole("grpo_config.num_generations", default=2) or 1
        mini = options.whole("rl_training_config.mini_batch_size") or prompts
        micro = (options.whole("rl_training_config.train_micro_batch_size") or mini) * answers
        reading.global_batch = mini * answers
        reading.seq_len = options.whole("rollout_config.max_prompt_length", default=256) + options.whole("rollout_config.total_generation_steps", default=768)  # fmt: skip
        reading.guess("--seq", f"sequences have at most {reading.seq_len} tokens; that is taken for all")  # fmt: skip
    if reading.global_batch % sharded:
        reading.guess("--global-batch", f"{reading.global_batch} sequences do not divide over {sharded} shards; as many as divide are priced")  # fmt: skip
        reading.global_batch = -(-reading.global_batch // sharded) * sharded
    reading.micro_batch = max(1, micro // sharded)
