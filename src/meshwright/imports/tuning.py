"""Adapters and quantised weights as fine-tuning tools name them."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import GROUPS, MODULES, finetune_recipe, targets_of

_STORAGE = {4: "nf4", 8: "int8"}


def adapters(
    reading: Reading,
    *,
    method: str = "lora",
    rank: int = 16,
    alpha: float = 0.0,
    targets: Any = None,
    bits: int = 0,
    storage: str = "",
    twice: bool | None = None,
    dropout: float = 0.0,
    option: str = "target_modules",
    whole: Any = None,
    upcast: bool = False,
) -> None:
    """Set a reading's fine-tuning; targets that are not known are named and the usual ones taken.

    Args:
        bits: 4 or 8 where the frozen weights are quantised; 0: 16-bit, or as the model's name says.
        twice: whether the scales of 4-bit weights are quantised too; None: as is usual.
        targets: module names, a list or text; None: all linear layers.
        whole: names of modules that train in full beside the adapters.
        upcast: what is not quantised is kept in fp32, as by PEFT's prepare_model_for_kbit_training.
    """
    fields: dict[str, Any] = {
        "method": method if method in ("lora", "dora", "qlora") else "lora",
        "rank": max(rank, 1),
    }
    if alpha:
        fields["alpha"] = alpha
    if 0 < dropout < 1:
        fields["dropout"] = dropout
    named = stored_by_name(reading.model_name)
    kept = (
        named if named in ("int4", "nvfp4", "mxfp4") else storage or _STORAGE.get(bits, "") or named
    )
    if kept and re.search(r"(?i)(?<![a-z0-9])[23]-?bit", reading.model_name):
        reading.unmodelled("model_name_or_path", "the frozen weights have fewer than 4 bits, by the checkpoint's name; 4 are priced")  # fmt: skip
    if kept:
        fields["storage"] = kept
        fields["method"] = (
            "qlora" if kept in ("nf4", "fp4") and fields["method"] == "lora" else fields["method"]
        )
    elif fields["method"] == "qlora":
        fields["storage"] = "nf4"
    if twice is None and fields["method"] == "dora":
        twice = True  # as qlora's: the tool that quantises is the same
    if twice is not None and fields.get("storage") in ("nf4", "fp4"):
        fields["double_quantization"] = twice
    if upcast and fields.get("storage") in ("nf4", "fp4", "int8"):
        fields["upcast"] = True
    elif upcast:
        reading.unmodelled("prepare_model_for_kbit_training", "casts weights of 16 bits to fp32 that nothing quantises; as loaded is priced")  # fmt: skip
    fields["targets"] = _targets(reading, targets, option)
    if parts := trained(whole):
        fields["train"] = parts
    if strange := [one for one in _names(whole) if not trained(one)]:
        reading.unmodelled("modules_to_save", f"{', '.join(strange)[:80]} would train in full beside the adapters; not priced")  # fmt: skip
    reading.job["finetune"] = finetune_recipe(fields)
    reading.job.pop("lora_rank", None)


METHOD_NAMES = ("peft_type", "peft_method", "tuning_method", "adapter_config", "adapter_type", "adapter_method")  # fmt: skip
"""How programs call the method that adapts their model."""
VECTORS = (
    r"prompt|prefix|p[-_]?tuning|(?<![a-z])cpt(?![a-z])|ia3|(?<![a-z])ln_?tuning|tokens|cartridge"
)
"""Methods of PEFT's and of AdapterHub's that train vectors."""


_WIDTH_NAMES = (
    "quantization_mode",
    "quantization",
    "quantize",
    "quantize_mode",
    "load_in",
    "quantization_bits",
    "quant_bits",
    "bits",
    "quant",
    "quantization_bit",
    "quantization_bits",
    "quant_bit",
    "quant_bits",
    "bits",
)


def width_in_words(options: Options) -> int:
    """4 or 8 where a program says the width of its frozen weights in a word (`4bit`, `nf4`, `int8`); else 0."""
    for name in _WIDTH_NAMES:
        word = str(options.values.get(name, "")).strip().lower()
        found = re.fullmatch(r"(?:bnb[-_.]?)?(?:int|nf|fp)?([48])[-_]?b?(?:it)?s?", word)
        if found is not None:
            options.read.add(name)
            return int(found.group(1))
    return 0


_TUNERS = ("method", "training_method", "train_method", "train_mode", "finetuning_method", "finetune_method", "fine_tuning_method", "tuning_mode")  # fmt: skip
_TUNER = re.compile(r"(full|q?lora|q?dora)(?:[-_ ]?(?:ft|sft|fine[-_ ]?tun\w*|param\w*))?")


def tuner_in_words(options: Options) -> str:
    """`full`, `lora`, `qlora`, `dora` or `qdora` where a file says by one word which weights train; empty where it does not."""
    for name in _TUNERS:
        found = _TUNER.fullmatch(str(options.values.get(name, "")).strip().lower())
        if found is not None:
            options.read.add(name)
            return found.group(1)
    return ""


def refuse_vectors(option: str, method: str) -> None:
    """Refuse a method of PEFT's that trains no matrices of the model.

    Raises:
        SpecError: always.
    """
    raise SpecError(option, method, "trains vectors before the text, not matrices of the model: not modelled; lora is expected")  # fmt: skip


_VECTOR_TABLES = re.compile(
    r"(?:ia3|prompt_?tuning|prefix_?tuning|p_?tuning|ln_?tuning)(?:_config)?"
)


def refuse_vector_tables(data: dict[str, Any]) -> None:
    """Refuse a file with a table of such a method, and none of adapters beside it.

    Raises:
        SpecError: it has one that is not switched off.
    """
    tables = {name: one for name, one in data.items() if isinstance(one, dict) and one.get("enabled") is not False}  # fmt: skip
    named = next((name for name in tables if _VECTOR_TABLES.fullmatch(str(name).lower())), "")
    if named and not any("lora" in str(name).lower() for name in tables):
        refuse_vectors(named, named)


def stored_by_name(model: str) -> str:
    """How a checkpoint whose name says so is stored, whatever the options say; empty for 16 bits."""
    if re.search(r"(?i)gptq|awq|aqlm", model):
        return "int4"
    if blocks := re.search(r"(?i)(?<![a-z])(nvfp4|mxfp4)(?![a-z])", model):
        return blocks.group(1).lower()
    return "nf4" if re.search(r"(?i)bnb-4bit|-4bit", model) else ""


_PLACES = tuple(
    f"{before}layers.{layer}.{inside}"
    for before in ("model.", "model.language_model.", "language_model.model.", "base_model.model.model.")
    for layer in (0, 11)
    for inside in ("self_attn.", "linear_attn.", "mlp.", "mlp.shared_experts.", "mlp.shared_expert.", "mlp.experts.0.", "mlp.experts.")
)  # fmt: skip
"""Where the matrices of transformers' layers lie: what a pattern of names is held against."""


