"""Text of a plan file never becomes code: hostile names through every target and launcher.

The exported files are read by the real shell and the real parsers, and what can be started is
started, with programs named torchrun, srun… that only write down their arguments.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import tokenize

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import make_plan

from meshwright.exports.model_names import repository
from meshwright.exports.targets import FRAMEWORKS, LAUNCHERS, export
from meshwright.specs import Job, Plan, SpecError
from meshwright.specs.job import RECIPES

CANARY = "canary"
LINE = f"touch {CANARY}"
HOSTILE = [
    f"x\n{LINE}\n", f"x\r{LINE}\r", f"x\u2028{LINE}", f"x\x85{LINE}", f"$({LINE})", f"`{LINE}`",
    f"';{LINE};'", f'";{LINE};"', f'"""\nimport os; os.system("{LINE}")\n"""',
    f"'''\nimport os; os.system('{LINE}')\n'''", f"\nEND\n{LINE}\n", f"x\\\n{LINE}", "x\\",
    "coding: utf-7 +AAo-import os", f"{{{{MODEL}}}} {{stamp}} {{0}} %s ${{IFS}} {LINE}",
    f"# x\n#SBATCH --wrap={LINE}", f"- !!python/object/apply:os.system ['{LINE}']", "a: b: c",
    "\x1b]0;owned\x07\x1b[2J", "\u202egnp.exe", "{a: [", "*x", "&x", "%YAML 3", "---", "- -", "? :",
    f"|\n  {LINE}", f">-\n {LINE}", "\ufeff", "'", '"', "\\", "!", "~", "on", "",
]  # fmt: skip
PLAN = make_plan(
    "llama3-8b", "h100:2x8",
    Job(seq_len=4096, global_batch=64, precision=RECIPES["bf16-fp32-grads"]), dp=16, zero=0,
)  # fmt: skip
SHARDED = make_plan(
    "llama3-8b", "h100:2x8",
    Job(seq_len=4096, global_batch=64, precision=RECIPES["bf16-fp32-grads"]), dp=16, zero=3,
)  # fmt: skip
PLAN, SHARDED = (
    plan.model_copy(update={"model": plan.model.model_copy(update={"source": "nobody's"})})
    for plan in (PLAN, SHARDED)
)  # a source that names a repository is read: see below
PAIRS = [(framework, None) for framework in FRAMEWORKS]
PAIRS += [(framework, launcher) for launcher in LAUNCHERS for framework in FRAMEWORKS]


def exported(plan: Plan, framework: str, launcher: str | None, command: str):
    if launcher is None:
        return export(plan, framework, command=command)
    return export(plan, launcher, launches=framework, command=command)


def baseline(framework: str, launcher: str | None) -> Plan | None:
    for plan in (PLAN, SHARDED):
        try:
            exported(plan, framework, launcher, "meshwright export")
        except SpecError:
            continue
        return plan
    return None


def hostile(plan: Plan, model: str, cluster: str, device: str, command: str) -> Plan:
    """The plan as a program could make it, past the checks of a reader."""
    named = plan.cluster
    levels = tuple(
        one.model_copy(update={"name": one.name + cluster, "source": cluster})
        for one in named.levels
    )
    gpu = named.device.model_copy(update={"name": named.device.name + device})
    made = named.model_copy(
        update={"name": cluster, "device": gpu, "levels": levels, "source": cluster}
    )
    shape = plan.model.model_copy(update={"name": model, "source": model})
    return plan.model_copy(update={"model": shape, "cluster": made, "command": command})


def quadruples(turn: int):
    """Every hostile text once, in a place that differs from turn to turn."""
    texts = HOSTILE[turn % len(HOSTILE) :] + HOSTILE[: turn % len(HOSTILE)]
    return [(texts + texts)[at : at + 4] for at in range(0, len(texts), 4)]


def same_code(text: str, name: str, safe: str) -> None:
    """A file says the same to its parser with a hostile name as with a harmless one."""
    if name.endswith(".py"):
        assert tokenize.detect_encoding(io.BytesIO(text.encode()).readline)[0] == "utf-8"
        assert ast.dump(ast.parse(text.encode())) == ast.dump(ast.parse(safe.encode()))
    elif name.endswith((".yaml", ".yml")):
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        one, other = list(yaml.load_all(text, loader)), list(yaml.load_all(safe, loader))
        assert [nameless(data) for data in one] == [nameless(data) for data in other]
    elif name.endswith(".json"):
        one, other = json.loads(text), json.loads(safe)
        one.pop("_meshwright", None), other.pop("_meshwright", None)
        assert one == other
    else:
        assert code_lines(text) == code_lines(safe)


def nameless(data) -> str:
    """Without the label made of the model's name, which a JobSet repeats in its host names, a TrainJob in its
    runtime's, and a shared disk or bucket in a folder's or its own."""
    label = data.get("metadata", data).pop("name", "no label")
    assert isinstance(label, str) and re.fullmatch("[a-z0-9][a-z0-9 -]*", label)
    runtime = data.get("spec", {}).get("runtimeRef", {})
    assert runtime.pop("name", label) == label
    found = json.dumps(data).replace(f" {label}-host-0-0.{label} ", "")
    return found.replace(f"/shared/{label}/outputs", "").replace(f'"training-{label}"', "")


def code_lines(text: str) -> list[str]:
    lines = [line for line in text.split("\n") if not line.startswith("# ")]
    return [line for line in lines if "--job-name=" not in line]


@pytest.mark.parametrize(("framework", "launcher"), PAIRS)
def test_no_name_changes_what_a_file_says(framework, launcher):
    plan = baseline(framework, launcher)
    if plan is None:
        pytest.skip("not a combination")
    safe = exported(plan, framework, launcher, "meshwright export")
    turn = PAIRS.index((framework, launcher))
    for texts in quadruples(turn)[turn % 3 :: 3]:
        made = exported(hostile(plan, *texts), framework, launcher, texts[-1])
        assert made.start == safe.start and set(made.files) == set(safe.files)
        for name, content in made.files.items():
            same_code(content, name, safe.files[name])


@pytest.mark.parametrize(
    "text",
    [
        "$(id)",
        "`id`",
        "b;id",
        "b|id",
        "b&id",
        "b>id",
        "-h",
        "b'",
        'b"',
        "b\\",
        "b\nid",
        "../b",
        "b*",
        "~",
    ],
)
def test_a_source_names_a_repository_only_in_a_hub_s_letters(text):
    for told in (f"config.json of a/{text}", f"config.json of {text}/b"):
        assert repository(PLAN.model.model_copy(update={"source": told})) is None
    named = PLAN.model.model_copy(update={"source": "config.json of Qwen/Qwen3-0.6B (main)"})
    assert repository(named) == "Qwen/Qwen3-0.6B"


@given(st.text(max_size=60), st.sampled_from(PAIRS))
@settings(max_examples=25, deadline=None)
def test_no_text_at_all_changes_what_a_file_says(text, pair):
    plan = baseline(*pair)
    if plan is None:
        return
    safe = exported(plan, *pair, "meshwright export")
    made = exported(hostile(plan, text, text, text, text), *pair, text)
    for name, content in made.files.items():
        same_code(content, name, safe.files[name])


@pytest.fixture
def fake_programs(tmp_path):
    """Programs that the scripts start; each only says that it was started."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("torchrun", "accelerate", "srun", "scontrol", "sbatch", "python", "nvidia-smi"):
        script = folder / name
        skip = 'while [ "${1#--}" != "$1" ]; do shift; done\n'
        shell = f'{skip}exec "$@"\n' if name == "srun" else ""
        script.write_text(f"#!/bin/bash\necho started {name}\n{shell}")
        script.chmod(0o755)
    return folder


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_started_scripts_run_nothing_of_a_name(framework, fake_programs, tmp_path):
    if baseline(framework, "slurm") is None:
        pytest.skip("not a combination")
    scripts = {}
    plan, turn = baseline(framework, "slurm"), list(FRAMEWORKS).index(framework)
    for number, texts in enumerate(quadruples(turn)):
        for launcher in (None, "slurm"):
            made = exported(hostile(plan, *texts), framework, launcher, texts[-1])
            script = made.files["run.sh" if launcher is None else "train.sbatch"]
            scripts.setdefault(script, f"{number}-{launcher}.sh")
    work = tmp_path / "work"
    work.mkdir()
    for script, name in scripts.items():
        (tmp_path / name).write_text(script)
    lines = [
        f"bash -n ../{name} && bash ../{name} || echo FAILED {name}" for name in scripts.values()
    ]
    done = subprocess.run(
        ["bash"], input="\n".join(lines), cwd=work, capture_output=True, text=True, timeout=120,
        env={"PATH": f"{fake_programs}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "a", "DATA": "mock",
             "MASTER_ADDR": "a", "NODE_RANK": "0"},
    )  # fmt: skip
    assert "FAILED" not in done.stdout, done.stderr
    assert done.stdout.count("started") >= len(scripts)
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("where", ["model", "cluster", "device", "level", "command", "key"])
def test_names_with_control_characters_are_refused_when_read(where):
    for text in ("x\ny", "\x1b[2J", "\u202ex", "a\x85b", "\x00"):
        data = PLAN.plain()
        if where == "command":
            data["command"] = text
        elif where == "key":
            data["job"]["framework_options"] = {text: 1}
        else:
            cluster = data["cluster"]
            target = {
                "model": data["model"],
                "cluster": cluster,
                "device": cluster["device"],
                "level": cluster["levels"][0],
            }[where]
            target["name"] = text
        with pytest.raises(SpecError, match="control characters") as raised:
            Plan.parse(data)
        assert str(raised.value).isprintable()


