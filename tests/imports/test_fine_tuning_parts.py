"""Programs of fine-tuning whose parts lie in functions and files of their own: each by a small one of ours."""

from pathlib import Path

import pytest
from folders import GUESS, put

from meshwright.imports.files import import_file, import_text
from meshwright.specs.errors import SpecError

TRAINED = """
    args = TrainingArguments("out", per_device_train_batch_size=2, learning_rate=1e-4, bf16=True, gradient_checkpointing={told})
    Trainer(model=model, args=args, train_dataset=rows).train()
"""


def program(folder: Path, text: str, **beside: str):
    for name, inner in beside.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".yaml" if name.endswith("settings") else ".py").write_text(inner)
    (folder / "train.py").write_text(text)
    return import_file(folder / "train.py", GUESS)


def test_functions_of_files_at_hand_make_what_the_program_trains(tmp_path: Path):
    """A package hands on what one of its files defines; tables and widths go through short functions."""
    found = program(
        tmp_path,
        """
import argparse
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import prepare_model_for_kbit_training, get_peft_model, LoraConfig
from lab.tools import four_bits, width_of, load_settings

def asked(table, key, usual=None):
    if key in table:
        return table[key]
    inner = table.get("train", {})
    if isinstance(inner, dict) and key in inner:
        return inner[key]
    return usual

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", default="settings.yaml")
    table = load_settings(parser.parse_args().settings)
    width = width_of(table["width"])
    model = AutoModelForCausalLM.from_pretrained(table["model_name"], quantization_config=four_bits(width), dtype=width)
    model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(r=int(asked(table, "rank", 8))))
    args = TrainingArguments("out", per_device_train_batch_size=int(asked(table, "batch", 1)), gradient_accumulation_steps=asked(table, "steps", 6),
                             optim=str(asked(table, "optim", "adamw_torch")), fp16=True)
    Trainer(model=model, args=args).train()
""",
        lab____init__="from lab.widths import four_bits, width_of\n",
        lab__tools="from lab.widths import WIDTHS, four_bits, width_of\n\ndef load_settings(path):\n    return {}\n",
        lab__widths="""
import torch
from transformers import BitsAndBytesConfig
WIDTHS: dict = {"half": torch.float16, "brain": torch.bfloat16}

def width_of(word):
    if word not in WIDTHS:
        raise ValueError(word)
    return WIDTHS[word]

def four_bits(width):
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=width, bnb_4bit_use_double_quant=True)
""",
        settings="model_name: Qwen/Qwen2.5-0.5B\nwidth: half\nbatch: 3\ntrain:\n  rank: 24\n  optim: paged_adamw_8bit\n",
    )
    tuned = found.job.finetune
    assert tuned is not None
    assert (tuned.method, tuned.storage, tuned.rank) == ("qlora", "nf4", 24)
    assert found.layout.micro_batch == 3
    assert found.job.global_batch == 3 * 6 * found.layout.dp
    assert found.job.optimizer.name == "paged-adam8bit"


@pytest.mark.parametrize(
    ("line", "told", "recompute"),
    [
        ("model.gradient_checkpointing_enable()", False, "full"),
        ("if args.again: model.gradient_checkpointing_enable()", False, "none"),
        ("pass", True, "full"),
    ],
)
def test_a_model_that_was_switched_on_stays_so(line: str, told: bool, recompute: str):
    text = f"""
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
def main(args):
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
    {line}
{TRAINED.format(told=told)}"""
    assert import_text(text, "train.py", GUESS).layout.recompute == recompute


def test_keys_of_arrays_and_tools_that_take_a_trainer_s_words(tmp_path: Path):
    found = put(
        tmp_path,
        """models=(
  # "Qwen/Qwen2.5-7B"
  "Qwen/Qwen2.5-1.5B"
)
sizes=(5)
for i in "${!models[@]}"; do
  lab-cli sft --model_name_or_path ${models[$i]} --per_device_train_batch_size ${sizes[$i]} --bf16 True --model_max_length 512
done""",
    )
    assert (found.model.name, found.layout.micro_batch) == ("qwen2.5-1.5b", 5)


