"""How processes start: torchrun and SLURM. Ranks are contiguous on each host.

A rendezvous by arrival (c10d) numbers hosts in the order they come up; a plan puts each axis on
the link it priced, so host numbers are always given (`--node-rank`).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from meshwright.exports.fabric import MEASURED_BY, check_hosts, environment
from meshwright.exports.images import needs
from meshwright.exports.inputs import Inputs, block
from meshwright.exports.maxtext import on_gpus
from meshwright.specs.plan import Plan


@dataclass(frozen=True, slots=True)
class Command:
    """What every rank runs: the words after torchrun's own, and what must be set for it."""

    words: tuple[str, ...]
    framework: str
    accelerated: bool = False
    """Whether accelerate's own launcher starts it, from the `accelerate.yaml` beside it."""
    inputs: Inputs | None = None
    """What whoever launches fills in, where the program asks for it."""

    @property
    def keeps(self) -> bool:
        """Whether what it writes goes to the folder that whoever launches fills in."""
        return self.inputs is not None and not self.inputs.tunes

    @property
    def lasts(self) -> bool:
        """Whether it writes anything that must outlive its machines: a measurement is printed."""
        return self.framework != MEASURED_BY

    def asked(self) -> str:
        """Shell lines that take what was filled in."""
        return block(self.inputs) if self.inputs else ""

    def text(self, indent: str = "  ") -> str:
        """The words as shell lines, one flag with its value a line."""
        return f" \\\n{indent}".join(self.lines())

    def lines(self) -> list[str]:
        """The words grouped: a flag with its values, or an override, a line; quoted for a shell."""
        groups: list[list[str]] = []
        for word in self.words:
            joins = groups and groups[-1][0].startswith("-") and "=" not in word
            if word.startswith("--") or not joins:
                groups.append([])
            # What is a host's to fill in stands in double quotes already.
            groups[-1].append(word if '"$' in word else shlex.quote(word))
        return [" ".join(group) for group in groups]

    def filled(self) -> tuple[str, ...]:
        """What follows the words, of what was filled in."""
        return self.inputs.words if self.inputs else ()


def exports(plan: Plan, framework: str) -> str:
    """The environment as `export` lines, each with its reason."""
    return "".join(
        f"export {name}={shlex.quote(value)}  # {why}\n"
        for name, (value, why) in environment(plan, framework).items()
    )


def launch_words(
    plan: Plan, command: Command, node_rank: str, address: str, port: str
) -> list[str]:
    """The launcher's own words for a fixed numbering of hosts: torchrun's, or accelerate's.

    Raises:
        SpecError: the layout does not fill whole hosts.
    """
    hosts, per_host = check_hosts(plan)
    if command.framework == "maxtext":
        if not on_gpus(plan) or hosts == 1:
            return ["python3"]  # JAX learns a slice's hosts from the TPU's own metadata
        return [  # utils/max_utils.py initialize_jax_for_gpu: one process a host
            "env", f"JAX_COORDINATOR_IP={address}", f"JAX_COORDINATOR_PORT={port}",
            f"NNODES={hosts}", f"NODE_RANK={node_rank}", "python3",
        ]  # fmt: skip
    if command.accelerated:
        return [
            "accelerate launch", "--config_file", "accelerate.yaml",
            "--num_machines", str(hosts), "--num_processes", str(hosts * per_host),
            "--machine_rank", node_rank, "--main_process_ip", address,
            "--main_process_port", port,
        ]  # fmt: skip
    return [
        "torchrun", "--nnodes", str(hosts), "--nproc-per-node", str(per_host),
        "--node-rank", node_rank, "--master-addr", address, "--master-port", port,
    ]  # fmt: skip


def torchrun_script(plan: Plan, command: Command, stamp: str) -> str:
    """A script for one host: run it on each with its own NODE_RANK."""
    launcher = launch_words(
        plan, command, '"${NODE_RANK:-0}"', '"${MASTER_ADDR:-127.0.0.1}"', '"${MASTER_PORT:-29500}"'
    )
    more = "".join(f"{word} " for word in command.filled())
    asked = f"\n{command.asked()}" if command.inputs else ""
    head = " \\\n  ".join(" ".join(part) for part in (launcher[:5], launcher[5:]) if part)
    return (
        f"#!/usr/bin/env bash\n{stamp}{needs(plan, command.framework)}"
        "# Start it on every host; NODE_RANK counts hosts in network order from 0. What follows the\n"
        "# script's name goes on to the program.\n"
        f"set -euo pipefail\n{asked}{_meeting_point(plan, command)}\n"
        f"{exports(plan, command.framework)}\n"
        f'exec {head} \\\n  {command.text()} \\\n  {more}"$@"\n'
    )


