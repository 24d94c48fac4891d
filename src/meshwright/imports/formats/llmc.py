"""llm.c: GPT-2 and GPT-3 trained by a program in CUDA, by its options of one or two letters."""

from __future__ import annotations

import posixpath
import re

from meshwright.imports.launch import Launch
from meshwright.imports.launch_counts import whole
from meshwright.imports.names import model_named
from meshwright.imports.options import Options
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.state import Script
from meshwright.imports.shell.words import unmarked, unset
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

EDITS = {"micro_batch": "-b", "recompute": "-r"}
PROGRAM = r"train_\w*cu"
"""How its makefile calls what it builds (`train_gpt2cu`, `train_gpt2fp32cu`), in copies, too."""

_DEPTHS = {6: (384, 6), 12: (768, 12), 24: (1024, 16), 36: (1280, 20), 48: (1600, 25), 60: (1920, 30), 72: (2880, 30), 84: (3456, 36)}  # fmt: skip
"""Layers of GPT-2 → width and heads (`-e d12`; train_gpt2.cu, gpt2_set_hyperparameters)."""
_CHANNELS = {384: (6, 64), 768: (12, 64), 1024: (24, 64), 1536: (24, 96), 2048: (24, 128), 2560: (32, 80), 4096: (32, 128), 5140: (40, 128), 12288: (96, 128)}  # fmt: skip
"""Width of GPT-3 → layers and width of a head (`-e gpt3:c768`; gpt3_set_hyperparameters)."""
_VOCAB = 50_304
"""GPT-2's 50,257 rounded up to a multiple of 128, as the program does."""
_PLACES = frozenset({"i", "j", "o", "n", "nk", "nm", "y", "x", "l", "u", "q", "c", "sl", "sg", "v", "m", "s", "g", "h", "k", "lg",
                     "pr", "pi", "pf", "ps", "pm", "pp", "pg", "a"})  # fmt: skip
"""Data, checkpoints, rates, checks between steps, and where ranks meet."""


def reads(launch: Launch) -> bool:
    """Whether a command starts a program of llm.c."""
    return re.fullmatch(PROGRAM, posixpath.basename(launch.program)) is not None


def read_words(launch: Launch, given: Given, script: Script) -> Reading:
    """Return what such a command runs.

    Raises:
        SpecError: a size of model that the program does not know, or a value that cannot be.
    """
    options = Options(_flags(launch.words), "-")
    options.guessing = given.guess
    reading = Reading("llm.c command", options=dict(EDITS))
    reading.seq_len = options.whole("t", default=1024, least=2)
    reading.micro_batch = options.whole("b", default=4, least=1)
    reading.batch_tokens = options.whole("d")
    if not reading.batch_tokens:
        reading.accumulation = 1
    built = _built(script)
    _model(options, reading, given)
    _job(options, reading, built, single="fp32cu" in launch.program)
    processes = options.text("pn") if not unset(str(options.raw("pn") or "")) else ""
    if whole(processes) and not launch.devices:
        launch.devices = whole(processes)
    ranks = launch.devices or launch.hosts * launch.per_host
    if not ranks and (launch.launcher == [] or launch.is_python_alone()):
        reading.devices = 1
        reading.note("nothing starts several processes: one device is priced", "launcher")
    options.read |= _PLACES | {"pn"}
    options.finish(reading, "common", strict=given.strict)
    return reading


def _flags(words: list[str]) -> dict[str, str]:
    """Options and their values, which follow each other in pairs."""
    plain = [unmarked(word) for word in words]
    return {
        name.lstrip("-"): words[at + 1]
        for at, name in enumerate(plain[:-1])
        if re.fullmatch(r"-[a-z]{1,2}", name)
    }


def _built(script: Script) -> dict[str, str]:
    """What the script's `make` builds the program with."""
    found: dict[str, str] = {}
    for command in script.commands:
        if command.words and posixpath.basename(command.words[0]) == "make":
            pairs = (word.partition("=") for word in command.words[1:])
            found |= {name: value for name, equals, value in pairs if equals}
    return found


def _model(options: Options, reading: Reading, given: Given) -> None:
    named = options.loose("e") or "gpt2_124M_bf16.bin"
    if given.model is not None:
        reading.model = given.model
        return
    size = re.fullmatch(r"(?:gpt2:)?d(\d+)|gpt3:c(\d+)", named)
    if size is None:
        bare = posixpath.basename(named).lower()
        wide = re.search(r"(124|350|355|774|1558)m", bare)
        same = {"124": "gpt2", "350": "gpt2-medium", "355": "gpt2-medium", "774": "gpt2-large", "1558": "gpt2-xl"}  # fmt: skip
        model = model_named(same[wide.group(1)]) if wide else None
        if model is None:
            reading.model_name = bare.removesuffix(".bin")
        reading.model = model
        return
    if size.group(1):
        layers, positions = int(size.group(1)), 1024
        if layers not in _DEPTHS:
            raise SpecError("-e", named, f"one of {', '.join(f'd{one}' for one in _DEPTHS)} is what the program knows")  # fmt: skip
        hidden, heads = _DEPTHS[layers]
    else:
        hidden, positions = int(size.group(2)), 2048
        if hidden not in _CHANNELS or hidden % _CHANNELS[hidden][1]:
            known = (f"gpt3:c{one}" for one, (_layers, head) in _CHANNELS.items() if one % head == 0)  # fmt: skip
            raise SpecError("-e", named, f"one of {', '.join(known)} is what the program knows")
        layers, heads = _CHANNELS[hidden][0], hidden // _CHANNELS[hidden][1]
    reading.model = Model.parse(
        {
            "name": f"llm.c-{named.replace(':', '-')}", "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": heads,
            "head_dim": hidden // heads, "ffn": 4 * hidden, "vocab": _VOCAB, "gated": False, "norm": "layernorm",
            "positions": "learned", "max_positions": positions, "tied_embeddings": True,
            "qkv_bias": True, "attention_out_bias": True, "ffn_bias": True, "norm_bias": True,
        },
        "model",
    )  # fmt: skip


def _job(options: Options, reading: Reading, built: dict[str, str], single: bool) -> None:
    width = "fp32" if single else unmarked(built.get("PRECISION", "bf16")).lower()
    if width not in RECIPES:
        raise SpecError("PRECISION", width, "fp32, fp16 or bf16 is expected")
    recipe = RECIPES[width]
    if recipe.master_bytes and not options.flag("w", default=True):
        recipe = recipe.but(name=f"pure-{width}", master_bytes=0.0)
    options.flag("f")
    stage = options.whole("z")
    if stage > 1:
        reading.note("the program knows ZeRO-1 at most, and takes no other stage", "-z")
    reading.layout["zero"] = min(stage, 1)
    again = options.whole("r", default=1)
    reading.layout["recompute"] = "none"
    if again:
        what = "GELU's results" if again == 1 else "GELU's and the norms' results"
        reading.unmodelled("-r", f"{again}: {what} are computed again in backward; they are priced as kept")  # fmt: skip
    if options.whole("ge"):
        reading.unmodelled("-ge", "GELU is part of the product before it; a kernel of its own is priced")  # fmt: skip
    reading.job = {"precision": recipe.model_dump(), "framework": "megatron"}
    if unmarked(built.get("USE_CUDNN", "0")) in ("0", ""):
        reading.job["attention_kernel"] = "unfused"
        reading.guess("USE_CUDNN", "the script does not build the program with cuDNN's attention; its own kernel, which keeps the scores, is priced")  # fmt: skip
    reading.note("llm.c is priced as Megatron-Core: both run fused kernels and one sharded optimizer", "framework")  # fmt: skip
