"""What a target lacks for a plan, rule by rule.

A rule looks at one thing that a plan asks for and either passes or yields a `Problem`: what the target
lacks, and the layout fields that would remove it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field as default_of
from typing import Any

from meshwright.specs.frameworks import AXIS_TITLES, Framework, lacks, splitting_by
from meshwright.specs.job import Job
from meshwright.specs.job_words import (
    copies_when_offloaded,
    quantises_experts,
    tunes_whole_fp16,
    without_master,
)
from meshwright.specs.layout import Layout
from meshwright.specs.plan import Plan


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a target cannot express, and the change of layout that removes it."""

    field: str
    value: object
    lacks: str
    change: dict[str, Any] = default_of(default_factory=dict)


FLAT = {"virtual_stages": 1, "stage_layers": None, "stage_recompute_layers": None}
"""The change of a layout that leaves nothing of several stages a rank."""


def axes(layout: Layout, can: Framework) -> Iterator[Problem]:
    """Axes that the framework lacks."""
    for axis, title in AXIS_TITLES.items():
        value = getattr(layout, axis)
        if value > 1 and not can.has(axis):
            change: dict[str, Any] = {axis: 1}
            if axis in ("pp", "virtual_stages"):
                change |= FLAT | {"schedule": "1f1b"}
            yield Problem(axis, value, f"has no {title}", change)


def splits(plan: Plan, layout: Layout, can: Framework) -> Iterator[Problem]:
    """What an axis asks of the model."""
    model = plan.model
    one = {"tp": 1, "sequence_parallel": False, "etp": 1}
    if layout.tp > 1:
        for need in lacks(model, can.tensor_needs):
            yield Problem("tp", layout.tp, f"has tensor parallelism for models with {need}", one)
        name, able = plan.job.optimizer.name, can.optimizers_with_tensor
        if able and name not in able:
            yield Problem("tp", layout.tp, f"has no tensor parallelism beside {name}", one)
        if (
            plan.job.finetune is not None
            and plan.job.finetune.adapts
            and not can.tensor_with_adapters
        ):
            yield Problem("tp", layout.tp, "has no tensor parallelism beside adapters", one)
        if layout.pp > 1 and not can.tensor_in_pipeline:
            yield Problem("tp", layout.tp, "has no tensor parallelism inside its pipeline", one)
        whole = can.replicated_kv_heads or bool(model.latent_attention)
        if not whole and model.kv_heads % layout.tp:
            most = max(
                n for n in range(1, layout.tp + 1) if not (model.kv_heads % n or layout.tp % n)
            )
            yield Problem(
                "tp", layout.tp, f"splits whole key-value heads ({model.kv_heads})", {"tp": most}
            )
    if can.experts_over_data and layout.dp % layout.ep:
        says = f"lays experts out over data: ep must divide dp = {layout.dp}"
        yield Problem("ep", layout.ep, says, {"ep": math.gcd(layout.ep, layout.dp)})
    shards = layout.shard_degree
    if can.experts_over_shards and (shards * layout.tp) % layout.ep:
        says = f"lays experts out over shards and split layers: ep must divide {shards * layout.tp}"
        yield Problem("ep", layout.ep, says, {"ep": math.gcd(layout.ep, shards * layout.tp)})
    flat = FLAT | {"pp": 1, "schedule": "1f1b"}
    if layout.pp > 1:
        for need in lacks(model, can.pipeline_needs):
            yield Problem("pp", layout.pp, f"has a pipeline for models with {need}", flat)
        if can.equal_stages and model.layers % (layout.pp * layout.virtual_stages):
            yield Problem("pp", layout.pp, f"has equal stages of the {model.layers} layers", flat)


