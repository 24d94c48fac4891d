"""Configurations that are no framework's, commands without their program, and lines that a patch adds."""

import json
from pathlib import Path

import pytest

from meshwright.imports.critique import criticise, price
from meshwright.imports.edits import candidates_for
from meshwright.imports.files import import_file, import_text
from meshwright.imports.patch import apply_edits
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError

H8 = Given(cluster=load_cluster("h100:1x8"), guess=True)
OWN = {
    "model": {"name": "Qwen/Qwen3-4B", "revision": "main"},
    "training": {"batch_size": 2, "gradient_accumulation_steps": 4, "learning_rate": 2e-4, "mixed_precision": True},
    "lora": {"rank": 8, "dropout": 0.1, "target_modules": ["q_proj", "v_proj"]},
    "data": [{"max_length": 1024}],
    "evaluation": {"batch_size": 64},
}  # fmt: skip


def test_nested_tables_are_read_by_the_names_that_most_programs_use():
    back = import_text(json.dumps(OWN), "own.json", H8)
    assert (back.model.name, back.layout.micro_batch, back.job.seq_len) == ("qwen3-4b", 2, 1024)
    assert (back.job.global_batch, back.job.precision.name, back.job.dropout) == (64, "bf16", 0.0)
    assert (back.job.finetune.rank, back.job.finetune.targets) == (8, ("q", "v"))
    assert any("no framework's own" in one for one in back.notes)
    assert not any("evaluation" in one for one in back.notes)


def test_its_degrees_hosts_and_teacher_count():
    own = OWN | {
        "run": {"tp_size": 4, "num_nodes": 2, "gpus_per_node": 8},
        "teacher_args": {"model_name": "Qwen/Qwen3-32B"},
        "distributed_args": {"stage": 3, "fsdp_algorithm": 2},
    }
    back = import_text(json.dumps(own), "own.json", Given(guess=True))
    assert (back.cluster.gpus, back.layout.tp, back.layout.zero) == (16, 4, 3)
    assert back.model.name == "qwen3-4b"
    assert any("teacher" in one and "not modelled" in one for one in back.notes)


def test_a_batch_alone_is_no_training():
    with pytest.raises(SpecError, match="describes no training run"):
        import_text('{"model": "Qwen/Qwen3-0.6B", "cases": [{"batch_size": 128}]}', "c.json", H8)


def test_a_total_of_tokens_is_no_number_of_sequences():
    text = "base_model: Qwen/Qwen3-4B\ntotal_batch_size: 2097152\nmicro_batch_size: 4\nmax_learning_rate: 0.0007\nmax_seq_len: 4096\nbf16: true\nfull_shard: true\n"
    back = import_text(text, "s.yaml", H8)
    assert (back.job.global_batch, back.layout.zero) == (512, 3)
    assert any("a number of tokens" in one for one in back.notes)


def test_olmo_cores_words_count_without_its_script():
    words = "torchrun --nproc_per_node=4 --nnodes=1 train.py run-1 llama3-1B meta-llama/Llama-3.1-8B dataset.sequence_length=4096 data_loader.global_batch_size=131072 train_module.rank_microbatch_size=16384 train_module.dp_config.name=fsdp"
    back = import_text(words, "x.sh", Given(guess=True))
    assert (back.layout.micro_batch, back.job.global_batch, back.layout.zero) == (4, 32, 3)
    assert "1B" in back.model.name
    assert any("train.py is not here" in one for one in back.notes)


def test_a_benchmark_is_no_training():
    with pytest.raises(SpecError, match="measures something"):
        import_text(
            "deepspeed --num_gpus=2 zf_benchmark.py --hidden_dim 4096 --nlayers 4", "x.sh", H8
        )


@pytest.mark.parametrize("tail", [" \\\n    --seed 1\n", "\n"])
def test_an_option_that_a_command_lacks_is_added_where_it_still_runs(tail):
    text = f"swift sft \\\n    --model Qwen/Qwen3-4B \\\n    --torch_dtype bfloat16 \\\n    --max_length 1024 \\\n    --per_device_train_batch_size 1{tail}"
    found = import_text(text, "x.sh", H8)
    old, new = found.layout, found.layout.but(recompute="none")
    assert old.recompute == "full"
    edits = [apply_edits(text, list(one)) for one in candidates_for(text, found, old, new)]
    kept = [one for one in edits if import_text(one, "x.sh", H8).layout == new]
    assert kept
    lines = kept[0].rstrip().split("\n")
    assert all(line.endswith("\\") for line in lines[:-1])
    assert not lines[-1].endswith("\\")


