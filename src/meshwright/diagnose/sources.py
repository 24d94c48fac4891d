"""Opening what a run left behind: regular files of bounded size, gzip or not, never executed."""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from meshwright.specs.errors import SpecError

HEAD_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 16
MAX_TEXT_BYTES = 1 << 31
"""A log of more than 2 GiB is refused; nobody reads it, and its tail says the same."""
MAX_EXPANSION = 400
"""How many times larger than its gzip file an artefact may be; traces reach 30."""
MAX_FILES = 4096


@dataclass(frozen=True)
class Source:
    """A file, or text that was pasted."""

    name: str
    path: Path | None = None
    text: bytes = b""

    @property
    def size_bytes(self) -> int:
        """Size as stored."""
        return len(self.text) if self.path is None else self.path.stat().st_size

    def open(self) -> BinaryIO:
        """Open for reading, decompressed.

        Raises:
            SpecError: it cannot be opened.
        """
        if self.path is None:
            return io.BytesIO(self.text)
        try:
            # Not blocking: a pipe with nobody at its other end must not hold the command up.
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                os.close(handle)
                raise SpecError("artefact", self.name, "is no regular file")
            raw = os.fdopen(handle, "rb", buffering=1 << 20)
        except OSError as error:
            raise SpecError("artefact", self.name, f"cannot be read ({error.strerror})") from None
        magic = raw.read(2)
        raw.seek(0)
        if magic != b"\x1f\x8b":
            return raw
        limit = max(MAX_EXPANSION * self.size_bytes, 1 << 24)
        return cast(BinaryIO, _Bounded(gzip.GzipFile(fileobj=raw), limit, self.name))

    def head(self, size: int = HEAD_BYTES) -> bytes:
        """Return the first bytes, decompressed.

        Raises:
            SpecError: it cannot be read.
        """
        with self.open() as file:
            return _read(file, size, self.name)

    def bytes(self, limit: int) -> bytes:
        """Return all of it.

        Raises:
            SpecError: it cannot be read or is larger than `limit`.
        """
        with self.open() as file:
            data = _read(file, limit + 1, self.name)
        if len(data) > limit:
            raise SpecError("artefact", self.name, f"is larger than {limit >> 20} MiB")
        return data

    def lines(self) -> Iterator[str]:
        """Yield lines of text, carriage returns counting as ends of lines.

        Raises:
            SpecError: it cannot be read or is larger than a log may be.
        """
        read = 0
        with self.open() as file:
            while True:
                try:
                    line = file.readline(MAX_LINE_BYTES)
                except (OSError, EOFError, zlib.error):
                    raise SpecError(
                        "artefact", self.name, "is damaged or cut short (gzip)"
                    ) from None
                if not line:
                    return
                read += len(line)
                if read > MAX_TEXT_BYTES:
                    raise SpecError(
                        "artefact", self.name, f"is larger than {MAX_TEXT_BYTES >> 30} GiB of text"
                    )
                yield line.decode("utf-8", errors="replace").rstrip("\n")


def _read(file: BinaryIO, size: int, name: str) -> bytes:
    pieces, left = [], size
    try:
        while left > 0 and (piece := file.read(min(left, 1 << 24))):
            pieces.append(piece)
            left -= len(piece)
    except (OSError, EOFError, zlib.error):
        raise SpecError("artefact", name, "is damaged or cut short (gzip)") from None
    return b"".join(pieces)


class _Bounded(io.BufferedIOBase):
    """A decompressed stream that ends with an error where it grows past a limit."""

    def __init__(self, inner: gzip.GzipFile, limit: int, name: str) -> None:
        self._inner, self._left, self._name = inner, limit, name

    def readable(self) -> bool:
        return True

    def _spend(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise SpecError("artefact", self._name, "expands to far more than a run writes")
        return data

    def read(self, size: int | None = -1, /) -> bytes:
        return self._spend(self._inner.read(-1 if size is None else size))

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._spend(self._inner.readline(-1 if size is None else size))

    def close(self) -> None:
        inner = self._inner.fileobj
        self._inner.close()
        if inner is not None:
            inner.close()
        super().close()


def gather(paths: list[str]) -> list[Source]:
    """Return the sources behind arguments: files, folders (all below them), `-` for stdin.

    Raises:
        SpecError: an argument does not exist, or there are too many files.
    """
    found: list[Source] = []
    for path in paths:
        if path == "-":
            text = sys.stdin.buffer.read(MAX_TEXT_BYTES >> 4)
            found.append(Source(name="standard input", text=text))
            continue
        where = Path(path)
        if where.is_dir():
            found += _below(where)
        elif where.exists() or where.is_symlink():
            found.append(Source(name=str(path), path=where))
        else:
            raise SpecError("artefact", str(path), "does not exist")
    if not found:
        raise SpecError("artefact", " ".join(paths), "holds no file")
    return found


def _below(folder: Path) -> list[Source]:
    found: list[Source] = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(root) / name
            if name.startswith(".") or path.is_symlink() or not path.is_file():
                continue
            found.append(Source(name=str(path), path=path))
            if len(found) > MAX_FILES:
                raise SpecError(
                    "artefact", str(folder), f"holds more than {MAX_FILES} files; name some of them"
                )
    return found
