"""slime's own options: what a step pays for beside Megatron-LM's is named, and what trains nothing is refused."""

import pytest

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

GIVEN = Given(cluster=load_cluster("h100:4x8"), guess=True)
RUN = ("#!/bin/bash\npython3 train.py --actor-num-nodes 4 --actor-num-gpus-per-node 8 --colocate --rollout-batch-size 32 --n-samples-per-prompt 8 "
       "--global-batch-size 256 --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
       "--num-query-groups 8 --swiglu --normalization RMSNorm --vocab-size 128256 --seq-length 8192 --max-tokens-per-gpu 8192 ")  # fmt: skip


@pytest.mark.parametrize(
    ("said", "option"),
    [
        ("--advantage-estimator ppo", "--advantage-estimator"),
        ("--use-kl-loss --kl-loss-coef 0.01", "--use-kl-loss"),
        ("--entropy-coef 0.01", "--entropy-coef"),
        ("--log-probs-chunk-size 1024", "--log-probs-chunk-size"),
        ("--custom-model-provider-path a.b", "--custom-model-provider-path"),
        ("--custom-loss-function-path a.b --loss-type custom_loss", "--custom-loss-function-path"),
        ("--megatron-deepgemm-forward-layers 1 2", "--megatron-deepgemm-forward-layers"),
        ("--output-layer-slice-num 4", "--output-layer-slice-num"),
    ],
)
def test_what_changes_the_step_is_named(said, option):
    named = {one.option for one in import_text(RUN + said, "run.sh", GIVEN).remarks if one.kind == "unmodelled"}  # fmt: skip
    assert option in named


@pytest.mark.parametrize("unknown", ["--custom-thing 3", "--megatron-thing 3", "--share-thing", "--layer-thing 2", "--output-thing 2"])  # fmt: skip
def test_unknown_options_are_never_silent(unknown):
    found = import_text(RUN + unknown, "run.sh", GIVEN)
    assert any(one.kind == "unread" and unknown.split()[0] in one.option for one in found.remarks)


def test_supervised_runs_are_no_reinforcement_learning():
    notes = " ".join(import_text(RUN + "--loss-type sft_loss", "run.sh", GIVEN).notes)
    assert "supervised" in notes and "reinforcement" not in notes


def test_micro_batches_fill_the_ranks_that_share_a_sequence():
    assert import_text(RUN + "--context-parallel-size 2", "run.sh", GIVEN).layout.micro_batch == 2
    assert import_text(RUN, "run.sh", GIVEN).layout.micro_batch == 1
    unsaid = import_text(RUN.replace("--seq-length 8192 ", ""), "run.sh", GIVEN)
    assert "--seq" in {one.option for one in unsaid.remarks if one.kind == "guess"}


def test_options_without_a_command_compute_in_what_is_guessed():
    shape = RUN[RUN.index("--num-layers") :].replace("--max-tokens-per-gpu 8192", "")
    found = import_text(f"MODEL_ARGS=({shape})\n", "model.sh", GIVEN)
    assert "--bf16" in {one.option for one in found.remarks if one.kind == "guess"}


def test_the_other_engine_shards_the_weights():
    found = import_text(RUN + "--train-backend fsdp --gradient-checkpointing", "run.sh", GIVEN)
    assert found.layout.zero == 3 and found.layout.recompute == "full"


def test_rollouts_alone_train_nothing():
    with pytest.raises(SpecError, match="does not train"):
        import_text(RUN + "--debug-rollout-only", "run.sh", GIVEN)


def test_pictures_are_no_text():
    with pytest.raises(SpecError, match="vision-language"):
        import_text(RUN + """--multimodal-keys '{"image": "images"}'""", "run.sh", GIVEN)


@pytest.mark.parametrize(("value", "named"), [("1", True), ("0", False)])
def test_a_variable_of_the_job_that_rounds_weights_is_named(value, named):
    job = f"""ray job submit --runtime-env-json='{{"env_vars": {{"OPEN_TRAINING_INT4_FAKE_QAT_FLAG": "{value}"}}}}' -- python3 train.py """
    text = RUN.replace("python3 train.py ", job)
    found = import_text(text, "run.sh", GIVEN)
    assert any("INT4" in one.option for one in found.remarks) == named


def test_a_launcher_s_default_of_the_environment_is_taken():
    words = RUN.partition("train.py ")[2].replace(
        "--actor-num-gpus-per-node 8", "--actor-num-gpus-per-node {GPUS}"
    )
    text = f'import os\nGPUS = int(os.environ.get("GPUS_OF_MINE", "4"))\n\n\ndef main():\n    train_args = f"{words}"\n    U.execute_train(train_args=train_args)\n'
    assert import_text(text, "run.py", Given(guess=True)).cluster.gpus == 16
