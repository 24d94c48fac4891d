"""`meshwright clusters`: hosts, their links, and where the numbers come from."""

from __future__ import annotations

import typer

from meshwright.cli import options


def command(
    name: str | None = typer.Argument(
        None, help="One cluster: a preset, device:nodesxgpus, or a TOML file."
    ),
    as_json: options.AsJson = False,
) -> None:
    """List the cluster presets, or show one cluster in full.

    Every bandwidth is per device and per direction.
    """
    from meshwright.cli.output import print_json, print_table
    from meshwright.specs.cluster import LinkLevel
    from meshwright.specs.clusters import cluster_names, load_cluster
    from meshwright.specs.presets import spelled_out
    from meshwright.specs.quantities import format_bytes

    def rate(level: LinkLevel) -> str:
        text = f"{level.bandwidth_bytes_s / 1e9:g} GB/s"
        return text + (f" (pair {level.p2p_bytes_s / 1e9:g})" if level.p2p_bytes_s else "")

    if name is not None:
        cluster = load_cluster(name)
        if as_json:
            print_json({**cluster.plain(), "gpus": cluster.gpus})
            return
        print_table(
            f"{cluster.name}: {cluster.gpus:,} x {cluster.device.name} in "
            f"{cluster.nodes:,} {'host' if cluster.nodes == 1 else 'hosts'}",
            ("link level", "devices", "kind", "per device, one way", "latency", "source"),
            [
                (level.name, f"{level.domain:,}", level.kind, rate(level),
                 f"{level.latency_s * 1e6:g} µs", level.source)
                for level in cluster.levels
            ],
            right=(1,),
            optional=(2, 4),
            note=f"Memory {format_bytes(cluster.device.memory_bytes)} per device. {cluster.source}.\n"
            + "\n".join(spelled_out([cluster.source, *(level.source for level in cluster.levels)])),
        )  # fmt: skip
        return
    every = [(known, load_cluster(known)) for known in cluster_names()]
    if as_json:
        print_json([{**cluster.plain(), "preset": known} for known, cluster in every])
        return
    rows = []
    for known, host in every:
        two = load_cluster(f"{known}:{max(2, 2 * host.levels[0].domain // host.gpus_per_node)}")
        inner, outer = two.levels[0], two.levels[-1]
        rows.append(
            (
                known,
                host.device.preset,
                str(host.gpus_per_node),
                inner.name,
                f"{inner.bandwidth_bytes_s / 1e9:.4g}",
                f"{(inner.p2p_bytes_s or inner.bandwidth_bytes_s) / 1e9:.4g}",
                f"{outer.bandwidth_bytes_s / 1e9:.3g}",
                two.source.partition(": ")[2],
            )
        )
    print_table(
        "Clusters",
        ("name", "device", "per host", "fast link", "GB/s", "a pair", "network", "source"),
        rows,
        right=(2, 4, 5, 6),
        note="GB/s per device, one direction: over the fast link, between one pair of it, and over "
        "the network.\n`NAME:NODES` sizes a preset; `device:NODESxGPUS` takes the device's usual "
        "host; any hierarchy: a TOML file (docs/clusters.md).",
        optional=(7, 2, 5),
    )
