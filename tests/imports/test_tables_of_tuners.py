"""YAML of fine-tuners whose words become another reader's: H2O LLM Studio, Ludwig, ms-swift's Megatron, LLaMA-Factory's."""

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_model
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)


def said(run: Imported, option: str) -> str:
    return " ".join(one.text for one in run.remarks if option in one.option)


H2O = """problem_type: text_causal_language_modeling
llm_backbone: Qwen/Qwen3-4B
architecture: {backbone_dtype: DTYPE, gradient_checkpointing: true, intermediate_dropout: 0.0}
environment: {gpus: ['0', '1'], mixed_precision: true, mixed_precision_dtype: bfloat16, use_deepspeed: SHARDED, deepspeed_method: ZeRO3}
tokenizer: {max_length: 1024, padding_quantile: 1.0}
training: {batch_size: 3, grad_accumulation: 2, lora: LORA, lora_r: 16, lora_target_modules: '', optimizer: AdamW8bit, epochs: 1}
"""


def h2o(dtype: str = "int4", lora: str = "true", sharded: str = "false") -> Imported:
    text = H2O.replace("DTYPE", dtype).replace("LORA", lora).replace("SHARDED", sharded)
    return import_text(text, "cfg.yaml", GUESS)


def test_h2o_llm_studio_adapts_four_bit_weights():
    run = h2o()
    assert (run.format, run.model.name) == ("H2O LLM Studio YAML", "qwen3-4b")
    assert (run.layout.world, run.layout.micro_batch, run.job.global_batch) == (2, 3, 12)
    assert (run.layout.recompute, run.job.seq_len, run.job.optimizer.name) == ("full", 1024, "adam8bit")  # fmt: skip
    tune = run.job.finetune
    assert tune and (tune.rank, tune.storage, run.job.precision.name) == (16, "nf4", "bf16")
    assert not [one for one in run.remarks if one.kind == "unread"]


@pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "pure-bf16"), ("float32", "bf16")])
def test_h2o_s_whole_weights_are_mixed_only_where_they_are_32_bits_wide(dtype, precision):
    run = h2o(dtype, "false")
    assert (run.job.finetune, run.job.precision.name) == (None, precision)


def test_h2o_s_deepspeed_by_its_method():
    assert h2o("bfloat16", "true", "true").layout.zero == 3


def test_h2o_s_classifiers_are_refused():
    with pytest.raises(SpecError, match="classifier"):
        import_text(H2O.replace("causal_language_", "causal_classification_"), "cfg.yaml", GUESS)


LUDWIG = """model_type: llm
base_model: Qwen/Qwen3-4B
input_features: [{name: prompt, type: text, preprocessing: {max_sequence_length: 300}}]
output_features: [{name: answer, type: text, preprocessing: {max_sequence_length: 200}}]
trainer: {type: finetune, epochs: 1, optimizer: {type: paged_adam_8bit}}
"""


def test_ludwig_starts_one_process_and_loads_weights_as_they_are():
    run = import_text(LUDWIG, "run.yaml", GUESS)
    assert (run.layout.world, run.layout.micro_batch, run.job.seq_len) == (1, 1, 500)
    assert (run.job.precision.name, run.job.finetune) == ("pure-bf16", None)
    assert "8bit" in run.job.optimizer.name.replace("-", "") and said(run, "precision")


def test_ludwig_s_sharding_by_its_backend():
    shards = "backend: {type: deepspeed, zero_optimization: {stage: 3, offload_optimizer: {device: cpu}}}\n"
    run = import_text(LUDWIG + shards, "run.yaml", GUESS)
    assert (run.layout.zero, set(run.offload)) == (3, {"optimizer"})
    rays = "backend: {type: ray, trainer: {num_workers: 4, strategy: fsdp}}\n"
    run = import_text(LUDWIG + rays, "run.yaml", GUESS)
    assert (run.layout.world, run.layout.zero) == (4, 3)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("model_type: llm", "model_type: ecd"), "another kind of model"),
        (("type: finetune", "type: none"), "does not train"),
    ],
)
def test_ludwig_s_other_models_are_refused(change, why):
    with pytest.raises(SpecError, match=why):
        import_text(LUDWIG.replace(*change), "run.yaml", GUESS)


