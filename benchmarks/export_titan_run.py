"""Run an exported torchtitan recipe for a few steps by torchtitan's own Trainer, and write what it reports.

    torchrun … benchmarks/export_titan_run.py REPORT.json LOSSES.json STEPS     (started by export_runs.py)

The recipe is the exported file. What stands in, as in prove_titan_run.py: the debug flavor's widths
under the registered model's layers, the CPU for a device, random tokens and no tokenizer, plain attention, nothing
compiled. Degrees, batches, schedule
and recomputation are the recipe's; the layout is read from torchtitan's ParallelDims and its model.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import prove_titan_run as stand_ins


def cut_down(config: Any, steps: int) -> Any:
    """The recipe's configuration with what no CPU has replaced; nothing of its layout."""
    from torchtitan.models.common.attention import ScaledDotProductAttention

    donor = stand_ins.configuration({}, uneven=False)
    config.tokenizer, config.dataloader = donor.tokenizer, donor.dataloader
    config.dump_folder, config.optimizer.implementation = donor.dump_folder, "for-loop"
    config.training = replace(config.training, steps=steps)
    config.compile = replace(config.compile, enable=False)
    config.metrics.log_freq = 1
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return config


def reported(trainer: Any) -> dict[str, Any]:
    """Degrees from torchtitan's own meshes, sharding from the model that it made."""
    from torch.distributed.fsdp import FSDPModule

    dims = trainer.parallel_dims
    blocks = [block for part in trainer.model_parts for block in part.layers.values()]
    sharded = [block for block in blocks if isinstance(block, FSDPModule)]
    groups = [block._get_fsdp_state()._fsdp_param_group for block in sharded]
    again = any(group is not None and group._reshard_after_forward for group in groups)
    wrapped = any(
        "checkpoint" in type(m).__name__.lower() for block in blocks for m in block.modules()
    )
    return {
        "dp": dims.dp_replicate * dims.dp_shard, "tp": dims.tp, "pp": dims.pp, "cp": dims.cp,
        "shard": dims.dp_shard * dims.cp,
        "zero": 0 if not sharded or dims.dp_shard * dims.cp == 1 else 3 if again else 2,
        "recompute": "full" if wrapped else "none",
        "accumulation": trainer.gradient_accumulation_steps,
    }  # fmt: skip


def main() -> None:
    report, losses, steps = sys.argv[1:]
    stand_ins.stand_in_for_the_device()
    torch.set_num_threads(1)
    from torchtitan.distributed import utils
    from torchtitan.models import llama3
    from torchtitan.trainer import Trainer

    utils.set_pg_timeouts = lambda *_, **__: None
    registry = llama3.model_registry

    def narrow(flavor: str, *given: Any, **words: Any) -> Any:
        """The flavor's layers at the debug flavor's width."""
        spec, layers = registry("debugmodel", *given, **words), registry(flavor).model.layers
        spec.model.layers = [copy.deepcopy(spec.model.layers[-1]) for _ in layers]
        return spec

    llama3.model_registry = narrow
    sys.path.insert(0, os.getcwd())
    trainer = Trainer(cut_down(importlib.import_module("recipe").recipe(), int(steps)))
    stand_ins.fit_to_this_torch(trainer)
    kept: list[float] = []
    log = trainer.metrics_processor.log

    def note(step: int, average: float, *rest: Any, **words: Any) -> None:
        kept.append(float(average))
        log(step, average, *rest, **words)

    trainer.metrics_processor.log = note
    trainer.train()
    if os.environ["RANK"] == "0":
        Path(report).write_text(json.dumps(reported(trainer)))
        Path(losses).write_text(json.dumps(kept))
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
