"""`meshwright fits`: files of public tools as they are, verdicts, exit codes. Fixtures are synthetic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cli import run
from meshwright.imports.files import import_file
from meshwright.imports.reading import Given
from meshwright.imports.tasks import PAIRED
from meshwright.planner.fits import Verdict, verdict
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError
from meshwright.specs.jobs import load_job
from meshwright.specs.layout import Layout

FILES = {
    "axolotl.yml": """
base_model: NousResearch/Meta-Llama-3-8B
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_target_linear: true
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: paged_adamw_32bit
bf16: auto
gradient_checkpointing: true
""",
    "factory.yaml": """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
template: llama3
finetuning_type: lora
lora_rank: 8
lora_target: all
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
quantization_bit: 4
""",
    "trl.yaml": """
model_name_or_path: Qwen/Qwen2.5-7B
max_length: 4096
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
gradient_checkpointing: true
use_liger_kernel: true
bf16: true
""",
    "tune.yaml": """
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 8
  lora_alpha: 16
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: 4096
batch_size: 2
gradient_accumulation_steps: 8
optimizer:
  _component_: torch.optim.AdamW
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
enable_activation_checkpointing: True
dtype: bf16
""",
    "train.sh": """
MODEL="meta-llama/Llama-2-7b-hf" # the base
torchrun --nproc_per_node 8 train.py \\
    --model_name_or_path $MODEL \\
    --per_device_train_batch_size 2 --gradient_accumulation_steps=16 \\
    --gradient_checkpointing True --model_max_length 2048 \\
    --fsdp "full_shard auto_wrap" --bf16 True
""",
    "verl.sh": """
python3 -m verl.trainer.main_ppo \\
    data.max_prompt_length=1024 data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=1
""",
    "script.py": """
