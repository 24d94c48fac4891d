"""What a framework's option changes is said: every name of these was found in its own parser."""

import json
import tomllib
from importlib import resources

import pytest
import yaml

from meshwright.imports.files import import_text
from meshwright.imports.option_tables import known
from meshwright.imports.options import Options
from meshwright.imports.reading import Given, Reading
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError

H8 = Given(model=load_model("llama3-8b"), cluster=load_cluster("h100:1x8"), guess=True)
TABLES = {
    table: entry
    for file in ("options.toml", "options_tables.toml", "options_pretraining.toml")
    for table, entry in tomllib.loads(
        resources.files("meshwright.imports").joinpath(f"data/{file}").read_text("utf-8")
    ).items()
}


def named(values: dict[str, object], *tables: str) -> set[str]:
    """The options that are named, after nobody read one."""
    reading = Reading("test")
    Options(values).finish(reading, *tables)
    return {name for one in reading.remarks for name in one.option.split(", ")}


@pytest.mark.parametrize("table", TABLES)
def test_no_option_is_both_harmless_and_not(table: str):
    entry = TABLES[table]
    assert not set(entry["harmless"]) & set(entry.get("effects", {}))


@pytest.mark.parametrize("table", [name for name, one in TABLES.items() if "usual" in one])
def test_a_usual_value_is_of_an_option_that_has_an_effect(table: str):
    for pattern, value in TABLES[table]["usual"].items():
        name = pattern.replace("*", "x")
        assert known(name, (table,)), name
        assert not named({name: value}, table), name


@pytest.mark.parametrize(
    ("tables", "name", "value"),
    [
        (("megatron",), "te-precision-config-file", "p.yaml"),
        (("megatron",), "attention-output-gate", True),
        (("megatron",), "deterministic-mode", True),
        (("megatron",), "expert-interval", "2"),
        (("mindspeed", "megatron"), "npu-deterministic", True),
        (("mindspeed", "megatron"), "no-pad-to-seq-lengths", True),
        (("mindspeed", "megatron"), "attention-mask-type", "general"),
        (("mindspeed", "megatron"), "hccl-group-buffer", "dp:200"),
        (("mindspeed", "megatron"), "use-ema", True),
        (("megatron", "forks", "deepspeed_flags"), "random-ltd", True),
        (("megatron", "forks", "deepspeed_flags"), "checkpoint-in-cpu", True),
        (("megatron", "forks", "deepspeed_flags"), "num-layers-teacher", "24"),
        (("megatron", "forks", "deepspeed_flags"), "data-efficiency-curriculum-learning", True),
        (("deepspeed",), "zero_optimization.offload_optimizer.ratio", 0.3),
        (("deepspeed",), "zero_optimization.reduce_scatter", False),
        (("neox", "deepspeed", "common"), "fp16_lm_cross_entropy", True),
        (("nanotron", "common"), "model.model_config.flex_attention_mask", "document"),
        (("maxtext", "common"), "capacity_factor", 1.25),
        (("maxtext", "common"), "scan_layers", "False"),
        (("maxtext", "common"), "sparse_matmul", False),
        (("axolotl", "hf", "common"), "quantize_moe_experts", True),
        (("axolotl", "hf", "common"), "peft_layers_to_transform", [0, 1]),
        (("rl", "common"), "actor_rollout_ref.model.tiled_mlp.enabled", True),
        (("rl", "common"), "actor_rollout_ref.actor.ppo_epochs", 4),
        (("torchtune", "common"), "context_parallel_rotate_method", "alltoall"),
        (("llm_foundry", "common"), "fsdp_config.reshard_after_forward", False),
        (("torchtitan", "common"), "float8.enable_fsdp_float8_all_gather", True),
    ],
)
def test_what_changes_memory_or_time_is_named(tables: tuple[str, ...], name: str, value: object):
    assert name in named({name: value}, *tables)


@pytest.mark.parametrize(
    ("tables", "name", "value"),
    [
        (("deepspeed",), "zero_optimization.reduce_scatter", True),
        (("deepspeed",), "zero_optimization.offload_optimizer.ratio", 1),
        (("maxtext", "common"), "scan_layers", "true"),
        (("maxtext", "common"), "capacity_factor", -1),
        (("rl", "common"), "actor_rollout_ref.model.use_liger", "False"),
        (("hf", "common"), "torch_compile", "false"),
    ],
)
def test_what_stands_at_the_usual_value_is_not(tables: tuple[str, ...], name: str, value: object):
    assert not named({name: value}, *tables)


def test_an_unknown_option_is_named_though_it_says_false():
    assert named({"never_heard_of": "false"}, "hf", "common") == {"never_heard_of"}


def test_a_table_that_is_off_says_nothing_more():
    table = {"curriculum_learning.enabled": "false", "curriculum_learning.min_difficulty": 8}
    assert not named(table, "deepspeed")
    assert named({**table, "curriculum_learning.enabled": True}, "deepspeed")


