"""How well sweeps can be ranked at all from what their rows state: docs/accuracy.md, "What choosing can reach".

    python benchmarks/ceiling.py [--write]

A ladder from the shipped figures to a second measurement: the cost model's own constants chosen *on the scored sweeps
themselves* (one set, one a source, one a sweep), a learner that sees all other rows (`sweep_learner.py`), the noise of
repeats (`noise_floor.py`). Then source by source and sweep by sweep where order is lost, what differs behind equal
columns, and which axes stand between the misordered pairs. `--write` stores it as evidence/data/ceiling.md, which
docs/accuracy.md includes. Some ten minutes on two idle cores, most of it derivatives.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import noise_floor
from meshwright import evidence
from meshwright.evidence.constants import fitted_constants
from meshwright.evidence.score import Errors, Scored, choices, kendall_tau, regret, sweeps
from meshwright.evidence.validation import TARGETS
from rank_fits import Group, Linear, climb, linear_at, priced
from sweep_learner import GRID, Settings, compared, figures, points_of
from sweep_pairs import axis_lines, kind_lines, pairs_of, state_lines

FILE = Path(evidence.__file__).parent / "data" / "ceiling.md"
BESIDE = 6
"""Rows of each source outside sweeps whose times a set of constants is held to as well."""
TIMES = (1.0, 0.3, 0.1)
"""Weights of step times' errors beside the order of sweeps that are tried where times are held."""
SHOWN = 24
VTRAIN = "vtrain_singlenode"
PROFILES = "… of the source, but of vTrain's two profiles"

Judged = list[tuple[float, float]]
"""Regret and Kendall's tau of each sweep, in order."""


def judged(groups: Sequence[Group]) -> Judged:
    pairs = [choices(group) for group in groups]
    return [(regret(*pair), kendall_tau(*pair)) for pair in pairs]


def taus(found: Judged) -> list[float]:
    return [tau for _, tau in found]


def regrets(found: Judged) -> list[float]:
    return [one for one, _ in found]


def summary(name: str, by_tau: Judged, by_regret: Judged, errors: Errors | None = None) -> str:
    """A line of the ladder; each figure from the set that was chosen for it."""
    lost = regrets(by_regret)
    allowed = goal("sweeps.regret_p90") / 100
    times = f"{errors.median:.1f} | {errors.p90:.1f}" if errors else " | "
    return (
        f"| {name} | {np.nanmean(taus(by_tau)):.2f} | {100 * np.mean(lost):.1f} | {100 * np.quantile(lost, 0.9):.1f} | "
        f"{sum(one > allowed for one in lost)} | {times} |"
    )


def goal(path: str) -> float:
    return next(bound for *_, where, bound in TARGETS if where == path)


