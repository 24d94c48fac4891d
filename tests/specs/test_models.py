"""Models by name, config.json, fields and bare size; and the errors of each."""

import json
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from meshwright.specs.errors import SpecError
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.models import _without_dots, is_size, load_model, model_names, typical_model
from meshwright.specs.traced import _tell, trace


@pytest.mark.parametrize("name", model_names())
def test_every_preset_loads_and_says_where_it_is_from(name):
    model = load_model(name)
    assert model.name == name
    assert model.source


@pytest.mark.parametrize(
    ("spelling", "preset"),
    [
        ("llama3-70b", "llama3-70b"),
        ("Llama-3-70B", "llama3-70b"),
        ("meta-llama/Meta-Llama-3-70B-Instruct", "llama3-70b"),
        ("meta-llama/Llama-3.1-405B", "llama3.1-405b"),
        ("llama3-405b", "llama3.1-405b"),
        ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("google/gemma-3-27b-it", "gemma3-27b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("gpt3", "gpt3-175b"),
        ("mt-nlg-530b", "megatron-529.6b"),
        ("EleutherAI/pythia-6.9b", "pythia-6.9b"),
        ("Llama31-8B", "llama3.1-8b"),
        ("llama-32-3b-instruct", "llama3.2-3b"),
        ("Qwen25-7B", "qwen2.5-7b"),
    ],
)
def test_usual_spellings(spelling, preset):
    assert load_model(spelling).name == preset


def test_a_version_without_its_dot_names_one_preset():
    """And a size keeps its dot: qwen2-15b is not qwen2-1.5b."""
    assert len(_without_dots()) == len(model_names())
    with pytest.raises(SpecError, match="no such preset"):
        load_model("qwen2-15b")


def test_a_bare_size_states_what_it_assumed():
    model = load_model("30B")
    assert "assumed" in model.source and str(model.hidden) in model.source
    assert model.heads % model.kv_heads == 0


def test_config_file_old_and_new_spellings(tmp_path):
    old = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "vocab_size": 128256, "torch_dtype": "bfloat16", "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    }  # fmt: skip
    new = {key: value for key, value in old.items() if not key.startswith(("rope", "torch"))}
    new |= {"dtype": "bfloat16", "rope_parameters": {"rope_theta": 500000.0}, "head_dim": 128}
    (tmp_path / "old.json").write_text(json.dumps(old))
    (tmp_path / "config.json").write_text(json.dumps(new))
    first = load_model(tmp_path / "old.json")
    assert load_model(str(tmp_path)) == load_model(tmp_path / "config.json")
    preset = load_model("llama3.1-8b")
    for model in (first, load_model(tmp_path)):
        shape = {"name": preset.name, "source": preset.source, "numerics": None}
        assert model.but(**shape) == preset.but(numerics=None)
        assert model.numerics is not None and model.numerics.rope_theta == 500_000


def test_gpt2_and_bloom_accept_both_generations_of_keys():
    old = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 99}
    new = {"model_type": "gpt2", "hidden_size": 64, "num_hidden_layers": 2,
           "num_attention_heads": 4, "vocab_size": 99}  # fmt: skip
    one, other = (model_from_config(words).but(config_json="") for words in (old, new))
    assert one == other
    old = {"model_type": "bloom", "n_embed": 64, "n_layer": 2, "num_attention_heads": 4,
           "vocab_size": 99}  # fmt: skip
    new = {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 99}
    one, other = (model_from_config(words).but(config_json="") for words in (old, new))
    assert one == other


