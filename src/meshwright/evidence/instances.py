"""Machines that clouds and vendors rent by a name: which devices one holds, and how many.

From the providers' pages of instance types (AWS EC2, Google Compute Engine, Azure) and NVIDIA's data sheets of DGX.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Machine(NamedTuple):
    """A kind of host: its device as `evidence.machines` spells it, and how many of them it holds."""

    device: str
    devices: int


_MACHINES: tuple[tuple[str, str, int], ...] = (
    (r"p3dn\.24xlarge", "V100 32GB", 8), (r"p3\.16xlarge", "V100 16GB", 8), (r"p3\.8xlarge", "V100 16GB", 4),
    (r"p3\.2xlarge", "V100 16GB", 1), (r"p4de\.24xlarge", "A100 80GB", 8), (r"p4d\.24xlarge", "A100 40GB", 8),
    (r"p5en?\.48xlarge", "H200", 8), (r"p5\.48xlarge", "H100", 8), (r"p5\.4xlarge", "H100", 1),
    (r"p6-b200\.48xlarge", "B200", 8), (r"p6-b300\.48xlarge", "B300", 8), (r"p6e-gb200\.36xlarge", "GB200", 4),
    (r"g4dn\.12xlarge", "T4", 4), (r"g4dn\.(?:[248]|16)?xlarge", "T4", 1), (r"g5\.48xlarge", "A10G", 8),
    (r"g5\.(?:12|24)xlarge", "A10G", 4), (r"g5\.(?:[248]|16)?xlarge", "A10G", 1), (r"g6\.48xlarge", "L4", 8),
    (r"g6\.(?:12|24)xlarge", "L4", 4), (r"g6\.(?:[248]|16)?xlarge", "L4", 1), (r"g6e\.48xlarge", "L40S", 8),
    (r"g6e\.(?:12|24)xlarge", "L40S", 4), (r"g6e\.(?:[248]|16)?xlarge", "L40S", 1),
    (r"trn1n?\.32xlarge", "Trainium1", 16), (r"trn1\.2xlarge", "Trainium1", 1), (r"trn2u?\.48xlarge", "Trainium2", 16),
    (r"a2-highgpu-(\d+)g", "A100 40GB", 0), (r"a2-megagpu-16g", "A100 40GB", 16), (r"a2-ultragpu-(\d+)g", "A100 80GB", 0),
    (r"a3-(?:high|mega|edge)gpu-(\d+)g", "H100", 0), (r"a3-ultragpu-(\d+)g", "H200", 0), (r"a4-highgpu-(\d+)g", "B200", 0),
    (r"a4x-highgpu-(\d+)g", "GB200", 0), (r"ND(?:96)?asr_v4", "A100 40GB", 8), (r"ND(?:96)?amsr_A100_v4", "A100 80GB", 8),
    (r"ND(?:96)?isr_H100_v5", "H100", 8), (r"ND(?:96)?isr_H200_v5", "H200", 8), (r"ND(?:96)?isr_MI300X_v5", "MI300X", 8),
    (r"ND40rs_v2", "V100 32GB", 8), (r"DGX[- ]?A100(?! ?40)", "A100 80GB", 8), (r"DGX[- ]?H100", "H100", 8),
    (r"DGX[- ]?H200", "H200", 8), (r"DGX[- ]?B200", "B200", 8), (r"DGX[- ]?B300", "B300", 8),
    (r"DGX-?2\b", "V100 32GB", 16), (r"DGX-?1\b", "V100 32GB", 8),
)  # fmt: skip
"""A name's pattern, its devices and their number; 0: the number that the name itself says."""

HOST_GPUS = {"gb200": 4, "gb300": 4, "gh200": 4, "tpu-v4": 4, "tpu-v5p": 4, "tpu-v7": 4}
"""Devices of one host by their preset where it is not 8; used where a row does not say."""

DEVICE = (
    r"(?:GB[23]00|B[23]00|GH200|H[12]00|H800|H20|A100|A800|V100|L40S|L40|L4|A10G?|A30|A40|T4|A[4-6][05]00|"
    r"RTX ?(?:A|PRO )?\d{4}(?: Ada|(?: Ti)?(?: SUPER)?(?: Laptop)?)?|GB10|DGX Spark|[345]090(?: ?Ti)?|MI\d{3}[XA]?|TPU ?v\d\w{0,2}(?:-\d{1,5}(?!\w))?|v\d[ep]?-\d+|Gaudi ?\d?|910[BC]\d?|"
    r"Atlas \d{3}\w? \w+|Trainium ?\d?)"
)
"""Devices as sentences name them."""
_DEVICE_CELL = re.compile(rf"(?<![\w.-]){DEVICE}(?:s\b|(?!\w))", re.IGNORECASE)

_TIMES = r"(?:(\d{1,5})\s*[x×*]\s*)?(?:\w+\.)?"


@cache
def _patterns(before: str) -> tuple[tuple[re.Pattern[str], str, int], ...]:
    """Every name's pattern behind what stands before a name: tables ask for it cell by cell."""
    return tuple(
        (re.compile(before + pattern, re.IGNORECASE), device, count)
        for pattern, device, count in _MACHINES
    )


def machine_of(text: str) -> Machine | None:
    """The machine that a cell names, if one is known by its name."""
    for pattern, device, count in _patterns(r"(?<![\w-])"):
        if found := pattern.search(text):
            return Machine(device, count or int(found[1]))
    return None


def machines_in(text: str) -> tuple[int | None, Machine] | None:
    """How many machines of a kind a cell names, None where it says no number: `2x p5en.48xlarge`."""
    for pattern, device, count in _patterns(rf"(?<![\w.-]){_TIMES}"):
        if found := pattern.search(text):
            number = int(found[1]) if found[1] else None
            return number, Machine(device, count or int(found[2]))
    return None


def names_a_device(cell: str) -> bool:
    """Whether a cell is about a device or a machine: `1 x H100 SXM`, `p4d.24xlarge`, no sentence that mentions one."""
    return 0 < len(cell.strip()) <= 60 and bool(_DEVICE_CELL.search(cell) or machine_of(cell))


def device_names_in(text: str) -> list[str]:
    """The devices that a text names, as it prints them."""
    return [found[0] for found in _DEVICE_CELL.finditer(text)]
