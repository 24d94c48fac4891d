"""The planner as answers of the API: what there is to choose from, plans, prices, exports.

Nothing here reads a path: names, short texts and uploaded content only.
"""

from __future__ import annotations

import re
import shlex
from functools import lru_cache
from typing import Annotated, Any, NotRequired

from fastapi import Body, Path, Query
from typing_extensions import TypedDict

from meshwright.costs.parameters import count_parameters
from meshwright.costs.step import capacity_bytes, estimate, estimates
from meshwright.exports.targets import FRAMEWORKS, LAUNCHERS, export
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.plan import plan as make_plan
from meshwright.planner.search import Candidates, pareto, search
from meshwright.planner.words import PART_WORDS
from meshwright.schedules.registry import FAMILIES
from meshwright.specs.cluster import Cluster
from meshwright.specs.clusters import load_cluster
from meshwright.specs.devices import device_names, load_device
from meshwright.specs.errors import SpecError
from meshwright.specs.huggingface import is_config
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.jobs import optimizer_recipe, precision_recipe
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.models import is_size, load_model, model_names
from meshwright.specs.plan import Estimate, Plan
from meshwright.specs.quantities import (
    format_bytes,
    format_count,
    format_seconds,
    parse_batch,
    parse_count,
)

SHOWN = 300
"""Candidates that the page draws."""
MOST_DEVICES = 65_536
CLUSTERS = (
    "a100-80g:1x8", "a100-80g:2x8", "a100-80g:4x8", "a100-80g:8x8", "a100-80g:32x8",
    "a100-40g:1x8", "h100:1x8", "h100:2x8", "h100:8x8", "h100:16x8", "h100:32x8", "h100:128x8",
    "h200:8x8", "b200:8x8", "gb200-nvl72", "mi300x:8x8", "l40s-4", "rtx4090-pc",
)  # fmt: skip
"""Clusters offered by name; any other can be written as device:nodesxdevices."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ +-]{0,60}")
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}(:\d{1,7}(x\d{1,4})?)?")
_FILE = re.compile(r"\.(json|toml|ya?ml|txt|topo|log)$", re.IGNORECASE)

Text = Annotated[str, Query(max_length=60)]


class ModelEntry(TypedDict):
    """A model preset."""

    id: str
    name: str
    parameters: float
    layers: int
    hidden: int
    source: str


class LevelEntry(TypedDict):
    """One level of links."""

    name: str
    domain: int
    bandwidth_bytes_s: float
    latency_s: float


class ClusterEntry(TypedDict):
    """A cluster that is offered by name."""

    id: str
    name: str
    gpus: int
    gpus_per_node: int
    device: str
    capacity_bytes: float
    levels: list[LevelEntry]


class DeviceEntry(TypedDict):
    """A device preset."""

    id: str
    name: str
    memory_bytes: float
    peak_bf16_flops: float
    price_per_hour: float
    source: str


class ScheduleEntry(TypedDict):
    """A pipeline schedule."""

    id: str
    title: str


class ExportEntry(TypedDict):
    """A target of export."""

    id: str
    title: str
    filename: str


class Catalog(TypedDict):
    """Everything that the planner's forms offer."""

    models: list[ModelEntry]
    clusters: list[ClusterEntry]
    devices: list[DeviceEntry]
    recipes: list[str]
    optimizers: list[str]
    schedules: list[ScheduleEntry]
    exports: list[ExportEntry]


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


class PriceProblem(TypedDict):
    """Why a layout cannot run."""

    field: str
    sentence: str


class Against(TypedDict):
    """A layout against the best one for the same question."""

    step_time_ratio: float
    memory_delta_bytes: float
    sentences: list[str]


class PriceAnswer(TypedDict):
    """What one layout costs; `estimate` is an Estimate as JSON, or null where it cannot run."""

    layout: dict[str, Any]
    label: str
    estimate: dict[str, Any] | None
    accepted: bool
    problem: PriceProblem | None
    against: Against | None


class JobRequest(TypedDict):
    """The job as a person writes it."""

    seq: NotRequired[str]
    batch: NotRequired[str]
    recipe: NotRequired[str]
    optimizer: NotRequired[str]


class PlanRequest(TypedDict):
    """A question for the planner; `model` may be a name or the content of a config.json."""

    model: str | dict[str, Any]
    cluster: str
    job: NotRequired[JobRequest]
    objective: NotRequired[str]


class PriceRequest(PlanRequest):
    """A question with a layout."""

    layout: dict[str, Any]


