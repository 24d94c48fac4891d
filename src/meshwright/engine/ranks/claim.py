"""One run at a time in a folder: two would mix their records and checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from meshwright.specs.errors import SpecError

_held: dict[str, int] = {}


def claim(out: Path) -> None:
    """Take a run's folder for this process, until it ends or lets go; again is no harm.

    The system drops the claim with the process, however it ends. On file systems without locks
    there is none.

    Raises:
        SpecError: another process trains there.
    """
    place = str(out.resolve())
    if place in _held:
        return
    try:
        descriptor = os.open(out / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return  # what the run writes next will say why
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SpecError(
            "out", str(out), "another run trains in this folder; choose another one, or wait"
        ) from None
    except OSError:
        os.close(descriptor)
        return
    _held[place] = descriptor


def let_go(out: Path) -> None:
    """Give a folder back before this process ends."""
    descriptor = _held.pop(str(out.resolve()), None)
    if descriptor is not None:
        with contextlib.suppress(OSError):
            os.close(descriptor)
