"""What files of clusters share: names, variables, the command of a host, YAML that people can read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from meshwright.exports.fabric import environment
from meshwright.exports.launch import Command, launch_words
from meshwright.specs.plan import Plan


def job_name(plan: Plan) -> str:
    """A DNS label: what Kubernetes and SkyPilot accept as a name."""
    name = re.sub(r"[^a-z0-9]+", "-", plan.model.name.lower()).strip("-")
    return (name or "training")[:50].strip("-")


HUB = ("trl", "axolotl", "llama-factory", "torchtune", "verl", "torchtitan")
"""Frameworks whose runs fetch weights or a tokenizer from a hub, which may ask who they are."""
CODE_MAP = "training-code"
"""The ConfigMap that holds the exported files."""
SECRET = "hf-token"
"""The Kubernetes secret that holds a token of the hub, where there is one."""


SHARED = "/shared"
"""Where a pod or a machine finds the disk that all of them see, with data and checkpoints."""
CLAIM = "training-shared"
"""The claim (ReadWriteMany) of that disk."""
_WRITTEN = "outputs"
"""The folder into which the tools for fine-tuning write what they made (their files' `output_dir`)."""


def with_disk(pod: dict[str, Any], command: Command) -> dict[str, Any]:
    """A pod that has the shared disk, where its program keeps something."""
    if not command.lasts:
        return pod
    disk = {"name": "shared", "persistentVolumeClaim": {"claimName": CLAIM}}
    mount = {"name": "shared", "mountPath": SHARED}
    holds = [one | {"volumeMounts": [*one["volumeMounts"], mount]} for one in pod["containers"]]
    return pod | {"containers": holds, "volumes": [*pod["volumes"], disk]}


def kept(plan: Plan, command: Command) -> list[str]:
    """Shell lines by which a program that is not told a folder writes to the shared disk, not to its own."""
    if command.keeps or not command.lasts:
        return []
    place = f"{SHARED}/{job_name(plan)}/{_WRITTEN}"
    return [f"mkdir -p {place} && ln -sfn {place} {_WRITTEN}"]


def disk_note(command: Command, disk: str) -> str:
    """What whoever launches is told of the disk."""
    where = "DATA and CHECKPOINTS lie there" if command.keeps else "what is made is written there"
    return f"{disk} is mounted at {SHARED}: {where}"


def container_variables(plan: Plan, command: Command) -> list[dict[str, Any]]:
    """The run's environment as a container has it; a token of the hub from a secret that need not exist."""
    found: list[dict[str, Any]] = [
        {"name": k, "value": v} for k, v in variables(plan, command).items()
    ]
    if command.framework in HUB:
        key = {"name": SECRET, "key": "HF_TOKEN", "optional": True}
        found.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}})
    return found


def variables(plan: Plan, command: Command) -> dict[str, str]:
    """The run's environment, without its reasons; first what is to be filled in."""
    asked = command.inputs.defaults if command.inputs else {}
    return asked | {
        name: value for name, (value, _) in environment(plan, command.framework).items()
    }


def host_command(plan: Plan, command: Command, rank: str, address: str, port: str) -> str:
    """What one host runs, a flag a line."""
    launcher = launch_words(plan, command, rank, address, port)
    return (
        " \\\n  ".join(["exec " + " ".join(launcher), *command.lines(), *command.filled()]) + "\n"
    )


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, so that people can read the command."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _block)


def yaml_text(objects: Sequence[Any]) -> str:
    """Objects as YAML, one document each, in their own order."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=100)
