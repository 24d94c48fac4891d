"""torchtitan's tables under `backend.titan` of a Hydra configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.formats import torchtitan
from meshwright.imports.interpolate import merged, read_table, resolved
from meshwright.imports.launch_counts import asked_in_table
from meshwright.imports.reading import Given, Reading
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model

_GROUP = "backend/titan/"
_SHAPE = {"n_layers": "layers", "dim": "hidden", "n_heads": "heads", "n_kv_heads": "kv_heads", "head_dim": "head_dim", "hidden_dim": "ffn",
          "vocab_size": "vocab", "enable_weight_tying": "tied_embeddings"}  # fmt: skip
_EXPERTS = {"moe_num_experts": "experts", "moe_top_k": "top_k", "moe_inter_dim": "ffn"}
_OF_LOADING = ("tokenizer_path", "hf_assets_path", "norm_eps", "rope_theta", "depth_init", "max_seq_len", "moe_score_func", "moe_route_norm",
               "moe_route_scale", "moe_score_before_experts", "moe_enabled", "moe_num_shared_experts", "qk_norm", "name", "flavor")  # fmt: skip


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table holds torchtitan's below a backend of that name."""
    backend = data.get("backend")
    return isinstance(backend, dict) and isinstance(backend.get("titan"), dict)


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what such tables run, with the groups that `defaults` name where they are at hand.

    Raises:
        SpecError: a value that cannot be, or no model is said.
    """
    below, missing = _groups(data, folder)
    whole = resolved(
        merged({"backend": {"titan": below}}, {k: v for k, v in data.items() if k != "defaults"}),
        dict(given.variables),
    )
    table = whole["backend"]["titan"]
    model = table.get("model") if isinstance(table.get("model"), dict) else {}
    if given.model is None and {"dim", "n_layers", "n_heads"} <= set(model):
        given = replace(given, model=_shape(model))
    elif given.model is None and missing:
        raise SpecError("model", None, f"{missing[0]}.yaml, which describes the model, is not here: give --model")  # fmt: skip
    rest = {key: value for key, value in model.items() if given.model is None or key not in {*_SHAPE, *_EXPERTS, *_OF_LOADING}}  # fmt: skip
    names = ("training", "parallelism", "activation_checkpoint", "optimizer", "lr_scheduler", "compile", "float8", "quantize", "experimental", "comm", "debug")  # fmt: skip
    tables = {name: table[name] for name in names if isinstance(table.get(name), dict)}
    reading = torchtitan.read_toml({**tables, "model": rest}, given, [])
    reading.format = "torchtitan tables in Hydra YAML"
    for name in missing:
        reading.note(f"{name} of its defaults is not here", "defaults")
    asked_in_table(whole, reading)
    return reading


def _groups(data: dict[str, Any], folder: Path | None) -> tuple[dict[str, Any], list[str]]:
    """What the chosen files of the groups below `backend/titan` say, and those that are not here."""
    chosen: dict[str, str] = {}
    base = beside(folder, f"{_GROUP}base.yaml")
    told = read_table(base).get("defaults") if base is not None else None
    for entry in told or []:
        chosen |= {str(key): str(value) for key, value in entry.items()} if isinstance(entry, dict) else {}  # fmt: skip
    for entry in data.get("defaults") or []:
        for key, value in entry.items() if isinstance(entry, dict) else []:
            group = str(key).removeprefix("override ").strip().strip("/")
            if group.startswith(_GROUP):
                chosen[group.removeprefix(_GROUP)] = str(value)
    found: dict[str, Any] = {}
    missing: list[str] = []
    for group, name in chosen.items():
        path = beside(folder, f"{_GROUP}{group}/{name}.yaml")
        if path is not None:
            found = merged(found, {group: read_table(path)})
        elif group != "data":
            missing.append(f"{_GROUP}{group}/{name}")
    return found, missing


def _shape(model: dict[str, Any]) -> Model:
    shape: dict[str, Any] = {ours: model[theirs] for theirs, ours in _SHAPE.items() if model.get(theirs) is not None}  # fmt: skip
    shape |= {"name": str(model.get("name") or "imported"), "qk_norm": "head" if model.get("qk_norm") else "none"}  # fmt: skip
    shape.setdefault("kv_heads", shape["heads"])
    if model.get("moe_enabled"):
        shape["experts"] = {ours: model[theirs] for theirs, ours in _EXPERTS.items() if theirs in model}  # fmt: skip
        shape["experts"]["shared_ffn"] = int(model.get("moe_num_shared_experts") or 0) * int(model.get("moe_inter_dim") or 0)  # fmt: skip
    return Model.parse(shape, "model")
