"""What forks of Megatron-LM spell or default otherwise."""

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.specs import SpecError, load_cluster

GIVEN = Given(cluster=load_cluster("h100:1x8"), guess=True)
BASE = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --vocab-size 50257 --bf16 "
)


def read(words: str, base: str = BASE):
    return import_text(f"#!/bin/bash\n{base}{words}\n", "run.sh", GIVEN)


def test_megablocks_routes_to_one_expert_unless_it_says_more():
    for words, top_k in (("", 1), ("--moe-top-k=2", 2)):
        experts = read(f"--moe-num-experts=8 {words}").model.experts
        assert experts is not None
        assert (experts.experts, experts.top_k) == (8, top_k)


def test_yuan_keeps_four_widths_under_swiglu():
    assert read("--swiglu").model.ffn == 2688
    assert read("--swiglu --use-lf-gate").model.ffn == 4096


@pytest.mark.parametrize("more", ["", "--zero-stage 1"])
def test_the_vocabulary_is_padded_as_it_says_in_every_dialect(more):
    found = read(f"--make-vocab-size-divisible-by 64 {more}")
    assert found.job.framework_options["vocab_multiple"] == 64


@pytest.mark.parametrize(
    "program",
    ["mmlu.py", "examples/validate.py", "offline_feature_extract.py", "a/tb_analysis_script.py"],
)
def test_what_only_tests_a_model_does_not_train(program):
    with pytest.raises(SpecError, match="does not train"):
        read("", BASE.replace("pretrain_gpt.py", program))


def test_a_fork_s_own_llama_needs_no_options(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "pretrain_llama.py").write_text(
        "from megatron.model import LlamaModel, LlamaModelPipe\n"
    )
    text = BASE.replace("pretrain_gpt.py", "pretrain_llama.py") + "--ffn-hidden-size 2816\n"
    model = import_text(text, str(tmp_path / "run.sh"), GIVEN, tmp_path).model
    assert (model.gated, model.norm, model.positions, model.ffn) == (True, "rmsnorm", "rope", 2816)


def test_an_optimizer_that_nobody_knows_is_named_and_priced_as_adamw():
    found = read("--optimizer somebodys")
    assert found.job.optimizer.name == "adamw"
    assert any("somebodys" in note for note in found.notes)


def test_what_trains_on_one_of_several_machines_is_found_by_a_guess():
    text = f'HERE=$(ip addr | tail -1)\nif [ "$HEAD" = "$HERE" ]; then\n  {BASE}\nelse\n  ray start\nfi\n'
    found = import_text(text, "run.sh", GIVEN)
    assert found.model.layers == 4
    assert any("counts as true" in note for note in found.notes)


def test_layers_that_do_not_fill_all_stages_are_fewer_at_both_ends():
    base = BASE.replace("--num-layers 4", "--num-layers 13")
    words = "--pipeline-model-parallel-size 4 --allow-padding-num-layers --enable-zb-runtime"
    assert read(words, base).layout.stage_layers == (3, 3, 4, 3)
    folded = read(f"{words} --num-layers-per-virtual-pipeline-stage 1", base).layout
    assert (folded.virtual_stages, folded.stage_layers[:3], folded.stage_layers[-1]) == (
        4,
        (0, 0, 1),
        0,
    )


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        ("--enable-zero-bubble --zero-bubble-max-pending-backward 4", "zb-h1"),
        ("--enable-zero-bubble --zero-bubble-max-pending-backward 8", "zb-h2"),
        ("--zero-bubble-v-schedule --zero-bubble-v-schedule-mem-setup half", "v-half"),
        ("--zero-stage 0 --enable-zbh1-pipeline", "zb-h1"),
    ],
)
def test_schedules_without_bubbles_are_those_that_are_asked_for(words, schedule):
    base = BASE.replace("--num-layers 4", "--num-layers 16")
    assert read(f"--pipeline-model-parallel-size 4 {words}", base).layout.schedule == schedule


