"""`meshwright lab`: a plan on emulated nodes with slow links."""

from __future__ import annotations

import sys
from typing import Any

import typer

from meshwright.cli import options, running


def command(
    what: options.What,
    nodes: int = typer.Option(2, min=2, help="Emulated nodes."),
    link: str = typer.Option("100Mbit", help="Rate of every node's cable, as 100Mbit or 20Mb/s."),
    compare: bool = typer.Option(False, help="Put each axis on the slow link in turn."),
    ranks_per_node: int = typer.Option(1, min=1, max=8, help="With --compare: ranks in a node."),
    cluster: options.RankCount = None,
    tp: options.Tp = None,
    pp: options.Pp = None,
    dp: options.Dp = None,
    zero: options.Zero = None,
    steps: int = typer.Option(6, min=3, max=1000, help="Optimizer steps of each run."),
    seq: int = typer.Option(256, min=8, help="Tokens per sequence."),
    global_batch: int = typer.Option(8, min=1, help="Sequences per step."),
    as_json: options.AsJson = False,
) -> None:
    """Run a plan on emulated nodes and measure tokens/s and bytes on every link.

    Nodes are network namespaces joined by throttled cables: needs root and iproute2. With --compare,
    the same model runs with each axis on the slow link, measured beside predicted: the placement
    rule, seen.
    """
    from meshwright.cli.output import print_json
    from meshwright.specs.errors import SpecError
    from meshwright.specs.quantities import parse_bandwidth

    link_bit_s = 8.0 * parse_bandwidth(link, "--link")
    if link_bit_s < 1e6:
        raise SpecError("--link", link, "at least 1Mbit; slower cables time out")
    degrees = options.RunLayoutOptions(tp=tp, pp=pp, dp=dp, zero=zero)
    subject = running.read_subject(what, cluster or f"cpu:1x{nodes}", degrees)
    from meshwright.engine.proof.lab import LabError, placements

    runs = placements(nodes, ranks_per_node) if compare else [("this plan", subject.layout)]
    job = subject.job.but(seq_len=seq, global_batch=global_batch)
    rows = []
    try:
        for name, layout in runs:
            rows.append(_measure(subject.model, job, name, layout, nodes, link_bit_s, steps))
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        running.progress("")
    if as_json:
        print_json({"link_bit_s": link_bit_s, "nodes": nodes, "runs": rows})
    else:
        _show(rows, link, nodes)


def _measure(
    model: Any, job: Any, name: str, layout: Any, nodes: int, link_bit_s: float, steps: int
) -> dict[str, Any]:
    """One layout, first on free cables (to know its own speed), then on throttled ones."""
    import torch

    from meshwright.costs.step import estimate
    from meshwright.engine.parallel.guards import check
    from meshwright.engine.parallel.parallelize import Precision
    from meshwright.engine.proof.lab import crossing_bytes, run_plan
    from meshwright.engine.proof.traffic import expected_sent_bytes
    from meshwright.specs.clusters import load_cluster
    from meshwright.specs.job import RECIPES
    from meshwright.specs.plan import Plan

    job = job.but(precision=RECIPES["fp32"])
    layout = layout.but(
        micro_batch=max(job.global_batch // layout.dp // (4 if layout.pp > 1 else 1), 1)
    )
    check(model, layout, global_batch=job.global_batch, seq_len=job.seq_len, csv="")
    per_node = layout.world // nodes
    cluster = load_cluster(f"cpu:{nodes}x{per_node}")
    priced = estimate(model, cluster, job, layout)
    plan = Plan(
        model=model, cluster=cluster, job=job, layout=layout, estimate=priced, fits=priced.fits
    )

    def say(line: str) -> None:
        running.progress(f"{name}: {line}")

    free = run_plan(plan, nodes=nodes, link_bit_s=0, steps=steps, on_progress=say)
    slow = run_plan(plan, nodes=nodes, link_bit_s=link_bit_s, steps=steps, on_progress=say)
    fp32 = Precision(master=torch.float32, compute=torch.float32, reduce=torch.float32)
    expected = max(
        crossing_bytes(
            expected_sent_bytes(
                model,
                layout,
                stage,
                global_batch=job.global_batch,
                seq_len=job.seq_len,
                precision=fp32,
            ),
            layout,
            per_node,
        )
        for stage in range(layout.pp)
    )
    return {
        "placement": name,
        "layout": layout.label(),
        "rank_order": layout.rank_order,
        "measured_bytes": max(slow.sent_bytes),
        "predicted_bytes": expected,
        "free_tokens_s": free.tokens_s,
        "measured_step_s": slow.step_time_s,
        "predicted_step_s": free.step_time_s + 8.0 * expected / link_bit_s,
        "measured_tokens_s": slow.tokens_s,
    }


def _show(rows: list[dict[str, Any]], link: str, nodes: int) -> None:
    from meshwright.cli.output import print_table
    from meshwright.specs.quantities import format_seconds

    best = max(row["measured_tokens_s"] for row in rows)
    table = [
        [
            row["placement"], row["layout"],
            f"{row['measured_bytes'] / 1e6:.2f}", f"{row['predicted_bytes'] / 1e6:.2f}",
            format_seconds(row["measured_step_s"]), format_seconds(row["predicted_step_s"]),
            f"{row['measured_tokens_s']:,.0f}", f"{best / row['measured_tokens_s']:.1f}×",
        ]
        for row in rows
    ]  # fmt: skip
    print_table(
        f"{nodes} emulated nodes, {link} between them",
        ["placement", "layout", "MB sent", "predicted", "step", "predicted", "tokens/s", "slower by"],
        table,
        right={2, 3, 4, 5, 6, 7},
        note="MB sent: per step by the busiest node, from its network card; predicted step: measured "
        "on free cables plus predicted bytes over the link",
    )  # fmt: skip
