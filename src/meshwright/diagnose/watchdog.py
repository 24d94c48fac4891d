"""NCCL watchdog, monitored-barrier and launcher texts: who waited, who is absent, what was going on.

A rank that reports a time-out waited; a rank that does not report is the one that others waited
for, but only if the text shows most of the others. Sequence numbers count the collectives of one
process group: they are compared within a group only, and where the text does not name the group
only if they could belong to the same one.
"""

from __future__ import annotations

from meshwright.diagnose.gpu_faults import gpu_fault
from meshwright.diagnose.records import Finding, Part, of
from meshwright.diagnose.watchdog_faults import culprits, fingerprints, sizes
from meshwright.diagnose.watchdog_lines import Reading, said
from meshwright.diagnose.watchdog_timeouts import timeouts
from meshwright.engine.watch.flightlog import ranks_text


def judge(reading: Reading) -> Part:
    """Say what stopped the run, as far as the text tells."""
    part = Part()
    by_order = (_device, culprits, fingerprints, sizes, _barrier, timeouts, _broken_link, _general)
    for step in by_order:
        part.findings += step(reading)
        if part.findings:
            break
    if reading.waits:
        longest = max((w.ran_ms or 0 for w in reading.waits), default=0)
        if longest:
            part.figures["waited_s"] = longest / 1e3
    # A device's own fault is found on its host; which collective the others waited in says nothing more of it.
    if part.findings and not all(one.cause.kind == "gpu-error" for one in part.findings):
        part.missing += [
            "the flight-recorder dumps of all ranks (TORCH_NCCL_TRACE_BUFFER_SIZE=2000 "
            "TORCH_NCCL_DUMP_ON_TIMEOUT=1): which rank misses which collective of which group",
            "the last lines of every rank's log, the absent ones' first",
        ]
    return part


def _device(reading: Reading) -> list[Finding]:
    return gpu_fault(reading.file, reading.gpu_faults)


def _barrier(reading: Reading) -> list[Finding]:
    if reading.absent:
        ranks = tuple(sorted(reading.absent))
        lines = [(n, t, r) for r, (n, t) in reading.absent.items()]
        return [
            of("missing-collective", f"{ranks_text(ranks).capitalize()} did not come to the collective "
               "that the others are in", f"read the logs of {ranks_text(ranks)} first: they crashed, left the loop "
               "early (fewer batches) or stand elsewhere (saving, loading)",
               confidence=0.85, ranks=ranks, where="barrier or collective", evidence=said(reading, *lines[:4]))
        ]  # fmt: skip
    return _store_barrier(reading)


def _store_barrier(reading: Reading) -> list[Finding]:
    """A group that its ranks count themselves into: too few came, or too many."""
    if not reading.joined:
        return []
    # A barrier is reported again and again while it fills: the last report of the last group counts.
    last = max(reading.joined, key=lambda one: (one.group, one.joined, one.line))
    here, world = last.joined, last.world
    waiting = tuple(sorted({one.rank for one in reading.joined if one.group == last.group}))
    evidence = said(reading, (last.line, last.text, last.rank))
    if here > world:
        return [
            of("wrong-configuration", f"{here} processes came to a group of {world}: more are started than the world "
               "size says, or two runs share one store",
               "start as many processes as the world size says (no spawning inside of what torchrun or srun has started "
               "already; ranks from 0 to world size - 1), and give each run a port, store or file of its own",
               confidence=0.85, where="start-up: rendezvous", evidence=evidence)
        ]  # fmt: skip
    if here == world:
        return []
    if last.group > 1:
        return [
            of("missing-collective", f"Only {here} of {world} ranks make process group number {last.group}: "
               f"{ranks_text(waiting)} wait{'s' if len(waiting) == 1 else ''} there, and the text does not tell who is absent",
               "all ranks have to call new_group for every group, in the same order, members or not; read what the ranks "
               "that do not report are doing (still loading: a longer time-out; a branch of their own; dead)",
               confidence=0.7, where=f"making group {last.group}", evidence=evidence)
        ]  # fmt: skip
    return [
        of("wrong-configuration", f"Only {here} of {world} processes reached the rendezvous: it is "
           "start-up, not training", "see that as many processes start as the world size says, that all reach "
           "MASTER_ADDR:MASTER_PORT, and read the log of those that did not",
           confidence=0.8, where="start-up", evidence=evidence)
    ]  # fmt: skip


def _broken_link(reading: Reading) -> list[Finding]:
    if not reading.network:
        return []
    return [
        of("unknown", "A connection between ranks broke; which rank broke it, or whether it died first, "
           "this text does not tell", "find the first error over all ranks' logs by time: a peer that died closes its "
           "connections; if none died, test the links (ib_write_bw, nccl-tests) and read NCCL_DEBUG=INFO",
           confidence=0.5, where="network or a dead peer", evidence=said(reading, *reading.network[:4]))
    ]  # fmt: skip


def _general(reading: Reading) -> list[Finding]:
    if reading.general is None:
        return []
    number, text = reading.general
    return [
        of("unknown", "The text says that a collective failed or timed out, not which rank, group or cause",
           "if it happened while one rank validated or saved, shorten that or raise the time-out; "
           "otherwise look for the first error above this line, on every rank",
           confidence=0.3, where="the text does not tell", evidence=said(reading, (number, text, None)))
    ]  # fmt: skip