def test_a_stamp_names_no_file_to_open(tmp_path, monkeypatch):
    from meshwright.imports.files import import_text
    from meshwright.imports.reading import Given

    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.json").write_text(json.dumps(PLAN.plain()["model"]))
    (tmp_path / "c.toml").write_text('device = "h100"\nnodes = 1')
    stamp = {
        "tool": "made by meshwright 0 for x",
        "layout": "layout dp8, global batch 8, sequence 64",
    }
    for model, cluster in (("m.json", "h100:1x8"), ("llama3-8b", "c.toml"), (".", "h100:c.topo")):
        stamp["plan"] = f"model {model}, cluster {cluster} (1 x 8 H100)"
        with pytest.raises(SpecError, match=r"--model|--cluster"):
            import_text(
                json.dumps({"_meshwright": stamp, "train_batch_size": 8}), "a.json", Given()
            )
    stamp["plan"] = "model llama3-8b, cluster h100:1x8 (1 x 8 H100)"
    text = json.dumps({"_meshwright": stamp, "train_batch_size": 8})
    assert import_text(text, "a.json", Given()).cluster.gpus == 8


def test_a_name_in_a_config_stays_a_name(tmp_path):
    from meshwright.specs import load_model

    config = {"model_type": "llama", "_name_or_path": f"x\n{LINE}", "hidden_size": 64,
              "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
              "vocab_size": 100}  # fmt: skip
    with pytest.raises(SpecError, match="control characters"):
        load_model(config)
