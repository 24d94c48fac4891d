"""What each mechanism of the cost model is worth: the error without it.

    python benchmarks/ablations.py

Each line switches one mechanism off for every run and scores all published step times again. Writes
src/meshwright/evidence/data/ablations.md, which docs/accuracy.md includes.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from meshwright import evidence
from meshwright.costs import frameworks, setting
from meshwright.evidence.import_rows import import_row
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.measured import absolute_time_trusted, measured_step_time_s
from meshwright.evidence.predict import group_key, predict_runs
from meshwright.evidence.rows import published_rows

FILE = Path(evidence.__file__).parent / "data" / "ablations.md"
OVERRIDES: dict[str, object] = {}


def behaviour(job):
    known = frameworks.framework(job.framework)
    fields = {**job.framework_options, **OVERRIDES}
    return known.but(**fields) if fields else known


def cases() -> list[tuple[str, dict[str, object]]]:
    hosts = dict.fromkeys(
        ("host_kernel_s", "host_collective_s", "host_micro_batch_s", "host_step_s",
         "host_member_s", "host_member_local_s"), 0.0,
    )  # fmt: skip
    return [
        ("nothing switched off", {}),
        ("host time (launches, Python)", hosts),
        ("host time of tensor-parallel collectives over hosts",
         {"host_member_s": 0.0, "host_member_local_s": 0.0}),
        ("accumulating gradients", {"accumulate_bytes": 0.0}),
        ("passes over the logits", {"loss_bytes": 0.0}),
        ("generations of flash attention (all the newest)", {"flash_generation": 3}),
        ("eager kernels (all fused)", {"fused_norm": True, "fused_rotary": True,
         "fused_softmax": True, "fused_activation": True, "moved_widths": 0.0}),
        ("buckets (one message each)", {"bucket_parameters": 1e15, "zero1_bucketed": True}),
        ("what is not overlapped (all overlapped)", {"reduce_overlapped": True,
         "gather_overlapped": True, "tensor_overlapped": True, "p2p_overlapped": True}),
        ("blocking pipeline messages", {"blocking_message_s": 0.0}),
        ("queues of tensor groups at network cards", {"network_member_s": 0.0}),
        ("the allocator's retries", {"retry_s": 0.0}),
        ("overlap of experts' all-to-alls", {"expert_overlapped": False}),
        ("passes over biases inside experts", {"expert_bias_fused": True}),
    ]  # fmt: skip


def errors(groups) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for members in groups.values():
        for (table, _, measured), one in zip(
            members, predict_runs([m[1] for m in members]), strict=True
        ):
            error = abs(one.iter_time_s / measured - 1.0)
            found.setdefault(table, []).append(error)
            found.setdefault("all", []).append(error)
    return found


def main() -> None:
    groups: dict[str, list] = {}
    for row in published_rows():
        try:
            run = import_row(row)
        except SkipRow:
            continue
        measured = measured_step_time_s(row, run)
        if row.scorable and absolute_time_trusted(row) and not math.isnan(measured):
            groups.setdefault(group_key(run), []).append((row.table, run, measured))
    setting.behaviour = behaviour
    shown = ("all", "nanotron_ultrascale_full", "vtrain_singlenode", "aleph_alpha_layouts_a100",
             "mosaic_llm_foundry_2023", "nvidia_megatron_bridge")  # fmt: skip
    lines = [
        "## Ablations", "",
        "Median error of step time, in percent, with one mechanism switched off for every run "
        "(`python benchmarks/ablations.py`).", "",
        "| without | " + " | ".join(shown) + " |", "|---|" + "--:|" * len(shown),
    ]  # fmt: skip
    for name, overrides in cases():
        OVERRIDES.clear()
        OVERRIDES.update(overrides)
        found = errors(groups)
        cells = [f"{100 * float(np.median(found[table])):.1f}" for table in shown]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
