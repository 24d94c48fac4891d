"""Packed documents and dropout on one device, against oracles that know neither."""

import numpy as np
import pytest
import torch

from meshwright.engine.data import Corpus, shuffled
from meshwright.engine.model.collectives import Axis
from meshwright.engine.model.decoder import Decoder
from meshwright.engine.model.dropout import Dropout, draw, kept
from meshwright.engine.model.loss import IGNORED, summed_cross_entropy
from meshwright.engine.model.numerics import default_numerics
from meshwright.engine.proof.material import weight
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model

LLAMA = Model(layers=3, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=40)
WINDOWED = LLAMA.but(window=3)
GPT2 = LLAMA.but(
    family="gpt2", kv_heads=4, gated=False, norm="layernorm", norm_bias=True, positions="learned",
    max_positions=16,
)  # fmt: skip
MOE = LLAMA.but(family="mixtral", experts={"experts": 4, "top_k": 2, "ffn": 24})
LENGTHS = ((5, 1, 7, 3), (16,), (2, 2, 12))


def _decoder(model):
    decoder = Decoder(model).double()
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            value = weight(name, tuple(parameter.shape), model, default_numerics(model))
            parameter.copy_(value)
    return decoder


def _gradients(decoder):
    found = {name: p.grad.clone() for name, p in decoder.named_parameters()}
    decoder.zero_grad()
    return found


@pytest.mark.parametrize(
    "model", [LLAMA, WINDOWED, GPT2, MOE], ids=["rope", "window", "learned", "experts"]
)
def test_packed_documents_train_as_each_would_alone(model):
    decoder, alone = _decoder(model), Axis(name="tp")
    tokens = torch.randint(
        0, model.vocab, (len(LENGTHS), 16), generator=torch.Generator().manual_seed(0)
    )
    targets, starts = torch.full_like(tokens, IGNORED), torch.zeros_like(tokens)
    loss = torch.zeros((), dtype=torch.float64)
    for row, lengths in enumerate(LENGTHS):
        for document in torch.arange(16).split(lengths):
            first, last = int(document[0]), int(document[-1])
            starts[row, document] = first
            targets[row, first:last] = tokens[row, first + 1 : last + 1]
            logits = decoder(tokens[row : row + 1, document])
            loss = loss + summed_cross_entropy(logits, targets[row : row + 1, document], alone)
    loss.backward()
    wanted = _gradients(decoder)
    packed = summed_cross_entropy(decoder(tokens, starts), targets, alone)
    packed.backward()
    assert float(packed.detach()) == pytest.approx(float(loss.detach()), rel=1e-13)
    for name, gradient in _gradients(decoder).items():
        assert (gradient - wanted[name]).abs().max() < 1e-11, name
    assert (decoder(tokens) - decoder(tokens, starts)).abs().max() > 0.01


def test_a_corpus_tells_documents_apart_and_hides_what_cannot_be_predicted(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"first one|two")
    (tmp_path / "b.txt").write_bytes(b"")
    (tmp_path / "c.txt").write_bytes(b"three|||end of it")
    whole = b"first one|twothree|||end of it"
    begins = {0, 10, 13, 19, 20, 21}  # after every bar, and with every file
    text = Corpus(tmp_path, 7, seed=1, documents=True, end_token=ord("|"))
    for step in range(text.windows):
        tokens, targets, starts = text.packed_batch(step, 1)
        at = whole.index(bytes(tokens[0].tolist()))
        for place in range(7):
            inside = [b - at for b in begins if at <= b <= at + place]
            assert starts[0, place] == max(inside, default=0)
            crossing = at + place + 1 in begins
            wanted = IGNORED if crossing else whole[at + place + 1]
            assert targets[0, place] == wanted
    plain = Corpus(tmp_path, 7, seed=1)
    assert plain.packed_batch(0, 2)[2] is None
    assert (plain.batch(0, 2)[1] >= 0).all()


def test_documents_of_token_files_need_the_token_that_ends_them(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(40, dtype=np.uint16))
    with pytest.raises(SpecError, match="end_token"):
        Corpus(tmp_path / "x.npy", 8, documents=True)
    assert (
        Corpus(tmp_path / "x.npy", 8, documents=True, end_token=3).packed_batch(0, 1)[2] is not None
    )


