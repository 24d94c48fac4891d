"""Reports of collectives that did not end: who is elsewhere, who is behind, who does not report."""

from __future__ import annotations

import re
from collections import defaultdict

from meshwright.diagnose.records import Finding, of
from meshwright.diagnose.watchdog_beside import beside, prepares
from meshwright.diagnose.watchdog_lines import Reading, Wait, said
from meshwright.engine.watch.flightlog import ranks_text


def timeouts(reading: Reading) -> list[Finding]:
    """Return the likeliest reading of the reports, the most specific first."""
    if not reading.waits:
        _waits_by_work(reading)
    if not reading.waits:
        return []
    _name_groups(reading)
    for step in (_other_operation, _other_place, _uneven):
        if finding := step(reading):
            return [finding]
    if reading.phase is not None and reading.phase[0] == "data":
        return [prepares(reading, reading.phase)]
    if finding := _first_ever(reading):
        return [finding]
    if finding := _lagging(reading):
        return [finding]
    return [_absent(reading)]


def _waits_by_work(reading: Reading) -> None:
    """Texts that keep only the line on the work that timed out: a wait at the first not completed."""
    for (group, rank), (enqueued, completed, line) in reading.positions.items():
        if enqueued > completed >= 0:
            text = f"last enqueued work {enqueued}, last completed {completed}"
            reading.waits.append(
                Wait(line=line, text=text, rank=rank, group=group, seq=completed + 1)
            )


def _name_groups(reading: Reading) -> None:
    """The line on a time-out may leave the group out that the line on its work, of the same rank and number, has."""
    of_work: dict[tuple[int, int], set[str]] = defaultdict(set)
    for (group, rank), (_, completed, _) in reading.positions.items():
        if group:
            of_work[rank, completed + 1].add(group)
    named = [
        (wait, of_work.get((wait.rank, wait.seq), set()))
        for wait in reading.waits
        if wait.rank is not None and wait.seq is not None
    ]
    # All or none: reports of one group with and without its name would look like two.
    if all(wait.group or len(groups) == 1 for wait, groups in named):
        for wait, groups in named:
            wait.group = wait.group or groups.copy().pop()


def _groups(reading: Reading) -> dict[tuple[str, str], list[Wait]]:
    """Reports that can be of one process group: by its name, else by operation."""
    found: dict[tuple[str, str], list[Wait]] = defaultdict(list)
    for wait in reading.waits:
        if wait.seq is not None:
            found[wait.group, "" if wait.group else wait.op].append(wait)
    return found


def _same_count(waits: list[Wait]) -> bool:
    """Whether numbers of an unnamed group can be one count: they differ by a few, not by many."""
    numbers = [wait.seq for wait in waits if wait.seq is not None]
    return max(numbers) - min(numbers) <= max(8, 0.001 * max(numbers))


def _other_operation(reading: Reading) -> Finding | None:
    """Ranks at the same number of one group's sequence, in different operations."""
    by_place: dict[tuple[str, int], dict[int, Wait]] = defaultdict(dict)
    for wait in reading.waits:
        if wait.rank is not None and wait.seq is not None and wait.op:
            by_place[wait.group, wait.seq].setdefault(wait.rank, wait)
    for (group, seq), waits in by_place.items():
        by_op: dict[str, list[int]] = defaultdict(list)
        for rank, wait in waits.items():
            by_op[wait.op.lower()].append(rank)
        # Without the group's name only a large number tells that it is one count.
        if len(by_op) < 2 or (not group and seq < 64) or {"send", "recv"} & set(by_op):
            continue
        few = min(by_op, key=lambda op: len(by_op[op]))
        alone = len(by_op[few]) < max(len(ranks) for ranks in by_op.values())
        ranks = tuple(sorted(by_op[few] if alone else waits))
        listed = "; ".join(f"{ranks_text(sorted(at))} in {op}" for op, at in by_op.items())
        return of(
            "mismatched-collective",
            f"At number {seq} ranks are in different collectives: {listed}",
            f"find the branch that {ranks_text(ranks)} took alone (rank-dependent logging, saving, evaluating, an "
            "early end of the data): all ranks have to issue the same collectives in the same order",
            confidence=0.85 if alone else 0.7,
            ranks=ranks,
            where=f"collective {seq}",
            evidence=said(reading, *((w.line, w.text, w.rank) for w in list(waits.values())[:4])),
        )
    return None


