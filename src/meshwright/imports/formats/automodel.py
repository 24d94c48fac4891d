"""NeMo Automodel's YAML: Hugging Face models under FSDP2, with pipelines and expert parallelism."""

from __future__ import annotations

from typing import Any

from meshwright.imports.names import PLANNED, refuse_other
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_named, torch_moments
from meshwright.imports.script_devices import device_named
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

EDITS = {
    "micro_batch": "step_scheduler.local_batch_size", "tp": "distributed.tp_size", "pp": "distributed.pp_size",
    "cp": "distributed.cp_size", "ep": "distributed.ep_size",
    "recompute": "distributed.activation_checkpointing",
}  # fmt: skip
_SCHEDULES = {
    "1f1b": "1f1b", "interleaved1f1b": "interleaved", "gpipe": "gpipe", "loopedbfs": "looped-bfs",
    "zbvzerobubble": "zb-v", "dualpipev": "dualpipe-v",
}  # fmt: skip


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is NeMo Automodel's."""
    steps = data.get("step_scheduler")
    return isinstance(steps, dict) and isinstance(data.get("model"), dict)


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what an Automodel recipe trains.

    Raises:
        SpecError: a value that cannot be, or no decoder of text.
    """
    options = Options(flattened(data), absent=("auto", "none", "null", ""))
    options.guessing = given.guess
    reading = Reading("NeMo Automodel YAML", options=dict(EDITS))
    recipe = options.text("recipe", default="") or str(data.get("recipe") or "")
    target = options.text("model._target_", default="")
    if any(
        word in recipe + target
        for word in ("VLM", "ImageText", "Diffusion", "MultimodalLM", "dLLM", "DLLM")
    ):
        raise SpecError("recipe", recipe or target, f"trains another kind of model: {PLANNED}")  # fmt: skip
    if any(word in recipe for word in ("BiEncoder", "CrossEncoder", "Retrieval", "Classification")):
        raise SpecError("recipe", recipe, f"trains an encoder: {PLANNED}")
    reading.model = given.model
    reading.model_name = options.loose(
        "model.pretrained_model_name_or_path",
        "model.config.pretrained_model_name_or_path",
        "model.config.name_or_path",
        "model.config",
    )
    if reading.model is None:
        refuse_other(reading.model_name)
    reading.micro_batch = options.whole("step_scheduler.local_batch_size", default=1)
    reading.global_batch = options.whole("step_scheduler.global_batch_size")
    reading.seq_len = options.whole("packed_sequence.packed_sequence_size") or options.whole(
        "dataset.seq_len",
        "dataset.seq_length",
        "dataset.packed_sequence_size",
        "dataset.sequence_length",
    )
    if options.whole("packed_sequence.packed_sequence_size"):
        reading.job["document_masking"] = True
    _hosts(options, reading)
    _layout(options, reading)
    _job(options, reading)
    loss = options.text("loss_fn._target_").rsplit(".", 1)[-1]
    if loss and loss != "MaskedCrossEntropy":
        reading.unmodelled("loss_fn", f"{loss} may never hold all logits; the estimate does")
    # What a table is made of is asked for above where it says something of memory or time.
    options.read |= {name for name in options.values if name.endswith("_target_")}
    if "KnowledgeDistillation" in recipe or options.has("teacher_model._target_"):
        reading.unmodelled("teacher_model", "a frozen teacher's weights and forward are not priced")
    options.finish(reading, "automodel", "common", strict=given.strict)
    return reading


def _hosts(options: Options, reading: Reading) -> None:
    """The hosts that its own tests run it on, the one place that names any, with the batch a device that they take."""
    reading.hosts, local = options.whole("ci.nodes"), options.whole("ci.local_batch_size")
    reading.device = device_named(options.loose("ci.cluster_tag").replace("-", " "))
    if reading.hosts and reading.device.startswith("gb"):
        reading.per_host = 4
    if reading.hosts and local and local != reading.micro_batch:
        reading.micro_batch = local
        reading.note(f"{local} on the {reading.hosts} hosts that its tests take, which are priced", "ci.local_batch_size")  # fmt: skip


def _layout(options: Options, reading: Reading) -> None:
    get = "distributed."
    kind = (
        options.word(f"{get}strategy", default="")
        + " "
        + options.word(f"{get}_target_", default="")
    ).lower()
    pp = options.whole(f"{get}pp_size", "autopipeline.pp_size", default=1) or 1
    plan = options.word(f"{get}pipeline.pp_schedule", "autopipeline.pp_schedule", default="1f1b")
    schedule = _SCHEDULES.get(plan.replace("_", ""), "1f1b")
    again = options.flag(f"{get}activation_checkpointing", "parallelizer.activation_checkpointing",
                         "distributed_config.activation_checkpointing")  # fmt: skip
    # Full shards, gathered again for the backward unless the manager is told to keep them.
    keep = options.raw(f"{get}reshard_after_forward") is False or pp > 1
    zero = 0 if "ddp" in kind and "fsdp" not in kind else 2 if keep else 3
    reading.layout = {
        "tp": options.whole(f"{get}tp_size", default=1) or 1, "pp": pp, "cp": options.whole(f"{get}cp_size", default=1) or 1,
        "ep": options.whole(f"{get}ep_size", default=1) or 1, "zero": zero, "recompute": "full" if again else "none",
        "sequence_parallel": options.flag(f"{get}sequence_parallel"),
    }  # fmt: skip
    if pp > 1:
        reading.layout["schedule"] = schedule
        per_stage = options.whole(
            f"{get}pipeline.layers_per_stage", "autopipeline.layers_per_stage"
        )
        if schedule in ("interleaved", "looped-bfs", "zb-v", "dualpipe-v"):
            reading.layout["virtual_stages"] = 2
            if per_stage:
                reading.unmodelled(f"{get}pipeline.layers_per_stage", f"{per_stage} layers a chunk; two chunks a rank are priced")  # fmt: skip
        micro = options.whole(
            f"{get}pipeline.pp_microbatch_size", "autopipeline.pp_microbatch_size"
        )
        # The local batch is what a pipeline takes at once, cut into micro-batches of that size.
        reading.micro_batch = micro or reading.micro_batch
    if reading.layout["cp"] > 1:
        reading.layout["cp_method"] = "ring"
    reading.replicate = options.whole(f"{get}dp_replicate_size")
    dp = options.whole(f"{get}dp_size")
    if dp > 1:
        reading.dp = dp
    if not options.flag(f"{get}defer_fsdp_grad_sync", default=True):
        reading.unmodelled(
            f"{get}defer_fsdp_grad_sync",
            "gradients are reduced after every micro-batch; once a step is priced",
        )
    if options.flag(f"{get}offload_policy", f"{get}cpu_offload"):
        reading.offload |= {"optimizer", "parameters"}


def _job(options: Options, reading: Reading) -> None:
    dtype = options.word(
        "model.torch_dtype", "model.dtype", "model.config.torch_dtype", default="bfloat16"
    )
    wide = "32" in dtype
    recipe = RECIPES["bf16" if wide else "pure-bf16"].but(gradient_reduce_bytes=4)
    if options.flag("fp8.enabled") or options.has("model.backend.te_fp8.recipe"):
        recipe = RECIPES["fp8"]
    reading.job |= {"framework": "fsdp", "precision": recipe.model_dump()}
    name = options.text("optimizer._target_", default="torch.optim.AdamW")
    try:
        found = optimizer_named(name, "optimizer._target_")
    except SpecError:
        found = optimizer_named("adamw", "optimizer._target_")
        reading.unmodelled(
            "optimizer._target_", f"the state of {name[:60]} is not known; AdamW's is priced"
        )
    if not options.has("optimizer.master_weights", "optimizer.exp_avg_dtype"):
        found = torch_moments(found, recipe)
    reading.job["optimizer"] = found.model_dump()
    if options.has("peft.dim", "peft._target_"):
        listed = options.raw("peft.target_modules")
        bare = (
            [str(one).rsplit(".", 1)[-1].strip("*") for one in listed]
            if isinstance(listed, list)
            else None
        )
        bits = (
            4
            if options.flag("quantization.load_in_4bit")
            else 8
            if options.flag("quantization.load_in_8bit")
            else 0
        )
        adapters(reading, rank=options.whole("peft.dim", default=8) or 8, alpha=options.number("peft.alpha"),
                 targets=bare, bits=bits, dropout=options.number("peft.dropout"), option="peft.target_modules",
                 method="dora" if options.flag("peft.use_dora") else "lora")  # fmt: skip
