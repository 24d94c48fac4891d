"""Names of 2026: checkpoints in blocks of 4 bits, patterns of modules, later generations named like smaller ones."""

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.names import model_named
from meshwright.imports.reading import Given
from meshwright.specs import SpecError, load_cluster, load_model

NODE = Given(cluster=load_cluster("h100:1x8"), guess=True)
AXOLOTL = "base_model: {model}\ndatasets: []\nsequence_len: 2048\nmicro_batch_size: 1\nbf16: true\nadapter: lora\nlora_r: 8\n"


def tuned(model: str, targets: str):
    text = AXOLOTL.format(model=model) + f"lora_target_modules: '{targets}'\n"
    return import_text(text, "a.yaml", NODE).job.finetune


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("mistralai/Mistral-Small-24B-Instruct-2501", "mistral-small-24b"),
        ("mistralai/Mistral-Small-4-119B-2603", None),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("nvidia/DeepSeek-V4-Flash-NVFP4", "deepseek-v4-flash"),
    ],
)
def test_a_name_that_states_another_size_is_another_model(name, preset):
    found = model_named(name)
    assert (found.name if found else None) == preset


@pytest.mark.parametrize("stored", ["nvfp4", "mxfp4"])
def test_a_name_says_in_which_blocks_weights_are_published(stored):
    found = tuned(f"someone/Qwen3-30B-A3B-{stored.upper()}", "q_proj")
    assert (found.storage, found.method) == (stored, "lora")


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        (r"model.language_model.layers.[\d]+.(_checkpoint_wrapped_module.)?(mlp|self_attn).(up|down|gate|q|k|v|o)_proj",
         {"q", "k", "v", "o", "gate", "up", "down"}),
        (r"model.layers.[\d]+.self_attn.(q|v)_proj", {"q", "v"}),
        (r".*\.mlp\.(gate_proj|up_proj)", {"gate", "up"}),
        (r"model.layers.[\d]+.(self_attn.(q_a_proj|q_b_proj|o_proj)|mlp.(shared_experts.)?down_proj)", {"q", "o", "down"}),
    ],
)  # fmt: skip
def test_a_pattern_of_modules_is_matched_as_peft_matches_it(pattern, wanted):
    assert set(tuned("Qwen/Qwen3-8B", pattern).targets) == wanted


def test_what_is_no_pattern_is_a_list_of_names():
    assert set(tuned("Qwen/Qwen3-8B", "q_proj,k_proj").targets) == {"q", "k"}


def test_ms_swift_calls_the_trained_model_by_a_name_and_spreads_one_process(tmp_path):
    words = "--model Qwen/Qwen3-8B --tuner_type lora --lora_rank 8 --model_author me --model_name my-robot --max_length 2048"
    (tmp_path / "run.sh").write_text(f"CUDA_VISIBLE_DEVICES=0,1,2,3 swift sft {words}\n")
    found = import_file(tmp_path / "run.sh", Given(cluster=load_cluster("h100:1x4"), guess=True))
    assert found.model.name == "qwen3-8b"
    assert any("4 devices" in one.text for one in found.remarks)
    (tmp_path / "mega.sh").write_text(f"NPROC_PER_NODE=4 megatron sft {words} --micro_batch_size 1\n")  # fmt: skip
    mega = import_file(tmp_path / "mega.sh", Given(cluster=load_cluster("h100:1x4"), guess=True))
    assert mega.job.finetune.rank == 8
    assert not any("adapters" in one.text for one in mega.remarks)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--tuner_type boft", "LoRA's shape"),
        ("--tuner_type full --lisa_activated_layers 2", "so many layers train at a time"),
    ],
)
def test_ms_swift_methods_that_are_not_modelled_freeze_what_they_freeze(words, says, tmp_path):
    (tmp_path / "run.sh").write_text(f"swift sft --model Qwen/Qwen3-8B {words} --max_length 2048\n")
    found = import_file(tmp_path / "run.sh", NODE)
    assert (found.job.finetune is None) == ("full" in words)
    assert any(says in one.text for one in found.remarks)


@pytest.mark.parametrize("task", ["seq_cls", "embedding", "generative_reranker"])
def test_tasks_without_a_next_token_are_refused(task, tmp_path):
    (tmp_path / "run.sh").write_text(f"swift sft --model Qwen/Qwen3-4B --task_type {task}\n")
    with pytest.raises(SpecError, match="classifier, a ranking"):
        import_file(tmp_path / "run.sh", NODE)


def test_a_vision_language_model_is_planned_by_the_language_model_that_is_given(tmp_path):
    (tmp_path / "run.sh").write_text("NPROC_PER_NODE=2 megatron sft --model Qwen/Qwen3-VL-8B-Instruct --micro_batch_size 1 --max_length 2048\n")  # fmt: skip
    with pytest.raises(SpecError, match="plans that part"):
        import_file(tmp_path / "run.sh", NODE)
    told = Given(cluster=load_cluster("h100:1x2"), model=load_model("qwen3-8b"), guess=True)
    assert import_file(tmp_path / "run.sh", told).model.name == "qwen3-8b"


@pytest.mark.parametrize(("more", "loss"), [("", "chunked"), ("use_liger_kernel=True, ", "liger")])
def test_trl_makes_no_whole_logits_today(more, loss):
    text = (
        "from trl import SFTConfig, SFTTrainer\n"
        f"args = SFTConfig({more}per_device_train_batch_size=1, max_length=2048, bf16=True)\n"
        'SFTTrainer(model="Qwen/Qwen3-8B", args=args, train_dataset=data).train()\n'
    )
    assert import_text(text, "sft.py", NODE).job.loss == loss


def test_ms_swift_has_a_rank_of_its_own_for_galore(tmp_path):
    (tmp_path / "run.sh").write_text("swift sft --model Qwen/Qwen3-8B --tuner_type full --use_galore true --galore_optim_per_parameter true\n")  # fmt: skip
    job = import_file(tmp_path / "run.sh", NODE).job
    assert (job.optimizer.name, job.optimizer.low_rank) == ("galore", 128)
    assert job.framework_options["optimizer_in_backward"]
