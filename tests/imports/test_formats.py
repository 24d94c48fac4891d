"""One short file of each format, written here: what it says, and that nothing in it is silent."""

import json

import pytest

from meshwright.imports.critique import criticise, price
from meshwright.imports.files import import_file, import_text
from meshwright.imports.names import model_named
from meshwright.imports.patch import apply_edits, find_edits
from meshwright.imports.reading import Given
from meshwright.specs import SpecError, load_cluster, load_model

H8 = Given(cluster=load_cluster("h100:1x8"))
NAMED = Given(cluster=load_cluster("h100:1x8"), model=load_model("llama3-8b"))
SHAPE = "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 2048 --vocab-size 32000 "
RUN = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py "
    + SHAPE
    + "--micro-batch-size 1 --global-batch-size 16 --bf16 "
)

MEGATRON = [
    ("", {"dropout": 0.1}, {"zero": 0}),
    ("--optimizer-cpu-offload", {}, {}),
    ("--use-distributed-optimizer --use-precision-aware-optimizer --exp-avg-dtype bf16 "
     "--exp-avg-sq-dtype bf16 --main-grads-dtype bf16", {}, {"zero": 1}),
    ("--context-parallel-size 2", {}, {"cp": 2, "cp_method": "ring"}),
    ("--checkpoint-activations", {}, {"recompute": "full"}),
    ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"framework": "megatron-fsdp"}, {"zero": 2}),
    ("--use-megatron-fsdp --data-parallel-sharding-strategy optim", {"framework": "megatron"}, {"zero": 1}),
    ("--use-torch-fsdp2", {"framework": "megatron-fsdp"}, {"zero": 3}),
    ("--reset-attention-mask", {"document_masking": True}, {}),
    ("--transformer-impl local", {"attention_kernel": "unfused"}, {}),
    ("--context-parallel-size 2 --cp-comm-type a2a", {}, {"cp_method": "ulysses"}),
    ("--ds-sequence-parallel-size 2", {}, {"cp": 2, "cp_method": "ulysses"}),
    ("--recompute-granularity selective --recompute-modules core_attn layernorm", {},
     {"recompute": "selective", "recompute_modules": ("core_attn", "layernorm")}),
    ("--optimizer-cpu-offload", {}, {"offload": ("optimizer",)}),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "job", "layout"), MEGATRON)
def test_megatron_flags_are_understood(flags, job, layout):
    back = import_text(RUN + flags, "x.sh", H8)
    for name, value in job.items():
        assert getattr(back.job, name) == value
    for name, value in layout.items():
        assert getattr(back.layout, name) == value


def test_precision_aware_states_and_offload_are_priced():
    narrow = import_text(RUN + MEGATRON[2][0], "x.sh", H8).job
    assert (narrow.optimizer.state_bytes, narrow.precision.gradient_bytes) == (4, 2)
    plain = import_text(RUN, "x.sh", H8)
    away = import_text(RUN + "--optimizer-cpu-offload", "x.sh", H8)
    assert away.offload == {"optimizer"}
    assert price(away).estimate.peak_memory_bytes < price(plain).estimate.peak_memory_bytes


@pytest.mark.parametrize("flag", ["--mtp-use-repeated-layer", "--fp8-param-gather", "--recompute-granularity selective "
                                  "--recompute-modules gdn_norm_out", "--some-new-switch 3", "--attention-dropout 0.1"])  # fmt: skip
def test_options_without_a_term_are_named(flag):
    back = import_text(RUN + flag, "x.sh", H8)
    option = [word for word in flag.split() if word.startswith("--")][-1]
    assert any(option in note for note in back.notes), back.notes


@pytest.mark.parametrize("flags", ["--hybrid-layer-pattern M-MX*", "--tokenizer-type BertWordPieceLowerCase",
                                   "--num-experts 8 16", "--mamba-state-dim 128"])  # fmt: skip
def test_what_is_no_plain_decoder_is_refused(flags):
    with pytest.raises(SpecError, match=r"not modelled|decoder-only"):
        import_text(RUN + flags, "x.sh", H8)


