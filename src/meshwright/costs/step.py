"""Step time and memory of layouts, in columns: the one place where all costs come together.

`price` takes a table of layouts and returns a table of estimates; `estimate` does the same for one
layout through the same code. Time parts add up to the step time, memory parts to the peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.costs import flops, measured_sharing, measured_step, pipeline
from meshwright.costs.columns import (
    RECOMPUTES,
    Floats,
    Ints,
    LayoutColumns,
    from_layouts,
    named,
    strides,
)
from meshwright.costs.confidence import memory_range, time_range
from meshwright.costs.data_parallel import PESSIMISTIC_TRAFFIC, data_parallel_s
from meshwright.costs.host import host_sets_the_pace
from meshwright.costs.layer import PARTS as LAYER_PARTS
from meshwright.costs.measured_machine import Machine
from meshwright.costs.memory import PARTS as MEMORY_PARTS
from meshwright.costs.memory import MemoryColumns, default_process_bytes, memory
from meshwright.costs.offload import in_host, offload_s
from meshwright.costs.partial_training import model_flops_per_token, trained_shares
from meshwright.costs.pessimism import pessimistic_s
from meshwright.costs.pipeline_messages import exposed_hops_s, hop_s
from meshwright.costs.recompute_modules import repeated_flops_per_token
from meshwright.costs.setting import Setting, computed_in
from meshwright.costs.stage_parts import pace_parts, stage_parts_by_role, stage_times
from meshwright.costs.stages import ROLES, stage_layers, with_further
from meshwright.costs.tables import table
from meshwright.costs.update import optimizer_s
from meshwright.specs.cluster import Cluster
from meshwright.specs.job import Job
from meshwright.specs.layout import MODULES, Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Estimate, StageMemory

TIME_PARTS = (
    *LAYER_PARTS, "launch", "recompute", "embedding_and_head", "encoder", "pipeline_p2p", "pipeline_bubble",
    "data_parallel", "optimizer", "offload", "shared_cores", "step_overhead",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EstimateColumns:
    """A table of estimates; arrays of shape (rows,).

    `hop_s` is the time of one message between neighbouring ranks of the pipeline.
    """

    step_time_s: Floats
    time_parts: dict[str, Floats]
    memory: MemoryColumns
    bubble_fraction: Floats
    micro_batches: Ints
    stage_times: pipeline.StageTimes
    data_parallel_worst_s: Floats
    """`data_parallel` if its traffic is slower than modelled; the search ranks by it."""
    hop_s: Floats


def price(model: Model, cluster: Cluster, job: Job, columns: LayoutColumns) -> EstimateColumns:
    """Price a table of layouts.

    Rows must divide the global batch (dp · micro_batch); see `planner.legality` for every rule.
    """
    setting = Setting.of(model, cluster, job)
    micro_batches = np.maximum(job.global_batch // (columns.dp * columns.micro_batch), 1)
    layers = stage_layers(model, columns)
    distances = strides(columns)
    machine = Machine.of(cluster, job, model, setting.fabric)
    if machine is not None:
        return _measured(
            setting,
            measured_step.Setup(machine, model, job, columns, layers, distances, micro_batches),
        )
    whole = with_further(model, columns, layers)
    stage_parts = stage_parts_by_role(setting, columns, whole, distances)
    host_paced = host_sets_the_pace(stage_parts["first"])
    used = memory(
        model, job, setting.behaviour, columns, layers, micro_batches, host_paced,
        process_bytes=_process_bytes(cluster),
    )  # fmt: skip
    times = stage_times(columns, stage_parts, layers.middle_ranks(model, columns.pp))
    hop = hop_s(setting, columns, distances)
    parts = pace_parts(columns, stage_parts, times, micro_batches)
    parts["pipeline_p2p"] = exposed_hops_s(setting, columns, hop, micro_batches)
    parts["pipeline_bubble"] = pipeline.bubble_s(columns, micro_batches, times)
    parts["data_parallel"], data_parallel_worst = data_parallel_s(
        setting.behaviour, setting.fabric, columns, distances, used, times, whole, micro_batches,
        job.precision.gradient_reduce_bytes,
    )  # fmt: skip
    parts["optimizer"] = optimizer_s(setting, columns, used)
    parts["shared_cores"] = np.zeros(columns.rows)
    parts["offload"] = np.zeros(columns.rows)
    if used.moved:
        parts["offload"] = offload_s(cluster, job, columns, used.moved, times, micro_batches)
        parts["optimizer"] = np.where(in_host(columns, "optimizer"), 0.0, parts["optimizer"])
    parts["step_overhead"] = np.full(columns.rows, setting.behaviour.host_step_s)
    return _added_up(parts, used, micro_batches, times, hop, data_parallel_worst)


def _added_up(
    parts: dict[str, Floats],
    used: MemoryColumns,
    micro_batches: Ints,
    times: pipeline.StageTimes,
    hop: Floats,
    data_parallel_worst: Floats,
) -> EstimateColumns:
    total = np.zeros(len(micro_batches))
    for name in TIME_PARTS:
        total = total + parts[name]
    return EstimateColumns(
        step_time_s=total,
        time_parts=parts,
        memory=used,
        bubble_fraction=parts["pipeline_bubble"] / total,
        micro_batches=micro_batches,
        stage_times=times,
        hop_s=hop,
        data_parallel_worst_s=data_parallel_worst,
    )


def _measured(setting: Setting, setup: measured_step.Setup) -> EstimateColumns:
    """A table of steps of the engine on measured processors."""
    columns, micro_batches = setup.columns, setup.micro_batches
    used = memory(
        setting.model, setting.job, setting.behaviour, columns, setup.layers, micro_batches,
        process_bytes=_process_bytes(setting.cluster),
    )  # fmt: skip
    stage_parts = measured_step.stage_parts(setup)
    between = setup.layers.middle_ranks(setting.model, columns.pp)
    times = stage_times(columns, stage_parts, between)
    hop = measured_step.hop_s(setup)
    parts = pace_parts(columns, stage_parts, times, micro_batches)
    parts["pipeline_p2p"] = measured_step.exposed_hops_s(setup)
    parts["pipeline_bubble"] = pipeline.bubble_s(columns, micro_batches, times)
    parts["data_parallel"] = measured_step.data_parallel_s(setup, used)
    parts["optimizer"], parts["step_overhead"] = measured_step.update_s(setup, used)
    rest = parts["data_parallel"] + parts["optimizer"] + parts["step_overhead"]
    so_far = np.sum(list(parts.values()), axis=0)
    for name, waits in measured_sharing.shared_card_s(setup, so_far, rest).items():
        parts[name] = parts[name] + waits
    so_far = np.sum(list(parts.values()), axis=0)
    parts["shared_cores"] = measured_sharing.shared_cores_s(setup, stage_parts, so_far, rest)
    for name in TIME_PARTS:  # what the engine never does, such as offloading
        parts.setdefault(name, np.zeros(columns.rows))
    worst = PESSIMISTIC_TRAFFIC * parts["data_parallel"]
    return _added_up(parts, used, micro_batches, times, hop, worst)


def _process_bytes(cluster: Cluster) -> float | None:
    """What a rank takes before any tensor where it has no CUDA context: of a CPU, of a TPU's chip."""
    if cluster.device.vendor == "google":
        return float(table("memory")["xla"]["bytes"])
    if cluster.device.vendor != "cpu":
        return None
    measured = cluster.device.measured
    return (
        measured.process_bytes if measured and measured.process_bytes else default_process_bytes()
    )


