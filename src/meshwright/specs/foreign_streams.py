"""Streams that give no more bytes than was agreed, packed or not."""

from __future__ import annotations

import io
import zlib
from typing import Any, BinaryIO

from meshwright.specs.errors import SpecError

GZIP_MAGIC = b"\x1f\x8b"


def unreadable(field: str, name: str, error: Exception) -> SpecError:
    """The sentence about a file that the system does not give."""
    reason = getattr(error, "strerror", None) or "not a path"
    return SpecError(field, name, f"cannot be read ({reason})")


def too_large(field: str, name: str, size_bytes: int) -> SpecError:
    """The sentence about more bytes than are accepted."""
    shown = f"{size_bytes // 2**20} MiB" if size_bytes >= 2**20 else f"{size_bytes:,} bytes"
    return SpecError(field, name, f"is larger than {shown}")


class Budget(io.RawIOBase):
    """A stream that stops with a `SpecError` once more than its budget was read."""

    def __init__(self, source: Any, field: str, name: str, size_bytes: int) -> None:
        super().__init__()
        self._source, self._field, self._name = source, field, name
        self._limit = self._left = size_bytes

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; one byte beyond the budget is a `SpecError`."""
        wanted = min(len(buffer), self._left + 1)
        try:
            read = self._source.read(wanted) or b""
        except SpecError:
            raise
        except (EOFError, zlib.error) as error:
            reason = f"is not a whole gzip file ({error})"
            raise SpecError(self._field, self._name, reason) from None
        except (OSError, ValueError) as error:
            raise unreadable(self._field, self._name, error) from None
        if len(read) > self._left:
            raise too_large(self._field, self._name, self._limit)
        self._left -= len(read)
        buffer[: len(read)] = read
        return len(read)


class Gunzip:
    """Reads gzip members one after the other, never more than asked for at a time."""

    def __init__(self, packed: BinaryIO | io.BufferedReader) -> None:
        self._packed, self._rest = packed, b""
        self._member = zlib.decompressobj(wbits=31)

    def read(self, wanted: int) -> bytes:
        """Return up to so many unpacked bytes; none at the end."""
        while True:
            if self._member.eof:
                self._rest = self._member.unused_data or self._packed.read(65536)
                if self._rest[:2] != GZIP_MAGIC:  # the end, or padding after it
                    return b""
                self._member = zlib.decompressobj(wbits=31)
            packed = self._member.unconsumed_tail or self._rest or self._packed.read(65536)
            self._rest = b""
            if not packed:
                raise EOFError("it ends early")
            found = self._member.decompress(packed, wanted)
            if found:
                return found
