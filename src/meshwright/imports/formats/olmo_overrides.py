"""What an OLMo-core script sets beside its degrees, and what its command sets over that."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from meshwright.imports.code.values import Made, Unknown
from meshwright.imports.names import model_named
from meshwright.imports.options import Options
from meshwright.imports.reading import Given, Reading
from meshwright.specs.job import RECIPES

_READ = (
    "rank_microbatch_size", "max_sequence_length", "dp_config.name", "dp_config.param_dtype", "dp_config.reduce_dtype",
    "dp_config.num_replicas", "dp_config.shard_degree", "tp_config.degree", "cp_config.degree", "pp_config.degree",
    "ep_config.degree", "ac_config.mode", "float8_config.enabled", "autocast_precision",
)  # fmt: skip
"""Fields of a training module that the script's reader counts."""
_SHAPE = ("d_model", "n_layers", "n_heads", "n_kv_heads", "hidden_size", "feed_forward_hidden_size", "num_experts", "n_experts",
          "shared_expert_hidden_size", "expert_hidden_size", "top_k", "qk_norm", "vocab_size", "init_seed", "dtype", "name")  # fmt: skip


def left_over(reading: Reading, train: Made, model: Made | None) -> None:
    """Count how contexts are parallel, and name what else a script sets on its training module and model."""
    sequence = train.fields.get("cp_config")
    if isinstance(sequence, Made) and reading.layout.get("cp", 1) > 1:
        made = sequence.name.rsplit(".", 1)[-1]
        ulysses = made.startswith("uly") or isinstance(sequence.fields.get("uly"), Made)
        method = "ulysses" if ulysses else "ring" if made == "zig_zag" else "all-gather"
        reading.layout["cp_method"] = method
    values = _flat(train, "train_module.")
    if model is not None:
        values |= {
            f"model.{k}": v for k, v in _flat(model, "").items() if k.split(".")[0] not in _SHAPE
        }
        if model.fields.get("block_overrides"):
            reading.unmodelled("model.block_overrides", "blocks of another kind among the model's; all are priced alike")  # fmt: skip
        if model.fields.get("qk_norm") is False:
            reading.unmodelled("model.qk_norm", "queries and keys are not normed, which the builder's model does; priced as it is")  # fmt: skip
    options = Options(values)
    options.read |= {f"train_module.{name}" for name in _READ}
    options.finish(reading, "olmo_core", "common")


def _flat(made: Made, prefix: str, depth: int = 0) -> dict[str, Any]:
    """What is set on a made thing, by dotted names; what only its own file states by the words that say it."""
    found: dict[str, Any] = {}
    for key, value in made.fields.items():
        if isinstance(value, Made) and depth < 4:
            found |= _flat(value, f"{prefix}{key}.", depth + 1)
        elif isinstance(value, Unknown):
            found[prefix + key] = value.text
        elif isinstance(value, (bool, int, float, str, list)):
            found[prefix + key] = value
    return found


def is_command(words: Sequence[str]) -> bool:
    """Whether a command sets OLMo-core's lengths and batches."""
    said = {word.lstrip("-").split("=", 1)[0] for word in words}
    return {"train_module.rank_microbatch_size", "dataset.sequence_length"} <= said


def read_words(program: str, words: Sequence[str], given: Given) -> Reading:
    """Return what such a command says of a script that is not at hand.

    Raises:
        SpecError: a value that cannot be.
    """
    reading = Reading("OLMo-core command")
    reading.model = given.model
    reading.layout = {"zero": 3, "recompute": "none"}
    reading.job = {"framework": "fsdp", "precision": RECIPES["bf16"].model_dump()}
    names = [
        w for w in words if "=" not in w and re.fullmatch(r"[A-Za-z]+\d[\w.]*[-_]\d[\w.]*[bBmM]", w)
    ]
    reading.model_name = names[0] if names else ""
    overridden(reading, words)
    reading.model_name = names[0] if names else reading.model_name  # not its tokenizer's
    reading.guess("program", f"{program} is not here: what it sets itself beside the command's words is not read; "
                  "FSDP in bf16 without recomputation is taken where they say nothing")  # fmt: skip
    return reading


def overridden(reading: Reading, words: Sequence[str]) -> None:
    """Take what the command sets over the script's own: lengths and batches in tokens."""
    # Fields of the configuration, with or without the dashes of an option.
    said = [
        word.lstrip("-").split("=", 1) for word in words if re.match(r"-*[a-z_]+\.[\w.]+=", word)
    ]
    options = Options(dict(said), "--")
    reading.seq_len = _tokens(options, "dataset.sequence_length") or reading.seq_len
    total = _tokens(options, "data_loader.global_batch_size")
    mine = _tokens(options, "train_module.rank_microbatch_size")
    if reading.seq_len and total:
        reading.global_batch = max(1, total // reading.seq_len)
    if reading.seq_len and mine:
        reading.micro_batch = max(1, mine // reading.seq_len)
    at = "train_module."
    for axis in ("tp", "cp", "pp", "ep"):
        degree = options.whole(f"{at}{axis}_config.degree")
        if degree:
            reading.layout[axis] = degree
    kind = options.word(f"{at}dp_config.name").rsplit(".", 1)[-1]
    if kind:
        reading.layout["zero"] = 0 if kind == "ddp" else 3
    reading.replicate = options.whole(f"{at}dp_config.num_replicas") or reading.replicate
    reading.shard = options.whole(f"{at}dp_config.shard_degree") or reading.shard
    mode = options.word(f"{at}ac_config.mode").rsplit(".", 1)[-1]
    if mode:
        reading.layout["recompute"] = "full" if mode == "full" else "selective"
    if options.flag(f"{at}float8_config.enabled"):
        reading.job["precision"] = RECIPES["fp8"].model_dump()
    options.finish(reading, "olmo_core", "common")
    if reading.model is None and model_named(reading.model_name) is None:
        named = next((w for w in words if "=" not in w and model_named(w) is not None), "")
        reading.model_name = named or reading.model_name


def _tokens(options: Options, name: str) -> int:
    """A number of tokens, also as a product (`64*4096`); 0 where it is not said."""
    text = options.loose(name).strip("\"'")
    parts = text.split("*") if text else []
    return math.prod(int(p.replace("_", "")) for p in parts) if parts and all(p.strip().replace("_", "").isdigit() for p in parts) else 0  # fmt: skip
