"""Readers of pretraining tools: nanochat, InternEvo, NeuronX Distributed Training, programs of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.interpolate import resolved
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError

ONE = Given(cluster=load_cluster("h100:1x8"))


def _said(found: Imported) -> str:
    return "\n".join(found.notes)


def test_nanochat_makes_all_of_the_depth() -> None:
    """Width, heads and the batch follow the depth; every rank holds a share of the optimizer."""
    text = "torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth=24 --device-batch-size=16 --fp8\n"
    found = import_text(text, "speed.sh", ONE)
    model = found.model
    assert (model.layers, model.hidden, model.heads, model.head_dim) == (24, 1536, 12, 128)
    assert (found.layout.micro_batch, found.layout.zero, found.job.global_batch) == (16, 1, 512)
    assert (found.job.precision.name, found.job.optimizer.name) == ("fp8", "muon")
    assert (model.window, model.window_period) == (512, 4)
    older = import_text(text.replace("device-batch-size", "device_batch_size"), "speed.sh", ONE)
    assert older.model.window == 0 and older.job.global_batch == 256


CONSTANTS = "depth = 16\nmatrix_lr = 0.02\ndevice_batch_size = 8\ntotal_batch_size = 262144\n"
OPTIONS = '(f"--aspect-ratio")\nadd_argument("--device-batch-size", type=int, default=8)\nadd_argument("--%s", type=int, default=16)\n'


def test_nanochat_at_hand_says_its_version(tmp_path) -> None:
    """Vocabulary, windows and defaults of the checkout count; a model that is not of a depth is asked for."""
    (tmp_path / "scripts").mkdir()
    program = tmp_path / "scripts" / "base_train.py"
    path = tmp_path / "speed.sh"
    path.write_text("torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --run=x\n")
    program.write_text(CONSTANTS)
    found = import_file(path, ONE)
    assert (found.model.layers, found.model.vocab, found.model.window) == (16, 65_536, 0)
    assert (found.layout.micro_batch, found.job.global_batch) == (8, 128)
    program.write_text(OPTIONS % "depth")
    (tmp_path / "nanochat").mkdir()
    (tmp_path / "nanochat" / "gpt.py").write_text("short_window = long_window // 2\n")
    (tmp_path / "scripts" / "tok_train.py").write_text("('--vocab-size', type=int, default=9000)")
    found = import_file(path, ONE)
    assert (found.model.vocab, found.model.window) == (9000, 1024)
    assert "value embeddings" not in _said(found)
    path.write_text(f"python -m scripts.tok_train --vocab-size=12000\n{path.read_text()}")
    assert import_file(path, ONE).model.vocab == 12_000  # as the script trains its tokenizer
    program.write_text(OPTIONS % "size")
    with pytest.raises(SpecError, match="builds a model of its own, not one by its depth"):
        import_file(path, ONE)


NANOTRON = """
import argparse
import torch
from nanotron.config import AdamWOptimizerArgs, Config, LlamaConfig, ModelArgs, OptimizerArgs, ParallelismArgs, TokensArgs
SIZES = {"small": (4, 512), "large": (8, 1024)}
def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="large")
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--config", type=str, default=None)
    return parser.parse_args()
def shape(size):
    layers, hidden = SIZES[size]
    return LlamaConfig(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=8, intermediate_size=2048, vocab_size=9000, rope_scaling=None)
def configured(model_config, args):
    return Config(
        parallelism=ParallelismArgs(dp=2, pp=1, tp=args.tp, pp_engine="1f1b", tp_mode="REDUCE_SCATTER"),
        model=ModelArgs(dtype=torch.bfloat16, model_config=model_config),
        tokens=TokensArgs(sequence_length=1024, micro_batch_size=3, batch_accumulation_per_replica=2),
        optimizer=OptimizerArgs(zero_stage=1, accumulate_grad_in_fp32=True, optimizer_factory=AdamWOptimizerArgs(adam_eps=1e-8)),
    )
