"""What a third draw of other projects' files showed: one short case of each kind of fault."""

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.names import guess_model, model_named
from meshwright.imports.reading import Given, Imported
from meshwright.specs import SpecError, load_cluster, load_model

GUESS = Given(guess=True)
H8 = Given(cluster=load_cluster("h100:1x8"))
TRL = "torchrun --nproc_per_node 8 {program} --model_name_or_path Qwen/Qwen2.5-0.5B --bf16 --per_device_train_batch_size 2 {more}"


def said(found: Imported) -> str:
    return " ".join(found.notes)


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("run_dpo.py", "pair of sequences"),
        ("grpo.py", "generated"),
        ("reward_modeling.py", "one output"),
    ],
)
def test_a_task_beyond_plain_training_is_named(program: str, word: str):
    found = import_text(TRL.format(program=program, more="--max_length 1024"), "t.sh", H8)
    assert word in said(found)
    plain = import_text(TRL.format(program="sft.py", more="--max_length 1024"), "t.sh", H8)
    assert "task" not in {one.option for one in plain.remarks}


def test_axolotl_names_preference_training():
    text = "base_model: Qwen/Qwen2.5-0.5B\nrl: dpo\nadapter: lora\nsequence_len: 1024\nmicro_batch_size: 1\n"
    assert "pair of sequences" in said(import_text(text, "a.yaml", H8))


def test_sequences_of_grpo_are_prompts_and_answers():
    more = "--max_prompt_length 256 --max_completion_length 1792 --use_vllm --vllm_mode colocate"
    found = import_text(TRL.format(program="grpo.py", more=more), "t.sh", H8)
    assert found.job.seq_len == 2048
    assert "sets 30% of their memory aside" in said(found)


def test_the_launchers_processes_count_over_its_configuration(tmp_path):
    (tmp_path / "zero2.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 8\nmixed_precision: bf16\n"
        "deepspeed_config: {zero_stage: 2}\n"
    )
    script = tmp_path / "t.sh"
    script.write_text(
        "accelerate launch --config_file zero2.yaml --num_processes=3 sft.py --max_length 1024 "
        "--model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 1\n"
    )
    found = import_file(str(script), GUESS)
    assert (found.layout.dp, found.cluster.gpus) == (3, 3)


def test_tables_that_accelerate_does_not_take_are_named():
    text = (
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
        "deepspeed_config: {zero_stage: 3, zero_optimization: {offload_param: {device: cpu}}}\n"
    )
    found = import_text(
        text, "a.yaml", Given(cluster=load_cluster("h100:1x8"), model=load_model("llama3-8b"))
    )
    assert "accelerate takes no such table here" in said(found)
    assert not found.offload


def test_batch_micro_batch_and_accumulation_say_how_many_replicas():
    text = (
        "num_layers: 4\nhidden_size: 512\nnum_attention_heads: 8\nseq_length: 1024\nmodel_parallel_size: 2\n"
        "train_batch_size: 96\ntrain_micro_batch_size_per_gpu: 3\ngradient_accumulation_steps: 2\nprecision: bfloat16\n"
    )
    found = import_text(text, "n.yml", GUESS)
    assert (found.layout.tp, found.layout.dp, found.cluster.gpus) == (2, 16, 32)


def test_a_maxtext_file_changes_the_sizes_of_the_model_it_names():
    text = "model_name: mixtral-8x7b\nbase_num_decoder_layers: 5\nper_device_batch_size: 2\n"
    assert import_text(text, "m.yml", H8).model.layers == 5


def test_torchtitan_names_what_its_optimizer_and_norm_change():
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\nnorm_type = "layernorm"\n[training]\nseq_len = 2048\n'
        "local_batch_size = 1\n[optimizer]\nearly_step_in_backward = true\n[parallelism]\n"
    )
    text = said(import_text(text, "t.toml", H8))
    assert "freed once its weight is updated" in text
    assert "another norm" in text


