"""MindSpeed-LLM's FSDP2 engine: its YAML, and the command that says degrees and batch over it."""

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given

TABLE = """
model: {model_name_or_path: null, trust_remote_code: false}
data: {template: qwen3, cutoff_len: 8192}
parallel:
  fsdp_modules: ["model.layers.{*}", lm_head]
  recompute: true
  recompute_modules: ["model.layers.{*}"]
  reduce_dtype: bf16
training: {optimizer: adamw, lr: 1.0e-5, max_steps: 100, stage: pt}
"""
COMMAND = """
torchrun --nproc_per_node 8 --nnodes 4 train_fsdp2.py tables/run.yaml --model.model_name_or_path /data/Qwen3-8B/ \\
  --parallel.fsdp_size 16 --parallel.cp_size 2 --parallel.cp_type ring --training.per_device_train_batch_size 2 \\
  --training.gradient_accumulation_steps 4 --optimization.chunk_loss_size 1024
"""


def test_a_command_says_degrees_over_its_table(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "run.yaml").write_text(TABLE)
    script = tmp_path / "run.sh"
    script.write_text(COMMAND)
    found = import_file(script, Given(guess=True))
    layout, job = found.layout, found.job
    assert (found.model.name, job.seq_len, job.global_batch) == ("qwen3-8b", 8192, 128)
    assert (layout.dp, layout.cp, layout.cp_method, layout.zero) == (16, 2, "ring", 3)
    assert (layout.micro_batch, layout.recompute) == (2, "full")
    assert (job.precision.master_bytes, job.precision.gradient_reduce_bytes) == (4, 2)
    assert any("all logits" in note for note in found.notes)


def test_a_table_alone_leaves_its_shards_to_a_guess():
    text = TABLE.replace("null", "Qwen/Qwen3-8B")
    found = import_text(text, "run.yaml", Given(guess=True))
    assert (found.layout.zero, found.layout.micro_batch) == (3, 8)
    assert any(one.option == "parallel.fsdp_size" for one in found.remarks)
