"""`meshwright collective`: what a collective costs, what NCCL would choose, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from meshwright.cli import options

if TYPE_CHECKING:
    from meshwright.costs.fabric import Fabric
    from meshwright.costs.nccl import Candidate
    from meshwright.simulator.collective_events import Run
    from meshwright.specs.cluster import Cluster


@dataclass(frozen=True, slots=True)
class _Asked:
    """A collective of `size_bytes` (the whole tensor) over a group, and how to carry it out."""

    name: str
    size_bytes: float
    ranks: int | None
    algorithm: str
    local: int | None
    dims: tuple[int, ...] | None
    pipeline: int


def command(
    collective: str = typer.Argument(
        ..., help="all-reduce, all-gather, reduce-scatter, broadcast, all-to-all or send-recv."
    ),
    size: str | None = typer.Option(None, "--size", help="Size of the whole tensor: 2GB, 64MiB."),
    sweep: bool = typer.Option(
        False, "--sweep", help="With --cluster: sizes from 8 KiB to 8 GiB, as nccl-tests runs them."
    ),
    ranks: int | None = typer.Option(None, "--ranks", help="Members of the group."),
    bandwidth: str | None = typer.Option(
        None, "--bandwidth", help="Of one rank, one direction: 25GB/s, 200Gb/s."
    ),
    latency: str = typer.Option("0us", "--latency", help="Of one message, with --bandwidth."),
    cluster: str | None = typer.Option(
        None, "--cluster", help="Instead of --bandwidth: h100:4x8, a preset, or a file."
    ),
    stride: int = typer.Option(
        1, "--stride", help="Distance between members in global ranks: 8 is one per node of 8."
    ),
    algorithm: str = typer.Option(
        "auto", "--algorithm", help="ring, tree, halving-doubling, hierarchical, torus, nvls…"
    ),
    local: int | None = typer.Option(None, "--local", help="Ranks per node, for hierarchical."),
    dims: str | None = typer.Option(None, "--dims", help="Sizes of a torus: 4x4x2."),
    pipeline: int = typer.Option(8, "--pipeline", help="Chunks in flight, for trees."),
    everyone: bool = typer.Option(
        False, "--everyone", help="Time all groups of this stride at once, sharing the links."
    ),
    steps: bool = typer.Option(False, "--steps", help="List who sends which chunk to whom, when."),
    trace: Path | None = typer.Option(
        None, "--trace", callback=options.writable, help="Write the steps for Perfetto."
    ),
    output: Path | None = typer.Option(
        None, "-o", "--output", callback=options.writable, help="Write the steps as columnar JSON."
    ),
    as_json: options.AsJson = False,
) -> None:
    """Price one collective, and watch it step by step.

    With --bandwidth every rank has one link and the α-β model holds. With --cluster the group
    sits on that cluster's links: the time is what such links were measured to achieve, and
    NCCL's own model says which algorithm and protocol it would choose.
    """
    from meshwright.specs.errors import SpecError
    from meshwright.specs.quantities import parse_bytes

    name = _name_of(collective)
    if sweep:
        if cluster is None:
            raise SpecError("cluster", cluster, "--sweep needs --cluster")
        _sweep(name, cluster, ranks, stride, as_json)
        return
    if size is None:
        raise SpecError("size", size, "the size of the tensor is expected, such as 64MiB")
    size_bytes = parse_bytes(size, "size")
    if size_bytes <= 0:
        raise SpecError("size", size, "more than nothing is expected, such as 64MiB")
    if _unitless(size) and size_bytes < _LEAST_MEANT:
        raise SpecError("size", size, "a unit is expected, such as 2GB or 64MiB")
    if (bandwidth is None) == (cluster is None):
        raise SpecError("cluster", cluster, "give either --bandwidth or --cluster")
    asked = _Asked(name, size_bytes, ranks, algorithm, local, _dims(dims), pipeline)
    wanted = steps or trace is not None or output is not None
    if cluster is not None:
        report, run = _on_cluster(asked, cluster, stride, wanted or everyone, everyone)
    else:
        assert bandwidth is not None
        report, run = _on_links(asked, bandwidth, latency)
    _write(run if wanted else None, trace, output)
    if as_json:
        from meshwright.cli.output import print_json
        from meshwright.simulator.collective_export import columnar

        print_json(report | ({"steps": columnar(run)} if wanted and run else {}))
        return
    from meshwright.cli.collective_view import print_report, print_steps

    print_report(report)
    if steps and run is not None:
        print_steps(run)


def _name_of(asked: str) -> str:
    """A collective however it is spelt: `all-reduce`, `all_reduce`, `AllReduce`, `allreduce`."""
    from meshwright.simulator.collective_algorithms import ALGORITHMS

    bare = asked.lower().replace("-", "").replace("_", "").replace(" ", "")
    spelt = {name.replace("_", ""): name for name in ALGORITHMS}
    return spelt.get(bare, asked.replace("-", "_"))


_LEAST_MEANT = 1000
"""Bytes, and bytes/s, below which a number without a unit is taken for one whose unit was forgotten."""


def _unitless(text: str) -> bool:
    return text.strip().replace(".", "", 1).isdigit()


def _dims(text: str | None) -> tuple[int, ...] | None:
    from meshwright.specs.errors import SpecError

    if text is None:
        return None
    parts = text.lower().split("x")
    if not all(p.isdigit() and 0 < int(p) < 100_000 for p in parts):
        raise SpecError("dims", text, "sizes joined by x are expected, such as 4x4x2")
    return tuple(int(p) for p in parts)


def _on_links(asked: _Asked, bandwidth: str, latency: str) -> tuple[dict[str, Any], Run]:
    """Every rank with one link: the algorithm's messages, timed, next to the other algorithms."""
    from meshwright.simulator.collective_algorithms import ALGORITHMS, build
    from meshwright.simulator.collective_events import simulate, uniform_wires
    from meshwright.specs.errors import SpecError
    from meshwright.specs.quantities import parse_bandwidth, parse_seconds

    name, ranks = asked.name, asked.ranks
    if ranks is None:
        raise SpecError("ranks", ranks, "--bandwidth needs --ranks")
    rate, delay = parse_bandwidth(bandwidth), parse_seconds(latency, "latency")
    if _unitless(bandwidth) and rate < _LEAST_MEANT:
        raise SpecError("bandwidth", bandwidth, "a unit is expected, such as 25GB/s or 400Gb/s")
    if rate <= 0:
        raise SpecError("bandwidth", bandwidth, "more than nothing is expected, such as 25GB/s")

    def timed(which: str) -> Run:
        program = build(
            name, which, ranks, local=asked.local, dims=asked.dims, pipeline=asked.pipeline
        )
        return simulate(program, asked.size_bytes, uniform_wires(ranks, rate, delay))

    chosen = asked.algorithm
    others: dict[str, Run] = {}
    if chosen == "auto":
        possible = ALGORITHMS.get(name, {"ring": None})
        for which in possible:
            # An ordinary network has no reducing switch, and shapes are the user's to name.
            if which == "nvls":
                continue
            try:
                others[which] = timed(which)
            except SpecError:
                if len(possible) == 1 or name not in ALGORITHMS or ranks < 2:
                    raise
        if not others:
            timed(next(iter(possible)))
        chosen = min(others, key=lambda k: others[k].time_s)
        # Equal up to rounding: the ring is the plain answer.
        if "ring" in others and others["ring"].time_s <= others[chosen].time_s * (1 + 1e-9):
            chosen = "ring"
    run = others.get(chosen) or timed(chosen)
    report = _summary(name, asked.size_bytes, ranks, run.time_s)
    report |= {
        "algorithm": chosen,
        "steps_in_sequence": run.program.steps,
        "sent_bytes_per_rank": max(run.program.sent_bytes(asked.size_bytes)),
        "links": {"bandwidth_bytes_s": rate, "latency_s": delay},
        "compared": [
            {"algorithm": which, "time_s": r.time_s, "steps": r.program.steps,
             "sent_bytes": max(r.program.sent_bytes(asked.size_bytes))}
            for which, r in sorted(others.items(), key=lambda item: item[1].time_s)
        ],
    }  # fmt: skip
    return report, run


