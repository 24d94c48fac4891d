"""Small clusters and models that the cost tests share."""

import pytest

from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import Job
from meshwright.specs.model import Model


@pytest.fixture
def llama70b():
    return Model(
        name="llama3-70b", layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672,
        vocab=128256,
    )  # fmt: skip


@pytest.fixture
def mixtral():
    return Model.parse(
        dict(
            name="mixtral", layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336,
            vocab=32000, experts=dict(experts=8, top_k=2, ffn=14336),
        )
    )  # fmt: skip


@pytest.fixture
def h100_64():
    return load_cluster("h100:8x8")


@pytest.fixture
def job():
    return Job(seq_len=8192, global_batch=512)
