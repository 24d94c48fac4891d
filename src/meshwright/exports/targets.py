"""The targets by name, and the front door: a plan and a target in, a bundle of files out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshwright.exports import (
    accelerate,
    bridged,
    clouds,
    deepspeed,
    finetuning,
    fsdp,
    kubernetes,
    lightning,
    maxtext,
    megatron,
    megatron_bridge,
    nanotron,
    primus,
    torchtitan,
    torchtune,
    trainer,
    tuning_notes,
    verl,
)
from meshwright.exports.bundle import Bundle, comment
from meshwright.exports.cluster_files import CLAIM, HUB, disk_note
from meshwright.exports.fabric import MEASURED_BY
from meshwright.exports.families import unknown_numbers
from meshwright.exports.images import unfit
from meshwright.exports.inputs import (
    Inputs,
    note,
    of_bridge,
    of_maxtext,
    of_megatron,
    of_nanotron,
    of_primus,
    of_recipe,
    of_tuner,
)
from meshwright.exports.launch import Command, slurm_script, torchrun_script
from meshwright.exports.limits import Limits, gradient_notes, require
from meshwright.exports.nearest import nearest_plan
from meshwright.exports.scripts import of_script, of_trainer
from meshwright.exports.tuning_limits import problems_of
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.model import Model
from meshwright.specs.plan import Plan


@dataclass(frozen=True, slots=True)
class Framework:
    """A training framework: what it can express, its files, and what each rank runs."""

    title: str
    version: str
    limits: Limits
    files: Callable[[Plan, str], dict[str, str]]
    words: Callable[[Plan], tuple[str, ...]]
    notes: Callable[[Plan], tuple[str, ...]] = lambda plan: ()
    inputs: Callable[[Model], Inputs] | None = None
    """What whoever launches fills in; None: its files name data and folders themselves."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """A way to start processes: the name of its file and what it holds."""

    title: str
    file: str
    text: Callable[[Plan, Command, str], str]
    start: str


def _no_files(plan: Plan, command: str) -> dict[str, str]:
    return {}


def _megatron_words(plan: Plan) -> tuple[str, ...]:
    return ('"${MEGATRON:-.}/pretrain_gpt.py"', *megatron.words(megatron.all_flags(plan)))


FRAMEWORKS: dict[str, Framework] = {
    "megatron": Framework(
        "Megatron-LM", megatron.VERSION, megatron.LIMITS, _no_files, _megatron_words,
        megatron.notes, of_megatron,
    ),
    "deepspeed": Framework(
        "DeepSpeed", deepspeed.VERSION, deepspeed.LIMITS, deepspeed.files,
        lambda plan: ("train.py",), deepspeed.notes, of_script,
    ),
    "accelerate": Framework(
        "accelerate", accelerate.VERSION, accelerate.LIMITS, accelerate.files,
        lambda plan: ("train.py",), inputs=of_script,
    ),
    "trainer": Framework(
        "transformers' Trainer", trainer.VERSION, trainer.LIMITS, trainer.files,
        lambda plan: ("train_trainer.py", "trainer.yaml"), trainer.notes,
        of_trainer,
    ),
    "torchtitan": Framework(
        "torchtitan", torchtitan.VERSION, torchtitan.LIMITS, torchtitan.files,
        lambda plan: ("-m", "torchtitan.train", "--module", "recipe", "--config", "recipe"),
        torchtitan.notes, of_recipe,
    ),
    "nanotron": Framework(
        "nanotron", nanotron.VERSION, nanotron.LIMITS, nanotron.files,
        lambda plan: ("run_train.py", "--config-file", "nanotron.yaml"),
        nanotron.notes, of_nanotron,
    ),
    "megatron-bridge": Framework(
        "Megatron-Bridge", megatron_bridge.VERSION, megatron_bridge.LIMITS, bridged.files,
        megatron_bridge.words, megatron_bridge.notes, of_bridge,
    ),
    "primus": Framework(
        "Primus", primus.VERSION, primus.LIMITS, primus.files,
        lambda plan: ('"${PRIMUS:-.}/primus/cli/main.py"', "train", "pretrain", "--config", "primus.yaml"),
        primus.notes, of_primus,
    ),
    "maxtext": Framework(
        "MaxText", maxtext.VERSION, maxtext.LIMITS, maxtext.files,
        lambda plan: ("-m", "maxtext.trainers.pre_train.train", "maxtext.yml"), maxtext.notes,
        of_maxtext,
    ),
    "fsdp": Framework(
        "PyTorch", fsdp.VERSION, fsdp.LIMITS, fsdp.files, lambda plan: ("train_fsdp.py",),
        fsdp.notes, of_script,
    ),
    "lightning": Framework(
        "Lightning", lightning.VERSION, lightning.LIMITS, lightning.files,
        lambda plan: ("train_lightning.py",), fsdp.notes,
        of_script,
    ),
}  # fmt: skip


def _notes_of(name: str) -> Callable[[Plan], tuple[str, ...]]:
    return lambda plan: tuning_notes.notes(plan, name)


def _words_of(name: str) -> Callable[[Plan], tuple[str, ...]]:
    return lambda plan: finetuning.WORDS[name]


def _inputs_of(name: str) -> Callable[[Model], Inputs]:
    return lambda model: of_tuner(name)


def _tuner(title: str, name: str) -> Limits:
    return Limits(title, name, asked=problems_of(name))


FINETUNERS: dict[str, Framework] = {
    name: Framework(
        limits.title, limits.can.checked, limits, finetuning.FILES[name], _words_of(name),
        _notes_of(name), _inputs_of(name),
    )
    for name, limits in (
        ("trl", _tuner("TRL", "trl")), ("axolotl", _tuner("axolotl", "axolotl")),
        ("llama-factory", _tuner("LLaMA-Factory", "llama-factory")),
    )
}  # fmt: skip
FINETUNERS |= {
    name: Framework(
        name, limits.can.checked, limits, made.files, made.words, _notes_of(name), _inputs_of(name),
    )
    for name, made, limits in (
        # torchtune's models are its own, named in its own module.
        ("torchtune", torchtune, Limits("torchtune", "torchtune", asked=torchtune.problems)),
        ("verl", verl, _tuner("verl", "verl")),
    )
}  # fmt: skip
"""Tools that train a model further; they start from its published weights."""
STARTED = FRAMEWORKS | FINETUNERS
"""What a launcher can start."""

LAUNCHERS: dict[str, Launcher] = {
    "torchrun": Launcher("torchrun", "run.sh", torchrun_script, "bash run.sh"),
    "slurm": Launcher("SLURM", "train.sbatch", slurm_script, "sbatch train.sbatch"),
    "kubernetes": Launcher(
        "Kubernetes TrainJob",
        "trainjob.yaml",
        kubernetes.trainjob,
        "kubectl apply -f trainjob.yaml",
    ),
    "jobset": Launcher(
        "Kubernetes JobSet", "jobset.yaml", kubernetes.jobset, "kubectl apply -f jobset.yaml"
    ),
    "pytorchjob": Launcher(
        "Kubernetes PyTorchJob",
        "pytorchjob.yaml",
        kubernetes.pytorchjob,
        "kubectl apply -f pytorchjob.yaml",
    ),
    "skypilot": Launcher("SkyPilot", "sky.yaml", clouds.skypilot, "sky launch sky.yaml"),
    "ray": Launcher("Ray Train", "ray_train.py", clouds.ray_script, "python ray_train.py"),
}

MEASURE = "measure"
"""What `--for` names so that a launcher measures the plan's cluster instead of training on it."""
PODS = ("kubernetes", "jobset", "pytorchjob")

