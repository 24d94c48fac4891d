"""Optimizers of TrainingArguments that work on projected gradients, or on each as the backward makes it.

Sources: transformers 5.23, `trainer_optimizer.py` (`_setup_low_rank_optimizer`); LLaMA-Factory 0.9.5,
`hparams/finetuning_args.py` (`GaloreArguments`, `ApolloArguments`).
"""

from __future__ import annotations

import re

from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.imports.recipes import LAYERWISE
from meshwright.specs.job import OTHER_OPTIMIZERS, UPDATED_IN_BACKWARD, OptimizerRecipe

_SWITCHES = ("galore", "apollo")
"""LLaMA-Factory's `use_…`, `…_rank`, `…_target` and `…_layerwise`."""
_LLAMA_FACTORY_RANK = 16


def low_rank(options: Options, reading: Reading, found: OptimizerRecipe) -> OptimizerRecipe:
    """The optimizer with the rank to which a file has its gradients projected; as it is where none are."""
    for name in _SWITCHES:
        if options.flag(f"use_{name}"):
            rank = options.whole(f"{name}_rank", default=_LLAMA_FACTORY_RANK, least=1)
            options.raw(*(f"{name}_{word}" for word in ("target", "scale", "update_interval", "proj_type", "proj", "scale_type", "scale_front")))  # fmt: skip
            return OTHER_OPTIMIZERS[name].but(low_rank=rank)
    if not found.low_rank:
        return found
    inside = options.whole("optim_args.rank", default=0)  # axolotl's table of them
    words = re.search(r"\brank\s*=\s*(\d+)", str(options.raw("optim_args") or ""))
    asked = inside or (int(words.group(1)) if words else 0)
    if asked:
        found = found.but(low_rank=asked)
    _targets(options, reading)
    return found


def _targets(options: Options, reading: Reading) -> None:
    """Say which matrices are projected, where it is not those of every layer, which is priced."""
    words = str(options.raw("optim_target_modules") or "").lower()
    if not words:
        reading.unmodelled("optim_target_modules", "is not set, without which transformers starts no such optimizer; the matrices of all layers are priced as projected")  # fmt: skip
    elif "all" in words and "linear" in words:
        reading.note("the head's gradient is projected, too; its whole moments are priced", "optim_target_modules")  # fmt: skip
    elif not (re.search(r"at+n|[qkvo]_proj", words) and re.search("mlp|ffn|feed|(?:up|down|gate)_proj", words)):  # fmt: skip
        reading.unmodelled("optim_target_modules", "only some matrices' gradients are projected; those of all matrices of layers are priced so")  # fmt: skip


def updates_in_backward(
    options: Options, reading: Reading, name: str, found: OptimizerRecipe
) -> None:
    """Note that each gradient goes with its update, where an optimizer is layer-wise or LOMO's."""
    switched = any(options.flag(f"use_{one}") and options.flag(f"{one}_layerwise") for one in _SWITCHES)  # fmt: skip
    layerwise = name.lower().endswith(LAYERWISE) or switched
    if layerwise or found.name in UPDATED_IN_BACKWARD:
        asked = reading.job.get("framework_options", {})
        reading.job["framework_options"] = {**asked, "optimizer_in_backward": True}
    if layerwise and not switched:
        reading.note("transformers starts it on one device and without accumulation alone", "optim")