def test_a_corpus_of_sixteen_gigabytes_opens_at_once_and_is_read_where_needed(tmp_path):
    """A sparse file: sixteen gigabytes long, a few kilobytes of disk."""
    file = tmp_path / "tokens.bin"
    with file.open("wb") as stream:
        stream.truncate(16 * 10**9)
    shards = np.memmap(file, dtype="<u2", mode="r+")
    text = Corpus(file, 4096, seed=7)
    assert text.windows == (8 * 10**9 - 1) // 4096
    last = shuffled(5, text.windows, 7, 0) * 4096
    shards[last : last + 4097] = np.arange(4097)
    tokens, targets = text.batch(5, 1)
    assert torch.equal(tokens[0], torch.arange(4096))
    assert torch.equal(targets[0], torch.arange(1, 4097))
    held = sum(value.nbytes for value in vars(text).values() if isinstance(value, np.ndarray))
    assert held < 1000  # no table of windows


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 65, 1000])
def test_an_epochs_order_is_a_permutation_that_seed_and_epoch_change(count):
    orders = [
        tuple(shuffled(index, count, seed, epoch) for index in range(count))
        for seed, epoch in ((0, 0), (1, 0), (0, 1))
    ]
    assert all(sorted(order) == list(range(count)) for order in orders)
    if count > 5:
        assert len(set(orders)) == 3
        moved = np.abs(np.array(orders[0]) - np.arange(count)).mean()
        assert moved == pytest.approx(count / 3, rel=0.4)  # as far as a random one moves


def test_dropout_keeps_its_share_independently_of_everything_else():
    tokens = torch.arange(4 * 64).view(4, 64)
    masks = [kept(tokens, 256, Dropout(0.3, seed, step).key(layer, place), 0.3).double()
             for seed, step, layer, place in ((0, 0, 0, "ffn"), (1, 0, 0, "ffn"), (0, 1, 0, "ffn"),
                                              (0, 0, 1, "ffn"), (0, 0, 0, "attention"))]  # fmt: skip
    count = masks[0].numel()
    for mask in masks:
        assert float(mask.mean()) == pytest.approx(0.7, abs=5 * (0.21 / count) ** 0.5)
        for dim in (0, 1, 2):  # no sequence, position or channel is special
            spread = float((mask.mean(dim) - 0.7).abs().max())
            assert spread < 6 * (0.21 / mask.shape[dim]) ** 0.5
    flat = torch.stack(
        [mask.flatten() for mask in masks]
        + [masks[0].roll(1, -1).flatten(), masks[0].roll(1, 1).flatten()]
    )
    apart = torch.corrcoef(flat) - torch.eye(len(flat), dtype=torch.float64)
    assert apart.abs().max() < 6 / count**0.5


def test_dropout_scales_what_it_keeps_and_its_gradient_takes_the_same_mask():
    drawn = draw(Dropout(0.25, seed=3), torch.arange(20).view(2, 10), [4])[4]
    x = torch.ones(2, 10, 16, dtype=torch.float64, requires_grad=True)
    out = drawn.apply(x, "attention")
    assert set(out.detach().unique().tolist()) == {0.0, 1 / 0.75}
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())
    part = draw(Dropout(0.25, seed=3), drawn.tokens[1:, 3:7], [4])[4]
    assert torch.equal(
        part.apply(x[1:, 3:7], "attention"), out[1:, 3:7]
    )  # a rank that holds a part draws the same


def test_dropout_keeps_no_mask_for_backward():
    drawn, kept_elements = draw(Dropout(0.5), torch.arange(20).view(2, 10), [0])[0], []

    def keep(tensor):
        kept_elements.append(tensor.numel())
        return tensor

    x = torch.ones(2, 10, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        drawn.apply(x, "ffn")
    assert kept_elements == [20, 1]  # the tokens' numbers and the key


def test_one_compiled_layer_serves_every_layer_and_step():
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    decoder = Decoder(LLAMA)
    decoder.dropout = Dropout(0.5)
    for layer in decoder.layers.values():
        layer.compile(backend=count)
    tokens, outs = torch.zeros(2, 8, dtype=torch.int64), []
    with torch.no_grad():
        for decoder.dropout.step in range(3):
            outs.append(decoder(tokens, rows=torch.arange(2)))
    assert len(decoder.layers) == 3 and len(graphs) == 1
    assert not torch.equal(outs[0], outs[1])


def test_dropout_without_sequence_numbers_is_an_error():
    decoder = _decoder(LLAMA)
    decoder.dropout = Dropout(0.1)
    with pytest.raises(ValueError, match="numbers of the sequences"):
        decoder(torch.zeros(1, 4, dtype=torch.int64))
