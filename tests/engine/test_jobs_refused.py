"""The engine trains all weights: a plan that says otherwise is refused, never trained wholly."""

import pytest

import meshwright as mw
from meshwright.cli import run
from meshwright.engine.parallel.guards import check_job
from meshwright.specs.errors import SpecError


@pytest.mark.parametrize(
    "job",
    [
        {"finetune": {"method": "lora", "rank": 8}},
        {"finetune": {"method": "full", "frozen_layers": 2}},
        {"loss": "liger"},
        {"loss": "chunked"},
    ],
)
def test_other_weights_or_losses_are_refused(job):
    with pytest.raises(SpecError, match=r"job\.(finetune|loss)"):
        check_job(mw.Job.parse({"seq_len": 128, **job}))


def test_a_plan_with_adapters_does_not_train_all_weights(tmp_path, capsys):
    plan = tmp_path / "plan.toml"
    made = ["plan", "gpt2", "--cluster", "cpu:1x1", "--seq", "64", "--global-batch", "2"]
    assert (
        run(
            [
                *made,
                "--finetune",
                "lora",
                "--framework",
                "trl",
                "--precision",
                "bf16",
                "--brief",
                "-o",
                str(plan),
            ]
        )
        == 0
    )
    capsys.readouterr()
    assert run(["train", str(plan), "--steps", "1", "--out", str(tmp_path / "run")]) == 2
    assert "job.finetune" in capsys.readouterr().err
