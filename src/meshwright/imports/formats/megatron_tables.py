"""Megatron-LM's arguments by their names in the code, flat or under `backend.megatron` of a Hydra configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.formats import megatron
from meshwright.imports.formats.megatron_switches import NEGATED
from meshwright.imports.hydra_defaults import with_defaults
from meshwright.imports.interpolate import merged, resolved
from meshwright.imports.launch_counts import asked_in_table
from meshwright.imports.options import Options
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.words import unset

_SIGNS = {
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "num_query_groups", "expert_model_parallel_size", "transformer_impl",
    "use_distributed_optimizer", "recompute_granularity", "ckpt_format", "untie_embeddings_and_output_weights", "moe_router_topk",
    "group_query_attention", "tokenizer_type", "moe_token_dispatcher_type", "lr_warmup_iters", "use_flash_attn", "decoupled_lr",
    "check_for_nan_in_loss_and_grad",
}  # fmt: skip
"""Names of Megatron-LM's that GPT-NeoX and the tools around DeepSpeed do not have."""
_LEAST, _WITHOUT_A_MODEL = 3, 6
_OF_OTHERS = ("mamba_", "hybrid_", "retro_", "vision_", "dino_", "ict_", "biencoder_", "bert_", "swin_", "encoder_")  # fmt: skip
_PARTS = (("fp8_", "fp8"), ("tp_comm_", "tp_comm_overlap"), ("mtp_", "mtp_num_layers"), ("num_layers_at_", "fp8"), ("moe_", "num_experts"),
          ("cuda_graph_", "enable_cuda_graph"), ("tp_comm_bootstrap", "tp_comm_overlap"))  # fmt: skip
"""Details of parts, and what switches the part on."""


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table, or its `backend.megatron`, holds such arguments."""
    table = _table(data)
    signs = len(_SIGNS & set(table or {}))
    # A table of defaults names no model, which is asked for.
    return table is not None and signs >= (_LEAST if "num_layers" in table else _WITHOUT_A_MODEL)


def _table(data: dict[str, Any]) -> dict[str, Any] | None:
    backend = data.get("backend")
    inner = backend.get("megatron") if isinstance(backend, dict) else None
    if isinstance(inner, dict):
        return inner
    return None if _ELSEWHERE & set(data) else data


_ELSEWHERE = {"model", "modules", "language_model", "pipe_parallel_size", "finetuning_type", "model_name_or_path"}  # fmt: skip
"""What other frameworks' tables have beside the same names: NeMo's, GPT-NeoX's, LLaMA-Factory's."""


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what such arguments run, with the files that `defaults` name where they are at hand.

    Raises:
        SpecError: an argument is missing, impossible, or of a model that is not modelled.
    """
    below, missing = _below(data, folder)
    whole = resolved(data, dict(given.variables))
    table = resolved(merged(below, _table(whole) or {}), dict(given.variables))
    options = Options(flags_in_table(table), "--")
    options.guessing = given.guess
    reading = megatron.read(
        options, given, "Megatron-LM arguments in YAML", more=("megatron_print",)
    )
    reading.options = {axis: name.lstrip("-").replace("-", "_") for axis, name in reading.options.items()}  # fmt: skip
    if missing:
        reading.note(f"{', '.join(missing[:4])} of its defaults are not here", "defaults")
    if parts := table.get("extends"):
        names = parts if isinstance(parts, list) else [parts]
        reading.note(f"{', '.join(map(str, names[:6]))} which it extends are not read", "extends")
    asked_in_table(whole, reading)
    world = table.get("world_size")  # in a print of all arguments of a run
    if isinstance(world, int) and world > 0 and not reading.world():
        reading.devices = world
    return reading


def _below(data: dict[str, Any], folder: Path | None) -> tuple[dict[str, Any], list[str]]:
    """What the files of the group `backend/megatron` that `defaults` names say, and those that are not here."""
    found: dict[str, Any] = {}
    missing: list[str] = []
    for entry in data.get("defaults") or []:
        if isinstance(entry, str) and "backend" not in data and entry != "_self_":
            path = beside(folder, f"{entry}.yaml")
            found = merged(found, with_defaults(path)) if path is not None else found
            missing += [entry] if path is None else []
        for key, value in entry.items() if isinstance(entry, dict) else []:
            group = str(key).removeprefix("override ").strip().strip("/")
            if group.rpartition("/")[2] != "megatron" or not group.startswith("backend"):
                continue
            for name in value if isinstance(value, list) else [value]:
                path = beside(folder, f"{group}/{name}.yaml")
                if path is None:
                    missing.append(f"{group}/{name}")
                else:
                    found = merged(found, with_defaults(path))
    return found, missing


def flags_in_table(table: dict[str, Any]) -> dict[str, Any]:
    """Megatron-LM's options of such a table; what is off, empty or left to another table is none."""
    flags: dict[str, Any] = {}
    hybrid = table.get("hybrid_override_pattern") or table.get("is_hybrid_model")
    for name, value in table.items():
        field = str(name)
        absent = any(field.startswith(part) and not table.get(switch) for part, switch in _PARTS)
        if (
            field in ("defaults", "extends")
            or absent
            or (not hybrid and field.startswith(_OF_OTHERS))
        ):
            continue  # what a print of all arguments says of parts that are not there
        if field in NEGATED and value is False:
            flags[NEGATED[field]] = True
        if value is None or value is False or isinstance(value, dict) or value == "":
            continue
        if isinstance(value, str) and unset(value) and value.strip().startswith("/"):
            continue
        if field not in NEGATED:
            flags[field.replace("_", "-")] = value
    return flags
