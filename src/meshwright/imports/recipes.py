"""Optimizers and precisions by the names that frameworks give them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from meshwright.specs.errors import SpecError
from meshwright.specs.job import (
    OPTIMIZERS,
    OTHER_OPTIMIZERS,
    RECIPES,
    OptimizerRecipe,
    PrecisionRecipe,
)

if TYPE_CHECKING:
    from meshwright.imports.reading import Reading

_NAMES = {
    "adam": "adamw", "adamw": "adamw", "adamw_torch": "adamw", "adamw_torch_fused": "adamw",
    "adamw_hf": "adamw", "adamw_apex_fused": "adamw", "adamw_torch_xla": "adamw", "adamw_anyprecision": "adamw-anyprecision",
    "fusedadam": "adamw", "cpuadam": "adamw", "cpu_adam": "adamw", "decoupled_adamw": "adamw",
    "adam_pax": "adamw", "adamwfloat8": "adamw", "skipstepadamw": "adamw", "adamwconfig": "adamw",
    "skipstepadamwconfig": "adamw", "stableadamw": "adamw", "stable_adamw": "adamw", "schedule_free_adamw": "adamw",
    "paged_adamw": "paged-adamw", "paged_adamw_32bit": "paged-adamw", "pagedadamw": "paged-adamw", "distributed_fused_adam": "adamw",
    "deepspeedcpuadam": "adamw", "hybridadam": "adamw", "adamcpuoffload": "adamw",
    "adamw_8bit": "adam8bit", "adamw_bnb_8bit": "adam8bit", "adam8bit": "adam8bit", "adamw8bit": "adam8bit",
    "paged_adamw_8bit": "paged-adam8bit", "pagedadamw8bit": "paged-adam8bit", "ao_adamw_8bit": "adam8bit",
    "adamw_torch_8bit": "adam8bit", "onebitadam": "adamw", "zerooneadam": "adamw", "adamw_torch_4bit": "adam4bit",
    "adam_mini": "adam-mini", "adammini": "adam-mini", "ao_adamw_4bit": "adam4bit", "adamw4bit": "adam4bit",
    "dist_muon": "muon", "muonreference": "muon", "muonclip": "muon", "muon": "muon", "normuon": "muon", "adafactor": "adafactor", "lion_8bit": "lion8bit",
    "decoupled_lionw": "lion", "lionw": "lion", "lion_32bit": "lion", "paged_lion_32bit": "paged-lion",
    "paged_lion_8bit": "paged-lion8bit", "fusedlamb": "lamb", "onebitlamb": "lamb",
    "adamw_torch_npu_fused": "adamw", "ademamix_8bit": "ademamix8bit", "paged_ademamix_32bit": "paged-ademamix",
    "paged_ademamix_8bit": "paged-ademamix8bit", "rmsprop_bnb": "rmsprop", "rmsprop_bnb_32bit": "rmsprop",
    "rmsprop_bnb_8bit": "rmsprop8bit", "galore_adamw": "galore", "galore_adamw_8bit": "galore8bit",
    "galore_adafactor": "galore-adafactor", "apollo_adamw": "apollo", "schedule_free_radam": "adamw", "schedule_free_sgd": "sgd-momentum",
}  # fmt: skip


LAYERWISE = "_layerwise"
"""What the names of optimizers end with that take each gradient as the backward makes it."""
_WHERE = re.compile(
    r"fused|torch|apex|distributed|mcore|optim(?:izer)?|megatron|deepspeed|decoupled|foreach|dist(?=_)|_"
)
"""How or where an optimizer runs, which changes none of its state; what is left names it."""


def optimizer_named(name: str, option: str, momentum: float = 0.9) -> OptimizerRecipe:
    """Return the recipe of an optimizer.

    Raises:
        SpecError: the optimizer's state is not known.
    """
    short = name.strip().rsplit(".", 1)[-1].lower().replace("-", "_").removesuffix(LAYERWISE)
    if short == "sgd":
        return OPTIMIZERS["sgd-momentum" if momentum else "sgd"]
    ours = (
        _NAMES.get(short) or _NAMES.get(_WHERE.sub("", short)) or _WHERE.sub("", short) or "adamw"
    )
    if OPTIMIZERS.get(short) or OTHER_OPTIMIZERS.get(short):
        ours = short
    recipe = OPTIMIZERS.get(ours) or OTHER_OPTIMIZERS.get(ours)
    if recipe is None:
        raise SpecError(
            option,
            name,
            f"the state of this optimizer is not known; one of {', '.join([*OPTIMIZERS, *OTHER_OPTIMIZERS])}",
        )
    return recipe


def optimizer_or_adamw(
    reading: Reading, name: str, option: str, momentum: float = 0.9, shown: str = ""
) -> OptimizerRecipe:
    """A reader's optimizer by its name; one whose state nobody knows is named (`shown`: as the file has it) and priced as AdamW."""
    try:
        return optimizer_named(name, option, momentum)
    except SpecError:
        reading.unmodelled(option, f"the state of {shown or name} is not known; AdamW's is priced")
        return OPTIMIZERS["adamw"]


_AS_WIDE = ("adamw", "galore", "apollo", "grokadamw")
"""Optimizers whose moments are as wide as the weights that they update."""


def torch_moments(optimizer: OptimizerRecipe, precision: PrecisionRecipe) -> OptimizerRecipe:
    """An optimizer of torch over weights that have no 32-bit copy: its moments are of their width."""
    if (
        precision.master_bytes == 0
        and precision.parameter_bytes == 2
        and optimizer.name in _AS_WIDE
    ):
        return optimizer.but(state_bytes=optimizer.state_bytes / 2)
    return optimizer


def cast_where_used(*, wide: bool) -> PrecisionRecipe:
    """JAX trainers in bf16: 32-bit weights (`wide`) are cast where they are used, without a copy beside them."""
    if wide:
        return RECIPES["bf16-fp32-grads"].but(parameter_bytes=4, master_bytes=0)
    return RECIPES["pure-bf16"]


def weights_alone(job: dict[str, Any], *, sharded: bool) -> None:
    """Settle a job that computes in 16-bit weights without mixed precision.

    torch's optimizer then keeps moments of that width. DeepSpeed's ZeRO keeps 32-bit weights and
    gradients of its own whatever it is given (`_configure_master_weights` in
    deepspeed/runtime/base_optimizer.py) unless `bf16_master_weights_and_grads` says otherwise.
    """
    precision = PrecisionRecipe.model_validate(job.get("precision", {}))
    if precision.name != "pure-bf16":
        return
    if job.get("framework") == "deepspeed" and sharded:
        job["precision"] = RECIPES["bf16"].but(gradient_bytes=4).model_dump()
        return
    optimizer = OptimizerRecipe.model_validate(job.get("optimizer", {}))
    job["optimizer"] = torch_moments(optimizer, precision).model_dump()