def test_a_registry_that_cannot_be_followed_still_says_its_flavour():
    text = (
        "from torchtitan.trainer import Trainer\nfrom elsewhere.models.qwen3 import model_registry\n"
        "def run() -> Trainer.Config:\n    spec = model_registry('30B-A3B')\n    return Trainer.Config(model_spec=spec,\n"
        "        training=TrainingConfig(seq_len=2048, local_batch_size=1),\n"
        "        parallelism=ParallelismConfig(expert_parallel_degree=4),\n"
        "        activation_checkpoint=ActivationCheckpointConfig(mode='full'))\n"
    )
    found = import_text(text, "config_registry.py", H8)
    assert found.model.name == "qwen3-30b-a3b"
    assert (found.layout.ep, found.layout.recompute) == (4, "full")


def test_experts_that_the_given_model_lacks_are_not_dropped_in_silence():
    text = '[model]\nname = "deepseek_v3"\nflavor = "x"\n[training]\nseq_len = 2048\n[parallelism]\nexpert_parallel_degree = 4\n'
    dense = Given(cluster=load_cluster("h100:1x8"), model=load_model("llama3-8b"))
    assert "has no experts" in said(import_text(text, "t.toml", dense))


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 512 --micro-batch-size 1 "
        "--vision-model-type clip",
        "torchrun swift/cli/_megatron/sft.py --model Qwen/Qwen3-8B --micro_batch_size 1 --model_type qwen3_vl",
    ],
)
def test_models_that_see_are_refused(text: str):
    with pytest.raises(SpecError, match="vision-language"):
        import_text(text, "t.sh", H8)


def test_a_trainer_of_its_own_with_a_batch_is_not_deepspeeds():
    text = "train_batch_size: 64\nprompt_data: x\nsweep: [1]\nstride: 2\nkl_estimator: k2\ndebug: false\n"
    with pytest.raises(SpecError, match="describes no training run"):
        import_text(text, "t.yaml", H8)


def test_openrlhfs_options_are_read_from_yaml_too():
    text = (
        "pretrain: meta-llama/Llama-3.2-1B\nmicro_train_batch_size: 8\ntrain_batch_size: 64\nrollout_batch_size: 16\n"
        "prompt_max_len: 1000\ngenerate_max_len: 24\nzero_stage: 3\nactor_num_nodes: 1\nactor_num_gpus_per_node: 4\n"
    )
    found = import_text(text, "t.yaml", GUESS)
    assert (found.layout.dp, found.layout.zero, found.layout.micro_batch, found.job.seq_len) == (
        4,
        3,
        8,
        1024,
    )


def test_a_seq_that_nobody_states_is_no_longer_than_learned_positions():
    found = import_text(
        "python run_clm.py --model_name_or_path gpt2 --fp16 --per_device_train_batch_size 8",
        "t.sh",
        GUESS,
    )
    assert found.job.seq_len == 1024


def test_distilled_models_have_the_shapes_they_were_made_of():
    small = model_named("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    assert small is not None
    assert (small.layers, small.tied_embeddings) == (28, False)
    large = model_named("DeepSeek-R1-Distill-Llama-70B")
    assert large is not None
    assert large.name == "llama3.3-70b"


def test_a_guess_is_of_the_family_where_a_preset_has_its_size():
    found = guess_model("org/Llama-3-COMMUNITY-JP-8B")
    assert found is not None
    assert found.name == "llama3-8b"
    other = guess_model("org/Tucano-0.5B")
    assert other is not None
    assert other.name.startswith("typical")


OLMO = """
from olmo_core.train import TrainerConfig
def build_config(model, overrides):
    model_config = TransformerConfig.olmo2_1B(vocab_size=1)
    model_config.block.attention.sliding_window = SlidingWindowAttentionConfig(pattern=[512, 512, -1])
    return TransformerTrainModuleConfig(rank_microbatch_size=2 * 4096, max_sequence_length=4096,
        dp_config=TransformerDataParallelConfig(name=DataParallelType.fsdp))
"""


def test_a_program_of_olmo_core_is_read_with_its_commands_words_over_it(tmp_path):
    (tmp_path / "train.py").write_text(OLMO)
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc_per_node=4 train.py name dataset.sequence_length=2048 "
        "data_loader.global_batch_size=65536 train_module.rank_microbatch_size=8192\n"
    )
    found = import_file(str(script), GUESS)
    assert (found.job.seq_len, found.job.global_batch, found.layout.micro_batch) == (2048, 32, 4)
    assert (found.model.window, found.model.window_period) == (512, 3)


