"""What a draw of reinforcement-learning files was read wrongly for, each kind once."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text, read_any
from meshwright.imports.reading import Given, Reading
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)
_VERL = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B trainer.n_gpus_per_node=2 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"
)
_SLIME = (
    "python3 train_async.py --actor-num-nodes 2 --actor-num-gpus-per-node 4 --rollout-num-gpus 8 --num-layers 32 --hidden-size 4096 "
    "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm "
    "--vocab-size 128256 --rollout-batch-size 8 --n-samples-per-prompt 4 --use-dynamic-batch-size --max-tokens-per-gpu 16384 "
)


def _read(text: str, name: str = "run.sh") -> Reading:
    return read_any(text, name, GUESS, None)[0]


def test_nemo_rl_stands_on_several_files(tmp_path: Path) -> None:
    """`defaults` lists files, each over the one before; `_override_` drops what lies below."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "grpo.yaml").write_text("cluster: {num_nodes: 1, gpus_per_node: 4}\npolicy: {model_name: Qwen/Qwen2.5-1.5B, train_micro_batch_size: 4, precision: bfloat16, dtensor_cfg: {enabled: true}, megatron_cfg: {enabled: false}}\nenv: {math: {num_workers: 8}}\n")  # fmt: skip
    (tmp_path / "base" / "megatron.yaml").write_text("policy: {train_micro_batch_size: 1, dtensor_cfg: {enabled: false}, megatron_cfg: {enabled: true, activation_checkpointing: true, tensor_model_parallel_size: 2}}\n")  # fmt: skip
    (tmp_path / "mine").mkdir()
    file = tmp_path / "mine" / "config.yaml"
    file.write_text("defaults: [../base/grpo.yaml, ../base/megatron.yaml]\npolicy: {train_global_batch_size: 32, max_total_sequence_length: 1280}\ngrpo: {num_prompts_per_step: 4}\nenv: {_override_: true, tools: {}}\n")  # fmt: skip
    found = import_file(file, GUESS)
    layout, job = found.layout, found.job
    assert (found.cluster.gpus, layout.tp, layout.micro_batch, layout.recompute, job.framework) == (4, 2, 1, "full", "megatron")  # fmt: skip
    assert job.global_batch == 32


@pytest.mark.parametrize(
    ("said", "seq", "words"),
    [
        ("--rollout-max-response-len 4096 --rollout-max-context-len 32768 --custom-generate-function-path a.b", 32768, "at most 32768 tokens;"),
        ("--rollout-max-response-len 4096 --rollout-max-prompt-len 2048 --rollout-max-context-len 8192", 6144, "at most 6144"),
        ("--rollout-max-response-len 4096", 4096, "beside their prompts"),
        ("--loss-type sft_loss", 16384, "no length here"),
    ],
)  # fmt: skip
def test_slime_s_sequences(said: str, seq: int, words: str) -> None:
    reading = _read(_SLIME + said)
    assert reading.seq_len == seq
    assert any(words in one.text for one in reading.remarks if one.option == "--seq")


def test_slime_s_actor_has_its_own_devices() -> None:
    """What a host has, and the batch system gives, is the rollouts', too."""
    script = f"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\nNUM_GPUS_PER_NODE=8\n{_SLIME} --rollout-max-response-len 4096\n"
    assert import_text(script, "run.sh", GUESS).cluster.gpus == 8


def test_commands_in_backticks_with_substituted_processes() -> None:
    """The grammar loses the rest of a script behind these; the same is read with `$(…)`, and ends in a backslash."""
    script = (
        "port=`comm -23 <(seq 15000 20000 | sort) <(ss -Htan | awk '{print $4}' | sort -u) | shuf | head -n 1`\n"
        f"nodes=`scontrol show hostnames`\necho $port\n{_VERL} \\\n"
    )
    assert _read(script).world() == 2


