"""What a loop of one's own takes from elsewhere: a checkpoint's configuration, the parser and the layers of its folder."""

import pytest
from folders import GUESS, lay

from meshwright.imports.files import import_file

LOOP = """
for step in range(10):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""
LOADED = """
import argparse, torch, torch.distributed as dist
from torch.optim import AdamW
from transformers import AutoConfig
from layers import Llama
parser = argparse.ArgumentParser()
parser.add_argument("--model_name", type=str, default="HuggingFaceTB/SmolLM-360M-Instruct")
parser.add_argument("--depth_of_model", type=int, default=12)
parser.add_argument("--seq_len", type=int, default=256)
parser.add_argument("--micro_batch_size", type=int, default=2)
parser.add_argument("--tp_size", type=int, default=2)
parser.add_argument("--dp_size", type=int, default=2)
args = parser.parse_args()
dist.init_process_group("nccl")
config = AutoConfig.from_pretrained(args.model_name)
config.num_hidden_layers = args.depth_of_model
model = Llama(config=config).to(torch.bfloat16)
optimizer = AdamW(model.parameters(), lr=1e-4)
"""
LAYERS = "import torch.nn as nn\nclass Llama(nn.Module):\n    def __init__(self, config):\n        self.w = RMSNorm(3); self.up = FFN(config); self.gate_proj = nn.Linear(3, 4); self.out = nn.Linear(2, 3)\n        self.angles = freqs_cis(4)\n"


def test_a_configuration_that_is_loaded_and_changed(tmp_path):
    lay(tmp_path, {"train.py": LOADED + LOOP, "layers.py": LAYERS})
    found = import_file(tmp_path / "train.py", GUESS)
    model = found.model
    assert (model.layers, model.hidden, model.heads, model.kv_heads, model.ffn, model.vocab) == (12, 960, 15, 5, 2560, 49152)  # fmt: skip
    assert model.gated and not model.tied_embeddings  # by the code, not the checkpoint
    assert (found.layout.tp, found.layout.dp, found.job.global_batch) == (2, 2, 4)


PARTS = {
    "net/model.py": "import torch.nn as nn\nfrom .block import Block\nclass GPT(nn.Module):\n    def __init__(self, c):\n        self.layers = [Block(c)]\n",
    "net/block.py": "import torch.nn as nn\nfrom .mlp import MLP\nclass Block(nn.Module):\n    pass\n",
    "net/mlp.py": "import torch.nn as nn\nclass MLP(nn.Module):\n    def __init__(self, dim):\n        hidden = int(2 * 4 * dim / 3)\n        self.gate_proj = nn.Linear(dim, hidden)\n",
    "run/train.py": "import torch\nfrom net.model import GPT\nbatch_size = 6\nblock_size = 512\nn_embd = 640\nn_head = 5\nn_layer = 10\nmodel = GPT(c)\n{also}\noptimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\nlora_rank = 8\n"
    + LOOP,
}


@pytest.mark.parametrize(("also", "tuned"), [("", False), ("inject_lora_to_model(model, rank=lora_rank)", True)])  # fmt: skip
def test_layers_of_files_that_the_model_s_own_takes_them_from(tmp_path, also, tuned):
    lay(tmp_path, {name: text.replace("{also}", also) for name, text in PARTS.items()})
    found = import_file(tmp_path / "run" / "train.py", GUESS)
    assert found.model.gated and found.model.ffn == 1728
    assert (found.job.finetune is not None) is tuned


SWITCHED = {
    "a.py": "parse_all = 1\n",
    "options.py": "import argparse\ndef parse_args():\n    p = argparse.ArgumentParser()\n    p.add_argument('--use_rotary_embeddings', default=False, action='store_true')\n    p.add_argument('--batch_size', type=int, default=4)\n    return p.parse_args()\n",
    "model.py": "import torch.nn as nn\nclass GPT(nn.Module):\n    def __init__(self, c):\n        self.wpe = nn.Embedding(c.block_size, c.n_embd)\n        self.turn = rotary(c)\n",
    "train.py": "import torch\nfrom options import parse_args\nfrom model import GPT\nargs = parse_args()\nmodel = GPT(args)\noptimizer = torch.optim.AdamW(model.parameters())\n"
    + LOOP,
    "run.sh": "python train.py --n_layer 4 --n_head 4 --n_embd 256 --block_size 128{also}\n",
}


@pytest.mark.parametrize(("also", "positions"), [("", "learned"), (" --use_rotary_embeddings", "rope")])  # fmt: skip
def test_a_switch_says_which_positions_the_code_builds(tmp_path, also, positions):
    lay(tmp_path, {name: text.replace("{also}", also) for name, text in SWITCHED.items()})
    assert import_file(tmp_path / "run.sh", GUESS).model.positions == positions


PROGRAM = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--dtype", type=str, default="bfloat16")
args = parser.parse_args()
class GPT(torch.nn.Module):
    pass
scaler = torch.amp.GradScaler("cuda", enabled=args.dtype == "float16")
with torch.amp.autocast("cuda", dtype=WIDTHS[args.dtype]):
    model = GPT(args)
optimizer = torch.optim.AdamW(model.parameters())
"""


def test_autocast_to_32_bits_and_heads_of_keys(tmp_path):
    said = "python train.py --n_layer 4 --n_head 8 --n_kv_head 2 --n_embd 256 --block_size 128 --batch_size 4 --dtype float32\n"
    lay(tmp_path, {"train.py": PROGRAM + LOOP, "run.sh": said})
    found = import_file(tmp_path / "run.sh", GUESS)
    assert (found.model.kv_heads, found.job.precision.name) == (2, "fp32")
