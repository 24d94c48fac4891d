"""A configuration that is no framework's: nested tables, read by the names that most programs use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.imports.cloud import tables
from meshwright.imports.formats import deepspeed
from meshwright.imports.formats.hf_adapters import ADAPTER_FILES, of_file
from meshwright.imports.formats.hf_sharding import deepspeed_named
from meshwright.imports.interpolate import resolved
from meshwright.imports.options import counted, flattened
from meshwright.imports.other_models import refuse_tables, says_text
from meshwright.imports.own import option_names, usual
from meshwright.imports.own.made_with import describes, usual_names
from meshwright.imports.reading import Given, Reading, Remark
from meshwright.imports.script_devices import device_named, take_resources
from meshwright.imports.tasks import is_task, name_task
from meshwright.imports.tuning import refuse_vector_tables
from meshwright.specs.errors import SpecError

_MODELS = re.compile(
    r"(?:^|\.)(?:(?:base_?)?models?|model_(?:args|config|cfgs?)|student)\.(?:name|id|path|model_name|model_name_or_path|model_id|name_or_path|hf_model_name_or_path|hf_id|hf_model_ckpt|pretrained\w*)$"
)
_NAMED = (
    "model_name_or_path",
    "model_name",
    "base_model",
    "model_id",
    "model",
    "llm_backbone",
    "model_id_or_path",
)
_NAMED_INSIDE = (
    "model_name_or_path", "model_name", "base_model", "model_id", "base_model_id", "base_model_name", "base_model_name_or_path", "pretrained_model",
    "pretrained_model_name_or_path", "hf_model_name", "hf_model_id", "base_model_path", "pretrained_model_path",
)  # fmt: skip
"""Names that say a model's name in whatever table they stand."""
_RATES = (
    "lr", "learning_rate", "max_learning_rate", "max_lr", "lr0", "lr_max", "base_lr", "peak_lr", "init_lr", "initial_lr",
    "peak_learning_rate", "base_learning_rate", "initial_learning_rate",
)  # fmt: skip
_BATCHES = (*option_names.MICRO, "train_batch_size0", "global_batch_size")
_RENAMED = {
    "lora.rank": "lora_rank", "lora.r": "lora_r", "lora.alpha": "lora_alpha", "lora.target_modules": "lora_target_modules",
    "lora.dropout": "lora_dropout", "distributed_args.stage": "zero_stage", "deepspeed.stage": "zero_stage", "zero.stage": "zero_stage", "optimizer_args.class_name": "optimizer", "full_shard": "use_fsdp",
    "activation_checkpointing.enabled": "activation_checkpointing", "gradient_checkpointing.enabled": "gradient_checkpointing",
    "activation_checkpointing.enable": "activation_checkpointing", "gradient_checkpointing.enable": "gradient_checkpointing", "fsdp.enable": "use_fsdp", "lora.enable": "use_lora", "peft.enable": "use_peft",
    "adapter.type": "peft_method", "adapter.r": "lora_r", "adapter.alpha": "lora_alpha", "adapter.target_modules": "lora_target_modules",
    "train_batch_size0": "per_device_train_batch_size", "adapter.dropout": "lora_dropout", "gradient_checkpointing.activate": "gradient_checkpointing", "gradient_checkpointing.use": "gradient_checkpointing", "quantization.bits": "bits", "deepspeed.config_path": "deepspeed_config", "deepspeed.config_file": "deepspeed_config", "deepspeed.config": "deepspeed_config", "fsdp.enabled": "use_fsdp", "lora.enabled": "use_lora", "peft.enabled": "use_peft", "fp8.enabled": "fp8_enabled",
}  # fmt: skip
"""Names whose last part alone says too little."""
_OF_LORA = re.compile(
    r"^(?:\w+_)?(?:lora|peft)(?:_\w+)?\.(?=(?:r|rank|alpha|dropout|target_modules)$)"
)
"""Tables of adapters by other names (`lora_config.rank`, `peft_args.r`)."""
_INERT = re.compile(
    r"(?i)(?:^|[._])(?:eval|val|test|validation|generation|inference|log\w*|sav\w*|checkpoint\w*|output\w*|dataset\w*|data|corpus|wandb|hub|tokenizer\w*"
    r"|scheduler\w*|lr\w*|warmup\w*|decay\w*|beta\w*|eps|seed|schema\w*|name|path|root|methods|pin_memory|num_workers\w*|prefetch_factor|local_files_only|model_class|class_args|strict\w*|sanity\w*|autograd\w*|fine_tune\w*|lora_dropout|id|version|description|\w*_(?:id|path|dir|root|sha256|file|name|rows|count|ratio|coef|norm|weight|type|steps|lr|scope|identity|schema|contract|config|method|args))(?=$|[._])"
)
"""What says nothing of memory, time or numbers of a step."""


