"""From what the artefacts told to one answer: causes ranked, one sentence, what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwright.diagnose.records import (
    FOLLOWS_A_DEATH,
    KILLED,
    SMALL_GAIN,
    STOPPED,
    Cause,
    Diagnosis,
    Finding,
    Part,
)  # fmt: skip


def conclude(parts: Sequence[Part]) -> Diagnosis:
    """Join what the artefacts told."""
    findings = ranked(_merged(finding for part in parts for finding in part.findings))
    findings = _without_followers(findings)
    if any(f.cause.kind != "unknown" and f.cause.confidence >= 0.5 for f in findings):
        # Where one artefact knows, another's "the text does not tell" is no answer.
        findings = [f for f in findings if f.cause.kind != "unknown" or f.cause.confidence >= 0.5]
    figures: dict[str, float | int | str | None] = {}
    for part in parts:
        for name, value in part.figures.items():
            figures.setdefault(name, value)
    faults = [f for f in findings if not f.layout_cost and not _small(f.cause)]
    known = [f for f in faults if f.cause.kind != "unknown"]
    healthy = not faults and any(part.healthy or part.ended for part in parts)
    return Diagnosis(
        verdict=_sentence(known or faults, findings, parts, healthy),
        healthy=healthy,
        causes=tuple(f.cause for f in findings),
        figures=figures,
        missing=tuple(dict.fromkeys(line for part in parts for line in part.missing)),
    )


def _without_followers(findings: list[Finding]) -> list[Finding]:
    """Where a launcher says that a rank was killed, that the rank is absent from a collective is no cause of its own."""
    killed = {rank for f in findings if f.cause.where == KILLED for rank in f.cause.ranks}
    return [
        f for f in findings
        if f.cause.where == KILLED or f.cause.kind not in FOLLOWS_A_DEATH or not f.cause.ranks
        or not killed.issuperset(f.cause.ranks)
    ]  # fmt: skip


def _small(cause: Cause) -> bool:
    if cause.kind in STOPPED or cause.gain_fraction is None:
        return False
    return cause.gain_fraction < SMALL_GAIN


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """What stopped the run first, then by gain, then by confidence; `unknown` last."""

    def order(finding: Finding) -> tuple[int, float, float]:
        cause = finding.cause
        group = 2 if cause.kind == "unknown" else 0 if cause.kind in STOPPED else 1
        gain = cause.gain_fraction if cause.gain_fraction is not None else 0.0
        if group == 2:  # of what has no name, what is surer says more than what would gain more
            return group, -cause.confidence, -gain
        return group, -gain if group else 0.0, -cause.confidence

    return sorted(findings, key=order)


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for a kind, ranks and place; evidence of all of them."""
    found: dict[tuple[str, tuple[int, ...], str], Finding] = {}
    for finding in findings:
        cause = finding.cause
        key = (cause.kind, cause.ranks, cause.where)
        held = found.get(key)
        if held is None:
            found[key] = finding
            continue
        best = finding if cause.confidence > held.cause.confidence else held
        evidence = tuple(dict.fromkeys((*held.cause.evidence, *cause.evidence)))[:8]
        found[key] = Finding(
            cause=Cause(
                kind=best.cause.kind, ranks=best.cause.ranks, where=best.cause.where,
                share_of_step=best.cause.share_of_step, gain_fraction=best.cause.gain_fraction,
                confidence=best.cause.confidence, remedy=best.cause.remedy, evidence=evidence,
            ),
            sentence=best.sentence, layout_cost=best.layout_cost,
        )  # fmt: skip
    return list(found.values())


def _sentence(
    faults: list[Finding], findings: list[Finding], parts: Sequence[Part], healthy: bool
) -> str:
    ended = [part.ended for part in parts if part.ended]
    if faults:
        first = faults[0]
        text = first.sentence
        others = dict.fromkeys(f.cause.kind for f in faults[1:4])
        if said := [kind for kind in others if kind not in ("unknown", first.cause.kind)]:
            text += f" (also: {', '.join(said)})"
        return "; ".join([text, *ended[:1]])
    fine = [*ended, *(line for part in parts for line in part.healthy)]
    if healthy:
        costs = [f.sentence for f in findings if f.layout_cost]
        untold = [part.untold for part in parts]
        text = untold[0] if all(untold) else "Nothing is wrong"
        if fine:
            text += ": " + "; ".join(fine[:3])
        if costs:
            text += f". What the layout costs: {costs[0]}"
        return text
    return "The artefacts do not tell: nothing in them says how the run did or why it stopped"


def confidence_word(confidence: float) -> str:
    """A word for a confidence from 0 to 1."""
    for limit, word in ((0.9, "certain"), (0.7, "likely"), (0.5, "probable")):
        if confidence >= limit:
            return word
    return "a guess"
