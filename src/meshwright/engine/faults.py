"""Faults that a drill injects into a running rank, at a step of its choice."""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from meshwright.specs.errors import SpecError

Kind = Literal["kill", "stop", "raise", "kill-save", "full-disk", "kill-restart"]
KINDS: dict[str, str] = {
    "kill": "the process is killed (SIGKILL) as the step begins",
    "stop": "the process freezes (SIGSTOP) as the step begins",
    "raise": "the program raises as the step begins",
    "kill-save": "the process is killed while the checkpoint of that step is being saved",
    "full-disk": "writing fails while the checkpoint of that step is being saved",
    "kill-restart": "killed as the step begins, and once more while it restarts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong: what, on which rank, in which step (counted from 1)."""

    kind: Kind
    rank: int
    step: int

    @classmethod
    def parse(cls, kind: str, text: str) -> Fault:
        """Read `rank=1@step=10`.

        Raises:
            SpecError: the text has another form.
        """
        match = re.fullmatch(r"rank=(\d{1,6})@step=(\d{1,9})", text.strip())
        if match is None or kind not in KINDS or int(match[2]) < 1:
            raise SpecError(kind, text, "the form is rank=1@step=10, steps from 1")
        return cls(kind=kind, rank=int(match[1]), step=int(match[2]))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.kind} rank {self.rank} in step {self.step}"


class Injector:
    """Carries out a fault on the rank and in the generation it is meant for.

    A generation is one start of all ranks; a fault strikes in the first, `kill-restart` in the
    second as well.
    """

    def __init__(
        self, fault: Fault | None, rank: int, generation: int, report: Callable[[Any], None]
    ) -> None:
        last = 1 if fault is not None and fault.kind == "kill-restart" else 0
        active = fault is not None and fault.rank == rank and generation <= last
        self._fault = fault if active else None
        self._generation, self._report = generation, report

    def at_start(self) -> None:
        """Called before the program is built."""
        if self._fault and self._fault.kind == "kill-restart" and self._generation == 1:
            self._strike(signal.SIGKILL)

    def at_step(self, step: int) -> None:
        """Called as step `step` (from 1) begins."""
        if self._fault is None or self._fault.step != step:
            return
        if self._fault.kind in ("kill", "kill-restart"):
            self._strike(signal.SIGKILL)
        elif self._fault.kind == "stop":
            self._strike(signal.SIGSTOP)
        elif self._fault.kind == "raise":
            self._announce()
            raise RuntimeError("a drill raised this on purpose")

    def before_save(self, step: int) -> None:
        """Called before the checkpoint of step `step` is written."""
        if self._fault and self._fault.kind == "full-disk" and self._fault.step == step:
            self._announce()
            # Every further write fails with "File too large", as it would with "No space left".
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
            )

    def while_saving(self, step: int) -> None:
        """Called when the checkpoint's files are written but not yet in force."""
        if self._fault and self._fault.kind == "kill-save" and self._fault.step == step:
            self._strike(signal.SIGKILL)

    def _announce(self) -> None:
        self._report({"kind": "fault", "time": time.time(), "step": self._fault.step})  # type: ignore[union-attr]

    def _strike(self, sign: signal.Signals) -> None:
        self._announce()
        os.kill(os.getpid(), sign)
