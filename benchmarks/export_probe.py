"""Run an exported script as its launcher would and note the layout that its framework reports.

    torchrun … benchmarks/export_probe.py TARGET REPORT.json train.py [words of the script…]

The report is read from the framework's own objects (DeepSpeed's engine, accelerate's state, FSDP's
meshes, Lightning's strategy), never from the files that were exported. Rank 0 writes it.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOUND: dict[str, Any] = {}


def _after(
    owner: Any, name: str, note: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
) -> None:
    """Let a function of a framework run as it is, then note what it returned."""
    real = getattr(owner, name)

    def noted(*args: Any, **words: Any) -> Any:
        made = real(*args, **words)
        note(made, args, words)
        return made

    setattr(owner, name, noted)


def watch_deepspeed() -> None:
    """The engine's own stage, sizes and batches."""
    import deepspeed

    # Its shared-memory operator takes minutes to compile on a CPU and changes no number.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

    def note(made: Any, _args: tuple[Any, ...], _words: dict[str, Any]) -> None:
        engine = made[0]
        grid = getattr(engine, "grid", None)
        FOUND.update(
            zero=engine.zero_optimization_stage(),
            micro_batch=engine.train_micro_batch_size_per_gpu(),
            accumulation=engine.gradient_accumulation_steps(),
            dp=engine.dp_world_size,
            pp=grid.pipe_parallel_size if grid is not None else 1,
        )
        updated = getattr(engine.optimizer, "fp32_partitioned_groups_flat", None)  # stage 3's name
        if updated:
            FOUND["updated_bytes"] = updated[0].element_size()

    _after(deepspeed, "initialize", note)


def watch_accelerate() -> None:
    """The state that accelerate itself made of its YAML."""
    import accelerate

    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        _shard_on_cpu()

    def note(_made: Any, args: tuple[Any, ...], _words: dict[str, Any]) -> None:
        one = args[0]
        split = one.parallelism_config
        FOUND.update(
            dp=one.num_processes // ((split.tp_size or 1) * (split.cp_size or 1) if split else 1),
            tp=(split.tp_size or 1) if split else 1,
            cp=(split.cp_size or 1) if split else 1,
            zero=0
            if "MULTI" in str(one.distributed_type)
            else 3
            if one.state.fsdp_plugin.reshard_after_forward
            else 2,
        )

    _after(accelerate.Accelerator, "__init__", note)
    import torch
    from transformers.distributed import mixin

    def meshes(made: Any, args: tuple[Any, ...], _words: dict[str, Any]) -> None:
        asked = args[0]
        FOUND.update(tp=asked.tp_size, dp=asked.dp_size, zero=3)

    # A CPU is no accelerator for PyTorch, which transformers asks for the kind of its meshes.
    torch._C._get_accelerator = lambda: torch.device("cpu")
    _after(mixin, "initialize_distributed_mesh", meshes)


def _shard_on_cpu() -> None:
    """Let accelerate shard by FSDP2 without an accelerator, which it only asks for and does not need."""
    from accelerate import state
    from accelerate.utils import DistributedType

    plain = state.AcceleratorState.__init__

    def sharding(self: Any, *args: Any, fsdp_plugin: Any = None, **words: Any) -> None:
        plain(self, *args, fsdp_plugin=fsdp_plugin, **words)
        if fsdp_plugin is not None:
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin

    state.AcceleratorState.__init__ = sharding


def watch_fsdp() -> None:
    """The meshes that PyTorch made, and how its shards were asked for."""
    import torch.distributed as dist
    import torch.distributed.device_mesh as meshes
    import torch.distributed.fsdp as sharding

    def mesh(made: Any, _args: tuple[Any, ...], _words: dict[str, Any]) -> None:
        names = made.mesh_dim_names or ()
        FOUND["mesh"] = dict(zip(names, made.mesh.shape, strict=False))
        FOUND["tp"] = next(
            (FOUND["mesh"][n] for n in ("tensor", "tensor_parallel", "tp") if n in FOUND["mesh"]), 1
        )
        FOUND["dp"] = dist.get_world_size() // FOUND["tp"]

    def shard(_made: Any, _args: tuple[Any, ...], words: dict[str, Any]) -> None:
        FOUND["zero"] = 2 if words.get("reshard_after_forward") is False else 3

    FOUND["zero"] = 0
    _after(meshes, "init_device_mesh", mesh)
    _after(sharding, "fully_shard", shard)


def watch_trainer() -> None:
    """What the Trainer itself says of its batches, and its accelerator of its shards."""
    import transformers

    _shard_on_cpu()

    def note(_made: Any, args: tuple[Any, ...], _words: dict[str, Any]) -> None:
        one = args[0]
        plugin = getattr(one.accelerator.state, "fsdp_plugin", None)
        FOUND.update(
            dp=one.accelerator.num_processes,
            micro_batch=one.args.train_batch_size,
            accumulation=one.args.gradient_accumulation_steps,
            zero=0 if plugin is None else 3 if plugin.reshard_after_forward else 2,
        )

    _after(transformers.Trainer, "__init__", note)


WATCHES = {
    "deepspeed": watch_deepspeed, "accelerate": watch_accelerate, "fsdp": watch_fsdp, "lightning": watch_fsdp,
    "trainer": watch_trainer,
}  # fmt: skip


def main() -> None:
    """Watch, run the script, write what was seen."""
    target, report, script, *words = sys.argv[1:]
    WATCHES[target]()
    sys.argv = [script, *words]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")
    if os.environ.get("RANK", "0") == "0":
        FOUND["world"] = int(os.environ.get("WORLD_SIZE", "1"))
        Path(report).write_text(json.dumps(FOUND))


if __name__ == "__main__":
    main()