if __name__ == "__main__":
    args = get_args()
    if args.config is None:
        config = configured(shape(args.size), args)
    config.save_as_yaml("x.yaml")
"""


def test_nanotron_in_python_is_what_it_writes() -> None:
    """Functions are followed with what the parser takes by itself; a state-space model is named."""
    found = import_text(NANOTRON, "config.py", Given(guess=True))
    model, layout = found.model, found.layout
    assert (model.layers, model.hidden, model.vocab) == (8, 1024, 9000)
    assert (layout.tp, layout.dp, layout.zero, layout.micro_batch) == (2, 2, 1, 3)
    assert (found.job.global_batch, found.job.seq_len) == (12, 1024)
    assert "own defaults are taken" in _said(found)
    with pytest.raises(SpecError, match="state-space"):
        import_text(NANOTRON.replace("LlamaConfig", "MambaModelConfig"), "config.py", ONE)


INTERNEVO = """
VOCAB, HIDDEN = 50000, 2048
SEQ_LEN = 4096

data = dict(seq_len=SEQ_LEN, micro_num=4, micro_bsz=2, pack_sample_into_one=False, total_steps=10)

model = dict(checkpoint=0.5, num_chunks=2, num_attention_heads=16, num_kv_attention_heads=4, vocab_size=VOCAB,
             hidden_size=HIDDEN, num_layers=16, mlp_ratio=8 / 3, no_bias=True, dtype="torch.bfloat16", use_flash_attn=True)

parallel = dict(zero1=dict(size=2), tensor=dict(size=2, mode="msp"), pipeline=dict(size=2), weight=dict(size=1))
"""


def test_internevo_tables() -> None:
    """Degrees, shards, the share of layers that is recomputed, and the width of an FFN rounded up."""
    found = import_text(INTERNEVO, "run.py", ONE)
    assert (found.model.ffn, found.model.kv_heads, found.model.vocab) == (5632, 4, 50_000)
    layout = found.layout
    assert (layout.tp, layout.pp, layout.dp, layout.zero) == (2, 2, 2, 1)
    assert (layout.virtual_stages, layout.sequence_parallel, layout.recompute_layers) == (2, True, 4)  # fmt: skip
    assert found.job.global_batch == 4 * 2 * 2 and found.job.document_masking


def test_internevo_deals_sequences_out() -> None:
    """ISP is sequence parallelism whose weights lie in pieces, which is said."""
    text = INTERNEVO.replace('mode="msp"', 'mode="isp"').replace(
        "weight=dict(size=1)", "weight=dict(size=4)"
    )
    found = import_text(text, "run.py", ONE)
    assert (found.layout.tp, found.layout.cp, found.layout.cp_method) == (1, 2, "ulysses")
    assert "lie in 4 pieces" in _said(found)


NEURON = """
name: hf_llama
model_source: hf
trainer: {devices: 32, num_nodes: 2, max_steps: 10}
exp_manager: {checkpoint_callback_params: {filename: 'hf_llama3_8B--{step}'}}
distributed_strategy: {tensor_model_parallel_size: 8, pipeline_model_parallel_size: 2, zero1: True, sequence_parallel: True, kv_replicator: 1}
data: {micro_batch_size: 1, global_batch_size: 64}
model:
  model_config: /somewhere/config.json
  encoder_seq_length: 8192
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 16
  hidden_size: 4096
  activations_checkpoint_granularity: selective
  activations_checkpoint_recompute: [CoreAttention, LlamaMLP]
  fusions: {softmax: True, flash_attention: True}
  optim: {name: adamw, lr: 1.0e-4}
