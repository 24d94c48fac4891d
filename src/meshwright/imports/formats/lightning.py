"""A Trainer of Lightning in a program: its words by the names of TrainingArguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from meshwright.imports.reading import Reading
from meshwright.specs.job import RECIPES

_IMPORTS = re.compile(r"^[^\S\n]*(?:from|import) (?:pytorch_lightning|lightning)\b", re.M)
_HARMLESS = ("accelerator", "max_epochs", "callbacks", "logger", "enable_checkpointing", "log_every_n_steps", "val_check_interval",
             "enable_progress_bar", "enable_model_summary", "limit_val_batches", "limit_train_batches", "num_sanity_val_steps", "profiler",
             "check_val_every_n_epoch", "gradient_clip_val", "deterministic", "benchmark", "default_root_dir", "fast_dev_run")  # fmt: skip
_NAMED = re.compile(r"(?:auto|dp|ddp|fsdp|deepspeed|xla|single_\w+)(?:_\w+)?")
_MIXED = {"bf16-mixed": "bf16", "bf16": "bf16", "16-mixed": "fp16", "16": "fp16"}


def is_one(text: str) -> bool:
    """Whether a program's trainer is Lightning's: nothing else that trains is made."""
    return _IMPORTS.search(text) is not None and "TrainingArguments" not in text and re.search(r"\bTrainer\(", text) is not None  # fmt: skip


def translated(text: str, found: dict[str, Any], reading: Reading) -> dict[str, Any]:
    """The settings of such a program by TrainingArguments' names; devices and sharding go to the reading."""
    made = {name: one for name, one in found.items() if name not in _HARMLESS}
    said = _calls(text)
    words = {
        name: made.pop(name, None) for name in ("strategy", "precision", "devices", "num_nodes")
    }
    words |= {name: one for name, one in said.get("Trainer", {}).items() if words.get(name) is None}
    for theirs, ours in (
        ("batch_size", "per_device_train_batch_size"),
        ("accumulate_grad_batches", "gradient_accumulation_steps"),
    ):
        if isinstance(one := made.pop(theirs, said.get("Trainer", {}).get(theirs)), int):
            made.setdefault(ours, one)
    _placed(words, reading)
    strategy = str(words.get("strategy") or "")
    if (
        strategy
        and not _word(strategy)
        and "DDP" not in strategy
        and not {"FSDPStrategy", "DeepSpeedStrategy"} & set(said)
    ):
        reading.unmodelled("strategy", f"{strategy[:60]}: what it shards is not followed; copies of the model are priced")  # fmt: skip
    if made.pop("plugins", None) is not None or "plugins" in said.get("Trainer", {}):
        reading.unmodelled("plugins", "may set the precision and the cluster; what the trainer itself says is priced")  # fmt: skip
    precision = str(words.get("precision") or "32").lower()
    if precision in _MIXED:
        made[_MIXED[precision]] = True
    elif precision in ("bf16-true", "16-true"):
        made |= {"torch_dtype": "bfloat16", "pure_bf16": True}
    elif not precision.startswith("32"):
        made["bf16"] = True
        reading.unmodelled("precision", f"{precision[:40]}: what is computed in fewer bits is not priced; bf16 is")  # fmt: skip
    return made | _sharded(_word(words.get("strategy")), said, reading)


def of_fabric(tree: ast.AST, value: Callable[[ast.expr], Any], reading: Reading) -> bool:
    """Take what a program makes its Fabric with: devices, precision, what shards; whether it makes one.

    Args:
        value: what an expression stands for in the program; None where it cannot be followed.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = next((one for one in calls if ast.unparse(one.func).rpartition(".")[2] == "Fabric"), None)  # fmt: skip
    if made is None:
        return False
    words = {one.arg: value(one.value) for one in made.keywords if one.arg}
    _placed(words, reading)
    told = {one.arg for one in made.keywords}
    said = _calls(ast.unparse(tree))
    if "strategy" in told or {"FSDPStrategy", "DeepSpeedStrategy"} & set(said):
        reading.remarks = [one for one in reading.remarks if one.option != "sharding"]
        table = _sharded(_word(words.get("strategy")), said, reading)
        if table.get("gradient_checkpointing"):
            reading.layout["recompute"] = "full"
            reading.remarks = [one for one in reading.remarks if one.option != "recompute"]
        stage = table.get("deepspeed")
        if isinstance(stage, dict):
            reading.layout["zero"] = stage["zero_optimization"]["stage"]
            reading.job["framework"] = "deepspeed"
    kind = str(words.get("precision") or "")
    name = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16", "32": "fp32", "32-true": "fp32", "bf16-true": "pure-bf16"}.get(kind.lower())  # fmt: skip
    if name is not None:
        reading.remarks = [one for one in reading.remarks if one.option != "precision"]
        reading.job["precision"] = RECIPES[name].model_dump()
    return True


def _word(named: Any) -> str:
    """A strategy by its name; nothing where it is an object."""
    return named if isinstance(named, str) and _NAMED.fullmatch(named) else ""


def _placed(words: dict[str, Any], reading: Reading) -> None:
    devices = words.get("devices")
    count = len(devices) if isinstance(devices, list) else int(text) if (text := str(devices)).isdigit() else 0  # fmt: skip
    hosts = int(nodes) if (nodes := str(words.get("num_nodes"))).isdigit() else 1
    if count:
        reading.hosts, reading.per_host = hosts, count


def _sharded(named: str, said: dict[str, dict[str, Any]], reading: Reading) -> dict[str, Any]:
    """What the strategy, by its name or as an object, says of sharding."""
    if "FSDPStrategy" in said or named.startswith("fsdp"):
        own = said.get("FSDPStrategy", {})
        reading.reduces_each = True  # Lightning holds back DistributedDataParallel's sums alone
        kind = str(own.get("sharding_strategy", "FULL_SHARD")).rpartition(".")[2].upper()
        reading.layout["zero"] = {"NO_SHARD": 0, "SHARD_GRAD_OP": 2, "HYBRID_SHARD_ZERO2": 2, "_HYBRID_SHARD_ZERO2": 2}.get(kind, 3)  # fmt: skip
        if "HYBRID" in kind and reading.per_host and reading.hosts > 1:
            reading.shard = reading.per_host
        moved = own.get("cpu_offload") is True or "offload" in named
        if moved:
            reading.offload |= {"parameters", "optimizer"}
        return {"gradient_checkpointing": True} if own.get("activation_checkpointing_policy") or own.get("activation_checkpointing") else {}  # fmt: skip
    if "DeepSpeedStrategy" not in said and not named.startswith("deepspeed"):
        return {}
    own = said.get("DeepSpeedStrategy", {})
    stage = re.search(r"stage_(\d)", named)
    table: dict[str, Any] = {"stage": int(stage.group(1)) if stage else own.get("stage", 2)}
    if own.get("offload_optimizer") is True or "offload" in named:
        table["offload_optimizer"] = {"device": "cpu"}
    if own.get("offload_parameters") is True or ("offload" in named and table["stage"] == 3):
        table["offload_param"] = {"device": "cpu"}
    if isinstance(own.get("config"), str):
        return {"deepspeed": own["config"]}
    return {"deepspeed": {"zero_optimization": table}}


def _calls(text: str) -> dict[str, dict[str, Any]]:
    """The words of each object of Lightning's that the program makes, where they are plain; others as they are written."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in ("Trainer", "FSDPStrategy", "DeepSpeedStrategy"):
                words = {one.arg: _plain(one.value) for one in node.keywords if one.arg}
                found.setdefault(name, {}).update(words)
    return found


def _plain(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
