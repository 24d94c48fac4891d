"""Routing of tokens to experts: how many copies travel where, and what hides their travel."""

from __future__ import annotations

import numpy as np

from meshwright.costs.collectives import all_gather, all_to_all_cost, reduce_scatter, ring_bandwidth
from meshwright.costs.columns import Bools, Floats, Ints, LayoutColumns
from meshwright.costs.data_parallel import overlap_slowdown
from meshwright.costs.fabric import Fabric, place
from meshwright.costs.kernels import ceil_div
from meshwright.costs.layer_setting import LayerKeys, LayerModel
from meshwright.costs.recompute_modules import runs_again
from meshwright.costs.routing import hottest_rank
from meshwright.specs.job import Job
from meshwright.specs.layout import SCHEDULES
from meshwright.specs.model import Model
from meshwright.specs.numerics import numerics_of

DUALPIPE = SCHEDULES.index("dualpipe")
DISPATCH_REACH = 0.72
"""Share of the rate of an NVLink ring that kernels which send tokens by the copy reach inside a
domain: DeepEP's 20 multiprocessors move 275 to 277 GB/s on H100 where an all-to-all of NCCL moves 381
(dispatch and combine of 4,096 tokens; ai-dynamo/aiconfigurator)."""

HYBRID_REACH = 0.9
"""The same of HybridEP, whose kernels alone reach a NVLink domain that is larger than a host: dispatch and combine
of 4,096 tokens in bf16 among 36 GB200 move 632 and 597 GB/s with the 32 multiprocessors that recipes give them, where a
ring moves 691 (deepseek-ai/DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md)."""

HOST_DEVICES = 8
"""Devices of the largest host: a NVLink domain beyond it is a rack's."""


def routed_tokens(model: Model, job: Job, keys: LayerKeys, tokens: Ints) -> Ints:
    """Token copies that the experts of the hottest rank process per micro-batch.

    Each of the tp ranks of an attention group dispatches its 1/tp share of the tokens. How many times
    the mean the hottest rank gets is the job's routing (`costs.routing`): all ranks wait for it.
    """
    assert model.experts is not None
    even = ceil_div(tokens * model.experts.top_k * keys.etp, keys.tp)
    if job.routing.balanced:
        return even
    hot = hottest_rank(job.routing, model.experts.experts, keys.ep)
    return np.ceil(even * hot).astype(np.int64)


def dispatch_s(setting: LayerModel, keys: LayerKeys, tokens: Ints) -> Floats:
    """Dispatch and combine: each routed copy of a token travels to its expert and back.

    A plain all-to-all sends one copy per expert chosen. Kernels that deduplicate (DeepEP, HybridEP)
    send a token once to each distinct host and once to each distinct rank: of k choices among D
    places, D·(1 − (1 − 1/D)^k) are distinct on average, which is D·(1 − (1 − 1/D)^k) / k of the
    copies, the same share for those that leave.
    """
    model, behaviour, element = (
        setting.model,
        setting.behaviour,
        setting.job.precision.activation_bytes,
    )
    each_way = 0.5 * (element + (behaviour.expert_dispatch_bytes or element))
    size = (
        routed_tokens(model, setting.job, keys, tokens)
        / keys.etp
        * float(model.expert_hidden)
        * each_way
    )
    group = place(setting.fabric, keys.ep, stride=keys.ep_stride)
    cost = all_to_all_cost(setting.fabric, size, group)
    if behaviour.expert_dispatch == "all-to-all":
        return 2.0 * cost.total_s
    assert model.experts is not None
    top_k = model.experts.top_k
    ranks, hosts = group.ranks, group.domains[0]
    leaving = (ranks - group.members[0]) / ranks
    per_byte = np.where(leaving > 0.0, cost.crossing_s / np.maximum(size * leaving, 1.0), 0.0)
    outside = size * leaving * per_byte * distinct_share(reachable(model, hosts), top_k)
    rack = in_racks(setting.fabric)
    ring = ring_bandwidth(setting.fabric, np.maximum(group.members[0], 2.0))
    reached = ring * (HYBRID_REACH if rack else DISPATCH_REACH)
    inside = (
        size * ((ranks - 1.0) / ranks) * distinct_share(reachable(model, ranks), top_k) / reached
    )
    # What arrives from outside is handed on inside while the rest arrives.
    moving = np.maximum(outside, np.where(group.members[0] > 1.0, inside, 0.0))
    # Inside a rack one kernel writes to all ranks at once.
    at_once = rack & (group.domains[0] == 1.0)
    latency = np.where(at_once, setting.fabric.link.base_s, cost.latency_s)
    return 2.0 * np.where(ranks > 1.0, latency + moving, 0.0)


