"""Two predictors that any planner must beat: one constant MFU, and a three-term memory formula."""

from __future__ import annotations

import numpy as np

from meshwright.costs.flops import model_flops_per_token
from meshwright.costs.parameters import count_parameters
from meshwright.evidence.import_rows import Run

MEMORY_CUT = 58.0 / 80.0
"""Share of the device that the formula may fill; chosen on the same rows, in its favour."""


def mfu_time_s(run: Run, mfu: float) -> float:
    """Step time at a given share of the device's peak in the run's precision."""
    peak = run.cluster.device.peak(run.job.precision.compute)
    flops = model_flops_per_token(run.model, run.job.seq_len) * run.job.tokens
    return float(flops / (peak * mfu * run.gpus))


def fit_constant_mfu(runs: list[Run], measured_s: list[float]) -> float:
    """Return the one MFU with the smallest median relative error over all runs."""
    if not runs:
        return 0.4
    at_one = np.array([mfu_time_s(run, 1.0) for run in runs]) / np.array(measured_s)
    candidates = np.linspace(0.05, 0.9, 171)
    errors = [float(np.median(np.abs(at_one / mfu - 1.0))) for mfu in candidates]
    return float(candidates[int(np.argmin(errors))])


def three_term_bytes(run: Run) -> float:
    """States + activations + logits: states by the recipe and ZeRO, 46·s·b·h/t a layer in flight
    (flash attention, no recomputation; 2·s·b·h where it is full), and 6 bytes a logit.
    """
    layout, model, precision = run.layout, run.model, run.job.precision
    parameters = count_parameters(model).total / (layout.tp * layout.pp)
    shard = float(layout.shard_degree)
    states = parameters * (
        precision.parameter_bytes / (shard if layout.zero >= 3 else 1.0)
        + precision.gradient_bytes / (shard if layout.zero >= 2 else 1.0)
        + (precision.master_bytes + run.job.optimizer.state_bytes) / shard
    )
    tokens = run.job.seq_len / layout.cp * layout.micro_batch
    flight = min(layout.pp, layout.micro_batches(run.job.global_batch))
    per_layer = 2.0 if layout.recompute == "full" else 46.0 / layout.tp
    activations = per_layer * tokens * model.hidden * model.layers / layout.pp * flight
    logits = 6.0 * tokens * model.vocab / layout.tp
    return float(states + activations + logits)


def three_term_fits(run: Run) -> bool:
    """Whether the formula's bytes stay under its cut of the device."""
    return three_term_bytes(run) <= MEMORY_CUT * run.cluster.device.memory_bytes
