"""Flashcards: a PDF that readers open, one card a page; a text file that Anki imports."""

import re

from meshwright.lessons.content import cards
from meshwright.lessons.print_cards import anki_text, cards_pdf, filled_cards


def test_the_pdf_has_one_page_a_card_and_a_sound_cross_reference_table():
    pdf = cards_pdf()
    assert pdf.startswith(b"%PDF-1.4") and pdf.rstrip().endswith(b"%%EOF")
    assert pdf.count(b"/Type /Page /") == len(cards())
    start = int(re.search(rb"startxref\n(\d+)", pdf)[1])
    entries = re.findall(rb"(\d{10}) 00000 n ", pdf[start:])
    for number, entry in enumerate(entries, 1):
        assert pdf[int(entry) :].startswith(b"%d 0 obj" % number)
    for length, stream in re.findall(rb"/Length (\d+) >>\nstream\n(.*?)\nendstream", pdf, re.S):
        assert len(stream) == int(length)


def test_the_answers_are_in_the_pdf():
    pdf = cards_pdf()
    for number in (b"42.9 %", b"14 GB", b"140 ms"):
        assert number in pdf


def test_anki_text_has_three_fields_a_line():
    lines = [line for line in anki_text().splitlines() if not line.startswith("#")]
    assert len(lines) == len(filled_cards()) == len(cards())
    assert all(line.count("\t") == 2 for line in lines)
