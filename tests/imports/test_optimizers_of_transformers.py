"""Every optimizer that transformers' TrainingArguments take is priced under its own state."""

import importlib.util
import re
from pathlib import Path

import pytest

from meshwright.costs.step import estimate
from meshwright.imports.files import import_text
from meshwright.imports.reading import Given
from meshwright.imports.recipes import optimizer_named
from meshwright.specs import load_cluster, load_model

MODEL = load_model("llama3.1-8b")
CARD = Given(cluster=load_cluster("rtx4090:1x1"), model=MODEL, guess=True)
ARGUMENTS = "model_name_or_path: llama3.1-8b\nper_device_train_batch_size: 1\nmax_length: 2048\nbf16: true\ndtype: bfloat16\n"
LAYERS = "optim_target_modules: ['.*attn.*', '.*mlp.*']\n"


def run(words: str):
    return import_text(ARGUMENTS + words, "run.yaml", CARD)


def held(words: str) -> dict[str, float]:
    found = run(words)
    return estimate(MODEL, CARD.cluster, found.job, found.layout).memory_parts


def test_every_name_of_transformers_is_known():
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        pytest.skip("transformers is not here")
    text = (
        Path(found.origin).with_name("training_args.py").read_text()
    )  # read: importing it takes seconds
    names = re.findall(r'= "(\w+)"', text.split("class OptimizerNames")[1].split("\ndef ")[0])
    assert len(names) > 30
    for name in names:
        assert optimizer_named(name, "optim", 0.0).flops_per_parameter > 0, name


def test_projected_gradients_have_small_moments_by_their_rank():
    whole, galore, narrow = (
        held(words)["optimizer"]
        for words in (
            "optim: adamw_torch\n", "optim: galore_adamw\n" + LAYERS,
            "optim: galore_adamw\noptim_args: 'rank=16, scale=0.1'\n" + LAYERS,
        )
    )  # fmt: skip
    vocabulary = 2 * 2 * 2 * 128_256 * 4096  # two moments of 16 bits, embedding and head
    assert vocabulary < narrow < galore < whole / 4


@pytest.mark.parametrize("name", ["galore_adamw_layerwise", "apollo_adamw_layerwise", "lomo", "adalomo"])  # fmt: skip
def test_gradients_go_with_their_updates(name):
    found = run(f"optim: {name}\n{LAYERS}")
    assert found.job.framework_options["optimizer_in_backward"] is True
    assert held(f"optim: {name}\n{LAYERS}")["gradients"] < 2 * 2**30


def test_which_matrices_are_projected_is_said_where_it_is_not_all():
    def told(words: str) -> str:
        return " ".join(one.text for one in run("optim: galore_adamw\n" + words).remarks)

    assert "only some matrices" in told("optim_target_modules: [q_proj, v_proj]\n")
    assert "starts no such optimizer" in told("")
    assert "head" in told("optim_target_modules: all-linear\n")
    assert "project" not in told(LAYERS)


def test_llama_factory_and_axolotl_have_words_of_their_own():
    text = "model_name_or_path: llama3.1-8b\nstage: sft\ndo_train: true\nfinetuning_type: full\nuse_apollo: true\napollo_rank: 64\ndataset: a\ntemplate: llama3\ncutoff_len: 2048\npure_bf16: true\n"
    factory = import_text(text, "lf.yaml", CARD)
    assert (factory.job.optimizer.name, factory.job.optimizer.low_rank) == ("apollo", 64)
    text = "base_model: llama3.1-8b\ndatasets: []\nsequence_len: 2048\nmicro_batch_size: 1\nbf16: true\noptimizer: galore_adamw_8bit\noptim_args: {rank: 256}\n"
    axolotl = import_text(text + LAYERS, "ax.yaml", CARD)
    assert (axolotl.job.optimizer.name, axolotl.job.optimizer.low_rank) == ("galore8bit", 256)