def _other_place(reading: Reading) -> Finding | None:
    """Ranks in different operations of one count, a few numbers apart: their sequences are not the same."""
    by_group: dict[str, dict[int, Wait]] = defaultdict(dict)
    for wait in reading.waits:
        if wait.rank is not None and wait.seq is not None and wait.op:
            by_group[wait.group].setdefault(wait.rank, wait)
    for group, by_rank in by_group.items():
        waits = list(by_rank.values())
        at = {wait.seq: wait.op.lower() for wait in waits}
        least = min((wait.seq or 0 for wait in waits), default=0)
        # Without the group's name only large numbers tell that it is one count.
        if len(set(at.values())) < 2 or not _same_count(waits) or (not group and least < 1024):
            continue
        if {"send", "recv"} & set(at.values()) or len(at) > 2:
            continue
        places = {seq: [w.rank for w in waits if w.seq == seq and w.rank is not None] for seq in at}
        few = min(places.values(), key=len)
        ranks = tuple(sorted(few if 2 * len(few) < len(waits) else by_rank))
        listed = "; ".join(
            f"{ranks_text(sorted(who))} in {_a(at[seq])} at {seq}" for seq, who in places.items()
        )
        return of(
            "mismatched-collective", f"Ranks do not issue the same collectives: {listed}",
            f"find what {ranks_text(ranks)} called and the others did not (or the reverse) just before: a condition on the rank, on "
            "the data or on an error that only some met (logging, saving, evaluating, a skipped batch)",
            confidence=0.75, ranks=ranks, where=group or "process group",
            evidence=said(reading, *((w.line, w.text, w.rank) for w in waits[:4])),
        )  # fmt: skip
    return None


def _uneven(reading: Reading) -> Finding | None:
    """The same collective with different sizes on different ranks."""
    for waits in _groups(reading).values():
        by_seq: dict[int, list[Wait]] = defaultdict(list)
        for wait in waits:
            if wait.rank is not None and wait.numel_in is not None and wait.seq is not None:
                by_seq[wait.seq].append(wait)
        for seq, same in by_seq.items():
            sizes = {wait.rank: wait.numel_in for wait in same}
            if len(sizes) < 2 or len(set(sizes.values())) < 2:
                continue
            if len({w.op for w in same}) > 1 or re.search(
                r"ALLTOALL|SEND|RECV|GATHER$(?<!ALLGATHER)|SCATTER$(?<!REDUCE_SCATTER)", same[0].op
            ):
                continue
            ranks = tuple(sorted(rank for rank in sizes if rank is not None))
            listed = ", ".join(f"{sizes[rank]:,} on rank {rank}" for rank in ranks[:4])
            behind = [w for w in waits if w.seq is not None and w.seq < seq and w.op == same[0].op]
            extra = ""
            if behind and _same_count(waits):
                extra = f"; rank {behind[0].rank} is still at {behind[0].seq}" + (
                    f" with {behind[0].numel_in:,}" if behind[0].numel_in is not None else ""
                )
            op = same[0].op.lower()
            return of(
                "mismatched-collective",
                f"The same {op} (number {seq}) has different sizes on different ranks: {listed}{extra}",
                f"give every rank the same shapes before the {op}: pad batches to one length and size, "
                "drop_last=True, or exchange the sizes first and pad",
                confidence=0.85,
                ranks=ranks,
                where=f"{op} {seq}",
                evidence=said(reading, *((w.line, w.text, w.rank) for w in (same + behind)[:4])),
            )
    return None


def _first_ever(reading: Reading) -> Finding | None:
    """Nothing ever completed: start-up."""
    completed = [done for _, done, _ in reading.positions.values()]
    numbers = [wait.seq for wait in reading.waits if wait.seq is not None]
    never = bool(completed) and max(completed) <= 0
    if not (never or (not completed and numbers and max(numbers) <= 1)):
        return None
    lines = [(w.line, w.text, w.rank) for w in reading.waits[:2]]
    remedy = (
        "look at what the silent ranks do: a stale build lock (remove the kernels' build folder and "
        "start again), a data index that one rank builds alone; then at the fabric: NCCL_DEBUG=INFO, "
        "NCCL_SOCKET_IFNAME, and NCCL_P2P_DISABLE=1 as a test"
    )
    if reading.phase is not None:
        lines.append((reading.phase[1], reading.phase[2], None))
    return of(
        "wrong-configuration",
        "The very first collective never completes: it is start-up (communicator, fabric, or a rank "
        "still busy elsewhere), not training"
        + (f"; the last thing printed before is “{reading.phase[2][:80]}”" if reading.phase else ""),
        remedy, confidence=0.75, where="start-up: first collective", evidence=said(reading, *lines),
    )  # fmt: skip


