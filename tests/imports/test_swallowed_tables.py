"""No reader marks a whole table as read: what its framework's table of options names comes through the reader."""

import json
import tomllib
from importlib import resources
from typing import Any

import pytest
import yaml

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError

H8 = Given(model=load_model("llama3-8b"), cluster=load_cluster("h100:1x8"), guess=True)
TABLES: dict[str, Any] = tomllib.loads(
    resources.files("meshwright.imports").joinpath("data/options.toml").read_text("utf-8")
)
FILES = {
    "axolotl": """
base_model: meta-llama/Llama-3.1-8B
datasets: [{path: x}]
adapter: lora
micro_batch_size: 1
sequence_len: 1024
learning_rate: 1.0e-4
fsdp: [full_shard]
fsdp_config: {fsdp_sharding_strategy: FULL_SHARD}
""",
    "hf": """
model_name_or_path: meta-llama/Llama-3.1-8B
dataset_name: x
use_peft: true
lora_r: 8
per_device_train_batch_size: 1
max_seq_length: 1024
learning_rate: 1.0e-4
bf16: true
num_train_epochs: 1
fsdp: full_shard
fsdp_config: {activation_checkpointing: true}
""",
    "deepspeed": """
train_micro_batch_size_per_gpu: 1
gradient_accumulation_steps: 1
bf16: {enabled: true}
optimizer: {type: AdamW, params: {lr: 1.0e-4}}
zero_optimization: {stage: 3}
""",
    "torchtune": """
model: {_component_: torchtune.models.llama3_1.llama3_1_8b}
tokenizer: {_component_: x, max_seq_len: 1024}
batch_size: 2
gradient_accumulation_steps: 1
optimizer: {_component_: torch.optim.AdamW, lr: 1.0e-5}
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
dtype: bf16
enable_activation_checkpointing: true
""",
    "neox": """
checkpoint_activations: true
pipe_parallel_size: 1
model_parallel_size: 1
num_layers: 4
hidden_size: 256
num_attention_heads: 4
seq_length: 1024
max_position_embeddings: 1024
train_micro_batch_size_per_gpu: 1
fp16: {enabled: true}
optimizer: {type: Adam, params: {lr: 1.0e-4}}
zero_optimization: {stage: 1}
""",
    "llm_foundry": """
max_seq_len: 1024
model: {name: mpt_causal_lm, d_model: 512, n_heads: 8, n_layers: 4, vocab_size: 50368}
train_loader: {name: text}
optimizer: {name: decoupled_adamw, lr: 1.0e-4}
global_train_batch_size: 64
device_train_microbatch_size: 4
precision: amp_bf16
fsdp_config: {sharding_strategy: FULL_SHARD}
""",
    "olmo": """
model: {d_model: 512, n_heads: 8, n_layers: 4, rope: true, flash_attention: true, max_sequence_length: 1024, vocab_size: 50280}
global_train_batch_size: 64
device_train_microbatch_size: 2
precision: amp_bf16
optimizer: {name: adamw}
fsdp: {sharding_strategy: FULL_SHARD}
""",
    "litgpt": """
checkpoint_dir: checkpoints/meta-llama/Llama-3.1-8B
precision: bf16-true
devices: 8
lora_r: 8
train: {global_batch_size: 8, micro_batch_size: 1, max_seq_length: 1024}
""",
    "accelerate": """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
num_machines: 1
num_processes: 8
mixed_precision: bf16
fsdp_config: {fsdp_sharding_strategy: FULL_SHARD}
""",
}
READ_ELSEWHERE = {"communication_data_type"}
"""Named as an effect, and read where it says what the reader knows."""


def with_option(table: str, option: str, value: object) -> Imported:
    """The file of a format with one option more, imported."""
    data = yaml.safe_load(FILES[table])
    inner = data
    *path, last = option.split(".")
    for name in path:
        if not isinstance(inner.get(name), dict):
            inner[name] = {}
        inner = inner[name]
    inner[last] = value
    return as_imported(table, data)


