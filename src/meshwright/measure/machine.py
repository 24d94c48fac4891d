"""What a machine is, for the provenance of its measurements; and how fast its disk writes."""

from __future__ import annotations

import hashlib
import mmap
import os
import platform
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.version import __version__


def cores() -> int:
    """Processor cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> float:
    """RAM of this host; 0 where it cannot be told."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0.0


def processor() -> str:
    """The processor's own name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def host_hash() -> str:
    """A name for this host that does not tell its own."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def machine_hash() -> int:
    """The same number for all processes of one running system, whatever containers they are in; 0: not told."""
    try:
        told = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return 0
    return int.from_bytes(hashlib.sha256(told).digest()[:6], "big")


def provenance() -> dict[str, Any]:
    """Where and with what measurements were made."""
    import torch

    return {
        "date": time.strftime("%Y-%m-%d"), "host": host_hash(), "processor": processor(),
        "cores": cores(), "torch": str(torch.__version__), "python": platform.python_version(),
        "meshwright": __version__,
    }  # fmt: skip


def fresh_byte_s(size: int = 16 * 2**20, repeats: int = 9) -> float:
    """Processor seconds that a byte of memory costs more the first time it is written than the second.

    The system finds and clears a page for it. `size` is of one block, as a large tensor is.
    """
    found = []
    for _ in range(repeats):
        with mmap.mmap(-1, size) as block:
            began = time.thread_time()
            _write(block)
            first = time.thread_time()
            _write(block)
            found.append(2.0 * first - began - time.thread_time())
    return max(statistics.median(found) / size, 0.0)


def _write(block: mmap.mmap) -> None:
    view = np.frombuffer(block, np.uint8)
    view.fill(1)


def disk_bytes_s(size: int = 32 * 2**20) -> dict[str, float]:
    """Rates of writing (through to the disk) and reading back one temporary file."""
    block = os.urandom(2**20)
    with tempfile.NamedTemporaryFile(prefix="meshwright-") as file:
        began = time.perf_counter()
        for _ in range(size // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        written = time.perf_counter() - began
        began = time.perf_counter()
        file.seek(0)
        while file.read(2**20):
            pass
        read = time.perf_counter() - began
    return {"write_bytes_s": size / written, "read_cached_bytes_s": size / read}