def test_a_training_behind_a_switch_that_is_off() -> None:
    """Nothing trains unless the environment says so: that is asked for, and taken where guesses are."""
    script = f'RUN_IT="${{RUN_IT:-0}}"\npython -m tools.tool_server --port 1\nif [[ "$RUN_IT" == "1" ]]; then\n{_VERL}\nfi\n'
    with pytest.raises(SpecError, match="--set RUN_IT=1"):
        read_any(script, "run.sh", Given(), None)
    assert any("RUN_IT=1" in one.option for one in _read(script).remarks)
    assert read_any(script, "run.sh", Given(variables={"RUN_IT": "1"}), None)[0].world() == 2


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        ("actor_rollout_ref: {actor: {policy_loss: {loss_mode: mine}}, rollout: {n: 4}}\nalgorithm: {adv_estimator: grpo}\n", "mine.yaml", "laid over another file"),
        (_VERL.replace("verl.trainer.main_ppo", "recipe.vla.main_ppo"), "run.sh", "sees and acts"),
        (_VERL.replace("Qwen/Qwen2.5-7B", "/data/Openvla-oft-SFT"), "run.sh", "vision-language"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, name: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        import_text(text, name, GUESS)


def test_samples_side_by_side_without_packing() -> None:
    """TRL's `padding_free: true` keeps samples apart, whatever `packing: false` beside it says."""
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nmax_length: 4096\nper_device_train_batch_size: 4\npacking: false\npadding_free: true\nlearning_rate: 1e-6\nbf16: true\n"
    reading = _read(text, "config.yaml")
    assert reading.job["document_masking"] and not any(one.option == "packing" for one in reading.remarks)  # fmt: skip


_REAL = (
    "python3 -m realhf.apps.quickstart {kind} mode=local experiment_name=mine trial_name=one {role}.type._class=llama "
    "{role}.path=meta-llama/Llama-2-7b-hf dataset.train_bs_n_seqs=64 n_nodes=2 "
)


@pytest.mark.parametrize(
    ("kind", "said", "degrees", "batch"),
    [
        # A pipeline cuts 2 × pp micro-batches; PPO's batch is four parts.
        ("sft", "allocation_mode=manual allocation.parallel.pipeline_parallel_size=2 allocation.parallel.data_parallel_size=8", (1, 2, 8), (64, 2, 1024)),
        ("dpo", "allocation_mode=pipe_model dataset.max_seqlen=512", (8, 2, 1), (64, 16, 512)),
        ("ppo", "allocation_mode=d4p2m2 dataset.max_prompt_len=128 ppo.gen.max_new_tokens=512", (2, 2, 4), (16, 1, 640)),
        ("ppo", "allocation_mode=heuristic critic.path=x ppo.gen.max_new_tokens=512 ppo.ppo_n_minibatches=1", (4, 1, 2), (64, 32, 768)),
    ],
)  # fmt: skip
def test_real_s_experiments(kind: str, said: str, degrees: tuple[int, ...], batch: tuple[int, ...]) -> None:  # fmt: skip
    role = "model" if kind == "sft" else "actor"
    reading = _read(_REAL.format(kind=kind, role=role) + said)
    assert (reading.layout["tp"], reading.layout["pp"], reading.dp) == degrees
    assert (reading.global_batch, reading.micro_batch, reading.seq_len) == batch
    assert (reading.layout["zero"], reading.layout["recompute"]) == (1, "full")


def test_real_s_searches_and_generations_are_refused() -> None:
    for kind, said, why in (("gen", "", "does not train"), ("sft", "allocation_mode=search", "by a search")):  # fmt: skip
        with pytest.raises(SpecError, match=why):
            _read(_REAL.format(kind=kind, role="model") + said)


_NEMO = "cluster: {num_nodes: 1, gpus_per_node: 8}\ngrpo: {num_prompts_per_step: 4}\npolicy: {model_name: Qwen/Qwen2.5-1.5B, train_global_batch_size: 64, train_micro_batch_size: 1, max_total_sequence_length: 2048, "


@pytest.mark.parametrize(
    ("said", "micro", "named"),
    [
        ("sequence_packing: {enabled: true, train_mb_tokens: 8192}", 4, "--micro-batch"),
        ("sequence_packing: {enabled: false, train_mb_tokens: 8192}", 1, ""),
        ("dynamic_batching: {enabled: true, train_mb_tokens: 4096}", 2, "--micro-batch"),
        ("megatron_cfg: {enabled: true, fp8_cfg: {enabled: true, fp8_param: true}}", 1, "fp8_param"),
        ("dtensor_cfg: {lora_cfg: {enabled: true, match_all_linear: true, exclude_modules: [a]}}", 1, "exclude_modules"),
        ("quant_cfg: INT4", 1, "quant_cfg"),
    ],
)  # fmt: skip
def test_what_nemo_rl_s_options_change(said: str, micro: int, named: str) -> None:
    reading = _read(_NEMO + said + "}\n", "x.yaml")
    assert reading.micro_batch == micro
    assert any(named in one.option and one.kind != "unread" for one in reading.remarks)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen2.5-7B --train.batch_size 128 --actor.num_nodes 1 --actor.num_gpus_per_node 8 --data.max_len 4096 --actor.entropy_coef {}", "entropy_coef"),
        ("python -m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen2.5-7B trainer.policy_mini_batch_size=64 trainer.algorithm.use_entropy_loss={}", "use_entropy_loss"),
        ("python -m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen2.5-7B trainer.policy_mini_batch_size=64 generator.step_wise_trajectories={}", "step_wise"),
    ],
)  # fmt: skip
def test_what_stands_beside_the_loss_is_named(command: str, named: str) -> None:
    on, off = ("0.01", "0.0") if "openrlhf" in command else ("true", "false")
    for value, told in ((on, True), (off, False)):
        reading = _read(command.format(value))
        assert any(named in one.option for one in reading.remarks if one.kind == "unmodelled") == told  # fmt: skip


