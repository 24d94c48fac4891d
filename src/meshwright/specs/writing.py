"""How every file that a command writes is written: whole, or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from meshwright.specs.errors import SpecError


def write_atomically(path: str | Path, content: str | bytes, field: str = "output") -> None:
    """Write a file through a temporary one beside it, so that it is never half-written.

    A link is followed and stays a link; a file that exists keeps its mode (and, where allowed, its
    owner), a new one gets the mode that the umask leaves.

    Raises:
        SpecError: the file cannot be written, or the name is that of something else (a folder, a
            device, a pipe).
    """
    raw = content.encode("utf-8") if isinstance(content, str) else content
    with replacing(path, field) as stream:
        stream.write(raw)


@contextmanager
def replacing(path: str | Path, field: str = "output") -> Iterator[BinaryIO]:
    """Yield a stream whose content takes the file's place once all of it is on the disk.

    Raises:
        SpecError: as `write_atomically`.
    """
    try:
        target, before = _target(path, field)
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".meshwright-")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                stream.flush()
                _keep(stream.fileno(), before)
                os.fsync(stream.fileno())
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        reason = getattr(error, "strerror", None) or "not a path"
        raise SpecError(field, str(path), f"cannot be written ({reason})") from None


def check_writable(path: str | Path, field: str = "output") -> None:
    """Refuse a name that `write_atomically` would refuse, before the work whose result it takes.

    Raises:
        SpecError: not a regular file, or its folder is not there or takes no new files.
    """
    try:
        target, _ = _target(path, field)
        if not target.parent.is_dir():
            raise SpecError(field, str(path), "cannot be written (its folder does not exist)")
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise SpecError(field, str(path), "cannot be written (its folder takes no new files)")
    except (OSError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(field, str(path), "cannot be written (not a path)") from None


def _target(path: str | Path, field: str) -> tuple[Path, os.stat_result | None]:
    """The file behind the links, and what it is now; None where there is none."""
    try:
        before = os.stat(path)
    except FileNotFoundError:
        before = None
    if before is not None and not stat.S_ISREG(before.st_mode):
        what = "a folder" if stat.S_ISDIR(before.st_mode) else "a device, pipe or socket"
        raise SpecError(field, str(path), f"is {what}; a regular file or a new name is expected")
    target = os.path.realpath(path)
    if before is not None and not os.path.samestat(before, os.stat(target)):
        raise SpecError(field, str(path), "is an open file without a name of its own")
    return Path(target), before


def _keep(descriptor: int, before: os.stat_result | None) -> None:
    """Give the temporary file the mode and owner of the one it replaces."""
    if before is None:
        os.fchmod(descriptor, 0o666 & ~_umask())
        return
    mine = os.fstat(descriptor)
    if (mine.st_uid, mine.st_gid) != (before.st_uid, before.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def _umask() -> int:
    """The umask, read without changing it where the system tells it."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
        return int(next(line for line in lines if line.startswith("Umask:"))[6:], 8)
    current = os.umask(0o077)
    os.umask(current)
    return current
