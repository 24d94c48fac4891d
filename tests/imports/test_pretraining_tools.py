"""Readers of pretraining tools: nanochat, InternEvo, NeuronX Distributed Training, programs of one's own."""

from __future__ import annotations

from meshwright.imports.files import import_text
from meshwright.imports.interpolate import resolved
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster

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
