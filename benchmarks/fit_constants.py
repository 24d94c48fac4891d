"""Fit the constants of kernels and frameworks to the published step times, and write them back.

    python benchmarks/fit_constants.py [--rounds 2] [--only ampere hopper nanotron] [--write]

Coordinate descent on the logarithm of predicted over measured step time, each source weighted by its
rows to the power 1/4, outliers capped. Only constants of device generations and frameworks
move, one meaning each, inside physical bounds; none belongs to a row, a source or a model.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from meshwright.costs import frameworks, kernels
from meshwright.evidence.import_rows import import_row
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.measured import absolute_time_trusted, measured_step_time_s
from meshwright.evidence.predict import _group_key, predict_runs
from meshwright.evidence.rows import Row, published_rows

DATA = Path(frameworks.__file__).parent / "data"
EVERY = {"nanotron_ultrascale_full": 3, "vtrain_singlenode": 4}
CAP = 0.5
"""Errors beyond e^0.5 count as this much: a run that is not understood must not bend constants."""

KERNEL_BOUNDS = {
    "gemm_sustained": (0.3, 0.95), "gemm_sustained_8bit": (0.2, 0.9),
    "tile_overhead_s": (3e-7, 6e-6), "kernel_gap_s": (2e-7, 4e-6), "bandwidth_reach": (0.5, 0.9),
    "flash_forward.0": (0.05, 0.45), "flash_forward.1": (0.1, 0.75), "flash_forward.2": (0.1, 0.75),
    "flash_backward.0": (0.05, 0.5), "flash_backward.1": (0.1, 0.65), "flash_backward.2": (0.1, 0.7),
    "flash_head64": (0.5, 1.0), "unfused_gemm": (0.1, 0.5), "fp8_quantize": (0.0, 12.0),
}  # fmt: skip
FRAMEWORK_BOUNDS = {
    "host_kernel_s": (5e-6, 8e-5), "host_collective_s": (0.0, 5e-4), "host_micro_batch_s": (0, 2e-2),
    "host_step_s": (0.0, 5e-2),
}  # fmt: skip


class Fit:
    def __init__(self, keep: Callable[[Row], bool] = lambda row: True) -> None:
        self.groups = defaultdict(list)
        count: dict[str, int] = defaultdict(int)
        for index, row in enumerate(published_rows()):
            if index % EVERY.get(row.table, 1) or not keep(row):
                continue
            try:
                run = import_row(row)
            except SkipRow:
                continue
            if not row.scorable or not absolute_time_trusted(row):
                continue
            measured = measured_step_time_s(row, run)
            if math.isnan(measured):
                continue
            self.groups[_group_key(run)].append((row.table, run, measured))
            count[row.table] += 1
        self.weight = {table: n**-0.75 for table, n in count.items()}
        self.cost = {key: self.group_cost(key) for key in self.groups}

    def group_cost(self, key: str) -> float:
        members = self.groups[key]
        predictions = predict_runs([run for _, run, _ in members])
        return sum(
            self.weight[table] * min(abs(math.log(p.iter_time_s / measured)), CAP)
            for p, (table, _, measured) in zip(predictions, members, strict=True)
        )

    def touched(self, where: str, name: str) -> list[str]:
        keys = []
        for key, members in self.groups.items():
            run = members[0][1]
            if where == "kernels":
                hit = kernels.generation(run.cluster.device) == name
            else:
                hit = name in ancestors(run.job.framework)
            if hit:
                keys.append(key)
        return keys

    def total(self) -> float:
        return sum(self.cost.values())


def ancestors(name: str) -> list[str]:
    table, chain = frameworks._table(), [name]
    while "base" in table[chain[-1]]:
        chain.append(table[chain[-1]]["base"])
    return chain


def get(where: str, name: str, field: str) -> float | None:
    table = kernels.generations() if where == "kernels" else frameworks._table()
    base, _, index = field.partition(".")
    if base not in table[name]:
        return None
    return float(table[name][base][int(index)] if index else table[name][base])


def put(where: str, name: str, field: str, value: float) -> None:
    table = kernels.generations() if where == "kernels" else frameworks._table()
    base, _, index = field.partition(".")
    if index:
        table[name][base][int(index)] = value
    else:
        table[name][base] = value
    frameworks.framework.cache_clear()


def improve(
    fit: Fit, where: str, name: str, field: str, bounds: tuple[float, float], step: float
) -> bool:
    value = get(where, name, field)
    keys = fit.touched(where, name)
    if value is None or not keys:
        return False
    best_value, best = value, sum(fit.cost[k] for k in keys)
    start = best
    costs = {}
    for factor in (1 + step, 1 / (1 + step)):
        trial = best_value
        while True:
            nxt = float(np.clip(trial * factor if trial else 1e-6 * (factor > 1), *bounds))
            if nxt == trial:
                break
            put(where, name, field, nxt)
            new = {k: fit.group_cost(k) for k in keys}
            if sum(new.values()) < best - 1e-6:
                best, best_value, costs, trial = sum(new.values()), nxt, new, nxt
            else:
                break
        if best_value != value:
            break
    put(where, name, field, best_value)
    fit.cost.update(costs)
    if best < start - 1e-6:
        print(
            f"  {name}.{field}: {value:.4g} -> {best_value:.4g}  ({start:.3f} -> {best:.3f})",
            flush=True,
        )
        return True
    return False


def write() -> None:
    for file, where in (("kernels.toml", "kernels"), ("frameworks.toml", "frameworks")):
        text = (DATA / file).read_text()
        names = kernels.generations() if where == "kernels" else frameworks._table()
        for name in names:
            start = text.index(f"[{name}]\n")
            end = text.find("\n[", start + 2)
            end = len(text) if end < 0 else end
            body = text[start:end]
            for field in {
                f.partition(".")[0]
                for f in (KERNEL_BOUNDS if where == "kernels" else FRAMEWORK_BOUNDS)
            }:
                value = names[name].get(field)
                if value is None:
                    continue
                shown = (
                    "[" + ", ".join(f"{v:.3g}" for v in value) + "]"
                    if isinstance(value, list)
                    else _number(float(value))
                )
                body = re.sub(rf"^{field} = .*$", f"{field} = {shown}", body, flags=re.M)
            text = text[:start] + body + text[end:]
        (DATA / file).write_text(text)


def _number(value: float) -> str:
    shown = f"{value:.3g}"
    return shown if any(c in shown for c in ".e") else shown + ".0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--step", type=float, default=0.15)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    fit = Fit()
    print(f"{sum(map(len, fit.groups.values()))} rows, cost {fit.total():.3f}", flush=True)
    descend(fit, options.rounds, options.only, options.step)
    if options.write:
        write()


def descend(fit: Fit, rounds: int, only: list[str] | None, step: float) -> None:
    """Move one constant after the other while that lowers the cost of the rows of `fit`."""
    for round_ in range(rounds):
        moved = False
        for name in kernels.generations():
            if only and name not in only:
                continue
            for field, bounds in KERNEL_BOUNDS.items():
                moved |= improve(fit, "kernels", name, field, bounds, step)
        for name in frameworks.framework_names():
            if only and name not in only:
                continue
            for field, bounds in FRAMEWORK_BOUNDS.items():
                moved |= improve(fit, "frameworks", name, field, bounds, step)
        print(f"round {round_ + 1}: cost {fit.total():.3f}", flush=True)
        step = step if moved and round_ == 0 else step / 2


if __name__ == "__main__":
    main()