def test_alibi_and_gated_activations_of_the_bloom_era():
    back = import_text(
        RUN + "--position-embedding-type alibi --embed-layernorm --glu-activation geglu",
        "x.slurm",
        H8,
    )
    assert (back.model.positions, back.model.embedding_norm, back.model.gated) == (
        "alibi",
        True,
        True,
    )


YAMLS = {
    "axolotl": (
        "base_model: meta-llama/Meta-Llama-3-8B\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n"
        "sequence_len: 4096\nadapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_target_linear: true\nbf16: auto\n"
        "gradient_checkpointing: true\noptimizer: paged_adamw_8bit\nsample_packing: true\n",
        {"seq_len": 4096, "global_batch": 64, "document_masking": True}, {"micro_batch": 2, "recompute": "full"},
    ),
    "trainer": (
        "model_name_or_path: mistralai/Mistral-7B-v0.1\nper_device_train_batch_size: 4\nbf16: true\n"
        "gradient_accumulation_steps: 2\nmax_seq_length: 2048\ngradient_checkpointing: true\n",
        {"seq_len": 2048, "global_batch": 64}, {"micro_batch": 4, "recompute": "full"},
    ),
    "llama-factory": (
        "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
        "lora_rank: 16\ncutoff_len: 1024\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nbf16: true\n",
        {"seq_len": 1024, "global_batch": 64}, {"recompute": "full"},
    ),
    "nanotron": (
        "parallelism: {dp: 4, tp: 2, pp: 1, tp_mode: REDUCE_SCATTER}\ntokens: {sequence_length: 2048, micro_batch_size: 2, "
        "batch_accumulation_per_replica: 4}\nmodel: {model_config: {hidden_size: 512, num_attention_heads: 8, "
        "num_hidden_layers: 4, intermediate_size: 1024, vocab_size: 32000, moe_config: {num_experts: 8, top_k: 2}}}\n"
        "optimizer: {zero_stage: 1}\n",
        {"global_batch": 32}, {"dp": 4, "tp": 2, "zero": 1, "sequence_parallel": True},
    ),
    "gpt-neox": (
        '{"pipe_parallel_size": 1, "model_parallel_size": 2, # two\n"num_layers": 4, "hidden_size": 512, "num_attention_heads": 8,'
        '"seq_length": 2048, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}, "pos_emb": "rotary",'
        '"gpt_j_residual": true, "fp16": {"enabled": true}}\n',
        {"global_batch": 16}, {"tp": 2, "zero": 1},
    ),
    "llm-foundry": (
        "max_seq_len: 2048\nmodel: {name: mpt_causal_lm, d_model: 512, n_heads: 8, n_layers: 4, expansion_ratio: 4, vocab_size: 50368}\n"
        "train_loader: {name: text}\nglobal_train_batch_size: 64\ndevice_train_microbatch_size: 4\nprecision: amp_bf16\n"
        "fsdp_config: {sharding_strategy: FULL_SHARD, activation_checkpointing: true}\noptimizer: {name: decoupled_lionw}\n",
        {"global_batch": 64}, {"zero": 3, "micro_batch": 4, "recompute": "full"},
    ),
    "torchtune": (
        "model: {_component_: torchtune.models.llama3.llama3_8b}\noptimizer: {_component_: torch.optim.AdamW}\nbatch_size: 2\n"
        "tokenizer: {_component_: x, max_seq_len: 8192}\ngradient_accumulation_steps: 4\ndtype: bf16\n"
        "enable_activation_checkpointing: true\nfsdp_cpu_offload: true\n",
        {"seq_len": 8192, "global_batch": 64}, {"zero": 3, "recompute": "full"},
    ),
    "accelerate": (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n"
        "fsdp_config: {fsdp_sharding_strategy: 2, fsdp_offload_params: true}\n",
        {}, {"zero": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", YAMLS)
def test_yaml_formats_are_recognised_by_content(name):
    text, job, layout = YAMLS[name]
    given = NAMED if name == "accelerate" else H8
    back = import_text(text, "some.yaml", given)
    for field, value in job.items():
        assert getattr(back.job, field) == value, field
    for field, value in layout.items():
        assert getattr(back.layout, field) == value, field


def test_adapters_and_offload_reach_the_job():
    tuned = import_text(YAMLS["axolotl"][0], "a.yml", H8).job
    assert tuned.finetune is not None
    assert (tuned.finetune.method, tuned.finetune.rank, tuned.finetune.storage) == (
        "qlora",
        32,
        "nf4",
    )
    assert tuned.optimizer.paged
    assert import_text(YAMLS["accelerate"][0], "a.yml", NAMED).offload == {
        "optimizer",
        "parameters",
    }
    assert import_text(YAMLS["llm-foundry"][0], "a.yml", H8).job.optimizer.name == "lion"
    experts = import_text(YAMLS["nanotron"][0], "a.yml", H8).model.experts
    assert experts is not None and experts.experts == 8


def test_what_is_not_said_is_asked_for_with_a_guess_in_one_sentence():
    with pytest.raises(SpecError) as caught:
        import_text(
            RUN.replace("--nproc_per_node 8", "--nproc_per_node 8 --nnodes 4"), "x.sh", Given()
        )
    assert "--cluster" in str(caught.value)
    assert "h100:4x8 (a guess" in str(caught.value)
    back = import_text(RUN, "x.sh", Given(guess=True))
    assert any(note.startswith("a guess: --cluster") for note in back.notes)


def test_a_registry_of_several_is_a_question():
    text = (
        "from torchtitan.config import ParallelismConfig, TrainingConfig\nfrom torchtitan.trainer import Trainer\n"
        "def llama3_8b() -> Trainer.Config:\n    return Trainer.Config(model_spec=model_registry('8B'), "
        "training=TrainingConfig(local_batch_size=2, seq_len=8192))\n"
        "def llama3_70b() -> Trainer.Config:\n    c = llama3_8b()\n    c.model_spec = model_registry('70B')\n"
        "    c.parallelism = ParallelismConfig(tensor_parallel_degree=8)\n    return c\n"
    )
    with pytest.raises(SpecError, match=r"2 configurations.*llama3_8b, llama3_70b"):
        import_text(text, "llama3/config_registry.py", H8)
    back = import_text(
        text, "llama3/config_registry.py", Given(cluster=H8.cluster, config="llama3_70b")
    )
    assert (back.model.name, back.layout.tp, back.job.seq_len) == ("llama3.1-70b", 8, 8192)


def test_deepspeed_json_with_comments_and_auto():
    text = '{ // note\n "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, # x\n "bf16": {"enabled": "auto"},\n "train_micro_batch_size_per_gpu": "auto",}'
    back = import_text(text, "ds.json", NAMED)
    assert (back.layout.zero, back.offload) == (3, {"optimizer"})
    assert any("a guess: bf16" in note for note in back.notes)


def test_a_folder_of_pieces_is_one_run(tmp_path):
    (tmp_path / "accelerate.yaml").write_text(YAMLS["accelerate"][0])
    (tmp_path / "sft.yaml").write_text(YAMLS["trainer"][0])
    back = import_file(tmp_path, H8)
    assert (back.layout.zero, back.layout.micro_batch, back.model.name) == (2, 4, "mistral-7b")


def test_the_patch_changes_the_lines_that_it_names_and_reads_back():
    text = (
        "MBS=${1:-1}\n"
        + RUN.replace("--micro-batch-size 1", "--micro-batch-size $MBS")
        + "--recompute-granularity full --recompute-method uniform\n"
    )
    back = import_text(text, "x.sh", H8)
    critique = criticise(back, price(back), text, lambda new: import_text(new, "x.sh", H8))
    assert critique.changes
    for change in critique.changes:
        assert change.edits, change.what
        again = import_text(apply_edits(text, list(change.edits)), "x.sh", H8)
        assert again.layout == change.layout
        assert change.gain > 0.02


def test_no_line_is_offered_that_would_run_something_else():
    """The first place that names the micro-batch is not the one that counts."""
    text = (
        f"echo --micro-batch-size 1\n{RUN}--recompute-granularity full --recompute-method uniform\n"
    )
    back = import_text(text, "x.sh", H8)
    changes = criticise(back, price(back), text, lambda new: import_text(new, "x.sh", H8)).changes
    edits = [edit for one in changes if one.layout.micro_batch > 1 for edit in one.edits]
    assert edits and all(edit.line == 2 for edit in edits)
    blind = criticise(back, price(back), text, lambda _new: back).changes
    assert not any(one.edits for one in blind)


def test_a_framework_is_not_offered_what_it_has_not(tmp_path):
    text = YAMLS["trainer"][0] + "gradient_checkpointing: true\n"
    back = import_text(text, "x.yaml", NAMED)
    assert all(
        one.layout.recompute != "selective" for one in criticise(back, price(back), text).changes
    )


@pytest.mark.parametrize(
    ("text", "option", "expected"),
    [
        (
            "a: 1\nmicro_batch_size: 2  # two\n",
            "micro_batch_size",
            "a: 1\nmicro_batch_size: 4  # two\n",
        ),
        (json.dumps({"x": {"stage": 3}}), "zero.stage", '{"x": {"stage": 4}}'),
        ("A=${B:-2}\nrun --mb ${A}\n", "--mb", "A=${B:-4}\nrun --mb ${A}\n"),
        ("f(local_batch_size=2, y=1)\n", "local_batch_size", "f(local_batch_size=4, y=1)\n"),
    ],
)
def test_an_edit_changes_one_value_where_it_is_set(text, option, expected):
    assert apply_edits(text, [next(find_edits(text, option, "4"))]) == expected


def test_olmo_is_not_taken_for_llm_foundry():
    text = (
        "model: {d_model: 2048, n_heads: 16, n_layers: 16, mlp_ratio: 8, rope: true, activation_type: swiglu, "
        "weight_tying: false, include_bias: false, layer_norm_type: rms, attention_layer_norm: true, "
        "flash_attention: true, max_sequence_length: 4096, embedding_size: 100352}\n"
        "global_train_batch_size: 512\ndevice_train_microbatch_size: 4\nprecision: amp_bf16\n"
        "fsdp: {sharding_strategy: SHARD_GRAD_OP}\noptimizer: {name: adamw}\n"
    )
    back = import_text(text, "o.yaml", H8)
    assert (back.format, back.model.positions, back.model.gated, back.model.ffn) == (
        "OLMo YAML", "rope", True, 8192,
    )  # fmt: skip
    assert (back.layout.zero, back.job.global_batch, back.layout.micro_batch) == (2, 512, 4)


def test_a_json_after_another_option_is_not_the_run(tmp_path):
    """`--deepspeed zero2.json` names one part of a run; its other options count all the same."""
    (tmp_path / "zero2.json").write_text(
        json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}})
    )
    (tmp_path / "data.json").write_text("{}")
    script = tmp_path / "train.sh"
    script.write_text(
        "deepspeed --num_gpus 8 train.py --model_name_or_path meta-llama/Llama-2-7b-hf --data_path data.json "
        "--deepspeed ./scripts/zero2.json --per_device_train_batch_size 16 --gradient_accumulation_steps 2 "
        "--model_max_length 2048 --gradient_checkpointing True --bf16 True\n"
    )
    back = import_file(script, H8)
    assert (back.model.name, back.job.seq_len, back.job.global_batch) == ("llama2-7b", 2048, 256)
    assert (back.layout.zero, back.layout.micro_batch, back.layout.recompute) == (2, 16, "full")


