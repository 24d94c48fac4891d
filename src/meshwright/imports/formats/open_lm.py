"""open_lm: its command's options, and the small files that name its models."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.formats.hf_launcher import one_process
from meshwright.imports.launch import Launch
from meshwright.imports.names import PLANNED
from meshwright.imports.options import Options, flags_of
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import Limits, parse_json, read_text
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

EDITS = {"micro_batch": "--batch-size", "recompute": "--grad-checkpointing"}
_SIZES = {
    # open_lm/model_configs/*.json: width, layers, heads.
    "ant_neox": (768, 12, 12), "potato_neox": (1024, 24, 16), "marmot_neox": (1536, 24, 16), "m1b_neox": (2048, 24, 16),
    "m1b_tiktoken": (2048, 24, 16), "g3b_neox": (2560, 32, 32), "l7b_neox": (4096, 32, 32), "open_lm_11m": (96, 12, 12), "open_lm_25m": (192, 12, 12),
    "open_lm_41m": (288, 12, 12), "open_lm_87m": (488, 12, 12), "open_lm_160m": (768, 12, 12), "open_lm_410m": (1024, 24, 16),
    "open_lm_830m": (1536, 24, 16), "open_lm_1b": (2048, 24, 16), "open_lm_1b_old": (2048, 24, 16), "open_lm_3b": (2560, 32, 32),
    "open_lm_7b": (4096, 32, 32), "open_lm_11m_v2": (96, 8, 4), "open_lm_79m_v2": (512, 8, 4), "open_lm_154m_v2": (576, 24, 8),
    "open_lm_411m_v2": (1024, 24, 8), "llama2_7b": (4096, 32, 32),
}  # fmt: skip
_VOCAB, _LENGTH = 50_432, 2048
"""What those files say of tokens and positions, but for LLaMA's and tiktoken's."""
_OTHERS: dict[str, dict[str, Any]] = {
    "llama2_7b": {"vocab_size": 32_000, "seq_len": 4096, "model_norm": "rms_norm"}, "m1b_tiktoken": {"vocab_size": 50_304},
}  # fmt: skip
_LIMITS = Limits(any_number=True, last_wins=True)
_OWN = {"train-num-samples", "fsdp-amp", "fsdp-pure-bf16", "fsdp-limit-all-gathers", "grad-checkpointing", "lr-cooldown-end", "data-key", "dataset-manifest"}  # fmt: skip


def reads(launch: Launch) -> bool:
    """Whether a command starts open_lm's training."""
    names = {name.replace("_", "-") for name in flags_of(launch.words)}
    return re.search(r"(?:^|[./])open_lm[./]main(?:\.py)?$", launch.program) is not None or (
        posixpath.basename(launch.program) == "main.py" and len(names & _OWN) > 2
    )


