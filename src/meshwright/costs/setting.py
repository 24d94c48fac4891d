"""What every row of a table of layouts shares."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costs.fabric import Fabric
from meshwright.costs.frameworks import Behaviour, behaviour
from meshwright.costs.kernels import Kernels, kernels_for
from meshwright.specs.cluster import Cluster
from meshwright.specs.job import Job
from meshwright.specs.model import Model


@dataclass(frozen=True)
class Setting:
    """What every row of a table shares: model, cluster, job and what follows from them."""

    model: Model
    cluster: Cluster
    job: Job
    behaviour: Behaviour
    kernels: Kernels
    fabric: Fabric

    @staticmethod
    def of(model: Model, cluster: Cluster, job: Job) -> Setting:
        """Derive kernels, fabric and framework behaviour."""
        software = behaviour(job)
        compute = job.precision.compute
        if compute == "fp32" and software.tf32:
            compute = "tf32"
        return Setting(
            model,
            cluster,
            job,
            software,
            kernels_for(cluster.device, compute, _head_width(model)),
            Fabric.of(cluster),
        )


def _head_width(model: Model) -> int:
    latent = model.latent_attention
    return latent.nope_head_dim + latent.rope_head_dim if latent else model.head_dim