def estimate(model: Model, cluster: Cluster, job: Job, layout: Layout) -> Estimate:
    """Price one layout.

    Raises:
        SpecError: the global batch is not a multiple of dp · micro_batch.
    """
    return estimates(model, cluster, job, [layout])[0]


def estimates(
    model: Model, cluster: Cluster, job: Job, layouts: Sequence[Layout]
) -> list[Estimate]:
    """Price some layouts in one table; the same figures as one by one.

    Raises:
        SpecError: the global batch is not a multiple of dp · micro_batch of a layout.
    """
    if not layouts:
        return []
    for layout in layouts:
        layout.micro_batches(job.global_batch)
    columns = from_layouts(layouts)
    table = price(model, cluster, job, columns)
    worst = pessimistic_s(table)
    return [
        estimate_of(model, cluster, job, columns, table, row).model_copy(
            update={"pessimistic_s": float(worst[row])}
        )
        for row in range(columns.rows)
    ]


def capacity_bytes(cluster: Cluster) -> float:
    """Memory that a layout may use: what a program sees, less the cluster's reserve."""
    return cluster.device.memory_bytes - cluster.reserve_bytes


def _recomputed_share(model: Model, columns: LayoutColumns, row: int) -> float:
    """Share of the model's layers that recompute, where any do."""
    split = columns.splits[columns.recompute_split[row]]
    if RECOMPUTES[int(columns.recompute[row])] == "full" and split:
        return min(sum(split) / model.layers, 1.0)
    per_rank = int(columns.recompute_layers[row])
    return min(per_rank * int(columns.pp[row]) / model.layers, 1.0) if per_rank else 1.0


