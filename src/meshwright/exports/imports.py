"""A file of another tool as a model, a cluster, a job and a layout. The file is read, never run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from meshwright.exports import accelerate, deepspeed, megatron
from meshwright.exports.bundle import STAMP_KEY
from meshwright.exports.canonical import canonical
from meshwright.exports.megatron_model import Flags
from meshwright.exports.megatron_read import flags_of, log_flags
from meshwright.exports.shell import MAX_BYTES, Script, expand, read_script
from meshwright.exports.stamp import Stamp, read_stamp
from meshwright.specs import load_cluster, load_model
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model


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
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SpecError("file", str(path), f"is larger than {MAX_BYTES} bytes")
        raw = path.read_bytes()
    except OSError as error:
        raise SpecError("file", str(path), f"cannot be read ({error.strerror})") from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise SpecError(
            "file", str(path), "is a binary file; a script or a configuration is expected"
        ) from None
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
    suffix = Path(name).suffix.lower()
    if suffix == ".json" or text.lstrip()[:1] == "{":
        return _json(text, name, given, stamp)
    if suffix in (".yaml", ".yml"):
        return _yaml(text, name, given, stamp, folder)
    if _looks_like_shell(text, suffix):
        return _shell(text, name, given, stamp, folder)
    raise SpecError(
        "file", name,
        "no known format; a shell script, a Megatron-LM log, a DeepSpeed JSON or an accelerate YAML "
        "is expected",
    )  # fmt: skip


def _looks_like_shell(text: str, suffix: str) -> bool:
    if suffix in (".sh", ".bash", ".sbatch", ".slurm"):
        return True
    return text.startswith("#!") or "--tensor-model-parallel-size" in text or "#SBATCH" in text


def _json(text: str, name: str, given: Given, stamp: Stamp) -> Imported:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError("file", name, f"is not valid JSON ({str(error)[:100]})") from None
    if not isinstance(data, dict):
        raise SpecError("file", name, "a JSON object is expected")
    return _deepspeed(data, given, stamp, 0, [])


def _yaml(text: str, name: str, given: Given, stamp: Stamp, folder: Path | None) -> Imported:
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(
            "file", name, f"is not valid YAML ({' '.join(str(error).split())[:100]})"
        ) from None
    if not isinstance(data, dict):
        raise SpecError("file", name, "a table of named fields is expected")
    return _accelerate(data, given, stamp)


def _deepspeed(
    data: dict[str, Any], given: Given, stamp: Stamp, world: int, notes: list[str]
) -> Imported:
    if STAMP_KEY in data:
        stamp = read_stamp("\n".join(str(value) for value in dict(data[STAMP_KEY]).values()))
    model, cluster = _model(given, stamp), _cluster(given, stamp, world)
    seq = _seq(given, stamp, notes)
    job, layout = deepspeed.read(data, world or cluster.gpus, seq)
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
    model, job, layout = megatron.read_flags(flags, world or cluster.gpus)
    named = given.model or _named_alike(model, stamp)
    if named is not None:
        model = named
    return Imported(kind, model, cluster, job, canonical(layout, model), tuple(notes))


def _named_alike(model: Model, stamp: Stamp) -> Model | None:
    """The stamped model, when its shape is the one that the flags describe."""
    if not stamp.model:
        return None
    try:
        known = load_model(stamp.model)
    except SpecError:
        return None
    same = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "gated", "tied_embeddings")
    return known if all(getattr(known, f) == getattr(model, f) for f in same) else None


def _shell(text: str, name: str, given: Given, stamp: Stamp, folder: Path | None) -> Imported:
    script = read_script(text)
    words = _training_words(script, name)
    world = _world(script, words)
    launcher, training = _at_program(words)
    joined = " ".join(words)
    if "--deepspeed_config" in training or (
        "--deepspeed" in training and "--tensor-model" not in joined
    ):
        option = "--deepspeed_config" if "--deepspeed_config" in training else "--deepspeed"
        return _named_file(training, option, folder, given, world)
    if "--config_file" in launcher:
        return _named_file(launcher, "--config_file", folder, given, world)
    program = next((word for word in training[:1]), "")
    if folder is not None and program.endswith("train.py") and (folder / "ds_config.json").exists():
        return _named_file(["--c", "ds_config.json"], "--c", folder, given, world)
    flags, unknown = flags_of(training, allow_unknown=given.allow_unknown)
    notes = [f"flags that Megatron-LM does not have: {', '.join(unknown)}"] if unknown else []
    return _megatron(flags, world, given, stamp, "Megatron-LM script", notes)


def _named_file(
    words: list[str], option: str, folder: Path | None, given: Given, world: int
) -> Imported:
    """Follow a script to the configuration it names, beside it."""
    target = words[words.index(option) + 1] if words.index(option) + 1 < len(words) else ""
    path = (folder or Path()) / Path(target).name
    text = _read(path)
    stamp = read_stamp(text)
    if path.suffix == ".json":
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise SpecError("file", str(path), "is not valid JSON") from None
        if isinstance(data, dict):
            return _deepspeed(data, given, stamp, world, [])
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


def _whole(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 8 else 0


def _model(given: Given, stamp: Stamp) -> Model:
    if given.model is not None:
        return given.model
    if stamp.model:
        try:
            return load_model(stamp.model)
        except SpecError:
            pass
    raise SpecError(
        "--model", None, "this format does not describe the model: name it, as llama3-8b"
    )


def _cluster(given: Given, stamp: Stamp, world: int) -> Cluster:
    if given.cluster is not None:
        return given.cluster
    if stamp.cluster:
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
