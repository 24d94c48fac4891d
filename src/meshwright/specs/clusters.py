"""Clusters from a short text (`h100:8x8`), a preset, a TOML file, or a topology print-out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from meshwright.specs import presets
from meshwright.specs.cluster import Cluster, LinkLevel
from meshwright.specs.devices import default_host, load_device
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.foreign import MIB, read_data, read_text
from meshwright.specs.quantities import parse_bandwidth, parse_bytes, parse_seconds
from meshwright.specs.sharing import shared_links
from meshwright.specs.topology import Topology, host_levels, parse_topology

_SIZE = re.compile(r"(\d{1,7})(?:x(\d{1,4}))?")
_FILE_SUFFIXES = (".toml", ".json", ".yaml", ".yml")
_SIZED_FILE = re.compile(r"(.+\.(?:toml|json|yaml|yml)):(\d{1,7})(?:x(\d{1,4}))?", re.IGNORECASE)
_FILE_AND_MORE = re.compile(r"(.+\.(?:toml|json|yaml|yml)):.*", re.IGNORECASE)
_TOPOLOGY_SUFFIXES = (".txt", ".topo", ".log")


NOT_MEASURED = "; not measured: "
"""In the source of a cluster that was measured: what follows, the preset stands in for."""


def not_measured(cluster: Cluster) -> str | None:
    """A sentence of what a measured cluster's file lacks; None where nothing is lacking, or nothing was measured."""
    lacking = [part.split(";")[0] for part in cluster.source.split(NOT_MEASURED)[1:]]
    return f"the cluster's file was measured without: {', '.join(lacking)}" if lacking else None


def cluster_names() -> list[str]:
    """Names of the cluster presets, in the order of the data file."""
    return list(presets.table("clusters"))


def load_cluster(what: str | Path | Mapping[str, Any] | Cluster) -> Cluster:
    """Return a cluster from what a person would write.

    - `h100:8x8`: device, then nodes x devices per node, in that device's usual host;
    - `h100:64`: so many devices in all, in full hosts (fewer than one host: one host);
    - `h100`: one host; `aws-p4d:4`: so many hosts of a preset; `gb200-nvl72`: a whole preset;
    - `h100:topo.txt`, `h100:4xtopo.txt`: hosts as `nvidia-smi topo -m` printed them;
    - a path to a TOML, JSON or YAML file (see docs/clusters.md), or its parsed content;
    - `mine.toml:2x8`: that file's machines as so many nodes x devices per node.

    Raises:
        SpecError: unknown name (with the nearest ones), impossible size, bad file.
    """
    if isinstance(what, Cluster):
        return what
    if isinstance(what, Mapping):
        return _from_table(dict(what), Path("."))
    if isinstance(what, Path):
        return _from_file(what)
    if not isinstance(what, str) or not what.strip():
        raise SpecError("cluster", what, "a cluster is expected, such as h100:8x8")
    text = what.strip()
    if text == "-" or text.lower().endswith(_FILE_SUFFIXES) or _is_file(text):
        return _from_file(Path(text))
    if sized := _SIZED_FILE.fullmatch(text):
        cluster = _from_file(Path(sized[1]))
        first, second = int(sized[2]), int(sized[3] or 0)
        nodes, per_node = (first, second) if second else (1, first)
        if not nodes or not per_node:
            raise SpecError("cluster", text, f"a size is expected, such as {sized[1]}:1x4")
        return scaled(cluster, nodes, per_node)
    if halved := _FILE_AND_MORE.fullmatch(text):
        raise SpecError("cluster", text, f"a size is expected, such as {halved[1]}:1x4")
    name, colon, size = text.partition(":")
    if colon and not size:
        raise SpecError("cluster", text, f"a size is expected behind the colon, such as {name}:2x8")
    if size.lower().endswith(_TOPOLOGY_SUFFIXES):
        return _from_topology(name, size)
    return _from_preset(name, size)