def _lagging(reading: Reading) -> Finding | None:
    """Ranks of one group at different places of its sequence."""
    for (group, _), waits in _groups(reading).items():
        seqs = {wait.rank: wait.seq for wait in waits if wait.rank is not None}
        if len(seqs) < 2 or len(set(seqs.values())) < 2:
            continue
        if not group and not _same_count(waits):
            listed = ", ".join(f"rank {rank} at {seq:,}" for rank, seq in list(seqs.items())[:4])
            late = _late(reading)
            return of(
                "unknown",
                f"The text does not tell which rank is at fault: {listed} do not count the same "
                "sequence (other process groups, or another number of collectives per step), so they "
                "cannot be compared" + late,
                "collect flight-recorder dumps of all ranks, which name the group of each collective; "
                "check that all ranks issue as many collectives per step",
                confidence=0.6,
                where="unnamed process groups",
                evidence=said(reading, *((w.line, w.text, w.rank) for w in waits[:4])),
            )
        enqueued = {
            rank: reading.positions[group, rank][0]
            for rank in seqs
            if rank is not None and (group, rank) in reading.positions
        }
        place = enqueued if len(enqueued) == len(seqs) and len(set(enqueued.values())) > 1 else seqs
        least = min(v for v in place.values() if v is not None)
        ranks = tuple(sorted(r for r, v in place.items() if v == least and r is not None))
        if 2 * len(ranks) > len(place):
            continue
        return of(
            "missing-collective",
            f"{ranks_text(ranks).capitalize()} is at collective {least}, the others wait ahead of it"
            if len(ranks) == 1
            else f"{ranks_text(ranks).capitalize()} are at collective {least}, the others wait ahead of them",
            f"read what {ranks_text(ranks)} did last (py-spy dump, its log): it issued fewer collectives",
            confidence=0.75 if group else 0.6,
            ranks=ranks,
            where=group or "process group",
            evidence=said(reading, *((w.line, w.text, w.rank) for w in waits[:4])),
        )
    return None


def _late(reading: Reading) -> str:
    for wait in reading.waits:
        if wait.ran_ms and wait.timeout_ms and wait.ran_ms > 3 * wait.timeout_ms >= 180_000:
            return (
                f". The watchdog itself was late: {wait.ran_ms / 1e3:,.0f} s against a limit of "
                f"{wait.timeout_ms / 1e3:,.0f} s"
            )
    return ""


def _missing(
    reading: Reading,
    absent: tuple[int, ...],
    ranks: list[int],
    op: str,
    lines: list[tuple[int, str, int | None]],
) -> Finding:
    """Some ranks do not report, and the others wait for them."""
    waits = reading.waits
    who = ranks_text(absent)
    # One that is absent lets all others report; several more often are an excerpt's.
    doubt = reading.world is None and len(absent) > 1
    return of(
        "missing-collective",
        f"{who.capitalize()} did not come to the {op} in which {ranks_text(ranks)} wait"
        + _number(waits) + (", unless the text leaves their reports out" if doubt else "") + _late(reading),
        f"read the log of {who}: most often it was given fewer batches and left the loop (uneven "
        "data: balance the shards, drop_last, or Join), or it stands in a branch of its own "
        "(saving, evaluating); the network is not the first suspect",
        confidence=0.55 if doubt else 0.75, ranks=absent, where=f"{op} of {ranks_text(ranks)}",
        evidence=said(reading, *lines),
    )  # fmt: skip


