"""What the framework that is asked about can run; its table is specs/presets/frameworks.toml."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.costs.columns import RECOMPUTES, Bools, LayoutColumns, bits
from meshwright.costs.pipeline import CODE
from meshwright.planner.question import (
    Question,
    Rule,
    asked,
    micro_batches,
    none,
    not_in,
    scheduled,
)
from meshwright.specs.frameworks import AXIS_TITLES, Axis, lacks, only_shards
from meshwright.specs.job_words import (
    copies_when_offloaded,
    quantises_experts,
    tunes_whole_fp16,
    without_master,
)
from meshwright.specs.layout import AXES, CONTEXT_METHODS, MODULES, OFFLOADS, ranked


def _axis(axis: Axis) -> Callable[[Question, LayoutColumns], Bools]:
    def forbids(question: Question, c: LayoutColumns) -> Bools:
        if asked(question).has(axis):
            return none(c)
        degree: Bools = getattr(c, axis) > 1
        return degree

    return forbids


def _zero(question: Question, c: LayoutColumns) -> Bools:
    can = asked(question)
    wrong = not_in(can.zero, c.zero)
    wrong |= (c.pp > 1) & not_in(can.zero_with_pipeline, c.zero)
    wrong |= (c.tp > 1) & not_in(can.zero_with_tensor, c.zero)
    if can.context_needs_shards:
        wrong |= (c.cp > 1) & (c.zero < 2)
    if question.job.optimizer.name not in can.optimizers_sharded:
        wrong |= c.zero >= 2
    if without_master(question.job):
        wrong |= not_in(can.zero_without_master, c.zero)
    if quantises_experts(question.model, question.job):
        wrong |= not_in(can.zero_quantised_experts, c.zero)
    tune = question.job.finetune
    if tune is not None and tune.storage == "int8":
        wrong |= not_in(can.zero_int8, c.zero)
    # With a single replica nothing is sharded, whatever the framework calls it.
    several = c.dp * c.cp > 1
    if tunes_whole_fp16(question.job) and 0 not in can.zero_tuning_fp16:
        return wrong | ~several | not_in(can.zero_tuning_fp16, c.zero)
    if without_master(question.job) and 0 not in can.zero_without_master:
        return wrong | ~several
    return wrong & several


def _sharded_elsewhere(question: Question, c: LayoutColumns) -> Bools:
    """One program under two names would be believed by the runs of the name that is asked for."""
    if not asked(question).shards_as:
        return none(c)
    return np.asarray(c.zero >= 2)


def _nothing_to_shard(question: Question, c: LayoutColumns) -> Bools:
    """What only shards is the other program where there is one replica."""
    if not only_shards(asked(question).name):
        return none(c)
    return np.asarray(c.dp * c.cp == 1)


def _shard(question: Question, c: LayoutColumns) -> Bools:
    can, replicas = asked(question), c.dp * c.cp
    degree = np.where(c.shard > 0, c.shard, replicas)
    partly = (c.zero > 0) & (degree < replicas)
    wrong = partly if not can.hybrid_shard else partly & not_in(can.hybrid_shard_zero, c.zero)
    if can.shard_holds_context:
        wrong = wrong | (partly & (degree % c.cp != 0))
    if can.replicas_need_shards:
        wrong = wrong | (partly & (degree <= c.cp) & ((c.tp > 1) | (c.cp > 1)))
    return wrong


def _tensor(question: Question, c: LayoutColumns) -> Bools:
    can, model = asked(question), question.model
    wrong = none(c)
    if not can.tensor_in_pipeline:
        wrong |= (c.tp > 1) & (c.pp > 1)
    tune = question.job.finetune
    adapts = tune is not None and tune.adapts and not can.tensor_with_adapters
    alone = can.optimizers_with_tensor
    unsplit = bool(alone) and question.job.optimizer.name not in alone
    if lacks(model, can.tensor_needs) or adapts or unsplit:
        wrong |= c.tp > 1
    if not can.replicated_kv_heads and not model.latent_attention:
        wrong |= model.kv_heads % c.tp != 0
    return wrong


def _pipelined(question: Question, c: LayoutColumns) -> Bools:
    can = asked(question)
    if lacks(question.model, can.pipeline_needs) or can.makes_whole_logits(question.job):
        return np.asarray(c.pp > 1)
    return none(c)


def _sequence(question: Question, c: LayoutColumns) -> Bools:
    can = asked(question)
    off = (c.tp > 1) & (c.sequence_parallel == 0)
    if can.sequence_parallel == "never":
        return c.sequence_parallel > 0
    if can.sequence_parallel == "always":
        return off
    return off if can.experts_need_sequence_parallel and question.model.experts else none(c)


def _experts(question: Question, c: LayoutColumns) -> Bools:
    can = asked(question)
    if can.experts_over_shards:
        replicas = c.dp * c.cp
        shards = np.where(c.zero == 0, 1, np.where(c.shard > 0, c.shard, replicas))
        return np.asarray((shards * c.tp) % c.ep != 0)
    if not can.experts_over_data:
        return none(c)
    wrong: Bools = (c.dp % c.ep != 0) | (c.etp > 1)
    return wrong


def _recompute(question: Question, c: LayoutColumns) -> Bools:
    can = asked(question)
    wrong = not_in([RECOMPUTES.index(mode) for mode in can.recompute], c.recompute)
    if not can.recompute_layers:
        wrong |= c.recompute_layers > 0
    if can.name != "meshwright":  # its layers are chosen one by one; others' alike in every chunk
        wrong |= c.recompute_layers % np.maximum(c.virtual_stages, 1) != 0
    if not can.stage_recompute_layers:
        wrong |= c.recompute_split > 0
    if can.recompute_needs_shards:
        wrong |= (c.zero < 2) & (c.recompute > 0)
    return wrong


def _captured(question: Question, c: LayoutColumns) -> Bools:
    """A graph needs its weights in place, and one of a layer cannot hold a layer that runs again.

    Megatron-Core, transformer_config.py, for recomputation; Megatron-FSDP (ZeRO-2 and ZeRO-3 there) gathers
    weights into buffers that it frees, and none of its recipes captures graphs.
    """
    kind = question.job.framework_options.get("graphs", "none")
    wrong = (c.zero >= 2) & (c.dp * c.cp > 1)
    if kind == "layers":
        wrong |= c.recompute == RECOMPUTES.index("full")
        wrong |= (c.recompute_modules & bits(("moe",), MODULES)) > 0
    if question.job.dropout:  # what is dropped is drawn again by an FFN that runs again
        wrong |= (c.recompute_modules & bits(("mlp",), MODULES)) > 0
    return wrong if kind != "none" else none(c)


def _updated_at_once(question: Question, c: LayoutColumns) -> Bools:
    """Gradients that go with the first backward cannot be summed."""
    if not question.job.framework_options.get("optimizer_in_backward"):
        return none(c)
    return question.job.global_batch > c.dp * c.micro_batch


def _modules(question: Question, c: LayoutColumns) -> Bools:
    has = bits([name for name in MODULES if name in asked(question).recompute_modules], MODULES)
    return (c.recompute_modules & ~has) > 0


def _codes(methods: tuple[str, ...]) -> list[int]:
    return [CONTEXT_METHODS.index(name) for name in CONTEXT_METHODS if name in methods]


def _context(question: Question, c: LayoutColumns) -> Bools:
    can = asked(question)
    methods = can.context_methods_of(question.model)
    wrong = not_in(_codes(methods), c.cp_method)
    if can.context_alone:
        wrong |= (c.tp > 1) | (c.pp > 1)
    kernel = question.job.attention_kernel
    whole = bool(can.context_kernels) and kernel not in can.context_kernels
    vendor = question.cluster.device.vendor
    unsplit = can.splits_nothing_of(question.model, question.job, vendor)
    if whole or unsplit or lacks(question.model, can.context_needs):
        wrong |= c.cp > 1
    return (c.cp > 1) & wrong


def _offload(question: Question, c: LayoutColumns) -> Bools:
    can, job = asked(question), question.job
    wrong = (c.offload & ~bits(can.offload, OFFLOADS)) > 0
    movable = can.optimizers_offloaded
    if (movable and job.optimizer.name not in movable) or copies_when_offloaded(job, can):
        wrong |= (c.offload & bits(("optimizer",), OFFLOADS)) > 0
    if can.offload_together:
        weights, optimizer = (
            (c.offload & bits((what,), OFFLOADS)) > 0 for what in ("parameters", "optimizer")
        )
        wrong |= weights != optimizer
    # Megatron-Core moves attention's output with its inputs only, and nothing inside experts that run again.
    output, inside = (
        (c.offload & bits(names, OFFLOADS)) > 0
        for names in (("attn_proj",), ("expert_fc1", "moe_act"))
    )
    wrong |= output & ((c.offload & bits(("core_attn",), OFFLOADS)) == 0)
    wrong |= inside & (c.recompute == 1) & ((c.recompute_modules & bits(("moe",), MODULES)) > 0)
    if can.offload_activations_recomputed:
        moved = (c.offload & bits(("activations",), OFFLOADS)) > 0
        wrong |= moved & (c.recompute != RECOMPUTES.index("full"))
    return wrong


def _offload_stage(question: Question, c: LayoutColumns) -> Bools:
    can = asked(question)
    weights = (c.offload & bits(("parameters",), OFFLOADS)) > 0
    states = ((c.offload & bits(("optimizer",), OFFLOADS)) > 0) & (c.dp * c.cp > 1)
    beside = (c.offload & ~bits(can.offload_with_context, OFFLOADS)) > 0
    wrong = weights & not_in(can.offload_parameters_zero, c.zero)
    wrong |= states & not_in(can.offload_optimizer_zero, c.zero)
    other = not_in(_codes(can.context_by_deepspeed), c.cp_method)
    return wrong | (beside & (c.cp > 1) & other)


def _stages(question: Question, c: LayoutColumns) -> Bools:
    can = asked(question)
    stages = c.pp * c.virtual_stages
    wrong = none(c)
    if can.equal_stages:
        wrong |= question.model.layers % stages != 0
    if not can.stage_layers:
        wrong |= c.named_stages
    return wrong


def _schedule(question: Question, c: LayoutColumns) -> Bools:
    codes = [CODE[name] for name in asked(question).schedules]
    return (c.pp > 1) & not_in(codes, c.schedule)


def _rounds(question: Question, c: LayoutColumns) -> Bools:
    if not asked(question).fills_pipeline:
        return none(c)
    m = micro_batches(question, c)
    short = scheduled(c, ("1f1b",)) & (m < c.pp)
    uneven = scheduled(c, ("interleaved", "zb-h1")) & (m % np.maximum(m // c.pp, 1) != 0)
    return (c.pp > 1) & (short | uneven)


def _order(question: Question, c: LayoutColumns) -> Bools:
    can = asked(question).rank_orders
    if not can:
        return none(c)
    # Only axes above 1 have a place: an order is known by how it ranks those.
    masks = np.zeros(c.rows, dtype=np.int64)
    for bit, axis in enumerate(AXES):
        masks += (getattr(c, axis) > 1) << np.int64(bit)
    codes = masks * len(c.orders) + c.rank_order
    wrong = np.zeros(len(c.orders) << len(AXES), dtype=bool)
    for code in np.flatnonzero(np.bincount(codes)):
        mask, order = divmod(int(code), len(c.orders))
        used = [axis for bit, axis in enumerate(AXES) if mask >> bit & 1]
        wrong[code] = ranked(c.orders[order], used) not in [ranked(name, used) for name in can]
    return wrong[codes]


FRAMEWORK_RULES: tuple[Rule, ...] = (
    *(
        Rule(f"framework: {axis}", f"the framework has no {title}", _axis(axis))
        for axis, title in AXIS_TITLES.items()
    ),
    Rule("framework: ZeRO stage", "the framework cannot run this ZeRO stage", _zero),
    Rule(
        "framework: sharded elsewhere",
        "what shards gradients and weights there (ZeRO-2, ZeRO-3) is planned as --framework megatron-fsdp",
        _sharded_elsewhere,
    ),
    Rule(
        "framework: nothing to shard",
        "the framework shards weights among replicas (dp · cp), of which there is one: --framework megatron is the same",
        _nothing_to_shard,
    ),
    Rule(
        "framework: shard degree",
        "the framework has no ZeRO groups of this size (some need all data-parallel ranks or none)",
        _shard,
    ),
    Rule("framework: schedule", "the framework cannot run this schedule", _schedule),
    Rule(
        "framework: micro-batches",
        "the framework's 1f1b needs at least pp micro-batches, its interleaving equal rounds of them",
        _rounds,
    ),
    Rule("framework: stages", "the framework splits the layers into stages itself", _stages),
    Rule(
        "framework: tensor parallel",
        "the framework cannot split this model over so many tensor-parallel ranks",
        _tensor,
    ),
    Rule(
        "framework: pipelined model",
        "the framework has no pipeline for this model, or for this loss",
        _pipelined,
    ),
    Rule(
        "framework: sequence parallel",
        "the framework has no tensor parallelism with this choice of sequence parallelism",
        _sequence,
    ),
    Rule(
        "framework: experts",
        "the framework lays experts out over data-parallel ranks alone",
        _experts,
    ),
    Rule("framework: recompute", "the framework cannot recompute like this", _recompute),
    Rule(
        "CUDA graphs",
        "CUDA graphs go with no ZeRO-2 or ZeRO-3, and those of layers with no recomputation of whole "
        "layers or of their experts, nor with that of FFNs beside dropout",
        _captured,
    ),
    Rule(
        "updates in backward",
        "updates in backward (optimizer_in_backward) go with one micro-batch a step: dp · micro-batch is the "
        "global batch",
        _updated_at_once,
    ),
    Rule(
        "framework: recomputed modules",
        "the framework does not recompute such parts of a layer by name",
        _modules,
    ),
    Rule(
        "framework: context method",
        "the framework does not bring keys and values to other context-parallel ranks this way (or not "
        "beside tensor or pipeline parallelism)",
        _context,
    ),
    Rule("framework: offload", "the framework cannot keep this in host memory", _offload),
    Rule(
        "framework: offload under ZeRO",
        "the framework keeps this in host memory under another ZeRO stage, or not where sequences are split",
        _offload_stage,
    ),
    Rule("framework: rank order", "the framework orders ranks otherwise", _order),
)
