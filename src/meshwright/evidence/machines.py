"""From a row's accelerator, node size and interconnect to a Cluster."""

from __future__ import annotations

import re
from functools import cache

from meshwright.evidence.instances import HOST_GPUS, machine_of
from meshwright.evidence.rows import Row
from meshwright.evidence.software import SourceRule
from meshwright.specs import presets
from meshwright.specs.cluster import Cluster, Device
from meshwright.specs.clusters import load_cluster
from meshwright.specs.devices import device_names
from meshwright.specs.quantities import parse_bandwidth


class SkipRow(Exception):
    """A row that cannot be priced; the message says why."""


_DEVICES: tuple[tuple[str, str], ...] = (
    (r"GB300", "gb300"),
    (r"GB200", "gb200"),
    (r"(?:GH200|Grace Hopper).*14[14] ?G", "gh200-144g"),
    (r"GH200|Grace Hopper", "gh200"),
    (r"B300", "b300"),
    (r"B200|DGX B200", "b200"),
    (r"H200", "h200"),
    (r"H20\b", "h20"),
    (r"H100[ _-]?NVL", "h100-nvl"),
    (r"H100.*PCI-?e", "h100-pcie"),
    (r"H800", "h800"),
    (r"H100", "h100"),
    (r"A800", "a800"),
    (r"A100.*PCI-?e.*40 ?G|A100.*40 ?G.*PCI-?e", "a100-pcie-40g"),
    (r"A100.*PCI-?e", "a100-pcie-80g"),
    (r"A100.*40 ?G|40 ?G(?:i?B)?[ -]A100|p4d\b", "a100-40g"),
    (r"A100|p4de\b", "a100-80g"),
    (r"\bp5en?\b", "h200"),
    (r"\bp5\b", "h100"),
    (r"910 ?C\b|Atlas\b.*\bA3\b|CloudMatrix", "ascend-910c"),
    (r"910 ?B|Atlas\b.*\bA2\b", "ascend-910b"),
    (r"V100.*16 ?G", "v100-16g"),
    (r"V100", "v100-32g"),
    (r"MI300 ?A\b", "mi300a"),
    (r"MI3[05]\d ?A\b", ""),
    (r"MI350 ?X?\b", "mi350x"),
    (r"MI35\d ?X?", "mi355x"),
    (r"MI325 ?X?", "mi325x"),
    (r"MI300 ?X?", "mi300x"),
    (r"MI250 ?X?", "mi250x"),
    (r"L40S\b", "l40s"),
    (r"L40\b", "l40"),
    (r"L4\b", "l4"),
    (r"6000 Ada", "rtx6000-ada"),
    (r"A6000", "a6000"),
    (r"A5000", "a5000"),
    (r"A10G\b", "a10g"),
    (r"A10\b", "a10"),
    (r"A40\b", "a40"),
    (r"\bT4\b", "t4"),
    (r"\bGB10\b|DGX[- ]?Spark", "gb10"),
    (r"\bRTX[- ]?\d{4}.{0,12}(?:Laptop|Mobile|Max-?Q)", ""),
    (r"\bRTX[- ]?3060\b(?! ?Ti)", "rtx3060"),
    (r"\bRTX[- ]?3070\b(?! ?Ti)", "rtx3070"),
    (r"\bRTX[- ]?3080\b(?! ?Ti)", "rtx3080"),
    (r"\bRTX[- ]?4060 ?Ti\b", "rtx4060ti"),
    (r"\bRTX[- ]?4060\b", "rtx4060"),
    (r"\bRTX[- ]?4070 ?Ti ?S(?:UPER)?\b", "rtx4070ti-super"),
    (r"\bRTX[- ]?4070 ?Ti\b", "rtx4070ti"),
    (r"\bRTX[- ]?4070\b(?! ?S)", "rtx4070"),
    (r"\bRTX[- ]?4080\b(?! ?S)", "rtx4080"),
    (r"\bRTX[- ]?5060 ?Ti\b", "rtx5060ti"),
    (r"\bRTX[- ]?5070 ?Ti\b", "rtx5070ti"),
    (r"\bRTX[- ]?5070\b", "rtx5070"),
    (r"\bRTX[- ]?5080\b", "rtx5080"),
    (r"3090", "rtx3090"),
    (r"4090", "rtx4090"),
    (r"5090", "rtx5090"),
    (r"\b[2345]0[5-9]0 ?(?:Ti|S(?:UPER)?)\b", ""),
    (r"(?:TPU[- ]?)?v5p\b", "tpu-v5p"),
    (r"(?:TPU[- ]?)?v5(?:e|[- ]?lite)", "tpu-v5e"),
    (r"TPU[- ]?v6e|\bv6e\b|Trillium", "tpu-v6e"),
    (r"TPU[- ]?v4\b|^v4\b", "tpu-v4"),
    (r"Trainium ?2|\btrn2", "trainium2"),
    (r"Trainium ?1?\b|\btrn1", "trainium1"),
)
"""Accelerators by how tables print them and their preset; the first match counts, an empty one is none."""

