"""The highest MFU that any published run reached on each device, by the project's own count of FLOPs.

    python benchmarks/measured_mfu.py --write src/meshwright/planner/data/measured_mfu.toml

A plan that claims more says so (`planner/notes.py`). Rows that their tables flag as suspect are left out;
so are fine-tuning runs (their tokens may be padding), sequences so long that how a mask is counted decides,
and what no products of dense matrices reach: above 80 %.
"""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

import tomli_w

from meshwright.costs.flops import model_flops_per_token
from meshwright.evidence.measured import absolute_time_trusted, measured_step_time_s
from meshwright.evidence.predict import predict
from meshwright.evidence.rows import published_rows

IMPOSSIBLE = 0.8
LONGEST = 32_768
FLAGS = ("CHECK", "DUPLICATE", "SUSPECT", "INCONSISTENT", "DERIVED")


def best_of() -> dict[str, dict[str, object]]:
    """The best row of each device and precision: fraction of peak, source."""
    rows = published_rows()
    best: dict[str, dict[str, object]] = {}
    for row, prediction in zip(rows, predict(rows), strict=True):
        run = prediction.run
        flagged = any(word in f"{row['notes']} {row['setup']}" for word in FLAGS)
        if run is None or flagged or not absolute_time_trusted(row):
            continue
        tuned = run.job.finetune is not None or re.search(
            "fine-?tun|SFT", row["model"], re.IGNORECASE
        )
        if tuned or run.job.seq_len > LONGEST:
            continue
        time = measured_step_time_s(row, run)
        if math.isnan(time):
            continue
        flops = run.job.tokens * model_flops_per_token(run.model, run.job.seq_len)
        compute = run.job.precision.compute
        device = run.cluster.device
        mfu = flops / (time * run.gpus * device.peak(compute))
        key = f"{device.name} {compute}"
        if mfu < IMPOSSIBLE and mfu > float(str(best.get(key, {"mfu": 0.0})["mfu"])):
            best[key] = {
                "device": device.name, "compute": compute, "mfu": round(mfu, 4),
                "run": row["model"], "source": row["source"],
            }  # fmt: skip
    return best


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    found = best_of()
    text = (
        "# The highest MFU of any published run, by device and precision of the products.\n"
        "# Written by `python benchmarks/measured_mfu.py --write FILE`.\n\n"
        + tomli_w.dumps({"best": [found[key] for key in sorted(found)]})
    )
    if options.write:
        options.write.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
