"""An encoder of images or sound as a transformer of its own: what it sees, multiplies and keeps.

Its blocks are priced by the formulas of a decoder's layer, with attention to all that an image has (or a window
of it). Every rank of the first stage computes it whole: neither tensor nor context parallelism splits it, as
Megatron-Bridge runs the towers that it takes from transformers (Gemma 3, Qwen2.5-VL; models/gemma_vl,
models/qwen_vl) and FSDP, ZeRO and plain data parallelism do anyway. Towers that Megatron-Bridge has of its own are
split over tp (`encoder_parameters.SPLIT_ENCODERS`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from meshwright.costs.activations import kept_per_layer
from meshwright.costs.columns import Ints, LayoutColumns
from meshwright.costs.encoder_parameters import encoder_split
from meshwright.costs.frameworks import Behaviour
from meshwright.costs.transformers_layer import Kept
from meshwright.specs.encoders import Encoder
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.model import Model

TEXT_ALONE = ("meshwright",)
"""Frameworks that train a multimodal model on text: this project's own engine."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the encoder reads of one sequence."""

    images: float
    """Images, or tiles of them, in a sequence, in the mean."""
    patches: int
    """Of each."""
    tokens: float
    """That each becomes among those of the sequence."""

    def in_micro_batch(self, micro_batch: Ints) -> Ints:
        """The most images of a micro-batch; shape (rows,)."""
        return np.asarray(np.ceil(micro_batch * self.images), dtype=np.int64)


def seen_of(model: Model, job: Job) -> Seen | None:
    """What a job's sequences show the model's encoder; None where it is text alone or nothing is known of its shape.

    A job that does not say has one image of usual size in every sequence that is long enough for it. An encoder
    of fixed size sees a larger image in tiles.
    """
    encoder = model.encoder
    if encoder is None or not encoder.layers or job.framework in TEXT_ALONE:
        return None
    patches, images = job.image_patches or encoder.patches, job.images
    if images is None:
        images = 1.0 if patches / encoder.joined <= job.seq_len else 0.0
    if encoder.fixed:
        images, patches = images * patches / encoder.patches, encoder.patches
    tokens = patches / encoder.joined
    images = min(images, job.seq_len / tokens)
    return Seen(images, patches, tokens) if images else None


def check_images(model: Model, job: Job) -> None:
    """Refuse images that a model cannot see or a sequence has no room for.

    Raises:
        SpecError: images asked of a model without an encoder of known shape, or more tokens than the sequence has.
    """
    encoder = model.encoder
    field = "images" if job.images is not None else "image_patches"
    asked = getattr(job, field)
    if not asked:
        return
    if encoder is None or not encoder.layers:
        unknown = "has one of unknown shape, which is counted and not priced"
        says = f"{model.name} {unknown if encoder else 'has none'}"
        raise SpecError(field, asked, f"a model with an encoder of images or sound is expected; {says}")  # fmt: skip
    tokens = (job.image_patches or encoder.patches) / encoder.joined
    if (job.images or 1.0) * tokens <= job.seq_len:
        return
    most = job.seq_len / tokens if job.images else job.seq_len * encoder.joined
    says = f"{most:,.4g}" if job.images else f"{most:,.0f}"
    raise SpecError(
        field, asked, f"at most {says}: an image is {tokens:,.0f} of the sequence's {job.seq_len:,} tokens"
    )  # fmt: skip


def trains(job: Job) -> bool:
    """Whether the encoder's weights train: as adapters sit on the language model, only where base weights do."""
    tune = job.finetune
    return tune is None or not (tune.adapts or tune.in_turn or "vision" in tune.freeze)


def as_model(encoder: Encoder) -> Model:
    """The encoder's blocks as a model: ungated ones are ViTs with layer norms and biases, gated ones Llama-like."""
    period = round(encoder.layers / encoder.whole_layers) if encoder.whole_layers else 1
    return Model(
        name="encoder", layers=encoder.layers, hidden=encoder.hidden, heads=encoder.heads,
        kv_heads=encoder.heads, head_dim=encoder.hidden // encoder.heads, ffn=encoder.ffn, vocab=1,
        gated=encoder.gated, norm="rmsnorm" if encoder.gated else "layernorm",
        positions="none" if encoder.fixed else "rope", window=encoder.window, window_period=period,
    )  # fmt: skip


