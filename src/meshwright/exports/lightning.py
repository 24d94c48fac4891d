"""Lightning: a plan as a strategy and a module around the plain PyTorch model, and back."""

from __future__ import annotations

from dataclasses import replace

from meshwright.exports import fsdp
from meshwright.exports.bundle import comment, template
from meshwright.exports.fabric import check_hosts
from meshwright.specs.plan import Plan

LIMITS = replace(fsdp.LIMITS, title="the Lightning script", framework="lightning")
VERSION = LIMITS.can.checked


def files(plan: Plan, command: str) -> dict[str, str]:
    """`train_lightning.py` beside `train_fsdp.py`, whose model and splits it uses."""
    hosts, per_host = check_hosts(plan)
    stamp = comment(plan, command, f"Lightning {VERSION}").rstrip()
    values = {"STAMP": stamp, "HOSTS": hosts, "DEVICES": per_host}
    text = template("train_lightning.py", values)
    return {"train_lightning.py": text} | fsdp.files(plan, command)
