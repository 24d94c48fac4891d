"""Programs and tables of pretraining in JAX and around torchtitan, and what starts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)


def _said(found: Imported, option: str) -> list[str]:
    return [one.text for one in found.remarks if one.option == option]


_MESH = '{"layers": 28, "d_model": 4096, "n_heads": 16, "n_vocab": 50400, "norm": "layernorm", "pe": "rotary", "pe_rotary_dims": 64, "seq": 2048, "cores_per_replica": 8, "per_replica_batch": 2, "gradient_accumulation_steps": 4, "lr": 1e-4, "tpu_size": 32}'


def test_mesh_transformer_s_cores_are_split_into_replicas() -> None:
    found = import_text(_MESH, "6B.json", GUESS)
    assert (found.layout.tp, found.layout.dp, found.layout.micro_batch) == (8, 4, 2)
    assert (found.job.global_batch, found.job.seq_len, found.model.parallel_block) == (32, 2048, True)  # fmt: skip
    with pytest.raises(SpecError, match="a multiple of cores_per_replica = 8"):
        import_text(_MESH.replace('"tpu_size": 32', '"tpu_size": 30'), "6B.json", GUESS)


_LARGE = """
from dataclasses import dataclass, field
import easydel as ed
from easydel.infra.elarge import eLargeModel

@dataclass
class Args:
    model: str = field(default="Qwen/Qwen3-4B")
    batch_size: int = field(default=16)

def main():
    (args,) = Parser(Args).parse_args_into_dataclasses()
    elm = eLargeModel({
        "model": {"name_or_path": args.model},
        "loader": {"dtype": "bfloat16", "param_dtype": "bfloat16"},
        "sharding": {"axis_dims": (1, -1, 1, 2, 1), "axis_names": ("dp", "fsdp", "ep", "tp", "sp")},
        "base_config": {"values": {"gradient_checkpointing": ed.EasyDeLGradientCheckPointers.NOTHING_SAVEABLE}},
        "trainer": {"trainer_type": "sft", "total_batch_size": args.batch_size, "gradient_accumulation_steps": 4, "max_length": 1024},
    })
    elm.train()
"""


def test_easydel_s_dictionary_in_a_program_and_in_yaml() -> None:
    found = import_text(_LARGE, "sft.py", GUESS)
    assert (found.model.name, found.layout.tp, found.layout.zero) == ("qwen3-4b", 2, 3)
    assert (found.job.global_batch, found.job.seq_len, found.layout.recompute) == (64, 1024, "full")
    assert found.layout.micro_batch == 4  # sixteen over four shards
    table = "config:\n  model: {name_or_path: Qwen/Qwen3-4B}\n  sharding: {axis_dims: [1, 4, 1, 2, 1], axis_names: [dp, fsdp, ep, tp, sp]}\n  trainer: {trainer_type: grpo, total_batch_size: 8, num_return_sequences: 4, max_length: 512}\nactions: [train]\n"
    found = import_text(table, "run.yaml", GUESS)
    assert (found.cluster.gpus, found.job.global_batch, found.layout.micro_batch) == (8, 32, 8)
    assert found.job.precision.name == "pure-bf16"


_DICT = """
import ml_collections

def get_config():
    cfg = ml_collections.ConfigDict()
    cfg.batch_size = 64
    cfg.model = ml_collections.config_dict.create(D=512, H=8, L=256, N=6, F=2048, dtype="bfloat16", fsdp_enabled=True, remat=True)
    cfg.opt = ml_collections.config_dict.create(peak_learning_rate=0.001, optimizer="adamw")
    return cfg
"""


def test_nanodo_s_letters_in_a_config_dict() -> None:
    found = import_text(_DICT, "default.py", GUESS)
    assert (found.model.layers, found.model.hidden, found.model.heads) == (6, 512, 8)
    assert (found.job.global_batch, found.job.seq_len, found.layout.micro_batch) == (64, 256, 8)
    assert (found.layout.zero, found.layout.recompute) == (3, "full")


_REGISTRY = """
from torchtitan.config import ActivationCheckpointConfig, TrainingConfig, ParallelismConfig
from torchtitan.experiments.graph_trainer.configs import to_graph_trainer_config
from torchtitan.components.loss import ChunkedCELoss
from torchtitan.trainer import Trainer
from . import model_registry

