"""Peak memory of meshwright's own engine: what plain PyTorch on FSDP2 keeps, tensor by tensor.

The operations are those of `engine/model/decoder.py`, `kernels.py` and `loss.py`; sharding is FSDP2's
(torch 2.13, `_fsdp_param_group.py`), pipelines are torch.distributed.pipelining's. A step's memory
can peak at a handful of moments; each is priced as a sum of parts, and the largest is the peak:

- *loss*: all activations, logits and their gradient;
- *head*: backward of the head's product, with its weight gradient;
- *layer*: backward of the layer that comes first, most activations still there;
- *deferred*: a split backward holds what its weight gradients will need;
- *last*: backward of the layer that comes last, all gradients there;
- *end*, *reduced*: the last reductions of a step, which a pipeline makes all together;
- *update*: no activations; one fused kernel updates in place.

The dry run (`engine/proof/dryrun.py`) measures the same program; a test holds both together.
Everything is an array of shape (rows,) in bytes of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.costs import pipeline
from meshwright.costs.columns import Bools, Floats, Ints, LayoutColumns
from meshwright.costs.kernels import ceil_div
from meshwright.costs.parameters import LocalParameters
from meshwright.specs.job import Job
from meshwright.specs.model import Model

PARTS = (
    "parameters", "gradients", "optimizer", "gathered_parameters", "activations", "recompute_peak",
    "logits", "buffers",
)  # fmt: skip
"""Parts of every moment; `recompute_peak` holds all temporaries of one layer's backward."""

SPLIT_BACKWARD = [
    pipeline.CODE[name]
    for name in ("zb-h1", "zb-h2", "zb-auto", "zb-v", "v-half", "v-min", "dualpipe-v")
]
"""Schedules that compute input and weight gradients apart."""

Parts = dict[str, Floats]


@dataclass(frozen=True, slots=True)
class Held:
    """What one pipeline rank holds; arrays of shape (rows,)."""

    dense: Floats
    """Dense layers, over all its virtual stages; `moe` likewise."""
    moe: Floats
    recomputed: Floats
    """Share of the layers that recompute in full, where any do."""
    embedding: Bools
    head: Bools
    ring: Bools
    """Whether keys and values go round a ring under context parallelism."""
    stage: Ints
    """Its pipeline rank."""
    flight: Floats
    """Most micro-batches whose activations it holds at once, in whole ranks."""


@dataclass(frozen=True, slots=True)
class _Widths:
    """Bytes per element and elements per token on one rank."""

    compute: float
    stored: float
    reduced: float
    accumulated: float
    """Bytes per parameter of gradients that micro-batches add up, before they are reduced."""
    tokens: Floats
    hidden: float
    residual: Floats
    """Hidden width where sequence parallelism may split it."""
    split: Floats
    queries: Floats
    keys: Floats
    heads: Floats
    twice: Floats
    """Whole-sequence copies that a gather of more than one sequence makes: 1 or 2."""
    ring: Bools
    fresh: Bools
    """Whether no gradients of earlier micro-batches are there, whole, when the peak comes."""