def scaled(cluster: Cluster, nodes: int, gpus_per_node: int) -> Cluster:
    """The same machines as another number of nodes and devices per node.

    A level that spans a host, or all, spans the new host, or all. Ranks that share a host's cores
    share its memory, too. Where the file tells nothing of links between hosts, the preset's are taken,
    and the cluster's source says so.

    Raises:
        SpecError: a level in between does not fit the new size.
    """
    gpus, old = nodes * gpus_per_node, cluster.gpus_per_node
    levels: list[LinkLevel] = []
    for level in cluster.levels:
        domain = level.domain
        if domain >= cluster.gpus and cluster.nodes > 1:
            domain = gpus
        elif domain == old:
            domain = gpus_per_node
        elif domain > old:
            domain = domain // old * gpus_per_node
        if not levels or domain > levels[-1].domain:
            levels.append(level.but(domain=min(domain, gpus)))
    source = cluster.source
    if levels[-1].domain < gpus:
        template = presets.table("clusters")[default_host(cluster.device.preset or "cpu")]
        outer = _level(template["levels"][-1], gpus, gpus_per_node, "levels")
        levels.append(outer.but(domain=gpus))
        source += f"{NOT_MEASURED}{outer.name} between hosts (the preset's {outer.source})"
    device = cluster.device
    if cluster.shared_cores is not None and cluster.host_memory_bytes:
        device = device.but(memory_bytes=cluster.host_memory_bytes / gpus_per_node)
    return cluster.but(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        source=source,
        levels=[level.model_dump(exclude_unset=True) for level in levels],
        device=device.model_dump(exclude_unset=True),
        name=f"{cluster.name}:{nodes}x{gpus_per_node}",
    )


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


@lru_cache(maxsize=256)  # tables of runs name few clusters in many rows
def _from_preset(name: str, size: str) -> Cluster:
    if presets.known("devices", name):
        device = presets.find("devices", name, "cluster")
        host_name = default_host(device)
    elif presets.known("clusters", name):
        host_name = presets.find("clusters", name, "cluster")
        device = presets.table("clusters")[host_name]["device"]
    else:
        every = [*presets.table("devices"), *presets.table("clusters")]
        meant = _counted(f"{name}:{size}" if size else name)
        remedy = f"a count goes behind the device: {meant}" if meant else nearest(name, every)
        raise SpecError("cluster", name, f"no such device or cluster; {remedy}")
    host = presets.table("clusters")[host_name]
    full = int(host["gpus_per_node"])
    is_device = presets.known("devices", name)
    nodes, gpus_per_node = _size(name, size, full, 1 if is_device else int(host.get("nodes", 1)))
    levels = _levels(_fitted(host["levels"], full, gpus_per_node), nodes, gpus_per_node, "levels")
    source = f"host template {host_name}: {host['source']}"
    if gpus_per_node > full:
        if levels[0].kind != "pcie" or gpus_per_node > MOST_ON_PCIE:
            world = nodes * gpus_per_node
            size_of = f"{world // full}x{full}" if world % full == 0 else f"NODESx{full}"
            raise SpecError(
                "cluster",
                f"{name}:{size}",
                f"a {host_name} host has {full} devices: write {name}:{size_of}, "
                "or describe your host in a TOML file",
            )
        # More cards in the slots of the same host share what leaves it.
        levels = tuple(
            level.but(bandwidth_bytes_s=level.bandwidth_bytes_s * full / gpus_per_node)
            if level.domain > gpus_per_node else level
            for level in levels
        )  # fmt: skip
        source += f"; {gpus_per_node} devices share the network that the template's {full} have"
    return Cluster(
        name=f"{presets.normalise(name)}:{nodes}x{gpus_per_node}",
        device=load_device(device),
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        levels=levels,
        host_memory_bytes=parse_bytes(host.get("host_memory", 0)),
        source=source,
    )


_COUNT_FIRST = re.compile(r"(\d{1,7})\s*(?:[x×*]\s*|\s)(.+)")
_COUNT_LAST = re.compile(r"(.+?)\s*[x×*]\s*(\d{1,7})")


