"""Fine-tuning: which weights train, through which adapters, and how the frozen ones are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from meshwright.specs.base import Spec
from meshwright.specs.errors import SpecError, nearest

Method = Literal["full", "lora", "dora", "qlora"]
Storage = Literal["16-bit", "nf4", "fp4", "int8", "int4", "fp8", "mxfp4", "nvfp4"]

TARGETS = ("q", "k", "v", "o", "gate", "up", "down", "experts", "router", "head", "embedding")
"""Matrices that adapters may sit on, by what they do. `gate`, `up` and `down` are the dense or shared
FFN's; `experts` the routed ones'."""

GROUPS: dict[str, tuple[str, ...]] = {
    "attention": ("q", "k", "v", "o"),
    "mlp": ("gate", "up", "down"),
    "all-linear": ("q", "k", "v", "o", "gate", "up", "down"),
}
"""Names for several targets. `all-linear` leaves out the head, as PEFT's does, and routed experts,
which transformers keep as one tensor a layer that PEFT's `all-linear` does not see."""

MODULES: dict[str, tuple[str, ...]] = {
    "q_proj": ("q",), "k_proj": ("k",), "v_proj": ("v",), "o_proj": ("o",), "out_proj": ("o",),
    "output_proj": ("o",), "dense": ("o",), "wq": ("q",), "wk": ("k",), "wv": ("v",), "wo": ("o",),
    "qkv_proj": ("q", "k", "v"), "query_key_value": ("q", "k", "v"), "w_pack": ("q", "k", "v"), "c_attn": ("q", "k", "v"),
    "wqkv": ("q", "k", "v"), "qkv": ("q", "k", "v"), "linear_qkv": ("q", "k", "v"),
    "linear_proj": ("o",),
    "q_a_proj": ("q",), "q_b_proj": ("q",), "kv_a_proj_with_mqa": ("k",), "kv_b_proj": ("v",),
    "gate_proj": ("gate",), "up_proj": ("up",), "down_proj": ("down",),
    "gate_up_proj": ("gate", "up"), "linear_fc1": ("gate", "up"), "linear_fc2": ("down",),
    "w1": ("gate",), "w2": ("down",), "w3": ("up",), "fc1": ("up",), "fc2": ("down",),
    "c_fc": ("up",), "c_proj": ("o", "down"), "mlp": GROUPS["mlp"],
    "dense_h_to_4h": ("up",), "dense_4h_to_h": ("down",),
    "lm_head": ("head",), "output": ("head",), "embed_tokens": ("embedding",), "wte": ("embedding",),
    "all": GROUPS["all-linear"], "all_linear": GROUPS["all-linear"],
}  # fmt: skip
"""Module names of public models, in the words of `TARGETS`."""


def targets_of(names: object, field: str = "finetune.targets") -> tuple[str, ...]:
    """Return targets in `TARGETS`' order from names, groups or public models' module names.

    A dotted name counts by its last part (`self_attn.q_proj`).

    Raises:
        SpecError: no such target.
    """
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, (list, tuple)) or not listed:
        raise SpecError(field, names, f"names of matrices are expected: {', '.join(TARGETS)}")
    found: set[str] = set()
    for name in [part for one in listed for part in str(one).split(",")]:
        short = name.strip().rsplit(".", 1)[-1].lower()
        if short in TARGETS:
            found.add(short)
        elif short in GROUPS or short in MODULES:
            found.update(GROUPS.get(short) or MODULES[short])
        else:
            known = (*TARGETS, *GROUPS, *MODULES)
            raise SpecError(field, name, f"no such matrix; {nearest(short, known)}")
    return tuple(target for target in TARGETS if target in found)


