"""From measurements to a cluster file: curves, constants, provenance, and what was not measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.costs.step import estimate
from meshwright.measure.local import Found
from meshwright.measure.runs import tensor_bytes
from meshwright.specs.cluster import Cluster, Device, LinkLevel
from meshwright.specs.clusters import NOT_MEASURED, load_cluster
from meshwright.specs.measured import MeasuredCollective, MeasuredDevice, SharedCores

DISTURBED = 1.1
"""From this on a source says that other programs were at work."""

STREAMS = 3.0
"""Passes over memory of an addition: two tensors read, one written."""


def assemble(
    found: Found, facts: Mapping[str, Any], *, ranks: int, host_memory: float, nodes: int = 1
) -> Cluster:
    """Hosts of `ranks` ranks as measured; what is missing comes from the preset `cpu`."""
    from meshwright.measure.probes import fit_own

    preset = load_cluster(f"cpu:{nodes}x{max(ranks, 1)}")
    missing = list(found.skipped)
    measured = MeasuredDevice(modules=found.modules, process_bytes=found.process_bytes)
    device = _device(found, facts, preset.device, measured, host_memory / max(ranks, 1))
    cluster = preset.but(
        name="measured", device=device.model_dump(exclude_unset=True),
        levels=_levels(found, preset, missing), host_memory_bytes=host_memory,
        shared_cores=shared_cores(
            found.slowdown, float(facts["cores"]), found.hosts, found.disturbed
        ),
        collectives=curves(found.collectives, preset.levels[-1].name), source=_source(found, facts, missing),
    )  # fmt: skip
    if not found.probed:
        return cluster
    own, error = fit_own(cluster, found.probed, found.known_s)
    measured = measured.but(engine_s=own, process_bytes=_process_bytes(cluster, found))
    told = f"the engine's own work is fitted to {len(found.probed)} probes"
    told += f", met to {100 * error:.0f} % in the median" if own else ", none of which is priced"
    source = f"{cluster.source}; {told}"
    device = device.but(measured=measured.model_dump(exclude_unset=True))
    return cluster.but(device=device.model_dump(exclude_unset=True), source=source)


def _process_bytes(cluster: Cluster, found: Found) -> float:
    """What a rank's process holds beside its tensors, once it has computed for a while.

    All probes of a rank run in one process, and what the allocator keeps of one lies beside the next; a
    run has one model, so that each process' first probe tells.
    """
    rest = [found.process_bytes]
    for ranks in (1, 2):
        first = next((one for one in found.probed if one.probe.layout.world == ranks), None)
        if first is not None:
            asked = first.probe
            tensors = tensor_bytes(estimate(asked.model, cluster, asked.job, asked.layout))
            rest.append(first.peak_bytes - tensors)
    return max(rest)


def _device(
    found: Found, facts: Mapping[str, Any], preset: Device, measured: MeasuredDevice, memory: float
) -> Device:
    peaks = dict(preset.peak_flops)
    sources = dict(preset.sources)
    for precision in found.modules:
        rates = [
            2.0 * one["product"] / one["forward_s"]
            for one in found.timings
            if one["module"] == "linear" and one["precision"] == precision
        ]
        if rates:
            peaks[precision] = max(rates)
            sources["peak_tflops"] = "the fastest product measured"
    streams = [
        STREAMS * 4.0 * one["element"] / one["forward_s"]
        for one in found.timings
        if one["module"] == "add" and one["precision"] == "fp32"
    ]
    if streams:
        sources["memory_bandwidth"] = "the fastest addition of two tensors measured"
    return preset.but(
        name=f"one process of {facts['processor']}", peak_flops=peaks, memory_bytes=memory,
        memory_bandwidth_bytes_s=max(streams, default=preset.memory_bandwidth_bytes_s),
        sources=sources, measured=measured.model_dump(exclude_unset=True),
        source="meshwright measure",
    )  # fmt: skip


def _levels(found: Found, preset: Cluster, missing: list[str]) -> list[dict[str, Any]]:
    """The host's level, and the network's where hosts are joined by one."""
    inner, outer = (
        [r for r in found.collectives if bool(r.get("across")) is across]
        for across in (False, True)
    )
    many = preset.gpus_per_node > 1
    levels = [_level(inner if many else outer, preset.levels[0], missing)]
    if len(preset.levels) > 1:
        levels.append(_level(outer, preset.levels[1], missing))
    return levels


def _level(
    rows_here: Sequence[Mapping[str, Any]], level: LinkLevel, missing: list[str]
) -> dict[str, Any]:
    """Bandwidth and latency of a level, by one message between a pair.

    Inside a host one pair is alone. Between hosts every rank sends while it receives, as in a step, so
    that each has its share of the card: read off all-gathers (each rank sends what the others lack),
    since messages of pairs that take turns find the card free half of the time.
    """
    across = any(r.get("across") for r in rows_here)
    kind = "all_gather" if across else "send_recv"
    found = [r for r in rows_here if r["collective"] == kind]
    crowds = [r["active"] for r in found]
    crowd = max(crowds, default=0) if across else min(crowds, default=0)
    members = min((r["members"] for r in found), default=2)
    share = (members - 1) / members if kind == "all_gather" else 1.0
    rows = sorted(
        (r["size_bytes"] * share, r["time_s"])
        for r in found
        if r["active"] == crowd and r["members"] == members
    )
    if len(rows) < 2:
        missing.append(f"messages over {level.name} (the preset's stand-in)")
        return dict(level.model_dump(exclude_unset=True))
    (small, first), (large, last) = rows[0], rows[-1]
    rate = (large - small) / max(last - first, 1e-9)
    return dict(
        level.but(
            bandwidth_bytes_s=rate,
            latency_s=max(first - small / rate, 1e-6),
            source=f"{kind}s in which a rank sends {small:.0f} and {large:.0f} bytes",
        ).model_dump(exclude_unset=True)
    )


def curves(rows: Sequence[Mapping[str, Any]], network: str) -> list[dict[str, Any]]:
    """Timings of collectives as curves over sizes, one for each kind, group, crowd and level.

    `network` names the level between hosts.
    """
    kept: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        level = network if row.get("across") else ""
        kept.setdefault((row["collective"], row["members"], row["active"], level), []).append(row)
    found = []
    for (collective, members, active, level), held in kept.items():
        mine = sorted(held, key=lambda r: float(r["size_bytes"]))
        spreads = sorted(r["spread"] for r in mine)
        found.append(
            MeasuredCollective(
                collective=collective, members=members, active=active, level=level,
                sizes_bytes=tuple(r["size_bytes"] for r in mine),
                times_s=tuple(r["time_s"] for r in mine), spread=spreads[len(spreads) // 2],
            ).plain()
        )  # fmt: skip
    return found


def shared_cores(
    slowdown: Mapping[int, float], cores: float, hosts: int = 1, disturbed: float = 1.0
) -> dict[str, Any] | None:
    """The stated resource: how many cores, and what more ranks at once cost each."""
    if not slowdown:
        return None
    ranks = sorted(slowdown)
    return SharedCores(
        cores=cores, hosts=hosts, ranks=tuple(ranks), slowdown=tuple(slowdown[n] for n in ranks),
        disturbed=disturbed,
    ).plain()  # fmt: skip


def _source(found: Found, facts: Mapping[str, Any], missing: Sequence[str]) -> str:
    text = (
        f"measured {facts['date']} on host {facts['host']} ({facts['processor']}, {facts['cores']} "
        f"cores) in {found.took_s:.0f} s, torch {facts['torch']}, Python {facts['python']}"
    )
    if found.disturbed > DISTURBED:
        text += (
            f"; other programs made work take {found.disturbed:.1f} times as long while it was measured: "
            "ranges are wider by that; measure again when the machine is idle"
        )
    shaky = [r for r in found.timings if r["disturbed"] > 0.2 * r["repeats"]]
    if shaky:
        text += f"; {len(shaky)} of {len(found.timings)} kernel timings were disturbed"
    if missing:
        text += NOT_MEASURED + ", ".join(dict.fromkeys(missing))
    return text
