"""One training run of the small Llama under Lightning's Trainer, recorded with `meshwright.probe`.

torchrun … benchmarks/prove_lightning_run.py STRATEGY [BUG]     (started by prove_frameworks.py)
"""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.utils.data import DataLoader, TensorDataset

from meshwright import probe
from prove_framework_run import (
    BATCH,
    CLIP,
    LR,
    RANK,
    STEPS,
    WORLD,
    _tensor_parallel,
    sequences,
    small_llama,
)

ACCUMULATION = 2


class Module(lightning.LightningModule):
    """A user's module around the model; sharded in `configure_model`, as Lightning's manual does it."""

    def __init__(self, strategy: str, bug: str) -> None:
        super().__init__()
        self.model = small_llama()
        self.strategy_name, self.bug = strategy, bug

    def configure_model(self) -> None:
        if self.strategy_name == "fsdp2":
            from torch.distributed.fsdp import fully_shard

            mesh = self.device_mesh["data_parallel"]
            for layer in self.model.model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        elif self.strategy_name == "tp":
            _tensor_parallel(self.model, self.device_mesh["tensor_parallel"])

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        ids, labels = batch
        loss = self.model(input_ids=ids, labels=labels).loss
        if self.bug == "undivided":  # Lightning divides by the accumulation; multiplying undoes it
            loss = loss * ACCUMULATION
        return loss

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clipping by the global norm, which Lightning leaves to the user under sharding."""
        gradients = [p.grad for p in self.model.parameters()]
        if self.bug == "clipped-per-shard":
            gradients = [getattr(g, "_local_tensor", g) for g in gradients]
        # By hand: torch's own function refuses a mix of DTensor and plain gradients.
        wholes = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in gradients]
        norm = sum(g.double().square().sum() for g in wholes).sqrt()
        for g in gradients:
            g.mul_(min(1.0, CLIP / float(norm)))
        self.trainer.callback_metrics["grad_norm"] = norm

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.model.parameters(), lr=LR, weight_decay=0.0, foreach=False)


def main() -> None:
    strategy, bug = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    torch.set_num_threads(1)
    share = 1 if strategy == "tp" else WORLD
    strategies = {
        "ddp": lambda: DDPStrategy(process_group_backend="gloo"),
        "fsdp2": lambda: ModelParallelStrategy(data_parallel_size=WORLD, tensor_parallel_size=1),
        "tp": lambda: ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=WORLD),
    }
    rows = sequences("uneven" in bug)
    own = BATCH // share
    mine = [rows[s * BATCH + (RANK % share) * own + i] for s in range(STEPS) for i in range(own)]
    data = TensorDataset(*(torch.stack([r[k] for r in mine]) for k in ("input_ids", "labels")))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=WORLD, strategy=strategies[strategy](), max_steps=STEPS,
        accumulate_grad_batches=ACCUMULATION, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    probe.attach(trainer, names=lambda name: name.removeprefix("model."))
    trainer.fit(Module(strategy, bug), DataLoader(data, batch_size=own // ACCUMULATION))


if __name__ == "__main__":
    main()