def test_a_kernel_that_nothing_states_is_guessed():
    found = read("--attention-backend $ATTN")
    assert any(one.option == "--attention-backend" for one in found.remarks)


FLAGSCALE = """
experiment: {task: {type: train, entrypoint: flagscale/train/PROGRAM}, runner: {nnodes: 2, nproc_per_node: 8}}
train:
  system: {tensor_model_parallel_size: 2, precision: {bf16: true}}
  model: {num_layers: 8, hidden_size: 1024, num_attention_heads: 16, swiglu: true, multiple_of: 256, hidden_dim_multiplier: 1.3, seq_length: 2048,
    max_position_embeddings: 2048, micro_batch_size: 1, global_batch_size: 64, vocab_size: 32000, peft_type: lora, lora_dim: 4}
  data: {}
"""


@pytest.mark.parametrize("named", ["--config-path ./conf --config-name train", "-cp ./conf -cn train"])  # fmt: skip
def test_flagscale_rounds_its_ffn_up_and_its_command_says_more(tmp_path, named):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train.yaml").write_text(FLAGSCALE.replace("PROGRAM", "train_gpt.py"))
    script = tmp_path / "run.sh"
    script.write_text(
        f"python run.py {named} train.system.tensor_model_parallel_size=4 action=run\n"
    )
    found = import_file(script, GIVEN)
    assert (found.model.ffn, found.layout.tp, found.job.finetune.rank) == (3584, 4, 4)
    searched = FLAGSCALE.replace("runner:", "auto_tuner: {space: {}}, runner:").replace("PROGRAM", "train_gpt.py")  # fmt: skip
    said = import_text(searched, "train.yaml", GIVEN).remarks
    assert "experiment.auto_tuner" in {one.option for one in said}


def test_a_part_of_flagscale_that_trains_nothing_is_refused():
    with pytest.raises(SpecError, match="describes no training run"):
        import_text("system: {tensor_model_parallel_size: 1, use_flash_attn: true}\nmodel: {model_path: a/B, torch_dtype: float16}\n", "model.yaml", GIVEN)  # fmt: skip


def test_groups_without_their_switch_are_said():
    groups = read("--num-query-groups 4")
    assert groups.model.kv_heads == 4
    assert "--num-query-groups" in {one.option for one in groups.remarks}
    assert not {"--num-query-groups"} & {one.option for one in read("--num-query-groups 4 --group-query-attention").remarks}  # fmt: skip


@pytest.mark.parametrize(("ranks", "devices"), [("12", 12), ("1", 8)])
def test_ranks_that_a_script_counts_itself_beside_a_file_of_hosts(ranks, devices):
    words = BASE.replace("torchrun --nproc_per_node 8", "deepspeed --hostfile $HOME/hosts").replace("batch-size 8", "batch-size 24")  # fmt: skip
    text = f"export WORLD_SIZE=${{WORLD_SIZE:-{ranks}}}\n{words}--deepspeed --zero-stage 2\n"
    assert import_text(text, "run.sh", Given(guess=True)).cluster.gpus == devices


def test_one_expert_has_no_capacity():
    dense = read(
        "--num-experts 1 --moe-train-capacity-factor 1.0 --moe-min-capacity 4 --zero-stage 0"
    )
    assert not any("moe" in one.option for one in dense.remarks)


def test_a_class_of_letters_in_a_case_is_its_first():
    text = f"#!/bin/bash\ncase $RANKED in\n[01]) {BASE};;\nesac\n"
    found = import_text(text, "run.sh", GIVEN)
    assert any("RANKED" in one.option and "0, the first" in one.text for one in found.remarks)


def test_flagscale_s_programs_of_images_are_refused():
    for program in ("train_llava.py", "train_qwen2_5_vl.py"):
        with pytest.raises(SpecError, match="images"):
            import_text(FLAGSCALE.replace("PROGRAM", program), "train.yaml", GIVEN)