def _on_cluster(
    asked: _Asked, cluster: str, stride: int, wanted: bool, everyone: bool
) -> tuple[dict[str, Any], Run | None]:
    """A group on a cluster: the calibrated time by parts, NCCL's choice, and the messages."""
    from meshwright.costs.collectives import ALGORITHMS, collective_cost
    from meshwright.costs.fabric import Fabric, place
    from meshwright.costs.nccl import candidates, reason
    from meshwright.specs.clusters import load_cluster
    from meshwright.specs.errors import SpecError

    where = load_cluster(cluster)
    fabric = Fabric.of(where)
    n = _members(where, asked.ranks, stride)
    group = place(fabric, n, stride=stride)
    cost = collective_cost(asked.name, fabric, asked.size_bytes, group)
    report = _summary(asked.name, asked.size_bytes, n, float(cost.total_s))
    code = ALGORITHMS[int(cost.algorithm)]
    found: list[Candidate] = []
    why = ""
    try:
        if n > 1:
            found = candidates(asked.name, fabric, asked.size_bytes, group)
            why = reason(found)
    except SpecError as error:
        why = error.remedy
    free = asked.algorithm == "auto"
    chosen = (found[0].algorithm if found else code) if free else asked.algorithm
    report |= {
        "algorithm": chosen,
        "cluster": where.name,
        "stride": stride,
        "members_per_domain": float(group.members[0]),
        "domains": float(group.domains[0]),
        "parts": {
            "latency_s": float(cost.latency_s),
            "intra_s": float(cost.intra_s),
            "inter_s": float(cost.inter_s),
        },
        "priced_as": code,
        "sent_bytes_per_rank": float(cost.sent_bytes),
        "nccl": {
            "why": why,
            "candidates": [
                {"algorithm": c.algorithm, "protocol": c.protocol, "time_s": c.time_s,
                 "latency_s": c.latency_s, "bandwidth_bytes_s": c.bandwidth_bytes_s}
                for c in found
            ],
        },
    }  # fmt: skip
    if free and not wanted:
        return report, None
    inside = asked.local or max(int(group.members[0]), 1)
    together = where.gpus if everyone else 0
    simulated, run = _in_messages(asked, chosen, fabric, n, inside, stride, together)
    return report | {"simulated": simulated}, run


