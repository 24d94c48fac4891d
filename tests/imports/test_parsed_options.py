"""Programs that set a recipe by options of their own parser: their defaults, and the words that start them."""

import pytest
from folders import lay

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster

ONE_HOST = Given(cluster=load_cluster("h100:1x8"), guess=True)

TUNING = """
import argparse
import nemo_run as run
from nemo.collections import llm

def configure_recipe(args):
    if args.model == "llama31_8b":
        model = llm.llama31_8b
    elif args.model == "llama31_70b":
        model = llm.llama31_70b
    recipe = model.finetune_recipe(num_nodes=args.num_nodes, num_gpus_per_node=8, peft_scheme=args.peft, seq_length=args.seq_length)
    recipe.data = run.Config(llm.FineTuningDataModule, seq_length=recipe.data.seq_length,
                             global_batch_size=args.global_batch_size, micro_batch_size=args.micro_batch_size)
    recipe.trainer.strategy.tensor_model_parallel_size = args.tensor_model_parallel_size
    recipe.trainer.strategy.sequence_parallel = True
    return recipe

def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("-N", "--num_nodes", type=int, default=1)
    parser.add_argument("--model", default="llama31_8b")
    parser.add_argument("--hf_model_id", type=str, required=True)
    parser.add_argument("--peft", default=None, choices=["lora", "dora"])
    parser.add_argument("-s", "--seq_length", type=int, default=8192)
    parser.add_argument("--global_batch_size", type=int, default=2048)
    parser.add_argument("--micro_batch_size", type=int, default=1)
    parser.add_argument("--tensor_model_parallel_size", type=int, default=1)
    return parser.parse_args()

if __name__ == "__main__":
    run.run(configure_recipe(parse_args()))
"""


def test_a_parser_s_defaults_count_where_a_program_is_imported_alone():
    found = import_text(TUNING, "finetune.py", ONE_HOST)
    assert (found.model.name, found.job.finetune) == ("llama3.1-8b", None)
    assert (found.layout.tp, found.layout.dp, found.layout.micro_batch) == (1, 8, 1)
    assert (found.job.seq_len, found.job.global_batch) == (8192, 2048)


def test_the_words_that_start_a_program_count_over_its_defaults(tmp_path):
    script = 'srun bash -c "python ../tuning/finetune.py --hf_model_id x/y --global_batch_size 128 --tensor_model_parallel_size 2 --peft lora"\n'
    root = lay(tmp_path, {".git/HEAD": "", "tuning/finetune.py": TUNING, "slurm/run.sh": script})
    found = import_file(root / "slurm" / "run.sh", ONE_HOST)
    assert (found.model.name, found.job.finetune.rank) == ("llama3.1-8b", 8)
    assert (found.layout.tp, found.layout.dp, found.job.global_batch) == (2, 4, 128)
    assert found.job.precision.name.startswith("bf16")


SMALL = """
from functools import partial
import nemo_run as run
from nemo.collections import llm

def small():
    return run.Config(llm.Llama3Config8B, seq_length=1024, num_layers=12, hidden_size=768, ffn_hidden_size=2688, num_attention_heads=16)

if __name__ == "__main__":
    recipe = partial(llm.llama31_8b.pretrain_recipe, num_nodes=1)(name="small")
    recipe.model = run.Config(llm.LlamaModel, small())
    recipe.data.tokenizer = run.Config(get_nmt_tokenizer, model_name="GPT2BPETokenizer")
    run.run(recipe)
"""


def test_a_published_class_keeps_what_a_program_does_not_change():
    found = import_text(SMALL, "run.py", ONE_HOST)
    model = found.model
    assert (model.layers, model.hidden, model.heads, model.ffn) == (12, 768, 16, 2688)
    assert (model.kv_heads, model.head_dim, model.gated, model.tied_embeddings) == (8, 48, True, False)  # fmt: skip
    assert model.vocab == 50_257
    # What the library's recipe sets: its data has a length of its own.
    assert (found.layout.cp, found.layout.dp, found.job.global_batch, found.job.seq_len) == (2, 4, 512, 8192)  # fmt: skip


