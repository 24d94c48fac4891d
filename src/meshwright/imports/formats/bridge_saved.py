"""The `run_config.yaml` that Megatron-Bridge writes beside its checkpoints: a ConfigContainer, field by field."""

from __future__ import annotations

from typing import Any

from meshwright.imports.formats.bridge import megatron
from meshwright.imports.formats.bridge_flags import flags_of
from meshwright.imports.names import model_named
from meshwright.imports.options import flattened
from meshwright.imports.reading import Given, Reading
from meshwright.specs.errors import SpecError


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is a container that Megatron-Bridge saved."""
    target = str(data.get("_target_", ""))
    return target.startswith("megatron.bridge") and target.endswith("ConfigContainer")


_TABLES = (
    "model",
    "train",
    "optimizer",
    "ddp",
    "dist",
    "dataset",
    "mixed_precision",
    "comm_overlap",
)
_GUARDED = {
    "is_hybrid_model": ("mamba_", "hybrid_"), "num_moe_experts": ("moe_",), "fp8": ("fp8_", "num_layers_at_"), "fp4": ("fp4_",),
    "cpu_offloading": ("cpu_offloading_",), "linear_attention_type": ("linear_",), "mtp_num_layers": ("mtp_",),
    "tp_comm_overlap": ("tp_comm_",), "defer_embedding_wgrad_compute": ("wgrad_deferral",), "fine_grained_activation_offloading": ("min_offloaded",),
    "virtual_pipeline_model_parallel_size": ("microbatch_group_size",), "experimental_attention_variant": ("dsa_", "linear_"), "multi_latent_attention": ("q_lora", "kv_lora", "qk_", "v_head"),
}  # fmt: skip
"""Fields that say nothing while the one that guards them is off; a saved container has them all."""


_USUAL = [
    "deallocate_pipeline_outputs",
    "mlp_chunks_for_prefill",
    "parallel_output",
    "scatter_embedding",
    "pin_cpu_",
    "store_param_remainders",
    "masked_softmax_fusion",
    "muon_",
]
"""Fields of kernels and of memory beside the device that stand at their defaults, or change nothing."""


def _off(model: Any) -> tuple[str, ...]:
    fields = model if isinstance(model, dict) else {}
    off = [one for guard, names in _GUARDED.items() if fields.get(guard) in (None, False, "none", "") for one in names]  # fmt: skip
    off += _USUAL
    if fields.get("cuda_graph_impl") in (None, "none") and not fields.get("enable_cuda_graph"):
        off.append("cuda_graph")
    return tuple(off)


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what a saved container ran.

    Raises:
        SpecError: it describes a model alone, as a converted checkpoint's does; or a value that cannot be.
    """
    train = data.get("train")
    if not isinstance(train, dict) or not train.get("global_batch_size"):
        raise SpecError("train", None, "describes no training run: it is a converted checkpoint's, with a model alone")  # fmt: skip
    off = _off(data.get("model"))
    words = []
    for table in _TABLES:
        fields = data.get(table)
        for name, value in (flattened(fields) if isinstance(fields, dict) else {}).items():
            unsaid = value is None or value is False or value in ("", []) or "." in name
            if not (unsaid or isinstance(value, dict) or name.startswith(("_target_", *off))):
                words.append(f"{table}.{name}={value}")
    flags = flags_of(words)
    named = str(data.get("model", {}).get("hf_model_id") or "")
    model = given.model or (model_named(named) if named else None)
    if "num-layers" in flags:
        model = None
    reading = megatron(flags, given, model, named, "Megatron-Bridge run_config.yaml")
    devices = data.get("dist", {}).get("world_size") if isinstance(data.get("dist"), dict) else None
    reading.devices = devices if isinstance(devices, int) else 0
    return reading
