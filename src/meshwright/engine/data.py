"""Training batches as a pure function of (seed, step): no loader state, the same on every layout.

A text file is read as bytes through a memory map, so its size does not matter. Each epoch visits
every window of the text once, in an order drawn from (seed, epoch).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from meshwright.specs.errors import SpecError

BYTE_VOCABULARY = 256
DEMO = Path(__file__).parent / "texts" / "demo.txt"
"""A few public-domain texts, for demonstrations: `--data demo`."""


class ByteCorpus:
    """One text file, or all files of a folder in name order, one token per byte.

    Raises:
        SpecError: nothing readable there, or fewer bytes than one window needs.
    """

    def __init__(self, path: str | Path, seq_len: int, seed: int = 0) -> None:
        self.path = DEMO if str(path) == "demo" else Path(path)
        self.seq_len, self.seed = seq_len, seed
        self._parts = [_open(file) for file in _files(self.path)]
        self._ends = np.cumsum([len(part) for part in self._parts])
        # A window is S inputs and the S next bytes; the last byte is only ever a target.
        self.windows = (int(self._ends[-1]) - 1) // seq_len if self._parts else 0
        if self.windows < 1:
            raise SpecError("data", str(path), f"at least {seq_len + 1} bytes of text are needed")
        self._order: tuple[int, Any] = (-1, None)

    @property
    def tokens(self) -> int:
        """Tokens in one epoch."""
        return self.windows * self.seq_len

    def batch(self, step: int, global_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets `[global batch, S]` of optimizer step `step` (from 0)."""
        first = step * global_batch
        rows = np.stack([self._window(first + row) for row in range(global_batch)])
        whole = torch.from_numpy(rows.astype(np.int64))
        return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()

    def _window(self, index: int) -> Any:
        epoch, at = divmod(index, self.windows)
        if self._order[0] != epoch:
            generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            self._order = (epoch, generator.permutation(self.windows))
        start = int(self._order[1][at]) * self.seq_len
        return self._bytes(start, start + self.seq_len + 1)

    def _bytes(self, start: int, stop: int) -> Any:
        pieces = []
        for part, end in zip(self._parts, self._ends, strict=True):
            base = int(end) - len(part)
            if start < end and stop > base:
                pieces.append(part[max(start - base, 0) : stop - base])
        return np.concatenate(pieces)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return [path]


def _open(file: Path) -> Any:
    try:
        if file.stat().st_size == 0:
            return np.zeros(0, dtype=np.uint8)
        return np.memmap(file, dtype=np.uint8, mode="r")
    except OSError as error:
        raise SpecError("data", str(file), f"cannot be read ({error.strerror})") from None
