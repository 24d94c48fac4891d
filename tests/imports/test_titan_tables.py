"""torchtitan's tables below `backend.titan` of a Hydra configuration, with the groups that its defaults name."""

import pytest
import yaml

from meshwright.imports.files import import_file
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

GIVEN = Given(cluster=load_cluster("h100:2x4"), guess=True)
MODEL = {"name": "qwen3_custom", "flavor": "small", "dim": 512, "n_layers": 4, "n_heads": 8, "n_kv_heads": 2, "head_dim": 64, "hidden_dim": 1536, "vocab_size": 1000,
         "qk_norm": True, "moe_enabled": True, "moe_inter_dim": 128, "moe_num_experts": 8, "moe_top_k": 2}  # fmt: skip
RUN = {
    "defaults": ["../base", {"/backend": "titan"}, {"override /backend/titan/model": "small"}, "_self_"],
    "backend": {"titan": {
        "model": {"vocab_size": 2000}, "training": {"steps": 100, "local_batch_size": 4, "seq_len": 1024, "dtype": "bfloat16"},
        "parallelism": {"expert_parallel_degree": 4, "data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 4},
        "activation_checkpoint": {"mode": "full"}}},
    "slurm": {"sbatch": {"nodes": 2, "gpus_per_node": 4}},
}  # fmt: skip


def written(folder, *, with_model):
    where = folder / "config"
    (where / "experiments").mkdir(parents=True)
    for group in ("model", "parallelism"):
        (where / "backend/titan" / group).mkdir(parents=True)
    (where / "backend/titan/base.yaml").write_text("defaults:\n  - model: default\n  - parallelism: default\n  - data: any\n  - _self_\n")  # fmt: skip
    (where / "backend/titan/parallelism/default.yaml").write_text("tensor_parallel_degree: 1\ndata_parallel_shard_degree: -1\n")  # fmt: skip
    if with_model:
        (where / "backend/titan/model/small.yaml").write_text(yaml.safe_dump(MODEL))
    path = where / "experiments/run.yaml"
    path.write_text(yaml.safe_dump(RUN))
    return path


def test_groups_of_defaults_are_followed(tmp_path):
    found = import_file(written(tmp_path, with_model=True), GIVEN)
    assert (found.model.layers, found.model.vocab, found.model.qk_norm) == (4, 2000, "head")
    assert (found.model.experts.experts, found.model.experts.top_k, found.model.experts.ffn) == (8, 2, 128)  # fmt: skip
    assert (found.layout.dp, found.layout.ep, found.layout.shard, found.layout.micro_batch) == (8, 4, 4, 4)  # fmt: skip
    assert found.layout.recompute == "full" and found.job.precision.compute == "bf16"
    assert not [one for one in found.remarks if one.kind == "unread"]


def test_a_model_that_is_not_here_is_asked_for(tmp_path):
    with pytest.raises(SpecError, match="--model"):
        import_file(written(tmp_path, with_model=False), GIVEN)
