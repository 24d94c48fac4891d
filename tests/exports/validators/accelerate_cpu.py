"""Run a script under accelerate's FSDP2 on CPUs, which accelerate itself offers on accelerators only.

    torchrun … accelerate_cpu.py train.py WORDS…      (ACCELERATE_USE_FSDP=true, FSDP_VERSION=2, …)

Only the question whether the backend may shard is answered differently; what shards is accelerate's code.
"""

import runpy
import sys
from pathlib import Path

import torch
from accelerate import accelerator, state
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from transformers.distributed import mixin

_plain = state.AcceleratorState.__init__


def _sharding(self, *args, fsdp_plugin=None, **words):
    _plain(self, *args, fsdp_plugin=fsdp_plugin, **words)
    if fsdp_plugin is not None:
        self.distributed_type = DistributedType.FSDP
        self.fsdp_plugin = fsdp_plugin


state.AcceleratorState.__init__ = _sharding
_prepare = accelerator.fsdp2_prepare_model
_sharded = []


def _recorded(accelerated, model):
    made = _prepare(accelerated, model)
    _sharded.append(all(isinstance(parameter, DTensor) for parameter in made.parameters()))
    return made


accelerator.fsdp2_prepare_model = _recorded
# A CPU is no accelerator for PyTorch, which transformers asks for the kind of its meshes.
torch._C._get_accelerator = lambda: torch.device("cpu")
_shard = mixin.apply_fully_sharded_data_parallelism
_clip = torch.nn.utils.clip_grads_with_norm_
_split_models, _norms = [], []


def _clipped(parameters, most, norm):
    if not _norms:
        whole = [one.grad.full_tensor() for one in _split_models[0].parameters()]
        _norms.append((float(norm), float(torch.stack([one.norm() for one in whole]).norm())))
    _clip(parameters, most, norm)


torch.nn.utils.clip_grads_with_norm_ = _clipped


def _split(model, *args):
    made = _shard(model, *args)
    split = sum(len(one.device_mesh.mesh.shape) == 2 for one in made.parameters())
    _sharded.append(split > len(made.model.layers))
    _split_models.append(made)
    return made


mixin.apply_fully_sharded_data_parallelism = _split
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
runpy.run_path(sys.argv[0], run_name="__main__")
if _sharded != [True]:
    sys.exit("accelerate sharded no weights")
if _split_models and not all(
    abs(said - whole) < 1e-5 * whole for said, whole in _norms or [(0, 1)]
):
    sys.exit(f"gradients of meshes are clipped by another norm than theirs together: {_norms}")