def expert_tensor_s(setting: LayerModel, keys: LayerKeys, tokens: Ints) -> Floats:
    """Time in which the ranks that share experts gather each other's tokens and sum what comes out, one direction.

    Each of the `etp` ranks of an expert has received its own copies; all of them are gathered before the products and
    the outputs scattered after them (Megatron-Core, token_dispatcher.py, dispatch_postprocess and combine_preprocess),
    and the other way round in backward.
    """
    element = setting.job.precision.activation_bytes
    copies = routed_tokens(setting.model, setting.job, keys, tokens)
    size = copies * float(setting.model.expert_hidden) * element
    group = place(setting.fabric, keys.etp, stride=np.ones_like(keys.etp))
    both = all_gather(setting.fabric, size, group) + reduce_scatter(setting.fabric, size, group)
    return np.where(keys.etp > 1, both, 0.0)


def routing_map_s(setting: LayerModel, keys: LayerKeys, tokens: Ints) -> Floats:
    """Time in which ranks of a rack gather where each other's tokens go, before a layer's dispatch.

    HybridEP gathers a byte a token and expert (csrc/hybrid_ep/executor/executor.cu, `allgather_routing_map`), inside
    a rack by a kernel of its own; backward has it already.
    """
    rack = in_racks(setting.fabric)
    if setting.behaviour.expert_dispatch != "deduplicated" or not rack:
        return np.zeros(len(tokens))
    assert setting.model.experts is not None
    each = ceil_div(tokens * keys.etp, keys.tp) / keys.etp
    group = place(setting.fabric, keys.ep, stride=keys.ep_stride)
    whole = each * float(setting.model.experts.experts) * group.ranks
    ring = ring_bandwidth(setting.fabric, np.maximum(group.members[0], 2.0))
    at_once = setting.fabric.link.base_s + whole * ((group.ranks - 1.0) / group.ranks) / ring
    gathered = np.where(group.domains[0] == 1.0, at_once, all_gather(setting.fabric, whole, group))
    return np.where(group.ranks > 1.0, gathered, 0.0)


def in_racks(fabric: Fabric) -> bool:
    """Whether the innermost links reach beyond a host, so that HybridEP's kernels alone exchange tokens over them."""
    return fabric.levels[0].domain > HOST_DEVICES


def reachable(model: Model, places: Floats) -> Floats:
    """Places that hold the groups of experts that a token may choose from, on average, of `places`.

    A router that first chooses some of its groups (DeepSeek-V3: 4 of 8) sends no token beyond them.
    """
    numerics = numerics_of(model)
    groups, chosen = numerics.router_groups, numerics.router_group_top_k
    if chosen >= groups:
        return places
    each = groups / np.minimum(places, float(groups))
    missed = np.ones_like(places)
    for taken in range(chosen):
        missed = missed * np.maximum(groups - each - taken, 0.0) / (groups - taken)
    return places * (1.0 - missed)


def distinct_share(places: Floats, choices: int) -> Floats:
    """Distinct places among `choices` even and independent ones, over `choices`.

    The power is written as products, which are correctly rounded.
    """
    missed = np.ones_like(places)
    for _ in range(choices):
        missed = missed * (1.0 - 1.0 / places)
    return np.minimum(places * (1.0 - missed) / choices, 1.0)


def dispatch_may_hide(columns: LayoutColumns) -> Bools:
    """Rows whose experts' traffic may run beside another micro-batch's compute; shape (rows,).

    Recomputing whole layers, or experts with their dispatch, leaves no forward to run beside a backward,
    and a pipeline needs several chunks a rank (Megatron-Core, transformer/transformer_config.py, the
    checks of overlap_moe_expert_parallel_comm); DualPipe brings its own pairs.
    """
    paired = (columns.pp == 1) | (columns.virtual_stages > 1) | (columns.schedule == DUALPIPE)
    return paired & (columns.recompute != 2) & ~runs_again(columns, "moe")


def overlapped_dispatch_s(forward: dict[str, Floats], backward: dict[str, Floats]) -> Floats:
    """Exposed time a direction of dispatch that runs beside another micro-batch's other direction.

    One micro-batch's forward runs beside another's backward (Megatron-Core's combined 1F1B, DualPipe
    in arXiv 2412.19437 section 3.2): what exceeds the compute of both sticks out, what hides slows it.
    """
    names = ("matmul", "attention", "elementwise")
    compute = np.zeros_like(forward["matmul"])
    for name in names:
        compute = compute + forward[name] + backward[name]
    traffic = forward["expert_parallel"] + backward["expert_parallel"]
    out = np.maximum(traffic - compute, 0.0)
    return np.asarray(0.5 * (out + overlap_slowdown() * (traffic - out)))
