"""Adapters of a training program that is no framework's own, by the names that most programs use."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.imports.tuning import VECTORS, adapters, refuse_vectors, width_in_words

_TUNERS = (
    "train_type",
    "finetuning_type",
    "finetune_type",
    "tuning_type",
    "tuning_method",
    "peft_method",
    "peft_type",
)


_QUANTISES = ("is_quantized", "is_quantised", "use_quantization", "enable_quantization", "quantize")
_OF_ADAPTERS = ("lora_alpha", "lora_target_modules", "target_modules", "bias", "peft_type")
"""What says nothing where no adapters are made."""
_IN_BITS = ("load_in_4bit", "use_4bit", "load_in_8bit", "use_8bit")


def adapt(options: Options, reading: Reading) -> None:
    """Take the adapters that options describe, or that weights in 4 or 8 bits cannot do without."""
    kind = next((one for one in map(options.word, _TUNERS) if one), "")
    if re.search(VECTORS, kind):
        refuse_vectors(next(one for one in _TUNERS if options.word(one) == kind), kind)
    ranks = ("lora_r", "lora_rank", "r")
    if options.has(*_QUANTISES) and not options.flag(*_QUANTISES):  # whatever stands in its tables
        options.values |= {name: False for name in _IN_BITS if name in options}
    width = width_in_words(options)
    if width:
        options.values.setdefault(f"load_in_{width}bit", True)
    stored = options.flag("load_in_4bit", "use_4bit") or options.flag("load_in_8bit", "use_8bit")
    # A rank that the program would take for adapters says nothing of whether it makes any.
    said = any(name in options and name not in options.assumed for name in ranks)
    if not options.flag(
        "use_peft",
        "is_peft",
        "use_lora",
        "lora",
        default="lora" in kind or "dora" in kind or (said and not kind) or stored,
    ):
        options.read |= {name for name in options.assumed if name.startswith("lora")} | {
            *ranks,
            *_OF_ADAPTERS,
        }
        return
    four = options.flag(
        "load_in_4bit", "use_4bit", default="qlora" in kind or "hqq" in kind or "bnb" in kind
    )
    method: dict[str, Any] = {
        "method": "dora" if "dora" in kind else "lora",
        "bits": 4 if four else 8 if options.flag("load_in_8bit", "use_8bit") else 0,
    }
    if stored and not options.has(*ranks, "lora_dim"):
        reading.guess("lora_r", "weights in 4 or 8 bits train through adapters, which it does not describe; rank 8 is taken")  # fmt: skip
    storage = options.word("bnb_4bit_quant_type", default="" if "hqq" in kind else "nf4")
    method["storage"] = storage if four and storage in ("nf4", "fp4") else ""
    if options.has("bnb_4bit_use_double_quant", "use_double_quant"):
        method["twice"] = options.flag("bnb_4bit_use_double_quant", "use_double_quant")
    if not options.has("lora_alpha"):
        reading.guess("lora_alpha", "is not stated; 32 is taken")
    if not options.has("lora_target_modules", "target_modules"):
        reading.guess("lora_target_modules", "is not set; the program that reads this chooses: all linear layers are taken")  # fmt: skip
    adapters(
        reading, rank=options.whole(*ranks, "lora_dim", default=8) or 8,
        dropout=options.number("lora_dropout"), alpha=options.number("lora_alpha"), targets=options.raw("lora_target_modules", "target_modules"), **method,
    )  # fmt: skip
