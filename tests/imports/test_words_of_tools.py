"""What tools' commands start, and what programs at hand do with the words that they hear."""

from pathlib import Path

import pytest
from folders import GUESS, put

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError

AXOLOTL = """
base_model: NousResearch/Meta-Llama-3-8B
datasets: [{path: x, type: alpaca}]
micro_batch_size: 1
gradient_accumulation_steps: 4
sequence_len: 4096
bf16: true
learning_rate: 1e-5
gradient_checkpointing: true
"""


def said(run: Imported, option: str) -> str:
    return " ".join(one.text for one in run.remarks if option in one.option)


@pytest.mark.parametrize(
    ("words", "world", "micro"),
    [
        ("axolotl train a.yml --num-processes 4 --micro-batch-size 2", 4, 2),
        ("axolotl train a.yml --launcher torchrun -- --nproc_per_node=4 --nnodes 2", 8, 1),
        ("axolotl train a.yml -- --num_processes=16 --num_machines=2", 16, 1),
        ("accelerate launch --num_processes 4 -m axolotl.cli.train a.yml", 4, 1),
        ("axolotl fetch examples\naxolotl preprocess a.yml\naxolotl train a.yml", 8, 1),
    ],
)
def test_axolotl_s_commands(tmp_path: Path, words: str, world: int, micro: int):
    run = put(tmp_path, words, a__yml=AXOLOTL)
    assert run.format.startswith("axolotl")
    assert (run.cluster.gpus, run.layout.micro_batch, run.job.seq_len) == (world, micro, 4096)


def test_axolotl_s_whole_batch_is_a_guess():
    plain = AXOLOTL.replace("gradient_accumulation_steps: 4", "batch_size: 8")
    run = import_text(plain, "a.yml", Given(cluster=load_cluster("h100:1x8"), guess=True))
    assert run.job.global_batch == 64
    assert "now gradient_accumulation_steps is 1" in said(run, "batch_size")


def test_torchtune_s_own_configurations_by_name(tmp_path: Path):
    run = put(
        tmp_path,
        "tune run --nproc_per_node 4 lora_finetune_distributed --config llama3_1/8B_lora batch_size=4 model.lora_rank=32",
    )
    tune = run.job.finetune
    assert tune and (run.model.name, run.cluster.gpus, run.layout.micro_batch, tune.rank) == ("llama3.1-8b", 4, 4, 32)  # fmt: skip
    alone = put(tmp_path, "tune run lora_finetune_single_device --config llama3_2/3B_lora_single_device")  # fmt: skip
    assert (alone.cluster.gpus, alone.layout.zero) == (1, 0)
    with pytest.raises(SpecError, match=r"did you mean llama3_1/8B_full"):
        put(tmp_path, "tune run full_finetune_distributed --config llama3_1/8B_ful")
    with pytest.raises(SpecError, match="import that YAML"):
        put(tmp_path, "tune run full_finetune_distributed --config mine.yaml")


@pytest.mark.parametrize(
    "words",
    ["python scripts/pissa_init.py --model_name_or_path meta-llama/Meta-Llama-3-8B --output_dir x",
     "python run_prediction.py --model_name_or_path a/llama-7b --eval_batch_size 4 --output_dir x"],
)  # fmt: skip
def test_a_model_s_name_alone_trains_nothing(tmp_path: Path, words: str):
    with pytest.raises(SpecError, match="does not train"):
        put(tmp_path, words)


def test_a_table_of_answers_trains_nothing():
    with pytest.raises(SpecError, match="does not train"):
        import_text("model_name_or_path: Qwen/Qwen3-4B\ntemplate: qwen3\ninfer_backend: vllm\n", "a.yaml", GUESS)  # fmt: skip


def test_the_word_of_what_leaves_for_host_memory():
    start = "deepspeed --num_gpus 8 main.py --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 4 --zero_stage 3"
    for word, parts in (("none", set()), ("optimizer", {"optimizer"}), ("parameter", {"parameters"}), ("all", {"optimizer", "parameters"})):  # fmt: skip
        assert set(import_text(f"{start} --offload {word}\n", "r.sh", GUESS).offload) == parts


def test_answers_that_the_learners_do_not_divide():
    words = (
        "python open_instruct/grpo_fast.py --model_name_or_path allenai/Olmo-3-7B --num_unique_prompts_rollout 32 "
        "--num_samples_per_prompt_rollout 8 --num_learners_per_node 8 8 8 8 8 --deepspeed_stage 3 --pack_length 8192 --learning_rate 1e-6"
    )
    run = import_text(f"{words} --per_device_train_batch_size 1\n", "r.sh", GUESS)
    assert (run.cluster.gpus, run.job.global_batch) == (40, 280)
    assert "256 answers" in said(run, "--global-batch")


