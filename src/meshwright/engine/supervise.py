"""Training that survives its ranks: restart all from the newest complete checkpoint.

Each generation gets fresh processes and a fresh store, so no rank can read a dead one's address
(which is how torchrun's own restart fails with gloo in torch 2.13). Back-off doubles from a tenth
of a second; a failure that repeats without progress is final.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.engine import checkpoint
from meshwright.engine.processes import RankError, run_ranks
from meshwright.engine.train import Run, train_rank
from meshwright.specs.errors import SpecError


@dataclass(slots=True)
class Recovery:
    """What one failure cost."""

    blamed_rank: int
    reason: str
    resumed_step: int
    lost_steps: int
    detection_s: float | None
    """From the fault (known in drills) until all ranks were ended; None outside drills."""
    restart_s: float = 0.0
    """From the detection until the first step of the new generation was done."""


@dataclass(slots=True)
class Outcome:
    """A supervised run's end."""

    ranks: list[dict[str, Any]]
    losses: dict[int, float] = field(default_factory=dict)
    recoveries: list[Recovery] = field(default_factory=list)


def supervise(
    run: Run,
    *,
    max_restarts: int = 5,
    collective_timeout_s: float = 120.0,
    on_message: Callable[[int, Any], None] = lambda rank, message: None,
) -> Outcome:
    """Train to the end, restarting after failures.

    Raises:
        RankError: more than `max_restarts` failures, or two at the same place in a row.
    """
    outcome = Outcome(ranks=[])
    watch = _Watch(outcome, on_message)
    current = run
    for generation in range(max_restarts + 1):
        watch.begin()
        try:
            outcome.ranks = run_ranks(
                train_rank, run.layout.world, replace(current, generation=generation),
                on_message=watch.hear, timeout_s=1e9, collective_timeout_s=collective_timeout_s,
            )  # fmt: skip
            return outcome
        except RankError as error:
            resume = _newest(run)
            repeated = generation > 0 and watch.done_since_start == 0 and not watch.fault_time
            if generation == max_restarts or repeated:
                raise
            done = watch.last_step
            current = replace(run, resume=resume) if resume else run
            watch.failed(error, _step_of(resume), done)
            time.sleep(min(0.1 * 2**generation, 10.0))
    raise AssertionError("the loop returns or raises")


class _Watch:
    """Follows the messages of all generations."""

    def __init__(self, outcome: Outcome, on_message: Callable[[int, Any], None]) -> None:
        self.outcome, self._on_message = outcome, on_message
        self.last_step, self.done_since_start = 0, 0
        self.fault_time = 0.0
        self._detected = 0.0

    def begin(self) -> None:
        self.done_since_start, self.fault_time = 0, 0.0

    def hear(self, rank: int, message: dict[str, Any]) -> None:
        if message["kind"] == "fault":
            self.fault_time = message["time"]
        elif message["kind"] == "step":
            if self._detected:
                self.outcome.recoveries[-1].restart_s = time.time() - self._detected
                self._detected = 0.0
            self.last_step = message["step"]
            self.done_since_start += 1
            self.outcome.losses[message["step"]] = message["loss"]
        self._on_message(rank, message)

    def failed(self, error: RankError, resumed: int, done: int) -> None:
        self._detected = time.time()
        detection = self._detected - self.fault_time if self.fault_time else None
        self.outcome.recoveries.append(
            Recovery(
                blamed_rank=error.rank, reason=error.reason, resumed_step=resumed,
                lost_steps=max(done - resumed, 0), detection_s=detection,
            )
        )  # fmt: skip


def _newest(run: Run) -> str:
    """The newest complete checkpoint of this run, or what it was resumed from, or nothing."""
    try:
        return str(checkpoint.latest(run.out))
    except SpecError:
        return run.resume


def _step_of(path: str) -> int:
    return checkpoint.step_of(path) if path else 0
