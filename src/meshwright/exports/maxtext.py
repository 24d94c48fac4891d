"""MaxText: a plan as a YAML over its `base.yml`, started with one process a host.

Follows `src/maxtext/configs/base.yml`, `types.py` and `utils/max_utils.py` of AI-Hypercomputer/maxtext
(August 2026), on one slice of TPUs: its devices are split by `ici_*` degrees; `dcn_*` degrees, between
slices, are 1. The GPUs of a job are one mesh in the order of their hosts (`num_slices: 1`), which JAX leaves as it is. Weights are sharded over the axes fsdp, context and expert together
(`logical_axis_rules`, "embed"), so a full shard leaves fsdp the rest: -1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from meshwright.exports.bundle import comment, steps
from meshwright.exports.canonical import canonical
from meshwright.exports.limit_rules import Problem
from meshwright.exports.limits import Limits
from meshwright.specs.cluster import Cluster
from meshwright.specs.job import Job
from meshwright.specs.job_words import without_master
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Plan

NAMES = {
    # Preset: the file of its shape in configs/models.
    **{name: name for name in (
        "llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3.1-8b", "llama3.1-70b",
        "llama3.1-405b", "llama3.3-70b", "mistral-7b", "mixtral-8x7b", "mixtral-8x22b", "qwen2.5-1.5b", "qwen2.5-7b",
        "qwen2.5-14b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b",
        "qwen3-235b-a22b", "gemma-2b", "gemma-7b", "gemma2-2b", "gemma2-9b", "gemma2-27b", "gemma3-4b", "gemma3-12b",
        "gemma3-27b", "gpt-oss-20b", "gpt-oss-120b", "gpt3-175b", "olmo3-7b", "olmo3-32b",
    )},
    "deepseek-v3": "deepseek3-671b", "deepseek-v2-lite": "deepseek2-16b", "deepseek-v2": "deepseek2-236b",
    "kimi-k2": "kimi-k2-1t",
}  # fmt: skip
OPTIMIZERS = {"adamw": "adamw", "adamw-bf16": "adamw", "muon": "muon", "sgd": "sgd"}
POLICIES = {"full": "full", "none": "none", "selective": "minimal_with_context"}
VOCABULARY_TILES = 8
"""Parts of the vocabulary's product where its loss is made in chunks (`num_vocab_tiling`)."""


def _problems(model: Model) -> Iterator[Problem]:
    if model.name not in NAMES:
        yield Problem("model", model.name, f"has files for the models {', '.join(NAMES)}")


def _together(layout: Layout) -> Iterator[Problem]:
    """Copies, shards and experts are axes of one mesh."""
    if layout.zero == 1 and layout.shard:
        yield Problem(
            "layout.shard", layout.shard, "shards optimizer states over all copies", {"shard": 0}
        )
        return
    copies = _copies(layout)
    if layout.zero == 3 and (layout.dp * layout.cp % copies or layout.dp % (copies * layout.ep)):
        yield Problem(
            "layout.shard",
            layout.shard,
            "shards over the context and expert axes, too",
            {"shard": 0},
        )


