"""Models that a checkout of torchtitan registers for a family, by the flavour that a configuration names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.code.follow import MAX_ROUNDS, call_function, parse_module
from meshwright.imports.code.syntax import parse_python
from meshwright.imports.code.values import Made, Module
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.model import Model

_ROOTS = ("torchtitan/models", "torchtitan/experiments")
_FAMILIES = {"llama3": "llama", "qwen3": "qwen3", "deepseek_v3": "deepseek_v3", "gpt_oss": "gpt_oss"}  # fmt: skip
_SIZES = {
    "hidden_size": ("dim",), "num_attention_heads": ("n_heads",), "num_key_value_heads": ("n_kv_heads",), "head_dim": ("head_dim",),
    "vocab_size": ("vocab_size",), "tie_word_embeddings": ("enable_weight_tying",),
    "q_lora_rank": ("q_lora_rank",), "kv_lora_rank": ("kv_lora_rank",), "qk_nope_head_dim": ("qk_nope_head_dim",),
    "qk_rope_head_dim": ("qk_rope_head_dim",), "v_head_dim": ("v_head_dim",), "sliding_window": ("sliding_window_size",),
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "num_shared_experts": 1, "top_k": 1}
"""What MoEArgs says where a flavour is silent (torchtitan/models/moe)."""


def at_hand(family: str, flavor: str, folder: Path | None) -> Model | None:
    """The model that the checkout around a configuration registers under a flavour; None where it is not at hand or cannot be followed."""
    path = _registry(family, folder)
    kind = next((ours for theirs, ours in _FAMILIES.items() if family.startswith(theirs)), "")
    if path is None or not kind or not flavor:
        return None
    try:
        module = parse_module(read_text(path, "model.flavor"), str(path), path.parent)
        made = _flavor(module, flavor)
        if made is None:
            return None
        return model_from_config(_config(kind, made, module), f"{family}-{flavor}", path.name)
    except SpecError:  # shapes of its own
        return None


def differs(own: Model, known: Model) -> bool:
    """Whether a flavour at hand is another model than the one that torchtitan's own registers by that name."""
    if own.experts is not None and known.experts is not None:
        sizes = ("experts", "top_k", "ffn", "shared_ffn")
        return _differ(own.experts, known.experts, sizes) or _differ(own, known, _COMPARED)
    return own.experts is not known.experts or _differ(own, known, (*_COMPARED, "ffn"))


_COMPARED = ("layers", "hidden", "heads", "kv_heads", "vocab")


def _differ(one: object, other: object, names: tuple[str, ...]) -> bool:
    return any(getattr(one, name) != getattr(other, name) for name in names)


def _registry(family: str, folder: Path | None) -> Path | None:
    # Releases of 2024 keep llama3 in a folder without the number.
    names = dict.fromkeys((family, family.rstrip("0123456789"))) if re.fullmatch(r"\w+", family) else ()  # fmt: skip
    for root in _ROOTS:
        for name in names:
            path = beside(folder, f"{root}/{name}/__init__.py")
            if path is not None and path.parent.name == name:
                return path
    return None


def _flavor(module: Module, flavor: str) -> Made | None:
    """What a table of a registry has under a flavour: an object, or what a function makes."""
    for table in list(module.names.values()):
        found = table.get(flavor) if isinstance(table, dict) else None
        if isinstance(found, ast.FunctionDef):
            found = call_function(module, found, [], {})
        if isinstance(found, Made) and found.name.endswith(("Args", "Config")):
            return found
    return None


