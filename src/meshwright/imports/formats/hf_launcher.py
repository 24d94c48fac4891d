"""What starts a program of TrainingArguments: accelerate's or DeepSpeed's launcher, with the configuration that it names."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.imports.beside import beside
from meshwright.imports.formats import accelerate, deepspeed
from meshwright.imports.formats.accelerate_flags import launched
from meshwright.imports.formats.hf_sharding import deepspeed_named
from meshwright.imports.interpolate import LIMITS
from meshwright.imports.reading import Given, Reading
from meshwright.specs.foreign import parse_yaml, read_text
from meshwright.specs.job import RECIPES

if TYPE_CHECKING:
    from meshwright.imports.launch import Launch
    from meshwright.imports.shell.state import Script


def one_process(launch: Launch, reading: Reading) -> None:
    """Say that a program which no launcher starts runs on one device."""
    alone = not (launch.hosts or launch.per_host or launch.devices or reading.world())
    if alone and launch.is_python_alone():
        reading.devices = 1
        reading.note("python alone starts one process: one device is priced", "launcher")


def launcher(
    script: Script, launch: Launch, reading: Reading, given: Given, folder: Path | None
) -> None:
    """Add what accelerate's or DeepSpeed's launcher, and the configuration that it names, say."""
    named = launch.option("config-file", "config_file")
    path = beside(folder, named) if named else None
    if path is None and named and script.directory:
        path = beside(folder, f"{script.directory}/{named}")
    data: dict[str, Any] = {}
    written = script.files.get(named) or script.files.get(posixpath.basename(named))
    if path is not None or written:
        body = read_text(path, "--config_file") if path is not None else written or ""
        parsed = parse_yaml(body, "--config_file", named, LIMITS)
        data = parsed if isinstance(parsed, dict) else {}
    elif named:
        data = _by_its_name(named, reading)
        if launch.per_host and not launch.hosts:
            launch.hosts = 1  # a configuration of accelerate's says one host where it says nothing
    here = path is not None or bool(written)
    accelerated = any(posixpath.basename(word) == "accelerate" for word in launch.launcher)
    whole = launched(launch, data) if accelerated else data
    if whole:
        accelerate.apply(whole, reading, given, path.parent if path is not None else folder)
        if (whole is not data or not here) and "mixed_precision" not in whole:
            reading.job.pop("precision", None)  # the training script's own
    inner = launch.option("deepspeed_config_file", "deepspeed-config")
    if inner:
        deepspeed_named(inner, reading, given, folder, script)
        # Its stage stands in that file, not in accelerate's own table.
        reading.remarks = [r for r in reading.remarks if r.option != "deepspeed_config.zero_stage"]
    precision = launch.option("mixed_precision")
    if precision in ("bf16", "fp16", "fp8"):
        reading.job["precision"] = RECIPES[precision].model_dump()
    if any(posixpath.basename(word) == "deepspeed" for word in launch.launcher[:3]):
        reading.job.setdefault("framework", "deepspeed")


def _by_its_name(named: str, reading: Reading) -> dict[str, Any]:
    """What the name of a configuration of accelerate's says, which is not here; empty where it says nothing.

    Those in a folder `accelerate_configs` (TRL's, and alignment-handbook's and open-r1's after them) compute in bf16.
    """
    base = posixpath.basename(named)
    stage = deepspeed.stage_in_name(base)
    found: dict[str, Any] = {}
    if stage is not None:
        inner: dict[str, Any] = {"zero_stage": stage}
        if "offload" in base.lower():
            inner["offload_optimizer_device"] = "cpu"
            if stage == 3:
                inner["offload_param_device"] = "cpu"
        found = {"distributed_type": "DEEPSPEED", "deepspeed_config": inner}
    elif "fsdp" in base.lower():
        found = {
            "distributed_type": "FSDP",
            "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"},
        }
    elif "accelerate_configs" in named:
        found = {"distributed_type": "MULTI_GPU"}
    usual = "accelerate_configs" in named
    if usual:
        found["mixed_precision"] = "bf16"
    what = f"ZeRO-{stage}" if stage is not None else "FSDP" if "fsdp" in base.lower() else ""
    taken = [word for word in (what, "bf16" if usual else "") if word]
    said = (
        f"{' in '.join(taken)}, by its name, is taken"
        if taken
        else "what it says of sharding is left out"
    )
    reading.guess("--config_file", f"{named[-60:]} is not here; {said}")
    return found
