"""The nouns of meshwright: models, devices, clusters, jobs, layouts, estimates and plans.

The names below are imported when first used, so that `import meshwright.specs` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.specs.cluster import Cluster, Device, LinkLevel
    from meshwright.specs.clusters import cluster_names, load_cluster
    from meshwright.specs.devices import device_names, load_device
    from meshwright.specs.errors import DoesNotFitError, SpecError
    from meshwright.specs.finetune import Finetune, finetune_recipe
    from meshwright.specs.job import Job, OptimizerRecipe, PrecisionRecipe
    from meshwright.specs.jobs import load_job, optimizer_recipe, precision_recipe
    from meshwright.specs.layout import Layout
    from meshwright.specs.model import Experts, LatentAttention, Model
    from meshwright.specs.models import load_model, model_names, typical_model
    from meshwright.specs.plan import Estimate, Plan, load_plan, save_plan

_HOME = {
    "Cluster": "cluster", "Device": "cluster", "LinkLevel": "cluster",
    "cluster_names": "clusters", "load_cluster": "clusters",
    "device_names": "devices", "load_device": "devices",
    "DoesNotFitError": "errors", "SpecError": "errors",
    "Finetune": "finetune", "finetune_recipe": "finetune",
    "Job": "job", "OptimizerRecipe": "job", "PrecisionRecipe": "job",
    "load_job": "jobs", "optimizer_recipe": "jobs", "precision_recipe": "jobs",
    "Layout": "layout",
    "Experts": "model", "LatentAttention": "model", "Model": "model",
    "load_model": "models", "model_names": "models", "typical_model": "models",
    "Estimate": "plan", "Plan": "plan", "load_plan": "plan", "save_plan": "plan",
}  # fmt: skip

__all__ = [
    "Cluster", "Device", "DoesNotFitError", "Estimate", "Experts", "Finetune", "Job",
    "LatentAttention",
    "Layout", "LinkLevel", "Model", "OptimizerRecipe", "Plan", "PrecisionRecipe", "SpecError",
    "cluster_names", "device_names", "finetune_recipe", "load_cluster", "load_device",
    "load_job", "load_model", "load_plan", "model_names", "optimizer_recipe", "precision_recipe",
    "save_plan", "typical_model",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