def test_a_performance_recipe_inside_a_script_that_the_script_writes():
    """What `torchrun --no-python bash worker.sh` starts is in the text that the script itself writes."""
    text = (
        'worker=$(cat <<- EOM\n  if [ "\\$RANK" -eq "0" ]; then\n    env\n  fi\n  python run_script.py '
        "--model_family_name llama --model_recipe_name llama31_405b --gpu gb200 --num_gpus 128 --gpus_per_node 4 "
        "--compute_dtype fp8_cs --seq_length 8192 --global_batch_size 64 --micro_batch_size 1 "
        "--tensor_model_parallel_size 4 --pipeline_model_parallel_size 8 --virtual_pipeline_model_parallel_size 4 "
        '--context_parallel_size 2\nEOM\n)\necho "$worker" > worker.sh\n'
        'torchrun --nproc-per-node="4" --nnodes="32" --no-python bash worker.sh\n'
    )
    back = import_text(text, "launcher.sh", Given())
    layout = back.layout
    assert (back.model.name, back.cluster.gpus) == ("llama3.1-405b", 128)
    assert (layout.tp, layout.pp, layout.cp, layout.dp, layout.virtual_stages) == (4, 8, 2, 2, 4)
    assert layout.sequence_parallel
    assert back.job.precision.compute == "fp8"


