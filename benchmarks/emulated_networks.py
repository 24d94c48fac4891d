"""The closed loop between hosts: emulated clusters measured, predicted, run.

    python benchmarks/emulated_networks.py [--only TEXT] [--results FILE] [--seconds 60]
                                           [--again] [--ranges] [--markdown docs/measured_networks.md]

Each cluster is a few network namespaces joined by cables that a token-bucket filter throttles
(`meshwright lab`): it needs root and iproute2. On each, `python -m meshwright.measure` runs on all ranks
as torchrun would start it and writes a cluster file; from that file alone every layout is predicted,
then run by the engine. A cluster's regret is how much slower the layout is that the prediction ranks
first than the fastest of those run; its placement factor is the slowest over the fastest.
Results are appended to `--results` as they come, and what is there already is not run again. `--again`
runs nothing: what is there is predicted anew, from the cluster files beside it, by the code as it is.
`--ranges` writes the range that plans for a measured cluster of several hosts print
(costs/data/between_hosts.toml).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright import costs
from meshwright.costs.step import estimate
from meshwright.engine.model.toy import TOY
from meshwright.engine.proof.lab import LabError, Nodes, placements, run_plan, run_ranks_on
from meshwright.specs.cluster import Cluster
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.plan import Estimate, Plan
from meshwright.specs.writing import write_atomically

NETWORKS = [
    (nodes, per_node, rate)
    for nodes, per_node in ((2, 2), (4, 1), (2, 1), (4, 2))
    for rate in (20e6, 100e6, 1e9)
]
"""(nodes, ranks of each, bits per second of a cable)."""
JOB = Job(seq_len=256, global_batch=8, precision=RECIPES["fp32"], framework="meshwright")


def layouts(nodes: int, per_node: int) -> Iterator[tuple[str, Layout]]:
    """What runs on a cluster: each axis on the slow link, and mixtures."""
    yield from placements(nodes, per_node)
    if per_node > 1:
        yield "ZeRO-3 across and inside", Layout(dp=nodes * per_node, zero=3)
        yield "data across and inside", Layout(dp=nodes * per_node)
        yield "data inside, pipeline across", Layout(dp=per_node, pp=nodes)


def whole(layout: Layout) -> Layout:
    """With the micro-batch that `meshwright lab` takes: four in flight under a pipeline."""
    share = JOB.global_batch // layout.dp
    return layout.but(micro_batch=max(share // (4 if layout.pp > 1 else 1), 1))


def cluster_name(nodes: int, per_node: int, rate: float) -> str:
    """What a cluster is called in the results."""
    return f"{nodes}x{per_node}, {rate / 1e6:g} Mbit/s"


def kept_file(results: Path, nodes: int, per_node: int, rate: float) -> Path:
    """The cluster file of an emulated cluster, beside the results."""
    return results.with_name(f"emulated-{nodes}x{per_node}-{rate / 1e6:g}.toml")


def measured_cluster(nodes: int, per_node: int, rate: float, seconds: float, kept: Path) -> Cluster:
    """The cluster file of an emulated cluster, measured by its own ranks unless it is there."""
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder, Nodes(nodes, rate) as network:
            run_ranks_on(
                network, per_node,
                ["meshwright.measure", "-o", str(kept), "--precision", "fp32",
                 "--seconds", str(seconds)],
                logs=Path(folder), timeout_s=4.0 * seconds + 300.0,
            )  # fmt: skip
    return load_cluster(str(kept))


def compare(name: str, cluster: Cluster, layout: Layout, nodes: int, rate: float) -> dict[str, Any]:
    """Predict a layout from the cluster's own file, then run it."""
    priced = estimate(TOY, cluster, JOB, layout)
    plan = Plan(
        model=TOY, cluster=cluster, job=JOB, layout=layout, estimate=priced, fits=priced.fits
    )
    steps = 4 if rate < 50e6 else 10
    run = run_plan(plan, nodes=nodes, link_bit_s=rate, steps=steps, timeout_s=600.0)
    return {
        "cluster": cluster_name(nodes, layout.world // nodes, rate), "name": name,
        "layout": layout.label(), "rank_order": layout.rank_order,
        "measured_s": run.step_time_s, **predicted(priced), "time": time.strftime("%Y-%m-%d %H:%M"),
    }  # fmt: skip


def predicted(priced: Estimate) -> dict[str, Any]:
    """A row's fields that the prediction gives."""
    told = priced.step_time_range
    return {
        "predicted_s": priced.step_time_s,
        "low_s": told.low if told else None, "high_s": told.high if told else None,
        "parts_s": {k: v for k, v in priced.time_parts.items() if v},
    }  # fmt: skip


def predicted_again(rows: list[dict[str, Any]], results: Path) -> list[dict[str, Any]]:
    """The rows, predicted by the code as it is from the cluster files that lie beside the results."""
    found = []
    for nodes, per_node, rate in NETWORKS:
        name = cluster_name(nodes, per_node, rate)
        mine = {row["name"]: row for row in rows if row["cluster"] == name}
        if mine:
            cluster = load_cluster(str(kept_file(results, nodes, per_node, rate)))
            for placement, layout in layouts(nodes, per_node):
                if placement in mine:
                    priced = estimate(TOY, cluster, JOB, whole(layout))
                    found.append({**mine[placement], **predicted(priced)})
    return found


def ranges(rows: list[dict[str, Any]]) -> str:
    """costs/data/between_hosts.toml: what four in five runs measured over what was predicted."""
    cut = statistics.quantiles(
        (row["measured_s"] / row["predicted_s"] for row in rows), n=10, method="inclusive"
    )
    return RANGES.format(low=cut[0], high=cut[-1], runs=len(rows))


RANGES = """\
# Measured over predicted, of runs between emulated hosts, each predicted from its cluster's measurement.
# Written by benchmarks/emulated_networks.py --ranges; 80 % of the runs lie between low and high.

[time]
low = {low:.3f}
high = {high:.3f}
runs = {runs}
"""


def regrets(rows: list[dict[str, Any]]) -> list[tuple[str, float, float, float]]:
    """(cluster, regret, placement factor predicted, measured)."""
    found = []
    for cluster in dict.fromkeys(row["cluster"] for row in rows):
        mine = [row for row in rows if row["cluster"] == cluster]
        chosen = min(mine, key=lambda row: float(row["predicted_s"]))
        measured = [row["measured_s"] for row in mine]
        predicted = [row["predicted_s"] for row in mine]
        found.append(
            (cluster, chosen["measured_s"] / min(measured) - 1.0,
             max(predicted) / min(predicted), max(measured) / min(measured))
        )  # fmt: skip
    return found


def markdown(rows: list[dict[str, Any]]) -> str:
    """docs/measured_networks.md."""
    errors = sorted(abs(row["predicted_s"] / row["measured_s"] - 1.0) for row in rows)
    inside = sum(row["low_s"] <= row["measured_s"] <= row["high_s"] for row in rows if row["low_s"])
    regret = [one for _, one, _, _ in regrets(rows)]
    lines = [
        "# Predicted and measured between emulated hosts", "",
        "Written by `python benchmarks/emulated_networks.py --markdown docs/measured_networks.md`: "
        "network namespaces joined by throttled cables, each cluster measured by `meshwright.measure` on "
        "all of its ranks; the lessons' toy, predicted from that file alone, then run.", "",
        f"{len(rows)} runs: relative error of the step time {100 * statistics.median(errors):.1f} % in "
        f"the median, {100 * errors[int(0.9 * len(errors))]:.1f} % at the 90th percentile; inside its "
        f"range in {inside}. The layout predicted fastest is {100 * statistics.fmean(regret):.1f} % "
        "slower than the fastest run, in the mean over clusters.", "",
        "| cluster | regret | slowest over fastest, predicted | measured |", "|---|--:|--:|--:|",
        *(f"| {name} | {100 * one:.1f} % | {told:.1f}× | {was:.1f}× |"
          for name, one, told, was in regrets(rows)), "",
        "| cluster | placement | layout | predicted | measured | ratio |",
        "|---|---|---|--:|--:|--:|",
        *(f"| {row['cluster']} | {row['name']} | {row['layout']} | {1e3 * row['predicted_s']:.0f} ms | "
          f"{1e3 * row['measured_s']:.0f} ms | {row['predicted_s'] / row['measured_s']:.2f} |"
          for row in rows),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def run_what_is_missing(
    rows: list[dict[str, Any]], results: Path, only: str, seconds: float
) -> None:
    """Measure each cluster and run its layouts, but what `rows` holds; new rows are added to both."""
    done = {(row["cluster"], row["name"]) for row in rows}
    for nodes, per_node, rate in NETWORKS:
        name = cluster_name(nodes, per_node, rate)
        todo = [(n, whole(w)) for n, w in layouts(nodes, per_node) if (name, n) not in done]
        if only not in name or not todo:
            continue
        kept = kept_file(results, nodes, per_node, rate)
        print(f"{name}: measuring", flush=True)
        cluster = measured_cluster(nodes, per_node, rate, seconds, kept)
        for placement, layout in todo:
            try:
                row = compare(placement, cluster, layout, nodes, rate)
            except LabError as error:  # a run that fails is told, the others go on
                print(f"{name}, {placement}: failed: {error}", flush=True)
                continue
            rows.append(row)
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{name}, {placement} ({row['layout']}): {1e3 * row['predicted_s']:.0f} | "
                  f"{1e3 * row['measured_s']:.0f} ms "
                  f"({row['predicted_s'] / row['measured_s']:.2f})", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring each cluster")
    parser.add_argument("--results", default="runs/emulated_networks.jsonl")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--ranges", action="store_true")
    parser.add_argument("--markdown", default="")
    options = parser.parse_args()
    results = Path(options.results)
    results.parent.mkdir(parents=True, exist_ok=True)
    rows = (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )
    if options.again:
        rows = predicted_again(rows, results)
    else:
        run_what_is_missing(rows, results, options.only, options.seconds)
    if rows:
        for name, regret, told, was in regrets(rows):
            print(
                f"{name}: regret {100 * regret:.1f} %, slowest over fastest {told:.1f} | {was:.1f}"
            )
    if options.ranges and rows:
        data = Path(costs.__file__).parent / "data"
        write_atomically(data / "between_hosts.toml", ranges(rows))
    if options.markdown and rows:
        Path(options.markdown).write_text(markdown(rows))


if __name__ == "__main__":
    main()
