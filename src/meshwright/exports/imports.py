"""A file of another tool as a model, a cluster, a job and a layout. The file is read, never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meshwright.exports import (
    accelerate,
    deepspeed,
    fsdp,
    megatron,
    megatron_bridge,
    nanotron,
    primus,
    torchtitan,
)
from meshwright.exports.bundle import STAMP_KEY
from meshwright.exports.canonical import canonical
from meshwright.exports.megatron_model import Flags
from meshwright.exports.megatron_read import flags_of, log_flags
from meshwright.exports.shell import MAX_BYTES, Script, expand, read_script
from meshwright.exports.stamp import Stamp, read_stamp
from meshwright.specs import load_cluster, load_model
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import Limits, parse_json, parse_yaml, read_text
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.models import model_names

_AS_THEIR_PARSERS = Limits(last_wins=True)
"""A key given twice is no reason to refuse a file that its own tool reads."""

_PRESET_SIZE = re.compile(r"[\w.-]{1,40}:\d{1,7}x\d{1,4}", re.ASCII)
"""How the clusters of presets are called in a stamp."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says beside the file, for what its format has no words for."""

    model: Model | None = None
    cluster: Cluster | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    allow_unknown: bool = False


@dataclass(frozen=True, slots=True)
class Imported:
    """What a file runs, and what was assumed to complete it."""

    format: str
    model: Model
    cluster: Cluster
    job: Job
    layout: Layout
    notes: tuple[str, ...] = field(default=())


def import_file(path: str | Path, given: Given | None = None) -> Imported:
    """Read a file of another tool.

    Raises:
        SpecError: the file cannot be read or its format is not known, a key is unknown, values
            contradict each other, or something that the format does not say was not given.
    """
    return import_text(_read(Path(path)), str(path), given or Given(), Path(path).parent)


def _read(path: Path) -> str:
    text = read_text(path, "file", MAX_BYTES)
    if "\0" in text:
        raise SpecError(
            "file", str(path), "is a binary file; a script or a configuration is expected"
        )
    if not text.strip():
        raise SpecError("file", str(path), "is empty")
    return text


def import_text(text: str, name: str, given: Given, folder: Path | None = None) -> Imported:
    """Read the content of a file; its name only helps to tell formats apart.

    Raises:
        SpecError: as `import_file`.
    """
    stamp = read_stamp(text)
    logged = log_flags(text)
    if logged is not None:
        flags, world = logged
        return _megatron(flags, world, given, stamp, "Megatron-LM log", [])
    if "Running with configs:" in text:
        return _torchtitan(
            torchtitan.read_log(text, _world_of(given)), given, stamp, "torchtitan log"
        )
    suffix = Path(name).suffix.lower()
    if suffix == ".py":
        return _python(text, name, given, stamp, folder)
    if suffix == ".json" or text.lstrip()[:1] == "{":
        return _json(text, name, given, stamp)
    if suffix in (".yaml", ".yml"):
        return _yaml(text, name, given, stamp, folder)
    if _looks_like_shell(text, suffix):
        return _shell(text, name, given, stamp, folder)
    raise SpecError(
        "file", name,
        "no known format; a script, a recipe, a Megatron-LM log, a JSON or a YAML configuration is "
        "expected",
    )  # fmt: skip


def _looks_like_shell(text: str, suffix: str) -> bool:
    if suffix in (".sh", ".bash", ".sbatch", ".slurm"):
        return True
    return text.startswith("#!") or "--tensor-model-parallel-size" in text or "#SBATCH" in text


def _json(text: str, name: str, given: Given, stamp: Stamp, world: int = 0) -> Imported:
    data = parse_json(text, "file", name, _AS_THEIR_PARSERS)
    if not isinstance(data, dict):
        raise SpecError("file", name, "a JSON object is expected")
    return _deepspeed(data, given, stamp, world, [])


