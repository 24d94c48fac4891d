"""What a run needs of the machine, checked before a process starts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from meshwright.specs.errors import SpecError
from meshwright.specs.quantities import format_bytes, format_count

if TYPE_CHECKING:
    from meshwright.engine.data import Data

RANK_BYTES = 40e6
"""Memory of its own that the smallest rank takes: measured as `Private_Dirty` of the toy model's
ranks after a step (Linux, torch 2.13); what ranks share with the fork server comes once."""
LEAST_WEIGHT_BYTES = 6
"""Of a weight in training, at the very least: itself and its gradient in 16 bits, two moments in 8."""
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


def check_weights(weights: int, field: str, way_out: str) -> None:
    """Refuse a model that this machine's memory cannot hold, however its ranks cut it.

    Args:
        weights: of the whole model.
        field: that names the model to the user.
        way_out: what to do instead.

    Raises:
        SpecError: every weight once, with the least that training keeps of it, is too much.
    """
    free = _available_bytes()
    needed = weights * LEAST_WEIGHT_BYTES
    if free is not None and needed > free:
        raise SpecError(
            field,
            f"{format_count(weights)} weights",
            f"take {format_bytes(needed)} at the very least, and this machine has "
            f"{format_bytes(free)} free; {way_out}",
        )


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
