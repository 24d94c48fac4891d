"""PaddleNLP's and PaddleFormers' arguments in JSON or YAML: a Trainer of Paddle's with parallel degrees of its own."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

EDITS = {"micro_batch": "per_device_train_batch_size", "accumulation": "gradient_accumulation_steps", "recompute": "recompute"}  # fmt: skip
_OWN = frozenset({"tensor_parallel_degree", "tensor_model_parallel_size", "pipeline_parallel_degree", "sharding_parallel_degree", "sharding",
                  "fp16_opt_level", "amp_master_grad", "sep_parallel_degree", "unified_checkpoint", "virtual_pp_degree"})  # fmt: skip


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is of Paddle's Trainer: its batch, and degrees that only it calls so."""
    return "per_device_train_batch_size" in data and len(_OWN & set(data)) > 1


def is_text(text: str) -> bool:
    """Whether a file's text is such a table, before it is parsed."""
    names = set(re.findall(r"^[\s{,]*\"?(\w+)\"?\s*:", text, re.M))
    return "per_device_train_batch_size" in names and len(_OWN & names) > 1


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what such arguments run.

    Raises:
        SpecError: a stage of sharding that is not known, or another value that cannot be.
    """
    options = Options(flattened(data))
    options.guessing = given.guess
    asked = next((one for one in ("do_ptq", "do_gptq", "do_awq") if options.has(one) and options.flag(one)), "")  # fmt: skip
    if asked and not options.flag("do_train"):
        raise SpecError(asked, True, "quantises a model; it does not train")
    reading = Reading("PaddleNLP arguments", options=dict(EDITS))
    reading.model = given.model
    reading.model_name = options.loose("model_name_or_path", "model_type")
    reading.seq_len = options.whole("max_seq_length", "max_seq_len", "max_length", "src_length")
    reading.micro_batch = options.whole("per_device_train_batch_size", default=8, least=1)
    reading.accumulation = options.whole("gradient_accumulation_steps", default=1, least=1)
    _lay_out(options, reading)
    _job(options, reading)
    name_task(reading, options.loose("stage", "training_type"))
    options.finish(reading, "paddle", "common", strict=given.strict)
    return reading


def _lay_out(options: Options, reading: Reading) -> None:
    degrees = {
        "tp": ("tensor_parallel_degree", "tensor_model_parallel_size"), "pp": ("pipeline_parallel_degree", "pipeline_model_parallel_size"),
        "ep": ("expert_parallel_degree", "expert_model_parallel_size"), "virtual_stages": ("virtual_pp_degree",),
    }  # fmt: skip
    for axis, names in degrees.items():
        reading.layout[axis] = max(int(options.number(*names, default=1)), 1)
    ring, heads = (max(int(options.number(one, default=1)), 1) for one in ("context_parallel_degree", "sep_parallel_degree"))  # fmt: skip
    if ring * heads > 1:
        reading.layout |= {"cp": ring * heads, "cp_method": "ring" if ring > 1 else "ulysses"}
    reading.layout["sequence_parallel"] = options.flag("sequence_parallel") and reading.layout["tp"] > 1  # fmt: skip
    said = options.text("sharding", default="")
    stage = re.search(r"stage([123])", said)
    if said.strip() and stage is None and not re.fullmatch(r"[\[\]\s]*(?:none|false|offload)?[\[\]\s]*", said.strip().lower()):  # fmt: skip
        raise SpecError("sharding", said, "stage1, stage2 or stage3, with or without offload, is expected")  # fmt: skip
    reading.layout["zero"] = int(stage.group(1)) if stage else 0
    if "offload" in said:
        reading.offload.add("optimizer")
    shards = int(options.number("sharding_parallel_degree", default=-1))
    if stage and shards > 1:
        reading.shard = shards
    again = options.flag("recompute")
    how = options.word("recompute_granularity", default="full")
    reading.layout["recompute"] = "none" if not again else "full" if how == "full" else "selective"
    if again and how == "full_attn":
        reading.unmodelled("recompute_granularity", "full_attn: attention with its projections is computed again; its scores alone are priced so")  # fmt: skip


def _job(options: Options, reading: Reading) -> None:
    half = "bf16" if options.flag("bf16") else "fp16" if options.flag("fp16") else ""
    level = options.word("fp16_opt_level", default="o1")
    if not half:
        recipe = RECIPES["fp32"]
    elif level == "o1":  # autocast over 32-bit weights
        recipe = RECIPES["fp32"].but(name=half, compute=half, activation_bytes=2)
    else:
        recipe = RECIPES[half]
        if options.flag("amp_master_grad"):
            recipe = recipe.but(gradient_bytes=4, gradient_reduce_bytes=4)
    name = options.word("optim", default="adamw")
    reading.job = {
        "precision": recipe.model_dump(), "framework": "megatron-fsdp" if reading.layout["zero"] > 1 else "megatron",
        "optimizer": optimizer_or_adamw(reading, name, "optim").model_dump(),
    }  # fmt: skip
    if options.has("use_flash_attention") and not options.flag("use_flash_attention"):
        reading.job["attention_kernel"] = "unfused"
    if options.flag("flash_mask", "use_flash_mask"):
        reading.job["document_masking"] = True
    if options.flag("lora"):
        bits = 4 if "4" in options.word("weight_quantize_algo", default="") else 0
        adapters(reading, rank=options.whole("lora_rank", default=8), alpha=options.number("lora_alpha"), targets=None, bits=bits, option="lora")  # fmt: skip
    reading.note("Paddle is priced as Megatron-Core, whose parallel axes these are", "framework")
