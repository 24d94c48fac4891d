"""One kernel for all experts' products, as on a GPU, equals a product for each; gradients too."""

import pytest
import torch

from meshwright.engine.model import experts
from meshwright.engine.model.experts import ExpertWeights


@pytest.mark.parametrize("clamped", [False, True])
@pytest.mark.parametrize("counts", [[3, 0, 5, 2], [10, 0, 0, 0], [0, 4, 0, 6]])
def test_grouped_products_equal_a_product_for_each_expert(monkeypatch, clamped, counts):
    torch.manual_seed(0)
    module = ExpertWeights(16, 24, len(counts), "silu", clamped).to(torch.bfloat16)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    rows = torch.randn(sum(counts), 16, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(sum(counts), 16, dtype=torch.bfloat16)

    def outcome():
        out = module(rows, torch.tensor(counts))
        found = torch.autograd.grad((out * weight).sum(), [rows, *module.parameters()])
        return [out.detach(), *found]

    apart = outcome()
    monkeypatch.setattr(experts, "has_grouped_products", lambda rows: True)
    together = outcome()
    for one, two in zip(apart, together, strict=True):
        # bf16 keeps 8 bits; sums of a group are made in another order.
        torch.testing.assert_close(one, two, rtol=0.02, atol=0.02 * float(one.abs().max()))


def test_a_cpu_has_a_product_for_each():
    assert not experts.has_grouped_products(torch.zeros(8, 16, dtype=torch.bfloat16))