def test_filled_micro_batches_take_the_largest_that_divides():
    text = (
        "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 4 --num-layers 4 --hidden-size 512 "
        "--num-attention-heads 8 --vocab-size 32000 --max-position-embeddings 512 --tensor-model-parallel-size 2 --rollout-batch-size 32 "
        "--rollout-max-response-len 512 --global-batch-size 256 --use-dynamic-batch-size --max-tokens-per-gpu 9216\n"
    )
    assert import_text(text, "s.sh", GUESS).layout.micro_batch == 16


def test_kinds_of_16_bits_inside_fp16s_table_are_read():
    text = (
        "num_layers: 4\nhidden_size: 512\nnum_attention_heads: 8\nseq_length: 1024\ntrain_micro_batch_size_per_gpu: 1\n"
        "fp16: {enabled: true, type: bfloat16}\n"
    )
    assert import_text(text, "n.yml", H8).job.precision.name.startswith("bf16")


def test_megatrons_own_yaml_is_read():
    text = (
        "language_model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, activation_func: swiglu, "
        "add_bias_linear: false, fp8: null, hidden_dropout: 0.0, attention_dropout: 0.0}\n"
        "model_parallel: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1, bf16: true, fp16: false}\n"
        "micro_batch_size: 2\nglobal_batch_size: 64\nseq_length: 1024\npadded_vocab_size: 32000\n"
    )
    found = import_text(text, "gpt_config.yaml", H8)
    assert (found.layout.tp, found.layout.micro_batch, found.job.global_batch) == (2, 2, 64)
    assert found.model.gated


def test_a_maxtext_script_names_its_slice_of_tpus():
    script = "TPU_TYPE=v5p-64\npython3 -m MaxText.train base.yml model_name=llama2-7b per_device_batch_size=2\n"
    found = import_text(script, "t.sh", Given())
    assert found.cluster.gpus == 32
    assert "tpu-v5p" in found.cluster.name
    silent = import_text("model_name: llama2-7b\nper_device_batch_size: 2\n", "m.yml", GUESS)
    assert "tpu-v5p" in silent.cluster.name
    gpus = import_text(
        "model_name: llama2-7b\nper_device_batch_size: 2\nhardware: gpu\n", "m.yml", GUESS
    )
    assert "h100" in gpus.cluster.name


def test_a_reward_functions_file_is_not_the_program_that_trains():
    script = (
        "python -m mine.main_grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B data.train_batch_size=32 "
        "data.max_prompt_length=512 data.max_response_length=512 actor_rollout_ref.actor.ppo_mini_batch_size=32 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 trainer.n_gpus_per_node=4 trainer.nnodes=1 "
        "custom_reward_function.path=mine/reward_fn.py\n"
    )
    found = import_text(script, "t.sh", GUESS)
    assert (found.format, found.layout.dp, found.job.seq_len) == ("verl command", 4, 1024)


def test_llama_factorys_command_has_its_defaults():
    script = (
        "llamafactory-cli train --stage sft --do_train --model_name_or_path Qwen/Qwen2.5-0.5B --bf16 "
        "--finetuning_type {kind} --per_device_train_batch_size 1\n"
    )
    full = import_text(script.format(kind="full"), "t.sh", H8)
    assert (full.layout.recompute, full.job.seq_len, full.job.finetune) == ("full", 2048, None)
    adapted = import_text(script.format(kind="lora"), "t.sh", H8)
    assert adapted.job.finetune is not None
    assert adapted.job.framework == "llama-factory"


def test_parameters_stay_on_the_device_below_stage_3():
    text = '{{"train_micro_batch_size_per_gpu": 1, "bf16": {{"enabled": true}}, "zero_optimization": {{"stage": {stage}, "offload_param": {{"device": "cpu"}}}}}}'
    named = Given(cluster=load_cluster("h100:1x8"), model=load_model("llama3-8b"))
    assert not import_text(text.format(stage=2), "d.json", named).offload
    assert import_text(text.format(stage=3), "d.json", named).offload == {"parameters"}


def test_a_quantised_presets_shape_is_guessed_with_its_experts():
    found = guess_model("./gpt-oss-120b-w4a16-experts-4bit")
    assert found is not None
    assert found.name == "gpt-oss-120b"
