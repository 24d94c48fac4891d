"""Run an exported torchtitan recipe for a few steps by torchtitan's own Trainer, and write what it reports.

    torchrun … benchmarks/export_titan_run.py REPORT.json LOSSES.json STEPS     (started by export_runs.py)

The recipe is the exported file. What stands in, as in prove_titan_run.py: the debug flavor's widths
under the registered model's layers, the CPU for a device, random tokens and no tokenizer, plain attention, nothing
compiled unless COMPILED is set. Degrees, batches, schedule
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
    config.compile = replace(config.compile, enable="COMPILED" in os.environ)
    config.metrics.log_freq = 1
    model = config.model_spec.model
    if config.parallelism.pipeline_parallel_degree == 1:  # where no stage holds so many of them
        model.layers = model.layers[:4]
    for layer in model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return config


def narrowed(flavors: dict[str, Any], registry: Any) -> Any:
    """A family's registry whose models have the registered layers, each of the debug flavor's widths.

    A whole model of four billion weights does not fit this machine's memory twice; what a registered layer is (dense, of experts,
    a window of so many tokens) stays what it is, as does whether the head is the embedding.
    """

    def narrow(flavor: str, *given: Any, **words: Any) -> Any:
        whole = registry(flavor, *given, **words).model
        kinds = [_kind(layer) for layer in whole.layers]
        for debug in (name for name in flavors if name.startswith("debugmodel")):
            spec = registry(debug, *given, **words)
            donors = {_kind(layer): layer for layer in reversed(spec.model.layers)}
            if set(kinds) <= set(donors):
                spec.model.layers = [copy.deepcopy(donors[kind]) for kind in kinds]
                spec.model.enable_weight_tying = whole.enable_weight_tying
                # An embedding that is the head, too, is drawn as the head.
                drawn = whole.tok_embeddings.param_init
                spec.model.tok_embeddings = replace(spec.model.tok_embeddings, param_init=drawn)
                return spec
        raise SystemExit(f"no debug flavor has the layers of {flavor}")

    return narrow


def _kind(layer: Any) -> tuple[bool, bool]:
    """Whether a layer has experts, and whether its attention sees a window."""
    return layer.moe is not None, getattr(layer.attention, "sliding_window_size", None) is not None


def reported(trainer: Any) -> dict[str, Any]:
    """Degrees from torchtitan's own meshes, sharding from the model that it made."""
    from torch.distributed.fsdp import FSDPModule

    dims = trainer.parallel_dims
    blocks = [block for part in trainer.model_parts for block in part.layers.values()]
    sharded = [block for block in blocks if isinstance(block, FSDPModule)]
    # A layer of experts has two groups: its own weights' and its experts'.
    groups = [one for block in sharded for one in block._get_fsdp_state()._fsdp_param_groups]
    again = any(group._reshard_after_forward for group in groups)
    wrapped = any(
        "checkpoint" in type(m).__name__.lower() for block in blocks for m in block.modules()
    )
    return {
        "dp": dims.dp_replicate * dims.dp_shard, "tp": dims.tp, "pp": dims.pp, "cp": dims.cp,
        "ep": dims.ep,
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
    from torchtitan.models import deepseek_v3, gpt_oss, llama3, qwen3
    from torchtitan.trainer import Trainer

    utils.set_pg_timeouts = lambda *_, **__: None
    for family, flavors in (
        (llama3, llama3.llama3_configs), (qwen3, qwen3.qwen3_configs),
        (deepseek_v3, deepseek_v3.deepseekv3_configs), (gpt_oss, gpt_oss.gptoss_configs),
    ):  # fmt: skip
        family.model_registry = narrowed(flavors, family.model_registry)
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
