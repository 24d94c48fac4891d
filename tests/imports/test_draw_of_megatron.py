"""Megatron's forks, slime, Primus and NeMo's command line, as outside repositories start them."""

import json

import pytest
from folders import lay

from meshwright.imports.critique import price
from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

ONE_HOST = Given(cluster=load_cluster("h100:1x8"), guess=True)
SIZES = "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024"
DEEPSPEED = f"deepspeed --num_gpus 8 pretrain_gpt.py {SIZES} --fp16 --deepspeed --deepspeed_config ds.json --zero-stage 0"


@pytest.mark.parametrize(
    ("more", "recomputed"), [("", "none"), (" --checkpoint-activations", "full")]
)
def test_deepspeed_s_checkpointing_waits_to_be_asked_for(more, recomputed):
    text = f"{DEEPSPEED} --micro-batch-size 2 --deepspeed-activation-checkpointing{more}\n"
    assert import_text(text, "run.sh", ONE_HOST).layout.recompute == recomputed


@pytest.mark.parametrize(
    ("table", "said", "micro", "batch"),
    [
        ({"train_micro_batch_size_per_gpu": 4}, "", 4, 32),
        ({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}, "--batch-size 2", 2, 32),
        ({"train_micro_batch_size_per_gpu": 2, "train_batch_size": 64}, "", 2, 64),
        ({"train_batch_size": 64}, "--micro-batch-size 2 --global-batch-size 16", 2, 16),
    ],
)  # fmt: skip
def test_a_command_s_batch_is_deepspeed_s_where_it_says_none(tmp_path, table, said, micro, batch):
    root = lay(tmp_path, {"ds.json": json.dumps(table), "run.sh": f"{DEEPSPEED} {said}\n"})
    found = import_file(root / "run.sh", ONE_HOST)
    assert (found.layout.micro_batch, found.job.global_batch) == (micro, batch)


def test_an_optimizer_in_host_memory_by_the_older_word_is_read(tmp_path):
    table = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2, "cpu_offload": True},
    }
    root = lay(tmp_path, {"ds.json": json.dumps(table), "run.sh": f"{DEEPSPEED}\n"})
    found = import_file(root / "run.sh", ONE_HOST)
    assert set(found.offload) == {"optimizer"}
    assert not any("cpu_offload" in note for note in found.notes)


def test_slime_is_known_without_a_batch_of_its_rollouts():
    text = f"""python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 4 --hf-checkpoint /m/x --rollout-function-path own.generate \\
      --n-samples-per-prompt 8 --rollout-max-response-len 8192 --global-batch-size 32 {SIZES.replace("--seq-length 1024", "")} --tensor-model-parallel-size 2 --use-dynamic-batch-size --max-tokens-per-gpu 9216
"""
    found = import_text(text, "run.sh", Given(guess=True))
    assert (found.format, found.cluster.gpus, found.layout.zero) == ("slime script", 4, 1)
    assert (found.job.precision.name, found.job.seq_len) == ("bf16-fp32-grads", 8192)


def test_primus_s_defaults_of_state_space_layers_make_none(tmp_path):
    files = {
        ".git/HEAD": "",
        "examples/run.yaml": "modules:\n  pre_trainer:\n    framework: megatron\n    config: pre_trainer.yaml\n    model: small.yaml\n    overrides: {micro_batch_size: 1, global_batch_size: 64, seq_length: 2048}\n",
        "primus/configs/modules/megatron/pre_trainer.yaml": "hybrid_attention_ratio: 0.0\nhybrid_override_pattern: null\nmamba_state_dim: 128\nmamba_num_heads: null\nis_hybrid_model: false\n",
        "primus/configs/models/megatron/small.yaml": "num_layers: 8\nhidden_size: 1024\nnum_attention_heads: 16\nffn_hidden_size: 4096\nmax_position_embeddings: 2048\n",
    }
    found = import_file(lay(tmp_path, files) / "examples" / "run.yaml", ONE_HOST)
    assert (found.model.layers, found.model.mixer, found.job.global_batch) == (8, None, 64)


FACTORY = "--factory \"llama3_8b(name='x',num_nodes=2)\" trainer.devices=8 trainer.strategy.tensor_model_parallel_size=2 trainer.strategy.context_parallel_size=1"


