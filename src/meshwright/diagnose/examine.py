"""From arguments to a diagnosis: every source is recognised, read by its reader, and all are joined."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from meshwright.diagnose.artefacts import Artefact, recognise
from meshwright.diagnose.records import Diagnosis, Part
from meshwright.diagnose.sources import Source, gather
from meshwright.diagnose.verdict import conclude
from meshwright.engine.watch.runlog import METRICS
from meshwright.specs.errors import SpecError

_OURS = re.compile(r"metrics(\.\d+)?\.jsonl")
"""Records of our own runs, numbered where a later run took their folder; other files of JSON lines are read as logs."""

if TYPE_CHECKING:
    from meshwright.specs.cluster import Cluster
    from meshwright.specs.plan import Plan

Progress = Callable[[str], None]


def diagnose(
    paths: Sequence[str],
    *,
    plan: Plan | None = None,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
) -> tuple[Diagnosis, list[Part]]:
    """Diagnose what a run left behind.

    Args:
        paths: files, folders, or `-` for standard input.
        plan: what the run was meant to be.
        cluster: what it ran on, where neither plan nor artefacts say.
        progress: called with what is being read.

    Raises:
        SpecError: an artefact cannot be read, or nothing in it is known.
    """
    sources = gather(list(paths))
    several = len(sources) > 1
    by_kind: dict[Artefact, list[Source]] = {}
    for source in sources:
        by_kind.setdefault(recognise(source), []).append(source)
    parts = _read_all(by_kind, plan, cluster, several, progress or (lambda _: None))
    if not parts:
        names = ", ".join(source.name for source in sources[:4])
        raise SpecError("artefact", names, "nothing that a training run writes is recognised in it")
    return conclude(parts), parts


def _read_all(
    by_kind: dict[Artefact, list[Source]], plan: Plan | None, cluster: Cluster | None,
    several: bool, progress: Progress,
) -> list[Part]:  # fmt: skip
    parts: list[Part] = []
    for source in by_kind.get("text", []):
        progress(source.name)
        if part := _text(source, plan, cluster, several):
            parts.append(part)
    if dumps := by_kind.get("nccl-dump"):
        from meshwright.diagnose.hangs import judge_dumps

        progress(f"{len(dumps)} flight-recorder dumps")
        for part in parts:
            part.missing = [line for line in part.missing if "flight-recorder dumps" not in line]
        parts += judge_dumps(dumps)
    if rings := by_kind.get("ring"):
        from meshwright.diagnose.hangs import judge_rings

        for folder in dict.fromkeys(ring.path.parent for ring in rings if ring.path is not None):
            parts.append(judge_rings(folder))
    for source in _newest(by_kind.get("metrics", [])):
        if source.path is not None and _OURS.fullmatch(source.path.name):
            from meshwright.diagnose.own_runs import judge_run

            progress(source.name)
            parts.append(judge_run(source.path))
        elif part := _text(source, plan, cluster, several):
            parts.append(part)
    for source in by_kind.get("memory-snapshot", []):
        from meshwright.diagnose.memory_records import judge_snapshot

        progress(source.name)
        parts.append(judge_snapshot(source))
    for source in by_kind.get("memory-timeline", []):
        from meshwright.diagnose.memory_records import judge_timeline

        progress(source.name)
        parts.append(judge_timeline(source))
    parts += _operations(by_kind.get("operations", []), progress)
    if found := by_kind.get("trace"):
        parts += _traces(found, progress)
    return parts


def _newest(sources: list[Source]) -> list[Source]:
    """Records without those of earlier runs in a folder whose last run is among them, too."""
    lasting = {one.path.parent for one in sources if one.path and one.path.name == METRICS}
    earlier = [
        one for one in sources
        if one.path and one.path.parent in lasting and one.path.name != METRICS and _OURS.fullmatch(one.path.name)
    ]  # fmt: skip
    return [one for one in sources if one not in earlier]


def _operations(sources: list[Source], progress: Progress) -> list[Part]:
    """Tables of operations, and pipeline tracers' events."""
    parts, events = [], []
    for source in sources:
        if source.head(4) != b"PAR1":
            events.append(source)
            continue
        from meshwright.diagnose.stragglers import judge_table

        progress(source.name)
        parts.append(judge_table(source))
    if events:
        from meshwright.diagnose.pipeline_events import read_tables
        from meshwright.diagnose.pipeline_replay import compare, judge_pipeline

        progress(f"{len(events)} tables of pipeline events")
        tables = read_tables(events)
        found = [judge_pipeline(table) for table in tables]
        if len(found) == 2:
            compare(found[1], found[0], (tables[0].file, tables[1].file))
            found = [found[1], found[0]]
        parts += found
    return parts


def _traces(sources: list[Source], progress: Progress) -> list[Part]:
    from meshwright.diagnose.trace_judge import judge_traces
    from meshwright.diagnose.trace_reading import read_trace

    traces = []
    for source in sources:

        def told(read: int, name: str = source.name) -> None:
            progress(f"{name} ({read >> 20} MiB)")

        progress(source.name)
        traces.append(read_trace(source, told))
    from meshwright.diagnose.pipeline_events import from_traces
    from meshwright.diagnose.pipeline_replay import judge_pipeline

    pipeline = from_traces(traces) if len(traces) > 1 else None
    parts = [judge_pipeline(pipeline)] if pipeline is not None else []
    if pipeline is None or any(len(trace.start) for trace in traces):
        parts += judge_traces(traces)
    return parts


def _text(source: Source, plan: Plan | None, cluster: Cluster | None, several: bool) -> Part | None:
    from meshwright.diagnose import oom
    from meshwright.diagnose.expected import compare
    from meshwright.diagnose.log_judge import judge_log, unknown_if_silent
    from meshwright.diagnose.log_reading import read_log

    reading = read_log(source.lines(), source.name)
    part = judge_log(reading)
    if plan is not None and reading.messages:
        oom.against_plan(part, plan.estimate.memory_parts, plan.estimate.capacity_bytes)
    compare(part, reading, plan, cluster)
    silent = unknown_if_silent(part, reading)
    if silent is not None:
        if several:
            return None  # a README beside the artefacts says nothing, and need not
        part.findings.append(silent)
    return part
