"""Counts a config.json's parameters by building it on torch's meta device: no memory, no weights.

Run as a process of its own (`python -m meshwright.engine.model.traced`): a config.json on standard
input, a JSON object on standard output. Only classes that transformers ships are built; code that a
config names elsewhere is never fetched nor run.
"""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import sys
from typing import Any

_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d+)\.(.+)$")
_ENCODER = re.compile(
    r"vision|visual|image|audio|speech|multi_modal|multimodal|mm_|projector|connector|resampler|qformer"
    r"|embed_vision|embed_audio|perceiver|aligner"
)
_FFN = re.compile(
    r"mlp|feed_forward|ffn|moe|experts|shared_expert|fc1|fc2|dense_h|dense_4h|block_sparse|DenseReluDense|^intermediate\b|^output\.dense"
)
_NORM = re.compile(r"norm|ln_|\bln\d")
_MIXER = re.compile(r"attn|attention|mamba|mixer|conv|temporal|ssm|linear_attn|laurel|delta|rwkv")


UNNEEDED = (
    "scipy", "sklearn", "pandas", "datasets", "tensorflow", "jax", "flax", "deepspeed", "bitsandbytes",
    "peft",
)  # fmt: skip
"""Packages that transformers imports where they are installed, and that no module needs to be counted."""
MOST_BYTES = 6 * 2**30
"""Memory that counting a config may take."""


def tally(config: dict[str, Any]) -> dict[str, Any]:
    """Return what a config's modules hold: totals, and each layer by part.

    Raises:
        ValueError: transformers has no class for the config, or cannot build it.
    """
    import torch
    import transformers

    from meshwright.engine.model.towers import plain as plainly
    from meshwright.engine.model.towers import tower_of

    transformers.logging.set_verbosity_error()
    fields = {key: value for key, value in config.items() if key not in ("model_type", "auto_map")}
    try:
        made = transformers.AutoConfig.for_model(str(config.get("model_type")), **fields)
        with torch.device("meta"):
            model, alone = _built(transformers, made)
    except Exception as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{type(error).__name__}: {said}"[:300]) from None
    text = made.get_text_config() if hasattr(made, "get_text_config") else made
    layers: list[dict[str, int]] = []
    outside: dict[str, int] = {}
    encoder = 0
    for name, weight in model.named_parameters():
        found = _LAYER.search(name)
        # What a layer of the language model has for images (experts of their own) is that layer's.
        if _ENCODER.search(name if found is None else name[: found.start()]):
            encoder += weight.numel()
            continue
        if found is None:
            outside[name] = weight.numel()
            continue
        index, inner = int(found.group(1)), found.group(2)
        while len(layers) <= index:
            layers.append({})
        part = _part(inner)
        layers[index][part] = layers[index].get(part, 0) + weight.numel()
    plain = {
        key: value
        for key, value in text.to_dict().items()
        if isinstance(value, (int, float, bool, str))
        or (isinstance(value, list) and len(value) < 2000)
    }
    for part in ("attn_config", "ffn_config", "moe_config"):  # as DBRX groups its numbers
        inner_config: Any = getattr(text, part, None)
        numbers = inner_config.to_dict() if hasattr(inner_config, "to_dict") else inner_config
        for key, value in numbers.items() if isinstance(numbers, dict) else ():
            if isinstance(value, (int, float)):
                plain.setdefault(key, value)
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        if isinstance(value := stated(text, name), int):
            plain[name] = value  # a family's own spelling, under the usual name
    # The encoder that came along is none of the config's.
    beside, encoder = (encoder, 0) if alone else (0, encoder)
    return {
        "total": sum(weight.numel() for weight in model.parameters()) - beside,
        "tables": _tables(model), "encoder": encoder, "layers": layers, "outside": outside, "config": plain,
        "tower": tower_of(model, _ENCODER) if encoder else None, "whole": plainly(made) if encoder else {},
        "class": type(model).__name__, "transformers": transformers.__version__,
    }  # fmt: skip


def stated(config: Any, name: str) -> Any:
    """A config's attribute; None where its layers differ in it, which transformers then refuses to read."""
    try:
        return getattr(config, name, None)
    except RuntimeError:
        return None


def _tables(model: Any) -> int:
    """Parameters of tables that tokens look up, besides the token embedding: of layers, of positions."""
    import torch

    try:
        tokens = model.get_input_embeddings()
    except NotImplementedError:
        tokens = None
    return sum(
        part.weight.numel()
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.Embedding) and part is not tokens and not _ENCODER.search(name)
    )


def _built(transformers: Any, made: Any) -> tuple[Any, bool]:
    """(the model of a config, whether the config is of its language model alone).

    A multimodal model where there is one, else the language model; that of a multimodal one may have no class of its own.
    """
    kinds = ("AutoModelForImageTextToText", "AutoModelForCausalLM", "", "AutoModelForMultimodalLM",
             "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel")  # fmt: skip
    failure: Exception | None = None
    for kind in kinds:
        try:
            if kind and hasattr(transformers, kind):
                return getattr(transformers, kind).from_config(made, trust_remote_code=False), False
            if not kind and (whole := _around(made)) is not None:
                return transformers.AutoModelForImageTextToText.from_config(whole), True
        except Exception as error:
            unknown = isinstance(error, ValueError) and "Unrecognized configuration" in str(error)
            failure = failure if unknown and failure is not None else error
    assert failure is not None
    raise failure


def _around(text: Any) -> Any:
    """A multimodal configuration around one of its language model; None where its module has none."""
    for other in vars(sys.modules[type(text).__module__]).values():
        parts = getattr(other, "sub_configs", None)
        if isinstance(parts, dict) and parts.get("text_config") is type(text):
            return other(text_config=text.to_dict())
    return None


def _part(inner: str) -> str:
    """The part of a layer that a weight belongs to."""
    if _ENCODER.search(inner):
        return "other"  # tokens of text do not pass it
    if "expert" in inner and "shared" not in inner:
        return "experts"
    head = inner.split(".")[0]
    if _FFN.search(inner):
        return "ffn"
    if _MIXER.search(inner) and not _NORM.search(head):
        return "mixer"
    return "norms" if _NORM.search(inner) else "other"


def main() -> None:
    """Read a config from standard input, print its tally, or one line of `error`."""
    # Importing torch and transformers makes millions of objects that live as long as the process: looking for
    # garbage among them takes a quarter of its time, taking them down one by one at the end another.
    gc.disable()
    # A config may ask for a million layers; it gets no more than a laptop has.
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    for name in UNNEEDED:
        sys.modules[name] = None  # type: ignore[assignment]  # Python's way to say: there is none
    try:
        answer: dict[str, Any] = tally(json.load(sys.stdin))
    except (ValueError, ImportError, RecursionError, MemoryError) as error:
        answer = {"error": str(error).splitlines()[0][:300] if str(error) else "cannot be built"}
    json.dump(answer, sys.stdout)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
    os._exit(0)
