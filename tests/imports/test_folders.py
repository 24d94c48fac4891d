"""A folder: which runs it holds, where they lie, and what belongs to one run."""

from pathlib import Path

import pytest

from meshwright.exports.targets import FINETUNERS, export
from meshwright.imports.files import import_file
from meshwright.imports.reading import Given
from meshwright.planner.plan import price_layout
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model

ZERO = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
ARGUMENTS = "model_name_or_path: Qwen/Qwen3-4B\nper_device_train_batch_size: 2\nbf16: true\nmax_seq_length: 2048\n"
SCRIPT = "accelerate launch --num_processes 4 sft.py {}\n"
GUESS = Given(guess=True)


def _write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_script_and_the_configuration_that_it_names_are_one_run(tmp_path: Path):
    folder = _write(tmp_path, go_dot_sh=SCRIPT.format("sft.yaml"), sft_dot_yaml=ARGUMENTS)
    back = import_file(folder, GUESS)
    assert (back.cluster.gpus, back.model.name) == (4, "qwen3-4b")


def test_runs_below_are_found_and_engines_are_no_runs(tmp_path: Path):
    folder = _write(tmp_path, ds_dot_json=ZERO, a__b__go_dot_sh=SCRIPT.format("c.yaml"), a__b__c_dot_yaml=ARGUMENTS,
                    tests__t_dot_yaml=ARGUMENTS)  # fmt: skip
    assert import_file(folder, GUESS).cluster.gpus == 4


@pytest.mark.parametrize("given", [GUESS, Given()])
def test_several_runs_are_named_even_where_each_asks_for_something(tmp_path: Path, given: Given):
    folder = _write(tmp_path, one_dot_yaml=ARGUMENTS, two_dot_yaml=ARGUMENTS, ds_dot_json=ZERO)
    with pytest.raises(SpecError, match=r"several runs: name one of one\.yaml, two\.yaml"):
        import_file(folder, given)


def test_an_engines_file_alone_asks_for_the_rest(tmp_path: Path):
    with pytest.raises(SpecError, match="--model"):
        import_file(_write(tmp_path, ds_dot_json=ZERO), GUESS)


@pytest.mark.parametrize("launcher", ["kubernetes", "jobset", "pytorchjob", "skypilot", "ray"])
@pytest.mark.parametrize("name", ["llama-factory", "torchtune", "lightning", "primus"])
def test_what_a_cluster_starts_and_the_files_that_it_hands_over_are_one_run(name, launcher, tmp_path: Path):  # fmt: skip
    tunes = name in FINETUNERS
    zero = {"torchtune": 3, "llama-factory": 2, "lightning": 3}.get(name, 1)
    words = (
        {"finetune": finetune_recipe("full"), "precision": RECIPES["pure-bf16"]} if tunes else {}
    )
    job = Job(seq_len=2048, global_batch=64, framework=name, **words)
    layout = Layout(dp=8, zero=zero, micro_batch=2)
    plan = price_layout(load_model("llama3.1-8b"), load_cluster("h100:1x8"), job, layout)
    export(plan, launcher, launches=name).write(tmp_path)
    back = import_file(tmp_path)
    assert (back.layout, back.cluster.name) == (plan.layout, plan.cluster.name)
    assert (back.job.global_batch, back.job.seq_len, back.model.name) == (64, 2048, "llama3.1-8b")


LOOP = """
batch_size = 6
block_size = 512
n_embd, n_head, n_layer = 640, 5, 10
x = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
optimizer = torch.optim.AdamW(model.parameters())
loss.backward()
optimizer.step()
"""
LLMC = "mpirun -np 8 ./train_gpt2cu -b 16 -t 1024 -d 1048576 -z 1 -e d12\n"


def test_a_project_whose_files_all_lie_below_is_read(tmp_path: Path):
    folder = _write(tmp_path, a__b__train_dot_py=LOOP, pyproject_dot_toml="[project]\nname = 'a'\n")
    assert import_file(folder, GUESS).format == "training loop of one's own"


def test_what_starts_a_program_counts_before_the_programs_own_defaults(tmp_path: Path):
    folder = _write(tmp_path, train_dot_py=LOOP, scripts__run_dot_sh=LLMC)
    assert import_file(folder, GUESS).format == "llm.c command"


def test_a_project_without_a_run_is_refused_by_what_is_called_a_training(tmp_path: Path):
    folder = _write(
        tmp_path,
        a__b_dot_py="x = 1\n",
        a__train_it_dot_py="y = 2\n",
        x__data__pre_dot_yaml="repos: []\n",
    )
    with pytest.raises(SpecError, match=r"holds no training run.*2 files were tried.*train_it\.py"):
        import_file(folder, GUESS)


def test_conversions_and_vocabularies_are_no_runs(tmp_path: Path):
    maxtext = "python3 -m MaxText.utils.ckpt_conversion.to_maxtext configs/base.yml model_name=gemma2-2b\n"
    words = "{" + ", ".join(f'"w{one}": {one}' for one in range(600)) + ', "hidden_size": 7}'
    folder = _write(tmp_path, a__one_dot_sh=maxtext, a__vocab_dot_json=words, a__run_dot_sh=LLMC)
    assert import_file(folder, GUESS).format == "llm.c command"