def read_words(launch: Launch, given: Given, folder: Path | None) -> Reading:
    """Return what such a command trains.

    Raises:
        SpecError: a model that is no decoder, or a value that cannot be.
    """
    flags = {name.replace("_", "-"): value for name, value in flags_of(launch.words).items()}
    options = Options(flags, "--")
    options.guessing = given.guess
    reading = Reading("open_lm command", options=dict(EDITS))
    named = options.loose("model") or "m1b_neox"
    described = _described(named, folder)
    reading.seq_len = options.whole("seq-len") or int(described.get("seq_len", _LENGTH))
    if given.model is not None:
        reading.model = given.model
    elif described:
        reading.model = _model(options, described, posixpath.basename(named).removesuffix(".json"))
    else:
        reading.model_name = posixpath.basename(named).removesuffix(".json")
    steps = options.whole("accum-freq", default=1, least=1)
    whole = options.whole("global-batch-size")
    each = options.whole("per-gpu-batch-size", "batch-size", default=0 if whole else 64)
    reading.accumulation = steps
    if whole:
        reading.global_batch = whole
        reading.accumulation = max(steps, 1)
    else:
        reading.micro_batch = max(each // steps, 1)  # a device's batch is cut into so many parts
    _sharding(options, reading, launch)
    _job(options, reading)
    one_process(launch, reading)
    options.finish(reading, "open_lm", "own", "common", strict=given.strict)
    return reading


def is_scale(data: dict[str, Any]) -> bool:
    """Whether a table is one of DCLM's scales, which its program hands to open_lm."""
    return {"model", "global_bs", "acc", "fsdp_flags"} <= set(data) and isinstance(data["model"], str)  # fmt: skip


def read_scale(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what open_lm trains at such a scale, as DCLM's training/train.py starts it.

    Raises:
        SpecError: a value that cannot be.
    """
    words = ["--model", str(data["model"]), "--global-batch-size", str(data["global_bs"]), "--accum-freq", str(data["acc"])]  # fmt: skip
    words += ["--precision", "amp_bfloat16", "--lr", str(data.get("lr", 0))]
    words += ["--grad-checkpointing"] if data.get("grad_checkpointing") is True else []
    words += ["--qk-norm"] if data.get("qk_norm") is True else []
    flags = data["fsdp_flags"]
    words += [str(one) for one in flags] if isinstance(flags, list) else []
    reading = read_words(Launch("open_lm.main", words, ["torchrun"]), given, folder)
    reading.format = "DCLM's scale for open_lm"
    return reading


def _described(named: str, folder: Path | None) -> dict[str, Any]:
    """What the file that a model's name stands for says: one at hand, or one of open_lm's own."""
    bare = posixpath.basename(named).removesuffix(".json")
    path = beside(folder, named) if named.endswith(".json") else None
    path = path or beside(folder, f"open_lm/model_configs/{bare}.json")
    if path is not None:
        data = parse_json(read_text(path, "--model"), "--model", str(path), _LIMITS)
        if isinstance(data, dict) and ("d_model" in data and "n_heads" not in data):
            raise SpecError("--model", bare, f"trains a state-space model: {PLANNED}")
        if isinstance(data, dict) and {"hidden_dim", "n_layers", "n_heads"} <= set(data):
            return data
    if bare.startswith("mamba"):
        raise SpecError("--model", bare, f"trains a state-space model: {PLANNED}")
    if bare not in _SIZES:
        return {}
    hidden, layers, heads = _SIZES[bare]
    usual = {"hidden_dim": hidden, "n_layers": layers, "n_heads": heads, "vocab_size": _VOCAB, "seq_len": _LENGTH}  # fmt: skip
    return usual | _OTHERS.get(bare, {})


def _model(options: Options, data: dict[str, Any], name: str) -> Model:
    hidden, heads = int(data["hidden_dim"]), int(data["n_heads"])
    kind = str(data.get("ffn_type") or options.word("ffn-type", default="swiglu"))
    norm = str(data.get("model_norm") or options.word("model-norm", default="default_layer_norm"))
    experts = options.whole("moe-num-experts")
    gated = "glu" in kind
    # Rounded up as model.py does: 256 * ((int(2 * 4 * dim / 3) + 255) // 256).
    ffn = 256 * ((int(8 * hidden / 3) + 255) // 256) if gated else 4 * hidden
    options.read |= {"ffn-type", "model-norm", "moe-top-k", "moe-freq", "moe-loss-weight", "moe-capacity-factor"}  # fmt: skip
    if experts > 1:
        raise SpecError("--moe-num-experts", experts, "some of the layers have experts (--moe-freq), which is not modelled: give --model")  # fmt: skip
    return Model.parse(
        {
            "name": name, "layers": int(data["n_layers"]), "hidden": hidden, "heads": heads, "kv_heads": heads, "head_dim": hidden // heads,
            "ffn": ffn, "gated": gated, "vocab": int(data.get("vocab_size", _VOCAB)), "norm": "rmsnorm" if "rms" in norm else "layernorm",
            "tied_embeddings": bool(data.get("weight_tying", False)),
            "qk_norm": "full" if data.get("qk_norm") or options.flag("qk-norm") else "none",
        },
        "model",
    )  # fmt: skip


def _sharding(options: Options, reading: Reading, launch: Launch) -> None:
    on, inside, second = (options.flag(one) for one in ("fsdp", "fsdp-hybrid", "fsdp-hybrid-o2"))
    reading.layout = {
        "zero": 2 if second else 3 if on or inside else 0,
        "recompute": "full" if options.flag("grad-checkpointing") or options.flag("fsdp-checkpoint") else "none",
    }  # fmt: skip
    if inside or second:
        reading.shard = launch.per_host
        reading.note("shards inside a host and copies between hosts", "--fsdp-hybrid")
    if options.flag("fsdp-cpu-offload"):
        reading.offload |= {"optimizer", "parameters"}


def _job(options: Options, reading: Reading) -> None:
    wide = options.word("precision", default="amp")
    if options.flag("fsdp-pure-bf16"):
        recipe = RECIPES["bf16"]
    elif options.flag("fsdp-amp"):
        recipe = RECIPES["bf16"].but(gradient_bytes=4, gradient_reduce_bytes=4)
    elif wide.startswith("amp"):
        # Autocast over 32-bit weights; `amp` alone computes in fp16.
        half = "fp16" if wide == "amp" else "bf16"
        recipe = RECIPES["fp32"].but(name=half, compute=half, activation_bytes=2)
    elif wide in ("bf16", "fp16"):
        recipe = RECIPES["pure-bf16"] if wide == "bf16" else RECIPES["fp16"]
    elif wide == "fp32":
        recipe = RECIPES["fp32"]
    else:
        raise SpecError("--precision", wide, "amp, amp_bf16, amp_bfloat16, bf16, fp16 or fp32 is expected")  # fmt: skip
    name = options.word("optimizer", default="adamw")
    optimizer = optimizer_or_adamw(reading, name, "--optimizer")
    reading.job = {"precision": recipe.model_dump(), "optimizer": optimizer.model_dump(), "framework": "fsdp"}  # fmt: skip
    if options.flag("torchcompile"):
        reading.unmodelled("--torchcompile", "torch.compile fuses kernels; the estimate runs PyTorch's own")  # fmt: skip