def test_verl_s_engine_for_ascend() -> None:
    """MindSpeed's engine lays a model out as Megatron's does, its own words in a table of their own."""
    said = "".join(
        f" actor_rollout_ref.actor.mindspeed.{one}" for one in
        ("tensor_model_parallel_size=2", "pipeline_model_parallel_size=1", "strategy=mindspeed_megatron", "mcore_kwargs.recompute_granularity=full",
         "mcore_kwargs.recompute_method=uniform", "mcore_kwargs.recompute_num_layers=1")
    )  # fmt: skip
    reading = _read(_VERL + said)
    assert (reading.layout["tp"], reading.layout["recompute"], reading.job["framework"]) == (2, "full", "megatron")  # fmt: skip


@pytest.mark.parametrize(
    "where",
    [
        'str(Path(__file__).resolve().parents[1] / "conf" / "mine")',
        'os.path.join(os.path.dirname(os.path.abspath(__file__)), "../conf/mine")',
        'ROOT / "conf" / "mine"',
    ],
)
def test_a_program_s_configuration_by_an_expression(tmp_path: Path, where: str) -> None:
    (tmp_path / "conf" / "mine").mkdir(parents=True)
    (tmp_path / "conf" / "mine" / "grpo.yaml").write_text("data: {max_prompt_length: 3000, max_response_length: 1096}\n")  # fmt: skip
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "main_ppo.py").write_text(
        f'import hydra\nROOT = Path(__file__).parent.parent\n\n\n@hydra.main(config_path={where}, config_name="grpo")\ndef main(config):\n    pass\n'
    )
    command = _VERL.replace("verl.trainer.main_ppo", "own.main_ppo")
    assert read_any(command, "run.sh", GUESS, tmp_path)[0].seq_len == 4096


def test_pictures_and_servers_are_named() -> None:
    pictures = _read(_VERL + " data.train_files=/data/geo3k/train.parquet")
    assert any("pictures" in one.text for one in pictures.remarks)
    served = _read("server: {model_name: a}\nactor_rollout_ref: {model: {path: Qwen/Qwen3-1.7B}, actor: {ppo_mini_batch_size: 8}}\ntrainer: {n_gpus_per_node: 8}\n", "x.yaml")  # fmt: skip
    assert any(one.option == "server" for one in served.remarks)
    assert not any("critic" in one.text for one in served.remarks if one.kind == "unmodelled")


