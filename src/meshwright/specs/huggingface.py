"""Reads a Hugging Face `config.json` into a `Model`, in old and new key spellings.

Where a key is absent, the default is that of the family's configuration class in transformers, so
that the parameter count equals what transformers would build (a differential test holds this).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.hf_config import Config
from meshwright.specs.hf_dense import DENSE
from meshwright.specs.hf_sparse import SPARSE
from meshwright.specs.model import Model
from meshwright.specs.numerics import from_config

READERS = {**DENSE, **SPARSE}
"""Reader of each supported `model_type`."""

_SAME_AS = {"kimi_k2": "deepseek_v3", "ministral": "mistral", "phi4": "phi3"}
_TEXT_OF = {"gemma3": "gemma3_text", "llama4": "llama4_text", "mistral3": "mistral"}
_FAMILY_LIST = ", ".join(sorted(READERS))


def is_config(data: Mapping[str, Any]) -> bool:
    """Whether parsed data looks like a Hugging Face config rather than our own model file."""
    return "model_type" in data or "architectures" in data


def model_from_config(data: Mapping[str, Any], name: str = "", source: str = "") -> Model:
    """Build a Model from a parsed config.json of a supported family.

    Of a multimodal config only the language model (`text_config`) is taken.

    Raises:
        SpecError: unsupported family, a required key is absent, or a value is impossible.
    """
    given_type = data.get("model_type")
    text = data.get("text_config")
    if isinstance(text, Mapping):
        note = f"language model of the multimodal {given_type} config; other parts are not counted"
        inner = {"model_type": _TEXT_OF.get(str(given_type), f"{given_type}_text"), **text}
        return model_from_config(inner, name, f"{source}; {note}" if source else note)
    if not isinstance(given_type, str):
        raise SpecError("config.model_type", given_type, f"a family is expected: {_FAMILY_LIST}")
    family = _SAME_AS.get(given_type, given_type)
    read = READERS.get(family)
    if read is None:
        raise SpecError(
            "config.model_type", given_type,
            f"this family is not supported ({nearest(given_type, READERS)}); "
            "describe the model by its shape instead",
        )  # fmt: skip
    config = Config(data)
    fields = read(config)
    fields.setdefault("family", family)
    known = data.get("_name_or_path")
    fields["name"] = name or (known if isinstance(known, str) and known else given_type)
    fields["source"] = source or "a Hugging Face config.json"
    if data.get("num_nextn_predict_layers"):
        fields["source"] += "; its multi-token-prediction layers are not counted"
    fields.setdefault("numerics", from_config(data))
    return Model.parse(fields, "config")


def families() -> list[str]:
    """Names of the supported `model_type`s, aliases included."""
    return sorted({*READERS, *_SAME_AS})