def _copies(layout: Layout) -> int:
    """How many times each weight is held."""
    if layout.zero < 3:
        return max(1, layout.dp // layout.ep)
    return layout.dp * layout.cp // layout.shard if layout.shard else 1


_MUON = ("llama", "qwen3", "deepseek", "kimi", "gpt-oss", "gemma3")
"""Beginnings of names whose decoder block Muon's dimensions were tested for (configs/types.py)."""


def _asked(model: Model, job: Job, cluster: Cluster) -> Iterator[Problem]:
    vendor = cluster.device.vendor
    if (
        LIMITS.can.is_exported_on(vendor)
        and model.experts
        and not LIMITS.can.is_exported_on(vendor, experts=True)
    ):
        says = "has kernels for a mixture's experts on TPUs alone"
        yield Problem("model", model.name, says)
    if job.optimizer.name == "muon" and not model.name.startswith(_MUON):
        says = f"trains {', '.join(_MUON)} with Muon"
        yield Problem("job.optimizer", job.optimizer.name, says)


LIMITS = Limits("MaxText", "maxtext", _problems, _together, _asked)
VERSION = LIMITS.can.checked


def degrees(layout: Layout) -> dict[str, int]:
    """Sizes of MaxText's axes, innermost first."""
    copies = _copies(layout)
    return {
        "tensor": layout.tp, "context": layout.cp, "expert": layout.ep,
        "fsdp": layout.dp // (copies * layout.ep), "data": copies,
    }  # fmt: skip


def mesh(plan: Plan) -> dict[str, int]:
    """The degrees of a plan on its slice, and none between slices, by MaxText's names."""
    layout = canonical(plan.layout, plan.model)
    sizes = degrees(layout)
    if layout.zero < 3:  # else the shards take the devices that are left
        sizes["data"] *= plan.cluster.device.jax_devices
    inner = {f"ici_{axis}_parallelism": size for axis, size in sizes.items()}
    if layout.zero == 3:
        inner["ici_fsdp_parallelism"] = -1
    return inner | {f"dcn_{axis}_parallelism": 1 for axis in sizes}


def on_gpus(plan: Plan) -> bool:
    """Whether JAX's processes find each other by variables, not by a slice's own metadata."""
    return plan.cluster.device.vendor != "google"


def config(plan: Plan) -> dict[str, Any]:
    """The content of `maxtext.yml`; data are synthetic until the reader names some."""
    layout, job, gpus = canonical(plan.layout, plan.model), plan.job, on_gpus(plan)
    kernel = "cudnn_flash_te" if gpus else "flash"
    kernel = "dot_product" if job.attention_kernel == "unfused" else kernel
    each = layout.micro_batch / (layout.tp * layout.cp * plan.cluster.device.jax_devices)
    narrow = "bfloat16" if without_master(job) else "float32"
    data: dict[str, Any] = {
        "base_config": "base.yml", "model_name": NAMES[plan.model.name],
        "hardware": "gpu" if gpus else "tpu", **({"num_slices": 1, "max_segments_per_seq": 32} if gpus else {}), **mesh(plan),
        "shard_optimizer_over_data": layout.zero == 1,
        "per_device_batch_size": int(each) if each.is_integer() else each,
        "gradient_accumulation_steps": layout.micro_batches(job.global_batch),
        "max_target_length": job.seq_len, "packing": job.document_masking, "attention": kernel,
        "remat_policy": POLICIES[layout.recompute],
        "optimizer_memory_host_offload": "optimizer" in layout.offload,
        "dtype": "float32" if job.precision.compute == "fp32" else "bfloat16",
        "weight_dtype": narrow, "grad_dtype": narrow,
        "quantization": "fp8" if job.precision.compute == "fp8" else "",
        "opt_type": OPTIMIZERS[job.optimizer.name],
        "context_parallel_strategy": "all_gather",
        "num_vocab_tiling": VOCABULARY_TILES if job.loss == "chunked" else 1,
        "dataset_type": "synthetic", "steps": steps(job), "enable_checkpointing": False,
        "run_name": "meshwright", "base_output_directory": "outputs",
    }  # fmt: skip
    if "activations" in layout.offload:
        # Whole layers run again from their inputs, which wait in host memory.
        data |= {"remat_policy": "custom", "decoder_layer_input": "offload"}
    return data


def files(plan: Plan, command: str) -> dict[str, str]:
    """`maxtext.yml`."""
    text = comment(plan, command, f"MaxText {VERSION}")
    return {"maxtext.yml": text + yaml.safe_dump(config(plan), sort_keys=False)}


def notes(plan: Plan) -> tuple[str, ...]:
    """What MaxText does beside the plan."""
    layout, found = canonical(plan.layout, plan.model), []
    if (each := plan.cluster.device.jax_devices) > 1:
        found.append(
            f"JAX shows {each} devices for one {plan.cluster.device.name}, and the plan counts chips: a chip's "
            f"{'sequences' if layout.zero < 3 else 'sequences and shards'} are divided among them, a mesh as large"
        )
    if layout.zero < 3 and layout.cp * layout.ep > 1:
        found.append(
            "MaxText shards weights over the context and expert axes, too: less memory than the plan priced"
        )
    return tuple(found)
