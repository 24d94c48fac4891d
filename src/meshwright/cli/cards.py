"""`meshwright cards`: the flashcards, on screen, on paper, or for Anki."""

from __future__ import annotations

from pathlib import Path

import typer

from meshwright.cli import options


def command(
    print_to: Path | None = typer.Option(
        None, "--print", callback=options.writable, help="Write a PDF, one card a page."
    ),
    anki: Path | None = typer.Option(
        None, "--anki", callback=options.writable, help="Write a text file that Anki imports."
    ),
    group: str = typer.Option("", "--group", help="Only one group, such as pipeline."),
    as_json: bool = typer.Option(False, "--json", help="Plain data instead of text."),
) -> None:
    """The flashcards of the lessons, their numbers computed.

    Shown in the terminal, or written: `--print cards.pdf` (one card a page), `--anki cards.tsv`.
    """
    from meshwright.cli.output import print_json
    from meshwright.lessons.print_cards import anki_text, cards_pdf, filled_cards
    from meshwright.specs.errors import SpecError, nearest
    from meshwright.specs.writing import write_atomically

    cards = filled_cards()
    if print_to is not None:
        write_atomically(print_to, cards_pdf())
        print(f"{print_to}: {len(cards)} cards, one a page")
    if anki is not None:
        write_atomically(anki, anki_text())
        print(f"{anki}: {len(cards)} cards")
    if print_to is not None or anki is not None:
        return
    groups = {card[1] for card in cards}
    if group and group not in groups:
        raise SpecError("group", group, nearest(group, groups))
    shown = [card for card in cards if group in ("", card[1])]
    if as_json:
        plain = [{"id": c[0], "group": c[1], "front": c[2], "back": c[3]} for c in shown]
        print_json({"cards": plain})
        return
    from rich.console import Console

    console = Console(highlight=False)
    console = Console(highlight=False, width=min(console.width, 84))
    for card_id, _, front, back in shown:
        console.print(f"[bold]{front}[/]  [dim]{card_id}[/]")
        console.print(back, end="\n\n", markup=False)
