"""The README's own commands run as printed."""

import re
from pathlib import Path

import pytest

from meshwright.cli import run

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text("utf-8") + (ROOT / "docs/quickstart.md").read_text("utf-8")
READY = ("plan", "estimate", "memory", "schedules", "collective", "models", "clusters", "devices")
COMMANDS = sorted(
    {
        match.split("#")[0].strip()
        for match in re.findall(r"(?:`|^|\$ )(meshwright [a-z][^`\n]*)", TEXT, re.M)
        if match.split()[1] in READY
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_shown_work(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [word.rstrip(",") for word in command.split()[1:]]
    code = run(words)
    captured = capsys.readouterr()
    assert code in (0, 1), captured.err
    assert captured.out.strip()
    # Only a layout that honestly does not fit may exit with 1.
    assert code == 0 or words[0] == "estimate"


def test_the_shown_plan_is_a_defended_one():
    shown = TEXT[TEXT.index("<!-- run: meshwright plan") : TEXT.index("<!-- end -->")]
    for words in ("Memory", "Time", "Decision trees", "Why not", "peak memory"):
        assert words in shown


def test_python_example_runs(capsys):
    code = re.search(r"```python\n(.*?)```", TEXT, re.S).group(1)
    exec(compile(code, "README.md", "exec"), {})
    assert "tp" in capsys.readouterr().out


def test_the_architecture_page_names_every_room_and_none_that_is_not_there():
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    package = ROOT / "src/meshwright"
    engine_part = page[page.index("Inside `engine/`") :]
    imports_part = page[page.index("Inside `imports/`") :]
    parts = (
        (package, page),
        (package / "engine", engine_part),
        (package / "imports", imports_part),
    )
    for folder, text in parts:
        rooms = {f"{one.name}/" for one in folder.iterdir() if one.is_dir() and one.name[0] != "_"}
        assert rooms <= set(re.findall(r"`([a-z_]+/)`", text)), folder
    files = {one.name for one in (package / "engine").glob("*.py") if one.name[0] != "_"}
    assert files <= set(re.findall(r"`([a-z_]+\.py)`", engine_part))
    for named in re.findall(r"^\| (`.*?) \|", page, re.M):
        for one in re.findall(r"`([a-z_]+(?:/|\.py))`", named):
            places = (package, package / "engine", package / "imports")
            assert any((place / one).exists() for place in places), one
