"""A command's words count over the configuration that it names, whoever's it is."""

from pathlib import Path

import pytest
from folders import GUESS, put

from meshwright.imports.files import import_text
from meshwright.imports.reading import Imported
from meshwright.specs.errors import SpecError

FILES = {
    "levanter": (
        "model: {type: llama, hidden_dim: 768, intermediate_dim: 2048, num_heads: 12, num_kv_heads: 12, num_layers: 12, seq_len: 1024}\n"
        "trainer: {mp: 'p=f32,c=bfloat16', train_batch_size: 256, per_device_parallelism: 4, fsdp_axis: embed}\noptimizer: {learning_rate: 1e-3}\n",
        "python -m levanter.main.train_lm --config_path c.yaml --trainer.train_batch_size 64 --trainer.per_device_parallelism 2",
    ),
    "llm-foundry": (
        "max_seq_len: 2048\nglobal_train_batch_size: 512\ndevice_train_microbatch_size: 8\n"
        "model: {name: mpt_causal_lm, d_model: 768, n_heads: 12, n_layers: 12, expansion_ratio: 4, max_seq_len: 2048, vocab_size: 50368}\n"
        "train_loader: {name: text}\noptimizer: {name: decoupled_adamw, lr: 1e-4}\nprecision: amp_bf16\nmax_duration: 10ba\n",
        "composer train.py c.yaml global_train_batch_size=64 device_train_microbatch_size=2",
    ),
    "own": (
        "model: {n_layer: 12, n_embd: 768, n_head: 12}\ntraining: {batch_size: 8, lr: 1e-4, max_seq_len: 512, global_batch_size: 512}\n",
        "torchrun --nproc_per_node 4 train.py --config c.yaml training.batch_size=2 training.global_batch_size=64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_what_the_command_says_counts(kind: str, tmp_path: Path):
    text, command = FILES[kind]
    found = put(tmp_path, command, c__yaml=text)
    assert (found.job.global_batch, found.layout.micro_batch) == (64, 2)


def litgpt(words: str) -> Imported:
    return import_text(f"#!/bin/bash\nlitgpt download x\nlitgpt {words}\nlitgpt chat out\n", "a.sh", GUESS)  # fmt: skip


def test_litgpts_own_command_has_defaults_of_its_own():
    found = litgpt("pretrain EleutherAI/pythia-160m --train.global_batch_size 64 --devices 4")
    assert (found.model.name, found.layout.world, found.layout.micro_batch) == ("pythia-160m", 4, 4)
    found = litgpt("finetune_lora meta-llama/Llama-3.2-1B --quantize bnb.nf4 --lora_r 16")
    assert (found.job.finetune.rank, found.job.finetune.storage, found.layout.world) == (
        16,
        "nf4",
        1,
    )
    assert litgpt("finetune_full microsoft/phi-2").job.finetune is None


OPEN_LM = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n#SBATCH --gres=gpu:8\nsrun python -m open_lm.main --train-num-samples 1 --batch-size 10 --model {model} {rest}\n"


def open_lm(model: str = "m1b_neox", rest: str = "--fsdp --fsdp-amp --precision amp_bfloat16 --grad-checkpointing") -> Imported:  # fmt: skip
    return import_text(OPEN_LM.format(model=model, rest=rest), "a.sh", GUESS)


def test_open_lm_knows_its_models_by_name():
    found = open_lm()
    model = found.model
    assert (model.layers, model.hidden, model.heads, model.ffn, model.vocab) == (24, 2048, 16, 5632, 50_432)  # fmt: skip
    assert (found.layout.zero, found.layout.recompute, found.layout.world) == (3, "full", 16)
    assert (found.layout.micro_batch, found.job.seq_len) == (10, 2048)
    assert found.job.precision.gradient_reduce_bytes == 4
    with pytest.raises(SpecError, match="state-space"):
        open_lm("mamba_1b")


def test_open_lms_files_of_models_are_read(tmp_path: Path):
    text = '{"hidden_dim": 512, "n_layers": 8, "n_heads": 4, "seq_len": 1024, "vocab_size": 50432, "weight_tying": false, "ffn_type": "gelu"}'
    found = put(
        tmp_path, "torchrun --nproc_per_node 4 -m open_lm.main --model configs/small.json --global-batch-size 512 --accum-freq 2 --precision amp_bf16",
        configs___small__json=text,
    )  # fmt: skip
    assert (found.model.ffn, found.model.gated, found.job.seq_len) == (2048, False, 1024)
    assert (found.job.global_batch, found.layout.micro_batch, found.layout.zero) == (512, 64, 0)


def test_llm_shearings_llama_is_a_llama():
    text = FILES["llm-foundry"][0].replace(
        "name: mpt_causal_lm", "name: mosaic_llama2_7b, intermediate_size: 2048, l0_module: {start_sparsity: 0.0, target_model: {d_model: 512}}"
    ).replace(", vocab_size: 50368", ", vocab_size: 32000")  # fmt: skip
    found = import_text(text, "a.yaml", GUESS)
    assert (found.model.gated, found.model.ffn, found.model.positions) == (True, 2048, "rope")
    assert found.model.norm == "rmsnorm"
    assert any("pruning" in note for note in found.notes)
    assert not any("not understood" in note and "l0_module" in note for note in found.notes)