SWIFT = """model: Qwen/Qwen3-30B-A3B
tuner_type: lora
lora_rank: 16
load_from_cache_file: true
ENV: {MAX_PIXELS: '1003520'}
max_length: 2048
micro_batch_size: 2
global_batch_size: 8
padding_free: false
expert_model_parallel_size: 4
recompute_granularity: full
recompute_method: uniform
recompute_num_layers: 1
"""


def test_ms_swift_s_megatron_options_stand_in_a_yaml(tmp_path):
    (tmp_path / "sft.yaml").write_text(SWIFT)
    (tmp_path / "sft.sh").write_text("NPROC_PER_NODE=4 megatron sft sft.yaml --lora_rank 32\n")
    table, command = import_file(tmp_path / "sft.yaml", GUESS), import_file(tmp_path / "sft.sh", GUESS)  # fmt: skip
    for run, rank in ((table, 16), (command, 32)):
        assert (run.layout.ep, run.layout.micro_batch, run.layout.recompute) == (4, 2, "full")
        assert (run.job.global_batch, run.job.seq_len, run.job.document_masking) == (8, 2048, False)  # fmt: skip
        assert run.job.finetune and run.job.finetune.rank == rank
    assert (table.format, command.layout.world) == ("ms-swift Megatron YAML", 4)


def test_ms_swift_s_group_of_ray_that_trains():
    groups = "rlhf_type: grpo\nmax_completion_length: 1024\ntrain: {gpus: 4, tensor_model_parallel_size: 2, expert_model_parallel_size: 2}\nrollout: {gpus: 2}\n"
    run = import_text(SWIFT.replace("expert_model_parallel_size: 4\n", "") + groups, "ray.yaml", GUESS)  # fmt: skip
    assert (run.layout.tp, run.layout.ep, run.layout.world, run.task) == (2, 2, 4, "grpo")
    assert run.job.seq_len == 2048 + 1024
    assert "not those that generate" in said(run, "train.gpus")


MCA = """model_name_or_path: Qwen/Qwen3-30B-A3B
stage: sft
finetuning_type: full
do_train: true
cutoff_len: 4096
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
pipeline_model_parallel_size: 4
expert_model_parallel_size: 2
tensor_model_parallel_size: 1
use_distributed_optimizer: true
moe_token_dispatcher_type: alltoall
recompute_granularity: full
num_layers_in_first_pipeline_stage: null
"""


def test_llama_factory_s_words_of_megatron_are_no_table_of_megatron_lm():
    more = "check_for_nan_in_loss_and_grad: true\ntransformer_impl: transformer_engine\n"
    run = import_text(MCA + more, "full.yaml", GUESS)
    assert (run.format, run.layout.pp, run.layout.ep) == ("LLaMA-Factory YAML", 4, 2)


AXOLOTL = "base_model: NousResearch/Llama-2-7b-hf\nsequence_len: 512\nmicro_batch_size: 1\ndatasets: [{path: x, type: alpaca}]\nbf16: true\n"


def test_axolotl_s_tokens_are_not_nanotron_s():
    run = import_text(AXOLOTL + 'tokens: {bos_token: "<s>"}\nattn_implementation: xformers\n', "config.yml", GUESS)  # fmt: skip
    assert run.format == "axolotl YAML"
    assert not [one for one in run.remarks if one.kind == "unread"]


