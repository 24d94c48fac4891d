"""Attention by tiles of a mask, as a GPU runs it, against attention by tensors; here by torch's own eager form."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn.attention import flex_attention as flex

from meshwright.engine.model.attention import attend, local_positions
from meshwright.engine.model.collectives import Axis
from meshwright.engine.model.explicit import Scoring, explicit_attention
from meshwright.engine.model.masks import attention_masks
from meshwright.engine.model.sparse import block_mask, causal_blocks, has_sparse, sparse_attention

LENGTH = 48
PLAIN = Scoring(0.25)


@pytest.fixture(autouse=True)
def backward_on_a_processor(monkeypatch):
    """Torch refuses it, since compiled code for processors lacks it; the eager form has it."""
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)


def _inputs(heads=4, kv_heads=2, width=16, length=LENGTH):
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(2, count, length, width, generator=generator).requires_grad_()
        for count in (heads, kv_heads, kv_heads)
    ]


def _starts():
    starts = torch.zeros(2, LENGTH, dtype=torch.int64)
    starts[0, 20:] = 20
    starts[1, 7:30], starts[1, 30:] = 7, 30
    return starts


def _with_gradients(attention, inputs):
    out = attention(*inputs)
    out.backward(torch.linspace(-1, 1, out.numel()).view(out.shape))
    found = [out.detach(), *(t.grad.clone() for t in inputs)]
    for tensor in inputs:
        tensor.grad = None
    return found


@pytest.mark.parametrize("documents", [False, True], ids=["one", "documents"])
@pytest.mark.parametrize("window", [0, 9, -16], ids=["all", "window", "chunks"])
def test_tiles_see_what_tensors_let_them(window, documents):
    starts = _starts() if documents else None
    alone, at = Axis(name="cp"), torch.arange(LENGTH)
    inputs = _inputs()

    def run(tiles):
        made = attention_masks([window], at, alone, starts, torch.float32, tiles)
        return _with_gradients(
            lambda q, k, v: attend(q, k, v, alone, made.get(window), PLAIN), inputs
        )

    for tiled, dense in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(tiled, dense)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_chunk_of_a_split_sequence_sees_what_comes_before_it(rank):
    cp = Axis(name="cp", size=2, rank=rank)
    at, starts = local_positions(LENGTH // 2, cp), _starts()
    query, key, value = _inputs()
    mine, begun = query[:, :, at], starts[:, at]
    for window in (0, 9):
        tiled, dense = (
            attention_masks([window], at, cp, begun, torch.float32, tiles)[window]
            for tiles in (True, False)
        )
        for part, tile, tensor in zip(mine.chunk(2, 2), tiled, dense, strict=True):
            keys, values = (t[:, :, : tile.shape[-1]] for t in (key, value))
            assert tile.shape[-1] == tensor.shape[-1]
            found = sparse_attention(part, keys, values, tile, PLAIN)
            wanted = explicit_attention(part, keys, values, tensor, PLAIN)
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("softcap", [0.0, 2.0], ids=["straight", "capped"])
@pytest.mark.parametrize("sunk", [False, True], ids=["keys", "sinks"])
def test_caps_and_sinks_are_those_of_explicit_scores(softcap, sunk):
    scoring = Scoring(0.5, softcap)
    inputs = [*_inputs(), *([torch.linspace(-1, 2, 4).requires_grad_()] if sunk else [])]
    mask = causal_blocks(LENGTH, torch.device("cpu"))
    tiled = _with_gradients(
        lambda q, k, v, *s: sparse_attention(q, k, v, mask, scoring, *s), inputs
    )
    wanted = _with_gradients(
        lambda q, k, v, *s: explicit_attention(q, k, v, None, scoring, *s), inputs
    )
    for ours, theirs in zip(tiled, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_new_documents_are_not_compiled_anew():
    torch._dynamo.reset()
    graphs = CompileCounter()
    attention = torch.compile(sparse_attention, backend=graphs, fullgraph=True)
    with torch.no_grad():
        inputs = _inputs()
        for shift in range(3):
            starts = (_starts() - shift).clamp_min(0)
            mask = block_mask(torch.arange(LENGTH), LENGTH, 9, starts)
            attention(*inputs, mask, PLAIN)
    assert graphs.frame_count == 1


def test_only_a_gpu_and_numbers_of_sixteen_bits_have_tiles():
    narrow = torch.zeros(1, dtype=torch.bfloat16)
    assert not has_sparse(narrow, 64)
    on_a_gpu = torch.empty(1, dtype=torch.bfloat16, device="meta")
    assert not has_sparse(on_a_gpu, 64)
