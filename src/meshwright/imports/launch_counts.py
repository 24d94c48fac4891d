"""How many hosts, and devices of each, a launcher, a batch system and variables start."""

from __future__ import annotations

import posixpath
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from meshwright.imports.shell.state import Script
from meshwright.imports.shell.words import text_of, unset

if TYPE_CHECKING:
    from meshwright.imports.launch import Launch
    from meshwright.imports.reading import Reading

ON_ONE_HOST = ("llamafactory-cli", "swift", "megatron", "xtuner", "tune")
"""Tools that start torchrun themselves, on one host unless NNODES says otherwise."""


def whole(text: str) -> int:
    """A whole number, 0 where a text is none: `2`, `1:4` (its last), `gpu:h100:8`."""
    last = text.strip().rsplit(":", 1)[-1]
    return int(last) if last.isdigit() and len(last) < 8 else 0


def _per_host(script: Script, launch: Launch) -> int:
    """Devices of a host, as the batch system, the environment or variables say; 0 where none does."""
    batch, per_host = script.sbatch, 0
    for name in ("gpus-per-node", "gres", "ntasks-per-node", "gpus-per-task"):
        found = whole(batch.get(name, ""))
        if (
            not per_host
            and found
            and not (name in ("ntasks-per-node", "gpus-per-task") and found == 1)
        ):
            per_host = found
    if not per_host:
        per_host = whole(launch.environment.get("NPROC_PER_NODE", ""))
    if not per_host and launch.program.startswith("swift "):
        # ms-swift starts one process unless it is told how many.
        return _variable(script, ("NPROC_PER_NODE",)) or 1
    if not per_host:
        visible = launch.environment.get("CUDA_VISIBLE_DEVICES") or script.value("CUDA_VISIBLE_DEVICES")  # fmt: skip
        per_host = len(visible.split(",")) if re.fullmatch(r"\d+(,\d+)*", visible) else 0
    if not per_host:
        per_host = _variable(
            script,
            (
                "GPUS_PER_NODE",
                "NPROC_PER_NODE",
                "NUM_GPUS",
                "N_GPUS_PER_NODE",
                "NGPUS",
                "NUM_GPUS_PER_NODE",
            ),
        )
    return per_host


_SPAWNERS = frozenset({"torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch", "xtuner", "llamafactory-cli"})  # fmt: skip
"""What starts a host's ranks itself."""
_PLACES = re.compile(r"--(?:master|rdzv|main[-_]process|node[-_]rank|machine[-_]rank)")
"""Options of a launcher that say where and which a host is, not how many there are."""


def count(script: Script, launch: Launch) -> None:
    """Hosts and devices of a host, from the launcher's words, the batch system's, and variables."""
    option = launch.option
    around = {posixpath.basename(word) for word in launch.launcher}
    of_each = bool(around & {"aprun", "mpirun", "mpiexec"})  # their -N counts a host's ranks
    hosts = whole(option("nnodes", "num-nodes", "num-machines", "nodes", "" if of_each else "N", "num-hosts"))  # fmt: skip
    per_host = whole(
        option(
            "nproc-per-node",
            "num-gpus",
            "gpus-per-node",
            "" if "srun" in around else "gpus",  # SLURM's are those of the whole job
            "gpus-per-task",
            "npernode",
            "ppn",
            "N" if of_each else "",
            "gres",
        )
    )
    workers, local = whole(option("worker-num")), whole(option("local-worker-num"))
    if workers and local:  # MindSpore's msrun
        hosts, per_host = hosts or max(workers // local, 1), per_host or local
    include = option("include")
    if seen := include.removeprefix("localhost:") if include.startswith("localhost:") else "":
        per_host = per_host or len(seen.split(","))
        hosts = hosts or 1
    processes = whole(option("num-processes", "np", "n"))
    hosts = hosts or next((n for one in ("nodes", "N", "nnodes") if (n := whole(script.sbatch.get(one, "")))), 0)  # fmt: skip
    if not around & _SPAWNERS:  # every task of the batch system is a rank of its own
        if "jsrun" in around:
            processes *= whole(option("a", "tasks-per-rs")) or 1
        elif around & {"srun", "ibrun"} and not processes:
            tasks = whole(script.sbatch.get("ntasks", script.sbatch.get("n", "")))
            processes = tasks if tasks > 1 else 0
    per_host = per_host or _per_host(script, launch)
    hosts = hosts or whole(launch.environment.get("NNODES", ""))
    hosts = hosts or _variable(script, ("NNODES", "NUM_NODES", "SLURM_NNODES", "NODES", "NUM_NODE"))
    told = [
        w
        for before, w in pairwise(["", *launch.launcher])
        if not _PLACES.match(f"{before} {w}" if before.startswith("--") else w)
    ]
    if not hosts and per_host and not unset(" ".join(told)):
        bare = {posixpath.basename(word) for word in launch.launcher}
        # accelerate's own configuration may say more hosts.
        alone = "accelerate" in bare and not option("config-file", "num-machines")
        tool = posixpath.basename(launch.program.split()[0]) if launch.program else ""
        hosts = (
            1
            if alone
            or {"torchrun", "deepspeed", "torch.distributed.launch", "torch.distributed.run"} & bare
            or tool in ON_ONE_HOST
            else 0
        )
    if processes and hosts > 1 and not per_host and processes % hosts == 0:
        per_host = processes // hosts
    launch.hosts, launch.per_host = hosts, per_host
    counts_all = "accelerate" in " ".join(launch.launcher) and "--" not in launch.launcher
    counts_all |= of_each
    if processes and (counts_all or not (hosts and per_host)):
        launch.devices = processes
    if not (hosts or per_host or processes) and _starts_one(script, launch, around):
        launch.devices = 1
    elif not (hosts or per_host or processes) and (
        launch.is_python_alone() or "deepspeed" in around
    ):
        # Nothing says how many processes there are, or a file of hosts: the variable that torch reads does. Where it
        # stands beside DeepSpeed's launcher as 1, it is a host's.
        ranks = _variable(script, ("WORLD_SIZE",))
        launch.devices = ranks if launch.is_python_alone() or ranks > 1 else 0


_OF_TORCH = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})


def _starts_one(script: Script, launch: Launch, around: set[str]) -> bool:
    """Whether torch's launcher is told nothing of hosts and processes: it starts one (torch/distributed/run.py)."""
    told = launch.option("nnodes", "nproc-per-node", "rdzv-endpoint", "rdzv-conf")
    alone = bool(around & _OF_TORCH) and "srun" not in around and not script.sbatch
    return alone and not told and not unset(" ".join(launch.launcher))


def _variable(script: Script, names: tuple[str, ...]) -> int:
    for name in names:
        value = script.scope.get(name)
        if value is not None and not unset(text_of(value)):
            found = whole(text_of(value))
            if found:
                return found
    return 0


def asked_in_table(table: dict[str, Any], reading: Reading) -> None:
    """Hosts and devices that a configuration's own `slurm.sbatch` asks for."""
    slurm = table.get("slurm")
    batch = slurm.get("sbatch") if isinstance(slurm, dict) else None
    hosts, per_host = (batch.get(name) if isinstance(batch, dict) else None for name in ("nodes", "gpus_per_node"))  # fmt: skip
    if isinstance(hosts, int) and isinstance(per_host, int):
        reading.hosts, reading.per_host = hosts, per_host
    elif isinstance(hosts, int):
        reading.note(f"SLURM is asked for {hosts} hosts, not of how many devices", "slurm.sbatch.nodes")  # fmt: skip