precision: {type: bf16SR}
"""


def test_neuron_tables_and_a_model_by_the_names_around_it() -> None:
    """The degrees' own table, a cut model, what is recomputed, weights of 16 bits without copies."""
    found = import_text(NEURON, "run.yaml", Given(guess=True))
    assert (found.model.layers, found.model.kv_heads, found.model.vocab) == (16, 8, 128_256)
    layout = found.layout
    assert (layout.tp, layout.pp, layout.dp, layout.zero) == (8, 2, 4, 1)
    assert layout.recompute_modules == ("core_attn", "mlp")
    assert found.job.precision.master_bytes == 0 and found.job.seq_len == 8192
    assert found.cluster.device.name.startswith("Trainium1") and "NeuronCores" in _said(found)


OWN = "torchrun --standalone --nproc_per_node=8 train_own.py --n_layer 12 --n_embd 768 --n_head 12 --vocab_size 50257 --learning_rate 1e-3 {}"


def test_a_batch_of_tokens_and_a_batch_beside_one_of_a_device() -> None:
    """Half a million is a number of tokens; a batch beside a device's is the step's."""
    words = (
        "--batch_size 32 --sequence_length 1024 --total_batch_size 524288 --num_iterations 18000"
    )
    found = import_text(OWN.format(words), "run.sh", ONE)
    assert found.job.global_batch == 512 and "several times" not in _said(found)
    table = "n_layer: 12\nmodel_dim: 768\nn_head: 6\nsequence_length: 1024\nbatch_size: 1024\ndevice_batch_size: 32\nlr: 0.02\n"
    other = import_text(table, "own.yaml", ONE)
    assert (other.job.global_batch, other.layout.micro_batch) == (1024, 32)


def test_a_switch_named_fsdp_shards() -> None:
    """`--fsdp` without a value shards weights, too."""
    found = import_text(OWN.format("--batch_size 8 --seq_len 1024 --fsdp"), "run.sh", ONE)
    assert found.layout.zero == 3


def test_python_alone_is_one_device_and_a_described_model_trains() -> None:
    """A program that only its options describe is read, on the one device of its one process."""
    text = "python ./src/main.py --n_embd 768 --n_head 12 --n_layer 24 --batch_size 50 --sequence_length 512 --acc_steps 4\n"
    found = import_text(text, "run.sh", Given(guess=True))
    assert (found.cluster.gpus, found.job.global_batch, found.layout.micro_batch) == (1, 200, 50)


def test_resolvers_compute_and_decode() -> None:
    """NVIDIA's templates: what a variable is by default, products and quotients of what is known."""
    data = {
        "a": "${oc.decode:${oc.env:FP8,False}}",
        "b": "${oc.decode:${oc.env:RECIPE,null}}",
        "c": "${multiply:${oc.decode:${oc.env:MINI,4}},${floor_div:${multiply:8,4},${d}}}",
        "d": 2,
    }
    assert resolved(data) == {"a": False, "b": None, "c": 64, "d": 2}


MEGATRON = "torchrun --nproc_per_node=8 pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --micro-batch-size 4 --global-batch-size 64 --max-position-embeddings 1024 --vocab-size 50257 --attention-dropout 0 --hidden-dropout 0 {}"


def test_eight_bits_beside_sixteen_of_either_kind() -> None:
    """`--fp16 --fp8-format hybrid` computes in eight bits; a format that is switched off does not."""
    assert import_text(MEGATRON.format("--fp16 --fp8-format hybrid"), "a.sh", ONE).job.precision.name == "fp8"  # fmt: skip
    assert import_text(MEGATRON.format("--bf16 --fp8-format none"), "a.sh", ONE).job.precision.name == "bf16-fp32-grads"  # fmt: skip


def test_devices_by_the_names_that_clusters_give_them() -> None:
    """MI250 is asked of SLURM where the dies of MI250X are meant; NPUs are offered as 910B."""
    batch = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=mi250:8\n#SBATCH --ntasks-per-node=8\nsrun python pretrain_gpt.py --bf16 "
    found = import_text(batch + MEGATRON.format("").split("pretrain_gpt.py")[1], "a.sh", Given())
    assert found.cluster.device.name.startswith("MI250X") and found.cluster.gpus == 16
    npus = import_text("export HCCL_CONNECT_TIMEOUT=1\n" + MEGATRON.format("--bf16"), "a.sh", Given(guess=True))  # fmt: skip
    assert npus.cluster.device.name.startswith("Ascend 910B")


