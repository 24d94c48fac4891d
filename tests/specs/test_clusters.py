"""Devices and clusters: presets, short texts, files, and the errors of each."""

import re

import pytest

from meshwright.specs import presets
from meshwright.specs.clusters import cluster_names, load_cluster
from meshwright.specs.devices import device_names, load_device
from meshwright.specs.errors import SpecError

WANTED = """v100-16g v100-32g a100-40g a100-80g h100 h200 b200 b300 gb200 gb300 mi250x mi300x mi325x
mi355x l4 l40s a10g rtx3090 rtx4090 rtx5090 tpu-v4 tpu-v5e tpu-v5p tpu-v6e trainium1 trainium2 cpu"""


@pytest.mark.parametrize("name", WANTED.split())
def test_every_device_of_the_issue_is_a_preset_with_sources(name):
    device = load_device(name)
    assert device.preset == name
    stated = {"memory", "memory_bandwidth", "peak_tflops", "sms"} & set(
        presets.table("devices")[name]
    )
    assert stated <= set(device.sources), "each number names its source"
    assert all(0 < share <= 1 for share in device.matmul_efficiency.values())
    cluster = load_cluster(name)
    assert cluster.gpus == cluster.gpus_per_node
    assert all(level.source for level in cluster.levels)


def test_lists_are_complete():
    assert set(WANTED.split()) <= set(device_names())
    for name in cluster_names():
        assert load_cluster(name).source
    for name in device_names():
        assert load_cluster(f"{name}:3").gpus == 3


@pytest.mark.parametrize(
    ("text", "gpus", "domains"),
    [
        ("h100:8x8", 64, (8, 64)),
        ("a100-80g:4x8", 32, (8, 32)),
        ("A100_80GB:4x8", 32, (8, 32)),
        ("h100:64", 64, (8, 64)),
        ("h100:4", 4, (4,)),
        ("h100:2x4", 8, (4, 8)),
        ("aws-p4d:4", 32, (8, 32)),
        ("gb200-nvl72", 72, (72,)),
        ("gb200:32x4", 128, (72, 144)),
        ("gb200:8x4", 32, (32,)),
        ("mi250x:2x8", 16, (2, 8, 16)),
        ("tpu-v5p:64x4", 256, (256,)),
    ],
)
def test_short_texts(text, gpus, domains):
    cluster = load_cluster(text)
    assert cluster.gpus == gpus
    assert tuple(level.domain for level in cluster.levels) == domains


def test_directions_are_never_counted_twice():
    """X4-X6: 900 GB/s of H100 counts both directions; 400 Gb/s is 50 GB/s."""
    h100 = load_cluster("h100:8x8")
    assert [level.bandwidth_bytes_s for level in h100.levels] == [450e9, 50e9]
    assert load_cluster("a100:2x8").levels[0].bandwidth_bytes_s == 300e9
    assert load_cluster("aws-p4d:2").levels[1].bandwidth_bytes_s == 6.25e9
    mesh = load_cluster("mi300x:2x8").levels[0]
    assert (mesh.kind, mesh.bandwidth_bytes_s, mesh.p2p_bytes_s) == ("mesh", 448e9, 64e9)
    assert mesh.bandwidth_bytes_s == 7 * mesh.p2p_bytes_s


def test_visible_memory_not_the_marketing_figure():
    """X23: 80 GB of HBM is 79.19 GiB to a program on H100: less than the 81559 MiB of nvidia-smi."""
    assert load_device("h100").memory_bytes == 81089 * 2**20
    for name, smi_mib in (("a100", 81920), ("a100-40g", 40960), ("h200", 143771), ("b200", 183359)):
        kept_back = 1 - load_device(name).memory_bytes / (smi_mib * 2**20)
        assert 0.003 < kept_back < 0.013


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("h1000:8x8", "h100"),
        ("h100:16x16", "has 8 devices"),
        ("h100:0x8", "size is expected"),
        ("h100:12", "do not fill"),
        ("h100:8x", "size is expected"),
        ("h100:", "behind the colon"),
        ("", "h100:8x8"),
        ("none.toml", "cannot be read"),
        ("h100:none.txt", "cannot be read"),
        ("h100:99999999999999", "size is expected"),
    ],
)
def test_errors_name_value_and_remedy(text, words):
    with pytest.raises(SpecError, match=re.escape(words)):
        load_cluster(text)