def test_a_switch_without_a_value_goes_and_a_programs_own_numbers_change():
    flags = "torchrun --nproc_per_node 8 sft.py --model_name_or_path Qwen/Qwen3-0.6B --bf16 --max_length 512 --per_device_train_batch_size 1 --gradient_checkpointing"
    found = import_text(flags, "x.sh", H8)
    critique = criticise(found, price(found), flags, lambda text: import_text(text, "x.sh", H8))
    kept = next(one for one in critique.changes if one.layout.recompute == "none" and one.edits)
    assert "--gradient_checkpointing" not in apply_edits(flags, list(kept.edits))
    program = "from transformers import Trainer, TrainingArguments, AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-0.6B')\nargs = TrainingArguments(\n    per_device_train_batch_size=1,\n    gradient_accumulation_steps=8,\n    bf16=True,\n    max_length=512,\n)\nTrainer(model=model, args=args).train()\n"
    found = import_text(program, "t.py", H8)
    critique = criticise(found, price(found), program, lambda text: import_text(text, "t.py", H8))
    larger = next(one for one in critique.changes if one.layout.micro_batch > 1 and one.edits)
    assert "per_device_train_batch_size=1," not in apply_edits(program, list(larger.edits))


def test_degrees_that_a_checkpoint_brings_are_the_least_that_the_batch_allows():
    text = "trainer: {num_nodes: 8, devices: 8, precision: bf16}\npretrained_checkpoint: {restore_from_path: null}\nmodel:\n  mcore_gpt: true\n  micro_batch_size: 2\n  global_batch_size: 64\n  encoder_seq_length: 4096\n  optim: {name: distributed_fused_adam, lr: 9e-6}\n"
    back = import_text(text, "rm.yaml", Given(model=load_model("llama3-8b"), guess=True))
    assert (back.layout.tp, back.layout.dp, back.layout.micro_batch) == (2, 32, 2)
    assert any("the restored checkpoint's" in one for one in back.notes)


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ("", 0),
        ("deepspeed: {zero_optimization: {stage: 1}, bf16: {enabled: true}}\n", 4),
        ("fsdp: [full_shard]\n", 4),
    ],
)
def test_axolotl_trains_whole_weights_as_it_loads_them(more, kept):
    text = f"base_model: Qwen/Qwen3-0.6B\ndatasets: [{{path: a}}]\nsequence_len: 1024\nmicro_batch_size: 1\ngradient_accumulation_steps: 1\nbf16: auto\noptimizer: adamw_torch\n{more}"
    job = import_text(text, "a.yaml", H8).job
    assert job.precision.master_bytes == kept
    assert job.optimizer.state_bytes == (8 if kept else 4)


def test_what_a_program_computes_is_not_called_unset():
    program = "from transformers import Trainer, TrainingArguments, AutoModelForCausalLM\nfrom registry import MODELS\nspec = MODELS['a']\nmodel = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-0.6B')\nargs = TrainingArguments(per_device_train_batch_size=int(spec.batch), gradient_accumulation_steps=4, optim=None, bf16=True, max_length=512)\nTrainer(model=model, args=args).train()\n"
    notes = import_text(program, "t.py", H8).notes
    assert any("computes per_device_train_batch_size from int(spec.batch)" in one for one in notes)
    assert not any("is not set" in one or "optim from" in one for one in notes)


def test_nanotrons_axis_of_experts_is_named():
    text = "parallelism: {dp: 1, tp: 2, pp: 1, expert_parallel_size: 2}\ntokens: {micro_batch_size: 2, batch_accumulation_per_replica: 1, sequence_length: 256, train_steps: 10}\noptimizer: {zero_stage: 0}\nmodel:\n  dtype: bfloat16\n  model_config: {hidden_size: 512, intermediate_size: 1024, num_hidden_layers: 2, num_attention_heads: 8, num_key_value_heads: 8, vocab_size: 1000, moe_num_experts: 4, num_experts_per_tok: 1, max_position_embeddings: 256}\n"
    assert any(
        "an axis of its own" in one for one in import_text(text, "n.yaml", Given(guess=True)).notes
    )


def test_a_program_that_is_started_as_a_module_is_read(tmp_path: Path):
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune" / "main.py").write_text(
        "import argparse\nfrom transformers import Trainer, TrainingArguments, AutoModelForCausalLM\n"
        "p = argparse.ArgumentParser()\np.add_argument('--batch', type=int, default=2)\nargs = p.parse_args()\n"
        "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-0.6B')\n"
        "Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=args.batch, bf16=True, max_length=512)).train()\n"
    )
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node 8 -m tune.main --batch 3\n")
    assert import_file(tmp_path / "run.sh", H8).layout.micro_batch == 3


def test_a_configuration_that_is_an_argument_is_asked_for():
    words = "torchrun --nproc_per_node 8 finetune.py $2\n"
    with pytest.raises(SpecError, match="argument 2"):
        import_text(words, "x.sh", Given(cluster=load_cluster("h100:1x8")))


def test_four_bits_of_a_table_are_qlora():
    own = OWN | {"bitsandbytes": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}}
    assert "qlora" in import_text(json.dumps(own), "own.json", H8).job.finetune.label()


def test_a_class_s_tag_over_a_table_of_a_tpu():
    text = "!dataclass:Config\nnum_layers: 8\nnum_heads: 4\nembd_dim: 128\nblock_size: 32\nbatch_size: 16\nlr: 1.0e-4\nvocab_size: 300\ndevice: tpu\namp: false\n"
    back = import_text(text, "own.yaml", Given(guess=True))
    assert (back.model.hidden, back.layout.micro_batch, back.job.precision.name) == (128, 16, "fp32")  # fmt: skip
    assert "TPU" in back.cluster.device.name
