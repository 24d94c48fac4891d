"""Tables inside TrainingArguments, TRL's own launcher, `--no_X`, and words that no option takes."""

import pytest
import yaml

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster, load_model

H8 = Given(cluster=load_cluster("h100:1x8"), guess=True)
BASE = {
    "model_name_or_path": "Qwen/Qwen2.5-7B", "per_device_train_batch_size": 2, "max_length": 2048, "bf16": True,
}  # fmt: skip


def table(**more: object) -> Imported:
    return import_text(yaml.safe_dump(BASE | more), "run.yaml", H8, None)


def command(words: str) -> Imported:
    start = "trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name x --output_dir y "
    return import_text(f"{start}{words}\n", "run.sh", H8, None)


def said(run: Imported, option: str) -> str:
    return " ".join(one.text for one in run.remarks if option in one.option)


def test_a_model_is_loaded_as_a_table_inside_says():
    quantised = {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}
    inside = {"attn_implementation": "eager", "quantization_config": quantised}
    run = table(model_init_kwargs=inside, use_peft=True, lora_r=8)
    assert run.job.attention_kernel == "unfused"
    assert run.job.finetune and run.job.finetune.storage == "fp4"
    assert not said(run, "model_init_kwargs")


def test_a_table_stands_as_json_on_a_command_line():
    run = command("""--bf16 --model_init_kwargs '{"attn_implementation": "eager"}'""")
    assert run.job.attention_kernel == "unfused"


def test_adapters_are_read_from_a_table_of_their_own():
    run = table(peft_config={"r": 32, "lora_alpha": 64, "target_modules": ["q_proj"]})
    assert run.job.finetune
    assert (run.job.finetune.rank, run.job.finetune.targets) == (32, ("q",))


def test_deepspeed_stands_in_the_same_file():
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    run = table(deepspeed={"zero_optimization": zero})
    assert run.layout.zero == 2 and run.offload == {"optimizer"}


@pytest.mark.parametrize("size", [{}, {"tp_size": 8}])
def test_a_model_that_is_cut_by_its_own_plan(size: dict[str, int]):
    run = table(model_init_kwargs={"tp_plan": "auto", **size})
    assert (run.layout.tp, run.layout.dp) == (8, 1)


@pytest.mark.parametrize(
    ("named", "zero"), [("zero3", 3), ("zero2", 2), ("fsdp2", 3), ("multi_gpu", 0)]
)
def test_a_configuration_of_accelerate_that_trl_brings(named: str, zero: int):
    run = table(accelerate_config=named, num_processes=8)
    assert (run.layout.zero, run.layout.dp) == (zero, 8)


def test_trl_takes_its_own_defaults_and_switches_are_turned_off():
    assert command("").layout.recompute == "full"
    run = command("--no_gradient_checkpointing --no_bf16")
    assert run.layout.recompute == "none" and run.job.precision.name == "fp32"


@pytest.mark.parametrize(
    ("option", "value"),
    [("attn_implementation", "zz"), ("torch_dtype", "zz"), ("fsdp", "zz"), ("label_smoothing_factor", 0.1),
     ("neftune_noise_alpha", 5), ("load_in_8bit", True), ("torch_empty_cache_steps", 5)],
)  # fmt: skip
def test_what_is_not_priced_is_named(option: str, value: object):
    assert said(table(**{option: value}), option)


@pytest.mark.parametrize("value", ["flash_attention_2", "kernels-community/flash-attn3", "sdpa"])
def test_known_words_need_no_remark(value: str):
    assert not said(table(attn_implementation=value, torch_dtype="bfloat16"), "attn_implementation")


def test_a_strange_word_is_refused_where_all_is_to_be_known():
    from dataclasses import replace

    from meshwright.specs.errors import SpecError

    with pytest.raises(SpecError, match="attn_implementation"):
        import_text(yaml.safe_dump(BASE | {"attn_implementation": "zz"}), "run.yaml", replace(H8, strict=True), None)  # fmt: skip


def test_modules_that_train_whole_and_are_not_priced_are_named():
    run = table(use_peft=True, lora_r=8, lora_modules_to_save=["lm_head", "router"])
    assert run.job.finetune and run.job.finetune.train == ("head",)
    assert "router" in said(run, "modules_to_save")


@pytest.mark.parametrize(
    ("options", "task", "reference"),
    [
        ({"beta": 0.1, "desirable_weight": 1.0}, "kto", True),
        ({"center_rewards_coefficient": 0.01}, "reward", False),
        ({"lmbda": 0.5, "teacher_model_name_or_path": "x"}, "gkd", False),
        ({"beta": 0.1, "max_prompt_length": 9, "hub_model_id": "a-7b-orpo"}, "orpo", False),
        ({"beta": 0.1, "max_prompt_length": 9, "hub_model_id": "a-7b-dpo"}, "dpo", True),
    ],
)
def test_a_task_is_known_by_options_of_its_own(
    options: dict[str, object], task: str, reference: bool
):
    run = table(**options)
    assert (run.task, run.reference) == (task, reference)


def test_generation_beside_training_is_named():
    answers = {"num_generations": 8, "max_completion_length": 512, "use_vllm": True}
    assert "30%" in said(table(**answers), "vllm_mode")
    assert "gives its memory back" in said(table(**answers, vllm_enable_sleep_mode=True), "vllm")


def swift(words: str) -> Imported:
    start = "swift sft --model Qwen/Qwen2.5-7B-Instruct --dataset y --max_length 2048 "
    return import_text(f"NPROC_PER_NODE=8 {start}{words}\n", "run.sh", H8, None)


def test_ms_swift_computes_mixed_in_the_type_that_it_loads():
    run = swift("--tuner_type lora --torch_dtype bfloat16")
    assert run.job.precision.name == "bf16" and run.job.optimizer.state_bytes == 8
    assert swift("--tuner_type full --torch_dtype bfloat16").job.precision.master_bytes == 0
    assert swift("--torch_dtype float16").job.precision.name == "fp16"


def test_ms_swift_names_tuners_that_have_no_price_and_reads_8_bits_of_floating_point():
    assert "vera" in said(swift("--tuner_type vera"), "tuner_type")
    run = swift("--tuner_type lora --quant_bits float8 --quant_method fp8")
    assert run.job.finetune and run.job.finetune.storage == "int8"
    assert said(run, "quant_method")


def test_deepspeed_splits_products_by_an_option_of_ms_swift():
    assert swift("--tuner_type full --deepspeed zero2 --deepspeed_autotp_size 2").layout.tp == 2


@pytest.mark.parametrize(
    ("where", "value"),
    [("reduce_bucket_size", 1e9), ("stage3_prefetch_bucket_size", 1e9), ("sub_group_size", 1e12)],
)
def test_buckets_of_deepspeed_are_named_unless_they_are_its_own(where: str, value: float):
    model = Given(model=load_model("llama3-8b"), cluster=H8.cluster, guess=True, seq_len=2048)

    def remarks(number: float | str) -> bool:
        text = yaml.safe_dump({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
                               "zero_optimization": {"stage": 3, where: number}})  # fmt: skip
        return any(where in one.option for one in import_text(text, "d.yaml", model, None).remarks)

    usual = 1e9 if "sub" in where else 5e7 if "prefetch" in where else 5e8
    assert remarks(value) and not remarks(usual) and not remarks("auto")