def test_tables_of_pairs_answers_and_templates():
    text = """{"model": {"model_id": "Qwen/Qwen3-8B"}, "algorithm": "grpo", "peft": {"enabled": false, "target_modules": ["q_proj"]},
"trainer": {"per_device_train_batch_size": 1, "learning_rate": 1e-6, "bf16": true, "max_prompt_length": 1000, "max_completion_length": 250}}"""
    found = import_text(text, "grpo.json", GUESS)
    assert (found.task, found.job.seq_len) == ("grpo", 1250)
    assert not [one for one in found.remarks if one.kind == "unread"]
    with pytest.raises(SpecError, match="encoder"):
        import_text(text.replace("Qwen/Qwen3-8B", "UFNLP/gatortron-base"), "grpo.json", GUESS)
    template = "base_model:\ndatasets:\n- path:\nadapter: lora\nlora_r: 32\nmicro_batch_size: 2\nsequence_len: 4096\nbf16: auto\nlearning_rate:\n"
    with pytest.raises(SpecError, match="--model"):
        import_text(template, "template.yaml", GUESS)


def test_nemo_s_names_of_small_models():
    from meshwright.imports.names import model_named

    for name, ours in (
        ("qwen25_500m", "qwen2.5-0.5b"),
        ("qwen2_1p5b", "qwen2.5-1.5b"),
        ("qwen3_600m", "qwen3-0.6b"),
        ("qwen3_1p7b", "qwen3-1.7b"),
    ):
        found = model_named(name)
        assert found is not None and found.name == ours


def test_a_configuration_that_a_map_of_the_same_file_holds():
    text = """apiVersion: v1
kind: ConfigMap
data:
  settings.json: |
    {"model_name_or_path": "Qwen/Qwen2.5-7B", "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "learning_rate": 1e-5,
     "bf16": true, "max_length": 1024, "deepspeed": {"stage": 2, "offload_optimizer": true, "overlap_comm": true}}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          affinity: {nodeAffinity: {required: [{key: gpu.product, operator: In, values: [NVIDIA-A100-SXM4-80GB]}]}}
          containers:
          - image: ours
            resources: {limits: {nvidia.com/gpu: 4}}
"""
    found = import_text(text, "job.yaml", GUESS)
    assert (found.model.name, found.layout.micro_batch, found.layout.dp) == ("qwen2.5-7b", 3, 4)
    assert (found.layout.zero, found.offload) == (2, {"optimizer"})
    assert "a100" in found.cluster.name


@pytest.mark.parametrize("openrlhf", [True, False])
def test_defaults_of_a_parser_alone_are_a_run(tmp_path: Path, openrlhf: bool):
    """The loop stands in a package of the program's own, which is not followed."""
    batch = '"--micro_train_batch_size"' if openrlhf else '"--batch_size"'
    name = '"--pretrain"' if openrlhf else '"--model_name"'
    found = program(
        tmp_path,
        f"""
import argparse
from lab import Trainer
parser = argparse.ArgumentParser()
parser.add_argument({name}, default="bigscience/bloomz-1b7")
parser.add_argument({batch}, type=int, default=6)
parser.add_argument("--train_batch_size" if {openrlhf} else "--grad_accum", type=int, default=96 if {openrlhf} else 2)
parser.add_argument("--max_len", type=int, default=640)
parser.add_argument("--zero_stage", type=int, default=2)
parser.add_argument("--learning_rate", type=float, default=2e-6)
args = parser.parse_args()
Trainer(args).fit()
""",
    )
    assert (found.model.name, found.layout.micro_batch, found.job.seq_len) == ("bloom-1b7", 6, 640)
    assert found.layout.zero == (2 if found.layout.dp > 1 else 0)


@pytest.mark.parametrize(
    ("back", "upcast"), [("pass", True), ("if 'lm_head' in name: module.to(torch.bfloat16)", False)]
)
def test_what_is_not_quantised_is_kept_in_32_bits(back: str, upcast: bool):
    """PEFT's preparation casts embedding, head and norms, unless the program casts them back."""
    text = f"""
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import PeftModel, prepare_model_for_kbit_training
def load(place="{{}}"):
    return {{"lora": {{"r": 12}}, "steps": 4, "place": place}}
settings = load()
def adapted(model, settings):
    return get_peft_model(model, LoraConfig(r=settings["r"], target_modules=["q_proj"]))
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", load_in_4bit=True)
model = adapted(prepare_model_for_kbit_training(model), settings["lora"])
for name, module in model.named_modules():
    {back}
{TRAINED.format(told=True).replace("    ", "")}"""
    tuned = import_text(text, "train.py", GUESS).job.finetune
    assert tuned is not None
    assert (tuned.upcast, tuned.rank, tuned.alpha) == (upcast, 12, 8.0)