def _by_pattern(pattern: str) -> tuple[str, ...]:
    """The matrices whose whole names a pattern matches, as PEFT matches a text of `target_modules`; none of no pattern."""
    if not re.search(r"[\\*+^$?({]", pattern):
        return ()
    try:
        wanted = re.compile(pattern)
    except re.error:
        return ()
    ends = [name for name in MODULES if name.endswith(("_proj", "_proj_with_mqa"))]
    matched = [one for one in ends if any(wanted.fullmatch(place + one) for place in _PLACES)]
    return targets_of(matched) if matched else ()


def _targets(reading: Reading, targets: Any, option: str) -> tuple[str, ...]:
    text = targets[0] if isinstance(targets, list) and len(targets) == 1 else targets
    if isinstance(text, str) and (found_by := _by_pattern(text)):
        return found_by
    if isinstance(targets, str):
        targets = [part for part in re.split(r"[,\s|()\[\]'\"]+", targets) if part]
    if not isinstance(targets, list) or not targets:
        return GROUPS["all-linear"]
    found: list[str] = []
    unknown: list[str] = []
    for one in targets:
        try:
            found += targets_of([str(one).replace("all-linear", "all_linear")])
        except SpecError:
            unknown.append(str(one))
    if unknown:
        reading.unmodelled(
            option,
            f"{', '.join(unknown)[:80]} are no matrices of the language model that is priced",
        )
    return tuple(dict.fromkeys(found)) or GROUPS["all-linear"]


def _names(said: Any) -> list[str]:
    """Module names of a list or a text; none of a word that says none."""
    found = said if isinstance(said, list) else re.split(r"[,\s\[\]'\"]+", str(said or ""))
    return [
        str(one) for one in found if str(one).lower() not in ("", "none", "null", "true", "false")
    ]


def evaluation(reading: Reading, batch: int, option: str) -> None:
    """Name an evaluation that takes more sequences at once than training does: their logits may be what does not fit."""
    if batch > reading.micro_batch:
        reading.unmodelled(option, f"evaluation takes {batch} sequences at once where training takes {reading.micro_batch}; its memory is not priced")  # fmt: skip


def frozen_part(reading: Reading, option: str) -> None:
    """Say that part of the model does not train where which part cannot be told."""
    reading.unmodelled(option, "only part of the model trains; the estimate trains all")


def trained(names: Any) -> tuple[str, ...]:
    """Parts of the model that train in full beside adapters, of the modules that a file names."""
    parts = {"embedding": r"embed|wte", "head": r"lm_head|output", "norms": r"norm"}
    return tuple(part for part, pattern in parts.items() if re.search(pattern, str(names or "")))


_RECOMPUTES = (
    "use_gradient_checkpointing",
    "gradient_checkpointing",
    "lora.use_gradient_checkpointing",
)


def recomputes_as_unsloth(options: Options, reading: Reading) -> bool:
    """Whether a table says `unsloth` where others say true: layers are recomputed, their inputs in host memory."""
    names = [name for name in _RECOMPUTES if str(options.values.get(name)).lower() == "unsloth"]
    options.read |= set(names)
    for name in names:
        options.values[name] = True
    if names:
        reading.offload.add("activations")
    return bool(names)