def is_config(data: dict[str, Any]) -> bool:
    """Whether tables name or describe a model, and say a batch and a rate of learning."""
    flat = _flat(_in_usual_words(_in_small(data)))
    rate = any(name.rsplit(".", 1)[-1] in _RATES for name in flat)
    batch = any(
        name.rsplit(".", 1)[-1] in _BATCHES and counted(value) for name, value in flat.items()
    )
    lasts = {name.rsplit(".", 1)[-1] for name in flat}
    shape = bool(lasts & set(option_names.LAYERS)) and bool(lasts & set(option_names.HIDDEN))
    left = any((_MODELS.search(name) or name in _NAMED) and value in (None, "") for name, value in flat.items())  # fmt: skip
    asked = any(_OF_TEXT.search(name) for name in lasts)  # of text, whose model stands elsewhere
    return rate and batch and (bool(_model(flat)) or shape or left or asked or "path_to_model_config" in flat)  # fmt: skip


def is_around(data: dict[str, Any]) -> bool:
    """Whether a table names a model outside as transformers' programs do, and batch and rate in tables by other words."""
    outside = {name for name, one in data.items() if not isinstance(one, dict)}
    inside = {name for one in data.values() if isinstance(one, dict) for name in one}
    said = any(re.search(r"per_device|gradient_acc|num_train_epochs|^fp16$|^bf16$|^learning_rate$|^(?:max_)?seq_length$|^output_dir$", name) for name in (*outside, *inside))  # fmt: skip
    return not said and not outside & {*_BATCHES, *_RATES} and is_config(data)


def lacking(data: dict[str, Any]) -> list[str]:
    """What such tables would have to say to be read, of a model, a batch and a rate of learning."""
    flat = _flat(_in_usual_words(_in_small(data)))
    lasts = {name.rsplit(".", 1)[-1] for name in flat}
    found = {"model": bool(_model(flat)) or bool(lasts & set(option_names.NAMES)), "batch": bool(lasts & set(_BATCHES)), "rate of learning": bool(lasts & set(_RATES))}  # fmt: skip
    return [what for what, there in found.items() if not there]


_OF_TEXT = re.compile(r"(?i)tokeni[sz]|^vocab|^(?:max_)?seq(?:uence)?_?len|^max_(?:seq|context|length|tokens|prompt_|response_|completion_)|^context_|^block_size$|^lora_|^n_ctx$|^packing$")  # fmt: skip
"""Names that only a run over text has."""


