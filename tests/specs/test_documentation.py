"""The examples of docs/models.md and docs/clusters.md are read by the real readers."""

import re
from pathlib import Path

import pytest

from meshwright.specs.clusters import load_cluster
from meshwright.specs.huggingface import families
from meshwright.specs.job import OPTIMIZERS, RECIPES
from meshwright.specs.jobs import load_job
from meshwright.specs.models import load_model

DOCS = Path(__file__).parents[2] / "docs"


def examples(page):
    return re.findall(r"```toml\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)


def test_the_cluster_example(tmp_path):
    (tmp_path / "c.toml").write_text(examples("clusters.md")[0])
    cluster = load_cluster(tmp_path / "c.toml")
    assert [level.domain for level in cluster.levels] == [8, 128, 256]


def test_the_model_and_job_examples(tmp_path):
    images, encoder, model_text, job_text = examples("models.md")
    job_text += images
    model_text += encoder
    (tmp_path / "m.toml").write_text(model_text)
    (tmp_path / "j.toml").write_text(job_text)
    assert load_model(tmp_path / "m.toml").experts.experts == 64
    assert load_job(tmp_path / "j.toml").global_batch == 512


def test_the_page_names_every_family():
    page = (DOCS / "models.md").read_text("utf-8")
    listed = set(
        re.findall(r"[\w-]+", page.split("Supported `model_type`s:")[1].split(". Of multimodal")[0])
    )
    named = {family.removesuffix("_text") for family in families()} - {"phi4"}
    assert named <= listed


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_the_recipe_table(name):
    recipe, adamw = RECIPES[name], OPTIMIZERS["adamw"]
    parts = (recipe.parameter_bytes, recipe.gradient_bytes, recipe.master_bytes, adamw.state_bytes)
    row = next(
        line
        for line in (DOCS / "models.md").read_text("utf-8").splitlines()
        if line.startswith("|") and f"`{name}`" in line and "|" in line[3:]
    )
    cells = [int(cell) for cell in re.findall(r"\| (\d+) (?=\|)", row)]
    assert cells == [*parts, sum(parts)]
