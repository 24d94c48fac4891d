"""Tables out of what people paste: CSV, Markdown with prose around it, HTML, LaTeX, reStructuredText, aligned columns.

Every cell comes out as plain words: links, emphasis, footnotes and macros are taken off, a dash or `N/A` is a blank.
"""

from __future__ import annotations

import csv
import html
import io
import re
from html.parser import HTMLParser

Grid = list[list[str]]
"""Lines of cells, the header first."""

MOST_SPANNED = 100
"""Columns or rows that one cell may span."""
MOST_COLUMNS = 200
"""Of a table with spanning cells; what is beyond is passed over."""

_BLANK = re.compile(r"^(?:[-–—−/]{1,3}|n/?a|none given|not (?:reported|available|applicable)|\?)$", re.I)  # fmt: skip
_LINK = re.compile(r"!?\[([^\]\n]{0,300})\]\((?:[^()\n]|\([^()\n]{0,100}\)){0,600}\)")
_TAG = re.compile(r"</?[a-zA-Z][^<>\n]{0,300}>")
_BEGIN = re.compile(r"\\begin\{(?:tabular\w*|longtable|array)\*?\}")
_MACRO = re.compile(
    r"\\(?:textbf|textit|texttt|emph|underline|mathbf|mathrm|text|bf|it|textsc|makecell|thead|small|footnotesize)\b\s*\{([^{}]{0,200})\}"
)
_LATEX_SIGNS = (
    (r"\times", "×"), (r"\cdot", "×"), (r"\approx", "~"), (r"\sim", "~"), (r"\%", "%"), (r"\&", "&"), (r"\_", "_"),
    (r"\#", "#"), (r"\$", "$"), (r"\,", " "), (r"\;", " "), (r"\pm", "±"), ("~", " "), ("$", ""),
)  # fmt: skip


def plain(cell: str) -> str:
    """A cell's words without Markdown, HTML and footnotes; a dash for nothing is a blank."""
    text = _LINK.sub(r"\1", cell)
    if "<" in text:
        text = re.sub(r"<sup>.{0,40}?</sup>|\[\^\w{1,20}\]", "", text)
        text = _TAG.sub(" ", text)
    text = html.unescape(re.sub(r"\[\^\w{1,20}\]", "", text)).replace("\xa0", " ")
    text = re.sub(r"(\*\*|__|`)(.{1,300}?)\1", r"\2", text)
    text = re.sub(r"(?<!\w)\*([^*\n]{1,200})\*(?!\w)", r"\1", text)
    text = re.sub(r"[ \t\r\n]+", " ", text).strip().strip("†‡").strip()
    return "" if _BLANK.match(text) else text


def tables(text: str) -> list[tuple[Grid, str]]:
    """Return the tables that a text holds, in order, each with the text before it; none: it may be CSV."""
    text = text.lstrip("\ufeff")
    words = html.unescape(_TAG.sub(" ", text))
    around = [(grid, words) for grid in _html(text) or _latex(text)]
    for found in (around, _markdown(text), [(grid, text) for grid in _restructured(text)]):
        if found:
            return [
                ([[plain(cell) for cell in line] for line in grid], above) for grid, above in found
            ]
    return []


def grids(text: str) -> list[Grid]:
    """Return the tables that a text holds, in order."""
    return [grid for grid, _ in tables(text)]


def _below_remarks(text: str) -> str:
    """A table without the lines above its header that begin with `#` and hold fewer cells than the next: `#GPUs` is none."""
    rest = text.lstrip("\ufeff\r\n ")
    passed = False
    while rest.startswith("#") and "\n" in rest:
        first, below = rest.split("\n", 1)
        following = below.split("\n", 1)[0]
        if all(first.count(one) >= following.count(one) for one in ",;\t"):
            break
        rest, passed = below, True
    return rest if passed else text


def with_commas(text: str) -> str:
    """Return a table that tabs, semicolons or runs of blanks separate as CSV; any other as it is."""
    text = _below_remarks(text)
    head = text.lstrip("\ufeff\r\n ").split("\n", 1)[0]
    if "," in head:
        return text
    separator = next((one for one in ("\t", ";") if one in head), "")
    lines = text.strip().splitlines()
    try:
        if separator:
            table = list(csv.reader(lines, delimiter=separator))
        elif len(re.split(r" {2,}", head.strip())) > 2:
            table = [re.split(r" {2,}", line.strip()) for line in lines]
        else:
            return text
    except csv.Error:
        return text
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for cells in ([cell.strip() for cell in line] for line in table):
        if any(cells):
            writer.writerow(cells)
    return out.getvalue()