class ExportRequest(TypedDict):
    """A plan, as `/api/plan` gave it."""

    plan: dict[str, Any]


class ExportedFile(TypedDict):
    """One file of an export."""

    name: str
    content: str


class ExportAnswer(TypedDict):
    """The files of an export, and how to start them."""

    files: list[ExportedFile]
    notes: list[str]


class ModelAnswer(TypedDict):
    """A model that was read from a config.json."""

    model: dict[str, Any]
    parameters: float
    sentence: str


def catalog() -> Catalog:
    """List models, clusters, devices, recipes, schedules and export targets."""
    return _catalog()


@lru_cache(maxsize=1)
def _catalog() -> Catalog:
    models = [load_model(name) for name in model_names()]
    clusters = [load_cluster(name) for name in CLUSTERS]
    devices = {name: load_device(name) for name in device_names()}
    targets = [(name, kind.title, "run.sh") for name, kind in FRAMEWORKS.items()]
    targets += [(name, kind.title, kind.file) for name, kind in LAUNCHERS.items()]
    return {
        "models": [
            {"id": name, "name": f"{m.name} ({format_count(count_parameters(m).total)})",
             "parameters": float(count_parameters(m).total), "layers": m.layers,
             "hidden": m.hidden, "source": m.source}
            for name, m in zip(model_names(), models, strict=True)
        ],
        "clusters": [
            {"id": name, "name": f"{c.gpus} × {c.device.name}"
             + (f", {c.nodes} nodes of {c.gpus_per_node}" if c.nodes > 1 else ", one node"),
             "gpus": c.gpus, "gpus_per_node": c.gpus_per_node, "device": c.device.name,
             "capacity_bytes": capacity_bytes(c),
             "levels": [{"name": level.name, "domain": level.domain,
                         "bandwidth_bytes_s": level.bandwidth_bytes_s,
                         "latency_s": level.latency_s} for level in c.levels]}
            for name, c in zip(CLUSTERS, clusters, strict=True)
        ],
        "devices": [
            {"id": name, "name": d.name, "memory_bytes": d.memory_bytes,
             "peak_bf16_flops": d.peak("bf16"), "price_per_hour": d.price_per_hour,
             "source": d.source}
            for name, d in devices.items()
            if {"bf16", "fp16"} & set(d.peak_flops)
        ],
        "recipes": list(RECIPES),
        "optimizers": list(OPTIMIZERS),
        "schedules": [{"id": name, "title": kind.title} for name, kind in FAMILIES.items()],
        "exports": [{"id": i, "title": t, "filename": f} for i, t, f in targets],
    }  # fmt: skip


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
    named = _read_model(model)
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
        _read_model(request["model"]), request["cluster"], seq, batch, job.get("recipe", "bf16"),
        job.get("optimizer", "adamw"), request.get("objective", "time"), words,
    )  # fmt: skip


def _planned(
    model: Model, cluster: str, seq: str, batch: str, recipe: str, optimizer: str, objective: str,
    words: list[str],
) -> PlanAnswer:  # fmt: skip
    question = _question(model, cluster, seq, batch, recipe, optimizer)
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
        "candidates": _candidates(question, objective),
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
    return _candidates_before(*key, objective)


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


def price_by_query(
    model: Text = "llama3-70b",
    cluster: Text = "h100:8x8",
    seq: Text = "8192",
    batch: Text = "4M-tokens",
    recipe: Text = "bf16",
    optimizer: Text = "adamw",
    objective: Annotated[str, Query(pattern="^(time|memory|cost)$")] = "time",
    dp: Annotated[int, Query(ge=1, le=MOST_DEVICES)] = 1,
    tp: Annotated[int, Query(ge=1, le=MOST_DEVICES)] = 1,
    pp: Annotated[int, Query(ge=1, le=4096)] = 1,
    cp: Annotated[int, Query(ge=1, le=4096)] = 1,
    ep: Annotated[int, Query(ge=1, le=4096)] = 1,
    v: Annotated[int, Query(ge=1, le=256, description="model chunks a rank")] = 1,
    zero: Annotated[int, Query(ge=0, le=3)] = 0,
    shard: Annotated[int, Query(ge=0, le=MOST_DEVICES)] = 0,
    micro_batch: Annotated[int, Query(ge=1, le=65_536)] = 1,
    recompute: Annotated[str, Query(pattern="^(none|selective|full)$")] = "none",
    schedule: Text = "1f1b",
    sequence_parallel: bool = False,
) -> PriceAnswer:
    """Price one layout and say what it costs against the best one.

    Raises:
        SpecError: a name or quantity is not accepted.
    """
    fields = {
        "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "virtual_stages": v, "zero": zero,
        "shard": shard, "micro_batch": micro_batch, "recompute": recompute, "schedule": schedule,
        "sequence_parallel": sequence_parallel,
    }  # fmt: skip
    question = _question(_read_model(model), cluster, seq, batch, recipe, optimizer)
    return _priced(question, fields, objective)


