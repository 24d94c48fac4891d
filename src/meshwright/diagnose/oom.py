"""What an out-of-memory message means: what was live, what no setting gives back, whose it is.

Other processes, limits beside the card, one buffer that is named, and texts that say little are
judged here; how the allocator's memory is shared out, in `oom_shares.py`.
"""

from __future__ import annotations

import math
import re

from meshwright.diagnose.oom_messages import Around, Message
from meshwright.diagnose.oom_shares import by_share
from meshwright.diagnose.records import Evidence, Finding, Part, of
from meshwright.specs.quantities import format_bytes

SLACK_BYTES = 2**28
"""Free memory beyond a request that was refused, from which on the card was not full."""


def judge_messages(messages: list[Message], around: Around) -> Part:
    """Say what the messages mean."""
    part = Part()
    first = messages[0]
    _figures(part, messages)
    said = _evidence(first)
    findings = [
        *_others(first, said),
        *_one_buffer(first, around, said),
        *(_compiled(first, said) or _beyond_the_card(first, said) or by_share(first, around, said)),
    ]
    if not findings:
        findings = [_bare(first, around, said)]
    part.findings = findings
    _missing(part, first, around)
    return part


def _figures(part: Part, messages: list[Message]) -> None:
    first = messages[0]
    for name, value in (
        ("oom_requested_bytes", first.tried), ("device_memory_bytes", first.total),
        ("free_memory_bytes", first.free), ("allocated_memory_bytes", first.allocated),
        ("fragmented_memory_bytes", first.unallocated), ("peak_memory_bytes", first.reserved),
        ("cuda_graph_pool_bytes", first.pools),
    ):  # fmt: skip
        if value is not None:
            part.figures[name] = round(value)
    if first.in_use is not None and first.reserved is not None:
        part.figures["outside_allocator_bytes"] = round(max(first.in_use - first.reserved, 0))
    if first.reserved:
        part.figures["fragmentation_share"] = round(first.fragmented, 4)
    if len(messages) > 1:
        part.figures["oom_messages"] = len(messages)


def _evidence(message: Message) -> tuple[Evidence, ...]:
    text = " ".join(message.text.split())
    return (Evidence(file=message.file, line=message.line, text=text[:400], rank=message.rank),)


def _others(message: Message, said: tuple[Evidence, ...]) -> list[Finding]:
    others = message.others
    if not others or not message.total or others < 0.05 * message.total:
        return []
    if message.tried is not None and message.free is not None and message.free >= message.tried:
        return []  # what was asked for was free: the others did not take it
    pids = ", ".join(str(pid) for pid in message.processes)
    whom = f"other processes (pid {pids})" if pids else "other processes (or the system)"
    need = (message.tried or 0.0) - (message.free or 0.0)
    enough = others >= need
    return [
        of(
            "out-of-memory",
            f"{format_bytes(others)} of {message.where}'s {format_bytes(message.total)} belong to {whom}"
            + ("; without them the request fits" if enough else ""),
            "end the other processes on that GPU (nvidia-smi lists them: often a rank of an earlier "
            "run that did not die, or all ranks on GPU 0 because LOCAL_RANK is not used)",
            confidence=0.85 if enough else 0.6,
            ranks=message.ranks,
            where=f"{message.where}: other processes",
            evidence=said,
        )
    ]


