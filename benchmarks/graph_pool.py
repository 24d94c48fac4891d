"""What a CUDA graph of a whole training iteration reserves beside eager steps, simulated.

    python benchmarks/graph_pool.py

The allocator of allocator.py is given Megatron-Core's order of things (core/full_cuda_graph.py): weights, gradients and
fp32 weights; an eager step; Adam's moments, which come with the first update and take free blocks of that step; two
eager steps more; then torch returns the segments that are free as a whole (torch/cuda/graphs.py, empty_cache) and the
next step is captured into a pool that begins empty. Printed: reserved by eager steps and after the capture, and the
difference over what comes and goes in a step.
"""

from dataclasses import dataclass, replace

from allocator import Allocator, Block

GIB = 2**30


@dataclass(frozen=True)
class Run:
    """One rank's share of a model (layers, width, FFN, width of keys, vocabulary) and of a step."""

    name: str
    layers: int
    hidden: int
    ffn: int
    keys: int = 1024
    vocab: int = 128256
    tokens: int = 8192
    tp: int = 1
    dp: int = 8
    flight: int = 1
    micro_batches: int = 4
    again: bool = False

    def kept(self) -> list[float]:
        """Elements per token that a layer keeps, but its input."""
        wide = [
            self.hidden,
            self.hidden + 2 * self.keys,
            *[self.hidden] * 4,
            2 * self.ffn,
            self.ffn,
        ]
        return [one / self.tp for one in wide]


LLAMA_8B = Run("8B", 32, 4096, 14336)
LLAMA_70B = Run("70B, a stage of four", 20, 8192, 28672, tp=4, dp=1, flight=4, micro_batches=8)
RUNS = (
    LLAMA_8B, replace(LLAMA_8B, tp=2, dp=4), replace(LLAMA_8B, again=True),
    replace(LLAMA_8B, tp=2, dp=4, flight=2, micro_batches=8), LLAMA_70B, replace(LLAMA_70B, tp=8),
    replace(LLAMA_70B, dp=8, again=True), Run("3B", 28, 3072, 8192, tokens=4096),
    Run("3B", 28, 3072, 8192, tokens=16384),
)  # fmt: skip


def forward(pool: Allocator, run: Run) -> tuple[list[list[Block]], Block]:
    """A micro-batch's forward: what its layers keep, and the loss's fp32 logits."""
    hidden, element = run.hidden, 2 * run.tokens
    layers = []
    for _ in range(run.layers):
        held = [pool.take(element * hidden / run.tp)]
        passing = [pool.take(element * one) for one in run.kept()] if run.again else []
        if not run.again:
            held += [pool.take(element * one) for one in run.kept()]
        gathered = [pool.take(element * hidden), pool.take(element * hidden / run.tp)]
        pool.give(*gathered, *passing)
        layers.append(held)
    half = pool.take(element * run.vocab / run.tp)
    wide = pool.take(2 * element * run.vocab / run.tp)
    pool.give(half)
    return layers, wide


def backward(pool: Allocator, run: Run, layers: list[list[Block]], wide: Block) -> None:
    """Its backward, layer by layer from the last, each computed again first where it kept its input alone."""
    hidden, element = run.hidden, 2 * run.tokens
    of_logits = pool.take(element * run.vocab / run.tp)
    pool.give(wide)
    gradient = pool.take(element * hidden / run.tp)
    pool.give(of_logits)
    for held in reversed(layers):
        if run.again:
            held += [pool.take(element * one) for one in run.kept()]
        inner = [
            pool.take(element * one) for one in (run.ffn / run.tp, 2 * run.ffn / run.tp, hidden)
        ]
        following = pool.take(element * hidden / run.tp)
        pool.give(*inner, *held, gradient)
        gradient = following
    pool.give(gradient)


def iteration(pool: Allocator, run: Run) -> None:
    """Forwards and backwards of a step, `flight` micro-batches at a time."""
    waiting = []
    for _ in range(run.micro_batches):
        waiting.append(forward(pool, run))
        if len(waiting) == run.flight:
            backward(pool, run, *waiting.pop(0))
    while waiting:
        backward(pool, run, *waiting.pop(0))


def return_free_segments(pool: Allocator) -> None:
    """empty_cache: segments of which nothing is used."""
    whole = [block for block in pool.free if block.before is None and block.after is None]
    for block in whole:
        pool.free.remove(block)
        pool.reserved -= block.size


def captured(run: Run) -> tuple[int, int, int]:
    """Bytes reserved by eager steps, with the graph, and bytes that come and go in a step."""
    hidden, ffn, vocabulary = run.hidden, run.ffn, run.vocab * run.hidden
    layer = (hidden * (hidden + 2 * run.keys), hidden**2, 2 * hidden * ffn, hidden * ffn)
    weights = [one / run.tp for one in (*layer * run.layers, vocabulary, vocabulary)]
    pool = Allocator()
    for each in (2, 4):  # weights; the buffer of gradients
        pool.take(each * sum(weights))
    shards = [4 * one / run.dp for one in weights]
    for shard in shards:
        pool.take(shard)
    before = pool.allocated
    iteration(pool, run)
    moving = pool.most - before
    for shard in shards:
        pool.take(shard)
        pool.take(shard)
    for _ in range(2):
        iteration(pool, run)
    eager = pool.reserved
    return_free_segments(pool)
    graph = Allocator()
    iteration(graph, run)
    return eager, pool.reserved + graph.reserved, moving


def main() -> None:
    print(
        "model                 tokens tp dp flight again   eager   graph  difference over what comes and goes"
    )
    found = []
    for run in RUNS:
        eager, graph, moving = captured(run)
        found.append((graph - eager) / moving)
        print(
            f"{run.name:21} {run.tokens:6} {run.tp:2} {run.dp:2} {run.flight:6} {run.again!s:5} "
            f"{eager / GIB:7.1f} {graph / GIB:7.1f} {found[-1]:11.3f}"
        )
    print(f"mean {sum(found) / len(found):.3f}, {min(found):.3f} to {max(found):.3f}")


if __name__ == "__main__":
    main()
