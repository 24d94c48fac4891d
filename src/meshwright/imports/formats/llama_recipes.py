"""Meta's llama-recipes, later llama-cookbook, and the programs that copied its configuration classes.

A command sets fields of three dataclasses by name (`--batch_size_training 2`, `--fsdp_config.pure_bf16`):
what a step processes and trains (`train_config`), how FSDP shards it (`fsdp_config`), and the adapters
(`lora_config`). Their defaults stand in `configs/`; a copy at hand says its own.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside, program_beside
from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import parse_python
from meshwright.imports.formats import llm_recipes
from meshwright.imports.formats.hf_launcher import one_process
from meshwright.imports.launch import Launch
from meshwright.imports.options import Options, flags_of
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import torch_moments
from meshwright.imports.tuning import adapters, frozen_part, refuse_vectors
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text
from meshwright.specs.job import OPTIMIZERS, RECIPES

_MODULES = ("llama_recipes.finetuning", "llama_cookbook.finetuning")
_ITS_OWN = {
    "batch_size_training", "enable_fsdp", "dist_checkpoint_root_folder", "low_cpu_fsdp",
    "batching_strategy", "use_fast_kernels", "fsdp_config.pure_bf16", "num_freeze_layers",
}  # fmt: skip
_COPIED = re.compile(r"update_config\(\s*\(\s*train_config\s*,")
_PARTS = ("train_config", "fsdp_config", "lora_config", "quantization_config", "peft_config")
_FILES = (
    ("configs/training.py", "train_config"),
    ("configs/fsdp.py", "fsdp_config"),
    ("configs/peft.py", "lora_config"),
    ("configs/quantization.py", "quantization_config"),
)
_SHARDS = {"full_shard": 3, "hybrid_shard": 3, "shard_grad_op": 2, "no_shard": 0}
_STORED = re.compile(r"torch_dtype\s*=[^,\n]*(?:\"auto\"|bfloat16)")
"""The model is loaded as it is stored, in 16 bits; before, in 32."""


def reads(launch: Launch, folder: Path | None) -> bool:
    """Whether a command is llama-recipes', or of a program that copied its classes."""
    names = {name.replace("-", "_") for name in flags_of(launch.words)}
    if launch.program in _MODULES:
        return True
    if llm_recipes.has_words(launch):
        return False
    base = posixpath.basename(launch.program)
    if base in ("finetuning.py", "llama_finetuning.py", "finetuning") and names & (
        _ITS_OWN | {"use_peft", "peft_method"}
    ):
        return True
    path = program_beside(folder, launch.program)
    return path is not None and bool(_COPIED.search(read_text(path, "file")))


def read_words(launch: Launch, given: Given, folder: Path | None) -> Reading:
    """Return what a command of llama-recipes trains.

    Raises:
        SpecError: a model that is no decoder of text, adapters that are no matrices, or a value that cannot be.
    """
    said = {name.replace("-", "_"): value for name, value in flags_of(launch.words).items()}
    for name in [one for one in said if one.partition(".")[0] in _PARTS]:
        said[name.partition(".")[2]] = said.pop(name)
    path = program_beside(folder, launch.program)
    source = "" if path is None else read_text(path, "file")
    own = {} if path is None else _own(path)
    options = Options({**own, **said}, "--")
    options.assumed = own.keys() - said.keys()
    reading = Reading("llama-recipes command", options={
        "micro_batch": "--batch_size_training", "accumulation": "--gradient_accumulation_steps",
    })  # fmt: skip
    reading.model = given.model
    reading.model_name = options.loose("model_name")
    if "vision" in reading.model_name.lower():
        raise SpecError("--model_name", reading.model_name, "sees images; a decoder of text is expected")  # fmt: skip
    reading.micro_batch = options.whole("batch_size_training", default=4, least=1)
    reading.accumulation = options.whole("gradient_accumulation_steps", default=1, least=1)
    reading.reduces_each = True  # no step of its loop goes without a reduction
    _length(options, reading, own)
    shards = options.flag("enable_fsdp")
    _sharding(options, reading, shards)
    _job(options, reading, shards, source, launch.program)
    _adapters(options, reading)
    frozen = str(options.raw("freeze_layers")).lower()  # true, or which ones: `0-2,4-6`
    if frozen not in ("none", "false", "0") and "finetune" not in reading.job:
        frozen_part(reading, "--freeze_layers")
    one_process(launch, reading)
    if not shards and launch.starts_ranks():
        reading.note("without --enable_fsdp every process trains a copy of its own", "enable_fsdp")
    options.finish(reading, "llama_recipes", "fsdp", "common", strict=given.strict)
    return reading


