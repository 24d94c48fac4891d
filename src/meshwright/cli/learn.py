"""`meshwright learn`: the path in the terminal, its questions and their checks."""

from __future__ import annotations

import sys
from typing import Any

import typer
from rich.markup import escape

from meshwright.cli import options
from meshwright.cli.output import print_json

WIDTH = 84


def command(
    step: str = typer.Option("", "--step", help="A step of the path: 1 to 15, or its name."),
    question: str = typer.Option("", "--question", help="A question by its id, such as Q4 or SC3."),
    answer: str = typer.Option("", "--answer", help="Your answer, such as 27.3%, 13GB or 2."),
    seed: int = typer.Option(0, "--seed", help="Other numbers in the question; 0: the lessons'."),
    everything: bool = typer.Option(False, "--questions", help="List all questions."),
    drill: str = typer.Option("", "--drill", help="A drill, D10 to D15; alone: its story."),
    opened: list[str] = typer.Option([], "--open", help="Evidence of the drill to look at."),
    choices: list[str] = typer.Option([], "--set", help="A choice of the plan, such as tp=4."),
    finding: int = typer.Option(0, "--finding", help="The number of what you conclude."),
    argument: str = typer.Option("", "--argument", help="Why this plan: goes into the defence."),
    output: str = typer.Option(
        "", "-o", callback=options.writable, help="File for the drill's defence, as Markdown."
    ),
    as_json: bool = typer.Option(False, "--json", help="Plain data instead of text."),
) -> None:
    """Learn parallel training step by step: 15 steps, 110 minutes, every number computed.

    Without options: the path, and in a terminal a walk through it. `--step 7` shows a step and
    asks its question; with `--answer` it is judged (exit code 1 if it is wrong). `--drill D13` tells
    a case; with `--set`, `--open`, `--finding` or `-o` the plan is graded.
    """
    from meshwright.lessons import asking, content

    if drill and (choices or opened or finding or argument or output):
        _grade(content.drill(drill), choices, opened, finding, argument, output, as_json)
    elif drill:
        _show(_drill_data(content.drill(drill)), as_json, _drill_text)
    elif everything:
        _list_questions(as_json)
    elif question or (step and answer):
        wanted = question or _question_of(content.step(step))
        if answer:
            _judge(wanted, answer, seed, as_json)
        else:
            _show(asking.ask(wanted, seed).model_dump(), as_json, _question_text)
    elif step:
        _show(_step_data(content.step(step), seed), as_json, _step_text)
    else:
        _show({"path": [_entry(s) for s in content.steps()]}, as_json, _path_text)
        if not as_json and sys.stdin.isatty() and sys.stdout.isatty():
            _walk()


def _question_of(step: Any) -> str:
    return str(next(block.ref for block in step.blocks if block.kind == "check"))


def _entry(step: Any) -> dict[str, Any]:
    return {
        "number": step.number, "id": step.id, "phase": step.phase, "title": step.title,
        "minutes": step.minutes, "question": step.question, "check": _question_of(step),
    }  # fmt: skip


def _step_data(step: Any, seed: int) -> dict[str, Any]:
    from meshwright.lessons import asking, content
    from meshwright.lessons.expressions import fill, worked_formula

    blocks: list[dict[str, Any]] = []
    for block in step.blocks:
        entry: dict[str, Any] = {"kind": block.kind}
        if block.kind in ("prose", "note", "steer"):
            entry["text"] = fill(block.text).strip()
        if block.kind == "steer":
            entry |= {"sim": block.sim, "query": block.query}
        if block.kind == "example":
            example = content.example(block.ref)
            formula = content.formula(example.formula)
            names = {**formula.variables, **example.variables}
            put_in, value = worked_formula(formula.substituted, formula.value, names)
            entry |= {
                "id": example.id,
                "title": example.title,
                "text": fill(example.says, names),
                "formula": f"{formula.symbolic} = {put_in} = {value}",
            }
        if block.kind == "table":
            table = content.table(block.ref)
            entry |= {
                "caption": table.caption,
                "columns": list(table.columns),
                "rows": [[fill(cell) for cell in row] for row in table.rows],
            }
        if block.kind in ("predict", "check"):
            entry["question"] = asking.ask(block.ref, seed).model_dump()
        blocks.append(entry)
    return {**_entry(step), "takeaway": step.takeaway, "blocks": blocks}


def _show(data: dict[str, Any], as_json: bool, text: Any) -> None:
    if as_json:
        print_json(data)
    else:
        text(_console(), data)


