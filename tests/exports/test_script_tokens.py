"""What the exported scripts read their tokens with: the same rows in every layout, and sentences for what is wrong."""

import json
import runpy
import struct

import numpy as np
import pytest
import torch
from plans import make_plan

from meshwright.exports.targets import export


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The names of corpus.py and progress.py, as an export holds them."""
    folder = tmp_path_factory.mktemp("scripts")
    export(make_plan("llama3-8b", dp=8, zero=3), "fsdp").write(folder)
    return {
        name: runpy.run_path(str(folder / f"{name}.py"), run_name=name)
        for name in ("corpus", "progress")
    }


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000])
def test_every_row_comes_once_before_any_comes_again(made, count):
    orders = [[made["corpus"]["shuffled"](n, count, seed) for n in range(count)] for seed in (0, 1)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    if count >= 64:
        assert orders[0] != orders[1] != list(range(count))
        # No neighbours stay neighbours, as they would where rows were only counted on.
        assert (
            sum(abs(a - b) == 1 for a, b in zip(*[iter(orders[0])] * 2, strict=True)) < count / 10
        )


def test_a_row_is_told_by_its_place_alone(made, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(100, dtype=np.uint16))
    np.arange(100, 230, dtype=np.uint16).tofile(tmp_path / "b.bin")
    names = [str(tmp_path / "a.npy"), str(tmp_path / "b.bin")]
    rows = made["corpus"]["Rows"](names, 10, 300)
    turn = rows.batch(0, 23)
    assert sorted(turn.flatten().tolist()) == list(range(230))  # rows of both files, each once
    again = made["corpus"]["Rows"](names, 10, 300)
    assert torch.equal(again.batch(7, 5), turn[7:12])  # after a restart, on other ranks
    assert not torch.equal(again.batch(23, 23), turn)  # in another order the second time
    mock = made["corpus"]["Rows"](["mock"], 10, 300)
    assert torch.equal(mock.batch(40, 3)[1], mock[41])


def test_widths_of_numbers_are_told_by_the_file(made, tmp_path):
    wide = np.arange(70_000, 70_064, dtype=np.uint32)
    wide.tofile(tmp_path / "plain.bin")
    wide.astype(np.int32).tofile(tmp_path / "indexed.bin")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, 4)
    (tmp_path / "indexed.idx").write_bytes(head + struct.pack("<QQ", 1, 2))
    for name in ("plain.bin", "indexed.bin", "indexed"):  # the last as Megatron-LM is told it
        rows = made["corpus"]["Rows"]([str(tmp_path / name)], 8, 128_256)
        assert sorted(rows.batch(0, 8).flatten().tolist()) == wide.tolist()


def test_data_that_cannot_be_read_say_so(made, tmp_path):
    rows = made["corpus"]["Rows"]
    with pytest.raises(SystemExit, match=r"no file of tokens is there; python corpus.py"):
        rows([str(tmp_path / "text.jsonl")], 8, 100)
    np.save(tmp_path / "a.npy", np.arange(40, dtype=np.uint16))
    with pytest.raises(SystemExit, match="holds less than one row of 41 tokens"):
        rows([str(tmp_path / "a.npy")], 41, 100)
    with pytest.raises(SystemExit, match="holds token 39, and the model's vocabulary has 30"):
        rows([str(tmp_path / "a.npy")], 40, 30)[0]


def test_text_becomes_a_file_of_tokens(made, tmp_path, monkeypatch, capsys):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<end>": 0, "a": 1, "b": 2, "?": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(tmp_path)
    lines = [json.dumps({"text": text}) for text in ("a b", "b b a")]
    (tmp_path / "text.jsonl").write_text("\n".join(lines) + "\n\n")
    out = str(tmp_path / "train.npy")
    told = ["corpus.py", str(tmp_path / "text.jsonl"), "--tokenizer", str(tmp_path), "-o", out]
    monkeypatch.setattr("sys.argv", told)
    made["corpus"]["main"]()
    assert "7 tokens" in capsys.readouterr().out
    assert np.load(out).tolist() == [1, 2, 0, 2, 2, 1, 0]


def test_the_learning_rate_rises_falls_and_ends_at_a_tenth(made):
    pace = [made["progress"]["pace"](step, 1000) for step in range(1001)]
    assert pace[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert max(pace) == 1
    assert pace[10:] == sorted(pace[10:], reverse=True)
    assert pace[1000] == pytest.approx(0.1)
    assert made["progress"]["pace"](1999, 10**6) == 1  # never more than 2,000 steps of warm-up


def test_weights_and_moments_come_back_and_old_checkpoints_go(made, tmp_path):
    save, resume = made["progress"]["save"], made["progress"]["resume"]

    def fresh():
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    model, optimizer = fresh()
    assert resume(tmp_path, model, optimizer) == 0
    for step in (1, 2, 3):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        save(tmp_path, step, model, optimizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2", "step-3"]
    (tmp_path / "step-4").mkdir()  # a checkpoint that was never finished
    again, other = fresh()
    assert resume(tmp_path, again, other) == 3
    assert torch.equal(again.weight, model.weight)
    moments = [one.state[one.param_groups[0]["params"][0]] for one in (optimizer, other)]
    assert torch.equal(moments[0]["exp_avg_sq"], moments[1]["exp_avg_sq"])
