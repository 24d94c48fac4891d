"""PaddleNLP's arguments."""

import json
from pathlib import Path
from typing import Any

import pytest
from folders import GUESS, put

from meshwright.imports.files import import_text
from meshwright.specs.errors import SpecError

PRETRAIN: dict[str, Any] = {
    "model_name_or_path": "meta-llama/Meta-Llama-3-8B", "per_device_train_batch_size": 1, "gradient_accumulation_steps": 16,
    "tensor_parallel_degree": 2, "pipeline_parallel_degree": 2, "sharding_parallel_degree": 2, "sharding": "stage1", "sequence_parallel": 1,
    "max_seq_length": 4096, "bf16": True, "fp16_opt_level": "O2", "recompute": True, "use_flash_attention": True, "do_train": True,
}  # fmt: skip


def read(**said: Any):
    return import_text(json.dumps({**PRETRAIN, **said}), "pretrain_argument.json", GUESS)


def test_degrees_batches_and_stages():
    found = read()
    assert found.format == "PaddleNLP arguments"
    assert (found.layout.tp, found.layout.pp, found.layout.dp, found.layout.zero) == (2, 2, 2, 1)
    assert (found.job.global_batch, found.job.seq_len, found.layout.recompute) == (32, 4096, "full")
    assert found.layout.sequence_parallel


def test_widths_and_offload():
    assert read().job.precision.gradient_bytes == 2
    assert read(amp_master_grad=True).job.precision.gradient_bytes == 4
    assert read(fp16_opt_level="O1").job.precision.parameter_bytes == 4
    assert "optimizer" in read(sharding="stage2 offload", pipeline_parallel_degree=1).offload
    assert read(sharding="stage2", pipeline_parallel_degree=1).job.framework == "megatron-fsdp"
    with pytest.raises(SpecError, match="stage1, stage2 or stage3"):
        read(sharding="stage9")


def test_adapters_and_sequences_split_over_heads():
    assert read(lora=True, pipeline_parallel_degree=1, sharding="").job.finetune.rank == 8
    assert read(sep_parallel_degree=2, tensor_parallel_degree=1).layout.cp == 2


def test_its_launcher_names_it(tmp_path: Path):
    found = put(
        tmp_path, 'python -u -m paddle.distributed.launch --gpus "0,1,2,3,4,5,6,7" run_pretrain.py ./a.json', a__json=json.dumps(PRETRAIN),
    )  # fmt: skip
    assert (found.layout.tp, found.layout.pp) == (2, 2)


def test_quantisation_does_not_train():
    with pytest.raises(SpecError, match="does not train"):
        read(do_train=False, do_ptq=True)
