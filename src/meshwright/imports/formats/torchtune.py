"""torchtune's YAML."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from meshwright.imports.interpolate import merged, resolved, words_to_table
from meshwright.imports.names import PLANNED, model_named
from meshwright.imports.options import Options, counted, flags_of, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw, torch_moments
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.job import RECIPES

EDITS = {
    "micro_batch": "batch_size",
    "accumulation": "gradient_accumulation_steps",
    "recompute": "enable_activation_checkpointing",
}


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is torchtune's."""
    return isinstance(data.get("model") or data.get("policy_model"), dict) or "batch_size" in data


def read(data: dict[str, Any], given: Given, overrides: list[str], text: str = "") -> Reading:
    """Return what a torchtune recipe runs.

    Args:
        text: of the file, whose comments name the recipe that it is for.

    Raises:
        SpecError: it does not train, or a value cannot be.
    """
    reading = Reading("torchtune YAML", options=dict(EDITS))
    data = _of_trainers(merged(resolved(data), words_to_table(overrides)), reading)
    options = Options(flattened(data))
    component = options.text("model._component_", "policy_model._component_", "policy._component_")
    if not component or not options.has("optimizer._component_"):
        raise SpecError("optimizer", None, "no optimizer: this recipe does not train")
    builder = component.rsplit(".", 1)[-1]
    if (
        re.search(r"vision|clip|flamingo|early_fusion|multimodal", component)
        and given.model is None
    ):
        raise SpecError("model", component, f"trains a vision-language model: {PLANNED}")  # fmt: skip
    reading.model = given.model
    # The builder makes the shape; its name is no preset where it takes the sizes as arguments.
    name = re.sub(r"^(?:q?lora_|dora_|reward_|early_fusion_)+", "", builder).replace("_", "-")
    hub = _hub(data)
    reading.model_name = name if model_named(name) is not None or not hub else hub
    if not component.startswith("torchtune."):
        made = [f"{key[6:]} {value}" for key, value in options.values.items() if key.startswith("model.") and isinstance(value, (int, float)) and value]  # fmt: skip
        reading.guess("model._component_", f"{component} is the project's own: the shape that its name says is taken, without {', '.join(made[:6]) or 'what it adds'}")  # fmt: skip
    _batch(options, reading)
    _sharding(options, reading, given, single=_is_single(data, text))
    _arithmetic(options, reading)
    if "lora" in builder:
        _lora(options, reading, four="qlora" in builder)
    _loss(options, reading)
    if options.flag("dataset.packed"):
        reading.job["document_masking"] = True
    if "kd" in str(data.get("teacher_model", "")) or "teacher_model" in data:
        reading.unmodelled("teacher_model", "a frozen teacher's weights and forward are not priced")
    options.finish(reading, "torchtune", "common", strict=given.strict)
    return reading


@cache
def _shipped() -> dict[str, Any]:
    text = resources.files("meshwright.imports").joinpath("data/torchtune_recipes.toml").read_text("utf-8")  # fmt: skip
    return tomllib.loads(text)


def _of_trainers(data: dict[str, Any], reading: Reading) -> dict[str, Any]:
    """What the workers that train are told in a recipe whose workers each have a task of their own; other recipes as they are."""
    workers, told = data.get("orchestration"), data.get("training")
    if not (isinstance(workers, dict) and isinstance(told, dict)):
        return data
    reading.devices = counted(workers.get("num_training_workers"))
    reading.counts_itself = reading.devices > 0
    reading.note("the workers that train are priced, not those that generate and score", "orchestration")  # fmt: skip
    apart = ("orchestration", "training", "inference", "postprocessing", "reward_functions")
    return {name: one for name, one in data.items() if name not in apart} | told


def read_named(words: list[str], given: Given) -> Reading:
    """Return what `tune run RECIPE --config NAME key=value…` runs, of a configuration that torchtune ships.

    Raises:
        SpecError: no configuration of that name is known, it does not train, or a value cannot be.
    """
    said = flags_of(words).get("config", "")
    named = str(said[0] if isinstance(said, list) else said)  # `key=value` words follow it
    known = _shipped()["recipes"]
    if named not in known:
        near = "" if named.endswith((".yaml", ".yml")) else f" ({nearest(named, known)})"
        raise SpecError("--config", named, f"is not here, and none of torchtune's own{near}: `tune cp` writes those; import that YAML")  # fmt: skip
    values = {**_shipped()["usual"], **known[named]}
    alone = values.pop("single", False) or any("single_device" in word for word in words)
    data: dict[str, Any] = {}
    for name, value in values.items():
        *outer, last = name.split(".")
        (data.setdefault(outer[0], {}) if outer else data)[last] = value
    overrides = [word for word in words if not word.startswith("-")]
    reading = read(data, given, overrides, "single_device" if alone else "")
    reading.note(f"{named} is read as torchtune {_shipped()['read']} ships it", "--config")
    return reading