from trl import SFTConfig, SFTTrainer
from peft import LoraConfig
name = "Qwen/Qwen2.5-7B-Instruct"
bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
model = AutoModelForCausalLM.from_pretrained(name, quantization_config=bnb)
args = SFTConfig(max_length=2048, per_device_train_batch_size=2, optim="adamw_8bit")
trainer = SFTTrainer(model, args, peft_config=LoraConfig(r=64, target_modules="all-linear"))
""",
    "ds.json": '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, '
    '"bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1}',
    "launch.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\n"
    "fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n",
}

SAID = {
    "axolotl.yml": ("axolotl", "qlora", 4096, 2, 0, "paged-adamw"),
    "factory.yaml": ("llama-factory", "qlora", 2048, 1, 0, "adamw"),
    "trl.yaml": ("trl", "full", 4096, 4, 0, "adamw"),
    "tune.yaml": ("torchtune", "lora", 4096, 2, 3, "adamw"),
    "train.sh": ("trl", "full", 2048, 2, 3, "adamw"),
    "verl.sh": ("verl", "full", 2048, 4, 3, "adamw"),
    "script.py": ("trl", "qlora", 2048, 2, 0, "adam8bit"),
    "ds.json": ("deepspeed", "full", 2048, 1, 3, "adamw"),
    "launch.yaml": ("trl", "full", 2048, 1, 3, "adamw"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


H8 = "h100:1x8"


def read(path: Path, cluster: str = H8, model: str = ""):
    """What `fits` reads of a file."""
    named = load_model(model) if model else None
    return import_file(path, Given(model=named, cluster=load_cluster(cluster), guess=True))


def judged(run) -> Verdict:
    return verdict(
        run.model, run.cluster, run.job, run.layout,
        paired=run.task in PAIRED, reference=run.reference,
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(FILES))
def test_each_tool_is_read_as_it_is(folder: Path, name: str) -> None:
    alone = name in ("ds.json", "launch.yaml")
    run = read(folder / name, model="llama3-8b" if alone else "")
    framework, method, seq_len, *rest = SAID[name]
    assert run.job.framework == {"launch.yaml": "accelerate"}.get(name, framework)
    assert (run.job.finetune.method if run.job.finetune else "full") == method
    assert run.job.seq_len == (4096 if alone else seq_len)
    assert [run.layout.micro_batch, run.layout.zero, run.job.optimizer.name] == rest
    assert [one for one in run.remarks if one.kind == "unread"] == []


def test_what_is_not_understood_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "axolotl.yml"
    path.write_text(path.read_text() + "lora_frobnication: 128\nlogging_steps: 1\n")
    assert run(["fits", str(path), "-c", H8, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unread"] == ["lora_frobnication"]


@pytest.mark.parametrize(
    ("name", "cluster", "code"),
    [
        ("factory.yaml", "a100:1x1", 0), ("trl.yaml", "rtx4090:1x1", 1),
        ("trl.yaml", "h100:1x8", 0), ("axolotl.yml", "h100:1x1", 0), ("ds.json", "h100:1x8", 2),
    ],
)  # fmt: skip
def test_exit_codes_for_ci(folder: Path, name: str, cluster: str, code: int) -> None:
    extra = ["--zero", "3"] if cluster.endswith("x8") else []
    assert run(["fits", str(folder / name), "--cluster", cluster, *extra]) == code


def test_json_has_the_verdict_and_priced_ways_down(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fits", str(folder / "trl.yaml"), "--cluster", "rtx4090:1x1", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["fits"] is False and said["tool"] == "TrainingArguments YAML"
    ways = said["ways_down"]
    assert ways and ways[-1]["fits"] and not any(way["fits"] for way in ways[:-1])
    assert ways[-1]["peak_memory_bytes"] < said["estimate"]["peak_memory_bytes"]


def test_a_way_down_frees_memory() -> None:
    """What the run does already, or what frees nothing, is no way down."""
    tune = {"method": "qlora", "rank": 16, "targets": ["all-linear"]}
    model, cluster = load_model("llama3-70b"), load_cluster("rtx3090:1x2")
    job = load_job({"seq_len": 8192, "global_batch": 16, "framework": "trl", "finetune": tune,
                    "framework_options": {"accumulates_whole": True}})  # fmt: skip
    layout = Layout(dp=2, zero=3, recompute="full", offload=("optimizer", "parameters"))
    found = verdict(model, cluster, job, layout)
    assert not found.fits
    peaks = [found.estimate.peak_memory_bytes]
    peaks += [way.estimate.peak_memory_bytes for way in found.ways]
    assert peaks == sorted(set(peaks), reverse=True)
    assert not any("host memory" in way.change or "sync_each" in way.change for way in found.ways)
    assert found.ways[-1].fits


def test_offload_takes_states_off_the_device_and_costs_time(folder: Path) -> None:
    found = read(folder / "ds.json", model="llama3-8b")
    assert found.layout.offload == ("optimizer",)
    here = judged(found)
    there = judged(replace(found, layout=found.layout.but(offload=())))
    assert here.estimate.memory_parts["optimizer"] == 0.0
    saved = there.estimate.peak_memory_bytes - here.estimate.peak_memory_bytes
    assert saved == pytest.approx(there.estimate.memory_parts["optimizer"])
    assert here.estimate.step_time_s > there.estimate.step_time_s


def test_activations_in_host_memory_free_the_device(folder: Path) -> None:
    found = read(folder / "tune.yaml")
    kept = judged(found).estimate.memory_parts["activations"]
    away = replace(found, layout=found.layout.but(offload=("activations",)))
    assert 0 < judged(away).estimate.memory_parts["activations"] < kept / 4


def written(tmp_path: Path, text: str, cluster: str = "h100:1x1"):
    path = tmp_path / "run.yaml"
    path.write_text(text, "utf-8")
    return read(path, cluster)


AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 2\nsequence_len: 2048\n"


def test_pairs_of_answers_are_two_sequences_and_a_reference_is_held(tmp_path: Path) -> None:
    plain, pairs = written(tmp_path, AXOLOTL), written(tmp_path, AXOLOTL + "rl: dpo\n")
    assert judged(pairs).layout.micro_batch == 2 * judged(plain).layout.micro_batch
    room = judged(plain).estimate.capacity_bytes - judged(pairs).estimate.capacity_bytes
    assert room == pytest.approx(2 * 8.03e9, rel=0.01)
    adapters = judged(
        written(tmp_path, AXOLOTL + "rl: dpo\nadapter: lora\nlora_target_linear: true\n")
    )
    assert adapters.estimate.capacity_bytes == judged(plain).estimate.capacity_bytes
    orpo = judged(written(tmp_path, AXOLOTL + "rl: orpo\n"))
    assert orpo.layout.micro_batch == 4
    assert orpo.estimate.capacity_bytes == judged(plain).estimate.capacity_bytes


@pytest.mark.parametrize(("beta", "held"), [("", False), ("beta: 0.04\n", True)])
def test_grpo_holds_the_untrained_model_where_its_divergence_counts(
    tmp_path: Path, beta: str, held: bool
) -> None:
    text = "model_name_or_path: llama3.2-1b\nnum_generations: 8\nmax_completion_length: 256\n"
    found = written(tmp_path, text + beta)
    assert (found.task, found.reference) == ("grpo", held)


def test_recomputation_beside_the_sharding_is_read(tmp_path: Path) -> None:
    sharded = AXOLOTL + "fsdp:\n- full_shard\nfsdp_config:\n  activation_checkpointing: true\n"
    assert written(tmp_path, sharded).layout.recompute == "full"
    assert written(tmp_path, sharded.replace("true", "false")).layout.recompute == "none"
    moved = written(tmp_path, AXOLOTL + "gradient_checkpointing: offload\n").layout
    assert (moved.recompute, moved.offload) == ("full", ("activations",))


def test_llama_factorys_second_interface(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        "model: Qwen/Qwen3-4B\nmodel_class: llm\ncutoff_len: 4096\nmicro_batch_size: 2\n"
        "peft_config: {name: lora, r: 16, target_modules: all}\ndist_config: {name: fsdp2}\n",
        H8,
    )
    assert (found.job.framework, found.job.seq_len) == ("llama-factory", 4096)
    assert (found.layout.micro_batch, found.layout.zero) == (2, 3)
    assert found.job.finetune is not None
    assert found.job.finetune.rank == 16


@pytest.mark.parametrize(
    "text", ["", "just a text", "a: 1", "- 1\n- 2", "base_model: [1]\nlora_r: many"]
)
def test_other_files_are_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(text)
    assert run(["fits", str(path), "--cluster", "h100:1x1"]) == 2


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(
    st.sampled_from(["base_model", "adapter", "lora_r", "sequence_len", "micro_batch_size", "deepspeed",
                     "fsdp", "optimizer", "load_in_4bit", "lora_target_modules", "torch_dtype"]),
    st.one_of(st.integers(-5, 10**12), st.booleans(), st.text(max_size=8), st.none(),
              st.lists(st.text(max_size=4), max_size=3)),
))  # fmt: skip
def test_any_values_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("any") / "config.json"
    path.write_text(json.dumps({"base_model": "x", **data}))
    said = ""
    try:
        read(path, "h100:1x1")
    except SpecError as error:
        said = str(error)
    assert "\n" not in said


def test_a_size_in_an_unknown_name_gives_a_typical_shape_and_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "trl.yaml"
    path.write_text(path.read_text().replace("Qwen/Qwen2.5-7B", "somebody/thing-7B-sft"))
    assert run(["fits", str(path), "--cluster", "h100:1x8", "--zero", "3"]) == 0
    assert "a typical shape of its size" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("name", "storage", "twice"),
    [("llama-3.3-70b-instruct-awq", "int4", False), ("Llama-3.3-70B-bnb-4bit", "nf4", True),
     ("Llama-3.3-70B-Instruct", "16-bit", False)],
)  # fmt: skip
def test_a_checkpoints_own_quantisation_is_in_its_name(
    tmp_path: Path, name: str, storage: str, twice: bool
) -> None:
    text = f"model_name_or_path: {name}\nfinetuning_type: lora\nstage: sft\ntemplate: llama3\n"
    tune = written(tmp_path, text).job.finetune
    assert (tune.storage, tune.double_quantization) == (storage, twice)


@pytest.mark.parametrize("key", ["sequence_parallel_degree", "context_parallel_size"])
def test_sequences_are_split_as_axolotl_does(tmp_path: Path, key: str) -> None:
    text = f"base_model: llama3.2-1b\nsequence_len: 16384\n{key}: 2\n"
    split = judged(written(tmp_path, text, "h100:1x4"))
    assert (split.layout.dp, split.layout.cp) == (2, 2)
    alone = judged(written(tmp_path, text.partition(key)[0], "h100:1x4"))
    assert split.estimate.peak_memory_bytes < 0.8 * alone.estimate.peak_memory_bytes
    with pytest.raises(SpecError, match="a multiple of"):
        written(tmp_path, text, "h100:1x3")


@pytest.mark.parametrize(
    ("text", "bytes_each"),
    [
        ("model_name_or_path: llama3.2-1b\nlearning_rate: 1.0e-5\nmax_length: 512\n", 16),
        ("model_name_or_path: llama3.2-1b\nlearning_rate: 1.0e-5\nmax_length: 512\ndtype: bfloat16\n", 8),
        ("model_name_or_path: llama3.2-1b\nlearning_rate: 1.0e-5\nmodel_max_length: 512\nbf16: true\n", 16),
        ("model_name_or_path: llama3.2-1b\nstage: sft\ntemplate: x\nfinetuning_type: full\n", 16),
        ("model_name_or_path: llama3.2-1b\nstage: sft\ntemplate: x\nfinetuning_type: full\n"
         "pure_bf16: true\n", 8),
    ],
    ids=["trl", "trl-bf16", "trainer", "factory", "factory-pure"],
)  # fmt: skip
def test_weights_are_as_wide_as_each_tool_loads_them(
    tmp_path: Path, text: str, bytes_each: int
) -> None:
    """Weights, gradients and two moments a parameter: four bytes each, or two."""
    job = written(tmp_path, text).job
    recipe = job.precision
    held = recipe.parameter_bytes + recipe.master_bytes + recipe.gradient_bytes
    assert held + job.optimizer.state_bytes == bytes_each


def test_gradients_are_whole_while_fsdp_accumulates_under_the_trainer(tmp_path: Path) -> None:
    sharded = AXOLOTL + "bf16: false\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
    more = sharded + "gradient_accumulation_steps: 4\n"
    found = written(tmp_path, more, H8)
    assert any(one.option == "gradient_accumulation_steps" for one in found.remarks)
    whole = judged(found).estimate
    assert whole.memory_parts["gradients"] == pytest.approx(4 * 8.03e9, rel=0.01)
    adapters = more + "adapter: lora\nlora_target_linear: true\n"
    told = written(tmp_path, adapters, H8).remarks
    assert not any(one.option == "gradient_accumulation_steps" for one in told)
    trl = "model_name_or_path: llama3.1-8b\nmax_length: 2048\nfsdp: full_shard\ngradient_accumulation_steps: 4\n"
    each = trl + "accelerator_config:\n  gradient_accumulation_kwargs:\n    sync_each_batch: true\n"
    held = [
        judged(written(tmp_path, text, H8)).estimate.memory_parts["gradients"]
        for text in (trl, each)
    ]
    assert held[0] == pytest.approx(8 * held[1])
