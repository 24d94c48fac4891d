"""Which device a rank computes on, and which backend carries its collectives: NCCL or gloo."""

from __future__ import annotations

import torch
import torch.distributed as dist


def backend_for(ranks_here: int) -> str:
    """`nccl` where every rank of this machine can have a GPU of its own, else `gloo` on CPUs."""
    return "nccl" if 0 < ranks_here <= torch.cuda.device_count() else "gloo"


def init_process_group(local_rank: int, ranks_here: int, **how: object) -> None:
    """Join the job on this rank's device; `how` as for torch's function of this name."""
    backend = backend_for(ranks_here)
    if backend == "nccl":
        torch.cuda.set_device(local_rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(backend, **how)


def on_gpu() -> bool:
    """Whether this rank computes on a GPU: the job's backend decides, not the machine."""
    return dist.is_initialized() and dist.get_backend() == "nccl"


def own_device() -> torch.device:
    """The device that this rank's parameters live on."""
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu() else torch.device("cpu")


def device_names() -> list[str]:
    """What the drivers call the GPUs that this machine's ranks compute on; none on CPUs."""
    gpus = torch.cuda.device_count() if on_gpu() else 0
    return [torch.cuda.get_device_name(at) for at in range(gpus)]