def beside(scored: Sequence[Scored], groups: Sequence[Group]) -> list[Scored]:
    """A few timed rows of each source that are in no sweep."""
    inside = {one.row.id for group in groups for one in group}
    rest: dict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        if one.row.id not in inside and not math.isnan(one.time_error):
            rest[one.row.table].append(one)
    return [one for rows in rest.values() for one in rows[:: max(1, len(rows) // BESIDE)][:BESIDE]]


def by_source(groups: Sequence[Group]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        found[group[0].row.table].append(index)
    return dict(found)


def refitted(
    groups: Sequence[Group], linear: Linear, parts: Sequence[Sequence[int]], loss: str
) -> list[list[Scored]]:
    """All sweeps, each part of them with the constants that rank it best."""
    result: list[list[Scored]] = [[] for _ in groups]
    for part in parts:
        own = [groups[i] for i in part]
        where = [index for group in own for index in linear.of(group)]
        rows = [linear.rows[index] for index in where]
        values = climb(own, Linear(rows, linear.logs[where], linear.slopes[where]), loss)
        for index, group in zip(part, priced(own, values), strict=True):
            result[index] = group
    return result


def held(groups: Sequence[Group], linear: Linear) -> tuple[list[list[Scored]], Errors] | None:
    """The best ranking by one set of constants that still meets the goals of step times on the same rows."""
    best = None
    for times in TIMES:
        for loss in ("tau", "regret"):
            whole, *again = priced([linear.rows, *groups], climb(groups, linear, loss, times))
            errors = Errors.of(one.time_error for one in whole)
            tau = float(np.nanmean(taus(judged(again))))
            meets = errors.median <= goal("time.median") and errors.p90 <= goal("time.p90")
            if meets and (best is None or tau > best[0]):
                best = tau, again, errors
    return best[1:] if best else None


def cell(one: Scored) -> object:
    """What rows of vTrain's single hosts share beside their sweep: one profile of one process."""
    if one.row.table != VTRAIN:
        return one.row.id
    return one.run.model.hidden, one.run.layout.tp, one.run.layout.micro_batch


def learned(groups: Sequence[Group], linear: Linear) -> dict[str, Judged]:
    """The learner's figures, with the settings that rank all sweeps best."""
    spread = np.array([one.spread for one in fitted_constants()])

    def slopes(some: Sequence[Group]) -> np.ndarray:
        return linear.slopes[[index for group in some for index in linear.of(group)]] * spread

    each = [points_of([group], slopes([group]), cell) for group in groups]
    sources = by_source(groups)
    whole = {
        name: points_of([groups[i] for i in part], slopes([groups[i] for i in part]), cell)
        for name, part in sources.items()
    }

    def of_sweeps(settings: Settings, model: bool) -> Judged:
        return [figures(one, compared(one, settings, model, False))[0] for one in each]

    def of_sources(settings: Settings, cells: bool) -> Judged:
        result: Judged = [(math.nan, math.nan)] * len(groups)
        for name, part in sources.items():
            own = figures(whole[name], compared(whole[name], settings, True, cells))
            for number, index in enumerate(part):
                result[index] = own[number]
        return result

    def best(tried: list[Judged]) -> Judged:
        return max(tried, key=lambda one: float(np.nanmean(taus(one))))

    return {
        "axes alone, all other rows of the sweep": best([of_sweeps(one, False) for one in GRID]),
        "the model, corrected by all other rows of the sweep": best(
            [of_sweeps(one, True) for one in GRID]
        ),
        PROFILES: best([of_sources(one, True) for one in GRID]),
        "… of the source": best([of_sources(one, False) for one in GRID]),
    }


def measured_again(groups: Sequence[Group], found: dict[str, list[list[Scored]]]) -> Judged:
    """Means of each sweep's second measurements."""
    draw = np.random.default_rng(0)
    result = []
    for group in groups:
        _, measured = choices(group)
        sigma = noise_floor.sigma_of(group[0].row.table, found)
        drawn = [
            measured * np.exp(sigma * draw.standard_normal(len(measured)))
            for _ in range(noise_floor.DRAWS)
        ]
        result.append((
            float(np.mean([regret(one, measured) for one in drawn])),
            float(np.nanmean([kendall_tau(one, measured) for one in drawn])),
        ))  # fmt: skip
    return result


def mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def source_lines(groups: Sequence[Group], columns: dict[str, Judged]) -> list[str]:
    """Tau source by source along the ladder, and what is lost to the last column in the mean over all sweeps."""
    names = list(columns)
    lines = [
        "| source | sweeps | "
        + " | ".join(names)
        + " | lost to the last, of the mean | regret above 8 % |",
        "|---|--:|" + "--:|" * (len(names) + 2),
    ]
    for source, part in sorted(by_source(groups).items()):
        cells = [mean([columns[name][i][1] for i in part]) for name in names]
        lost = sum(columns[names[-1]][i][1] - columns[names[0]][i][1] for i in part) / len(groups)
        worse = sum(columns[names[0]][i][0] > goal("sweeps.regret_p90") / 100 for i in part)
        lines.append(
            f"| {source} | {len(part)} | "
            + " | ".join(f"{one:.2f}" for one in cells)
            + f" | {lost:+.3f} | {worse} |"
        )
    return lines


def sweep_lines(groups: Sequence[Group], columns: dict[str, Judged]) -> list[str]:
    """The sweeps that lose most tau to a second measurement."""
    names = list(columns)
    lost = [columns[names[-1]][i][1] - columns[names[0]][i][1] for i in range(len(groups))]
    lines = [
        "| source | model | devices | sequences | layouts | regret | "
        + " | ".join(names)
        + " | lost, of the mean |",
        "|---|---|--:|--:|--:|--:|" + "--:|" * (len(names) + 1),
    ]
    for i in sorted(range(len(groups)), key=lambda i: -lost[i])[:SHOWN]:
        first = groups[i][0]
        model = f"{first.run.model.name}, {first.run.job.precision.compute}"
        cells = " | ".join(f"{columns[name][i][1]:.2f}" for name in names)
        layouts = len({one.run.layout for one in groups[i]})
        lines.append(
            f"| {first.row.table} | {model} | {first.run.gpus} | {first.run.job.global_batch} | {layouts} | "
            f"{100 * columns[names[0]][i][0]:.1f} | {cells} | {lost[i] / len(groups):+.3f} |"
        )
    return lines


def needed_lines(
    groups: Sequence[Group], reached: Judged, again: Judged, profiles: Judged
) -> list[str]:
    """What follows for the goals, by arithmetic; `profiles`: the learner that knows all but the two profiles compared."""
    count, bound, most = len(groups), goal("sweeps.tau"), goal("sweeps.regret_p90")
    across = [
        i for i, group in enumerate(groups)
        if group[0].row.table == "nvidia_dgxc_benchmarking" and reached[i][1] < 0
        and len({noise_floor.state(one) for one in group}) > 1
    ]  # fmt: skip
    rest = [i for i in range(count) if i not in across]
    need = (bound * count - sum(reached[i][1] for i in across)) / len(rest)
    own = {i for i, group in enumerate(groups) if group[0].row.table == VTRAIN}

    def above(found: Judged, inside: bool) -> int:
        return sum(100 * found[i][0] > most for i in range(count) if (i in own) is inside)

    largest = max(regrets(reached))
    return [
        f"- **Rank correlation.** {len(across)} sweeps rank two releases, not two layouts (below), the wrong way round. With them "
        f"as they are, all others would have to be ranked with a mean tau of {need:.2f} for {bound:g} over all; a second "
        f"measurement of them gives {mean([again[i][1] for i in rest]):.2f}. A model that does not turn these {len(across)} round for a reason that "
        "is not the layout cannot reach the goal.",
        f"- **Regret, 90th percentile.** {most:g} % allow {int(0.1 * (count - 1))} sweeps of {count} above it. vTrain's single hosts have "
        f"{above(reached, True)} by themselves, all others {above(reached, False)}. Who knows all of vTrain's profiles but the two that are "
        f"compared does no better ({above(profiles, True)}): they say nothing of one another that the model does not say, and "
        "only one who has seen the same profile in another sweep gets them right.",
        f"- **Regret, mean.** One sweep adds {100 * largest / count:.2f} of {100 * mean(regrets(reached)):.2f}; its fastest row states a pipeline that "
        f"sleeps and did not (above). Without it the mean is {100 * (sum(regrets(reached)) - largest) / (count - 1):.1f}.",
        "- **What would disprove this**: the two layouts of DGXC's 70B measured under one release, the later one faster; vTrain's "
        "profiles taken a second time with the same jumps; or a model that knows stated columns alone, fitted without a source, and "
        "ranks that source's sweeps better than the learner that sees their rows.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    scored = noise_floor.left_out()
    groups, found = sweeps(scored), noise_floor.repeats(scored)
    linear = linear_at([one for group in groups for one in group] + beside(scored, groups))
    kept = held(groups, linear)
    sources, single = list(by_source(groups).values()), [[i] for i in range(len(groups))]
    sets: dict[str, tuple[Judged, Judged, Errors]] = {}
    for name, parts in (
        ("one set of constants", [list(range(len(groups)))]),
        ("one set a source", sources),
        ("one set a sweep", single),
    ):
        by_tau, by_regret = (refitted(groups, linear, parts, loss) for loss in ("tau", "regret"))
        errors = Errors.of(one.time_error for group in by_tau for one in group)
        sets[name] = judged(by_tau), judged(by_regret), errors
    others, reached, again = learned(groups, linear), judged(groups), measured_again(groups, found)
    ladder = [
        "| known of the scored sweeps | tau | regret, mean | p90 | sweeps above 8 % | time, median | p90 |",
        "|---|--:|--:|--:|--:|--:|--:|",
        summary("nothing: as left out", reached, reached, Errors.of(one.time_error for one in scored)),
    ]  # fmt: skip
    if kept:
        ladder.append(
            summary(
                "one set of constants, near their priors, times within their goals",
                *[judged(kept[0])] * 2,
                kept[1],
            )
        )
    ladder += [summary(f"{name}, times and priors let go", *pair) for name, pair in sets.items()]
    ladder += [summary(f"learner: {name}", one, one) for name, one in others.items()]
    ladder.append(summary("a second measurement", again, again))
    columns = {
        "left out": reached, "one set a sweep": sets["one set a sweep"][0],
        "all other rows of the sweep": others["the model, corrected by all other rows of the sweep"],
        "a second measurement": again,
    }  # fmt: skip
    pairs = pairs_of(groups, found, cell)
    lines = [
        "## What choosing can reach", "",
        "Written by `python benchmarks/ceiling.py --write`. Every line but the first and the last has *seen the rows that it is judged "
        "by*: the cost model's constants chosen to rank them (each figure from the set that was best for it, constants within the "
        "bounds of evidence/data/constants.toml, a local optimum), or a Gaussian process over the stated axes that knows "
        "all rows but the two layouts it compares, its settings the best of four.", "",
        *ladder, "", "What follows for the goals:", "", *needed_lines(groups, reached, again, others[PROFILES]), "",
        "**Source by source**, tau.", "", *source_lines(groups, columns), "",
        "**The sweeps that lose most tau.**", "", *sweep_lines(groups, columns), "",
        "**What no column tells apart.** A misordered pair of layouts costs 2 / (pairs of its sweep · sweeps) of the mean tau.", "",
        *kind_lines(pairs, VTRAIN), "",
        "Runs that are equal in layout, model, devices and batch, measured under two stated releases of the software (or, "
        "BigScience's, before and after its hosts were set up anew):", "",
        *state_lines(groups), "",
        "**Which axes stand between misordered pairs.** Directions by sources with three pairs or more: *too slow* where the layout "
        "that is larger in the first axis is predicted more than 1 % too slow against the other one, in the median.", "",
        *axis_lines(pairs),
    ]  # fmt: skip
    print("\n".join(lines))
    if options.write:
        FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
