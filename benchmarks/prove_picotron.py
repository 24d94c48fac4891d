"""Hold the layouts of a framework that nobody here wrote to one device: picotron on CPU processes.

    python benchmarks/prove_picotron.py CHECKOUT [--schedule 1f1b] [--only "tp2 dp2"]

CHECKOUT is one of huggingface/picotron. Each layout is launched as `meshwright prove --script` does it.
Its own model, tensor, context, pipeline and data parallelism and its own training steps run as they are;
FlashAttention's import (unused on CPU) and `torch.cuda.synchronize` are stood in for, and
weights and tokens are made here.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import types
from pathlib import Path

from meshwright.probe.files import LAYOUT_VARIABLE

LAYOUTS = ("dp2", "tp2", "cp2", "pp2", "tp2 dp2", "cp2 dp2", "tp2 pp2 dp2")
STEPS, SEQUENCES, LENGTH, LAYERS = 4, 8, 32, 4


class Tokens:
    """picotron's loader of micro-batches, over random tokens: the same global batch in every layout."""

    def __init__(self, manager: object, vocabulary: int) -> None:
        import torch

        self.grad_acc_steps = SEQUENCES // manager.dp_world_size // 2
        self.step = self.at = 0
        self.manager, self.torch, self.vocabulary = manager, torch, vocabulary

    def __next__(self) -> dict:
        torch, manager = self.torch, self.manager
        generator = torch.Generator().manual_seed(100 + self.step)
        batch = torch.randint(self.vocabulary, (SEQUENCES, LENGTH + 1), generator=generator)
        share = SEQUENCES // manager.dp_world_size
        first = manager.dp_rank * share + 2 * self.at
        per = LENGTH // manager.cp_world_size
        start = manager.cp_rank * per
        rows = batch[first : first + 2]
        self.at = (self.at + 1) % self.grad_acc_steps
        self.step += self.at == 0
        return {
            "input_ids": rows[:, start : start + per].contiguous(),
            "target_ids": rows[:, start + 1 : start + per + 1].contiguous(),
            "position_ids": torch.arange(start, start + per).expand(2, -1).contiguous(),
            "hidden_states": None,
        }


