"""`meshwright measure`: this machine as a cluster file, from its own timings."""

from __future__ import annotations

import sys
from typing import Any

import typer

from meshwright.cli import options, running


def command(
    output: str = typer.Option(
        ..., "-o", "--output", callback=options.writable, help="Write the cluster file here."
    ),
    quick: bool = typer.Option(False, "--quick", help="30 seconds instead of two minutes."),
    ranks: int | None = typer.Option(
        None, "--ranks", min=1, max=64, help="Ranks that share this machine; default 4, or cores."
    ),
    seconds: float | None = typer.Option(
        None, "--seconds", min=5.0, max=3600.0, help="Deadline, instead of 120 (or 30) seconds."
    ),
    precision: list[str] = typer.Option(
        ["fp32", "bf16"], "--precision", help="Of the modules; may be given several times."
    ),
    raw: str = typer.Option(
        "",
        "--raw",
        callback=options.writable,
        help="Write every timing here as JSON, outliers too.",
    ),
    as_json: options.AsJson = False,
) -> None:
    """Measure this machine, so that plans for it and runs on it agree.

    Times the engine's modules by shape and precision, its own work per step, layer and message,
    collectives among ranks alone and all at once, what ranks lose by sharing cores, and the
    process's memory. The result is a cluster file: `plan … --cluster mine.toml`, or mine.toml:1x4
    and mine.toml:2x8 for other numbers of hosts and ranks.

    On a cluster run `torchrun … -m meshwright.measure -o mine.toml` instead.
    """
    import tomli_w

    from meshwright.cli.output import print_json

    running.need_torch()
    from meshwright.engine.ranks.processes import RankError
    from meshwright.measure.assemble import assemble
    from meshwright.measure.local import Wanted, measure
    from meshwright.measure.machine import cores, memory_bytes, provenance
    from meshwright.specs.errors import SpecError
    from meshwright.specs.writing import write_atomically

    for one in precision:
        if one not in ("fp32", "bf16"):
            raise SpecError("--precision", one, "fp32 or bf16")
    many = ranks or max(4, min(cores(), 16))
    wanted = Wanted(
        seconds=seconds or (30.0 if quick else 120.0),
        ranks=many,
        quick=quick,
        precisions=tuple(dict.fromkeys(precision)),
    )
    try:
        found = measure(wanted, lambda what, _share: running.progress(f"measuring {what}"))
    except RankError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        running.progress("")
    facts = provenance()
    cluster = assemble(found, facts, ranks=many, host_memory=memory_bytes())
    write_atomically(output, tomli_w.dumps(cluster.plain()))
    if raw:
        import json

        every = {"provenance": facts, "modules": found.timings, "collectives": found.collectives,
                 "slowdown": found.slowdown, "disk": found.disk,
                 "steps": [
                     {"name": one.probe.name, "cpu_s": one.cpu_s, "wall_s": one.wall_s,
                      "peak_bytes": one.peak_bytes}
                     for one in found.probed
                 ]}  # fmt: skip
        write_atomically(raw, json.dumps(every, indent=1))
    if as_json:
        print_json({"cluster": cluster.plain(), "disk": found.disk, "took_s": found.took_s})
        return
    _show(cluster, found, output)


def _show(cluster: Any, found: Any, output: str) -> None:
    from meshwright.cli.output import print_lines, print_table
    from meshwright.specs.quantities import counted, format_bytes, format_seconds

    device = cluster.device
    rows = [
        (f"products, {name}", f"{rate / 1e9:.1f} GFLOP/s", "the fastest shape")
        for name, rate in device.peak_flops.items()
        if name in device.measured.modules
    ]
    rows.append(
        ("memory", f"{device.memory_bandwidth_bytes_s / 1e9:.1f} GB/s", "the fastest addition")
    )
    for precision, modules in device.measured.modules.items():
        if "linear" in modules:
            call = modules["linear"].forward.get("call", 0.0)
            rows.append(("host time of a linear layer", format_seconds(call), precision))
    level = cluster.levels[0]
    rows += [
        ("a message between ranks", format_seconds(level.latency_s),
         f"and {level.bandwidth_bytes_s / 1e9:.2f} GB/s"),
        ("a rank's process", format_bytes(device.measured.process_bytes), "before any tensor"),
    ]  # fmt: skip
    if cluster.shared_cores:
        shared = cluster.shared_cores
        rows += [
            (f"{counted(n, 'rank')} at once", f"{s:.2f}× the time", f"on {shared.cores:g} cores")
            for n, s in zip(shared.ranks, shared.slowdown, strict=True)
        ]
    rows.append(("disk", f"{found.disk['write_bytes_s'] / 1e6:.0f} MB/s", "written through"))
    print_table("This machine, measured", ["", "", ""], rows, {1})
    print_lines(cluster.source, f"written to {output}")