class Finetune(Spec):
    """How a trained model is trained further."""

    method: Method = Field("lora", description="full, lora, dora, or qlora (LoRA on 4-bit weights)")
    rank: int = Field(16, ge=1, le=65_536, description="rank of the adapters")
    alpha: float = Field(32.0, gt=0, description="adapters are scaled by alpha / rank")
    targets: tuple[str, ...] = Field(
        GROUPS["all-linear"], description="matrices with adapters: names, groups, module names"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="on an adapter's input")
    train: tuple[Literal["embedding", "head", "norms"], ...] = Field(
        (), description="parts trained in full beside the adapters (PEFT's modules_to_save)"
    )
    freeze: tuple[Literal["embedding", "head", "norms", "vision"], ...] = Field(
        (), description="with method full: parts that do not train"
    )
    frozen_layers: int = Field(
        0, ge=0, description="with method full: this many layers, from the first, do not train"
    )
    in_turn: int = Field(
        0,
        ge=0,
        description="with method full: this many layers train at a time, each in its turn (BAdam)",
    )
    storage: Storage = Field("16-bit", description="how the frozen matrices are stored")
    double_quantization: bool = Field(
        False, description="the scales of 4-bit blocks are quantised in turn (QLoRA §3)"
    )
    upcast: bool = Field(
        False,
        description="frozen 16-bit parameters are kept in fp32 (PEFT's prepare_model_for_kbit_training)",
    )
    adapter_bytes: float = Field(
        4.0, ge=0, le=4, description="of an adapter's weight; 0: as the precision recipe's weights"
    )

    @field_validator("targets", mode="before")
    @classmethod
    def _named(cls, value: object) -> tuple[str, ...]:
        return targets_of(value)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.method == "qlora" and self.storage == "16-bit":
            raise SpecError("storage", self.storage, "qlora stores frozen weights in 4 or 8 bits")
        if self.method == "full":
            if self.storage != "16-bit":
                raise SpecError(
                    "storage", self.storage, "with method full weights are not quantised"
                )
            if self.train:
                raise SpecError(
                    "train", list(self.train), "with method full all parts train already"
                )
            if self.in_turn and self.frozen_layers:
                raise SpecError("in_turn", self.in_turn, "0 beside frozen_layers")
        elif self.partial:
            named = next(n for n in ("freeze", "frozen_layers", "in_turn") if getattr(self, n))
            raise SpecError(named, getattr(self, named), f"{self.method} freezes all base weights")
        return self

    @property
    def partial(self) -> bool:
        """Whether some base weights do not train, or not all at a time."""
        return bool(self.freeze or self.frozen_layers or self.in_turn)

    @property
    def partial_text(self) -> bool:
        """Whether that holds of the language model: an encoder is left out by a line of any program."""
        return self.partial and (
            self.freeze != ("vision",) or bool(self.frozen_layers or self.in_turn)
        )

    @property
    def adapts(self) -> bool:
        """Whether adapters train instead of the base weights."""
        return self.method != "full"

    def label(self) -> str:
        """A few words: `qlora rank 16 on q, v; nf4`."""
        if not self.adapts:
            still = [
                *self.freeze,
                *([f"{self.frozen_layers} layers"] if self.frozen_layers else []),
            ]
            turns = f", {self.in_turn} layer{'s' * (self.in_turn > 1)} at a time" * bool(
                self.in_turn
            )
            return "full" + (f" without {', '.join(still)}" if still else "") + turns
        where = "all linear" if self.targets == GROUPS["all-linear"] else ", ".join(self.targets)
        stored = "" if self.storage == "16-bit" else f"; {self.storage}"
        twice = " twice quantised" if self.double_quantization else ""
        also = f"; {', '.join(self.train)} trained" if self.train else ""
        return f"{self.method} rank {self.rank} on {where}{stored}{twice}{also}"


def finetune_recipe(what: object, field: str = "finetune") -> Finetune | None:
    """Return fine-tuning from a method's name or a table of fields; None or `none` means none.

    `qlora` by name is NF4 with double quantisation (Dettmers et al. 2023, arXiv 2305.14314).

    Raises:
        SpecError: unknown method or field.
    """
    if what is None or what == "none":
        return None
    if isinstance(what, Finetune):
        return what
    if isinstance(what, str):
        what = {"method": what.strip().lower()}
    if not isinstance(what, Mapping):
        raise SpecError(field, what, "full, lora, dora, qlora or a table of fields is expected")
    fields: dict[str, Any] = dict(what)
    if fields.get("method") == "qlora":
        fields.setdefault("storage", "nf4")
        if fields["storage"] in ("nf4", "fp4"):
            fields.setdefault("double_quantization", True)
    return Finetune.parse(fields, field)