def run(checkout: str, schedule: str) -> None:
    """One rank, under the layout that it was launched for."""
    os.environ |= {"FLASH_ATTEN": "0", "DTYPE": "float32", "DEVICE": "cpu"}
    for name in ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn.layers", "flash_attn.layers.rotary",
                 "flash_attn.ops", "flash_attn.ops.triton", "flash_attn.ops.triton.layer_norm"):  # fmt: skip
        module = types.ModuleType(name)
        module.flash_attn_func = module.apply_rotary_emb = module.layer_norm_fn = None
        sys.modules[name] = module
    sys.path.insert(0, checkout)
    import torch
    import torch.distributed as dist

    torch.cuda.synchronize = lambda *_: (
        None
    )  # called after every message of the ring; gloo has waited
    from picotron import process_group_manager as pgm
    from picotron.context_parallel.context_parallel import apply_context_parallel
    from picotron.data_parallel.data_parallel import DataParallelBucket
    from picotron.model import Llama
    from picotron.pipeline_parallel import pipeline_parallel as pp
    from picotron.tensor_parallel.tensor_parallel import apply_tensor_parallel

    from meshwright import probe

    dist.init_process_group("gloo")
    layout = probe.layout()
    degrees = {f"{axis}_size": layout.get(axis, 1) for axis in ("tp", "cp", "pp", "dp")}
    pgm.setup_process_group_manager(**degrees)
    manager = pgm.process_group_manager
    config = types.SimpleNamespace(
        vocab_size=256, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=LAYERS,
        intermediate_size=128, max_position_embeddings=LENGTH, rms_norm_eps=1e-5, rope_theta=10000.0,
    )  # fmt: skip
    model = Llama(config)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    if manager.tp_world_size > 1:
        model = apply_tensor_parallel(model)
    if manager.pp_world_size > 1:
        model = pp.PipelineParallel(model, config)
    if manager.cp_world_size > 1:
        model = apply_context_parallel(model)
    cuts = {}
    for number, name in enumerate(sorted(shapes)):
        generator = torch.Generator().manual_seed(number)
        whole = torch.randn(shapes[name], generator=generator) * 0.05 + (len(shapes[name]) == 1)
        mine = dict(model.named_parameters()).get(name)
        if mine is None:
            continue
        dim = next(
            (d for d, (a, b) in enumerate(zip(shapes[name], mine.shape, strict=True)) if a != b),
            None,
        )
        cuts[name] = dim
        with torch.no_grad():
            part = (
                whole if dim is None else whole.chunk(manager.tp_world_size, dim)[manager.tp_rank]
            )
            mine.copy_(part)
    if manager.dp_world_size > 1 or manager.cp_world_size > 1:
        model = DataParallelBucket(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = Tokens(manager, config.vocab_size)
    shape = (2, LENGTH // manager.cp_world_size, config.hidden_size)

    def placement(name: str, parameter: object) -> probe.Shard | None:
        dim = cuts[name.removeprefix("module.")]
        return (
            None
            if dim is None
            else probe.Shard(dim=dim, index=manager.tp_rank, count=manager.tp_world_size)
        )

    with probe.record(model, optimizer, placement=placement) as recording:
        for _ in range(STEPS):
            optimizer.zero_grad()
            if manager.pp_world_size > 1:
                step = (
                    pp.train_step_pipeline_1f1b
                    if schedule == "1f1b"
                    else pp.train_step_pipeline_afab
                )
                step(model, loader, shape, torch.device("cpu"), torch.float32)
            else:
                plain_step(checkout, model, loader)
            optimizer.step()
            recording.step(
                tokens=SEQUENCES * LENGTH // manager.dp_world_size // manager.cp_world_size
            )
            if hasattr(model, "reset"):
                model.reset()
    dist.barrier()
    dist.destroy_process_group()


def plain_step(checkout: str, model: object, loader: Tokens) -> float:
    """picotron's own `train_step`, taken out of its program, which imports more than it needs."""
    import ast

    import torch
    import torch.nn.functional as functional
    from picotron import process_group_manager as pgm

    source = Path(checkout, "train.py").read_text("utf-8")
    node = next(
        n
        for n in ast.parse(source).body
        if isinstance(n, ast.FunctionDef) and n.name == "train_step"
    )
    room = {"pgm": pgm, "F": functional, "torch": torch}
    exec(compile(ast.Module([node], []), "train.py", "exec"), room)
    return room["train_step"](model, loader, torch.device("cpu"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", help="a checkout of huggingface/picotron")
    parser.add_argument("--schedule", choices=("afab", "1f1b"), default="afab", help="of pipelines")
    parser.add_argument("--only", choices=LAYOUTS, help="one layout")
    given = parser.parse_args()
    if LAYOUT_VARIABLE in os.environ:
        run(given.checkout, given.schedule)
        return 0
    from meshwright.prove.launch import launch
    from meshwright.prove.verdict import prove

    words, equal = [given.checkout, "--schedule", given.schedule], True
    with tempfile.TemporaryDirectory() as folder:
        reference = launch(Path(__file__), "dp1", Path(folder), 600.0, words)
        for label in LAYOUTS:
            if given.only in (None, label):
                verdict = prove(
                    reference, launch(Path(__file__), label, Path(folder), 600.0, words)
                )
                equal = equal and verdict.equal
                plain = verdict.plain()
                print(f"{label:<12} {verdict.cause.name if verdict.cause else 'equal'}: largest relative "
                      f"error {plain['largest_relative_error']:.2e}, bound {plain['bound']:.2e}; "
                      f"{verdict.evidence()[0]}", flush=True)  # fmt: skip
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
