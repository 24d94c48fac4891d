"""Our own runs: their records are read as steps of a log and judged by the same code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.diagnose.log_judge import judge_log
from meshwright.diagnose.log_reading import LogReading
from meshwright.diagnose.records import Evidence, Kind, Part, of
from meshwright.diagnose.step_fields import Step
from meshwright.engine.watch.runlog import RunLog, disturbed, read_log

_KINDS: dict[str, Kind] = {
    "missing-collective": "missing-collective",
    "frozen-rank": "frozen-rank",
    "mismatched-collective": "mismatched-collective",
    "gpu-error": "gpu-error",
    "circle": "mismatched-collective",
}


def judge_run(records: Path) -> Part:
    """Diagnose a run from its `metrics.jsonl`.

    Raises:
        SpecError: they are no records of a run.
    """
    log = read_log(records)
    part = judge_log(_as_log(log, str(records)))
    start = log.last("start")
    if start is not None:
        _expected(part, log, start)
    _failures(part, log, str(records))
    return part


def _as_log(log: RunLog, name: str) -> LogReading:
    """The records as a log would tell them; steps that were counted or profiled are left out."""
    reading = LogReading(name=name, lines=len(log.records))
    for line, record in enumerate(log.records, 1):
        if record["kind"] == "start" and record.get("generation"):
            reading.restarts.append((line, f"start {record['generation'] + 1} of the run"))
        if record["kind"] != "step" or "step" not in record or disturbed(record):
            continue
        parts = record.get("parts_s") or {}
        memory = record.get("memory_bytes") or []
        reading.steps.append(
            Step(
                line=line, number=record["step"], step_time_s=record.get("step_time_s"),
                loss=record.get("loss"), tokens_per_s=record.get("tokens_s"), mfu=record.get("mfu"),
                memory_bytes=float(max(memory)) if memory else None, data_s=parts.get("data"),
            )
        )  # fmt: skip
    return reading


def _expected(part: Part, log: RunLog, start: dict[str, Any]) -> None:
    predicted = start.get("predicted")
    step = part.figures.get("step_time_s")
    ranks = start.get("ranks") or 1
    rate = part.figures.get("tokens_per_s")
    if isinstance(rate, float):
        part.figures["tokens_per_s_per_gpu"] = rate / ranks
    if predicted and isinstance(step, float):
        part.figures["expected_step_time_s"] = float(predicted["step_time_s"])
        part.figures["expected_over_measured"] = round(float(predicted["step_time_s"]) / step, 4)
    part.missing = [line for line in part.missing if "--plan" not in line]
    if not log.steps:
        part.missing.append("a run that finished a step")


def _failures(part: Part, log: RunLog, name: str) -> None:
    """Failures that the run's own records blame on a rank, with what the rings said of it."""
    for line, record in enumerate(log.records, 1):
        if record["kind"] != "failure":
            continue
        seen = record.get("collectives") or {}
        sentence = str(record.get("sentence", "a rank failed"))
        low = sentence.lower()
        kind = _KINDS.get(str(seen.get("cause", "")), "unknown")
        if "sigstop" in low or "stopped answering" in low or "freez" in low:
            kind = "frozen-rank"
        elif "no space left" in low or "errno 28" in low:
            kind = "wrong-configuration"
        rank = record.get("rank")
        ranks = (int(rank),) if isinstance(rank, int) else tuple(seen.get("missing_ranks", ()))
        part.findings = [f for f in part.findings if f.cause.kind != "unknown"]
        part.findings.append(
            of(kind, f"The run failed: {sentence}", "cure what stopped that rank; the run can go on from its newest "
               "checkpoint (meshwright train --resume)", confidence=0.9, ranks=ranks, where=sentence[:80],
               evidence=(Evidence(file=name, line=line, rank=rank if isinstance(rank, int) else None,
                                  text=str(seen.get("sentence") or sentence)[:300]),))
        )  # fmt: skip
