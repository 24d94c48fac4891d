"""Ranks of one run against each other, matched by their collectives: who waits, and for whom.

The k-th kernel of a kind on a group is the same collective on all its ranks. They cannot end before
all have begun: the moment at which the last one begins splits each rank's kernel into waiting and
transfer. Clocks of different hosts differ by a constant, which the ends of the collectives give.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from meshwright.diagnose.records import Evidence, Part, of
from meshwright.diagnose.trace_kernels import collective_of
from meshwright.diagnose.trace_reading import Trace
from meshwright.engine.watch.flightlog import ranks_text
from meshwright.specs.quantities import format_seconds

TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "other")
SLOW = 0.03
"""Others must wait this share of the time for a rank before it is named."""

Key = tuple[str, str, int]


def _calls(trace: Trace) -> dict[Key, int]:
    """Collectives by (group, kind, turn) → index of the kernel."""
    counts: dict[tuple[str, str], int] = {}
    found: dict[Key, int] = {}
    for at in np.flatnonzero(trace.of("communication")):
        call = trace.calls.get(int(at))
        kind = collective_of(
            (call.collective if call and call.collective else None) or trace.names[trace.name[at]]
        )
        if kind not in TOGETHER:
            continue
        group = str(call.group if call and call.group is not None else "")
        if call and isinstance(call.ranks, str) and call.ranks:
            group += call.ranks
        turn = counts.get((group, kind), 0)
        counts[group, kind] = turn + 1
        found[group, kind, turn] = int(at)
    return found


def align(part: Part, traces: Sequence[Trace]) -> None:
    """Say which rank the others wait for, if one."""
    calls = [_calls(trace) for trace in traces]
    common = sorted(
        set.intersection(*(set(one) for one in calls)) if calls else set(),
        key=lambda key: float(traces[0].start[calls[0][key]]),
    )
    sizes = [len(one) for one in calls]
    if len(common) < 4 or len(common) < 0.5 * max(sizes):
        part.missing.append(
            "traces of the same steps on all ranks: their collectives do not match here"
        )
        return
    start = np.array(
        [[t.start[c[key]] for key in common] for t, c in zip(traces, calls, strict=True)]
    )
    end = np.array([[t.end[c[key]] for key in common] for t, c in zip(traces, calls, strict=True)])
    offset = np.median(end - end[0], axis=1, keepdims=True)
    start, end = start - offset, end - offset
    waited = start.max(axis=0) - start
    waited = np.minimum(waited, end - start)
    span = median([float(t.end.max() - t.start[0]) for t in traces])
    share = waited.sum(axis=1) / span
    ranks = [t.rank if t.rank is not None else at for at, t in enumerate(traces)]
    part.figures["matched_collectives"] = len(common)
    part.figures["waiting_share"] = round(float(np.median(share)), 4)
    for rank, value in zip(ranks, share, strict=True):
        if len(ranks) <= 16:
            part.figures[f"rank_{rank}_waiting_share"] = round(float(value), 4)
    last = np.bincount(start.argmax(axis=0), weights=waited.mean(axis=0), minlength=len(ranks))
    culprit = int(last.argmax())
    others = np.delete(share, culprit)
    loss = float(np.median(others) - share[culprit])
    mostly = last[culprit] / max(last.sum(), 1e-12)
    if loss < SLOW or mostly < 0.5:
        if float(np.median(share)) > 0.1:
            part.findings.append(
                of("uneven-lengths", f"Ranks wait {np.median(share):.0%} of the time for each other, and no one rank is "
                   "at fault: the work differs from step to step", "balance batches by length (packing, "
                   "length-grouped sampling) or experts by load", confidence=0.55, where="collectives of all ranks",
                   share_of_step=round(float(np.median(share)), 4), gain_fraction=round(float(np.median(share)), 4))
            )  # fmt: skip
        return
    worst = int(waited.mean(axis=0).argmax())
    trace = traces[culprit]
    part.findings.append(
        of("slow-rank", f"The others wait for {ranks_text([ranks[culprit]])} {loss:.0%} of the time; it came last to "
           f"most of {len(common)} collectives",
           "look at that GPU and host (clocks, other processes, its share of data and experts); exchange it for "
           "another to see whether the slowness stays with the place or goes with the device",
           confidence=0.8, ranks=(ranks[culprit],), where="collectives of all ranks",
           share_of_step=round(loss, 4), gain_fraction=round(loss, 4),
           evidence=(Evidence(file=trace.file, event=f"{common[worst][1]} {common[worst][2]}", rank=ranks[culprit],
                              time_s=float(start[culprit, worst] - start.min()),
                              text=f"it began {format_seconds(float(waited[:, worst].max()))} after the first"),))
    )  # fmt: skip
