"""What several commands take: a model, a cluster, a job, a layout."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from meshwright.cli.options import QuestionOptions
from meshwright.costs.encoders import check_images
from meshwright.costs.frameworks import behaviour_of
from meshwright.planner.compared import tuning_stacks
from meshwright.planner.tuning import TUNED_PRECISION, usual_loss, usual_precision
from meshwright.specs import load_cluster, load_job, load_model
from meshwright.specs.cluster import Cluster, Device
from meshwright.specs.errors import SpecError, nearest, one_line
from meshwright.specs.finetune import GROUPS, finetune_recipe
from meshwright.specs.frameworks import find_framework, framework
from meshwright.specs.job import OPTIMIZERS, Job, PrecisionRecipe
from meshwright.specs.job_words import quantises_experts
from meshwright.specs.jobs import precision_recipe
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.quantities import (
    format_bytes,
    parse_batch,
    parse_bytes,
    parse_count,
    parse_length,
)
from meshwright.specs.routing import check_experts, parse_routing
from meshwright.specs.writing import write_atomically


def read_question(
    options: QuestionOptions, *, compares: bool = False
) -> tuple[Model, Cluster, Job]:
    """Load the model, the cluster and the job that the options describe.

    `compares`: fine-tuning for which no tool is named is left to all of them, not to the first.
    """
    model, cluster = read_model(options.model), read_cluster(options.cluster, options.reserve)
    job = read_job(options, cluster.device, cluster.gpus, compares=compares)
    if options.finetune is not None and options.targets is None:
        job = _placed(job, model)
    if job.framework == "trl" and quantises_experts(model, job) and not names_framework(options):
        # TRL's quantiser passes over experts; axolotl's does not, where it runs.
        instead = framework("axolotl").is_exported_on(cluster.device.vendor)
        job = job.but(framework="axolotl" if instead else "trl")
    if _sinks_decide(options, job, model, cluster):
        job = job.but(attention_kernel="unfused")
    if options.routing is not None:
        experts = model.experts.experts if model.experts is not None else None
        check_experts(job.routing, experts, model.name, "--routing")
    check_images(model, job)
    if options.dispatcher is not None:
        from meshwright.planner.dispatchers import asked_dispatcher

        job = asked_dispatcher(job, model, cluster, options.dispatcher)
    if options.cuda_graphs is not None or options.capacity_factor is not None:
        from meshwright.planner.graphs import asked_capacity, asked_graphs

        if options.cuda_graphs is not None:
            job = asked_graphs(job, model, options.cuda_graphs)
        if options.capacity_factor is not None:
            job = asked_capacity(job, model, options.capacity_factor)
    return model, cluster, job


def _sinks_decide(options: QuestionOptions, job: Job, model: Model, cluster: Cluster) -> bool:
    """Whether a model's sinks leave a named framework no kernel but plain attention, and no file names another."""
    can, device = framework(job.framework), cluster.device
    if "framework" not in job.model_fields_set:
        return False
    if not can.runs_sinks_plainly(model, device.vendor, device.name):
        return False
    return "attention_kernel" not in _told_by_file(options)


def names_framework(options: QuestionOptions) -> bool:
    """Whether the options, or the job file among them, say for which framework to plan."""
    return options.framework is not None or "framework" in _told_by_file(options)


def _told_by_file(options: QuestionOptions) -> set[str]:
    """Fields that the job file among the options names."""
    return load_job(Path(options.job)).model_fields_set if options.job else set()


def read_job(
    options: QuestionOptions,
    device: Device | None = None,
    devices: int = 1,
    *,
    compares: bool = False,
) -> Job:
    """Build a Job from a file and the options that override it; `devices` of `device` will run it."""
    base = load_job(Path(options.job)) if options.job else Job()
    changes: dict[str, Any] = {}
    if options.seq is not None:
        changes["seq_len"] = parse_length(options.seq, "--seq")
    length = changes.get("seq_len", base.seq_len)
    if options.global_batch is not None:
        changes["global_batch"] = parse_batch(options.global_batch, length, "--global-batch")
    changes |= _fine_tuning(base, options, devices, compares)
    precision = options.precision
    tool = options.framework or changes.get("framework")
    if tool and not options.job and changes.get("finetune"):
        tool = find_framework(tool, "--framework")
        changes.setdefault("loss", usual_loss(tool))
        precision = precision or usual_precision(changes["finetune"], tool, device, devices)
    if options.framework is not None:
        changes["framework"] = find_framework(options.framework, "--framework")
        if "attention_kernel" not in base.model_fields_set:
            changes["attention_kernel"] = behaviour_of(changes["framework"]).attention_kernel
        if precision is None and base.precision == PrecisionRecipe() and not base.finetune:
            from meshwright.planner.stacks import under

            run = under(Job(), changes["framework"], device)
            changes["precision"] = run.precision
            if "attention_kernel" in changes:
                changes["attention_kernel"] = run.attention_kernel
    if precision is not None:
        changes["precision"] = precision_recipe(precision, "--precision")
    tune = changes.get("finetune")
    if options.optimizer is not None:
        changes["optimizer"] = _named(options.optimizer, OPTIMIZERS, "--optimizer")
    elif precision == TUNED_PRECISION and not options.job and tune is not None and not tune.adapts:
        changes["optimizer"] = OPTIMIZERS["adamw-bf16"]  # moments as wide as the weights
    if options.images is not None:
        changes["images"] = options.images
    if options.image_patches is not None:
        changes["image_patches"] = options.image_patches
    if options.routing is not None:
        changes["routing"] = parse_routing(options.routing, "--routing")
    if options.tokens is not None:
        changes["token_budget"] = float(parse_count(options.tokens, "--tokens"))
    return base.but(**changes) if changes else base