def test_unsloth_s_own_command_line():
    run = import_text("python unsloth-cli.py --model_name unsloth/llama-3-8b --r 64 --per_device_train_batch_size 4 --load_in_4bit\n", "r.sh", GUESS)  # fmt: skip
    tune = run.job.finetune
    assert tune and (tune.rank, tune.storage, run.cluster.gpus) == (64, "nf4", 1)
    assert (run.layout.recompute, set(run.offload), run.job.optimizer.name) == ("full", {"activations"}, "adam8bit")  # fmt: skip


PROGRAM = """
import fire, transformers
from peft import LoraConfig, get_peft_model
def train(base_model: str = "", batch_size: int = 128, micro_batch_size: int = 4, cutoff_len: int = 256, lora_r: int = 8,
          target_modules: list = None):
    steps = batch_size // micro_batch_size
    model = transformers.AutoModelForCausalLM.from_pretrained(base_model)
    model = get_peft_model(model, LoraConfig(r=lora_r, target_modules=target_modules))
    tokenizer = transformers.AutoTokenizer.from_pretrained(base_model)
    tokenizer("a", truncation=True, max_length=cutoff_len)
    transformers.Trainer(model=model, args=transformers.TrainingArguments(
        per_device_train_batch_size=micro_batch_size, gradient_accumulation_steps=steps, bf16=True)).train()
if __name__ == "__main__":
    fire.Fire(train)
"""


def test_fire_hands_the_words_to_a_function(tmp_path: Path):
    words = "python finetune.py --base_model meta-llama/Llama-2-7b-hf --batch_size 64 --micro_batch_size 16 --lora_r 32"
    run = put(tmp_path, f"""{words} --target_modules '["q_proj", "W_pack"]'""", finetune__py=PROGRAM)  # fmt: skip
    tune = run.job.finetune
    assert tune and (run.layout.micro_batch, run.job.global_batch, run.job.seq_len) == (16, 64, 256)
    assert (tune.rank, set(tune.targets)) == (32, {"q", "k", "v"})


PARSER = """
import argparse
def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name")
    parser.add_argument("--per_device_train_batch_size", type=int, default=1)
    parser.add_argument("--optim", default="paged_adamw_32bit")
    parser.add_argument("--answer_tokens", type=int, default=1024)
    parser.add_argument("--enable_lora", action="store_true", default=False)
    parser.add_argument("--lora_rank", type=int, default=64)
    return parser.parse_args()
"""
STARTED = """
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from words import options
class Main:
    def __init__(self, args):
        self.args = args
        self.tokenizer = AutoTokenizer.from_pretrained(args.model_name)
        self.model = AutoModelForCausalLM.from_pretrained(args.model_name)
    def rows(self, row):
        return self.tokenizer(row, max_length=self.args.answer_tokens)
    def run(self):
        arguments = TrainingArguments(per_device_train_batch_size=self.args.per_device_train_batch_size, optim=self.args.optim,
                                      gradient_checkpointing=True, bf16=True)
        Trainer(model=self.model, args=arguments).train()
if __name__ == "__main__":
    Main(options()).run()
"""


def test_a_program_s_parser_lies_in_a_file_beside_it(tmp_path: Path):
    words = "torchrun --nproc_per_node 4 main.py --model_name meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2"
    run = put(tmp_path, words, main__py=STARTED, words__py=PARSER)
    assert run.job.optimizer.name == "paged-adamw" and run.job.finetune is None
    assert (run.layout.recompute, run.job.seq_len, run.layout.micro_batch) == ("full", 1024, 2)
    assert (put(tmp_path, f"{words} --enable_lora")).job.finetune.rank == 64  # type: ignore[union-attr]


UNDER_MAIN = """
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
if __name__ == "__main__":
    (arguments,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
    RANK = 24
    model = get_peft_model(AutoModelForCausalLM.from_pretrained("x"), LoraConfig(r=RANK, target_modules=["q_proj", "v_proj"]))
    Trainer(model=model, args=arguments).train()
"""


def test_what_stands_under_a_program_s_main_counts(tmp_path: Path):
    words = "deepspeed --num_gpus 4 train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --bf16"
    tune = put(tmp_path, words, train__py=UNDER_MAIN).job.finetune
    assert tune and (tune.rank, set(tune.targets)) == (24, {"q", "v"})


def test_tables_of_adapters_and_widths_inside_arguments():
    text = """
model: {model_id: mistralai/Mistral-7B-Instruct-v0.3}
training: {per_device_train_batch_size: 2, gradient_accumulation_steps: 8, bf16: true}
quantization: {use_4bit: true, bnb_4bit_quant_type: nf4}
sft: {max_seq_length: 2048, packing: true}
"""
    tune = import_text(text, "t.yaml", GUESS).job.finetune
    assert tune and tune.storage == "nf4"
    plain = "model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 1\npeft: {lora_r: 24, target_modules: [q_proj, v_proj, o_proj], use_qlora: true}\n"
    tune = import_text(plain, "t.yaml", GUESS).job.finetune
    assert tune and (tune.rank, set(tune.targets), tune.storage) == (24, {"q", "v", "o"}, "nf4")
    off = plain.replace("use_qlora: true", "enabled: false")
    assert import_text(off, "t.yaml", GUESS).job.finetune is None


