"""A timeline as columns for programs: the studio, notebooks, other languages."""

from __future__ import annotations

from typing import Any

from meshwright.schedules.ops import Kind, Schedule
from meshwright.simulator.memory import RankMemory
from meshwright.simulator.timeline import Timeline

SCHEMA_VERSION = 1


def columnar(timeline: Timeline, memory: list[RankMemory] | None = None) -> dict[str, Any]:
    """Return a timeline as plain lists, one per column, operations in the schedule's order.

    `ops.kind` holds letters (F, B, I, W); `messages` are in order of their streams; `memory` has
    one entry per rank if it was computed.
    """
    schedule = timeline.schedule
    return {
        "schema_version": SCHEMA_VERSION,
        "schedule": schedule_facts(schedule),
        **summary(timeline),
        "ops": {
            "rank": schedule.rank.tolist(),
            "kind": [Kind(k).name for k in schedule.kind.tolist()],
            "stage": schedule.stage.tolist(),
            "micro_batch": (schedule.unit // schedule.slices).tolist(),
            "slice": (schedule.unit % schedule.slices).tolist(),
            "start": timeline.start.tolist(),
            "end": timeline.end.tolist(),
            "slack": timeline.slack_s.tolist(),
        },
        "messages": {
            "from_op": timeline.message_from.tolist(),
            "to_op": timeline.message_to.tolist(),
            "start": timeline.message_start.tolist(),
            "end": timeline.message_end.tolist(),
        },
        "critical_path": timeline.critical_path,
        "memory": [_memory(rank) for rank in memory] if memory else [],
    }


def schedule_facts(schedule: Schedule) -> dict[str, Any]:
    """Return what identifies a schedule."""
    return {
        "name": schedule.name,
        "pp": schedule.pp,
        "micro_batches": schedule.micro_batches,
        "virtual_stages": schedule.virtual_stages,
        "chains": schedule.chains,
        "slices": schedule.slices,
        "stage_rank": schedule.stage_rank.tolist(),
        "asynchronous": schedule.asynchronous,
        "notes": list(schedule.notes),
    }


def summary(timeline: Timeline) -> dict[str, Any]:
    """Return the numbers of a timeline."""
    bubble = timeline.bubble
    return {
        "makespan": timeline.makespan_s,
        "step": timeline.step_s,
        "bubble": {
            "span": bubble.span,
            "makespan": bubble.makespan,
            "attribution": bubble.attribution,
        },
        "peak_in_flight": timeline.peak_in_flight,
        "critical_path_parts": timeline.critical_parts,
        "busy": timeline.busy_s.tolist(),
        "idle": timeline.idle_s.tolist(),
    }


def _memory(rank: RankMemory) -> dict[str, Any]:
    return {
        "time": rank.time_s.tolist(),
        "activations_bytes": rank.activations_bytes.tolist(),
        "resident_bytes": rank.resident_bytes,
        "peak_bytes": rank.peak_bytes,
        "peak_at": rank.peak_s,
        "cause": str(rank.cause) if rank.cause else None,
    }