def _fine_tuning(
    base: Job, options: QuestionOptions, devices: int, compares: bool
) -> dict[str, Any]:
    """Fields of a job that the options on fine-tuning and the loss change."""
    changes: dict[str, Any] = {}
    if options.loss is not None:
        changes["loss"] = options.loss
    asked = {"method": options.finetune, "rank": options.rank, "targets": options.targets}
    given = {name: value for name, value in asked.items() if value is not None}
    if not given:
        return changes
    if options.finetune is None:
        if base.finetune is None:
            name = next(iter(given))
            raise SpecError(f"--{name}", given[name], "goes with --finetune lora, dora or qlora")
        return changes | {"finetune": base.finetune.but(**given)}
    tune = finetune_recipe(given, "--finetune")
    changes["finetune"] = tune
    if options.framework is None and base.framework == "any" and not compares:
        changes["framework"] = tuning_stacks(changes["finetune"])[0]
    if options.global_batch is None and not options.job:
        changes["global_batch"] = -(-TUNED_BATCH // devices) * devices
    return changes


def _placed(job: Job, model: Model) -> Job:
    """Adapters on attention where a model has experts: as one tensor a layer they are no linear layers to adapt."""
    tune = job.finetune
    if model.experts is None or tune is None or not tune.adapts:
        return job
    return job.but(finetune=tune.but(targets=GROUPS["attention"]))


TUNED_BATCH = 16
"""Sequences per step where fine-tuning is asked for and no batch is given: so many, or the next number that the
devices divide."""


def _named(name: str, table: dict[str, Any], option: str) -> Any:
    if name not in table:
        raise SpecError(option, name, nearest(name, table))
    return table[name]


def read_cluster(cluster: str, reserve: str | None) -> Cluster:
    """Load a cluster and set the memory to leave free."""
    loaded = load_cluster(cluster)
    if reserve is not None:
        kept = parse_bytes(reserve, "--reserve")
        if reserve.strip()[-1:].isdigit() and 0 < kept < 2**20:
            unit = f"a size with its unit is expected: {reserve.strip()}GiB, say"
            raise SpecError("--reserve", reserve, unit)
        if kept >= loaded.device.memory_bytes:
            raise SpecError(
                "--reserve",
                reserve,
                f"less than the device's {format_bytes(loaded.device.memory_bytes)} is expected",
            )
        loaded = loaded.but(reserve_bytes=kept)
    return loaded


def read_model(model: str) -> Model:
    """Load a model; `toy` is the lessons' four-layer one, which any laptop trains."""
    if model == "toy":
        from meshwright.engine.model.toy import TOY

        return TOY
    return load_model(model)


def build_layout(cluster: Cluster, degrees: dict[str, Any], options: dict[str, Any]) -> Layout:
    """Build a Layout from options; dp is what is left of the cluster unless given."""
    given = {name: value for name, value in {**degrees, **options}.items() if value is not None}
    fixed = given.get("tp", 1) * given.get("pp", 1) * given.get("cp", 1)
    if "dp" not in given:
        if cluster.gpus % fixed:
            raise SpecError(
                "layout",
                f"tp {given.get('tp', 1)} · pp {given.get('pp', 1)} · cp {given.get('cp', 1)}",
                f"their product must divide the {cluster.gpus} devices",
            )
        given["dp"] = cluster.gpus // fixed
    if given.get("virtual_stages", 1) > 1 and "schedule" not in given:
        given["schedule"] = "interleaved"
    if "sequence_parallel" not in given:
        given["sequence_parallel"] = given.get("tp", 1) > 1
    return Layout.parse(given)


def read_numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    """Read `3,4,4,3`.

    Raises:
        SpecError: anything but whole numbers with commas between.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SpecError(option, text, "whole numbers with commas between are expected") from None


def command_line() -> str:
    """The command line as typed, for the record in a plan."""
    return one_line("meshwright " + shlex.join(sys.argv[1:]))


def write_text(path: str, text: str) -> None:
    """Write a text file atomically, or standard output for `-`."""
    if path == "-":
        sys.stdout.write(text)
    else:
        write_atomically(path, text)