def test_constants_of_nanogpt_alone() -> None:
    """A file of constants is what nanoGPT trains with it: its sizes over nanoGPT's own."""
    text = "wandb_log = True\nbatch_size = 12\nblock_size = 1024\ngradient_accumulation_steps = 5 * 8\nn_layer = 24\nn_head = 16\nn_embd = 1024\n"
    found = import_text(text, "train_gpt2.py", ONE)
    assert (found.model.layers, found.model.hidden, found.job.global_batch) == (24, 1024, 480)
    assert found.layout.micro_batch == 12 and "all devices together" in _said(found)


OLMOE = """
model: {d_model: 1024, n_heads: 16, n_layers: 4, mlp_ratio: 2, weight_tying: false, rope: true, flash_attention: true, block_type: moe, layer_norm_type: rms,
  activation_type: swiglu, max_sequence_length: 2048, vocab_size: 50280, embedding_size: 50304, include_bias: false, moe_top_k: 4, moe_num_experts: 16, moe_dropless: true}
optimizer: {name: adamw, learning_rate: 4.0e-4}
max_duration: 1ep
global_train_batch_size: 64
device_train_microbatch_size: 2
precision: amp_bf16
fsdp: {sharding_strategy: FULL_SHARD}
"""


def test_experts_of_olmo_blocks() -> None:
    """A block of experts is a mixture, each expert half the width that gated activations are given."""
    found = import_text(OLMOE, "moe.yml", ONE)
    experts = found.model.experts
    assert experts is not None and (experts.experts, experts.top_k, experts.ffn) == (16, 4, 1024)
    assert "moe_num_experts" not in _said(found)


HYPERPOD = """
model: {hf_model_name_or_path: meta-llama/Llama-3.1-8B, train_batch_size: 2, max_context_width: 4096, activation_checkpointing: true, precision: bf16,
  sharding_strategy: hybrid_shard, shard_degree: 8, optim: {name: adamw, lr: 0.0002}}
trainer: {devices: 8, num_nodes: 2, max_steps: 50}
"""


def test_a_shard_group_of_a_stated_size() -> None:
    """Hybrid shards are as large as the table says; hosts and their devices count."""
    found = import_text(HYPERPOD, "run.yaml", Given(guess=True))
    assert (found.model.name, found.cluster.gpus) == ("llama3.1-8b", 16)
    assert (found.layout.zero, found.layout.shard, found.layout.recompute) == (3, 8, "full")


def test_ffns_that_nothing_describes_are_a_guess() -> None:
    """Sizes of a model without its FFNs' are completed, and that is said."""
    text = "model: {dim: 1024, n_layers: 8, n_heads: 8}\ndata: {seq_len: 2048, batch_size: 4}\noptim: {lr: 3e-3}\ndistributed: {fsdp_type: full_shard}\n"
    found = import_text(text, "own.yaml", ONE)
    assert found.layout.zero == 3 and "FFNs are not described" in _said(found)


def test_a_recipe_of_torchtitan_whose_file_is_not_here() -> None:
    """The model by the file's name, the rest by the words over it."""
    text = (
        "torchrun --nnodes 1 --nproc_per_node 8 -m torchtitan.train --job.config_file torchtitan/models/llama3/train_configs/llama3_8b.toml "
        "--training.local_batch_size 2 --training.seq_len 4096 --activation_checkpoint.mode full\n"
    )
    found = import_text(text, "run.sh", ONE)
    assert (found.model.layers, found.job.seq_len, found.layout.micro_batch) == (32, 4096, 2)
    assert "llama3_8b.toml is not here" in _said(found)


