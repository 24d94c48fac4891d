"""What the time of a layer depends on: the model, the software and the columns of its layout."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costs.columns import Ints
from meshwright.costs.fabric import Fabric
from meshwright.costs.frameworks import Behaviour
from meshwright.costs.kernels import Kernels
from meshwright.specs.job import Job
from meshwright.specs.model import Model


@dataclass(frozen=True, slots=True)
class LayerKeys:
    """The columns that a layer's time depends on; all of shape (rows,).

    `*_stride` is the rank distance between neighbours of a group, `cp_method` as in `LayoutColumns`.
    """

    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    micro_batch: Ints
    sequence_parallel: Ints
    tp_stride: Ints
    cp_stride: Ints
    ep_stride: Ints
    cp_method: Ints


@dataclass(frozen=True)
class LayerModel:
    """Everything a layer's time needs besides the layout."""

    model: Model
    job: Job
    kernels: Kernels
    fabric: Fabric
    behaviour: Behaviour
    wide: Kernels | None = None
    """Kernels of the layers that stay in 16 bits (`Behaviour.layers_16bit`); None: there are none."""
    keys: float | None = None
    """Keys that a query meets, of an encoder, which has no causal mask; None: as a decoder's mask and window say."""
