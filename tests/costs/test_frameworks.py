"""The table of framework behaviours: complete, sourced, and overridable by one run."""

import typing

import pytest

from meshwright.costs.frameworks import (
    Behaviour,
    behaviour,
    behaviour_on,
    framework,
    framework_names,
    source_of,
)
from meshwright.specs import frameworks
from meshwright.specs.devices import load_device
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Framework, Job


@pytest.mark.parametrize("name", framework_names())
def test_every_cell_has_a_source(name):
    known = framework(name)
    for field in Behaviour.model_fields:
        if field != "name":
            assert source_of(name, field), (name, field)
            assert getattr(known, field) is not None


def test_the_table_and_the_job_name_the_same_frameworks():
    assert set(typing.get_args(Framework)) == set(frameworks.framework_names())


def test_every_framework_is_priced_by_a_row_and_every_row_prices_one():
    priced = {frameworks.framework(name).behaviour for name in frameworks.framework_names()}
    assert priced == set(framework_names())


def test_a_job_deviates_in_one_field_only():
    job = Job(framework="megatron", framework_options={"reduce_overlapped": False})
    usual, ours = framework("megatron"), behaviour(job)
    assert usual.reduce_overlapped and not ours.reduce_overlapped
    assert ours.but(reduce_overlapped=True) == usual


def test_an_unknown_option_is_a_sentence():
    with pytest.raises(SpecError, match="reduce_overlaped"):
        behaviour(Job(framework_options={"reduce_overlaped": False}))


def test_documented_differences():
    assert framework("megatron-2021").attention_kernel == "unfused"
    assert framework("megatron").attention_kernel == "flash"
    assert framework("nanotron").stage_split == "cost-balanced"
    assert framework("fsdp").zero == 3


@pytest.mark.parametrize(
    ("name", "device", "options", "generation"),
    [
        ("torchtitan", "b200", {}, 3), ("torchtitan", "gb300", {}, 3), ("torchtitan", "h100", {}, 2),
        ("torchtitan", "b200", {"flash_generation": 2}, 2), ("trl", "b200", {}, 2), ("megatron", "h100", {}, 3),
    ],
)  # fmt: skip
def test_torchtitan_takes_cudnns_attention_on_blackwell(name, device, options, generation):
    job = Job(framework=name, framework_options=options)
    assert behaviour_on(job, load_device(device)).flash_generation == generation


def test_an_eager_cross_entropy_holds_as_many_bytes_a_logit_as_torch_says():
    """Live storages under torch: log-softmax's output, the gradient it gets and the one it gives."""
    import weakref

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    held: dict[int, int] = {}
    most = [0]

    class Held(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for tensor in tree_flatten(out)[0]:
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    if storage._cdata not in held:
                        held[storage._cdata] = storage.nbytes()
                        weakref.finalize(storage, held.pop, storage._cdata, None)
            most[0] = max(most[0], sum(held.values()))
            return out

    tokens, vocab, hidden = 64, 20_000, 4
    state = torch.randn(tokens, hidden, dtype=torch.bfloat16, requires_grad=True)
    head = torch.randn(vocab, hidden, dtype=torch.bfloat16)
    label = torch.randint(0, vocab, (tokens,))
    with Held():
        torch.nn.functional.cross_entropy(
            torch.nn.functional.linear(state, head).float(), label
        ).backward()
    for name in ("huggingface", "deepspeed"):
        assert most[0] / (tokens * vocab) == pytest.approx(framework(name).logits_bytes, rel=0.02)