def _yaml(text: str, name: str, given: Given, stamp: Stamp, folder: Path | None) -> Imported:
    data = parse_yaml(text, "file", name, _AS_THEIR_PARSERS)
    if not isinstance(data, dict):
        raise SpecError("file", name, "a table of named fields is expected")
    if "modules" in data and "workspace" in data:
        return _megatron(primus.flags_of(data), 0, given, stamp, "Primus YAML", [])
    if "parallelism" in data or "tokens" in data:
        return _nanotron(data, given, stamp)
    if "apiVersion" in data or "run" in data:
        return _cloud(data, name, given, stamp, folder)
    return _accelerate(data, given, stamp)


def _cloud(
    data: dict[str, Any], name: str, given: Given, stamp: Stamp, folder: Path | None
) -> Imported:
    """The command inside a Kubernetes object or a SkyPilot task."""
    if "run" in data:
        script = str(data["run"])
    else:
        found = _command(data)
        if found is None:
            raise SpecError("file", name, "no container with a command was found")
        script = found
    return _shell(script, name, given, stamp, folder)


def _command(data: Any) -> str | None:
    """The last word of the first `command` list, depth first; aliases are looked at once."""
    waiting, seen = [data], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or not isinstance(value, (dict, list)):
            continue
        seen.add(id(value))
        words = value.get("command") if isinstance(value, dict) else None
        if isinstance(words, list) and words:
            return str(words[-1])
        waiting += reversed(list(value.values()) if isinstance(value, dict) else value)
    return None


def _nanotron(data: dict[str, Any], given: Given, stamp: Stamp) -> Imported:
    model, job, layout = nanotron.read(data)
    model = given.model or _named_alike(model, stamp) or model
    cluster = _cluster(given, stamp, layout.world)
    return Imported("nanotron YAML", model, cluster, job, canonical(layout, model))


