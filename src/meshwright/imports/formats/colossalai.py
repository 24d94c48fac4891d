"""ColossalAI's configurations in Python, of its releases with `colossalai.initialize`: batch, parallel modes, ZeRO, a model by its function's name."""

from __future__ import annotations

import ast
import re
from typing import Any

from meshwright.imports.code.names import Known
from meshwright.imports.options import Options
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

EDITS = {"micro_batch": "BATCH_SIZE"}
_MODELS = {
    # Its examples' and Titans' functions: layers, width, heads.
    "gpt2_small": (12, 768, 12), "gpt2_xl": (48, 1600, 25), "gpt2_exlarge": (48, 1600, 32), "gpt2_8b": (72, 3072, 24), "gpt3": (96, 12_288, 96),
}  # fmt: skip
_VOCAB = 50_304
_OWN = re.compile(r"\bcolossalai\b|\btitans\b")


def is_config(tree: ast.Module, text: str) -> bool:
    """Whether a Python file is such a configuration: tables alone, one of them its parallel modes, ZeRO or precision."""
    names = {one.id for node in tree.body if isinstance(node, ast.Assign) for one in node.targets if isinstance(one, ast.Name)}  # fmt: skip
    return bool(_OWN.search(text)) and "BATCH_SIZE" in names and bool(names & {"parallel", "zero", "fp16"})  # fmt: skip


def read(tree: ast.Module, text: str, given: Given) -> Reading:
    """Return what such a configuration runs.

    Raises:
        SpecError: a value that cannot be.
    """
    names = Known(tree).names
    options = Options({key: value for key, value in names.items() if not isinstance(value, dict)})
    options.guessing = given.guess
    reading = Reading("ColossalAI configuration", options=dict(EDITS))
    parallel, zero, model = (names.get(key) if isinstance(names.get(key), dict) else None for key in ("parallel", "zero", "model"))  # fmt: skip
    reading.seq_len = options.whole("SEQ_LEN", "SEQ_LENGTH", "SEQUENCE_LENGTH")
    each = options.whole("BATCH_SIZE", least=1, default=1)
    parts = options.whole("NUM_MICRO_BATCHES", default=1, least=1)
    reading.micro_batch = max(each // parts, 1)
    reading.accumulation = parts * options.whole("gradient_accumulation", default=1, least=1)
    _lay_out(parallel or {}, zero, reading, text)
    if given.model is not None:
        reading.model = given.model
    else:
        _model(reading, text)
    again = isinstance(model, dict) and model.get("checkpoint") is True
    reading.layout["recompute"] = "full" if again else "none"
    half = bool(re.search(r"^fp16\s*=", text, re.M)) or zero is not None or "torch.half" in text
    made = re.search(r"^optimizer\s*=\s*dict\(\s*type\s*=\s*(\w+)", text, re.M)
    reading.job = {
        "precision": RECIPES["fp16" if half else "fp32"].model_dump(),
        "framework": _framework(reading.layout),
        "optimizer": optimizer_or_adamw(reading, made.group(1) if made else "adam", "optimizer").model_dump(),
    }  # fmt: skip
    reading.note(f"ColossalAI is priced as {_PRICED[reading.job['framework']]}, whose parallel modes and ZeRO these are", "framework")  # fmt: skip
    return reading


_PRICED = {"megatron": "Megatron-Core", "megatron-fsdp": "Megatron-FSDP", "deepspeed": "DeepSpeed"}


def _framework(layout: dict[str, Any]) -> str:
    """Whose parallel modes stand nearest: matrices or layers split, and weights sharded beside that or not."""
    if layout["tp"] * layout["pp"] == 1:
        return "deepspeed"
    return "megatron-fsdp" if layout["zero"] == 3 and layout["pp"] == 1 else "megatron"


def _lay_out(parallel: dict[str, Any], zero: Any, reading: Reading, text: str) -> None:
    pipeline, tensor = parallel.get("pipeline"), parallel.get("tensor")
    stages = pipeline.get("size", 1) if isinstance(pipeline, dict) else pipeline
    width = tensor.get("size", 1) if isinstance(tensor, dict) else 1
    mode = str(tensor.get("mode") or "1d") if isinstance(tensor, dict) else "1d"
    reading.layout |= {
        "tp": width if isinstance(width, int) and mode != "sequence" else 1,
        "pp": stages if isinstance(stages, int) else 1,
        "zero": 3 if zero is not None and "model_config" in zero else 1 if zero is not None else 0,
    }
    if mode == "sequence" and isinstance(width, int):
        reading.layout |= {"cp": width, "cp_method": "ring"}
    elif mode not in ("1d", "None"):
        raise SpecError("parallel.tensor", mode, "splits matrices along several sides, which is not modelled: 1d or sequence is expected")  # fmt: skip
    policy = re.search(r"tensor_placement_policy\s*=\s*[\"'](\w+)", text)
    if policy is not None and policy.group(1) == "cpu":
        reading.offload |= {"optimizer", "parameters"}
    elif policy is not None and policy.group(1) == "auto":
        reading.unmodelled("tensor_placement_policy", "auto: moves tensors to the host where devices run full; none are priced there")  # fmt: skip


def _model(reading: Reading, text: str) -> None:
    named = re.search(r"^model\s*=\s*dict\(\s*type\s*=\s*(\w+)", text, re.M)
    name = named.group(1) if named else ""
    size = re.sub(r"_(?:pipeline|1d|hybrid|fused).*$", "", name.lower())
    if size not in _MODELS:
        reading.model_name = name
        return
    layers, hidden, heads = _MODELS[size]
    reading.model = Model.parse(
        {
            "name": f"colossalai-{size}", "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": heads, "head_dim": hidden // heads,
            "ffn": 4 * hidden, "vocab": _VOCAB, "gated": False, "norm": "layernorm", "positions": "learned",
            "max_positions": max(reading.seq_len, 1024), "tied_embeddings": True,
            "qkv_bias": True, "attention_out_bias": True, "ffn_bias": True, "norm_bias": True,
        },
        "model",
    )  # fmt: skip
