"""mcore_adapter's arguments: Megatron-Core beneath ROLL and LLaMA-Factory (mcore_adapter/training_args.py)."""

from __future__ import annotations

from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.imports.recipes import optimizer_named
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

NAMES = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "recompute_granularity",
)  # fmt: skip
"""Arguments that no other trainer of LLaMA-Factory has."""


def layout(options: Options, reading: Reading, get: str = "", *, sharded: bool, parts: bool, wide: bool) -> None:  # fmt: skip
    """Set a reading's layout and job as these arguments name them.

    Args:
        get: what stands before their names.
        sharded: whether the optimizer is distributed where nothing is said.
        parts: whether tensor-parallel ranks split sequences where nothing is said.
        wide: whether gradients are summed in 32 bits where nothing is said.

    Raises:
        SpecError: a value that cannot be.
    """
    tp = options.whole(f"{get}tensor_model_parallel_size", default=1) or 1
    pp = options.whole(f"{get}pipeline_model_parallel_size", default=1) or 1
    virtual = options.whole(f"{get}virtual_pipeline_model_parallel_size", default=1) or 1
    kind = options.word(f"{get}recompute_granularity")
    if kind not in ("", "none", "full", "selective"):
        raise SpecError(f"{get}recompute_granularity", kind, "full or selective is expected")
    reading.layout = {
        "tp": tp, "pp": pp, "cp": options.whole(f"{get}context_parallel_size", default=1) or 1,
        "ep": options.whole(f"{get}expert_model_parallel_size", default=1) or 1,
        "etp": options.whole(f"{get}expert_tensor_parallel_size", default=1) or 1,
        "virtual_stages": virtual if pp > 1 else 1, "schedule": "interleaved" if virtual > 1 and pp > 1 else "1f1b",
        "sequence_parallel": options.flag(f"{get}sequence_parallel", default=parts) and tp > 1,
        "zero": 1 if options.flag(f"{get}use_distributed_optimizer", default=sharded) else 0,
        "recompute": kind if kind in ("full", "selective") else "none",
    }  # fmt: skip
    wide = options.flag(f"{get}accumulate_allreduce_grads_in_fp32", default=wide) or wide
    reading.job["framework"] = "megatron"
    recipe = RECIPES["bf16-fp32-grads" if wide else "bf16"]
    reading.job["precision"] = recipe.model_dump()
    if options.loose(f"{get}fp8") not in ("", "None", "null"):
        reading.job["precision"] = RECIPES["fp8"].model_dump()
    reading.job["optimizer"] = optimizer_named(
        options.word(f"{get}optimizer", default="adam"), f"{get}optimizer"
    ).model_dump()
    modules = options.raw(f"{get}recompute_modules")
    if kind == "selective" and modules:
        listed = modules if isinstance(modules, list) else str(modules).split(",")
        reading.layout["recompute_modules"] = [str(one).strip() for one in listed]
    if options.flag(f"{get}moe_layer_recompute") and reading.layout["recompute"] == "none":
        reading.layout |= {"recompute": "selective", "recompute_modules": ["core_attn", "moe"]}
    if options.flag(f"{get}optimizer_cpu_offload"):
        reading.offload.add("optimizer")
