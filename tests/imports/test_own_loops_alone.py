"""Training loops of one's own, imported as the one file that they are."""

from pathlib import Path

import pytest
from folders import GUESS, put

from meshwright.imports.files import import_file, import_text
from meshwright.specs.errors import SpecError

MODEL = """
import torch, torch.nn as nn
class Attention(nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
"""
LOOP = """
for step in range(100):
    loss = model(x, y)
    loss.backward()
    optimizer.step()
"""
ARGUMENTS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=6)
parser.add_argument("--context-length", type=int, default=512)
parser.add_argument("--hidden-dimension", type=int, default=640)
parser.add_argument("--num-layers", type=int, default=10)
args = parser.parse_args()
model = Transformer(vocab_size=10000, dim=args.hidden_dimension, nlayers=args.num_layers, nheads=5)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
"""
TABLE = """
GPT_CONFIG = {"vocab_size": 50257, "context_length": 512, "emb_dim": 640, "n_heads": 5, "n_layers": 10, "drop_rate": 0.1}
SETTINGS = {"learning_rate": 5e-4, "batch_size": 6}
optimizer = torch.optim.AdamW(model.parameters(), lr=SETTINGS["learning_rate"])
"""
CONSTANTS = """
batch_size = 6
block_size = 512
n_embd = 640
n_head = 5
n_layer = 10
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""
CLASS = """
from dataclasses import dataclass
@dataclass
class GPTConfig:
    block_size: int = 512
    vocab_size: int = 50304
    n_layer: int = 10
    n_head: int = 5
    n_embd: int = 640
B = 6
T = 512
model = GPT(GPTConfig())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""


@pytest.mark.parametrize("sizes", [ARGUMENTS, TABLE, CONSTANTS, CLASS])
def test_sizes_are_found_wherever_the_author_put_them(sizes: str):
    found = import_text(MODEL + sizes + LOOP, "train.py", GUESS)
    model = found.model
    assert found.format == "training loop of one's own"
    assert (model.layers, model.hidden, model.heads) == (10, 640, 5)
    assert (found.job.seq_len, found.layout.micro_batch, found.layout.world) == (512, 6, 1)
    assert found.job.precision.name == "fp32"


def test_what_wraps_the_model_shards_it():
    text = MODEL + CONSTANTS + "for layer in model.layers: fully_shard(layer)\n" + LOOP
    found = import_text(text, "train.py", GUESS)
    assert (found.layout.zero, found.layout.world) == (3, 8)


def test_the_words_of_the_code_say_how_the_model_is_built():
    llama = "class SwiGLU: pass\nclass RMSNorm: pass\ndef apply_rotary(x): pass\n"
    found = import_text(MODEL + llama + CONSTANTS + LOOP, "train.py", GUESS).model
    assert (found.gated, found.norm, found.positions) == (True, "rmsnorm", "rope")
    gpt = "self.wpe = nn.Embedding(block_size, n_embd)\nself.wte.weight = self.lm_head.weight\n"
    found = import_text(MODEL + gpt + CONSTANTS + LOOP, "train.py", GUESS).model
    assert (found.gated, found.positions, found.tied_embeddings) == (False, "learned", True)


def test_the_model_is_in_a_file_beside_it(tmp_path: Path):
    (tmp_path / "model.py").write_text(MODEL + "class SwiGLU: pass\n")
    (tmp_path / "train.py").write_text("from . import model\n" + CONSTANTS + LOOP)
    assert import_file(tmp_path / "train.py", GUESS).model.gated


def test_a_batch_that_only_tokens_can_be_so_many_of():
    text = MODEL + CONSTANTS.replace("batch_size = 6", "batch_size = 524288") + LOOP
    found = import_text(text, "train.py", GUESS)
    assert found.job.global_batch == 1024


def test_each_device_s_batch_stands_beside_that_of_all():
    sizes = CONSTANTS.replace("batch_size = 6", "batch_size = 512\ndevice_batch_size = 64")
    found = import_text(MODEL + "DDP(model)\n" + sizes + LOOP, "train.py", GUESS)
    assert (found.layout.micro_batch, found.job.global_batch) == (64, 512)


def test_its_optimizer_and_attention():
    text = MODEL.replace("scaled_dot_product_attention", "softmax") + CONSTANTS + LOOP
    found = import_text(text.replace("torch.optim.AdamW", "Muon"), "train.py", GUESS)
    assert (found.job.optimizer.name, found.job.attention_kernel) == ("muon", "unfused")


def test_several_tables_of_sizes_are_said():
    more = TABLE + TABLE.replace("GPT_CONFIG", "LARGE").replace("640", "1280")
    found = import_text(MODEL + more + LOOP, "train.py", GUESS)
    assert found.model.hidden == 640
    assert any("2 tables of sizes" in note for note in found.notes)


def test_its_script_takes_the_same_sizes(tmp_path: Path):
    found = put(
        tmp_path,
        "torchrun --nproc_per_node=4 train.py",
        train__py=MODEL + "DDP(model)\n" + TABLE + LOOP,
    )
    assert (found.model.layers, found.layout.world, found.layout.micro_batch) == (10, 4, 6)


@pytest.mark.parametrize(
    "words", ["import torchvision\n", "conv = nn.Conv2d(3, 8, 3)\n", "import gymnasium\n"]
)
def test_what_trains_something_else_is_no_such_loop(words: str):
    with pytest.raises(SpecError, match="describes no training run"):
        import_text(words + MODEL + CONSTANTS + LOOP, "train.py", GUESS)


def test_an_encoder_s_loop_is_refused():
    text = "from transformers import BertForMaskedLM\nmodel = BertForMaskedLM.from_pretrained('bert-large-cased')\nmodel = DistributedDataParallel(model)\nloss.backward()\n"
    with pytest.raises(SpecError, match="encoder"):
        import_text(text, "train.py", GUESS)


def test_a_loader_s_batch_counts_where_nothing_else_says_one():
    text = MODEL + TABLE.replace(', "batch_size": 6', "") + "train = make_loader(text, batch_size=6)\nval = make_loader(text, batch_size=2)\n" + LOOP  # fmt: skip
    assert import_text(text, "train.py", GUESS).layout.micro_batch == 6


def test_a_program_is_read_by_its_own_hydra_files(tmp_path: Path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("batch_size: 6\nblock_size: 512\nlr: 1e-3\nn_embed: 640\nnum_heads: 5\nnum_layers: 10\n")  # fmt: skip
    (tmp_path / "train.py").write_text("import hydra\n@hydra.main(version_base=None, config_path='conf', config_name='config')\ndef main(cfg):\n    loss.backward()\n")  # fmt: skip
    found = import_file(tmp_path / "train.py", GUESS)
    assert (found.model.hidden, found.job.seq_len, found.layout.micro_batch) == (640, 512, 6)


def test_a_loop_that_says_no_size_is_refused_as_such():
    text = MODEL + "model = build(cfg)\noptimizer = make(model)\n" + LOOP
    with pytest.raises(
        SpecError,
        match=r"a loop of its own and does not say its model.*give --model, and --micro-batch",
    ):
        import_text(text, "train.py", GUESS)


def test_what_python_would_say_of_a_text_is_not_said(recwarn: pytest.WarningsRecorder):
    import_text(MODEL + "x = 1if True else 2\n" + CONSTANTS + LOOP, "train.py", GUESS)
    assert not recwarn.list
