"""Plans in other tools' languages, as answers of the API."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Path
from typing_extensions import TypedDict

from meshwright.exports.targets import export
from meshwright.specs.plan import Plan


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


ROUTES = (("POST", "/api/export/{target}", export_plan, ExportAnswer),)
"""Method, path, function and answer type of each endpoint."""