@pytest.mark.parametrize(("words", "adapted"), [("--full_finetune", False), ("--use_lora", True), ("", True)])  # fmt: skip
def test_options_that_rule_each_other_out(tmp_path: Path, words: str, adapted: bool) -> None:
    (tmp_path / "grpo.py").write_text(
        "import argparse\nfrom peft import LoraConfig\nfrom trl import GRPOConfig, GRPOTrainer\n\nparser = argparse.ArgumentParser()\n"
        'parser.add_argument("--model_path")\nparser.add_argument("--lora_rank", type=int, default=64)\nmode = parser.add_mutually_exclusive_group()\n'
        'mode.add_argument("--use_lora", nargs=0, action=Mode, const="lora")\nmode.add_argument("--full_finetune", nargs=0, action=Mode, const="full")\n'
        "parser.set_defaults(use_lora=True, full_finetune=False)\nargs = parser.parse_args()\npeft_config = None\nif args.use_lora:\n"
        '    peft_config = LoraConfig(r=args.lora_rank, target_modules="all-linear")\nconfig = GRPOConfig(per_device_train_batch_size=4, bf16=True)\n'
        "trainer = GRPOTrainer(model=args.model_path, args=config, peft_config=peft_config)\ntrainer.train()\n"
    )
    reading = read_any(f"python grpo.py --model_path Qwen/Qwen3-4B {words}\n", "run.sh", GUESS, tmp_path)[0]  # fmt: skip
    assert ("finetune" in reading.job) == adapted


@pytest.mark.parametrize(
    "script",
    [
        'OUT=$(kubectl exec pod -- bash -c "cd /w && /venv/bin/{}")\necho $OUT\n',
        "ID=$(ray job submit --address=a -- {} | tail -1)\necho $ID\n",
    ],
)
def test_a_training_whose_output_is_kept(script: str) -> None:
    assert _read(script.format(_VERL)).world() == 2


def test_what_only_prints_is_no_training() -> None:
    with pytest.raises(SpecError, match="no command that trains"):
        _read("PORT=$(python3 find_port.py --from 1 --to 2)\necho $PORT\n")


def test_adapters_that_go_on_training() -> None:
    """`PeftModel.from_pretrained(…, is_trainable=True)` trains the adapters of a checkpoint, whose rank is not said."""
    program = (
        "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM\nfrom trl import GRPOConfig, GRPOTrainer\n\n"
        'base = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B-Instruct")\n'
        'model = PeftModel.from_pretrained(base, "saves/mine", is_trainable={})\n'
        "GRPOTrainer(model=model, args=GRPOConfig(per_device_train_batch_size=1, bf16=True)).train()\n"
    )
    found = import_text(program.format(True), "grpo.py", GUESS)
    assert found.job.finetune is not None and any(
        "lora_r" in f"{one.option} {one.text}" for one in found.remarks
    )


@pytest.mark.parametrize("said", ["num_gpus = 2", "num_train_gpus = 2"])
def test_prime_rl_s_deployment(said: str) -> None:
    text = f'max_steps = 20\n[deployment]\n{said}\n[model]\nname = "Qwen/Qwen3-1.7B"\n[data]\nname = "a/b"\nseq_len = 1024\nbatch_size = 64\n'
    assert _read(text, "sft.toml").world() == 2


def test_easyr1_s_optimizer_of_sixteen_bits() -> None:
    """Its moments and what rounding lost are in bf16 beside weights of 32 bits; a key for pictures in every file says nothing."""
    text = "data: {train_files: hiyouga/math12k@train, image_key: images}\nworker: {actor: {global_batch_size: 8, model: {model_path: Qwen/Qwen3-4B}, optim: {strategy: adamw_bf16}}}\n"
    reading = _read(text, "config.yaml")
    assert reading.job["optimizer"]["state_bytes"] == 6 and reading.job["precision"]["name"] == "bf16"  # fmt: skip
    assert not any("pictures" in one.text for one in reading.remarks)


def test_turns_as_samples_by_skyrl_s_program() -> None:
    command = "python -m examples.step_wise.main_step_wise trainer.policy.model.path=Qwen/Qwen3-4B trainer.policy_mini_batch_size=64"
    assert any("turns is a sample" in one.text for one in _read(command).remarks)


def test_groups_from_the_top_and_a_program_where_the_script_went(tmp_path: Path) -> None:
    """`/group: name` counts from the folder that the program names; the program lies where the script has gone to."""
    own = tmp_path / "mine" / "configs" / "algo" / "gym"
    own.mkdir(parents=True)
    (own / "base.yaml").write_text("# @package _global_\ndata: {max_prompt_length: 256, max_response_length: 128}\nactor_rollout_ref: {model: {path: Qwen/Qwen2.5-0.5B, lora_rank: 16}}\n")  # fmt: skip
    (own / "lora.yaml").write_text("# @package _global_\ndefaults: [{/algo/gym: base}, _self_]\ntrainer: {n_gpus_per_node: 2}\n")  # fmt: skip
    (tmp_path / "mine" / "grpo_local.py").write_text("import hydra\n\n\n@hydra.main(config_path=\"configs\", config_name=\"none\")\ndef main(config):\n    pass\n")  # fmt: skip
    (tmp_path / "scripts").mkdir()
    script = "cd mine\npython grpo_local.py --config-path configs --config-name algo/gym/lora actor_rollout_ref.actor.ppo_mini_batch_size=32\n"
    reading = read_any(script, "run.sh", GUESS, tmp_path / "scripts")[0]
    assert (reading.seq_len, reading.world()) == (384, 2) and "finetune" in reading.job


