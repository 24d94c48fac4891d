"""Fine-tuning's weights: what is frozen and how it is stored, what trains, and adapters' sizes.

An adapter on a matrix of shape (out, in) has rank · (out + in) parameters (Hu et al. 2021, arXiv
2106.09685 §4.1); DoRA adds one magnitude per output (Liu et al. 2024, arXiv 2402.09353 §4). Under
tensor parallelism the factor on the split side is split with its matrix, the other one is whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.costs import pipeline
from meshwright.costs.columns import Floats, Ints, LayoutColumns
from meshwright.costs.encoder_parameters import encoder_parameters
from meshwright.costs.kernels import Kernels, ceil_div, gemm_time_s, stream_time_s
from meshwright.costs.mixers import layer_shares, mixer_matrices
from meshwright.costs.parameters import LocalParameters, layer_parameters
from meshwright.costs.stages import StageLayers
from meshwright.specs.finetune import Finetune
from meshwright.specs.job import Job
from meshwright.specs.model import Model

STORED_BYTES: dict[str, float] = {
    "nf4": 0.5 + 4 / 64,  # one fp32 scale per block of 64 (bitsandbytes, arXiv 2305.14314 §2)
    "fp4": 0.5 + 4 / 64,
    "int8": 1.0,  # one fp32 scale per row: nothing at these widths
    "int4": 0.5 + 2.5 / 128,  # GPTQ and AWQ: a 16-bit scale and a 4-bit zero per group of 128
    "fp8": 1.0,
    "mxfp4": 0.5 + 1 / 32,  # one 8-bit exponent per block of 32 (OCP MX v1.0 §5)
    "nvfp4": 0.5 + 1 / 16,  # one 8-bit scale per block of 16 (NVIDIA, arXiv 2509.25149 §2)
}
"""Bytes per frozen parameter, scales included."""

DOUBLE_QUANTISED = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Scales in 8 bits, 256 of them sharing an fp32 one (arXiv 2305.14314 §3)."""