TARGETS = (*FRAMEWORKS, *FINETUNERS, *LAUNCHERS)


def export(plan: Plan, target: str, *, launches: str | None = None, command: str = "") -> Bundle:
    """Write a plan in the language of a target.

    Args:
        plan: what to run.
        target: a framework or a launcher of `TARGETS`.
        launches: for a launcher, the framework or tool that it starts; default: the plan's own if it is
            a target, else Megatron-LM; "measure": no training, but a measurement of the plan's cluster.
        command: the command line to stamp the files with.

    Raises:
        SpecError: unknown target, or a plan that the target cannot express.
    """
    if target in STARTED:
        if launches is not None:
            raise SpecError(
                "--for", launches, f"{target} is itself a framework; use --for with a launcher"
            )
        return _framework(plan, target, command)
    if target not in LAUNCHERS:
        raise SpecError("--to", target, nearest(target, TARGETS))
    if launches == MEASURE:
        return _measuring(plan, target, command)
    name = launches or default_framework(plan)
    if name not in STARTED:
        raise SpecError("--for", name, nearest(name, (*STARTED, MEASURE)))
    return _launcher(plan, target, name, command)


def nearest_expressible(
    plan: Plan, target: str, *, launches: str | None = None, command: str = ""
) -> tuple[Plan, tuple[str, ...]]:
    """The nearest plan that a target can express, priced, and what changed.

    Raises:
        SpecError: unknown target, or no plan for this model and job that it can express fits.
    """
    name = target if target in STARTED else launches or default_framework(plan)
    if name not in STARTED:
        raise SpecError("--to", name, nearest(name, TARGETS))
    return nearest_plan(plan, STARTED[name].limits, command=command)


def default_framework(plan: Plan) -> str:
    """The framework a plan was made for, where it is a target; else Megatron-LM."""
    wanted = plan.job.framework
    if wanted in STARTED:
        return wanted
    return {"nemo": "megatron-bridge"}.get(wanted, "megatron")


