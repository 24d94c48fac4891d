"""Files that are no training, shells inside commands, and a tool's own defaults."""

import pytest

from meshwright.exports.stamp import Stamp
from meshwright.imports.documents import read as read_document
from meshwright.imports.reading import Given, Reading
from meshwright.imports.scripts import read as read_shell
from meshwright.imports.shell.follow import read_script
from meshwright.specs.errors import SpecError


def of_table(text: str, name: str = "run.yaml") -> Reading:
    return read_document(text, name, Given(), None, Stamp())[0]


FILTER = "model_name_or_path: Qwen/Qwen2.5-7B\nnum_generations: 8\nmax_completion_length: 2048\npass_rate_min: 0.1\n"


def test_a_table_that_filters_a_data_set_does_not_train():
    with pytest.raises(SpecError, match="filters a data set"):
        of_table(FILTER)
    trained = of_table(FILTER + "learning_rate: 1.0e-6\n")  # a run that filters as it goes
    assert trained.model_name == "Qwen/Qwen2.5-7B"


RECORD = (
    '{"model": "Qwen/Qwen2.5-7B", "learning_rate": 1e-5, "batch_size": 16, "seq_length": 4096%s}'
)


def test_a_record_of_what_a_run_came_to_is_no_configuration():
    with pytest.raises(SpecError, match="record of what a run came to"):
        of_table(RECORD % ', "train_loss": 1.2, "tokens_per_sec": 900.5', "a.json")
    assert of_table(RECORD % ', "train_loss": 0, "log_mfu": true', "a.json").seq_len == 4096


@pytest.mark.parametrize(
    "shell",
    [
        "srun bash -c",
        "docker run image bash -lc",
        "/bin/bash -lc",
        "mpirun -n 2 sh -l -c",
        "sudo -E bash -c",
    ],
)
def test_variables_that_a_shell_inside_a_command_sets(shell):
    script = read_script(
        f"TP=2\n{shell} 'export TP=4 MB=1\ncd /x && torchrun train.py --tp $TP --mb ${{MB}}'\necho a > b; prog $TP"
    )
    words = script.commands[0].words
    assert words[words.index("--tp") :] == ["--tp", "4", "--mb", "1"]
    assert script.commands[-1].words == ["prog", "2"]  # what it set stays within


AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\nsequence_len: 2048\nlearning_rate: 1.0e-5\nadapter: lora\nlora_r: 8\nlora_alpha: 8\nlora_target_linear: true\n"


@pytest.mark.parametrize(
    ("more", "precision"),
    [("", "bf16"), ("fp16: false\n", "bf16"), ("bf16: false\n", "fp32"), ("fp16: true\n", "fp16")],
)
def test_axolotl_computes_in_bf16_where_nothing_is_said(more, precision):
    assert of_table(AXOLOTL + more).job["precision"]["name"] == precision


MOE = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 4 --seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 8 --num-experts 4 --moe-router-topk 2 --bf16 --vocab-size 320 --moe-token-drop-policy position"


def test_a_policy_of_dropping_drops_nothing_without_a_capacity():
    for more, said in (("", False), (" --moe-expert-capacity-factor 1.5", True)):
        reading, _ = read_shell(MOE + more, "a.sh", Given(), None, Stamp())
        assert any("drop" in one.text for one in reading.remarks) is said


def test_a_model_outside_and_its_batch_inside_are_one_table():
    text = "model_name_or_path: meta-llama/Llama-3.1-8B\ntrain: {lr: 1.0e-5, batch_size: 4, max_seq_len: 2048}\n"
    assert (of_table(text).micro_batch, of_table(text).seq_len) == (4, 2048)


@pytest.mark.parametrize("batch", ["gradient_accumulation_steps = 8", "batch_size_tokens = 9000"])
def test_a_table_of_no_framework_lacks_what_it_does_not_say(batch):
    text = f'model_dir = "/m/Llama-3-8B"\n{batch}\n[optimizer]\nlr = 5e-5\n[[datasets]]\nsequence_len = 4096\n'
    with pytest.raises(SpecError, match="names no batch in words"):
        of_table(text, "c.toml")


def test_a_recipe_of_pictures_under_a_placeholder_is_no_text():
    text = "actor: {backend: 'fsdp:d8', path: /models/PATH, mb_spec: {max_tokens_per_mb: 4096}}\ntrain_dataset: {path: x/clevr_count_70k, batch_size: 8, max_length: 512}\n"
    with pytest.raises(SpecError, match="vision-language"):
        of_table(text)
    assert of_table(text.replace("clevr_count_70k", "gsm8k")).model_name == "/models/PATH"


@pytest.mark.parametrize(
    ("more", "precision"),
    [("beta: 0.1\n", "bf16"), ("beta: 0.1\nbf16: false\n", "fp32"), ("", "fp32")],
)
def test_a_table_of_trl_has_trl_s_precision(more, precision):
    text = "model_name_or_path: meta-llama/Llama-3.1-8B\nper_device_train_batch_size: 1\nlearning_rate: 1.0e-6\nmax_length: 512\nuse_peft: true\n"
    assert of_table(text + more).job["precision"]["name"] == precision


@pytest.mark.parametrize(("layers", "guessed"), [(32, False), (17, True)])
def test_a_table_that_names_its_model_and_says_a_part_of_it(layers, guessed):
    text = f"model_name: meta-llama/Meta-Llama-3-8B\nnum_layers: {layers}\nhidden_size: 4096\nnum_heads: 32\nlr: 1.0e-5\nbatch_size: 4\nmax_seq_len: 2048\n"
    found = of_table(text)
    model = found.model
    assert model is not None
    assert (model.layers, model.ffn, model.kv_heads, model.vocab) == (layers, 14336, 8, 128256)
    assert (
        any(one.option == "--model" and "17 layers of 32" in one.text for one in found.remarks)
        is guessed
    )
    other = of_table(text + "vocab_size: 64000\n").model
    assert other is not None
    assert other.vocab == 64000  # what the file says counts


def test_a_length_beside_a_model_makes_no_llm_foundry():
    found = of_table(
        "model: {name: meta-llama/Llama-3.1-8B}\nlr: 1.0e-5\nbatch_size: 4\nmax_seq_len: 2048\n"
    )
    assert (found.micro_batch, found.seq_len) == (4, 2048)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n_layer: [6]\nn_embd: [384]\nblock_size: [256]\nuse_norm: [true, false]\n", "sweep: it lists values of use_norm"),
        ("defaults:\n  - training\nmodel_cfg: {d_model: 64}\nnum_iterations: 9\n", "only what differs from its Hydra defaults"),
        ("learning_rate: 4.e-7\nper_device_batch_size: 1\ndcn_data_parallelism: -1\nici_fsdp_parallelism: 1\ndiffusion_scheduler_config: {prediction_type: 'epsilon'}\n", "diffusion model"),
    ],
)  # fmt: skip
def test_tables_that_train_no_language_model_or_not_one(text, said):
    with pytest.raises(SpecError, match=said):
        of_table(text)