@pytest.mark.parametrize("before", ["ps aux | grep ray | grep -v grep | xargs kill -9", "a | b | c  # of an earlier run", "if true; then\n  a | b | c\nfi"])  # fmt: skip
def test_long_pipelines_end_on_their_line(before: str) -> None:
    """The grammar takes what follows into their last command, down to the next redirection."""
    script = f"{before}\nNAME=Qwen/Qwen2.5-3B\nulimit -n 65535\n{_VERL.replace('Qwen/Qwen2.5-7B', '$NAME')} 2>&1 | tee log\n"
    reading = _read(script)
    assert (reading.model_name, reading.world()) == ("Qwen/Qwen2.5-3B", 2)


def test_a_program_of_one_s_own_from_verl_s_configuration(tmp_path: Path) -> None:
    """No word of the command is verl's: the configuration that it names is."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").write_text("data: {max_prompt_length: 256, max_response_length: 128}\nactor_rollout_ref: {model: {path: Qwen/Qwen2.5-0.5B}, actor: {ppo_mini_batch_size: 8}}\ntrainer: {n_gpus_per_node: 2}\n")  # fmt: skip
    (tmp_path / "local_grpo.py").write_text("import hydra\n\n\n@hydra.main(config_path=\"configs\", config_name=\"none\")\ndef main(config):\n    pass\n")  # fmt: skip
    reading = read_any("python local_grpo.py --config-path configs --config-name mine -m seed=0,1\n", "run.sh", GUESS, tmp_path)[0]  # fmt: skip
    assert (reading.seq_len, reading.world()) == (384, 2)


def test_a_loop_that_skips_what_is_there_begins_without_it() -> None:
    """Each step runs where its file is missing; the first time all are, whatever the machine holds."""
    script = f"i=0\nif [ -f log ]; then\n  i=$(cat log)\nfi\nwhile ((i < 2)); do\n  if [ ! -d out/$i ]; then\n    {_VERL}\n  fi\n  i=$((i + 1))\ndone\n"
    reading = read_any(script, "run.sh", Given(), None)[0]
    assert reading.world() == 2 and any("first run" in one.text for one in reading.remarks)


def test_slime_by_its_checkpoint_alone() -> None:
    command = "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 4 --hf-checkpoint /root/Qwen3-0.6B --rollout-batch-size 4 --global-batch-size 16 --rollout-max-response-len 4096"
    found = import_text(command, "run.sh", GUESS)
    assert (found.model.name, found.cluster.gpus, found.job.global_batch) == ("qwen3-0.6b", 4, 16)


def test_roll_written_out_in_full() -> None:
    """A resolved configuration names every role and every default: a rank without targets makes no adapters, a critic needs GAE."""
    text = (
        "pretrain: Qwen/Qwen3-4B\nadv_estimator: reinforce\nrollout_batch_size: 64\nnum_return_sequences_in_group: 8\nsequence_length: 3328\n"
        "critic: {model_args: {lora_rank: 8, lora_target: null}}\n"
        "actor_train:\n  device_mapping: [0, 1]\n  use_dynamic_batching_in_train: false\n  max_tokens_per_microbatch_in_train: 0\n"
        "  model_args: {attn_implementation: flash_attention_2, lora_rank: 8, lora_alpha: 16, lora_target: null}\n"
        "  strategy_args: {strategy_name: fsdp2_train, strategy_config: {transformer_impl: huggingface}}\n"
        "  training_args: {per_device_train_batch_size: 2, gradient_accumulation_steps: 64, learning_rate: 1.0e-6}\n"
    )
    reading = _read(text, "resolved.yaml")
    assert "lora_rank" not in reading.job and not reading.job.get("tuned")
    assert not [one for one in reading.remarks if one.kind == "unmodelled"]
    again = _read(text.replace("lora_target: null}\n  strategy", "lora_target: all-linear}\n  strategy").replace("reinforce", "gae"), "resolved.yaml")  # fmt: skip
    assert reading.job != again.job
    assert "critic" in {one.option for one in again.remarks if one.kind == "unmodelled"}


@pytest.mark.parametrize(("said", "devices"), [("", 1), ("trainer_gpu_ids = [4, 5, 6]\n", 3), ("[deployment]\nnum_train_gpus = 2\n", 2)])  # fmt: skip
def test_prime_rl_trains_on_one_device_by_itself(said: str, devices: int) -> None:
    text = f"max_steps = 20\nseq_len = 2048\n{said}[model]\nname = 'Qwen/Qwen3-0.6B'\n[orchestrator]\nbatch_size = 128\ngroup_size = 4\n[trainer.optim]\nlr = 1e-4\n"
    assert _read(text, "rl.toml").world() == devices


@pytest.mark.parametrize("test", ["args.batch", "args.batch is not None", "args.batch > 0"])
def test_a_batch_by_the_group_where_none_is_said(tmp_path: Path, test: str) -> None:
    """`x if x else y`: nothing says x."""
    (tmp_path / "train.py").write_text(
        "import argparse\nfrom trl import GRPOConfig, GRPOTrainer\n\np = argparse.ArgumentParser()\np.add_argument('--batch', type=int, default=None)\n"
        "p.add_argument('--group', type=int, default=4)\nargs = p.parse_args()\n"
        f"c = GRPOConfig(per_device_train_batch_size=(args.batch if {test} else args.group * 4), num_generations=args.group, max_prompt_length=512, max_completion_length=512, max_steps=10)\n"
        "t = GRPOTrainer(model='Qwen/Qwen2.5-0.5B', args=c, reward_funcs=None, train_dataset=None)\nt.train()\n"
    )
    for command, batch in (("", 32), ("--batch 8", 8)):
        found = read_any(f"python train.py --group 8 {command}\n", "run.sh", GUESS, tmp_path)[0]
        assert found.micro_batch == batch


def test_a_program_around_verl_s_trainer(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "ppo_trainer.yaml").write_text("data: {max_prompt_length: 256, max_response_length: 128, train_batch_size: 64}\nactor_rollout_ref: {model: {path: Qwen/Qwen2.5-0.5B}, actor: {ppo_mini_batch_size: 16, ppo_micro_batch_size_per_gpu: 2}}\ntrainer: {n_gpus_per_node: 2}\n")  # fmt: skip
    file = tmp_path / "run_grpo.py"
    file.write_text("import hydra\nfrom verl.trainer.main_ppo import run_ppo\n\n\n@hydra.main(config_path='config', config_name='ppo_trainer')\ndef main(config):\n    run_ppo(config)\n\n\nif __name__ == '__main__':\n    main()\n")  # fmt: skip
    found = import_file(file, GUESS)
    assert (found.layout.micro_batch, found.cluster.gpus, found.job.seq_len) == (2, 2, 384)


@pytest.mark.parametrize("made", ["GRPOConfig", "PPOLoss"])
def test_a_loop_of_one_s_own_says_what_it_trains_for(tmp_path: Path, made: str) -> None:
    (tmp_path / "train.py").write_text(
        "import argparse\nimport torch\nfrom mine import GRPOConfig, PPOLoss\nfrom transformers import AutoModelForCausalLM\n\n"
        "p = argparse.ArgumentParser()\np.add_argument('--model_name', default='Qwen/Qwen2.5-0.5B')\np.add_argument('--batch_size', type=int, default=32)\n"
        f"p.add_argument('--seq_len', type=int, default=512)\nargs = p.parse_args()\nsettings = {made}(args.batch_size)\n"
        "model = AutoModelForCausalLM.from_pretrained(args.model_name)\noptimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)\n"
        "for batch in batches:\n    loss = model(batch).loss\n    loss.backward()\n    optimizer.step()\n"
    )
    reading = read_any("python train.py --batch_size 16 --seq_len 512 --model_name Qwen/Qwen2.5-0.5B\n", "run.sh", GUESS, tmp_path)[0]  # fmt: skip
    assert (reading.task, reading.seq_len) == (made[:4].lower().rstrip("l"), 512)