def test_a_program_of_ones_own_is_read_by_usual_names_and_says_so():
    text = (
        "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc_per_node=8 "
        "train.py --max_context_width=8192 --num_key_value_heads=8 --intermediate_size=28672 --hidden_width=8192 "
        "--num_layers=80 --num_heads=64 --model_type=llama_v3 --train_batch_size=1 --lr=1e-4 --max_steps=30 "
        "--sharding_strategy=full --offload_activations=1 --activation_checkpointing=1\n"
    )
    back = import_text(text, "x.sbatch", Given(cluster=load_cluster("h100:4x8")))
    assert (back.model.layers, back.model.kv_heads, back.model.ffn, back.model.gated) == (
        80,
        8,
        28672,
        True,
    )
    assert (back.layout.zero, back.layout.recompute, back.offload) == (3, "full", {"activations"})
    assert (back.job.seq_len, back.job.global_batch) == (8192, 32)
    assert any("no framework's own" in note for note in back.notes)
    with pytest.raises(SpecError, match="does not train"):
        import_text(
            "python run_model.py --model llama2-70b --batch-size 8 --gen-len 32", "x.sh", H8
        )


def test_flagscale_tables_are_megatron_arguments(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "small.yaml").write_text(
        "system:\n  tensor_model_parallel_size: 2\n  sequence_parallel: true\n  use_distributed_optimizer: true\n"
        "  precision:\n    bf16: true\nmodel:\n  num_layers: 8\n  hidden_size: 1024\n  num_attention_heads: 8\n"
        "  group_query_attention: true\n  num_query_groups: 2\n  swiglu: true\n  seq_length: 2048\n"
        "  micro_batch_size: 1\n  global_batch_size: 16\n  optimizer:\n    lr: 1e-4\n"
        "data:\n  tokenizer:\n    vocab_size: 32000\n"
    )
    top = tmp_path / "train.yaml"
    top.write_text(
        "defaults:\n- train: small\nexperiment:\n  task:\n    type: train\n    backend: megatron\n"
        "  runner:\n    nnodes: 1\n    nproc_per_node: 8\n"
    )
    for path in (top, tmp_path / "train" / "small.yaml"):
        back = import_file(path, H8)
        assert (back.model.layers, back.model.kv_heads, back.model.vocab) == (8, 2, 32000)
        assert (
            back.layout.tp,
            back.layout.dp,
            back.layout.zero,
            back.layout.sequence_parallel,
        ) == (2, 4, 1, True)
    with pytest.raises(SpecError, match="does not train"):
        import_text("experiment:\n  task:\n    type: serve\n", "serve.yaml", H8)


