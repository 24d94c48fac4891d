"""Commands inside the objects of a cluster: Kubernetes, SkyPilot, Beaker, Compose and what is like them."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright.exports.stamp import Stamp
from meshwright.imports.reading import Given, Reading
from meshwright.imports.script_devices import device_named, instance
from meshwright.specs.errors import SpecError

_SIZES = {
    "hosts": ("numNodes", "num_nodes", "parallelism", "completions", "replicas", "nodes"),
    "per_host": (
        "nvidia.com/gpu",
        "amd.com/gpu",
        "google.com/tpu",
        "gpus_per_node",
        "gpuCount",
        "acceleratorCount",
    ),
}
_PLACES = (
    "cluster",
    "clusters",
    "accelerators",
    "gpu_type",
    "gpuType",
    "instance_type",
    "queue",
    "node_pool",
    "cloud.google.com/gke-accelerator",
    "acceleratorType",
    "machineType",
)
"""Where a job names the machines that it wants."""
_RAN = frozenset({"exitCode", "exit_code", "finishedAt", "finished_at"})
"""What only a record of a job has, after it ran."""
_LISTS = ("command", "args", "arguments", "argv")
_TEXTS = ("run", "command", "cmd", "entrypoint", "arguments", "args")
_STARTS = re.compile(
    r"(?:torchrun|accelerate launch|deepspeed|srun|composer|python3?)\s[^\n]*?(?:\s-m\s|[\w/]\.py|--\w)|pretrain_\w+\.py\s|llamafactory-cli train|axolotl train|tune run"
)


def read(
    data: dict[str, Any], name: str, given: Given, stamp: Stamp, folder: Path | None
) -> tuple[Reading, Stamp]:
    """Read the command inside a Kubernetes object or another cluster's job.

    Raises:
        SpecError: it holds no command, or what that runs cannot be read.
    """
    from meshwright.imports import scripts

    if any(_RAN & set(one) and "command" in one for one in tables(data)):
        raise SpecError("file", name, "describes no training run of its own: it records jobs that ran; import the command or the file of one")  # fmt: skip
    script = next((data[key] for key in ("run", "command") if isinstance(data.get(key), str)), None)
    if script is not None:
        script = "\n".join([*_skypilot(data), script])
    script = script or _lines(data)
    if script is None:
        script = next(iter(sorted(commands(data), key=training, reverse=True)), None)
    if script is None:
        raise SpecError("file", name, "no container with a command was found")
    reading, found = scripts.read(_with_environment(data, script), name, given, folder, stamp)
    _instances(data, reading)
    size(data, reading)
    return reading, found


def _instances(data: dict[str, Any], reading: Reading) -> None:
    """Take the processes that Azure ML starts of a command on each of its instances, which the command does not say."""
    spread, resources = data.get("distribution"), data.get("resources")
    if not isinstance(spread, dict):
        return
    each = spread.get("process_count_per_instance", spread.get("processCountPerInstance"))
    hosts = resources.get("instance_count", 1) if isinstance(resources, dict) else 1
    if isinstance(each, int) and isinstance(hosts, int) and each > 0 < hosts:
        reading.hosts, reading.per_host, reading.devices = hosts, each, 0
        reading.remarks = [one for one in reading.remarks if one.option != "launcher"]


_ENVIRONMENTS = ("env", "envs", "environment", "environment_variables")


def _with_environment(data: dict[str, Any], script: str) -> str:
    """A command after the variables that its containers set and it speaks of."""
    said: dict[str, str] = {}
    for table in tables(data):
        for key in _ENVIRONMENTS:
            for name, value in _pairs(table.get(key)):
                if re.search(rf"\$\{{?{re.escape(name)}\b", script):
                    said.setdefault(name, value)
    exports = [f"export {name}={shlex.quote(value)}" for name, value in said.items()]
    if not exports:
        return script
    first, _newline, rest = script.partition("\n")
    if first.startswith("#!"):
        return "\n".join([first, *exports, rest])
    return "\n".join([*exports, script])


def _pairs(said: Any) -> list[tuple[str, str]]:
    """Names and values of variables, as a table, a list of tables with a name each, or `NAME=value`."""
    if isinstance(said, dict):
        found = list(said.items())
    elif isinstance(said, list):
        found = [(one.get("name"), one.get("value")) if isinstance(one, dict) else str(one).partition("=")[::2] for one in said]  # fmt: skip
    else:
        return []
    return [
        (str(name), str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in found
        if str(name).isidentifier() and isinstance(value, (str, int, float, bool)) and value != ""
    ]


def _lines(data: dict[str, Any]) -> str | None:
    """The script that a list of commands makes (dstack's), its environment before it; None where there is none."""
    listed = data.get("commands")
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        return None
    exports = [f"export {name}={shlex.quote(value)}" for name, value in _pairs(data.get("env"))]
    return "\n".join([*exports, *listed])


def _accelerators(data: dict[str, Any]) -> tuple[str, int]:
    """The devices of a host as SkyPilot asks for them (`A100-80GB:8`, `{H100: 8}`, or a list of these), the first of several."""
    wanted = data.get("resources")
    choices = [wanted, *(wanted.get("any_of") or wanted.get("ordered") or [])] if isinstance(wanted, dict) else []  # fmt: skip
    said = next((one["accelerators"] for one in choices if isinstance(one, dict) and one.get("accelerators")), None)  # fmt: skip
    if isinstance(said, list) and said:
        said = said[0]
    if isinstance(said, dict) and said:
        said = ":".join(map(str, next(iter(said.items()))))
    name, _, count = str(said or "").partition(":")
    return (name, int(count) if count.isdigit() and 0 < int(count) < 1000 else 1) if name else ("", 0)  # fmt: skip


def _skypilot(data: dict[str, Any]) -> list[str]:
    """What SkyPilot tells a job of its size, as lines of its script."""
    _, count = _accelerators(data)
    nodes = data.get("num_nodes")
    nodes = nodes if isinstance(nodes, int) and 0 < nodes < 100_000 else 1
    sizes = {"SKYPILOT_NUM_NODES": nodes, "SKYPILOT_NUM_GPUS_PER_NODE": count}
    return [f"export {name}={size}" for name, size in sizes.items()] if count else []


def starts_training(data: dict[str, Any]) -> bool:
    """Whether a table of no known format holds, somewhere, the command of a training."""
    told = [*commands(data), _lines(data) or ""]
    return any(map(starts, told))


def starts(command: str) -> bool:
    """Whether a text is the command of a training."""
    return _STARTS.search(command) is not None and training(command) > 2


def training(command: str) -> int:
    """How much a container's command looks like training, beside those that fetch models or data."""
    return len(
        re.findall(r"torchrun|accelerate|deepspeed|train|tune|--\w|maxtext", command.lower())
    )


def size(data: dict[str, Any], reading: Reading) -> None:
    """Take hosts and devices of a host from a cluster's object or a job's table, where the command says none."""
    found: dict[str, list[int]] = {"hosts": [], "per_host": []}
    for key, value in ((key, value) for table in tables(data) for key, value in table.items()):
        for what, names in _SIZES.items():
            if key in names and str(value).isdigit() and 0 < int(value) < 100_000:
                found[what].append(int(value))
    if not reading.world() and (found["per_host"] or reading.per_host):
        reading.per_host = reading.per_host or max(found["per_host"])
        reading.hosts = reading.hosts or _by_roles(data) or max(found["hosts"], default=1)
    _slice(data, reading)
    started = next((str(t["WORLD_SIZE"]) for t in tables(data) if "WORLD_SIZE" in t), "")
    if not reading.world() and started.isdigit() and 0 < int(started) < 100_000:
        reading.devices = int(started)
    places = [
        str(value) for table in tables(data) for key, value in table.items() if key in _PLACES
    ]
    for table in tables(data):  # a node's label of its product, which the pod asks for
        asked_for = table.get("values")
        places += [str(one) for one in asked_for if str(one).startswith("NVIDIA-")] if isinstance(asked_for, list) else []  # fmt: skip
    reading.likely = device_named(" ".join(places)) or reading.likely
    wanted = (
        data.get("resources", {}).get("gpu") if isinstance(data.get("resources"), dict) else None
    )
    if isinstance(wanted, str):  # dstack's `H100:80GB:8`
        *_, last = parts = wanted.split(":")
        reading.likely = device_named(parts[0]) or reading.likely
        if last.isdigit() and not reading.world():
            reading.hosts, reading.per_host = max(found["hosts"], default=1), int(last)
    name, count = _accelerators(data)
    if name:
        reading.likely = device_named(name) or reading.likely
        if not reading.world():
            reading.hosts, reading.per_host = max(found["hosts"], default=1), count
    asked = next((one for one in map(instance, places) if one[0]), ("", 0))
    if asked[0]:
        reading.likely = asked[0]
        if not reading.world():
            reading.hosts, reading.per_host = max(found["hosts"], default=1), asked[1]
    gpus = data.get("compute", {}).get("gpus") if isinstance(data.get("compute"), dict) else None
    if isinstance(gpus, int) and not reading.world():
        reading.devices = gpus


_SLICES = {"v4": "tpu-v4", "v5-lite": "tpu-v5e", "v5p": "tpu-v5p", "v6e": "tpu-v6e", "tpu7x": "tpu-v7"}  # fmt: skip
"""How GKE calls its slices (`tpu-v6e-slice`, `tpu-v5-lite-podslice`)."""


def _slice(data: dict[str, Any], reading: Reading) -> None:
    """Take the TPUs of a slice that a pod's selector asks for, by its kind and its topology (`2x4`)."""
    for table in tables(data):
        kind = str(table.get("cloud.google.com/gke-tpu-accelerator", ""))
        device = next((ours for theirs, ours in _SLICES.items() if theirs in kind), "")
        if not device:
            continue
        reading.device = reading.device or device
        shape = str(table.get("cloud.google.com/gke-tpu-topology", ""))
        if re.fullmatch(r"\d{1,3}(?:x\d{1,3}){1,2}", shape) and not reading.devices:
            chips = math.prod(map(int, shape.split("x")))
            per_host = reading.per_host or min(chips, 4)
            if reading.hosts * reading.per_host < chips and chips % per_host == 0:
                reading.hosts, reading.per_host = chips // per_host, per_host
        return


def _by_roles(data: dict[str, Any]) -> int:
    """Hosts of an object that lists its roles, each with a number of copies; 0 where it does not."""
    hosts = 0
    for table in tables(data):
        for key, value in table.items():
            roles: list[Any] = []
            if key.endswith("ReplicaSpecs") and isinstance(value, dict):
                roles = list(value.values())  # PyTorchJob's master and workers
            elif key in ("replicatedJobs", "tasks") and isinstance(value, list):
                roles = value  # JobSet's and Volcano's
            elif key in ("workerPoolSpecs", "worker_pool_specs") and isinstance(value, list):
                roles = value  # Vertex AI's: the first host, and those beside it
            hosts += sum(_copies(role) for role in roles if _has_devices(role))
    return hosts


def _copies(role: dict[str, Any]) -> int:
    """Hosts of one role: its copies, of a job with several pods each."""
    inside = [one.get("parallelism") for one in tables(role) if "parallelism" in one]
    numbers = [role.get("replicas", role.get("replicaCount", 1)), *inside[:1]]
    found = 1
    for one in numbers:
        found *= int(one) if str(one).isdigit() else 1
    return found


def _has_devices(role: Any) -> bool:
    return isinstance(role, dict) and any(
        name in table for table in tables(role) for name in _SIZES["per_host"]
    )


def tables(data: Any) -> Iterator[dict[str, Any]]:
    """Every table of nested tables and lists, once, in the order in which they are written."""
    waiting, seen = [data], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or not isinstance(value, (dict, list)):
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            yield value
        waiting += reversed(list(value.values()) if isinstance(value, dict) else value)


def _words(told: list[Any]) -> Iterator[str]:
    """A command's words out of a list of them, or of tables of one option each (`- --seed: 1`)."""
    for one in told:
        pairs = one.items() if isinstance(one, dict) else [(one, None)]
        yield from (f"{key} {shlex.quote(str(value))}" if value is not None else str(key) for key, value in pairs)  # fmt: skip


def commands(data: Any) -> Iterator[str]:
    """The last word of every list of words that holds a script, else all its words; and commands in one text."""
    for table in tables(data):
        lists = [table[key] for key in _LISTS if isinstance(table.get(key), list)]
        words = [str(word) for one in lists for word in one]
        if words:
            long = " " in words[-1] and len(words[-1]) > 40
            yield words[-1] if long else " ".join(words)
        for key in ("cmds", "script"):  # a task's lines, one after another
            lines = table.get(key)
            if isinstance(lines, list) and lines and all(isinstance(one, str) for one in lines):
                yield "\n".join(lines)
        yield from (
            table[key] for key in _TEXTS if isinstance(table.get(key), str) and " " in table[key]
        )
        entry, told = table.get("entry_script"), table.get("script_args")  # HyperPod's command line
        if isinstance(entry, str) and entry.endswith(".py") and isinstance(told, list):
            yield " ".join(["torchrun --nproc_per_node=auto", entry, *_words(told)])
        handed = table.get("value")  # a command that a variable hands to the image's own script
        if isinstance(handed, str) and "name" in table and _STARTS.search(handed):
            yield handed
