"""What docs/accuracy.md says of the reach of choosing rests on comparisons that no row decides for itself."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import sweep_learner
from rank_fits import chosen, ranked
from sweep_learner import Points, Settings, compared, figures, process

SETTINGS = Settings(0.5, 0.004, 1.5)


def some_points(layouts: int = 9) -> Points:
    draw = np.random.default_rng(3)
    measured = draw.standard_normal(layouts) * 0.2
    return Points(
        np.zeros(layouts, dtype=int), np.arange(layouts) // 2, measured,
        measured + 0.1 * draw.standard_normal(layouts), draw.standard_normal((layouts, 3)),
        draw.random((layouts, 4)), draw.standard_normal((layouts, 5)) * 0.1,
    )  # fmt: skip


@pytest.mark.parametrize("by_cell", [False, True])
def test_what_is_compared_does_not_speak_of_itself(
    by_cell: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_learner, "ODD", 1e9)  # weights of odd rows follow all rows
    points = some_points()
    before = compared(points, SETTINGS, True, by_cell)
    measured = points.measured.copy()
    changed = [0, 1] if by_cell else [0]  # the cell of the first layout is the first two
    measured[changed] += 1e-3
    after = compared(
        Points(points.sweep, points.cell, measured, *_rest(points)), SETTINGS, True, by_cell
    )
    others = max(abs(after[2, j] - before[2, j]) for j in range(4, 9))
    itself = max(abs(after[0, j] - before[0, j]) for j in range(2, 9))
    assert others > 1e-6
    assert itself < 1e-9


def _rest(points: Points) -> tuple[np.ndarray, ...]:
    return points.predicted, points.places, points.shares, points.slopes


def test_a_pair_is_compared_as_a_process_without_it_says() -> None:
    points = some_points()
    inverse, off, known = process(points, SETTINGS, True)
    covariance = np.linalg.inv(inverse)
    i, j, rest = 1, 6, [0, 2, 3, 4, 5, 7, 8]
    inside = covariance[np.ix_(rest, rest)]
    said = known + covariance[:, rest] @ np.linalg.solve(inside, off[rest])
    assert compared(points, SETTINGS, True, False)[i, j] == pytest.approx(said[i] - said[j])


def test_the_choice_wins_most_comparisons() -> None:
    points = some_points(3)
    seconds = np.exp(points.measured)
    right = {
        (i, j): float(points.measured[i] - points.measured[j]) for i in range(3) for j in range(i + 1, 3)
    }  # fmt: skip
    assert figures(points, right) == {0: (pytest.approx(0.0), pytest.approx(1.0))}
    turned = {pair: -ratio for pair, ratio in right.items()}
    slowest = seconds.max() / seconds.min() - 1.0
    assert figures(points, turned) == {0: (pytest.approx(slowest), pytest.approx(-1.0))}


@pytest.mark.parametrize("loss", [ranked, chosen])
def test_losses_fall_as_their_slopes_say(loss: object) -> None:
    draw = np.random.default_rng(5)
    measured, logs = draw.random(6) + 0.5, draw.standard_normal(6) * 0.05
    _, slope = loss(measured, logs)  # type: ignore[operator]
    for index in range(6):
        step = np.zeros(6)
        step[index] = 1e-6
        rise = loss(measured, logs + step)[0] - loss(measured, logs - step)[0]  # type: ignore[operator]
        assert rise / 2e-6 == pytest.approx(slope[index], rel=1e-4, abs=1e-6)
