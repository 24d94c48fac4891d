"""Out-of-memory messages dissected into figures, and what the text beside them says.

Three generations of PyTorch's message, those of other back ends, and a host that ran out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from meshwright.diagnose.known_words import Sifted
from meshwright.diagnose.oom_phases import Phase, phase_of
from meshwright.diagnose.text_values import DECIMAL, SIZE, count, rank_of, size_bytes

OUT_OF_MEMORY = Sifted(
    re.compile(
        r"(?<!ray\.exceptions\.)OutOfMemoryError|(?:cuda runtime error|cudaMalloc|hipMalloc|error=2\b|reason:)[^\n]{0,160}out of memory"
        r"|(?:CUDA|HIP|XPU|NPU|MUSA|MPS backend)\s+out of memory|(?:CUDA|HIP)(?: driver| runtime)? error: (?:\d+ )?out of memory|would exceed allowed memory"
        r"|hipErrorOutOfMemory|HSA_STATUS_ERROR_OUT_OF_RESOURCES|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED"
        r"|DefaultCPUAllocator: (?:can't|not enough) |cudaErrorMemoryAllocation|(?<!SIGKILL by )oom[-_ ]kill"
        r"|Out of memory: Kill|OOM when allocating tensor|ResourceExhaustedError|Resource exhausted: "
        r"|CUDA_ERROR_OUT_OF_MEMORY|Cannot allocate [\d.]+[KMG]?i?B memory on GPU|Tried to allocate [\d.]+ ?[KMG]i?B",
        re.IGNORECASE,
    )
)


CONTEXT_BYTES = 2 * 2**30
"""More than a process' context (kernels, NCCL's buffers) takes beside its tensors."""


@dataclass(slots=True)
class Message:
    """One message, in bytes; None where it does not say."""

    file: str
    line: int
    text: str
    rank: int | None = None
    gpu: int | None = None
    tried: float | None = None
    total: float | None = None
    free: float | None = None
    in_use: float | None = None
    allocated: float | None = None
    unallocated: float | None = None
    pools: float | None = None
    space: str = ""
    """The memory of the device that it names, where XLA does: hbm, or one inside of the chip."""
    allowed: float | None = None
    """What a limit of the process' own lets it take."""
    processes: dict[int, float] = field(default_factory=dict)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank that it names, if it does."""
        return () if self.rank is None else (self.rank,)

    @property
    def where(self) -> str:
        """The device that it names, in words."""
        return f"GPU {self.gpu}" if self.gpu is not None else "device memory"

    @property
    def reserved(self) -> float | None:
        """What the allocator holds."""
        if self.allocated is None:
            return None
        return self.allocated + (self.unallocated or 0.0)

    @property
    def fragmented(self) -> float:
        """Share of what the allocator holds that lies unused."""
        reserved = self.reserved
        return (self.unallocated or 0.0) / reserved if reserved else 0.0

    @property
    def live(self) -> float | None:
        """Share of the device in live tensors."""
        return self.allocated / self.total if self.allocated and self.total else None

    @property
    def others(self) -> float:
        """Bytes of other processes on the device."""
        # Some drivers count nothing for the process ("has 0 bytes memory in use").
        counted = self.in_use is not None and self.in_use >= 0.5 * (self.reserved or 0.0)
        own = self.in_use if counted else None
        # Where the message does not say what the process holds: its context is under 2 GiB.
        mine = (self.reserved or 0.0) + CONTEXT_BYTES
        if own is None and self.processes:
            # In a container the message numbers its own process too: the one nearest to what the
            # allocator holds; a single one is it, whatever else it holds beside the allocator's.
            sizes = sorted(
                self.processes.values(), key=lambda size: abs(size - (self.reserved or 0.0))
            )
            most = (
                math.inf if len(sizes) == 1 and 2 * sizes[0] < 3 * (self.reserved or 0.0) else mine
            )
            own_too = bool(sizes) and (self.reserved or 0.0) <= sizes[0] <= most
            return sum(sizes[1:] if own_too else (size for size in sizes if size > mine))
        if own is None and None not in (self.total, self.free, self.allocated):
            return max(self.total - self.free - mine, 0.0)  # type: ignore[operator]
        if own is not None:
            others = sum(self.processes.values())
            if not others and self.total is not None and self.free is not None:
                others = self.total - self.free - own
            return others if others > 2**30 else 0.0
        return 0.0


_DTYPE_BYTES = {
    "float32": 4, "float": 4, "int32": 4, "float64": 8, "int64": 8, "bfloat16": 2, "float16": 2,
    "half": 2, "int8": 1, "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


def _find(text: str, *patterns: str) -> float | None:
    """The size that the first of the patterns finds."""
    for pattern in patterns:
        match = re.search(pattern.replace("SIZE", SIZE), text, re.IGNORECASE)
        if match is not None and (size := size_bytes(match[1], match[2])) is not None:
            return size
    return None


_TENSOR = re.compile(
    r"OOM when allocating tensor with shape\[([\d, ]{1,200})\](?: and type (\w+))?"
)


def _tensor_bytes(text: str) -> float | None:
    """Bytes of the tensor that a message names by its shape and type (TensorFlow)."""
    match = _TENSOR.search(text)
    width = _DTYPE_BYTES.get((match[2] or "float").lower()) if match else None
    if match is None or width is None:
        return None
    elements = 1
    for one in match[1].split(","):
        elements *= count(one.strip()) or 1
    return size_bytes(str(elements * width), "B") if elements < 1 << 60 else None


_XLA = re.compile(
    rf"memory space (?P<space>[a-z]\w{{1,12}})\. Used (?P<used>{DECIMAL})(?P<unit>[KMG]) of (?P<whole>{DECIMAL})(?P<of>[KMG])",
    re.IGNORECASE,
)
"""XLA's compiler, of a program that does not fit: K, M and G are powers of 1024."""


