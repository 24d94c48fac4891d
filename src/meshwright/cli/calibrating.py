"""What `calibrate` reads: tables, nccl-tests, training logs, our own records, profiler traces."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from meshwright.costs.link_fit import MeasuredCollective
from meshwright.diagnose.expected import setting_of
from meshwright.diagnose.log_judge import judge_log
from meshwright.diagnose.log_reading import read_log as read_text_log
from meshwright.diagnose.sources import Source
from meshwright.diagnose.trace_reading import Trace, read_trace
from meshwright.engine.watch.runlog import METRICS, read_log
from meshwright.evidence.calibrate import Sighting
from meshwright.evidence.import_rows import Run
from meshwright.evidence.nccl_tests import is_nccl_tests, parse_nccl_tests
from meshwright.evidence.rows import Row, read_rows
from meshwright.measure.racing import FIRST_LOOK
from meshwright.measure.settle import HERE
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import TABLE_BYTES, read_text
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Plan, load_plan

_ELEMENT_BYTES = {
    "Float": 4, "float": 4, "BFloat16": 2, "Half": 2, "c10::BFloat16": 2, "c10::Half": 2, "Byte": 1,
}  # fmt: skip
_COLLECTIVES = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce", "_allgather_base": "all_gather",
    "allgather": "all_gather", "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter", "all_to_all": "all_to_all", "alltoall_base": "all_to_all",
}  # fmt: skip
"""Names in PyTorch's traces, and ours."""

TABLES = {".csv", ".tsv", ".md", ".html", ".htm", ".tex"}
"""Files that hold tables of runs, as people head and paste them."""
FEWEST = 3
"""Repeats of one collective and size in a trace from which its least time stands for the links."""


@dataclass(slots=True)
class Material:
    """Everything that was read, ready to be fitted."""

    timings: list[MeasuredCollective] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def gather(sources: Sequence[str], plans: Sequence[str], cluster: Cluster) -> Material:
    """Read every source: a file of any kind, a run's folder, or a folder of runs.

    `plans` are of logs that do not tell their own configuration, in the order of such logs; one plan
    stands for all.

    Raises:
        SpecError: a file cannot be read, or nothing in it can be compared with the model.
    """
    found, waiting = Material(), [load_plan(path) for path in plans]
    for source in sources:
        path = Path(source)
        if path.is_dir():
            _folder(path, found)
        elif path.suffix.lower() in TABLES:
            found.rows += read_rows(source)
        elif path.name.endswith((".json", ".json.gz", ".json.zst")):
            found.timings += collectives_of(read_trace(Source(name=source, path=path)), cluster)
        elif path.name.endswith(".jsonl"):
            _own(path, found)
        elif path.name.endswith(".toml"):
            _settled(source, found)
        else:
            _text(source, found, waiting, cluster)
    return found


def _folder(folder: Path, found: Material) -> None:
    records = sorted(folder.rglob(METRICS))
    if not records:
        raise SpecError("from", str(folder), f"holds no {METRICS} of a run")
    for file in records:
        _own(file, found)


def _own(file: Path, found: Material) -> None:
    """A run of `meshwright train`, or the local history of runs."""
    if file.name != METRICS:
        from meshwright.measure.history import read_history

        found.sightings += [
            _sighting(
                f"{file.name}, {one.layout.label()}", one.model, one.job, one.layout, one.step_s
            )
            for one in read_history(file)
        ]
        return
    log = read_log(file.parent)
    start = log.last("start")
    times = [s["step_time_s"] for s in log.steady if s.get("step_time_s")]
    if start is None or not times:
        found.skipped.append(f"{file}: no step was timed")
        return
    job = Job.parse({**start["job"], "framework": "meshwright"}, "job")
    found.sightings.append(
        _sighting(
            str(file.parent), Model.parse(start["model"], "model"), job,
            Layout.parse(start["layout"], "layout"), statistics.median(times),
        )
    )  # fmt: skip


def _settled(source: str, found: Material) -> None:
    """The finalists of a plan that `meshwright settle` ran."""
    plan = load_plan(source)
    if plan.settled is None:
        raise SpecError("from", source, "a plan that was settled, a log, a trace or a table")
    found.sightings += sightings_of(plan, source)


def sightings_of(plan: Plan, source: str) -> list[Sighting]:
    """What a settled plan measured; runs of its own engine are priced as such."""
    if plan.settled is None:
        return []
    job = plan.job
    if plan.settled.where == HERE:
        job = job.but(framework="meshwright")
    return [
        _sighting(f"{source}, {run.layout.label()}", plan.model, job, run.layout, run.measured_s)
        for run in plan.settled.runs
        if run.measured_s and run.steps >= FIRST_LOOK
    ]


