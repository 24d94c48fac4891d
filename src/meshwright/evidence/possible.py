"""What a row left open may only be assumed so that the run can fit its device: whoever printed a rate had a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.evidence.finetune_rows import COMPUTED
from meshwright.evidence.import_rows import Run
from meshwright.specs.errors import SpecError
from meshwright.specs.frameworks import framework as capabilities

Change = dict[str, object]
"""Fields of a layout and what they become."""


def other_readings(run: Run) -> Iterator[Run]:
    """Other runs that a row may mean, of less memory, the least surprising first; only what was assumed differs.

    A micro-batch that nobody printed may be smaller, states may be sharded, layers may be computed again.
    """
    layout = run.layout
    guessed = {one.split("=")[0] for one in run.assumed if "=" in one}
    smaller: Change = (
        {"micro_batch": 1} if "micro_batch" in guessed and layout.micro_batch > 1 else {}
    )
    again: Change = (
        {"recompute": "full"} if "recompute" in guessed and layout.recompute != "full" else {}
    )
    again |= {"recompute_modules": ()} if again else {}
    stages = capabilities(run.job.framework).zero if "zero" in guessed and layout.dp > 1 else ()
    sharded: list[Change] = [{"zero": stage} for stage in sorted(stages) if stage > layout.zero]
    # Whole replicas are sharded first, sharded ones computed again before they are sharded further.
    first = sharded if not layout.zero else []
    changes: list[Change] = [smaller, *first, *({**one, **smaller} for one in first)]
    changes += [again, {**smaller, **again}, *sharded]
    changes += [{**one, **smaller, **again} for one in sharded]
    tried: list[Change] = [{}]
    for change in changes:
        if change in tried:
            continue
        tried.append(change)
        told = ", ".join(f"{name}={value}" for name, value in change.items() if value != ())
        said = tuple(one for one in run.assumed if one.split("=")[0] not in change)
        try:
            other = layout.but(**change)
        except SpecError:
            continue
        yield replace(
            run, layout=other, assumed=(*said, f"{told} (what else would be assumed does not fit)")
        )


MOST_TOKENS_AT_ONCE = 2**16
"""Tokens of a device's batch up to which a run may as well have taken its share of a step at once."""
SLOWER_NETWORK = 4.0
"""Times as slow as a device's preset that the network of a row may be that prints none: hosts of its kind are sold with one card
as with eight; and cards on PCIe that reach each other only through the host's memory (NCCL's SHM transport, as all GeForce) or behind
a switch."""


def as_well(run: Run) -> Iterator[Run]:
    """What a row may as well have meant by blanks that decide its time or memory, each for itself."""
    guessed = {one.split("=")[0] for one in run.assumed if "=" in one}
    layout = run.layout
    if "network" in guessed:
        *inner, last = run.cluster.levels
        slower = last.but(bandwidth_bytes_s=last.bandwidth_bytes_s / SLOWER_NETWORK)
        levels = [level.model_dump() for level in (*inner, slower)]
        yield replace(run, cluster=run.cluster.but(levels=levels))
    if "recompute" in guessed:
        other = "none" if layout.recompute == "full" else "full"
        yield replace(run, layout=layout.but(recompute=other, recompute_modules=()))
    if "micro_batch" in guessed and layout.micro_batch > 1:
        yield replace(run, layout=layout.but(micro_batch=1))
    share = run.job.global_batch // layout.dp
    if (
        "micro_batch" in guessed
        and layout.pp == 1
        and layout.micro_batch < share <= MOST_TOKENS_AT_ONCE // run.job.seq_len
    ):
        yield replace(run, layout=layout.but(micro_batch=share))  # no accumulation at all
    if COMPUTED in run.assumed:
        full = run.job.precision.but(compute="fp32")
        options = {**run.job.framework_options, "tf32": False}
        yield replace(run, job=run.job.but(precision=full.model_dump(), framework_options=options))
    if "pcie" in guessed:
        first, *outer = run.cluster.levels
        slower = first.but(bandwidth_bytes_s=first.bandwidth_bytes_s / SLOWER_NETWORK)
        levels = [level.model_dump() for level in (slower, *outer)]
        yield replace(run, cluster=run.cluster.but(levels=levels))
