"""What a batch script asks SLURM, LSF or PBS for, and what a job then finds in its environment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


_BATCH_OPTION = r"(?:^|\s)--?([a-zA-Z][\w-]*)(?:(?:\s*=\s*|\s+)([^-\s]\S*))?"


_WHOLE_HOSTS = {"rt_F": "4", "rt_AF": "8", "rt_HF": "8"}
"""Kinds of whole hosts that ABCI's users ask for, and the devices of each: V100, A100 and H200."""


def batch_options(text: str) -> dict[str, str]:
    """A batch script's own options, by name."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        whole = re.match(r"#(?:\$|PBS)\s+-l\s+(rt_\w+)=(\d{1,6})\b", line)
        if whole is not None and whole.group(1) in _WHOLE_HOSTS:  # ABCI's, under SGE and PBS
            found |= {"nodes": whole.group(2), "gpus-per-node": _WHOLE_HOSTS[whole.group(1)]}
        said = re.match(r"#(?:SBATCH|BSUB|PBS)\s+(.*)", line)  # with a blank it is a comment
        if said is None:
            continue
        # Several options may share a line, a template's placeholder may stand before them.
        options = re.split(r"\s#", said.group(1))[0]
        found |= dict(re.findall(_BATCH_OPTION, options))
        cards = re.search(r"-gpu\s+[\"']?num=(\d+)", options)
        if cards is not None:  # LSF: of each host
            found["gpus-per-node"] = cards.group(1)
        chunks = re.search(r"-l\s+select=(\d+)((?::\w+=\w+)*)", options)
        if chunks is not None:  # PBS: so many hosts, each with so much of what follows
            found["nodes"] = chunks.group(1)
            gpus = re.search(r":ngpus=(\d+)", chunks.group(2))
            if gpus is not None:
                found["gpus-per-node"] = gpus.group(1)
    return found | _shared(found)


_OF_ONE_HOST = 8


def _shared(batch: dict[str, str]) -> dict[str, str]:
    """Devices of each host where SLURM is asked for those of the whole job (`--gpus`, `-G`)."""
    asked = (batch.get("gpus") or batch.get("G") or "").rsplit(":", 1)[-1]
    hosts = batch.get("nodes") or batch.get("N") or ""
    if not asked.isdigit() or {"gpus-per-node", "gres"} & set(batch):
        return {}
    count, among = int(asked[:7]), int(hosts[:7]) if hosts.isdigit() else 1
    if not among or count % among or (not hosts and count > _OF_ONE_HOST):
        return {}
    return {"gpus-per-node": str(count // among)}


def batch_variables(batch: dict[str, str]) -> dict[str, str]:
    """What SLURM sets in a job's environment, where the script's own options say it."""
    found: dict[str, str] = {}
    for names, options in _FROM_SLURM.items():
        value = next((batch[option] for option in options if batch.get(option)), "")
        size = value.rsplit(":", 1)[-1]
        if size.isdigit():
            found |= dict.fromkeys(names, size)
    return found


_FROM_SLURM = {
    ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "NHOSTS"): ("nodes", "N"),  # the last is SGE's
    ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"): ("gpus-per-node", "gres"),
    ("SLURM_NTASKS_PER_NODE",): ("ntasks-per-node",),
    ("SLURM_NTASKS", "SLURM_NPROCS"): ("ntasks", "n"),
    ("SLURM_CPUS_PER_TASK",): ("cpus-per-task", "c"),
}
