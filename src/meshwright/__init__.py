"""meshwright: plan, prove and run the parallel training of large models.

    import meshwright as mw

    plan = mw.plan(mw.load_model("llama3-70b"), mw.load_cluster("h100:8x8"), mw.Job(seq_len=8192))
    print(plan.layout.label(), plan.estimate.step_time_s)

Names are imported when first used; nothing here imports torch.
"""

from __future__ import annotations

import importlib

from meshwright.version import __version__

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from meshwright.costs.step import estimate
    from meshwright.exports.targets import export
    from meshwright.imports.files import import_file
    from meshwright.planner.legality import why_illegal
    from meshwright.planner.plan import plan, price_layout
    from meshwright.planner.report import markdown_report
    from meshwright.planner.space import Constraints
    from meshwright.specs import (
        Cluster,
        Device,
        DoesNotFitError,
        Estimate,
        Job,
        Layout,
        Model,
        Plan,
        SpecError,
        load_cluster,
        load_job,
        load_model,
        load_plan,
        save_plan,
    )


_HOME = {
    "estimate": "costs.step",
    "export": "exports.targets",
    "import_file": "imports.files",
    "why_illegal": "planner.legality",
    "plan": "planner.plan",
    "price_layout": "planner.plan",
    "markdown_report": "planner.report",
    "Constraints": "planner.space",
} | dict.fromkeys(
    (
        "Cluster", "Device", "DoesNotFitError", "Estimate", "Job", "Layout", "Model", "Plan",
        "SpecError", "load_cluster", "load_job", "load_model", "load_plan", "save_plan",
    ),
    "specs",
)  # fmt: skip

__all__ = [
    "Cluster", "Constraints", "Device", "DoesNotFitError", "Estimate", "Job", "Layout", "Model",
    "Plan", "SpecError", "__version__", "estimate", "export", "import_file", "load_cluster",
    "load_job", "load_model", "load_plan", "markdown_report", "plan", "price_layout", "save_plan",
    "why_illegal",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    """What a notebook offers after `meshwright.`: also the names that are not imported yet."""
    return sorted({*globals(), *__all__})
