"""The planner's answer when a running job has fewer ranks left than its layout needs."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model


def replanner(model: Model, job: Job, cluster: Cluster) -> Callable[[int], Layout]:
    """A function from the ranks that are left to the layout that the run should go on with.

    It asks the planner for every number of ranks from what is left down to half of it, and takes
    the fastest by its pessimistic step time that the engine runs: seven ranks may divide a batch
    so badly that six are faster.
    """
    job = job.but(framework="meshwright")

    def replan(ranks: int) -> Layout:
        best: tuple[float, Layout] | None = None
        for count in range(ranks, max(1, ranks // 2) - 1, -1):
            found = _fastest(model, job, _shrunk(cluster, count))
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if best is None:
            raise SpecError("ranks", ranks, f"no layout of {model.name} fits so few")
        return best[1]

    return replan


def _fastest(model: Model, job: Job, cluster: Cluster) -> tuple[float, Layout] | None:
    """The planner's best layout that the engine accepts, with its pessimistic step time."""
    from meshwright.engine.parallel.guards import check
    from meshwright.planner.legality import Question
    from meshwright.planner.search import search

    try:
        ranked = search(Question(model, cluster, job)).ranked
    except SpecError:
        return None  # no legal layout of so many
    for row in range(ranked.columns.rows):
        layout = ranked.columns.layout(row)
        try:
            check(model, layout, global_batch=job.global_batch, seq_len=job.seq_len)
        except SpecError:
            continue
        return float(ranked.pessimistic_s[row]), layout
    return None


def _shrunk(cluster: Cluster, ranks: int) -> Cluster:
    """The cluster with so many devices, numbered on: its link levels hold what they held."""
    per_node = cluster.gpus_per_node
    if ranks % per_node:
        # Hosts of one size only: one host where it suffices, else as many as there are devices.
        per_node = ranks if ranks < per_node else 1
    name = f"{cluster.name}, {ranks} left"
    return cluster.but(name=name, nodes=ranks // per_node, gpus_per_node=per_node)
