"""Single terms of the memory model, each against a count by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costs.columns import from_layouts
from meshwright.costs.frameworks import behaviour, framework
from meshwright.costs.memory import memory
from meshwright.costs.rank_memory import cached_bytes
from meshwright.costs.stages import stage_layers
from meshwright.costs.transformers_layer import layer_kept
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model

MODEL = Model(
    name="small", layers=8, hidden=1024, heads=16, kv_heads=16, head_dim=64, ffn=4096, vocab=32768
)
WIDTH = 2048 * 1024 * 2.0
"""One 16-bit tensor of the hidden width over the whole sequence of one micro-batch."""


def parts(
    layout, role="first", micro_batches=16, host_paced=None, framework="nanotron",
    precision="bf16-fp32-grads", lora_rank=0, on_cpu=False, tune=None, **options,
):  # fmt: skip
    """Memory parts of one rank; the job's framework options are `options`."""
    job = Job(
        seq_len=2048, global_batch=64, precision=RECIPES[precision], framework=framework,
        framework_options=options, **({"finetune": tune} if tune else {"lora_rank": lora_rank}),
    )  # fmt: skip
    columns = from_layouts([Layout(**layout)])
    paced = None if host_paced is None else np.array([host_paced])
    table = memory(
        MODEL, job, behaviour(job), columns, stage_layers(MODEL, columns),
        np.array([micro_batches]), paced, 0.33e9 if on_cpu else None,
    )  # fmt: skip
    return {name: float(value[0]) for name, value in table.parts[role].items()}


def test_a_rank_on_cpus_is_a_process_without_a_device():
    layout = dict(dp=2, tp=2, micro_batch=4)
    gpu, cpu = (parts(layout, framework="meshwright", on_cpu=on_cpu) for on_cpu in (False, True))
    assert gpu["communicators"] > cpu["communicators"] == 0
    assert gpu["context"] > cpu["context"] == pytest.approx(0.33e9)
    same = {name for name in gpu if gpu[name] == cpu[name]}
    assert same == set(gpu) - {"communicators", "context"}


SPLIT = dict(tp=4, dp=2, sequence_parallel=True)


def held(layout, **how):
    """Bytes that waiting blocks add, with one of them a layer and micro-batch."""
    with_blocks = parts(layout, held_widths=1.0, **how)
    without = parts(layout, held_widths=0.0, **how)
    same = {name for name in with_blocks if with_blocks[name] == without[name]}
    assert same >= set(with_blocks) - {"fragmentation"}, "only reserved memory may change"
    return with_blocks["fragmentation"] - without["fragmentation"]


def test_blocks_wait_for_the_micro_batch_in_flight_and_the_next():
    assert held(SPLIT) == pytest.approx(2 * 8 * WIDTH)
    assert held(SPLIT, micro_batches=1) == pytest.approx(8 * WIDTH)
    assert held(dict(SPLIT, pp=4)) == pytest.approx((4 + 1) * 2 * WIDTH)


def test_no_block_waits_without_a_reduce_scatter():
    assert held(dict(tp=1, dp=8)) == 0.0
    assert held(dict(SPLIT, sequence_parallel=False)) == 0.0


def test_a_host_behind_the_device_needs_no_new_blocks():
    assert held(SPLIT, host_paced=True) == 0.0
    assert held(dict(SPLIT, pp=2), host_paced=True) == 0.0
    assert held(dict(SPLIT, pp=4), host_paced=True) > 0.0


def test_a_host_that_reads_messages_back_is_not_ahead():
    assert held(dict(SPLIT, pp=4), messages_wait=True) == 0.0
    assert held(SPLIT, messages_wait=True) == pytest.approx(2 * 8 * WIDTH)  # no messages, no wait


def test_a_compiled_program_gathers_single_matrices_and_stores_weights_once():
    layout = dict(dp=8, zero=3)
    compiled = parts(layout, framework="maxtext")
    stored = dict(planned_buffers=False, zero3_shards_are_masters=False)
    layers = parts(layout, framework="maxtext", **stored)
    # Of a layer the largest matrix, of all the embedding: two copies in 16 bits, an fp32 gradient.
    assert compiled["gathered_parameters"] == pytest.approx(32768 * 1024 * (2 * 2 + 4))
    assert compiled["parameters"] == 0.0 < layers["parameters"]
    assert compiled["optimizer"] == layers["optimizer"]