def _counted(text: str) -> str | None:
    """`64xh100`, `8 x H100` or `h100x8` as this package writes it; None for anything else."""
    if found := _COUNT_FIRST.fullmatch(text):
        count, name = found[1], found[2]
    elif found := _COUNT_LAST.fullmatch(text):
        name, count = found[1], found[2]
    else:
        return None
    known = presets.known("devices", name)
    return f"{presets.normalise(name)}:{count}" if known and int(count) else None


MOST_ON_PCIE = 8
"""Cards that a host without a fabric of its own is taken to have room for, where its template has fewer."""


def _size(name: str, size: str, full: int, nodes: int) -> tuple[int, int]:
    """Nodes and devices per node from the text after the colon."""
    if not size:
        return nodes, full
    match = _SIZE.fullmatch(size.strip().lower())
    if not match or int(match[1]) < 1 or (match[2] and int(match[2]) < 1):
        raise SpecError("cluster", f"{name}:{size}", f"a size is expected, such as {name}:4x{full}")
    first = int(match[1])
    if match[2]:
        nodes, gpus_per_node = first, int(match[2])
    elif not presets.known("devices", name):
        nodes, gpus_per_node = first, full
    elif first <= full:
        nodes, gpus_per_node = 1, first
    elif first % full == 0:
        nodes, gpus_per_node = first // full, full
    else:
        raise SpecError(
            "cluster",
            f"{name}:{size}",
            f"{first} devices do not fill hosts of {full}: write {name}:NODESxDEVICES",
        )
    if nodes > 1_000_000:
        raise SpecError("cluster", f"{name}:{size}", "at most 1,000,000 nodes")
    return nodes, gpus_per_node


def _fitted(levels: list[dict[str, Any]], full: int, used: int) -> list[dict[str, Any]]:
    """Adapt a template's fixed domains to hosts of which only `used` of `full` devices are used."""
    fitted = []
    for level in levels:
        domain = level["domain"]
        if isinstance(domain, int):
            domain = domain // full * used if domain > full else domain
            if domain < full and used % domain:
                continue
        fitted.append({**level, "domain": domain})
    return fitted


def _from_file(path: Path) -> Cluster:
    return _from_table(read_data(path, "cluster"), path.parent)


def _from_table(data: dict[str, Any], folder: Path) -> Cluster:
    """A cluster from a parsed file; a plan file's `[cluster]` table is accepted as it is."""
    if "device" not in data and isinstance(data.get("cluster"), Mapping):
        data = data["cluster"]
    data = dict(data)
    template: dict[str, Any] = {}
    if "device" not in data:
        raise SpecError("device", None, "this field is required: a preset name or a [device] table")
    device = load_device(data.pop("device"), "device")
    if device.preset in presets.table("devices"):
        template = presets.table("clusters")[default_host(device.preset)]
    nodes = _whole(data.pop("nodes", 1), "nodes", 1_000_000)
    topology = data.pop("topology", None)
    levels = data.pop("levels", None)
    host: tuple[Topology, tuple[LinkLevel, ...]] | None = None
    if topology is not None:
        if not isinstance(topology, str):
            raise SpecError("topology", topology, "the path of a `nvidia-smi topo -m` print-out")
        host = _topology_file(folder / topology, device.preset or device.name)
    gpus_per_node = _whole(
        data.pop("gpus_per_node", host[0].gpus if host else template.get("gpus_per_node", 8)),
        "gpus_per_node",
        1024,
    )
    if host and gpus_per_node != host[0].gpus:
        raise SpecError(
            "gpus_per_node", gpus_per_node, f"the topology shows {host[0].gpus} devices"
        )
    if levels is None and host is None and not template:
        raise SpecError(
            "levels", None, "this field is required unless the device is a preset or has a topology"
        )
    outer = template.get("levels", [])[-1:] if host else template.get("levels", [])
    given = levels if levels is not None else outer
    if host and levels is None and given and host[0].nics:
        given = [{**given[0], "nics_per_node": host[0].nics}]
    built = _levels(given, nodes, gpus_per_node, "levels", host[1] if host else ())
    if levels is None:
        built = shared_links(built, device)
    for key, parse in (
        ("reserve", parse_bytes),
        ("host_memory", parse_bytes),
        ("mtbf_node", parse_seconds),
    ):
        if key in data:
            unit = "_s" if key == "mtbf_node" else "_bytes"
            data[key + unit] = parse(data.pop(key), key)
    if "host_memory_bytes" not in data and "host_memory" in template:
        data["host_memory_bytes"] = parse_bytes(template["host_memory"])
    data.setdefault("source", "a file")
    return Cluster.parse(
        {**data, "device": device, "nodes": nodes, "gpus_per_node": gpus_per_node, "levels": built}
    )


