"""How `meshwright collective` prints: the summary, the steps, a sweep over sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.simulator.collective_events import Run


def _summary(report: dict[str, Any]) -> list[tuple[str, str]]:
    """What one collective takes, as rows of a name and a value."""
    from meshwright.specs.quantities import format_seconds

    rows = [
        ("time", f"{report['time_s']:.3g} s ({format_seconds(report['time_s'])})"),
        ("algorithm", report["algorithm"]),
        ("sent by a rank", _decimal(report["sent_bytes_per_rank"])),
        ("size / time", f"{report['algbw_bytes_s'] / 1e9:.4g} GB/s"),
        ("bus bandwidth", f"{report['busbw_bytes_s'] / 1e9:.4g} GB/s"),
    ]
    if "steps_in_sequence" in report:
        rows.insert(2, ("steps", str(report["steps_in_sequence"])))
    if "parts" in report:
        names = {"latency_s": "hops and filling", "intra_s": "bytes inside a domain",
                 "inter_s": "bytes between domains"}  # fmt: skip
        rows[1:1] = [(f"  {names[k]}", format_seconds(v)) for k, v in report["parts"].items() if v]
        rows.append(
            (
                "placement",
                f"{report['domains']:g} x {report['members_per_domain']:g} on {report['cluster']}",
            )
        )
    if "simulated" in report:
        link, busy = report["simulated"]["busiest_link"]
        rows.append(
            (
                "message by message",
                f"{format_seconds(report['simulated']['time_s'])} as "
                f"{report['simulated']['algorithm']}; busiest link: {link}, {100 * busy:.0f} %",
            )
        )
    if "groups_at_once" in report.get("simulated", {}):
        link, busy = report["simulated"]["busiest_link_at_once"]
        rows.append(
            (
                f"all {report['simulated']['groups_at_once']} groups at once",
                f"{format_seconds(report['simulated']['time_at_once_s'])}; busiest link: {link}, "
                f"{100 * busy:.0f} %",
            )
        )
    return rows


def print_report(report: dict[str, Any]) -> None:
    """Print the summary, and beside it the other algorithms or NCCL's own figures."""
    from meshwright.cli.output import print_table
    from meshwright.specs.quantities import format_seconds

    title = report["collective"].replace("_", "-")
    rows = _summary(report)
    heading = f"{title} of {_decimal(report['size_bytes'])} over {report['ranks']} ranks"
    print_table("", (heading, ""), rows)
    if report.get("compared"):
        print_table(
            "Algorithms on these links",
            ("algorithm", "time", "steps", "sent by the busiest rank"),
            [(c["algorithm"], format_seconds(c["time_s"]), str(c["steps"]),
              _decimal(c["sent_bytes"])) for c in report["compared"]],
            right=(1, 2),
        )  # fmt: skip
    if "nccl" in report:
        found = report["nccl"]["candidates"]
        if not found:
            print(f"NCCL: {report['nccl']['why'] or 'nothing to send'}.")
            return
        print_table(
            "What NCCL's tuning model says",
            ("algorithm/protocol", "its time", "latency", "bandwidth"),
            [(f"{c['algorithm']}/{c['protocol']}", format_seconds(c["time_s"]),
              format_seconds(c["latency_s"]), f"{c['bandwidth_bytes_s'] / 1e9:.1f} GB/s")
             for c in found[:6]],
            right=(1, 2),
            note=f"{report['nccl']['why']}.",
        )  # fmt: skip


def _decimal(size_bytes: float) -> str:
    """A size in decimal units, as link rates are."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.4g} {unit}"
    return f"{size_bytes:.4g} B"


SHOWN_RANKS, SHOWN_STEPS = 16, 64


def _fitting(cell: int) -> int:
    """Columns of ranks that fit beside the step and its times."""
    import shutil
    import sys

    if not sys.stdout.isatty():
        return SHOWN_RANKS
    width = shutil.get_terminal_size().columns
    return max(1, min(SHOWN_RANKS, (width - 28) // max(cell + 1, 9)))


def print_steps(run: Run) -> None:
    """A row a step, a column a sender: `c3>1 +` adds chunk 3 into rank 1, `=` overwrites."""
    from meshwright.cli.output import print_table
    from meshwright.simulator.collective_export import chunk_names

    program = run.program
    cells: dict[tuple[int, int], list[str]] = {}
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    for index, m in enumerate(program.messages):
        sign = "+" if m.op == "reduce" else "="
        to = "switch" if m.dst >= program.ranks else str(m.dst)
        cells.setdefault((m.step, m.src), []).append(
            f"{chunk_names(m.chunk, m.count, m.stride)}>{to} {sign}"
        )
        starts[m.step] = min(starts.get(m.step, float("inf")), float(run.start_s[index]))
        ends[m.step] = max(ends.get(m.step, 0.0), float(run.end_s[index]))
    widest = max(len(_some(texts)) for texts in cells.values())
    shown = min(program.ranks + program.switches, _fitting(widest + 2))
    senders = range(shown)
    heads = [f"rank {r}" if r < program.ranks else "switch" for r in senders]
    rows = []
    for step in range(min(program.steps, SHOWN_STEPS)):
        sent = [_some(cells.get((step, r), ["·"])) for r in senders]
        at = (_clock(starts[step]), _clock(ends[step]))
        rows.append((str(step + 1), *at, *sent))
    left_out = []
    if program.ranks + program.switches > shown:
        left_out.append(f"{program.ranks + program.switches - shown} more ranks")
    if program.steps > SHOWN_STEPS:
        left_out.append(f"{program.steps - SHOWN_STEPS} more steps")
    more = f" Not shown: {' and '.join(left_out)}; -o FILE has all." if left_out else ""
    print_table(
        f"{program.algorithm}: {len(program.messages):,} messages of chunks of "
        f"{_decimal(run.size_bytes / program.per_tensor)}",
        ("step", "from", "to", *heads),
        rows,
        right=(0, 1, 2),
        note="c3>1 +: chunk 3 goes to rank 1 and is added there; =: it replaces; "
        f"… 2: two messages in the step.{more}",
    )


def _clock(time_s: float) -> str:
    from meshwright.specs.quantities import format_seconds

    return format_seconds(time_s) if time_s > 0 else "0"


def _some(cells: list[str]) -> str:
    return cells[0] if len(cells) == 1 else f"{cells[0]} … {len(cells)}"


def print_sweep(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """The table that nccl-tests would print, predicted."""
    from meshwright.cli.output import print_table
    from meshwright.specs.quantities import format_bytes, format_seconds

    print_table(
        title,
        ("size", "time", "size / time", "bus bandwidth", "priced as", "NCCL would choose"),
        [
            (format_bytes(row["size_bytes"]), format_seconds(row["time_s"]),
             f"{row['algbw_bytes_s'] / 1e9:.2f} GB/s", f"{row['busbw_bytes_s'] / 1e9:.2f} GB/s",
             row["priced_as"], row["nccl_choice"] or "–")
            for row in rows
        ],
        right=(0, 1, 2, 3),
    )  # fmt: skip
