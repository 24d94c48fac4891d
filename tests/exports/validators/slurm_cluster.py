"""A SLURM cluster of several hosts on this one machine: controller and node daemons on loopback.

Debian's `slurmctld`, `slurmd` and `slurm-client` are all it needs; nothing of it runs after `close`.
Hosts have the cores, memory and cards that are asked for (`config_overrides`), so that a script for
64 GPUs is judged by the real `sbatch` and its tasks are started by the real `srun`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo")
NEEDS_ROOT = os.geteuid() == 0


def missing() -> list[str]:
    """Programs of SLURM that this machine lacks, and the rights that node daemons need."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    return lacking if NEEDS_ROOT else [*lacking, "root"]


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def _ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    numbers = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return numbers


class SlurmCluster:
    """Hosts `node0`, `node1`, … of equal size under one controller.

    Args:
        folder: where configuration, spools and logs go.
        hosts: how many hosts the cluster has, each a daemon of its own.
        cpus: cores of each.
        gpus: cards of each.
    """

    def __init__(self, folder: Path, hosts: int, cpus: int, gpus: int) -> None:
        self.folder = folder
        self.environment = {
            "DATA": "mock",
            "PATH": _path(),
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        control, *ports = _ports(1 + hosts)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        nodes = [
            f"NodeName=node{n} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={cpus} RealMemory=1024 Gres=gpu:{gpus} State=UNKNOWN"
            for n, port in enumerate(ports)
        ]
        (folder / "slurm.conf").write_text(
            "\n".join(
                [
                    "ClusterName=paper", f"SlurmctldHost={socket.gethostname()}(127.0.0.1)",
                    f"SlurmctldPort={control}", "AuthType=auth/none", "CredType=cred/none",
                    "SlurmUser=root", "SlurmdUser=root", "ProctrackType=proctrack/linuxproc",
                    "TaskPlugin=task/none", "SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU",
                    "SlurmdParameters=config_overrides", "GresTypes=gpu", "ReturnToService=2",
                    "MpiDefault=none", "SwitchType=switch/none", "AccountingStorageType=accounting_storage/none",
                    "JobAcctGatherType=jobacct_gather/none",
                    # Nothing here asks who calls: loopback alone is listened to.
                    "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
                    f"StateSaveLocation={folder}/state", f"SlurmdSpoolDir={folder}/spool/%n",
                    f"SlurmctldPidFile={folder}/slurmctld.pid", f"SlurmdPidFile={folder}/slurmd-%n.pid",
                    f"SlurmctldLogFile={folder}/slurmctld.log", f"SlurmdLogFile={folder}/slurmd-%n.log",
                    "SchedulerParameters=sched_min_interval=10000,batch_sched_delay=0",
                    *nodes, "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP", "",
                ]
            )
        )  # fmt: skip
        # The card plugin counts files; these stand for devices.
        cards = folder / "cards"
        cards.mkdir()
        for number in range(gpus):
            (cards / str(number)).touch()
        (folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={cards}/[0-{gpus - 1}]\n")
        (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        self.daemons = [self._start("slurmctld", "-D")]
        self._wait(lambda: self.call("scontrol", "ping").returncode == 0, "slurmctld")
        self.daemons += [self._start("slurmd", "-D", "-N", f"node{n}") for n in range(hosts)]
        self._wait(lambda: self._states() == {"idle"}, "slurmd")

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{words[0]}-{words[-1]}.out").open("wb")
        return subprocess.Popen(
            words, env=self.environment, stdout=log, stderr=log, cwd=self.folder
        )

    def _states(self) -> set[str]:
        return set(self.call("sinfo", "-h", "-o", "%t").stdout.split())

    def _wait(self, ready: Callable[[], bool], who: str, limit_s: float = 30) -> None:
        until = time.monotonic() + limit_s
        while not ready():
            if time.monotonic() > until:
                self.close()
                raise RuntimeError(f"{who} did not come up; its log is in {self.folder}")
            time.sleep(0.1)

    def call(
        self, *words: str, cwd: Path | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """A program of SLURM, asked on this cluster."""
        return subprocess.run(
            words, env={**self.environment, **more}, capture_output=True, text=True, timeout=60,
            cwd=cwd or self.folder, check=False,
        )  # fmt: skip

    def close(self) -> None:
        """Stop every daemon that was started here."""
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
