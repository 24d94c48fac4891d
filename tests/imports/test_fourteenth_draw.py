"""The faults of a fourteenth draw, by kind: commands inside jobs of clusters, templates, and settings that nobody makes."""

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.names import model_named
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError

H8 = Given(cluster=load_cluster("h100:1x8"), guess=True)
COMMAND = "accelerate launch --mixed_precision bf16 sft.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2 --max_length 1024 --learning_rate 1e-5"


def test_a_command_inside_a_jobs_list_of_arguments_is_read():
    beaker = f"version: v2\ntasks:\n  - name: one\n    replicas: 4\n    command: ['/bin/sh', '-c']\n    arguments: ['unset X && {COMMAND}']\n    resources:\n      gpuCount: 8\n"
    back = import_text(beaker, "job.yaml", Given(guess=True))
    assert (back.cluster.gpus, back.layout.dp, back.layout.micro_batch) == (32, 32, 2)
    compose = f"services:\n  train:\n    image: x\n    command: {COMMAND}\n"
    assert import_text(compose, "compose.yaml", H8).model.name == "qwen3-4b"


POD = """
        template:
          spec:
            containers:
              - command: ["/bin/bash", "-c", "torchrun --nnodes=$NNODES --nproc_per_node=8 sft.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2 --bf16 --max_length 1024"]
                resources: {limits: {nvidia.com/gpu: 8}}
"""


@pytest.mark.parametrize(
    ("objects", "hosts"),
    [
        (f"  pytorchReplicaSpecs:\n      Master:\n        replicas: 1{POD}      Worker:\n        replicas: 3{POD}", 4),
        (f"  replicatedJobs:\n      - name: a\n        replicas: 2\n        template: {{spec: {{parallelism: 3}}}}{POD.replace('template', 'inner')}", 6),
    ],
)  # fmt: skip
def test_hosts_of_an_object_are_those_of_all_its_roles(objects, hosts):
    text = f"apiVersion: v1\nkind: Job\nspec:\n{objects}"
    assert import_text(text, "job.yaml", Given(guess=True)).cluster.gpus == 8 * hosts


def test_a_template_of_deepspeed_names_what_is_left_open():
    text = '{"train_batch_size": GBSIZE, "zero_optimization": {"stage": ZERO_STAGE}, "fp16": {"enabled": true}}'
    back = import_text(text, "t.json", Given(model=load_model("llama3-8b"), guess=True))
    assert any(
        "is a template: train_batch_size GBSIZE, stage ZERO_STAGE" in one for one in back.notes
    )


def test_megatrons_words_in_llama_factory_are_mcore_adapters():
    text = "model_name_or_path: Qwen/Qwen3-30B-A3B\nstage: sft\nfinetuning_type: full\ncutoff_len: 4096\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nbf16: true\npipeline_model_parallel_size: 4\nexpert_model_parallel_size: 2\nuse_distributed_optimizer: true\n"
    back = import_text(text, "f.yaml", H8)
    assert (back.layout.pp, back.layout.ep, back.layout.dp, back.layout.zero) == (4, 2, 2, 1)
    assert (back.layout.recompute, back.job.framework) == ("none", "megatron")
    assert back.job.precision.gradient_bytes == 2
    wide = import_text(text + "accumulate_allreduce_grads_in_fp32: true\n", "f.yaml", H8)
    assert wide.job.precision.gradient_bytes == 4


def test_torchrun_options_between_tune_and_its_recipe_count(tmp_path: Path):
    (tmp_path / "c.yaml").write_text(
        "model:\n  _component_: mine.models.qwen2_5_0_5b_moe\n  num_experts: 8\ntokenizer: {max_seq_len: 512}\n"
        "checkpointer: {checkpoint_dir: /x/Qwen2.5-0.5B}\nbatch_size: 1\ndtype: bf16\noptimizer:\n  _component_: torch.optim.AdamW\n"
    )
    (tmp_path / "r.sh").write_text(
        "tune run --nnodes 1 --nproc_per_node 16 recipes/own.py --config c.yaml"
    )
    back = import_file(tmp_path / "r.sh", Given(guess=True))
    assert back.cluster.gpus == 16
    assert any("the project's own" in one and "num_experts 8" in one for one in back.notes)


