"""fairseq2's YAML of language models."""

import pytest
from folders import GUESS

from meshwright.imports.files import import_text
from meshwright.specs.errors import SpecError

RUN = """
model: {{name: {model}, dtype: {dtype}}}
dataset: {{max_seq_len: 4096{batch}, config_overrides: {{sources: {{}}}}}}
tokenizer: {{name: llama3}}
gang: {{tensor_parallel_size: {tp}}}
trainer: {{data_parallelism: {kind}, fsdp: {{reshard_after_forward: {again}, fp32_reduce: true}}, mixed_precision: {{mode: {mode}, dtype: bfloat16}},
  grad_accumulation: {{num_batches: 4}}, activation_checkpointing: {{mode: {recompute}}}}}
optimizer: {{name: adamw, config: {{lr: 1.0e-4}}}}
regime: {{num_steps: 1000}}
"""


def run(**words: object):
    usual = {"model": "llama3_2_1b_instruct", "dtype": "float32", "batch": "", "tp": 1, "kind": "fsdp", "again": "true", "mode": "static", "recompute": "off"}  # fmt: skip
    return import_text(RUN.format(**usual | words), "c.yaml", GUESS)


def test_its_words():
    found = run()
    assert (found.format, found.model.name) == ("fairseq2 YAML", "llama3.2-1b")
    assert (found.layout.zero, found.layout.micro_batch, found.job.global_batch) == (3, 4, 128)
    assert (found.job.precision.name, found.layout.recompute) == ("bf16-fp32-grads", "none")
    assert [one for one in found.remarks if one.kind == "unread"] == []


@pytest.mark.parametrize(
    ("words", "place", "value"),
    [
        ({"kind": "ddp"}, "zero", 0), ({"again": "false"}, "zero", 2), ({"tp": 2}, "tp", 2), ({"recompute": "layerwise"}, "recompute", "full"),
        ({"batch": ", batch_size: 3"}, "micro_batch", 3), ({"batch": ", max_num_tokens: 8192"}, "micro_batch", 2),
    ],
)  # fmt: skip
def test_what_changes_the_layout(words: dict[str, object], place: str, value: object):
    assert getattr(run(**words).layout, place) == value


def test_without_mixed_precision_all_is_in_the_weights_width():
    assert run(mode="'off'", dtype="bfloat16").job.precision.name == "pure-bf16"
    assert run(mode="'off'").job.precision.name == "fp32"


def test_layers_of_its_own():
    assert run(model="llama3_8b, config_overrides: {num_layers: 4}").model.layers == 4


def test_a_recipe_of_speech_is_refused():
    with pytest.raises(SpecError, match="model of speech"):
        import_text("model: {name: wav2vec2_base}\ndataset: {min_audio_len: 1, n_mels: 3, batch_size: 4}\noptimizer: {config: {lr: 0.1}}\ntokenizer: {name: x}\nregime: {num_steps: 3}\n", "c.yaml", GUESS)  # fmt: skip
