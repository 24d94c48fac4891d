"""A rank that is asked to stop (SIGTERM) finishes its step first: then all can save and end together."""

from __future__ import annotations

import signal
import threading
from types import FrameType

GRACE_S = 25.0
"""How long ranks may take to end by themselves; torchrun and SLURM give thirty seconds."""


class StopRequest:
    """Whether this process was sent SIGTERM since the object was made."""

    def __init__(self) -> None:
        self.asked = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
