"""Error texts whose cause is known by their wording.

These are the errors that stop a start or a step and need no figures to be understood; the tables are
in the modules `known_*.py`, one entry per fault. What needs figures (memory) or several
lines (time-outs) has a module of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshwright.diagnose.known_ascend import ASCEND
from meshwright.diagnose.known_compilers import COMPILERS
from meshwright.diagnose.known_cuda import CUDA
from meshwright.diagnose.known_data import DATA
from meshwright.diagnose.known_devices import DEVICES
from meshwright.diagnose.known_engines import ENGINES
from meshwright.diagnose.known_entry import Known
from meshwright.diagnose.known_fabric import FABRIC
from meshwright.diagnose.known_hosts import HOSTS
from meshwright.diagnose.known_libraries import LIBRARIES
from meshwright.diagnose.known_nccl import HARMLESS, NCCL, NO_ADAPTER, OTHER
from meshwright.diagnose.known_program import PROGRAM
from meshwright.diagnose.known_ray import RAY
from meshwright.diagnose.known_start import START
from meshwright.diagnose.known_words import Index
from meshwright.diagnose.known_wrapping import WRAPPING
from meshwright.diagnose.records import Evidence, Finding, of
from meshwright.diagnose.text_values import rank_number, rank_of

TABLE = (
    *RAY, *FABRIC, *ASCEND, *COMPILERS, *ENGINES, *DATA, *START, *NCCL, *CUDA, *WRAPPING, *HOSTS, *PROGRAM, *LIBRARIES, *DEVICES, *OTHER,
)  # fmt: skip

_INDEX = Index(known.pattern for known in TABLE)


@dataclass(slots=True)
class Hit:
    """One entry of the table found in a text."""

    known: Known
    line: int
    text: str
    sentence: str
    ranks: set[int]


def note(hits: list[Hit], number: int, line: str) -> None:
    """Add to `hits` what a line is known for; one hit per entry, ranks gathered."""
    # NCCL tells at this level what it tries, also what it goes on without.
    if "NCCL INFO" in line and not NO_ADAPTER.search(line):
        return
    if "NCCL WARN" in line and HARMLESS.search(line):
        return
    for at in _INDEX.candidates(line):
        known = TABLE[at]
        match = known.pattern.search(line)
        if match is None:
            continue
        named = match.groupdict()
        said = [rank_number(named.get("one")), rank_number(named.get("two")), rank_of(line)]
        ranks = {rank for rank in said if rank is not None}
        for hit in hits:
            if hit.known is known:
                hit.ranks |= ranks
                return
        hits.append(Hit(known, number, line.strip()[:400], _said(known, named), ranks))
        return


def _said(known: Known, named: dict[str, str | None]) -> str:
    """The entry's sentence with what the line names; what it leaves out is said to be unnamed, once."""
    if not any(named.values()):
        return re.sub(r" \([^()]*\{[^()]*\)", "", known.sentence).format(
            **dict.fromkeys(named, "unnamed")
        )
    optional = {"why": "", "reason": "", "peer": ""} if "reason" in named else {}
    optional |= {"what": "", "words": ""} if "words" in named else {}
    return known.sentence.format(
        **{key: value or optional.get(key, "unnamed") for key, value in named.items()}
    ).replace("(: ", "(")


def findings(hits: list[Hit], name: str) -> list[Finding]:
    """Return what the hits mean, the first error first; shadows only where they are alone."""
    first = [hit for hit in hits if not hit.known.shadow] or hits
    first = [
        hit
        for hit in first
        if not any(one is not hit and explains(one, hit.sentence) for one in first)
    ]
    return [
        of(
            hit.known.kind, hit.sentence, hit.known.remedy, confidence=hit.known.confidence,
            ranks=tuple(sorted(hit.ranks)), where=hit.known.where,
            evidence=(Evidence(file=name, line=hit.line, text=hit.text),),
        )
        for hit in first[:3]
    ]  # fmt: skip


def explains(hit: Hit, text: str) -> bool:
    """Whether a fault is behind what another finding says."""
    return hit.known.explains is not None and hit.known.explains.search(text) is not None
