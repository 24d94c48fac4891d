"""torchtitan's and nanotron's files take their data, tokenizer and folder from the environment, or end with a sentence."""

import os
import subprocess
import sys
import types

import pytest
import yaml
from plans import make_plan

from meshwright.exports.targets import export
from meshwright.imports.files import import_file

PRINTS = "import sys\nprint(open(sys.argv[sys.argv.index('--config-file') + 1]).read())\n"


@pytest.fixture(scope="module")
def nanotron(tmp_path_factory):
    """An export, beside a clone of nanotron whose program only prints the file that it is given."""
    folder = tmp_path_factory.mktemp("nanotron")
    export(make_plan("llama3-8b", dp=8), "nanotron").write(folder)
    (folder / "clone").mkdir()
    (folder / "clone" / "run_train.py").write_text(PRINTS)
    return folder


def completed(folder, **told):
    """What nanotron reads, or what the program says instead."""
    done = subprocess.run(
        [sys.executable, "run_train.py", "--config-file", "nanotron.yaml"], cwd=folder, capture_output=True,
        text=True, check=False, env={"PATH": os.environ["PATH"], "NANOTRON": str(folder / "clone"), **told},
    )  # fmt: skip
    return yaml.safe_load(done.stdout) if not done.returncode else done.stderr


def test_nanotron_s_file_is_completed_by_what_was_named(nanotron, tmp_path):
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "a.ds").touch()
    (tmp_path / "latest.txt").touch()
    made = completed(
        nanotron, DATA=f"{tmp_path}/tokens", TOKENIZER="gpt2", CHECKPOINTS=str(tmp_path)
    )
    assert made["data_stages"][0]["data"]["dataset"]["dataset_folder"] == [f"{tmp_path}/tokens"]
    assert made["tokenizer"]["tokenizer_name_or_path"] == "gpt2"
    kept = made["checkpoints"]
    assert kept["checkpoints_path"] == kept["resume_checkpoint_path"] == str(tmp_path)
    assert kept["checkpoint_interval"] == 500
    made = completed(nanotron, DATA="allenai/c4:en", CHECKPOINTS="none")
    assert made["data_stages"][0]["data"]["dataset"]["hf_dataset_config_name"] == "en"
    assert made["checkpoints"]["checkpoint_interval"] > made["tokens"]["train_steps"]
    assert completed(nanotron, DATA="mock")["data_stages"][0]["data"]["dataset"] is None


def test_nanotron_without_data_or_its_clone_says_so(nanotron):
    assert "DATA: is not set: folders of tokens" in completed(nanotron)
    assert "a clone of huggingface/nanotron is expected" in completed(
        nanotron, DATA="mock", NANOTRON="."
    )


def test_nanotron_s_script_is_read_back(nanotron):
    assert import_file(nanotron / "run.sh").layout.dp == 8


class Anything:
    """Takes every name and call, and keeps what it was called with."""

    def __init__(self, **said):
        self.said = said

    def __call__(self, *args, **words):
        return Anything(**words)

    def __getattr__(self, name):
        return Anything()


@pytest.fixture
def recipe(monkeypatch):
    """The names of an exported recipe over stand-ins of torchtitan's."""
    text = export(make_plan("llama3.1-8b", dp=8, zero=3), "torchtitan").files["recipe.py"]
    for line in text.splitlines():
        if line.startswith(("from torchtitan", "from datasets", "from huggingface_hub")):
            name, _, names = line.removeprefix("from ").partition(" import ")
            made = types.ModuleType(name)
            for one in names.split(", "):
                setattr(made, one, {} if one == "DATASETS" else Anything())
            monkeypatch.setitem(sys.modules, name, made)
    names = {"__name__": "recipe"}
    exec(compile(text, "recipe.py", "exec"), names)
    return names


def test_torchtitan_s_recipe_reads_and_saves_what_was_named(recipe, monkeypatch):
    for name in ("DATA", "CHECKPOINTS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit, match="DATA: is not set: a data set of the hub"):
        recipe["dataloader"]()
    assert recipe["checkpoint"]().said == {"enable": False}
    monkeypatch.setenv("DATA", "allenai/c4:en")
    monkeypatch.setenv("CHECKPOINTS", "/shared/run1")
    assert recipe["dataloader"]().said == {"dataset": "data"}
    kept = recipe["checkpoint"]().said
    assert (kept["folder"], kept["interval"]) == ("/shared/run1", 500)
    assert kept["last_save_model_only"] is False  # or the end of a run could not be gone on from
    asked = []
    monkeypatch.setitem(recipe, "load_dataset", lambda *words, **more: asked.append((words, more)))
    recipe["texts"]("allenai/c4:en")
    recipe["texts"]("/data/a.jsonl /data/b.jsonl")
    assert asked[0][0] == ("allenai/c4", "en")
    assert asked[1][1]["data_files"] == ["/data/a.jsonl", "/data/b.jsonl"]


def test_ray_s_workers_are_told_what_was_filled_in_and_where_a_clone_lies(tmp_path):
    text = export(make_plan("llama3-8b", dp=8), "ray", launches="nanotron").files["ray_train.py"]
    assert "'NANOTRON'" in text[text.index("told = {") :]
    head = text[text.index("ASKED = ") : text.index("\n\nWORDS = ")]
    program = f"import os, subprocess, sys\n{head}\nprint(filled(), os.environ['CHECKPOINTS'])\n"
    done = subprocess.run(
        [sys.executable, "-c", program.replace("CHECKPOINTS:-", "CHECKPOINTS:-/shared/a")], capture_output=True,
        text=True, check=True, env={"PATH": os.environ["PATH"], "DATA": "allenai/c4:en"},
    )  # fmt: skip
    assert done.stdout.split() == ["[]", "/shared/a"]