@pytest.mark.parametrize("program", ["python launch.py", "nemo llm pretrain -y"])
def test_a_command_of_nemo_2_s_changes_the_recipe_of_a_factory(program):
    found = import_text(f"{program} {FACTORY}\n", "run.sh", Given(guess=True))
    assert (found.model.name, found.cluster.gpus) == ("llama3-8b", 16)
    assert (found.layout.tp, found.layout.cp, found.layout.dp) == (2, 1, 8)
    assert (found.job.global_batch, found.job.seq_len) == (512, 8192)


def test_a_factory_s_fine_tuning_has_adapters():
    found = import_text("nemo llm finetune --factory llama3_8b\n", "run.sh", Given(guess=True))
    assert (found.job.finetune.rank, found.job.global_batch, found.job.seq_len) == (8, 128, 2048)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nemo llm import model=llama3_8b source=hf://x/y", "describes no training run"),
        ('python launch.py --factory "llama3_8b(num_nodes=)"', "is no call of a recipe"),
    ],
)
def test_what_is_no_training_by_nemo_2_s_command_is_refused(words, said):
    with pytest.raises(SpecError, match=said):
        import_text(f"{words}\n", "run.sh", ONE_HOST)


def test_a_function_of_any_name_that_changes_a_recipe_is_one():
    text = """
import nemo_run as run
from nemo.collections import llm

def custom_70b():
    made = llm.recipes.llama3_70b.pretrain_recipe(name="x", num_nodes=4)
    made.trainer.max_steps = 30
    return made

if __name__ == "__main__":
    run.cli.main(llm.pretrain, default_factory=custom_70b)
"""
    found = import_text(text, "run.py", Given(guess=True))
    assert (found.model.name, found.cluster.gpus) == ("llama3-70b", 32)
    assert found.layout.label() == "tp4 pp4 dp1 cp2-ring v5 mb1 zero1 sp"


def test_a_mode_of_a_file_is_no_module():
    text = f"install -m 0755 kubectl /usr/local/bin\ntorchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} --bf16 --micro-batch-size 1\n"
    assert import_text(text, "run.sh", ONE_HOST).model.layers == 8
    with pytest.raises(SpecError, match="no command that trains"):
        import_text("install -m 0755 kubectl /usr/local/bin\n", "run.sh", ONE_HOST)


def test_files_that_a_script_is_given_are_asked_for(tmp_path):
    text = "source $1\ntorchrun --nproc_per_node 8 finetune_glm.py --fp16 $MODEL_ARGS --micro-batch-size 1\n"
    root = lay(tmp_path, {"model.sh": f'MODEL_ARGS="{SIZES}"\n', "run.sh": text})
    with pytest.raises(SpecError, match="as its argument 1: --args"):
        import_file(root / "run.sh", Given())
    found = import_file(root / "run.sh", Given(arguments=("model.sh",), cluster=ONE_HOST.cluster, guess=True))  # fmt: skip
    assert found.model.layers == 8


def test_a_hybrid_s_pattern_cuts_stages_of_its_own():
    text = f"""torchrun --nproc_per_node 8 pretrain_mamba.py --hybrid-layer-pattern "M-M-M*|M-M-M-M-" {SIZES} --mamba-num-heads 32 \\
      --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 64 --bf16
"""
    found = import_text(text, "run.sh", ONE_HOST)
    assert (found.layout.pp, found.layout.stage_layers) == (2, (6, 8))
    price(found)


LOOPED = """for size in 8 16 24; do
  if [ $size -eq 8 ]; then {word}; fi
  torchrun --nproc_per_node 8 pretrain_gpt.py {sizes} --bf16 --micro-batch-size 1
done
torchrun --nproc_per_node 8 pretrain_gpt.py {after} --bf16 --micro-batch-size 1
"""


@pytest.mark.parametrize(("word", "layers"), [("continue", 16), ("break", 48)])
def test_what_follows_in_a_loop_that_is_left_is_not_run(word, layers):
    sizes = SIZES.replace("--num-layers 8", "--num-layers $size")
    text = LOOPED.format(word=word, sizes=sizes, after=SIZES.replace("--num-layers 8", "--num-layers 48"))  # fmt: skip
    assert import_text(text, "run.sh", ONE_HOST).model.layers == layers


def test_a_loop_around_the_one_that_says_it_goes_on_at_its_next_round():
    text = f"""for first in 1 2; do
  for second in a b; do
    if [ $first -eq 1 ]; then continue 2; fi
    torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} --bf16 --micro-batch-size $first
  done
done
"""
    assert import_text(text, "run.sh", ONE_HOST).layout.micro_batch == 2