def _config(kind: str, made: Made, module: Module) -> dict[str, Any]:
    """A flavour in the words of a Hugging Face configuration.

    Raises:
        SpecError: a size that is needed is not followed.
    """
    said = _defaults(made.name, module) | {key: value for key, value in made.fields.items() if value is not None}  # fmt: skip
    layers = said.get("layers")
    blocks = [one for one in layers if isinstance(one, Made)] if isinstance(layers, list) else []
    block = blocks[-1] if blocks else said.get("layer", made)
    if len(blocks) >= MAX_ROUNDS or not isinstance(block, Made):
        raise SpecError("model.flavor", made.name, "its layers cannot be counted")
    config: dict[str, Any] = {"model_type": kind}
    for theirs, names in _SIZES.items():
        value = next((said[name] for name in names if _is_number(said.get(name))), None)
        if value is None:
            value = next((one for name in names for one in _below(block, name)), None)
        if value is not None:
            config[theirs] = value
    config["num_hidden_layers"] = len(blocks) or said.get("n_layers")
    if config.get("vocab_size", 0) <= 0:  # the tokenizer's
        config["vocab_size"] = 128_256 if kind == "llama" else 151_936
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    dense = next((one for one in blocks if one.fields.get("feed_forward") is not None), block)
    config["intermediate_size"] = _ffn(said, dense, made.name)
    routed = _experts(said, block)
    if routed and (kind in ("deepseek_v3", "gpt_oss") or said.get("moe_enabled", True)):
        config |= _routed(kind, routed, said, blocks)
    if not config.get("q_lora_rank"):
        config["q_lora_rank"] = None
    if not all(_is_number(config.get(name)) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")):  # fmt: skip
        raise SpecError("model.flavor", made.name, "its sizes cannot be followed")
    return config


def _routed(kind: str, routed: dict[str, int], said: dict[str, Any], blocks: list[Made]) -> dict[str, Any]:  # fmt: skip
    """The experts of a flavour, in a family's words."""
    inner = {"num_experts_per_tok": routed["top_k"], "moe_intermediate_size": routed["ffn"]}
    if kind == "gpt_oss":
        return inner | {"num_local_experts": routed["num_experts"], "intermediate_size": routed["ffn"]}  # fmt: skip
    if kind == "deepseek_v3":
        dense = sum(one.fields.get("moe") is None for one in blocks)
        return inner | {
            "n_routed_experts": routed["num_experts"], "n_shared_experts": routed["num_shared_experts"],
            "first_k_dense_replace": dense or said.get("n_dense_layers", 0), "n_group": 1, "topk_group": 1,
        }  # fmt: skip
    return inner | {"model_type": f"{kind}_moe", "num_experts": routed["num_experts"]}


def _experts(said: dict[str, Any], block: Made) -> dict[str, int]:
    table = said.get("moe_args", block.get("moe"))
    if not isinstance(table, Made):
        return {}
    found = {name: next(_below(table, name), usual) for name, usual in _EXPERTS.items()}
    routed, shared = table.get("routed_experts", table), table.get("shared_experts")
    ffn = said.get("moe_inter_dim") or _width(routed)
    if not isinstance(ffn, int):
        raise SpecError("model.flavor", table.name, "the width of its experts cannot be followed")
    if not table.name.endswith("Args") and not any(_below(table, "num_shared_experts")):
        found["num_shared_experts"] = (_width(shared) or 0) // ffn
    return {**found, "ffn": ffn}


def _width(made: Any) -> int | None:
    """Width between the matrices of an FFN or of its experts: as said, or by the first matrix."""
    if not isinstance(made, Made):
        return None
    first = made.get("w1")
    rows = first.get("out_features") if isinstance(first, Made) else None
    return next((one for one in _below(made, "hidden_dim")), rows)


def _ffn(said: dict[str, Any], block: Made, called: str) -> Any:
    """Width of a dense FFN: as said, or by the rule of Llama's `FeedForward` (2/3 of 4 · dim, times a factor, rounded up)."""
    value = next((said[name] for name in ("hidden_dim", "inter_dim") if _is_number(said.get(name))), None)  # fmt: skip
    if value is None and not called.endswith("Args"):
        value = _width(block.get("feed_forward"))
        if value is None and block.get("moe") is None:
            raise SpecError("model.flavor", called, "the width of its FFN cannot be followed")
        return value or said.get("dim")
    if value is not None or not _is_number(said.get("dim")):
        return value
    width = int(2 * 4 * said["dim"] / 3)
    width = int(width * (said.get("ffn_dim_multiplier") or 1))
    step = int(said.get("multiple_of") or 256)
    return -(-width // step) * step


def _below(made: Made, name: str, depth: int = 0) -> Iterator[Any]:
    """Numbers that a field of that name has in an object or one below it."""
    if _is_number(made.fields.get(name)):
        yield made.fields[name]
    for inner in made.fields.values() if depth < 4 else ():
        if isinstance(inner, Made):
            yield from _below(inner, name, depth + 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _defaults(called: str, module: Module) -> dict[str, Any]:
    """What the class of a flavour says by itself, where its file is at hand."""
    source, name = module.imports.get(called, ("", ""))
    if not source.startswith(".") or module.folder is None:
        return {}
    path = module.folder / (source.lstrip(".").replace(".", "/") + ".py")
    tree = parse_python(read_text(path, called)) if source.count(".") and path.is_file() else None
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name] if tree else []  # fmt: skip
    fields = [node for one in classes for node in one.body if isinstance(node, ast.AnnAssign)]
    return {
        node.target.id: node.value.value
        for node in fields
        if isinstance(node.target, ast.Name) and isinstance(node.value, ast.Constant) and node.value.value is not None
    }  # fmt: skip
