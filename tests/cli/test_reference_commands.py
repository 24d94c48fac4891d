"""`models`, `clusters`, `devices`, `memory` and `schema`: tables, JSON and exit codes."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.cli import run
from meshwright.specs.clusters import cluster_names
from meshwright.specs.devices import device_names
from meshwright.specs.models import model_names


def output(capsys, *arguments):
    code = run(list(arguments))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize(
    ("command", "names"),
    [("models", model_names()), ("clusters", cluster_names()), ("devices", device_names())],
)
def test_lists_name_every_preset(capsys, command, names):
    code, text, _ = output(capsys, command)
    assert code == 0
    assert [name for name in names if f" {name} " not in text] == []
    code, text, _ = output(capsys, command, "--json")
    assert code == 0 and len(json.loads(text)) == len(names)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("devices", "h100"), ("989 TFLOP/s", "81089 MiB")),
        (("clusters", "gb200:32x4"), ("nvlink72", "900 GB/s", "infiniband")),
        (("models", "deepseek-v3"), ("671,026,404,352", "37.6B active")),
        (("models", "30B"), ("assumed", "30,026,668,032")),
        (("memory", "7B", "--gpus", "8"), ("112.00", "38.50", "26.25", "14.00", "104.31")),
        (("memory", "7B", "--recipe", "fp32"), ("112.00", "63.00", "38.50", "14.00")),
        (("memory", "7B", "--recipe", "bf16-fp32-grads"), ("126.00", "52.50", "28.00", "15.75")),
    ],
)
def test_one_in_full(capsys, arguments, words):
    code, text, _ = output(capsys, *arguments)
    assert code == 0
    assert [word for word in words if word not in text] == []


def test_what_a_model_sees_with(capsys, tmp_path):
    file = tmp_path / "seeing.toml"
    file.write_text("layers = 2\nhidden = 64\nheads = 2\nvocab = 100\n[encoder]\nparameters = 9000\nlayers = 3\nhidden = 32\n"
                    "heads = 2\nffn = 64\npatches = 2304\njoined = 4\n")  # fmt: skip
    code, text, _ = output(capsys, "models", str(file))
    assert code == 0
    assert "encoder of 3 layers, hidden 32, FFN 64" in text
    assert "2,304 patches and becomes 576 tokens" in " ".join(text.split())


def test_memory_as_json(capsys):
    _, text, _ = output(capsys, "memory", "7B", "--gpus", "8", "--json", "--recipe", "all")
    data = json.loads(text)
    mixed = next(table for table in data["recipes"] if table["recipe"] == "bf16")
    totals = [stage["total_bytes"] for stage in mixed["stages"]]
    assert totals == [112e9, 38.5e9, 26.25e9, 14e9]
    assert all(sum(stage["parts"].values()) == stage["total_bytes"] for stage in mixed["stages"])
    assert [stage["fits"] for stage in mixed["stages"]] == [False, True, True, True]


@pytest.mark.parametrize(
    ("size", "gpus", "tp", "pp", "plain", "sharded"),
    [("30B", 32, 8, 1, 60, 26.25), ("30B", 8, 4, 1, 120, 75), ("200B", 64, 8, 4, 100, 62.5),
     ("70B", 64, 8, 2, 70, 30.625)],
)  # fmt: skip
def test_memory_with_tensor_and_pipeline_parallelism(capsys, size, gpus, tp, pp, plain, sharded):
    arguments = ("--gpus", str(gpus), "--tp", str(tp), "--pp", str(pp), "--json")
    _, text, _ = output(capsys, "memory", size, *arguments)
    stages = json.loads(text)["recipes"][0]["stages"]
    assert [stages[zero]["total_bytes"] / 1e9 for zero in (0, 1)] == [plain, sharded]


def test_memory_of_a_preset_counts_exactly(capsys):
    _, text, _ = output(capsys, "memory", "llama3-8b", "--json")
    assert json.loads(text)["parameters"] == 8_030_261_248


def test_schema_is_a_json_schema_of_the_plan(capsys, tmp_path):
    _, text, _ = output(capsys, "schema")
    schema = json.loads(text)
    assert {"model", "cluster", "job", "layout", "estimate"} <= set(schema["properties"])
    path = tmp_path / "schema.json"
    assert output(capsys, "schema", "-o", str(path))[0] == 0
    assert json.loads(path.read_text()) == schema


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("models", "lama3-70b"), "llama3-70b"),
        (("models", "--family", "zzz"), "--family"),
        (("devices", "h10"), "h100"),
        (("clusters", "h100:3y"), "h100:4x8"),
        (("memory", "7B", "--recipe", "bf15"), "bf16"),
        (("memory", "7B", "--gpus", "0"), "--gpus"),
        (("memory", "7B", "--gpus", "8", "--tp", "3"), "multiple of tp"),
        (("memory", "7Q"), "model"),
    ],
)
def test_errors_are_one_sentence_and_exit_2(capsys, arguments, words):
    code, text, error = output(capsys, *arguments)
    assert (code, text) == (2, "")
    assert error.count("\n") == 1 and words in error


def test_narrow_terminals_lose_columns_never_names(capsys, monkeypatch):
    import rich.console

    from meshwright.cli import output as module

    monkeypatch.setattr(module.sys.stdout, "isatty", lambda: True, raising=False)
    narrow = rich.console.Console
    monkeypatch.setattr(
        rich.console, "Console", lambda **_: narrow(width=70, no_color=True, color_system=None)
    )
    for command, names in (("devices", device_names()), ("clusters", cluster_names())):
        _, text, _ = output(capsys, command)
        assert [name for name in names if f" {name} " not in text] == []
        assert "Left out in this width" in text and "…" not in text
        assert max(map(len, text.splitlines())) <= 70


ARGUMENTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["--json", "--gpus", "--tp", "3", "0", "-1", "7B", "llama3-8b", "h100", "h100:2x8", "bf16",
         "--recipe", "all", "--device", "/", ".", "", "a=b", "layers=2,hidden=8,heads=2", "\x00",
         "--family", "--optimizer", "muon", "--help"]
    ),
)  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    command=st.sampled_from(["models", "clusters", "devices", "memory"]),
    arguments=st.lists(ARGUMENTS, max_size=4).filter(lambda words: "-" not in words),
)
def test_any_arguments_end_in_an_exit_code(capsys, command, arguments):
    code, _, error = output(capsys, command, *arguments)
    assert code in (0, 2)
    assert "Traceback" not in error
    assert (code == 0) == (error == "")
