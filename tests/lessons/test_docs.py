"""docs/lessons.md is what its script writes, checks everything off, and its links lead somewhere."""

import importlib.util
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def load():
    spec = importlib.util.spec_from_file_location("update_lessons", DOCS / "update_lessons.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current():
    assert (DOCS / "lessons.md").read_text("utf-8") == load().page(), "run docs/update_lessons.py"


def test_everything_is_checked_off_and_linked():
    text = (DOCS / "lessons.md").read_text("utf-8")
    assert "- [ ]" not in text
    wanted = (
        [f"X{n}" for n in range(1, 31)] + [f"W{n}" for n in range(1, 19)]
        + [f"Q{n}" for n in range(9)] + [f"SC{n}" for n in range(1, 8)]
        + [f"V{n}" for n in range(1, 12)] + [f"T{n}" for n in range(1, 13)]
        + [f"FC{n}" for n in range(1, 10)] + [f"D{n}" for n in range(10, 15)]
        + ["Ea", "Eb", "Ec", "Ed", "EB", "EC"] + [str(n) for n in range(1, 39)]
    )  # fmt: skip
    for mark in wanted:
        assert f"- [x] **{mark}** " in text, mark
    for target in re.findall(r"\]\(\.\./([^)#]+)", text):
        assert (DOCS.parent / target).exists(), target


def test_places_in_the_studio_exist():
    pages = {"plan", "lessons", "checks", "drills", "cards", "glossary", "reference", "progress"}
    from meshwright.lessons import content

    steps = {s.id for s in content.steps()}
    for place in re.findall(r"`#/([^`]*)`", (DOCS / "lessons.md").read_text("utf-8")):
        parts = place.partition("?")[0].split("/")
        assert parts[0] in pages | {"sim"}, place
        if parts[0] == "lessons" and len(parts) > 1:
            assert parts[1] in steps, place
