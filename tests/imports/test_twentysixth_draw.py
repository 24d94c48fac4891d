"""What a twenty-sixth draw of public files showed, by kind."""

from pathlib import Path

import pytest
from folders import GUESS, put

from meshwright.imports.files import import_text
from meshwright.imports.names import model_named
from meshwright.imports.reading import Imported


def options(found: Imported, kind: str = "") -> set[str]:
    return {one.option for one in found.remarks if not kind or one.kind == kind}


@pytest.mark.parametrize(
    ("kind", "adapted"), [("--sft_type full", False), ("--sft_type lora", True), ("", True)]
)
def test_ms_swift_2_says_its_tuner_batch_and_model_by_other_names(kind: str, adapted: bool):
    text = f"NPROC_PER_NODE=2 swift sft --model_type qwen2-1_5b-instruct --model_id_or_path /own/Model {kind} --batch_size 4 --max_length 512 --deepspeed default-zero3"
    found = import_text(text, "s.sh", GUESS)
    assert (found.model.name, found.layout.micro_batch) == ("qwen2.5-1.5b", 4)
    assert (found.job.finetune is not None) == adapted
    assert not {"--sft_type", "--batch_size", "--micro-batch"} & options(found)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Qwen2-1___5B-Instruct", "qwen2.5-1.5b"), ("qwen2-1_5b", "qwen2.5-1.5b"), ("llama_2_7b", "llama2-7b"),
        ("EleutherAI/pythia-2.8b-deduped", "pythia-2.8b"), ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("deepseek-ai/deepseek-math-7b-rl", "deepseek-llm-7b"), ("Qwen/QwQ-32B", "qwen2.5-32b"),
        ("deepseek-ai/deepseek-coder-7b-instruct-v1.5", "deepseek-llm-7b"), ("Qwen/Qwen-7B-Chat", "qwen1.5-7b"),
        ("internlm/internlm2-chat-7b", "internlm2-7b"), ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
    ],
)  # fmt: skip
def test_names_of_models_of_another_ones_shape(name: str, preset: str):
    found = model_named(name)
    assert found is not None and found.name == preset


def test_a_coder_of_another_shape_is_not_its_family_s_preset():
    found = model_named("Qwen/Qwen3-Coder-480B-A35B-Instruct")
    assert found is not None and found.layers == 62


@pytest.mark.parametrize("name", ["train-own", "package.train-own"])
def test_a_module_of_any_name_is_found_beside_its_script(tmp_path: Path, name: str):
    inner = tmp_path / "package" if "." in name else tmp_path
    inner.mkdir(exist_ok=True)
    (inner / "train-own.py").write_text(
        "from dataclasses import dataclass\nfrom transformers import HfArgumentParser, TrainingArguments, Trainer\n"
        "@dataclass\nclass Own:\n    rank: int = 16\n    alpha: int = 32\n    block_size: int = 777\n"
        "args = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()\n"
    )
    found = put(
        tmp_path,
        f"torchrun --nproc_per_node 2 -m {name} --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 1 --bf16",
    )
    assert found.job.seq_len == 777
    assert found.job.finetune.rank == 16  # a rank beside an alpha is of adapters


def test_a_rank_alone_is_none_of_adapters():
    text = "torchrun --nproc_per_node 2 train.py --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 1 --bf16 --max_length 64 --rank 4"
    assert import_text(text, "s.sh", GUESS).job.finetune is None


LOOP = """
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
class OwnLoRA(torch.nn.Module):
    pass
def main(model_name, batch_size):
    {mesh}
    rank_of_all = 64
    model = make(model_name)
    model.loss = LigerFusedLinearCrossEntropyLoss(reduction="sum")
    {adapts}
    {recomputes}
    fully_shard(model)
    loss.backward()
"""


def test_what_a_loop_does_to_its_model_counts(tmp_path: Path):
    command = "torchrun --nproc_per_node 8 loop.py --model_name Qwen/Qwen3-0.6B --batch_size 4 --grad_accumulation 2 --max_seq_len 256"
    plain = put(tmp_path, command, loop__py=LOOP.format(mesh="", adapts="", recomputes=""))
    assert (plain.layout.zero, plain.layout.recompute, plain.layout.tp) == (3, "none", 1)
    assert (plain.job.loss, plain.job.finetune) == ("liger", None)
    assert plain.job.global_batch == 8 * 4 * 2
    whole = LOOP.format(
        mesh='init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))',
        adapts="layer = OwnLoRA(layer, r=rank_of_all, alpha=128)",
        recomputes="apply_activation_checkpointing(model)",
    )
    found = put(tmp_path, command, loop__py=whole)
    assert (found.layout.tp, found.layout.dp, found.layout.recompute) == (2, 4, "full")
    assert (found.job.finetune.rank, found.job.finetune.alpha) == (64, 128.0)
    assert "init_device_mesh" in options(found, "guess")


def test_lightnings_settings_after_an_option_are_none_of_its_values(tmp_path: Path):
    found = put(
        tmp_path,
        'CMD="python train_lit.py --precision bf16 --devices 4 accumulate_grad_batches=8 train_micro_batch_size_per_gpu=1 '
        'deepspeed_config=\\"ds.json\\" model_name_or_path=\\"/own/run/\\" config_name=\\"meta-llama/Llama-2-13b-hf\\" block_size=2048"\n$CMD',
        ds__json='{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 2}',
    )
    assert (found.model.name, found.job.seq_len, found.layout.zero) == ("llama2-13b", 2048, 2)
    assert (found.cluster.gpus, found.layout.micro_batch, found.job.global_batch) == (4, 2, 64)
    assert "micro-batch" in options(found, "unmodelled")


def test_a_pipeline_of_deepspeeds_by_its_usual_names(tmp_path: Path):
    found = put(
        tmp_path,
        "deepspeed --num_gpus 4 --num_nodes 1 cli/train.py --init_ckpt /own/pythia-2.8b-deduped --max_seq_len 2048 --train_steps 10 "
        "--pipe_parallel_size 4 --model_parallel_size 1 --deepspeed_config ds.json",
        ds__json='{"train_micro_batch_size_per_gpu": 1, "train_batch_size": 32, "fp16": {"enabled": true}}',
    )
    assert (found.model.name, found.layout.pp, found.layout.dp, found.layout.zero) == (
        "pythia-2.8b",
        4,
        1,
        0,
    )
    assert (found.job.global_batch, found.job.precision.name, found.job.framework) == (
        32,
        "fp16",
        "deepspeed",
    )


def test_the_trainers_batch_that_deepspeeds_file_denies_is_named(tmp_path: Path):
    found = put(
        tmp_path,
        "deepspeed --num_gpus=8 train.py --model_path bigscience/bloom-560m --per_device_train_batch_size 12 --block_size 1024 --deepspeed ds.json",
        ds__json='{"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 4}',
    )
    assert (found.model.name, found.layout.micro_batch) == ("bloom-560m", 4)
    assert "micro-batch" in options(found, "unmodelled")


def test_python_alone_on_one_visible_device_is_one_device():
    text = "CUDA_VISIBLE_DEVICES=3 python3 train.py --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 1 --max_length 64"
    found = import_text(text, "s.sh", GUESS)
    assert (found.cluster.gpus, found.layout.dp) == (1, 1)


def test_what_is_adapted_of_experts_is_not_taken_for_harmless():
    text = "torchrun --nproc_per_node 2 train.py --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 1 --max_length 64 --include_expert_lora true --include_num_input_tokens_seen true"
    found = options(import_text(text, "s.sh", GUESS), "unread")
    assert "--include_expert_lora" in found and "--include_num_input_tokens_seen" not in found
