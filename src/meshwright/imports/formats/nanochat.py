"""nanochat's pretraining: every size of the model and its batch from `--depth`."""

from __future__ import annotations

import math
import posixpath
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside, program_beside
from meshwright.imports.formats.hf_launcher import one_process
from meshwright.imports.launch import Launch
from meshwright.imports.options import Options, flags_of
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.state import Script
from meshwright.imports.tasks import name_task
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text
from meshwright.specs.job import OPTIMIZERS, RECIPES
from meshwright.specs.model import Model

EDITS = {"micro_batch": "--device-batch-size"}
_VOCAB, _OLDER_VOCAB = 32_768, 65_536
"""Tokens of the tokenizer that the project trains for itself, and trained when its options had underscores."""
_REFERENCE_TOKENS, _REFERENCE_DEPTH, _POWER = 2**19, 12, 0.383
"""The batch that its author measured to be best at a depth, and how it grows with the tokens of a run."""
_PATTERN = "sssl"
"""Which layers have a short window where the command is silent."""
_KNOWN = ("depth", "aspect-ratio", "device-batch-size", "target-param-data-ratio", "window-pattern")


_TUNES = "chat_sft"
"""The program that fine-tunes what the others have trained."""


def reads(launch: Launch) -> bool:
    """Whether a command starts nanochat's pretraining."""
    named = posixpath.basename(launch.program).removesuffix(".py").rsplit(".", 1)[-1]
    if named not in ("base_train", "mid_train", _TUNES):
        return False
    flags = {one.replace("_", "-") for one in flags_of(launch.words)}
    return "scripts" in launch.program or bool(flags & set(_KNOWN))


def is_program(text: str) -> bool:
    """Whether a Python text is that program itself."""
    return _is_older(text) or (
        all(
            one in text
            for one in ("add_argument", '"--depth"', "--aspect-ratio", "--device-batch-size")
        )
    )


def _is_older(text: str) -> bool:
    """Whether it is one of the versions that had their settings as constants."""
    return all(re.search(rf"^{name} = [\d.]+", text, re.M) for name in ("depth", "device_batch_size", "matrix_lr"))  # fmt: skip


def read_program(text: str, given: Given) -> Reading:
    """Return what the program runs by its own defaults."""
    reading = _read(_defaults(text), given, "nanochat program", _checkout(None, _is_older(text)))
    reading.guess("program", "started without options: its own defaults are taken")
    return reading


def _defaults(text: str) -> dict[str, str]:
    """What the program takes where its command is silent."""
    older = _is_older(text)
    said = re.findall(r"(?m)^(\w+) = ([^#\n]+)" if older else r'add_argument\(\s*"--([\w-]+)"[^\n]*?default=([^,)]+)', text)  # fmt: skip
    flags = {name.replace("_", "-"): value.strip().strip("\"'") for name, value in reversed(said)}
    if older:
        known = ("depth", "max-seq-len", "device-batch-size", "total-batch-size")
        flags = {**_OLDER, **{name: value for name, value in flags.items() if name in known}}
    return flags


def read_words(
    launch: Launch, given: Given, folder: Path | None = None, script: Script | None = None
) -> Reading:
    """Return what a command of it runs, by the version at hand where there is one.

    Raises:
        SpecError: a value that cannot be, or the version at hand builds a model of its own.
    """
    flags = {one.replace("_", "-"): value for one, value in flags_of(launch.words).items()}
    path = program_beside(folder, launch.program)
    text = read_text(path, "program") if path is not None else ""
    tunes = launch.program.removesuffix(".py").endswith(_TUNES)
    if tunes and given.model is None:
        raise SpecError("model", None, f"is the checkpoint's that {_TUNES} goes on with, which the command does not describe: give --model")  # fmt: skip
    older = _is_older(text) if text else any(re.match(r"--\w+_\w", word) for word in launch.words)
    if "base_train" in launch.program and text and not re.search(r"--depth\b|(?m:^depth = )", text) and given.model is None:  # fmt: skip
        others = [f"--{one}" for one in flags if one in _defaults(text) and one not in _KNOWN]
        raise SpecError("model", None, f"the base_train.py at hand builds a model of its own, not one by its depth ({', '.join(others[:5]) or 'no --depth'}): give --model")  # fmt: skip
    below = _defaults(text) if is_program(text) else _OLDER if older else {}
    taken = {name: value for name, value in below.items() if name in _OF_MODEL}
    version = _checkout(folder, older)
    for words in [one.words for one in script.commands] if script is not None else []:
        rows = str(flags_of(words).get("vocab-size", flags_of(words).get("vocab_size", "")))
        if any(word.endswith("tok_train") for word in words) and rows.isdigit():
            version = replace(version, vocab=int(rows))
    inherited = tunes and "total-batch-size" not in flags
    if inherited:
        flags["total-batch-size"] = _REFERENCE_TOKENS
    reading = _read({**taken, **flags}, given, "nanochat command", version)
    if inherited:
        reading.guess("--total-batch-size", f"is the checkpoint's own; {_REFERENCE_TOKENS} tokens are taken")  # fmt: skip
    name_task(reading, "sft" if tunes else "")
    one_process(launch, reading)
    return reading


_OF_MODEL = ("depth", "aspect-ratio", "head-dim", "max-seq-len", "window-pattern", "device-batch-size", "total-batch-size")  # fmt: skip
"""Options of the program that decide its model and batch."""