@pytest.mark.parametrize("name", ["mcore_distributed_optim", "fused_adam", "FusedAdamW", "distributed_fused_adam",
                                  "apex_fused_adam", "DeepSpeedCPUAdam", "adamw_torch_fused"])  # fmt: skip
def test_where_an_optimizer_runs_is_no_part_of_its_state(name):
    from meshwright.imports.recipes import optimizer_named

    assert optimizer_named(name, "optimizer").name == "adamw"
    assert optimizer_named("FusedLamb", "optimizer").name == "lamb"


def test_torchtune_ppo_is_not_deepspeed():
    text = (
        "# tune run ppo_full_finetune_single_device --config mistral/7B_full_ppo\n"
        "tokenizer:\n  _component_: torchtune.models.mistral.mistral_tokenizer\n  max_seq_len: 512\n"
        "policy_model:\n  _component_: torchtune.models.mistral.mistral_7b\n"
        "optimizer:\n  _component_: torch.optim.AdamW\nbatch_size: 8\ngradient_accumulation_steps: 4\ndtype: bf16\n"
    )
    back = import_text(text, "x.yaml", Given(model=load_model("mistral-7b"), guess=True))
    assert back.format == "torchtune YAML"
    assert (back.layout.world, back.layout.micro_batch, back.job.seq_len) == (1, 8, 512)


