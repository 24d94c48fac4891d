"""Models of families without a reader: their modules are built without weights and counted.

The counting runs in a process of its own (`meshwright.engine.model.traced`), which needs torch and
transformers; nothing here imports either.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from meshwright.specs import traced_kept
from meshwright.specs.encoders import encoder_fields
from meshwright.specs.errors import SpecError
from meshwright.specs.hf_config import Config
from meshwright.specs.hf_dense import Fields, llama
from meshwright.specs.hf_hybrid import gated_delta
from meshwright.specs.hf_indexed import indexer_of
from meshwright.specs.hf_kinds import LINEAR, layer_kinds
from meshwright.specs.hf_sparse import experts_of, latent_of
from meshwright.specs.model import TABLES

PATIENCE_S = 120.0
"""Time that building a config's modules may take."""
AFTER_S = 1.0
"""Time after which whoever waits at a terminal is told for what."""
AFTER_UNSEEN_S = 2.0
"""The same where the answer goes to a file or to another program."""

MOST_LAYERS = 1000
"""Layers (or experts, where each is a module) of a config that is built: a few seconds of work."""
_COUNTS_MODULES = re.compile(r"^(num_.*layers|.*n_layers?|.*_layers|.*depth)$")

_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_k",
    "moe_topk",
    "top_k_experts",
    "moe_top_k",
    "router_top_k",
    "top_k",
)
_WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size",
          "expert_ffn_hidden_size", "ffn_hidden_size", "intermediate_size")  # fmt: skip