def _in_small(data: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """Tables whose names of settings are in capitals (`BATCH_SIZE`), as a module's constants are, in small letters."""
    named = {name: _in_small(one, depth + 1) if isinstance(one, dict) and depth < _DEEPEST else one for name, one in data.items()}  # fmt: skip
    capitals = sum(str(name).isupper() for name in named)
    return {str(name).lower(): one for name, one in named.items()} if capitals * 2 > len(named) else named  # fmt: skip


def _in_usual_words(data: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """Tables with one that describes a model in words of its own (`layers`, `width`) by the usual names."""
    found = {name: _in_usual_words(one, depth + 1) if isinstance(one, dict) and depth < _DEEPEST else one for name, one in data.items()}  # fmt: skip
    plain = {str(name): one for name, one in found.items() if counted(one)}
    return usual_names(found) if depth and describes(plain) else found


_DEEPEST = 6


def read(data: dict[str, Any], given: Given, folder: Path | None = None) -> Reading:
    """Return what such tables run; the reading says that their names are taken as most programs mean them.

    Args:
        folder: where a file of DeepSpeed's that they name is looked for.

    Raises:
        SpecError: a value that cannot be, or a model that is no decoder.
    """
    data, chosen = _one_training(_in_small(resolved(data, dict(given.variables))), given)
    flat = _flat(_in_usual_words(data))
    refuse_vector_tables(data)
    refuse_tables(flat, "the configuration")
    if not _model(flat) and not says_text(flat):
        raise SpecError("file", "the configuration", "describes no training run of a language model: it names no model, no length of a sequence and no tokenizer")  # fmt: skip
    table = next((one for one in tables(data) if "zero_optimization" in one), None)
    if table is not None:  # DeepSpeed's own, whose names are read by its reader
        place = next(name for name in flat if "zero_optimization" in name).partition("zero_optimization")[0]  # fmt: skip
        flat = {name: one for name, one in flat.items() if not name.startswith(place or "zero_optimization")}  # fmt: skip
    off = any(flat.get(name) is False for name in option_names.FSDP)
    flat = {name: one for name, one in flat.items() if not (off and re.match(r"\w*fsdp\w*\.", name))}  # fmt: skip
    flags: dict[str, Any] = {"model_name_or_path": _sized(_model(flat), flat)}
    for name, value in flat.items():
        last = name.rsplit(".", 1)[-1]
        tail = ".".join(name.split(".")[-2:])
        renamed = _RENAMED.get(_OF_LORA.sub("lora.", tail), _RENAMED.get(last, last))
        if value is not None and not _MODELS.search(name) and not _of_another(name):
            flags.setdefault(renamed, value)
    for name in ("num_nodes", "nodes", *_PER_HOST, *_WHOLE, *_tasks(flags)):
        flags.pop(name, None)
    if "fsdp_algorithm" in flags and flags.pop(
        "fsdp_algorithm"
    ):  # dolomite-engine's: stages of FSDP
        flags["use_fsdp"] = flags.pop("zero_stage", 3) == 3
    sharded = (
        flags.pop("ds_cfgs", None) or flags.pop("deepspeed_config", None) or flags.get("deepspeed")
    )
    _store(flags)
    teacher = next((name for name in flat if re.search(r"(?:^|[._])teacher(?!_forcing)", name)), "")
    aside = _adapt(flags, folder)
    reading = usual.read_table(flags, given, _TITLE, inert)
    reading.remarks += aside
    if table is not None:
        _shard(reading)
        deepspeed.apply(table, reading, given, prefix="deepspeed.")
        reading.job["framework"] = "deepspeed"
    elif isinstance(sharded, str) and sharded.endswith(".json"):
        _shard(reading)
        deepspeed_named(sharded, reading, given, folder, None)
    if teacher:
        reading.unmodelled(
            teacher.split(".")[0], "a frozen teacher is held and run, too; not priced"
        )
    kinds = (str(value) for name, value in flat.items() if _KIND.search(name))
    for kind in (chosen, *kinds):
        name_task(reading, kind)
    listed = [
        value
        for name, value in flat.items()
        if isinstance(value, list)
        and all(map(_index, value))
        and (name.endswith("gpus") or name.rsplit(".", 1)[-1] in _LISTED)
    ]
    reading.likely = device_named(" ".join(str(one) for name, one in flat.items() if _DEVICES.search(name))) or reading.likely  # fmt: skip
    hosts, per_host = (_number(flat, *names) for names in (("num_nodes", "nodes"), _PER_HOST))  # fmt: skip
    per_host = per_host or (len(listed[0]) if listed else 0)
    reading.hosts, reading.per_host = (hosts or 1, per_host) if per_host else (0, 0)
    _count(flat, reading)
    reading.shard = _number(flat, "data_parallel_sharding_world_size", "shard_degree")
    if not reading.shard and any(one.option.startswith(("hybrid", "hsdp")) for one in reading.remarks):  # fmt: skip
        reading.shard = reading.per_host  # which the remark says
    return reading


def _store(flags: dict[str, Any]) -> None:
    """Take in how many bits weights are held, where a table says that by a number or a type."""
    stored = str(flags.pop("bits", flags.pop("bit", "")))
    if stored in ("int4", "4", "int8", "8"):
        flags[f"load_in_{stored[-1]}bit"] = True
    elif re.search(r"float|^(?:16|32)$", stored):
        flags.setdefault("dtype", stored if "float" in stored else f"float{stored}")


def _adapt(flags: dict[str, Any], folder: Path | None) -> list[Remark]:
    """Add the adapters of the file that a table names for them, and say where it is not here."""
    aside = Reading("")
    kept = next((one for one in ADAPTER_FILES if re.search(r"\.(?:ya?ml|json)$", str(flags.get(one)))), "")  # fmt: skip
    if kept:
        flags |= {"use_lora": True} | of_file(kept, str(flags.pop(kept)), aside, folder)
    return aside.remarks


def _count(flat: dict[str, Any], reading: Reading) -> None:
    """Take the devices of all hosts together, where a table says them so, and what Ray's workers ask for."""
    reading.devices = 0 if reading.per_host else _number(flat, *_WHOLE)
    asked = {one.rpartition(".")[2] for one in take_resources(flat, reading)}
    reading.remarks = [one for one in reading.remarks if one.option not in asked]


def _tasks(flags: dict[str, Any]) -> list[str]:
    """Names of what says the task, which is named by itself."""
    return [name for name in ("algorithm", "algo", "rl_algorithm", "dataset_type") if is_task(str(flags.get(name)))]  # fmt: skip


def _shard(reading: Reading) -> None:
    """Forget what was taken for a sharding that another file or table says."""
    reading.remarks = [one for one in reading.remarks if one.option not in ("sharding", "deepspeed", "ds_cfgs")]  # fmt: skip


_LISTED = ("device", "devices", "gpu_ids", "device_ids", "gpu_id", "cuda_devices")
_PER_HOST = ("gpus_per_node", "num_gpus_per_node", "devices", "gpus", "num_gpus")
_WHOLE = ("num_devices", "world_size", "num_training_workers", "total_gpus", "num_processes")
"""Names of the devices of all hosts together."""
_KIND = re.compile(
    r"(?:^|\.)(?:trainer|training|train|method|rl|alignment)\.(?:type|method|trainer_type|algorithm|stage)$|^(?:method|stage|rl|algo|algorithm|rl_algorithm)$|(?:^|\.)dataset_type$"
)
"""Names under which a table says what it trains for."""
_DEVICES = re.compile(
    r"(?i)(?:^|[._])(?:hardware|accelerators?|gpus?|device|gpu_(?:type|model|name)|\w*device_name\w*)$"
)
"""Names under which a table says what it runs on."""


def _one_training(data: dict[str, Any], given: Given) -> tuple[dict[str, Any], str]:
    """The tables with one of several trainings alone, and its name; empty where there is only one.

    Raises:
        SpecError: there are several, and none was chosen.
    """
    places = [
        ((), data),
        *(((str(name),), one) for name, one in data.items() if isinstance(one, dict)),
    ]
    for place, inner in places:
        stages = [str(name) for name, table in inner.items() if _is_training(str(name), table)]
        if len(stages) < 2:
            continue
        if given.config not in stages:
            raise SpecError(
                "--config",
                given.config or None,
                f"the file configures several trainings: one of {', '.join(stages)} is expected",
            )
        # What the training says counts over what stands beside it.
        chosen = {given.config: inner[given.config]}
        beside = {name: one for name, one in inner.items() if name not in stages}
        rest = {name: one for name, one in data.items() if name not in place} if place else {}
        return {**chosen, **beside, **rest}, given.config
    return data, ""


def _is_training(name: str, table: Any) -> bool:
    """Whether a table says a batch and for how long, or at which rate, it trains."""
    if not isinstance(table, dict) or _of_another(f"{name}."):
        return False
    long = {*_RATES, "num_train_epochs", "max_steps", "epochs"}
    return bool(set(table) & set(_BATCHES)) and bool(set(table) & long)


def inert(name: str) -> bool:
    """Whether an option says nothing of memory, time or numerics of a step, by its name."""
    return _INERT.search(name) is not None


_TITLE = "configuration of a program of its own"


def is_own(reading: Reading) -> bool:
    """Whether a reading is of such a table."""
    return reading.format == _TITLE


def _of_another(name: str) -> bool:
    """Whether a field is of a teacher, or of what runs beside the training."""
    return re.search(r"(?:^|[._])(?:teacher|eval|validation|generation|inference|reference)(?=[._])", name) is not None  # fmt: skip


def _flat(data: dict[str, Any]) -> dict[str, Any]:
    """All fields by their dotted names; of a list of tables, its first one's."""
    found: dict[str, Any] = {}
    for name, value in flattened(data).items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            found |= {f"{name}.{inner}": one for inner, one in flattened(value[0]).items()}
        else:
            found[str(name)] = value
    return found


def _model(flat: dict[str, Any]) -> str:
    found = [str(value) for name, value in flat.items() if _MODELS.search(name) and isinstance(value, str) and not _of_another(name)]  # fmt: skip
    found += [str(flat[name]) for name in _NAMED if isinstance(flat.get(name), str)]  # fmt: skip
    found += [str(one) for name, one in flat.items() if name.rsplit(".", 1)[-1] in _NAMED_INSIDE and isinstance(one, str) and not _of_another(name)]  # fmt: skip
    return next((one for one in found if one), "")


def _sized(name: str, flat: dict[str, Any]) -> str:
    """A family's name with the size that stands beside it (`model: llama2`, `model_size: 13b`)."""
    size = next((str(value) for key, value in flat.items() if key.rsplit(".", 1)[-1] in ("model_size", "model_scale") and value), "")  # fmt: skip
    return f"{name}-{size}" if size and name and not re.search(r"\d[bBmM]\b", name) else name


def _index(value: Any) -> bool:
    return not isinstance(value, bool) and re.fullmatch(r"\d\d?", str(value)) is not None


def _number(flat: dict[str, Any], *names: str) -> int:
    """The first whole number under one of these last names; 0 where there is none."""
    return next((value for name, value in flat.items() if name.rsplit(".", 1)[-1] in names and counted(value)), 0)  # fmt: skip
