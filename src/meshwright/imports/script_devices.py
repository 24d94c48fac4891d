"""Which devices a script asks its batch system or cloud for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable

from meshwright.imports.reading import Reading
from meshwright.imports.shell.state import Script
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

_TPUS = {"v5litepod": "v5e", "trillium": "v6e", "tpu7x": "v7"}


_CALLED = {"mi250": "mi250x"}
"""Names that clusters give a device to SLURM, beside its own."""


def take_tpus(text: str, reading: Reading) -> None:
    """The TPUs that a script names (`v5p-64`): cores in pairs up to v5p, chips from then on."""
    text = re.sub(r"(?m)^[^\S\n]*#.*$", "", text)  # a comment is an example, not what is run
    found = re.search(r"\b(v4|v5e|v5p|v5litepod|v6e|tpu7x|trillium)\b(?:-(\d{1,5})\b)?", text)
    if found is None:
        return
    kind = _TPUS.get(found.group(1), found.group(1))
    reading.device = f"tpu-{kind}"
    reading.per_host = 8 if kind == "v6e" else 4
    if found.group(2) and not reading.world():
        chips = int(found.group(2)) // (2 if kind in ("v4", "v5p") else 1)
        reading.devices = max(1, chips)


def device_of(script: Script) -> str:
    """The device that a batch script asks for (`--constraint=a100`, `--gres=gpu:h100:8`)."""
    for name in ("constraint", "C", "gres", "gpus", "gpus-per-node", "G"):
        for word in re.split(r"[:&|,_\[\]()\"'-]+", script.sbatch.get(name, "").lower()):
            word = _CALLED.get(word, word)
            if re.fullmatch(r"[a-z]{1,4}\d{2,4}[a-z]?", word):
                with contextlib.suppress(SpecError):
                    load_cluster(f"{word}:1x4")
                    return word
    return ""


_NAMES = re.compile(
    r"(?i)(?<![a-z])(?:nvidia|amd|tesla|geforce|rtx|gpu|instinct|dgx|\dx)?[ _-]?(gh200|gb200|gb300|h100|h200|h800|h20|b200|b300|a100|a800|v100|l40s|l40|a10g|a40|l4|t4|mi250x|mi300x|mi300a|mi325x|mi355x|a6000|a5000|4090|3090|5090)(?![0-9a-wyz])(?!x(?!\d))"
)


def device_named(text: str) -> str:
    """The device that a name speaks of (`4xa100-80gb`, `gpuA100x4`, `NVIDIA RTX 4090`); empty where none known is."""
    for found in _NAMES.finditer(text.replace("_", " ")):
        name = found.group(1).lower()
        for one in (
            f"{name}-40gb" if "40g" in text.lower() and name == "a100" else name,
            name,
            f"rtx-{name}",
            f"rtx{name}",
        ):
            with contextlib.suppress(SpecError):
                load_cluster(f"{one}:1x4")  # what hosts of every kind have at least
                return one
    return ""


_RESOURCE = re.compile(r"(?:^|[./])accelerator_(?:type|shape):(?:(\d+)x)?([\w-]+)$")
"""How Ray asks for a kind of device, by the name of a resource (`accelerator_type:L4`, Anyscale's `accelerator_shape:4xL4`)."""


def take_resources(names: Iterable[str], reading: Reading) -> set[str]:
    """Take the device that Ray's workers ask for by the name of a resource, and how many one host has; these names come back."""
    found = {name: said for name in names if (said := _RESOURCE.search(name)) is not None}
    for said in found.values():
        device, each, world = device_named(said[2].replace("-", " ")), int(said[1] or 0), reading.devices  # fmt: skip
        reading.device = reading.device or device
        if each and world and world % each == 0:
            reading.hosts, reading.per_host, reading.devices = world // each, each, 0
    return set(found)


def one_task(script: Script) -> bool:
    """Whether a batch script asks for devices and says neither hosts nor more than one task."""
    batch = script.sbatch
    asks = any(name in batch for name in ("gres", "gpus-per-node", "gpus", "G"))
    return asks and batch.get("ntasks", batch.get("n", "1")) == "1"


def name_slice(script: Script, reading: Reading) -> None:
    """Name a slice of a device that a batch script asks for (`--gres=gpu:h100_3g.40gb:1`)."""
    for name in ("gres", "gpus", "gpus-per-node", "G", "constraint"):
        found = re.search(r"(?<!\d)([1-7])g\.(\d{1,3})gb", script.sbatch.get(name, "").lower())
        if found:
            reading.unmodelled(
                f"--{name}",
                f"asks for a slice of a device (MIG: {found.group(1)} of 7 parts of its processors, "
                f"{found.group(2)} GB of its memory); a whole one is priced",
            )
            return


_MAKERS = (
    ("gaudi2", re.compile(r"(?m)^(?![^\S\n]*#).*(?:\bPT_HPU_\w{1,40}=|\bHABANA_\w{1,40}=|\boptimum\.habana\b|\bgaudi_spawn\.py\b|\bhabana_frameworks\b|\bGaudi(?:Config|TrainingArguments|Trainer)\b|--use_(?:habana|hpu)\b)")),
    ("ascend-910b", re.compile(
        r"(?m)^(?![^\S\n]*#).*(?:ASCEND_\w{0,40}VISIBLE|HCCL_\w{1,40}=|ASCEND_TOOLKIT|/Ascend/|\btorch_npu\b|NPUS_PER_NODE)"
    )),
    ("mi300x", re.compile(
        r"(?m)^(?![^\S\n]*#).*(?:(?<!NOSET_)\b(?:HIP|ROCR)_VISIBLE_DEVICES=|\bHSA_\w{1,40}=|\bRCCL_\w{1,40}=|\bNVTE_CK_\w{1,40}=)"
    )),
    ("trainium1", re.compile(r"(?m)^(?![^\S\n]*#).*(?:\bNEURON_(?:RT|CC|FUSE|CORES)|\bneuron-ls\b|\boptimum\.neuron\b|\bneuronx_distributed\b)")),
    ("tpu-v5e", re.compile(r"(?m)^(?![^\S\n]*#)(?:.*\b(?:optimum\.tpu|xla_spawn\.py)\b|\S.*\btorch_xla\b)")),
)  # fmt: skip
"""What only a file for one maker's devices says; the first of a name is the device that is offered. Gaudi's collectives are called HCCL as Ascend's are."""


def name_maker(text: str, reading: Reading) -> None:
    """Offer a device of the maker whose software a file uses, where it names none itself."""
    if reading.device or reading.likely != "h100":
        return
    reading.likely = next((device for device, said in _MAKERS if said.search(text)), "h100")
    if reading.likely == "trainium1":
        count_cores(reading)


_HOSTS = {32: ("trainium1", 2), 2: ("trainium1", 2), 64: ("trainium2", 4), 128: ("trainium2", 8)}
"""NeuronCores of a host, as programs count them → the chip, and its cores (trn2's are two to a logical one by default)."""


def count_cores(reading: Reading, device: str = "", logical: int = 0) -> None:
    """Count a file's processes as NeuronCores, of which each chip has several.

    Args:
        device: of the cluster that the user names, if any.
        logical: cores of a chip's second generation that count as one, where the file says so.
    """
    kind, cores = _HOSTS.get(reading.per_host, (reading.likely, 2 if reading.likely == "trainium1" else 4))  # fmt: skip
    if device.startswith("trainium") and device != kind:
        kind, cores = device, 2 if device == "trainium1" else 4
    if logical and kind != "trainium1":
        cores = 8 // logical
    reading.likely, reading.cores = kind, cores
    reading.note(f"its devices are NeuronCores, {cores} a chip; --cluster counts chips", "device")


_CHIPS = {
    "p3": "v100-16g", "p3dn": "v100-32g", "p4d": "a100-40g", "p4de": "a100-80g", "p5": "h100", "p5e": "h200", "p5en": "h200", "p6-b200": "b200",
    "p6-b300": "b300", "g4dn": "t4", "g5": "a10g", "g6": "l4", "g6e": "l40s", "trn1": "trainium1", "trn1n": "trainium1", "trn2": "trainium2",
}  # fmt: skip
"""Devices of Amazon's machines by the family's name (docs.aws.amazon.com/ec2/latest/instancetypes)."""
_SIZES = {
    "p3": {"2xlarge": 1, "8xlarge": 4}, "p5": {"4xlarge": 1}, "trn1": {"2xlarge": 1, "32xlarge": 16}, "trn1n": {"32xlarge": 16}, "trn2": {"48xlarge": 16},
    **{family: {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8, "metal": 8} for family in ("g4dn", "g5", "g6", "g6e")},
}  # fmt: skip


def instance(name: str) -> tuple[str, int]:
    """The device of one of Amazon's machines and how many it has (`ml.g5.12xlarge`: A10G, 4); empty and 0 for another."""
    found = re.fullmatch(r"(?:ml\.)?([a-z]\w+(?:-b\d00)?)\.(\w+)", name.strip().lower())
    if found is None or found.group(1) not in _CHIPS:
        return "", 0
    family, size = found.groups()
    usual = 1 if family.startswith("g") else 8
    return _CHIPS[family], _SIZES.get(family, {}).get(size, usual)
