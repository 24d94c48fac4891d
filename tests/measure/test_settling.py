"""Races on times that were drawn, plans that keep their evidence, and one small race on real ranks."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from meshwright.cli import run as run_command
from meshwright.cli.calibrating import gather
from meshwright.costs.step import estimate
from meshwright.measure.looking import constant_bound, crossing
from meshwright.measure.racing import Race, looks, quantile, trimmed
from meshwright.measure.settle import HERE, Finish, finalists, settled
from meshwright.planner.report import markdown_report
from meshwright.specs.cluster import Cluster
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Alternative, Plan, load_plan, save_plan
from meshwright.specs.settled import ADVICE

MODEL = Model(name="tiny", layers=2, hidden=32, heads=2, kv_heads=2, head_dim=16, ffn=64, vocab=128)
JOB = Job(seq_len=16, global_batch=4, precision=RECIPES["fp32"], framework="meshwright")


def plan_of(*layouts: Layout) -> Plan:
    cluster: Cluster = load_cluster("cpu:1x2")
    priced = [estimate(MODEL, cluster, JOB, layout) for layout in layouts]
    others = [
        Alternative(axis="rank", layout=layout, estimate=one, why_not="slower")
        for layout, one in zip(layouts[1:], priced[1:], strict=True)
    ]
    return Plan(
        model=MODEL, cluster=cluster, job=JOB, layout=layouts[0], estimate=priced[0], fits=True,
        alternatives=tuple(others),
    )  # fmt: skip


def test_what_cannot_run_is_no_finalist() -> None:
    made = plan_of(Layout(dp=2, micro_batch=2), Layout(tp=2, micro_batch=4))
    cannot = Alternative(
        axis="micro-batch 2 → 4",
        layout=Layout(pp=2, micro_batch=4),
        why_not="cannot run: one micro-batch",
    )
    found = finalists(made.but(alternatives=(*made.alternatives, cannot)))
    assert [layout.label() for layout, _ in found] == ["tp1 pp1 dp2 mb2", "tp2 pp1 dp1 mb4"]


def run_race(means: list[float], noise: float, seed: int, most: int = 50) -> tuple[Race, int]:
    """A race whose times are log-normal, with a neighbour who disturbs every tenth step twofold."""
    drawn, race, steps = random.Random(seed), Race(len(means), most_rounds=most, seed=seed), 0
    while not race.over:
        found = {}
        for runner in race.order():
            disturbed = 2.0 if drawn.random() < 0.1 else 1.0
            found[runner] = means[runner] * disturbed * math.exp(drawn.gauss(0.0, noise))
            steps += 1
        race.round(found)
    return race, steps


def test_the_fastest_wins_nearly_always_and_soon() -> None:
    means = [1.10, 1.0, 1.25, 1.4]
    races = [run_race(means, 0.05, seed) for seed in range(200)]
    assert sum(race.leader() == 1 for race, _ in races) >= 190
    steps = sum(steps for _, steps in races) / 200
    assert steps < 4 * 50 / 3
    assert (
        not any(1 in race.out for race, _ in races[:100])
        or sum(1 in race.out for race, _ in races) <= 10
    )  # the confidence is 95 %


def test_what_is_faster_by_more_than_a_tie_is_seldom_out() -> None:
    means = [1.0, 1.012, 1.012]
    wrong = sum(0 in run_race(means, 0.05, seed)[0].out for seed in range(200))
    assert wrong <= 20  # at 95 % confidence


def test_a_bound_for_several_looks_is_pocock_s() -> None:
    assert constant_bound((10, 20, 30, 40, 50), 0.025) == pytest.approx(
        2.413, abs=2e-3
    )  # his table 1
    assert constant_bound((7,), 0.025) == pytest.approx(1.960, abs=5e-3)
    sizes, drawn, crossed = (4, 8, 16), random.Random(1), 0
    for _ in range(20_000):
        samples = [drawn.gauss(0.0, 1.0) for _ in range(sizes[-1])]
        crossed += any(sum(samples[:n]) > 1.8 * math.sqrt(n) for n in sizes)
    assert crossing(sizes, 1.8) == pytest.approx(crossed / 20_000, abs=0.006)


def test_runners_too_close_for_any_choice_end_the_race_as_a_tie() -> None:
    race = Race(2, most_rounds=1000)
    rounds = 0
    while not race.over:
        race.round({0: 1.0 + 1e-4 * (rounds % 3), 1: 1.0005 + 1e-4 * (rounds % 2)})
        rounds += 1
    assert (race.tied or race.out) and rounds < 100


def test_orders_are_drawn_anew_and_the_same_for_all_ranks() -> None:
    one, other = Race(5, seed=3), Race(5, seed=3)
    orders = []
    for _ in range(6):
        assert one.order() == other.order()
        orders.append(tuple(one.order()))
        for race in (one, other):
            race.round(dict.fromkeys(range(5), 1.0))
    assert len(set(orders)) > 1


def test_looks_and_quantiles() -> None:
    assert looks(50) == [4, 6, 8, 11, 16, 23, 32, 45, 50]
    assert looks(4) == [4] and looks(2) == [2]
    assert quantile(0.975, 31) == pytest.approx(2.042, rel=1e-3)  # Student's t, 30 degrees
    assert quantile(0.95, 11) == pytest.approx(1.812, rel=2e-3)
    assert max(trimmed([1.0, 1.1, 0.9, 1.0, 1.05, 99.0])) < 2.0


def test_finalists_are_those_whose_ranges_overlap() -> None:
    fast, close = Layout(dp=2, micro_batch=2), Layout(tp=2, micro_batch=4)
    plan = plan_of(fast, close, Layout(micro_batch=4))
    assert [layout for layout, _ in finalists(plan)] == [fast, close]  # one rank is no finalist
    high = plan.estimate.step_time_range
    assert high is not None
    slow = plan.alternatives[0].estimate
    assert slow is not None
    far = slow.but(
        step_time_s=slow.step_time_s * 1e3,
        step_time_range={"low": 2 * high.high, "high": 3 * high.high},
    )
    lone = plan.but(alternatives=[plan.alternatives[0].but(estimate=far.model_dump()).model_dump()])
    assert [layout for layout, _ in finalists(lone)] == [fast]


def test_the_measured_best_becomes_the_plan_and_the_file_keeps_why(tmp_path: Path) -> None:
    plan = plan_of(
        Layout(dp=2, micro_batch=2), Layout(tp=2, micro_batch=4), Layout(pp=2, micro_batch=1)
    )
    racers = finalists(plan)
    names = [layout.label() for layout, _ in racers]
    tensor, pipe = (
        next(i for i, (x, _) in enumerate(racers) if getattr(x, a) == 2) for a in ("tp", "pp")
    )
    finish = Finish(
        {0: [0.2, 0.21, 0.2, 0.2], tensor: [0.1, 0.11, 0.1, 0.1], pipe: []},
        {0: "slower", pipe: "out of memory"}, {0: 0.02, tensor: 0.03, pipe: 0.0}, tensor, False, 4,
    )  # fmt: skip
    result = settled(plan, racers, finish, confidence=0.95, seconds=3.0, where="here")
    assert result.layout.tp == 2 and result.estimate == racers[tensor][1]
    save_plan(result, tmp_path / "plan.toml")
    again = load_plan(tmp_path / "plan.toml")
    assert again.settled == result.settled and again.settled is not None
    assert [run.outcome for run in again.settled.runs] == ["fastest", "slower", "out of memory"]
    report = markdown_report(again)
    assert "measured here, 4 steps each way" in report and names[pipe] in report
    nobody = Finish({}, dict.fromkeys(range(3), "out of memory"), {}, None, False, 0)
    with pytest.raises(SpecError, match="none of its finalists runs here"):
        settled(plan, racers, nobody, confidence=0.95, seconds=1.0, where="here")


def test_a_race_on_real_ranks_leaves_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "plan.toml"
    save_plan(plan_of(Layout(dp=2, micro_batch=2), Layout(tp=2, micro_batch=4)), path)
    assert run_command(["settle", str(path), "--steps", "4", "--seconds", "60"]) == 0
    out = capsys.readouterr()
    assert "finalists, at most 4 steps each" in out.err  # said before it starts
    again = load_plan(path)
    assert again.settled is not None and len(again.settled.runs) == 2
    assert all(run.steps == 4 for run in again.settled.runs)


LOG = "".join(
    f" [2026-01-01 10:00:0{n}] iteration {n}/ 100 | consumed samples: {4 * n} | elapsed time per "
    f"iteration (ms): {ms} | learning rate: 1.0E-04 | global batch size: 4 | lm loss: 1.0E+00 |\\n"
    for n, ms in enumerate((900.0, 800.0, 101.0, 100.0, 102.0, 101.5), 1)
)  # a made-up log in Megatron-LM's form


def test_a_command_of_the_user_is_read_back_from_its_log(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    save_plan(plan_of(Layout(dp=2, micro_batch=2), Layout(tp=2, micro_batch=4)), path)
    slower = LOG.replace("(ms): 10", "(ms): 15")
    script = tmp_path / "run.sh"
    layout = "sed -n '/^.layout.$/,/^$/p' \"$1\" | grep -q '^tp = 2'"
    script.write_text(f'if {layout}; then printf "{slower}"; else printf "{LOG}"; fi\n')
    command = ["settle", str(path), "--launch", f"bash {script} {{plan}}"]
    assert run_command(command) == 0
    again = load_plan(path)
    assert again.settled is not None
    best, other = again.settled.runs
    assert best.measured_s == pytest.approx(0.10125) and best.layout.dp == 2
    assert other.outcome == "slower" and other.measured_s == pytest.approx(0.15125)
    assert run_command(["settle", str(path), "--launch", "true"]) == 2


def test_what_a_race_measured_calibrates_the_plan_s_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, mine = tmp_path / "plan.toml", tmp_path / "mine.toml"
    plan = plan_of(Layout(dp=2, micro_batch=2), Layout(tp=2, micro_batch=4))
    plan = plan.but(notes=("a fact", f"too close to call: {ADVICE}"))
    save_plan(plan, path)
    assert run_command(["calibrate", "--cluster", "cpu:1x2", "--from", str(path)]) == 2
    assert "settled" in capsys.readouterr().err
    racers = finalists(plan)
    slow = {at: [1.2 * priced.step_time_s] * 8 for at, (_, priced) in enumerate(racers)}
    finish = Finish(slow, {1: "slower"}, {0: 0.01, 1: 0.01}, 0, False, 8)
    result = settled(plan, racers, finish, confidence=0.95, seconds=1.0, where=HERE)
    assert result.notes == ("a fact",)  # what advised to race is done
    save_plan(result, path)
    command = ["calibrate", "--cluster", "cpu:1x2", "--from", str(path), "-o", str(mine)]
    assert run_command(command) == 0
    assert "median error over 2 measurements" in capsys.readouterr().out
    seen = gather([str(path)], [], load_cluster("cpu:1x2")).sightings
    assert [one.step_time_s for one in seen] == [times[0] for times in slow.values()]
    assert {one.run.layout.label() for one in seen} == {x.label() for x, _ in racers}
    # Settled once, nothing is left to race; asked for JSON, JSON is what is printed.
    alone = result.but(alternatives=())
    save_plan(alone, path)
    assert run_command(["settle", str(path), "--json"]) == 0
    told = capsys.readouterr()
    assert "it was, on" in told.err and json.loads(told.out)["runs"][0]["outcome"] == "fastest"


def test_a_race_teaches_the_cluster_where_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, mine = tmp_path / "plan.toml", tmp_path / "mine.toml"
    save_plan(plan_of(Layout(dp=2, micro_batch=2), Layout(tp=2, micro_batch=4)), path)
    script = tmp_path / "run.sh"
    script.write_text(f'printf "{LOG}"\n')
    command = ["settle", str(path), "--launch", f"bash {script} {{plan}}", "--learn", str(mine)]
    assert run_command(command) == 0
    assert "written to" in capsys.readouterr().out and load_cluster(str(mine)).gpus == 2


def test_one_step_tells_no_spread() -> None:
    plan = plan_of(Layout(dp=2, micro_batch=2), Layout(tp=2, micro_batch=4))
    once = Finish({0: [0.2], 1: [0.3]}, {}, {0: 0.0, 1: 0.0}, 0, False, 1)
    result = settled(plan, finalists(plan), once, confidence=0.95, seconds=1.0, where=HERE)
    assert result.settled is not None
    assert result.settled.sentence.startswith("measured here, 1 step each way")
    assert "±" not in result.settled.sentence


def test_a_plan_says_what_its_measured_cluster_lacks() -> None:
    from meshwright.planner.plan import price_layout

    cluster = load_cluster("cpu:1x2")
    whole = cluster.but(source="measured 2026-01-01 on host 0")
    part = cluster.but(source="measured 2026-01-01 on host 0; not measured: bf16 loss; more")
    told = [price_layout(MODEL, one, JOB, Layout(dp=2, micro_batch=2)).notes for one in (whole, part)]  # fmt: skip
    assert not any("measured without" in note for note in told[0])
    assert "the cluster's file was measured without: bf16 loss" in told[1]