def test_olmo_drops_and_biases_what_its_defaults_do():
    model = {"d_model": 512, "n_heads": 8, "n_layers": 4, "rope": True, "flash_attention": True,
             "max_sequence_length": 1024, "vocab_size": 50280}  # fmt: skip
    data = {"model": model, "global_train_batch_size": 64, "device_train_microbatch_size": 2,
            "precision": "amp_bf16", "fsdp": {"sharding_strategy": "FULL_SHARD"}}  # fmt: skip
    given = Given(cluster=load_cluster("h100:1x8"))
    found = import_text(yaml.safe_dump(data), "o.yaml", given)
    assert found.job.dropout == 0.1
    assert found.model.norm_bias
    stated = {**data, "model": {**model, "include_bias": False, "residual_dropout": 0.0}}
    found = import_text(yaml.safe_dump(stated), "o.yaml", given)
    assert found.job.dropout == 0.0
    assert not found.model.norm_bias


def test_llm_foundry_names_what_its_sharding_changes():
    text = """
max_seq_len: 1024
model: {name: mpt_causal_lm, d_model: 512, n_heads: 8, n_layers: 4, vocab_size: 50368}
train_loader: {name: text}
global_train_batch_size: 64
device_train_microbatch_size: 4
precision: amp_bf16
fsdp_config: {sharding_strategy: FULL_SHARD, keep_low_precision_grads: true, verbose: false}
algorithms: {seq_length_warmup: {duration: 0.3}}
"""
    said = " ".join(import_text(text, "m.yaml", Given(cluster=load_cluster("h100:1x8"))).notes)
    assert "between micro-batches" in said
    assert "the sequence grows" in said


RL_AREAL = """
gconfig: {n_samples: 8, max_new_tokens: 1024}
train_dataset: {batch_size: 64, max_length: 1024}
actor:
  backend: "fsdp:d8"
  path: Qwen/Qwen2.5-7B-Instruct
  gradient_checkpointing: true
  mb_spec: {max_tokens_per_mb: 4096}
"""
RL_ROLL = """
rollout_batch_size: 64
prompt_length: 1024
response_length: 1024
pretrain: Qwen/Qwen2.5-7B-Instruct
actor_train:
  device_mapping: list(range(0,8))
  training_args: {per_device_train_batch_size: 1, gradient_accumulation_steps: 8}
  strategy_args:
    strategy_name: fsdp2_train
    strategy_config: {fsdp_size: 8}
"""
RL_PRIME = """
[model]
name = "Qwen/Qwen2.5-7B-Instruct"
[data]
type = "sft"
batch_size = 32
seq_len = 4096
[deployment]
num_train_gpus = 8
[optim]
type = "adamw"
"""
SFT_VEOMNI = """
model: {model_path: Qwen/Qwen2.5-7B-Instruct}
data: {max_seq_len: 4096}
train: {micro_batch_size: 1, global_batch_size: 32}
"""
SFT_AUTOMODEL = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 64, local_batch_size: 1}
model: {pretrained_model_name_or_path: Qwen/Qwen2.5-7B-Instruct}
distributed: {strategy: fsdp2, tp_size: 1}
"""
SFT_FAST = """
training: {train_iters: 100}
batch: {sequence_length: 4096, micro_batch_size: 1, batch_size: 32}
pretrained: {path: Qwen/Qwen2.5-7B-Instruct}
model:
  multi_stage: {zero_stage: 2}
  distributed: {training_dtype: bf16}