def test_what_epfl_s_fork_leaves_out_is_no_bias_and_no_tie():
    words = "--use_rms_norm --glu_activation swiglu --no_tie_embed_logits --position_embedding_type rotary --num_attention_heads_kv 4"
    found = read(words)
    model = found.model
    assert (model.ffn_bias, model.qkv_bias, model.tied_embeddings) == (False, False, False)
    assert (model.norm, model.kv_heads, model.gated) == ("rmsnorm", 4, True)
    assert found.format == "Megatron-LM script"


def test_an_option_beside_one_that_decides_alone_is_understood():
    found = read("--add-qkv-bias --use-rmsnorm --normalization RMSNorm")
    assert [one for one in found.remarks if one.kind == "unread"] == []


@pytest.mark.parametrize(
    ("around", "world"),
    [
        ("#SBATCH --nodes 4\n#SBATCH --gpus 16\nsrun -N 4 -n 16 --gpus 16 python pretrain_gpt.py", 16),
        ("#SBATCH -N 2\n#SBATCH -G 8\ntorchrun --nproc_per_node $SLURM_GPUS_ON_NODE --nnodes 2 pretrain_gpt.py", 8),
        ("#SBATCH --nodes=2\n# SBATCH --nodes=8\n#SBATCH --gpus-per-node=4\nsrun python pretrain_gpt.py", 8),
        ("#PBS -l select=2\nN=$(cat $PBS_NODEFILE | uniq | wc -l)\naprun -n $((N * 4)) -N 4 python pretrain_gpt.py", 8),
        ("mpiexec -n 8 --ppn 4 python pretrain_gpt.py", 8),
    ],
)  # fmt: skip
def test_devices_of_a_job_and_of_a_host_are_told_apart(around, world):
    words = BASE.partition("pretrain_gpt.py")[2].replace(
        "--global-batch-size 8", "--global-batch-size 16"
    )
    found = import_text(f"#!/bin/bash\n{around} {words}\n", "run.sh", Given(guess=True))
    assert found.layout.world == world


def test_layers_of_one_s_own_hold_scores_before_an_engine_was_usual():
    assert read("--DDP-impl local").job.attention_kernel == "unfused"
    assert read("--DDP-impl local --use-flash-attn").job.attention_kernel == "flash"
    assert read("").job.attention_kernel == "flash"


def test_a_branch_that_converts_is_not_taken_for_who_says_nothing():
    text = f'if [ "$1" = "convert_hf" ]; then\n  python convert_hf.py --num-layers 2\nelse\n  {BASE}\nfi\n'
    assert import_text(text, "run.sh", GIVEN).model.layers == 4


def test_recomputing_the_first_no_layers_recomputes_none():
    words = "--recompute-granularity full --recompute-method block --recompute-num-layers"
    assert read(f"{words} 0").layout.recompute == "none"
    assert read(f"{words} 2").layout.recompute_layers == 2


@pytest.mark.parametrize(
    "table",
    [
        "--vocab-file: ${DATA}/vocab.txt\n  --vocab-size: 30000",
        "--img-h: 336\n  --patch-dim: 14\n  --vocab-size: 32000",
    ],
)
def test_tables_of_encoders_and_of_images_are_refused(table):
    text = f"MODEL_ARGS:\n  --num-layers: 4\n  --hidden-size: 512\n  --num-attention-heads: 8\n  --micro-batch-size: 1\n  --seq-length: 512\n  {table}\n"
    with pytest.raises(SpecError, match=r"trains a vision|BERT"):
        import_text(text, "model_config.yaml", GIVEN)


