"""MaxText: a YAML over its base, or `key=value` words after one."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.formats.maxtext_base import (
    BASE_SIZES,
    absent,
    below,
    changed_base,
    model_file,
    with_base,
)
from meshwright.imports.interpolate import read_table, words_to_table
from meshwright.imports.names import PLANNED, model_named
from meshwright.imports.options import Options
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import cast_where_used, optimizer_named
from meshwright.imports.shell.words import unmarked
from meshwright.specs.errors import SpecError
from meshwright.specs.job import OPTIMIZERS, RECIPES, PrecisionRecipe
from meshwright.specs.model import Model

EDITS = {
    "tp": "ici_tensor_parallelism", "micro_batch": "per_device_batch_size", "recompute": "remat_policy",
    "cp": "ici_context_parallelism", "ep": "ici_expert_parallelism",
}  # fmt: skip
_MARKS = (
    "per_device_batch_size",
    "ici_fsdp_parallelism",
    "remat_policy",
    "base_emb_dim",
    "dcn_data_parallelism",
)
_OF_TUNERS = {"base_model", "base_model_name", "model_name_or_path", "model_id", "lora_r", "lora_rank", "grad_accum"}  # fmt: skip
"""What a file says of a checkpoint that it tunes, beside a batch that MaxText calls as it does."""
_AXES = {
    "data": "replicate", "fsdp": "shard", "fsdp_transpose": "shard", "tensor": "tp", "tensor_sequence": "tp",
    "tensor_transpose": "tp", "sequence": "cp", "context": "cp", "context_usp_ulysses": "cp", "pipeline": "pp",
    "expert": "ep", "autoregressive": "tp", "diloco": "replicate", "context_autoregressive": "cp",
}  # fmt: skip
_KEPT = ("none", "", "null")


_OVERLAID = frozenset({"model_name", "max_target_length", "per_device_batch_size", "remat_policy", "use_sft", "use_dpo"})  # fmt: skip
"""What stands in a file that is laid over one of MaxText's."""


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is MaxText's."""
    laid_over = isinstance(data.get("base_config"), str) and bool(_OVERLAID & set(data))
    marks = [name for name in _MARKS if name in data]
    return laid_over or (
        bool(marks) and not (tuple(marks) == _MARKS[:1] and _OF_TUNERS & set(data))
    )