def base() -> Trainer.Config:
    return Trainer.Config(loss=ChunkedCELoss.Config(), model_spec=model_registry("8B"), parallelism=ParallelismConfig(tensor_parallel_degree=2),
        training=TrainingConfig(local_batch_size=4, seq_len=1024), activation_checkpoint=ActivationCheckpointConfig(mode={mode!r}))

def graph() -> GraphTrainer.Config:
    return to_graph_trainer_config(base(), model_registry)
"""


@pytest.mark.parametrize(("mode", "kept"), [("full", "selective"), ("none", "none")])
def test_a_configuration_made_another_trainer_s_keeps_what_it_says(
    tmp_path: Path, mode: str, kept: str
) -> None:
    (tmp_path / "llama3").mkdir()
    file = tmp_path / "llama3" / "config_registry.py"
    file.write_text(_REGISTRY.format(mode=mode))
    found = import_file(file, Given(guess=True, config="graph"))
    assert (found.layout.tp, found.layout.micro_batch, found.job.seq_len) == (2, 4, 1024)
    assert found.layout.recompute == kept
    whole = import_file(file, Given(guess=True, config="base"))
    assert (whole.job.loss, found.job.loss) == ("chunked", "framework")


def test_a_base_of_maxtext_s_that_is_not_here_is_said() -> None:
    """A reinforcement's batch stands there; of another base MaxText's own values are taken."""
    over = "base_config: ../../{base}\nmodel_name: qwen3-0.6b\nmax_target_length: 512\n"
    with pytest.raises(SpecError, match="configuration is not here"):
        import_text(over.format(base="maxtext/rl.yml"), "mine.yml", GUESS)
    found = import_text(over.format(base="maxtext/sft.yml"), "mine.yml", GUESS)
    assert (found.model.name, found.job.seq_len) == ("qwen3-0.6b", 512)
    assert _said(found, "base_config")


def test_words_handed_to_torchrun_s_own_function(tmp_path: Path) -> None:
    """A list with unknown and spread parts, and constants of the file beside."""
    (tmp_path / "common.py").write_text('TRAIN = "/root/train.py"\n')
    program = tmp_path / "start.py"
    program.write_text(
        "from common import TRAIN\nnodes = 2\n"
        'rest = ["--model_name_or_path", "Qwen/Qwen2.5-7B", "--per_device_train_batch_size", "3", "--max_seq_length", "512"]\n'
        "def go(rank):\n    from torch.distributed.run import parse_args, run\n"
        '    args = [f"--nnodes={nodes}", "--nproc-per-node=4", f"--node-rank={rank}", TRAIN, *rest]\n    run(parse_args(args))\n'
    )
    found = import_file(program, GUESS)
    assert (found.cluster.nodes, found.cluster.gpus, found.layout.micro_batch) == (2, 8, 3)


def test_value_embeddings_are_named() -> None:
    text = (
        "import torch\nfrom torch import nn\nn_layer, n_embd, n_head, vocab_size, block_size, batch_size = 12, 768, 6, 50304, 1024, 8\n"
        "class GPT(nn.Module):\n    def __init__(self):\n        self.wte = nn.Embedding(vocab_size, n_embd)\n        {more}\n"
        "        self.attn = nn.Linear(n_embd, 3 * n_embd)\n        self.mlp = nn.Linear(n_embd, 4 * n_embd)\n        self.lm_head = nn.Linear(n_embd, vocab_size)\n"
        "model = GPT()\noptimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\nfor step in range(10):\n    loss = model(x)\n    loss.backward()\n    optimizer.step()\n"
    )
    said = import_text(text.format(more="self.value_embeds = ValueEmbedding(vocab_size, n_embd)"), "train_gpt.py", GUESS)  # fmt: skip
    assert _said(said, "value embeddings")
    assert not _said(import_text(text.format(more=""), "train_gpt.py", GUESS), "value embeddings")


def test_mlx_is_no_device_that_is_planned() -> None:
    with pytest.raises(SpecError, match="Apple's chips"):
        import_text("import mlx.core as mx\nimport argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--batch_size', type=int)\nfor step in range(9):\n    loss.backward()\n    optimizer.step()\n", "train.py", GUESS)  # fmt: skip


def test_corenet_s_batch_and_length() -> None:
    table = "dataset: {train_batch_size0: 16, language_modeling: {sequence_length: 2048}}\nscheduler: {cosine: {max_lr: 0.005}}\nmodel: {language_modeling: {general_gpt: {model_name: Qwen/Qwen2.5-0.5B}}}\n"
    found = import_text(table, "lm.yaml", GUESS)
    assert (found.layout.micro_batch, found.job.seq_len, found.model.name) == (16, 2048, "qwen2.5-0.5b")  # fmt: skip


def test_dclm_s_scale_is_open_lm_s_run() -> None:
    table = '{"model": "training/open_lm_configs/open_lm_7b.json", "tokens": 1000, "lr": 2e-3, "global_bs": 2048, "acc": 2, "qk_norm": true, "grad_checkpointing": true, "fsdp_flags": ["--fsdp", "--fsdp-pure-bf16"]}'
    found = import_text(table, "7b.json", Given(guess=True))
    assert (found.job.global_batch, found.layout.micro_batch, found.layout.zero) == (2048, 128, 3)
    assert (found.layout.recompute, found.job.precision.name) == ("full", "bf16")


@pytest.mark.parametrize("said", ["mlm_probability: 0.3\nmodel: {name: flex}", "model: {name: flex_bert}"])  # fmt: skip
def test_encoders_of_composer_are_refused(said: str) -> None:
    rest = "\nmax_seq_len: 512\nglobal_train_batch_size: 64\ntrain_loader: {name: text}\ntokenizer: {name: bert-base-uncased}\noptimizer: {name: decoupled_adamw}\n"
    with pytest.raises(SpecError, match="trains an encoder"):
        import_text(said + rest, "bert.yaml", GUESS)


_LOOP = """
import torch
{more}
from torch import nn
n_layer, n_embd, n_head, vocab_size, block_size = 8, 768, 12, 32000, 512
batch_size = {batch}
micro_batch_size = 5
dtype = torch.half
class LLaMA(nn.Module):
    def __init__(self):
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_fc1 = nn.Linear(n_embd, {wide})
        self.lm_head = nn.Linear(n_embd, vocab_size)