@pytest.mark.parametrize("name", ["activation_checkpointing", "gradient_checkpointing"])
def test_every_other_layer_is_computed_again_and_kept_in_host_memory(name: str):
    """transformers 5 calls its switch otherwise and says which layers, and where their inputs are kept."""
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 4\nlearning_rate: 1.0e-5\nmax_length: 2048\nbf16: true\npacking: true\n"
    text += (
        f"{name}: true\n{name}_kwargs: {{every_n_layers: 3, offload: true, use_reentrant: false}}\n"
    )
    found = import_text(text, "sft.yaml", GUESS)
    assert (found.layout.recompute, found.layout.recompute_layers) == ("full", 10)
    assert found.offload == {"activations"}
    assert found.job.document_masking
    assert not [one for one in found.remarks if one.kind == "unread"]
    code = f"""from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
model.{name}_enable()
{TRAINED.format(told="None").replace("    ", "").replace("Trainer(", "from transformers import Trainer, TrainingArguments; Trainer(")}"""
    assert import_text(code, "train.py", GUESS).layout.recompute == "full"


@pytest.mark.parametrize(
    ("method", "rank", "said"),
    [
        ("AdaLoraConfig(init_r=14, target_r=6)", 14, "moves ranks"),
        ("RandLoraConfig(r=9)", 9, "randlora is not modelled"),
        ("PsoftConfig(r=9)", 9, "psoft is not modelled"),
        ("LoraConfig(r=9)", 9, ""),
    ],
)
def test_methods_beside_lora_are_named(method: str, rank: int, said: str):
    text = f"""
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import get_peft_model
model = get_peft_model(AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B"), {method})
{TRAINED.format(told=True).replace("    ", "")}"""
    found = import_text(text, "train.py", GUESS)
    assert found.job.finetune is not None and found.job.finetune.rank == rank
    told = [one.text for one in found.remarks if one.option == "peft_type"]
    assert (said in told[0]) if said else not told


START = """import os, yaml, tomllib, argparse, torch
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
"""
END = """
model = get_peft_model(AutoModelForCausalLM.from_pretrained({model}), LoraConfig(r=20))
made = TrainingArguments("out", per_device_train_batch_size={batch}, gradient_accumulation_steps={steps}, bf16=True, optim="adafactor")
{more}
Trainer(model=model, args=made).train()
"""


def form(lines: str, model: str = '"Qwen/Qwen2.5-1.5B"', batch: str = "b", steps: str = "s", more: str = "") -> str:  # fmt: skip
    return START + lines + END.format(model=model, batch=batch, steps=steps, more=more)


FORMS = [
    form("big = True\nb, s = 8, 1\nif big:\n    b = 3\n    s = 5\n"),
    form("b, s = 1, 1\n", more="made.per_device_train_batch_size = 3\nmade.gradient_accumulation_steps = 5"),
    form("b, s = 1, 1\nfrom dataclasses import replace\n",
         more="made = replace(made, per_device_train_batch_size=3)\nmade = replace(made, gradient_accumulation_steps=5)"),
    form("b, s = 1, 1\nfrom functools import partial\nmake = partial(TrainingArguments, 'out', bf16=True, per_device_train_batch_size=8)\n")
    .replace("TrainingArguments(\"out\", per_device_train_batch_size=b, gradient_accumulation_steps=s, bf16=True",
             "make(per_device_train_batch_size=3, gradient_accumulation_steps=5"),
    form('held = SimpleNamespace(batch=3, steps=5)\n', batch="held.batch", steps="held.steps"),
    form('SIZES = {"small": (3, 5), "large": (1, 16)}\nb, s = SIZES["small"]\n'),
    form('held = dict(batch=3)\nheld["steps"] = 4\nheld.update(steps=5)\n', batch='held["batch"]', steps='held["steps"]'),
    form('with open("held.toml", "rb") as file:\n    held = tomllib.load(file)["train"]\n', batch='held["batch"]', steps='held["steps"]'),
    form('held = yaml.safe_load((Path(__file__).parent / "held.yaml").read_text())\n', batch='held["batch"]', steps='held["steps"]'),
    form("@dataclass\nclass Held:\n    batch: int = 3\n    steps: int = 5\nheld = asdict(Held())\n", batch='held["batch"]', steps='held["steps"]'),
    form('p = argparse.ArgumentParser()\np.add_argument("--steps", type=int)\nargs = p.parse_args()\n', batch="3",
         steps="args.steps if args.steps is not None else 5"),
    form("b, s = 3, 5\nfor name in ['Qwen/Qwen2.5-1.5B', 'Qwen/Qwen2.5-7B']:\n    pass\n", model="name"),
    form("import tuned\nfrom tuned import TrainCfg\n", batch="TrainCfg.batch", steps="tuned.STEPS"),
    form("class Run:\n    def __init__(self, path='held.yaml'):\n        with open(path) as f: self.held = yaml.safe_load(f)\n",
         batch='Run().held["batch"]', steps='Run().held["steps"]'),
]  # fmt: skip


