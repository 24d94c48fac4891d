"""The studio's web application: routes over the engine, the built page, and nothing else.

Every endpoint is a pure function of its request, so a page may drop an answer that is late (the
latest question wins) without telling anyone.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from typing_extensions import TypedDict

from meshwright import __version__
from meshwright.specs.errors import DoesNotFitError, SpecError
from meshwright.specs.stopping import StoppedError
from meshwright.studio import (
    catalog,
    comparing,
    diagnosing,
    exporting,
    planning,
    practice,
    price_table,
    pricing,
    questions,
    teaching,
    teaching_views,
    timelines,
)
from meshwright.studio.answers import (
    as_json,
    encode,
    on_does_not_fit,
    on_http_error,
    on_invalid_request,
    on_spec_error,
    on_stopped,
    refusal,
)
from meshwright.studio.guard import Guard
from meshwright.studio.sims.all_reduce import AllReduceData, all_reduce
from meshwright.studio.sims.data_parallel import DataParallelData, data_parallel
from meshwright.studio.sims.decision import DecisionData, decision
from meshwright.studio.sims.failures import FailuresData, failures
from meshwright.studio.sims.grid import GridData, grid
from meshwright.studio.sims.ledger import LedgerData, ledger
from meshwright.studio.sims.pipeline import PipelineData, pipeline
from meshwright.studio.sims.placement import PlacementData, placement
from meshwright.studio.sims.scaling_gap import ScalingGapData, scaling_gap
from meshwright.studio.sims.tensor import TensorData, tensor
from meshwright.studio.sims.walk import WalkData, walk
from meshwright.studio.sims.zero import ZeroData, zero
from meshwright.studio.views import Refusal, View


class Simulation(NamedTuple):
    """One simulation: its title, the question that it answers, its function and answer type."""

    id: str
    title: str
    question: str
    answer: Callable[..., Any]
    data: Any


SIMULATIONS = (
    Simulation("data-parallel", "A data-parallel step", "Do the replicas stay identical?",
               data_parallel, View[DataParallelData]),
    Simulation("tensor", "Tensor-parallel matrix split", "Who needs to add, who to concatenate?",
               tensor, View[TensorData]),
    Simulation("all-reduce", "All-reduce, chunk by chunk", "How does every rank get the sum?",
               all_reduce, View[AllReduceData]),
    Simulation("pipeline", "Pipeline schedules", "Where does the bubble come from?",
               pipeline, View[PipelineData]),
    Simulation("zero", "ZeRO calculator", "What does each device keep?", zero, View[ZeroData]),
    Simulation("walk", "A toy model on real ranks", "Who sends what to whom, and when?",
               walk, View[WalkData]),
    Simulation("grid", "The three-axis grid", "Which rank is where?", grid, View[GridData]),
    Simulation("ledger", "Bytes per device", "Who holds what?", ledger, View[LedgerData]),
    Simulation("placement", "Placement on the wires", "What if tensor parallelism leaves the node?",
               placement, View[PlacementData]),
    Simulation("decision", "A decision tree, with evidence", "Does the engine agree?",
               decision, View[DecisionData]),
    Simulation("failures", "Failures and checkpoints", "How often to save?",
               failures, View[FailuresData]),
    Simulation("scaling-gap", "The scaling gap", "Why can a bigger device not save us?",
               scaling_gap, View[ScalingGapData]),
)  # fmt: skip


class Health(TypedDict):
    """That the server is there, and whether it can run the training engine."""

    name: str
    version: str
    engine: bool


class SimulationEntry(TypedDict):
    """A simulation as the menu shows it."""

    id: str
    title: str
    question: str


def health() -> Health:
    """Say that the server is up."""
    from importlib.util import find_spec

    return {"name": "meshwright", "version": __version__, "engine": find_spec("torch") is not None}


def simulations() -> list[SimulationEntry]:
    """List the simulations."""
    return [{"id": s.id, "title": s.title, "question": s.question} for s in SIMULATIONS]


Route = tuple[str, str, Callable[..., Any], Any]


def routes() -> list[Route]:
    """Return every endpoint: method, path, function, answer type."""
    fixed: list[Route] = [
        ("GET", "/api/health", health, Health),
        ("GET", "/api/sim", simulations, list[SimulationEntry]),
    ]
    return (
        fixed
        + [
            *catalog.ROUTES,
            *planning.ROUTES,
            *pricing.ROUTES,
            *price_table.ROUTES,
            *timelines.ROUTES,
            *comparing.ROUTES,
            *questions.ROUTES,
        ]
        + [*exporting.ROUTES, *diagnosing.ROUTES]
        + _lesson_routes()
        + [("GET", f"/api/sim/{s.id}", s.answer, s.data) for s in SIMULATIONS]
    )


def _lesson_routes() -> list[Route]:
    return [
        ("GET", "/api/lessons", teaching.lessons, teaching_views.Path14),
        ("GET", "/api/lessons/{lesson_id}", teaching.lesson, teaching_views.StepView),
        ("GET", "/api/examples", teaching.examples, list[teaching_views.ExampleView]),
        ("GET", "/api/examples/{example_id}", teaching.example, teaching_views.ExampleView),
        ("GET", "/api/checks", teaching.checks, list[teaching_views.AskedCheck]),
        ("GET", "/api/checks/{check_id}", teaching.check, teaching_views.AskedCheck),
        ("GET", "/api/checks/{check_id}/answer", teaching.answer, teaching_views.VerdictView),
        ("GET", "/api/checks/{check_id}/key", teaching.key, teaching_views.KeyView),
        ("GET", "/api/cards", teaching.cards, list[teaching_views.CardView]),
        ("GET", "/api/glossary", teaching.glossary, list[teaching_views.TermView]),
        ("GET", "/api/faq", teaching.faq, list[teaching_views.FaqView]),
        ("GET", "/api/concepts", teaching.concepts, list[teaching_views.ConceptView]),
        ("GET", "/api/mistakes", teaching.mistakes, list[teaching_views.MistakeView]),
        ("GET", "/api/rules", teaching.rules, list[teaching_views.RuleView]),
        ("GET", "/api/papers", teaching.papers, list[teaching_views.PaperView]),
        ("GET", "/api/formulas", teaching.formulas, list[teaching_views.FormulaEntry]),
        ("GET", "/api/tables", teaching.tables, list[teaching_views.TableView]),
        ("GET", "/api/drills", practice.drill_list, list[practice.DrillEntry]),
        ("GET", "/api/drills/{drill_id}", practice.drill, practice.DrillView),
        ("POST", "/api/drills/{drill_id}/grade", practice.grade, practice.GradeView),
    ]


def create_app() -> Any:
    """Return the ASGI application, guarded."""
    app = FastAPI(
        title="meshwright studio",
        version=__version__,
        description="Plans, simulations, lessons and drills; every number from the engine.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # FastAPI's pages load scripts from a public host
        redoc_url=None,
    )
    refused = {"model": Refusal, "description": "The request cannot be accepted: one sentence."}
    for method, path, answer, shape in routes():
        app.add_api_route(
            path,
            as_json(answer),
            methods=[method],
            response_model=None,
            responses={200: {"model": shape, "description": "The answer."}, 422: refused},
            operation_id=f"{method.lower()}{path.removeprefix('/api').replace('/', '_')}"
            .replace("{", "").replace("}", "").replace("-", "_"),
            summary=(answer.__doc__ or "").splitlines()[0],
        )  # fmt: skip
    app.add_exception_handler(SpecError, on_spec_error)
    app.add_exception_handler(DoesNotFitError, on_does_not_fit)
    app.add_exception_handler(StoppedError, on_stopped)
    app.add_exception_handler(RequestValidationError, on_invalid_request)
    app.add_exception_handler(HTTPException, on_http_error)
    for method in ("GET", "POST"):
        app.add_api_route("/api/{rest:path}", _unknown, methods=[method], include_in_schema=False)
    _mount_page(app)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=6)
    return Guard(app)


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of the API."""
    document: dict[str, Any] = create_app().app.openapi()
    return document


def static_folder() -> Path:
    """Return the folder of the built page, inside the installed package."""
    return Path(str(resources.files("meshwright.studio").joinpath("static")))


def _mount_page(app: Any) -> None:
    folder = static_folder()
    if (folder / "index.html").exists():
        app.mount("/", StaticFiles(directory=folder, html=True), name="page")
    else:
        app.add_api_route("/{rest:path}", _no_page, methods=["GET"], include_in_schema=False)


def _unknown(request: Request) -> Response:
    body = refusal("path", request.url.path[:80], "no such endpoint; see /api/openapi.json")
    return Response(encode(body), status_code=404, media_type="application/json")


def _no_page() -> Response:
    return Response(
        "The page of the studio is not built: run `npm ci && npm run build` in studio-web/.\n"
        "The API answers at /api/openapi.json.\n",
        status_code=503,
        media_type="text/plain",
    )
