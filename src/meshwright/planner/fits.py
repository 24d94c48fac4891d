"""Whether one fine-tuning run fits, with what odds, and which changes make it fit at what price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from meshwright.costs.step import estimate
from meshwright.planner.legality import Question
from meshwright.planner.odds import Odds
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Estimate


class Described(Protocol):
    """What a configuration file says of a run (see `exports.tuning`)."""

    job: Job
    micro_batch: int
    accumulate: int
    zero: int
    recompute: bool
    offload: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """One change of a run, priced."""

    change: str
    estimate: Estimate
    odds: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to "will it fit?"."""

    layout: Layout
    estimate: Estimate
    odds: float
    fits: bool
    ways: tuple[Way, ...]
    not_priced: list[str]


def verdict(model: Model, cluster: Cluster, run: Described, wanted: float = 0.9) -> Verdict:
    """Price a run as its file describes it; where it does not fit, price ways down.

    Args:
        model: the architecture.
        cluster: the devices it is started on, one data-parallel rank each.
        run: what the file says.
        wanted: probability of fitting that counts as yes.

    Raises:
        SpecError: a part of the run cannot be priced.
    """
    layout = Layout(
        dp=cluster.gpus, zero=run.zero if cluster.gpus > 1 else 0, micro_batch=run.micro_batch,
        recompute="full" if run.recompute else "none",
    )  # fmt: skip
    moved = tuple(what for what in run.offload if what in OFFLOADED)
    priced, odds = _price(model, cluster, run.job, layout, moved)
    fits = odds >= wanted
    ways = [] if fits else list(_ways(model, cluster, run.job, layout, wanted, moved))
    not_priced = [
        f"{what} in host memory: priced as if it stayed on the device, so the verdict is pessimistic"
        for what in run.offload
        if what not in OFFLOADED
    ]
    return Verdict(layout, priced, odds, fits, tuple(ways), not_priced)


OFFLOADED = {"optimizer": ("optimizer",), "parameters": ("parameters", "gradients")}
"""Parts of the memory that leave the device, by what a file offloads."""

HOST_LINK_BYTES_S = 25e9
"""Of a device to its host, each way, where the cluster names no PCIe level: PCIe 4 x16 in practice."""


def host_link_bytes_s(cluster: Cluster) -> float:
    """Bandwidth between a device and its host, each way: the cluster's PCIe level, or PCIe 4."""
    found = [level.bandwidth_bytes_s for level in cluster.levels if level.kind == "pcie"]
    return found[0] if found else HOST_LINK_BYTES_S


def offloaded(
    model: Model,
    priced: Estimate,
    cluster: Cluster,
    job: Job,
    layout: Layout,
    what: tuple[str, ...],
) -> Estimate:
    """An estimate with states kept in host memory, at the price of moving them.

    The optimizer's states go there and back once a step (as gradients go and weights come where the
    host computes the update: no more); parameters come once for each forward and backward of a
    micro-batch, their gradients go once.
    """
    parts = dict(priced.memory_parts)
    gone = {name: parts.get(name, 0.0) for one in what for name in OFFLOADED[one]}
    if not gone:
        return priced
    passes = {
        "optimizer": 2.0,
        "gradients": 1.0,
        "parameters": 2.0 * layout.micro_batches(job.global_batch),
    }
    moving = sum(passes[name] * size for name, size in gone.items()) / host_link_bytes_s(cluster)
    step = priced.step_time_s + moving
    rate = priced.step_time_s / step
    window = 0.0
    if "parameters" in what and parts.get("gathered_parameters", 0.0) == 0.0:
        # Weights stream through: embedding and head, and the layers before, in and after use.
        copies = 1 if model.tied_embeddings else 2
        root = copies * model.vocab * model.hidden * job.precision.parameter_bytes
        window = root + 3.0 * parts["parameters"] / model.layers
        gone["parameters"] = max(gone["parameters"] - window, 0.0)
    peak = priced.peak_memory_bytes - sum(gone.values())
    span = priced.peak_memory_range
    share = peak / priced.peak_memory_bytes
    return priced.but(
        peak_memory_bytes=peak, fits=peak <= priced.capacity_bytes,
        memory_parts={name: size - gone.get(name, 0.0) for name, size in parts.items()}, memory_phases={}, stages=(),
        peak_memory_range=span and span.but(low=span.low * share, high=span.high * share),
        step_time_s=step, time_parts=priced.time_parts | {"offload": moving}, step_time_range=None,
        tokens_per_s_per_gpu=priced.tokens_per_s_per_gpu * rate, mfu=priced.mfu * rate,
        hfu=priced.hfu * rate,
    )  # fmt: skip