def test_a_layout_keeps_the_shell_s_backslashes_in_a_table():
    text = (
        "MODEL_ARGS:\n  --num-layers: 8\n  --hidden-size: 512\n  --num-attention-heads: 8\n  --micro-batch-size: 1\n  --seq-length: 512\n"
        "  --pipeline-model-parallel-size: 2\n  --vocab-size: 32000\n  --pipeline-model-parallel-layout: Et*2\\\\|\\\\(tt\\\\|\\\\)*2ttL\n"
    )
    found = import_text(text, "model_config.yaml", GIVEN)
    assert (found.layout.virtual_stages, found.layout.pp) == (2, 2)


def test_whole_hosts_of_abci_are_counted(tmp_path):
    words = BASE.partition("pretrain_gpt.py")[2]
    text = f"#!/bin/bash\n#$ -l rt_F=2\nmpirun -np $((NHOSTS * 4)) -npernode 4 python pretrain_gpt.py {words}\n"
    assert import_text(text, "run.sh", Given(guess=True)).layout.world == 8


def test_rewards_are_named_beside_megatron_s_own_options():
    named = {one.option for one in read("--grpo-group-size 8 --rl-use-sequence-packing").remarks}
    assert {"task", "--rl-use-sequence-packing"} <= named
    text = (
        "num_layers: 8\nhidden_size: 512\nnum_attention_heads: 8\nmicro_batch_size: 1\nseq_length: 512\npadded_vocab_size: 32000\n"
        "lr: 0.0001\ntrain_iters: 10\ntensor_model_parallel_size: 1\nperform_rl_step: false\ngrpo_group_size: 2\ngrpo_kl_beta: 0.001\n"
    )
    printed = import_text(text, "options.yaml", GIVEN)
    assert "task" not in {one.option for one in printed.remarks}


def test_a_mixture_described_by_its_checkpoint_runs_its_experts_grouped():
    found = import_text(
        '#!/bin/bash\neval "$(python3 model_args_utils.py)"\n'
        "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256 "
        "--megatron-to-hf-mode bridge --hf-checkpoint /root/Qwen3-30B-A3B --tensor-model-parallel-size 4 --expert-model-parallel-size 8 "
        "--micro-batch-size 1 --rollout-max-response-len 8192\n",
        "run.sh",
        Given(guess=True),
    )
    assert found.model.name == "qwen3-30b-a3b"
    assert not {"--moe-grouped-gemm", "--moe-token-dispatcher-type"} & {
        one.option for one in found.remarks
    }


def test_a_trainer_s_program_is_not_megatron_s_though_its_options_are_called_so(tmp_path):
    (tmp_path / "train_hf.py").write_text(
        "import argparse\nfrom transformers import AutoModelForCausalLM, Trainer, TrainingArguments\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--micro-batch-size', type=int)\nparser.add_argument('--num-layers', type=int)\nparser.add_argument('--load')\n"
        "args = parser.parse_args()\nmodel = AutoModelForCausalLM.from_pretrained(args.load)\n"
        "training_args = TrainingArguments(output_dir='o', bf16=True, per_device_train_batch_size=args.micro_batch_size)\n"
        "trainer = Trainer(model=model, args=training_args)\ntrainer.train()\n"
    )
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc_per_node 8 train_hf.py --num-layers 32 --micro-batch-size 3 --load /m/Qwen2.5-7B\n"
    )
    found = import_file(tmp_path / "run.sh", GIVEN)
    assert "Trainer" in found.format
    assert (found.model.name, found.layout.micro_batch) == ("qwen2.5-7b", 3)


def test_a_recipe_that_is_left_open_is_asked_for():
    with pytest.raises(SpecError, match=r"--set RECIPE="):
        import_text('torchrun --nproc_per_node 8 run_recipe.py --recipe $RECIPE train.global_batch_size=8\n', "run.sh", Given())  # fmt: skip


