"""Time of layers that mix tokens by a scan, and of models whose layers are blocks of one part."""

import numpy as np
import pytest

from meshwright.costs.kernels import kernels_for, scan_time_s
from meshwright.costs.mixers import equivalent_keys, layer_shares
from meshwright.specs.devices import load_device
from meshwright.specs.model import Mixer
from meshwright.specs.models import load_model


def scan_ms(device: str, mixer: Mixer, tokens: int) -> float:
    flops = 2.0 * equivalent_keys(mixer) * (mixer.key_dim + mixer.head_dim) * mixer.heads * tokens
    kernels = kernels_for(load_device(device), "bf16")
    return 1e3 * float(scan_time_s(kernels, np.array([flops]), backward=False)[0])


@pytest.mark.parametrize(
    ("device", "kind", "heads", "tokens", "measured_ms"),
    [
        # mamba_chunk_scan_combined and chunk_gated_delta_rule of ai-dynamo/aiconfigurator's tables
        ("b200", "mamba2", 128, 8192, 0.715),
        ("b200", "mamba2", 256, 8192, 1.42),
        ("b200", "gated-delta", 64, 65536, 6.13),
        ("h100", "gated-delta", 64, 65536, 7.42),
        ("h200", "gated-delta", 64, 65536, 6.84),
        ("gb200", "gated-delta", 48, 65536, 4.52),
    ],
)
def test_scans_take_what_they_were_measured_at(device, kind, heads, tokens, measured_ms):
    width = 64 if kind == "mamba2" else 128
    mixer = Mixer(kind=kind, heads=heads, head_dim=width, key_heads=8, key_dim=128)
    assert scan_ms(device, mixer, tokens) == pytest.approx(measured_ms, rel=0.15)


def test_a_scans_backward_takes_more_than_its_products():
    """Three and a half times its forward by itself (pytorch/helion examples/linear/BENCHMARKS.md), for 8/3 the products."""
    kernels, flops = kernels_for(load_device("b200"), "bf16"), np.array([1e12])
    forward = scan_time_s(kernels, flops, backward=False)[0]
    assert scan_time_s(kernels, flops, backward=True)[0] > 3.4 * forward


def test_blocks_of_one_part_have_one_residual_sum_and_one_pair_of_collectives():
    parted, plain = load_model("nemotron-3-super-120b-a12b"), load_model("llama-3-8b")
    assert layer_shares(parted, moe=False).parts == layer_shares(parted, moe=True).parts == 1.0
    assert layer_shares(plain, moe=False).parts == 2.0
