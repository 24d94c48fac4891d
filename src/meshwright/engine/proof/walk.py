"""The toy model on real ranks under each axis: what every rank holds, computes, sends, receives.

Nothing here is drawn from a script of what should happen: the events are the ledger's record of
one training step on real processes, put in logical order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from meshwright.engine.model.numerics import default_numerics
from meshwright.engine.model.toy import TOY
from meshwright.engine.parallel.parallelize import Precision
from meshwright.engine.parallel.program import Program
from meshwright.engine.proof.footprint import Footprint
from meshwright.engine.proof.ledger import Entry, Ledger
from meshwright.engine.proof.traffic import expected_sent_bytes
from meshwright.engine.proof.verdict import Verdict
from meshwright.engine.proof.verify import verify
from meshwright.engine.ranks.processes import run_ranks
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model

GLOBAL_BATCH, SEQ_LEN = 4, 32

REGIMES: dict[str, tuple[str, Layout]] = {
    "one": ("one device", Layout()),
    "dp4": ("data parallel", Layout(dp=4)),
    "tp4": ("tensor parallel", Layout(tp=4, micro_batch=4)),
    "pp4": ("pipeline parallel", Layout(pp=4)),
    "zero3": ("ZeRO-3 (fully sharded)", Layout(dp=4, zero=3)),
    "recompute": ("data parallel, recomputing", Layout(dp=4, recompute="full")),
    "dp2tp2": ("data and tensor parallel", Layout(dp=2, tp=2)),
    "dp2tp2pp2": ("all three axes", Layout(dp=2, tp=2, pp=2)),
}
"""One rank, four ranks in six ways, then eight ranks with every axis at two."""

LIVE = ("gathered", "gradients", "activations")
"""What comes and goes in a step: FSDP's unsharded weights, gradients, and activations with
temporaries; bytes of each are measured at every event."""

_AXES = {"dp": "data", "edp": "data", "tp": "tensor", "pp": "pipeline", "tied": "pipeline"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """One rank's measured part of a step."""

    rank: int
    dp: int
    pp: int
    tp: int
    holds: str
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    held: tuple[tuple[str, int, int, int], ...]
    """Part of the model, and the bytes of its parameters, gradients and optimizer states here."""
    sent_by_axis: dict[str, float]
    expected_by_axis: dict[str, float]
    timeline: tuple[Entry, ...]
    live: tuple[tuple[int, ...], ...]
    """Bytes of each of `LIVE` at each entry of the timeline."""

    @property
    def state_bytes(self) -> int:
        """Parameters, gradients and optimizer state at rest."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """One way of cutting the model, with every rank's record and the proof that it is right."""

    key: str
    title: str
    layout: Layout
    ranks: tuple[RankRecord, ...]
    events: tuple[dict[str, Any], ...]
    proof: Verdict


def walk(
    keys: tuple[str, ...] = tuple(REGIMES),
    model: Model = TOY,
    on_progress: Callable[[str], None] = lambda line: None,
) -> list[Regime]:
    """Run one measured step of each regime and prove each equal to one device."""
    regimes = []
    for key in keys:
        title, layout = REGIMES[key]
        on_progress(f"{title}: one step on {layout.world} ranks")
        ranks = run_ranks(record_rank, layout.world, model, layout)
        on_progress(f"{title}: proof")
        proof = verify(model, layout, steps=1, mutants=False)
        regimes.append(
            Regime(
                key=key, title=title, layout=layout, ranks=tuple(ranks),
                events=tuple(in_logical_order(ranks, layout)), proof=proof,
            )
        )  # fmt: skip
    return regimes