def _batch(options: Options, reading: Reading) -> None:
    reading.micro_batch = options.whole("batch_size", default=1) or 1
    reading.accumulation = options.whole("gradient_accumulation_steps", default=1) or 1
    reading.count_steps(options, "max_steps_per_epoch")
    reading.seq_len = options.whole("tokenizer.max_seq_len")
    if not reading.seq_len:
        reading.guess("--seq", "tokenizer.max_seq_len is not set; 4096 is taken")
        reading.seq_len = 4096


def _is_single(data: dict[str, Any], text: str) -> bool:
    """Whether the recipe runs on one device, by what only such recipes have or by its comments."""
    if str(data.get("tensor_parallel_dim", 1)) not in ("1", "None"):
        return False
    if "bitsandbytes" in str(data.get("optimizer")) or data.get("optimizer_in_bwd"):
        return True
    return "single_device" in text and "_distributed" not in text


def _sharding(options: Options, reading: Reading, given: Given, *, single: bool) -> None:
    single = single and (given.cluster is None or given.cluster.gpus == 1)
    if single and given.cluster is None:
        reading.devices = 1
    reading.layout = {
        "zero": 0 if single else 3,
        "tp": options.whole("tensor_parallel_dim", default=1) or 1,
        "cp": options.whole("context_parallel_dim", default=1) or 1,
        "recompute": "full" if options.flag("enable_activation_checkpointing") else "none",
    }
    reading.replicate = options.whole("data_parallel_replicate_dim")
    shard = options.number("data_parallel_shard_dim")
    if shard > 0 and not reading.world():  # -1: what is left
        each = max(reading.replicate, 1) * reading.layout["tp"] * reading.layout["cp"]
        reading.devices = int(shard) * each
    if options.flag("fsdp_cpu_offload"):
        reading.offload |= {"optimizer", "parameters"}
    if options.flag("enable_activation_offloading"):
        reading.offload.add("activations")
    if options.raw("fsdp_reshard_after_forward") is False:
        reading.layout["zero"] = 2


def _arithmetic(options: Options, reading: Reading) -> None:
    """Precision and optimizer."""
    optimizer = options.text("optimizer._component_")
    recipe = RECIPES["pure-bf16" if options.word("dtype", default="fp32") == "bf16" else "fp32"]
    reading.job = {"framework": "torchtune", "precision": recipe.model_dump()}
    named = optimizer_or_adamw(reading, optimizer, "optimizer._component_")
    found = torch_moments(named, recipe)
    reading.job["optimizer"] = found.model_dump()
    if "CPUOffload" in optimizer:
        reading.offload.add("optimizer")
    if options.flag("optimizer_in_bwd"):
        reading.job["framework_options"] = {"optimizer_in_backward": True}
    if options.flag("enable_fp8_training"):
        reading.job["precision"] = RECIPES["fp8"].model_dump()


def _lora(options: Options, reading: Reading, *, four: bool) -> None:
    targets = options.raw("model.lora_attn_modules")
    listed = list(targets) if isinstance(targets, list) else ["q_proj", "v_proj"]
    if options.flag("model.apply_lora_to_mlp"):
        listed.append("mlp")
    if options.flag("model.apply_lora_to_output"):
        listed.append("lm_head")
    adapters(
        reading, rank=options.whole("model.lora_rank", default=8) or 8, alpha=options.number("model.lora_alpha"),
        targets=listed, bits=4 if four or options.flag("model.quantize_base") else 0,
        method="dora" if options.flag("model.use_dora") else "lora", dropout=options.number("model.lora_dropout"),
        option="model.lora_attn_modules",
    )  # fmt: skip


def _loss(options: Options, reading: Reading) -> None:
    component = options.loose("loss._component_")
    if component == "torch.nn.CrossEntropyLoss":
        reading.job["loss"] = "full"
    if "Linear" in component or "Chunked" in component:
        reading.job["loss"] = "chunked"
    # Words of a name such as `PPOLoss` or `LinearGRPOLoss`.
    name = component.rsplit(".", 1)[-1]
    name_task(reading, re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name))


def _hub(data: dict[str, Any]) -> str:
    """The model that the checkpoint's folder is named after."""
    table = data.get("checkpointer") or {}
    folder = str(table.get("checkpoint_dir", "")) if isinstance(table, dict) else ""
    return folder.rstrip("/").rsplit("/", 1)[-1] if folder and "${" not in folder else ""