def test_a_command_behind_what_only_the_machine_knows_is_found_before_its_variables():
    text = f"""ARGS="{SIZES} --bf16 --tensor-model-parallel-size 2"
if [[ "$HOST_IP" =~ "10.0.0.1" ]]; then
  torchrun --nproc_per_node 4 --nnodes 2 pretrain_gpt.py $ARGS --micro-batch-size 1
fi
"""
    found = import_text(text, "run.sh", Given(guess=True))
    assert (found.cluster.gpus, found.layout.tp) == (8, 2)
    assert not any("no command is here" in note for note in found.notes)


@pytest.mark.parametrize(("more", "said"), [("", True), ("--decoder-first-pipeline-num-layers 3", False)])  # fmt: skip
def test_layers_that_do_not_divide_over_stages_are_named(more, said):
    words = SIZES.replace("--num-layers 8", "--num-layers 7")
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {words} --bf16 --micro-batch-size 1 --pipeline-model-parallel-size 2 {more}\n"
    found = import_text(text, "run.sh", ONE_HOST)
    assert any("7 layers do not divide over 2 stages" in note for note in found.notes) == said


def test_a_fork_of_slime_s_builds_the_same_layers():
    from meshwright.specs import load_model

    known = load_model("qwen3-next-80b-a3b")
    text = f"""python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --hf-checkpoint /m/x --rollout-batch-size 8 --n-samples-per-prompt 8 --rollout-max-response-len 1024 \\
      --spec "miles_plugins.models.qwen3_next" "get_qwen3_next_spec" --num-layers {known.layers} --hidden-size {known.hidden} --num-attention-heads {known.heads} \\
      --num-experts {known.experts.experts} --moe-router-topk 10 --moe-ffn-hidden-size 512 --ffn-hidden-size 5120 --max-position-embeddings 4096
"""
    assert import_text(text, "run.sh", Given(guess=True)).model.mixer == known.mixer


def test_a_llama_of_a_fork_s_own_needs_no_options(tmp_path):
    program = "from ascendspeed.model import LlamaModel, LlamaModelPipe\n"
    text = f"torchrun --nproc_per_node 8 pretrain_llama.py {SIZES} --ffn-hidden-size 2816 --fp16 --micro-batch-size 1\n"
    root = lay(tmp_path, {"pretrain_llama.py": program, "run.sh": text})
    model = import_file(root / "run.sh", ONE_HOST).model
    assert (model.gated, model.positions, model.tied_embeddings) == (True, "rope", False)


def test_factories_of_a_file_are_called():
    text = """
from nemo import lightning as nl
from nemo.collections.llm.gpt.model.mistral import MistralConfig7B, MistralModel
from nemo.collections.llm.utils import Partial, factory

def model():
    return MistralModel(MistralConfig7B())

def trainer(devices=8):
    return nl.Trainer(devices=devices, strategy=nl.MegatronStrategy(tensor_model_parallel_size=2))

def pretrain_recipe():
    return Partial(pretrain, model=model, trainer=trainer, data=squad)
"""
    found = import_text(text, "recipe.py", Given(guess=True))
    assert (found.model.name, found.layout.tp, found.cluster.gpus) == ("mistral-7b", 2, 8)


def test_a_program_that_takes_its_recipe_from_the_command_line_says_so():
    text = """
import argparse
import megatron.bridge.recipes as recipes
from megatron.bridge.training.pretrain import pretrain

def load_recipe(name):
    builder = getattr(recipes, name)
    return builder()

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", required=True)
    args = parser.parse_args()
    config = load_recipe(args.recipe)
    pretrain(config=config, forward_step_func=forward_step)
"""
    with pytest.raises(SpecError, match="from its command line"):
        import_text(text, "pretrain_decoder.py", ONE_HOST)


def test_a_command_that_resizes_a_library_s_recipe_keeps_its_family():
    text = """nemo llm pretrain --factory "llama3_8b(name='x', num_nodes=1)" model.config.num_layers=1 model.config.hidden_size=256 model.config.ffn_hidden_size=512 \\
  data.seq_length=128 data.global_batch_size=64 trainer.devices=1 trainer.strategy.tensor_model_parallel_size=1 trainer.strategy.context_parallel_size=1
"""
    model = import_text(text, "run.sh", Given(guess=True)).model
    assert (model.layers, model.hidden, model.kv_heads, model.positions) == (1, 256, 8, "rope")
    assert (model.gated, model.vocab, model.tied_embeddings) == (True, 128256, False)


