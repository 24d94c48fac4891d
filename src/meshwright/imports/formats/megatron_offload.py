"""What Megatron-Core's options keep in host memory: parts of layers, whole layers, the optimizer."""

from __future__ import annotations

import re

from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.specs.layout import OFFLOAD_MODULES

_INSIDE = {"fused_group_mlp": ("expert_fc1", "moe_act")}
MOST = 0.9
"""Share of the layers or parts from which all of them are taken for offloaded; below it none is."""


def offloaded(options: Options, reading: Reading) -> list[str]:
    """Names for a layout's `offload`; what moves only in part is said, and kept on the device."""
    found: list[str] = []
    layers = reading.model.layers if reading.model is not None else 0
    moved = options.whole("cpu-offloading-num-layers")
    if options.flag("cpu-offloading") or moved:
        if moved >= MOST * layers:
            found.append("activations")
        else:
            reading.unmodelled(
                "--cpu-offloading-num-layers",
                f"activations of {moved} of {layers} layers go to host memory; the estimate keeps them",
            )
    named = re.sub(r"[\[\]'\",]", " ", options.text("offload-modules")).split()
    if options.flag("fine-grained-activation-offloading"):
        share = options.number("activation-offload-fraction", default=1.0)
        parts = [part for name in named for part in _INSIDE.get(name, (name,))]
        if strange := [part for part in parts if part not in OFFLOAD_MODULES]:
            reading.unmodelled(
                "--offload-modules",
                f"{', '.join(strange)[:80]} go to host memory, too; the estimate keeps them",
            )
        if share < MOST:
            reading.unmodelled(
                "--activation-offload-fraction",
                f"{share:g} of the named parts go to host memory; the estimate keeps them",
            )
        else:
            found += [part for part in parts if part in OFFLOAD_MODULES]
    if optimizer_share(options) == 1.0:
        found.append("optimizer")
    return found


def optimizer_share(options: Options) -> float:
    """Share of the optimizer that host memory holds: Megatron-Core's switch, or Pai's HybridAdam (megatron_patch/arguments.py).

    Raises:
        SpecError: the share is no number.
    """
    if options.flag("optimizer-cpu-offload"):
        return options.number("optimizer-offload-fraction", default=1.0)
    if options.word("optimizer") != "hybridadam":
        return 0.0
    if searched(options):
        return 1.0
    return options.number("optimizer-offload-fraction", default=0.5)


def searched(options: Options) -> bool:
    """Whether HybridAdam finds the share while it runs; the word is one that means "not said" elsewhere."""
    return str(options.values.get("optimizer-offload-policy")) == "auto"