@dataclass(frozen=True)
class _Checkout:
    """What tells versions of nanochat apart: vocabulary, what a short window is a part of, and tables of values in every second layer."""

    vocab: int
    window: int = 0
    values: bool = False


def _checkout(folder: Path | None, older: bool) -> _Checkout:
    """The version at hand, or what the words of a command tell of it."""
    model = beside(folder, "nanochat/gpt.py")
    tokenizer = beside(folder, "scripts/tok_train.py")
    said = re.search(r"--vocab[-_]size\D*?default=(\d+)", read_text(tokenizer, "tokenizer")) if tokenizer is not None else None  # fmt: skip
    vocab = int(said.group(1)) if said is not None else _OLDER_VOCAB if older else _VOCAB
    text = read_text(model, "model") if model is not None and model.parent.name == "nanochat" else ""  # fmt: skip
    if not text:
        return _Checkout(vocab, values=not older)
    part = re.search(r"long_window // (\d)", text)
    return _Checkout(vocab, int(part.group(1)) if part is not None else 0, "self.value_embeds" in text)  # fmt: skip


_OLDER = {"window-pattern": "L", "total-batch-size": _REFERENCE_TOKENS}
"""What versions whose options had underscores took: no windows, and one batch for every depth."""


def _read(flags: dict[str, Any], given: Given, title: str, version: _Checkout) -> Reading:
    options = Options(flags, "--")
    options.guessing = given.guess
    reading = Reading(title, options=dict(EDITS))
    depth = options.whole("depth", default=20, least=1)
    reading.seq_len = options.whole("max-seq-len", default=2048, least=2)
    reading.micro_batch = options.whole("device-batch-size", default=32, least=1)
    reading.model = given.model or _model(options, reading, depth, version)
    total = options.number("total-batch-size", default=-1)
    if total > 0:
        reading.batch_tokens = int(total)
    else:
        reading.batch_tokens = _best_batch(depth, options)
        reading.guess("--total-batch-size", f"{reading.batch_tokens} tokens, what the program's rule makes of a depth of {depth}, are taken")  # fmt: skip
    recipe = RECIPES["fp32"].but(name="bf16", compute="bf16", activation_bytes=2)
    if options.flag("fp8"):
        recipe = recipe.but(name="fp8", compute="fp8")
    reading.job = {
        "precision": recipe.model_dump(),
        "optimizer": OPTIMIZERS["muon"].model_dump(),
        "framework": "fsdp",
    }
    reading.layout = {"zero": 1, "recompute": "none"}
    reading.note("the optimizer's states and gradients are shared out over ranks: ZeRO-1", "optimizer")  # fmt: skip
    reading.unmodelled("optimizer", "Muon for matrices, AdamW for tables; Muon's states are priced for all")  # fmt: skip
    reading.unmodelled("compile", "torch.compile fuses kernels; the estimate runs PyTorch's own")
    options.finish(reading, "nanochat", "own", "common", strict=given.strict)
    return reading


def _width(options: Options, depth: int) -> tuple[int, int]:
    """The model's width, a whole number of heads, and a head's."""
    head = options.whole("head-dim", default=128, least=1)
    wanted = depth * options.whole("aspect-ratio", default=64, least=1)
    return -(-wanted // head) * head, head


def _model(options: Options, reading: Reading, depth: int, version: _Checkout) -> Model:
    vocab = version.vocab
    width, head = _width(options, depth)
    pattern = options.word("window-pattern", default=_PATTERN)
    fields: dict[str, Any] = {
        "name": f"nanochat-d{depth}", "layers": depth, "hidden": width, "heads": width // head, "kv_heads": width // head,
        "head_dim": head, "ffn": 4 * width, "vocab": vocab, "gated": False, "norm": "rmsnorm", "qk_norm": "head",
        "tied_embeddings": False,
    }  # fmt: skip
    if re.fullmatch(r"s+l", pattern):
        short = -(-reading.seq_len // (version.window or 4) // 128) * 128
        fields |= {"window": max(min(short, reading.seq_len), 1), "window_period": len(pattern)}
        if not version.window:
            reading.guess("--window-pattern", f"short windows are a quarter of the sequence ({fields['window']}), as in current versions; half in older ones")  # fmt: skip
    elif set(pattern) != {"l"}:
        reading.unmodelled("--window-pattern", f"{pattern.upper()}: attention over whole sequences is priced")  # fmt: skip
    reading.guess("--model", f"what gpt.py builds is taken as nanochat's: {depth} layers of {width}, its own {vocab:,} tokens")  # fmt: skip
    if version.values:
        reading.unmodelled("value embeddings", f"current versions add a table of {vocab:,} rows to every second layer; not priced")  # fmt: skip
    return Model.parse(fields, "model")


def _best_batch(depth: int, options: Options) -> int:
    """Tokens of a batch by the program's rule: a power of two near B · (D / D of the reference)^0.383.

    D, the run's tokens, is a multiple of the matrices' and the head's parameters.
    """
    grown = _parameters(depth, options) / _parameters(_REFERENCE_DEPTH, options)
    return int(2 ** round(math.log2(_REFERENCE_TOKENS * grown**_POWER)))


def _parameters(depth: int, options: Options) -> int:
    width, _head = _width(options, depth)
    return 12 * depth * width * width + _VOCAB * width
