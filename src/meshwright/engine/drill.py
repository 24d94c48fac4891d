"""Fault drills: break a run on purpose and compare what comes out with a run that was left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.engine.faults import Fault
from meshwright.engine.processes import RankError
from meshwright.engine.supervise import Recovery, supervise
from meshwright.engine.train import Run
from meshwright.specs.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """One fault and how the run came through it."""

    fault: Fault
    recovered: bool
    bitwise_equal: bool
    detection_s: float | None
    restart_s: float
    lost_steps: int
    blamed_rank: int
    reason: str
    restarts: int

    def plain(self) -> dict[str, Any]:
        """Data for JSON."""
        return {
            "fault": str(self.fault), "recovered": self.recovered,
            "bitwise_equal": self.bitwise_equal, "detection_s": self.detection_s,
            "restart_s": self.restart_s, "lost_steps": self.lost_steps,
            "blamed_rank": self.blamed_rank, "reason": self.reason, "restarts": self.restarts,
        }  # fmt: skip


def drill(
    run: Run,
    faults: list[Fault],
    *,
    freeze_s: float = 8.0,
    on_progress: Callable[[str], None] = lambda line: None,
) -> list[Drill]:
    """Run once undisturbed, then once per fault; compare the final parameters bit by bit.

    `freeze_s` is the collective timeout: how long a frozen rank stays unnoticed.

    Raises:
        SpecError: a fault names a rank or a step that the run does not have.
    """
    for fault in faults:
        if fault.rank >= run.layout.world:
            raise SpecError("rank", fault.rank, f"ranks are 0 to {run.layout.world - 1}")
        if fault.step > run.steps:
            raise SpecError("step", fault.step, f"the run has {run.steps} steps")
        saves = fault.step % run.save_every == 0 or fault.step == run.steps
        if fault.kind in ("kill-save", "full-disk") and not saves:
            raise SpecError("step", fault.step, f"saved is every {run.save_every} steps")
    on_progress("a run that nothing disturbs")
    calm = supervise(replace(run, out=str(Path(run.out) / "calm")), max_restarts=0)
    wanted = [rank["digest"] for rank in calm.ranks]
    drills = []
    for number, fault in enumerate(faults):
        on_progress(str(fault))
        broken = replace(run, out=str(Path(run.out) / f"drill-{number}"), fault=fault)
        try:
            outcome = supervise(broken, collective_timeout_s=freeze_s)
        except RankError as error:
            drills.append(_lost(fault, error))
            continue
        first = outcome.recoveries[0] if outcome.recoveries else Recovery(-1, "", 0, 0, None)
        drills.append(
            Drill(
                fault=fault,
                recovered=bool(outcome.recoveries),
                bitwise_equal=[rank["digest"] for rank in outcome.ranks] == wanted
                and outcome.losses == calm.losses,
                detection_s=first.detection_s,
                restart_s=sum(recovery.restart_s for recovery in outcome.recoveries),
                lost_steps=sum(recovery.lost_steps for recovery in outcome.recoveries),
                blamed_rank=first.blamed_rank, reason=first.reason,
                restarts=len(outcome.recoveries),
            )
        )  # fmt: skip
    return drills


def _lost(fault: Fault, error: RankError) -> Drill:
    return Drill(
        fault=fault, recovered=False, bitwise_equal=False, detection_s=None, restart_s=0.0,
        lost_steps=0, blamed_rank=error.rank, reason=error.reason, restarts=0,
    )  # fmt: skip
