"""The encoder of a multimodal model, and its fields from what was traced of its modules (`meshwright.engine.model.towers`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from meshwright.specs.base import Spec
from meshwright.specs.errors import SpecError

Fields = dict[str, Any]

USUAL_SIDE = 768
"""Pixels of an image's side where the encoder takes any size: LLaMA-Factory's default `image_max_pixels` of
768 · 768, and what Qwen3-VL's table of positions spans."""
_ANY_SIZE = ("pixtral", "glm4v", "glm_ocr", "glm46v")
"""Encoders whose `image_size` is the largest, or the one that positions are interpolated from."""
_POOLED = {"qwen2_audio": 2, "qwen2_audio_encoder": 2}
"""Encoders that pool their outputs without parameters: how many become one."""


class Encoder(Spec):
    """What turns images (or sound) into tokens: on the pipeline's first rank."""

    parameters: int = Field(ge=0, description="encoder and projector together")
    kind: Literal["images", "sound"] = "images"
    family: str = Field("", description="the multimodal model's model_type")
    layers: int = Field(
        0, ge=0, le=10_000, description="blocks of full attention and FFN; 0: unknown, not priced"
    )
    hidden: int = Field(0, ge=0, le=1_000_000)
    heads: int = Field(1, ge=1, le=10_000)
    ffn: int = Field(0, ge=0, le=10_000_000)
    gated: bool = False
    patches: int = Field(
        0, ge=0, description="tokens inside the encoder of one image of usual size; 0: unknown"
    )
    joined: float = Field(
        1.0, gt=0, description="patches that become one token of the language model"
    )
    fixed: bool = Field(
        False,
        description="every image, or tile of one, has as many patches: the encoder takes no other",
    )
    window: int = Field(0, ge=0, description="patches that attention sees; 0: the whole image")
    whole_layers: int = Field(
        0, ge=0, description="layers that see the whole image where others have the window"
    )
    kept_widths: float = Field(
        0.0,
        ge=0,
        description="hidden widths that a block keeps for backward beyond those of a plain one",
    )
    patch_parameters: int = Field(
        0, ge=0, description="parameters that a patch is multiplied with before the blocks"
    )
    projector_parameters: int = Field(
        0,
        ge=0,
        description="parameters that each of the language model's tokens is multiplied with",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.layers and not (self.hidden and self.ffn and self.patches):
            given = {name: getattr(self, name) for name in ("hidden", "ffn", "patches")}
            raise SpecError(
                "layers",
                self.layers,
                f"with layers, hidden, ffn and patches are at least 1, not {given}",
            )
        if self.layers and self.hidden % self.heads:
            raise SpecError("heads", self.heads, f"a divisor of hidden = {self.hidden} is expected")
        if self.whole_layers > self.layers:
            raise SpecError("whole_layers", self.whole_layers, f"at most {self.layers} layers")
        return self

    @property
    def tokens(self) -> float:
        """Tokens of the language model that one image of usual size becomes."""
        return self.patches / self.joined


def encoder_fields(answer: Mapping[str, Any]) -> Fields | None:
    """Fields of `Encoder` from an answer of `trace`; None where the model has none.

    What is not known of its shape is left out: it is then counted and not priced.
    """
    held = int(answer["encoder"])
    if not held:
        return None
    fields: Fields = {"parameters": held}
    tower = answer.get("tower")
    if not isinstance(tower, Mapping):
        return fields
    config: Mapping[str, Any] = tower["config"]
    joined = float(tower["joined"]) * _POOLED.get(str(config.get("model_type")), 1)
    patches, fixed = _patches(tower, config, joined)
    if not patches or int(tower["hidden"]) % int(tower["heads"]):
        return fields
    whole: Mapping[str, Any] = answer.get("whole") or {}
    if tokens := whole.get("mm_tokens_per_image"):  # Gemma 3 pools what its encoder gives
        joined = patches / int(tokens)
    fields |= {
        "family": str(whole.get("model_type") or ""), "kind": "sound" if tower["sound"] else "images", "patches": patches, "fixed": fixed,
        "joined": joined, "kept_widths": _kept_widths(tower, config),
        "patch_parameters": int(tower["patch"]),
        "projector_parameters": int(tower["projector"]),
        **{name: tower[name] for name in ("layers", "hidden", "heads", "ffn", "gated")},
    }  # fmt: skip
    side, seen = _first(config.get("patch_size")), config.get("fullatt_block_indexes")
    if side and isinstance(config.get("window_size"), int) and isinstance(seen, list):
        fields |= {"window": (config["window_size"] // side) ** 2, "whole_layers": len(seen)}
    return fields


def _kept_widths(tower: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    """Hidden widths that autograd keeps of a block of transformers beyond a plain ViT's, counted on its modules.

    Where one product makes queries, keys and values, all three live on as long as the values, which are a part of
    them, and outputs of images are joined to one tensor; a scale on what a half adds keeps it; CLIP's
    activation is written out, x · sigmoid(1.702 x).
    """
    widths = 3.0 * bool(tower.get("one_product"))
    widths += 2.0 * bool(config.get("layer_scale_init_value"))
    if config.get("hidden_act") == "quick_gelu" and not tower["gated"]:
        widths += float(tower["ffn"]) / float(tower["hidden"])
    return widths


def _patches(
    tower: Mapping[str, Any], config: Mapping[str, Any], joined: float
) -> tuple[int, bool]:
    """Patches of an image of usual size (or of the longest sound), and whether there are always as many."""
    if tower["sound"]:
        return int(config.get("max_source_positions") or 0), True
    if isinstance(config.get("num_patches"), int):
        return int(config["num_patches"]), False
    side, size = _first(config.get("patch_size")), _first(config.get("image_size"))
    if not side:
        return 0, False
    if size and not str(config.get("model_type")).startswith(_ANY_SIZE):
        return (size // side) ** 2, True
    together = round(joined**0.5)  # an image has whole tokens along its sides
    return (USUAL_SIDE // (side * together) * together) ** 2, False


def _first(value: Any) -> int:
    """A side in pixels, which some configs list twice."""
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, int) else 0