def price_by_body(request: Annotated[PriceRequest, Body()]) -> PriceAnswer:
    """Price one layout of a preset or uploaded model.

    Raises:
        SpecError: a name, quantity or field is not accepted.
    """
    job = request.get("job", {})
    question = _question(
        _read_model(request["model"]), request["cluster"], job.get("seq", "8192"),
        job.get("batch", "4M-tokens"), job.get("recipe", "bf16"), job.get("optimizer", "adamw"),
    )  # fmt: skip
    return _priced(question, request["layout"], request.get("objective", "time"))


def _priced(question: Question, fields: dict[str, Any], objective: str) -> PriceAnswer:
    try:
        layout = Layout.parse(fields, "layout")
        # The schedule's own rules are checked where a person would meet them: by the planner.
        if layout.schedule == "1f1b" and layout.virtual_stages > 1:
            layout = layout.but(schedule="interleaved")
        elif layout.schedule == "interleaved" and layout.virtual_stages == 1:
            layout = layout.but(schedule="1f1b")
        sentence = _cannot_run(question, layout)
    except SpecError as error:
        return _refused(fields, error.field, str(error))
    if sentence is not None:
        return _refused(layout.plain(), "layout", sentence, layout.label())
    priced = estimate(question.model, question.cluster, question.job, layout)
    return {
        "layout": layout.plain(),
        "label": layout.label(),
        "estimate": priced.plain(),
        "accepted": True,
        "problem": None,
        "against": _against(question, priced, layout, objective),
    }


def _cannot_run(question: Question, layout: Layout) -> str | None:
    if layout.world != question.cluster.gpus:
        axes = " · ".join(
            f"{a} {getattr(layout, a)}" for a in ("dp", "tp", "pp", "cp") if getattr(layout, a) > 1
        )
        return (
            f"{axes or '1'} = {layout.world} devices, but the cluster has {question.cluster.gpus}"
        )
    if question.job.global_batch % (layout.dp * layout.micro_batch):
        return (
            f"a global batch of {question.job.global_batch} does not divide into dp {layout.dp} · "
            f"micro-batch {layout.micro_batch}"
        )
    return why_illegal(question, layout)


def _refused(fields: dict[str, Any], field: str, sentence: str, label: str = "") -> PriceAnswer:
    return {
        "layout": fields, "label": label, "estimate": None, "accepted": False,
        "problem": {"field": field, "sentence": sentence}, "against": None,
    }  # fmt: skip


def _against(
    question: Question, priced: Estimate, layout: Layout, objective: str
) -> Against | None:
    from meshwright.specs.errors import DoesNotFitError

    try:
        best = _plan(question, objective, "")
    except (DoesNotFitError, SpecError):
        return None
    ratio = priced.step_time_s / best.estimate.step_time_s
    delta = priced.peak_memory_bytes - best.estimate.peak_memory_bytes
    pace = "as fast as" if abs(ratio - 1) < 0.0005 else (
        f"{ratio - 1:.1%} slower than" if ratio > 1 else f"{1 - ratio:.1%} faster than"
    )  # fmt: skip
    sentences = [
        f"{layout.label()} is {pace} the plan, {best.layout.label()}, and needs "
        f"{format_bytes(abs(delta))} {'more' if delta >= 0 else 'less'} at the peak."
    ]
    if not priced.fits:
        heaviest = max(priced.stages, key=lambda stage: stage.total_bytes)
        short = heaviest.total_bytes - priced.capacity_bytes
        sentences.append(f"It does not fit: {format_bytes(short)} over on stage {heaviest.stage}.")
    sentences += _changes(best.estimate.time_parts, priced.time_parts, PART_WORDS, format_seconds)
    memory = {name: name.replace("_", " ") for name in priced.memory_parts}
    sentences += _changes(best.estimate.memory_parts, priced.memory_parts, memory, format_bytes)
    return {"step_time_ratio": ratio, "memory_delta_bytes": delta, "sentences": sentences}