def test_ffn_inputs_in_eight_bits_halve_what_the_activation_keeps():
    whole, stored = (
        parts({}, framework="megatron", ffn_inputs_8bit=eight)["activations"]
        for eight in (False, True)
    )
    ffn_inputs = 8 * 2048 * 2 * 4096  # layers, tokens, gate and up, width
    assert whole - stored == pytest.approx(ffn_inputs)


def expert_parts(framework="megatron", **options):
    model = Model(
        name="mixture", layers=4, hidden=1024, heads=8, kv_heads=8, head_dim=128, ffn=4096, vocab=32000,
        experts={"experts": 8, "top_k": 2, "ffn": 512},
    )  # fmt: skip
    job = Job(seq_len=2048, global_batch=1, framework=framework, framework_options=options)
    columns = from_layouts([Layout()])
    table = memory(model, job, behaviour(job), columns, stage_layers(model, columns), np.array([1]))
    return table.parts["first"]


def test_outputs_of_experts_are_kept_only_where_routing_weights_multiply_them():
    """Megatron-Core's weights multiply the activation inside an expert, two copies a token."""
    kept = expert_parts(expert_outputs_kept=True)["activations"]
    assert kept - expert_parts()["activations"] == 4 * 2 * WIDTH
    assert framework("torchtitan").expert_outputs_kept


def test_copies_on_their_way_are_held_once_beside_a_layers_backward():
    """Before and after an all-to-all: two tensors of the two copies of every token."""
    assert expert_parts()["recompute_peak"] == 2 * 2 * WIDTH


def test_gradients_that_are_used_at_once_are_whole_where_micro_batches_are_summed():
    first, summed = (
        parts({}, micro_batches=count, optimizer_in_backward=True)["gradients"] for count in (1, 4)
    )
    whole = parts({}, micro_batches=1)["gradients"]
    assert summed == whole
    assert first < whole / 4


def test_reducer_buckets_exist_only_between_replicas():
    """nanotron's static memory: 20 bytes a parameter with replicas, 18 without."""
    alone, two = (parts(dict(tp=1, dp=dp), full_width_buffers=0.0) for dp in (1, 2))
    count = two["parameters"] / 2.0
    states = ("parameters", "gradients", "optimizer", "buffers")
    assert sum(two[name] for name in states) == pytest.approx(20 * count)
    assert sum(alone[name] for name in states) == pytest.approx(18 * count)


def test_eager_softmax_keeps_fp32_probabilities_and_one_gradient():
    scores = 2048.0 * 2048.0 * 16
    how = dict(framework="megatron-2021", dropout=False)
    fused = parts(dict(dp=8), **how)
    eager = parts(dict(dp=8), fused_softmax=False, **how)
    assert eager["activations"] - fused["activations"] == pytest.approx(8 * 4 * scores)
    assert eager["recompute_peak"] - fused["recompute_peak"] == pytest.approx(4 * scores)


def test_sharded_layers_recompute_their_own_scores_only():
    how = dict(framework="megatron-2021", dropout=False, fused_softmax=False)
    whole = parts(dict(dp=8, recompute="full"), **how)["recompute_peak"]
    quarter = parts(dict(dp=2, tp=4, recompute="full"), **how)["recompute_peak"]
    scores = 2048.0 * 2048.0 * 16 * (2 + 4 + 4)
    assert whole - quarter >= 0.75 * scores


def test_workspaces_are_one_amount_whatever_the_layout():
    for layout in (dict(dp=8), dict(SPLIT, pp=2)):
        with_them = parts(layout, workspace_bytes=100e6)["buffers"]
        assert with_them - parts(layout, workspace_bytes=0.0)["buffers"] == pytest.approx(100e6)


