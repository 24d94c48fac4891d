"""Checkpoints that any layout can read: torch's distributed checkpoint under global names.

`step-N` is written to a fresh folder, then `LATEST` is replaced in one move, so a crash while
saving leaves the previous checkpoint in force. Optimizer state is stored per parameter name.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor

from meshwright.engine.init import canonical
from meshwright.engine.program import Program
from meshwright.specs.errors import SpecError
from meshwright.specs.plan import write_atomically


def save(
    folder: str | Path,
    step: int,
    program: Program,
    optimizer: torch.optim.Optimizer,
    keep: int,
    before_commit: Callable[[], None] = lambda: None,
) -> Path:
    """Write `folder/step-N` together, point LATEST at it and drop all but the `keep` newest.

    Every rank calls this. `before_commit` runs when the files are written but not yet in force.
    """
    root = Path(folder)
    target, partial = root / f"step-{step:08d}", root / f".step-{step:08d}.partial"
    if dist.get_rank() == 0:
        for old in (target, partial):
            shutil.rmtree(old, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    dcp.save(_state(program, optimizer), checkpoint_id=str(partial))
    before_commit()
    dist.barrier()
    if dist.get_rank() == 0:
        manifest = {"step": step, "model": program.model.plain(), "layout": program.layout.plain()}
        write_atomically(partial / "manifest.json", json.dumps(manifest, indent=1))
        partial.rename(target)
        write_atomically(root / "LATEST", target.name + "\n")
        for old in sorted(root.glob("step-*"))[:-keep]:
            if old != target:
                shutil.rmtree(old, ignore_errors=True)
    dist.barrier()
    return target


def latest(folder: str | Path) -> Path:
    """The newest complete checkpoint of a run, or `folder` itself if it is one.

    Raises:
        SpecError: there is none.
    """
    root = Path(folder)
    if _complete(root):
        return root
    named = []
    with contextlib.suppress(OSError):
        named = [root / (root / "LATEST").read_text().strip()]
    for candidate in [*named, *sorted(root.glob("step-*"), reverse=True)]:
        if _complete(candidate):
            return candidate
    raise SpecError("resume", str(folder), "holds no complete checkpoint (step-N with .metadata)")


def step_of(path: str | Path) -> int:
    """The steps done in a complete checkpoint."""
    return int(json.loads((Path(path) / "manifest.json").read_text())["step"])


def _complete(path: Path) -> bool:
    return (path / ".metadata").is_file() and (path / "manifest.json").is_file()


def load(folder: str | Path, program: Program, optimizer: torch.optim.Optimizer) -> int:
    """Fill weights and optimizer state from the newest checkpoint; returns the steps done.

    The checkpoint may come from any layout. Every rank calls this.

    Raises:
        SpecError: no complete checkpoint, or one of another model.
    """
    path = latest(folder)
    manifest = json.loads((path / "manifest.json").read_text())
    if manifest["model"] != program.model.plain():
        raise SpecError("resume", str(path), "is a checkpoint of another model")
    _make_state(program, optimizer)
    state = _state(program, optimizer)
    dcp.load(state, checkpoint_id=str(path))
    _copy_tied(program, optimizer, state)
    return int(manifest["step"])


def _make_state(program: Program, optimizer: torch.optim.Optimizer) -> None:
    """Let the optimizer create its state, without moving a weight."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for _, parameter in program.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _state(program: Program, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Weights and optimizer state of this rank by global name; a tied head as the embedding."""
    found: dict[str, torch.Tensor] = {}
    for name, parameter in program.parameters():
        key = canonical(name, program.model)
        found.setdefault(f"model.{key}", parameter.detach())
        for entry, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                found.setdefault(f"optimizer.{key}.{entry}", value)
    return found


def _copy_tied(program: Program, optimizer: Any, state: dict[str, torch.Tensor]) -> None:
    """Where one rank holds both copies of a tied weight, the second follows the first."""
    with torch.no_grad():
        for name, parameter in program.parameters():
            key = canonical(name, program.model)
            if key == name:
                continue
            _fill(parameter.detach(), state[f"model.{key}"])
            for entry, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    _fill(value, state[f"optimizer.{key}.{entry}"])


def _fill(target: torch.Tensor, value: torch.Tensor) -> None:
    if isinstance(target, DTensor) and isinstance(value, DTensor):
        target._local_tensor.copy_(value._local_tensor)
    else:
        target.copy_(value)
