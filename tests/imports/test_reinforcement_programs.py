"""Runs of reinforcement by programs and tables that stand on a known trainer, and what scripts and tables around them say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright.imports.files import import_file, import_text, read_any
from meshwright.imports.reading import Given, Imported, Reading
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)


def _read(text: str, name: str = "run.sh", folder: Path | None = None) -> Reading:
    return read_any(text, name, GUESS, folder)[0]


def _said(found: Imported | Reading, option: str) -> list[str]:
    return [one.text for one in found.remarks if one.option == option]


_OAT = "--pretrain Qwen/Qwen2.5-1.5B --train-batch-size-per-device 2 --rollout-batch-size-per-device 16 --generate-max-length 53"


@pytest.mark.parametrize(
    ("command", "devices", "zero", "batch"),
    [
        (f"python -m oat.experiment.main {_OAT} --algo DPO --gpus 4", 2, 2, 128),  # half are actors
        (f"python train_zero.py {_OAT} --collocate --critic_type drgrpo --zero-stage 3 --train_batch_size 64", 8, 3, 64),
        (f"python -m oat.experiment.main {_OAT} --collocate --gpus 4 --num_groups 2", 8, 2, 128),
        (f"deepspeed --module oat.experiment.run_offline {_OAT} --algo SFT --gpus 4 --collocate", 4, 2, 128),
    ],
)  # fmt: skip
def test_oat_divides_its_devices_among_learners_and_actors(
    command: str, devices: int, zero: int, batch: int
) -> None:
    found = import_text(command, "run.sh", GUESS)
    assert (found.cluster.gpus, found.layout.zero, found.job.global_batch) == (devices, zero, batch)
    assert (found.layout.micro_batch, found.job.seq_len) == (2, 1024 + 53)


def test_oat_s_pairs_have_a_reference() -> None:
    assert _read(f"python -m oat.experiment.main {_OAT}").reference
    assert not _read(f"python -m oat.experiment.main {_OAT} --algo SimPO").reference


_DICTIONARY = """
import copy
from torch import nn

BASE = {
    "data": {"train_batch_size": 32, "max_prompt_length": 1024, "max_response_length": 512, "train_files": str(HERE / "a.parquet")},
    "actor_rollout_ref": {
        "rollout": {"n": 4, "name": "vllm"},
        "actor": {"ppo_mini_batch_size": 16, "ppo_micro_batch_size_per_gpu": 4, "fsdp_config": {"param_offload": True}},
        "model": {"path": "Qwen/Qwen2.5-1.5B-Instruct", "enable_gradient_checkpointing": True},
    },
    "trainer": {"n_gpus_per_node": 2, "nnodes": 1},
}
"""


def test_a_program_s_dictionary_is_verl_s_configuration() -> None:
    found = import_text(_DICTIONARY, "train_agent.py", GUESS)
    assert (found.model.name, found.cluster.gpus, found.layout.micro_batch) == ("qwen2.5-1.5b", 2, 4)  # fmt: skip
    assert (found.job.global_batch, found.job.seq_len, found.layout.recompute) == (64, 1536, "full")


def test_of_several_dictionaries_one_is_chosen() -> None:
    """A function that changes a copy leaves the constant as it is."""
    text = _DICTIONARY + 'def fast():\n    config = copy.deepcopy(BASE)\n    config["actor_rollout_ref"]["rollout"]["n"] = 2\n    return config\n'  # fmt: skip
    with pytest.raises(
        SpecError, match="2 configurations of verl's: say which with --config, one of BASE, fast"
    ):
        import_text(text, "train_agent.py", GUESS)
    sizes = [import_text(text, "train_agent.py", Given(guess=True, config=one)).job.global_batch for one in ("BASE", "fast")]  # fmt: skip
    assert sizes == [64, 32]


def test_a_command_starts_such_a_program_with_another_model(tmp_path: Path) -> None:
    (tmp_path / "train_agent.py").write_text(_DICTIONARY)
    script = tmp_path / "run.sh"
    script.write_text("python train_agent.py --model meta-llama/Llama-3.2-3B-Instruct\n")
    assert import_file(script, GUESS).model.name == "llama3.2-3b"


@pytest.mark.parametrize(
    ("program", "batch"), [("verl.trainer.main_ppo", 64), ("main_ppo.py", 64), ("mine.main_azr_ppo", 128)]
)  # fmt: skip
def test_only_a_trainer_of_one_s_own_may_gather_more_than_the_prompts(
    program: str, batch: int
) -> None:
    start = f"python3 {program}" if program.endswith(".py") else f"python3 -m {program}"
    words = (
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B trainer.n_gpus_per_node=8 data.train_batch_size=64 "
        "actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"
    )
    reading = _read(f"{start} {words}")
    assert reading.global_batch == batch
    assert _said(reading, "actor_rollout_ref.actor.ppo_mini_batch_size")


_FORGE = """
prompt: 1024
answer: 512
trainer:
  model: {name: qwen3, flavor: 1.7B}
  training: {local_batch_size: 4, seq_len: "${sum:${prompt},${answer}}", dtype: bfloat16}
  parallelism: {data_parallel_shard_degree: 2}
  activation_checkpoint: {mode: full}
