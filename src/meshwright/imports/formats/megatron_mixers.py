"""Layers of Megatron-LM that mix tokens by other means: gated delta nets, indexers, and what a spec names."""

from __future__ import annotations

from typing import Any

from meshwright.exports.megatron_model import read_pattern
from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model
from meshwright.specs.models import load_model, model_names

_DELTA = ("gated_delta_net", "gdn")
_SPECS = {"slime_plugins.models.qwen3_next": "qwen3-next-", "slime_plugins.models.qwen3_5": "qwen3.",
          "slime_plugins.models.glm5": "glm-5"}  # fmt: skip
"""Specs of slime and miles by how the presets of their models begin."""
OF_MIXERS = ("linear-", "dsa-", "experimental-attention-variant", "attention-output-gate", "use-gated-attention")  # fmt: skip


def variant(options: Options) -> str:
    """`delta`, `indexer`, or nothing for what is softmax attention or is not modelled."""
    said = options.word("experimental-attention-variant", "linear-attention-type")
    if said in _DELTA and options.text("linear-attention-freq"):
        return "delta"
    if options.whole("full-attention-interval", default=0) > 1 and options.has("linear-num-value-heads"):  # fmt: skip
        return "delta"  # MindSpeed-LLM's, whose spec gates the attention, too
    return "indexer" if said == "dsa" else ""


def mixed(options: Options, layers: int, experts: dict[str, Any] | None) -> dict[str, Any]:
    """Fields of the model for its variant of attention; the experts' pattern moves into the layers' kinds."""
    interval = options.whole("full-attention-interval", default=0)
    gated = options.flag("attention-output-gate", "use-gated-attention") or interval > 1
    gate = {"attention_gate": True} if gated else {}
    said = variant(options)
    if said == "indexer":
        sizes = {
            "heads": options.whole("dsa-indexer-n-heads", default=0),
            "head_dim": options.whole("dsa-indexer-head-dim", default=0),
            "top_k": options.whole("dsa-indexer-topk", default=0),
        }
        if not all(sizes.values()):
            raise SpecError("--experimental-attention-variant", "dsa", "--dsa-indexer-n-heads, -head-dim and -topk describe its indexer: all three are expected")  # fmt: skip
        options.raw(
            "dsa-indexer-loss-coeff", "dsa-indexer-use-sparse-loss", "linear-attention-freq"
        )
        return gate | {"indexer": sizes}
    if said != "delta":
        return gate
    options.raw("mamba-expand", "mamba-chunk-size", "mamba-state-dim", "use-triton-gdn")
    often = options.text("linear-attention-freq").strip("\"' ") or str(interval)
    linear = _linear(often, layers)
    dense, period = (experts["dense_layers"], experts["period"]) if experts else (layers, 1)
    kinds = [
        f"{'linear' if own else 'attention'}+"
        f"{'moe' if index >= dense and (index - dense) % period == 0 else 'dense'}"
        for index, own in enumerate(linear)
    ]
    if experts:
        experts |= {"dense_layers": 0, "period": 1}
    mixer = {
        "kind": "gated-delta",
        "heads": options.whole("linear-num-value-heads", default=32),
        "head_dim": options.whole("linear-value-head-dim", default=128),
        "key_heads": options.whole("linear-num-key-heads", default=16),
        "key_dim": options.whole("linear-key-head-dim", default=128),
        "conv": options.whole("linear-conv-kernel-dim", "mamba-d-conv", default=4),
    }
    return gate | {"mixer": mixer, "layer_kinds": kinds}


def _linear(text: str, layers: int) -> list[int]:
    """Which layers are linear: all but each n-th, or those that a list marks."""
    if text.isdigit():
        return [int((index + 1) % max(int(text), 1) != 0) for index in range(layers)]
    try:
        return read_pattern(text, layers)
    except SpecError as error:
        raise SpecError("--linear-attention-freq", text, error.remedy) from None


def by_spec(options: Options, reading: Reading) -> Model | None:
    """The preset whose layers a spec of slime's builds, where its sizes are the options'; else nothing."""
    said = options.text("spec").split()
    own = said[0].strip("\"'[],") if said else ""
    begins = next((one for spec, one in _SPECS.items() if own.startswith(spec)), None)
    if begins is None or variant(options):
        return None
    sizes = options.whole("num-layers"), options.whole("hidden-size")
    mixture = options.whole("num-experts", default=0) > 1
    for name in model_names():
        if not name.startswith(begins):
            continue
        model = load_model(name)
        if (model.layers, model.hidden) == sizes and (model.experts is not None) is mixture:
            if model.mixer is None and model.indexer is None:
                continue
            options.values["spec"] = "te"
            reading.note(f"{own} builds {name}'s layers: the preset is taken", "--model")
            return model
    return None
