"""ArcticTraining's YAML: supervised and preference training on DeepSpeed, with Ulysses over long sequences.

Defaults: arctic_training/config/{trainer,model,data}.py.
"""

from __future__ import annotations

from typing import Any

from meshwright.imports.formats import deepspeed
from meshwright.imports.names import refuse_other
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import adapters
from meshwright.specs.job import RECIPES

EDITS = {
    "micro_batch": "micro_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "zero": "deepspeed.zero_optimization.stage",
}


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is ArcticTraining's."""
    model, rows = data.get("model"), data.get("data")
    named = isinstance(model, dict) and "name_or_path" in model
    return named and isinstance(rows, dict) and "sources" in rows


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what an ArcticTraining configuration trains.

    Raises:
        SpecError: a value that cannot be, or no decoder of text.
    """
    table = data.get("deepspeed")
    options = Options(flattened({key: one for key, one in data.items() if key != "deepspeed"}))
    options.guessing = given.guess
    reading = Reading("ArcticTraining YAML", options=dict(EDITS))
    reading.model = given.model
    reading.model_name = options.loose("model.name_or_path")
    if reading.model is None:
        refuse_other(reading.model_name)
    width = options.word("model.dtype", default="bf16")
    kind = "fp16" if width in ("fp16", "float16") else "fp32" if "32" in width else "bf16"
    reading.job = {"framework": "deepspeed", "precision": RECIPES[kind].model_dump()}
    if isinstance(table, dict) and table:
        deepspeed.apply(table, reading, given, prefix="deepspeed.")
    if not isinstance(table, dict) or "zero_optimization" not in table:
        reading.layout["zero"] = 2  # the trainer's own, where no table says one
    reading.micro_batch = options.whole("micro_batch_size", default=1)
    reading.accumulation = options.whole("gradient_accumulation_steps", default=1)
    reading.seq_len = options.whole("data.max_length", default=8192)
    if (sequence := options.whole("sequence_parallel_size", default=1)) > 1:
        reading.layout |= {"cp": sequence, "cp_method": "ulysses"}
    if (experts := options.whole("expert_parallel_size", default=1)) > 1:
        reading.layout["ep"] = experts
    kept = options.flag("model.disable_activation_checkpoint")
    reading.layout["recompute"] = "none" if kept else "full"
    if options.flag("activation_checkpoint_cpu_offload"):
        reading.offload.add("activations")
    name = options.word("optimizer.type", "optimizer.name", default="fused_adam")
    name = "adam" if "adam" in name else name  # on the device or the host, with experts or without
    reading.job["optimizer"] = optimizer_or_adamw(reading, name, "optimizer.type").model_dump()
    if options.word("model.type") == "liger":
        reading.job["loss"] = "liger"
    if options.word("model.attn_implementation", default="sdpa") == "eager":
        reading.job["attention_kernel"] = "unfused"
    if options.has("model.peft_config.r", "model.peft_config.peft_type"):
        adapters(
            reading, rank=options.whole("model.peft_config.r", default=8), alpha=options.number("model.peft_config.lora_alpha"),
            targets=options.raw("model.peft_config.target_modules"), option="model.peft_config.target_modules",
        )  # fmt: skip
    if options.flag("data.pack_samples"):
        reading.job["document_masking"] = True
    _task(options, reading)
    options.finish(reading, "arctic", "common", strict=given.strict)
    return reading


def _task(options: Options, reading: Reading) -> None:
    """What the trainer of that name adds: pairs and a reference, or another model that learns from this one."""
    kind = options.word("type", default="sft")
    name_task(reading, kind)
    if kind not in ("sft", "dpo", "causal"):
        reading.unmodelled(
            "type", f"{kind}, a trainer of its own; the plain training of all weights is priced"
        )