@pytest.mark.parametrize(
    ("more", "batch", "length"), [("", 128, 2048), (", packed_sequence=True", 8, 4096)]
)
def test_packing_changes_what_a_library_s_fine_tuning_takes(more, batch, length):
    text = f"""
import nemo_run as run
from nemo.collections import llm
recipe = llm.llama3_8b.finetune_recipe(name="x", num_nodes=1, num_gpus_per_node=8, peft_scheme="lora"{more})
"""
    found = import_text(text, "tune.py", ONE_HOST)
    assert (found.job.global_batch, found.job.seq_len) == (batch, length)
    assert found.job.document_masking == bool(more)


DISTILLED = """
import argparse
from megatron.bridge import AutoBridge
from megatron.bridge.training.config import ConfigContainer, TrainingConfig
from megatron.bridge.training.distill import distill

def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--student", default="Qwen/Qwen3-4B")
    parser.add_argument("--tp_size", type=int, default=2)
    parser.add_argument("--gbs", type=int, default=768)
    return parser.parse_args()

def main(args):
    provider = AutoBridge.from_hf_pretrained(args.student).to_megatron_provider()
    provider.tensor_model_parallel_size = args.tp_size
    provider.seq_length = 4096
    config = ConfigContainer(model=provider, train=TrainingConfig(global_batch_size=args.gbs, micro_batch_size=1))
    distill(config)

if __name__ == "__main__":
    main(get_args())
"""


def test_a_distillation_by_megatron_bridge_trains_its_student():
    found = import_text(DISTILLED, "distill.py", ONE_HOST)
    assert (found.model.name, found.layout.tp, found.job.global_batch) == ("qwen3-4b", 2, 768)
    assert any("frozen teacher" in one.text for one in found.remarks)


def test_a_bridge_s_folder_names_the_model():
    text = DISTILLED.replace('"Qwen/Qwen3-4B"', '"/models/qwen3-4b/hf"')
    assert import_text(text, "distill.py", ONE_HOST).model.name == "qwen3-4b"


COMMAND = """
MODEL="/workspace/Meta-Llama-3.1-70B.nemo"
torchrun /opt/NeMo-Aligner/examples/nlp/gpt/train_gpt_sft.py trainer.precision=bf16 trainer.num_nodes=4 trainer.devices=8 \\
   model.megatron_amp_O2=True model.restore_from_path=${MODEL} model.tensor_model_parallel_size=4 model.pipeline_model_parallel_size=4 \\
   model.context_parallel_size=2 model.data.train_ds.micro_batch_size=1 model.data.train_ds.global_batch_size=32 model.data.train_ds.max_seq_length=8192
"""


def test_a_command_of_nemo_s_is_read_without_its_configuration():
    found = import_text(COMMAND, "sft.sh", Given(guess=True))
    layout = found.layout
    assert (found.model.name, layout.tp, layout.pp, layout.cp, layout.dp) == ("llama3.1-70b", 4, 4, 2, 1)  # fmt: skip
    assert (found.job.global_batch, found.job.seq_len, found.job.dropout) == (32, 8192, 0)
    assert {"--model", "--config-name"} <= {one.option for one in found.remarks if one.kind == "guess"}  # fmt: skip


MEGATRON = "pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 64 --bf16"


def test_torchrun_without_a_count_starts_one_process():
    found = import_text(f"torchrun {MEGATRON}\n", "run.sh", Given(guess=True))
    assert (found.cluster.gpus, found.layout.dp) == (1, 1)
    left = import_text(f"torchrun $WHERE {MEGATRON}\n", "run.sh", Given(guess=True))
    assert left.cluster.gpus > 1  # the variable may count them


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--mask-only", "--mask-only: True is not understood"),
        ("--expert-model-parallel-size 2", "ep = 2 is left out: imported has no experts"),
    ],
)
def test_what_changes_a_run_is_named(more, said):
    found = import_text(f"torchrun --nproc_per_node 8 {MEGATRON} {more}\n", "run.sh", ONE_HOST)
    assert any(said in note for note in found.notes)
    assert not any("moe-" in note for note in found.notes)


def test_gaudi_shares_the_name_of_its_collectives_with_ascend():
    text = f"export HCCL_OVER_OFI=1\nexport PT_HPU_LAZY_MODE=1\ntorchrun --nproc_per_node 8 {MEGATRON}\n"
    assert import_text(text, "run.sh", Given(guess=True)).cluster.device.vendor == "intel"