def _own(path: Path) -> dict[str, Any]:
    """What the configuration classes beside a program say."""
    found: dict[str, Any] = {}
    for named, wanted in _FILES:
        where = beside(path.parent, named)
        if where is None or where.parent.name != "configs":
            continue
        tree = parse_python(read_text(where, "file"))
        for node in tree.body if tree is not None else []:
            if isinstance(node, ast.ClassDef) and node.name == wanted:
                known = Known(ast.Module(body=[node], type_ignores=[])).declared
                # Both classes have `mixed_precision`; a command sets the two at once.
                found = {**known, **found}
    return found


def _length(options: Options, reading: Reading, own: dict[str, Any]) -> None:
    """Sequences are packed to one length, or padded to their batch's longest."""
    packs = options.word("batching_strategy", default="packing") == "packing"
    length = options.whole("context_length", default=0 if own else 4096)
    if packs and length and (not own or "context_length" in options):
        reading.seq_len = length
        if "context_length" not in options:
            reading.guess("--seq", "--context_length is not set; 4096, its default, is taken")
    elif not packs:
        reading.note("sequences are padded to the longest of their batch, of the data's own length", "batching_strategy")  # fmt: skip


def _sharding(options: Options, reading: Reading, shards: bool) -> None:
    strategy = options.word("sharding_strategy", default="full_shard").rpartition(".")[2]
    again = options.flag("fsdp_activation_checkpointing", default=True)
    if not shards:
        reading.layout = {"zero": 0, "recompute": "none"}
        return
    if strategy not in _SHARDS:
        raise SpecError("--sharding_strategy", strategy, f"one of {', '.join(_SHARDS)} is known")
    reading.layout = {"zero": _SHARDS[strategy], "recompute": "full" if again else "none"}
    group = options.whole("sharding_group_size")
    copies = options.whole("replica_group_size")
    if options.flag("hsdp"):
        reading.shard = group
        reading.replicate = copies
    elif strategy == "hybrid_shard":
        reading.note("shards inside a host and copies between hosts", strategy)
    if options.flag("fsdp_cpu_offload"):
        reading.offload |= {"optimizer", "parameters"}


def _job(options: Options, reading: Reading, shards: bool, source: str, program: str) -> None:
    """Precision and optimizer: what the weights are loaded in is what they are updated in."""
    half = options.flag("use_fp16")
    quantised = options.word("quantization", default="") not in ("", "false", "none")
    pure = options.flag("pure_bf16")
    mixed = options.flag("mixed_precision", default=True)
    stored = bool(_STORED.search(source)) if source else program.startswith("llama_cookbook")
    if half:
        kind = "fp16"
    elif shards and (pure or stored):
        kind = "pure-bf16"
    elif (shards and mixed) or quantised:
        kind = "bf16"
    else:
        kind = "pure-bf16" if stored else "fp32"
    if not (source or half or pure or quantised) and not program.startswith("llama_cookbook"):
        reading.guess("precision", f"releases before 0.0.4 load the weights in fp32, later ones as they are stored; {kind} is taken")  # fmt: skip
    recipe = RECIPES[kind]
    reading.job = {
        "framework": "fsdp",
        "precision": recipe.model_dump(),
        "optimizer": torch_moments(OPTIMIZERS["adamw"], recipe).model_dump(),
    }
    options.word("optimizer")  # AnyPrecisionAdamW's moments are in bf16, as AdamW's of bf16 weights


def _adapters(options: Options, reading: Reading) -> None:
    quantised = options.word("quantization", default="")
    bits = 4 if "4" in quantised else 8 if quantised in ("true", "8bit", "int8") else 0
    if not options.flag("use_peft"):
        return
    # PEFT's adapters on transformers' model, as TRL's trainer has them.
    reading.job["framework"] = "trl"
    method = options.word("peft_method", default="lora")
    if method != "lora":
        refuse_vectors("--peft_method", method)
    adapters(
        reading, rank=options.whole("r", default=8, least=1), alpha=options.number("lora_alpha", default=32.0),
        targets=options.raw("target_modules") or ["q_proj", "v_proj"], bits=bits, option="--target_modules",
        storage=options.word("quant_type", default="fp4") if bits == 4 else "",
        twice=options.flag("use_double_quant"), dropout=options.number("lora_dropout", default=0.05),
    )  # fmt: skip