def test_transformer_engine_keeps_the_inputs_of_fp8_products_in_eight_bits():
    wide, narrow = (
        parts(dict(dp=8), framework="megatron", precision=name)["activations"]
        for name in ("bf16-fp32-grads", "fp8")
    )
    # Two norms' outputs and the second FFN product's input halve; attention's output is copied.
    saved = (2 * 1024 + 4096 - 1024) * 2048.0
    assert wide - narrow == pytest.approx(8 * saved)
    eager = parts(dict(dp=8), framework="nanotron", precision="fp8")["activations"]
    assert eager == parts(dict(dp=8), framework="nanotron")["activations"]


def test_frozen_weights_need_no_inputs_for_their_gradients():
    whole = parts(dict(dp=8), framework="megatron")["activations"]
    adapters = parts(dict(dp=8), framework="megatron", lora_rank=16)["activations"]
    # The FFN is frozen: the input of its first product and of its last are not kept.
    assert whole - adapters == pytest.approx(8 * (1024 + 4096) * 2 * 2048.0)


def test_fsdp_in_a_pipeline_keeps_its_stage_gathered_and_sums_whole_gradients():
    """torch's FSDP2 without resharding: 2 bytes a weight and 4 a summed gradient, of a whole stage."""
    layout = dict(tp=1, pp=2, dp=4, zero=3)
    kept = parts(layout, framework="torchtitan")
    freed = parts(layout, framework="torchtitan", pipeline_unsharded=False)
    count = 4 * kept["optimizer"] / 12.0  # sharded over four replicas, twelve bytes each
    assert kept["gathered_parameters"] == pytest.approx((2 + 4) * count)
    assert freed["gathered_parameters"] < kept["gathered_parameters"] / 2
    alone = dict(tp=1, pp=1, dp=8, zero=3)
    assert parts(alone, framework="torchtitan") == parts(
        alone, framework="torchtitan", pipeline_unsharded=False
    )


def test_torchs_fsdp_keeps_no_16_bit_shard_beside_the_fp32_one_and_deepspeed_does():
    """Its shard is the fp32 weight that the optimizer updates, cast as a layer is gathered."""
    layout = dict(tp=1, pp=1, dp=8, zero=3)
    for name in ("torchtitan", "fsdp"):
        sharded = parts(layout, framework=name)
        beside = parts(layout, framework=name, zero3_shards_are_masters=False)
        assert sharded["parameters"] == 0.0
        assert beside["parameters"] == pytest.approx(sharded["optimizer"] / 12.0 * 2.0)
        assert parts(layout, framework=name, precision="pure-bf16")["parameters"] > 0.0
    assert parts(layout, framework="deepspeed")["parameters"] > 0.0
    assert parts(dict(tp=1, pp=1, dp=8, zero=2), framework="torchtitan")["parameters"] > 0.0


def test_fsdp_that_reduces_after_the_last_micro_batch_sums_whole_gradients():
    """transformers' Trainer and accelerate: no_sync around all but the last of the accumulated batches."""
    layout = dict(tp=1, pp=1, dp=8, zero=3)
    each = parts(layout, framework="trl")
    whole = parts(layout, framework="trl", accumulates_whole=True)
    bytes_each = RECIPES["bf16-fp32-grads"].gradient_reduce_bytes
    assert whole["gradients"] == pytest.approx(8 * each["parameters"] / 2.0 * bytes_each)
    assert {k: v for k, v in whole.items() if k != "gradients"} == {
        k: v for k, v in each.items() if k != "gradients"
    }
    assert parts(layout, framework="trl", micro_batches=1, accumulates_whole=True) == parts(
        layout, framework="trl", micro_batches=1
    )


def test_whole_sums_are_counted_once_where_a_pipeline_keeps_them():
    layout = dict(tp=1, pp=2, dp=4, zero=3)
    kept = parts(layout, framework="torchtitan")
    assert parts(layout, framework="torchtitan", accumulates_whole=True) == kept


