"""A linear sketch of a tensor that its shards can make apart and add up.

Every element of the *whole* tensor has a random sign and one of `BUCKETS` buckets, both drawn from
its row and column there; the sketch is the signed sum per bucket. So the sketches of the pieces of a
tensor, however it is cut, add up to the sketch of the whole, and the squared distance of two sketches
is an unbiased estimate of the squared distance of the tensors, off by sqrt(2 / BUCKETS) of it
(count sketch: Charikar, Chen, Farach-Colton 2002; over rows and columns: Pagh 2013, section 2).

A tensor of shape [..., C] is taken as a matrix of all leading dimensions against the last one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

BUCKETS = 64
"""Numbers in a sketch: the estimated distance is good to about nine percent of itself."""

_CHUNK_ELEMENTS = 1 << 21
"""Elements that are turned into fp64 at once: 16 MiB of scratch memory."""

_FEW_ROWS = 16
_COLUMNS = 0x5851F42D4C957F2D
"""Makes the draws of columns other ones than those of rows."""


@dataclass(frozen=True, slots=True)
class Part:
    """Where a local tensor lies in a whole one: a box of it, or a range of its flattened elements.

    `offsets` and `sizes` have one entry a dimension; `flat` is `(start, stop)` in row-major order and
    then `offsets` and `sizes` are empty.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    flat: tuple[int, int] | None = None

    @property
    def elements(self) -> int:
        """How many elements of the whole this part is."""
        if self.flat is not None:
            return self.flat[1] - self.flat[0]
        return math.prod(self.sizes)


def whole(shape: Sequence[int]) -> Part:
    """The part that is everything."""
    return Part(tuple(shape), (0,) * len(shape), tuple(shape))


def sketch(local: torch.Tensor, part: Part, seed: int) -> torch.Tensor:
    """`[BUCKETS + 1]` fp64 on the CPU: the sketch of `local` within its whole, and its sum of squares.

    All tensors of a run share one seed, so that copies under two names (tied weights, another
    framework's names) have one sketch.
    """
    total = torch.zeros(BUCKETS, dtype=torch.float64, device=local.device)
    squares = torch.zeros((), dtype=torch.float64, device=local.device)
    for matrix, rows, first_column in _matrices(local.detach(), part):
        columns = torch.arange(first_column, first_column + matrix.shape[1], device=local.device)
        column_draw = _draw(columns, seed ^ _COLUMNS)
        row_draw = _draw(rows, seed)
        add = _add_product if matrix.shape[0] >= _FEW_ROWS else _add_scattered
        squares += add(total, matrix, row_draw, column_draw)
    return torch.cat([total, squares[None]]).cpu()


Draw = tuple[torch.Tensor, torch.Tensor]
"""Bucket and sign of each row or column."""


def _add_product(total: torch.Tensor, matrix: torch.Tensor, rows: Draw, columns: Draw) -> Any:
    """Add a matrix by one product with `[C, BUCKETS]`, one sign a row: ten times the scatter's speed."""
    scatter = torch.zeros(
        (matrix.shape[1], BUCKETS), dtype=torch.float64, device=matrix.device
    ).scatter_(1, columns[0][:, None], columns[1][:, None])
    buckets = torch.arange(BUCKETS, device=matrix.device)
    squares = torch.zeros((), dtype=torch.float64, device=matrix.device)
    step = max(1, _CHUNK_ELEMENTS // max(1, matrix.shape[1]))
    for begin in range(0, matrix.shape[0], step):
        here = slice(begin, begin + step)
        values = matrix[here].to(torch.float64)
        squares += values.square().sum()
        by_column = (values @ scatter) * rows[1][here, None]
        turned = (rows[0][here, None] + buckets) % BUCKETS
        total.index_add_(0, turned.flatten(), by_column.flatten())
    return squares


def _add_scattered(total: torch.Tensor, matrix: torch.Tensor, rows: Draw, columns: Draw) -> Any:
    """Add a matrix of few rows, as a bias is, number by number."""
    squares = torch.zeros((), dtype=torch.float64, device=matrix.device)
    for row in range(matrix.shape[0]):
        values = matrix[row].to(torch.float64)
        squares += values.square().sum()
        bucket = (columns[0] + rows[0][row]) % BUCKETS
        total.index_add_(0, bucket, values * columns[1] * rows[1][row])
    return squares


def _draw(index: torch.Tensor, seed: int) -> Draw:
    """A bucket and a sign for each row or column number: splitmix64 (Steele 2014) of index and seed."""
    z = index.to(torch.int64) * _signed(0x9E3779B97F4A7C15) + _signed(seed)
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    z = z ^ _shift(z, 31)
    return z & (BUCKETS - 1), 1.0 - 2.0 * ((z >> 17) & 1).to(torch.float64)


def _shift(z: torch.Tensor, by: int) -> torch.Tensor:
    """Shift right without the sign."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    """The same 64 bits as a signed number; products wrap around as unsigned ones do."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _matrices(local: torch.Tensor, part: Part) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
    """The local tensor as matrices: `(values [R, C], row numbers [R], first column)` in the whole."""
    width = part.shape[-1] if part.shape else 1
    if part.flat is not None:
        return _range_matrices(local.reshape(-1), part.flat[0], width)
    if part.elements == 0:
        return []
    leading = torch.zeros(1, dtype=torch.int64, device=local.device)
    for size, offset, extent in zip(
        part.sizes[:-1], part.offsets[:-1], part.shape[:-1], strict=True
    ):
        here = torch.arange(offset, offset + size, device=local.device)
        leading = (leading[:, None] * extent + here).flatten()
    first = part.offsets[-1] if part.offsets else 0
    return [(local.reshape(len(leading), -1), leading, first)]


def _range_matrices(
    flat: torch.Tensor, start: int, width: int
) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
    """A range of row-major elements: the end of one row, whole rows, the beginning of another."""
    found = []
    done, length = 0, flat.numel()
    while done < length:
        row, column = divmod(start + done, width)
        rows = 1 if column else max(1, (length - done) // width)
        columns = min(width - column, length - done)
        count = rows * columns
        numbers = torch.arange(row, row + rows, device=flat.device)
        found.append((flat[done : done + count].reshape(rows, columns), numbers, column))
        done += count
    return found
