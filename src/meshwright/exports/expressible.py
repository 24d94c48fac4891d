"""Whether files can be written for a question's framework, whatever the layout: what stands in the way otherwise."""

from __future__ import annotations

from meshwright.exports.limit_rules import Problem
from meshwright.exports.limits import unplannable
from meshwright.exports.targets import STARTED, Framework
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.model import Model


def require_expressible(model: Model, job: Job, cluster: Cluster) -> None:
    """Refuse a question whose answer the framework that it names could not be told.

    A model that our files have no words for is planned all the same (`unwritten` says so): the framework may have
    it, as Megatron-Core has Nemotron's hybrids and Megatron-Bridge GLM-5.

    Raises:
        SpecError: every target of that framework lacks something of the job or the devices that no layout changes.
    """
    found = _inexpressible(model, job, cluster)
    if found is not None and found[1].field not in ("model", "model.family"):
        target, stuck = found
        raise SpecError(
            stuck.field,
            stuck.value,
            f"{target.limits.title} {stuck.lacks}; without --framework the layout is planned for any",
        )


def unwritten(model: Model, job: Job, cluster: Cluster) -> tuple[str, ...]:
    """A sentence where no files can be written for a plan, whatever its layout."""
    found = _inexpressible(model, job, cluster)
    if found is None:
        return ()
    target, stuck = found
    others = sorted(
        {one.limits.framework for one in STARTED.values()
         if unplannable(model, job.but(framework=one.limits.framework), cluster, one.limits) is None}
    )  # fmt: skip
    instead = f"; files can with --framework {' or '.join(others)}" if others else ""
    return (
        f"no files can be written for this plan: {target.limits.title} {stuck.lacks} ({stuck.field} = {stuck.value}){instead}",
    )


def why_unwritten(model: Model, job: Job, cluster: Cluster) -> str:
    """What the job's framework lacks of a question, whatever the layout; empty where a plan can be written."""
    found = _inexpressible(model, job, cluster)
    return "" if found is None else found[1].lacks


def _inexpressible(model: Model, job: Job, cluster: Cluster) -> tuple[Framework, Problem] | None:
    """The first target of a job's framework, and what it lacks, where every one of them lacks something."""
    first: tuple[Framework, Problem] | None = None
    for target in STARTED.values():
        if target.limits.framework != job.framework:
            continue
        stuck = unplannable(model, job, cluster, target.limits)
        if stuck is None:
            return None
        first = first or (target, stuck)
    return first
