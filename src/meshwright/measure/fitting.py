"""Seconds per unit from timings: least squares of relative errors, nothing negative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

SWEEPS = 4000


def seconds_per_unit(
    counts: Sequence[Mapping[str, float]],
    times_s: Sequence[float],
    scales_s: Sequence[float] | None = None,
) -> tuple[dict[str, float], float]:
    """Fit times to sums of counts; returns seconds per unit by name, and the median relative error.

    An error counts relative to `scales_s` (default: the time itself), so a short timing counts as
    much as a long one. No unit gets less than nothing (coordinate descent, which ends for any
    non-negative least squares).

    Raises:
        ValueError: there are no timings.
    """
    if not times_s:
        raise ValueError("no timings")
    names = list(dict.fromkeys(name for row in counts for name in row))
    scales = np.asarray(times_s if scales_s is None else scales_s, dtype=np.float64)
    target = np.asarray(times_s, dtype=np.float64) / scales
    matrix = np.array([[row.get(name, 0.0) for name in names] for row in counts]) / scales[:, None]
    scale = np.linalg.norm(matrix, axis=0)
    names = [name for name, size in zip(names, scale, strict=True) if size > 0]
    matrix, scale = matrix[:, scale > 0] / scale[scale > 0], scale[scale > 0]
    gram, aim = matrix.T @ matrix, matrix.T @ target
    found = np.zeros(len(names))
    for _ in range(SWEEPS):
        before = found.copy()
        for at in range(len(names)):
            found[at] = max(0.0, found[at] + (aim[at] - gram[at] @ found))
        if np.max(np.abs(found - before), initial=0.0) < 1e-12:
            break
    error = float(np.median(np.abs(matrix @ found - target)))
    return {name: float(v / s) for name, v, s in zip(names, found, scale, strict=True)}, error
