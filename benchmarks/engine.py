"""The engine against hand-written torch on this machine: tokens/s, same model, data and ranks.

    python benchmarks/engine.py [--ranks 2] [--steps 8] [--json]

Both sides train the same decoder on gloo processes, one thread a rank, fp32, with AdamW and clipping;
each pair runs in the same processes, alternating, and the ratio is of their median step times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from meshwright.engine.decoder import Decoder
from meshwright.engine.numerics import default_numerics
from meshwright.engine.parallelize import Precision
from meshwright.engine.program import Program
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model

MODEL = Model(
    name="bench", layers=8, hidden=256, heads=8, kv_heads=4, head_dim=32, ffn=704, vocab=512
)  # fmt: skip
SEQ, BATCH = 256, 8


def by_hand(wrap: Callable[[torch.nn.Module], torch.nn.Module]) -> Callable[[], None]:
    """A training step written directly with torch: replicate or shard, local batch, AdamW."""
    torch.manual_seed(0)
    decoder = Decoder(MODEL)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.02) if parameter.dim() > 1 else parameter.data.fill_(
            1
        )
    model = wrap(decoder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tokens, targets = batch()
    local = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = model(tokens[local])
        F.cross_entropy(logits.flatten(0, 1), targets[local].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def sharded(decoder: torch.nn.Module) -> torch.nn.Module:
    for block in decoder.layers.values():
        fully_shard(block)
    return fully_shard(decoder)


def by_engine(layout: Layout) -> Callable[[], None]:
    """The same step as meshwright runs it."""
    program = Program(
        MODEL,
        default_numerics(MODEL),
        layout,
        global_batch=BATCH,
        seq_len=SEQ,
        precision=Precision(),
    )
    optimizer = torch.optim.AdamW(program.optimizer_groups(0.01), lr=1e-3)
    tokens, targets = batch()
    return lambda: program.step(optimizer, tokens, targets, clip=1.0) and None


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, MODEL.vocab, (BATCH, SEQ + 1), generator=generator)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def timed(steps: dict[str, Callable[[], None]], count: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for index in range(count + 2):
        for name, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            dist.barrier()
            if index >= 2:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def rank_main(rank: int, ranks: int, store: str, count: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    micro = BATCH // ranks
    results = {}
    for name, wrap, layout in (
        ("data parallel against DDP", DistributedDataParallel, Layout(dp=ranks, micro_batch=micro)),
        ("ZeRO-3 against FSDP2", sharded, Layout(dp=ranks, zero=3, micro_batch=micro)),
    ):
        figures = timed({"torch": by_hand(wrap), "meshwright": by_engine(layout)}, count)
        results[name] = {
            **{f"{side}_tokens_s": BATCH * SEQ / seconds for side, seconds in figures.items()},
            "ratio": figures["torch"] / figures["meshwright"],
        }
    if rank == 0:
        with open(out, "w") as stream:
            json.dump(results, stream)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out.json"
        torch.multiprocessing.spawn(
            rank_main, (options.ranks, f"{folder}/store", options.steps, out), nprocs=options.ranks
        )
        with open(out) as stream:
            results = json.load(stream)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for name, figures in results.items():
        print(
            f"{name:28} torch {figures['torch_tokens_s']:8,.0f} tokens/s   meshwright "
            f"{figures['meshwright_tokens_s']:8,.0f} tokens/s   ratio {figures['ratio']:.3f}"
        )


if __name__ == "__main__":
    main()
