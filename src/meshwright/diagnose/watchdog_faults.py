"""What a text says outright: culprits that a dump names, collectives that differ."""

from __future__ import annotations

from meshwright.diagnose.records import Finding, of
from meshwright.diagnose.text_values import count
from meshwright.diagnose.watchdog_lines import Reading, said
from meshwright.engine.watch.flightlog import ranks_text

BUCKET_ELEMENTS = 1 << 16
"""A flat tensor of so many elements is no batch's."""


def culprits(reading: Reading) -> list[Finding]:
    """Ranks that a flight recorder's analysis names in the log."""
    if not reading.culprits:
        return []
    ranks = tuple(sorted(reading.culprits))
    kind, expected, found, _, _ = reading.culprits[ranks[0]]
    what = f": {found} where the others have {expected}" if expected else ""
    return [
        of("mismatched-collective",
           f"{ranks_text(ranks).capitalize()} left step with the others: they are in another operation{what} "
           f"({kind.lower().replace('_', ' ')})",
           "find where these ranks take another branch than the rest (data-dependent shapes, a "
           "condition on the rank, an uneven last batch): log the shape before that collective on "
           "them and on a healthy rank",
           confidence=0.85, ranks=ranks, where="process group of the dump",
           evidence=said(reading, *((n, t, r) for r, (_, _, _, n, t) in reading.culprits.items()))[:4])
    ]  # fmt: skip


def _why_shapes_differ(op: str, shapes: dict[int, str]) -> tuple[str, str]:
    """What lets the ranks' tensors differ, as far as their shapes tell, and what to do about it."""
    dimensions = {rank: [one.strip() for one in shape.split(",")] for rank, shape in shapes.items()}
    batch = (
        all(shapes.values())
        and len({one[0] for one in dimensions.values()}) > 1
        and len({tuple(one[1:]) for one in dimensions.values()}) == 1
    )
    flat = max((len(one) for one in dimensions.values()), default=0) == 1
    sizes_of = [count(one[0]) or 0 for one in dimensions.values()]
    if flat and "reduce" in op and min(sizes_of, default=0) >= BUCKET_ELEMENTS:
        why = ": flat buckets of gradients, so the ranks have gradients of different parameters"
        remedy = (
            "make every rank use the same parameters in every step: a branch that depends on the batch (no image, an "
            "expert without tokens, a task) has to run everywhere, with an input of zeros times zero where it has none; or "
            "find_unused_parameters=True; or mix the batches so that every rank has every kind"
        )
    elif batch:
        why = ": the batches are uneven"
        remedy = (
            "give every rank the same number of samples: drop_last=True, a collate function that replaces "
            "missing samples instead of dropping them, complete data on every rank; or pad before the "
            f"{op} and mask after it"
        )
    else:
        why, remedy = "", "make the shapes agree before the collective: log them on both ranks"
    return why, remedy


def fingerprints(reading: Reading) -> list[Finding]:
    """What the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL says that ranks call: other operations, places or shapes."""
    prints = reading.fingerprints
    if not prints:
        return _mismatch(reading)
    ranks = tuple(sorted(prints))
    ops = {one.op for one in prints.values() if one.op}
    shapes = {rank: one.shape for rank, one in prints.items()}
    evidence = said(reading, *((one.line, one.text, r) for r, one in prints.items()))[:4]
    if len(ops) > 1:
        named = ", ".join(f"rank {r} {prints[r].op.lower()}" for r in ranks[:4])
        return [
            of("mismatched-collective", f"Ranks call different collectives at the same place: {named}",
               "make all ranks take the same branch: a collective stands under a condition that "
               "differs between ranks", confidence=0.9, ranks=ranks, where=named, evidence=evidence)
        ]  # fmt: skip
    places = {rank: one.seq for rank, one in prints.items() if one.seq is not None}
    if len(set(places.values())) > 1 and len(set(shapes.values())) == 1:
        named = ", ".join(f"rank {rank} at number {places[rank]}" for rank in sorted(places)[:4])
        return [
            of("mismatched-collective", f"Ranks are at different places of their group's sequence of collectives: {named}",
               "find what one of them calls and the other does not before that number (a condition on the rank, a "
               "warm-up or capture that only some ranks run): all ranks of a group issue the same collectives in the same "
               "order", confidence=0.8, ranks=ranks, where=named, evidence=evidence)
        ]  # fmt: skip
    if len(prints) < 2 or not ops:
        return _mismatch(reading)
    op = next(iter(ops)).lower()
    listed = ", ".join(f"rank {rank} [{shapes[rank]}]" for rank in ranks[:4])
    if len(set(shapes.values())) == 1:
        return [
            of("mismatched-collective", f"{ranks_text(ranks).capitalize()} call the same {op} of the same shape, yet differently: "
               "in type, device or what the message lists behind it",
               "compare the two descriptions in the message (types, devices); cast before the collective", confidence=0.75,
               ranks=ranks, where=op, evidence=evidence)
        ]  # fmt: skip
    why, remedy = _why_shapes_differ(op, shapes)
    return [
        of("mismatched-collective", f"The same {op} has different shapes on different ranks: {listed}{why}",
           remedy, confidence=0.9, ranks=ranks, where=f"{op} of {listed}", evidence=evidence)
    ]  # fmt: skip


def _mismatch(reading: Reading) -> list[Finding]:
    """The bare word that ranks call different things."""
    if reading.mismatch is None:
        return []
    return [
        of("mismatched-collective", "Ranks call different collectives, or the same with different shapes; the text does "
           "not tell which", "read the whole message (TORCH_DISTRIBUTED_DEBUG=DETAIL names two ranks, operations and "
           "shapes); then find the branch or the uneven batch by which they differ", confidence=0.75, where="collective",
           evidence=said(reading, reading.mismatch))
    ]  # fmt: skip


def sizes(reading: Reading) -> list[Finding]:
    """gloo's own word that a peer sent another size than was expected."""
    if reading.sizes is None:
        return []
    return [
        of("mismatched-collective", "A rank received another size than it expected: ranks call the same collective with "
           "different shapes, or different collectives", "run with TORCH_DISTRIBUTED_DEBUG=DETAIL, which names both ranks "
           "and shapes; pad or drop the uneven last batch", confidence=0.8, where="collective",
           evidence=said(reading, reading.sizes))
    ]  # fmt: skip
