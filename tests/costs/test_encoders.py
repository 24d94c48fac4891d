"""Encoders of images and sound: their FLOPs and what they keep against transformers' own modules, and who pays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from meshwright.costs import encoders
from meshwright.costs.columns import from_layouts
from meshwright.costs.frameworks import behaviour_of
from meshwright.costs.step import estimate
from meshwright.engine.model.traced import tally
from meshwright.specs import load_cluster
from meshwright.specs.encoders import Encoder, encoder_fields
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import Finetune
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model

TEXT = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": 320, "head_dim": 32}  # fmt: skip
PLAIN = {"hidden_size": 96, "intermediate_size": 272, "num_attention_heads": 4, "patch_size": 14}
TOWERS: dict[str, tuple[dict[str, Any], int]] = {
    "gemma3": ({**PLAIN, "image_size": 112, "model_type": "siglip_vision_model", "vision_use_head": False}, 0),
    "llava": ({**PLAIN, "image_size": 112, "model_type": "clip_vision_model"}, 1),
    "internvl": ({**PLAIN, "image_size": [112, 112], "patch_size": [14, 14]}, 1),
    "llama4": ({**PLAIN, "intermediate_size": 384, "image_size": 112, "projector_input_dim": 64,
                "projector_output_dim": 64, "vision_output_dim": 64}, 1),
    "qwen2_5_vl": ({"hidden_size": 96, "intermediate_size": 160, "num_heads": 4, "out_hidden_size": 64,
                    "fullatt_block_indexes": [1]}, 0),
    "qwen3_vl": ({"hidden_size": 96, "intermediate_size": 272, "num_heads": 4, "out_hidden_size": 64,
                  "deepstack_visual_indexes": [0]}, 0),
}  # fmt: skip
"""A small tower of each family, and the tokens that it has beside its patches."""


def made(family: str, depth: int = 2) -> tuple[Any, Encoder]:
    vision, _ = TOWERS[family]
    deep = {"depth": depth} if family.startswith("qwen") else {"num_hidden_layers": depth}
    more = {"mm_tokens_per_image": 16} if family == "gemma3" else {}
    config = transformers.AutoConfig.for_model(
        family, text_config=TEXT, vision_config={**vision, **deep}, **more
    )
    fields = encoder_fields(tally(config.to_dict()))
    assert fields is not None
    model = transformers.AutoModelForImageTextToText.from_config(config)
    return model, Encoder.parse(fields)


def run(family: str, model: Any, encoder: Encoder, dtype: torch.dtype) -> Any:
    side = round(encoder.patches**0.5)
    if family.startswith("qwen"):
        patches = torch.zeros(
            encoder.patches, encoder.patch_parameters // encoder.hidden, dtype=dtype
        )
        return model.model.visual(patches, grid_thw=torch.tensor([[1, side, side]]))
    pixels = torch.zeros(1, 3, 14 * side, 14 * side, dtype=dtype)
    return getattr(model, "model", model).get_image_features(pixel_values=pixels)


@pytest.mark.parametrize("family", TOWERS)
def test_flops_are_those_of_transformers_modules(family, monkeypatch):
    """As torch counts them; Llama 4's get_image_features leaves its last projection out."""
    monkeypatch.setattr("meshwright.specs.encoders.USUAL_SIDE", 224)
    model, encoder = made(family)
    with torch.no_grad(), FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        run(family, model, encoder, torch.float32)
    if family == "llama4":
        last = 64 * TEXT["hidden_size"]
        encoder = encoder.but(projector_parameters=encoder.projector_parameters - last)
    beside = TOWERS[family][1]
    seen = encoders.Seen(1, encoder.patches + beside, encoder.tokens)
    patch_alone = 2.0 * beside * encoder.patch_parameters  # class tokens are no patches
    tolerance = 0.02 if encoder.window else 1e-6  # whose windows at the borders are smaller
    assert encoders.forward_flops(encoder, seen) - patch_alone == pytest.approx(
        counted.get_total_flops(), rel=tolerance
    )


