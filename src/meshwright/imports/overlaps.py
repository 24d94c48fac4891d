"""What a run that leaves Megatron-LM's data-parallel overlaps off would gain by them."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.costs.step import estimate
from meshwright.imports.patch import Edit, add_flags
from meshwright.imports.reading import Imported
from meshwright.specs.job import Job
from meshwright.specs.plan import Estimate, Plan

WHAT = "hide the data-parallel collectives behind backward and forward passes"
RISK = "none for the numbers; a bucket of gradients may come later than its last micro-batch"
_OFF = ("reduce_overlapped", "gather_overlapped")
_REDUCE, _GATHER = "--overlap-grad-reduce", "--overlap-param-gather"


def overlapped(imported: Imported, plan: Plan) -> tuple[Job, Estimate] | None:
    """The job with the overlaps that its file leaves off, priced; None where it leaves none off."""
    off = [name for name in _OFF if plan.job.framework_options.get(name) is False]
    if not off or "overlap" not in imported.options or plan.layout.dp * plan.layout.cp == 1:
        return None
    options = {k: v for k, v in plan.job.framework_options.items() if k not in off}
    job = plan.job.but(framework_options=options)
    return job, estimate(plan.model, plan.cluster, job, plan.layout)


def overlap_edits(text: str, imported: Imported) -> Iterator[tuple[Edit, ...]]:
    """Places of a script where the switches can be added."""
    off = imported.job.framework_options
    words = [w for w, name in zip((_REDUCE, _GATHER), _OFF, strict=True) if off.get(name) is False]
    anchors = tuple(one for one in imported.options.values() if one.startswith("--"))
    if imported.options["overlap"].startswith("--"):
        yield from ((edit,) for edit in add_flags(text, " ".join(words), anchors))


def same_run(back: Job, imported: Job) -> bool:
    """Whether two jobs differ in nothing but the overlap of a gather that only one of them makes."""
    options = [{k: v for k, v in job.framework_options.items() if k != "gather_overlapped"} for job in (back, imported)]  # fmt: skip
    return options[0] == options[1] and back.but(framework_options={}) == imported.but(framework_options={})  # fmt: skip
