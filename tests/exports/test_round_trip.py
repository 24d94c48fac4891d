"""Export, then import: the same layout, job and model, for every target that can be read back."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plans import MODELS, TITAN, plans

from meshwright.exports.canonical import canonical
from meshwright.exports.targets import FRAMEWORKS, export
from meshwright.imports.files import import_file
from meshwright.imports.reading import Given

EXAMPLES = 200 if os.environ.get("MESHWRIGHT_VALIDATE_MORE") else 25
UNSPOKEN = ("accelerate", "trainer")
"""Targets whose files have no word for the width of gradients, which follows from how they shard."""
READABLE = {
    "torchtitan": "recipe.py",
    "nanotron": "nanotron.yaml",
    "maxtext": "maxtext.yml",
    "megatron-bridge": "run.sh",
    "fsdp": "train_fsdp.py",
    "lightning": "train_lightning.py",
    "megatron": "run.sh",
    "primus": "primus.yaml",
    "deepspeed": "ds_config.json",
    "accelerate": "accelerate.yaml",
    "trainer": "trainer.yaml",
}


@pytest.mark.parametrize("target", READABLE)
def test_the_layout_survives_export_and_import(target, tmp_path):
    limits = FRAMEWORKS[target].limits

    @settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(plan=plans(limits, TITAN if target == "torchtitan" else MODELS))
    def check(plan):
        can = limits.can
        shards = plan.layout.zero >= 2 and plan.layout.dp * plan.layout.cp > 1
        name = can.shards_as if shards and can.shards_as else can.name
        plan = plan.but(job=plan.job.but(framework=name).model_dump())
        made = export(plan, target)
        made.write(tmp_path)
        back = import_file(tmp_path / READABLE[target])
        assert back.layout == canonical(plan.layout, plan.model)
        assert back.job.precision.compute == plan.job.precision.compute
        said = any("prices gradients" in note for note in made.notes)
        if not said and target not in UNSPOKEN:
            assert back.job == plan.job
        assert back.job.but(precision=plan.job.precision.model_dump()) == plan.job
        assert back.model == plan.model
        assert back.cluster == plan.cluster

    check()


@settings(max_examples=EXAMPLES, deadline=None)
@given(plan=plans(FRAMEWORKS["megatron"].limits), slurm=st.booleans())
def test_megatron_flags_alone_describe_the_model(plan, slurm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("flags")
    bundle = export(plan, "slurm" if slurm else "torchrun", launches="megatron")
    text = next(iter(bundle.files.values()))
    bare = "\n".join(line for line in text.split("\n") if not line.startswith("# model "))
    path = folder / "run.sh"
    path.write_text(bare)
    back = import_file(path, Given(cluster=plan.cluster))
    same = ("layers", "hidden", "heads", "ffn", "gated", "tied_embeddings", "vocab", "positions",
            "qkv_bias", "ffn_bias", "qk_norm", "norm", "window", "latent_attention")  # fmt: skip
    for name in same:
        assert getattr(back.model, name) == getattr(plan.model, name), name
    if plan.model.experts:
        assert [back.model.is_moe_layer(i) for i in range(back.model.layers)] == [
            plan.model.is_moe_layer(i) for i in range(plan.model.layers)
        ]
    assert back.layout == canonical(plan.layout, plan.model)