def _in_messages(
    asked: _Asked, chosen: str, fabric: Fabric, n: int, inside: int, stride: int, devices: int
) -> tuple[dict[str, Any], Run]:
    """The messages of the chosen algorithm on the cluster's links, of one group or of all at once.

    `inside`: members of the group in one domain; `devices`: of the cluster, where all groups of this
    stride are to run at once, else 0.
    """
    from meshwright.simulator.collective_algorithms import MAX_MESSAGES, RINGS, build
    from meshwright.simulator.collective_events import (
        cluster_wires,
        concurrent,
        simulate,
        strided_groups,
    )
    from meshwright.specs.errors import SpecError

    # In messages, NCCL's combined tree of switches is the hierarchy, its PAT a plain ring, and
    # its ring one for each card of a host.
    listed = {"nvls-tree": "hierarchical", "pat": "ring"}.get(chosen, chosen)
    if asked.algorithm == "auto" and listed == "ring" and asked.name in RINGS and 1 < inside < n:
        listed = "rail-rings"
    program = build(asked.name, listed, n, local=inside, dims=asked.dims, pipeline=asked.pipeline)
    run = simulate(program, asked.size_bytes, cluster_wires(fabric, n, stride))
    simulated: dict[str, Any] = {
        "algorithm": listed,
        "time_s": run.time_s,
        "steps_in_sequence": program.steps,
        "busiest_link": max(run.busy_fraction().items(), key=lambda item: item[1]),
    }
    if devices:
        groups = strided_groups(devices, n, stride)
        if len(groups) * len(program.messages) > MAX_MESSAGES:
            raise SpecError("ranks", n, "too many messages in all groups to time them at once")
        together = simulate(concurrent(program, groups), asked.size_bytes, cluster_wires(fabric, 0))
        link, busy = max(together.busy_fraction().items(), key=lambda item: item[1])
        simulated |= {
            "groups_at_once": len(groups),
            "time_at_once_s": together.time_s,
            "busiest_link_at_once": (link, busy),
        }
    return simulated, run


