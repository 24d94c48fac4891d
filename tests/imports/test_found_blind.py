"""What files of other projects showed that nobody here had read before: one short case of each kind."""

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.names import guess_model, model_named
from meshwright.imports.reading import Given
from meshwright.specs import SpecError, load_cluster, load_model

H8 = Given(cluster=load_cluster("h100:1x8"))
NAMED = Given(cluster=load_cluster("h100:1x8"), model=load_model("llama3-8b"))
BRIDGE = (
    "torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe {recipe} train.global_batch_size=32 "
    "train.micro_batch_size=1 model.seq_length=4096 {more}"
)
SHAPE = "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 2048 --vocab-size 32000 --micro-batch-size 1 --bf16 "

AUTOMODEL = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 64, local_batch_size: 4}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B
  torch_dtype: bfloat16
distributed: {strategy: fsdp2, tp_size: 1, cp_size: 2, pp_size: 1, ep_size: 4, activation_checkpointing: true}
dataset: {seq_length: 2048}
optimizer: {_target_: torch.optim.AdamW, lr: 1.0e-4}
"""
ROLL = """
pretrain: Qwen/Qwen3-30B-A3B-Base
num_gpus_per_node: 8
prompt_length: 2048
response_length: 4096
actor_train:
  model_args: {disable_gradient_checkpointing: false, dtype: bf16}
  training_args: {per_device_train_batch_size: 1, gradient_accumulation_steps: 32}
  strategy_args:
    strategy_name: megatron_train
    strategy_config: {tensor_model_parallel_size: 1, pipeline_model_parallel_size: 2, context_parallel_size: 2,
      virtual_pipeline_model_parallel_size: 8, expert_model_parallel_size: 4, use_distributed_optimizer: true,
      moe_layer_recompute: true}
  device_mapping: list(range(0,32))
"""
PICOTRON = """{"distributed": {"tp_size": 2, "cp_size": 1, "pp_size": 2, "dp_size": 2, "pp_engine": "afab"},
"model": {"name": "meta-llama/Llama-3.1-8B", "num_hidden_layers": 16, "dtype": "bfloat16"},
"training": {"seq_length": 1024, "micro_batch_size": 4, "gradient_accumulation_steps": 8}}"""
VEOMNI = """
model: {model_path: Qwen/Qwen2.5-7B-Instruct}
data: {max_seq_len: 8192}
train:
  accelerator: {ulysses_size: 2, fsdp_config: {fsdp_mode: fsdp2}, offload_config: {enable_activation: true}}
  gradient_checkpointing: {enable: true}
  global_batch_size: 32
  micro_batch_size: 1
"""
FAST_LLM = """
data: {micro_batch_size: 8192, maximum_document_length: 4096}
model:
  base_model:
    embeddings: {vocab_size: 32000}
    decoder: {num_blocks: 32, block: {mixer: {type: attention, heads: 32, head_groups: 8, head_size: 128},
      mlp: {intermediate_size: 14336, gated: true}, normalization: {type: rms_norm}}}
    hidden_size: 4096
  multi_stage: {zero_stage: 2}
  distributed: {compute_dtype: bf16}
