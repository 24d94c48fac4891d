"""What a twentieth draw of public files showed, by kind."""

import pytest

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True, cluster=load_cluster("h100:1x8"))
LLAMA = Given(guess=True, cluster=load_cluster("h100:1x8"), model=load_model("llama3-8b"))
FLAGS = "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 1000"


@pytest.mark.parametrize("off", ["--hybrid-attention-ratio 0.0", "--hybrid-layer-pattern null"])
def test_a_part_that_is_switched_off_is_none(off: str):
    found = import_text(
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {FLAGS} {off}\n", "m.sh", GUESS
    )
    assert found.model.layers == 4


def test_a_hybrid_that_is_on_is_refused():
    with pytest.raises(SpecError, match="several kinds"):
        import_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {FLAGS} --hybrid-attention-ratio 0.1\n", "m.sh", GUESS)  # fmt: skip


@pytest.mark.parametrize(
    ("fp16", "precision"), [("false", "fp32"), ('"auto"', "bf16"), ("true", "fp16")]
)
def test_deepspeeds_precision_is_auto_only_where_it_says_so(fp16: str, precision: str):
    text = f'{{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {{"stage": 1}}, "fp16": {{"enabled": {fp16}}}}}'
    assert import_text(text, "d.json", LLAMA).job.precision.name == precision


def test_peft_has_a_name_of_its_own_for_the_rank():
    text = """
model_name_or_path: Qwen/Qwen3-8B
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
max_seq_length: 2048
learning_rate: 1.0e-5
bf16: true
r: 32
lora_alpha: 64
target_modules: [q_proj, v_proj]
layers_to_transform: [14, 24]
"""
    found = import_text(text, "s.yaml", GUESS)
    assert found.job.finetune is not None
    assert (found.job.finetune.rank, found.job.finetune.targets) == (32, ("q", "v"))
    assert any(one.option == "layers_to_transform" for one in found.remarks)


def test_a_program_that_reads_its_settings_from_a_file_asks_for_that():
    text = """
from transformers import AutoModelForCausalLM
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
cfg = load_config()
lcfg = cfg["lora"]
model = load_model(cfg["model_id"])
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=cfg.get("batch", 1)), peft_config=LoraConfig(r=lcfg["r"])).train()
"""
    with pytest.raises(SpecError, match="from its configuration"):
        import_text(text, "p.py", LLAMA)


def test_a_script_that_only_starts_another_names_it():
    text = '[[ -f "$X/a.txt" ]] && source "$X/a.txt"\nsrun -l bash "$DIR/_container.sh" "$MODEL"\n'
    with pytest.raises(SpecError, match=r"it starts _container\.sh: import what that starts"):
        import_text(text, "j.sbatch", Given())


TITAN = """
[job]
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
seq_len = 1024
[parallelism]
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "{schedule}"
{more}
"""


@pytest.mark.parametrize(
    ("schedule", "more", "virtual", "layers"),
    [
        ("1F1B", "", 1, ()),
        ("Interleaved1F1B", "pipeline_parallel_layers_per_stage = 4", 2, None),
        ("Interleaved1F1B", "pipeline_parallel_layers_per_stage = 3", 3, (2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 1)),
        ("1F1B", "pipeline_parallel_first_stage_less_layers = 2\npipeline_parallel_last_stage_less_layers = 2", 1, (7, 9, 9, 7)),
    ],
)  # fmt: skip
def test_torchtitan_divides_layers_as_its_options_say(schedule, more, virtual, layers):
    text = TITAN.format(schedule=schedule, more=more)
    if layers is None:  # 34 over 4 makes nine stages, which four ranks cannot share evenly
        assert import_text(text, "t.toml", GUESS).layout.virtual_stages == virtual
        return
    found = import_text(text, "t.toml", GUESS).layout
    assert (found.virtual_stages, tuple(found.stage_layers or ())) == (virtual, layers)
