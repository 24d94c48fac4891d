"""What a twenty-seventh draw of public files showed, by kind."""

from pathlib import Path

import pytest
from folders import GUESS, put

from meshwright.imports.files import import_text
from meshwright.imports.names import refuse_other
from meshwright.imports.reading import Given
from meshwright.specs.errors import SpecError


def test_a_program_of_ms_swift_2_is_ms_swifts():
    text = "CUDA_VISIBLE_DEVICES=0 python llm_sft.py --model_type qwen-14b-chat --sft_type lora --quantization_bit 4 --lora_rank 8 --lora_target_modules ALL --batch_size 1 --max_length 2048 --dtype bf16"
    found = import_text(text, "s.sh", GUESS)
    assert (found.model.name, found.layout.micro_batch, found.cluster.gpus) == ("qwen1.5-14b", 1, 1)
    assert (found.job.finetune.rank, found.job.finetune.storage) == (8, "nf4")
    assert found.layout.recompute == "full"  # ms-swift's default


LOOP = """
import torch, argparse
from torch.nn.parallel import DistributedDataParallel as DDP
parser = argparse.ArgumentParser()
parser.add_argument("--model_dir", type=str)
parser.add_argument("--batch_size", default=32, type=int)
args = parser.parse_args()
model = DDP(make(args.model_dir))
{width}
loss.backward()
"""


@pytest.mark.parametrize(
    ("width", "precision"), [("", "fp32"), ("with torch.autocast('cuda'):\n    loss = 1", "bf16")]
)
def test_a_loop_that_narrows_nothing_computes_in_32_bits(
    tmp_path: Path, width: str, precision: str
):
    found = put(
        tmp_path,
        "torchrun --nproc_per_node 4 ft.py --model_dir /own/Qwen3-0.6B --batch_size 8 --max_length 64",
        ft__py=LOOP.format(width=width),
    )
    assert (found.model.name, found.layout.dp, found.layout.micro_batch) == ("qwen3-0.6b", 4, 8)
    assert found.job.precision.name == precision


def test_the_file_that_a_program_opens_for_deepspeed_is_read(tmp_path: Path):
    program = (
        "import argparse, json, deepspeed\nfrom transformers import AutoTokenizer\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--model_dir')\nparser.add_argument('--ds_config')\nparser.add_argument('--batch_size', type=int, default=32)\n"
        "args = parser.parse_args()\ntokenizer = AutoTokenizer.from_pretrained(args.model_dir)\nconfig = json.load(open(args.ds_config))\n"
        "loader = DataLoader(data, batch_size=args.batch_size)\nengine = deepspeed.initialize(config_params=config, model=model)\nother = DDP(model)\n"
    )
    found = put(
        tmp_path,
        "torchrun --nproc_per_node 4 ft.py --model_dir /own/Qwen3-0.6B --batch_size 8 --ds_config ds.json",
        ft__py=program,
        ds__json='{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}',
    )
    assert (found.model.name, found.layout.micro_batch, found.layout.zero) == ("qwen3-0.6b", 8, 1)
    assert (found.job.precision.name, "optimizer" in found.offload) == ("bf16", True)


EIGHT = "torchrun --nproc_per_node 2 train.py --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 1 --max_length 64 --bf16 --use_lora {more}"


@pytest.mark.parametrize(
    ("more", "storage"), [("--q_lora", "nf4"), ("--q_lora --load_in_8bit", "int8"), ("", "16-bit")]
)
def test_eight_bits_that_are_said_are_not_four(more: str, storage: str):
    assert import_text(EIGHT.format(more=more), "s.sh", GUESS).job.finetune.storage == storage


def test_a_number_that_the_machine_knows_a_part_of_asks_for_that_part():
    text = (
        "gpus=$(nvidia-smi --list-gpus | wc -l)\ntotal=$((${gpus} * ${HOSTS}))\nmicro=$(( 256 / ${total} / 2 ))\n"
        'OPTIONS="--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size ${micro} '
        '--global-batch-size 256 --tensor-model-parallel-size 2"\ndeepspeed pretrain_gpt.py ${OPTIONS}\n'
    )
    with pytest.raises(SpecError) as caught:
        import_text(text, "s.sh", Given())
    assert "--set gpus=" in str(caught.value) and "\xa0" not in str(caught.value)
    known = Given(guess=True, variables=(("gpus", "8"), ("HOSTS", "2")))
    assert import_text(text, "s.sh", known).layout.micro_batch == 8


@pytest.mark.parametrize(
    ("name", "kind"), [("t5-large", "encoder-decoder"), ("bert-base", "an encoder:")]
)
def test_what_is_no_decoder_is_named(name: str, kind: str):
    with pytest.raises(SpecError, match=kind):
        refuse_other(name)