FILE = """
name = "two-tier"
nodes = 32
gpus_per_node = 8
reserve = "2GiB"
host_memory = "2TiB"
[device]
base = "h100"
memory = "94GiB"
price_per_hour = 2
[[levels]]
name = "nvlink"
domain = "host"
bandwidth = "450GB/s"
latency = "2us"
kind = "nvswitch"
[[levels]]
name = "rail"
domain = 128
bandwidth = "400Gb/s"
latency = "5us"
nics_per_node = 8
[[levels]]
name = "spine"
domain = "all"
bandwidth = "400Gb/s"
latency = "8us"
oversubscription = 2
"""


def test_a_file_with_any_hierarchy(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(FILE)
    cluster = load_cluster(path)
    assert cluster.gpus == 256
    assert [level.domain for level in cluster.levels] == [8, 128, 256]
    assert cluster.levels[1].bandwidth_bytes_s == 50e9
    assert cluster.device.memory_bytes == 94 * 2**30
    assert cluster.device.peak("bf16") == 989e12
    assert cluster.device.source == "preset h100, changed: memory_bytes, price_per_hour"
    assert cluster.reserve_bytes == 2 * 2**30
    assert load_cluster(str(path)) == cluster


def test_a_plan_files_cluster_loads_as_it_is():
    cluster = load_cluster("gb200:32x4")
    assert load_cluster(cluster.plain()) == cluster


def test_a_preset_device_brings_its_usual_host():
    cluster = load_cluster({"device": "a100", "nodes": 4})
    assert cluster.gpus == 32
    assert cluster.levels == load_cluster("a100:4x8").levels


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (("nodes = 32", "nodes = 0"), "nodes"),
        (("nodes = 32", 'nodes = "many"'), "nodes"),
        (('memory = "94GiB"', 'memory = "94Gb"'), "device.memory"),
        (('base = "h100"', 'base = "h1oo"'), "device.base"),
        (("domain = 128", "domain = 12"), "levels"),
        (('bandwidth = "400Gb/s"', 'bandwidth = "fast"'), "levels.1.bandwidth"),
        (("[[levels]]", "[[level]]"), "level"),
        (('name = "two-tier"', "nodez = 3"), "nodez"),
    ],
)
def test_a_wrong_file_names_the_field(tmp_path, change, field):
    path = tmp_path / "cluster.toml"
    path.write_text(FILE.replace(*change))
    with pytest.raises(SpecError) as error:
        load_cluster(path)
    assert error.value.field.startswith(field), str(error.value)


def test_a_plan_file_is_a_cluster_file(tmp_path):
    cluster = load_cluster("mi300x:2x8")
    assert load_cluster({"schema_version": 1, "cluster": cluster.plain()}) == cluster
    (tmp_path / "without-suffix").write_text('device = "h100"\nnodes = 3\n')
    assert load_cluster(str(tmp_path / "without-suffix")).gpus == 24


@pytest.mark.parametrize("size", ["2x", "x4", "two", ""])
def test_a_file_with_half_a_size_asks_for_a_size(size):
    with pytest.raises(SpecError, match=r"a size is expected, such as mine\.toml:1x4"):
        load_cluster(f"mine.toml:{size}")


def test_more_cards_in_the_slots_of_a_host_share_its_network():
    """Eight L40S or A10 in a host are as common as the template's four; a fabric has as many as it has."""
    four, eight = load_cluster("l40s:2x4"), load_cluster("l40s:2x8")
    assert eight.gpus == 16
    assert eight.levels[0].bandwidth_bytes_s == four.levels[0].bandwidth_bytes_s
    assert eight.levels[1].bandwidth_bytes_s == four.levels[1].bandwidth_bytes_s / 2
    assert "share the network" in eight.source
    for asked, instead in (("gb300:4x72", "gb300:72x4"), ("tpu-v5p:1x64", "tpu-v5p:16x4")):
        with pytest.raises(SpecError, match=instead):
            load_cluster(asked)
    with pytest.raises(SpecError, match="has 4 devices"):
        load_cluster("l40s:1x16")
