"""Loops that somebody else owns: closures, trainers, pipeline stages, norms that clipping divides by."""

import json
import shutil
import types

import pytest
import torch
from test_recordings import Small, train

from meshwright import probe
from meshwright.prove.judge import compare
from meshwright.prove.read import read_recording
from meshwright.prove.verdict import prove


def batches(steps=3):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn((5, 6), generator=generator) for _ in range(steps)]


def test_gradients_that_a_closure_computes_are_read_behind_it(tmp_path):
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.record(model, optimizer, out=tmp_path / "closure") as p:
        for batch in batches():

            def closure(batch=batch):
                optimizer.zero_grad()
                loss = model(batch).square().mean()
                loss.backward()
                return loss

            p.step(loss=optimizer.step(closure), tokens=5)
    assert prove(train(tmp_path / "plain"), tmp_path / "closure").equal


def clipped(out, *, off=0.0, reported=1.0, share=1.0):
    """Clips to a small norm; `off` is the rounding of the norm, `reported` and `share` are mistakes."""
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.record(model, optimizer, out=out) as p:
        for batch in batches():
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            grads = [q.grad for q in model.parameters()]
            norm = torch.stack([g.double().square().sum() for g in grads]).sum().sqrt() * (1 + off)
            for g in grads:
                g.mul_(share * min(1.0, 0.01 / float(norm)))
            optimizer.step()
            p.step(loss=loss, tokens=5, grad_norm=norm * reported)
    return out


def test_rounding_of_the_norm_that_clips_is_rounding(tmp_path):
    first = clipped(tmp_path / "a")
    assert prove(first, clipped(tmp_path / "b", off=2e-6)).equal
    # The same factor without a norm that says so is none of the norm's.
    assert not prove(first, clipped(tmp_path / "c", share=1 - 2e-6)).equal
    assert not prove(first, clipped(tmp_path / "d", off=1e-3)).equal


def test_a_norm_below_that_of_the_gradients_in_use_left_some_out(tmp_path):
    verdict = prove(clipped(tmp_path / "a"), clipped(tmp_path / "b", reported=1e-3))
    assert verdict.cause.name == "gradient-norm"
    assert "in use" in verdict.cause.sentence or "update used" in verdict.cause.sentence


@pytest.mark.parametrize("floating", [True, False])
def test_what_a_later_stage_is_fed_is_not_data(tmp_path, floating):
    a, b = train(tmp_path / "a"), tmp_path / "b"
    shutil.copytree(a, b)
    for suffix in ("jsonl", "f64"):
        shutil.copy(b / f"rank00000.{suffix}", b / f"rank00001.{suffix}")
    for rank in (0, 1):
        path = b / f"rank{rank:05d}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[0] |= {"rank": rank, "world": 2}
        for line in lines[1:]:
            line["floating"] = floating and rank == 1
            line["rows"] = [x + rank for x in line["rows"]]
            line["token_sum"] += rank
        path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    # `train` feeds numbers that are no tokens: rank 0 says that its own are data.
    result = compare(read_recording(a), read_recording(b))
    assert result.equal == floating


def test_a_torchtitan_trainer_is_recorded_step_by_step(tmp_path):
    """Its interface alone: the framework itself runs under `make validate-more`."""
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dims = types.SimpleNamespace(
        dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, pp_enabled=False
    )
    logged = []

    def train_step(iterator):
        optimizer.zero_grad()
        loss = model(next(iterator)[0]).square().mean()
        loss.backward()
        optimizer.step()
        trainer.metrics_processor.log(1, float(loss), float(loss), 2.0)

    trainer = types.SimpleNamespace(
        model_parts=[model], optimizers=optimizer, parallel_dims=dims, train_step=train_step, close=lambda: None,
        metrics_processor=types.SimpleNamespace(log=lambda *a, **k: logged.append(a)),
    )  # fmt: skip
    probe.attach(trainer, out=tmp_path / "titan")
    labels = torch.tensor([1, -100, 2, 3, 4])
    iterator = iter([(batch, labels) for batch in batches()])
    for _ in range(3):
        trainer.train_step(iterator)
    trainer.close()
    recording = read_recording(tmp_path / "titan")
    assert recording.steps == [0, 1, 2]
    assert [line.tokens for line in recording.lines(1)] == [4]
    assert [line.grad_norm for line in recording.lines(1)] == [2.0]
    assert len(logged) == 3
    assert prove(train(tmp_path / "plain"), tmp_path / "titan").equal


def test_an_unknown_trainer_is_said():
    with pytest.raises(ValueError, match=r"not object; use probe\.record"):
        probe.attach(object())