"""
SFT_PICOTRON = """
distributed: {tp_size: 1, pp_size: 1, dp_size: 8, cp_size: 1}
model: {name: Qwen/Qwen2.5-7B-Instruct}
training: {seq_length: 1024, micro_batch_size: 1, gradient_accumulation_steps: 4}
"""


def changed(text: str, *path: str, value: object, file: str = "x.yaml") -> str:
    """A configuration with one option more."""
    data = tomllib.loads(text) if file.endswith("toml") else yaml.safe_load(text)
    inner = data
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
    inner[path[-1]] = value
    return json.dumps(data) if not file.endswith("toml") else _toml(data)


def _toml(data: dict[str, object], prefix: str = "") -> str:
    plain = [f"{k} = {json.dumps(v)}" for k, v in data.items() if not isinstance(v, dict)]
    tables = [f"[{prefix}{k}]\n{_toml(v, f'{prefix}{k}.')}" for k, v in data.items() if isinstance(v, dict)]  # fmt: skip
    return "\n".join([*plain, *tables])


@pytest.mark.parametrize(
    ("text", "file", "tables"),
    [
        (RL_AREAL, "x.yaml", [("actor",), ("actor", "fsdp"), ("actor", "mb_spec")]),
        (RL_ROLL, "x.yaml", [("actor_train",), ("actor_train", "strategy_args", "strategy_config")]),
        (RL_PRIME, "x.toml", [("model",), ("optim",), ("model", "ac")]),
        (SFT_VEOMNI, "x.yaml", [("model",), ("train",), ("train", "accelerator", "fsdp_config")]),
        (SFT_AUTOMODEL, "x.yaml", [("optimizer",), ("distributed",), ("model", "backend")]),
        (SFT_FAST, "x.yaml", [("model", "multi_stage"), ("model", "distributed"), ("schedule",)]),
        (SFT_PICOTRON, "x.yaml", [("model",), ("training",), ("distributed",)]),
    ],
    ids=["areal", "roll", "prime-rl", "veomni", "automodel", "fast-llm", "picotron"],
)  # fmt: skip
def test_no_table_swallows_what_nobody_knows(text: str, file: str, tables: list[tuple[str, ...]]):
    for table in tables:
        more = changed(text, *table, "quite_new_switch", value=7, file=file)
        back = import_text(more, file, H8)
        option = ".".join((*table, "quite_new_switch"))
        assert any(option in one.option for one in back.remarks), option


def test_skyrl_names_what_it_does_not_know():
    words = "trainer.policy.model.path=Qwen/Qwen2.5-7B trainer.policy_mini_batch_size=64 trainer.policy.megatron_config.new_switch=7 trainer.strategy=megatron"
    back = import_text(f"python -m skyrl.train.entrypoints.main_base {words}", "x.sh", H8)
    assert any("new_switch" in one.option for one in back.remarks)


@pytest.mark.parametrize(
    ("text", "master", "moments"),
    [(RL_AREAL, 0, 4), (RL_ROLL, 4, 8), (SFT_VEOMNI, 4, 8), (SFT_PICOTRON, 0, 4), (SFT_AUTOMODEL, 0, 4)],
    ids=["areal", "roll", "veomni", "picotron", "automodel"],
)  # fmt: skip
def test_torch_keeps_moments_in_the_width_of_the_weights(text: str, master: int, moments: int):
    job = import_text(text, "x.yaml", H8).job
    assert (job.precision.master_bytes, job.optimizer.state_bytes) == (master, moments)


def test_zero_keeps_32_bit_weights_whatever_it_is_given():
    """DeepSpeed's `_configure_master_weights`: 32 bits unless bf16_master_weights_and_grads."""
    words = "--model_name_or_path Qwen/Qwen2.5-7B --torch_dtype bfloat16 --per_device_train_batch_size 1"
    plain = import_text(f"torchrun --nproc_per_node 8 train.py {words}", "x.sh", H8)
    sharded = import_text(
        f"deepspeed --num_gpus 8 train.py {words} --deepspeed ds_z3_config.json", "x.sh", H8
    )
    assert plain.job.precision.master_bytes == 0
    assert sharded.layout.zero == 3
    assert sharded.job.precision.master_bytes == 4


def test_areal_takes_four_steps_a_batch_and_loads_in_16_bits():
    back = import_text(RL_AREAL, "x.yaml", H8)
    assert back.job.global_batch == 64 * 8 // 4
    assert back.layout.recompute == "full"
    shrunk = changed(RL_AREAL, "actor", "gradient_checkpointing", value=False)
    assert import_text(shrunk, "x.yaml", H8).layout.recompute == "none"
    kept = changed(RL_AREAL, "actor", "fsdp", "per_layer_optim_step", value=True)
    assert import_text(kept, "x.yaml", H8).offload == {"optimizer"}


BRIDGE = "torchrun --nproc_per_node 8 run_recipe.py --recipe qwen3_30b_a3b_pretrain_config model.expert_model_parallel_size=4 train.global_batch_size=64 train.micro_batch_size=1"


@pytest.mark.parametrize(
    "field",
    ["model.gradient_accumulation_fusion", "model.moe_grouped_gemm", "ddp.overlap_grad_reduce", "model.cross_entropy_loss_fusion"],
)  # fmt: skip
def test_a_recipes_default_that_is_switched_off_is_named(field: str):
    options = [one.option for one in import_text(f"{BRIDGE} {field}=False", "x.sh", Given(guess=True)).remarks]  # fmt: skip
    assert field in options


def test_overrides_change_the_recipes_shape():
    words = "model.num_layers=4 model.vocab_size=1000 model.num_moe_experts=16"
    model = import_text(f"{BRIDGE} {words}", "x.sh", Given(guess=True)).model
    assert model.experts is not None
    assert (model.layers, model.vocab, model.experts.experts) == (4, 1000, 16)


def test_a_recipe_that_skips_training_is_refused():
    with pytest.raises(SpecError, match="does not train"):
        import_text(f"{BRIDGE} train.skip_train=True", "x.sh", Given(guess=True))


def test_primus_names_what_it_switches_off():
    overrides = {"overlap_p2p_comm": False, "pipeline_model_parallel_size": 2, "global_batch_size": 64, "micro_batch_size": 1, "seq_length": 4096}  # fmt: skip
    module = {"framework": "megatron", "config": "pre_trainer.yaml", "model": "qwen3_30B_A3B.yaml", "overrides": overrides}  # fmt: skip
    text = yaml.safe_dump({"modules": {"pre_trainer": module}})
    back = import_text(text, "x.yaml", Given(cluster=load_cluster("h100:1x8"), guess=True))
    assert back.job.framework_options["p2p_overlapped"] is False