def test_frozen_weights_that_fsdp_keeps_in_fp32_are_gathered_in_16_bits():
    layout = dict(tp=1, pp=1, dp=8, zero=3)
    lora = finetune_recipe({"method": "lora", "rank": 8})
    half = parts(layout, framework="torchtitan", tune=lora)
    wide = parts(layout, framework="torchtitan", tune=lora, frozen_bytes=4.0)
    nothing = parts(layout, framework="torchtitan", tune=lora, frozen_bytes=2.0)
    assert nothing == half
    assert 1.9 < wide["parameters"] / half["parameters"] < 2.0  # adapters stay as they are
    assert {k: v for k, v in wide.items() if k != "parameters"} == {
        k: v for k, v in half.items() if k != "parameters"
    }
    stored = finetune_recipe({"method": "qlora", "rank": 8})
    packed = parts(layout, framework="torchtitan", tune=stored)["parameters"]
    plain = parts(layout, framework="torchtitan", tune=stored, frozen_bytes=4.0)["parameters"]
    outside = 2 * MODEL.vocab * MODEL.hidden  # embedding and head, which are not quantised
    assert plain - packed == pytest.approx(2.0 * outside / 8, rel=0.01)


def test_blocks_of_shorter_sequences_stay_beside_those_of_the_longest():
    moving = {"activations": 2.0, "recompute_peak": 1.0, "logits": 5.0, "gathered_parameters": 0.0}
    columns = {name: np.array([size]) for name, size in moving.items()}
    same, varying = (framework("huggingface").but(lengths_vary=vary) for vary in (False, True))
    assert cached_bytes(columns, varying)[0] == pytest.approx(1.45 * 8.0)
    assert 0.0 < cached_bytes(columns, same)[0] < 0.4 * 8.0


def test_gradients_that_are_written_over_what_was_kept_take_no_room():
    """Liger's and Unsloth's SwiGLU: of three gradients in a layer's backward, one is a tensor of its own."""
    columns = from_layouts([Layout(micro_batch=2)])

    def backward(**options):
        job = Job(seq_len=2048, global_batch=2, framework="trl", framework_options=options)
        return layer_kept(MODEL, job, behaviour(job), columns, moe=False).backward[0]

    one = 2 * 2048 * MODEL.ffn * 2.0  # of the FFN's width in 16 bits
    assert MODEL.gated and backward() == backward(activation_in_place=True) == 3 * one
    assert backward(fused_activation=True) == 3 * one
    assert backward(fused_activation=True, activation_in_place=True) == one


def test_copies_of_the_update_count_only_where_activations_were_less():
    """They live when no activations do: the larger of both decides."""
    small = dict(tp=1, pp=1, dp=1, recompute="full")
    plain, copied = (parts(small, update_bytes=size) for size in (0.0, 100.0))
    count = plain["parameters"] / 2.0
    moving = ("activations", "recompute_peak", "logits", "gathered_parameters")
    there = sum(plain[name] for name in moving)
    assert there < 100.0 * count
    assert copied["buffers"] - plain["buffers"] == pytest.approx(100.0 * count - there)
    assert parts(small, update_bytes=1e-3) == plain


@given(
    layers=st.integers(1, 40),
    dense=st.integers(0, 6),
    period=st.integers(1, 8),
    pp=st.integers(1, 8),
)
def test_layers_with_experts_are_counted_one_by_one(layers, dense, period, pp):
    """Against the model's own rule for each layer, stage by stage."""
    pp, dense = min(pp, layers), min(dense, layers)
    model = MODEL.but(
        layers=layers,
        experts={"experts": 8, "top_k": 2, "ffn": 64, "period": period, "dense_layers": dense},
    )
    found = stage_layers(model, from_layouts([Layout(pp=pp, micro_batch=1)]))
    for role in ("first", "last") if pp > 1 else ("first",):
        count = int(found.total(role)[0])
        held = range(count) if role == "first" else range(layers - count, layers)
        assert found.moe[role][0] == sum(model.is_moe_layer(i) for i in held)
    if pp > 2:
        count, first, last = (int(found.total(r)[0]) for r in ("middle", "first", "last"))
        inner = range(first, layers - last - count + 1)
        most = max(
            (sum(model.is_moe_layer(i) for i in range(a, a + count)) for a in inner), default=0
        )
        assert most <= found.moe["middle"][0] <= -(-count // period)
