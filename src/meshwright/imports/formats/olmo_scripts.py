"""OLMo-core's Python scripts."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from meshwright.imports.code.expressions import evaluate
from meshwright.imports.code.follow import call_function, functions
from meshwright.imports.code.values import Made, Module, Unknown
from meshwright.imports.formats.olmo_builders import built
from meshwright.imports.formats.olmo_overrides import left_over, overridden
from meshwright.imports.formats.olmo_shared import shared_parts
from meshwright.imports.names import PLANNED, model_named
from meshwright.imports.options import Options
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw, torch_moments
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model


def read_script(module: Module, name: str, given: Given, words: Sequence[str] = ()) -> Reading:
    """Return what an OLMo-core script runs.

    Args:
        words: of the command that starts it: `field=value` over its own, and the model by name.

    Raises:
        SpecError: it builds no train module.
    """
    defaults = _argument_defaults(module)
    for node in functions(module):
        if re.search(r"build|config", node.name) and node.name != "main":
            call_function(module, node, [], {})
    for builder in _builders(module):
        call_function(module, builder, [Unknown("cls")], defaults)
    assert module.run is not None
    made = module.run.made
    train = _last(made, r"TrainModuleConfig$|configure_train_module$")
    common = shared_parts(module) if train is None else None
    if common is not None:  # which the script's own functions then change
        for node in functions(module):
            if node.name.startswith("build"):
                call_function(module, node, [common], {})
        train = _last(made, r"TrainModuleConfig$")
    if train is None:
        raise SpecError("file", name, "describes no training run: it makes no train module's configuration; a script of OLMo-core that trains is expected")  # fmt: skip
    recurrent = _last(made, r"(?:GatedDelta|Mamba|Recurrent|FLA)\w*Config$")
    if recurrent is not None:
        raise SpecError(
            "file",
            recurrent.name,
            "layers of several kinds (state-space, hybrid) are not modelled here: "
            f"{PLANNED} of one kind of layer",
        )
    model = _last(made, r"(?:^|\.)(?:TransformerConfig|OLMo\w*Config)(?:\.\w+)?$")
    loader = _last(made, r"DataLoaderConfig$")
    reading = Reading(
        "OLMo-core script",
        options={"micro_batch": "rank_microbatch_size", "batch": "global_batch_size"},
    )
    reading.model = given.model
    if model is not None:
        reading.model_name = _hub_name(model)
        if reading.model is None and reading.model_name == "":
            reading.model = _transformer(model)
        elif reading.model is None:
            reading.model = built(model, reading.model_name, _last(made, r"TokenizerConfig(?:\.\w+)?$"))  # fmt: skip
    elif reading.model is None:
        reading.model_name = "the model of another file"
    window = _last(made, r"SlidingWindowAttentionConfig$")
    if window is not None:
        _windowed(reading, window)
    _lengths(reading, module, made, train, loader)
    launched = _last(made, r"build_launch_config$|LaunchConfig$")
    if launched is not None and _whole(launched.fields.get("num_nodes")):
        reading.hosts = _whole(launched.fields.get("num_nodes"))
        # OLMo-core's own launcher starts eight processes on a host.
        reading.per_host = _whole(launched.fields.get("num_gpus")) or 8
    _parallel(reading, train, model)
    left_over(reading, train, model)
    overridden(reading, words)
    return reading


def _windowed(reading: Reading, window: Made) -> None:
    """Give a known model the sliding window that the script sets on it."""
    pattern = window.fields.get("pattern")
    widths = [w for w in pattern if isinstance(w, int)] if isinstance(pattern, list) else []
    model = reading.model or model_named(reading.model_name)
    local = [w for w in widths if w > 0]
    if model is None or not local:
        return
    every = len(widths) if len(local) < len(widths) else 1
    reading.model = model.but(window=max(local), window_period=every)


def _builders(module: Module) -> list[ast.FunctionDef]:
    """Methods that build a run's configuration, in the order in which they are written."""
    return [
        inner
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
        for inner in node.body
        if isinstance(inner, ast.FunctionDef) and inner.name.startswith("build")
    ]