@pytest.mark.parametrize("family", ["llava", "internvl", "qwen2_5_vl"])
def test_a_block_keeps_what_autograd_keeps_of_it(family, monkeypatch):
    monkeypatch.setattr("meshwright.specs.encoders.USUAL_SIDE", 224)
    found = []
    for depth in (2, 4):
        model, encoder = made(family, depth)
        model = model.to(torch.bfloat16)
        weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        held: dict[int, int] = {}
        alive = []

        def keep(tensor, weights=weights, held=held, alive=alive):
            storage = tensor.untyped_storage()
            alive.append(tensor)  # else another could take its place
            if storage.data_ptr() not in weights:
                held[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            run(family, model, encoder, torch.bfloat16)
        text = Model(layers=1, hidden=64, heads=2, kv_heads=2, head_dim=32, ffn=64, vocab=320, encoder=encoder)  # fmt: skip
        job = Job(framework="trl", precision=RECIPES["pure-bf16"])
        kept = encoders.kept(text, job, behaviour_of("trl"), from_layouts([Layout()]))
        assert kept is not None
        found.append((sum(held.values()), float(kept.whole[0])))
    (two, ours_two), (four, ours_four) = found
    assert ours_four - ours_two == pytest.approx(four - two, rel=0.03)


SEEING = Model(
    layers=16, hidden=2048, heads=16, kv_heads=16, head_dim=128, ffn=5504, vocab=32000, name="seeing",
    encoder=Encoder(
        parameters=420_000_000, layers=27, hidden=1152, heads=16, ffn=4304, patches=4096, joined=16,
        fixed=True, patch_parameters=677_376, projector_parameters=2_359_296,
    ),
)  # fmt: skip
CLUSTER = load_cluster("h100:1x8")
JOB = Job(seq_len=4096, global_batch=64, framework="megatron")
STAGES = Layout(dp=2, tp=1, pp=4)


def priced(job: Job = JOB, layout: Layout = STAGES, model: Model = SEEING) -> Any:
    return estimate(model, CLUSTER, job, layout)


def test_images_cost_the_first_stage_time_and_memory():
    text, one, two = (priced(JOB.but(images=count)) for count in (0, 1, 2))
    assert text.time_parts["encoder"] == 0
    assert two.time_parts["encoder"] == pytest.approx(2 * one.time_parts["encoder"], rel=0.05)
    assert one.step_time_s > text.step_time_s
    first, middle = ([one.stages[s].parts["activations"] - text.stages[s].parts["activations"] for s in (0, 1)])  # fmt: skip
    assert first > 0
    assert middle == 0
    # 25 TFLOP an image, three passes
    assert one.mfu * one.step_time_s > text.mfu * text.step_time_s
    assert priced() == one  # a sequence has one image of usual size unless the job says otherwise


def test_a_frozen_encoder_runs_forward_and_keeps_nothing():
    frozen = JOB.but(finetune=Finetune(method="full", freeze=("vision",)))
    free = priced(JOB.but(finetune=Finetune(method="full")))
    still, text = priced(frozen), priced(frozen.but(images=0))
    assert 0 < still.time_parts["encoder"] < 0.4 * free.time_parts["encoder"]
    assert still.stages[0].parts["activations"] == text.stages[0].parts["activations"]
    # 18 bytes of gradients, master copy and moments, sharded by nobody, less the weights' own two
    spared = free.stages[0].parts["optimizer"] - still.stages[0].parts["optimizer"]
    assert spared == 12 * SEEING.encoder.parameters


def test_blocks_run_again_with_the_layers():
    whole, again = (priced(layout=STAGES.but(recompute=mode)) for mode in ("none", "full"))
    assert again.time_parts["encoder"] > 1.25 * whole.time_parts["encoder"]
    assert again.stages[0].parts["activations"] < 0.5 * whole.stages[0].parts["activations"]


def test_tensor_parallel_ranks_share_an_encoder_where_the_framework_splits_it():
    """Megatron-Bridge's own tower of Qwen3-VL against those it takes from transformers; cp shares neither."""
    own = SEEING.but(encoder=SEEING.encoder.but(family="qwen3_vl"))
    job = JOB.but(framework="nemo")
    alone = priced(job, Layout(dp=8), own)
    for model, most, states in ((own, 0.6, 0.25), (SEEING, 1.01, 1.0)):
        one = priced(job, Layout(dp=2, tp=4), model)
        # As many images a rank in the step: four times the micro-batches on a fourth of the replicas.
        assert one.time_parts["encoder"] <= most * 4 * alone.time_parts["encoder"]
        text = priced(job, Layout(dp=2, tp=4), model.but(encoder=None))
        held = one.memory_parts["parameters"] - text.memory_parts["parameters"]
        assert held == pytest.approx(states * 2 * 420e6)
        long = priced(job, Layout(dp=4, cp=2), model)
        assert long.time_parts["encoder"] == pytest.approx(2 * alone.time_parts["encoder"])


def test_a_larger_image_is_seen_in_tiles_where_the_encoder_has_one_size():
    tiles = encoders.seen_of(SEEING, JOB.but(image_patches=3 * 4096))
    assert (tiles.images, tiles.patches) == (3, 4096)
    any_size = SEEING.but(encoder=SEEING.encoder.but(fixed=False))
    assert encoders.seen_of(any_size, JOB.but(image_patches=3 * 4096)).patches == 3 * 4096
    assert encoders.seen_of(SEEING, JOB.but(seq_len=128)) is None  # no room for one


def test_images_that_a_model_cannot_see_are_refused():
    with pytest.raises(SpecError, match=r"at most 16"):
        encoders.check_images(SEEING, JOB.but(images=17))
    with pytest.raises(SpecError, match=r"image_patches = 99999: at most 65,536"):
        encoders.check_images(SEEING, JOB.but(image_patches=99999))
    with pytest.raises(SpecError, match="has none"):
        encoders.check_images(SEEING.but(encoder=None), JOB.but(images=1))
    with pytest.raises(SpecError, match="unknown shape"):
        encoders.check_images(SEEING.but(encoder=Encoder(parameters=9)), JOB.but(images=1))
    with pytest.raises(SpecError, match="patches are at least 1"):
        Encoder.parse({"parameters": 9, "layers": 2})
