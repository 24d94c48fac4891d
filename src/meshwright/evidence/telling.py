"""Which runs to measure first: those whose times narrow the predictions of all the others most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.evidence.calibrate import run_times
from meshwright.evidence.calibrate_fit import NOISE_SD, Logs, device_knobs, link_knobs, slope_of
from meshwright.evidence.import_rows import Run
from meshwright.evidence.measured_knobs import measured_knobs
from meshwright.specs.cluster import Cluster


def most_telling(cluster: Cluster, runs: Sequence[Run], count: int) -> list[int]:
    """Positions of the runs to measure, the most telling first; no measured time is looked at.

    How far each constant may be from what is believed is known (its prior), and how a step follows it. Of
    all runs the one is taken after whose measurement the others' step times would be known best, in the mean
    of their standard deviations; then the next one, given that.
    """
    precisions = sorted({run.job.precision.compute for run in runs})
    knobs = [*link_knobs(cluster), *device_knobs(cluster, precisions), *measured_knobs(cluster)]

    def predict(candidate: Cluster) -> Logs:
        return np.asarray(np.log(run_times(candidate, runs)))

    base = predict(cluster)
    slopes = np.stack([knob.sd * slope_of(cluster, knob, base, predict) for knob in knobs], axis=1)
    shared = slopes @ slopes.T  # covariance of what the constants make uncertain
    found: list[int] = []
    for _ in range(min(count, len(runs))):
        known = np.maximum(np.diag(shared), 0.0)
        after = known[:, None] - shared**2 / (known + NOISE_SD**2)[None]
        gained = np.sqrt(known).sum() - np.sqrt(np.maximum(after, 0.0)).sum(axis=0)
        gained[found] = -np.inf
        best = int(np.argmax(gained))
        found.append(best)
        shared = shared - np.outer(shared[:, best], shared[best]) / (known[best] + NOISE_SD**2)
    return found