def _argument_defaults(module: Module) -> dict[str, Any]:
    """What the script's command line takes where nothing is given."""
    found: dict[str, Any] = {}
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        first = node.args[0] if node.args else None
        if node.func.attr != "add_argument" or not isinstance(first, ast.Constant):
            continue
        for keyword in node.keywords:
            if keyword.arg == "default":
                value = evaluate(module, keyword.value, {})
                if not isinstance(value, Unknown):
                    found[str(first.value).lstrip("-").replace("-", "_")] = value
    return found


def _stated(module: Module, *names: str) -> int:
    """A whole number that the script hands on by keyword, under one of these names."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.keyword) and node.arg in names:
            value = _whole(evaluate(module, node.value, {}))
            if value:
                return value
    return 0


def _last(made: list[Made], pattern: str) -> Made | None:
    return next((one for one in reversed(made) if re.search(pattern, one.name)), None)


def _hub_name(model: Made) -> str:
    builder = model.name.rsplit(".", 1)[-1]
    found = re.fullmatch(r"(olmo\d?|llama\d?|qwen\d?|gemma\d?|olmoe)_(\w+)", builder, re.IGNORECASE)
    if found is None or found.group(2).startswith("like"):
        return "" if any(isinstance(v, int) for v in model.fields.values()) else builder
    size = re.sub(r"(?<=\d)_(?=\dB$)", ".", found.group(2))  # `qwen3_0_6B`
    return f"{found.group(1)}-{size}".replace("_", "-")


def _transformer(model: Made) -> Model | None:
    options = Options(
        {k: v for k, v in model.fields.items() if not isinstance(v, (Made, Unknown, dict))}
    )
    hidden, layers, heads = (options.whole(n) for n in ("d_model", "n_layers", "n_heads"))
    if not (hidden and layers and heads):
        return None
    experts = options.whole("num_experts", "n_experts")
    shared = options.whole("shared_expert_hidden_size")
    width = options.whole(
        "hidden_size", "feed_forward_hidden_size", default=int(8 * hidden / 3) // 256 * 256
    )
    return Model.parse(
        {
            "name": "imported", "layers": layers, "hidden": hidden, "heads": heads,
            "kv_heads": options.whole("n_kv_heads") or heads, "head_dim": hidden // heads, "ffn": width,
            "vocab": options.whole("vocab_size", default=100_352),
            "qk_norm": "full" if options.flag("qk_norm") else "none",
            "experts": {"experts": experts, "top_k": options.whole("top_k", default=2), "ffn": options.whole("expert_hidden_size", default=width),
                        "shared_ffn": shared}
            if experts > 1 else None,
        },
        "model",
    )  # fmt: skip


def _whole(value: Any) -> int:
    return (
        int(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1
        else 0
    )


def _lengths(
    reading: Reading, module: Module, made: list[Made], train: Made, loader: Made | None
) -> None:
    data = [one for one in made if "Dataset" in one.name or "TokenizerConfig" not in one.name]
    keys = ("max_sequence_length", "sequence_length", "max_target_sequence_length")
    for one in [train, *data]:
        # Data of one length has it under this name, beside the most that another kind would have.
        first = ("sequence_length",) if one is not train and "vsl" not in str(one.fields.get("name")) else ()  # fmt: skip
        for key in (*first, *keys):
            reading.seq_len = reading.seq_len or _whole(one.fields.get(key))
    tokens = _whole(loader.fields.get("global_batch_size")) if loader is not None else 0
    reading.seq_len = reading.seq_len or _stated(module, "max_sequence_length", "sequence_length")
    tokens = tokens or _stated(module, "global_batch_size")
    if any(one.fields.get("generate_doc_lengths") is True for one in made):
        reading.job["document_masking"] = True
    micro = _whole(train.fields.get("rank_microbatch_size"))
    if not reading.seq_len and (tokens or micro):
        reading.seq_len = 4096
        reading.guess(
            "--seq", "the script takes it as an argument; 4096, its usual default, is taken"
        )
    if reading.seq_len and tokens:
        reading.global_batch = max(1, tokens // reading.seq_len)
    if reading.seq_len and micro:
        reading.micro_batch = max(1, micro // reading.seq_len)


def _parallel(reading: Reading, train: Made, model: Made | None) -> None:
    def part(key: str) -> dict[str, Any]:
        value = train.fields.get(key)
        return value.fields if isinstance(value, Made) else {}

    dp, tp, cp, pp, ep = (part(f"{axis}_config") for axis in ("dp", "tp", "cp", "pp", "ep"))
    if train.name.endswith("configure_train_module") and not dp:
        # OLMo-core's own function of that name shards with copies, and computes in fp8 where asked.
        dp = {"name": "hsdp"}
        train.fields.setdefault(
            "float8_config", Made("", fields={"enabled": train.fields.get("float8_enabled")})
        )
        budget = train.fields.get("activation_memory_budget")
        if isinstance(budget, (int, float)) and budget < 1:
            train.fields.setdefault("ac_config", Made("", fields={"mode": Unknown("budget")}))
    kind = getattr(dp.get("name"), "text", str(dp.get("name", ""))).rsplit(".", 1)[-1].lower()
    reading.layout = {
        "zero": 3 if kind in ("fsdp", "hsdp") else 0,
        "tp": _whole(tp.get("degree")) or 1, "cp": _whole(cp.get("degree")) or 1, "pp": _whole(pp.get("degree")) or 1,
        "ep": _whole(ep.get("degree")) or 1, "recompute": _recompute(train, reading),
    }  # fmt: skip
    replicas = _whole(dp.get("num_replicas"))
    shard = _whole(dp.get("shard_degree"))
    if kind == "hsdp":
        # Ranks that split a sequence hold shards, too: OLMo-core flattens both axes into one.
        reading.replicate, reading.shard = replicas, shard * int(reading.layout["cp"])
        if not replicas and not shard:
            reading.shard = 8
            reading.guess("dp_config", "hybrid sharding inside hosts; 8 devices a host are taken")
    param = getattr(dp.get("param_dtype"), "text", "").rsplit(".", 1)[-1]
    reduce = getattr(dp.get("reduce_dtype"), "text", "").rsplit(".", 1)[-1]
    recipe = RECIPES["bf16-fp32-grads" if param == "bfloat16" or not param else "fp32"]
    if reduce == "bfloat16":
        recipe = recipe.but(gradient_reduce_bytes=2)
    kept = getattr(model.fields.get("dtype"), "text", "") if model is not None else ""
    if kept.endswith("bfloat16"):
        recipe = RECIPES["pure-bf16"]  # weights of 16 bits, with no copy of 32 beside them
    eight = train.get("float8_config.enabled")
    if eight is True:
        recipe = RECIPES["fp8"]
    optim = train.fields.get("optim")
    name = optim.name if isinstance(optim, Made) else "AdamWConfig"
    reading.job |= {
        "framework": "torchtitan",
        "precision": recipe.model_dump(),
        "optimizer": torch_moments(
            optimizer_or_adamw(reading, name.removesuffix("Config"), "optim"), recipe
        ).model_dump(),
    }
    if train.fields.get("compile_model") is False:
        reading.note("the model is not compiled", "compile_model")


def _recompute(train: Made, reading: Reading) -> str:
    again = train.fields.get("ac_config")
    if not isinstance(again, Made):
        return "none"
    mode = getattr(again.fields.get("mode"), "text", "full").rsplit(".", 1)[-1]
    if mode == "full":
        return "full"
    reading.unmodelled("ac_config", f"{mode} are recomputed; selective recomputation is priced")
    return "selective"