def test_a_width_of_sixteen_bits_quantises_nothing():
    words = "--model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2 --use_lora True --lora_r 8 --bf16 True --max_seq_length 512 --learning_rate 2e-5"
    for bits, storage in (("bf16", "16-bit"), ("4", "nf4")):
        run = import_text(f"python tune.py {words} --bits {bits}\n", "r.sh", GUESS)
        assert run.job.finetune and run.job.finetune.storage == storage


def test_learners_count_whatever_the_launcher_asks_for():
    words = "--model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 1 --num_unique_prompts_rollout 16 --num_samples_per_prompt_rollout 4 --pack_length 4096 --deepspeed_stage 3 --num_learners_per_node 4 4"
    run = import_text(f"python mason.py --num_nodes 2 --gpus 8 -- python open_instruct/grpo_fast.py {words}\n", "r.sh", Given(guess=True, model=load_model("qwen3-4b")))  # fmt: skip
    assert (run.layout.world, run.job.global_batch) == (8, 64)


AUTOMODEL = """recipe: RECIPE
step_scheduler: {global_batch_size: 256, local_batch_size: 8}
model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path: Qwen/Qwen3-4B}
distributed: {strategy: fsdp2, tp_size: 1}
dataset: {seq_length: 2048}
"""


@pytest.mark.parametrize(
    ("tests", "cluster", "micro"),
    [
        ("{nodes: 8, cluster_tag: gb200}", "gb200:8x4", 8),
        ("{nodes: 2}", "h100:2x8", 8),
        ("{nodes: 4, local_batch_size: 4}", "h100:4x8", 4),
        ("{nodes: 16, cluster_tag: gb200, local_batch_size: 2}", "gb200:16x4", 2),
    ],
)
def test_automodel_s_hosts_are_its_tests_with_their_batch(tests, cluster, micro):
    run = import_text(AUTOMODEL.replace("RECIPE", "Train") + f"ci: {tests}\n", "a.yaml", GUESS)
    assert (run.cluster.name, run.layout.micro_batch) == (cluster, micro)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("RECIPE", "TrainDSparkRecipe", "recipe_args:\n  draft_num_hidden_layers: 5\n"), "draft model"),
        (("RECIPE", "TrainJetSpecRecipe", "recipe_args: {}\n"), "draft model"),
        (("RECIPE", "Train", "flow_matching:\n  adapter_type: x\n"), "diffusion"),
    ],
)  # fmt: skip
def test_automodel_s_draft_models_and_pictures_are_refused(more, why):
    with pytest.raises(SpecError, match=why):
        import_text(AUTOMODEL.replace(*more[:2]) + more[2], "a.yaml", GUESS)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("AIDC-AI/Ovis2.5-2B", "vision-language"), ("openbmb/MiniCPM-V-4", "vision-language"), ("x/HunyuanOCR", "vision-language"),
     ("Qwen/Qwen-Image", "diffusion"), ("x/Voxtral-Mini-3B", "speech"), ("openbmb/MiniCPM3-4B", "")],
)  # fmt: skip
def test_names_of_models_that_see_hear_or_draw(name, kind):
    text = AXOLOTL.replace("NousResearch/Llama-2-7b-hf", name)
    if kind:
        with pytest.raises(SpecError, match=kind):
            import_text(text, "config.yml", GUESS)
    else:
        assert import_text(text, "config.yml", GUESS).format == "axolotl YAML"


FIREFLY = "output_dir: o\nmodel_name_or_path: Qwen/Qwen1.5-7B\ntemplate_name: qwen\ntrain_mode: MODE\ntask_type: dpo\nper_device_train_batch_size: 1\nmax_seq_length: 1024\nlora_rank: 64\nlora_alpha: 16\nfp16: true\nlearning_rate: 2.0e-4\n"


@pytest.mark.parametrize(
    ("mode", "storage"), [("full", None), ("lora", "16-bit"), ("qlora", "nf4")]
)
def test_firefly_s_mode_decides_over_a_rank_that_is_there_anyway(mode, storage):
    run = import_text(FIREFLY.replace("MODE", mode), "sft.yaml", GUESS)
    tune = run.job.finetune
    assert ((tune.storage if tune else None), run.task) == (storage, "dpo")
    assert not [one for one in run.remarks if one.kind == "unread"]