def test_a_launcher_s_megatron_model_comes_from_its_own_file_or_its_checkpoint():
    text = (
        "import miles.utils.external_utils.command_utils as U\n\ndef execute():\n"
        "    train_args = ('--hf-checkpoint /root/models/Qwen3-8B-Base/ --rollout-batch-size 128 --global-batch-size 128 --micro-batch-size 1 '\n"
        "                  '--tensor-model-parallel-size 2 --seq-length 4096 --loss-type sft_loss ')\n"
        "    U.execute_train(train_args=train_args, num_gpus_per_node=8, megatron_model_type='qwen3-8B')\n"
    )
    found = import_text(text, "run_sft.py", Given(guess=True))
    assert (found.model.name, found.layout.tp) == ("qwen3-8b", 2)
    assert "--bf16" not in {one.option for one in found.remarks}


def test_a_bridge_takes_the_shape_whatever_the_flags_say():
    named = read("--use-bridge --bridge-hf-model $1")
    assert any("the bridge takes the shape" in one.text for one in named.remarks)
    text = f"#!/bin/bash\n{BASE} --use-bridge --bridge-hf-model /m/Qwen2.5-7B\n"
    assert import_text(text, "run.sh", Given(guess=True)).model.name == "qwen2.5-7b"


@pytest.mark.parametrize(("recomputed", "named"), [("true", True), ("false", False)])
def test_details_of_saved_inputs_count_only_where_layers_are_recomputed(
    recomputed: str, named: bool
):
    text = (
        '{"num_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "seq_length": 512, "max_position_embeddings": 512, "pos_emb": "rotary",\n'
        ' "model_parallel_size": 2, "pipe_parallel_size": 1, "train_micro_batch_size_per_gpu": 1, "vocab_size": 32000, "train_iters": 10,\n'
        f' "optimizer": {{"type": "Adam", "params": {{"lr": 0.001}}}}, "checkpoint_activations": {recomputed}, "partition_activations": true, "synchronize_each_layer": true}}\n'
    )
    found = import_text(text, "neox.yml", Given(guess=True))
    assert (
        bool(
            {"partition_activations", "synchronize_each_layer"}
            & {one.option for one in found.remarks}
        )
        is named
    )


DELTA = "--linear-num-value-heads 32 --linear-value-head-dim 64 --linear-num-key-heads 8 --linear-key-head-dim 64 "


@pytest.mark.parametrize(
    "words",
    [
        "--experimental-attention-variant gated_delta_net --linear-attention-freq 4 --linear-conv-kernel-dim 3 --attention-output-gate",
        "--linear-attention-type gated_delta_net --linear-attention-freq '([1]*3+[0])' --linear-conv-kernel-dim 3 --attention-output-gate",
        "--full-attention-interval 4 --mamba-d-conv 3 --mamba-expand 1 --use-triton-gdn",
    ],
)
def test_gated_delta_nets_are_read_from_their_options(words: str):
    found = read(DELTA + words)
    assert found.model.layer_kinds == ("linear+dense",) * 3 + ("attention+dense",)
    mixer = found.model.mixer
    assert mixer is not None
    assert (mixer.kind, mixer.heads, mixer.head_dim) == ("gated-delta", 32, 64)
    assert (mixer.key_heads, mixer.key_dim, mixer.conv) == (8, 64, 3)
    assert found.model.attention_gate
    assert not any("linear" in one.text or "linear" in one.option for one in found.remarks)


def test_experts_of_delta_nets_move_into_their_layers():
    found = read(
        DELTA + "--experimental-attention-variant gdn --linear-attention-freq 2 --num-experts 8 "
        "--moe-router-topk 2 --moe-layer-freq [0]+[1]*3 --moe-grouped-gemm"
    )
    assert found.model.layer_kinds == (
        "linear+dense",
        "attention+moe",
        "linear+moe",
        "attention+moe",
    )


