"""Rings and dumps of collectives: who is at the root of a hang, as findings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from meshwright.diagnose.nccl_dumps import flight_of, read_dump, reopened
from meshwright.diagnose.records import Evidence, Finding, Kind, Part, of
from meshwright.diagnose.sources import Source
from meshwright.engine.watch.blame import Verdict, judge
from meshwright.engine.watch.flightlog import Flight, ranks_text, read_flights
from meshwright.specs.errors import SpecError

_REMEDY: dict[str, str] = {
    "gpu-error": "take {who} out: look at the GPU (dmesg for Xid, nvidia-smi -q -d ECC) and at the kernel that it "
    "is in; its host ran ahead, so the Python stack shows a later place; restart from the last checkpoint without "
    "the node",
    "frozen-rank": "see what the process of {who} does (py-spy dump --pid, /proc/<pid>/stack): it neither computes "
    "nor communicates (a lock, a loader, storage, a stopped or dead process); restart from the last checkpoint",
    "missing-collective": "find where {who} takes another way than its peers: fewer batches, an early exit, a save "
    "or evaluation under a condition on the rank; every rank must enter the same collectives in the same order",
    "mismatched-collective": "make {who} issue the same collective with the same sizes as its peers: uneven batches, "
    "a data-dependent branch, another order of layers or buckets",
    "circle": "give messages and collectives one order on all ranks: each waits for another (send before receive on "
    "both sides, two groups entered in opposite order)",
    "inside": "all ranks came: look at the link between them (NCCL_DEBUG=INFO, ib counters, nccl-tests on that "
    "group) and at kernels that hold the device",
}
_KIND: dict[str, Kind] = {
    "gpu-error": "gpu-error", "frozen-rank": "frozen-rank", "missing-collective": "missing-collective",
    "mismatched-collective": "mismatched-collective", "circle": "mismatched-collective", "inside": "unknown",
}  # fmt: skip


def judge_dumps(sources: Sequence[Source]) -> list[Part]:
    """Judge NCCL dumps; those of different jobs (other groups) apart.

    Raises:
        SpecError: a file is no dump.
    """
    jobs: dict[tuple[str, tuple[int, ...]], list[tuple[Source, Flight]]] = {}
    for source in sources:
        flight = flight_of(read_dump(source), source.name)
        jobs.setdefault((str(Path(source.name).parent), ()), []).append((source, flight))
    return [_judge_job(members) for members in jobs.values()]


def _judge_job(members: list[tuple[Source, Flight]]) -> Part:
    flights: dict[int, Flight] = {}
    files: dict[int, str] = {}
    for source, flight in members:
        flights[flight.rank], files[flight.rank] = flight, source.name
    part = judge_flights(reopened(list(flights.values())), files)
    world = {rank for flight in flights.values() for call in flight.calls for rank in call.ranks}
    absent = sorted(world - set(flights))
    if absent:
        part.missing.append(f"the dumps of {ranks_text(absent)}: what they did last")
    return part


def judge_rings(folder: Path) -> Part:
    """Judge the rings of one start of our own runs.

    Raises:
        SpecError: a file is no ring.
    """
    flights = read_flights(folder)
    if not flights:
        raise SpecError("artefact", str(folder), "holds no rings")
    files = {flight.rank: str(folder / f"rank-{flight.rank}.ring") for flight in flights}
    return judge_flights(flights, files)


def judge_flights(flights: Sequence[Flight], files: dict[int, str]) -> Part:
    """Turn the verdict on rings into findings, one for each cause at the root."""
    part = Part()
    verdict = judge(flights)
    part.figures["ranks_read"] = len(flights)
    waiting = sum(bool(flight.waiting) for flight in flights)
    part.figures["ranks_waiting"] = waiting
    by_cause: dict[str, list[int]] = {}
    for rank in verdict.missing_ranks:
        by_cause.setdefault(verdict.causes.get(rank, verdict.cause), []).append(rank)
    if not by_cause and verdict.cause == "inside":
        by_cause["inside"] = []
    for cause, ranks in by_cause.items():
        part.findings.append(
            _finding(verdict, cause or "frozen-rank", tuple(ranks), flights, files)
        )
    if not part.findings:
        if waiting:
            part.missing.append(
                "the dumps of the other ranks: one rank's own does not tell whom it waits for"
            )
        else:
            part.healthy.append("no rank waits for another")
    return part


def _finding(
    verdict: Verdict, cause: str, ranks: tuple[int, ...], flights: Sequence[Flight], files: dict[int, str]
) -> Finding:  # fmt: skip
    who = ranks_text(ranks) if ranks else "the ranks"
    missed = verdict.missed
    evidence = []
    if missed is not None:
        evidence.append(
            Evidence(file=files.get(missed.rank, ""), event=f"{missed.axis} {missed.turn}", rank=missed.rank,
                     time_s=round(missed.started, 6), text=f"rank {missed.rank} waits in {missed} {missed.shape}".strip())
        )  # fmt: skip
    for rank in ranks[:4]:
        flight = next((one for one in flights if one.rank == rank), None)
        last = flight.last if flight is not None else None
        told = "left no dump" if flight is None else "its dump holds no unfinished operation"
        if last is not None:
            told = f"last: {last}, {'done' if last.finished else 'not done'}"
        behind = _behind(flight, flights) if flight is not None else ""
        evidence.append(
            Evidence(
                file=files.get(rank, ""), event="flight recorder", rank=rank, text=told + behind
            )
        )
    sentence = verdict.sentence
    if len(set(verdict.causes.values())) > 1:
        sentence = f"{who} is at the root ({cause}): {sentence}" if len(ranks) == 1 else (
            f"{who} are at the root ({cause}): {sentence}")  # fmt: skip
    return of(
        _KIND[cause], sentence[0].upper() + sentence[1:], _REMEDY[cause].format(who=who),
        confidence={"inside": 0.5, "circle": 0.7}.get(cause, 0.9), ranks=ranks,
        where=f"{missed.axis}, group {missed.group}" if missed is not None else "",
        evidence=tuple(evidence),
    )  # fmt: skip


def _behind(flight: Flight, flights: Sequence[Flight]) -> str:
    """Where a rank's counters stand behind those of its groups."""
    said = []
    for group, (newest, finished) in flight.reached.items():
        others = [f.reached[group] for f in flights if f.rank != flight.rank and group in f.reached]
        if not others:
            continue
        most, done = max(o[0] for o in others), max(o[1] for o in others)
        if newest < most:
            said.append(f"group {group} at {newest} of {most}")
        elif finished < done:
            said.append(f"group {group} finished {finished} of {done}")
    return f"; behind in {', '.join(said[:4])}" if said else ""
