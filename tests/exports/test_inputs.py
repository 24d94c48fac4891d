"""What whoever launches fills in: a script that was not told its data, tokenizer or folder ends with a sentence."""

import os
import subprocess

import pytest
import yaml
from plans import make_plan

from meshwright.exports.inputs import block, of_megatron, of_tuner
from meshwright.exports.targets import FINETUNERS, FRAMEWORKS, export
from meshwright.imports.files import import_file
from meshwright.specs import Job
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.job import RECIPES
from meshwright.specs.models import load_model

ASKING = tuple(name for name, one in FRAMEWORKS.items() if one.inputs)


def decided(text, **filled):
    """(exit code, INPUTS, what was said) of a block under what was filled in."""
    done = subprocess.run(
        ["bash", "-c", f"set -eu\n{text}printf %s \"$INPUTS\""], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], **filled},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_what_is_not_filled_in_is_named_with_what_would_be_accepted():
    text = block(of_megatron(load_model("llama3-8b")))
    for filled, name, says in (
        ({}, "DATA", "or mock"),
        ({"DATA": "/data/a"}, "CHECKPOINTS", "a folder that every host sees, or none"),
        ({"DATA": ""}, "DATA", "preprocess_data.py"),
    ):
        code, _, said = decided(text, **filled)
        assert code
        assert f"{name}: is not set: " in said
        assert says in said
    unpublished = block(of_megatron(load_model("llama3-8b").but(source="")))
    code, _, said = decided(unpublished, DATA="/data/a", CHECKPOINTS="none")
    assert code
    assert "TOKENIZER: is not set" in said


def test_random_tokens_keep_nothing_and_data_come_with_their_tokenizer_and_folder():
    text = block(of_megatron(load_model("llama3-8b")))
    assert decided(text, DATA="mock")[1] == "--mock-data --tokenizer-type NullTokenizer"
    words = decided(text, DATA="0.3 /a 0.7 /b", CHECKPOINTS="/ckpt")[1].split()
    assert words[:5] == ["--data-path", "0.3", "/a", "0.7", "/b"]
    assert words[words.index("--tokenizer-model") + 1] == "meta-llama/Meta-Llama-3-8B"
    assert words[words.index("--save") + 1] == words[words.index("--load") + 1] == "/ckpt"
    assert "--save" not in decided(text, DATA="/a", CHECKPOINTS="none")[1]


SAID = {
    "trl": ["--dataset_name", "org/rows"],
    "axolotl": ["--datasets=[{'path':'org/rows','type':'alpaca'}]"],
    "llama-factory": ["dataset=org/rows"],
    "torchtune": ["dataset.source=org/rows"],
    "verl": ["data.train_files=org/rows"],
}


@pytest.mark.parametrize("tool", FINETUNERS)
def test_a_tool_for_fine_tuning_names_no_data_but_those_that_it_was_told(tool, tmp_path):
    text = block(of_tuner(tool))
    code, _, said = decided(text)
    assert code
    assert "DATA: is not set: a " in said
    assert "mock" not in said
    assert decided(text, DATA="org/rows")[1].split() == SAID[tool]
    job = Job(seq_len=2048, global_batch=64, framework=tool, precision=RECIPES["pure-bf16"],
              finetune=finetune_recipe({"method": "full"}))  # fmt: skip
    made = export(make_plan("llama3.1-8b", dp=8, zero=3, job=job), tool)
    script = made.files["run.sh"]
    assert text in script
    assert script.rstrip().endswith('$INPUTS "$@"')
    assert any("DATA is yours to fill in" in note for note in made.notes)
    made.write(tmp_path)
    told = import_file(tmp_path / "run.sh").remarks
    assert not [one for one in told if "DATA" in one.text or "INPUTS" in one.text]


@pytest.mark.parametrize("launcher", ["kubernetes", "jobset", "pytorchjob", "skypilot"])
def test_clusters_list_what_is_to_be_filled_in_first(launcher):
    made = export(make_plan("llama3-8b", dp=8), launcher, launches="megatron")
    text = next(iter(made.files.values()))
    names = ("DATA", "TOKENIZER", "CHECKPOINTS")
    if launcher == "skypilot":
        assert tuple(yaml.safe_load(text)["envs"])[:3] == names
    else:
        # Before anything is fetched or installed.
        assert text.index("- name: DATA") < text.index("- name: OMP_NUM_THREADS")
        assert text.index("DATA:?is not set") < text.index("git clone")
    assert "$INPUTS" in text