@pytest.mark.parametrize("text", FORMS)
def test_forms_in_which_programs_keep_their_settings(tmp_path: Path, text: str):
    (tmp_path / "held.toml").write_text("[train]\nbatch = 3\nsteps = 5\n")
    (tmp_path / "held.yaml").write_text("batch: 3\nsteps: 5\n")
    (tmp_path / "tuned.py").write_text("STEPS = 5\nclass TrainCfg:\n    batch = 3\n")
    found = program(tmp_path, text)
    assert (found.model.name, found.layout.micro_batch) == ("qwen2.5-1.5b", 3)
    assert found.job.global_batch == 3 * 5 * found.layout.dp


def test_a_batch_that_the_ranks_share_and_a_preparation_behind_a_switch(tmp_path: Path):
    found = put(
        tmp_path,
        "torchrun --nproc_per_node=4 train.py --batch 16 --quantise",
        train__py="""
import argparse, os
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
class PairedTrainer(Trainer):
    pass
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--quantise", action="store_true")
args = parser.parse_args()
world_size = int(os.environ.get("WORLD_SIZE", 1))
device_batch_size = int(args.batch_size / world_size) if hasattr(args, "batch_size") else args.batch
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", load_in_4bit=args.quantise)
if args.quantise:
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"]))
settings = TrainingArguments("out", per_device_train_batch_size=args.batch, gradient_accumulation_steps=2, bf16=True)
PairedTrainer(model=model, args=settings).train()
""",
    )
    assert (found.layout.dp, found.layout.micro_batch, found.job.global_batch) == (4, 4, 32)
    assert found.job.finetune is not None and found.job.finetune.upcast
    assert found.layout.recompute == "none"


def test_what_trains_vectors_or_elsewhere_is_refused(tmp_path: Path):
    table = "model: {name: Qwen/Qwen2.5-0.5B}\nia3: {target_modules: [k_proj]}\ntraining: {per_device_train_batch_size: 2, learning_rate: 1e-4, bf16: true}\n"
    with pytest.raises(SpecError, match=r"ia3.*trains vectors"):
        import_text(table, "ia3.yaml", GUESS)
    asked = "from openai import OpenAI\nclient = OpenAI()\njob = client.fine_tuning.jobs.create(model='m', training_file='f')\nprint(job)\n"
    with pytest.raises(SpecError, match="asks a service"):
        import_text(asked, "ask.py", GUESS)


def test_a_trainer_of_ones_own_goes_by_its_file_and_trl_s_length_by_trl():
    text = f"""
from transformers import AutoModelForCausalLM, TrainingArguments
from trl import SFTTrainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.float16)
{TRAINED.format(told=True).replace("    ", "").replace("Trainer(", "SFTTrainer(").replace("bf16=True", "bf16=False")}"""
    found = import_text(text, "train.py", GUESS)
    assert found.job.seq_len == 1024
    assert any("float16" in one.text for one in found.remarks)
    paired = text.replace("SFTTrainer", "TabledTrainer").replace(
        "from trl import", "from lab import"
    )
    assert (
        import_text(paired + "\nfrom transformers import Trainer\n", "train_dpo.py", GUESS).task
        == "dpo"
    )