services:
  policy: {procs: 4, with_gpus: true}
actors:
  trainer: {procs: 2, with_gpus: true}
"""


def test_torchforge_s_trainer_is_torchtitan_s() -> None:
    found = import_text(_FORGE, "grpo.yaml", GUESS)
    assert (found.model.name, found.cluster.gpus, found.layout.micro_batch) == ("qwen3-1.7b", 2, 4)
    assert (found.job.seq_len, found.layout.zero, found.layout.recompute) == (1536, 3, "full")
    assert found.job.precision.name == "pure-bf16"


_FIRST = """
model_name = "Qwen/Qwen2.5-7B"
collate_mode = "packing"
[train]
micro_bs = 2
ac_ckpt = true
[data]
seq_length = 4096
[optim]
batch_size = 64
total_steps = 10000000000000000000
"""


def test_prime_rl_s_first_releases() -> None:
    """A number of steps beyond 64 bits is a way to say for ever, in TOML as in YAML."""
    found = import_text(_FIRST, "train.toml", GUESS)
    assert (found.job.global_batch, found.layout.micro_batch, found.job.seq_len) == (64, 2, 4096)
    assert (found.layout.zero, found.layout.recompute) == (3, "full")
    assert found.job.document_masking


_PRIME = 'max_steps = 5\n[model]\nname = "Qwen/Qwen3-0.6B"\n[data]\ntype = "fake"\nbatch_size = 8\nseq_len = 1024\n'
_CLASS = "class ModelConfig(BaseConfig):\n    ac: Annotated[A | None, Field()] = {ac}\n    ac_offloading: B | None = None\n"


@pytest.mark.parametrize(
    ("ac", "said", "recompute", "offload"),
    [
        ("", "", "full", {"optimizer", "activations"}),  # no class at hand: the newest release
        ("None", "", "none", set()),
        ("A()", "", "full", set()),
        ("None", "[model.ac]\nfreq = 1\n", "full", set()),
        ("None", "[model.ac_offloading]\npin_memory = true\n", "full", {"activations"}),
        ("None", "[model]\noptim_cpu_offload = true\n", "none", {"optimizer"}),
    ],
)
def test_what_prime_rl_does_by_itself_is_what_the_checkout_at_hand_says(
    tmp_path: Path, ac: str, said: str, recompute: str, offload: set[str]
) -> None:
    if ac:
        (tmp_path / "src" / "prime_rl" / "trainer").mkdir(parents=True)
        (tmp_path / "src" / "prime_rl" / "trainer" / "config.py").write_text(_CLASS.format(ac=ac))
    (tmp_path / "configs").mkdir()
    file = tmp_path / "configs" / "sft.toml"
    inside = said.startswith("[model]")
    file.write_text(_PRIME.replace("[model]\n", said) if inside else _PRIME + said)
    found = import_file(file, GUESS)
    assert (found.layout.recompute, set(found.offload)) == (recompute, offload)


_REAL: dict[str, Any] = {
    "command": "python3 training/main_sync_ppo.py n_nodes=2 n_gpus_per_node=8 allocation_mode=sglang.d8p1m1+d4p2m1 actor.path=Qwen/Qwen3-1.7B "
    "actor.type._class=qwen3 dataset.train_bs_n_seqs=32 group_size=8 ppo.gen.max_new_tokens=4096",
}  # fmt: skip


def test_real_s_trainers_fill_whole_hosts_and_start_from_their_program_s_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "training" / "configs").mkdir(parents=True)
    (tmp_path / "training" / "main_sync_ppo.py").write_text('@hydra.main(version_base=None, config_path="configs", config_name="sync-ppo")\ndef main(args): ...\n')  # fmt: skip
    (tmp_path / "training" / "configs" / "sync-ppo.yaml").write_text("actor: {bf16: true, megatron: {ddp: {use_distributed_optimizer: false}}}\ndataset: {max_prompt_len: 1024}\n")  # fmt: skip
    script = tmp_path / "run.sh"
    script.write_text(_REAL["command"])
    found = import_file(script, GUESS)
    assert (found.cluster.nodes, found.cluster.gpus, found.layout.pp) == (1, 8, 2)
    assert (found.job.seq_len, found.job.global_batch, found.layout.zero) == (5120, 64, 0)
    assert found.job.precision.compute == "bf16"


def test_agents_models_are_in_their_own_words() -> None:
    words = '--actor_num_gpus_per_node 1 --actor_num_nodes 1 --micro_train_batch_size 4 --train_batch_size 16 --max_len 4096'  # fmt: skip
    agents = """--agents '{"0": {"pretrain": "Qwen/Qwen2.5-3B-Instruct"}}' '{"1": {"pretrain": "Qwen/Qwen2.5-3B-Instruct"}}'"""
    reading = _read(f"python3 -m openrlhf.cli.multi_agent_train_ppo_ray {words} {agents}")
    assert reading.model_name == "Qwen/Qwen2.5-3B-Instruct"
    assert _said(reading, "--agents")


_SHORT = """
model:
  model_id: Qwen/Qwen3-1.7B-Base
  dtype: bfloat16
  remat_config: DECODER
  lora_config: {rank: 64, alpha: 64.0}
  mesh: {shape: [2, 2], axis_names: [fsdp, tp]}
