"""Documented behaviours of training frameworks: what each overlaps, fuses, keeps and pads."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from meshwright.costs.kernels import sdpa_generation
from meshwright.costs.processors import host_slowness
from meshwright.costs.tables import derived, table
from meshwright.specs.base import Spec
from meshwright.specs.cluster import Device
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.frameworks import framework as capabilities
from meshwright.specs.job import AttentionKernel, Job, Loss
from meshwright.specs.layout import Recompute


class Behaviour(Spec):
    """What one framework does, as far as time and memory depend on it.

    The values and the source of each are in `costs/data/frameworks.toml`.
    """

    name: str
    title: str = ""
    attention_kernel: AttentionKernel = Field(description="the kernel used when a run names none")
    flash_generation: int = Field(
        ge=1, le=3, description="flash attention 1 (2022), 2 (2023), or 3 and cuDNN's (2024)"
    )
    sdpa: bool = Field(
        description="attention by torch's scaled_dot_product_attention, cuDNN's kernels first where a device has them"
    )
    fused_softmax: bool = Field(description="unfused attention: scale, mask, softmax in one kernel")
    fused_norm: bool = Field(description="one kernel per norm, forward and backward")
    fused_activation: bool = Field(description="bias, activation and gate product in one kernel")
    fused_rotary: bool = Field(description="rotary embedding of queries and keys in one kernel")
    logits_bytes: float = Field(gt=0, description="live bytes per logit at the loss's peak")
    logits_sharded: bool = Field(
        description="the loss works on vocabulary shards, not on gathered logits"
    )
    dropout: bool = Field(description="hidden and attention dropout, with their masks")
    gradient_bytes: float = Field(gt=0, description="of the resident gradient, per parameter")
    gradient_reduce_bytes: float = Field(gt=0, description="of a gradient on the wire")
    zero1_bucketed: bool = Field(
        description="ZeRO-1 scatters gradients bucket by bucket, not tensor by tensor (the large "
        "ones, two a layer, set the pace)"
    )
    zero1_all_reduce: bool = Field(
        description="ZeRO-1 all-reduces whole gradients instead of scattering them"
    )
    zero1_owners: bool = Field(
        description="ZeRO-1 gives whole tensors to ranks: gradients are reduced to their owner and weights "
        "broadcast by it, one message an owner round a ring of all members"
    )
    reduce_overlapped: bool = Field(description="gradient reduction runs beside the last backward")
    gather_overlapped: bool = Field(description="parameter gather runs beside the forward")
    tensor_overlapped: bool = Field(description="tensor-parallel collectives hide behind GEMMs")
    input_reductions: float = Field(
        ge=0,
        description="all-reduces of input gradients in a layer's backward without sequence parallelism: one for "
        "attention and one for the FFN where products that read one input share it, else one for each",
    )
    input_gathers: float = Field(
        ge=0,
        description="gathers of inputs in a layer's forward under sequence parallelism, and reduce-scatters of "
        "their gradients: likewise",
    )
    expert_overlapped: bool = Field(
        description="the all-to-alls of one micro-batch's experts run beside another's compute"
    )
    expert_dispatch: Literal["all-to-all", "deduplicated"] = Field(
        description="how tokens reach experts on other ranks: one copy per chosen expert, or one per "
        "distinct host and rank (DeepEP, HybridEP)"
    )
    expert_dispatch_bytes: float = Field(
        ge=0,
        description="of an element on its way to an expert (and of its gradient on the way back from there); "
        "0: an activation's, as on the way back in any case",
    )
    collectives_checked: bool = Field(
        description="before every collective its members compare over gloo what they are about to run "
        "(TORCH_DISTRIBUTED_DEBUG=DETAIL): the host's time grows with the group"
    )
    graphs: Literal["none", "layers", "all"] = Field(
        description="what CUDA graphs replay: nothing, layers without their experts (whose shapes "
        "routing decides), or the whole iteration; the host issues only the rest"
    )
    experts_padded: bool = Field(
        description="each expert's tokens are dropped and padded to a capacity: shapes are fixed, and the host waits "
        "for no counts"
    )
    expert_outputs_kept: bool = Field(
        description="routing weights multiply what experts put out, copy by copy, so that each copy's output is "
        "kept for their gradient; else they multiply inside the experts, beside the activation"
    )
    layers_16bit: int = Field(
        ge=0,
        description="layers whose products stay in 16 bits where those of the others have 8 or 4 "
        "(Megatron-Core's num_layers_at_start_in_bf16 and num_layers_at_end_in_bf16)",
    )
    expert_bias_fused: bool = Field(
        description="experts with biases: bias, activation and routing weight in one kernel"
    )
    context_balanced: bool = Field(
        description="a rank that holds keys in its turn has a piece of the sequence and its mirror image: as much "
        "causal attention as any other. Else the last rank, whose queries see every key, sets the pace"
    )
    context_in_turn: bool = Field(
        description="blocks of keys from other context-parallel ranks are attended one after another, with their "
        "exchange and merging between, as torch's context parallelism does"
    )
    p2p_scattered: bool = Field(
        description="each tensor-parallel rank sends its share of the activations to the next "
        "stage, which gathers them"
    )
    p2p_overlapped: bool = Field(description="stage-to-stage sends hide behind compute")
    bucket_parameters: float = Field(
        ge=0, description="parameters per gradient bucket; 0: one unit (layer) a bucket"
    )
    bucket_parameters_per_rank: float = Field(
        ge=0, description="a bucket holds at least this many parameters per data-parallel rank"
    )
    copied_widths: float = Field(
        ge=0,
        description="tensors of the hidden width that eager attention copies and keeps per layer",
    )
    moved_widths: float = Field(
        ge=0, description="tensors of the hidden width copied per layer, kept or not"
    )
    full_width_buffers: float = Field(
        ge=0,
        description="whole-sequence tensors of the hidden width alive at once around the "
        "tensor-parallel collectives",
    )
    placeholder_gradients: bool = Field(
        description="autograd is given one 16-bit placeholder gradient per distinct weight shape"
    )
    accumulate_bytes: float = Field(
        ge=0,
        description="moved per parameter and micro-batch to add a fresh gradient to the resident "
        "one, beyond the product's own write of it",
    )
    loss_bytes: float = Field(
        ge=0, description="moved per logit by the loss and its gradient, beyond the head's products"
    )
    held_widths: float = Field(
        ge=0,
        description="whole-sequence tensors of the hidden width, per layer and micro-batch, whose "
        "blocks the caching allocator gets back only when the reduce-scatter that reads them has "
        "run: reserved, not allocated",
    )
    messages_wait: bool = Field(
        description="receiving from a pipeline stage makes the host wait for the device"
    )
    message_poll_s: float = Field(
        ge=0,
        description="between two looks at whether a pipeline's message has passed, where the host sleeps and "
        "looks again instead of waiting on the device; 0: it does not",
    )
    saves_quantised_inputs: bool = Field(
        description="in fp8 and fp4 the inputs of matrix products are kept for backward in 8 bits"
    )
    ffn_inputs_8bit: bool = Field(
        description="what the FFN's activation reads is kept for backward in 8 bits"
    )
    workspace_bytes: float = Field(
        ge=0,
        description="workspaces of cuBLAS and of the framework's kernels, allocated once through "
        "the caching allocator",
    )
    reducer_bytes: float = Field(
        ge=0,
        description="of the data-parallel reducer's own buckets, per parameter, kept beside the "
        "gradients where there are several replicas",
    )
    planned_buffers: bool = Field(
        description="a compiler lays out all buffers of a step: no gaps between them, and what the loss "
        "and the layers' backward need shares its place"
    )
    update_bytes: float = Field(
        ge=0,
        description="per parameter that a rank updates: copies of its gradients and lists of results "
        "that live as long as the update, when no activations do",
    )
    eager: bool = Field(
        description="memory is what plain PyTorch on FSDP2 keeps, counted tensor by tensor "
        "(costs/eager.py), instead of fused kernels' closed forms"
    )
    modules: Literal["fused", "transformers"] = Field(
        description="whose layer is counted: closed forms of fused kernels, or the eager modules of "
        "transformers with PEFT's adapters (costs/transformers_layer.py)"
    )
    keeps_quantised_inputs: bool = Field(
        description="products with 4-bit weights keep their input, although no weight trains"
    )
    frozen_bytes: float = Field(
        ge=0,
        le=4,
        description="of a frozen weight that is not quantised: 4 where FSDP2 keeps every parameter in fp32 "
        "and casts what it gathers; 0: as the precision recipe has its weights",
    )
    lengths_vary: bool = Field(
        description="micro-batches have lengths of their own: the caching allocator keeps the blocks of "
        "shorter ones beside those of the longest"
    )
    activation_in_place: bool = Field(
        description="the fused activation's backward writes its gradients over the inputs that were kept"
    )
    optimizer_in_backward: bool = Field(
        description="each layer is updated as soon as its gradient is there, which then goes"
    )
    overlapped_in_pipeline: bool = Field(
        description="with several pipeline stages, too, gradients are reduced beside backward"
    )
    pipeline_unsharded: bool = Field(
        description="ZeRO-3 in a pipeline: parameters stay gathered from the first micro-batch to the "
        "last, and gradients are summed whole until then"
    )
    accumulates_whole: bool = Field(
        description="under FSDP gradients are summed whole on every device until the last micro-batch"
    )
    zero3_gathers: Literal["layers", "modules"] = Field(
        description="ZeRO-3 gathers and frees a layer at a time, or each module by hooks of its own"
    )
    zero3_shards_are_masters: bool = Field(
        description="ZeRO-3 shards the fp32 weights that are updated and casts a layer as it gathers it; no "
        "16-bit shard stays beside them"
    )
    loads_whole: bool = Field(
        description="ZeRO-3: every device holds all weights, and its share of them, while loading"
    )
    loss: Loss = Field(description="the loss's kind when a job names none")
    optimizer_fused: bool = Field(description="one multi-tensor kernel updates all states")
    zero: int = Field(ge=0, le=3, description="ZeRO stage when a run names none")
    recompute: Recompute = Field(description="recomputation when a run names none")
    selective: Literal["attention", "operators", "products", "projections"] = Field(
        description="what selective recomputation keeps: everything but attention's inner tensors, the "
        "results of every second product and of attention, those of all products, or of the "
        "projections to queries, keys and values"
    )
    tf32: bool = Field(description="fp32 products run in TF32 where the device has it")
    stage_split: Literal["equal", "cost-balanced"] = Field(
        description="layers per pipeline stage: as even as possible, or by compute cost"
    )
    memory_convention: Literal["allocated", "reserved", "device"] = Field(
        description="what the framework's own log calls memory used"
    )
    memory_rank: Literal["heaviest", "first", "last"] = Field(
        description="the rank of a pipeline whose memory the framework logs"
    )
    kernels_per_layer: int = Field(ge=1, description="kernels of one layer's forward")
    host_kernel_s: float = Field(
        ge=0, description="host time to issue one kernel: Python, dispatch and launch"
    )
    host_collective_s: float = Field(
        ge=0, description="host time to issue one tensor-parallel collective, beyond a kernel's"
    )
    host_mixture_s: float = Field(
        ge=0,
        description="host time of a mixture of experts in one pass through a layer, beside its products: routing, "
        "counts, permuting and dispatch",
    )
    host_gather_s: float = Field(
        ge=0, description="host time to gather and free one module's parameters, each pass"
    )
    host_micro_batch_s: float = Field(
        ge=0, description="host time per micro-batch outside the layers: data, embedding, loss"
    )
    host_step_s: float = Field(ge=0, description="host time per step: optimizer loop, logging")
    vocab_multiple: int = Field(ge=1, description="vocabulary is padded to a multiple · tp")


def _table() -> dict[str, dict[str, Any]]:
    return table("frameworks")


def framework_names() -> tuple[str, ...]:
    """Names of the frameworks in the table."""
    return tuple(_table())


def _cells(name: str) -> dict[str, Any]:
    known = _table()
    if name not in known:
        raise SpecError("framework", name, nearest(name, known))
    own = {key: value for key, value in known[name].items() if key not in ("base", "sources")}
    base = known[name].get("base")
    return {**(_cells(base) if base else {}), **own, "name": name}


@derived
def framework(name: str) -> Behaviour:
    """Return the documented behaviour of a framework.

    Raises:
        SpecError: no such framework; the message names the nearest one.
    """
    return Behaviour.parse(_cells(name), f"frameworks.{name}")


def behaviour_of(name: str) -> Behaviour:
    """Return the behaviour that prices a framework of `specs.frameworks`, by any of its names.

    Raises:
        SpecError: no such framework; the message names the nearest one.
    """
    return framework(capabilities(name).behaviour)


def behaviour(job: Job) -> Behaviour:
    """Return the behaviour that a job runs under: its framework's, with the job's own options.

    Raises:
        SpecError: an option is not a field of `Behaviour`, or its value is not accepted.
    """
    known = behaviour_of(job.framework)
    return known.but(**job.framework_options) if job.framework_options else known


UNCOMPILED_BLOCK: dict[str, Any] = {
    "fused_norm": False, "fused_activation": False, "fused_rotary": False, "kernels_per_layer": 36,
}  # fmt: skip
UNCOMPILED_LOSS: dict[str, Any] = {"logits_bytes": 12.0, "loss_bytes": 40.0}
"""Layers and loss as torch runs them uncompiled: the block and the cross-entropy of fp32 logits that
data/frameworks.toml counts for deepspeed and huggingface."""

HOST_TIMES = (
    "host_kernel_s",
    "host_collective_s",
    "host_mixture_s",
    "host_gather_s",
    "host_micro_batch_s",
    "host_step_s",
)
"""Fields of `Behaviour` that are times of a host's processor."""


def behaviour_on(job: Job, device: Device) -> Behaviour:
    """Return a job's behaviour with what depends on the device: host times of the processor that it comes
    with, and the attention kernels that torch takes there where the job does not name any.

    Raises:
        SpecError: an option is not a field of `Behaviour`, or its value is not accepted.
    """
    known = behaviour(job)
    taken = sdpa_generation(device)
    if known.sdpa and taken is not None and "flash_generation" not in job.framework_options:
        known = known.model_copy(update={"flash_generation": taken})
    slowness = host_slowness(device)
    if slowness == 1.0:
        return known
    return known.model_copy(update={name: slowness * getattr(known, name) for name in HOST_TIMES})


def source_of(name: str, field: str) -> str:
    """Return where a cell of the table is documented, following `base`.

    Raises:
        SpecError: no such framework or cell.
    """
    known = _table()
    current: str | None = name
    while current is not None:
        if current not in known:
            raise SpecError("framework", current, nearest(current, known))
        if field in known[current]["sources"]:
            return str(known[current]["sources"][field])
        current = known[current].get("base")
    raise SpecError("field", field, nearest(field, Behaviour.model_fields))
