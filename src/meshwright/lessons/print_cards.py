"""Flashcards on paper (PDF, one card a page) and for Anki (tab-separated text).

The PDF is written directly: text in one of the fonts that every reader has needs no library. Those
fonts know the characters of Windows-1252; the few others that the cards use are spelled out.
"""

from __future__ import annotations

import textwrap

from meshwright.lessons import content
from meshwright.lessons.expressions import fill
from meshwright.lessons.prose import to_text

WIDTH, HEIGHT, MARGIN = 420, 298, 32  # points: A6, landscape
_SPELLED = {
    "√": "sqrt ", "α": "alpha", "→": "->", "≤": "<=", "≥": ">=", "−": "-", "≈": "~", "½": "1/2",
    "\u202f": " ", "\u00a0": " ", "✔": "ok",
}  # fmt: skip


def filled_cards() -> list[tuple[str, str, str, str]]:
    """Return (id, group, front, back) of every card, with its numbers computed."""
    return [(c.id, c.group, to_text(c.front), to_text(fill(c.back))) for c in content.cards()]


def anki_text() -> str:
    """Return the cards as Anki imports them: front, back and tags, separated by tabs."""
    lines = ["#separator:tab", "#html:false", "#tags column:3"]
    for card_id, group, front, back in filled_cards():
        fields = (front, back, f"meshwright {group} {card_id}")
        lines.append("\t".join(field.replace("\t", " ").replace("\n", " ") for field in fields))
    return "\n".join(lines) + "\n"


def cards_pdf() -> bytes:
    """Return the cards as a PDF: one card a page, the question above, the answer below a line."""
    return _document([_page(*card) for card in filled_cards()])


def _page(card_id: str, group: str, front: str, back: str) -> bytes:
    ops: list[bytes] = []
    y = _lines(ops, "F2", 15, front, HEIGHT - MARGIN - 15.0) - 10
    ops.append(b"0.6 w 0.6 G %d %d m %d %d l S" % (MARGIN, y, WIDTH - MARGIN, y))
    y = _lines(ops, "F1", 12, back, y - 24)
    if y < MARGIN:
        raise AssertionError(f"card {card_id} does not fit its page")
    ops.append(b"0.45 g")
    _text(ops, "F1", 8, f"meshwright   {group}   {card_id}", MARGIN - 14)
    return b"\n".join(ops)


def _lines(ops: list[bytes], font: str, size: int, text: str, y: float) -> float:
    # Helvetica's mean character is about half its size wide; capitals and digits a little more.
    columns = int((WIDTH - 2 * MARGIN) / (0.53 * size))
    for line in textwrap.wrap(text, columns):
        _text(ops, font, size, line, y)
        y -= 1.35 * size
    return y


def _text(ops: list[bytes], font: str, size: int, text: str, y: float) -> None:
    for character, spelled in _SPELLED.items():
        text = text.replace(character, spelled)
    raw = text.encode("cp1252")
    for special in (b"\\", b"(", b")"):
        raw = raw.replace(special, b"\\" + special)
    ops.append(b"BT /%s %d Tf %d %.1f Td (%s) Tj ET" % (font.encode(), size, MARGIN, y, raw))


def _document(pages: list[bytes]) -> bytes:
    """Assemble pages into a PDF 1.4 file (ISO 32000-1 §7.5) with two standard fonts."""
    fonts = [
        b"<< /Type /Font /Subtype /Type1 /BaseFont /%s /Encoding /WinAnsiEncoding >>" % name
        for name in (b"Helvetica", b"Helvetica-Bold")
    ]
    kids = b" ".join(b"%d 0 R" % (5 + 2 * i) for i in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)),
        *fonts,
    ]
    for index, page in enumerate(pages):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %d %d] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R /F2 4 0 R >> >> >>" % (WIDTH, HEIGHT, 6 + 2 * index)
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(page), page))
    out = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for offset in offsets:
        out += b"%010d 00000 n \n" % offset
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\n" % (len(objects) + 1)
    out += b"startxref\n%d\n%%%%EOF\n" % start
    return bytes(out)
