"""Reading recordings: names, parts, and files that are not what they say."""

import json

import pytest
import torch
from torch import nn

from meshwright import probe
from meshwright.cli import run
from meshwright.probe.files import parse_layout
from meshwright.prove.judge import compare
from meshwright.prove.kinds import kind_of
from meshwright.prove.launch import processes
from meshwright.prove.read import read_recording
from meshwright.specs.errors import SpecError


class Small(nn.Module):
    def __init__(self, first="a", second="b"):
        super().__init__()
        self.names = (first, second)
        torch.manual_seed(1)
        setattr(self, first, nn.Linear(6, 20))
        setattr(self, second, nn.Linear(20, 3))

    def forward(self, x):
        return getattr(self, self.names[1])(torch.tanh(getattr(self, self.names[0])(x)))


def train(out, model=None, steps=3, every=1, scale=1.0, **how):
    model = model or Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(2)
    with probe.record(model, optimizer, out=out, every=every, **how) as p:
        for _ in range(steps):
            loss = model(torch.randn((5, 6), generator=generator)).square().mean() * scale
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            p.step(loss=loss, tokens=5)
    return out


def test_a_run_equals_itself_and_says_so(tmp_path, capsys):
    a, b = train(tmp_path / "a"), train(tmp_path / "b")
    assert run(["prove", str(a), str(b), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["equal"] is True
    assert said["cause"] is None
    assert said["largest_relative_error"] == 0


def test_another_loss_is_not_equal(tmp_path, capsys):
    a, b = train(tmp_path / "a"), train(tmp_path / "b", scale=3.0)
    assert run(["prove", str(a), str(b), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["cause"] == "loss-scale"
    assert said["first_step"] == 0
    assert run(["prove", str(a), str(b)]) == 1
    assert "Not equal, from step 0" in capsys.readouterr().out


def test_every_second_step_is_compared_at_the_same_steps(tmp_path):
    a, b = train(tmp_path / "a", steps=5), train(tmp_path / "b", steps=5, every=2)
    result = compare(read_recording(a), read_recording(b))
    assert [view.step for view in result.views] == [0, 2, 4]
    assert result.equal


def test_names_are_matched_by_values_or_by_the_caller(tmp_path):
    a, other = train(tmp_path / "a"), Small("first", "second")
    b = train(tmp_path / "b", other)
    result = compare(read_recording(a), read_recording(b))
    assert result.pairs["first.weight"] == "a.weight"
    assert result.equal
    c = train(tmp_path / "c", Small("x", "y"), names={"x.weight": "a.weight"})
    assert "a.weight" in read_recording(c).parameters


def test_gradients_are_read_before_they_are_cleared(tmp_path):
    # `train` clears them before p.step: the optimizer's own hook must have seen them.
    recording = read_recording(train(tmp_path / "a"))
    assert all(w.norm > 0 for w in recording.wholes(0, "gradient").values())
    assert not any(line.late for line in recording.lines(0))


def test_what_cannot_be_recorded_is_said(tmp_path):
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="out="):
        probe.record(model, optimizer)
    with pytest.raises(ValueError, match="every"):
        probe.record(model, optimizer, out=tmp_path, every=0)
    with pytest.raises(ValueError, match="layout"):
        probe.record(model, optimizer, out=tmp_path, layout="two by two")
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="trainable"), probe.record(model, optimizer, out=tmp_path):
        pass


@pytest.mark.parametrize(
    "spoil",
    [
        lambda f: (f / "rank00000.jsonl").write_text("not json\n"),
        lambda f: (f / "rank00000.jsonl").write_text(""),
        lambda f: (f / "rank00000.jsonl").write_text('{"a": 1}\n'),
        lambda f: (f / "rank00000.jsonl").write_text("[" * 100_000 + "\n"),
        lambda f: (f / "rank00000.f64").unlink(),
        lambda f: (f / "rank00000.f64").write_bytes(b""),
        lambda f: _edit(f, world=2),
        lambda f: _edit(f, rank=5),
        lambda f: _edit(f, buckets=10**9),
        lambda f: _edit(f, meshwright_probe=99),
    ],
)
def test_broken_recordings_are_one_sentence(tmp_path, capsys, spoil):
    a, b = train(tmp_path / "a"), train(tmp_path / "b")
    spoil(b)
    assert run(["prove", str(a), str(b)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def _edit(folder, **changes):
    path = folder / "rank00000.jsonl"
    lines = path.read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | changes)
    path.write_text("\n".join(lines) + "\n")


def test_a_recording_that_was_cut_off_is_read_to_its_last_whole_step(tmp_path):
    folder = train(tmp_path / "a", steps=3)
    path = folder / "rank00000.jsonl"
    path.write_text(path.read_text()[:-40])
    assert read_recording(folder).steps == [0, 1]


def test_parts_that_do_not_add_up_are_refused(tmp_path):
    a, b = train(tmp_path / "a"), tmp_path / "b"
    train(b, placement=lambda name, p: probe.Shard(0, 0, 2) if name == "a.weight" else None)
    with pytest.raises(SpecError, match=r"partner|add up"):
        compare(read_recording(a), read_recording(b))


def test_words():
    assert parse_layout("tp2pp2 dp4") == {"tp": 2, "pp": 2, "dp": 4}
    assert processes("tp2 pp2 ep4") == 4
    with pytest.raises(SpecError):
        processes("dp1000000")
    assert kind_of("model.layers.3.mlp.gate.weight", (8, 64)) == "router"
    assert kind_of("model.layers.3.mlp.gate_proj.weight", (8, 64)) == "matrix"
    assert kind_of("model.layers.3.mlp.experts.4.up_proj.weight", (8, 64)) == "expert"
    assert kind_of("transformer.wte.weight", (8, 64)) == "embedding"
    assert kind_of("transformer.h.0.ln_1.weight", (64,)) == "norm"
    assert kind_of("layers.0.self_attn.q_proj.bias", (64,)) == "bias"


def test_a_script_is_run_under_each_layout(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist, meshwright.probe as probe\n"
        "assert sys.argv[1:] == ['config.py', '--rate=0.1'], sys.argv\n"
        "dist.init_process_group('gloo')\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.Linear(4, 2)\n"
        "data = torch.randn(8, 4).chunk(dist.get_world_size())[dist.get_rank()]\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "assert probe.layout()['dp'] == dist.get_world_size()\n"
        "with probe.record(model, optimizer) as p:\n"
        "    loss = model(data).square().mean()\n"
        "    loss.backward()\n"
        "    for q in model.parameters():\n"
        "        dist.all_reduce(q.grad)  # and not divided\n"
        "    optimizer.step()\n"
        "    p.step(loss=loss, tokens=len(data))\n"
        "dist.destroy_process_group()\n"
    )
    code = run(
        ["prove", "--json", "--out", str(tmp_path / "out"), "--script", str(script),
         "--layouts", "dp1", "dp2", "--", "config.py", "--rate=0.1"]
    )  # fmt: skip
    said = json.loads(capsys.readouterr().out)
    assert code == 1
    assert said["proofs"][0]["cause"] == "data-parallel-scale"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch\n", "recorded nothing"),
        ("raise KeyError('rope')\n", "KeyError: 'rope'"),
        ("import sys; sys.exit('no data here')\n", "no data here"),
        ("import nothing_of_this_name\n", "No module named 'nothing_of_this_name'"),
        ("def (\n", "SyntaxError"),
    ],
)
def test_a_script_that_does_not_run_is_one_sentence(tmp_path, capsys, text, said):
    script = tmp_path / "train.py"
    script.write_text(text)
    command = ["prove", "--script", str(script), "--layouts", "dp1", "dp2"]
    assert run([*command, "--out", str(tmp_path / "out")]) == 2
    found = capsys.readouterr().err
    assert said in found
    assert found.strip().count("\n") == 0
    assert "ChildFailedError" not in found