class _Tables(HTMLParser):
    """Cells of every `<table>`, what spans several of them written into each."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[Grid] = []
        self._grid: Grid | None = None
        self._cell: list[str] | None = None
        self._spans = (1, 1)
        self._held: dict[tuple[int, int], str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._grid, self._held = [], {}
        elif tag == "tr" and self._grid is not None:
            self._close()
            self._grid.append([])
        elif tag in ("td", "th") and self._grid:
            self._close()
            told = dict(attrs)
            self._spans = (_span(told.get("colspan")), _span(told.get("rowspan")))
            self._cell = []
        elif tag == "br" and self._cell is not None:
            self._cell.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "tr", "table"):
            self._close()
        if tag == "table" and self._grid is not None:
            self.found.append([line for line in self._grid if any(line)])
            self._grid = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)

    def _close(self) -> None:
        """Put the cell that ends into its line, behind what earlier lines reach down with."""
        if self._cell is None or not self._grid:
            return
        text, (columns, rows) = "".join(self._cell), self._spans
        self._cell = None
        line, index = self._grid[-1], len(self._grid) - 1
        self._reach(line, index)
        for _ in range(min(columns, MOST_COLUMNS - len(line))):
            for below in range(1, rows):
                self._held[index + below, len(line)] = text
            line.append(text)
        self._reach(line, index)

    def _reach(self, line: list[str], index: int) -> None:
        while len(line) < MOST_COLUMNS and (index, len(line)) in self._held:
            line.append(self._held[index, len(line)])


def _span(value: str | None) -> int:
    return min(int(value), MOST_SPANNED) if value and value.isdigit() and int(value) else 1


def _html(text: str) -> list[Grid]:
    if not re.search(r"<table\b", text, re.IGNORECASE):
        return []
    reader = _Tables()
    reader.feed(text)
    return [grid for grid in reader.found if len(grid) > 1]


def _environments(text: str) -> list[str]:
    """What stands between the beginning and the end of each environment of LaTeX that holds a table."""
    bodies, at = [], 0
    while found := _BEGIN.search(text, at):
        end = text.find(r"\end{", found.end())
        if end < 0:
            break
        bodies.append(text[found.end() : end])
        at = end
    return bodies


def _latex(text: str) -> list[Grid]:
    found = []
    for body in _environments(text):
        lines: Grid = []
        for line in re.split(r"\\\\|\\tabularnewline", body):
            line = re.sub(r"(?<!\\)%[^\n]*", "", line)
            line = re.sub(r"\\(?:hline|toprule|midrule|bottomrule)|\\c(?:mid)?(?:line|rule)(?:\([lr]+\))?\{[^}]{0,20}\}", "", line)  # fmt: skip
            if not lines:  # the columns' letters
                line = re.sub(r"^\s*(?:\{[^{}]{0,40}\})?\s*\{(?:[^{}]|\{[^{}]{0,80}\}){0,300}\}", "", line)  # fmt: skip
            cells = [_latex_cell(cell) for cell in re.split(r"(?<!\\)&", line)]
            if any(cell.strip() for cell in cells):
                lines.append(cells)
        if len(lines) > 1:
            found.append(lines)
    return found


def _latex_cell(cell: str) -> str:
    cell = re.sub(r"\\multi(?:row|column)\{[^}]{0,20}\}(?:\[[^\]]{0,20}\])?\{[^}]{0,40}\}\s*\{([^{}]{0,200})\}", r"\1", cell)  # fmt: skip
    for _ in range(3):
        cell = _MACRO.sub(r"\1", cell)
    for sign, meant in _LATEX_SIGNS:
        cell = cell.replace(sign, meant)
    return re.sub(r"\\[a-zA-Z]+\b\s*|[{}]", "", cell)


def _ruled(line: str) -> bool:
    """Whether a line only rules off: `|---|:-:|`, `+====+`."""
    return not set(line) - set("|:+=- \t") and (
        "--" in line or "==" in line or "|-" in line or "| -" in line
    )


def _markdown(text: str) -> list[tuple[Grid, str]]:
    """Runs of lines with bars, and the lines before each: ruled off below the header, begun with a bar, or a header
    without commas."""
    found: list[tuple[Grid, str]] = []
    grid: Grid = []
    above: list[str] = []
    sure = False
    for line in [*text.splitlines(), ""]:
        ruled = _ruled(line)
        if "|" in line and not ruled:
            inner = line.strip()
            sure = sure or inner.startswith("|") or (not grid and "," not in inner)
            inner = inner[1:] if inner.startswith("|") else inner
            inner = inner[:-1] if inner.endswith("|") else inner
            grid.append([cell.replace("\\|", "/") for cell in re.split(r"(?<!\\)\|", inner)])
        elif ruled:
            sure = sure or len(grid) == 1
        else:
            if len(grid) > 1 and sure:
                found.append((_even(grid), "\n".join(above)))
                above = []
            grid, sure = [], False
            above.append(line)
    return found


def _even(grid: Grid) -> Grid:
    """Lines as long as the header: cells beyond it, all blank, are passed over."""
    width = len(grid[0])
    return [line[:width] if not any(cell.strip() for cell in line[width:]) else line for line in grid]  # fmt: skip


def _restructured(text: str) -> list[Grid]:
    """Simple tables of reStructuredText: columns under `=====  =====`."""
    lines = text.splitlines()
    rules = [i for i, line in enumerate(lines) if re.fullmatch(r"\s*={2,}(?:\s+={2,})+\s*", line)]
    if len(rules) < 2:
        return []
    spans = [found.span() for found in re.finditer(r"=+", lines[rules[0]])]
    ends = [begin for begin, _ in spans[1:]] + [10_000]
    grid = [
        [line[begin:end] for (begin, _), end in zip(spans, ends, strict=True)]
        for line in lines[rules[0] + 1 : rules[-1]]
        if line.strip() and not re.fullmatch(r"[\s=-]+", line)
    ]
    return [grid] if len(grid) > 1 else []