def test_an_indexer_is_read_from_its_options():
    words = (
        "--multi-latent-attention --kv-lora-rank 64 --qk-head-dim 32 --qk-pos-emb-head-dim 16 --v-head-dim 32 "
        "--position-embedding-type rope --experimental-attention-variant dsa --dsa-indexer-n-heads 8 --dsa-indexer-head-dim 32 "
    )
    found = read(words + "--dsa-indexer-topk 256 --dsa-indexer-loss-coeff 0.01")
    indexer = found.model.indexer
    assert indexer is not None
    assert (indexer.heads, indexer.head_dim, indexer.top_k) == (8, 32, 256)
    with pytest.raises(SpecError, match="all three"):
        read(words)


def test_other_variants_of_attention_are_refused():
    with pytest.raises(SpecError, match="linear or state-space"):
        read("--linear-attention-type kda --linear-attention-freq 4")
    with pytest.raises(SpecError, match="linear-attention-freq"):
        read("--linear-attention-type gdn --linear-attention-freq [1]*3")


def test_a_spec_of_slime_s_takes_the_preset_of_its_sizes():
    words = (
        "--num-layers 24 --hidden-size 1024 --num-attention-heads 8 --num-query-groups 2 --kv-channels 256 --ffn-hidden-size 3584 "
        "--group-query-attention --use-gated-attention --attention-output-gate --spec slime_plugins.models.qwen3_5 get_qwen3_5_spec"
    )
    found = read(words)
    assert found.model.name == "qwen3.5-0.8b"
    assert "--spec" not in {one.option for one in found.remarks}
    other = read(words.replace("--num-layers 24", "--num-layers 23"))
    assert "--spec" in {one.option for one in other.remarks}


def test_a_flavor_of_primus_with_narrow_products_is_named():
    text = (
        "modules:\n  post_trainer:\n    framework: megatron_bridge\n    config: sft_trainer.yaml\n    model: llama2_70b_lora.yaml\n"
        "    overrides:\n      flavor: llama2_70b_lora_mxfp4_config\n      seq_length: 8192\n      micro_batch_size: 1\n      global_batch_size: 8\n      peft: lora\n"
    )
    named = [
        one.text for one in import_text(text, "run.yaml", GIVEN).remarks if one.option == "flavor"
    ]
    assert named and "mxfp4" in named[0]


HYBRID = (
    "torchrun --nproc_per_node 8 %s --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 1 --global-batch-size 8 --vocab-size 50257 --bf16 --position-embedding-type none --disable-bias-linear "
    "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec "
)


@pytest.mark.parametrize("program", ["pretrain_mamba.py", "pretrain_hybrid.py"])
def test_hybrids_are_read_from_their_pattern(program: str):
    found = read("--is-hybrid-model --hybrid-override-pattern M-*E/MM --num-experts 8 --moe-grouped-gemm --mamba-head-dim 32", HYBRID % program)  # fmt: skip
    assert found.model.layer_kinds == ("linear+none", "none+dense", "attention+none", "none+moe")
    mixer = found.model.mixer
    assert mixer is not None
    assert (mixer.kind, mixer.heads, mixer.head_dim, mixer.key_heads, mixer.key_dim) == ("mamba2", 64, 32, 8, 128)  # fmt: skip
    assert found.model.norms_per_layer == 1
    assert "--spec" not in {one.option for one in found.remarks}


def test_stages_of_a_hybrid_are_cut_by_its_pattern():
    words = "--pipeline-model-parallel-size 2 --hybrid-layer-pattern "
    found = read(words + "'M-|M*|M-|M-'", HYBRID % "pretrain_hybrid.py")
    assert (found.model.layers, found.layout.virtual_stages) == (8, 2)
    uneven = read(words + "'M-M|M*-M-'", HYBRID % "pretrain_hybrid.py")
    assert uneven.layout.stage_layers == (3, 5)


@pytest.mark.parametrize("pattern", ["M-G*", "M-S*"])
def test_blocks_of_other_kinds_are_refused(pattern: str):
    with pytest.raises(SpecError, match=r"not modelled|decoder-only"):
        read(f"--hybrid-layer-pattern {pattern}", HYBRID % "pretrain_gpt.py")
