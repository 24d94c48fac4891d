"""Published runs become plans, are exported, and come back without loss."""

import pytest
from plans import NO_ESTIMATE

from meshwright.evidence.import_rows import import_row
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.rows import published_rows
from meshwright.exports.canonical import canonical
from meshwright.exports.limits import problems
from meshwright.exports.targets import FRAMEWORKS, export
from meshwright.imports.files import import_file
from meshwright.imports.reading import Given
from meshwright.specs import Plan


def published(table):
    """The distinct plans of a table of published runs."""
    found = {}
    for row in published_rows([table]):
        try:
            run = import_row(row)
        except SkipRow:
            continue
        plan = Plan(model=run.model, cluster=run.cluster, job=run.job, layout=run.layout,
                    estimate=NO_ESTIMATE, fits=True)  # fmt: skip
        found[plan.model_dump_json()] = plan
    return list(found.values())


# How many distinct plans each table has at least, and what keeps the rest from Megatron's words.
TABLES = {
    "nvidia_megatron_bridge": (40, ()),
    "nvidia_dgxc_benchmarking": (100, ("job.finetune", "zero")),
    "mlperf_training": (40, ("job.finetune", "cluster")),  # runs on TPUs
    "megatron_lm_published": (30, ()),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
def test_published_runs_survive_export_and_import(table, target, tmp_path):
    least, allowed = TABLES[table]
    plans = published(table)
    assert len(plans) >= least
    exported = 0
    for plan in plans:
        if plan.model.unusual():
            continue  # hybrids and layers that predict further tokens are read and priced, not written
        refused = problems(plan, FRAMEWORKS[target].limits)
        if refused:
            assert {p.field for p in refused} <= set(allowed), (plan.layout.label(), refused)
            continue
        export(plan, target).write(tmp_path)
        back = import_file(tmp_path / "run.sh", Given(cluster=plan.cluster))
        assert back.layout == canonical(plan.layout, plan.model), plan.model.name
        assert back.job.seq_len == plan.job.seq_len
        assert back.job.global_batch == plan.job.global_batch
        assert back.job.precision.compute == plan.job.precision.compute
        same = ("layers", "hidden", "heads", "ffn", "vocab", "gated", "tied_embeddings",
                "latent_attention", "qkv_bias", "window")  # fmt: skip
        for field in same:
            assert getattr(back.model, field) == getattr(plan.model, field), field
        if plan.model.experts:
            ours, theirs = plan.model.experts, back.model.experts
            assert theirs is not None
            for field in ("experts", "top_k", "ffn", "shared_ffn"):
                assert getattr(theirs, field) == getattr(ours, field), field
        exported += 1
    assert exported >= (least if not allowed else 1)