def test_litgpt_recipes():
    text = (
        "checkpoint_dir: checkpoints/meta-llama/Meta-Llama-3-8B\nprecision: bf16-true\nquantize: bnb.nf4\ndevices: 1\n"
        "num_nodes: 1\nlora_r: 16\nlora_query: true\nlora_key: false\nlora_value: true\nlora_projection: false\n"
        "lora_mlp: false\nlora_head: false\ntrain: {global_batch_size: 6, micro_batch_size: 2, max_seq_length: 512}\n"
    )
    back = import_text(text, "x.yaml", Given(guess=True))
    assert (back.format, back.model.name, back.layout.world, back.layout.zero) == (
        "LitGPT YAML",
        "llama3-8b",
        1,
        0,
    )
    assert back.job.finetune is not None
    assert (back.job.finetune.rank, back.job.finetune.method) == (16, "qlora")
    assert (back.job.global_batch, back.layout.micro_batch, back.job.seq_len) == (6, 2, 512)


OLMO_CORE = """
from olmo_core.nn.transformer import TransformerConfig
SEQ = 4096


@dataclass
class Sizes:
    tokens: int
    accumulate: int = field(init=False)

    def __post_init__(self):
        self.accumulate = 1
        while self.tokens // self.accumulate > 16384:
            self.accumulate *= 2
        self.micro = self.tokens // self.accumulate


@dataclass
class Run(Config):
    @classmethod
    def build(cls, *, seq_len, global_batch):
        sizes = Sizes(tokens=global_batch)
        return cls(
            model=TransformerConfig.olmo3_7B(vocab_size=100352),
            launch=build_launch_config(num_nodes=2),
            data_loader=NumpyDataLoaderConfig(global_batch_size=global_batch),
            train_module=TransformerTrainModuleConfig(
                rank_microbatch_size=sizes.micro,
                max_sequence_length=seq_len,
                dp_config=TransformerDataParallelConfig(name=DataParallelType.fsdp, param_dtype=DType.bfloat16),
            ),
        )


if __name__ == "__main__":
    parser.add_argument("--seq_len", type=int, default=SEQ)
    parser.add_argument("--global_batch", type=int, default=64 * SEQ)
"""


def test_an_olmo_core_script_that_builds_in_a_class_by_its_own_arguments():
    found = import_text(OLMO_CORE, "sft.py", Given(guess=True))
    assert (found.job.seq_len, found.job.global_batch) == (4096, 64)
    assert (found.layout.micro_batch, found.layout.zero, found.cluster.gpus) == (4, 3, 16)


def test_recurrent_layers_of_an_olmo_core_script_are_not_read_as_attention():
    text = OLMO_CORE.replace("model=T", "mixer=GatedDeltaNetConfig(n_heads=8), model=T")
    with pytest.raises(SpecError, match="not modelled"):
        import_text(text, "sft.py", Given(guess=True))


def test_prime_rl_keeps_optimizer_and_checkpoints_in_host_memory_unless_told():
    text = """
max_steps = 5
[model]
name = "Qwen/Qwen3-0.6B"
cp = 2
[data]
type = "sft"
batch_size = 16
seq_len = 1024
"""
    found = import_text(text, "sft.toml", Given(cluster=load_cluster("h100:1x8")))
    assert (found.layout.cp, found.layout.zero, found.layout.recompute) == (2, 3, "full")
    assert set(found.layout.offload) == {"optimizer", "activations"}
    bare = text.replace("cp = 2", 'ac = "None"\noptim_cpu_offload = false')
    found = import_text(bare, "sft.toml", Given(cluster=load_cluster("h100:1x8")))
    assert (found.layout.recompute, found.layout.offload) == ("none", ())


