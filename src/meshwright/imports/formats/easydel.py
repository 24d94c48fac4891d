"""EasyDeL's eLargeModel: one dictionary, in a program or a YAML, of model, mesh and trainer.

Defaults are those of its `TrainingArguments` and of the builders of `easydel/infra/elarge`.
"""

from __future__ import annotations

import ast
from typing import Any

from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import dotted, parse_python
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

_AXES = ("dp", "fsdp", "ep", "tp", "sp")
_DIMS = (1, 1, 1, -1, 1)


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is one of theirs, by itself or under `config` or `elm`."""
    whole = _inner(data)
    model, trainer = whole.get("model"), whole.get("trainer")
    if not (isinstance(model, dict) and "name_or_path" in model and isinstance(trainer, dict)):
        return False
    around = {"loader", "sharding", "esurge", "mixture", "base_config"} & set(whole)
    return bool(around) and bool({"trainer_type", "total_batch_size"} & set(trainer))


def is_program(text: str) -> bool:
    """Whether a Python file makes an eLargeModel of a dictionary."""
    return "eLargeModel(" in text and "total_batch_size" in text


def read_program(text: str, given: Given) -> Reading | None:
    """Return what the dictionary of a program trains; None where none is written out."""
    tree = parse_python(text)
    if tree is None:
        return None
    known = Known(tree)
    made = (one for one in ast.walk(tree) if isinstance(one, ast.Call) and dotted(one.func).endswith("eLargeModel"))  # fmt: skip
    table = next((one.args[0] for one in made if one.args), None)
    if not isinstance(table, ast.Dict):
        return None
    reading = read(_table(table, known), given)
    reading.format = "EasyDeL program"
    return reading


def _table(node: ast.Dict, known: Known) -> dict[str, Any]:
    """A dictionary with its known values; an enumeration's member counts by its name."""
    found: dict[str, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            continue
        said = _table(value, known) if isinstance(value, ast.Dict) else known.value(value)
        if said is None and isinstance(value, ast.Attribute) and value.attr.isupper():
            said = value.attr
        if said is not None:
            found[key.value] = said
    return found


def _inner(data: dict[str, Any]) -> dict[str, Any]:
    inner = data.get("config", data.get("elm"))
    return inner if isinstance(inner, dict) else data


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what such a table trains.

    Raises:
        SpecError: a value that cannot be, or a mesh of other axes.
    """
    options = Options(flattened(_inner(data)))
    reading = Reading("EasyDeL YAML", likely="tpu-v4")
    reading.model, reading.model_name = given.model, options.loose("model.name_or_path")
    _mesh(options, reading, given)
    answers = options.whole("trainer.num_return_sequences", "trainer.generation_num_return_sequences", default=1) or 1  # fmt: skip
    parts = options.whole("trainer.gradient_accumulation_steps", default=1) or 1
    batch = (options.whole("trainer.total_batch_size", default=32) or 1) * answers
    reading.global_batch, reading.accumulation = batch * parts, parts
    if parts == 1:  # one pass takes a device's share
        inner = reading.layout["tp"] * reading.layout["cp"]
        world = reading.devices or (given.cluster.gpus if given.cluster is not None else 8)
        reading.micro_batch = max(1, batch // max(1, world // inner))
    reading.seq_len = options.whole("trainer.max_length", "trainer.max_sequence_length")
    narrow = "bf" in options.word("loader.param_dtype", "loader.dtype", default="bf16")
    recipe = RECIPES["pure-bf16" if narrow else "bf16-fp32-grads"]
    optimizer = optimizer_or_adamw(reading, options.word("trainer.optimizer", default="adamw"), "trainer.optimizer")  # fmt: skip
    reading.job = {"framework": "maxtext", "precision": recipe.model_dump(), "optimizer": optimizer.but(state_bytes=optimizer.state_bytes / (2 if narrow else 1)).model_dump()}  # fmt: skip
    reading.note("is priced as MaxText, the JAX trainer that has been measured", "framework")
    kept = options.word("base_config.values.gradient_checkpointing", "base_config.gradient_checkpointing", default="none")  # fmt: skip
    reading.layout["recompute"] = "none" if kept in ("none", "") else "full" if "nothing" in kept else "selective"  # fmt: skip
    if rank := options.whole("trainer.lora_rank", "lora.rank"):
        adapters(reading, rank=rank, alpha=options.number("trainer.lora_alpha", "lora.alpha", default=rank), targets=None)  # fmt: skip
    name_task(reading, options.word("trainer.trainer_type", default="sft"))
    reading.count_steps(options, "trainer.max_training_steps")
    options.finish(reading, "easydel", "common", strict=given.strict)
    return reading


def _mesh(options: Options, reading: Reading, given: Given) -> None:
    """Degrees by the mesh's sizes and names: -1 takes the devices that are left."""
    names = options.raw("sharding.axis_names")
    sizes = options.raw("sharding.axis_dims")
    axes = [str(one) for one in names] if isinstance(names, (list, tuple)) else list(_AXES)
    dims = [one for one in sizes if type(one) is int] if isinstance(sizes, (list, tuple)) else list(_DIMS)  # fmt: skip
    if len(axes) != len(dims):
        raise SpecError("sharding.axis_dims", sizes, f"as many sizes as axis_names {axes} are expected")  # fmt: skip
    degrees = dict(zip(axes, dims, strict=True))
    left = next((axis for axis, size in degrees.items() if size == -1), "")
    if left and left not in ("fsdp", "dp"):
        world = given.cluster.gpus if given.cluster is not None else 4
        taken = max(1, world // _product([size for size in dims if size > 0]))
        reading.guess("sharding.axis_dims", f"-1 gives {left} the devices that are left; {taken} are taken")  # fmt: skip
        degrees[left] = taken
    elif not left:
        reading.devices = _product(dims)
    reading.layout = {
        "tp": max(degrees.get("tp", 1), 1), "ep": max(degrees.get("ep", 1), 1), "cp": max(degrees.get("sp", 1), 1),
        "zero": 3 if degrees.get("fsdp", 1) != 1 else 0,
    }  # fmt: skip


def _product(sizes: list[int]) -> int:
    found = 1
    for size in sizes:
        found *= max(size, 1)
    return found