UNPACK_BYTES: dict[str, tuple[float, float]] = {
    "nf4": (STORED_BYTES["nf4"] + 2.0, STORED_BYTES["nf4"] + 2.0),
    "fp4": (STORED_BYTES["fp4"] + 2.0, STORED_BYTES["fp4"] + 2.0),
    # shift to 32 bits 0.5 + 4, to 8 bits 4 + 1, mask 1 + 1, less zero 1 + 1, times scale 1 + 2
    "int4": (16.5, 0.0),
}
"""Bytes moved per element to write a quantised matrix out in 16 bits for a product, forward and backward:
one kernel each time in bitsandbytes (MatMul4Bit, whose backward unpacks again); five eager torch
operations in AutoGPTQ's qlinear_cuda, whose result autograd keeps for the backward."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """One weight matrix of a layer; `copies` of it, `split` by tensor parallelism along a side."""

    target: str
    out: float
    into: float
    split: str = "out"
    copies: float = 1.0


def layer_matrices(model: Model, *, moe: bool) -> list[Matrix]:
    """Matrices of one layer, with the names that adapters give them.

    Where layers of a kind differ, those of the mean layer: `copies` is then a share. A linear
    mixer's inputs count as `q`, its output as `o`.
    """
    hidden = float(model.hidden)
    found: list[Matrix] = []
    latent = model.latent_attention
    if latent is not None:
        width = float(model.heads * (latent.nope_head_dim + latent.rope_head_dim))
        if latent.q_rank:
            found += [Matrix("q", latent.q_rank, hidden, "none"), Matrix("q", width, latent.q_rank)]
        else:
            found += [Matrix("q", width, hidden)]
        found += [Matrix("k", latent.kv_rank + latent.rope_head_dim, hidden, "none")]
        expanded = float(model.heads * (latent.nope_head_dim + latent.v_head_dim))
        found += [Matrix("v", expanded, latent.kv_rank)]
    else:
        keys = float(model.kv_heads * model.head_dim)
        found += [Matrix("q", float(model.heads * model.head_dim), hidden)]
        own = model.kv_share
        found += [Matrix(name, keys, hidden, copies=own) for name in ("k", "v")]
    found += [Matrix("o", hidden, float(model.attention_width), "into")]
    share = layer_shares(model, moe=moe)
    found = [replace(one, copies=one.copies * share.attention) for one in found]
    if share.linear and model.mixer is not None:
        for out, into, split in mixer_matrices(model, model.mixer):
            target = "o" if split == "into" else "q"
            found += [Matrix(target, out, into, split, share.linear)]
    width = float(model.ffn)
    if moe and model.experts is not None:
        spec = model.experts
        width = float(spec.shared_ffn)
        found += [Matrix("router", float(spec.experts), hidden, "none")]
        inward = 2.0 if model.gated else 1.0
        routed = float(model.expert_hidden)
        found += [Matrix("experts", float(spec.ffn), routed, "out", inward * spec.experts)]
        found += [Matrix("experts", routed, float(spec.ffn), "into", float(spec.experts))]
    if width:
        often = 1.0 if moe else share.ffn
        found += [Matrix("gate", width, hidden, copies=often)] if model.gated else []
        found += [Matrix("up", width, hidden, copies=often)]
        found += [Matrix("down", hidden, width, "into", often)]
    return [matrix for matrix in found if matrix.copies]


def _adapter(matrix: Matrix, tune: Finetune, tp: Floats) -> Floats:
    """Adapter parameters on one matrix, on one rank of `tp`."""
    out = matrix.out / tp if matrix.split == "out" else matrix.out
    into = matrix.into / tp if matrix.split == "into" else matrix.into
    magnitudes = out if tune.method == "dora" else 0.0
    return np.asarray(matrix.copies * (tune.rank * (out + into) + magnitudes))


def adapter_parameters(model: Model, tune: Finetune) -> int:
    """Parameters of all adapters; 0 with method full. Equals what PEFT builds."""
    if not tune.adapts:
        return 0
    total: float = 0.0
    for moe, count in ((False, model.layers - model.moe_layers), (True, model.moe_layers)):
        if count:
            each = layer_matrices(model, moe=moe)
            whole = [_adapter(m, tune, np.ones(1)) for m in each if m.target in tune.targets]
            total += count * float(np.sum(whole))
    for target in ("head", "embedding"):
        if target in tune.targets:
            total += tune.rank * (model.vocab + model.hidden)
    return round(total)


def stored_bytes(tune: Finetune, matrix_bytes: float) -> float:
    """Bytes of one frozen matrix element, given those of the precision recipe."""
    if tune.storage == "16-bit":
        return matrix_bytes
    if tune.double_quantization and tune.storage in ("nf4", "fp4"):
        return DOUBLE_QUANTISED
    return STORED_BYTES[tune.storage]


def largest_matrix(model: Model) -> float:
    """Elements of the largest layer matrix: what is written out in 16 bits for one product."""
    kinds = [
        layer_matrices(model, moe=moe) for moe in ((False, True) if model.experts else (False,))
    ]
    return max(m.out * m.into for kind in kinds for m in kind)


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of one rank before ZeRO, dense and expert; arrays of shape (rows,).

    `held` counts base parameters, `stored` their bytes; `trained` counts those of them that train
    and `adapters` the parameters beside them.
    """

    held: tuple[Floats, Floats]
    stored: tuple[Floats, Floats]
    trained: tuple[Floats, Floats]
    adapters: tuple[Floats, Floats]
    travelling: tuple[Floats, Floats] | None = None
    """Bytes that ranks gather under ZeRO-3, where they are not what is stored."""


