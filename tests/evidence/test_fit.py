"""The fit finds constants again, leaves a source out, and writes what it fitted."""

import math

import numpy as np
import pytest

from meshwright.costs import tables
from meshwright.evidence import constants
from meshwright.evidence.constants import constants_set, declared, fitted_constants, write_constants
from meshwright.evidence.fit import SOURCE_ROWS, Case, Problem, cases_of, fit
from meshwright.evidence.predict import predict_runs
from meshwright.evidence.rows import published_rows

TABLES = ["korthikanti_2022_seqsel", "vtrain_multinode", "simumax_b200", "mtnlg_530b"]


@pytest.fixture(scope="module")
def cases():
    return cases_of(published_rows(TABLES), most=8)


@pytest.fixture(scope="module")
def chosen():
    return tuple(one for one in fitted_constants() if "ampere" in one.name)[:3]


def made(cases):
    """The same runs, measured as the cost model prices them now."""
    return [Case(c.source, c.run, predict_runs([c.run])[0].iter_time_s, math.nan) for c in cases]


def test_every_declared_constant_is_in_its_file_and_between_its_bounds():
    names = [one.name for one in fitted_constants()]
    assert len(names) == len(set(names)) > 30
    for one in fitted_constants():
        assert one.low <= one.get() <= one.high, one.name
        assert one.meaning and 0 < one.spread < 2


def test_constants_that_made_the_runs_are_found_again(cases, chosen):
    truth = {
        one.name: one.prior * 1.1 if one.prior * 1.1 < one.high else one.prior for one in chosen
    }
    with constants_set(truth):
        runs = made([c for c in cases if "A100" in c.run.cluster.device.name])
    before = {one.name: one.get() for one in chosen}
    problem = Problem(runs, chosen)
    found = fit(problem)
    assert {one.name: one.get() for one in chosen} == before
    with constants_set(found.values):
        left = problem.residuals()[0]
    with constants_set({one.name: one.prior for one in chosen}):
        at_priors = problem.residuals()[0]
    assert np.max(np.abs(left)) < 0.5 * np.max(np.abs(at_priors)) and np.max(np.abs(left)) < 0.02


def test_a_fit_gives_the_same_constants_to_the_last_bit_whatever_is_shipped(cases, chosen):
    once = fit(Problem(cases, chosen))
    with constants_set({one.name: one.high for one in chosen}):
        again = fit(Problem(cases, chosen))
    assert again.values == once.values
    assert np.array_equal(again.jacobian, once.jacobian, equal_nan=True)
    assert again.without("mtnlg_530b") == once.without("mtnlg_530b")


def test_a_run_that_the_model_has_no_term_for_does_not_bend_the_others(cases, chosen):
    """Cauchy's loss: thirty times off pulls less than twice off."""
    runs = made([c for c in cases if "A100" in c.run.cluster.device.name])
    alone = fit(Problem(runs, chosen)).values

    def moved(factor):
        odd = Case("odd", runs[0].run, runs[0].time_s * factor, math.nan)
        values = fit(Problem([*runs, odd], chosen)).values
        return max(abs(math.log(values[one.name] / alone[one.name])) for one in chosen)

    assert moved(30.0) < 0.5 * moved(1.2)


def test_leaving_a_source_out_is_what_a_fit_without_it_gives(cases, chosen):
    with_all = fit(Problem(cases, chosen))
    without = fit(Problem([c for c in cases if c.source != "vtrain_multinode"], chosen))
    quick = with_all.without("vtrain_multinode")
    for one in chosen:
        moved = math.log(without.values[one.name] / with_all.values[one.name])
        told = math.log(quick[one.name] / with_all.values[one.name])
        assert abs(told - moved) < 0.02 + 0.2 * abs(moved)


def test_a_source_weighs_like_its_rows_only_up_to_a_limit(cases, chosen):
    problem = Problem(cases * 4, chosen)
    weights = problem.weights()
    for source in {c.source for c in problem.cases}:
        among = [i for i, c in enumerate(problem.cases) if c.source == source]
        assert weights[0, among].sum() <= SOURCE_ROWS + 1e-9
    assert problem.weights("mtnlg_530b").sum() < weights.sum()


def test_writing_changes_the_values_and_nothing_else(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    source = constants.resources.files("meshwright.costs").joinpath("data")
    for name in {one.file for one in fitted_constants()}:
        (folder / f"{name}.toml").write_bytes(source.joinpath(f"{name}.toml").read_bytes())
    monkeypatch.setattr(constants.resources, "files", lambda package: tmp_path)
    assert write_constants({}) == []
    one = next(one for one in fitted_constants() if one.key == "flash_backward.1")
    assert write_constants({one.name: 0.1234567}) == [f"{one.file}.toml"]
    old = (source / f"{one.file}.toml").read_text().splitlines()
    new = (folder / f"{one.file}.toml").read_text().splitlines()
    changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    assert len(changed) == 1 and "0.1235" in changed[0][1]
    assert declared([one.name]) == (one,) and tables.table(one.file)