PERFORMANCE = """
from megatron.bridge.recipes.llama import llama3_8b_sft_config
from utils.settings import base, Settings
def _fsdp(cfg, on=False):
    if not on:
        return
    cfg.ddp.use_megatron_fsdp = True
def llama3_8b_sft_config_gb200(precision: str = "bf16"):
    settings = base(name="llama", precision=precision)
    cfg = llama3_8b_sft_config()
    cfg.model.seq_length = 4096
    cfg.model.tensor_model_parallel_size = settings.tensor
    cfg.model.sequence_parallel = settings.sequence_parallel
    cfg.train.global_batch_size = settings.batch
    cfg.train.micro_batch_size = 1
    _fsdp(cfg, settings.fsdp)
    _fsdp(cfg, cfg.settings.other)
    return cfg
"""
SETTINGS = """
import importlib
from dataclasses import dataclass
@dataclass
class Settings:
    tensor: int = 1
    batch: int = 8
    fsdp: bool = None
    @property
    def sequence_parallel(self) -> bool:
        return bool(self.tensor > 1)
def base(name, precision):
    module = importlib.import_module(f"configs.{name}")
    return getattr(module, f"{name}_{precision}".upper(), None)
"""


def test_settings_that_a_recipe_looks_up_by_name_are_found(tmp_path: Path):
    for folder in ("utils", "configs/llama"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "utils" / "settings.py").write_text(SETTINGS)
    (tmp_path / "configs" / "llama" / "__init__.py").write_text("from .tables import LLAMA_BF16\n")
    (tmp_path / "configs" / "llama" / "tables.py").write_text(
        "from dataclasses import replace\nfrom utils.settings import Settings\nBASE = Settings(batch=24)\nLLAMA_BF16 = replace(BASE, tensor=2)\n"
    )
    (tmp_path / "r.py").write_text(PERFORMANCE)
    back = import_file(tmp_path / "r.py", Given(model=load_model("llama3-8b"), guess=True))
    assert (back.layout.tp, back.layout.sequence_parallel, back.job.global_batch) == (2, True, 24)
    assert back.layout.zero == 1  # not Megatron-FSDP: a setting that nobody makes is off
    assert back.cluster.name.startswith("gb200")


def test_prompts_are_answered_and_nothing_trains():
    words = "python -m torch.distributed.launch --nproc_per_node 8 tasks/msdp/main.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 1 --task MSDP-PROMPT"
    with pytest.raises(SpecError, match="does not train"):
        import_text(words, "x.sh", H8)


def test_a_workflow_of_functions_takes_all_from_what_calls_it():
    text = "from transformers import Trainer\ndef run(model_args, training_args):\n    model = load(model_args.name)\n    Trainer(model=model, args=training_args).train()\n"
    with pytest.raises(SpecError, match="what calls it"):
        import_text(text, "workflow.py", H8)


def test_torchtitans_words_through_another_program_are_read():
    words = "torchrun --nproc_per_node 4 -m mine.train_kd --module own --config own_436m --training.local_batch_size 2 --training.seq_len 2048 --parallelism.data_parallel_shard_degree 4"
    back = import_text(words, "x.sh", Given(model=load_model("llama3-8b"), guess=True))
    assert (back.layout.micro_batch, back.job.seq_len, back.layout.dp) == (2, 2048, 4)
    assert any("registry of --module own is not here" in one for one in back.notes)


def test_a_size_below_a_billion_with_a_dash_for_its_point():
    assert model_named("qwen2-5-0-5b").name == "qwen2.5-0.5b"
