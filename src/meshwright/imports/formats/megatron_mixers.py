"""Layers of Megatron-LM that mix tokens by other means: gated delta nets, indexers, and what a spec names."""

from __future__ import annotations

import re
from typing import Any

from meshwright.exports.megatron_model import read_pattern
from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model
from meshwright.specs.models import load_model, model_names

_DELTA = ("gated_delta_net", "gdn")
_SPECS = {"qwen3_next": "qwen3-next-", "qwen3_5": "qwen3.", "glm5": "glm-5"}
"""Specs of slime (`slime_plugins.models.…`) and of its forks by how the presets of their models begin."""
OF_MIXERS = ("linear-", "dsa-", "experimental-attention-variant", "attention-output-gate", "use-gated-attention")  # fmt: skip


_BLOCKS = {"M": "linear+none", "G": "linear+none", "*": "attention+none", "-": "none+dense", "E": "none+moe"}  # fmt: skip


def pattern(options: Options) -> str:
    """A letter for each block of a hybrid model; empty where there is none, or one with blocks of other kinds.

    Blocks of multi-token prediction follow a `/`; `|` cuts pipeline stages.
    """
    said = options.text("hybrid-layer-pattern") or options.text("hybrid-override-pattern")
    main = said.strip("\"' ").partition("/")[0].replace("|", "")
    return main if set(main) <= {*_BLOCKS} and not {"M", "G"} <= {*main} else ""


def further(options: Options, reading: Reading, model: Model) -> Model:
    """The model with the layers that predict further tokens: as many as are asked for, or as a hybrid's pattern holds.

    Raises:
        SpecError: more of them than a model can have.
    """
    behind = options.text("hybrid-layer-pattern").strip("\"' ").split("/")[1:]
    depths = options.whole("mtp-num-layers", default=len([one for one in behind if one]))
    stages = options.text("pipeline-model-parallel-layout").rsplit("|", 1)
    if depths and "m" in stages[0] and len(stages) > 1:
        reading.note("the layers that predict further tokens stand before the head's stage; they are priced in it", "--pipeline-model-parallel-layout")  # fmt: skip
    return model if depths == model.predict_layers else model.but(predict_layers=depths)


def count_blocks(options: Options) -> None:
    """A pattern says how many blocks and stages there are, whatever stands beside it."""
    blocks = pattern(options)
    if not blocks:
        return
    options.values["num-layers"] = str(len(blocks))
    stages = len(stage_blocks(options))
    pp = options.whole("pipeline-model-parallel-size", default=1, least=1)
    if stages > pp and stages % pp == 0:
        options.values.setdefault("num-virtual-stages-per-pipeline-rank", str(stages // pp))


def stage_blocks(options: Options) -> tuple[int, ...]:
    """Blocks of each pipeline stage, as a hybrid's pattern cuts them; one number where it cuts none."""
    said = options.text("hybrid-layer-pattern").strip("\"' ").partition("/")[0]
    return tuple(len(one) for one in said.split("|"))


def variant(options: Options) -> str:
    """`hybrid`, `delta`, `indexer`, or nothing for what is softmax attention or is not modelled."""
    if pattern(options):
        return "hybrid"
    said = options.word("experimental-attention-variant", "linear-attention-type")
    if said in _DELTA and options.text("linear-attention-freq"):
        return "delta"
    if options.whole("full-attention-interval", default=0) > 1 and options.has("linear-num-value-heads"):  # fmt: skip
        return "delta"  # MindSpeed-LLM's, whose spec gates the attention, too
    return "indexer" if said == "dsa" else ""


def mixed(options: Options, fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of the model for its variant of attention; the experts' pattern moves into the layers' kinds."""
    layers, hidden, experts = fields["layers"], fields["hidden"], fields["experts"]
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
    if said == "hybrid":
        return gate | _hybrid(options, hidden)
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
    return gate | {"mixer": _delta(options), "layer_kinds": kinds}


def _delta(options: Options) -> dict[str, Any]:
    return {
        "kind": "gated-delta",
        "heads": options.whole("linear-num-value-heads", default=32),
        "head_dim": options.whole("linear-value-head-dim", default=128),
        "key_heads": options.whole("linear-num-key-heads", default=16),
        "key_dim": options.whole("linear-key-head-dim", default=128),
        "conv": options.whole("linear-conv-kernel-dim", "mamba-d-conv", default=4),
    }


def _hybrid(options: Options, hidden: int) -> dict[str, Any]:
    """Blocks of one part each, every one with its norm (core/models/hybrid/hybrid_layer_allocation.py)."""
    blocks = pattern(options)
    options.raw("hybrid-layer-pattern", "hybrid-override-pattern", "is-hybrid-model", "hybrid-attention-ratio", "hybrid-mlp-ratio")  # fmt: skip
    width = options.whole("mamba-head-dim", default=64, least=1)
    mamba = {
        "kind": "mamba2",
        "heads": options.whole("mamba-num-heads", default=2 * hidden // width),
        "head_dim": width,
        "key_heads": options.whole("mamba-num-groups", default=8),
        "key_dim": options.whole("mamba-state-dim", default=128),
        "conv": 4,
        "conv_bias": True,
    }
    mixer = _delta(options) if "G" in blocks else mamba if "M" in blocks else None
    kinds = [_BLOCKS[one] for one in blocks]
    return {"mixer": mixer, "layer_kinds": kinds, "norms_per_layer": 1}


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
    module = re.sub(r"^\w+_plugins\.models\.", "", own)
    begins = next((one for spec, one in _SPECS.items() if module != own and module.startswith(spec)), None)  # fmt: skip
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
