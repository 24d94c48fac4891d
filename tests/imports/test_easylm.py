"""EasyLM's trainers of other families and for preferences."""

from folders import GUESS

from meshwright.imports.files import import_text

RUN = """export TPU_NAME='v4-64'
python -m EasyLM.models.{program} --mesh_dim='1,-1,4' --dtype=bf16 --optimizer.accumulate_gradient_steps=64 {rest} \\
  --train_dataset.type={kind} --train_dataset.json_dataset.seq_length=8192 --train_dataset.json_dataset.batch_size=8
"""


def run(program: str = "gemma.gemma_train", kind: str = "json", rest: str = ""):
    return import_text(RUN.format(program=program, kind=kind, rest=rest), "train.sh", GUESS)


def test_another_family_on_the_slice_that_the_script_names():
    found = run()
    assert (found.model.name, found.layout.tp, found.layout.world) == ("gemma-7b", 4, 32)
    assert "TPU v4" in found.cluster.device.name
    assert (found.job.global_batch, found.layout.micro_batch) == (512, 1)


def test_preferences_hold_a_reference_unless_its_answers_are_known():
    dpo = "llama.llama_train_dpo"
    found = run(dpo, "preference_json_torch", "--load_llama_config=1b")
    assert (found.task, found.reference) == ("dpo", True)
    assert (found.model.layers, found.model.hidden, found.job.seq_len) == (22, 2048, 8192)
    known = run(dpo, rest="--load_llama_config=1b --precalculate_reference_logps=True")
    assert not known.reference


def test_what_its_optimizer_is_and_what_it_is_not():
    assert run(rest="--optimizer.type=lion").job.optimizer.name == "lion"
    palm = run(rest="--optimizer.type=palm --optimizer.adamw_optimizer.bf16_momentum=True")
    assert any("palm" in note for note in palm.notes)
    assert any("16 bits" in note for note in palm.notes)


def test_a_trainer_s_words_to_a_program_for_flax():
    said = "python3 run_clm_flax.py --model_name_or_path gpt2 --dtype bfloat16 --block_size 512 --do_train --per_device_train_batch_size 2\n"
    found = import_text(said, "run.sh", GUESS)
    assert found.job.framework == "maxtext" and found.layout.dp == 8 and found.layout.zero == 0
    assert found.job.precision.parameter_bytes == 4 and found.job.precision.compute == "bf16"


def test_the_policy_of_a_ppo_run_says_the_model():
    assert run("llama.llama_train_ppo", rest="--load_llama_config_policy=3b").model.layers == 26