BRIDGE = """
recipe: {_target_: megatron.bridge.recipes.qwen.qwen3.qwen3_8b_pretrain_config, tensor_model_parallel_size: 2, context_parallelism: 2, seq_length: 8192}
train: {train_iters: 10, global_batch_size: 32, micro_batch_size: 1}
"""


def test_a_table_that_names_a_bridge_recipe() -> None:
    """The recipe's arguments and the tables beside it are overrides of the recipe."""
    found = import_text(BRIDGE, "run.yaml", ONE)
    assert (found.model.name, found.layout.tp, found.layout.cp) == ("qwen3-8b", 2, 2)
    assert (found.job.seq_len, found.job.global_batch) == (8192, 32)


def test_a_table_of_adapters_over_another(tmp_path: Path) -> None:
    """What `defaults` names stands below; adapters and devices are in the tables."""
    below = BRIDGE.replace("seq_length: 8192", "seq_length: 8192, peft: lora")
    (tmp_path / "default.yaml").write_text(f"{below}peft: {{type: lora, dim: 8, target_modules: [linear_qkv]}}\n")  # fmt: skip
    (tmp_path / "small.yaml").write_text("defaults: default.yaml\nrecipe: {_target_: megatron.bridge.recipes.qwen.qwen3.qwen3_8b_pretrain_config}\nrun: {env: {nodes: 2, gpus_per_node: 8}}\n")  # fmt: skip
    found = import_file(tmp_path / "small.yaml", Given(guess=True))
    assert found.job.finetune is not None
    assert (found.job.finetune.rank, found.cluster.gpus, found.layout.tp) == (8, 16, 2)


def test_a_part_of_a_configuration_is_no_recipe() -> None:
    """Functions that make a tokenizer's or a data set's configuration are not offered as runs."""
    text = (
        "from megatron.bridge.recipes.qwen.qwen3 import qwen3_8b_pretrain_config\nfrom megatron.bridge.training.config import ConfigContainer\n"
        "def get_tokenizer_config():\n    return TokenizerConfig(tokenizer_type='x')\n"
        "def create_config(args):\n    config = qwen3_8b_pretrain_config()\n    return config\n"
    )
    with pytest.raises(SpecError, match="takes model and batch from its command line"):
        import_text(text, "pretrain.py", ONE)


def test_other_systems_and_scripts_that_start_others() -> None:
    """Cerebras' files are refused for what they are; a script whose one program is no training names what it starts."""
    with pytest.raises(SpecError, match="Cerebras"):
        import_text("width: 512\ndepth: 4\nbatch_size: 8\nlearning_rate: 1e-4\nbackend: CSX\n", "a.yaml", ONE)  # fmt: skip
    with pytest.raises(SpecError, match=r"it starts run_pretrain\.sh"):
        import_text("bash ./examples/run_pretrain.sh --x 1\npython3 evaluate/extract.py --log a\n", "a.sh", ONE)  # fmt: skip


