"""The planner as answers of the API: plans with what they were chosen from."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, NotRequired

from fastapi import Body, Query
from typing_extensions import TypedDict

from meshwright.costs.step import estimates
from meshwright.planner.legality import Question
from meshwright.planner.plan import plan as make_plan
from meshwright.planner.search import Candidates, pareto, search
from meshwright.specs.cluster import Cluster
from meshwright.specs.job import Job
from meshwright.specs.model import Model
from meshwright.specs.plan import Plan
from meshwright.specs.quantities import format_bytes, format_count, format_seconds
from meshwright.studio.questions import JobRequest, Text, read_model, read_question

SHOWN = 300
"""Candidates that the page draws."""


class CandidateTable(TypedDict):
    """The best layouts, fastest first, as columns."""

    label: list[str]
    dp: list[int]
    tp: list[int]
    pp: list[int]
    cp: list[int]
    ep: list[int]
    virtual_stages: list[int]
    zero: list[int]
    shard: list[int]
    micro_batch: list[int]
    recompute: list[str]
    schedule: list[str]
    sequence_parallel: list[bool]
    step_time_s: list[float]
    peak_memory_bytes: list[float]
    bubble_fraction: list[float]
    mfu: list[float]
    fits: list[bool]
    pareto: list[bool]


class Links(TypedDict):
    """The same question outside the browser."""

    cli: str
    python: str


class PlanAnswer(TypedDict):
    """A plan with what it was chosen from; `plan` is a Plan file as JSON."""

    plan: dict[str, Any]
    label: str
    summary: str
    candidates: CandidateTable
    links: Links


class PlanRequest(TypedDict):
    """A question for the planner; `model` may be a name or the content of a config.json."""

    model: str | dict[str, Any]
    cluster: str
    job: NotRequired[JobRequest]
    objective: NotRequired[str]


def plan_by_query(
    model: Text = "llama3-70b",
    cluster: Text = "h100:8x8",
    seq: Text = "8192",
    batch: Text = "4M-tokens",
    recipe: Text = "bf16",
    optimizer: Text = "adamw",
    objective: Annotated[str, Query(pattern="^(time|memory|cost)$")] = "time",
) -> PlanAnswer:
    """Choose and defend a layout for a preset model.

    Raises:
        SpecError: a name or quantity is not accepted.
        DoesNotFitError: nothing fits; the message gives three ways out.
    """
    named = read_model(model)
    words = ["plan", model, "--cluster", cluster, "--seq", seq, "--global-batch", batch]
    return _planned(named, cluster, seq, batch, recipe, optimizer, objective, words)


def plan_by_body(request: Annotated[PlanRequest, Body()]) -> PlanAnswer:
    """Choose and defend a layout for a preset or an uploaded model.

    Raises:
        SpecError: a name, quantity or field of the upload is not accepted.
        DoesNotFitError: nothing fits; the message gives three ways out.
    """
    job = request.get("job", {})
    seq, batch = job.get("seq", "8192"), job.get("batch", "4M-tokens")
    words = ["plan", "config.json", "--cluster", request["cluster"], "--seq", seq,
             "--global-batch", batch]  # fmt: skip
    return _planned(
        read_model(request["model"]), request["cluster"], seq, batch, job.get("recipe", "bf16"),
        job.get("optimizer", "adamw"), request.get("objective", "time"), words,
    )  # fmt: skip


def _planned(
    model: Model, cluster: str, seq: str, batch: str, recipe: str, optimizer: str, objective: str,
    words: list[str],
) -> PlanAnswer:  # fmt: skip
    question = read_question(model, cluster, seq, batch, recipe, optimizer)
    words += ["--precision", recipe] * (recipe != "bf16")
    words += ["--optimizer", optimizer] * (optimizer != "adamw")
    words += ["--objective", objective] * (objective != "time")
    command = f"meshwright {shlex.join(words)}"
    made = _plan(question, objective, command)
    best = made.estimate
    return {
        "plan": made.plain(),
        "label": made.layout.label(),
        "summary": f"{question.model.name} on {question.cluster.gpus} × "
        f"{question.cluster.device.name}: {made.layout.label()} takes "
        f"{format_seconds(best.step_time_s)} a step and {format_bytes(best.peak_memory_bytes)} of "
        f"{format_bytes(best.capacity_bytes)}; {format_count(made.searched.priced)} layouts were "
        f"priced in {format_seconds(made.searched.seconds)}.",
        "candidates": _candidates(replace(question, cluster=made.cluster), objective),
        "links": {"cli": command, "python": _python(words[1], cluster, question.job, recipe, optimizer)},
    }  # fmt: skip


def _plan(question: Question, objective: str, command: str) -> Plan:
    """Plan, or remember: changing an axis by hand asks for the same best plan again and again."""
    key = tuple(noun.model_dump_json() for noun in (question.model, question.cluster, question.job))
    return _planned_before(*key, objective).but(command=command)


@lru_cache(maxsize=64)
def _planned_before(model: str, cluster: str, job: str, objective: str) -> Plan:
    return make_plan(
        Model.model_validate_json(model), Cluster.model_validate_json(cluster),
        Job.model_validate_json(job), objective=objective,
    )  # fmt: skip


def _candidates(question: Question, objective: str) -> CandidateTable:
    """The best layouts and the whole front: what a person can look through."""
    key = tuple(noun.model_dump_json() for noun in (question.model, question.cluster, question.job))
    return _candidates_before(*key, "memory" if objective == "memory" else "time")


@lru_cache(maxsize=64)
def _candidates_before(model: str, cluster: str, job: str, objective: str) -> CandidateTable:
    question = Question(
        Model.model_validate_json(model), Cluster.model_validate_json(cluster),
        Job.model_validate_json(job),
    )  # fmt: skip
    result = search(question, objective=objective)
    ranked = result.ranked
    front = {int(row) for row in pareto(ranked)}
    rows = sorted(front | set(range(min(SHOWN - len(front), ranked.columns.rows))))
    return _table(question, ranked, rows, front)


def _table(
    question: Question, ranked: Candidates, rows: list[int], front: set[int]
) -> CandidateTable:
    layouts = [ranked.columns.layout(row) for row in rows]
    priced = estimates(question.model, question.cluster, question.job, layouts)
    return {
        "label": [layout.label() for layout in layouts],
        "dp": [layout.dp for layout in layouts],
        "tp": [layout.tp for layout in layouts],
        "pp": [layout.pp for layout in layouts],
        "cp": [layout.cp for layout in layouts],
        "ep": [layout.ep for layout in layouts],
        "virtual_stages": [layout.virtual_stages for layout in layouts],
        "zero": [layout.zero for layout in layouts],
        "shard": [layout.shard for layout in layouts],
        "micro_batch": [layout.micro_batch for layout in layouts],
        "recompute": [layout.recompute for layout in layouts],
        "schedule": [layout.schedule for layout in layouts],
        "sequence_parallel": [layout.sequence_parallel for layout in layouts],
        "step_time_s": [one.step_time_s for one in priced],
        "peak_memory_bytes": [one.peak_memory_bytes for one in priced],
        "bubble_fraction": [one.bubble_fraction for one in priced],
        "mfu": [one.mfu for one in priced],
        "fits": [one.fits for one in priced],
        "pareto": [row in front for row in rows],
    }


def best_plan(question: Question, objective: str = "time") -> Plan:
    """Return the plan for a question, remembered.

    Raises:
        DoesNotFitError: nothing fits.
    """
    return _plan(question, objective, "")


def _python(model: str, cluster: str, job: Job, recipe: str, optimizer: str) -> str:
    extra = "" if recipe == "bf16" else f', precision=RECIPES["{recipe}"]'
    extra += "" if optimizer == "adamw" else f', optimizer=OPTIMIZERS["{optimizer}"]'
    return (
        "from meshwright.planner.plan import plan\n"
        "from meshwright.specs import load_cluster, load_model\n"
        "from meshwright.specs.job import OPTIMIZERS, RECIPES, Job\n"
        f"job = Job(seq_len={job.seq_len}, global_batch={job.global_batch}{extra})\n"
        f'made = plan(load_model("{model}"), load_cluster("{cluster}"), job)\n'
        "print(made.layout.label(), made.estimate.step_time_s)"
    )


ROUTES = (
    ("GET", "/api/plan", plan_by_query, PlanAnswer),
    ("POST", "/api/plan", plan_by_body, PlanAnswer),
)
"""Method, path, function and answer type of each endpoint."""
