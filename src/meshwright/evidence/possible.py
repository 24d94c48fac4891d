"""What a row left open may only be assumed so that the run can fit its device: whoever printed a rate had a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.evidence.import_rows import Run
from meshwright.specs.errors import SpecError
from meshwright.specs.frameworks import framework as capabilities

Change = dict[str, object]
"""Fields of a layout and what they become."""


def other_readings(run: Run) -> Iterator[Run]:
    """Other runs that a row may mean, of less memory, the least surprising first; only what was assumed differs.

    A micro-batch that nobody printed may be smaller, layers may be computed again, states may be sharded.
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
    changes: list[Change] = [smaller, again, {**smaller, **again}]
    changes += [
        {**one, **other} for one in sharded for other in ({}, smaller, {**smaller, **again})
    ]
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
