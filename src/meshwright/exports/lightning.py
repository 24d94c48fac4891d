"""Lightning: a plan as a strategy and a module around the plain PyTorch model, and back."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources

from meshwright.exports import fsdp
from meshwright.exports.bundle import comment
from meshwright.exports.fabric import check_hosts
from meshwright.specs.plan import Plan

LIMITS = replace(fsdp.LIMITS, title="the Lightning script", framework="lightning")
VERSION = LIMITS.can.checked


def files(plan: Plan, command: str) -> dict[str, str]:
    """`train_lightning.py` beside `train_fsdp.py`, whose model and splits it uses."""
    source = resources.files("meshwright.exports").joinpath("templates/train_lightning.py.txt")
    hosts, per_host = check_hosts(plan)
    text = source.read_text("utf-8")
    for name, value in {
        "STAMP": comment(plan, command, f"Lightning {VERSION}", "").rstrip(),
        "HOSTS": hosts,
        "DEVICES": per_host,
    }.items():
        text = text.replace("{{" + name + "}}", str(value))
    return {"train_lightning.py": text} | fsdp.files(plan, command)
