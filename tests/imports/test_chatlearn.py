"""ChatLearn's experiments: the policy trainer's update, on Megatron-LM or FSDP2."""

import pytest

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

RUN = """
runtime_args: {train_backend: megatron, train_micro_batch_size: 2, train_global_batch_size: 128, num_episode: 10}
models:
  policy_trainer:
    num_gpu: 16
    train_micro_batch_size: ${runtime_args.train_micro_batch_size}
    tensor_model_parallel_size: 2
    expert_model_parallel_size: 4
    use_distributed_optimizer: True
    packing: False
    kl_coef: 0.01
    load: ckpt/own-mcore
  policy: {load: models/Qwen3-30B-A3B, max_prompt_tokens_length: 512, max_response_tokens_length: 1536}
"""
GIVEN = Given(cluster=load_cluster("h100:2x8"))


def test_the_update_on_megatron_takes_its_model_from_the_checkpoint():
    found = import_text(RUN, "run.yaml", GIVEN)
    layout = found.layout
    assert (found.model.name, layout.tp, layout.ep, layout.dp, layout.zero) == ("qwen3-30b-a3b", 2, 4, 8, 1)  # fmt: skip
    assert layout.sequence_parallel and layout.micro_batch == 2
    assert (found.job.seq_len, found.job.global_batch, found.job.dropout) == (2048, 128, 0)
    named = {one.option for one in found.remarks if one.kind == "unmodelled"}
    assert "kl_coef" in named and "--moe-token-dispatcher-type" not in named


def test_the_update_on_fsdp_shards_whole_and_fills_its_micro_batches():
    text = RUN.replace("backend: megatron", "backend: fsdp").replace("packing: False", "packing: True\n    max_token_in_packing: 8192")  # fmt: skip
    text = text.replace("    tensor_model_parallel_size: 2\n", "").replace("    expert_model_parallel_size: 4\n", "")  # fmt: skip
    found = import_text(text, "run.yaml", GIVEN)
    assert (found.layout.zero, found.layout.recompute, found.layout.micro_batch) == (3, "full", 4)
    assert found.job.document_masking and found.job.precision.gradient_reduce_bytes == 4


def test_models_of_images_and_unknown_ones_are_refused():
    with pytest.raises(SpecError, match="vision-language"):
        import_text(RUN.replace("{train_backend", "{model_type: vlm, train_backend"), "run.yaml", GIVEN)  # fmt: skip
    with pytest.raises(SpecError, match="no preset"):
        import_text(RUN.replace("Qwen3-30B-A3B", "own"), "run.yaml", GIVEN)