def sharding(plan: Plan, layout: Layout, can: Framework) -> Iterator[Problem]:
    """ZeRO stages beside the other degrees, and how far shards reach."""
    alone = layout.dp * layout.cp == 1
    movable, name = can.optimizers_offloaded, plan.job.optimizer.name
    if "optimizer" in layout.offload and movable and name not in movable:
        kept = tuple(what for what in layout.offload if what != "optimizer")
        says = f"keeps {' or '.join(movable)} alone in host memory, not {name}"
        yield Problem("offload", list(layout.offload), says, {"offload": kept})
    if copies_when_offloaded(plan.job, can) and "optimizer" in layout.offload:
        kept = tuple(what for what in layout.offload if what != "optimizer")
        yield Problem("offload", list(layout.offload), "keeps a copy of 16-bit weights in host memory beside "
                      "an offloaded optimizer", {"offload": kept})  # fmt: skip
    if without_master(plan.job) and alone and 0 not in can.zero_without_master:
        yield Problem("zero", 0, "updates 16-bit weights without a copy over several replicas only")
    scaled = tunes_whole_fp16(plan.job)
    if scaled and alone and 0 not in can.zero_tuning_fp16:
        yield Problem("zero", 0, "trains all weights in fp16 over several replicas only")
    if alone:
        return
    allowed = list(can.zero_stages(tp=layout.tp, pp=layout.pp))
    if scaled:
        allowed = [stage for stage in allowed if stage in can.zero_tuning_fp16]
    if can.context_needs_shards and layout.cp > 1:
        allowed = [stage for stage in allowed if stage >= 2]
    if without_master(plan.job):
        allowed = [stage for stage in allowed if stage in can.zero_without_master]
    if quantises_experts(plan.model, plan.job):
        allowed = [stage for stage in allowed if stage in can.zero_quantised_experts]
    if plan.job.finetune is not None and plan.job.finetune.storage == "int8":
        allowed = [stage for stage in allowed if stage in can.zero_int8]
    if plan.job.optimizer.name not in can.optimizers_sharded:
        allowed = [stage for stage in allowed if stage < 2]
    if allowed and layout.zero not in allowed:
        axes = [
            f"{axis} {getattr(layout, axis)}"
            for axis in ("tp", "pp", "cp")
            if getattr(layout, axis) > 1
        ]
        beside = f" beside {', '.join(axes)}" if axes else ""
        closest = min(allowed, key=lambda stage: (abs(stage - layout.zero), -stage))
        yield Problem(
            "zero",
            layout.zero,
            f"expresses ZeRO stage {', '.join(map(str, allowed))}{beside}",
            {"zero": closest, "shard": 0 if closest == 0 else layout.shard},
        )
    elif not allowed:
        yield Problem("zero", layout.zero, f"has no ZeRO stage with {plan.job.optimizer.name} here")
    yield from _groups(layout, can)


def _groups(layout: Layout, can: Framework) -> Iterator[Problem]:
    if not layout.zero or not layout.shard:
        return
    degree, whole = layout.shard_degree, {"shard": 0}
    if not can.hybrid_shard:
        yield Problem("shard", degree, "shards over all data-parallel ranks or none", whole)
    elif can.shard_holds_context and degree % layout.cp:
        yield Problem("shard", degree, "shards over whole context-parallel groups", whole)
    elif can.replicas_need_shards and degree <= layout.cp and layout.tp * layout.cp > 1:
        yield Problem("shard", degree, "shards over two data-parallel ranks at least beside tensor "
                      "or context parallelism", whole)  # fmt: skip


V_SCHEDULES = ("zb-v", "dualpipe-v", "v-half", "v-min")
_ONE_STAGE = ("1f1b", "gpipe", "zb-h1", "zb-h2", "zb-auto")


