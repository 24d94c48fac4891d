"""Lengths of examples as a distribution: what packing fills, what padding wastes, whom ranks wait for.

Fine-tuning data has examples of a hundred tokens beside some of ten thousand. Packed, a sequence holds
as many as fit (first-fit decreasing over a window of examples, as TRL's and axolotl's packers do); padded,
every example of a micro-batch is as long as its longest; and a step lasts as long as its slowest rank.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace

WINDOW = 1000
"""Examples that a packer looks at together: TRL packs batches of 1000 (datasets' map)."""
DRAWS = 400
"""Micro-batches drawn to average what padding wastes and whom ranks wait for."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a distribution makes of sequences of some length; shares of the tokens computed."""

    packed_fill: float
    """Share of packed sequences that holds examples; the rest is padding."""
    padded_fill: float
    """The same without packing, each micro-batch padded to its longest example."""
    cut: float
    """Share of all examples' tokens that is cut off for being beyond the sequence length."""
    examples_per_sequence: float
    slowest_rank: float
    """Tokens of the rank with the longest padded micro-batch over the mean, unpacked."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of examples in tokens, each with its weight."""

    tokens: tuple[int, ...]
    estimated: bool = False
    """Whether they were counted in bytes of text."""
    examples: int = 0
    """Examples that were read; 0: not counted."""
    empty: int = 0
    """Examples without any token, which nobody trains on."""
    part: bool = False
    """Whether the file has more examples than were read."""

    @property
    def mean(self) -> float:
        """Mean tokens of an example."""
        return sum(self.tokens) / len(self.tokens)

    def within(self, seq_len: int) -> Lengths:
        """Without the examples that are longer; as they are where all would go."""
        kept = tuple(tokens for tokens in self.tokens if tokens <= seq_len)
        return replace(self, tokens=kept or self.tokens)

    def use(self, seq_len: int, micro_batch: int = 1, ranks: int = 1) -> Use:
        """What sequences of a length hold, packed and padded, for so many ranks a step."""
        draw = random.Random(0)
        cut = [min(tokens, seq_len) for tokens in self.tokens]
        lost = 1.0 - sum(cut) / sum(self.tokens)
        fills, waits = [], []
        for _ in range(DRAWS):
            longest = [max(draw.choices(cut, k=micro_batch)) for _ in range(min(ranks, 64))]
            waits.append(max(longest) * len(longest) / sum(longest))
        for _ in range(DRAWS):
            some = draw.choices(cut, k=micro_batch)
            fills.append((sum(some), max(some) * micro_batch))
        sequences = packed(draw.choices(cut, k=WINDOW), seq_len)
        return Use(
            packed_fill=sum(map(sum, sequences)) / (len(sequences) * seq_len),
            padded_fill=sum(held for held, _ in fills) / sum(whole for _, whole in fills),
            cut=lost,
            examples_per_sequence=WINDOW / len(sequences),
            slowest_rank=sum(waits) / len(waits),
        )


def packed(lengths: Sequence[int], seq_len: int) -> list[list[int]]:
    """Examples in as few sequences as best-fit decreasing finds; none is split."""
    room: list[tuple[int, int]] = []  # room left, sequence; ascending
    found: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        place = bisect_left(room, (length, -1))
        if place == len(room):
            found.append([length])
            insort(room, (seq_len - length, len(found) - 1))
            continue
        left, sequence = room.pop(place)
        found[sequence].append(length)
        insort(room, (left - length, sequence))
    return found