def role_weights(
    model: Model, job: Job, columns: LayoutColumns, layers: StageLayers, local: LocalParameters,
    role: str, dense: Floats, expert: Floats, frozen_bytes: float = 0.0,
) -> Weights:  # fmt: skip
    """Split what one rank of a role holds (`dense` and `expert` base parameters) by how it is kept.

    Without fine-tuning everything trains in the precision recipe's bytes. `frozen_bytes` is what a program
    keeps of a frozen parameter that is not quantised; 0: the recipe's. They are gathered as the recipe has them.
    """
    tune, each = job.finetune, job.precision.parameter_bytes
    zero = np.zeros(columns.rows)
    if tune is None:
        return Weights(
            (dense, expert), (each * dense, each * expert), (dense, expert), (zero, zero)
        )
    counts = {False: layers.dense[role], True: layers.moe[role]}
    kinds = [(moe, counts[moe]) for moe in ((False, True) if model.experts else (False,))]
    embedding = np.where(np.full(columns.rows, role == "first"), local.embedding_matrix, 0.0)
    on_first = pipeline.head_on_first_rank(columns)
    here = {"first": on_first, "middle": on_first & False, "last": ~on_first}[role]
    head = np.where(here & (not local.tied), local.embedding_matrix, 0.0)
    outside = {"embedding": embedding, "head": head}
    if model.encoder is not None:
        outside["vision"] = encoder_parameters(model, columns, job.framework) * (role == "first")
    inside = sum((counts[moe] * _norms(model, moe) for moe, _ in kinds), zero)
    outside["norms"] = inside
    if not tune.adapts:
        return _partly_frozen(tune, each, layers, local, role, (dense, expert), outside)
    tp, ep = columns.tp.astype(np.float64), columns.ep.astype(np.float64)
    etp = columns.etp.astype(np.float64)
    matrices, of_dense, of_experts = zero, zero, zero
    for moe, count in kinds:
        for matrix in layer_matrices(model, moe=moe):
            if matrix.target == "experts":
                if "experts" in tune.targets:
                    of_experts = of_experts + count * _adapter(matrix, tune, etp) / ep
                continue
            share = 1.0 if matrix.split == "none" else tp
            matrices = matrices + count * matrix.copies * matrix.out * matrix.into / share
            if matrix.target in tune.targets:
                of_dense = of_dense + count * _adapter(matrix, tune, tp)
    trained = zero
    for part in tune.train:
        trained = trained + outside[part]
    for target in ("head", "embedding"):
        if target in tune.targets:
            there = outside[target] > 0
            of_dense = of_dense + np.where(
                there, tune.rank * (model.vocab / tp + model.hidden), 0.0
            )
    matrices = np.minimum(matrices, dense)
    rest = dense - matrices
    kept = frozen_bytes or each
    plain = 4.0 if tune.upcast else kept
    stored = stored_bytes(tune, kept)
    travelling = None
    if kept != each and tune.storage == "16-bit":
        travelling = (each * (dense + trained), each * expert)
    # PEFT's modules_to_save train a copy, in its precision, beside the frozen original.
    return Weights(
        (dense, expert),
        (stored * matrices + plain * rest + each * trained, stored * expert),
        (trained, zero),
        (of_dense, of_experts),
        travelling,
    )


def _partly_frozen(
    tune: Finetune, each: float, layers: StageLayers, local: LocalParameters, role: str,
    held: tuple[Floats, Floats], outside: dict[str, Floats],
) -> Weights:  # fmt: skip
    """Method full: everything trains but the named parts and the first layers (on the first rank).

    Of layers that train in turn, the largest are counted.
    """
    dense, expert = held
    if tune.in_turn:
        zero = np.zeros_like(dense)
        moe = np.minimum(layers.moe[role], tune.in_turn)
        rest = np.minimum(layers.dense[role], tune.in_turn - moe)
        trained = (rest * local.dense_layer + moe * local.moe_layer, moe * local.experts_layer)
        return Weights(held, (each * dense, each * expert), trained, (zero, zero))
    frozen, frozen_experts = np.zeros_like(dense), np.zeros_like(dense)
    for part in tune.freeze:
        frozen = frozen + outside.get(part, 0.0)
    if tune.frozen_layers and role == "first":
        of_dense = np.minimum(layers.dense[role], tune.frozen_layers)
        of_moe = np.minimum(layers.moe[role], tune.frozen_layers - of_dense)
        frozen = frozen + of_dense * local.dense_layer + of_moe * local.moe_layer
        frozen_experts = of_moe * local.experts_layer
    trained = (np.maximum(dense - frozen, 0.0), np.maximum(expert - frozen_experts, 0.0))
    zero = np.zeros_like(dense)
    return Weights(held, (each * dense, each * expert), trained, (zero, zero))