"""


@pytest.mark.parametrize(
    ("text", "name", "model", "layout", "seq", "batch"),
    [
        (AUTOMODEL, "x.yaml", "qwen3-30b-a3b", {"cp": 2, "ep": 4, "zero": 3, "recompute": "full", "micro_batch": 4}, 2048, 64),
        (ROLL, "x.yaml", "qwen3-30b-a3b", {"pp": 2, "cp": 2, "ep": 4, "virtual_stages": 8, "zero": 1, "recompute": "selective",
                                           "recompute_modules": ("core_attn", "moe")}, 6144, 256),
        (PICOTRON, "x.json", "imported", {"tp": 2, "pp": 2, "dp": 2, "zero": 0, "schedule": "gpipe", "micro_batch": 4}, 1024, 64),
        (VEOMNI, "x.yaml", "qwen2.5-7b", {"cp": 2, "cp_method": "ulysses", "zero": 3, "offload": ("activations",)}, 8192, 32),
        (FAST_LLM, "x.yaml", "imported", {"zero": 2, "micro_batch": 2}, 4096, 16),
    ],
)  # fmt: skip
def test_formats_found_since(text, name, model, layout, seq, batch):
    given = H8 if text is not ROLL else Given(cluster=load_cluster("h100:4x8"))
    back = import_text(text, name, given)
    assert back.model.name == model
    assert (back.job.seq_len, back.job.global_batch) == (seq, batch)
    assert {field: getattr(back.layout, field) for field in layout} == layout


def test_picotron_takes_the_sizes_that_it_changes():
    assert import_text(PICOTRON, "x.json", H8).model.layers == 16


def test_read_splits_what_it_is_fed():
    text = 'for c in "2,4" "1,2"; do IFS=, read -r TP PP <<< "$c"\n'
    text += f"torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE} --global-batch-size 8 --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP\ndone"
    back = import_text(text, "x.sh", H8)
    assert (back.layout.tp, back.layout.pp) == (2, 4)
    assert any("2 different trainings" in note for note in back.notes)


def test_batch_options_share_a_line_and_follow_placeholders():
    head = "#!/bin/bash\n#SBATCH <OPTIONS> --nodes=4 --ntasks-per-node=8 --constraint=a100  # four of them\n"
    back = import_text(
        head + f"srun python pretrain_gpt.py {SHAPE} --global-batch-size 64", "x.sbatch", Given()
    )
    assert (back.cluster.gpus, back.layout.dp) == (32, 32)
    assert "a100" in back.cluster.name


def test_bridge_recipes_compute_in_bf16_unless_overridden():
    text = BRIDGE.format(recipe="llama3_8b_sft_config", more="")
    back = import_text(text, "x.sh", NAMED)
    assert back.job.precision.compute == "bf16"
    assert any("mixed_precision" in note for note in back.notes)


@pytest.mark.parametrize("recipe", ["qwen3_vl_8b_sft_config", "gemma3_vl_4b_finetune_config", "nemotron_nano_9b_v2_peft_config"])  # fmt: skip
def test_recipes_of_other_models_are_refused(recipe):
    with pytest.raises(SpecError, match=r"decoder-only|config\.json"):
        import_text(BRIDGE.format(recipe=recipe, more=""), "x.sh", H8)


def test_a_peft_recipe_that_is_not_here_trains_adapters():
    back = import_text(BRIDGE.format(recipe="llama3_8b_peft_config", more="peft.dim=8"), "x.sh", H8)
    assert back.job.finetune is not None and back.job.finetune.rank == 8


@pytest.mark.parametrize(
    ("spelled", "preset"), [("llama3_1_8b", "llama3.1-8b"), ("llama-2-7b", "llama2-7b"), ("llama_2_7b", "llama2-7b"),
                            ("qwen2_5_7b", "qwen2.5-7b")],
)  # fmt: skip
def test_versions_are_no_sizes(spelled, preset):
    found = model_named(spelled)
    assert found is not None
    assert found.name == preset


def test_a_size_after_a_version_is_the_size():
    assert guess_model("runs/qwen2_5_7b_of_may").name == "qwen2.5-7b"
    found = guess_model("llama_2_7b_fixed_resized")
    assert found is not None
    assert found.name == "llama2-7b"


TRAINER = (
    "--model_name_or_path meta-llama/Meta-Llama-3-8B --per_device_train_batch_size 2 --bf16 True "
)


def test_python_alone_is_one_process():
    back = import_text(f"python train.py {TRAINER}", "x.sh", Given(guess=True))
    assert back.layout.world == 1
    assert import_text(f"torchrun --nproc_per_node 8 train.py {TRAINER}", "x.sh", Given(guess=True)).layout.world == 8  # fmt: skip


def test_trainer_sgd_keeps_no_momentum():
    back = import_text(f"torchrun --nproc_per_node 8 train.py {TRAINER} --optim sgd", "x.sh", H8)
    assert back.job.optimizer.state_bytes == 0


@pytest.mark.parametrize(("words", "seq"), [("--source_max_len 16 --target_max_len 512", 528), ("--sequence_length 8192", 8192)])  # fmt: skip
def test_lengths_by_other_names(words, seq):
    text = f"torchrun --nproc_per_node 8 train.py {TRAINER} {words}"
    assert import_text(text, "x.sh", H8).job.seq_len == seq


def test_swift_says_full_over_a_rank_that_is_there_anyway():
    text = "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B --tuner_type {kind} --lora_rank 8 --per_device_train_batch_size 1 --fsdp fsdp2"
    full = import_text(text.format(kind="full"), "x.sh", H8)
    assert full.job.finetune is None
    assert (full.layout.zero, full.layout.recompute) == (3, "full")
    assert import_text(text.format(kind="lora"), "x.sh", H8).job.finetune is not None


def test_verl_fills_a_micro_batch_over_the_ranks_that_share_a_sequence():
    text = (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B data.max_prompt_length=2048 "
        "data.max_response_length=8192 actor_rollout_ref.actor.use_dynamic_bsz=True trainer.n_gpus_per_node=8 "
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=10240 actor_rollout_ref.actor.ulysses_sequence_parallel_size={sp}"
    )
    sizes = [
        import_text(text.format(sp=sp), "x.sh", Given(guess=True)).layout.micro_batch
        for sp in (1, 2)
    ]
    assert sizes == [1, 2]


def test_verl_optimizer_on_the_host_is_read():
    text = (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B trainer.n_gpus_per_node=8 "
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 "
        "+actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload=True"
    )
    assert import_text(text, "x.sh", Given(guess=True)).layout.offload == ("optimizer",)


def test_experts_recomputed_by_the_older_name():
    flags = (
        f"{SHAPE} --global-batch-size 8 --num-experts 8 --moe-router-topk 2 --moe-layer-recompute"
    )
    back = import_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {flags}", "x.sh", H8)
    assert (back.layout.recompute, back.layout.recompute_modules) == ("selective", ("moe",))


def test_several_kubernetes_objects_in_a_file():
    text = f"""apiVersion: v1