def _somebody(
    reading: Reading, ranks: list[int], op: str, lines: list[tuple[int, str, int | None]]
) -> Finding:
    """Somebody is absent, and the text does not tell who."""
    waits, phase = reading.waits, reading.phase
    branch = (
        f"where {_a(op)} stands: one that only some ranks enter is most often a save or an evaluation under a condition "
        "on the rank (is_main_process): all ranks must call save_state and its like"
        if op in ("broadcast", "allgather", "barrier", "coalesced", "gather") or not ranks
        else "the ranks that are not in this text"
    )
    odd = ""
    for wait in waits:
        if wait.timeout_ms and wait.ran_ms and wait.ran_ms > 500 * wait.timeout_ms:
            odd = (
                f" (the printed limit {wait.timeout_ms} is far below the {wait.ran_ms / 1e3:,.0f} s waited: "
                "seconds were given where milliseconds are meant, or the reverse)"
            )
    return of(
        "missing-collective",
        f"{'A rank' if not ranks else ranks_text(ranks).capitalize()} waited in {_a(op)} that others "
        f"did not join; the text does not tell which{odd}{_late(reading)}"
        + ("; training had ended, so it stands in what comes behind: saving, or gathering the weights for it"
           if phase is not None and phase[0] == "end" else ""),
        f"look at {branch}; then at who is absent in the dumps of the flight recorder",
        confidence=0.45, where=op, evidence=said(reading, *lines),
    )  # fmt: skip


def _absent(reading: Reading) -> Finding:
    """All that report are at the same place: who does not report?"""
    waits = reading.waits
    told = {wait.rank for wait in waits if wait.rank is not None}
    ranks = sorted(told | {rank for _, rank in reading.positions})
    world = reading.world or (max(ranks) + 1 if ranks else 0)
    absent = tuple(rank for rank in range(world) if rank not in ranks)
    op = next((wait.op.lower() for wait in waits if wait.op), "collective")
    lines = [(w.line, w.text, w.rank) for w in waits[:4]]
    if reading.subgroups:
        absent = ()
    phase = reading.phase
    if several := _several(reading, lines):
        return several
    if phase is not None and phase[0] in ("checkpoint", "evaluation"):
        lines.insert(0, (phase[1], phase[2], None))
        return beside(reading, phase[0], absent, ranks, op, lines)
    # A text that does not say how many ranks there are shows at least up to its highest; jobs of a
    # few more than that are as likely, so most of the next power of two have to speak.
    most = reading.world is not None or 2 * len(ranks) > 1 << (world - 1).bit_length()
    if len(ranks) >= 2 and absent and len(absent) < len(ranks) and most:
        return _missing(reading, absent, ranks, op, lines)
    places = {(wait.seq, wait.op, wait.numel_in) for wait in waits}
    if len(ranks) >= 2 and not absent and len(places) == 1 and not reading.subgroups:
        return of(
            "unknown",
            f"All ranks that the text shows ({len(ranks)}) are in the same {op}{_number(waits)}: none of them is "
            "absent, so the text does not tell who is at fault: a rank that it does not show, a device that "
            "stands still, or the link" + _late(reading),
            "see whether more ranks belong to the group than report here, and read those first; else look for "
            "Xid lines (dmesg) and test the links with nccl-tests; a longer time-out helps only if one rank "
            "saves, evaluates or loads for that long",
            confidence=0.6,
            where=f"{op} of {ranks_text(ranks)}",
            evidence=said(reading, *lines),
        )
    return _somebody(reading, ranks, op, lines)


def _several(reading: Reading, lines: list[tuple[int, str, int | None]]) -> Finding | None:
    """Ranks that wait in collectives of several groups at once, each seen in one only."""
    groups: dict[str, list[Wait]] = defaultdict(list)
    for wait in reading.waits:
        if wait.group and wait.rank is not None:
            groups[wait.group].append(wait)
    members = [{wait.rank for wait in waits} for waits in groups.values()]
    if not reading.subgroups or len(groups) < 2 or len({wait.op for wait in reading.waits}) < 2:
        return None
    if len(set.union(*members)) < sum(map(len, members)):
        return None
    listed = "; ".join(
        f"{ranks_text(sorted(wait.rank for wait in waits if wait.rank is not None))} in {_a(waits[0].op.lower())} of group {group}"
        for group, waits in list(groups.items())[:4]
    )
    return of(
        "missing-collective",
        f"Collectives of {len(groups)} groups stand at once ({listed}); the text does not tell which rank is absent from which",
        "see the flight recorder's dumps of all ranks for who entered which. If nobody is absent, the groups wait for each "
        "other: where threads or streams issue collectives of several groups, all ranks have to issue them in the same "
        "order (one thread for both, or a wait between them)",
        confidence=0.45, where="several process groups", evidence=said(reading, *lines),
    )  # fmt: skip


def _a(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def _number(waits: list[Wait]) -> str:
    numbers = {wait.seq for wait in waits if wait.seq is not None}
    return f" (number {numbers.pop()})" if len(numbers) == 1 else ""
