"""verl's supervised trainer on a CPU: what its platforms lack is stood in for, and its engine watched.

verl registers platforms and engines by device; a platform of processors and its own FSDP engine under
their name are registered here. Mesh, sharding, batches, adapters and recomputation are verl's.
"""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import export_probe

FOUND = export_probe.FOUND
FOLDERS = ("verl-0.9.1", "verl-needs", "ray-2.60.0", "tuning-runs")
"""Folders of `make validate-more` with verl and what its training imports."""
WORDS = [
    "+model.override_config.attn_implementation=sdpa",
    "trainer.device=cpu",
    "trainer.save_freq=-1",
]
"""verl's own words for a machine without FlashAttention and without a device."""


def conversations(path: Path, text: str) -> None:
    """A hundred conversations as a parquet file, the columns that verl reads."""
    import pyarrow
    import pyarrow.parquet

    said = [
        {"messages": [{"role": "user", "content": "why?"}, {"role": "assistant", "content": f"{text * 4}{number}"}]}
        for number in range(100)
    ]  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(said), path)


def _platform() -> None:
    """Processors as a platform of verl, whose devices have no number and no memory of their own."""
    import torch
    import torch.distributed as dist
    from verl.plugin.platform.platform_cuda import PlatformCUDA
    from verl.plugin.platform.platform_manager import PlatformRegistry

    class Nothing(types.ModuleType):
        """torch.cpu, and no memory where that counts none."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            none = {"mem_get_info": (0, 0), "get_device_name": "CPU"}.get(name, 0)
            return getattr(torch.cpu, name, lambda *_, **__: none)

    class Processors(PlatformCUDA):
        device_name, device_module = "cpu", Nothing("processors")

        def is_available(self) -> bool:
            return True

        def current_device(self) -> Any:
            return torch.device("cpu")

        def set_device(self, device_index: int) -> None:
            """There is none to choose."""

        def synchronize(self, device_index: int | None = None) -> None:
            """Nothing runs behind the host's back."""

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

        manual_seed_all = manual_seed

        def empty_cache(self) -> None:
            """Nothing is kept."""

        def communication_backend_name(self) -> str:
            return "gloo"

    PlatformRegistry.register(platform="processors")(Processors)
    os.environ["VERL_PLATFORM"] = "processors"
    real = dist.init_process_group

    def grouped(*_: Any, **words: Any) -> None:
        """gloo for every device: the pair of backends that verl names has one device twice here."""
        real(
            "gloo",
            **{name: one for name, one in words.items() if name not in ("backend", "device_id")},
        )

    dist.init_process_group = grouped


def watch(losses: list[float]) -> None:
    """Let verl's FSDP engine take processors; note its layout when it is built, and each step's loss."""
    _platform()
    from torch.distributed.tensor import DTensor
    from verl.utils import tensordict_utils
    from verl.workers import engine_workers
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cpu"])(
        FSDPEngineWithLMHead
    )
    worker = engine_workers.TrainingWorker
    reset, train = worker.reset, worker.train_batch

    def started(self: Any, *args: Any, **words: Any) -> Any:
        made = reset(self, *args, **words)
        engine, module = self.engine, self.engine.module
        adapters = getattr(module, "peft_config", None)
        split = any(isinstance(one, DTensor) for one in module.parameters())
        again = [
            state._fsdp_param_group.post_forward_mesh_info is not None
            for state in (one._get_fsdp_state() for one in module.modules() if hasattr(one, "_get_fsdp_state"))
            if state._fsdp_param_group is not None
        ]  # fmt: skip
        FOUND.update(
            dp=engine.get_data_parallel_size(),
            cp=engine.ulysses_sequence_parallel_size,
            zero=0 if not split else 3 if any(again) else 2,
            recompute="full" if module.is_gradient_checkpointing else "none",
            rank=next(iter(adapters.values())).r if adapters else 0,
        )
        return made

    def stepped(self: Any, data: Any, *args: Any, **words: Any) -> Any:
        rows, micro = (
            len(data),
            tensordict_utils.get_non_tensor_data(data, "micro_batch_size_per_gpu", 0),
        )
        FOUND.update(micro_batch=micro, accumulation=rows // micro)
        made = train(self, *args, data=data, **words)
        losses.append(float(tensordict_utils.get(made, "metrics")["loss"]))
        return made

    worker.reset, worker.train_batch = started, stepped
