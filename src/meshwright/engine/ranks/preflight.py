"""What a run needs of the machine, checked before a process starts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from meshwright.specs.errors import SpecError
from meshwright.specs.quantities import counted, format_bytes, format_count

if TYPE_CHECKING:
    from meshwright.engine.data import Data
    from meshwright.specs.job import Job
    from meshwright.specs.layout import Layout
    from meshwright.specs.model import Model

RANK_BYTES = 40e6
"""Memory of its own that the smallest rank takes: measured as `Private_Dirty` of the toy model's
ranks after a step (Linux, torch 2.13); what ranks share with the fork server comes once."""
SCANNED_TOKENS = 100_000_000
"""Tokens of a data set that are looked through before training; the others as they are used."""


def check_memory(ranks: int) -> None:
    """Refuse more processes than this machine can hold.

    Raises:
        SpecError: not even the smallest ranks would fit in the memory that is free.
    """
    free = _available_bytes()
    if free is not None and ranks * RANK_BYTES > free:
        raise SpecError(
            "ranks",
            ranks,
            f"this machine has memory for {int(free / RANK_BYTES)} at most "
            f"({format_bytes(free)} free); use a smaller layout, or torchrun on more machines",
        )


def check_states(
    weights: int, model: Model, job: Job, layout: Layout, *, field: str, way_out: str
) -> None:
    """Refuse a model whose states, over all ranks, this machine's memory cannot hold.

    Its own processes share one memory, so that a plan for a cluster would take all of it before the
    first step; where each has a GPU, nothing is refused. A mixture is counted as if every expert were held once.

    Args:
        weights: of the whole model.
        model: tells whether it has experts.
        job: whose precision and optimizer give the bytes of a weight.
        layout: of the ranks.
        field: that names the model to the user.
        way_out: what to do instead.

    Raises:
        SpecError: naming what is needed and what is free.
    """
    # Torch is imported only once its log level is set, after this module.
    from meshwright.engine.parallel.backend import backend_for

    if backend_for(layout.world) != "gloo":
        return
    free = _available_bytes()
    needed = least_state_bytes(weights, job, layout, 1 if model.experts else layout.dp * layout.cp)
    if free is not None and needed > free:
        raise SpecError(
            field,
            f"{format_count(weights)} weights",
            f"take {format_bytes(needed)} on {counted(layout.world, 'rank')} at the very least, and "
            f"this machine has {format_bytes(free)} free; {way_out}",
        )


def least_state_bytes(weights: int, job: Job, layout: Layout, copies: int) -> float:
    """Weights, gradients and optimizer states of all ranks together, in bytes.

    ZeRO shards them in this order, from the last (Rajbhandari et al. 2020, arXiv 1910.02054 §5);
    `copies`: ranks that hold the same weight without it.
    """

    def held(bytes_each: float, sharded_from: int) -> float:
        shards = layout.shard_degree if layout.zero >= sharded_from else 1
        return bytes_each * max(copies / shards, 1.0)

    precision = job.precision
    each = (
        held(precision.parameter_bytes, 3)
        + held(precision.gradient_bytes, 2)
        + held(precision.master_bytes + job.optimizer.state_bytes, 1)
    )
    return each * weights


def _available_bytes() -> float | None:
    """Memory that new processes can have, where the system tells (Linux)."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = {line.split(":")[0]: line.split()[1] for line in lines}
    return float(found["MemAvailable"]) * 1024 if "MemAvailable" in found else None


def check_disk(folder: Path, weights: int, value_bytes: int, checkpoints: int) -> None:
    """Refuse a disk that cannot hold the checkpoints that are kept, and the next being written.

    Args:
        folder: where the checkpoints go.
        weights: of the whole model.
        value_bytes: saved per weight: itself and the optimizer's states.
        checkpoints: that are on the disk at once.

    Raises:
        SpecError: naming what is free and what is needed.
    """
    needed = checkpoints * weights * value_bytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SpecError(
            "out",
            str(folder),
            f"has {format_bytes(free)} free and {checkpoints} checkpoints take "
            f"{format_bytes(needed)}; free some, choose another disk, or use a smaller --keep",
        )


def check_fresh(folder: Path) -> None:
    """Refuse to mix a new run's checkpoints with those of an earlier one.

    Raises:
        SpecError: the folder holds checkpoints.
    """
    if any(folder.glob("step-*")):
        raise SpecError(
            "out",
            str(folder),
            f"holds the checkpoints of an earlier run; go on with --resume {folder}, or choose "
            "another folder",
        )


def check_vocabulary(data: Data, vocab: int) -> None:
    """Refuse tokens beyond the vocabulary, as far as `SCANNED_TOKENS` reach.

    Raises:
        SpecError: naming the first token that is too large.
    """
    for corpus in data.sources:
        end = min(corpus.tokens, SCANNED_TOKENS)
        for start in range(0, end, 1 << 22):
            piece = corpus.span(start, min(start + (1 << 22), end))
            wrong = np.flatnonzero(piece >= vocab)
            if len(wrong):
                raise SpecError(
                    "vocab",
                    vocab,
                    f"token {start + int(wrong[0])} of the data is {int(piece[wrong[0]])}; the "
                    "model's vocabulary must be the tokenizer's",
                )
