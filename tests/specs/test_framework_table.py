"""The table of frameworks: typed, sourced, and the same for planner and exports."""

import pytest

from meshwright.exports.targets import FRAMEWORKS
from meshwright.specs.errors import SpecError
from meshwright.specs.frameworks import (
    Framework,
    find_framework,
    framework,
    framework_names,
    names_of_one_program,
    planned_as,
    source_of,
)
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.job_words import job_lacks
from meshwright.specs.layout import AXES, SCHEDULES
from meshwright.specs.models import load_model
from meshwright.specs.presets import table

FREE = ("name", "title", "aliases", "behaviour", "checked", "released", "base", "sources")


@pytest.mark.parametrize("name", framework_names())
def test_every_cell_given_has_a_source_and_every_source_a_cell(name):
    row = table("frameworks")[name]
    given = set(row) - set(FREE)
    assert given == set(row["sources"]) - set(FREE)
    assert "title" in row["sources"]
    for cell in set(Framework.model_fields) - set(FREE):
        assert source_of(name, cell)


@pytest.mark.parametrize("name", framework_names())
def test_cells_use_the_words_of_the_nouns(name):
    known = framework(name)
    assert set(known.schedules) <= set(SCHEDULES)
    assert set(known.optimizers) <= set(OPTIMIZERS)
    assert set(known.optimizers_sharded) <= set(OPTIMIZERS)
    for order in known.rank_orders:
        assert sorted(order.split("-")) == sorted(AXES)
    assert bool(known.schedules) == known.has("pp")
    assert bool(known.context_methods) == known.has("cp") or name.startswith("megatron-")
    assert known.recompute[0] == "none"
    for tp in (1, 2):
        for pp in (1, 2) if known.has("pp") else (1,):
            assert known.zero_stages(tp=tp, pp=pp)


def test_every_export_target_has_a_row_and_a_version_it_was_checked_against():
    for name, target in FRAMEWORKS.items():
        row = framework(name)
        assert target.limits.can == row
        assert target.version == row.checked


def test_a_job_knows_a_framework_by_any_of_its_names():
    assert find_framework("Megatron-Bridge") == "nemo"
    assert Job(framework="megatron-bridge").framework == "nemo"
    with pytest.raises(SpecError, match="megatron"):
        find_framework("megatrn")


def test_moments_of_16_bits_beside_fp32_masters_where_a_stack_has_them():
    """DeepSeek-V3's (arXiv 2412.19437, section 3.3); whoever updates 16-bit weights has them in any case."""
    job = Job(framework="hai-llm", optimizer=OPTIMIZERS["adamw-bf16"], precision=RECIPES["fp8"])
    assert job_lacks(job, framework("hai-llm")) == []
    assert any(field == "job.optimizer" for field, _, _ in job_lacks(job, framework("trl")))


def test_one_program_under_two_names_is_planned_by_what_it_shards():
    assert names_of_one_program("megatron-fsdp") == ("megatron-fsdp", "megatron")
    names = [planned_as("megatron-fsdp", zero) for zero in range(4)]
    assert names == [planned_as("megatron", zero) for zero in range(4)]
    assert names == ["megatron", "megatron", "megatron-fsdp", "megatron-fsdp"]
    assert {planned_as("torchtitan", zero) for zero in range(4)} == {"torchtitan"}


def test_sparse_attention_gathers_its_keys_under_megatron():
    """GLM-5.2's recipe of Megatron-Bridge: DSAttention knows one way to meet other ranks' keys, TE's latent another."""
    sparse, latent = load_model("glm-5.2"), load_model("deepseek-v3")
    for name in ("megatron", "nemo", "megatron-fsdp"):
        assert framework(name).context_methods_of(sparse) == ("all-gather",)
        assert framework(name).context_methods_of(latent) == ("ring",)
    assert framework("any").context_methods_of(sparse) == framework("any").context_methods_of(
        latent
    )