def _members(where: Cluster, ranks: int | None, stride: int) -> int:
    """Members of the group: those asked for, or all that lie `stride` apart."""
    from meshwright.specs.errors import SpecError

    n = ranks if ranks is not None else max(where.gpus // max(stride, 1), 1)
    if stride < 1 or n < 1 or n * stride > where.gpus + stride - 1:
        raise SpecError("ranks", n, f"{stride} apart, they must fit the {where.gpus} devices")
    return n


def _sweep(name: str, cluster: str, ranks: int | None, stride: int, as_json: bool) -> None:
    """Predict the table that nccl-tests would print on the cluster."""
    from meshwright.cli.collective_view import print_sweep
    from meshwright.cli.output import print_json
    from meshwright.costs.collectives import ALGORITHMS, collective_cost
    from meshwright.costs.fabric import Fabric, place
    from meshwright.costs.nccl import candidates
    from meshwright.specs.clusters import load_cluster
    from meshwright.specs.errors import SpecError

    where = load_cluster(cluster)
    fabric = Fabric.of(where)
    n = _members(where, ranks, stride)
    if n < 2:
        raise SpecError("ranks", n, "at least two ranks are needed to communicate")
    group = place(fabric, n, stride=stride)
    rows = []
    for power in range(13, 34):
        size_bytes = 2.0**power
        cost = collective_cost(name, fabric, size_bytes, group)
        try:
            choice = candidates(name, fabric, size_bytes, group)[0].name
        except SpecError:
            choice = ""
        row = _summary(name, size_bytes, n, float(cost.total_s))
        row |= {"priced_as": ALGORITHMS[int(cost.algorithm)], "nccl_choice": choice}
        rows.append({k: v for k, v in row.items() if k not in ("schema", "collective", "ranks")})
    if as_json:
        print_json(
            {"schema": "meshwright/collective-sweep/1", "collective": name, "ranks": n,
             "cluster": where.name, "stride": stride, "rows": rows}
        )  # fmt: skip
        return
    title = name.replace("_", "-")
    apart = f", {stride} apart" if stride > 1 else ""
    print_sweep(f"{title} over {n} ranks of {where.name}{apart}", rows)


def _summary(name: str, size_bytes: float, ranks: int, time_s: float) -> dict[str, Any]:
    from meshwright.costs.collectives import bus_factor

    algorithm_rate = size_bytes / time_s if time_s > 0 else 0.0
    return {
        "schema": "meshwright/collective/1",
        "collective": name,
        "size_bytes": size_bytes,
        "ranks": ranks,
        "time_s": time_s,
        "algbw_bytes_s": algorithm_rate,
        "busbw_bytes_s": algorithm_rate * float(bus_factor(name, ranks)),
    }


def _write(run: Run | None, trace: Path | None, output: Path | None) -> None:
    import json

    from meshwright.simulator.collective_export import columnar, perfetto
    from meshwright.specs.writing import write_atomically

    if run is None:
        return
    if trace is not None:
        write_atomically(trace, json.dumps(perfetto(run), separators=(",", ":")))
    if output is not None:
        write_atomically(output, json.dumps(columnar(run), separators=(",", ":")))