def _framework(plan: Plan, name: str, command: str) -> Bundle:
    framework = STARTED[name]
    require(plan, framework.limits)
    files = framework.files(plan, command)
    stamp = comment(plan, command, f"{framework.title} {framework.version}")
    script = torchrun_script(plan, _started(plan, name, files), stamp)
    return Bundle(name, files | {"run.sh": script}, "bash run.sh", _notes(plan, name))


def _notes(plan: Plan, name: str) -> tuple[str, ...]:
    """What whoever starts a framework's files should know."""
    framework = STARTED[name]
    found = (*framework.notes(plan), *gradient_notes(plan, framework.limits), *unfit(plan, name))
    if framework.inputs:
        found += (note(framework.inputs(plan.model)),)
    if name in FINETUNERS:
        return found
    if plan.job.finetune is not None:
        found += (
            f"the files begin with new weights: tell {framework.title} where those to train further lie"
            + (" (bash run.sh --weights FOLDER)" if _reads_weights(plan, name) else ""),
        )
    return found if name in ("torchtitan", "maxtext") else (*found, *unknown_numbers(plan.model))


def _reads_weights(plan: Plan, name: str) -> bool:
    return name == "accelerate" or (name == "deepspeed" and plan.layout.pp == 1)


def _started(plan: Plan, name: str, files: dict[str, str]) -> Command:
    """What each rank runs; where a bundle holds accelerate's own configuration, its launcher reads it."""
    asks = STARTED[name].inputs
    return Command(
        STARTED[name].words(plan), name, accelerated="accelerate.yaml" in files,
        inputs=asks(plan.model) if asks else None,
    )  # fmt: skip


def _launcher(plan: Plan, name: str, framework_name: str, command: str) -> Bundle:
    framework, launcher = STARTED[framework_name], LAUNCHERS[name]
    require(plan, framework.limits)
    starts = ("torchrun", "slurm") if maxtext.on_gpus(plan) else ("torchrun", "slurm", "jobset")
    if framework_name == "maxtext" and name not in starts:
        others = " or ".join(("maxtext", *starts[1:]))
        says = f"JAX starts one process a host: --to {others} is expected"
        raise SpecError("--for", framework_name, says)
    files = framework.files(plan, command)
    run = _started(plan, framework_name, files)
    if name == "ray" and run.accelerated:
        raise SpecError("--for", framework_name, "accelerate starts its own processes, not Ray's")
    stamp = comment(plan, command, f"{launcher.title}, {framework.title} {framework.version}")
    files = {launcher.file: launcher.text(plan, run, stamp)} | files
    start = launcher.start
    notes = _notes(plan, framework_name)
    if name in PODS:
        start = kubernetes.start_with(launcher.file) if len(files) > 1 else start
        notes += (
            disk_note(run, f"the claim {CLAIM} (ReadWriteMany: a disk that every host writes to)"),
        )
        notes += (kubernetes.token_note(),) if framework_name in HUB else ()
    if name == "skypilot":
        notes += (disk_note(run, "the bucket BUCKET (made where there is none)"),)
    return Bundle(name, files, start, notes)


def _measuring(plan: Plan, name: str, command: str) -> Bundle:
    """The files by which a launcher runs `meshwright.measure` on all ranks of a plan's cluster."""
    launcher, where = LAUNCHERS[name], "-" if name in PODS else "mine.toml"
    if name == "ray":
        raise SpecError("--for", MEASURE, "ranks that torchrun starts measure: not --to ray")
    run = Command(("-m", "meshwright.measure", "-o", where), MEASURED_BY)
    stamp = comment(plan, command, f"{launcher.title}, a measurement of its cluster")
    file = launcher.file.replace("train.", "measure.")
    text = launcher.text(plan, run, stamp).replace(launcher.file, file)
    told = "rank 0 writes mine.toml: --cluster mine.toml plans with it"
    if name in PODS:
        told = (
            "rank 0 prints the cluster file last: "
            "kubectl logs POD | sed -n '/^name = /,$p' > mine.toml"
        )
    return Bundle(name, {file: text}, launcher.start.replace(launcher.file, file), (told,))


def export_all(plan: Plan, *, command: str = "") -> tuple[dict[str, Bundle], dict[str, str]]:
    """Write a plan for every target: (bundles by target, why not by target)."""
    made: dict[str, Bundle] = {}
    refused: dict[str, str] = {}
    for name in STARTED:
        try:
            made[name] = export(plan, name, command=command)
        except SpecError as error:
            refused[name] = str(error)
    first = default_framework(plan)
    started = first if first in made else next(iter(made), None)
    for name in LAUNCHERS:
        if started is None:
            refused[name] = "no framework can express this plan"
            continue
        try:
            made[name] = export(plan, name, launches=started, command=command)
        except SpecError as error:
            refused[name] = str(error)
    return made, refused