def read_words(words: list[str], given: Given, folder: Path | None) -> Reading:
    """Return what a MaxText command runs: its YAML, and the words over it.

    Raises:
        SpecError: a value that cannot be.
    """
    data: dict[str, Any] = {}
    seeing = next((w for w in words if re.search(r"(?i)vision\S*\.yml$|^use_multimodal=true$", unmarked(w))), "")  # fmt: skip
    if seeing:
        raise SpecError("config", unmarked(seeing)[-60:], f"trains a vision-language model: {PLANNED}")  # fmt: skip
    for word in words:
        if unmarked(word).endswith((".yml", ".yaml")) and "=" not in word:
            path = beside(folder, word)
            if path is not None and path.name != "base.yml":
                data |= with_base(read_table(path), path.parent)
            elif path is not None:
                data |= changed_base(path)
            elif not unmarked(word).endswith("base.yml"):
                data |= absent(unmarked(word))
    data |= words_to_table(words)
    reading = read(data, given, folder)
    reading.format = "MaxText command"
    return reading


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what a MaxText configuration runs.

    Raises:
        SpecError: a value that cannot be.
    """
    data = with_base(dict(data), folder) if folder is not None else dict(data)
    options = Options(data)
    reading = Reading("MaxText YAML", options=dict(EDITS))
    options.guessing = given.guess
    options.raw("hardware", "decoder_block")
    below(options, reading)
    reading.model = given.model
    named = options.loose("model_name")
    if named and named != "default":
        reading.model_name = named
        preset = model_named(named)
        exact = preset is not None and preset.name == named.lower()
        if not exact and reading.model is None and folder is not None:
            path = model_file(named, folder)
            if path is not None:
                reading.model = _model(Options({**read_table(path), **data}), reading)
        if reading.model is None:
            reading.model = _changed(preset, options)
            _beside_named(preset, options, reading)
    elif reading.model is None:
        reading.model = _model(options, reading)
    reading.jax = True
    _mesh(options, reading, given.cluster is None)
    each = options.number("per_device_batch_size", default=12.0)
    if "per_device_batch_size" not in options:
        reading.note("is MaxText's own, 12", "per_device_batch_size")
    reading.seq_len = options.whole("max_target_length", default=2048)
    reading.accumulation = options.whole("gradient_accumulation_steps", default=1) or 1
    spread = reading.layout["tp"] * reading.layout["cp"]
    micro = each * spread
    reading.micro_batch, reading.each = max(1, round(micro)), micro
    if micro < 1:
        reading.note(
            f"{each:g} sequences a device share one among devices", "per_device_batch_size"
        )
    if reading.layout["pp"] > 1:
        reading.micro_batch = max(1, round(each * spread))
        stages = options.whole("num_pipeline_microbatches")
        reading.accumulation *= reading.layout["pp"]
        if stages:
            options.read.add("num_pipeline_microbatches")
    _job(options, reading)
    options.finish(reading, "maxtext", "common", strict=given.strict)
    return reading


def _sizes(options: Options, reading: Reading, sizes: dict[str, int]) -> set[str]:
    """Fill in the degree of each axis; returns those that take the devices which the others leave, by level."""
    rest: set[str] = set()
    left: dict[str, str] = {}
    for level in ("ici", "dcn"):
        for axis, ours in _AXES.items():
            name = f"{level}_{axis}_parallelism"
            default = -1 if name in ("ici_fsdp_parallelism", "dcn_data_parallelism") else 1
            size = int(options.number(name, default=default))
            if size == -1:
                rest.add(f"{level}:{ours}")
                if ours not in ("shard", "replicate"):
                    left[ours] = name
            elif size > 1:
                sizes[ours] *= size
                if axis == "diloco":
                    reading.unmodelled(name, "copies that agree seldom (DiLoCo) are priced as agreeing every step")  # fmt: skip
    for ours, name in left.items():
        level = name[:3]
        fixed = math.prod(
            max(1, int(options.number(f"{level}_{axis}_parallelism", default=1))) for axis in _AXES
        )
        taken = max(1, 8 // fixed) if level == "ici" else 1
        sizes[ours] *= taken
        reading.guess(name, f"-1 takes the devices that the other axes leave; {taken} are taken")
    return rest


def _mesh(options: Options, reading: Reading, alone: bool) -> None:
    sizes = {"replicate": 1, "shard": 1, "tp": 1, "cp": 1, "pp": 1, "ep": 1}
    gpu = "gpu" in options.loose("hardware")
    hosts = (
        math.prod(
            max(1, int(options.number(f"dcn_{axis}_parallelism", default=1))) for axis in _AXES
        )
        if gpu
        else 1
    )
    rest = _sizes(options, reading, sizes)
    if hosts > 1:
        # So many hosts at least: the cluster that is offered has them.
        reading.hosts = hosts
    ep, shard = sizes["ep"], sizes["shard"]
    if ep > 1:
        # Experts' devices hold other data, too: they are part of the data-parallel ranks here.
        shard *= ep
    # An axis of its own splits what lies between the blocks; plain tensor parallelism does not.
    sequence = any(
        options.number(f"{level}_tensor_sequence_parallelism", default=1) > 1
        for level in ("ici", "dcn")
    )
    whole = shard > 1 if ep == 1 else shard > ep
    copied = 1 if options.flag("shard_optimizer_over_data") else 0
    strategy = options.word("context_parallel_strategy", default="all_gather")
    reading.layout = {
        "tp": sizes["tp"], "cp": sizes["cp"], "pp": sizes["pp"], "ep": ep, "sequence_parallel": sequence,
        "zero": 3 if whole or any(one.endswith(":shard") for one in rest) else copied,
        "cp_method": "ring" if strategy == "ring" and sizes["cp"] > 1 else "all-gather",
    }  # fmt: skip
    balanced = options.flag("context_parallel_load_balance", default=True)
    if sizes["cp"] > 1 and not balanced:
        reading.job["framework_options"] = {"context_balanced": False}
    replicate = sizes["replicate"]
    if not rest:
        reading.dp = replicate * shard
        reading.replicate = replicate
    elif "dcn:replicate" in rest and "ici:shard" not in rest:
        reading.shard = shard
        if alone and (replicate > 1 or shard > 8):
            reading.dp, reading.replicate = replicate * shard, replicate if replicate > 1 else 0
            reading.guess("dcn_data_parallelism", "-1 takes as many copies as there are slices; one slice is taken")  # fmt: skip
    elif replicate > 1:
        reading.replicate = replicate
    if reading.layout["zero"] == 1:
        reading.replicate = reading.shard = (
            0  # copies of the weights, whose optimizer states are sharded over all
        )
    if "ici:shard" in rest and "dcn:replicate" in rest:
        reading.note(
            "sharded inside a slice and copied between slices; one slice is taken",
            "ici_fsdp_parallelism",
        )


def _scaled(options: Options) -> dict[str, int]:
    """The sizes that a table says, MaxText's own where it is silent, at its scale.

    A scale of 2**n doubles in turn heads and feed-forward width, the hidden size, and the layers
    (get_individual_scales in MaxText/pyconfig.py).

    Raises:
        SpecError: a scale that is no power of two.
    """
    if "base_num_heads" in options and "base_num_query_heads" not in options:
        heads = options.raw("base_num_heads")  # of its first releases
        options.values["base_num_query_heads"] = heads
    if "base_num_query_heads" in options and "base_num_kv_heads" not in options:
        options.values["base_num_kv_heads"] = options.values["base_num_query_heads"]
    sizes = {
        name: options.whole(name, default=usual, least=1) for name, usual in BASE_SIZES.items()
    }
    scale = options.whole("global_parameter_scale", default=1, least=1)
    if scale & (scale - 1):
        raise SpecError("global_parameter_scale", scale, "a power of two is expected")
    doublings, rest = divmod(scale.bit_length() - 1, 3)
    for name in ("base_num_query_heads", "base_num_kv_heads", "base_mlp_dim"):
        sizes[name] <<= doublings + (rest > 0)
    sizes["base_emb_dim"] <<= doublings + (rest > 1)
    sizes["base_num_decoder_layers"] <<= doublings
    return sizes


def _model(options: Options, reading: Reading) -> Model:
    if not any(name in options for name in (*BASE_SIZES, "base_num_heads")):
        reading.note("names no model: MaxText trains the one of its base.yml", "model_name")
    sizes = _scaled(options)
    layers, hidden, heads, kv_heads, ffn, head, vocab = sizes.values()
    acts = str(options.raw("mlp_activations") or ["silu", "linear"])
    experts = options.whole("num_experts", default=1)
    width = options.whole("base_moe_mlp_dim", default=-1, least=-1)
    width = ffn if width < 0 else width  # as base.yml leaves it
    shared = options.whole("shared_experts")
    block = options.word("decoder_block", default="llama2")
    if options.word("attention_type") == "mla":
        latent: dict[str, int] | None = {
            "q_rank": options.whole("q_lora_rank"),
            "kv_rank": options.whole("kv_lora_rank", default=512),
            "nope_head_dim": options.whole("qk_nope_head_dim", default=128),
            "rope_head_dim": options.whole("qk_rope_head_dim", default=64),
            "v_head_dim": options.whole("v_head_dim", default=128),
        }
    else:
        latent = None
    return Model.parse(
        {
            "name": reading.model_name or "imported", "layers": layers, "hidden": hidden, "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": latent["nope_head_dim"] + latent["rope_head_dim"] if latent else head, "ffn": ffn,
            "vocab": vocab, "gated": "linear" in acts,
            "tied_embeddings": options.flag("logits_via_embedding"), "latent_attention": latent,
            "norms_per_layer": 4 if block in ("gemma2", "gemma3") or options.flag("use_post_attn_norm") else 2,
            "qk_norm": "head" if options.flag("use_qk_norm") else "none",
            "window": options.whole("sliding_window_size"),
            "experts": {"experts": experts, "top_k": options.whole("num_experts_per_tok", default=1), "ffn": width,
                        "shared_ffn": shared * width, "dense_layers": options.whole("first_num_dense_layers")}
            if experts > 1 else None,
        },
        "model",
    )  # fmt: skip


_OF_A_PRESET = {
    "base_num_decoder_layers": "layers", "base_emb_dim": "hidden", "base_num_query_heads": "heads",
    "base_num_kv_heads": "kv_heads", "head_dim": "head_dim", "base_mlp_dim": "ffn", "vocab_size": "vocab",
}  # fmt: skip


def _beside_named(model: Model | None, options: Options, reading: Reading) -> None:
    """Name what a configuration adds to the model that it names, whose own file is silent about it."""
    if model is None:
        return
    if options.flag("use_qk_norm") and model.qk_norm == "none":
        reading.unmodelled("use_qk_norm", "queries and keys are normed, which the named model does not do; not priced")  # fmt: skip
    if options.whole("num_experts", default=1) > 1 and model.experts is None:
        reading.unmodelled("num_experts", f"experts take the place of {model.name}'s FFNs; the dense model is priced")  # fmt: skip
    kind = options.word("attention_type", default="global")
    if kind in ("local_sliding", "chunk") and not model.window:
        reading.unmodelled("attention_type", f"{kind}; attention over whole sequences is priced")


def _changed(model: Model | None, options: Options) -> Model | None:
    """A known model with the sizes that the configuration sets over it; None where it sets none."""
    sizes = {
        ours: options.whole(theirs, least=1)
        for theirs, ours in _OF_A_PRESET.items()
        if theirs in options
    }
    changed = {ours: size for ours, size in sizes.items() if getattr(model, ours, size) != size}
    return model.but(**changed) if model is not None and changed else None


def _recomputation(options: Options, reading: Reading) -> None:
    """What is kept until backward, and what of it in host memory."""
    policy = options.word("remat_policy", default="full")
    kept = [n for n, v in options.values.items() if str(v) in ("offload", "device")]
    if policy == "custom" and kept == ["decoder_layer_input"]:
        policy = "full"  # only layers' inputs are kept
    reading.layout["recompute"] = (
        "full" if policy == "full" else "none" if policy in _KEPT else "selective"
    )
    if reading.layout["recompute"] == "selective":
        reading.unmodelled(
            "remat_policy",
            f"{policy} keeps some products and recomputes the rest; selective recomputation is priced",
        )
    if "offload" in policy or any(str(value) == "offload" for value in options.values.values()):
        reading.offload.add("activations")
    if options.flag("optimizer_memory_host_offload"):
        reading.offload.add("optimizer")
    if options.flag("parameter_memory_host_offload"):
        reading.offload.add("parameters")


def _precision(options: Options, reading: Reading) -> PrecisionRecipe:
    """Of weights, products and sums."""
    weights = options.word("weight_dtype", default="float32")
    quantised = options.word("quantization", default="")
    dtype = options.word("dtype", default="bfloat16")
    recipe = RECIPES["fp32"] if dtype == "float32" else cast_where_used(wide=weights != "bfloat16")
    if "fp8" in quantised or "int8" in quantised:
        recipe = RECIPES["fp8"]
        if "int8" in quantised:
            reading.unmodelled("quantization", "products in int8; priced as fp8")
    return recipe


def _job(options: Options, reading: Reading) -> None:
    _recomputation(options, reading)
    recipe = _precision(options, reading)
    if options.has("packing"):
        reading.job["document_masking"] = options.flag("packing")
    if options.whole("num_vocab_tiling", default=1) > 1:
        reading.job["loss"] = "chunked"
    name = options.word("opt_type", default="adamw")
    try:
        optimizer = optimizer_named(name, "opt_type", momentum=0.0)  # optax.sgd as it comes
        if (
            optimizer.name == "adamw"
            and options.word("weight_dtype", default="float32") == "bfloat16"
        ):
            optimizer = OPTIMIZERS["adamw-bf16"]  # mu_dtype inherits weight_dtype (types.py)
    except SpecError:
        optimizer = OPTIMIZERS["adamw"]
        reading.unmodelled("opt_type", f"the state of {name} is not known; AdamW's is priced")
    if options.word("mu_dtype", default="") in ("bfloat16",) and optimizer.name == "adamw":
        optimizer = optimizer.but(state_bytes=6.0)
    kernel = options.word("attention", default="autoselected")
    reading.job |= {
        "framework": "maxtext",
        "precision": recipe.model_dump(),
        "optimizer": optimizer.model_dump(),
        "attention_kernel": "unfused" if kernel == "dot_product" else "flash",
    }
    reading.count_steps(options, "steps")
    if options.flag("enable_dropout") and options.number("dropout_rate"):
        reading.job["dropout"] = options.number("dropout_rate")
    hardware = options.loose("hardware")
    if re.search(r"tpu|v\d", hardware):
        reading.device = "tpu-v5p"
    elif "gpu" not in hardware and "cudnn" not in kernel:
        reading.likely = "tpu-v5p"  # MaxText's own default is a TPU