PROGRAM = """from dataclasses import dataclass, field
from transformers import HfArgumentParser, TrainingArguments, Trainer, AutoModelForCausalLM

@dataclass
class ModelArguments:
    model_name_or_path: str = None
    use_lora: bool = field(default=False)
    use_qlora: bool = field(default=False)
    load_in_4bit: bool = field(default=True)
    quant_bit: int = field(default=4)
    lora_r: int = field(default=8)

model_args, training_args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
trainer = Trainer(model=AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path), args=training_args)
trainer.train()
"""


@pytest.mark.parametrize(
    ("switch", "storage"),
    [("", None), ("--use_lora 1", "16-bit"), ("--use_qlora 1", "nf4"), ("--load_in_4bit True --use_lora 1", "nf4")],
)  # fmt: skip
def test_a_width_for_a_switch_that_is_off_quantises_nothing(tmp_path, switch, storage):
    (tmp_path / "finetune.py").write_text(PROGRAM)
    (tmp_path / "run.sh").write_text(f"deepspeed finetune.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 1 --bf16 --output_dir o {switch}\n")  # fmt: skip
    tune = import_file(tmp_path / "run.sh", GUESS).job.finetune
    assert (tune.storage if tune else None) == storage


CHAT = "deepspeed main.py --num_padding_at_beginning 1 --zero_stage 3 --max_seq_len 512 --per_device_train_batch_size 4 --deepspeed"


def test_deepspeed_chat_s_dropout_and_a_model_that_nothing_sets():
    run = import_text(f"{CHAT} --model_name_or_path facebook/opt-1.3b --dropout 0.25\n", "r.sh", GUESS)  # fmt: skip
    assert run.job.dropout == 0.25
    with pytest.raises(SpecError, match="--model") as error:
        import_text(f"{CHAT} --model_name_or_path $NOWHERE\n", "r.sh", GUESS)
    assert "True" not in str(error.value)


def test_what_ms_swift_moves_between_its_steps_is_no_offload_of_the_step():
    run = import_text("swift rlhf --rlhf_type grpo --model Qwen/Qwen3-4B --offload_optimizer true --offload_model true --sleep_level 1 --max_length 1024 --max_completion_length 512\n", "r.sh", GUESS)  # fmt: skip
    assert not run.offload and "not during the step" in said(run, "--offload_model")
    assert not [one for one in run.remarks if one.kind == "unread"]


def test_lmflow_s_own_optimizer_where_it_is_switched_on():
    words = "deepspeed finetune.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 1 --bf16 --customized_optim lion"
    assert import_text(f"{words}\n", "r.sh", GUESS).job.optimizer.name == "adamw"
    on = import_text(f"{words} --use_customized_optim 1\n", "r.sh", GUESS)
    assert on.job.optimizer.name == "lion"


def test_a_chatbot_does_not_train():
    with pytest.raises(SpecError, match="does not train"):
        import_text("deepspeed examples/chatbot.py --model_name_or_path Qwen/Qwen3-4B --deepspeed ds.json\n", "r.sh", GUESS)  # fmt: skip


def test_a_plan_of_tensors_is_as_wide_as_accelerate_s_table_says(tmp_path):
    (tmp_path / "tp.yaml").write_text("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\nparallelism_config: {parallelism_config_dp_replicate_size: 2, parallelism_config_dp_shard_size: 2, parallelism_config_tp_size: 2}\n")  # fmt: skip
    (tmp_path / "run.sh").write_text("accelerate launch --config_file tp.yaml train.py --model_name_or_path Qwen/Qwen3-4B --tp_plan auto --per_device_train_batch_size 1 --bf16\n")  # fmt: skip
    run = import_file(tmp_path / "run.sh", GUESS)
    assert (run.layout.tp, run.layout.dp, run.layout.world) == (2, 4, 8)


