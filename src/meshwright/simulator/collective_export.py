"""A timed collective as columnar JSON (for the studio) and as a Perfetto trace."""

from __future__ import annotations

from typing import Any

from meshwright.simulator.collective_events import Run

OPS = ("copy", "reduce")


def columnar(run: Run) -> dict[str, Any]:
    """One list per field, one element per message, ordered by start; times in seconds."""
    program = run.program
    order = sorted(range(len(program.messages)), key=lambda i: (run.start_s[i], i))
    messages = [program.messages[i] for i in order]
    piece = run.size_bytes / program.per_tensor
    return {
        "schema": "meshwright/collective-steps/1",
        "collective": program.collective,
        "algorithm": program.algorithm,
        "ranks": program.ranks,
        "switches": program.switches,
        "size_bytes": run.size_bytes,
        "chunk_bytes": piece,
        "chunks": program.per_tensor,
        "position": list(program.position),
        "steps": program.steps,
        "time_s": run.time_s,
        "sent_bytes": program.sent_bytes(run.size_bytes),
        "ops": list(OPS),
        "messages": {
            "t_start_s": [float(run.start_s[i]) for i in order],
            "t_end_s": [float(run.end_s[i]) for i in order],
            "step": [m.step for m in messages],
            "src": [m.src for m in messages],
            "dst": [m.dst for m in messages],
            "chunk": [m.chunk for m in messages],
            "count": [m.count for m in messages],
            "stride": [m.stride for m in messages],
            "bytes": [m.count * piece for m in messages],
            "op": [OPS.index(m.op) for m in messages],
        },
    }


def chunk_names(chunk: int, count: int, stride: int) -> str:
    """Short text for a run of chunks: `c3`, `c4-7`, `c2+8×3`."""
    if count == 1:
        return f"c{chunk}"
    if stride == 1:
        return f"c{chunk}-{chunk + count - 1}"
    return f"c{chunk}+{stride}×{count}"


def perfetto(run: Run) -> dict[str, Any]:
    """Chrome trace JSON: a track of sends per rank, an arrow to each receiver's track.

    Messages that a rank sends at the same time get tracks of their own, so that slices on a
    track never overlap.
    """
    program = run.program
    events: list[dict[str, Any]] = []
    tracks: dict[tuple[int, int], float] = {}
    names: dict[tuple[int, int], str] = {}

    def track(rank: int, kind: int, start: float, end: float) -> int:
        for lane in range(kind, 1000, 2):
            if tracks.get((rank, lane), -1.0) <= start * (1 + 1e-12):
                tracks[rank, lane] = end
                way = "sends" if kind == 0 else "receives"
                names[rank, lane] = way if lane == kind else f"{way} ({lane // 2 + 1})"
                return lane
        return kind

    order = sorted(range(len(program.messages)), key=lambda i: (run.start_s[i], i))
    for index in order:
        m = program.messages[index]
        start, end = float(run.start_s[index]), float(run.end_s[index])
        chunks = chunk_names(m.chunk, m.count, m.stride)
        common = {
            "ph": "X", "cat": m.op, "ts": start * 1e6, "dur": (end - start) * 1e6,
            "args": {"step": m.step, "chunks": chunks, "op": m.op, "src": m.src, "dst": m.dst,
                     "bytes": m.count * run.size_bytes / program.per_tensor},
        }  # fmt: skip
        # Perfetto keeps process and thread 0 for the idle task, so both count from 1.
        out, into = track(m.src, 0, start, end) + 1, track(m.dst, 1, start, end) + 1
        sender, receiver = m.src + 1, m.dst + 1
        # An arrow must end inside the slice it points to.
        arrival = end - 1e-3 * (end - start)
        verb = "add" if m.op == "reduce" else "copy"
        events.append({**common, "name": f"{chunks} → {m.dst}", "pid": sender, "tid": out})
        name = f"{verb} {chunks} ← {m.src}"
        events.append({**common, "name": name, "pid": receiver, "tid": into})
        flow = {"cat": "message", "name": "message", "id": index}
        events.append({**flow, "ph": "s", "ts": start * 1e6, "pid": sender, "tid": out})
        events.append(
            {**flow, "ph": "f", "bp": "e", "ts": arrival * 1e6, "pid": receiver, "tid": into}
        )
    heads: list[dict[str, Any]] = []
    for rank in range(program.ranks + program.switches):
        label = f"rank {rank}" if rank < program.ranks else "switch"
        pid = rank + 1
        heads.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": label}})
        heads.append(
            {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": rank}}
        )
    for (rank, lane), name in sorted(names.items()):
        heads.append(
            {
                "ph": "M",
                "name": "thread_name",
                "pid": rank + 1,
                "tid": lane + 1,
                "args": {"name": name},
            }
        )
    return {"displayTimeUnit": "ns", "traceEvents": heads + events}
