"""Whether one fine-tuning run fits, with what odds, and which changes make it fit at what price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from meshwright.costs.parameters import count_parameters
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


def verdict(
    model: Model,
    cluster: Cluster,
    job: Job,
    layout: Layout,
    wanted: float = 0.9,
    *,
    paired: bool = False,
    reference: bool = False,
) -> Verdict:
    """Price a run as its file describes it; where it does not fit, price ways down.

    Args:
        model: the architecture.
        cluster: the devices it is started on.
        job: what is trained.
        layout: how.
        wanted: probability of fitting that counts as yes.
        paired: a sample is two sequences: a chosen and a rejected answer.
        reference: the untrained model is held beside, in 16 bits; under adapters it is their frozen weights.

    Raises:
        SpecError: a part of the run cannot be priced.
    """
    if paired:
        layout = layout.but(micro_batch=2 * layout.micro_batch)
        job = job.but(global_batch=2 * job.global_batch)
    if reference and not job.frozen:
        # It is sharded as the weights are.
        split = layout.tp * layout.pp * (layout.dp * layout.cp if layout.zero == 3 else 1)
        held = local_bytes(model, 2.0, split)
        cluster = cluster.model_copy(update={"reserve_bytes": cluster.reserve_bytes + held})
    priced, odds = _price(model, cluster, job, layout)
    fits = odds >= wanted
    ways = [] if fits else list(_ways(model, cluster, job, layout, wanted))
    return Verdict(layout, priced, odds, fits, tuple(ways))


def local_bytes(model: Model, each: float, ranks: int) -> float:
    """Bytes that a rank holds of a model with `each` bytes a parameter, shared among `ranks`."""
    return each * count_parameters(model).total / ranks


def _price(model: Model, cluster: Cluster, job: Job, layout: Layout) -> tuple[Estimate, float]:
    priced = estimate(model, cluster, job, layout)
    odds = Odds.of(Question(model, cluster, job))
    return priced, odds.fits(priced.peak_memory_bytes, priced.capacity_bytes)


def _ways(model: Model, cluster: Cluster, job: Job, layout: Layout, wanted: float) -> Iterator[Way]:
    """Changes from the cheapest to the largest, each on top of those before, until one fits.

    What frees nothing is neither shown nor kept: it would cost time alone.
    """
    peak = _price(model, cluster, job, layout)[0].peak_memory_bytes
    for change, of_job, of_layout in _changes(job, layout):
        new_job, new_layout = job.but(**of_job), layout.but(**of_layout)
        try:
            priced, odds = _price(model, cluster, new_job, new_layout)
        except SpecError:
            continue
        if priced.peak_memory_bytes > (1.0 - LEAST) * peak and odds < wanted:
            continue
        job, layout, peak = new_job, new_layout, priced.peak_memory_bytes
        yield Way(change, priced, odds, odds >= wanted)
        if odds >= wanted:
            return


LEAST = 0.002
"""Share of the peak that a change must free to be a way down."""

Change = tuple[str, dict[str, Any], dict[str, Any]]


def _changes(job: Job, layout: Layout) -> Iterator[Change]:
    """Each change in words, then what it makes of job and layout."""
    if layout.recompute != "full":
        yield "recompute activations (gradient checkpointing)", {}, {"recompute": "full"}
    if job.framework_options.get("accumulates_whole"):
        options = {**job.framework_options, "accumulates_whole": False}
        yield (
            "+ gradients reduced every micro-batch (sync_each_batch: true)",
            {"framework_options": options},
            {},
        )
    if job.loss in ("framework", "full"):
        yield "+ a loss that keeps no logits (Cut cross-entropy, or Liger's)", {"loss": "cut"}, {}
    micro = layout.micro_batch
    while micro > 1:
        micro = max(1, micro // 2)
        if job.global_batch % (layout.dp * micro) == 0:
            yield f"+ micro-batch {micro}, more accumulation", {}, {"micro_batch": micro}
    if layout.dp > 1 and layout.zero < 3:
        yield "+ ZeRO-3 / FSDP: share the weights among the devices", {}, {"zero": 3}
    tune = job.finetune
    full = tune is None or not tune.adapts
    if full and job.precision.name != "pure-bf16":
        halves: dict[str, Any] = {"precision": RECIPES["pure-bf16"]}
        if job.optimizer.state_bytes > OPTIMIZERS["adamw-bf16"].state_bytes:
            halves["optimizer"] = OPTIMIZERS["adamw-bf16"]
        yield "+ weights, gradients and moments in 16 bits", halves, {}
    if full and job.optimizer.state_bytes > 2:
        paged = {"optimizer": OPTIMIZERS["paged-adam8bit"]}
        yield "+ a paged 8-bit optimizer", paged, {}
    if full:
        states = {"offload": ("optimizer",)}
        yield "+ the optimizer's states in host memory (offload)", {}, states
        everything = {"offload": ("optimizer", "parameters")}
        yield "+ parameters and gradients in host memory, too", {}, everything
        tune = finetune_recipe("lora")
        lora = {"finetune": tune, "optimizer": OPTIMIZERS["adamw"]}
        kept = {"offload": layout.offload}
        yield "LoRA on all linear layers, rank 16, instead of all weights", lora, kept
    if tune is not None and tune.storage == "16-bit":
        fields = tune.model_dump()
        fields |= {"method": "qlora", "storage": "nf4", "double_quantization": True}
        quantised = {"finetune": finetune_recipe(fields)}
        yield "+ the frozen weights in 4 bits (QLoRA)", quantised, {}
    if not full:
        hosted = {"offload": ("optimizer", "parameters")}
        yield "+ frozen weights, adapters and their states in host memory (offload)", {}, hosted
    tokens = job.seq_len
    while tokens > 1024:
        tokens = max(1024, tokens // 2)
        yield f"+ sequences of {tokens} tokens", {"seq_len": tokens}, {}