def record_rank(model: Model, layout: Layout) -> RankRecord:
    """Run two steps on this rank and record the second."""
    precision = Precision()
    program = Program(
        model, default_numerics(model), layout, global_batch=GLOBAL_BATCH, seq_len=SEQ_LEN,
        precision=precision,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(program.optimizer_groups(0.1), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model.vocab, (GLOBAL_BATCH, SEQ_LEN + 1), generator=generator)
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    program.step(optimizer, *batch)
    optimizer.zero_grad(set_to_none=True)
    world, parameters = program.world, [p for _, p in program.parameters()]
    footprint = Footprint(parameters)
    for parameter in parameters:
        for value in _states(optimizer, parameter):
            footprint.mark(value, "optimizer")

    def alive() -> tuple[int, ...]:
        parts = footprint.live_parts()
        return tuple(parts[part] for part in LIVE)

    ledger = Ledger(world, observe=alive)
    ledger.watch(program.stages)
    ledger.watch_update(optimizer)
    with footprint, ledger:
        program.step(optimizer, *batch)
    held = _held(program, optimizer)
    return RankRecord(
        rank=world.rank, dp=world.dp_rank, pp=world.pp.rank, tp=world.axes.tp.rank,
        holds=_holds(program), parameter_bytes=sum(part[1] for part in held),
        gradient_bytes=sum(part[2] for part in held),
        optimizer_bytes=sum(part[3] for part in held), held=held,
        sent_by_axis=ledger.sent_by_axis(),
        expected_by_axis=expected_sent_bytes(
            model, layout, world.pp.rank, global_batch=GLOBAL_BATCH, seq_len=SEQ_LEN,
            precision=precision,
        ),
        timeline=tuple(ledger.timeline), live=tuple(ledger.observed),
    )  # fmt: skip


def _states(optimizer: torch.optim.Optimizer, parameter: Any) -> list[Any]:
    values = optimizer.state[parameter].values()
    return [v for v in values if isinstance(v, torch.Tensor) and v.dim() > 0]


def _held(
    program: Program, optimizer: torch.optim.Optimizer
) -> tuple[tuple[str, int, int, int], ...]:
    """Bytes of parameters, gradients and optimizer states on this rank, by part of the model."""
    found: dict[str, list[int]] = {}
    for name, parameter in program.parameters():
        words = name.split(".")
        part = ".".join(words[:2]) if words[0] == "layers" else words[0]
        sizes = found.setdefault("head" if part == "norm" else part, [0, 0, 0])
        gradient = parameter.grad
        sizes[0] += _bytes([parameter])
        sizes[1] += 0 if gradient is None else _bytes([gradient])
        sizes[2] += _bytes(_states(optimizer, parameter))
    return tuple((part, *sizes) for part, sizes in found.items())  # type: ignore[misc]


def _bytes(tensors: list[Any]) -> int:
    total = 0
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        total += local.numel() * local.element_size()
    return total


def _holds(program: Program) -> str:
    """What the rank keeps, read off its modules."""
    parts = []
    for stage in program.stages:
        numbers = [int(number) for number in stage.layers]
        ends = [name for name in ("embed", "head") if hasattr(stage, name)]
        layers = (
            f"layers {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else (f"layer {numbers[0]}")
        )
        parts.append(" + ".join([*ends[:1], layers, *ends[1:]] if len(ends) == 2 else (
            ["embed", layers] if ends == ["embed"] else [layers, *ends]
        )))  # fmt: skip
    count = sum(
        (p.to_local() if isinstance(p, DTensor) else p).numel() for _, p in program.parameters()
    )
    return f"{', '.join(parts)}: {count:,} parameters"


def in_logical_order(ranks: list[RankRecord], layout: Layout) -> list[dict[str, Any]]:
    """Merge the ranks' timelines: an event comes after its rank's last, a receive after its send,
    and a collective happens at once on all of its group.
    """
    queues = [[e for e in record.timeline if e.axis != "control"] for record in ranks]
    alive = [
        [live for e, live in zip(record.timeline, record.live, strict=True) if e.axis != "control"]
        for record in ranks
    ]
    at, clock = [0] * len(ranks), [0] * len(ranks)
    sent: dict[tuple[int, int], list[int]] = {}
    events: list[dict[str, Any]] = []
    micro: dict[tuple[int, str], int] = {}
    while any(at[r] < len(queue) for r, queue in enumerate(queues)):
        moved = False
        for rank, queue in enumerate(queues):
            if at[rank] >= len(queue):
                continue
            entry = queue[at[rank]]
            group = [rank]
            if entry.kind == "receive":
                waiting = sent.get((entry.peer, rank), [])
                if not waiting:
                    continue
                clock[rank] = max(clock[rank], waiting.pop(0))
            elif entry.axis and entry.kind != "send":
                group = _members(rank, entry.axis, ranks)
                if not all(_at_same(queues, at, other, entry) for other in group):
                    continue
            moved = True
            step = max(clock[other] for other in group) + 1
            for other in group:
                own = queues[other][at[other]]
                if not own.axis:
                    micro[other, own.where] = micro.get((other, own.where), -1) + 1
                events.append(
                    _event(step, ranks, other, own, group, micro)
                    | {"live": alive[other][at[other]]}
                )
                clock[other] = step
                at[other] += 1
            if entry.kind == "send":
                sent.setdefault((rank, entry.peer), []).append(step)
        if not moved:
            raise RuntimeError("the ranks' records do not fit together")
    return sorted(events, key=lambda event: (event["step"], event["rank"]))


def _members(rank: int, axis: str, ranks: list[RankRecord]) -> list[int]:
    """The ranks of `rank`'s group on an axis."""
    me = ranks[rank]
    fixed = {"dp": ("pp", "tp"), "edp": ("pp", "tp"), "tp": ("pp", "dp")}[axis]
    return [r.rank for r in ranks if all(getattr(r, f) == getattr(me, f) for f in fixed)]


def _at_same(queues: list[list[Entry]], at: list[int], other: int, entry: Entry) -> bool:
    if at[other] >= len(queues[other]):
        return False
    theirs = queues[other][at[other]]
    return (theirs.kind, theirs.axis) == (entry.kind, entry.axis)


def _event(
    step: int, ranks: list[RankRecord], rank: int, entry: Entry, group: list[int],
    micro: dict[Any, int],
) -> dict[str, Any]:  # fmt: skip
    record = ranks[rank]
    place, _, direction = entry.where.rpartition(" ")
    layer = int(place.removeprefix("layers.")) if place.startswith("layers.") else -1
    kind = "collective"
    if not entry.axis:
        kind, direction = "compute", entry.kind
    elif entry.kind in ("send", "receive"):
        kind = entry.kind
        # Towards later stages travel activations, towards earlier ones their gradients.
        upstream = ranks[entry.peer].pp < record.pp
        direction = "forward" if upstream == (kind == "receive") else "backward"
    peers = [entry.peer] if entry.peer >= 0 else [r for r in group if r != record.rank]
    reduces = _AXES.get(entry.axis) == "data" and entry.kind in ("all_reduce", "reduce_scatter")
    return {
        "step": step,
        "rank": record.rank,
        "phase": "reduce" if reduces else (direction or "update"),
        "kind": kind,
        "axis": _AXES.get(entry.axis, ""),
        "title": _title(entry, place, direction),
        "peers": peers,
        "bytes": entry.payload_bytes if entry.kind == "receive" else entry.sent_bytes,
        "layer": layer,
        "micro": max(micro.get((record.rank, entry.where), 0), 0),
    }


def _title(entry: Entry, place: str, direction: str) -> str:
    if not entry.axis:
        return f"{entry.kind} {place}"
    verb = entry.kind.replace("_", "-")
    if entry.kind in ("send", "receive"):
        what = "activations" if direction == "forward" else "gradients"
        return f"{verb} {what} {'to' if verb == 'send' else 'from'} rank {entry.peer}"
    if entry.axis in ("dp", "edp"):
        what = "parameters" if entry.kind == "all_gather" else "gradients"
        return f"{verb} {what}"
    return f"{verb} in {direction} of {place}"


def studio_view(regime: Regime) -> dict[str, Any]:
    """The regime as the studio's `walk` view reads it."""
    totals: dict[str, float] = {"data": 0.0, "tensor": 0.0, "pipeline": 0.0}
    for record in regime.ranks:
        for axis, sent in record.sent_by_axis.items():
            if axis in _AXES:
                totals[_AXES[axis]] += sent
    return {
        "layers": TOY.layers,
        "ranks": [
            {
                "rank": r.rank, "dp": r.dp, "pp": r.pp, "tp": r.tp, "holds": r.holds,
                "held": {
                    part: {"parameters": own, "gradients": gradients, "optimizer": states}
                    for part, own, gradients, states in r.held
                },
            }
            for r in regime.ranks
        ],
        "events": list(regime.events),
        "bytes_by_axis": totals,
        "live": list(LIVE),
        "source": "engine walk: one fp32 step of the toy model on "
        + ("one process" if len(regime.ranks) == 1 else f"{len(regime.ranks)} processes"),
    }  # fmt: skip
