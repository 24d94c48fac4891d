"""What no model of these columns could predict: repeated runs, and rows whose cause stands in no column.

    python benchmarks/noise_floor.py

Four figures, all left out. *Repeats*: runs that the columns say were the same, and how far one number
must miss them. *Re-measured*: how well a second measurement would rank and choose the layouts of a sweep
that the first one measured, with the noise of its source's repeats. *Less what no column says*: the
page's figures less the rows of the classes named in `CLASSES`. *Told*: the same figures where a class were
predicted as it was measured, which is what it costs. Writes src/meshwright/evidence/data/floor.md, which
docs/accuracy.md includes.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from meshwright import evidence
from meshwright.evidence.constants import constants_set
from meshwright.evidence.predict import group_key, predict
from meshwright.evidence.rows import published_rows
from meshwright.evidence.score import (
    Errors,
    Scored,
    Sweeps,
    choices,
    kendall_tau,
    pair,
    regret,
    score_of,
    sweeps,
)
from meshwright.evidence.validation import TARGETS, stored

FILE = Path(evidence.__file__).parent / "data" / "floor.md"
DRAWS = 50
FEWEST = 5
"""Repeats in excess of one a layout, from which on a source's own noise is used."""


def left_out() -> list[Scored]:
    """Every scorable run beside its prediction, its source left out of the fit."""
    constants = stored().constants
    scored: list[Scored] = []
    by_source = defaultdict(list)
    for row in published_rows():
        by_source[row.table].append(row)
    for source, rows in by_source.items():
        with constants_set(constants.get(source, {})):
            scored += pair(rows, predict(rows))
    return scored


def repeats(scored: Iterable[Scored]) -> dict[str, list[list[Scored]]]:
    """Timed runs of one source that its columns cannot tell apart, two or more, by source."""
    groups = defaultdict(list)
    for one in scored:
        if not math.isnan(one.time_error):
            groups[one.row.table, group_key(one.run), one.run.layout].append(one)
    found = defaultdict(list)
    for (source, *_), members in groups.items():
        if len(members) > 1:
            found[source].append(members)
    return found


def log_times(group: Sequence[Scored]) -> np.ndarray:
    return np.log([one.measured_s for one in group])


def noise(groups: Sequence[Sequence[Scored]]) -> float:
    """Pooled standard deviation of the logarithms of repeated times."""
    squares = sum(float(np.sum((t - t.mean()) ** 2)) for t in map(log_times, groups))
    return math.sqrt(squares / sum(len(group) - 1 for group in groups))