def test_embedding_and_head_that_count_as_layers() -> None:
    """The first stage and the last hold a layer less each, down to none."""
    text = MEGATRON.replace("--num-layers 12", "--num-layers 6").format(
        "--bf16 --pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 "
        "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    )
    found = import_text(text, "a.sh", ONE)
    assert found.layout.stage_layers == (0, 1, 1, 1, 1, 1, 1, 0)


NEMO = """
run: {name: gpt3_small}
trainer: {num_nodes: 2, devices: 8, precision: bf16}
model: {micro_batch_size: 2, global_batch_size: 64, tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1, encoder_seq_length: 2048,
  max_position_embeddings: 2048, num_layers: 12, hidden_size: 768, num_attention_heads: 12, ffn_hidden_size: '${multiply:4, ${training.model.hidden_size}}',
  hidden_dropout: 0.0, attention_dropout: 0.0, optim: {name: distributed_fused_adam, lr: 1e-4}}
"""


@pytest.mark.parametrize("group", ["training", "peft"])
def test_a_launcher_and_the_configuration_that_it_reads(tmp_path: Path, group: str) -> None:
    """`training=gpt3/small` is a file of the launcher's; what the command says counts over it."""
    place = tmp_path / "conf" / group / "gpt3"
    place.mkdir(parents=True)
    (place / "small.yaml").write_text(NEMO.replace("training.", f"{group}."))
    text = f"HYDRA_FULL_ERROR=1 python3 main.py {group}=gpt3/small stages=[{group}] {group}.model.micro_batch_size=4 {group}.trainer.num_nodes=1\n"
    found = import_text(text, "run.sh", Given(guess=True), tmp_path)
    assert (found.model.ffn, found.layout.tp, found.layout.micro_batch) == (3072, 2, 4)
    assert found.cluster.gpus == 8 and found.layout.zero == 1
    with pytest.raises(SpecError, match="which is not here"):
        import_text(text.replace("gpt3/small", "gpt3/other"), "run.sh", ONE, tmp_path)


def test_what_only_looks_like_a_known_format() -> None:
    """A formula reader's table is no GPT-NeoX; a reranker and prompts are refused for what they are; so is an evaluation."""
    with pytest.raises(SpecError, match="no known framework"):
        import_text("num_layers: 4\nheads: 8\nlr: 0.001\noptimizer: Adam\nepochs: 10\nmax_seq_len: 512\n", "a.yaml", ONE)  # fmt: skip
    with pytest.raises(SpecError, match="retrieval model"):
        import_text("base_model: org/llama-rerank-1b\nlearning_rate: 3e-6\nmicro_batch_size: 4\nnum_epochs: 1\n", "a.yaml", ONE)  # fmt: skip
    with pytest.raises(SpecError, match="prompts beside a frozen model"):
        import_text(NEMO.replace("micro_batch_size: 2,", "micro_batch_size: 2, virtual_prompt_style: p-tuning,"), "a.yaml", ONE)  # fmt: skip
    with pytest.raises(SpecError, match="an evaluation"):
        import_text("trainer: {devices: 8}\nmodel: {tensor_model_parallel_size: 1, data: {validation_ds: {micro_batch_size: 16}}}\n", "a.yaml", ONE)  # fmt: skip


def test_a_device_that_is_no_preset_is_said() -> None:
    """A recipe's name may speak of a device that nothing is known of: another is offered, and that is said."""
    text = (
        "from megatron.bridge.recipes.qwen.qwen3 import qwen3_8b_pretrain_config\nfrom megatron.bridge.training.config import ConfigContainer\n"
        "def qwen3_8b_pretrain_8gpu_vr900_bf16_config():\n    cfg = ConfigContainer(model=dict(num_layers=4, hidden_size=512, num_attention_heads=8, ffn_hidden_size=1024, vocab_size=1000, seq_length=1024), train=dict(global_batch_size=8, micro_batch_size=1))\n    return cfg\n"
    )
    found = import_text(text, "perf.py", Given(guess=True))
    assert "speaks of vr900" in _said(found)


ARGUMENTS = """
num_layers: 8
hidden_size: 1024
num_attention_heads: 16
num_query_groups: 4
group_query_attention: true
ffn_hidden_size: 2816
swiglu: true
add_bias_linear: false
normalization: RMSNorm
position_embedding_type: rope
vocab_size: 32000
seq_length: 2048
micro_batch_size: 2
global_batch_size: 64
tensor_model_parallel_size: 2
sequence_parallel: true
use_distributed_optimizer: true
recompute_granularity: full
recompute_method: uniform
bf16: true
attention_dropout: 0.0
hidden_dropout: 0.0
mamba_state_dim: 128
fp8_wgrad: true
mmap_bin_files: true
"""


def test_megatrons_arguments_by_their_names_in_the_code(tmp_path: Path) -> None:
    """A flat table of them is no GPT-NeoX; below `backend.megatron` the files of `defaults` count."""
    found = import_text(ARGUMENTS, "a.yaml", ONE)
    assert (found.model.kv_heads, found.model.ffn, found.model.qkv_bias) == (4, 2816, False)
    layout = found.layout
    assert (layout.tp, layout.zero, layout.recompute) == (2, 1, "full")
    assert "mamba" not in _said(found) and "mmap" not in _said(found)
    (tmp_path / "backend" / "megatron").mkdir(parents=True)
    (tmp_path / "backend" / "megatron" / "small.yaml").write_text(ARGUMENTS)
    text = (
        "defaults:\n  - /backend: torchrun\n  - /backend/megatron: [small, absent]\n  - _self_\nbackend:\n  megatron:\n    num_layers: 4\n"
        "    micro_batch_size: 1\n    tensor_model_parallel_size: 1\n    num_query_groups: 8\n    use_distributed_optimizer: false\nslurm: {sbatch: {nodes: 2, gpus_per_node: 4}}\n"
    )
    other = import_text(text, "exp.yaml", Given(guess=True), tmp_path)
    assert (other.model.layers, other.model.kv_heads, other.layout.micro_batch) == (4, 8, 1)
    assert other.cluster.gpus == 8 and "backend/megatron/absent" in _said(other)


MINDFORMERS = """
run_mode: train
trainer: {type: CausalLanguageModelingTrainer, model_name: own}
runner_config: {epochs: 1, batch_size: 1}
optimizer: {type: AdamW}
lr_schedule: {learning_rate: 5.e-6}
moe_config: {expert_num: 8, num_experts_chosen: 2, capacity_factor: 1.1}
parallel: {enable_parallel_optimizer: true}
parallel_config: {data_parallel: 2, model_parallel: 4, expert_parallel: 2, pipeline_stage: 2, use_seq_parallel: true, micro_batch_num: 16}
recompute_config: {recompute: true}
model:
  model_config: {type: LlamaConfig, seq_length: 4096, hidden_size: 1024, intermediate_size: 2816, num_layers: 8, num_heads: 16, n_kv_heads: 4, vocab_size: 32000,
    compute_dtype: bfloat16, param_init_type: float32}
"""


def test_mindformers_tables() -> None:
    """Degrees, the pipeline's micro-batches, experts, 32-bit weights that are cast where they are used."""
    found = import_text(MINDFORMERS, "train.yaml", Given(guess=True))
    layout = found.layout
    assert (layout.tp, layout.pp, layout.dp, layout.ep, layout.zero) == (4, 2, 2, 2, 1)
    assert found.job.global_batch == 32 and layout.recompute == "full"
    assert found.model.experts is not None and found.model.experts.top_k == 2
    assert (found.job.precision.compute, found.job.precision.parameter_bytes) == ("bf16", 4)
    assert found.cluster.device.name.startswith("Ascend") and found.cluster.gpus == 16
    with pytest.raises(SpecError, match="an inference run"):
        import_text(MINDFORMERS.replace("run_mode: train", "run_mode: predict"), "p.yaml", ONE)


def test_a_switch_before_options_that_nothing_sets_is_on() -> None:
    """`--fp16 $EXTRA_OPTIONS` is the switch, and more options or none; `--seq-length $SEQ` asks for its value."""
    found = import_text(MEGATRON.format("--fp16 $EXTRA_OPTIONS"), "a.sh", Given(guess=True))
    assert found.job.precision.name == "fp16"
    with pytest.raises(SpecError, match="SEQ"):
        import_text(MEGATRON.replace("--seq-length 1024", "--seq-length $SEQ").format("--bf16"), "a.sh", ONE)  # fmt: skip


SHARED = """
from olmo_core.data import NumpyDatasetConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig

def build_common_components(run_name, *, root_dir, global_batch_size, sequence_length=4096):
    data = NumpyDatasetConfig(sequence_length=sequence_length, max_sequence_length=max(8192, sequence_length))
    loader = NumpyDataLoaderConfig(global_batch_size=global_batch_size)
    module = TransformerTrainModuleConfig(rank_microbatch_size=sequence_length, max_sequence_length=data.effective_sequence_length,
        optim=AdamWConfig(lr=1e-4), dp_config=TransformerDataParallelConfig(name=DataParallelType.fsdp, param_dtype=DType.bfloat16))
    return CommonComponents(dataset=data, data_loader=loader, train_module=module)
"""
SCRIPT = """
from olmo_core.nn.transformer import TransformerConfig
from ours.common import CommonComponents, build_experiment_config

SEQUENCE_LENGTH = 2048

def build_model_config(common):
    return TransformerConfig.olmo2_7B(vocab_size=100352)

def build_train_module_config(common):
    config = common.train_module
    config.rank_microbatch_size = 2 * SEQUENCE_LENGTH
    return config

if __name__ == "__main__":
    config = build_experiment_config("run", [], sequence_length=SEQUENCE_LENGTH, global_batch_size=64 * SEQUENCE_LENGTH)
"""


def test_parts_that_scripts_around_olmo_core_share(tmp_path: Path) -> None:
    """The shared module makes the train module by the script's own numbers; the script then changes it."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "common.py").write_text(SHARED)
    found = import_text(SCRIPT, "train.py", ONE, tmp_path)
    assert (found.model.name, found.job.seq_len, found.job.global_batch) == ("olmo2-7b", 2048, 64)
    assert (found.layout.micro_batch, found.layout.zero) == (2, 3)


def test_easylms_mesh() -> None:
    """Shards of a mesh, the batch at once on every rank, 32-bit weights that are cast where they are used."""
    text = (
        "python -m EasyLM.models.llama.llama_train --mesh_dim='-1,16,1' --dtype='bf16' --load_llama_config='7b' --train_dataset.type='json' "
        "--train_dataset.json_dataset.seq_length=2048 --train_dataset.json_dataset.batch_size=256\n"
    )
    found = import_text(text, "run.sh", Given(guess=True))
    assert (found.model.name, found.cluster.gpus, found.job.global_batch) == ("llama1-7b", 16, 256)
    assert (found.layout.zero, found.layout.micro_batch) == (3, 16)
    assert found.job.precision.parameter_bytes == 4
    with pytest.raises(SpecError, match="mesh_dim"):
        import_text(text.replace("-1,16,1", "-1,-1,1"), "run.sh", ONE)


def test_flames_tables_name_a_configuration_of_transformers() -> None:
    """torchtitan's tables with `model.config`: the model by that name."""
    text = '[job]\ndump_folder = "exp"\n[model]\nconfig = "meta-llama/Llama-3.1-8B"\n[training]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 1\nbatch_size = 4\nseq_len = 2048\nsteps = 100\n[optimizer]\nname = "AdamW"\nlr = 3e-4\n[experimental]\npipeline_parallel_degree = 1\n[activation_checkpoint]\nmode = "none"\n'
    found = import_text(text, "run.toml", ONE)
    assert (found.model.name, found.layout.micro_batch, found.layout.zero) == ("llama3.1-8b", 4, 3)
    assert "model.config" not in _said(found)


def test_nanochat_s_fine_tuning_asks_for_its_checkpoint() -> None:
    text = "torchrun --nproc_per_node=8 -m scripts.chat_sft -- --device-batch-size=16\n"
    with pytest.raises(SpecError, match="checkpoint's that chat_sft goes on with"):
        import_text(text, "sft.sh", ONE)
    found = import_text(text, "sft.sh", Given(cluster=ONE.cluster, model=load_model("qwen3-0.6b")))
    assert (found.layout.micro_batch, found.job.global_batch) == (16, 256)