def _compiled(message: Message, said: tuple[Evidence, ...]) -> list[Finding]:
    """XLA counts a program's memory before it runs, each of the chip's memories by itself."""
    if not message.space or message.allocated is None or message.total is None:
        return []
    counted = (
        f"{format_bytes(message.allocated)} where the device has {format_bytes(message.total)}"
    )
    if message.space == "hbm":
        return [
            of(
                "out-of-memory",
                f"The compiled step needs {counted} of memory: it does not fit whatever the allocator does",
                "a smaller batch per device, recomputation (the remat policy), parameters and optimizer states sharded over "
                "more devices (fsdp or tensor axis of the mesh), donated buffers for the state; the list of the largest "
                "buffers below the message says which", confidence=0.85, ranks=message.ranks, where=message.where,
                evidence=said,
            )
        ]  # fmt: skip
    return [
        of(
            "out-of-memory",
            f"A kernel needs {counted} of memory inside of the chip ({message.space}): the device's large memory is not what is short",
            "smaller blocks of that kernel (its block sizes, or the shapes that it derives them from), the library's "
            "implementation in its place, or more of it for one program (LIBTPU_INIT_ARGS="
            "--xla_tpu_scoped_vmem_limit_kib=N, up to what the chip has); a smaller batch alone often changes nothing",
            confidence=0.75, ranks=message.ranks, where=f"on-chip memory ({message.space})", evidence=said,
        )
    ]  # fmt: skip


def _beyond_the_card(message: Message, said: tuple[Evidence, ...]) -> list[Finding]:
    """Messages whose own figures say that the card's memory is not the limit that was hit."""
    if message.total is None or message.allocated is None:
        return []
    if message.allocated > 1.02 * message.total:
        return [
            of(
                "out-of-memory",
                f"{format_bytes(message.allocated)} are allocated on a card of {format_bytes(message.total)}: the "
                "driver has long been spilling into the host's memory, and that is used up, too",
                "bring the run below the card's own memory (smaller micro-batch, recomputation, an adapter or "
                "4-bit weights, offload under your control): what spills runs at the speed of PCIe. On Windows "
                "switch off the driver's system-memory fallback to fail early instead",
                confidence=0.8,
                ranks=message.ranks,
                where=f"{message.where}: host memory behind it",
                evidence=said,
            )
        ]
    if message.allowed is not None and message.allowed < 0.98 * message.total:
        return [
            of(
                "out-of-memory",
                f"The process may take {format_bytes(message.allowed)} of the card's {format_bytes(message.total)}: a "
                f"limit of its own is used up ({format_bytes(message.allocated)} are live), not the card",
                "raise or remove torch.cuda.set_per_process_memory_fraction (or per_process_memory_fraction in "
                "PYTORCH_CUDA_ALLOC_CONF); allocator settings are no cure",
                confidence=0.9,
                ranks=message.ranks,
                where=f"{message.where}: limit of the process",
                evidence=said,
            )
        ]
    need = message.tried or 0.0
    if message.free is not None and message.free > need + SLACK_BYTES:
        return [
            of(
                "out-of-memory",
                f"{format_bytes(message.free)} are free where {format_bytes(need)} were refused: the card is not full "
                f"({format_bytes(message.allocated)} of {format_bytes(message.total)} are live); a limit beneath or "
                "beside PyTorch was hit",
                "look for set_per_process_memory_fraction, a limit on the process' address space or locked memory "
                "(ulimit -v, a cgroup), the system's commit limit or page file (Windows, integrated GPUs), or a "
                "driver that cannot map so much; allocator settings are no cure",
                confidence=0.6,
                ranks=message.ranks,
                where=f"{message.where}: not the card's memory",
                evidence=said,
            )
        ]
    return []


def _one_buffer(message: Message, around: Around, said: tuple[Evidence, ...]) -> list[Finding]:
    """Generated code that names the buffer: its unknown dimension follows from the size."""
    if message.tried is None:
        return []
    for number, line, known, width, name in around.buffers:
        count = message.tried / (known * width)
        if count < 1:
            continue
        vocabulary = 16_000 <= known <= 1_000_000
        kind = "logits: tokens by vocabulary shard" if vocabulary else "one buffer"
        remedy = (
            f"cap the tokens of a micro-batch (this one had {count:,.0f}): a scheduler that balances "
            "micro-batches by tokens, or a smaller micro-batch; or a cross-entropy that works in "
            "chunks, so that the logits never exist whole"
            if vocabulary
            else f"cap the dimension {name} (here {count:,.0f}): a smaller micro-batch or shorter sequences"
        )
        evidence = (*said, Evidence(file=message.file, line=number, text=line[:300]))
        return [
            of(
                "out-of-memory",
                f"One buffer alone asks for {format_bytes(message.tried)}: {kind}, {count:,.0f} × "
                f"{known:,.0f} × {width:.0f} bytes; it is not fragmentation",
                remedy, confidence=0.9, ranks=message.ranks, where=kind, evidence=evidence,
            )
        ]  # fmt: skip
    return []