def test_slurm_hands_what_was_filled_in_to_every_host():
    text = export(make_plan("llama3-8b", dp=8), "slurm", launches="megatron").files["train.sbatch"]
    assert text.index("DATA:?is not set") < text.index("srun")
    assert text.rstrip().endswith('bash -c "$RUN" bash $INPUTS "$@"')


@pytest.mark.parametrize("name", ASKING)
def test_a_script_that_asks_is_read_back_without_a_word_about_it(name, tmp_path):
    if name == "maxtext":
        pytest.skip("its YAML is what is read")
    made = export(make_plan("llama3-8b", dp=8), name)
    made.write(tmp_path)
    assert "DATA=${DATA:-}" in made.files["run.sh"]
    told = [remark.text for remark in import_file(tmp_path / "run.sh").remarks]
    assert not [text for text in told if "DATA" in text or "INPUTS" in text or "mock" in text]


@pytest.mark.parametrize("launcher", ["kubernetes", "jobset", "pytorchjob"])
@pytest.mark.parametrize("framework", ["megatron", "fsdp", "trl"])
def test_pods_have_the_disk_that_holds_data_and_what_is_made(launcher, framework):
    if framework == "trl":
        job = Job(seq_len=2048, global_batch=64, finetune=finetune_recipe({"method": "full"}))
        plan = make_plan("llama3-8b", dp=8, zero=2, job=job)
    else:
        plan = make_plan("llama3-8b", dp=8)
    made = export(plan, launcher, launches=framework)
    text = next(iter(made.files.values()))
    assert "persistentVolumeClaim" in text
    assert text.count("mountPath: /shared") == text.count("claimName: training-shared") > 0
    assert any("training-shared (ReadWriteMany" in note for note in made.notes)
    # What a tool writes to a folder of its own would end with the pod.
    linked = "ln -sfn /shared/llama3-8b/outputs outputs" in text
    assert linked is (framework == "trl")
    measured = export(plan, launcher, launches="measure").files
    assert "training-shared" not in next(iter(measured.values()))


def test_machines_of_a_cloud_have_a_bucket_that_outlives_them():
    data = yaml.safe_load(
        export(make_plan("llama3-8b", dp=8), "skypilot", launches="fsdp").files["sky.yaml"]
    )
    assert data["file_mounts"] == {"/shared": {"name": "${BUCKET}", "mode": "MOUNT_CACHED"}}
    assert data["envs"]["BUCKET"] == "training-llama3-8b"


def test_a_container_under_slurm_sees_every_whole_path_that_the_run_is_told(tmp_path):
    text = export(make_plan("llama3-8b", dp=8), "slurm", launches="fsdp").files["train.sbatch"]
    start, end = text.index("HERE="), text.index("# Each task reads")
    (tmp_path / "kept").mkdir()
    told = {"CONTAINER": "image", "DATA": f"{tmp_path}/a.npy /other/b", "CHECKPOINTS": f"{tmp_path}/kept",
            "PATH": os.environ["PATH"], "SLURM_SUBMIT_DIR": str(tmp_path / "run")}  # fmt: skip
    (tmp_path / "run").mkdir()
    shell = f'set -euo pipefail\n{text[start:end]}\nprintf "%s\\n" "${{HOOKS[@]}}"'
    done = subprocess.run(["bash", "-c", shell, "bash", "--weights", "/models/m"], capture_output=True, text=True,
                          check=True, env=told)  # fmt: skip
    places = [f"{tmp_path}/run", f"{tmp_path}", "/other", f"{tmp_path}/kept", "/models"]
    assert f"--container-mounts={','.join(f'{one}:{one}' for one in places)}" in done.stdout


@pytest.mark.parametrize("target", ["accelerate", "torchtitan"])
def test_the_script_that_starts_an_export_brings_back_all_of_it(target, tmp_path):
    """Of accelerate's the model, lengths and batches, which its YAML alone does not say."""
    kernel = "unfused" if target == "accelerate" else "flash"
    job = Job(
        seq_len=8192, global_batch=64, attention_kernel=kernel, precision=RECIPES["bf16-fp32-grads"]
    )
    plan = make_plan("llama3.1-8b", dp=8, zero=3, micro_batch=2, job=job)
    export(plan, target).write(tmp_path)
    back = import_file(tmp_path / "run.sh")
    assert (back.layout.zero, back.layout.micro_batch) == (3, 2)
    assert (back.job.seq_len, back.job.global_batch) == (8192, 64)
    assert back.job.attention_kernel == kernel
    assert (back.model.hidden, back.model.ffn) == (plan.model.hidden, plan.model.ffn)
