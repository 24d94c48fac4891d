"""A card that several processes share: which part of it one of them has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.specs.cluster import Cluster, Device, LinkLevel
from meshwright.specs.errors import SpecError

MODES = ("time-slicing", "mps", "mig")
CORES = "cores"
"""How a chip is shared whose cores are devices of their own to a program."""
MOST = 64


def part_of(device: Device, asked: object, field: str) -> Device:
    """One process' part of a card, as `[device.shared]` of a cluster file states it.

    Every process has an equal part: of rates, memory, the link to the host and the price. In turns (time-slicing)
    a kernel has all multiprocessors while it runs; at once (mps, mig) it has its part of them. `slowdown`
    is how many times as long a step takes as alone on the card, where that was measured; else it is the
    number of processes, which is what a card gives that one process can fill.

    Raises:
        SpecError: an unknown key, or a value that no card can have.
    """
    if not isinstance(asked, Mapping):
        raise SpecError(field, asked, 'a table such as { processes = 4, how = "mps" } is expected')
    given: dict[str, Any] = {"processes": None, "how": "time-slicing", "slowdown": None}
    if unknown := sorted(set(asked) - set(given)):
        raise SpecError(f"{field}.{unknown[0]}", asked[unknown[0]], f"known: {', '.join(given)}")
    given |= asked
    count, how, slower = given["processes"], given["how"], given["slowdown"]
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= MOST:
        raise SpecError(f"{field}.processes", count, f"a whole number from 2 to {MOST} is expected")
    if how not in MODES:
        raise SpecError(f"{field}.how", how, f"one of {', '.join(MODES)} is expected")
    if slower is None:
        slower = float(count)
    if isinstance(slower, bool) or not isinstance(slower, (int, float)) or not 1 <= slower <= 1e3:
        raise SpecError(f"{field}.slowdown", slower, "a number from 1 to 1000 is expected")
    if device.card_processes > 1:
        raise SpecError(field, dict(asked), f"{device.name} is a part of a card already")
    at_once = how != "time-slicing"
    return device.but(
        card_processes=count,
        card_sharing=how,
        peak_flops={name: rate / slower for name, rate in device.peak_flops.items()},
        memory_bytes=device.memory_bytes / count,
        memory_bandwidth_bytes_s=device.memory_bandwidth_bytes_s / slower,
        sms=max(device.sms // count, 1) if at_once else device.sms,
        l2_bytes=device.l2_bytes / count if at_once else device.l2_bytes,
        host_link_bytes_s=device.host_link_bytes_s / count,
        price_per_hour=device.price_per_hour / count,
        source=f"{device.source}; 1/{count} of a card ({how}), {slower:g} times as slow as alone",
    )


def in_cores(cluster: Cluster, count: int) -> Cluster:
    """The same chips counted by their cores, of which each is a device of its own to the program.

    A core has an equal part of its chip's rates, memory and links; what cores of one chip exchange inside it is
    not told apart.

    Args:
        count: cores of a chip, as the program counts them (AWS's logical NeuronCores).
    """
    device = part_of(cluster.device, {"processes": count, "how": "mig"}, "device")
    device = device.but(card_sharing=CORES, source=f"{cluster.device.source}; one of {count} cores")
    levels = tuple(
        level.but(
            domain=level.domain * count,
            bandwidth_bytes_s=level.bandwidth_bytes_s / count,
            p2p_bytes_s=level.p2p_bytes_s / count,
        )
        for level in cluster.levels
    )
    return cluster.but(device=device.model_dump(), gpus_per_node=cluster.gpus_per_node * count,
                       levels=[level.model_dump() for level in levels])  # fmt: skip


def shared_links(levels: tuple[LinkLevel, ...], device: Device) -> tuple[LinkLevel, ...]:
    """Links of whole cards as one process of a shared card has them: an equal part each."""
    count = device.card_processes
    if count < 2:
        return levels
    return tuple(
        level.but(
            bandwidth_bytes_s=level.bandwidth_bytes_s / count,
            p2p_bytes_s=level.p2p_bytes_s / count,
            source=f"{level.source}; 1/{count} of a card's".removeprefix("; "),
        )
        for level in levels
    )


def shared_card(cluster: Cluster) -> str | None:
    """What a plan for parts of cards has to say, in a sentence; None for whole cards."""
    device = cluster.device
    if device.card_processes < 2:
        return None
    if device.card_sharing == CORES:
        return (
            f"each device is one of a chip's {device.card_processes} cores, as its program counts them, with an "
            "equal part of the chip's rates, memory and links"
        )
    text = (
        f"each device is a part of a card that {device.card_processes} processes share "
        f"({device.card_sharing}), priced as if all of them were busy all the time"
    )
    if device.vendor == "nvidia":
        text += (
            "; NCCL refuses two ranks of one job on a card, so that the others belong to other jobs"
        )
    return text