def trace(config: Mapping[str, Any]) -> dict[str, Any]:
    """Count a config's modules in a process of its own.

    Raises:
        SpecError: torch or transformers is not there, or cannot build the config.
    """
    _bounded("config", config)
    if (before := traced_kept.kept(config)) is not None:
        return before
    family = config.get("model_type")
    command = [sys.executable, "-m", "meshwright.engine.model.traced"]
    told = threading.Timer(
        AFTER_S if sys.stderr.isatty() else AFTER_UNSEEN_S,
        _tell,
        [f"counting {family}: its modules are being built without weights …"],
    )
    told.daemon = True
    told.start()
    try:
        ran = subprocess.run(
            command, input=json.dumps(dict(config)), capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        answer = json.loads(ran.stdout)
    except subprocess.TimeoutExpired:
        answer = {"error": f"not built within {PATIENCE_S:.0f} s"}
    except ValueError:
        answer = {"error": "the counting process failed"}
    finally:
        told.cancel()
    if "Unrecognized model identifier" in str(answer.get("error", "")):
        answer = {"error": "it has no class of this name"}
    if "error" in answer:
        raise SpecError(
            "config.model_type",
            family,
            f"this family is not supported: it has no reader, and transformers cannot build it ({answer['error']}); "
            "describe the model by its shape instead",
        )
    traced_kept.keep(config, answer)
    return dict(answer)


def _bounded(where: str, config: Mapping[str, Any]) -> None:
    """Refuse what cannot be built in a moment: modules are made one by one.

    Raises:
        SpecError: more layers than `MOST_LAYERS`, in any part.
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            _bounded(f"{where}.{key}", value)
        elif isinstance(value, int) and value > MOST_LAYERS and _COUNTS_MODULES.search(key):
            raise SpecError(
                f"{where}.{key}",
                value,
                f"at most {MOST_LAYERS:,} are built to be counted; describe the model by its shape",
            )


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def traced_fields(answer: Mapping[str, Any]) -> Fields:
    """Return fields of Model, whose parameters count as traced, from an answer of `trace`."""
    layers = list(answer["layers"])
    if not layers:
        raise SpecError(
            "config.model_type",
            answer["config"].get("model_type"),
            f"no stack of decoder layers is found in {answer['class']}; describe the model by its shape",
        )
    known = {"intermediate_size": 1, "num_attention_heads": 1, **answer["config"]}
    for name, value in known.items():  # a list has one number a layer
        if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
            known[name] = max(value)
    fields = llama(Config(known))
    fields["layers"] = len(layers)
    fields["tied_embeddings"] = not any("head" in name for name in answer["outside"])
    for name in ("qkv_bias", "attention_out_bias", "ffn_bias"):
        fields[name] = False
    dense = [layer.get("ffn", 0) for layer in layers if not layer.get("experts")]
    fields["gated"], fields["ffn"] = _width(fields, max(dense, default=0), known)
    types = [str(one) for one in answer["config"].get("layer_types") or ()]
    mixers = types if len(types) == len(layers) else ["attention"] * len(layers)
    fields.update(_mixing(known, fields["heads"]))
    if "mixer" not in fields:
        mixers = ["attention" if mixer in LINEAR else mixer for mixer in mixers]
    ffns = [
        "moe" if one.get("experts") else "dense" if one.get("ffn") else "none" for one in layers
    ]
    mixers = [
        mixer if layer.get("mixer") else "none" for mixer, layer in zip(mixers, layers, strict=True)
    ]
    if "moe" in ffns:
        fields["experts"] = _experts(known, layers)
    fields["layer_kinds"] = layer_kinds(mixers, ffns)
    if indexer := indexer_of(known, mixers):
        fields["indexer"] = indexer
    window = answer["config"].get("sliding_window")
    if window and "latent_attention" not in fields:
        fields["window"] = int(window)
    if encoder := encoder_fields(answer):
        fields["encoder"] = encoder
    if answer["tables"]:
        fields["extra_parameters"] = {TABLES: int(answer["tables"])}
    fields["counted_parameters"] = int(answer["total"])
    return fields


_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
_DELTA = ("linear_num_value_heads", "linear_value_head_dim", "linear_num_key_heads",
          "linear_key_head_dim", "linear_conv_kernel_dim")  # fmt: skip
_KIMI_DELTA = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")


def _mixing(config: Mapping[str, Any], heads: int) -> Fields:
    """Fields of what mixes tokens, where a config spells all of it as the families with readers do."""
    found: Fields = {}
    if all(config.get(name) for name in _LATENT) and "qk_rope_head_dim" in config:
        found |= latent_of(Config({"q_lora_rank": 0, **config}), heads)
    if all(config.get(name) for name in _DELTA):
        found["mixer"] = gated_delta(Config(dict(config)))
    elif all(config.get(name) for name in _KIMI_DELTA):
        heads, width, taps = (int(config[name]) for name in _KIMI_DELTA)
        found["mixer"] = {
            "kind": "kda", "heads": heads, "head_dim": width, "key_heads": heads, "key_dim": width,
            "conv": taps, "rank": width,
        }  # fmt: skip
    return found


def _width(fields: Fields, held: int, config: Mapping[str, Any]) -> tuple[bool, int]:
    """Whether the FFN is gated, and its width, from the parameters that it holds."""
    stated = config.get("intermediate_size")
    if isinstance(stated, int) and stated > 1 and held:
        return held > 2.5 * stated * fields["hidden"], stated
    plain = 4 * fields["hidden"]  # what configs without a width mean
    if held and abs(held / (2 * plain * fields["hidden"]) - 1) < 0.01:
        return False, plain
    return True, max(held // (3 * fields["hidden"]), 1)


def _experts(config: Mapping[str, Any], layers: list[dict[str, int]]) -> Any:
    """The experts that the config's keys name, as large as the traced ones."""
    found = [
        next((config[name] for name in names if isinstance(config.get(name), int) and config[name]), 1)
        for names in (_EXPERTS, _TOP_K, _WIDTH)
    ]  # fmt: skip
    count, top_k, width = found
    if count < 2:
        raise SpecError(
            "config.num_experts",
            None,
            "has experts whose number stands under no name that is known here; describe the model by its shape",
        )
    hidden = int(config["hidden_size"])
    held = max(layer.get("experts", 0) for layer in layers)
    each = held // max(count, 1)
    if each and abs(each / (3 * hidden * width) - 1) > 0.05:
        width = max(each // (3 * hidden), 1)
    shared = max((layer.get("ffn", 0) for layer in layers if layer.get("experts")), default=0)
    return experts_of(
        experts=max(count, 1),
        top_k=min(top_k, count),
        ffn=width,
        shared_ffn=max(shared - count * hidden, 0) // (3 * hidden),
    )
