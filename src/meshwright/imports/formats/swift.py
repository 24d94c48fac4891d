"""ms-swift's Megatron commands, and the YAML that takes their options, with Ray's groups or alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.formats import megatron
from meshwright.imports.names import model_named, refuse_other
from meshwright.imports.options import Options, flags_of
from meshwright.imports.reading import PROJECTOR, Given, Reading
from meshwright.imports.tasks import name_task, refuse_task
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import parse_yaml, read_text

_DEFAULTS = {
    "bf16": True, "use-distributed-optimizer": True, "attention-dropout": "0.0", "hidden-dropout": "0.0",
    "micro-batch-size": "1", "recompute-granularity": "selective", "attention-backend": "flash", "cross-entropy-loss-fusion": True,
    "moe-grouped-gemm": True, "moe-token-dispatcher-type": "alltoall", "expert-tensor-parallel-size": "1",
}  # fmt: skip
"""What ms-swift takes where Megatron-LM takes something else (swift/megatron/arguments/megatron_args.py)."""


_OWN = {"tuner_type", "train_type", "rlhf_type", "split_dataset_ratio", "load_from_cache_file"}
_MEGATRON = {"micro_batch_size", "global_batch_size"}
_GROUPS = ("train", "rollout", "teacher", "colocate_groups", "ENV", "use_ray")
"""Tables of Ray's groups, of which one trains, and of the environment."""


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table holds the options of ms-swift's Megatron commands."""
    train = data.get("train")
    names = set(data) | set(train if isinstance(train, dict) else {})
    return isinstance(data.get("model"), str) and bool(_OWN & names) and names >= _MEGATRON


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what such a table runs, as `read_swift_megatron` does.

    Raises:
        SpecError: as there.
    """
    reading = _read(_flags_of_table(data), given)
    _devices(data, reading)
    reading.format = "ms-swift Megatron YAML"
    reading.options = {axis: name.lstrip("-").replace("-", "_") for axis, name in reading.options.items()}  # fmt: skip
    return reading


def read_swift_megatron(words: list[str], given: Given, folder: Path | None) -> Reading:
    """Return what ms-swift's Megatron command runs, with the YAML of options that it names.

    Raises:
        SpecError: the model is not known or is no decoder of text, or a value cannot be.
    """
    said = flags_of(words)
    named = str(said.pop("config", "") or next(iter(words), ""))
    path = beside(folder, named) if re.search(r"\.ya?ml$", named) else None
    data = parse_yaml(read_text(path, "--config"), "--config", named) if path is not None else None
    table = data if isinstance(data, dict) else {}
    reading = _read(_flags_of_table(table) | said, given)
    _devices(table, reading)
    return reading


def _flags_of_table(data: dict[str, Any]) -> dict[str, Any]:
    """The options that a table says, those of the group that trains over the ones of all."""
    train = data.get("train")
    plain = {key: value for key, value in data.items() if key not in _GROUPS}
    plain |= {key: value for key, value in (train if isinstance(train, dict) else {}).items() if key != "gpus"}  # fmt: skip
    return {
        str(key).replace("_", "-"): str(value).lower() if isinstance(value, bool) else value
        for key, value in plain.items()
        if value is not None and not isinstance(value, dict)
    }


def _devices(data: dict[str, Any], reading: Reading) -> None:
    """The devices of Ray's group that trains."""
    train = data.get("train")
    gpus = train.get("gpus") if isinstance(train, dict) else None
    if isinstance(gpus, int) and gpus > 0:
        reading.devices, reading.counts_itself = gpus, True
        reading.note("only the group that trains is priced, not those that generate or teach", "train.gpus")  # fmt: skip


def _read(said: dict[str, Any], given: Given) -> Reading:
    flags = {name: "true" if value is True else value for name, value in said.items()}
    named = next(
        (str(flags[n]) for n in ("model", "load", "mcore-model", "mcore_model") if isinstance(flags.get(n), str)), ""
    )  # fmt: skip
    _refuse(flags, named, given.model is not None)
    flags = _DEFAULTS | flags
    if flags["recompute-granularity"] == "none":
        del flags["recompute-granularity"]
    if "max-length" in flags:
        flags.setdefault("seq-length", flags["max-length"])
    if flags.get("rlhf-type") == "grpo" and "max-completion-length" in flags:
        sides = [str(flags.get(name, "")) for name in ("seq-length", "max-completion-length")]
        if all(side.isdigit() for side in sides):
            flags["seq-length"] = str(sum(map(int, sides)))  # a prompt and its answer
    if given.model is None and "num-layers" not in flags:
        base = re.sub(r"[-_](mcore|megatron)$", "", named)
        model = model_named(base)
        if model is None:
            raise SpecError(
                "--model",
                None,
                f"the command names {base or 'no model'}, which is no preset: give a preset or its config.json",
            )
        given = replace(given, model=model)
    options = Options(flags, "--")
    options.read |= {"model", "load", "moe-grouped-gemm", "moe-token-dispatcher-type"}
    tuner = options.word("train-type", "tuner-type", default="full")
    packed = options.flag("packing") or options.flag("padding-free", default=True)
    if tuner.startswith("lora"):
        options.read |= {"lora-rank", "lora-alpha", "lora-dropout", "target-modules", "modules-to-save"}  # fmt: skip
    frozen = options.flag("freeze-vit", default=True)
    aligned = options.flag("freeze-aligner", default=True)
    reading = megatron.read(options, given, "ms-swift Megatron command", more=("ms_swift",))
    reading.encoder_frozen = frozen
    if frozen and not aligned:
        reading.unmodelled("--freeze-aligner", PROJECTOR)
    if tuner.startswith("lora"):
        adapters(reading, rank=options.whole("lora-rank", default=8), alpha=options.number("lora-alpha", default=32.0),
                 targets=options.raw("target-modules"), dropout=options.number("lora-dropout", default=0.05),
                 whole=options.raw("modules-to-save"))  # fmt: skip
    if "rlhf-type" in flags:
        name_task(reading, options.word("rlhf-type"))
    reading.job["document_masking"] = packed
    if not reading.global_batch:
        reading.global_batch = 16
        reading.guess(
            "--global-batch", "global_batch_size is not set; ms-swift's own, 16, is taken"
        )
    return reading


def _refuse(flags: dict[str, Any], named: str, given: bool) -> None:
    """Refuse what a command trains that is no decoder of text, unless its shape is `given`.

    Raises:
        SpecError: by the model's name or type, or the task's.
    """
    if not given:
        refuse_other(str(flags.get("model-type", "")).replace("_", "-"))
    if str(flags.get("language-model-only", "")).lower() != "true" and not given:
        refuse_other(named)
    refuse_task("--task-type", flags.get("task-type"))
