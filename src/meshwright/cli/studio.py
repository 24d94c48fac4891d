"""`meshwright studio`: the web application on loopback, its OpenAPI document."""

from __future__ import annotations

from pathlib import Path

import typer

from meshwright.cli import options


def command(
    action: str = typer.Argument("", help="`export` writes the studio as static files."),
    folder: Path = typer.Argument(Path("site"), help="Where `export` writes."),
    port: int = typer.Option(0, "--port", help="Port on 127.0.0.1; 0 takes a free one."),
    no_browser: bool = typer.Option(False, "--no-browser", help="Do not open a browser."),
    openapi: bool = typer.Option(False, "--openapi", help="Print the OpenAPI document and stop."),
    output: Path | None = typer.Option(
        None, "-o", callback=options.writable, help="File for the OpenAPI document."
    ),
) -> None:
    """Open the studio: planner, simulations, lessons and drills in the browser, all local.

    `meshwright studio` serves on 127.0.0.1 until Ctrl-C. `meshwright studio --openapi` prints the
    API's OpenAPI document. `meshwright studio export site/` writes static files that need no
    server: every lesson, and the simulations at the settings that the page offers.
    """
    from meshwright.specs.errors import SpecError

    try:
        import fastapi  # noqa: F401
    except ImportError:
        raise SpecError("studio", None, "pip install 'meshwright[studio]' is needed") from None
    if openapi:
        _write_openapi(output)
    elif action == "export":
        _export(folder)
    elif action:
        raise SpecError("action", action, "export, or nothing to serve, is expected")
    else:
        from meshwright.studio.server import serve

        serve(port, not no_browser, _announce)


def _export(folder: Path) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from meshwright.studio.site import export_site

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("answers", total=None)
        made = export_site(folder, lambda done, of: bar.update(task, completed=done, total=of))
    print(
        f"{folder}: {made['files']} files, {made['bytes'] / 1e6:.1f} MB; open "
        f"{folder / 'index.html'}"
    )


def _announce(url: str) -> None:
    print(f"studio: {url}  (Ctrl-C ends it)", flush=True)


def _write_openapi(output: Path | None) -> None:
    import json

    from meshwright.specs.writing import write_atomically
    from meshwright.studio.app import openapi as document

    text = json.dumps(document(), indent=2, ensure_ascii=False) + "\n"
    if output is None or str(output) == "-":
        print(text, end="")
    else:
        write_atomically(output, text)
