"""What a run left behind as sources: files, folders, pasted text; opened by the one foreign reader."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import open_stream

HEAD_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 16
MAX_BYTES = 1 << 33
"""Of a streamed artefact, packed or not: 8 GiB is more than any trace a viewer opens."""
MAX_PASTED_BYTES = 1 << 27
MAX_FILES = 4096


@dataclass(frozen=True)
class Source:
    """A file, or text that was pasted."""

    name: str
    path: Path | None = None
    text: bytes = b""

    @contextmanager
    def open(self, limit: int | None = None) -> Iterator[BinaryIO]:
        """Open for reading, unpacked, up to `limit` bytes (default: as much as any artefact).

        Raises:
            SpecError: it cannot be opened, is larger, or is damaged; also while reading.
        """
        if self.path is None:
            yield io.BytesIO(self.text)
            return
        with open_stream(self.path, "artefact", limit or MAX_BYTES, unpack=True) as stream:
            yield stream

    def head(self, size: int = HEAD_BYTES) -> bytes:
        """Return the first bytes, unpacked.

        Raises:
            SpecError: it cannot be read.
        """
        with self.open() as stream:
            return cast(io.BufferedReader, stream).read(size)

    def bytes(self, limit: int) -> bytes:
        """Return all of it.

        Raises:
            SpecError: it cannot be read or is larger than `limit`.
        """
        with self.open(limit) as stream:
            return stream.read()

    def lines(self) -> Iterator[str]:
        """Yield lines of text; a line of more than 64 KiB comes in pieces.

        Raises:
            SpecError: it cannot be read or is larger than a log may be.
        """
        with self.open() as stream:
            while line := stream.readline(MAX_LINE_BYTES):
                yield line.decode("utf-8", errors="replace").rstrip("\n")


def gather(paths: list[str]) -> list[Source]:
    """Return the sources behind arguments: files, folders (all below them), `-` for stdin.

    Raises:
        SpecError: an argument does not exist, or there are too many files.
    """
    found: list[Source] = []
    for path in paths:
        if path == "-":
            text = sys.stdin.buffer.read(MAX_PASTED_BYTES + 1)
            if len(text) > MAX_PASTED_BYTES:
                raise SpecError("artefact", "-", f"is larger than {MAX_PASTED_BYTES >> 20} MiB")
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