def _python(text: str, name: str, given: Given, stamp: Stamp, folder: Path | None) -> Imported:
    """A recipe, a script of ours, or a driver: its syntax tree is read, nothing is imported."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError("file", name, "is not valid Python") from None
    found = fsdp.literals(tree, ("MODEL", "LAYOUT", "JOB", "WORDS"))
    if isinstance(found.get("WORDS"), list):
        return _words([str(word) for word in found["WORDS"]], 0, given, stamp, folder)
    if "LAYOUT" in found:
        model, job, layout = fsdp.read(tree)
        model = given.model or _named_alike(model, stamp) or model
        cluster = _cluster(given, stamp, layout.world)
        return Imported("PyTorch script", model, cluster, job, canonical(layout, model))
    if "train_fsdp" in text and folder is not None and Path(name).name != "train_fsdp.py":
        return import_file(folder / "train_fsdp.py", given)
    if "ParallelismConfig" in text:
        cluster = _cluster(given, stamp, 0)
        return _torchtitan(torchtitan.read(tree, cluster.gpus), given, stamp, "torchtitan recipe")
    raise SpecError("file", name, "no torchtitan recipe and no script with a LAYOUT table")


def _world_of(given: Given) -> int:
    return given.cluster.gpus if given.cluster is not None else 0


def _torchtitan(
    read: tuple[str, Job, Layout] | None, given: Given, stamp: Stamp, kind: str
) -> Imported:
    if read is None:
        raise SpecError("log", None, "no configuration was found in this log")
    preset, job, layout = read
    model = _model(given, Stamp(model=preset or stamp.model))
    if given.model is None and stamp.model:
        model = _named_alike(model, stamp) or model
    cluster = _cluster(given, stamp, layout.world)
    return Imported(kind, model, cluster, job, canonical(layout, model))


def _deepspeed(
    data: dict[str, Any], given: Given, stamp: Stamp, world: int, notes: list[str]
) -> Imported:
    if STAMP_KEY in data:
        stamp = read_stamp("\n".join(str(value) for value in dict(data[STAMP_KEY]).values()))
    model, cluster = _model(given, stamp), _cluster(given, stamp, world)
    seq = _seq(given, stamp, notes)
    world = _started(given, world, notes) or cluster.gpus
    job, layout = deepspeed.read(data, world, seq)
    return Imported("DeepSpeed JSON", model, cluster, job, canonical(layout, model), tuple(notes))


def _accelerate(data: dict[str, Any], given: Given, stamp: Stamp) -> Imported:
    notes: list[str] = []
    world = data.get("num_processes", 0)
    model = _model(given, stamp)
    cluster = _cluster(given, stamp, world if isinstance(world, int) else 0)
    micro = given.micro_batch or stamp.micro_batch
    if not micro:
        micro = 1
        notes.append("the YAML holds no micro-batch; 1 is assumed (--micro-batch says otherwise)")
    batch = given.global_batch or stamp.global_batch or None
    if batch is None:
        notes.append(
            "the YAML holds no batch; one micro-batch per replica is assumed (--global-batch)"
        )
    job, layout = accelerate.read(data, _seq(given, stamp, notes), micro, batch)
    return Imported("accelerate YAML", model, cluster, job, canonical(layout, model), tuple(notes))


def _megatron(
    flags: Flags, world: int, given: Given, stamp: Stamp, kind: str, notes: list[str]
) -> Imported:
    cluster = _cluster(given, stamp, world)
    world = _started(given, world, notes) or cluster.gpus
    model, job, layout = megatron.read_flags(flags, world)
    if given.model is None and not {"vocab-size", "padded-vocab-size"} & set(flags):
        notes.append(f"the vocabulary is in a tokenizer's file; {model.vocab} is assumed (--model)")
    named = given.model or _named_alike(model, stamp)
    if named is not None:
        model = named
    return Imported(kind, model, cluster, job, canonical(layout, model), tuple(notes))


def _named_alike(model: Model, stamp: Stamp) -> Model | None:
    """The stamped model, when its shape is the one that the flags describe."""
    known = _stamped_model(stamp)
    if known is None:
        return None
    same = (
        "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated", "norm",
        "tied_embeddings", "qkv_bias", "attention_out_bias", "qk_norm", "positions", "window",
        "window_period", "latent_attention", "experts",
    )  # fmt: skip
    return known if all(getattr(known, f) == getattr(model, f) for f in same) else None


def _shell(text: str, name: str, given: Given, stamp: Stamp, folder: Path | None) -> Imported:
    script = read_script(text)
    words = _training_words(script, name)
    world = _world(script, words)
    imported = _words(words, world, given, stamp, folder)
    if script.branches:
        note = "conditions in the script are not evaluated: every branch is read as taken"
        imported = replace(imported, notes=(*imported.notes, note))
    return imported


_BESIDE = {
    # Program → the configuration that lies beside it.
    "train_fsdp.py": "train_fsdp.py", "train_lightning.py": "train_fsdp.py",
    "train.py": "ds_config.json", "torchtitan.train": "recipe.py",
}  # fmt: skip


def _words(
    words: list[str], world: int, given: Given, stamp: Stamp, folder: Path | None
) -> Imported:
    """What the words of one command run: flags of their own, or a configuration they name."""
    _launcher, training = _at_program(words)
    if not any("tensor-model-parallel" in word for word in training):
        for index, word in enumerate(words):
            follows = words[index + 1] if index + 1 < len(words) else ""
            if word in ("--deepspeed_config", "--deepspeed", "--config_file", "--config-file"):
                return _beside(follows, folder, given, world)
        for word in training[:2]:
            beside = _BESIDE.get(Path(word).name, "")
            if beside and folder is not None and (folder / beside).exists():
                return _beside(beside, folder, given, world)
    if any("run_recipe" in word for word in training):
        flags, unknown = megatron_bridge.flags_of(training, given.allow_unknown)
        notes = [f"overrides that are not known: {', '.join(unknown)}"] if unknown else []
        flags = megatron_bridge.finished(flags)
        return _megatron(flags, world, given, stamp, "Megatron-Bridge overrides", notes)
    flags, unknown = flags_of(training, allow_unknown=given.allow_unknown)
    notes = [f"flags that Megatron-LM does not have: {', '.join(unknown)}"] if unknown else []
    return _megatron(flags, world, given, stamp, "Megatron-LM script", notes)


def _beside(target: str, folder: Path | None, given: Given, world: int) -> Imported:
    """Follow a script to the configuration it names, in the script's own folder."""
    path = (folder or Path()) / Path(target).name
    text = _read(path)
    if path.suffix == ".json":
        return _json(text, str(path), given, read_stamp(text), world)
    return import_text(text, str(path), given, folder)


