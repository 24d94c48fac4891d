"""What every row of a table of layouts shares."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property, partial

from meshwright.costs.encoders import as_job, as_model, keys_seen, seen_of
from meshwright.costs.fabric import Fabric
from meshwright.costs.frameworks import Behaviour, behaviour_on
from meshwright.costs.kernels import Kernels, kernels_for
from meshwright.costs.layer import layer_time
from meshwright.costs.layer_book import LayerBook
from meshwright.costs.layer_setting import LayerModel
from meshwright.costs.tables import on_change
from meshwright.specs.cluster import Cluster, Device
from meshwright.specs.job import Job
from meshwright.specs.model import Model


def computed_in(job: Job, device: Device) -> str:
    """The precision whose units run a job's products: TF32's for fp32 where the software lets them."""
    compute = job.precision.compute
    return "tf32" if compute == "fp32" and behaviour_on(job, device).tf32 else compute


@dataclass(frozen=True)
class Setting:
    """What every row of a table shares: model, cluster, job and what follows from them."""

    model: Model
    cluster: Cluster
    job: Job
    behaviour: Behaviour
    kernels: Kernels
    fabric: Fabric

    @cached_property
    def head_kernels(self) -> Kernels:
        """Kernels of the head's products, which stay in 16 bits where those of the layers have 8 or 4.

        Megatron-Core's output layer is its own linear, not Transformer Engine's (models/gpt/gpt_model.py),
        torchtitan's recipes keep "output" from being converted (components/quantization/float8.md).
        """
        compute = computed_in(self.job, self.cluster.device)
        compute = "bf16" if compute in ("fp8", "fp4") else compute
        return kernels_for(self.cluster.device, compute, _head_width(self.model))

    @cached_property
    def books(self) -> dict[bool, LayerBook]:
        """Times of layers, without and with experts, as far as they were asked for."""
        wide = self.head_kernels if self.behaviour.layers_16bit else None
        whole = LayerModel(self.model, self.job, self.kernels, self.fabric, self.behaviour, wide)
        kinds = (False, True) if self.model.experts else (False,)
        return {moe: LayerBook(partial(layer_time, whole, moe=moe)) for moe in kinds}

    @cached_property
    def encoder(self) -> LayerModel | None:
        """What one block of the model's encoder takes; None where a step shows it nothing."""
        seen = seen_of(self.model, self.job)
        if seen is None or self.model.encoder is None:
            return None
        shape, job = as_model(self.model.encoder), as_job(self.job, seen)
        kernels = kernels_for(
            self.cluster.device, computed_in(job, self.cluster.device), shape.head_dim
        )
        keys = keys_seen(self.model.encoder, seen.patches)
        return LayerModel(shape, job, kernels, self.fabric, self.behaviour, keys=keys)

    @staticmethod
    def of(model: Model, cluster: Cluster, job: Job) -> Setting:
        """Derive kernels, fabric and framework behaviour; kept for the questions asked last."""
        for known in tuple(_recent):  # other threads add to it
            if known.model is model and known.cluster is cluster and known.job is job:
                return known
        made = Setting._made(model, cluster, job)
        _recent.append(made)
        return made

    @staticmethod
    def _made(model: Model, cluster: Cluster, job: Job) -> Setting:
        software = behaviour_on(job, cluster.device)
        compute = computed_in(job, cluster.device)
        return Setting(
            model,
            cluster,
            job,
            software,
            kernels_for(cluster.device, compute, _head_width(model)),
            Fabric.of(cluster),
        )


_recent: deque[Setting] = deque(maxlen=16)
"""Nouns are frozen, so a setting holds as long as the same objects are asked about."""
on_change(_recent.clear)


def _head_width(model: Model) -> int:
    latent = model.latent_attention
    return latent.nope_head_dim + latent.rope_head_dim if latent else model.head_dim