def _price(
    model: Model, cluster: Cluster, job: Job, layout: Layout, moved: tuple[str, ...] = ()
) -> tuple[Estimate, float]:
    priced = offloaded(model, estimate(model, cluster, job, layout), cluster, job, layout, moved)
    odds = Odds.of(Question(model, cluster, job))
    return priced, odds.fits(priced.peak_memory_bytes, priced.capacity_bytes)


def _ways(
    model: Model, cluster: Cluster, job: Job, layout: Layout, wanted: float, moved: tuple[str, ...]
) -> Iterator[Way]:
    """Changes from the cheapest to the largest, each on top of those before, until one fits."""
    for change, new_job, new_layout, offload in _changes(job, layout):
        job, layout = new_job, new_layout
        try:
            priced, odds = _price(model, cluster, job, layout, tuple({*moved, *offload}))
        except SpecError:
            continue
        yield Way(change, priced, odds, odds >= wanted)
        if odds >= wanted:
            return


def _changes(job: Job, layout: Layout) -> Iterator[tuple[str, Job, Layout, tuple[str, ...]]]:
    """Each change in words, on top of all before it."""
    moved: tuple[str, ...] = ()
    if layout.recompute != "full":
        layout = layout.but(recompute="full")
        yield "recompute activations (gradient checkpointing)", job, layout, moved
    if job.loss in ("framework", "full"):
        job = job.but(loss="cut")
        yield "+ a loss that keeps no logits (Cut cross-entropy, or Liger's)", job, layout, moved
    while layout.micro_batch > 1:
        layout = layout.but(micro_batch=max(1, layout.micro_batch // 2))
        if job.global_batch % (layout.dp * layout.micro_batch) == 0:
            yield f"+ micro-batch {layout.micro_batch}, more accumulation", job, layout, moved
    if layout.dp > 1 and layout.zero < 3:
        layout = layout.but(zero=3)
        yield "+ ZeRO-3 / FSDP: share the weights among the devices", job, layout, moved
    tune = job.finetune
    full = tune is None or not tune.adapts
    if full and job.precision.name != "pure-bf16":
        job = job.but(precision=RECIPES["pure-bf16"], optimizer=OPTIMIZERS["adamw-bf16"])
        yield "+ weights, gradients and moments in 16 bits", job, layout, moved
    if full and job.optimizer.state_bytes > 2:
        job = job.but(optimizer=OPTIMIZERS["paged-adam8bit"])
        yield "+ a paged 8-bit optimizer", job, layout, moved
    if full:
        moved = ("optimizer",)
        yield "+ the optimizer's states in host memory (offload)", job, layout, moved
        moved = ("optimizer", "parameters")
        yield "+ parameters and gradients in host memory, too", job, layout, moved
        moved = ()
        job = job.but(finetune=finetune_recipe("lora"), optimizer=OPTIMIZERS["adamw"])
        yield "LoRA on all linear layers, rank 16, instead of all weights", job, layout, moved
    if job.finetune is not None and job.finetune.storage == "16-bit":
        fields = job.finetune.model_dump()
        tuned = fields | {"method": "qlora", "storage": "nf4", "double_quantization": True}
        job = job.but(finetune=finetune_recipe(tuned))
        yield "+ the frozen weights in 4 bits (QLoRA)", job, layout, moved
    if not full:
        moved = ("optimizer", "parameters")
        yield (
            "+ frozen weights, adapters and their states in host memory (offload)",
            job,
            layout,
            moved,
        )
    while job.seq_len > 1024:
        job = job.but(seq_len=max(1024, job.seq_len // 2))
        yield f"+ sequences of {job.seq_len} tokens", job, layout, moved