kind: Service
metadata: {{name: x}}
---
apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      containers:
      - resources: {{limits: {{nvidia.com/gpu: "8"}}}}
        command: [bash, -c, "torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE} --global-batch-size 8"]
"""
    assert import_text(text, "x.yaml", H8).layout.dp == 8


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("accelerate launch --config_file fsdp.yaml fine_tune.py", "x.sh", "describes no training run of its own"),
        ("recipe: TrainDFlashRecipe\nmodel: {x: 1}\nstep_scheduler: {a: 1}\n", "x.yaml", "draft model"),
        ('{"fsdp": "full_shard", "fsdp_config": {"transformer_layer_cls_to_wrap": ["A"]}}', "x.json", "fsdp_config names"),
    ],
)  # fmt: skip
def test_refusals_name_what_the_file_is(text, name, says):
    with pytest.raises(SpecError, match=says):
        import_text(text, name, H8)


SKYRL = (
    "uv run --isolated --extra megatron python -m skyrl.train.main_sft strategy=megatron model.path=Qwen/Qwen2.5-7B "
    "max_length=512 batch_size=16 micro_train_batch_size_per_gpu=2 placement.num_nodes=1 placement.num_gpus_per_node=4 "
    "megatron_config.tensor_model_parallel_size=2 megatron_config.pipeline_model_parallel_size=1"
)
SKYRL_RL = (
    "uv run --extra fsdp -m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen2.5-1.5B-Instruct "
    "trainer.strategy=fsdp trainer.placement.policy_num_gpus_per_node=4 trainer.policy_mini_batch_size=256 "
    "trainer.micro_train_batch_size_per_gpu=8 trainer.max_prompt_length=512 generator.n_samples_per_prompt=5 "
    "generator.sampling_params.max_generate_length=1024 trainer.policy.fsdp_config.cpu_offload=true"
)


def test_skyrl_is_not_taken_for_the_extra_that_it_asks_for():
    back = import_text(SKYRL, "x.sh", Given(guess=True))
    assert back.format == "SkyRL command"
    assert (back.model.name, back.job.seq_len, back.job.global_batch) == ("qwen2.5-7b", 512, 16)
    assert (back.layout.tp, back.layout.dp, back.layout.micro_batch) == (2, 2, 2)


def test_skyrl_policies_train_every_sample():
    back = import_text(SKYRL_RL, "x.sh", Given(guess=True))
    assert (back.job.seq_len, back.job.global_batch) == (1536, 1280)
    assert (back.layout.zero, back.layout.recompute) == (3, "full")
    assert back.layout.offload == ("optimizer", "parameters")


SLIME = """
from dataclasses import dataclass
import slime.utils.external_utils.command_utils as U

@dataclass
class Args(U.Base):
    tp: int = 2
    longer: bool = True

def execute(args: Args):
    perf = f"--tensor-model-parallel-size {args.tp} --sequence-parallel "
    if args.longer:
        perf += "--context-parallel-size 2 "
    words = ("--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 2048 --vocab-size 32000 --rollout-batch-size 4 "
             "--n-samples-per-prompt 4 --global-batch-size 16 --rollout-max-response-len 1024 --max-tokens-per-gpu 2048 "
             f"--actor-num-nodes {args.nodes} --actor-num-gpus-per-node 8 ")
    U.execute_train(train_args=f"{words} {perf} {U.more(__file__)}", num_gpus_per_node=8)