def _whole(value: object, field: str, limit: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise SpecError(field, value, f"a whole number from 1 to {limit} is expected")
    return value


def _levels(
    tables: object, nodes: int, gpus_per_node: int, field: str, inside: tuple[LinkLevel, ...] = ()
) -> tuple[LinkLevel, ...]:
    """Build link levels for a size, innermost first.

    Levels that would join a single device, or add nothing to the level inside, are left out.
    "all" is rounded up to whole domains of the level inside it (32 trays of 4 GPUs: 2 racks of 72).
    """
    if not isinstance(tables, (list, tuple)):
        raise SpecError(field, tables, "a list of tables [[levels]] is expected, innermost first")
    gpus = nodes * gpus_per_node
    levels = list(inside)
    for index, given in enumerate(tables):
        where = f"{field}.{index}"
        level = _level(given, gpus, gpus_per_node, where)
        covered = levels[-1].domain if levels else 1
        if level.domain < covered or (level.domain == covered and covered >= gpus and levels):
            if isinstance(given, Mapping) and isinstance(given.get("domain"), int):
                raise SpecError(
                    f"{where}.domain",
                    level.domain,
                    f"more than the {covered} devices of the level inside it is expected",
                )
            continue
        rounded = level.domain
        if level.domain >= gpus:
            rounded = -(-level.domain // covered) * covered
        levels.append(level.but(domain=rounded) if rounded != level.domain else level)
    if len(levels) > 1 and levels[0].domain == 1:
        levels = levels[1:]
    return tuple(levels)


def _level(given: object, gpus: int, gpus_per_node: int, where: str) -> LinkLevel:
    if isinstance(given, LinkLevel):
        return given
    if not isinstance(given, Mapping):
        raise SpecError(where, given, "a table with name, domain, bandwidth, latency is expected")
    plain = dict(given)
    domain = plain.get("domain", "all")
    if domain == "all":
        plain["domain"] = gpus
    elif domain in ("host", "node"):
        plain["domain"] = min(gpus_per_node, gpus)
    else:
        # A fixed domain larger than the cluster (an NVL72 rack half used) is cut to what is there.
        whole = _whole(domain, f"{where}.domain", 10**9)
        plain["domain"] = min(whole, gpus)
    for short, long, parse in (
        ("bandwidth", "bandwidth_bytes_s", parse_bandwidth),
        ("p2p", "p2p_bytes_s", parse_bandwidth),
        ("latency", "latency_s", parse_seconds),
    ):
        if short in plain:
            plain[long] = parse(plain.pop(short), f"{where}.{short}")
    return LinkLevel.parse(plain, where)


def _from_topology(device_name: str, size: str) -> Cluster:
    """`device:NODESxFILE` or `device:FILE`: hosts as a topology print-out shows them."""
    match = re.fullmatch(r"(\d{1,7})x(.+)", size)
    nodes, file = (int(match[1]), match[2]) if match else (1, size)
    preset = presets.find("devices", device_name, "cluster")
    return _from_table({"device": preset, "nodes": nodes, "topology": file}, Path("."))


def _topology_file(path: Path, device_name: str) -> tuple[Topology, tuple[LinkLevel, ...]]:
    text = read_text(path, "topology", MIB, errors="replace")
    topology = parse_topology(text)
    return topology, host_levels(topology, device_name)
