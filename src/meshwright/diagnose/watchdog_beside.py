"""Collectives that time out as some ranks prepare data, save or evaluate beside the training."""

from __future__ import annotations

from meshwright.diagnose.records import Finding, of
from meshwright.diagnose.watchdog_lines import Reading, said
from meshwright.engine.watch.flightlog import ranks_text


def prepares(reading: Reading, phase: tuple[str, int, str]) -> Finding:
    """One process works on the data before the first step, and the others' patience is over."""
    waiting = sorted({wait.rank for wait in reading.waits if wait.rank is not None})
    who = "Rank 0" if waiting and 0 not in waiting else "One process"
    lines = [(phase[1], phase[2], None), *((w.line, w.text, w.rank) for w in reading.waits[:3])]
    return of(
        "wrong-configuration",
        f"{who} prepares the data for longer than {ranks_text(waiting) if waiting else 'the others'} may wait in a collective",
        "prepare the data once before the run, where all ranks then read it (a tokenised folder, the tool's own preprocessing "
        "command), give it more workers, or make the time-out longer than it takes (ddp_timeout, init_process_group's timeout)",
        confidence=0.8, ranks=(0,) if who == "Rank 0" else (), where="preparing the data", evidence=said(reading, *lines),
    )  # fmt: skip


def beside(
    reading: Reading, phase: str, absent: tuple[int, ...], ranks: list[int], op: str,
    lines: list[tuple[int, str, int | None]],
) -> Finding:  # fmt: skip
    """Some ranks save or evaluate while the others wait in the next collective."""
    few = absent if len(ranks) >= 2 and 0 < len(absent) < len(ranks) else ()
    who = ranks_text(few) if few else "one process"
    waiting = ranks_text(ranks) if ranks else "the others"
    verb = "saves" if phase == "checkpoint" else "evaluates"
    remedy = (
        "let all ranks enter the save (sharded or distributed checkpoint, save_state on every rank, "
        "not under is_main_process); where one process has to write alone, raise the time-out for it. "
        "Training itself is not at fault, and NCCL settings do not help"
        if phase == "checkpoint"
        else "evaluate on all ranks, or less of it (fewer samples), or raise the time-out above what it takes"
    )
    return of(
        "evaluation-or-checkpoint",
        f"{who.capitalize()} {verb} while {waiting} wait{'s' if len(ranks) == 1 else ''} in the next {op}",
        remedy,
        confidence=0.8 if few else 0.7,
        ranks=few,
        where="checkpoint" if phase == "checkpoint" else "evaluation",
        evidence=said(reading, *lines[:5]),
    )
