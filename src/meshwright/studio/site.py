"""The studio as static files: the built page, and every answer that it may ask for.

The page of an exported site loads an answer as a script, `data/<slug>.js`, because a page opened
from a file may not fetch. Which answers: every endpoint without parameters, every lesson, example
and question, every setting that a lesson steers to, and for each simulation the product of the
values that `requests.json` (delivered with the page) marks as static.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from meshwright.lessons import asking, content, records, triples
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_data
from meshwright.specs.writing import write_atomically
from meshwright.studio.app import create_app, routes, static_folder

PLANNING = ("/api/plan", "/api/price", "/api/prices", "/api/defence", "/api/timeline")
PLANNED_MODELS = (
    "llama2-7b", "llama3-8b", "llama2-13b", "mixtral-8x7b", "llama2-70b", "llama3-70b",
    "gpt3-175b", "llama3.1-405b",
)  # fmt: skip
PLANNED_CLUSTERS = ("a100-80g:1x8", "a100-80g:8x8", "h100:1x8", "h100:8x8", "h100:32x8")
"""The plans of an exported site: 40 questions, of which those that have an answer hold a table of
prices; about 20 MB, so that a layout changed by hand has figures without an engine. Why each
neighbour lost, and the step as a timeline, are computed for one cluster."""
USUAL_QUESTION = {
    "seq": "8192", "batch": "4M-tokens", "recipe": "auto", "optimizer": "adamw",
    "framework": "auto", "objective": "time",
    "cluster": "h100:8x8",
}  # fmt: skip

Request = tuple[str, dict[str, str]]
SEEDS = 4
"""How many sets of numbers an exported question has."""


def export_site(folder: Path, progress: Callable[[int, int], None] | None = None) -> dict[str, int]:
    """Write the studio into a folder; returns the number of files and bytes, and refusals.

    Args:
        folder: is created; must be empty or hold an earlier export.
        progress: called with (answers written, answers in all).

    Raises:
        SpecError: the page is not built, or the folder holds something else.
    """
    page = static_folder()
    if not (page / "index.html").exists():
        raise SpecError("studio", str(page), "the page is not built: npm run build in studio-web/")
    try:
        earlier = _earlier(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.resolve().parent, prefix=".export-") as beside:
            made = _write_site(Path(beside), page, progress)
            _move(Path(beside), folder.resolve(), earlier)
    except OSError as error:
        raise SpecError("folder", str(folder), f"cannot be written ({error.strerror})") from None
    return made


def _earlier(folder: Path) -> list[str]:
    """The files that an earlier export into this folder wrote, by its own list.

    Raises:
        SpecError: the folder holds something else.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return []
    wrong = SpecError("folder", str(folder), "an empty folder, or an earlier export, is expected")
    if not folder.is_dir() or not (folder / LISTED).is_file():
        raise wrong
    names = read_data(folder / LISTED, "folder").get("files")
    if not isinstance(names, list) or not all(
        isinstance(n, str) and _OWN.fullmatch(n) for n in names
    ):
        raise wrong
    return names