dataset: {name: some/rows, batch_size: 4, max_length: 2048}
optimizer: {learning_rate: 4.0e-5}
training: {max_steps: 100, gradient_accumulation_steps: 8}
"""


def test_tunix_s_model_table_in_a_program_of_its_own() -> None:
    found = import_text(_SHORT, "recipe.yaml", GUESS)
    assert (found.cluster.gpus, found.layout.tp, found.layout.zero) == (4, 2, 3)
    assert (found.job.global_batch, found.job.seq_len, found.layout.recompute) == (32, 2048, "full")
    assert found.job.finetune.rank == 64


@pytest.mark.parametrize("table", ["lora_config", "peft", "lora_args", "my_lora"])
def test_adapters_are_read_from_tables_of_any_usual_name(table: str) -> None:
    text = f"model: {{name: Qwen/Qwen3-1.7B}}\ntraining: {{batch_size: 2, learning_rate: 1.0e-4, max_length: 512}}\n{table}: {{rank: 24, alpha: 48}}\n"
    assert import_text(text, "mine.yaml", GUESS).job.finetune.rank == 24


@pytest.mark.parametrize(
    "before", ["env", "env A=1", "env -u B A=1", "env -i PATH=/bin A=1", "nohup env A=1"]
)
def test_env_starts_what_follows_it(before: str) -> None:
    words = "train.py --model_name Qwen/Qwen2.5-7B --per_device_train_batch_size 3"
    assert _read(f"{before} torchrun --nproc_per_node 2 {words} --max_seq_length 512").micro_batch == 3  # fmt: skip


def test_a_module_that_trains_by_its_name_counts_among_several() -> None:
    words = "--model-name Qwen/Qwen2.5-7B --batch-size 4 --lr 1e-5"
    script = f"python3 server.py serve --a 1 --b 2 --c 3 --d 4 --e 5\npython3 -m mine.grpo {words}\npython3 -m mine.grpo {words} --lora-r 8\n"
    reading = _read(script)
    assert reading.micro_batch == 4
    assert any("starts 2 different trainings" in one.text for one in reading.remarks)


def test_what_a_program_writes_into_its_trainer_counts_over_its_options(tmp_path: Path) -> None:
    (tmp_path / "sft.py").write_text(
        "from dataclasses import dataclass\nfrom transformers import AutoModelForCausalLM, HfArgumentParser, TrainingArguments\nfrom trl import SFTTrainer\n"
        "@dataclass\nclass Mine:\n    model_name: str = 'facebook/opt-125m'\n    seq_length: int = 128\n    packing: bool = True\n"
        "mine, args = HfArgumentParser((Mine, TrainingArguments)).parse_args_into_dataclasses()\n"
        "model = AutoModelForCausalLM.from_pretrained(mine.model_name)\n"
        "SFTTrainer(model=model, args=args, packing=False, max_seq_length=256).train()\n"
    )
    script = tmp_path / "run.sh"
    script.write_text("python sft.py --model_name facebook/opt-125m --per_device_train_batch_size 8\n")  # fmt: skip
    found = import_file(script, GUESS)
    assert found.job.seq_len == 256
    assert _said(found, "packing")


def test_prime_rl_s_second_releases_name_the_model_in_a_table() -> None:
    found = import_text(_FIRST.replace('model_name = "Qwen/Qwen2.5-7B"', "") + '[model]\nname = "Qwen/Qwen2.5-7B"\n', "train.toml", GUESS)  # fmt: skip
    assert (found.model.name, found.layout.micro_batch, found.layout.zero) == ("qwen2.5-7b", 2, 3)


_WORDS = (
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B trainer.n_gpus_per_node=8 data.train_batch_size=32 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
)


def test_rllm_s_table_counts_over_verl_s() -> None:
    own = "rllm.rollout.n=4 rllm.algorithm.adv_estimator=grpo rllm.async_training.enable=true rllm.async_training.mini_batch_size=64"
    reading = _read(f"python -m examples.train_mine rllm/backend=verl {_WORDS} {own}")
    assert reading.global_batch == 256
    assert not _said(reading, "algorithm.adv_estimator")  # no critic
    own = own.replace("enable=true", "enable=false")
    words = f"{_WORDS} actor_rollout_ref.actor.ppo_mini_batch_size=16 {own}"
    assert _read(f"python -m examples.train_mine rllm/backend=verl {words}").global_batch == 64


def test_a_trainer_that_repeats_its_prompts_fills_its_mini_batch() -> None:
    command = f"python3 -m verl.trainer.main_ppo {_WORDS} actor_rollout_ref.actor.ppo_mini_batch_size=512 agent_grpo.n=16"
    assert _read(command).global_batch == 512


@pytest.mark.parametrize(("length", "priced"), [(1001, 1008), (1000, 1000)])
def test_a_bound_that_ranks_cannot_share_evenly_is_padded(length: int, priced: int) -> None:
    words = f"{_WORDS} actor_rollout_ref.actor.ulysses_sequence_parallel_size=4 data.max_prompt_length={length - 500} data.max_response_length=500"
    found = import_text(f"python3 -m verl.trainer.main_ppo {words}", "run.sh", GUESS)
    assert (found.layout.cp, found.job.seq_len) == (4, priced)


def test_a_comment_after_a_backslash_does_not_drop_the_rest() -> None:
    """bash ends the command there, and no trainer would start: the author meant one command."""
    script = "python3 -m verl.trainer.main_ppo \\\n  data.train_files= \\ # put yours\n  actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\\n  trainer.n_gpus_per_node=2\n"
    reading = _read(script)
    assert (reading.model_name, reading.per_host) == ("Qwen/Qwen2.5-7B", 2)
    assert any("lacks a backslash" in one.text for one in reading.remarks)


_RUN = 'seq_len = 2048\n[model]\nname = "Qwen/Qwen3-0.6B"\n[orchestrator]\nbatch_size = 128\n[trainer.optim]\nlr = 3e-6\n{more}[inference]\n'


@pytest.mark.parametrize(
    ("more", "loss"),
    [("", "chunked"), ('[trainer.model]\nfused_lm_head_token_chunk_size = "disabled"\n', "framework"), ("[trainer.model]\nfused_lm_head_token_chunk_size = 512\n", "chunked")],
)  # fmt: skip
def test_prime_rl_s_reinforcement_takes_the_head_in_chunks(more: str, loss: str) -> None:
    assert import_text(_RUN.format(more=more), "rl.toml", GUESS).job.loss == loss


def test_prime_rl_s_supervised_runs_hold_whole_logits() -> None:
    said = _PRIME.replace(
        "[data]", "fused_lm_head_token_chunk_size = 512\ncompile = 'None'\n[data]"
    )
    found = import_text(said, "sft.toml", GUESS)
    assert found.job.loss == "framework"
    assert ["holds all logits" in one for one in _said(found, "model.fused_lm_head_token_chunk_size")] == [True]  # fmt: skip
    assert not _said(found, "model.compile")


@pytest.mark.parametrize(("default", "name"), [("True", "bf16"), ("False", "fp32")])
def test_fsdp_casts_in_a_loop_of_one_s_own(default: str, name: str) -> None:
    text = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision\nfrom transformers import AutoModelForCausalLM\n"
        f"use_mixed_precision: bool = {default}\nbatch_size = 2\nmax_length = 512\n"
        "policy = MixedPrecision(\n    param_dtype=torch.bfloat16,\n    reduce_dtype=torch.bfloat16,\n)\n"
        "model = FSDP(AutoModelForCausalLM.from_pretrained('gpt2-medium'), mixed_precision=policy if use_mixed_precision else None)\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)\nfor batch in loader:\n    loss = model(**batch).loss\n    loss.backward()\n    optimizer.step()\n"
    )
    assert import_text(text, "fsdp_sft.py", GUESS).job.precision.compute == name
