"""What is measured on real ranks has the shape that the cluster file needs; no times are judged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from meshwright.cli import run as run_command  # noqa: E402
from meshwright.costs.confidence import time_range  # noqa: E402
from meshwright.costs.measured_machine import measured_modules, needed_modules  # noqa: E402
from meshwright.costs.measured_step import SPLIT_BACKWARD  # noqa: E402
from meshwright.engine.ranks.processes import RankError, run_ranks  # noqa: E402
from meshwright.measure import modules as modules_file  # noqa: E402
from meshwright.measure.assemble import assemble  # noqa: E402
from meshwright.measure.links import COLLECTIVES, Task, disturbance, measure_ranks  # noqa: E402
from meshwright.measure.links import _cases as every_case  # noqa: E402
from meshwright.measure.local import Found, Wanted  # noqa: E402
from meshwright.measure.machine import machine_hash  # noqa: E402
from meshwright.measure.modules import Timed, cases, fit  # noqa: E402
from meshwright.measure.probes import OWN, Probed, counts, probes, small  # noqa: E402
from meshwright.measure.sampling import Sample  # noqa: E402
from meshwright.schedules.registry import FAMILIES  # noqa: E402
from meshwright.specs.cluster import Cluster  # noqa: E402
from meshwright.specs.clusters import load_cluster  # noqa: E402
from meshwright.specs.job import RECIPES, Job  # noqa: E402
from meshwright.specs.models import load_model  # noqa: E402
from meshwright.specs.writing import write_atomically  # noqa: E402

FACTS = {"date": "2026-01-01", "host": "00000000", "processor": "made up", "cores": 2,
         "torch": "2.13", "python": "3.11", "meshwright": "0"}  # fmt: skip


def recorded(seconds: float = 1e-9, collectives: bool = True) -> Found:
    """Times that a machine might have given: every unit costs the same. Synthetic."""
    found = Found(slowdown={1: 1.0, 2: 1.1, 4: 2.2}, process_bytes=2e8, disk={"write_bytes_s": 1e8})
    for precision in ("fp32", "bf16"):
        timed = []
        for case in cases(precision, quick=True):
            time = seconds * (1e4 + sum(case.forward.values()))
            timed.append(Timed(case, precision, Sample(time, 0, 5, 0), Sample(2 * time, 0, 5, 0)))
        found.modules[precision] = fit(timed)
        found.timings += [
            {"module": t.case.module, "precision": precision, **t.case.forward,
             "forward_s": t.forward.median_s, "disturbed": 0, "repeats": 5}
            for t in timed
        ]  # fmt: skip
    if collectives:
        for members, active in ((4, 4), (2, 4), (2, 2)):
            for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"):
                for size in (4096.0, 2.0**20):
                    found.collectives.append(
                        {"collective": kind, "members": members, "active": active,
                         "size_bytes": size, "time_s": 1e-4 + size * active / 4e9, "spread": 0.1}
                    )  # fmt: skip
    return found


def cluster_of(found: Found) -> Cluster:
    return assemble(found, FACTS, ranks=4, host_memory=16e9)


def test_a_cluster_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    import tomli_w

    cluster = cluster_of(recorded())
    path = tmp_path / "mine.toml"
    write_atomically(path, tomli_w.dumps(cluster.plain()))
    again = load_cluster(str(path))
    assert again.device.measured == cluster.device.measured
    assert again.collectives == cluster.collectives
    assert again.shared_cores == cluster.shared_cores
    small = load_cluster(f"{path}:1x2")
    assert (small.nodes, small.gpus_per_node, small.levels[-1].domain) == (1, 2, 2)
    assert small.device.memory_bytes == pytest.approx(8e9)
    two = load_cluster(f"{path}:2x8")
    assert (two.gpus, two.levels[-1].domain) == (16, 16)
    assert "not measured" in two.source  # links between hosts are the preset's


def test_every_module_a_model_needs_is_among_what_is_measured() -> None:
    found = recorded()
    for name in ("gpt2", "llama3-8b", "mixtral-8x7b", "qwen3-0.6b"):
        missing = needed_modules(load_model(name)) - set(found.modules["fp32"])
        assert not missing, (name, missing)


def test_what_was_not_measured_falls_back_on_the_preset_and_is_said() -> None:
    found = recorded(collectives=False)
    del found.modules["bf16"]["loss"]
    found.skipped.append("bf16 loss")
    cluster = cluster_of(found)
    assert "bf16 loss" in cluster.source and "messages over shared-memory" in cluster.source
    preset = load_cluster("cpu:1x4").levels[0]
    assert cluster.levels[0].bandwidth_bytes_s == preset.bandwidth_bytes_s
    model = small(4)
    job = Job(seq_len=64, global_batch=4, framework="meshwright", precision=RECIPES["bf16"])
    assert measured_modules(cluster, job, model) is None
    assert measured_modules(cluster, job.but(precision=RECIPES["fp32"]), model) is not None


def test_probes_at_a_precision_that_was_not_measured_say_nothing() -> None:
    found = recorded()
    del found.modules["bf16"]
    one, two = (
        next(p for p in probes(1, quick=True) if p.precision == k) for k in ("fp32", "bf16")
    )
    found.probed = [Probed(one, 0.5, 0.6, 3e8), Probed(two, 0.9, 1.0, 3e8)]
    own = cluster_of(found).device.measured
    assert own is not None
    assert sum(own.engine_s.values()) > 0
    found.probed = found.probed[1:]
    alone = cluster_of(found).device.measured
    assert alone is not None
    assert not alone.engine_s
    assert not [p for p in probes(1, quick=True, precisions=("fp32",)) if p.precision == "bf16"]


def test_a_process_is_what_its_first_probe_held_beside_tensors() -> None:
    """Later probes of one process stand on what the allocator keeps of those before."""
    found = recorded()
    found.process_bytes = 1e8
    first, later = probes(1, quick=True)[:2]
    found.probed = [Probed(first, 0.1, 0.1, 3e8), Probed(later, 0.1, 0.1, 9e8)]
    device = cluster_of(found).device.measured
    assert device is not None
    assert 2.5e8 < device.process_bytes < 3e8


def test_probes_tell_every_kind_of_own_work_apart() -> None:
    cluster = cluster_of(recorded())
    rows = [counts(cluster, one) for n in (1, 2) for one in probes(n, quick=False)]
    for name in OWN:
        assert any(row.get(name, 0.0) > 0 for row in rows), name
    by_name = {one.name: counts(cluster, one) for one in probes(1, quick=True)}
    two, eight = by_name["2 layers"], by_name["8 layers"]
    # Two norms, seven products, two rotations, attention, two sums and an activation; both ways.
    assert eight["cold_call"] - two["cold_call"] == pytest.approx(6 * 2 * 15.0)
    assert two["step"] == pytest.approx(1.0) and "unit" not in two
    assert by_name["4 micro-batches"]["micro_batch"] == pytest.approx(4.0)
    later = {one.name: counts(cluster, one) for one in probes(2, quick=False)}
    assert later["pipeline, split backward"]["weight_action"] == pytest.approx(4 * 2.0)
    assert "weight_action" not in later["pipeline, 2 chunks"]


def test_the_schedules_that_put_weights_off_are_the_registrys() -> None:
    split = {name for name, family in FAMILIES.items() if family.split_backward}
    assert set(SPLIT_BACKWARD) == split


def test_ranks_measure_links_and_what_they_lose_together() -> None:
    task = Task(seconds=4.0, sizes=(4096.0, 65536.0), work_s=0.01)
    heard: list[str] = []
    results = run_ranks(measure_ranks, 2, task, on_message=lambda _r, m: heard.append(m["what"]))
    rows, slow = results[0]["rows"], results[0]["slowdown"]
    assert set(slow) == {1, 2} and all(value > 0 for value in slow.values())
    assert rows and all(row["time_s"] > 0 and row["members"] == 2 for row in rows)
    assert heard and results[0]["process_bytes"] > 1e7
    assert not any(row["across"] for row in rows)


def test_ranks_of_two_hosts_measure_what_lies_between_them() -> None:
    task = Task(seconds=1.5, sizes=(4096.0, 65536.0), work_s=0.01, per_host=1)
    found = run_ranks(measure_ranks, 2, task, on_message=lambda _r, _m: None)[0]
    assert set(found["slowdown"]) == {1} and found["hosts"] == 1
    kinds = {row["collective"] for row in found["rows"]}
    assert kinds == set(COLLECTIVES)
    assert all(row["across"] and row["active"] == 1 for row in found["rows"])


def test_hosts_of_one_machine_lose_to_each_other() -> None:
    task = Task(seconds=3.0, sizes=(4096.0,), work_s=0.01, per_host=1, machine=machine_hash())
    found = run_ranks(measure_ranks, 2, task, on_message=lambda _r, _m: None)[0]
    assert set(found["slowdown"]) == {1, 2} and found["hosts"] == 2


def test_pairs_inside_and_between_hosts_are_timed_alone_and_all_at_once() -> None:
    asked = Task(seconds=1.0, sizes=(4096.0, 65536.0), per_host=4)
    pairs = {(case[2], case[4]) for case in every_case(8, asked) if case[:2] == ("exchange", 2)}
    assert pairs == {(4, 1), (2, 1), (4, 4), (1, 4)}  # ranks of a host at once, distance


def _dies(report: object) -> None:
    import os
    import time

    if os.environ.get("RANK", "") == "" and torch.distributed.get_rank() == 1:
        os._exit(9)
    time.sleep(30)


def test_a_lost_rank_is_one_sentence() -> None:
    with pytest.raises(RankError, match=r"rank 1: the process ended with exit code 9"):
        run_ranks(_dies, 2, on_message=lambda _r, _m: None, timeout_s=25.0)


def test_modules_are_timed_forward_and_backward() -> None:
    case = next(c for c in cases("fp32", quick=True) if c.module == "rmsnorm")
    timed = modules_file.run(case, "fp32", 0.01)
    assert timed.forward.median_s > 0 and timed.backward.median_s > 0


@pytest.mark.parametrize(
    ("arguments", "field"), [(["--precision", "fp8"], "--precision"), (["--ranks", "0"], "ranks")]
)
def test_bad_options_are_one_sentence(
    arguments: list[str], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_command(["measure", "-o", str(tmp_path / "x.toml"), *arguments])
    assert code == 2 and field in capsys.readouterr().err
    assert not (tmp_path / "x.toml").exists()


def test_small_models_are_what_they_say() -> None:
    assert small(3, 192, 2048).hidden == 192
    assert Wanted(seconds=1.0, ranks=2, quick=True).precisions == ("fp32", "bf16")


def test_a_measured_hosts_range_is_that_of_runs_on_measured_hosts() -> None:
    cluster = cluster_of(recorded())
    job = Job(seq_len=16, global_batch=8, precision=RECIPES["fp32"], framework="meshwright")
    model = load_model("llama3-8b").but(
        layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=64
    )
    here = time_range(model, cluster, job, 4, 1.0)
    assert here.low < 1.0 < here.high and "measurement of the machine" in here.basis
    elsewhere = time_range(model, cluster, job.but(framework="megatron"), 4, 1.0)
    assert "published step times" in elsewhere.basis
    assert elsewhere.high - elsewhere.low > here.high - here.low


@pytest.mark.dist
def test_an_early_end_leaves_no_rank_and_no_file(tmp_path: Path) -> None:
    wanted = tmp_path / "mine.toml"
    process = subprocess.Popen(
        [sys.executable, "-m", "meshwright", "measure", "-o", str(wanted), "--ranks", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 120
    while time.monotonic() < until and len(members_of(process.pid)) < 2:
        time.sleep(0.1)
    assert len(members_of(process.pid)) >= 2, "no rank was started"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130 and told.strip().endswith("error: stopped"), told
    assert "Traceback" not in told and not wanted.exists()
    until = time.monotonic() + 120
    while time.monotonic() < until and members_of(process.pid):
        time.sleep(0.1)
    assert not members_of(process.pid)


def members_of(session: int) -> list[int]:
    """Processes of a session that live; None of them is a zombie."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if after_name[3] == str(session) and after_name[0] != "Z":
            found.append(int(status.parent.name))
    return found


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGTERM, 143, "as it does when a rank is lost"), (signal.SIGINT, 130, "stopped")],
)
def test_a_rank_that_is_ended_says_so_in_a_sentence(
    number: int, code: int, words: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    from meshwright.measure import __main__ as program

    def ended(_options: object) -> int:
        os.kill(os.getpid(), number)
        time.sleep(5)
        raise AssertionError("the signal was not heard")

    monkeypatch.setattr(program, "_measure", ended)
    monkeypatch.delenv("RANK", raising=False)
    before = signal.getsignal(signal.SIGTERM)
    assert program.main(["-o", str(tmp_path / "mine.toml")]) == code
    told = capsys.readouterr().err.strip()
    assert words in told and told.count("\n") == 0 and "nothing was written" in told
    assert signal.getsignal(signal.SIGTERM) == before and not list(tmp_path.iterdir())


def test_other_programs_are_told_from_ranks_that_take_turns() -> None:
    # Four ranks on two cores take turns; a memory that is shared costs processor time and is no disturbance.
    assert disturbance({1: 1.0, 2: 1.0, 4: 2.0}, 2) == pytest.approx(1.0)
    assert disturbance({1: 1.5, 2: 1.5, 4: 3.0}, 2) == pytest.approx(1.5)
    assert disturbance({1: 0.99, 2: 1.0}, 4) == 1.0 and disturbance({}, 2) == 1.0


def test_a_disturbed_measurement_says_so_and_gives_wider_ranges() -> None:
    found = recorded()
    idle = cluster_of(found)
    found.disturbed = 1.5
    busy = cluster_of(found)
    assert "1.5 times as long" in busy.source and "times as long" not in idle.source
    job = Job(seq_len=16, global_batch=8, precision=RECIPES["fp32"], framework="meshwright")
    model = load_model("llama3-8b").but(
        layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=64
    )
    narrow, wide = (time_range(model, one, job, 4, 1.0) for one in (idle, busy))
    assert wide.low == pytest.approx(narrow.low / 1.5)
    assert wide.high == pytest.approx(narrow.high * 1.5) and "1.50 times" in wide.basis


def test_what_was_measured_in_part_is_not_called_unmeasured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ends:
        """A deadline after three cases."""

        asked = 0

        @property
        def over(self) -> bool:
            self.asked += 1
            return self.asked > 3

        def share(self, _count: int) -> float:
            return 0.005

    few = [
        modules_file.norm(kind, rows, 16, torch.float32)
        for kind, rows in (("rmsnorm", 4), ("rmsnorm", 8), ("layernorm", 4), ("layernorm", 8), ("rmsnorm", 16))
    ]  # fmt: skip
    monkeypatch.setattr(modules_file, "cases", lambda _precision, quick: iter(few))
    fitted, _, skipped = modules_file.measure_modules(
        ["fp32"], Ends(), quick=True, progress=lambda _what, _share: None,  # type: ignore[arg-type]
    )  # fmt: skip
    assert set(fitted["fp32"]) == {"rmsnorm"}
    assert skipped == ["fp32 layernorm", "larger shapes of fp32 rmsnorm"]
