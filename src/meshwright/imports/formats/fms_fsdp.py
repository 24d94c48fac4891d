"""FMS-FSDP: pretraining of LLaMA under FSDP1, by the options of its main programs over their own defaults."""

from __future__ import annotations

import math
import posixpath
import re
from typing import Any

from meshwright.imports.launch import Launch
from meshwright.imports.names import PLANNED, model_named
from meshwright.imports.own import usual
from meshwright.imports.own.commands import flags_of_words
from meshwright.imports.own.tables import inert
from meshwright.imports.reading import Given, Reading
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model

_DEFAULTS: dict[str, Any] = {
    # fms_fsdp/config/training.py
    "model_variant": "7b", "seq_length": 4096, "sharding_strategy": "hsdp", "fsdp_activation_checkpointing": False,
    "mixed_precision": True, "batch_size": 2,
}  # fmt: skip
_OWN = frozenset({"fsdp_activation_checkpointing", "selective_checkpointing", "logical_shards", "low_cpu_fsdp", "use_torch_compile",
                  "report_interval", "ckpt_load_path", "use_dummy_dataset"})  # fmt: skip
_SIZES = {
    # fms_fsdp/utils/config_utils.py: layers, width, heads, KV heads, FFN, tokens.
    "llama2-1.4b": (24, 2048, 16, 4, 6144, 32_000), "llama3-1.8b": (24, 2048, 16, 8, 7168, 128_256),
    "llama3-3.2b": (24, 3072, 24, 8, 8192, 128_256), "llama2-34b": (48, 8192, 64, 8, 22_016, 32_000),
}  # fmt: skip
_READ = frozenset({"selective_checkpointing", "low_cpu_fsdp", "logical_shards", "report_interval", "checkpoint_interval", "ckpt_load_path",
                   "ckpt_save_path", "use_dummy_dataset", "weights", "datasets", "file_type", "col_name", "num_steps", "training_stage",
                   "resuming_dataset", "bos_token", "eos_token", "bol_token", "eol_token", "strip_tokens", "tracker", "tracker_dir",
                   "tracker_project_name", "tracker_run_id", "use_profiler", "profiler_rank0_only", "grad_clip_thresh", "use_torch_compile",
                   "vocab_size", "persistent_dataloader"})  # fmt: skip


def reads(launch: Launch) -> bool:
    """Whether a command starts one of its main programs."""
    base = posixpath.basename(launch.program)
    names = set(flags_of_words(launch))
    return re.fullmatch(r"main_training(?:_\w+)?\.py", base) is not None and bool(names & _OWN)


def is_program(text: str) -> bool:
    """Whether a Python text is one of them."""
    return re.search(r"^from fms_fsdp\b", text, re.M) is not None and "get_policies(" in text


def read(program: str, said: dict[str, Any], given: Given, title: str) -> Reading:
    """Return what a main program runs by what a command says, over its own defaults.

    Raises:
        SpecError: a model that is no LLaMA, or a value that cannot be.
    """
    if "mamba" in f"{program} {said.get('model_variant', '')}":
        raise SpecError("file", program[-60:], f"trains a state-space model: {PLANNED}")
    flags = {**_DEFAULTS, **said}
    compiles = str(flags.get("use_torch_compile", True)).lower() != "false"
    share = str(flags.get("selective_checkpointing", 1))
    strategy = str(flags["sharding_strategy"])
    wide = str(flags["mixed_precision"]).lower() == "false"
    flags["mixed_precision"] = "fp32" if wide else "bf16"
    flags["sharding_strategy"] = "full_shard" if strategy == "fsdp" else strategy
    variant = str(flags["model_variant"]).replace("_4k", "").replace("_", "-")
    variant = f"llama2-{variant}" if re.fullmatch(r"[\d.]+b", variant) else variant
    flags = {name: value for name, value in flags.items() if name not in _READ}
    sized = given.model is None and variant in _SIZES
    reading = usual.read_table(
        {**flags, "model_variant": variant}, given, title, inert, posixpath.basename(program), frozenset(_DEFAULTS.keys() - said.keys())
    )  # fmt: skip
    reading.remarks = [one for one in reading.remarks if one.option != "program"]
    if sized:
        reading.model, reading.model_name = _model(variant), ""
    if strategy == "hsdp":
        reading.remarks = [one for one in reading.remarks if one.option != "hsdp"]
        reading.note("hsdp shards inside a host and copies between hosts", "--sharding_strategy")
        reading.shard = reading.per_host
    _recompute(share, reading)
    if compiles:
        reading.unmodelled("--use_torch_compile", "torch.compile fuses kernels; the estimate runs PyTorch's own")  # fmt: skip
    return reading


def read_words(launch: Launch, given: Given) -> Reading:
    """Return what a command of a main program runs.

    Raises:
        SpecError: as `read`.
    """
    reading = read(launch.program, flags_of_words(launch), given, "FMS-FSDP command")
    if any("hsdp" in one.text for one in reading.remarks):
        reading.shard = launch.per_host
    return reading


def _recompute(share: str, reading: Reading) -> None:
    """How many of the layers are computed again: a share of them, as a number or a fraction (`1/3`)."""
    if reading.layout.get("recompute") != "full":
        return
    above, _, below = share.partition("/")
    try:
        part = float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        part = math.nan
    if not 0 <= part <= 1:
        raise SpecError("--selective_checkpointing", share, "a share of the layers from 0 to 1 is expected")  # fmt: skip
    model = reading.model or model_named(reading.model_name)
    layers = model.layers if model is not None else 0
    if part < 1 and layers:
        count = round(layers * part)
        reading.layout |= {"recompute": "full" if count else "none", "recompute_layers": count}


def _model(variant: str) -> Model:
    layers, hidden, heads, kv_heads, ffn, vocab = _SIZES[variant]
    return Model.parse(
        {"name": f"fms-{variant}", "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads,
         "head_dim": hidden // heads, "ffn": ffn, "vocab": vocab, "tied_embeddings": False},
        "model",
    )  # fmt: skip