def runs_of(plan: Plan, source: str) -> list[Run]:
    """A plan's layouts, chosen and alternative, that run on as many devices."""
    others = [
        one.layout
        for one in plan.alternatives
        if one.estimate is not None and one.estimate.fits and one.layout.world == plan.layout.world
    ]
    return [_run(source, plan.model, plan.job, layout) for layout in (plan.layout, *others)]


def _sighting(source: str, model: Model, job: Job, layout: Layout, step_s: float) -> Sighting:
    return Sighting(_run(source, model, job, layout), step_s, source)


def _run(source: str, model: Model, job: Job, layout: Layout) -> Run:
    from meshwright.specs.clusters import load_cluster

    # Whatever cluster it names is replaced by the one that is calibrated.
    nominal = load_cluster("h100:8x8")
    return Run(
        id=source, model=model, cluster=nominal, job=job, layout=layout,
        memory_convention="allocated", memory_rank="heaviest", assumed=(),
    )  # fmt: skip


def _text(source: str, found: Material, plans: list[Plan], cluster: Cluster) -> None:
    """nccl-tests output, or a training log of any framework that `diagnose` reads."""
    text = read_text(source, "from", TABLE_BYTES, errors="replace")
    if is_nccl_tests(text):
        for run in parse_nccl_tests(text, where=source):
            found.timings += run.measurements(cluster.gpus_per_node)
        return
    reading = read_text_log(text.splitlines(), source)
    part = judge_log(reading)
    if not any(name in part.figures for name in ("step_time_s", *_RATES)):
        raise SpecError("from", source, "tells no time or speed of a step that is known here")
    plan = None
    if len(reading.table) < 20:
        if not plans:
            raise SpecError(
                "from",
                source,
                "tells no configuration that can be priced; give the run's plan with --plan "
                "(`meshwright import` makes one from its configuration)",
            )
        plan = plans[0] if len(plans) == 1 else plans.pop(0)
    setting = setting_of(part, reading, plan, cluster)
    if setting is None:
        raise SpecError("from", source, part.missing[-1] if part.missing else "cannot be priced")
    plan = setting.plan
    step = _step_s(part.figures, plan)
    if step is None:
        raise SpecError("from", source, "tells no time or speed of a step")
    found.sightings.append(_sighting(source, plan.model, plan.job, plan.layout, step))


_RATES = ("tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s")


def _step_s(figures: Mapping[str, object], plan: Plan) -> float | None:
    """A log's step time, by whichever figure it prints."""
    step = figures.get("step_time_s")
    if isinstance(step, float) and step > 0:
        return step
    world, tokens = plan.layout.world, plan.job.tokens
    for name, many in (("tokens_per_s", 1), ("tokens_per_s_per_gpu", world)):
        rate = figures.get(name)
        if isinstance(rate, float) and rate > 0:
            return tokens / rate / many
    rate = figures.get("samples_per_s")
    return plan.job.global_batch / rate if isinstance(rate, float) and rate > 0 else None


def collectives_of(trace: Trace, cluster: Cluster) -> list[MeasuredCollective]:
    """Timings of a trace's collectives: of each kind, group and size the least of its repeats.

    A kernel also lasts while it waits for others, so only the least of several repeats speaks of the
    links.

    Raises:
        SpecError: the trace has no collective with its size and group.
    """
    groups: dict[tuple[str, int, float], list[float]] = {}
    for at, told in trace.calls.items():
        name = _COLLECTIVES.get(str(told.collective or "").lower())
        element = _ELEMENT_BYTES.get(str(told.dtype or ""))
        ranks = int(told.group_size or 0)
        if name is None or element is None or ranks < 2 or ranks > cluster.gpus:
            continue
        whole = max(int(told.elements_in or 0), int(told.elements_out or 0))
        length = float(trace.end[at] - trace.start[at])
        if whole and length > 0:
            groups.setdefault((name, ranks, float(whole * element)), []).append(length)
    found = [
        MeasuredCollective(name, ranks, size, float(np.min(times)))
        for (name, ranks, size), times in groups.items()
        if len(times) >= FEWEST
    ]
    if not found:
        raise SpecError(
            "from", trace.file, f"no collective with size and group is there {FEWEST} times or more"
        )
    return found
