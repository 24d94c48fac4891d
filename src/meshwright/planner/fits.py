"""Whether one fine-tuning run fits, with what odds, and which changes make it fit at what price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    """Changes from the cheapest to the largest, each on top of those before, until one fits."""
    for change, new_job, new_layout in _changes(job, layout):
        job, layout = new_job, new_layout
        try:
            priced, odds = _price(model, cluster, job, layout)
        except SpecError:
            continue
        yield Way(change, priced, odds, odds >= wanted)
        if odds >= wanted:
            return


def _changes(job: Job, layout: Layout) -> Iterator[tuple[str, Job, Layout]]:
    """Each change in words, on top of all before it."""
    if layout.recompute != "full":
        layout = layout.but(recompute="full")
        yield "recompute activations (gradient checkpointing)", job, layout
    if job.framework_options.get("accumulates_whole"):
        job = job.but(framework_options={**job.framework_options, "accumulates_whole": False})
        yield "+ gradients reduced every micro-batch (sync_each_batch: true)", job, layout
    if job.loss in ("framework", "full"):
        job = job.but(loss="cut")
        yield "+ a loss that keeps no logits (Cut cross-entropy, or Liger's)", job, layout
    while layout.micro_batch > 1:
        layout = layout.but(micro_batch=max(1, layout.micro_batch // 2))
        if job.global_batch % (layout.dp * layout.micro_batch) == 0:
            yield f"+ micro-batch {layout.micro_batch}, more accumulation", job, layout
    if layout.dp > 1 and layout.zero < 3:
        layout = layout.but(zero=3)
        yield "+ ZeRO-3 / FSDP: share the weights among the devices", job, layout
    tune = job.finetune
    full = tune is None or not tune.adapts
    if full and job.precision.name != "pure-bf16":
        job = job.but(precision=RECIPES["pure-bf16"], optimizer=OPTIMIZERS["adamw-bf16"])
        yield "+ weights, gradients and moments in 16 bits", job, layout
    if full and job.optimizer.state_bytes > 2:
        job = job.but(optimizer=OPTIMIZERS["paged-adam8bit"])
        yield "+ a paged 8-bit optimizer", job, layout
    if full:
        before = layout
        layout = layout.but(offload=("optimizer",))
        yield "+ the optimizer's states in host memory (offload)", job, layout
        layout = layout.but(offload=("optimizer", "parameters"))
        yield "+ parameters and gradients in host memory, too", job, layout
        layout = before
        job = job.but(finetune=finetune_recipe("lora"), optimizer=OPTIMIZERS["adamw"])
        yield "LoRA on all linear layers, rank 16, instead of all weights", job, layout
    if job.finetune is not None and job.finetune.storage == "16-bit":
        fields = job.finetune.model_dump()
        tuned = fields | {"method": "qlora", "storage": "nf4", "double_quantization": True}
        job = job.but(finetune=finetune_recipe(tuned))
        yield "+ the frozen weights in 4 bits (QLoRA)", job, layout
    if not full:
        layout = layout.but(offload=("optimizer", "parameters"))
        yield ("+ frozen weights, adapters and their states in host memory (offload)", job, layout)
    while job.seq_len > 1024:
        job = job.but(seq_len=max(1024, job.seq_len // 2))
        yield f"+ sequences of {job.seq_len} tokens", job, layout
