"""The command of a script that trains: each program's reader, in the order in which they are asked."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meshwright.exports.stamp import Stamp, read_stamp
from meshwright.imports import at_hand, documents
from meshwright.imports.beside import beside
from meshwright.imports.formats import (
    accelerate_export,
    bridge,
    bridge_export,
    bridge_perf,
    deepspeed_chat,
    hf,
    hf_flax,
    hf_programs,
    llama_factory,
    llama_recipes,
    maxtext,
    nemo,
    nemo_factories,
    nemo_launcher,
    neox,
    oat,
    olmo_overrides,
    openrlhf,
    paddle,
    realhf,
    skyrl,
    slime_fsdp,
    small_trainers,
    swift,
    torchtitan_registry,
    torchtune,
    tunix,
    verl_python,
)
from meshwright.imports.formats import verl as hydra
from meshwright.imports.formats.hf_launcher import one_process
from meshwright.imports.inherited import whole_text
from meshwright.imports.launch import Launch
from meshwright.imports.not_training import refuse_other_tasks, unknown_program
from meshwright.imports.options import flags_of
from meshwright.imports.own import commands as usual_commands
from meshwright.imports.own import hydra as own_hydra
from meshwright.imports.own import loops as own_loops
from meshwright.imports.own import tables as own_tables
from meshwright.imports.reading import Given, Reading
from meshwright.imports.script_files import configuration, started_in
from meshwright.imports.script_megatron import read_megatron
from meshwright.imports.shell.state import Script
from meshwright.imports.word_overrides import overridden
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text

_MEGATRON = re.compile(
    r"--(?:num-layers|num_layers|tensor-model-parallel-size|tensor_model_parallel_size|hybrid-layer-pattern|hybrid-override-pattern)\b"
)
_WIDTH = re.compile(
    r"--(?:tensor[-_]model[-_]parallel[-_]size|num[-_]attention[-_]heads|micro[-_]batch[-_]size)\b"
)
_PRETRAIN = re.compile(r"(?:^|/)pretrain_(?:gpt|llama|mixtral|deepseek|qwen|megatron)\w*\.py$")


@dataclass(frozen=True)
class Command:
    """The command that trains, with the script that it stands in."""

    script: Script
    launch: Launch
    given: Given
    folder: Path | None
    stamp: Stamp

    @property
    def program(self) -> str:
        """What is started."""
        return self.launch.program

    @property
    def words(self) -> list[str]:
        """What it is started with."""
        return self.launch.words


Reader = Callable[[Command], Reading | tuple[Reading, Stamp] | None]
"""What a command trains, with a stamp where what it names has one of its own; None where it is another's."""


def read(command: Command, name: str) -> tuple[Reading, Stamp]:
    """Return what a command trains; `name` is the file's.

    Raises:
        SpecError: it trains something else, or nobody knows its program.
    """
    refuse_other_tasks(command.launch, flags_of(command.words))
    for reader in READERS:
        found = reader(command)
        if found is not None:
            return found if isinstance(found, tuple) else (found, command.stamp)
    raise unknown_program(command.launch, name)


def _recipe(c: Command) -> Reading | None:
    """What a command trains that takes a recipe of Megatron-Bridge or NeMo and changes it."""
    program, words = c.program, c.words
    if bridge_perf.is_performance(words):
        return bridge_perf.read_words(words, c.given)
    exported = bridge_export.found(program, c.folder)
    if exported is not None:
        return bridge_export.read(words, c.given, exported)
    if "run_recipe" in program or bridge.is_bridge(program, words):
        return bridge.read_words(words, c.given, c.folder)
    if nemo_launcher.named(program, words)[0]:
        return nemo_launcher.read(program, words, c.given, c.folder)
    if nemo_factories.is_command(words):
        return nemo_factories.read_words(program, words, c.given, c.folder)
    if (own := nemo_factories.read_program(program, words, c.given, c.folder)) is not None:
        return own
    return at_hand.recipe(program, words, c.given, c.folder)


def _verl(c: Command) -> Reading | None:
    """What a command of verl's trains, or a program that holds verl's configuration itself."""
    went = started_in(c.script, c.program, c.folder)
    if hydra.starts_verl(c.program, c.words, went):
        return hydra.read_verl(c.program, c.words, c.given, went)
    held = verl_python.started(c.program, c.folder)
    return None if held is None else verl_python.read(held[0], str(held[1]), c.given, c.words)


