"""Shell scripts: the command that trains, read by the reader of what it starts."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from meshwright.exports.stamp import Stamp, read_stamp
from meshwright.imports import at_hand, documents
from meshwright.imports.beside import beside
from meshwright.imports.formats import (
    accelerate_export,
    bridge,
    bridge_perf,
    deepspeed_chat,
    hf,
    hf_flax,
    hf_programs,
    llama_factory,
    llama_recipes,
    llmc,
    maxtext,
    mlperf,
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
from meshwright.imports.launch import Launch, followed
from meshwright.imports.not_training import ASKS_FOR_PROGRAM, refuse_other_tasks, unknown_program
from meshwright.imports.options import Missing, flags_of
from meshwright.imports.own import commands as usual_commands
from meshwright.imports.own import hydra as own_hydra
from meshwright.imports.own import loops as own_loops
from meshwright.imports.own import tables as own_tables
from meshwright.imports.own.spelled import spelled_out
from meshwright.imports.reading import Given, Reading
from meshwright.imports.script_devices import (
    device_named,
    device_of,
    name_maker,
    name_slice,
    one_task,
    take_tpus,
)
from meshwright.imports.script_files import configuration, started_in
from meshwright.imports.script_megatron import read_megatron
from meshwright.imports.script_refusals import (
    ask_for_included,
    nothing_found,
    starts_another,
    starts_arguments,
)
from meshwright.imports.shell.state import Script
from meshwright.imports.shell.words import shown, unmarked, unset
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


def read(
    text: str, name: str, given: Given, folder: Path | None, stamp: Stamp
) -> tuple[Reading, Stamp]:
    """Return what the training command of a script runs.

    Raises:
        SpecError: no command trains, or what it runs cannot be read.
    """
    script, launch = followed(text, name, given, folder)
    if launch is not None and not given.guess:
        ask_for_included(script, launch)
        bare = next((w for w in launch.words if unset(w) and not unmarked(w)), "")
        at = launch.words.index(bare) if bare else 0
        alone = not at or not launch.words[at - 1].startswith("-")
        if bare and alone and unset(bare)[0].isdigit() and launch.program.endswith(".py"):
            raise Missing("words", unset(bare)[0], shown(bare))
    if launch is None:
        if starts_arguments(text):
            raise SpecError("--args", None, ASKS_FOR_PROGRAM)
        if mlperf.is_config(script, name):
            return mlperf.read(script, name, given, folder), stamp
        raise SpecError("file", name, nothing_found(script, text))
    if launch.other:
        raise SpecError("file", name, f"{posixpath.basename(launch.other)[:60]} does not train; a training script is expected{starts_another(text)}")  # fmt: skip
    launch.words = spelled_out(launch.words, launch.program, folder)
    if llmc.reads(launch):
        reading = llmc.read_words(launch, given, script)
    else:
        reading, stamp = _dispatch(script, launch, name, given, folder, stamp)
    reading.device = reading.device or device_of(script)
    queue = " ".join(script.sbatch.get(one, "") for one in ("partition", "p", "constraint", "C"))
    reading.likely = device_named(queue) or reading.likely
    name_slice(script, reading)
    # A script that asks whether it is on Ascend holds the words of both; those for GPUs are read.
    either = any("import torch_npu" in one for one in script.doubts)
    name_maker("" if either else text, reading)
    if reading.format.startswith("MaxText") and not reading.device:
        take_tpus(text, reading)
    open_hosts = not reading.world() and launch.per_host and not launch.hosts
    if open_hosts and (one_task(script) or launch.is_python_alone()):
        launch.hosts = 1  # what SLURM gives to one task, or where a program starts by itself
    _take_counts(launch, reading)
    if launch.runs > 1 and not given.config:
        reading.note(
            f"the script starts {launch.runs} different trainings; the one with the most options is read "
            "(--config 1 takes the first, 2 the second)",
            "runs",
        )
    _doubts(script, reading)
    return reading, stamp


def _take_counts(launch: Launch, reading: Reading) -> None:
    """Hosts and devices as the launcher says them, where the program does not count them itself."""
    if reading.counts_itself and reading.world():
        return
    if not reading.world() or (launch.hosts and launch.per_host):
        reading.hosts, reading.per_host = (
            launch.hosts or reading.hosts,
            launch.per_host or reading.per_host,
        )
        reading.devices = launch.devices or (
            0 if launch.hosts and launch.per_host else reading.devices
        )
    elif (launch.hosts > 1 or launch.per_host) and launch.leaves_open("num-processes"):
        # What the command says on the machine replaces its configuration's count.
        reading.hosts, reading.devices, reading.per_host = launch.hosts, 0, launch.per_host
    elif launch.devices:
        # The launcher's own word counts over its configuration's.
        reading.devices = launch.devices
        reading.hosts = launch.hosts or reading.hosts or 1
        whole = launch.devices % reading.hosts == 0
        reading.per_host = launch.devices // reading.hosts if whole else 0


def _doubts(script: Script, reading: Reading) -> None:
    if script.fresh:
        reading.note("files that are not here count as missing, as in the script's first run")
    if script.switched:
        reading.guess(f"--set {script.switched}", "nothing trains without it; it is taken")
    for variable, value in script.guesses.items():
        where = f"--args (argument {variable})" if variable.isdigit() else f"--set {variable}="
        reading.guess(
            where, f"the script does not state it; {value}, the first it asks for, is taken"
        )
    for variable, value in script.counted.items():
        reading.guess(f"--set {variable}=", f"the machine counts it; {value} is taken")
    if script.missing:
        reading.note(
            f"included but not here: {', '.join(m[-60:] for m in script.missing[:3])}", "source"
        )
    if script.doubts:
        reading.note(
            f"what depends on the machine counts as {'true' if script.assuming else 'false'}: {'; '.join(script.doubts[:3])}"[
                :200
            ]
        )


def _dispatch(
    script: Script, launch: Launch, name: str, given: Given, folder: Path | None, stamp: Stamp
) -> tuple[Reading, Stamp]:
    program = launch.program
    words = launch.words
    refuse_other_tasks(launch, flags_of(words))
    joined = " ".join(words)
    if (made := _recipe(program, words, given, folder)) is not None:
        return made, stamp
    trained = _of_verl(program, words, given, started_in(script, program, folder), folder)
    if trained is not None:
        return trained, stamp
    ours = _export_of_ours(program, words, given, folder, stamp)
    if ours is not None:
        return ours
    if torchtitan_registry.is_command(program, words):
        return torchtitan_registry.read_command(words, given, folder), stamp
    if llama_recipes.reads(launch, folder):
        return llama_recipes.read_words(launch, given, folder), stamp
    alone = small_trainers.read(script, launch, given, folder)
    if alone is not None:
        return alone, stamp
    reinforced = _reinforced(program, words, given, folder)
    if reinforced is not None:
        return reinforced, stamp
    if openrlhf.is_openrlhf(program, words):
        reading = openrlhf.read_openrlhf(program, words, given)
        if "ray" not in program:
            one_process(launch, reading)
        return reading, stamp
    if "maxtext" in program.lower():
        return maxtext.read_words(words, given, folder), stamp
    if posixpath.basename(program) == "deepy.py":
        named_ones = neox.read_words(words, given, folder)
        if named_ones is not None:
            return named_ones, stamp
    if program.startswith("megatron ") or "swift/cli/_megatron" in program:
        return swift.read_swift_megatron(words, given), stamp
    if (
        (_is_megatron(joined) or _PRETRAIN.search(program))
        and "swift" not in program
        and not at_hand.makes_a_trainer(program, folder)
    ):
        return read_megatron(script, launch, given, folder), stamp
    followed = at_hand.olmo_core(program, words, given, folder)
    if followed is not None:
        return followed, stamp
    if olmo_overrides.is_command(words) and beside(folder, program) is None:
        return olmo_overrides.read_words(program, words, given), stamp
    constants = torchtitan_registry.read_constants(words, given, folder)
    if constants is not None:
        return constants, stamp
    named = configuration(script, launch, folder)
    if named is not None:
        return _configured(script, launch, named, given, folder, stamp)
    if nemo.is_command(words):
        return nemo.read_words(words, given), stamp
    if (absent := torchtitan_registry.read_absent(program, words, given, folder)) is not None:
        return absent, stamp
    if "per-device-train-batch-size" not in flags_of(words):
        looped = own_hydra.read(launch, given, folder, script) or own_loops.read(
            launch, given, folder
        )
        if looped is not None:
            return looped, stamp
    if at_hand.parses_itself(program, folder) and not deepspeed_chat.is_command(words):
        followed = at_hand.trainer(script, launch, given, folder)
        if followed is not None:
            return followed, stamp
    if (
        deepspeed_chat.is_command(words)
        or hf.is_trainer(flags_of(words))
        or hf_programs.is_swift(program)
    ):
        return hf_flax.adapted(hf.read_words(script, launch, given, folder), launch, folder), stamp
    followed = at_hand.trainer(script, launch, given, folder)
    if followed is not None:
        return followed, stamp
    if program.startswith("llamafactory") and llama_factory.is_config(overridden({}, words)):
        return llama_factory.read(overridden({}, words), given, folder), stamp
    own = usual_commands.engine_defaults(launch, folder)
    if usual_commands.is_usual(launch, own):
        return usual_commands.read_words(launch, given, folder, script, own), stamp
    if program == "tune run":
        return torchtune.read_named(words, given), stamp
    raise unknown_program(launch, name)


def _recipe(program: str, words: list[str], given: Given, folder: Path | None) -> Reading | None:
    """What a command trains that takes a recipe of Megatron-Bridge or NeMo and changes it."""
    if bridge_perf.is_performance(words):
        return bridge_perf.read_words(words, given)
    if "run_recipe" in program or bridge.is_bridge(program, words):
        return bridge.read_words(words, given, folder)
    if nemo_launcher.named(program, words)[0]:
        return nemo_launcher.read(program, words, given, folder)
    if nemo_factories.is_command(words):
        return nemo_factories.read_words(program, words, given, folder)
    if (own := nemo_factories.read_program(program, words, given, folder)) is not None:
        return own
    return at_hand.recipe(program, words, given, folder)


def _of_verl(
    program: str, words: list[str], given: Given, went: Path | None, folder: Path | None
) -> Reading | None:
    """What a command of verl's trains, or a program that holds verl's configuration itself."""
    if hydra.starts_verl(program, words, went):
        return hydra.read_verl(program, words, given, went)
    held = verl_python.started(program, folder)
    return None if held is None else verl_python.read(held[0], str(held[1]), given, words)


def _reinforced(
    program: str, words: list[str], given: Given, folder: Path | None
) -> Reading | None:
    """What a command of a framework for reinforcement learning trains that is known by its words alone."""
    if tunix.is_command(program):
        return tunix.read_words(program, words, given, folder)
    if oat.is_command(program, words):
        return oat.read_words(program, words, given)
    if slime_fsdp.is_command(words):
        return slime_fsdp.read_words(words, given)
    if realhf.is_command(words):
        return realhf.read_words(words, given, program, folder)
    return skyrl.read_words(program, words, given) if skyrl.is_command(program, words) else None


def _is_megatron(words: str) -> bool:
    """Other programs count layers, too; only Megatron-LM has the rest of its names beside it."""
    if "--hf-checkpoint" in words and "--rollout-" in words:
        return True  # slime's, which may take the shape from the checkpoint
    return bool(_MEGATRON.search(words) and _WIDTH.search(words))


_EXPORTED = {
    # Program of an export → the configuration that lies beside it.
    "train_fsdp.py": "train_fsdp.py",
    "train_lightning.py": "train_fsdp.py",
    "train.py": "ds_config.json",
    "torchtitan.train": "recipe.py",
}


def _export_of_ours(
    program: str, words: list[str], given: Given, folder: Path | None, stamp: Stamp
) -> tuple[Reading, Stamp] | None:
    """What an export runs whose other files lie beside the script that starts it."""
    beside_it = _exported(program, words, folder)
    if beside_it is not None:
        return _follow(beside_it, given, folder)
    script = accelerate_export.found(program, folder)
    return None if script is None else (accelerate_export.read(script, given), stamp)


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


def _configured(
    script: Script,
    launch: Launch,
    named: tuple[str, Path | str],
    given: Given,
    folder: Path | None,
    stamp: Stamp,
) -> tuple[Reading, Stamp]:
    """Read the file that a command names; the command's own words count over it."""
    _option, where = named
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
