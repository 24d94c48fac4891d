"""Rewrite the command outputs in README.md and docs/gallery.md: run after a change to the cost model.

    python docs/update_readme.py

Between `<!-- run: COMMAND -->` and `<!-- end -->` stands a fenced block with what the command prints.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent
PAGES = (DOCS.parent / "README.md", DOCS / "gallery.md")
BLOCK = re.compile(
    r"<!-- run: (?P<command>[^>]*?)(?: \[lines (?P<last>\d+)\])? -->\n.*?<!-- end -->", re.S
)


def output_of(command: str) -> str:
    words = command.split()
    assert words[0] == "meshwright"
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", *words[1:]],
        capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1"},
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def main() -> None:
    def rewritten(match: re.Match[str]) -> str:
        text = output_of(match["command"]).splitlines()
        last = f" [lines {match['last']}]" if match["last"] else ""
        if match["last"]:
            text = [*text[: int(match["last"])], "…"]
        body = "\n".join(text)
        return f"<!-- run: {match['command']}{last} -->\n```text\n$ {match['command']}\n{body}\n```\n<!-- end -->"

    for page in PAGES:
        page.write_text(BLOCK.sub(rewritten, page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