def repeat_lines(found: dict[str, list[list[Scored]]]) -> list[str]:
    lines = [
        "| source | layouts run again | runs | standard deviation | largest over smallest | least "
        "possible median error |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for source, groups in sorted(found.items()):
        spread = max(math.exp(np.ptp(log_times(group))) for group in groups)
        least = [
            abs(math.exp(float(np.median(t)) - value) - 1.0)
            for t in map(log_times, groups)
            for value in t
        ]
        lines.append(
            f"| {source} | {len(groups)} | {sum(map(len, groups))} | {100 * noise(groups):.1f} % | "
            f"{spread:.2f} | {100 * float(np.median(least)):.1f} % |"
        )
    return lines


def sigma_of(source: str, found: dict[str, list[list[Scored]]]) -> float:
    """Noise of a source's repeats, or the median one where it has too few."""
    own = found.get(source, [])
    enough = sum(len(one) - 1 for one in own) >= FEWEST
    return noise(own) if enough else float(np.median([noise(groups) for groups in found.values()]))


def again(scored: Sequence[Scored], found: dict[str, list[list[Scored]]]) -> tuple[float, ...]:
    """Regret (mean, 90th percentile) and tau of a second measurement of every sweep, in percent."""
    typical = float(np.median([noise(groups) for groups in found.values()]))
    draw = np.random.default_rng(0)
    regrets, taus = [], []
    for group in sweeps(scored):
        _, measured = choices(group)
        sigma = sigma_of(group[0].row.table, found)
        drawn = [
            measured * np.exp(sigma * draw.standard_normal(len(measured))) for _ in range(DRAWS)
        ]
        regrets.append(float(np.mean([regret(one, measured) for one in drawn])))
        taus.append(float(np.nanmean([kendall_tau(one, measured) for one in drawn])))
    return (
        100 * float(np.mean(regrets)),
        100 * float(np.quantile(regrets, 0.9)),
        float(np.nanmean(taus)),
        100 * typical,
    )


def tau_apart(group: Sequence[Scored], sigma: float) -> float:
    """Kendall's tau of a sweep over pairs of layouts that noise does not turn round: further apart than 2·√2 sigma."""
    predicted, measured = choices(group)
    upper = np.triu_indices(len(measured), 1)
    apart = np.log(measured[:, None] / measured[None, :])[upper]
    said = np.sign(predicted[:, None] - predicted[None, :])[upper]
    far = np.abs(apart) > 2 * math.sqrt(2) * sigma
    return float(np.mean((said * np.sign(apart))[far])) if far.any() else math.nan


def nanotron(one: Scored) -> bool:
    return one.row.table == "nanotron_ultrascale_full"


def inside_gb_s(one: Scored) -> float:
    """Bus bandwidth of an all-gather inside a host that the run itself logged before it trained."""
    logged = re.search(r"intra-node AR/AG/RS=[\d.]+/([\d.]+)/", one.row["notes"])
    return float(logged[1]) if logged else math.nan


def without_its_links(one: Scored) -> bool:
    return nanotron(one) and inside_gb_s(one) < 100


def mended_already(one: Scored) -> bool:
    stated = "after_pp_fix=False" in one.row["setup"]
    return nanotron(one) and stated and one.run.layout.pp > 1 and one.run.gpus <= 8


def not_checked(one: Scored) -> bool:
    stated = "after_pp_fix=True" in one.row["setup"]
    return nanotron(one) and stated and inside_gb_s(one) > 255 and one.run.layout.tp > 1


def against_its_own_table(one: Scored) -> bool:
    """Two second iterations of BigScience's: 49 micro-batches in the time of 64 (113.0 and 114.1 s), and one
    sequence a micro-batch at 1.43 times two (148.2 and 103.5 s), which no other layout takes more than 1.07 times."""
    return one.row.id in ("bloom-0086", "bloom-0111")


def one_layout_a_release(one: Scored) -> bool:
    """DGXC's 70B in fp8: one layout in the recipes up to v25.02, another in v25.04."""
    model, tags = one.run.model, ("@v24.11.1 ", "@v25.02.02 ", "@v25.04.02 ")
    stated = any(tag in one.row["source"] for tag in tags)
    fp8 = one.run.job.precision.compute == "fp8"
    return stated and fp8 and one.row.table == "nvidia_dgxc_benchmarking" and model.layers == 80


def one_profile(one: Scored) -> bool:
    return one.row.table == "vtrain_singlenode"


CLASSES: tuple[tuple[str, Callable[[Scored], bool]], ...] = (
    ("nanotron, said to have run before the fix of its pipeline, on one host: not polled for, not checked",
     mended_already),
    ("nanotron, 42 GB/s inside the host in the run's own log, where the others have 240 to 265",
     without_its_links),
    ("nanotron, launcher of the mended pipeline, but 262 GB/s in the log, which checked collectives "
     "do not reach: not in debugging mode", not_checked),
    ("bigscience, two iterations that contradict others of their own table", against_its_own_table),
    ("dgxc, 70B in fp8: the layout changed with the release", one_layout_a_release),
    ("vtrain_singlenode, one profile a cell (`benchmarks/profile_noise.py`)", one_profile),
)  # fmt: skip
"""Rows whose time follows from something that no describing column holds."""


def class_lines(scored: Sequence[Scored]) -> list[str]:
    def cells(rows: Sequence[Scored]) -> str:
        score = score_of("", list(rows))
        return (
            f"{score.time.median:.1f} | {score.time.p90:.1f} | {score.sweeps.regret_mean:.1f} | "
            f"{score.sweeps.regret_p90:.1f} | {score.sweeps.tau:.2f}"
        )

    lines = [
        "| rows | timed | their median error | time, median | p90 | regret | p90 | tau |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        f"| all | {Errors.of(one.time_error for one in scored).rows} | | {cells(scored)} |",
    ]
    rest = list(scored)
    for name, belongs in CLASSES:
        own = Errors.of(one.time_error for one in scored if belongs(one))
        rest = [one for one in rest if not belongs(one)]
        lines.append(f"| less: {name} | {own.rows} | {own.median:.1f} | {cells(rest)} |")
    return lines


def told_lines(scored: Sequence[Scored]) -> list[str]:
    """Choosing where the rows of a class were predicted as they were measured."""

    def cells(known: Callable[[Scored], bool]) -> str:
        told = [replace(one, predicted_s=one.measured_s) if known(one) else one for one in scored]
        figures = score_of("", told).sweeps
        return f"{figures.regret_mean:.2f} | {figures.regret_p90:.1f} | {figures.tau:.3f} |"

    lines = [
        "| told | regret | p90 | tau |", "|---|--:|--:|--:|",
        f"| nothing | {cells(lambda one: False)}",
    ]  # fmt: skip
    for name, belongs in CLASSES:
        lines.append(f"| {name} | {cells(belongs)}")
    lines.append(
        f"| all of these but vtrain's | {cells(lambda one: any(b(one) for _, b in CLASSES[:-1]))}"
    )
    lines.append(f"| all of these | {cells(lambda one: any(b(one) for _, b in CLASSES))}")
    return lines


def source_lines(scored: Sequence[Scored], found: dict[str, list[list[Scored]]]) -> list[str]:
    """Choosing source by source: reached, and what a second measurement of the same sweeps would reach."""
    by_source = defaultdict(list)
    for one in scored:
        by_source[one.row.table].append(one)
    lines = [
        "| source | sweeps | of the mean regret | regret | tau | a second measurement: regret | tau |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    count = len(sweeps(scored))
    for source, members in sorted(by_source.items()):
        figures = score_of("", members).sweeps
        if not figures.sweeps:
            continue
        mean, _, tau, _ = again(members, found)
        lines.append(
            f"| {source} | {figures.sweeps} | {figures.regret_mean * figures.sweeps / count:.2f} | "
            f"{figures.regret_mean:.1f} | {figures.tau:.2f} | {mean:.1f} | {tau:.2f} |"
        )
    return lines


def state(one: Scored) -> tuple[str, str]:
    """What a row states of its software and machine: its source's tag, nanotron's fix, BigScience's days.

    BigScience's chronicle (train/tr11-176B-ml/chronicles-prequel.md) says not to compare times of 02-25 on, when
    the hosts' PCIe was set up anew, with earlier ones, nor those of 02-28 on, under another optimizer.
    """
    fix = re.search(r"after_pp_fix=\w+", one.row["setup"])
    day = re.search(r"date=02-(\d\d)", one.row["setup"])
    if one.row.table == "bigscience_bloom_a100" and day:
        return one.row["source"], str(sum(int(day[1]) >= since for since in (25, 28)))
    return one.row["source"], fix[0] if fix else ""


def of_one_release(group: Sequence[Scored]) -> list[list[Scored]]:
    """A sweep by what its rows state of the software's release (`state`)."""
    parts = defaultdict(list)
    for one in group:
        parts[state(one)].append(one)
    return [part for members in parts.values() for part in sweeps(members)]


def choosing_lines(scored: Sequence[Scored]) -> list[str]:
    """Regret and tau of the same sweeps, counted in stricter ways."""
    every = sweeps(scored)
    single = [part for group in every for part in of_one_release(group)]
    fitting = [[one for one in group if one.fits] or group for group in single]
    lines = ["| sweeps | number | regret | p90 | tau |", "|---|--:|--:|--:|--:|"]
    for name, groups in (
        ("as scored above", every),
        ("of one release of the software, as far as rows state it", single),
        ("… among the layouts that are said to fit, as `plan` chooses", fitting),
    ):
        pairs = [choices(group) for group in groups]
        best = [
            float(choices(group)[1].min()) for group in (single if groups is fitting else groups)
        ]
        found = [
            (regret(*pair) + 1.0) * float(pair[1].min()) / least - 1.0
            for pair, least in zip(pairs, best, strict=True)
        ]
        taus = [kendall_tau(*pair) for pair in pairs]
        lines.append(
            f"| {name} | {len(groups)} | {100 * np.mean(found):.1f} | "
            f"{100 * np.quantile(found, 0.9):.1f} | {np.nanmean(taus):.2f} |"
        )
    return lines


def mean_tau_apart(
    groups: Sequence[Sequence[Scored]], found: dict[str, list[list[Scored]]]
) -> tuple[int, float]:
    """Number of sweeps with pairs further apart than noise, and the mean of their tau."""
    taus = [tau_apart(group, sigma_of(group[0].row.table, found)) for group in groups]
    return sum(not math.isnan(tau) for tau in taus), float(np.nanmean(taus))


def apart_line(scored: Sequence[Scored], found: dict[str, list[list[Scored]]]) -> str:
    every = sweeps(scored)
    count, tau = mean_tau_apart(every, found)
    parts = [part for group in every for part in of_one_release(group)]
    single, tau_single = mean_tau_apart(parts, found)
    return (
        f"Pairs of layouts that a second measurement might turn round say nothing of a model. Over pairs further "
        f"apart than 2·√2 standard deviations of their source's repeats, tau is {tau:.2f} ({count} sweeps), "
        f"and {tau_single:.2f} in the {single} of one release."
    )


def judged(groups: Sequence[Sequence[Scored]]) -> tuple[list[float], list[float]]:
    """Regret and tau of each sweep."""
    pairs = [choices(group) for group in groups]
    return [regret(*pair) for pair in pairs], [kendall_tau(*pair) for pair in pairs]


def goal_lines(scored: Sequence[Scored], found: dict[str, list[list[Scored]]]) -> list[str]:
    """The goals of choosing beside what is reached, what a second measurement would reach, and what is
    reached where noise and what no column says are out of the way."""
    goals = {path: bound for mode, group, _, path, bound in TARGETS if mode == "left out"}
    told = [
        replace(one, predicted_s=one.measured_s)
        if any(belongs(one) for _, belongs in CLASSES[:-1])
        else one
        for one in scored
    ]
    every, rest = score_of("", list(scored)).sweeps, score_of("", told).sweeps
    single = Sweeps.of(
        *judged([part for group in sweeps(scored) for part in of_one_release(group)])
    )
    mean, p90, tau, _ = again(scored, found)
    apart = mean_tau_apart(sweeps(scored), found)[1]
    return [
        "| figure | goal | reached | within one release | a second measurement | pairs beyond noise | told all "
        "rows below but vtrain's |",
        "|---|--:|--:|--:|--:|--:|--:|",
        f"| regret, mean | ≤ {goals['sweeps.regret_mean']:g} | {every.regret_mean:.1f} | {single.regret_mean:.1f} | "
        f"{mean:.1f} | | {rest.regret_mean:.1f} |",
        f"| regret, 90th percentile | ≤ {goals['sweeps.regret_p90']:g} | {every.regret_p90:.1f} | "
        f"{single.regret_p90:.1f} | {p90:.1f} | | {rest.regret_p90:.1f} |",
        f"| rank correlation | ≥ {goals['sweeps.tau']:g} | {every.tau:.2f} | {single.tau:.2f} | {tau:.2f} | "
        f"{apart:.2f} | {rest.tau:.2f} |",
    ]


def main() -> None:
    scored = left_out()
    found = repeats(scored)
    mean, p90, tau, typical = again(scored, found)
    lines = [
        "## What no model of these columns could predict", "",
        "Written by `python benchmarks/noise_floor.py`; all figures left out, in %.", "",
        "**The goals of choosing, and what can be reached.**", "",
        *goal_lines(scored, found), "",
        "**Repeats.** Runs of one source that its columns cannot tell apart. One number for such a group "
        "misses its runs by the last column at least.", "",
        *repeat_lines(found), "",
        f"**Re-measured.** A second measurement of the same sweeps, with the noise of each source's "
        f"repeats ({typical:.1f} % where a source has too few), would choose with a mean regret of "
        f"{mean:.1f} % (90th percentile {p90:.1f} %) and rank with a tau of {tau:.2f}: no model can be held "
        "to more.", "",
        "**Less what no column says.** The same figures after taking out, one class after another, rows "
        "whose time follows from something that is not among their columns.", "",
        *class_lines(scored), "",
        "**What each of them costs.** Choosing, if the rows of one class were predicted as they were measured and "
        "all others as they are.", "",
        *told_lines(scored), "",
        "**Source by source.** What each adds to the mean regret, and what a second measurement of its own sweeps "
        "would reach.", "",
        *source_lines(scored, found), "",
        "**Choosing.** A sweep above is all layouts of one model, device, count and batch in a source. Where its "
        "rows state several releases of the software, layouts are confused with releases.", "",
        *choosing_lines(scored), "",
        apart_line(scored, found),
    ]  # fmt: skip
    FILE.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
