"""Shell scripts: the command that trains, read by the reader of what it starts."""

from __future__ import annotations

import posixpath
from pathlib import Path

from meshwright.exports.stamp import Stamp
from meshwright.imports import commands
from meshwright.imports.formats import llmc, mlperf
from meshwright.imports.launch import Launch, followed
from meshwright.imports.not_training import ASKS_FOR_PROGRAM
from meshwright.imports.options import Missing
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
from meshwright.imports.script_refusals import (
    ask_for_included,
    nothing_found,
    starts_another,
    starts_arguments,
)
from meshwright.imports.shell.state import Script
from meshwright.imports.shell.words import shown, unmarked, unset
from meshwright.specs.errors import SpecError


def read(
    text: str, name: str, given: Given, folder: Path | None, stamp: Stamp
) -> tuple[Reading, Stamp]:
    """Return what the training command of a script runs.

    Raises:
        SpecError: no command trains, or what it runs cannot be read.
    """
    if mlperf.is_run(name) and given.model is None:
        mlperf.refuse_other(name, folder)
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
        command = commands.Command(script, launch, given, folder, stamp)
        reading, stamp = commands.read(command, name)
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