def test_llama_factory_s_ancestors_cut_question_and_answer_each():
    words = "python src/train_bash.py --stage sft --do_train --model_name_or_path Qwen/Qwen1.5-7B --finetuning_type lora --per_device_train_batch_size 1 --fp16"
    run = import_text(f"{words} --max_source_length 1024 --max_target_length 512\n", "r.sh", GUESS)
    assert run.job.seq_len == 1536
    assert not [one for one in run.remarks if one.kind == "unread"]


def test_a_checkpoint_of_fewer_than_four_bits_is_said_to_be_priced_in_four():
    text = MCA.split("pipeline_model")[0].replace("finetuning_type: full", "finetuning_type: lora")
    run = import_text(text.replace("Qwen/Qwen3-30B-A3B", "x/Qwen3-4B-AQLM-2Bit-1x16"), "l.yaml", Given(guess=True, model=load_model("qwen3-4b")))  # fmt: skip
    assert "fewer than 4 bits" in said(run, "model_name_or_path")


def test_names_that_a_template_leaves_stand_for_themselves():
    text = AXOLOTL + "output_dir: {{ runs }}/one\ndataset_prepared_path:  {{runs}}/data\n"
    assert import_text(text, "config.yml", GUESS).model.name == "llama2-7b"


ESTIMATOR = """from sagemaker.huggingface import HuggingFace
estimator = HuggingFace(entry_point="train.py", source_dir="SOURCE", instance_type="ml.p4d.24xlarge", instance_count=1, hyperparameters={"model_name_or_path": "Qwen/Qwen3-4B", "per_device_train_batch_size": 2, "bf16": True, "max_seq_length": 512}, distribution={"torch_distributed": {"enabled": True}})
estimator.fit()
"""
ADAPTED = """import argparse
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTTrainer, SFTConfig, TrlParser

script_args, training_args = TrlParser((ScriptArguments, SFTConfig)).parse_args_and_config()
model = AutoModelForCausalLM.from_pretrained(script_args.model_name_or_path)
trainer = SFTTrainer(model=model, args=training_args, peft_config=LoraConfig(r=12, lora_alpha=8, target_modules="all-linear"))
trainer.train()
"""


@pytest.mark.parametrize("source", ["../scripts/fsdp", "./inner"])
def test_a_job_s_program_lies_where_its_source_says(tmp_path, source):
    (tmp_path / "notebooks").mkdir()
    place = tmp_path / "notebooks" / source
    place.mkdir(parents=True)
    (place / "train.py").write_text(ADAPTED)
    path = tmp_path / "notebooks" / "start.py"
    path.write_text(ESTIMATOR.replace("SOURCE", source))
    tune = import_file(path, GUESS).job.finetune
    assert tune and tune.rank == 12


LOOP = """import argparse, torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path", default="Qwen/Qwen3-4B", type=str)
parser.add_argument("--max_seq_len", default=2048, type=int)
parser.add_argument("--train_bsz_per_gpu", default=4, type=int)
args = parser.parse_args()
accelerator = Accelerator(mixed_precision="fp16")
model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
SWITCH
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
loader = torch.utils.data.DataLoader(texts, batch_size=args.train_bsz_per_gpu)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    loss = model(**batch).loss
    accelerator.backward(loss)
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("switch", "again"),
    [("model.transformer.gradient_checkpointing = True", "full"), ("model.transformer.gradient_checkpointing = False", "none"),
     ("args.gradient_checkpointing = True", "none")],
)  # fmt: skip
def test_a_model_s_own_switch_recomputes(switch, again):
    run = import_text(LOOP.replace("SWITCH", switch), "tune.py", GUESS)
    assert run.layout.recompute == again