def _move(beside: Path, folder: Path, earlier: list[str]) -> None:
    """Put the new files in place, one by one whole, then remove those of the earlier export."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    new = sorted(str(file.relative_to(beside)) for file in beside.rglob("*") if file.is_file())
    for name in [n for n in new if n != LISTED]:
        os.replace(beside / name, folder / name)
    os.replace(beside / LISTED, folder / LISTED)
    for name in set(earlier) - set(new):
        (folder / name).unlink(missing_ok=True)


LISTED = "export.json"
"""In an exported site: the names of its files, which is all that a later export may remove."""
_OWN = re.compile(r"(data/)?[A-Za-z0-9~_-][A-Za-z0-9.=,~_-]*")


def _write_site(
    folder: Path, page: Path, progress: Callable[[int, int], None] | None
) -> dict[str, int]:
    folder.chmod(0o755)
    (folder / "data").mkdir(parents=True)
    for source in sorted(page.iterdir()):
        if source.is_file() and source.name != "requests.json":
            shutil.copyfile(source, folder / source.name)
    index = (folder / "index.html").read_text("utf-8")
    loader = '<script src="./static.js"></script>\n    '
    write_atomically(folder / "index.html", _before_first_script(index, loader))
    write_atomically(folder / "static.js", "window.meshwright_static = true\n")
    wanted = sorted({slug(*request): request for request in requests()}.items())
    refused = 0
    ask = _Asker()
    for done, (name, (path, query)) in enumerate(wanted, 1):
        answer = _kept(path, ask(path, query))
        if answer is None:
            refused += 1
        else:
            text = f"meshwright_data({json.dumps(name)}, {answer})\n"
            write_atomically(folder / "data" / f"{name}.js", text)
        if progress:
            progress(done, len(wanted))
    files = [file for file in folder.rglob("*") if file.is_file()]
    names = sorted(str(file.relative_to(folder)) for file in files)
    write_atomically(folder / LISTED, json.dumps({"files": names}, indent=1))
    size = sum(file.stat().st_size for file in files)
    return {
        "files": len(files),
        "bytes": size,
        "answers": len(wanted) - refused,
        "refused": refused,
    }


def _kept(path: str, answer: str | None) -> str | None:
    """An answer as an exported site holds it: its catalogue offers what it has plans for."""
    if path != "/api/catalog" or answer is None:
        return answer
    found = json.loads(answer)
    found["models"] = [one for one in found["models"] if one["id"] in PLANNED_MODELS]
    found["clusters"] = [one for one in found["clusters"] if one["id"] in PLANNED_CLUSTERS]
    return json.dumps(found, ensure_ascii=False)


def _before_first_script(index: str, loader: str) -> str:
    place = index.index("<script")
    return index[:place] + loader + index[place:]


def slug(path: str, query: dict[str, str]) -> str:
    """Return the file name of an answer, as the page builds it (studio-web/src/lib/api.ts)."""
    name = path.removeprefix("/api/").replace("/", "_")
    parts = [name, *(f"{key}={query[key]}" for key in sorted(query))]
    return re.sub(
        r"[^A-Za-z0-9.=,_-]",
        lambda match: "".join(f"~{byte:02x}" for byte in match.group().encode()),
        ",".join(parts),
    )


def requests() -> Iterator[Request]:
    """Yield every request whose answer an exported site holds."""
    for method, path, *_ in routes():
        if method == "GET" and "{" not in path and not path.startswith(("/api/sim/", *PLANNING)):
            yield path, {}
    for model, cluster in itertools.product(PLANNED_MODELS, PLANNED_CLUSTERS):
        query = {**USUAL_QUESTION, "model": model, "cluster": cluster}
        yield "/api/plan", query
        yield "/api/prices", query
        if cluster == USUAL_QUESTION["cluster"]:
            yield "/api/defence", query
            yield "/api/timeline", query
    for step in content.steps():
        yield f"/api/lessons/{step.id}", {}
    for drill in content.drills():
        yield f"/api/drills/{drill.id}", {}
    for example in content.examples():
        yield f"/api/examples/{example.id}", {}
        if example.vary:
            for stop in example.vary.stops:
                yield f"/api/examples/{example.id}", {example.vary.name: f"{stop:.15g}"}
    for question in content.questions():
        for seed in range(SEEDS):
            yield f"/api/checks/{question.id}", {"seed": str(seed)}
            yield from _judged(question, seed)
    controls = _controls()
    for sim, query in _steered():
        if sim in controls:
            usual = {control["name"]: control["default"] for control in controls[sim]}
            yield from drawn(sim, {**usual, **query})
    for sim, parameters in controls.items():
        values = [control.get("static", control["values"]) for control in parameters]
        for chosen in itertools.product(*values):
            names = (control["name"] for control in parameters)
            yield from drawn(sim, dict(zip(names, chosen, strict=True)))


def _judged(question: records.Question, seed: int) -> Iterator[Request]:
    """What judges an answer without the engine: a key for numbers, else every verdict there is."""
    if question.kind == "number":
        yield f"/api/checks/{question.id}/key", {"seed": str(seed)}
        return
    answers = [str(n + 1) for n in range(len(question.choices))]
    if question.kind == "layout":
        case = triples.Case.of(asking.variables(question, seed))
        answers = [",".join(map(str, degrees)) for degrees in triples.every(case)]
    for given in answers:
        yield f"/api/checks/{question.id}/answer", {"seed": str(seed), "given": given}


STACKED = (("gpipe", "1"), ("1f1b", "1"), ("interleaved", "2"), ("zb-h1", "1"))
"""Schedule and virtual stages of the rows under the pipeline's picture (`Stacked.svelte`)."""


def drawn(sim: str, query: dict[str, str]) -> Iterator[Request]:
    """Yield what a simulation's page asks for at one setting."""
    yield f"/api/sim/{sim}", query
    if sim == "pipeline":
        for schedule, v in STACKED:
            yield f"/api/sim/{sim}", {**query, "slow_rank": "-1", "schedule": schedule, "v": v}


def _controls() -> dict[str, list[dict[str, Any]]]:
    file = static_folder() / "requests.json"
    found: dict[str, list[dict[str, Any]]] = json.loads(file.read_text("utf-8"))
    return found


def _steered() -> Iterator[tuple[str, dict[str, str]]]:
    """Every setting of a simulation that the lessons point to."""
    pairs = [(s.sim, s.query) for s in content.steps()]
    pairs += [(b.sim, b.query) for s in content.steps() for b in s.blocks if b.kind == "steer"]
    scenes = [s.scene for s in content.steps()]
    scenes += [b.scene for s in content.steps() for b in s.blocks if b.scene]
    pairs += [("walk", scene.partition("&")[0]) for scene in scenes]
    pairs += [(c.sim, c.query) for c in content.concepts()]
    pairs += [(q.sim, q.query) for q in content.questions()]
    pairs += [(f.sim, f.query) for f in content.faqs()]
    pairs += [(p.sim, p.query) for d in content.drills() for p in d.evidence if p.kind == "sim"]
    shown = [m.shown for m in content.mistakes()] + [t.href for t in content.terms()]
    pairs += [
        (place.removeprefix("#/sim/").partition("?")[0], place.partition("?")[2])
        for place in shown
        if place.startswith("#/sim/")
    ]
    for sim, query in pairs:
        if sim:
            yield sim, dict(parse_qsl(query))


class _Asker:
    """Calls the application in this process, without a server."""

    def __init__(self) -> None:
        self.app = create_app()

    def __call__(self, path: str, query: dict[str, str]) -> str | None:
        """Return the JSON text of an answer, or None where the engine refuses the question."""
        return asyncio.run(self._ask(path, query))

    async def _ask(self, path: str, query: dict[str, str]) -> str | None:
        sent: list[dict[str, Any]] = []

        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:  # nothing follows a request, and this client never leaves
                await asyncio.Event().wait()
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
            "scheme": "http", "path": path, "raw_path": path.encode(), "root_path": "",
            "query_string": urlencode(query).encode(), "headers": [(b"host", b"127.0.0.1")],
            "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
        }  # fmt: skip
        await self.app(scope, receive, send)
        if sent[0]["status"] == 422:
            return None
        if sent[0]["status"] not in (200, 409):  # 409: nothing fits, which is an answer
            raise AssertionError(f"{path}?{urlencode(query)} answers {sent[0]['status']}")
        return b"".join(message.get("body", b"") for message in sent[1:]).decode()
