"""What the planner answers when ranks are lost."""

import pytest

from meshwright.cli.replanning import replanner
from meshwright.engine.model.toy import TOY
from meshwright.engine.parallel.guards import check
from meshwright.planner.legality import Question, why_illegal
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job

JOB = Job(seq_len=32, global_batch=8, precision=RECIPES["fp32"], optimizer=OPTIMIZERS["adamw"])


@pytest.mark.parametrize("cluster", ["cpu:1x8", "cpu:2x4", "h100:2x8"])
def test_the_answer_runs_on_what_is_left_and_the_planner_approves_it(cluster):
    whole = load_cluster(cluster)
    replan = replanner(TOY, JOB, whole)
    for left in range(1, whole.gpus):
        layout = replan(left)
        assert 1 <= layout.world <= left
        assert layout.world >= left // 2
        check(TOY, layout, global_batch=JOB.global_batch, seq_len=JOB.seq_len)
        if layout.world <= 8:
            smaller = load_cluster(f"{cluster.split(':')[0]}:1x{layout.world}")
            question = Question(TOY, smaller, JOB.but(framework="meshwright"))
            assert why_illegal(question, layout) is None


def test_a_job_that_fits_no_smaller_world_is_refused():
    job = JOB.but(global_batch=7)  # 7 = dp · micro-batches; the toy has 4 heads and 4 layers
    assert replanner(TOY, job, load_cluster("cpu:1x8"))(7).world in (4, 7)
    huge = TOY.but(hidden=64 * 1024, ffn=192 * 1024)
    with pytest.raises(SpecError, match="no layout of toy fits"):
        replanner(huge, JOB, load_cluster("cpu:1x2"))(1)
