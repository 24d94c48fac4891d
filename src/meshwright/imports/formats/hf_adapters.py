"""Adapters and quantised weights as TrainingArguments' programs name them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.interpolate import read_table
from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.imports.tuning import (
    METHOD_NAMES,
    VECTORS,
    adapters,
    refuse_vectors,
    stored_by_name,
    tuner_in_words,
    width_in_words,
)

ADAPTER_FILES = ("peft_config_path", "lora_config_path", "adapter_config_path", "peft_config_file", "lora_config_file", "peft_config", "lora_config", "adapter_config")  # fmt: skip
"""Options that name the file of adapters, or the folder that PEFT saved them in."""
_OF_FILE = ("r", "lora_alpha", "lora_dropout", "target_modules", "modules_to_save", "use_dora", "peft_type", "init_r")  # fmt: skip


def take_file(options: Options, reading: Reading, folder: Path | None) -> None:
    """Add what the file of adapters says that an option names; what stands beside it counts over it.

    Raises:
        SpecError: it is no table.
    """
    name = next((one for one in ADAPTER_FILES if isinstance(options.values.get(one), str)), "")
    named = options.loose(name) if name else ""
    if not re.search(r"[/.]", named):
        return
    for field, value in of_file(name, named, reading, folder).items():
        options.values.setdefault(field, value)


def of_file(name: str, named: str, reading: Reading, folder: Path | None) -> dict[str, Any]:
    """What a file of adapters says, its rank as `lora_r`; nothing where it is not here, which is said.

    Args:
        name: the option that names it.

    Raises:
        SpecError: it is no table.
    """
    path = beside(folder, f"{named}/adapter_config.json") or beside(folder, named)
    if path is None or path.suffix not in (".json", ".yaml", ".yml"):
        reading.guess(name, f"{named[-60:]} is not here: what it says of the adapters is not seen")
        return {}
    said = read_table(path)
    inner = next((one for key in ("peft_config", "lora_config", "lora") if isinstance(one := said.get(key), dict)), said)  # fmt: skip
    return {"lora_r" if field == "r" else field: inner[field] for field in _OF_FILE if inner.get(field) is not None}  # fmt: skip


_WIDTHS = {"load_in_4bit", "load_in_8bit", "use_4bit", "use_8bit", "bits", "quant_bit"}


def read_adapters(options: Options, reading: Reading) -> None:
    """Set a reading's fine-tuning as its options name it.

    Raises:
        SpecError: a method that trains no matrices of the model.
    """
    named = next((one for one in METHOD_NAMES if options.has(one)), "peft_type")
    method = options.word(named, default="lora")
    if re.search(VECTORS, method) and options.flag("train_adapter", default=True):
        refuse_vectors(named, method)
    if options.has("pre_seq_len") and options.whole("pre_seq_len"):  # ChatGLM's P-tuning
        refuse_vectors("pre_seq_len", "p-tuning")
    method = method if named == "peft_type" else "lora"
    if method == "adalora":  # whose budget of ranks begins with `init_r` everywhere
        reading.unmodelled("peft_type", "AdaLoRA moves ranks between matrices; adapters of one rank are priced")  # fmt: skip
        if options.has("init_r") or not options.has("r", "lora_r", "lora_rank"):
            options.values["lora_r"] = options.whole("init_r", default=12)
    elif method != "lora":
        reading.unmodelled("peft_type", f"{method} is not modelled; adapters of LoRA's shape are priced")  # fmt: skip
    if (
        options.has("r")
        and options.has("lora_alpha", "target_modules", "lora_dropout")
        and not options.has("lora_r")
    ):
        options.values["lora_r"] = options.raw("r")  # PEFT's own name for it
    if options.has("rank") and options.has("alpha"):
        # The two together are of adapters, in a program whose words these are.
        for ours, said in (("lora_r", options.raw("rank")), ("lora_alpha", options.raw("alpha"))):
            options.values.setdefault(ours, said)
    ranks = ("lora_r", "lora_rank", "peft_lora_r")
    off = any(
        re.search("lora|peft", name) and options.values[name] is False for name in options.assumed
    )
    said = any(name in options and not (off and name in options.assumed) for name in ranks)
    word = tuner_in_words(options)
    asked = options.flag(
        "is_lora",
        "use_peft",
        "is_peft",
        "use_lora",
        "lora",
        "lora_enable",
        "enable_lora",
        "use_peft_lora",
        default=(bool(word) and word != "full") or (said and not word),
    )
    if "trainable" in options and options.has("lora_rank"):
        options.values.setdefault("target_modules", options.loose("trainable"))
    quantises = _quantises(options, word)
    asked = asked or quantises
    eight = options.flag("load_in_8bit", "use_8bit_quantization", "use_8bit")
    four = options.flag(
        "load_in_4bit",
        "use_4bit_quantization",
        "use_4bit",
        "bnb_use_4bit",
        default=(quantises or _chosen(options)) and not eight,
    )
    width = _bits(options)
    bits = 4 if four else 8 if eight else width
    if bits and not asked and not four and bits < 16 and not _adapts(options):
        reading.unmodelled("load_in_8bit" if eight else "quantization_bit", f"weights in {bits} bits do not train without adapters, and none are named; all weights are priced in 16 bits as trained")  # fmt: skip
    if asked and not four and stored_by_name(reading.model_name):
        bits = 4  # the checkpoint's weights are quantised, whatever the options say
        reading.note("the checkpoint's weights are in 4 bits, by its name", "model_name_or_path")
    if asked or four:
        kind = options.word("bnb_4bit_quant_type", "quantization_type", "quant_type", default="nf4")
        twice = _twice(options)
        targets = options.raw("lora_target_modules", "lora_target", "target_modules")
        if targets is None and options.has("use_peft", "peft_type"):
            targets = ["q_proj", "v_proj"]
            reading.guess("lora_target_modules", "is not set; PEFT's own for Llama-like models, q and v, are taken")  # fmt: skip
        elif (
            targets is None
            and reading.format in ("TrainingArguments YAML", "Hugging Face Trainer script")
            and not options.has("finetuning_type")
        ):
            reading.guess("lora_target_modules", "is not set; the program that reads this chooses: all linear layers are taken")  # fmt: skip
        rank = _rank(options, reading)
        adapters(
            reading, rank=rank, alpha=_alpha(options, reading), targets=targets,
            bits=bits if bits in (4, 8) else 0, storage=kind if bits == 4 and kind in ("nf4", "fp4") else "",
            method="dora" if options.flag("use_dora", default=word.endswith("dora")) else "lora", dropout=options.number("lora_dropout"),
            option="lora_target_modules", twice=twice, whole=options.raw("modules_to_save", "lora_modules_to_save"),
            upcast=options.flag("prepare_model_for_kbit_training"),
        )  # fmt: skip
        if options.word("lora_dtype") in ("bfloat16", "bf16", "float16", "fp16"):  # ms-swift's
            made = reading.job["finetune"]
            reading.job["finetune"] = made.model_copy(update={"adapter_bytes": 2.0})


def _quantises(options: Options, word: str) -> bool:
    """Whether a switch or a word asks for quantised weights; where it is off, widths that the program has at hand for it are none (LMFlow's)."""
    switches = ("q_lora", "use_qlora")
    quantises = options.flag(*switches, default=word.startswith("q"))
    if not quantises and options.has(*switches):
        options.values |= dict.fromkeys(_WIDTHS & options.assumed, 0)
    return quantises


def _chosen(options: Options) -> bool:
    """Whether a table says which 4 bits are meant, and no word that turns them off."""
    said = options.has("bnb_4bit_quant_type") and options.has(
        "bnb_4bit_compute_dtype", "bnb_4bit_use_double_quant"
    )
    return said and not options.has(
        "load_in_4bit", "load_in_8bit", "use_4bit", "bits", "quantization_bit"
    )


def _adapts(options: Options) -> bool:
    """Whether LLaMA-Factory's own word, or its default, makes adapters: its reader adds them afterwards."""
    return "finetuning_type" in options or options.has("lora_target", "lora_rank")


def _rank(options: Options, reading: Reading) -> int:
    """The adapters' rank; where nothing is said a program's is PEFT's own, 8, and the tools' 16."""
    rank = options.whole("lora_r", "lora_rank", "q_lora_r", "peft_lora_r")
    if rank:
        return rank
    usual = 8 if "program" in reading.format else 16
    if not options.has("finetuning_type"):  # LLaMA-Factory's reader takes its own
        reading.guess("lora_r", f"is not stated; {usual} is taken")
    return usual


def _alpha(options: Options, reading: Reading) -> float:
    """What adapters are scaled by; where nothing is said a program's is PEFT's own, 8, and TRL's and the tools' 32."""
    alpha = options.number("lora_alpha", "peft_lora_alpha")
    if alpha or options.has("finetuning_type"):  # LLaMA-Factory's reader takes its own
        return alpha
    usual = 8.0 if "program" in reading.format else 32.0
    reading.guess("lora_alpha", f"is not stated; {usual:g} is taken")
    return usual


def _bits(options: Options) -> int:
    """Bits of the frozen weights; ms-swift's `float8` is eight."""
    if width := width_in_words(options):
        return width
    names = ("quantization_bit", "quantization_bits", "quant_bit", "quant_bits", "bits")
    for name in names:
        if str(options.values.get(name)).lower() in ("float8", "fp8"):
            options.read.add(name)
            return 8
        if re.fullmatch(r"(?:b?fp?|b?float|int)(?:16|32)", str(options.values.get(name)).lower()):
            options.read.add(name)
            return 0  # as wide as the rest
    return options.whole(*names)


def _twice(options: Options) -> bool | None:
    """Whether the scales of 4-bit weights are quantised too; None where neither file nor tool says."""
    names = (
        "use_bnb_nested_quant",
        "use_nested_quant",
        "bnb_4bit_use_double_quant",
        "double_quantization",
        "double_quant",
    )
    if options.has(*names):
        return options.flag(*names)
    return False if options.has("use_peft") else None  # TRL's own default