def _export_of_ours(c: Command) -> Reading | tuple[Reading, Stamp] | None:
    """What an export runs whose other files lie beside the script that starts it."""
    beside_it = _exported(c.program, c.words, c.folder)
    if beside_it is not None:
        return _follow(beside_it, c.given, c.folder)
    script = accelerate_export.found(c.program, c.folder)
    return None if script is None else accelerate_export.read(script, c.given)


def _torchtitan(c: Command) -> Reading | None:
    if torchtitan_registry.is_command(c.program, c.words):
        return torchtitan_registry.read_command(c.words, c.given, c.folder)
    return None


def _llama_recipes(c: Command) -> Reading | None:
    if llama_recipes.reads(c.launch, c.folder):
        return llama_recipes.read_words(c.launch, c.given, c.folder)
    return None


def _reinforced(c: Command) -> Reading | None:
    """What a command of a framework for reinforcement learning trains that is known by its words alone."""
    program, words = c.program, c.words
    if tunix.is_command(program):
        return tunix.read_words(program, words, c.given, c.folder)
    if oat.is_command(program, words):
        return oat.read_words(program, words, c.given)
    if slime_fsdp.is_command(words):
        return slime_fsdp.read_words(words, c.given)
    if realhf.is_command(words):
        return realhf.read_words(words, c.given, program, c.folder)
    return skyrl.read_words(program, words, c.given) if skyrl.is_command(program, words) else None


def _openrlhf(c: Command) -> Reading | None:
    if not openrlhf.is_openrlhf(c.program, c.words):
        return None
    reading = openrlhf.read_openrlhf(c.program, c.words, c.given)
    if "ray" not in c.program:
        one_process(c.launch, reading)
    return reading


def _maxtext(c: Command) -> Reading | None:
    if "maxtext" in c.program.lower():
        return maxtext.read_words(c.words, c.given, c.folder)
    return None


def _neox(c: Command) -> Reading | None:
    if posixpath.basename(c.program) == "deepy.py":
        return neox.read_words(c.words, c.given, c.folder)
    return None


def _megatron(c: Command) -> Reading | None:
    """What a program with Megatron-LM's options trains, ms-swift's own among them."""
    program = c.program
    if program.startswith("megatron ") or "swift/cli/_megatron" in program:
        return swift.read_swift_megatron(c.words, c.given, c.folder)
    if (
        (_is_megatron(" ".join(c.words)) or _PRETRAIN.search(program))
        and "swift" not in program
        and not at_hand.makes_a_trainer(program, c.folder)
    ):
        return read_megatron(c.script, c.launch, c.given, c.folder)
    return None


def _is_megatron(words: str) -> bool:
    """Other programs count layers, too; only Megatron-LM has the rest of its names beside it."""
    if "--hf-checkpoint" in words and "--rollout-" in words:
        return True  # slime's, which may take the shape from the checkpoint
    return bool(_MEGATRON.search(words) and _WIDTH.search(words))


def _olmo(c: Command) -> Reading | None:
    followed = at_hand.olmo_core(c.program, c.words, c.given, c.folder)
    if followed is not None:
        return followed
    if olmo_overrides.is_command(c.words) and beside(c.folder, c.program) is None:
        return olmo_overrides.read_words(c.program, c.words, c.given)
    return None


def _torchtitan_constants(c: Command) -> Reading | None:
    return torchtitan_registry.read_constants(c.words, c.given, c.folder)


def _configured(c: Command) -> tuple[Reading, Stamp] | None:
    """What the file trains that a command names, if it names one."""
    named = configuration(c.script, c.launch, c.folder)
    return None if named is None else _from_file(c, named[1])


def _nemo(c: Command) -> Reading | None:
    return nemo.read_words(c.words, c.given) if nemo.is_command(c.words) else None


def _torchtitan_absent(c: Command) -> Reading | None:
    return torchtitan_registry.read_absent(c.program, c.words, c.given, c.folder)


def _loop(c: Command) -> Reading | None:
    """What a loop of one's own trains."""
    if "per-device-train-batch-size" in flags_of(c.words):
        return None
    return own_hydra.read(c.launch, c.given, c.folder, c.script) or own_loops.read(
        c.launch, c.given, c.folder
    )


