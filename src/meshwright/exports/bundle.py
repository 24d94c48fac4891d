"""The files of one export, each stamped with the tool, its version and the command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from meshwright.specs.errors import SpecError, one_line
from meshwright.specs.job import Job
from meshwright.specs.plan import Plan
from meshwright.specs.writing import write_atomically
from meshwright.version import __version__

STAMP_KEY = "_meshwright"
"""Key under which formats without comments (JSON) carry the stamp."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The files that one target needs, and the command that starts the run."""

    target: str
    files: Mapping[str, str]
    start: str
    notes: tuple[str, ...] = field(default=())

    def write(self, folder: str | Path) -> list[Path]:
        """Write every file under a folder, each one all or nothing; scripts are executable.

        Raises:
            SpecError: the folder or a file cannot be written.
        """
        root = Path(folder)
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError("output", str(folder), f"cannot be made ({error.strerror})") from None
        written = []
        for name, text in self.files.items():
            path = root / name
            write_atomically(path, text)
            if text.startswith("#!"):
                path.chmod(0o755)
            written.append(path)
        return written


def stamp_lines(plan: Plan, command: str, target: str) -> list[str]:
    """What every exported file says about its origin: tool, version, command, what it runs.

    Names and the command come from the plan's file; each line stays one line in every language.
    """
    lines = [
        f"made by meshwright {__version__} for {target}",
        f"command: {command or 'meshwright export'}",
        f"model {plan.model.name}, cluster {plan.cluster.name} ({plan.cluster.nodes} x "
        f"{plan.cluster.gpus_per_node} {plan.cluster.device.name})",
        f"layout {plan.layout.label()}, global batch {plan.job.global_batch}, "
        f"sequence {plan.job.seq_len}",
    ]
    return [one_line(line) for line in lines]


def comment(plan: Plan, command: str, target: str) -> str:
    """The stamp as a block of comments (of a shell, Python or YAML), newline at its end.

    Never among the first two lines of a Python file: a comment there can change its encoding.
    """
    return "".join(f"# {line}\n" for line in stamp_lines(plan, command, target))


STEPS = 1000
"""Steps of a run whose plan has no budget of tokens."""


def steps(job: Job) -> int:
    """Optimizer steps of a run: as many as its budget of tokens fills, at least one."""
    return max(1, round(job.token_budget / job.tokens)) if job.token_budget else STEPS


def warmup(job: Job) -> int:
    """Steps over which a learning rate rises: a hundredth of all, 2,000 at most."""
    return min(max(1, steps(job) // 100), 2000)


def tuning_rate(job: Job) -> float:
    """A learning rate to start from: 1e-5 where whole weights train, ten times it for adapters, as LLaMA-Factory's examples have."""
    return 1e-4 if job.finetune is not None and job.finetune.adapts else 1e-5


def learning_rate(job: Job) -> float:
    """The highest learning rate of a run where nobody gave one: for new weights, or to train published ones further."""
    return 3e-4 if job.finetune is None else tuning_rate(job)


def template(name: str, values: Mapping[str, object]) -> str:
    """A script of `templates/` with its `{{NAMES}}` filled in, in one pass.

    What is filled in is never looked at again, so that no value can stand for another one.
    """
    source = resources.files("meshwright.exports").joinpath(f"templates/{name}.txt")
    return re.sub(r"\{\{(\w+)\}\}", lambda hole: str(values[hole[1]]), source.read_text("utf-8"))


def stamp_data(plan: Plan, command: str, target: str) -> dict[str, Any]:
    """The stamp as data, for JSON."""
    tool, command_line, what, layout = stamp_lines(plan, command, target)
    return {"tool": tool, "command": command_line, "plan": what, "layout": layout}