def as_job(job: Job, seen: Seen) -> Job:
    """The job that its blocks see: an image a sequence, in 16 bits where products have fewer, nothing adapted."""
    precision = job.precision
    if precision.compute in ("fp8", "fp4"):
        precision = precision.but(compute="bf16")
    return job.but(seq_len=seen.patches, precision=precision, finetune=None, document_masking=False)


def keys_seen(encoder: Encoder, patches: int) -> float:
    """Patches that one meets in attention, in the mean of the layers."""
    window = min(encoder.window or patches, patches)
    share = encoder.whole_layers / encoder.layers
    return share * patches + (1.0 - share) * window


def forward_flops(encoder: Encoder, seen: Seen) -> float:
    """FLOPs of one image's forward: blocks, what is before them, and the projector."""
    matrices = (
        3.0 if encoder.gated else 2.0
    ) * encoder.hidden * encoder.ffn + 4.0 * encoder.hidden**2
    attention = 4.0 * keys_seen(encoder, seen.patches) * encoder.hidden
    patch = encoder.layers * (2.0 * matrices + attention) + 2.0 * encoder.patch_parameters
    return seen.patches * patch + seen.tokens * 2.0 * encoder.projector_parameters


def flops_per_token(model: Model, job: Job) -> float:
    """Model FLOPs of the encoder in one step, for each token of it: backward twice the forward where it trains."""
    seen = seen_of(model, job)
    if model.encoder is None or seen is None:
        return 0.0
    passes = 3.0 if trains(job) else 1.0
    return passes * seen.images * forward_flops(model.encoder, seen) / job.seq_len


def alone(columns: LayoutColumns, images: Ints, split: bool) -> LayoutColumns:
    """The columns as the encoder sees them: its images are a micro-batch, that tensor-parallel ranks share or none."""
    one = np.ones_like(columns.tp)
    tp = columns.tp if split else one
    return replace(
        columns, tp=tp, cp=one, ep=one, etp=one, sequence_parallel=0 * one, micro_batch=images,
        recompute_modules=0 * one,
    )  # fmt: skip


def kept(model: Model, job: Job, behaviour: Behaviour, columns: LayoutColumns) -> Kept | None:
    """What one micro-batch's images leave in the encoder: in `whole` what backward needs, `boundary` where its blocks
    run again, and in `backward` what its heaviest block works on; None where it sees nothing.

    A frozen encoder keeps nothing. Blocks are checkpointed like the language model's: transformers' and
    Megatron's settings of recomputation are one for both.
    """
    seen = seen_of(model, job)
    if model.encoder is None or seen is None:
        return None
    shape = as_model(model.encoder)
    images = seen.in_micro_batch(columns.micro_batch)
    split = encoder_split(model, job.framework)
    mine = alone(columns, images, split)
    one = kept_per_layer(shape, as_job(job, seen), behaviour, mine, moe=False)
    nothing = np.zeros(columns.rows)
    if not trains(job):
        return Kept(nothing, nothing, one.whole)
    element = job.precision.activation_bytes
    more = model.encoder.kept_widths * shape.hidden * images * seen.patches * element / mine.tp
    # What the projector reads, and what its first product gives, as wide as what it reads or puts out.
    between = model.encoder.joined * shape.hidden
    projector = seen.tokens * (between + max(between, float(model.hidden)))
    # What the patches' product reads, and the last norm.
    ends = seen.patches * (model.encoder.patch_parameters / shape.hidden + shape.hidden)
    beside = images * element * (projector + ends)
    return Kept(
        shape.layers * (one.whole + more) + beside,
        shape.layers * one.boundary + beside,
        one.whole + more + one.backward,
    )


def image_words(model: Model, job: Job) -> str:
    """What the encoder is taken to see, in words; empty where the model has none."""
    encoder = model.encoder
    if encoder is None:
        return ""
    if not encoder.layers:
        return "its encoder is counted and not priced: nothing is known of its shape"
    seen = seen_of(model, job)
    thing = "sound" if encoder.kind == "sound" else "image"
    if seen is None:
        return f"priced on text alone, without {thing}s"
    each = f"{math.floor(seen.tokens + 0.5):,} of the sequence's tokens"
    return f"{seen.images:g} {thing}{'s' * (seen.images != 1)} of {seen.patches:,} patches, {each}, in every sequence"
