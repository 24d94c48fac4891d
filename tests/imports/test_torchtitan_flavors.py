"""A flavour that only a checkout's own registry has is read from there, in each shape that registries have had."""

import pytest

from meshwright.imports.files import import_file
from meshwright.imports.reading import Given

RUN = '[job]\ndescription = "x"\n[model]\nname = "{name}"\nflavor = "{flavor}"\n[training]\nseq_len = 1024\nlocal_batch_size = 2\n[parallelism]\n'
OLDER = """
from torchtitan.models.moe import MoEArgs
from .model.args import OwnArgs
ours = {
    "tiny": OwnArgs(dim=512, n_layers=6, moe_args=MoEArgs(num_experts=16, num_shared_experts=0, top_k=2)),
    "plain": OwnArgs(n_layers=6, moe_enabled=False),
}
"""
ARGS = "class OwnArgs:\n    dim: int = 768\n    n_heads: int = 8\n    n_kv_heads: int = 4\n    head_dim: int = 64\n    hidden_dim: int = 2048\n    vocab_size: int = 9000\n    moe_enabled: bool = True\n    moe_inter_dim: int = 320\n"
NEWER = """
def _width(dim):
    return dim * 3
def _blocks(count, dim):
    made = []
    for _ in range(count):
        made.append(Block.Config(
            attention=GQAttention.Config(n_heads=8, n_kv_heads=2, dim=dim, rope=RoPE.Config(dim=dim // 8)),
            feed_forward=FeedForward.Config(w1=Linear.Config(in_features=dim, out_features=_width(dim))),
        ))
    return made
def _small():
    return Model.Config(dim=512, vocab_size=9000, layers=_blocks(5, 512))
def _long():
    return Model.Config(dim=512, vocab_size=9000, layers=_blocks(90, 512))
ours = {"small": _small, "long": _long}
"""


@pytest.fixture
def checkout(tmp_path):
    def laid_out(family: str, registry: str, args: str = ""):
        home = tmp_path / "torchtitan" / "models" / family
        (home / "model").mkdir(parents=True)
        (home / "train_configs").mkdir()
        (home / "__init__.py").write_text(registry)
        (home / "model" / "args.py").write_text(args)
        return home / "train_configs" / "run.toml"

    return laid_out


def shape(path, name: str, flavor: str):
    path.write_text(RUN.format(name=name, flavor=flavor))
    found = import_file(path, Given(guess=True))
    assert any("checkout at hand registers" in one for one in map(str, found.notes))
    return found.model


def test_sizes_of_a_flavor_and_of_its_class(checkout):
    path = checkout("qwen3", OLDER, ARGS)
    model = shape(path, "qwen3", "tiny")
    assert (model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim, model.vocab) == (6, 512, 8, 4, 64, 9000)  # fmt: skip
    assert (model.experts.experts, model.experts.top_k, model.experts.ffn) == (16, 2, 320)
    plain = shape(path, "qwen3", "plain")
    assert (plain.hidden, plain.ffn, plain.experts) == (768, 2048, None)


def test_blocks_that_a_function_makes(checkout):
    path = checkout("llama3", NEWER)
    model = shape(path, "llama3", "small")
    assert (model.layers, model.hidden, model.heads, model.kv_heads, model.ffn, model.vocab) == (5, 512, 8, 2, 1536, 9000)  # fmt: skip
    path.write_text(RUN.format(name="llama3", flavor="long"))  # more than are followed: no guess
    with pytest.raises(ValueError, match="--model"):
        import_file(path, Given(guess=True))


def test_a_model_of_transformers_that_torchtitan_trains(tmp_path):
    text = RUN.format(name="transformers_modeling_backend", flavor="full")
    path = tmp_path / "run.toml"
    path.write_text(text + '[hf_transformers]\nmodel = "Qwen/Qwen3-4B"\n')
    assert import_file(path, Given(guess=True)).model.name == "qwen3-4b"
