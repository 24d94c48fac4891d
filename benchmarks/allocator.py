"""What torch's caching allocator reserves beyond need, simulated: sequences of one length and of many.

    python benchmarks/allocator.py

A step of a checkpointed transformers model with an eager loss asks for the tensors that
costs/transformers_layer.py and the loss count, in their order. The allocator is the large pool of torch's
c10/cuda/CUDACachingAllocator.cpp: the smallest free block that is large enough, split where more than 1 MiB
is left, joined with free neighbours of its own segment only. Printed: reserved over the most that was ever
allocated, less one. `costs/data/memory.toml` has two such shares: `eager_cached` (one length) is fitted to
measured rows, which the simulation of one length confirms, and `varying_cached` (many) is the mean of the
second column, lengths as instruction data has them (log-normal, median 600 tokens), up to two longest.
"""

import math
import random
from collections.abc import Sequence

MIB = 2**20
MODELS = {  # layers, width, FFN width, vocabulary
    "Qwen 1.8B": (24, 2048, 5504, 151936), "Qwen 7B": (32, 4096, 11008, 151936),
    "Qwen 14B": (40, 5120, 13696, 151936), "Yi 6B": (32, 4096, 11008, 64000),
    "Llama 2 7B": (32, 4096, 11008, 32000),
}  # fmt: skip
LONGEST = (2048, 8192)
MEDIAN, SIGMA, SAMPLES = 600.0, 0.9, 300


class Block:
    """A piece of a segment, with its neighbours there."""

    def __init__(self, size: int) -> None:
        self.size, self.used = size, False
        self.before: Block | None = None
        self.after: Block | None = None


class Allocator:
    """The large pool: bytes reserved, allocated and the most that was allocated."""

    def __init__(self) -> None:
        self.free: list[Block] = []
        self.reserved = self.allocated = self.most = 0

    def take(self, wanted: float) -> Block:
        size = -(-int(wanted) // 512) * 512
        fitting = [block for block in self.free if block.size >= size]
        if fitting:
            block = min(fitting, key=lambda one: one.size)
            self.free.remove(block)
        else:
            block = Block(20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB)
            self.reserved += block.size
        if block.size - size > MIB:
            rest = Block(block.size - size)
            rest.before, rest.after = block, block.after
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, size
            self.free.append(rest)
        block.used = True
        self.allocated += block.size
        self.most = max(self.most, self.allocated)
        return block

    def give(self, *blocks: Block) -> None:
        for block in blocks:
            self.allocated -= block.size
            block.used = False
            first, second = block.before, block.after
            if first is not None and not first.used:
                self.free.remove(first)
                block = self._join(first, block)
            if second is not None and not second.used:
                self.free.remove(second)
                block = self._join(block, second)
            self.free.append(block)

    @staticmethod
    def _join(first: Block, second: Block) -> Block:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        return first


def step(pool: Allocator, tokens: int, layers: int, width: int, ffn: int, vocab: int) -> None:
    """One micro-batch: forward with a boundary a layer, the loss, every layer again and backward."""

    def each(*bytes_per_token: float) -> list[Block]:
        return [pool.take(tokens * one) for one in bytes_per_token]

    boundaries = []
    for _ in range(layers):
        boundaries += each(2 * width)
        pool.give(*each(4 * width, 4 * width, 2 * width, 2 * width))
        pool.give(*each(2 * ffn, 2 * ffn, 2 * ffn))
    (logits,) = each(2 * vocab)
    (wide,) = each(4 * vocab)
    pool.give(logits)
    (softmax,) = each(4 * vocab)
    pool.give(wide)
    arriving, leaving = each(4 * vocab, 4 * vocab)
    pool.give(arriving, softmax)
    (half,) = each(2 * vocab)
    pool.give(leaving)
    (gradient,) = each(2 * width)
    pool.give(half)
    for boundary in reversed(boundaries):
        kept = each(*(4 * width, 4 * width), *[2 * width] * 5, *[2 * ffn] * 3)
        inward = each(2 * ffn, 2 * ffn)
        (next_gradient,) = each(2 * width)
        pool.give(*kept, *inward, gradient, boundary)
        gradient = next_gradient
    pool.give(gradient)


def share(lengths: Sequence[int], shape: tuple[int, int, int, int]) -> float:
    """Reserved over the most allocated, less one, after a step of each length."""
    pool = Allocator()
    for tokens in lengths:
        step(pool, tokens, *shape)
    return pool.reserved / pool.most - 1


def lengths_of_samples(longest: int, seed: int) -> list[int]:
    """Lengths as instruction data has them, cut at the longest, which comes last."""
    draw = random.Random(seed)
    drawn = [round(draw.lognormvariate(math.log(MEDIAN), SIGMA)) for _ in range(SAMPLES)]
    return [min(max(one, 16), longest) for one in drawn] + [longest]


def main() -> None:
    print("model, longest     one length   many lengths")
    found = []
    for name, shape in MODELS.items():
        for longest in LONGEST:
            many = [share(lengths_of_samples(longest, seed), shape) for seed in range(3)]
            found.append(sum(many) / len(many))
            print(f"{name:11} {longest:5} {share([longest] * 20, shape):12.2f} {found[-1]:14.2f}")
    print(f"mean {sum(found) / len(found):38.2f}")


if __name__ == "__main__":
    main()