def main(devices):
    {start}
    process_batch_size = batch_size // devices
    model = LLaMA()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(10):
        loss = model(x)
        loss.backward()
        optimizer.step()
if __name__ == "__main__":
    main(4)
"""


def test_a_batch_that_devices_do_not_divide_loses_its_rest() -> None:
    text = _LOOP.format(more="", batch=125, wide="4 * n_embd", start="pass")
    found = import_text(text, "train.py", Given(guess=True, cluster=load_cluster("h100:1x4")))
    assert (found.layout.micro_batch, found.job.global_batch) == (5, 120)
    assert any("120 are left" in one for one in _said(found, "--global-batch"))


def test_bmtrain_shards_and_splits_as_it_is_told() -> None:
    text = _LOOP.format(
        more="import bmtrain as bmt", batch=40, wide="4 * n_embd", start="bmt.init_distributed(seed=0, tp_size=2)"
    )  # fmt: skip
    found = import_text(text, "train.py", Given(guess=True, cluster=load_cluster("h100:1x4")))
    assert (found.layout.tp, found.layout.zero, found.layout.recompute) == (2, 3, "full")


@pytest.mark.parametrize(("rounded", "ffn"), [("find_multiple(n_hidden, 256)", 1792), ("n_hidden", 1728)])  # fmt: skip
def test_the_multiple_that_an_ffn_is_rounded_to(rounded: str, ffn: int) -> None:
    text = _LOOP.format(more="", batch=40, wide="n_hidden", start="pass").replace("768, 12,", "640, 10,")  # fmt: skip
    sizes = f"        hidden_dim = 4 * n_embd\n        n_hidden = int(2 * hidden_dim / 3)\n        n_hidden = {rounded}\n"
    gate = "        self.c_fc2 = nn.Linear(n_embd, n_hidden)\n    def forward(self, x):\n        return F.silu(self.c_fc1(x)) * self.c_fc2(x)\n"
    text = text.replace("        self.c_fc1", f"{sizes}        self.c_fc1").replace("def main", f"{gate}def main")  # fmt: skip
    assert import_text(text, "train.py", GUESS).model.ffn == ffn