HOSTS_MEMORY = 2.5
"""Times its preset's memory from which on a printed size cannot be a device's own."""
OTHER_MEMORY = 0.08
"""Share by which a printed memory size differs from a preset's before it counts as another variant."""


def device_key(row: Row) -> str:
    """Return the preset name of a row's accelerator, by any of its usual spellings.

    Raises:
        SkipRow: no preset matches.
    """
    text = row["gpu"]
    if not text:
        raise SkipRow(
            "no column says which device ran (GPU, accelerator, hardware), and no --set gpu=NAME"
        )
    if exact := _exact_spellings().get(_squeezed(text)):
        return exact
    if (machine := machine_of(text)) is not None:
        text = machine.device
    for words in (re.sub(r"\(.{0,200}?\)", " ", text), text):
        for pattern, key in _DEVICES:
            if re.search(rf"(?:{pattern})(?:(?<!\d)|(?!\d))", words, re.IGNORECASE):
                if key:
                    return key
                raise SkipRow(f"no device preset for {text!r} (`meshwright devices` lists them)")
    # A preset whose name or alias is printed whole, the longest first: "RTX 6000 Ada 48GB".
    for name in sorted(device_names(), key=len, reverse=True):
        spellings = (name, *presets.table("devices")[name].get("aliases", ()))
        if any(_printed(_squeezed(one)).search(text) for one in spellings):
            return name
    raise SkipRow(f"no device preset for {text!r} (`meshwright devices` lists them)")


def _squeezed(text: str) -> str:
    """A name without case, blanks and punctuation."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


@cache
def _printed(squeezed: str) -> re.Pattern[str]:
    """A spelling anywhere in a text, whatever stands between its letters: A40, but not of A4000."""
    inside = r"[^A-Za-z0-9]*".join(map(re.escape, squeezed))
    return re.compile(rf"(?<![A-Za-z0-9]){inside}(?![0-9])", re.IGNORECASE)


@cache
def _exact_spellings() -> dict[str, str]:
    """Presets by their whole names, aliases and titles."""
    found = {}
    for name in device_names():
        entry = presets.table("devices")[name]
        for spelling in (entry["name"], *entry.get("aliases", ()), name):
            found[_squeezed(spelling)] = name
    return found


def _variant(cluster: Cluster, text: str) -> Cluster:
    """The cluster with the memory and power that a row prints for its device, where not the preset's."""
    device = cluster.device
    size = re.search(r"(\d{2,3}) ?Gi?B", text)
    rate = re.search(r"(\d\.\d+) ?TB/s", text)
    bytes_s = float(rate[1]) * 1e12 if rate else _OLDER_MEMORY if _HBM2E.search(text) else None
    changes: dict[str, object] = {}
    printed = float(size[1]) * 2**30 / device.memory_bytes if size else 1.0
    # "GH200 480GB" is what its host has.
    if size and abs(printed - 1.0) > OTHER_MEMORY and printed < HOSTS_MEMORY:
        changes["memory_bytes"] = float(size[1]) * 2**30
    if bytes_s and abs(bytes_s / device.memory_bandwidth_bytes_s - 1.0) > OTHER_MEMORY:
        changes["memory_bandwidth_bytes_s"] = bytes_s
    if (slower := _power_limited(device, text)) < 1.0:
        changes["peak_flops"] = {name: slower * peak for name, peak in device.peak_flops.items()}
    return cluster.but(device=device.but(**changes).model_dump()) if changes else cluster


_HBM2E = re.compile(r"H100.*HBM2e", re.IGNORECASE)
_OLDER_MEMORY = 2.4e12
"""Bytes/s of the H100 with HBM2e on SXM, of 94 to 96 GB and 500 W, as torchtitan's pages print it
(pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md)."""
_LOW_POWER_WATTS = 500

SHEET_WATTS = (("H100 SXM", 700), ("H200 SXM", 700), ("A100 SXM", 400), ("B200", 1000))
"""Power of a device on its data sheet."""


def _power_limited(device: Device, text: str) -> float:
    """Clock of a device whose row prints less power than its data sheet, over the sheet's.

    Products in training run at what power allows (`training_share`). It goes with the clock and the square
    of the voltage, which rises with the clock: the clock goes with its cube root.
    """
    printed = re.search(r"\b(\d{3,4}) ?W\b", text)
    watts_printed = int(printed[1]) if printed else _LOW_POWER_WATTS if _HBM2E.search(text) else 0
    sheet = next((watts for name, watts in SHEET_WATTS if device.name.startswith(name)), None)
    if not watts_printed or sheet is None:
        return 1.0
    return float(min(1.0, (watts_printed / sheet) ** (1 / 3)))