def _widths(model: Model, job: Job, columns: LayoutColumns, ring: Bools, fresh: Bools) -> _Widths:
    precision = job.precision
    compute, reduced = precision.activation_bytes, precision.gradient_reduce_bytes
    stored = precision.master_bytes or precision.parameter_bytes
    split = np.where((columns.sequence_parallel > 0) & (columns.tp > 1), columns.tp, 1.0)
    heads = np.ceil(model.heads / columns.tp)
    return _Widths(
        compute=compute, stored=stored, reduced=reduced,
        accumulated=reduced if reduced != compute else compute,
        tokens=(columns.micro_batch * ceil_div(job.seq_len, columns.cp)).astype(np.float64),
        hidden=float(model.hidden), residual=model.hidden / split, split=split,
        queries=heads * model.head_dim,
        keys=np.ceil(model.kv_heads / columns.tp) * model.head_dim, heads=heads,
        twice=np.where(columns.micro_batch > 1, 2.0, 1.0), ring=ring, fresh=fresh,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer and micro-batch: bytes kept until backward, at its boundary, and on top in backward.

    `temporary` is relative to `kept`: backward frees as it goes.
    """

    kept: Floats
    boundary: Floats
    temporary: Floats
    parameters: Floats
    deferred: Floats
    """What a split backward holds between a layer's input gradients and its weight gradients."""


def _norm_bytes(model: Model, w: _Widths) -> Floats:
    """Row statistics of a norm, per token: 1/rms in fp32, or mean and 1/deviation."""
    each = 4.0 if model.norm == "rmsnorm" else 2.0 * w.compute
    return each / w.split


def _attention_kept(model: Model, columns: LayoutColumns, w: _Widths, selective: Bools) -> Floats:
    """Norm input and output, rotated queries and keys, values, attention's output; per token.

    Under context parallelism the gathered keys and values, the outputs of the two chunks beside
    their concatenation, and the masks of both, which every query of a sequence shares.
    """
    elements = w.residual + w.hidden + 2.0 * w.queries + 2.0 * w.keys
    statistics = np.where(selective, 0.0, 4.0 * w.heads)
    cp = columns.cp.astype(np.float64)
    chunk = w.tokens / columns.micro_batch / 2.0
    masks = (2.0 * cp + 1.0) * chunk**2 / w.tokens
    gathering = (cp > 1) & ~w.ring
    gathered = 2.0 * w.keys * (cp - 1.0) + w.queries + masks
    elements = elements + np.where(gathering & ~selective, gathered, 0.0)
    # The ring keeps its own output in fp32.
    statistics = statistics + np.where((cp > 1) & w.ring & ~selective, 4.0 * w.queries, 0.0)
    if model.qk_norm == "head":
        # The norms' inputs too, and one number per head.
        elements = elements + w.queries + w.keys
        statistics = statistics + 4.0 * (w.queries + w.keys) / model.head_dim
    return elements * w.compute + statistics + _norm_bytes(model, w)


def _ffn_widths(model: Model) -> float:
    """FFN-wide tensors kept: gate, up and their product; or one inward product and its activation."""
    return 3.0 if model.gated else 2.0


def _dense_layer(
    model: Model, job: Job, columns: LayoutColumns, w: _Widths, local: LocalParameters
) -> _Layer:
    inner = np.ceil(model.ffn / columns.tp)
    kept_inner = _ffn_widths(model)
    attention = _attention_kept(model, columns, w, columns.recompute == 1)
    kept = attention + w.compute * (w.residual + w.hidden + kept_inner * inner)
    kept = w.tokens * (kept + _norm_bytes(model, w))
    token = w.tokens * w.compute
    # Backward: through the down product, through the activation, through the inward products.
    arriving = w.residual + np.where(w.split > 1, w.hidden * w.twice, 0.0)
    gradients = 2.0 if model.gated else 1.0
    weight = model.hidden * inner * w.compute
    later = np.where(w.fresh, weight, 0.0)  # a gradient that is added to another is freed at once
    inward = w.residual + gradients * (w.hidden + inner) - kept_inner * inner
    temporary = np.maximum.reduce(
        [
            token * (arriving + inner) + weight,
            token * (w.residual + gradients * inner) + later,
            token * inward + (1.0 + gradients) * later,
            _ring_scores(columns, w) - token * (w.residual + w.hidden + kept_inner * inner),
        ]
    )
    return _Layer(
        kept=kept, boundary=token * w.residual, temporary=temporary,
        parameters=local.dense_layer, deferred=token * _deferred(w, gradients * inner),
    )  # fmt: skip


def _deferred(w: _Widths, inward: Floats) -> Floats:
    """Elements per token: gradients of every product's output, with nothing kept freed yet."""
    return inward + w.queries + 2.0 * w.keys + 4.0 * w.residual


def _ring_scores(columns: LayoutColumns, w: _Widths) -> Floats:
    """Ring attention's backward: scores of all queries with one block of keys.

    Six tensors of scores in fp32 at once, distances and masks, and fp32 copies of queries, their
    gradients, keys and values that travel.
    """
    own = w.tokens / columns.micro_batch
    scores = 24.0 * w.heads * w.tokens * own + 9.0 * own**2
    scores = scores + 4.0 * w.tokens * (3.0 * w.queries + 6.0 * w.keys)
    return np.where(w.ring & (columns.cp > 1), scores, 0.0)


def _moe_layer(
    model: Model, job: Job, columns: LayoutColumns, w: _Widths, local: LocalParameters
) -> _Layer:
    spec = model.experts
    assert spec is not None
    attention = _attention_kept(model, columns, w, columns.recompute == 1)
    rows = w.tokens / w.split * spec.top_k
    routing = (4.0 * spec.experts + 4.0) / w.split
    numbers = 4.0 + 5 * 8.0 + w.compute  # weight, index tensors, weight as multiplied
    row = w.compute * (2.0 * w.hidden + 3.0 * spec.ffn) + numbers
    kept = attention + w.compute * 2.0 * w.residual + routing + _norm_bytes(model, w)
    if spec.shared_ffn:
        shared = np.ceil(spec.shared_ffn / columns.tp)
        kept = kept + w.compute * (np.where(w.split > 1, w.hidden, 0.0) + 3.0 * shared)
    kept = w.tokens * kept + rows * row
    experts = local.experts_layer * w.compute
    # The weighted sum's gradient by rows and by weights; later all experts' gradients, stacked.
    first = 2.0 * rows * w.hidden * w.compute
    last = rows * w.compute * (2.0 * w.hidden - 3.0 * spec.ffn) + 4.0 / 3.0 * experts
    temporary = w.tokens * w.compute * w.residual + np.maximum(first, last)
    return _Layer(
        kept=kept, boundary=w.tokens * w.residual * w.compute, temporary=temporary,
        parameters=local.moe_layer + local.experts_layer,
        deferred=w.tokens * w.compute * _deferred(w, 2.0 * spec.top_k * spec.ffn / w.split),
    )  # fmt: skip


def eager_parts(
    model: Model, job: Job, columns: LayoutColumns, held: Held, micro_batches: Ints,
    local: LocalParameters,
) -> Parts:  # fmt: skip
    """Parts of one rank's memory at the moment of its peak."""
    moments = _Rank(model, job, columns, held, micro_batches, local).moments()
    totals = np.stack([sum(moment.values(), np.zeros(columns.rows)) for moment in moments])
    worst = np.argmax(totals, axis=0)
    at = np.arange(columns.rows)
    return {name: np.stack([moment[name] for moment in moments])[worst, at] for name in PARTS}


class _Rank:
    """One rank's sizes, from which each moment is added up."""

    def __init__(
        self, model: Model, job: Job, columns: LayoutColumns, held: Held, micro_batches: Ints,
        local: LocalParameters,
    ) -> None:  # fmt: skip
        self.model, self.job, self.columns, self.held = model, job, columns, held
        self.one = micro_batches == 1
        self.pipelined = columns.pp > 1
        self.zero = columns.zero
        # GPipe has the most activations before its first backward.
        breadth = np.isin(columns.schedule, [pipeline.CODE["gpipe"], pipeline.CODE["looped-bfs"]])
        self.breadth = self.pipelined & breadth
        self.splits = self.pipelined & np.isin(columns.schedule, SPLIT_BACKWARD)
        self.first = self.one | self.breadth
        self.each = (self.zero >= 2) & ~self.pipelined
        """Gradients are reduced after every micro-batch."""
        self.w = w = _widths(model, job, columns, held.ring, self.first | self.each)
        self.layers = [(held.dense, _dense_layer(model, job, columns, w, local))]
        if model.experts is not None:
            self.layers.append((held.moe, _moe_layer(model, job, columns, w, local)))
        self._count_parameters(local)
        self._add_up_activations()

    def _count_parameters(self, local: LocalParameters) -> None:
        """Parameters of this rank, whole and sharded, and of FSDP's units."""
        held, columns = self.held, self.columns
        tied_here = held.embedding & held.head & local.tied
        matrix = local.embedding_matrix
        root = np.where(held.head, local.head, 0.0)
        root = root + np.where(held.head & ~held.embedding & local.tied, matrix, 0.0)
        embedding = np.where(held.embedding, local.embedding, 0.0)
        self.head_matrix = matrix
        self.root = root + np.where(tied_here, embedding, 0.0)
        self.embedding = np.where(tied_here, 0.0, embedding)
        dense = held.dense * local.dense_layer + held.moe * local.moe_layer
        self.dense = dense + self.root + self.embedding
        self.experts = held.moe * local.experts_layer
        self.whole = self.dense + self.experts
        self.shard = np.where(self.zero > 0, columns.shard_degree, 1).astype(np.float64)
        stage = columns.dp * columns.cp * columns.tp
        self.expert_shard = np.where(self.zero > 0, stage // columns.ep, 1).astype(np.float64)
        self.sharded = self.dense / self.shard + self.experts / self.expert_shard
        self.unit = np.zeros(columns.rows)
        for count, layer in self.layers:
            self.unit = np.maximum(self.unit, np.where(count > 0, layer.parameters, 0.0))
        w = self.w
        mixed = w.compute != w.stored or w.reduced != w.stored
        several = columns.dp * columns.cp > 1
        if self.model.experts is not None:
            several = several | (stage > 1)
        self.wrapped = (several & (self.zero > 0)) | mixed

    def _add_up_activations(self) -> None:
        """Activations of one micro-batch, of all in flight, and one layer's temporaries."""
        w, held = self.w, self.held
        full = self.columns.recompute == 2
        share = np.where(full, held.recomputed, 0.0)
        one = self.temporary = np.zeros(self.columns.rows)
        for count, layer in self.layers:
            one = one + count * (share * layer.boundary + (1.0 - share) * layer.kept)
            # A stage's last layers are the ones that keep everything; by the time that the others
            # are computed again, those have gone.
            again = layer.kept - layer.boundary - (1.0 - share) * count * layer.kept
            worst = layer.temporary + np.where(share > 0, np.maximum(again, 0.0), 0.0)
            self.temporary = np.maximum(self.temporary, np.where(count > 0, worst, 0.0))
        boundary = w.tokens * w.residual * w.compute
        head = boundary + w.tokens * (w.hidden * w.compute + _norm_bytes(self.model, w))
        self.head_kept = np.where(held.head, head, 0.0)
        self.logits = np.where(
            held.head, w.tokens * np.ceil(self.model.vocab / self.columns.tp) * w.compute, 0.0
        )
        rotary = 0.0
        if self.model.positions == "rope":
            rotary = 2.0 * self.model.head_dim * w.compute
        length = w.tokens / self.columns.micro_batch
        chunks = np.maximum(self.columns.virtual_stages, 1)
        one = one + (chunks - held.head) * boundary + chunks * length * rotary
        # Where the loss's stage runs backward at once, one micro-batch of it is there.
        self.losses = np.where(self.breadth, held.flight, 1.0)
        self.activations = held.flight * one + self.losses * self.head_kept
        self.one_layer = sum(
            (
                np.where(count > 0, share * layer.boundary + (1.0 - share) * layer.kept, 0.0)
                for count, layer in self.layers
            ),
            np.zeros(self.columns.rows),
        )
        # torch's zero-bubble order runs weight gradients as many micro-batches late as the rank says.
        h1 = self.columns.schedule == pipeline.CODE["zb-h1"]
        self.pending = np.where(h1, 1.0 + held.stage, 1.0)
        # Of one chunk, whose input's gradient is held as well.
        self.deferred = sum(
            (count / chunks * layer.deferred for count, layer in self.layers), boundary
        )
        deferred = self.pending * self.deferred
        self.temporary = np.where(self.splits, np.maximum(self.temporary, deferred), self.temporary)
        # Token and target numbers of the whole batch; a gradient on its way to the stage before.
        numbers = 16.0 * self.job.global_batch * self.job.seq_len
        self.buffers = numbers + np.where(self.pipelined & ~held.embedding, boundary, 0.0)

    def _moment(
        self, gradients: Floats, gathered: Floats, activations: Floats, temporary: Floats,
        logits: Floats,
    ) -> Parts:  # fmt: skip
        w = self.w
        states = self.job.optimizer.state_bytes * w.stored / 4.0
        return {
            "parameters": w.stored * self.sharded, "optimizer": states * self.sharded,
            "gradients": gradients, "gathered_parameters": gathered, "activations": activations,
            "recompute_peak": temporary, "logits": logits, "buffers": self.buffers,
        }  # fmt: skip

    def moments(self) -> list[Parts]:
        """The moments of the module's docstring."""
        w, none = self.w, np.zeros(self.columns.rows)
        final = w.stored * self.sharded
        whole = np.where(self.wrapped, w.accumulated, w.stored) * self.whole
        before = np.where(self.first, 0.0, np.where(self.each, final, whole))
        gathered = np.where(self.wrapped, w.compute * self.whole, 0.0)
        three = (self.zero == 3) & (self.shard > 1)
        gathered = np.where(three, w.compute * self.root, gathered)
        # ZeRO-3's backward gathers the next layer beside the present one.
        gathered_layer = gathered + np.where(three, w.compute * self.unit, 0.0)
        prefetched = np.where(three, w.compute * self.unit, 0.0)
        # What the last reduce-scatter read, the root's gradients, lives until the next one; so do
        # the sums over replicas, each until its unit's next.
        again = self.each & ~self.one & (self.shard > 1)
        scattered = np.where(
            again, w.reduced * self.root + self._kept_reductions(self.sharded), 0.0
        )
        apart = self.first | self.each | (w.accumulated != w.compute)
        root_gradient = np.where(apart & self.wrapped, w.compute * self.root, 0.0)
        root_gradient = np.where(self.first & ~self.wrapped, w.compute * self.root, root_gradient)
        # A split backward frees nothing before its weight gradients, the head's and its norm's too.
        left = self.activations - np.where(self.splits, 0.0, self.head_kept)
        left = left + np.where(self.splits, (self.pending - 1.0) * self.head_kept, 0.0)
        width = np.where(self.held.head, w.tokens * w.hidden * w.compute, 0.0)
        late = np.where(self.splits, self.pending * (self.logits + width), 0.0)
        head_weight = np.where(self.held.head, w.compute * self.head_matrix, 0.0)
        head_input = width + np.where(w.fresh, 0.0, head_weight)
        head_weight = np.where(w.fresh, head_weight, 0.0)
        held_logits = self.losses * self.logits
        after = np.where(self.pipelined, held_logits, held_logits - self.logits)
        return [
            self._moment(
                before, gathered, self.activations, scattered, held_logits + self.logits
            ),
            self._moment(
                before + head_weight, gathered, self.activations, head_input + scattered,
                after + self.logits,
            ),
            self._moment(
                before + root_gradient, gathered_layer, left,
                self.temporary + prefetched + scattered, after + late,
            ),
            self._all_deferred(before, gathered),
            self._only_last_layer(),
            self._end(),
            self._reduced(),
            self._moment(final, none, none, none, none),
        ]  # fmt: skip

    def _all_deferred(self, before: Floats, gathered: Floats) -> Parts:
        """ZB-V: rank s of p once has 2s + 1 chunks without weight gradients, of p + s in flight.

        Counted in torch 2.13's order (ScheduleZBVZeroBubble).
        """
        none, stage = np.zeros(self.columns.rows), self.held.stage
        here = self.pipelined & (self.columns.schedule == pipeline.CODE["zb-v"]) & (stage > 0)
        chunks = np.minimum(self.columns.pp + stage, 2.0 * self.held.flight)
        share = np.where(here, chunks / (2.0 * self.held.flight), 0.0)
        late = np.where(here, np.minimum(2.0 * stage + 1.0, chunks) * self.deferred, 0.0)
        return self._moment(before, gathered, share * self.activations, late, none)

    def _kept_reductions(self, done: Floats) -> Floats:
        """Reduced gradients that wait, uncast, for the end of backward where replicas are summed.

        `done` is how many of this rank's (sharded) parameters' gradients have been reduced.
        """
        w = self.w
        replicated = (self.zero == 0) | (self.shard < self.columns.dp * self.columns.cp)
        if w.reduced == w.stored:
            return np.zeros(self.columns.rows)
        return np.where(replicated & self.wrapped, w.reduced * done, 0.0)

    def _only_last_layer(self) -> Parts:
        """Backward of the layer that comes last, in the last micro-batch."""
        w, none = self.w, np.zeros(self.columns.rows)
        outside = self.root + self.embedding
        open_ = outside + self.unit
        done = np.maximum(self.sharded - open_ / self.shard, 0.0)
        unreduced = np.where(
            self.one | (self.zero >= 2), w.compute * self.root,
            np.where(self.wrapped, w.accumulated, w.stored) * open_,
        )  # fmt: skip
        gradients = np.where(self.wrapped, w.stored * done + unreduced, w.stored * self.whole)
        earlier = np.where(
            self.one | ~((self.zero >= 2) & ~self.pipelined), 0.0, w.stored * open_ / self.shard
        )
        gathered = np.where(self.wrapped, w.compute * open_, 0.0)
        whole = np.where(self.wrapped, w.accumulated, w.stored) * self.whole
        gradients = np.where(self.pipelined, whole, gradients + earlier)
        gathered = np.where(
            self.pipelined, np.where(self.wrapped, w.compute * self.whole, 0.0), gathered
        )
        kept = np.where(self.each & ~self.one, self.sharded, done)
        waiting = np.where(
            self.wrapped & ~self.pipelined, w.reduced * self.unit + self._kept_reductions(kept), 0.0
        )
        return self._moment(gradients, gathered, self.one_layer, self.temporary + waiting, none)

    def _reduced(self) -> Parts:
        """A pipeline has reduced its last unit; sums over replicas still wait to be let go of."""
        w, none = self.w, np.zeros(self.columns.rows)
        here = self.pipelined & self.wrapped
        waiting = w.reduced * self.unit + self._kept_reductions(self.sharded)
        gradients = w.stored * self.sharded
        return self._moment(gradients, none, none, np.where(here, waiting, 0.0), none)

    def _end(self) -> Parts:
        """The root's gradients are reduced after all others; a pipeline reduces all of them here."""
        w, none = self.w, np.zeros(self.columns.rows)
        done = np.maximum(self.sharded - self.root / self.shard, 0.0)
        gradients = np.where(self.wrapped, w.stored * done + w.compute * self.root, 0.0)
        waiting = np.where(self.wrapped, w.reduced * self.root + self._kept_reductions(done), 0.0)
        gathered = np.where(self.wrapped, w.compute * self.root, 0.0)
        whole = np.where(self.wrapped, w.accumulated, w.stored) * self.whole
        gradients = np.where(self.pipelined, whole, gradients)
        gathered = np.where(
            self.pipelined, np.where(self.wrapped, w.compute * self.whole, 0.0), gathered
        )
        waiting = np.where(self.pipelined & self.wrapped, w.reduced * self.unit, waiting)
        return self._moment(gradients, gathered, none, waiting, none)