def read_message(text: str, file: str, line: int) -> Message:
    """Dissect a message; `text` may span lines."""
    message = Message(file=file, line=line, text=text)
    message.tried = _find(
        text, r"tried to allocate SIZE", r"allocate SIZE", r"Attempting to reserve SIZE"
    )
    if message.tried is None:
        message.tried = _tensor_bytes(text)
    message.total = _find(
        text, r"total capac?i?ty of SIZE", r"SIZE total capacity", r"max allowed: SIZE"
    )
    if match := _XLA.search(text):
        message.space = match["space"].lower()
        message.allocated = size_bytes(match["used"], f"{match['unit']}iB")
        message.total = size_bytes(match["whole"], f"{match['of']}iB")
    message.free = _find(text, r"of which SIZE is free", r"SIZE free")
    message.allowed = _find(text, r"SIZE allowed\b")
    message.in_use = _find(text, r"this process has SIZE memory in use")
    message.allocated = message.allocated or _find(
        text, r"SIZE is allocated by PyTorch", r"SIZE already allocated", r"allocated memory SIZE",
        r"MPS allocated: SIZE",
    )  # fmt: skip
    # "cached" of the first generation was what the allocator held beside the live tensors.
    message.unallocated = _find(
        text, r"SIZE is reserved by PyTorch but unallocated", r"SIZE cached\b"
    )
    reserved = _find(text, r"SIZE reserved in total by PyTorch")
    if message.unallocated is None and reserved is not None and message.allocated is not None:
        message.unallocated = max(reserved - message.allocated, 0.0)
    message.pools = _find(text, r"SIZE allocated in private pools")
    for pid, number, unit in re.findall(rf"Process (\d+) has {SIZE} memory in use", text):
        process, size = count(pid), size_bytes(number, unit)
        if process is not None and size is not None:
            message.processes[process] = size
    if match := re.search(r"\bGPU (\d{1,4})\b", text):
        message.gpu = int(match[1])
    message.rank = rank_of(text)
    return message


_EXPANDABLE = re.compile(r"expandable_segments[:=]\s*True", re.IGNORECASE)


_HINT = re.compile(r"try setting[^.]*expandable_segments|to avoid fragmentation", re.IGNORECASE)


@dataclass(slots=True)
class Around:
    """What the text beside the message says."""

    expandable_set: bool = False
    expandable_line: int | None = None
    phase: Phase | None = None
    """What the program was doing, where its traceback tells."""
    checkpointing_asked: int | None = None
    buffers: list[tuple[int, str, float, float, str]] = field(default_factory=list)
    """Line, text, elements per unit of the unknown dimension, bytes an element, unknown's name."""


_BUFFER = re.compile(
    r"(?:empty_strided_\w{1,40}|torch\.(?:empty|zeros|full))\(\(([^()]{0,400})\).{0,400}?torch\.(\w+)"
)


def look_around(lines: list[tuple[int, str]], message_line: int) -> Around:
    """Read the lines that are not the message: settings, its traceback, buffers of generated code."""
    found = Around(phase=phase_of(lines, message_line))
    for number, line in lines:
        if _EXPANDABLE.search(line) and not _HINT.search(line):
            found.expandable_set, found.expandable_line = True, number
        low = line.lower()
        if re.search(
            r"(?:activation|gradient)[-_ ]?checkpoint\w*[=: ]+(?:true|1|full)|checkpoint_activations[= ]true"
            r"|--recompute-granularity|--gradient[-_]checkpointing\b(?!.{0,3}false)",
            low,
        ):
            found.checkpointing_asked = number
        if match := _BUFFER.search(line):
            _note_buffer(found, number, line, match)
    return found


def _note_buffer(found: Around, number: int, line: str, match: re.Match[str]) -> None:
    width = _DTYPE_BYTES.get(match[2])
    if width is None:
        return
    known, unknown = 1.0, []
    for part in (one.strip() for one in match[1].split(",")):
        if (size := count(part)) is not None:
            known *= size
        elif part:
            unknown.append(part)
    if len(unknown) == 1 and 0 < known < float("inf"):
        found.buffers.append((number, line.strip(), known, float(width), unknown[0]))
