"""`export --nearest` writes what a target can run and says what changed; nothing written is no success."""

import tomllib

import pytest
import tomli_w

from meshwright.cli import run
from meshwright.specs.plan import load_plan


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    asked = ["plan", "llama3-70b", "--cluster", "h100:4x8", "--seq", "4096", "--global-batch", "256",
             "--tp", "4", "--pp", "4", "--brief", "--rank-order", "tp-cp-ep-pp-dp", "-o", str(path)]  # fmt: skip
    assert run(asked) == 0
    return path


def test_rank_order_can_be_fixed_and_the_label_says_it(plan_file):
    layout = load_plan(plan_file).layout
    assert layout.rank_order == "tp-cp-ep-pp-dp"
    if layout.dp > 1:
        assert "order:tp-pp-dp" in layout.label()


def test_nearest_writes_files_and_the_plan_they_run(plan_file, tmp_path, capsys):
    assert run(["export", str(plan_file), "--to", "deepspeed"]) == 2
    assert "--nearest writes it" in capsys.readouterr().err
    asked = ["export", str(plan_file), "--to", "deepspeed", "--nearest", "-o", str(tmp_path)]
    assert run(asked) == 0
    assert "changed: " in capsys.readouterr().err
    close = load_plan(tmp_path / "plan.toml")
    assert close.job.framework == "deepspeed"
    assert close.fits
    assert run(["export", str(tmp_path / "plan.toml"), "--to", "deepspeed"]) == 0


def test_all_that_writes_nothing_is_an_error(plan_file, tmp_path, capsys):
    data = tomllib.loads(plan_file.read_text())
    data["model"]["positions"] = "alibi"
    other = tmp_path / "alibi.toml"
    other.write_text(tomli_w.dumps(data))
    assert run(["export", str(other), "--all", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert "no other layout would change that" in told and "--nearest" not in told
    assert not (tmp_path / "out").exists()