def _meeting_point(plan: Plan, command: Command) -> str:
    """Lines that stop a start on several hosts which have not been told how to meet."""
    hosts, _ = check_hosts(plan)
    if hosts == 1 or (command.framework == "maxtext" and not on_gpus(plan)):
        return ""
    return (
        f'\n: "${{MASTER_ADDR:?this run needs {hosts} hosts: MASTER_ADDR is the first one}}"\n'
        f': "${{NODE_RANK:?this run needs {hosts} hosts: NODE_RANK is 0 to {hosts - 1}}}"\n'
    )


CPUS_PER_DEVICE = {"nvidia": 12, "amd": 12, "google": 24, "cpu": 1}
"""CPU cores a host has for each accelerator, less what its system needs: DGX A100 has 16 (128 cores),
DGX H100 14 (112), MI300X platforms 24 (192), a TPU v5p host 52; hosts of 4 Grace devices 72."""


def cpus(plan: Plan) -> int:
    """CPU cores that one host's ranks may use together."""
    _, per_host = check_hosts(plan)
    return CPUS_PER_DEVICE.get(plan.cluster.device.vendor, 8) * per_host


def _devices(plan: Plan, per_host: int) -> str:
    vendor = plan.cluster.device.vendor
    return f"#SBATCH --gpus-per-node={per_host}\n" if vendor in ("nvidia", "amd") else ""


def slurm_script(plan: Plan, command: Command, stamp: str) -> str:
    """An sbatch script: one task a host, host numbers from SLURM's own order."""
    hosts, per_host = check_hosts(plan)
    launcher = launch_words(plan, command, '"$SLURM_NODEID"', '"$MASTER_ADDR"', '"$MASTER_PORT"')
    head = [" ".join(part) for part in (launcher[:5], launcher[5:]) if part]
    inner = " \\\n  ".join([*head, *command.lines()])
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", plan.model.name).strip("-")[:100] or "training"
    return (
        "#!/usr/bin/env bash\n"
        f"#SBATCH --job-name={name}\n"
        f"#SBATCH --nodes={hosts}\n"
        "#SBATCH --ntasks-per-node=1\n"
        f"{_devices(plan, per_host)}"
        f"#SBATCH --cpus-per-task={cpus(plan)}\n"
        "#SBATCH --exclusive\n"
        "#SBATCH --mem=0\n"
        "#SBATCH --distribution=block\n"
        "#SBATCH --output=%x-%j.log\n"
        f"{stamp}{needs(plan, command.framework)}"
        "# Host order is SLURM's topology order; tensor parallelism stays inside a host. All of a host's\n"
        "# memory is asked for (0): an exclusive host's default share can be far less. What a site wants\n"
        "# more goes before the file: sbatch --time=24:00:00 --partition=NAME --account=NAME train.sbatch\n"
        f"set -euo pipefail\n\n{command.asked()}{exports(plan, command.framework)}"
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        "MASTER_PORT=${MASTER_PORT:-29500}\n"
        "export MASTER_ADDR MASTER_PORT\n\n"
        "# VENV: a virtual environment on a shared disk. CONTAINER: an image for pyxis/enroot.\n"
        'if [ -n "${VENV:-}" ]; then source "$VENV/bin/activate"; fi\n'
        "HERE=${SLURM_SUBMIT_DIR:-$PWD}\n"
        'cd "$HERE"\n'
        "HOOKS=()\n"
        'if [ -n "${CONTAINER:-}" ]; then\n'
        "  # It sees this folder, and whatever whole path the run is told.\n"
        "  MOUNTS=${MOUNTS:-$HERE:$HERE}\n"
        '  for PLACE in ${DATA:-} ${CHECKPOINTS:-} "$@"; do\n'
        '    case $PLACE in /*) [ -d "$PLACE" ] || PLACE=$(dirname "$PLACE") ;; *) continue ;; esac\n'
        '    case ",$MOUNTS," in *",$PLACE:"*) ;; *) MOUNTS=$MOUNTS,$PLACE:$PLACE ;; esac\n'
        "  done\n"
        '  HOOKS=(--container-image="$CONTAINER" --container-mounts="$MOUNTS"\n'
        '         --container-workdir="$HERE")\n'
        "fi\n\n"
        "# Each task reads its own SLURM_NODEID, so the command is expanded there, not here.\n"
        "read -r -d '' RUN <<'END' || true\n"
        f'exec {inner} \\\n  "$@"\nEND\n'
        "# srun takes no --cpus-per-task from sbatch since SLURM 22.05: unsaid, a rank gets one core.\n"
        'srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=1 \\\n'
        '  ${HOOKS[@]+"${HOOKS[@]}"} bash -c "$RUN" bash '
        f'{"".join(f"{word} " for word in command.filled())}"$@"\n'
    )