def test_a_multimodal_config_gives_its_language_model(monkeypatch):
    def absent(config):
        raise SpecError("config.model_type", config["model_type"], "torch is not there")

    monkeypatch.setattr("meshwright.specs.huggingface.trace", absent)
    text = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
            "num_key_value_heads": 2, "intermediate_size": 100, "vocab_size": 99}  # fmt: skip
    model = model_from_config({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert model.family == "gemma3_text"
    assert "not counted" in model.source


def test_a_count_that_was_kept_needs_no_second_process(monkeypatch, tmp_path):
    """Where MESHWRIGHT_COUNTS names a folder; another config, a damaged file and no folder are counted anew."""
    asked = []

    def process(command, *, input, **_):
        asked.append(input)
        answer = {"total": 7, "layers": [{}], "config": {}, "encoder": 3}
        return SimpleNamespace(stdout=json.dumps(answer))

    monkeypatch.setattr("meshwright.specs.traced.subprocess.run", process)
    monkeypatch.setattr("meshwright.specs.traced_kept.metadata.version", lambda _: "5.0")
    monkeypatch.delenv("MESHWRIGHT_COUNTS", raising=False)
    first = trace({"model_type": "one"})
    assert trace({"model_type": "one"}) == first
    assert len(asked) == 2
    monkeypatch.setenv("MESHWRIGHT_COUNTS", str(tmp_path / "counts"))
    assert trace({"model_type": "one"}) == trace({"model_type": "one"}) == first
    assert len(asked) == 3
    trace({"model_type": "two"})
    assert len(asked) == 4
    for file in (tmp_path / "counts").iterdir():
        file.write_text("{", "utf-8")
    assert trace({"model_type": "one"}) == first
    assert len(asked) == 5


@pytest.mark.parametrize(("after_s", "told"), [(0.0, True), (60.0, False)])
def test_a_count_that_takes_long_is_told_where_no_terminal_is(monkeypatch, capsys, after_s, told):
    waiting = threading.Event()

    def process(command, **_):
        waiting.wait(5.0 if told else 0.0)
        return SimpleNamespace(stdout=json.dumps({"total": 7, "layers": [{}], "config": {}}))

    def tell(what):
        _tell(what)
        waiting.set()

    monkeypatch.delenv("MESHWRIGHT_COUNTS", raising=False)
    monkeypatch.setattr("meshwright.specs.traced.subprocess.run", process)
    monkeypatch.setattr("meshwright.specs.traced.AFTER_UNSEEN_S", after_s)
    monkeypatch.setattr("meshwright.specs.traced._tell", tell)
    trace({"model_type": "one"})
    assert ("counting one" in capsys.readouterr().err) is told


def test_explicit_fields():
    model = load_model("layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256")
    assert model.head_dim == 128
    assert load_model("layers=12,hidden=768,heads=12,gated=false,vocab=50k").ffn == 4 * 768
    assert load_model({"layers": 2, "hidden": 64, "heads": 4}).kv_heads == 4


@pytest.mark.parametrize(
    ("what", "field", "words"),
    [
        ("llama3-7b", "model", "llama3-70b"),
        ("lama3-70b", "model", "llama3-70b"),
        ("", "model", "such as"),
        ("1B,", "model", "no such preset"),
        ("0.5k", "model", "no such preset"),
        ("1M", "model", "10M"),
        ("none/config.json", "model", "cannot be read"),
        ("layers=32,hidden=4096", "model.heads", "required"),
        ("layers=32,hidden=4096,heads=33", "model.heads", "divisor"),
        ("layers=32,hidden=4096,heads=32,wings=2", "model.wings", "no such field"),
        ("layers=32,layers=4", "model.layers", "twice"),
        ({"model_type": "no_such_family"}, "config.model_type", "not supported"),
        ({"model_type": "llama", "hidden_size": 4096}, "config.num_attention_heads", "required"),
        ({"model_type": "llama", "hidden_size": -1}, "config.hidden_size", "at least 1"),
        ({"model_type": "llama", "hidden_size": "big"}, "config.hidden_size", "whole number"),
        ({"architectures": ["X"]}, "config.model_type", "family"),
    ],
)
def test_errors_name_field_value_and_remedy(what, field, words):
    with pytest.raises(SpecError) as error:
        load_model(what)
    assert error.value.field == field, str(error.value)
    assert words in str(error.value)


@pytest.mark.parametrize("where", [{}, {"vision_config": {"depth": 10**6}}])
def test_more_layers_than_can_be_built_are_refused_at_once(where):
    config = {"model_type": "nobody", "num_hidden_layers": 10 if where else 10**6, **where}
    with pytest.raises(SpecError, match="at most 1,000 are built to be counted"):
        model_from_config(config)


def test_sizes_out_of_reach_are_refused():
    with pytest.raises(SpecError):
        typical_model(10**16)


def test_importing_specs_is_cheap():
    code = (
        "import sys, meshwright.specs as s; s.load_model('llama3-8b'); "
        "print([m for m in ('torch', 'transformers', 'yaml', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_folder_with_a_config_is_read_also_where_a_preset_has_its_name(tmp_path):
    folder = tmp_path / "llama3-8b"
    folder.mkdir()
    assert load_model(str(folder)).layers == 32  # the preset: there is nothing to read
    config = {
        "model_type": "llama", "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80,
        "num_hidden_layers": 3, "num_attention_heads": 6,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    assert load_model(str(folder)).layers == 3


def test_a_text_family_that_is_no_word_is_one_sentence():
    config = {"model_type": "gemma3", "text_config": {"model_type": ["llama"], "hidden_size": 64}}
    with pytest.raises(SpecError, match="a family is expected"):
        model_from_config(config, "x", "")


def test_a_size_of_any_length_is_told_at_once(in_proportion):
    assert [is_size(text) for text in ("30B", "1.5b", ".5B", "70 B", "7", "1.B", "1.5.2B")] == [
        True, True, True, True, False, False, False,
    ]  # fmt: skip
    texts = {length: "0" * length for length in (120_000, 15_000)}
    in_proportion(lambda length: is_size(texts[length]), 120_000)
    assert not is_size(texts[120_000])


def test_torchtitans_16b_is_the_small_deepseek_of_its_dimensions():
    model = load_model("DeepSeek-V3 16B")
    assert (model.layers, model.hidden, model.name) == (
        27,
        2048,
        load_model("deepseek-v2-lite").name,
    )