CUSTOM = """
import nemo_run as run
from nemo.collections import llm
from nemo.collections.llm.recipes import llama3_8b

def small():
    recipe = llama3_8b.finetune_recipe(name="x", num_nodes=1, dir="/tmp", peft_scheme=None)
    recipe.data = run.Config(MockDataModule, seq_length=8192, global_batch_size=512, micro_batch_size=1)
    return recipe

def wide():
    recipe = small()
    recipe.trainer.strategy.tensor_model_parallel_size = 8
    return recipe

if __name__ == "__main__":
    run.cli.main(llm.finetune, default_factory=small)
"""


@pytest.mark.parametrize(("chosen", "tp"), [("", 2), ("--factory wide ", 8)])
def test_a_program_of_nemo_s_command_line_takes_what_its_words_set(tmp_path, chosen, tp):
    said = "data.global_batch_size=64 trainer.devices=8 model.config.num_layers=4"
    if not chosen:
        said += " trainer.strategy.tensor_model_parallel_size=2"
    root = lay(tmp_path, {"custom.py": CUSTOM, "run.sh": f"python custom.py {chosen}{said}\n"})
    found = import_file(root / "run.sh", Given(guess=True))
    assert (found.layout.tp, found.job.global_batch, found.job.seq_len) == (tp, 64, 8192)
    assert (found.model.layers, found.model.hidden, found.cluster.gpus) == (4, 4096, 8)
    assert found.job.framework == "nemo"


BRIDGE = """
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _sft_common
from megatron.bridge.training.config import ConfigContainer

def kimi_k2_sft_config() -> ConfigContainer:
    cfg = _sft_common()
    cfg.model = AutoBridge.from_hf_pretrained("moonshotai/Kimi-K2-Base").to_megatron_provider(load_weights=False)
    cfg.model.seq_length = 4096
    cfg.model.tensor_model_parallel_size = 8
    cfg.model.pipeline_model_parallel_size = 8
    cfg.model.virtual_pipeline_model_parallel_size = 2
    cfg.model.expert_model_parallel_size = 32
    cfg.model.moe_token_dispatcher_type = "flex"
    cfg.model.moe_flex_dispatcher_backend = "deepep"
    cfg.mixed_precision = "bf16_mixed"
    cfg.train.global_batch_size = 256
    cfg.train.micro_batch_size = 1
    from megatron.bridge.recipes.deepseek.deepseek_v3 import set_deepseek_v3_pipeline_model_parallel_layout
    set_deepseek_v3_pipeline_model_parallel_layout(cfg.model)
    return cfg
"""


def test_a_recipe_takes_the_library_s_stages_and_its_dispatcher():
    found = import_text(BRIDGE, "kimi_k2_sft.py", Given(guess=True))
    assert found.layout.stage_layers == (4,) * 15 + (1,)
    assert found.job.framework_options["expert_dispatch"] == "deduplicated"
    assert not any("do not divide" in note for note in found.notes)


OF_RAY = """# python, not JSON
{
    "megatron_config": {
        "num_layers": 8, "hidden_size": 1024, "ffn_hidden_size": 2816, "num_attention_heads": 16, "max_position_embeddings": 1024, "seq_length": 1024,
        "micro_batch_size": 2, "global_batch_size": 16, "train_samples": 300_000_000, "fp16": True, "swiglu": True, "add_bias_linear": False,
        "deepspeed": True, "zero_stage": 3, "use_rotary_position_embeddings": True, "untie_embeddings_and_output_weights": True,
        "deepspeed_config": {"train_batch_size": 16, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu",}}, "fp16": {"enabled": True}},
    },  # of Megatron-DeepSpeed
    "ray_config": {"scaling_config": {"num_workers": 8, "use_gpu": True}},
}
"""


def test_a_table_of_llm_on_ray_s_is_megatron_s_options():
    found = import_text(OF_RAY, "pretrain.conf", Given(guess=True))
    assert (found.layout.dp, found.layout.zero, found.layout.micro_batch) == (8, 3, 2)
    assert (found.model.ffn, found.job.global_batch, sorted(found.offload)) == (2816, 16, ["optimizer"])  # fmt: skip
    assert not any("not understood" in note for note in found.notes)
