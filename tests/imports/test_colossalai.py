"""ColossalAI's configurations in Python."""

import pytest
from folders import GUESS

from meshwright.imports.files import import_text
from meshwright.specs.errors import SpecError

TEXT = """
from colossalai.amp import AMP_TYPE
from titans.model.gpt import {model}
BATCH_SIZE = 8
SEQ_LEN = 1024
NUM_MICRO_BATCHES = 4
{zero}
fp16 = dict(mode=AMP_TYPE.NAIVE)
optimizer = dict(type=HybridAdam, lr=0.00015)
model = dict(type={model}, checkpoint=True)
parallel = dict(pipeline=2, tensor=dict(size={size}, mode='{mode}'))
"""


def read(
    model: str = "GPT2_small_pipeline_hybrid", size: int = 2, mode: str = "1d", zero: str = ""
):
    return import_text(TEXT.format(model=model, size=size, mode=mode, zero=zero), "gpt2.py", GUESS)


def test_parallel_modes_micro_batches_and_model():
    found = read()
    assert (found.layout.tp, found.layout.pp, found.layout.micro_batch) == (2, 2, 2)
    assert found.job.global_batch == found.layout.dp * 8
    assert (found.model.layers, found.model.hidden, found.layout.recompute) == (12, 768, "full")
    assert found.job.precision.name == "fp16"
    assert read("gpt3", 4).model.hidden == 12_288


def test_zero_in_host_memory():
    found = read(zero="zero = dict(model_config=dict(tensor_placement_policy='cpu'), optimizer_config=dict())")  # fmt: skip
    assert (found.layout.zero, sorted(found.offload)) == (3, ["optimizer", "parameters"])


def test_modes_that_split_several_sides_and_models_that_are_not_known():
    with pytest.raises(SpecError, match="not modelled"):
        read(size=4, mode="2d")
    with pytest.raises(SpecError, match="--model"):
        read("my_gpt")


def test_gin_is_named():
    with pytest.raises(SpecError, match="gin"):
        import_text("MODEL = @model()\n", "base.gin", GUESS)