"""


def test_launchers_of_slime_in_python_are_followed_not_run():
    given = Given(cluster=load_cluster("h100:2x8"), variables=(("nodes", "2"),))
    back = import_text(SLIME, "run.py", given)
    assert (back.layout.tp, back.layout.cp, back.layout.dp) == (2, 2, 4)
    assert back.job.global_batch == 16


def test_slime_adapters_are_read():
    text = "ray job submit -- python3 train.py " + SHAPE.replace("--micro-batch-size 1 ", "")
    text += "--rollout-batch-size 32 --global-batch-size 256 --actor-num-nodes 1 --actor-num-gpus-per-node 8 --lora-rank 32 --target-modules all-linear"
    finetune = import_text(text, "x.sh", H8).job.finetune
    assert finetune is not None
    assert finetune.rank == 32


def test_verl_files_stand_on_their_defaults(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "actor_rollout_ref: {model: {path: Qwen/Qwen2.5-7B}, actor: {ppo_mini_batch_size: 64, ppo_micro_batch_size_per_gpu: 4}}\n"
    )
    (tmp_path / "mine.yaml").write_text(
        "defaults: [base]\nactor_rollout_ref: {actor: {ppo_mini_batch_size: 32}}\n"
    )
    back = import_file(tmp_path / "mine.yaml", H8)
    assert (back.model.name, back.job.global_batch, back.layout.micro_batch) == ("qwen2.5-7b", 32, 4)  # fmt: skip


def test_verl_on_megatron_by_the_name_of_its_configuration():
    text = (
        "python3 -m verl.trainer.main_ppo --config-path=./config --config-name='ppo_megatron_trainer' "
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
    )
    back = import_text(text, "x.sh", Given(guess=True))
    assert (back.layout.zero, back.job.framework) == (1, "megatron")


def test_quantised_checkpoints_say_so_in_their_name():
    text = "model_name_or_path: TechxGenus/Meta-Llama-3-8B-Instruct-GPTQ\nstage: sft\nfinetuning_type: lora\nper_device_train_batch_size: 1\nbf16: true\n"
    finetune = import_text(text, "x.yaml", H8).job.finetune
    assert finetune is not None
    assert finetune.storage == "int4"


AREAL = """
gconfig: {n_samples: 8, max_tokens: 8192}
actor:
  backend: "megatron:(attn:d4p4t2|ffn:d2p4e4)"
  path: Qwen/Qwen3-30B-A3B
  gradient_checkpointing: true
  mb_spec: {max_tokens_per_mb: 32768}
  megatron: {recompute_granularity: full}
train_dataset: {batch_size: 16}
"""
FACTORY = """
model: Qwen/Qwen3-30B-A3B
model_class: llm
dist_config: {name: fsdp2, cp_size: 2, ep_size: 4}
micro_batch_size: 1
cutoff_len: 256
bf16: true
"""


def test_areal_writes_its_degrees_in_a_word():
    back = import_text(AREAL, "x.yaml", Given(guess=True))
    wanted = {"dp": 4, "pp": 4, "tp": 2, "ep": 4, "micro_batch": 4, "recompute": "full"}
    assert {name: getattr(back.layout, name) for name in wanted} == wanted
    assert back.job.global_batch == 32  # four optimizer steps a batch of answers, AReaL's default


def test_the_second_llama_factory():
    back = import_text(FACTORY, "x.yaml", H8)
    assert (back.layout.zero, back.layout.cp, back.layout.ep, back.job.seq_len) == (3, 2, 4, 256)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("model: {type: llama, seq_len: 4096, num_layers: 32}\ntokenizer: x\n", "x.yaml"),
        ("deepspeed run_model.py --model x/llama-7b --batch-size 8 --prompt-len 512 --gen-len 32", "x.sh"),
    ],
)  # fmt: skip
def test_what_says_nothing_of_training_is_refused(text, name):
    with pytest.raises(SpecError, match=r"no training run|does not train"):
        import_text(text, name, H8)


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("model_type: hawk\nmodel: {dim: 2048}\noptim: {lr: 1.0e-3}\n", "x.yaml", "state-space"),
        ("model: {tensor_model_parallel_size: 1}\ntrain: {train_iters: 20, global_batch_size: 8}\n", "x.yaml", "overrides fields of a recipe"),
        ("model:\n  unet_config: {a: 1}\n  learning_rate: 1\n", "x.yaml", "diffusion"),
    ],
)  # fmt: skip
def test_other_models_and_parts_of_runs_are_named(text, name, says):
    with pytest.raises(SpecError, match=says):
        import_text(text, name, H8)


def test_a_template_of_deepspeed_leaves_its_placeholders_open():
    text = '{"train_batch_size": CONFIG_BATCH_SIZE, "train_micro_batch_size_per_gpu": CONFIG_MBSIZE,\n"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}'
    back = import_text(text, "ds.json", NAMED)
    assert (back.layout.zero, back.job.precision.compute) == (1, "bf16")


def test_a_placeholder_is_called_one():
    text = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B trainer.nnodes=TO_BE_FILLED"
    with pytest.raises(SpecError, match="left for its reader"):
        import_text(text, "x.sh", H8)
