"""Adafactor's factored statistics against the state that torch's own Adafactor allocates."""

import numpy as np
import pytest

from meshwright.costs.columns import from_layouts
from meshwright.costs.factored import STATISTIC_BYTES, factored_statistics
from meshwright.costs.frameworks import behaviour
from meshwright.costs.memory import memory
from meshwright.costs.stages import stage_layers
from meshwright.costs.states import role_parameters
from meshwright.specs.job import OPTIMIZERS, OTHER_OPTIMIZERS, RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model

TINY = Model(name="tiny", layers=3, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=80, vocab=96)


def optimizer_bytes(model, optimizer, **layout):
    """Bytes of optimizer state on the heaviest rank, master copy included."""
    job = Job(
        seq_len=128, global_batch=64, precision=RECIPES["bf16"], optimizer=OPTIMIZERS[optimizer],
        framework="meshwright",
    )  # fmt: skip
    columns = from_layouts([Layout(**layout)])
    layers = stage_layers(model, columns)
    table = memory(model, job, behaviour(job), columns, layers, np.array([4]))
    return float(table.states["first"].optimizer[0])


@pytest.mark.parametrize("tied", [False, True])
def test_as_many_statistics_as_torch_keeps(tied):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    built = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=32, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=96, tie_word_embeddings=tied,
        )
    )  # fmt: skip
    optimizer = torch.optim.Adafactor(built.parameters())
    for parameter in built.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = sum(
        value.numel()
        for state in optimizer.state.values()
        for name, value in state.items()
        if name != "step"
    )
    model = TINY.but(tied_embeddings=tied)
    columns = from_layouts([Layout(dp=4)])
    counted = factored_statistics(model, columns, 0, OPTIMIZERS["adafactor"])
    dense, expert = role_parameters(counted, stage_layers(model, columns), columns, "first")
    assert dense[0] + expert[0] == kept


def test_experts_are_factored_one_by_one_and_router_once():
    model = Model.parse(
        dict(
            name="moe", layers=2, hidden=32, heads=4, kv_heads=4, head_dim=8, ffn=64, vocab=96,
            experts=dict(experts=8, top_k=2, ffn=48),
        )
    )  # fmt: skip
    adafactor = OPTIMIZERS["adafactor"]
    counted = factored_statistics(model, from_layouts([Layout(dp=8, ep=4)]), 0, adafactor)
    assert counted.experts_layer[0] == (8 / 4) * 3 * (48 + 32)
    norms, attention, router = 2 * 32, 4 * (32 + 32), 8 + 32
    assert counted.moe_layer[0] == norms + attention + router


def test_tensor_parallel_ranks_factor_their_own_shards():
    whole = factored_statistics(TINY, from_layouts([Layout(dp=2)]), 0, OPTIMIZERS["adafactor"])
    half = factored_statistics(TINY, from_layouts([Layout(dp=1, tp=2)]), 0, OPTIMIZERS["adafactor"])
    # Seven matrices a layer: the side that is cut halves, the hidden side stays whole.
    cut = 32 + 16 + 16 + 32 + 3 * 80
    assert whole.dense_layer[0] - half.dense_layer[0] == cut / 2


def test_bytes_lie_between_no_state_and_adams():
    factored = optimizer_bytes(TINY, "adafactor", dp=4)
    master = optimizer_bytes(TINY, "sgd", dp=4)
    adam = optimizer_bytes(TINY, "adamw", dp=4)
    counted = factored_statistics(TINY, from_layouts([Layout(dp=4)]), 1, OPTIMIZERS["adafactor"])
    per_layer = float(counted.dense_layer[0])
    ends = float(counted.embedding[0] + counted.head[0])
    assert factored == pytest.approx(master + STATISTIC_BYTES * (3 * per_layer + ends))
    assert master < factored < adam


def test_moments_of_projected_gradients_are_those_of_the_paper():
    galore = OTHER_OPTIMIZERS["galore"].but(low_rank=8)
    counted = factored_statistics(TINY, from_layouts([Layout()]), 1, galore)
    # r · (2 n + m) numbers of an n × m matrix, n ≥ m; norms and the vocabulary keep two moments.
    square, short, wide = 8 * (2 * 32 + 32), 8 * (2 * 32 + 16), 8 * (2 * 80 + 32)
    assert counted.dense_layer[0] == 2 * square + 2 * short + 3 * wide + 2 * (2 * 32)
    assert counted.embedding[0] == 2 * 96 * 32
    eight = factored_statistics(TINY, from_layouts([Layout()]), 1, galore.but(state_bytes=2))
    assert eight.embedding[0] == 96 * 32 / 2
    assert OPTIMIZERS["adamw"].low_rank == 0


def test_zero_shards_the_statistics():
    alone = optimizer_bytes(TINY, "adafactor", dp=4)
    sharded = optimizer_bytes(TINY, "adafactor", dp=4, zero=1)
    assert sharded == pytest.approx(alone / 4)
