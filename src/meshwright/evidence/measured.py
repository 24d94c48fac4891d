"""What a row measured, in seconds and bytes, whatever it printed."""

from __future__ import annotations

import math
import re

from meshwright.costs.flops import model_flops_per_token, recomputed_flops_per_token
from meshwright.evidence.import_rows import Run
from meshwright.evidence.rows import Row
from meshwright.evidence.software import rule_for
from meshwright.evidence.spellings import NO_BATCH

BROKEN_MFU_PERCENT = 1.0
"""Below this a run of the nanotron sweep did not really train (its table's own remark)."""

_NOT_A_SPEED = re.compile(r"use for MEMORY, not speed|not full-length tokens|known regression")
_LOW_TRUST = re.compile(r"LOW TRUST for absolute|mb/gbs/seq not stated")


def measured_step_time_s(row: Row, run: Run) -> float:
    """Return the measured time of one step; NaN where the row measured none that can be scored.

    Throughput is turned into time by the run's tokens; printed TFLOP/s by the FLOPs that the source
    says it counts (`flop_convention` of data/sources.toml), and only where it says so. The time of a step
    whose batch was assumed says nothing.
    """
    if row["outcome"] not in ("", "ok") or _NOT_A_SPEED.search(row["setup"]):
        return math.nan
    if "ultrascale" in row["source"] and (row.number("measured_mfu") or 100.0) < BROKEN_MFU_PERCENT:
        return math.nan
    time = row.number("measured_iter_time_s")
    if time and time > 0:
        return math.nan if NO_BATCH in row["read_as"] else time
    rate = row.number("measured_tokens_per_s_per_gpu")
    if rate and rate > 0:
        return run.job.tokens / (rate * run.gpus)
    tflops = row.number("measured_tflops_per_gpu")
    convention = rule_for(row).default("flop_convention")
    if tflops and tflops > 0 and convention:
        return flops_per_step(run, convention) / (tflops * 1e12 * run.gpus)
    return math.nan


def flops_per_step(run: Run, convention: str) -> float:
    """FLOPs of one step as a source counts them: `model`, `megatron`, `megatron-full-recompute`.

    Megatron counts 72·B·s·l·h²·(1 + s/6h + V/12lh), and with full recomputation
    96·B·s·l·h²·(1 + s/6h + V/16lh) (arXiv 2104.04473, eq. 3): model FLOPs, plus one more forward of
    the layers.
    """
    per_token = model_flops_per_token(run.model, run.job.seq_len)
    if convention == "megatron-full-recompute":
        per_token += recomputed_flops_per_token(run.model, run.job.seq_len, "full")
    return per_token * run.job.tokens


def absolute_time_trusted(row: Row) -> bool:
    """Whether the absolute time means something (else only the ranking within a sweep does)."""
    return not _LOW_TRUST.search(row["setup"])


def measured_memory_bytes(row: Row) -> float:
    """Return the measured peak memory; NaN where the row measured none.

    The column's numbers are as printed: in GB where the source says so (`memory_unit`).
    """
    memory = row.number("measured_peak_mem_gib")
    unit = 1e9 if rule_for(row).default("memory_unit") == "GB" else 2.0**30
    return memory * unit if memory and memory > 0 and row["outcome"] in ("", "ok") else math.nan