def as_imported(table: str, data: dict[str, Any]) -> Imported:
    """A format's table, imported."""
    return import_text(json.dumps(data), "x.json" if table == "deepspeed" else "x.yaml", H8)


def is_told(back: Imported, base: Imported, option: str) -> bool:
    """Whether a remark names the option, or it changed what was read."""
    short = option.rsplit(".", 1)[-1]
    named = any(short in one.option or option in one.text for one in back.remarks)
    return named or (back.job, back.layout, back.model, back.offload) != (
        base.job, base.layout, base.model, base.offload,
    )  # fmt: skip


@pytest.mark.parametrize("table", FILES)
def test_what_a_table_names_comes_through_its_reader(table: str):
    base = as_imported(table, yaml.safe_load(FILES[table]))
    silent = []
    for pattern in TABLES[table]["effects"]:
        option = pattern.replace("*", "_x")
        told = option in READ_ELSEWHERE
        for value in (True, 7, "other", False):
            if told:
                break
            try:
                told = is_told(with_option(table, option, value), base, option)
            except SpecError:
                told = True
        if not told:
            silent.append(option)
    assert not silent


@pytest.mark.parametrize(
    ("table", "inner"),
    [
        ("axolotl", ("", "fsdp_config.", "peft.")),
        ("hf", ("", "fsdp_config.", "gradient_checkpointing_kwargs.")),
        ("deepspeed", ("", "optimizer.", "optimizer.params.", "bf16.", "zero_optimization.",
                       "zero_optimization.offload_optimizer.", "activation_checkpointing.")),
        ("torchtune", ("", "model.", "optimizer.", "loss.")),
        ("neox", ("", "fp16.", "optimizer.params.", "zero_optimization.", "data_types.")),
        ("llm_foundry", ("", "model.", "model.attn_config.", "fsdp_config.", "optimizer.")),
        ("olmo", ("", "model.", "fsdp.", "optimizer.")),
        ("litgpt", ("", "train.")),
        ("accelerate", ("", "fsdp_config.", "deepspeed_config.")),
    ],
)  # fmt: skip
def test_what_nobody_knows_is_named(table: str, inner: tuple[str, ...]):
    for where in inner:
        option = f"{where}quite_new_switch"
        assert any(option in one.option for one in with_option(table, option, 7).remarks), option


@pytest.mark.parametrize("prefix", ["lora_", "peft_", "bnb_"])
def test_adapters_have_no_option_that_nobody_looks_at(prefix: str):
    back = with_option("hf", f"{prefix}quite_new_switch", 7)
    assert any(f"{prefix}quite_new_switch" in one.option for one in back.remarks)


def test_neox_adds_gradients_in_the_type_that_it_names():
    assert (
        with_option("neox", "data_types.grad_accum_dtype", "fp32").job.precision.gradient_bytes == 2
    )  # fp16's own
    wide = yaml.safe_load(FILES["neox"]) | {"fp16": {"enabled": False}, "bf16": {"enabled": True}}
    wide["data_types"] = {"grad_accum_dtype": "fp32"}
    assert import_text(yaml.safe_dump(wide), "x.yaml", H8).job.precision.gradient_bytes == 4


def test_neox_offloads_what_its_inner_table_says():
    back = with_option("neox", "zero_optimization.offload_optimizer.device", "cpu")
    assert back.offload == {"optimizer"}


def test_a_list_that_an_autotuner_tries_is_no_stage():
    with pytest.raises(SpecError, match="tried one after another"):
        with_option("neox", "zero_optimization.stage", [0, 1, 2, 3])


def test_accelerate_compiles_only_where_it_says_so():
    assert any(one.option == "dynamo_backend" for one in with_option("accelerate", "dynamo_backend", "INDUCTOR").remarks)  # fmt: skip
    assert not any("dynamo" in one.option for one in with_option("accelerate", "dynamo_backend", "NO").remarks)  # fmt: skip
