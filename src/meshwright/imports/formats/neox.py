"""GPT-NeoX's YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.formats.deepspeed import shards_itself
from meshwright.imports.interpolate import read_table
from meshwright.imports.names import PLANNED, model_named
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.imports.tasks import name_task
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

EDITS = {
    "tp": "model_parallel_size", "pp": "pipe_parallel_size", "micro_batch": "train_micro_batch_size_per_gpu",
    "accumulation": "gradient_accumulation_steps", "zero": "zero_optimization.stage",
    "recompute": "checkpoint_activations",
}  # fmt: skip
_POSITIONS = {
    "rotary": "rope",
    "alibi": "alibi",
    "none": "none",
    "learned": "learned",
    "sinusoidal": "none",
}


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is GPT-NeoX's: flat, with a shape or its parallel sizes."""
    keys = {str(key).replace("-", "_") for key in data}
    if is_part(data):
        return True
    its = bool(keys & (_ITS | _OF_RUNS)) or any("-" in str(key) for key in data)
    return (
        bool(keys & {"pipe_parallel_size", "model_parallel_size"})
        or ({"num_layers", "hidden_size"} <= keys and its)
    ) and not {"model", "modules", "trainer"} & keys


_ITS = {"pos_emb", "no_weight_tying", "gpt_j_residual", "gpt_j_tied", "output_layer_parallelism", "attention_config", "bias_gelu_fusion", "train_micro_batch_size_per_gpu",
        "scaled_upper_triang_masked_softmax_fusion", "rotary_pct", "train_data_paths", "data_path", "zero_optimization", "make_vocab_size_divisible_by"}  # fmt: skip
"""What only its files say beside a shape that others write in the same words."""

_OF_RUNS = {"checkpoint_activations", "partition_activations", "synchronize_each_layer", "data_impl", "train_iters", "lr_decay_iters",
            "lr_decay_style", "checkpoint_factor", "output_layer_init_method"}  # fmt: skip


def is_part(data: dict[str, Any]) -> bool:
    """Whether a table says what only GPT-NeoX's do, beside DeepSpeed's own words, without a shape."""
    keys = {str(key).replace("-", "_") for key in data}
    return len(keys & _OF_RUNS) > 3 and "num_layers" not in keys and "model" not in keys


