"""Which keys a query may see, where that is less than all before it: one mask for every layer.

Masks are made once per micro-batch and window, as what is added to the scores (0 or -inf, in the
dtype of the scores' inputs), so that torch makes no copy of its own for each layer's backward; on a GPU
as tiles, for the kernel of `sparse`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from meshwright.engine.model.collectives import Axis
from meshwright.engine.model.sparse import BlockMask, block_mask

Masks = tuple[torch.Tensor | BlockMask, ...]
"""`[S, S]` or `[B, 1, S, S]`; under context parallelism one for each of this rank's two chunks of
the sequence, `[S/2, keys up to the chunk's end]`."""


def attention_masks(
    windows: Iterable[int],
    at: torch.Tensor,
    cp: Axis,
    starts: torch.Tensor | None,
    dtype: torch.dtype,
    tiles: bool = False,
) -> dict[int, Masks]:
    """The masks of every window in `windows`; none where attention is plainly causal.

    Args:
        windows: as `seen` takes them.
        at: positions `[S]` of this rank's tokens in the whole sequence.
        cp: the group that the sequence is split over, its keys and values all-gathered.
        starts: positions `[B, S]` at which the documents of this rank's tokens start.
        dtype: of queries and keys.
        tiles: as tiles of a mask, not as tensors.
    """
    masks: dict[int, Masks] = {}
    for window in set(windows):
        if cp.size > 1:
            chunk = at.shape[0] // 2
            # Causal: nothing after a chunk's last token is visible to it.
            ends = [(part + 1) * chunk for part in (cp.rank, 2 * cp.size - 1 - cp.rank)]
            begun = (None, None) if starts is None else starts.split(chunk, 1)
            parts = zip(at.split(chunk), ends, begun, strict=True)
        elif starts is not None or 0 < abs(window) < at.shape[0]:
            parts = zip([at], [at.shape[0]], [starts], strict=True)
        else:
            continue
        masks[window] = tuple(
            block_mask(queries, end, window, first)
            if tiles
            else added(seen(queries, torch.arange(end, device=at.device), window, first), dtype)
            for queries, end, first in parts
        )
    return masks


def seen(
    queries: torch.Tensor, keys: torch.Tensor, window: int, starts: torch.Tensor | None
) -> torch.Tensor:
    """True where a query may see a key: `[queries, keys]`, or `[B, 1, queries, keys]`.

    `window`: how many tokens back a token sees; 0: all; below 0: back to the start of its chunk of so
    many.
    """
    distance = queries[:, None] - keys[None, :]
    visible = distance >= 0
    if window > 0:
        visible = visible & (distance < window)
    elif window:
        visible = visible & (keys[None, :] >= (queries - queries % -window)[:, None])
    return visible if starts is None else (visible & (keys >= starts[..., None]))[:, None]


def added(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What hides from scores all that is not visible: 0 or -inf."""
    hidden = torch.full((), float("-inf"), dtype=dtype, device=visible.device)
    return torch.where(visible, torch.zeros((), dtype=dtype, device=visible.device), hidden)