def _even_rounds(plan: Plan, layout: Layout) -> int:
    """The nearest micro-batch whose number makes equal rounds; 0 where none does."""
    rows = plan.job.global_batch // layout.dp
    sizes = [size for size in range(1, rows + 1) if rows % size == 0]
    fit = [size for size in sizes if (rows // size) % max(rows // size // layout.pp, 1) == 0
           and rows // size >= layout.pp]  # fmt: skip
    return min(fit, key=lambda size: abs(size - layout.micro_batch), default=0)


def pipeline(plan: Plan, layout: Layout, can: Framework) -> Iterator[Problem]:
    """Schedules, their micro-batches, and the layers of stages."""
    if layout.pp == 1 or not can.has("pp"):
        return
    count = plan.job.global_batch // (layout.dp * layout.micro_batch)
    if can.fills_pipeline and layout.schedule == "1f1b" and count < layout.pp:
        yield Problem("micro_batches", count, f"runs 1f1b with at least pp = {layout.pp} micro-batches",
                      {"micro_batch": 1})  # fmt: skip
    if can.fills_pipeline and layout.schedule in ("interleaved", "zb-h1"):
        # torch's interleaving runs whole rounds: the micro-batches over the rounds that pp fits into them.
        rounds = max(count // layout.pp, 1)
        if count % rounds:
            micro = _even_rounds(plan, layout)
            yield Problem("micro_batches", count, f"interleaves in equal rounds; {count} micro-batches make no "
                          f"{rounds} rounds", {"micro_batch": micro} if micro else {})  # fmt: skip
    if layout.schedule not in can.schedules:
        closest = "interleaved" if layout.virtual_stages > 1 else "1f1b"
        change: dict[str, Any] = {"schedule": closest}
        if closest not in can.schedules:
            change = FLAT | {"schedule": can.schedules[0]}
        yield Problem(
            "schedule", layout.schedule, f"runs the schedules {', '.join(can.schedules)}", change
        )
    elif layout.schedule in V_SCHEDULES and layout.virtual_stages != 2:
        yield Problem("virtual_stages", layout.virtual_stages, "runs V schedules with two stages a "
                      "rank", FLAT | {"virtual_stages": 2})  # fmt: skip
    elif layout.schedule in _ONE_STAGE and layout.virtual_stages > 1:
        yield Problem("virtual_stages", layout.virtual_stages, f"runs {layout.schedule} with one "
                      "stage a rank", FLAT)  # fmt: skip
    if layout.stage_layers is not None and not can.stage_layers:
        yield Problem(
            "stage_layers",
            list(layout.stage_layers),
            "splits the layers into stages itself",
            {"stage_layers": None},
        )


_LOSS_WRITTEN = {"torchtitan": "chunked"}
"""Frameworks that know several losses and whose exported files always ask for the same one."""


def loss(job: Job, can: Framework) -> Iterator[Problem]:
    """A loss that the framework knows and its exported files do not ask for."""
    written = _LOSS_WRITTEN.get(can.name)
    if written and job.loss not in ("framework", written) and job.loss in can.losses:
        yield Problem("job.loss", job.loss, f"is exported with the loss made {written}")


def recompute(layout: Layout, can: Framework) -> Iterator[Problem]:
    """What runs again in the backward, and what lives in host memory."""
    if layout.recompute not in can.recompute:
        closest = "full" if "full" in can.recompute else "none"
        yield Problem(
            "recompute",
            layout.recompute,
            f"recomputes {' or '.join(can.recompute)}",
            {"recompute": closest, "recompute_layers": 0, "stage_recompute_layers": None},
        )
    elif layout.recompute != "none" and can.recompute_needs_shards and layout.zero < 2:
        several = layout.dp * layout.cp > 1
        yield Problem(
            "recompute",
            layout.recompute,
            "turns recomputation on in its settings of sharding",
            {"zero": 2} if several else {"recompute": "none", "recompute_layers": 0},
        )
    unknown = [name for name in layout.recompute_modules if name not in can.recompute_modules]
    if unknown:
        kept = tuple(name for name in layout.recompute_modules if name not in unknown)
        change: dict[str, object] = {"recompute_modules": kept}
        if not kept:
            change |= {"recompute": "full" if "full" in can.recompute else "none"}
        yield Problem("recompute_modules", list(layout.recompute_modules), "does not recompute "
                      f"{' or '.join(unknown)} by name", change)  # fmt: skip
    away = [what for what in layout.offload if what not in can.offload]
    if away:
        yield Problem(
            "offload",
            list(layout.offload),
            f"is told nothing here that keeps {' or '.join(away)} in host memory",
            {"offload": tuple(what for what in layout.offload if what in can.offload)},
        )
    yield from _hosted(layout, can)
    if layout.stage_recompute_layers is not None and not can.stage_recompute_layers:
        # The stage that recomputes most keeps every stage inside its memory.
        most = max(layout.stage_recompute_layers) * layout.virtual_stages
        yield Problem(
            "stage_recompute_layers",
            list(layout.stage_recompute_layers),
            "recomputes alike in every stage",
            {"stage_recompute_layers": None, "recompute_layers": most},
        )
    again, chunks = layout.recompute_layers, layout.virtual_stages
    if again % chunks:
        yield Problem("recompute_layers", again, f"recomputes the same number of layers in each of "
                      f"{chunks} chunks", {"recompute_layers": -(-again // chunks) * chunks})  # fmt: skip
    if layout.recompute_layers and not can.recompute_layers:
        yield Problem(
            "recompute_layers",
            layout.recompute_layers,
            "recomputes all layers or none",
            {"recompute_layers": 0},
        )


def _hosted(layout: Layout, can: Framework) -> Iterator[Problem]:
    """What lives in host memory beside the sharding and recomputation that it needs."""
    away = list(layout.offload)
    stages = can.offload_parameters_zero
    if "parameters" in away and layout.zero not in stages:
        says = f"keeps weights in host memory under ZeRO stage {' or '.join(map(str, stages))}"
        yield Problem("offload", away, says, {"zero": max(stages)})
    stages = can.offload_optimizer_zero
    if "optimizer" in away and layout.dp * layout.cp > 1 and layout.zero not in stages:
        says = f"keeps an optimizer in host memory under ZeRO stage {', '.join(map(str, stages))}"
        yield Problem("offload", away, says, {"zero": min(stages)})
    kept = tuple(what for what in layout.offload if what in can.offload_with_context)
    other = layout.cp > 1 and layout.cp_method not in can.context_by_deepspeed
    if other and len(kept) < len(away):
        engine = (
            f" other than by {' or '.join(can.context_by_deepspeed)}"
            if can.context_by_deepspeed
            else ""
        )
        says = f"keeps {' or '.join(can.offload_with_context)} alone in host memory where sequences are split{engine}"
        yield Problem("offload", away, says, {"offload": kept})
    if can.offload_together and ("optimizer" in away) != ("parameters" in away):
        says = "keeps weights, gradients and optimizer in host memory together"
        both = tuple(
            w for w in ("activations", "optimizer", "parameters") if w in away or w != "activations"
        )
        yield Problem("offload", away, says, {"offload": both})
    if can.offload_activations_recomputed and "activations" in away and layout.recompute != "full":
        says = "moves only checkpointed activations: full recomputation is expected"
        yield Problem("offload", away, says, {"recompute": "full"})


def _elsewhere(plan: Plan) -> str:
    """Who splits sequences as a plan does, as the rest of a sentence; "" where nobody whose files are written here."""
    method = plan.layout.cp_method
    others = splitting_by(method, plan.model, tuning=plan.job.finetune is not None)
    return f"; {method} is planned with --framework {' or '.join(others)}" if others else ""


def ranks(plan: Plan, layout: Layout, can: Framework) -> Iterator[Problem]:
    """The order of ranks, and how sequences are split over them."""
    if can.rank_orders and layout.rank_order not in can.rank_orders:
        yield Problem(
            "rank_order",
            layout.rank_order,
            f"orders ranks as {' or '.join(can.rank_orders)}",
            {"rank_order": can.rank_orders[0]},
        )
    if layout.cp > 1 and can.has("cp"):
        for need in lacks(plan.model, can.context_needs):
            yield Problem(
                "cp", layout.cp, f"has context parallelism for models with {need}", {"cp": 1}
            )
    kernel = plan.job.attention_kernel
    if layout.cp > 1 and can.context_kernels and kernel not in can.context_kernels:
        says = f"splits sequences under {' or '.join(can.context_kernels)} attention alone"
        yield Problem("cp", layout.cp, f"{says}, not {kernel}", {"cp": 1})
    vendor = plan.cluster.device.vendor
    if layout.cp > 1 and can.splits_nothing_of(plan.model, plan.job, vendor):
        says = "splits neither sliding windows nor packed documents over these devices"
        yield Problem("cp", layout.cp, says, {"cp": 1})
    methods = can.context_methods_of(plan.model)
    if layout.cp > 1 and can.has("cp") and not methods:
        yield Problem("cp", layout.cp, "has no context parallelism for this attention", {"cp": 1})
    elif layout.cp > 1 and can.has("cp") and layout.cp_method not in methods:
        yield Problem(
            "cp_method",
            layout.cp_method,
            f"moves keys and values of this attention by {' or '.join(methods)}{_elsewhere(plan)}",
            {"cp_method": methods[0]},
        )
    if layout.cp > 1 and can.context_alone and layout.tp * layout.pp > 1:
        flat = FLAT | {"pp": 1, "schedule": "1f1b", "tp": 1, "sequence_parallel": False}
        says = "splits sequences beside neither tensor nor pipeline parallelism"
        yield Problem("cp", layout.cp, says, flat)
    if layout.tp == 1:
        return
    if can.sequence_parallel != "free":
        wanted = can.sequence_parallel == "always"
        if layout.sequence_parallel != wanted:
            word = "always runs tensor parallelism with" if wanted else "has no"
            yield Problem(
                "sequence_parallel",
                layout.sequence_parallel,
                f"{word} sequence parallelism",
                {"sequence_parallel": wanted},
            )
    elif can.experts_need_sequence_parallel and plan.model.experts and not layout.sequence_parallel:
        yield Problem(
            "sequence_parallel",
            False,
            "trains experts with tensor parallelism only with sequence parallelism",
            {"sequence_parallel": True},
        )