def _norms(model: Model, moe: bool) -> Floats:
    return layer_parameters(model, moe).norms


def adapter_state_bytes(job: Job) -> tuple[float, float, float]:
    """Bytes per trained adapter parameter: weight, gradient, and all that the optimizer keeps.

    torch's optimizers keep their states in the precision of the weights; 8-bit ones in 8 bits.
    """
    tune, precision = job.finetune, job.precision
    if tune is None or not tune.adapter_bytes:
        states = precision.master_bytes + job.optimizer.state_bytes
        return precision.parameter_bytes, precision.gradient_bytes, states
    weight = tune.adapter_bytes
    if job.optimizer.state_bytes <= 2:  # 8-bit states, or none
        return weight, weight, job.optimizer.state_bytes
    moments = job.optimizer.state_bytes / (2.0 if job.optimizer.name.endswith("-bf16") else 4.0)
    return weight, weight, moments * weight


def adapter_times(
    model: Model, job: Job, kernels: Kernels, tokens: Ints, tp: Ints, moe: bool
) -> tuple[Floats, Floats]:
    """Seconds of one layer's adapters, forward and backward, for a micro-batch of `tokens`.

    Two thin products each, their two gradients in backward; scaling and adding to the base's result
    moves its width three times, a dropped input twice its own. DoRA makes the adapters' product and
    the norm of its sum with the weight for every forward.
    """
    tune = job.finetune
    forward, backward = np.zeros(len(tokens)), np.zeros(len(tokens))
    if tune is None or not tune.adapts:
        return forward, backward
    element, rank = job.precision.activation_bytes, np.full_like(tp, tune.rank)
    for matrix in layer_matrices(model, moe=moe):
        if matrix.target not in tune.targets or matrix.target == "experts":
            continue
        out = _on_rank(matrix.out, matrix.split == "out", tp)
        into = _on_rank(matrix.into, matrix.split == "into", tp)
        for width, inner in ((rank, into), (out, rank)):
            forward = forward + gemm_time_s(kernels, tokens, width, inner)
            backward = backward + gemm_time_s(kernels, tokens, inner, width)
            backward = backward + gemm_time_s(kernels, width, inner, tokens)
        moved = 3.0 * out + (2.0 * into if tune.dropout else 0.0)
        passes = stream_time_s(kernels, np.asarray(tokens * moved * element, np.float64), 3.0)
        forward, backward = forward + passes, backward + passes
        if tune.method == "dora":
            written = gemm_time_s(kernels, out, into, rank)
            read = stream_time_s(kernels, np.asarray(4.0 * element * out * into), 4.0)
            forward = forward + written + read
    return forward, backward


def _on_rank(width: float, split: bool, tp: Ints) -> Ints:
    whole = np.full_like(tp, round(width))
    return ceil_div(round(width), tp) if split else whole


def unpack_times(
    model: Model, job: Job, kernels: Kernels, tp: Ints, moe: bool
) -> tuple[Floats, Floats]:
    """Seconds to write one layer's quantised matrices out in 16 bits, forward and backward.

    It takes as long for one token as for a million, so short micro-batches feel it.
    """
    tune = job.finetune
    there, back = UNPACK_BYTES.get(tune.storage, (0.0, 0.0)) if tune is not None else (0.0, 0.0)
    elements = np.zeros(len(tp))
    for matrix in layer_matrices(model, moe=moe):
        if matrix.target != "experts":
            elements = elements + matrix.copies * matrix.out * matrix.into / (
                1.0 if matrix.split == "none" else tp
            )
    each = elements / kernels.bandwidth_bytes_s
    return there * each, back * each