def _training_words(script: Script, name: str) -> list[str]:
    """Words of the command that trains: the longest one with a program and flags."""
    commands = [_flatten(words, script) for words in script.commands]
    commands += [_flatten([script.variables["RUN"]], script)] if "RUN" in script.variables else []
    candidates = [c for c in commands if any(word.startswith("--") for word in c)]
    if not candidates:
        raise SpecError("file", name, "no command with flags was found in this script")
    return max(candidates, key=lambda c: sum(word.startswith("--") for word in c))


def _flatten(words: Iterable[str], script: Script) -> list[str]:
    """Words with arrays and commands in quotes opened up."""
    import shlex

    found: list[str] = []
    for word in words:
        expanded = expand(word, script.variables)
        if " " in expanded and "--" in expanded:
            try:
                found += shlex.split(expanded)
                continue
            except ValueError:
                pass
        found.append(expanded)
    return found


def _at_program(words: list[str]) -> tuple[list[str], list[str]]:
    """Split a command at the training program: (launcher's words, program and its words)."""
    for index, word in enumerate(words):
        if word.endswith(".py") or (word == "-m" and index and "python" in words[index - 1]):
            return words[:index], words[index:]
    return [], words


def _world(script: Script, words: list[str]) -> int:
    """Devices that a script starts: hosts times ranks per host, from torchrun's or SLURM's words."""
    launcher, _ = _at_program(words)
    hosts = _launch_number(launcher, ("nnodes",)) or _whole(script.sbatch.get("nodes", ""))
    hosts = hosts or _whole(script.sbatch.get("N", "")) or 1
    ranks = _launch_number(launcher, ("nproc-per-node", "nproc_per_node", "num_gpus"))
    if not ranks:
        for option in ("gpus-per-node", "gres", "ntasks-per-node"):
            ranks = _whole(script.sbatch.get(option, "").rsplit(":", 1)[-1])
            if ranks and not (option == "ntasks-per-node" and ranks == 1):
                break
    return hosts * ranks if ranks else 0


def _launch_number(words: list[str], names: tuple[str, ...]) -> int:
    for index, word in enumerate(words):
        name, _, value = word.lstrip("-").partition("=")
        if word.startswith("--") and name in names:
            following = words[index + 1] if index + 1 < len(words) else ""
            return _whole((value or following).split(":")[-1])
    return 0


def _started(given: Given, world: int, notes: list[str]) -> int:
    """Devices of the run: what the user says it runs on, before what a script happens to start."""
    if given.cluster is None or not world or given.cluster.gpus == world:
        return world
    notes.append(f"the script starts {world} devices; --cluster says {given.cluster.gpus}")
    return given.cluster.gpus


def _whole(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 8 else 0


def _model(given: Given, stamp: Stamp) -> Model:
    if given.model is not None:
        return given.model
    stamped = _stamped_model(stamp)
    if stamped is not None:
        return stamped
    raise SpecError(
        "--model", None, "this format does not describe the model: name it, as llama3-8b"
    )


def _stamped_model(stamp: Stamp) -> Model | None:
    """The preset that a stamp names; a stamp never names a file to be opened."""
    return load_model(stamp.model) if stamp.model in model_names() else None


def _cluster(given: Given, stamp: Stamp, world: int) -> Cluster:
    if given.cluster is not None:
        return given.cluster
    if _PRESET_SIZE.fullmatch(stamp.cluster):
        try:
            return load_cluster(stamp.cluster)
        except SpecError:
            pass
    hint = f" ({world} devices are started)" if world else ""
    raise SpecError("--cluster", None, f"say what it runs on, as h100:8x8{hint}")


def _seq(given: Given, stamp: Stamp, notes: list[str]) -> int:
    if given.seq_len:
        return given.seq_len
    if stamp.seq_len:
        return stamp.seq_len
    notes.append("the format holds no sequence length; 4096 is assumed (--seq says otherwise)")
    return 4096