def test_experts_of_a_nemo_yaml_are_experts():
    text = """
trainer: {devices: 8, num_nodes: 1, precision: bf16}
model:
  tensor_model_parallel_size: 1
  num_layers: 4
  hidden_size: 512
  ffn_hidden_size: 1024
  num_attention_heads: 8
  encoder_seq_length: 512
  micro_batch_size: 1
  global_batch_size: 8
  num_moe_experts: 8
  expert_model_parallel_size: 4
  fp8: false
  fp8_hybrid: true
"""
    found = import_text(text, "moe.yaml", H8)
    assert found.model.experts is not None and found.model.experts.experts == 8
    assert (found.layout.ep, found.job.precision.compute) == (4, "bf16")


def test_a_place_left_for_the_reader_is_asked_for():
    with pytest.raises(SpecError, match="left for its reader"):
        import_text(RUN.replace("--vocab-size 32000", "--vocab-size xxx"), "run.sh", H8)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("flux_12b", "trains a"),
        ("Falcon-H1-3B", "its config.json"),
        ("nvidia/Nemotron-H-4B", "its config.json"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "trains a"),
    ],
)
def test_no_typical_decoder_is_guessed_for_what_is_none(name, word):
    text = f"torchrun --nproc_per_node 8 train.py --model_name_or_path {name} --per_device_train_batch_size 1"
    with pytest.raises(SpecError, match=word):
        import_text(text, "run.sh", Given(guess=True))


def test_hybrids_that_are_presets_are_read():
    text = "torchrun --nproc_per_node 8 train.py --model_name_or_path nvidia/Nemotron-H-8B-Base-8K --per_device_train_batch_size 1"
    assert import_text(text, "run.sh", Given(guess=True)).model.name == "nemotron-h-8b"


def test_qwen2_has_the_shapes_of_its_next_release():
    assert model_named("Qwen/Qwen2-72B-Instruct") == load_model("qwen2.5-72b")


def test_recipes_under_other_names_and_a_function_of_a_module_of_the_project(tmp_path):
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "real.py").write_text(
        "from megatron.bridge.training.config import ConfigContainer\n"
        "def one_config() -> ConfigContainer:\n"
        "    cfg = _pretrain_common()\n    cfg.model.num_layers = 4\n    cfg.model.hidden_size = 512\n"
        "    cfg.model.num_attention_heads = 8\n    cfg.model.seq_length = 512\n    cfg.model.vocab_size = 32000\n"
        "    cfg.model.tensor_model_parallel_size = 2\n    return cfg\n"
    )
    alias = tmp_path / "old.py"
    alias.write_text(
        "from megatron.bridge import x\nfrom kit.real import one_config as old_config\n"
    )
    found = import_file(alias, H8)
    assert found.model.layers == 4 and found.layout.tp == 2
    (tmp_path / "kit" / "cook.py").write_text(
        "def parts(degree):\n    return TransformerTrainModuleConfig(rank_microbatch_size=4096, max_sequence_length=4096,\n"
        "        dp_config=TransformerDataParallelConfig(name=DataParallelType.hsdp, shard_degree=2),\n"
        "        cp_config=TransformerContextParallelConfig.llama3(degree=degree))\n"
    )
    script = tmp_path / "run.py"
    script.write_text(
        "from olmo_core import x\nfrom kit import cook\ndef build_config():\n    train = cook.parts(degree=2)\n"
        "    return Run(model=TransformerConfig.olmo3_7B(), train=train, loader=NumpyDataLoaderConfig(global_batch_size=8 * 4096))\n"
    )
    found = import_file(script, H8)
    assert (found.layout.cp, found.layout.zero, found.layout.shard_degree) == (2, 3, 4)