def estimate_of(
    model: Model,
    cluster: Cluster,
    job: Job,
    columns: LayoutColumns,
    table: EstimateColumns,
    row: int,
) -> Estimate:
    """Return one row of a table as an Estimate, every part named."""
    step = float(table.step_time_s[row])
    gpus = int(columns.dp[row] * columns.tp[row] * columns.pp[row] * columns.cp[row])
    tokens_per_gpu = job.tokens / (step * gpus)
    model_flops = model_flops_per_token(model, job)
    mode = RECOMPUTES[int(columns.recompute[row])]
    again = flops.recomputed_flops_per_token(model, job.seq_len, mode)
    if names := named(int(columns.recompute_modules[row]), MODULES):
        attention = flops.attention_flops_per_token(model, job.seq_len)
        again = repeated_flops_per_token(model, names, attention)
    again *= trained_shares(model, job)[0]
    executed = model_flops + again * _recomputed_share(model, columns, row)
    peak_rate = cluster.device.peak(computed_in(job, cluster.device))
    layers = stage_layers(model, columns.slice(row, row + 1))
    stages = []
    for position, role in enumerate(ROLES):
        total = float(table.memory.total[role][row])
        if total > 0:
            stages.append(
                StageMemory(
                    stage={0: 0, 1: 1, 2: int(columns.pp[row]) - 1}[position],
                    layers=round(float(layers.total(role)[0])),
                    total_bytes=total,
                    parts={
                        name: float(table.memory.parts[role][name][row]) for name in MEMORY_PARTS
                    },
                )
            )
    heaviest = max(stages, key=lambda stage: stage.total_bytes)
    heaviest_role = max(ROLES, key=lambda role: float(table.memory.total[role][row]))
    capacity = capacity_bytes(cluster)
    held = memory_range(model, cluster, job, gpus, heaviest.total_bytes)
    return Estimate(
        step_time_s=step,
        tokens_per_s_per_gpu=tokens_per_gpu,
        mfu=tokens_per_gpu * model_flops / peak_rate,
        hfu=tokens_per_gpu * executed / peak_rate,
        bubble_fraction=float(table.bubble_fraction[row]),
        peak_memory_bytes=heaviest.total_bytes,
        capacity_bytes=capacity,
        fits=heaviest.total_bytes <= capacity,
        memory_parts=heaviest.parts,
        memory_phases={
            name: float(value[row])
            for name, value in table.memory.phases.get(heaviest_role, {}).items()
        },
        time_parts={name: float(table.time_parts[name][row]) for name in TIME_PARTS},
        stages=tuple(stages),
        step_time_range=time_range(model, cluster, job, gpus, step),
        peak_memory_range=held,
        fit_probability=held.probability_below(capacity),
    )