def read_words(words: list[str], given: Given, folder: Path | None) -> Reading | None:
    """What `deepy.py [train.py] [-d FOLDER] FILE…` runs; None where its files are not here.

    Raises:
        SpecError: as `read`.
    """
    where = next((words[i + 1] for i, word in enumerate(words[:-1]) if word in ("-d", "--conf_dir", "--conf-dir")), "")  # fmt: skip
    data: dict[str, Any] = {}
    for word in words:
        if word.startswith("-") or word == where or word.endswith(".py"):
            continue
        name = word if word.endswith((".yml", ".yaml", ".json")) else f"{word}.yml"
        path = beside(folder, f"{where}/{name}" if where else name)
        if path is None:
            return None
        data |= {str(key).replace("-", "_"): one for key, one in read_table(path).items()}
    reading = read(data, given) if data else None
    if reading is not None:
        reading.format = "GPT-NeoX command"
    return reading


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what a GPT-NeoX configuration runs.

    Raises:
        SpecError: a value that cannot be, or a model that is not modelled.
    """
    data = {str(key).replace("-", "_"): one for key, one in data.items()}
    student = data.pop("student_model_args", None)
    taught = isinstance(student, dict) and data.pop("teacher_model_args", None) is not None
    options = Options(flattened({**data, **student} if isinstance(student, dict) else data))
    reading = Reading("GPT-NeoX YAML", options=dict(EDITS))
    if taught:
        reading.unmodelled(
            "teacher_model_args", "a frozen teacher is held and run, too; not priced"
        )
    reading.model = given.model or _model(options, reading)
    reading.seq_len = options.whole("seq_length")
    reading.layout = {
        "tp": options.whole("model_parallel_size", default=1) or 1,
        "pp": options.whole("pipe_parallel_size", default=1) or 1,
        "cp": options.whole("context_parallel_size", default=1) or 1,
        "ep": options.whole("moe_expert_parallel_size", default=1) or 1
        if reading.model.experts
        else 1,
        "zero": min(options.whole("zero_optimization.stage"), 3),
        "sequence_parallel": options.flag("sequence_parallel"),
        "recompute": "full" if options.flag("checkpoint_activations") else "none",
    }
    if reading.layout["recompute"] == "none":  # both are of saved layer inputs
        options.read |= {"partition_activations", "synchronize_each_layer"}
    elif options.flag("partition_activations") and reading.layout["tp"] > 1:
        reading.unmodelled("partition_activations", "saved layer inputs are split over tensor-parallel ranks; the estimate keeps them whole")  # fmt: skip
    narrow = options.flag("bf16.enabled") or options.word("precision") == "bfloat16"
    if narrow and not reading.layout["zero"] and options.whole("pipe_parallel_size") > 0:
        reading.layout["zero"] = shards_itself(reading, "zero_optimization.stage")
    interval = options.whole("checkpoint_num_layers", default=1)
    if interval > 1 and reading.layout["recompute"] == "full":
        reading.unmodelled("checkpoint_num_layers", f"{interval} layers are recomputed from one saved input; the "
                           "estimate saves every layer's")  # fmt: skip
    for key, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        if options.word(f"zero_optimization.{key}.device") not in ("", "none"):
            reading.offload.add(what)
    if options.flag("zero_optimization.cpu_offload"):
        reading.offload.add("optimizer")
    reading.micro_batch = options.whole("train_micro_batch_size_per_gpu", "batch_size")
    reading.global_batch = options.whole("train_batch_size")
    reading.accumulation = options.whole("gradient_accumulation_steps", default=1) or 1
    steps = (
        options.whole("gradient_accumulation_steps")
        if "gradient_accumulation_steps" in options
        else 0
    )
    if steps and reading.micro_batch and reading.global_batch % (reading.micro_batch * steps) == 0:
        # Batch, micro-batch and accumulation together say how many replicas there are.
        reading.dp = reading.global_batch // (reading.micro_batch * steps)
    reading.hosts = options.whole("num_nodes")
    reading.per_host = options.whole("num_gpus")
    _job(options, reading)
    kind = options.word("train_impl", default="normal")
    if kind not in ("normal", "reinforce"):
        name_task(reading, kind)
        reading.reference = reading.reference and not options.flag(f"{kind}_reference_free")
    elif kind == "reinforce":
        reading.unmodelled("train_impl", "reinforce: answers are generated and scored between the steps; the training half is priced")  # fmt: skip
    options.finish(reading, "neox", "deepspeed", "common", strict=given.strict)
    return reading


def _model(options: Options, reading: Reading) -> Model:
    layers, hidden, heads = (
        options.whole(n) for n in ("num_layers", "hidden_size", "num_attention_heads")
    )
    if not (layers and hidden and heads):
        raise SpecError("num_layers", layers or None, "GPT-NeoX needs num_layers, hidden_size and "
                        "num_attention_heads; import the folder where another file holds them, or give --model")  # fmt: skip
    kinds = str(options.raw("attention_config") or "")
    if any(word in kinds for word in ("mamba", "rwkv", "gmlp", "amlp")):
        raise SpecError("attention_config", kinds[:60], "a state-space or recurrent model is not modelled: "
                        f"{PLANNED}")  # fmt: skip
    if any(word in kinds for word in ("sparse", "local", "bigbird", "bslongformer")):
        reading.unmodelled("attention_config", "sparse attention; dense attention is priced")
    flash = "flash" in kinds or options.flag("te_mha")  # Transformer Engine's attention
    reading.job["attention_kernel"] = "flash" if flash else "unfused"
    activation = options.word("activation", default="gelu")
    llama = "llama" in options.word("mlp_type", default="regular")  # of releases before 2024
    gated = llama or activation in ("swiglu", "geglu", "reglu", "bilinear", "glu")
    norm = options.word("norm", default="layernorm")
    stated = options.whole("intermediate_size") or 4 * hidden
    ffn = _width(stated, options.whole("mlp_multiple_of", default=1) or 1, gated)
    if llama:
        ffn = -(-int(8 * hidden / 3) // 256) * 256
    if gated and options.has("intermediate_size"):
        reading.note(
            f"a gated FFN of intermediate_size {stated} is {ffn} wide", "intermediate_size"
        )
    positions = _POSITIONS.get(options.word("pos_emb", default="learned"), "learned")
    rms = norm in ("rmsnorm", "te_rmsnorm")
    bias = options.flag("use_bias_in_attn_linear", default=True)
    experts = options.whole("moe_num_experts", default=1)
    return Model.parse(
        {
            "name": "imported", "family": "gpt_neox", "layers": layers, "hidden": hidden, "heads": heads,
            "kv_heads": options.whole("num_kv_heads") or heads, "head_dim": hidden // heads, "ffn": ffn or 4 * hidden,
            "vocab": _vocab(options, reading), "gated": gated,
            "tied_embeddings": not options.flag("no_weight_tying"),
            "norm": "rmsnorm" if rms else "layernorm", "norm_bias": not rms,
            "qkv_bias": bias, "attention_out_bias": bias,
            "ffn_bias": options.flag("use_bias_in_mlp", default=not gated),
            "positions": positions,
            "max_positions": options.whole("max_position_embeddings", default=2048) if positions == "learned" else 0,
            "window": options.whole("sliding_window_width"),
            "parallel_block": options.flag("gpt_j_residual"),
            "experts": {"experts": experts, "top_k": options.whole("moe_top_k", default=1) or 1, "ffn": ffn or 4 * hidden,
                        "period": options.whole("moe_expert_interval", default=1) or 1} if experts > 1 else None,
        },
        "model",
    )  # fmt: skip


def _width(stated: int, multiple: int, gated: bool) -> int:
    """The width of the FFN: a gated one keeps the parameters of an ungated one of the stated size."""
    if not gated:
        return -(-stated // multiple) * multiple
    both = int(stated * 2 / 3)
    return -(-both // (2 * multiple)) * (2 * multiple) // 2


def _vocab(options: Options, reading: Reading) -> int:
    size = options.whole("padded_vocab_size", "vocab_size")
    if size:
        return size
    multiple = options.whole("make_vocab_size_divisible_by", default=128) or 128
    words = [options.loose(one) for one in ("tokenizer_type", "vocab_file", "tokenizer", "load")]
    tokenizer = " ".join(words[:3]).lower()
    alike = next((found for one in words[1:] for part in reversed(one.split("/")) if part and (found := model_named(part)) is not None), None)  # fmt: skip
    known = 32_000 if "spm" in tokenizer or "llama" in tokenizer else 50_257
    known = alike.vocab if alike is not None and "20b" not in tokenizer else known
    size = -(-known // multiple) * multiple
    reading.guess("--model", f"the vocabulary is in a tokenizer's file; {size} is taken")
    return size


def _job(options: Options, reading: Reading) -> None:
    precision = options.word("precision", default="")
    fp16, bf16 = options.flag("fp16.enabled"), options.flag("bf16.enabled")
    if options.word("fp16.type") in ("bfloat16", "bf16"):
        # Older releases name the kind of 16-bit numbers inside the table of fp16.
        fp16, bf16 = False, fp16
    wide = options.word("data_types.grad_accum_dtype", "grad_accum_dtype") == "fp32"
    if precision in ("bfloat16", "bf16") or bf16:
        recipe = RECIPES["bf16-fp32-grads" if wide else "bf16"]
    elif precision in ("fp16",) or fp16:
        recipe = RECIPES["fp16"]
    elif (
        not precision
        and "fp16" not in options
        and not any(n.startswith("fp16") for n in options.values)
    ):
        recipe = RECIPES["fp16"]
        reading.guess(
            "precision",
            "not set; fp16, as most of its configurations have it, is taken (nothing else beside this file, it runs in fp32)",
        )
    else:
        recipe = RECIPES["fp32"]
    kind = options.text("optimizer.type", default="Adam")
    if options.flag("use_bnb_optimizer") and kind.lower() in ("adam", "adamw"):
        kind = "adam8bit"
    reading.job |= {
        "framework": "megatron-deepspeed",
        "precision": recipe.model_dump(),
        "optimizer": optimizer_or_adamw(reading, kind, "optimizer.type").model_dump(),
        "dropout": options.number("hidden_dropout", default=0.0),
    }
    attention = options.number("attention_dropout", default=0.0)
    if attention:
        reading.unmodelled(
            "attention_dropout", f"{attention:g} on attention weights has no term of its own"
        )
    steps = options.whole("train_iters")
    batch = reading.global_batch
    if steps > 1000 and batch:
        reading.job["token_budget"] = float(steps) * batch * reading.seq_len