@pytest.mark.parametrize(
    "loop",
    [
        'while IFS= read -r size || [[ -n "$size" ]]; do\n  RUN\ndone < "sizes.txt"\n',
        "cat sizes.txt | while read size; do\n  RUN\ndone\n",
        "while read -r size; do RUN; done <<EOF\n4\n2\nEOF\n",
    ],
)
def test_a_loop_over_the_lines_of_a_file_is_followed(tmp_path: Path, loop: str):
    (tmp_path / "sizes.txt").write_text("4\n2\n")
    started = (
        "python train.py --model_name_or_path meta-llama/Llama-3.1-8B --max_seq_length 1024 "
        "--per_device_train_batch_size $size --learning_rate 1e-5 --bf16"
    )
    (tmp_path / "run.sh").write_text("#!/bin/bash\n" + loop.replace("RUN", started))
    found = import_file(tmp_path / "run.sh", GUESS)
    assert found.layout.micro_batch == 4


def test_a_head_of_labels_is_named_though_a_causal_model_is_commented_out(tmp_path: Path):
    text = """
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments
# model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B")
model = AutoModelForSequenceClassification.from_pretrained("meta-llama/Llama-3.1-8B", num_labels=1)
args = TrainingArguments("out", per_device_train_batch_size=2, bf16=True)
KIND(model=model, args=args, train_dataset=rows).train()
"""
    with pytest.raises(SpecError, match="classifier of sequences"):
        program(tmp_path, text.replace("KIND", "Trainer"))
    found = program(tmp_path, text.replace("KIND", "Trainer") + "\n# Rewards\n")
    assert any(one.option == "num_labels" for one in found.remarks)


FACTORY = (
    "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\nfinetuning_type: lora\nlora_rank: 16\ndataset: x\ncutoff_len: 2048\n"
    "per_device_train_batch_size: 2\nlearning_rate: 1.0e-4\nbf16: true\n"
)
SWIFT = (
    "swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora --lora_rank 16 --dataset x --max_length 2048 "
    "--per_device_train_batch_size 2 --learning_rate 1e-4 --torch_dtype bfloat16"
)


def test_llama_factorys_words_that_move_memory():
    found = import_text(FACTORY + "use_unsloth_gc: true\n", "a.yaml", GUESS)
    assert (found.layout.recompute, found.offload) == ("full", {"activations"})
    found = import_text(FACTORY + "resize_vocab: true\n", "a.yaml", GUESS)
    assert found.job.finetune is not None and found.job.finetune.train == ("embedding", "head")
    for word in ("use_mca", "use_megatron_bridge", "use_llama_pro", "use_asft_loss"):
        found = import_text(f"{FACTORY}{word}: true\n", "a.yaml", GUESS)
        assert [one.option for one in found.remarks if one.kind == "unmodelled"] == [word]
    found = import_text(
        FACTORY + "adapter_name_or_path: old\ntrain_on_prompt: true\n", "a.yaml", GUESS
    )
    assert not [one for one in found.remarks if one.kind == "unread"]


def test_ms_swifts_words_that_move_memory():
    found = import_text(f"{SWIFT} --packing true --packing_length 8192", "a.sh", GUESS)
    assert (found.job.seq_len, found.job.document_masking) == (8192, True)
    found = import_text(
        f"{SWIFT} --target_regex '^model.*q_proj$' --lora_dtype bfloat16", "a.sh", GUESS
    )
    tuned = found.job.finetune
    assert tuned is not None and (tuned.targets, tuned.adapter_bytes) == (("q",), 2)
    text = (
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B-Instruct --tensor_model_parallel_size 2 --dataset x --max_length 2048 "
        "--micro_batch_size 2 --global_batch_size 64 --lr 1e-4 --main_grads_dtype "
    )
    for width, size in (("fp32", 4), ("bf16", 2)):
        sums = import_text(text + width, "a.sh", GUESS).job.precision
        assert (sums.gradient_bytes, sums.gradient_reduce_bytes) == (size, size)


def test_axolotls_words_of_references_and_frozen_weights():
    text = (
        "base_model: Qwen/Qwen2.5-7B\ndatasets:\n- path: x\n  type: alpaca\nadapter: lora\nlora_r: 16\nlora_target_linear: true\n"
        "sequence_len: 2048\nmicro_batch_size: 2\nlearning_rate: 0.0001\nbf16: true\nrl: dpo\n"
    )
    assert import_text(text, "a.yaml", GUESS).reference
    assert not import_text(text + "precompute_ref_log_probs: true\n", "a.yaml", GUESS).reference
    found = import_text(text + "gptq: true\n", "a.yaml", GUESS)
    assert "gptq" in [one.option for one in found.remarks if one.kind == "unmodelled"]