def test_what_a_program_sets_itself_is_not_transformers_default():
    swift = "swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora --lora_rank 8 --max_length 512 --per_device_train_batch_size 1"
    found = import_text(swift, "run.sh", H8)
    assert (found.job.precision.compute, found.layout.recompute) == ("bf16", "full")
    assert found.job.finetune is not None and found.job.finetune.method == "lora"
    rl = (
        "torchrun --nproc_per_node 8 open_instruct/grpo_fast.py --model_name_or_path Qwen/Qwen2.5-0.5B "
        "--per_device_train_batch_size 1 --pack_length 512 --deepspeed_stage 2"
    )
    assert import_text(rl, "run.sh", H8).job.precision.compute == "bf16"


def test_trainer_arguments_inside_a_file_that_has_more():
    text = (
        "data_config: {train_file: a.jsonl}\nmax_input_length: 256\nmax_output_length: 256\n"
        "training_args:\n  per_device_train_batch_size: 2\n  bf16: true\n  deepspeed: configs/ds_zero_2.json\n"
        "peft_config: {peft_type: LORA, r: 4, lora_alpha: 32, target_modules: [q_proj]}\n"
    )
    found = import_text(text, "lora.yaml", NAMED)
    assert (found.job.seq_len, found.layout.micro_batch, found.layout.zero) == (512, 2, 2)
    assert found.job.finetune is not None and found.job.finetune.rank == 4


def test_modules_that_train_in_full_beside_adapters_are_priced():
    run = "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path meta-llama/Llama-2-7b --per_device_train_batch_size 1 --block_size 512 --bf16 --lora_rank 8"
    plain, more = (import_text(run + extra, "run.sh", H8) for extra in ("", " --modules_to_save embed_tokens,lm_head"))  # fmt: skip
    assert more.job.finetune is not None and more.job.finetune.train == ("embedding", "head")
    assert price(more).estimate.peak_memory_bytes > price(plain).estimate.peak_memory_bytes


def _shared(sizes: str, kind: str = "DEEPSPEED") -> str:
    return (
        f"compute_environment: LOCAL_MACHINE\ndistributed_type: {kind}\nmixed_precision: bf16\nnum_processes: 8\n"
        f"deepspeed_config: {{zero_stage: 3}}\nparallelism_config: {{{sizes}}}\n"
    )


@pytest.mark.parametrize("more", ["", ", parallelism_config_dp_shard_size: 2"])
def test_accelerate_counts_no_replicas_where_deepspeed_splits_sequences(more):
    text = _shared("parallelism_config_sp_size: 4, parallelism_config_sp_backend: deepspeed" + more)
    found = import_text(text, "a.yaml", Given(model=load_model("llama3-8b"), guess=True))
    assert (found.layout.dp, found.layout.cp, found.layout.cp_method) == (2, 4, "ulysses")
    assert [one for one in found.remarks if one.kind == "unread"] == []


@pytest.mark.parametrize(
    ("sizes", "kind", "says"),
    [
        ("parallelism_config_sp_size: 3", "DEEPSPEED", "multiple of sp_size"),
        ("parallelism_config_sp_size: 2, parallelism_config_cp_size: 2", "DEEPSPEED", "one of the two"),
        ("parallelism_config_sp_size: 4, parallelism_config_dp_shard_size: 2", "FSDP", "DEEPSPEED is expected"),
    ],
)  # fmt: skip
def test_accelerate_refuses_sequences_that_nothing_splits(sizes, kind, says):
    with pytest.raises(SpecError, match=says):
        import_text(
            _shared(sizes, kind), "a.yaml", Given(model=load_model("llama3-8b"), guess=True)
        )


def test_of_two_degrees_of_sequences_the_one_above_one_counts():
    text = (
        "from trl import SFTConfig, SFTTrainer\nfrom accelerate.utils import ParallelismConfig\n"
        "split = ParallelismConfig(sp_size=1, cp_size=4, dp_shard_size=2)\n"
        "args = SFTConfig(per_device_train_batch_size=1, max_length=8192, bf16=True, parallelism_config=split)\n"
        'trainer = SFTTrainer(model="Qwen/Qwen3-8B", args=args)\n'
    )
    found = import_text(text, "t.py", Given(cluster=load_cluster("h100:1x8"), guess=True))
    assert found.layout.cp == 4