HYDRA = """
import hydra
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
@hydra.main(config_path="configs", config_name="sft")
def main(config):
    Trainer(model=AutoModelForCausalLM.from_pretrained(config.pretrained_model_name), args=TrainingArguments(**config.arguments)).train()
main()
"""
GRPO = """
model_name: run-of-tuesday
pretrained_model_name: Qwen/Qwen2.5-7B
max_length: 2048
batch_size: 4
lr: 1e-5
is_quantized: false
is_peft: false
quantization_config: {load_in_4bit: true}
peft_config: {r: 128, target_modules: all-linear}
"""


@pytest.mark.parametrize("said", ["--config-name grpo", "--config-name=grpo.yaml"])
def test_switches_left_off_decide_over_tables(tmp_path: Path, said: str):
    run = put(tmp_path, f"accelerate launch --num_processes 4 main.py {said}", main__py=HYDRA, configs___grpo__yaml=GRPO)  # fmt: skip
    assert (run.model.name, run.job.finetune, run.task) == ("qwen2.5-7b", None, "grpo")


def test_encoders_called_after_bert_are_refused():
    with pytest.raises(SpecError, match="encoder"):
        import_text("python train.py --model_name allenai/scibert_scivocab_uncased --batch_size 16 --num_epochs 10 --max_seq_length 256\n", "r.sh", GUESS)  # fmt: skip


def test_processors_are_no_devices():
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nmixed_precision: 'no'\nnum_machines: 1\nnum_processes: 1\nuse_cpu: true\n"
    run = import_text(text, "a.yaml", Given(model=load_model("llama3-8b"), guess=True))
    assert "processors" in said(run, "use_cpu")


METHOD = """
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
grpo: {per_device_train_batch_size: 6, gradient_accumulation_steps: 16, max_prompt_length: 512, max_completion_length: 3584, beta: 0.04,
       bf16: true, gradient_checkpointing: true, num_generations: 6, learning_rate: 1e-6}
lora: {enabled: true, r: 24, target_modules: [q_proj, v_proj]}
"""


@pytest.mark.parametrize("started", [False, True])
def test_arguments_in_a_table_called_after_its_method(tmp_path: Path, started: bool):
    words = "accelerate launch --num_processes 2 grpo.py --config c.yaml --seed 1"
    run = put(tmp_path, words, c__yaml=METHOD) if started else import_text(METHOD, "c.yaml", GUESS)
    tune = run.job.finetune
    assert tune and (tune.rank, set(tune.targets)) == (24, {"q", "v"})
    assert (run.layout.micro_batch, run.job.seq_len, run.layout.recompute) == (6, 4096, "full")
    assert run.job.global_batch == 6 * 16 * run.layout.dp and (run.task, run.reference) == ("grpo", True)  # fmt: skip
    off = import_text(METHOD.replace("enabled: true", "enabled: false"), "c.yaml", GUESS)
    assert off.job.finetune is None


PHASES = """
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, max_length=4096, bf16=True)).train()
DPOTrainer(model=model, args=DPOConfig(per_device_train_batch_size=1, beta=0.1, max_prompt_length=512)).train()
"""


def test_the_first_phase_of_a_program_names_its_task():
    run = import_text(PHASES, "train.py", GUESS)
    assert (run.task, run.layout.micro_batch) == ("", 2)


def test_a_table_that_extends_another(tmp_path: Path):
    files = {
        "configs___base__yaml": "bf16: true\ngradient_checkpointing: true\nper_device_train_batch_size: 8\nmodel_name_or_path: Qwen/Qwen2.5-7B\n",
        "configs___mine__yaml": "extends: base.yaml\nper_device_train_batch_size: 2\nmax_length: 1024\nlearning_rate: 1e-5\n",
    }
    run = put(tmp_path, "accelerate launch --num_processes 2 sft.py --config configs/mine.yaml", **files)  # fmt: skip
    alone = import_file(tmp_path / "configs" / "mine.yaml", GUESS)
    for one in (run, alone):
        assert (one.model.name, one.layout.micro_batch, one.layout.recompute, one.job.seq_len) == ("qwen2.5-7b", 2, "full", 1024)  # fmt: skip


OTHER = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import {0}Config, get_peft_model
model = get_peft_model(AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B"), {0}Config(r=16, target_modules=["q_proj"]))
Trainer(model=model, args=TrainingArguments(output_dir="o", per_device_train_batch_size=2, bf16=True)).train()
"""


def test_other_methods_than_lora_are_named_or_refused():
    run = import_text(OTHER.format("LoHa"), "train.py", GUESS)
    assert run.job.finetune and run.job.finetune.rank == 16 and "loha" in said(run, "peft_type")
    assert not said(import_text(OTHER.format("Lora"), "train.py", GUESS), "peft_type")
    with pytest.raises(SpecError, match="vectors"):
        import_text(OTHER.format("PrefixTuning"), "train.py", GUESS)
