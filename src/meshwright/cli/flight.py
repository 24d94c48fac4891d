"""`meshwright flight`: the last collectives of every rank of a run that stood still."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def command(
    *,
    run: Path = typer.Argument(..., help="A run's folder."),
    last: int = typer.Option(4, min=1, help="Operations to show of each rank."),
    as_json: bool = typer.Option(False, "--json", help="Print the verdict and all rings as JSON."),
) -> None:
    """Say which rank the others waited for, and in which collective.

    Every rank of a run keeps its last 512 collectives in a file that outlives it. They stay when
    the run fails, and can be read while it hangs.
    """
    from meshwright.engine.watch.blame import judge
    from meshwright.engine.watch.flightlog import newest_folder, read_flights

    folder = newest_folder(run)
    flights = read_flights(folder)
    verdict = judge(flights)
    if as_json:
        from meshwright.cli.output import print_json

        ranks = [{"rank": f.rank, "calls": [c.plain() for c in f.calls]} for f in flights]
        print_json(verdict.plain() | {"rings": str(folder), "ranks": ranks})
        return
    from meshwright.cli.output import print_lines, print_table

    latest = max((c.finished or c.started for f in flights for c in f.calls), default=0.0)
    rows = [row for f in flights for row in _rows(f, last, latest)]
    columns = ["rank", "axis", "operation", "#", "bytes", "step", "started", "state"]
    print_table(
        f"The last operations of {len(flights)} ranks", columns, rows, {3, 4, 5, 6},
        "Started: seconds before the last thing that any rank noted.", optional=(4,),
    )  # fmt: skip
    print_lines(verdict.sentence[0].upper() + verdict.sentence[1:])


def _rows(flight: Any, last: int, latest: float) -> list[list[str]]:
    rows = []
    for at, call in enumerate(flight.calls[-last:]):
        with_whom = (
            "" if call.peer < 0 else f" {'to' if call.kind == 'send' else 'from'} {call.peer}"
        )
        state = "WAITING" if call.finished is None else "done"
        if call.finished is not None and call.finished - call.started >= 0.1:
            state += f" in {call.finished - call.started:.1f} s"
        rows.append(
            [
                str(flight.rank) if at == 0 else "", call.axis, call.kind + with_whom,
                str(call.turn), f"{call.payload_bytes:,}", str(call.step),
                f"{call.started - latest:.3f}", state,
            ]
        )  # fmt: skip
    return rows or [[str(flight.rank), "", "nothing yet", "", "", "", "", ""]]