def _changes(
    before: dict[str, float], after: dict[str, float], words: dict[str, str], show: Any
) -> list[str]:
    """The largest growth and the largest saving, if they matter."""
    change = {name: after[name] - before.get(name, 0.0) for name in after}
    floor = 0.004 * max(sum(before.values()), 1e-12)
    said = []
    for name in (max(change, key=lambda n: change[n]), min(change, key=lambda n: change[n])):
        if abs(change[name]) > floor:
            way = "More" if change[name] > 0 else "Less"
            said.append(
                f"{way}: {words.get(name, name)}, {show(before.get(name, 0.0))} → {show(after[name])}."
            )
    return said


def read_config(config: Annotated[dict[str, Any], Body()]) -> ModelAnswer:
    """Read the config.json of a model.

    Raises:
        SpecError: an unsupported family, or a field that is missing or impossible.
    """
    model = _read_model(config)
    total = float(count_parameters(model).total)
    return {
        "model": model.plain(),
        "parameters": total,
        "sentence": f"{model.layers} layers of width {model.hidden}, {format_count(total)} "
        f"parameters.",
    }


def export_plan(
    target: Annotated[str, Path(max_length=40, pattern=r"^[a-z0-9-]+$")],
    request: Annotated[ExportRequest, Body()],
) -> ExportAnswer:
    """Write a plan in another tool's language.

    Raises:
        SpecError: unknown target, or a plan that it cannot express.
    """
    made = Plan.parse(request["plan"])
    bundle = export(made, target, command=made.command)
    return {
        "files": [{"name": name, "content": text} for name, text in bundle.files.items()],
        "notes": [f"Start it with: {bundle.start}"] if bundle.start else [],
    }


def question_of(model: str, cluster: str, seq: str = "4096", batch: str = "512") -> Question:
    """Return the question that a simulation's texts ask, with the default recipes.

    Raises:
        SpecError: a name or quantity is not accepted.
    """
    return _question(_read_model(model), cluster, seq, batch, "bf16", "adamw")


def best_plan(question: Question) -> Plan:
    """Return the plan for a question, remembered.

    Raises:
        DoesNotFitError: nothing fits.
    """
    return _plan(question, "time", "")


def _question(
    model: Model, cluster: str, seq: str, batch: str, recipe: str, optimizer: str
) -> Question:
    if not _CLUSTER.fullmatch(cluster) or _FILE.search(cluster):
        raise SpecError("cluster", cluster, "a cluster is expected, such as h100:8x8")
    devices = load_cluster(cluster)
    if devices.gpus > MOST_DEVICES:
        raise SpecError("cluster", cluster, f"at most {MOST_DEVICES} devices here")
    length = parse_count(seq, "seq")
    job = Job.parse(
        {
            "seq_len": length, "global_batch": parse_batch(batch, max(length, 1), "batch"),
            "precision": precision_recipe(recipe, "recipe"),
            "optimizer": optimizer_recipe(optimizer, "optimizer"),
        }
    )  # fmt: skip
    return Question(model, devices, job)


def _read_model(what: str | dict[str, Any]) -> Model:
    if isinstance(what, dict):
        if not is_config(what):
            raise SpecError("model", "…", "the content of a model's config.json is expected")
        return load_model(what)
    fields = "=" in what and not _FILE.search(what) and "/" not in what
    if fields or is_size(what) or (_NAME.fullmatch(what) and not _FILE.search(what)):
        return load_model(what) if fields or is_size(what) else _preset(what)
    raise SpecError("model", what, "the name of a preset is expected, such as llama3-70b, or 30B")


def _preset(name: str) -> Model:
    # load_model also takes folders: a name without a slash could be one beside the server.
    from pathlib import Path as FilePath

    if FilePath(name).exists():
        raise SpecError("model", name, "the name of a preset is expected, not a file")
    return load_model(name)


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
    ("GET", "/api/catalog", catalog, Catalog),
    ("GET", "/api/plan", plan_by_query, PlanAnswer),
    ("POST", "/api/plan", plan_by_body, PlanAnswer),
    ("GET", "/api/price", price_by_query, PriceAnswer),
    ("POST", "/api/price", price_by_body, PriceAnswer),
    ("POST", "/api/model", read_config, ModelAnswer),
    ("POST", "/api/export/{target}", export_plan, ExportAnswer),
)
"""Method, path, function and answer type of each endpoint."""
