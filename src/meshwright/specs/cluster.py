"""Devices, and clusters of them in a hierarchy of links."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from meshwright.specs.base import Spec
from meshwright.specs.errors import SpecError
from meshwright.specs.measured import MeasuredCollective, MeasuredDevice, SharedCores

Vendor = Literal["nvidia", "amd", "google", "intel", "aws", "huawei", "cpu", "other"]
LinkKind = Literal["nvswitch", "nvlink", "mesh", "torus", "pcie", "network", "shared-memory"]


class Device(Spec):
    """One accelerator, as its data sheet and measurements describe it."""

    name: str
    preset: str = Field("", description="the preset that the numbers come from, if any")
    vendor: Vendor = "nvidia"
    peak_flops: dict[str, float] = Field(
        description="dense peak FLOP/s per precision: bf16, fp16, fp8, tf32, fp32, fp4"
    )
    memory_bytes: float = Field(gt=0, description="capacity that a program can see")
    memory_bandwidth_bytes_s: float = Field(gt=0)
    matmul_efficiency: dict[str, float] = Field(
        default_factory=dict,
        description="measured best matmul rate over peak, per precision; `sustained_bf16` and the "
        "like, which `calibrate` writes, replace what costs/data/kernels.toml has of training steps",
    )
    sms: int = Field(108, ge=1, description="streaming multiprocessors (or their like)")
    jax_devices: int = Field(
        1,
        ge=1,
        description="devices that JAX shows for one of these: meshes and batches a device count them",
    )
    l2_bytes: float = Field(40e6, ge=0)
    host_link_bytes_s: float = Field(
        0.0, ge=0, description="data sheet of the link to its host, each way; 0: the cluster's PCIe"
    )
    card_processes: int = Field(
        1, ge=1, description="processes that share the card of which this is one's part"
    )
    card_sharing: str = Field("", description="how they do: time-slicing, mps or mig")
    launch_s: float = Field(4e-6, ge=0, description="host time to launch one kernel")
    price_per_hour: float = Field(0.0, ge=0, description="US dollars per device-hour, typical")
    source: str = ""
    sources: dict[str, str] = Field(
        default_factory=dict, description="where each number comes from, by field"
    )
    measured: MeasuredDevice | None = Field(
        None, description="times of modules, by `meshwright measure`; None: priced from the above"
    )

    @property
    def has_bf16(self) -> bool:
        """Whether it has units for bf16: of NVIDIA's, those since Ampere."""
        return self.vendor != "nvidia" or "bf16" in self.peak_flops

    def peak(self, precision: str) -> float:
        """Dense peak FLOP/s in a precision.

        fp8 falls back to bf16 and bf16 to fp16 where the device has no such unit.

        Raises:
            SpecError: the device has no peak for the precision or its fall-back.
        """
        for name in {"fp4": ("fp4", "fp8", "bf16"), "fp8": ("fp8", "bf16", "fp16"),
                     "bf16": ("bf16", "fp16"), "fp16": ("fp16", "bf16"),
                     "tf32": ("tf32", "fp32")}.get(precision, (precision,)):  # fmt: skip
            if name in self.peak_flops:
                return self.peak_flops[name]
        raise SpecError(
            "precision", precision, f"{self.name} has peaks for {list(self.peak_flops)}"
        )


class LinkLevel(Spec):
    """One level of the hierarchy: all devices of one domain reach each other at this rate."""

    name: str = Field(description="what people call it: nvlink, node, rail, spine…")
    domain: int = Field(ge=1, description="devices in one domain of this level")
    bandwidth_bytes_s: float = Field(gt=0, description="per device per direction")
    latency_s: float = Field(gt=0, description="of one message over this level")
    kind: LinkKind = "network"
    oversubscription: float = Field(
        1.0, ge=1, description="2.0: half the bandwidth under full load"
    )
    nics_per_node: int = Field(0, ge=0, description="network cards a host has; 0: not a NIC level")
    p2p_bytes_s: float = Field(
        0.0, ge=0, description="between one pair of devices, where below bandwidth; 0: the same"
    )
    source: str = ""


class Cluster(Spec):
    """Devices in hosts, joined by link levels from the innermost to the outermost."""

    name: str = "custom"
    device: Device
    nodes: int = Field(ge=1, le=1_000_000)
    gpus_per_node: int = Field(ge=1, le=1024, description="devices in one host")
    levels: tuple[LinkLevel, ...] = Field(min_length=1)
    reserve_bytes: float = Field(
        0.0, ge=0, description="memory per device to leave free, beyond what is modelled"
    )
    mtbf_node_s: float = Field(
        6_300 * 3600.0,
        gt=0,
        description="mean time between failures of one host; default: 419 unexpected interruptions "
        "of 2,048 hosts in 54 days (Llama 3, arXiv 2407.21783 §3.3.4)",
    )
    host_memory_bytes: float = Field(0.0, ge=0, description="RAM of one host; 0: unknown")
    link_constants: dict[str, float] = Field(
        default_factory=dict,
        description="constants of its links fitted to its own measurements, such as link.base_s; "
        "see costs/data/links.toml and `meshwright calibrate`",
    )
    shared_cores: SharedCores | None = Field(
        None, description="processor cores that ranks of a host compute on together, if they do"
    )
    collectives: tuple[MeasuredCollective, ...] = Field(
        (), description="timed collectives of this cluster's own ranks, by `meshwright measure`"
    )
    source: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        previous = 1
        for index, level in enumerate(self.levels):
            if level.domain % previous:
                raise SpecError(
                    f"levels.{index}.domain",
                    level.domain,
                    f"a multiple of the level inside it ({previous}) is expected",
                )
            previous = level.domain
        if previous < self.gpus:
            raise SpecError(
                f"levels.{len(self.levels) - 1}.domain",
                previous,
                f"the outermost level must hold all {self.gpus} devices",
            )
        return self

    @property
    def gpus(self) -> int:
        """Devices in all."""
        return self.nodes * self.gpus_per_node

    @property
    def fast_domain(self) -> int:
        """Devices in one domain of the innermost level: where tensor parallelism is cheap."""
        return min(self.levels[0].domain, self.gpus)