def cluster_of(row: Row, rule: SourceRule, gpus: int, assumed: list[str]) -> Cluster:
    """Return the cluster that a row ran on; what the row leaves open is added to `assumed`.

    A source may document its cluster (`cluster`, a preset) or its network (`network_bytes_s`,
    `network_latency_s`); what the row itself states about its network comes first.

    Raises:
        SkipRow: no device preset matches, or the size is impossible.
    """
    key = device_key(row)
    host = row.count("gpus_per_node")
    if host is None:
        host = HOST_GPUS.get(key, 8)
        if gpus > 1:
            assumed.append(f"gpus_per_node={host}")
    host = min(host, gpus)
    if gpus % host:
        raise SkipRow(f"{gpus} devices are not whole nodes of {host}")
    if re.search("NeuronCore", row["gpu"]):
        return _of_neuron_cores(key, gpus, host)
    name = rule.default("cluster") or key
    cluster = _variant(_hosts(name, gpus // host, host), row["gpu"])
    inner = cluster.levels[0]
    without_nvlink = re.search(r"no NVLink|without NVLink", row["interconnect"], re.IGNORECASE)
    if re.search(r"PCI-?e", row["interconnect"], re.IGNORECASE) and (
        without_nvlink or not re.search("NVL", row["interconnect"], re.IGNORECASE)
    ):
        cluster = _with_level(cluster, 0, kind="pcie", bandwidth_bytes_s=PCIE_BYTES_S)
    if gpus > inner.domain and len(cluster.levels) > 1:
        cards = cluster.levels[-1].nics_per_node or host
        stated = stated_network_bytes_s(row["interconnect"], host, cards)
        if stated:
            cluster = _with_level(cluster, -1, bandwidth_bytes_s=stated)
        elif rule.default("network_bytes_s"):
            rate = float(rule.default("network_bytes_s"))
            cluster = _with_level(cluster, -1, bandwidth_bytes_s=rate)
        else:
            rate = cluster.levels[-1].bandwidth_bytes_s
            assumed.append(f"network={rate * 8 / 1e9:.0f}Gb/s per device")
        if rule.default("network_latency_s"):
            latency = float(rule.default("network_latency_s"))
            cluster = _with_level(cluster, -1, latency_s=latency)
    if cluster.levels[0].kind == "pcie" and host > 1 and not row["interconnect"]:
        assumed.append(f"pcie={cluster.levels[0].bandwidth_bytes_s / 1e9:.0f}GB/s between cards")
    joined = re.search(r"NVLink (\d+) inter-?GPU", row["interconnect"], re.IGNORECASE)
    if joined and host > 1:
        cluster = _in_islands(cluster, int(joined[1]))
    return cluster.but(source=row["source"])


def _hosts(name: str, nodes: int, host: int) -> Cluster:
    """So many hosts of so many devices, also of more than the preset's host has where PCIe joins them."""
    whole = load_cluster(name)
    full = whole.gpus_per_node
    if host <= full or whole.levels[0].kind != "pcie":
        return load_cluster(f"{name}:{nodes}x{host}")
    usual = load_cluster(f"{name}:{nodes}x{full}")
    levels = [usual.levels[0].but(domain=host), *usual.levels[1:]]
    return usual.but(
        name=f"{name}:{nodes}x{host}",
        gpus_per_node=host,
        levels=[
            level.but(domain=nodes * host).model_dump() if index else level.model_dump()
            for index, level in enumerate(levels)
        ],
    )


NVLINK_LANE_BYTES_S = 25e9
"""Of one NVLink each way, of its second generation and later."""
PCIE_BYTES_S, PCIE_LATENCY_S = 25e9, 5e-6
"""What a device reaches over PCIe 4 x16 (31.5 GB/s by data sheet), and a message's latency."""


def _in_islands(cluster: Cluster, links: int) -> Cluster:
    """The cluster of hosts without a switch, whose devices are joined by so many links a pair.

    A device's lanes reach `lanes / links` peers: of an A100's twelve, four a pair reach three. Hosts of
    more devices hold several such islands, which PCIe joins.
    """
    inner = cluster.levels[0]
    island = int(inner.bandwidth_bytes_s // (links * NVLINK_LANE_BYTES_S)) + 1
    if island >= inner.domain or inner.domain % island:
        return cluster
    near = inner.but(domain=island, kind="nvlink", p2p_bytes_s=links * NVLINK_LANE_BYTES_S)
    between = inner.but(
        name="pcie", kind="pcie", bandwidth_bytes_s=PCIE_BYTES_S, latency_s=PCIE_LATENCY_S
    )
    levels = (near, between, *cluster.levels[1:])
    return cluster.but(levels=[level.model_dump() for level in levels])


def _with_level(cluster: Cluster, index: int, **changes: object) -> Cluster:
    levels = list(cluster.levels)
    levels[index] = levels[index].but(**changes)
    return cluster.but(levels=[level.model_dump() for level in levels])


def _of_neuron_cores(key: str, gpus: int, host: int) -> Cluster:
    """A cluster whose devices are the two cores of each chip: half a chip's rates and memory."""
    chips = load_cluster(f"{key}:{max(1, gpus // host)}x{max(1, host // 2)}")
    whole = chips.device
    core = Device(
        **{
            **whole.model_dump(),
            "name": "Trainium1 (one NeuronCore)",
            "peak_flops": {name: peak / 2 for name, peak in whole.peak_flops.items()},
            "memory_bytes": whole.memory_bytes / 2,
            "memory_bandwidth_bytes_s": whole.memory_bandwidth_bytes_s / 2,
        }
    )
    levels = [
        level.but(domain=2 * level.domain, bandwidth_bytes_s=level.bandwidth_bytes_s / 2)
        for level in chips.levels
    ]
    return Cluster(
        name=f"{key}-cores:{max(1, gpus // host)}x{host}",
        device=core,
        nodes=max(1, gpus // host),
        gpus_per_node=host,
        levels=tuple(levels),
        source=chips.source,
    )


_RATE = r"(?P<rate>\d+(?:\.\d+)?) ?(?P<unit>Gb(?:ps|it)?(?:/s)?|Gbits?/s|GB/s|GBps|GbE|Gi?bps)"
_CARD = r"Infini-?Band|\bIB\b|ConnectX|\bCX-?\d|RoCE|RDMA|NDR|HDR|EDR|FDR|XDR|EFA|Slingshot|Omni-?Path|OPA|BlueField|BF3|Ethernet|GbE|Thor"
_NETWORK = r"^\W*\d+(?:\.\d+)? ?Gb\S*\W*$|\binter\b|per (?:node|host|server|GPU|device)|network"
_NOT_COMPUTE = r"storage|management|front-?end|host |\bNS\b|in-band|GPU-PCIe|PCIe-NIC"

SLOWEST_COMPUTE_CARD = 5e9
"""Bytes/s up to which an Ethernet card without a number of cards is the host's own, not for training."""


def _parts(interconnect: str) -> list[str]:
    """What a column says of each network, apart: cut at `;`, `+`, `and`, and at commas before a name."""
    parts: list[str] = []
    for piece in re.split(r"[;+()]|\band\b", interconnect):
        for comma in piece.split(","):
            named = re.search(rf"{_CARD}|:|NVL|\binter\b", comma, re.IGNORECASE)
            rated = bool(parts) and re.search(_RATE, parts[-1])
            if parts and comma is not piece.split(",")[0] and not named and not rated:
                parts[-1] += "," + comma
            else:
                parts.append(comma)
    return [
        part
        for part in parts
        if not re.search(r"NVLink|NVSwitch|XGMI|Infinity Fabric|\bintra\b", part, re.IGNORECASE)
        or re.search(_CARD, part, re.IGNORECASE)
    ]


def stated_network_bytes_s(interconnect: str, host: int, cards: int) -> float | None:
    """Network bytes/s per device per direction that an interconnect column states, if it does.

    Where several kinds of cards are named, those not for storage, management or the host count,
    and among them the fastest in all. `N x R` is N cards a host; "per node", "/node" and a list with a
    total are the host's; "per GPU" is a device's; a card's rate without a number of cards stands for
    each of the `cards` that such hosts have.
    """
    found = []
    for part in _parts(interconnect):
        if re.search(_NOT_COMPUTE, part, re.IGNORECASE) and "compute" not in part.lower():
            continue
        card = re.search(_CARD, part, re.IGNORECASE)
        if not card and not re.search(_NETWORK, part, re.IGNORECASE):
            continue
        rates = list(re.finditer(_RATE, part))
        if not rates:
            continue
        match = rates[-1]
        rate = parse_bandwidth(match["rate"] + ("GB/s" if "GB" in match["unit"] else "Gb/s"))
        count = re.search(r"(?<!\d)(\d+) ?[x\u00d7] ?", part[: match.start()])
        if count:
            found.append(int(count[1]) * rate / host)
        elif re.search(r"(?:per|/) ?(?:GPU|device|accelerator|chip)", part, re.IGNORECASE):
            found.append(rate)
        elif not card or re.search(r"(?:per|/) ?(?:node|host|server)\b", part, re.IGNORECASE):
            found.append(rate / host)
        elif rate > SLOWEST_COMPUTE_CARD or host == 1:
            found.append(rate * cards / host)
    return max(found) if found else None