def _trainer(c: Command) -> Reading | None:
    """What transformers' Trainer trains: a program at hand that parses its own words, else by the words, else at hand."""
    chat = deepspeed_chat.is_command(c.words)
    if at_hand.parses_itself(c.program, c.folder) and not chat:
        followed = at_hand.trainer(c.script, c.launch, c.given, c.folder)
        if followed is not None:
            return followed
    if chat or hf.is_trainer(flags_of(c.words)) or hf_programs.is_swift(c.program):
        reading = hf.read_words(c.script, c.launch, c.given, c.folder)
        return hf_flax.adapted(reading, c.launch, c.folder)
    return at_hand.trainer(c.script, c.launch, c.given, c.folder)


def _llama_factory(c: Command) -> Reading | None:
    told = overridden({}, c.words)
    if c.program.startswith("llamafactory") and llama_factory.is_config(told):
        return llama_factory.read(told, c.given, c.folder)
    return None


def _usual(c: Command) -> Reading | None:
    """What a program of one's own trains by words that many use."""
    own = usual_commands.engine_defaults(c.launch, c.folder)
    if usual_commands.is_usual(c.launch, own):
        return usual_commands.read_words(c.launch, c.given, c.folder, c.script, own)
    return None


def _torchtune(c: Command) -> Reading | None:
    return torchtune.read_named(c.words, c.given) if c.program == "tune run" else None


READERS: tuple[Reader, ...] = (
    _recipe,
    _verl,
    _export_of_ours,
    _torchtitan,
    _llama_recipes,
    lambda c: small_trainers.read(c.script, c.launch, c.given, c.folder),
    _reinforced,
    _openrlhf,
    _maxtext,
    _neox,
    _megatron,
    _olmo,
    _torchtitan_constants,
    _configured,
    _nemo,
    _torchtitan_absent,
    _loop,
    _trainer,
    _llama_factory,
    _usual,
    _torchtune,
)
"""The first that knows a command reads it, so the order is part of the knowledge: frameworks by their own program or
words, then the files that a command names, then words that many programs share."""


_EXPORTED = {
    # Program of an export → the configuration that lies beside it.
    "train_fsdp.py": "train_fsdp.py",
    "train_lightning.py": "train_fsdp.py",
    "train.py": "ds_config.json",
    "torchtitan.train": "recipe.py",
}


def _exported(program: str, words: list[str], folder: Path | None) -> Path | None:
    beside_it = _EXPORTED.get(posixpath.basename(program), "")
    if not beside_it or folder is None or "--config_file" in " ".join(words):
        return None
    path = folder / beside_it
    if not path.is_file():
        return None
    return path if "made by meshwright" in read_text(path)[:3000] else None


def _follow(path: Path, given: Given, folder: Path | None) -> tuple[Reading, Stamp]:
    from meshwright.imports.files import read_any

    return read_any(read_text(path), str(path), given, folder)


def _from_file(c: Command, where: Path | str) -> tuple[Reading, Stamp]:
    """Read the file that a command names, or its text; the command's own words count over it."""
    script, launch, given, folder, stamp = c.script, c.launch, c.given, c.folder, c.stamp
    text = where if isinstance(where, str) else whole_text(read_text(where, "file"), where.parent)
    name = "configuration.yaml" if isinstance(where, str) else str(where)
    inner = read_stamp(text)
    beside_it = folder if isinstance(where, str) else where.parent
    if (
        name.endswith((".yaml", ".yml", ".json"))
        and not paddle.is_text(text)
        and (hf.is_trainer_text(text) or (launch.starts_ranks() and hf.has_words(text)))
    ):
        return hf.read_words(script, launch, given, folder, text), inner
    try:
        if name.endswith(".py"):
            reading, found = _follow(Path(name), given, beside_it)
        else:
            reading, found = documents.read(text, name, given, beside_it, inner, overrides=launch.words)  # fmt: skip
        says_model = reading.model is not None or bool(reading.model_name or reading.model_left[0])
    except SpecError:
        followed = at_hand.trainer(script, launch, given, folder)
        if followed is None:
            raise
        return followed, stamp
    if not says_model and not given.model and stamp == Stamp() == found:
        followed = at_hand.trainer(script, launch, given, folder)
        if followed is not None and (followed.model or followed.model_name):
            return followed, stamp  # the program has the rest, and reads the table itself
    if own_tables.is_own(reading) and not own_loops.starts_others(launch.program, folder):
        one_process(launch, reading)
    reading.format = f"{reading.format}, named by a script"
    return reading, found if found != Stamp() else stamp