def _console() -> Any:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    return Console(highlight=False, width=min(console.width, WIDTH))


def _path_text(console: Any, data: dict[str, Any]) -> None:
    from rich.table import Table

    from meshwright.lessons import content

    total = sum(step["minutes"] for step in data["path"])
    console.print(f"[bold]{len(data['path'])} steps, {total} minutes[/]", end="\n\n")
    for phase in content.phases():
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
        table.add_column(justify="right", style="bold", min_width=2)
        table.add_column(ratio=1)
        table.add_column(justify="right", style="dim")
        for step in data["path"]:
            if step["phase"] == phase.id:
                table.add_row(str(step["number"]), step["title"], f"{step['minutes']} min")
        console.print(f"[bold cyan]{phase.title}[/]  [dim]{phase.goal}[/]")
        console.print(table)
        console.print()
    console.print("[dim]meshwright learn --step 1[/]")


def _step_text(console: Any, data: dict[str, Any]) -> None:
    console.print(f"[bold]{data['number']}  {data['title']}[/]  [dim]{data['minutes']} min[/]")
    console.print(f"[italic]{data['question']}[/]", end="\n\n")
    for block in data["blocks"]:
        _block_text(console, block, data["number"])
    console.print(f"[bold green]→[/] {data['takeaway']}")


def _block_text(console: Any, block: dict[str, Any], number: int) -> None:
    from rich.markdown import Markdown
    from rich.padding import Padding
    from rich.table import Table

    from meshwright.lessons.prose import to_text

    match block["kind"]:
        case "prose":
            console.print(Markdown(block["text"]))
        case "note":
            console.print(Padding(f"[dim]{to_text(block['text'])}[/]", (0, 0, 0, 2)))
        case "steer":
            place = f"sim/{block['sim']}" + (f"?{block['query']}" if block["query"] else "")
            console.print(f"[cyan]▸[/] {to_text(block['text'])} [dim](studio: {place})[/]")
        case "example":
            console.print(f"[bold]{block['title']}[/]  [dim]{block['id']}[/]")
            console.print(Padding(f"[cyan]{block['formula']}[/]", (0, 0, 0, 2)))
            console.print(Padding(Markdown(block["text"]), (0, 0, 0, 2)))
        case "table":
            table = Table(title=block["caption"], title_justify="left", title_style="bold")
            for column in block["columns"]:
                table.add_column(column)
            for row in block["rows"]:
                table.add_row(*row)
            console.print(table)
        case "predict":
            console.print("[dim]Predict before you read on.[/]")
            _question_text(console, block["question"])
        case "check":
            _question_text(console, block["question"], number)
    console.print()


def _question_text(console: Any, asked: dict[str, Any], step: int | None = None) -> None:
    console.print(f"[bold yellow]?[/] {escape(asked['prompt'])}")
    for number, choice in enumerate(asked["choices"], 1):
        console.print(f"  {number}  {choice}", markup=False)
    where = f"--step {step}" if step else f"--question {asked['id']}"
    example = "1" if asked["choices"] else f"NUMBER{asked['unit']}"
    if asked["kind"] == "layout":
        example = "DP,TP,PP"
    seed = f" --seed {asked['seed']}" if asked["seed"] else ""
    console.print(f"[dim]  meshwright learn {where}{seed} --answer {example!r}[/]")


def _drill_data(drill: Any) -> dict[str, Any]:
    from meshwright.lessons.drills import price_choice
    from meshwright.lessons.expressions import fill

    start = price_choice(drill, {})
    return {
        "id": drill.id,
        "title": drill.title,
        "minutes": drill.minutes,
        "story": fill(drill.story).strip(),
        "evidence": [
            {"id": p.id, "title": p.title, "cost_minutes": p.cost_minutes} for p in drill.evidence
        ],
        "findings": sorted(drill.findings),
        "start": start.layout.plain(),
        "editable": {name: list(values) for name, values in drill.editable.items()},
    }


def _drill_text(console: Any, data: dict[str, Any]) -> None:
    console.print(f"[bold]{data['title']}[/]  [dim]{data['id']}, {data['minutes']} min[/]\n")
    console.print(escape(data["story"]), end="\n\n")
    console.print("[bold]Evidence[/]  [dim]each costs minutes[/]")
    for panel in data["evidence"]:
        console.print(f"  --open {panel['id']:<12} {panel['cost_minutes']} min  {panel['title']}")
    if data["findings"]:
        console.print("\n[bold]What happened?[/]")
        for number, text in enumerate(data["findings"], 1):
            console.print(f"  --finding {number}  {text}")
    console.print("\n[bold]The plan[/]  [dim]data parallelism takes the devices that are left[/]")
    for name, values in data["editable"].items():
        now = data["start"].get(name)
        others = ", ".join(str(value) for value in values if value != now)
        console.print(f"  --set {name}={now}  [dim]or {others}[/]")