def _bare(message: Message, around: Around, said: tuple[Evidence, ...]) -> Finding:
    """A message that says little more than that memory ran out."""
    low = message.text.lower()
    if re.search(r"oom[-_ ]?kill|out of memory: kill|defaultcpuallocator", low):
        return of(
            "out-of-memory", "The host ran out of memory, not the GPU",
            "fewer data-loader workers or smaller queues, no offload of states that do not fit, "
            "checkpoints written by one process per node at a time; or ask for more host memory",
            confidence=0.85, where="host memory", evidence=said,
        )  # fmt: skip
    sentence = "The device ran out of memory"
    if message.tried is not None:
        sentence += f" at a request of {format_bytes(message.tried)}"
    advice = "a smaller micro-batch, recomputation or more sharding; then measure again"
    if around.phase is not None:
        sentence += f"; {around.phase.when}"
        advice = around.phase.advice
    if re.search(r"gpu_memory_utilization|max_num_seqs|kv cache", low):
        sentence += " as the generation engine took its share"
        advice = (
            "lower the engine's gpu_memory_utilization (beside a trainer 0.3 to 0.5) or max_num_seqs, let it sleep while "
            "training, or give it a GPU of its own; what the trainer holds then is its own"
        )
    if message.total is not None and message.free is not None and message.tried is not None:
        sentence += (
            f" ({format_bytes(message.free)} of {format_bytes(message.total)} free); the text does not "
            "say how much of the rest is live"
        )
    if around.checkpointing_asked is not None:
        sentence += "; activation checkpointing was asked for, so check that it has an effect"
        said = (*said, Evidence(file=message.file, line=around.checkpointing_asked,
                                text="activation checkpointing is asked for here"))  # fmt: skip
        advice = (
            "compare the memory of a step with and without activation checkpointing: the same peak "
            "means that it is not in effect (a compiler or wrapper removed it, or a version does); "
            "otherwise " + advice
        )
    return of(
        "out-of-memory", sentence, advice, confidence=0.6, ranks=message.ranks,
        where=message.where, evidence=said,
    )  # fmt: skip


def _missing(part: Part, message: Message, around: Around) -> None:
    if message.allocated is None:
        part.missing.append(
            "the whole message (allocated, reserved but unallocated): it splits live from fragmented"
        )
    if not around.buffers:
        part.missing.append(
            "a memory snapshot (torch.cuda.memory._dump_snapshot) of the step that fails, or the "
            "traceback: which tensors held the peak"
        )
    part.missing.append("the plan (--plan): which part of memory is larger than it should be")


def against_plan(part: Part, parts_bytes: dict[str, float], capacity: float) -> None:
    """Say which part of the planned memory is largest, and whether the run could fit at all."""
    total = sum(parts_bytes.values())
    if not total or not math.isfinite(total):
        return
    largest = sorted(parts_bytes.items(), key=lambda item: -item[1])[:3]
    named = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest)
    part.figures["planned_memory_bytes"] = round(total)
    part.missing = [line for line in part.missing if "--plan" not in line]
    finding = part.findings[0]
    if total > capacity:
        extra = (
            f"; by the plan the heaviest stage needs {format_bytes(total)} of "
            f"{format_bytes(capacity)}: it does not fit whatever the allocator does ({named})"
        )
    else:
        live = part.figures.get("allocated_memory_bytes")
        extra = f"; the plan expects {format_bytes(total)} ({named})"
        if isinstance(live, int | float) and live > 1.15 * total:
            extra += f": {format_bytes(live - total)} more are live than it explains"
    part.findings[0] = Finding(cause=finding.cause, sentence=finding.sentence + extra)
