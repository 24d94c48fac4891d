"""What there is to choose from: models, clusters, devices, recipes, schedules, export targets."""

from __future__ import annotations

from functools import lru_cache

from typing_extensions import TypedDict

from meshwright.costs.parameters import count_parameters
from meshwright.costs.step import capacity_bytes
from meshwright.exports.targets import FRAMEWORKS, LAUNCHERS
from meshwright.planner.compared import STACKS
from meshwright.schedules.registry import FAMILIES
from meshwright.specs.clusters import load_cluster
from meshwright.specs.devices import device_names, load_device
from meshwright.specs.frameworks import framework
from meshwright.specs.job import OPTIMIZERS, RECIPES
from meshwright.specs.models import load_model, model_names
from meshwright.specs.quantities import format_count
from meshwright.studio.questions import AUTO

CLUSTERS = (
    "a100-80g:1x8", "a100-80g:2x8", "a100-80g:4x8", "a100-80g:8x8", "a100-80g:32x8",
    "a100-40g:1x8", "h100:1x8", "h100:2x8", "h100:8x8", "h100:16x8", "h100:32x8", "h100:128x8",
    "h200:8x8", "b200:8x8", "gb200-nvl72", "mi300x:8x8", "l40s-4", "rtx4090-pc",
)  # fmt: skip
"""Clusters offered by name; any other can be written as device:nodesxdevices."""


class ModelEntry(TypedDict):
    """A model preset."""

    id: str
    name: str
    parameters: float
    layers: int
    hidden: int
    source: str


class LevelEntry(TypedDict):
    """One level of links."""

    name: str
    domain: int
    bandwidth_bytes_s: float
    latency_s: float


class ClusterEntry(TypedDict):
    """A cluster that is offered by name."""

    id: str
    name: str
    gpus: int
    gpus_per_node: int
    device: str
    capacity_bytes: float
    levels: list[LevelEntry]


class DeviceEntry(TypedDict):
    """A device preset."""

    id: str
    name: str
    memory_bytes: float
    peak_bf16_flops: float
    price_per_hour: float
    source: str


class ScheduleEntry(TypedDict):
    """A pipeline schedule."""

    id: str
    title: str


class ExportEntry(TypedDict):
    """A target of export."""

    id: str
    title: str
    filename: str


class FrameworkEntry(TypedDict):
    """A framework that a plan may keep to; `auto` compares those that run on the device."""

    id: str
    title: str


class Catalog(TypedDict):
    """Everything that the planner's forms offer."""

    models: list[ModelEntry]
    clusters: list[ClusterEntry]
    devices: list[DeviceEntry]
    recipes: list[str]
    frameworks: list[FrameworkEntry]
    optimizers: list[str]
    schedules: list[ScheduleEntry]
    exports: list[ExportEntry]


def catalog() -> Catalog:
    """List models, clusters, devices, recipes, schedules and export targets."""
    return _catalog()


def _compared() -> list[str]:
    """Frameworks that plans compare, on any device, in the order in which they are tried."""
    return list(dict.fromkeys(name for names in STACKS.values() for name in names))


@lru_cache(maxsize=1)
def _catalog() -> Catalog:
    models = [load_model(name) for name in model_names()]
    clusters = [load_cluster(name) for name in CLUSTERS]
    devices = {name: load_device(name) for name in device_names()}
    targets = [(name, kind.title, "run.sh") for name, kind in FRAMEWORKS.items()]
    targets += [(name, kind.title, kind.file) for name, kind in LAUNCHERS.items()]
    return {
        "models": [
            {"id": name, "name": f"{m.name} ({format_count(count_parameters(m).total)})",
             "parameters": float(count_parameters(m).total), "layers": m.layers,
             "hidden": m.hidden, "source": m.source}
            for name, m in zip(model_names(), models, strict=True)
        ],
        "clusters": [
            {"id": name, "name": f"{c.gpus} × {c.device.name}"
             + (f", {c.nodes} nodes of {c.gpus_per_node}" if c.nodes > 1 else ", one node"),
             "gpus": c.gpus, "gpus_per_node": c.gpus_per_node, "device": c.device.name,
             "capacity_bytes": capacity_bytes(c),
             "levels": [{"name": level.name, "domain": level.domain,
                         "bandwidth_bytes_s": level.bandwidth_bytes_s,
                         "latency_s": level.latency_s} for level in c.levels]}
            for name, c in zip(CLUSTERS, clusters, strict=True)
        ],
        "devices": [
            {"id": name, "name": d.name, "memory_bytes": d.memory_bytes,
             "peak_bf16_flops": d.peak("bf16"), "price_per_hour": d.price_per_hour,
             "source": d.source}
            for name, d in devices.items()
            if {"bf16", "fp16"} & set(d.peak_flops)
        ],
        "recipes": [AUTO, *RECIPES],
        "frameworks": [
            {"id": name, "title": framework(name).title if name != AUTO else "compare them all"}
            for name in (AUTO, *_compared())
        ],
        "optimizers": list(OPTIMIZERS),
        "schedules": [{"id": name, "title": kind.title} for name, kind in FAMILIES.items()],
        "exports": [{"id": i, "title": t, "filename": f} for i, t, f in targets],
    }  # fmt: skip


ROUTES = (("GET", "/api/catalog", catalog, Catalog),)
"""Method, path, function and answer type of each endpoint."""