def _grade(
    drill: Any, choices: list[str], opened: list[str], finding: int, argument: str, output: str,
    as_json: bool,
) -> None:  # fmt: skip
    from meshwright.lessons import content
    from meshwright.lessons.drills import grade
    from meshwright.lessons.expressions import fill
    from meshwright.specs.errors import SpecError
    from meshwright.specs.writing import write_atomically

    findings = sorted(drill.findings)
    if finding and not 1 <= finding <= len(findings):
        raise SpecError("finding", finding, f"a number from 1 to {len(findings)} is expected")
    concluded = findings[finding - 1] if finding else ""
    result = grade(drill.id, _chosen(drill, choices), opened, concluded, argument)
    if output:
        write_atomically(output, result.defence)
    if as_json:
        print_json(result.plain())
        return
    console = _console()
    for panel_id in opened:
        panel = content.pick("open", panel_id, drill.evidence)
        _panel_text(console, panel, fill)
    console.print(f"[bold]{result.layout.label()}[/]  {result.layout.schedule}")
    for score in result.scores:
        points = f"{score.points:g} of {score.of:g}"
        console.print(f"  {score.name:<14} {points:>10}  {score.value}; {escape(score.sentence)}")
    console.print(f"[bold]{result.total:g} of 100[/]")
    if output:
        console.print(f"[dim]{output}: the defence[/]")


def _panel_text(console: Any, panel: Any, fill: Any) -> None:
    if panel.kind == "table":
        block = {
            "kind": "table",
            "caption": panel.title,
            "columns": panel.columns,
            "rows": [[fill(cell) for cell in row] for row in panel.rows],
        }
        _block_text(console, block, 0)
    elif panel.kind == "text":
        console.print(f"[bold]{panel.title}[/]\n{escape(fill(panel.text).strip())}\n")
    else:
        console.print(f"[bold]{panel.title}[/] [dim](studio: sim/{panel.sim}?{panel.query})[/]\n")


def _chosen(drill: Any, choices: list[str]) -> dict[str, Any]:
    from meshwright.specs.errors import SpecError, nearest

    chosen: dict[str, Any] = {}
    for choice in choices:
        name, _, text = choice.partition("=")
        if name not in drill.editable:
            raise SpecError("set", choice, nearest(name, drill.editable))
        named = {str(value).lower(): value for value in drill.editable[name]}
        if text.lower() not in named:
            raise SpecError(f"set.{name}", text, f"one of {', '.join(named)} is expected")
        chosen[name] = named[text.lower()]
    return chosen


def _list_questions(as_json: bool) -> None:
    from meshwright.lessons import asking, content

    asked = [asking.ask(question.id).model_dump() for question in content.questions()]
    if as_json:
        print_json({"questions": asked})
        return
    console = _console()
    for entry in asked:
        console.print(f"[bold]{entry['id']:>4}[/]  {entry['prompt']}")


def _judge(question: str, answer: str, seed: int, as_json: bool) -> None:
    from meshwright.lessons import asking

    verdict = asking.judge(question, answer, seed)
    if as_json:
        print_json(verdict.model_dump())
    else:
        mark = "[bold green]✔[/]" if verdict.correct else "[bold red]✘[/]"
        _console().print(f"{mark} {escape(verdict.sentence)}")
    if not verdict.correct:
        raise typer.Exit(1)


def _walk() -> None:
    """Walk the path with a person at a terminal: a step, its question, an answer, the next."""
    from meshwright.lessons import asking, content
    from meshwright.specs.errors import SpecError

    console = _console()
    for step in content.steps():
        if _prompt(f"\nEnter for step {step.number}, q to stop") == "q":
            return
        _step_text(console, _step_data(step, 0))
        while given := _prompt("Your answer (Enter to go on, q to stop)"):
            if given == "q":
                return
            try:
                verdict = asking.judge(_question_of(step), given)
            except SpecError as error:
                console.print(str(error), markup=False)
                continue
            mark = "[bold green]✔[/]" if verdict.correct else "[bold red]✘[/]"
            console.print(f"{mark} {escape(verdict.sentence)}")
            if verdict.correct:
                break


def _prompt(text: str) -> str:
    return str(typer.prompt(text, default="", show_default=False)).strip()
