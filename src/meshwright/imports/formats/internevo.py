"""InternEvo's configurations: a Python file of tables (`model`, `data`, `parallel`)."""

from __future__ import annotations

from typing import Any

from meshwright.imports.code.values import Module
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

EDITS = {"micro_batch": "data.micro_bsz", "accumulation": "data.micro_num", "tp": "parallel.tensor.size",
         "pp": "parallel.pipeline.size", "recompute": "model.checkpoint"}  # fmt: skip
_TABLES = ("model", "data", "parallel", "moe", "adam", "hybrid_zero_optimizer")
_MULTIPLE = 256
"""What the width of an FFN is rounded up to."""


def is_config(text: str) -> bool:
    """Whether a Python text assigns the tables that InternEvo trains from."""
    return all(
        one in text for one in ("\nparallel = dict(", "\ndata = dict(", "\nmodel = dict(", "zero1")
    )


def read(module: Module, given: Given) -> Reading:
    """Return what such tables run.

    Raises:
        SpecError: a value that cannot be.
    """
    tables = {name: module.names.get(name) for name in _TABLES}
    data = {name: one for name, one in tables.items() if isinstance(one, dict)}
    options = Options(flattened(data))
    options.guessing = given.guess
    reading = Reading("InternEvo configuration", options=dict(EDITS))
    kind = str(module.names.get("model_type", "INTERNLM")).upper()
    reading.model = given.model or _model(options, kind)
    reading.micro_batch = options.whole("data.micro_bsz", default=1, least=1)
    reading.accumulation = options.whole("data.micro_num", default=1, least=1)
    reading.seq_len = options.whole("data.seq_len")
    _layout(options, reading)
    _job(options, reading)
    options.finish(reading, "internevo", "common", strict=given.strict)
    return reading


def _model(options: Options, kind: str) -> Model:
    hidden = options.whole("model.hidden_size", least=1)
    heads = options.whole("model.num_attention_heads", least=1)
    ratio = options.number("model.mlp_ratio", default=8 / 3)
    ffn = -(-int(hidden * ratio) // _MULTIPLE) * _MULTIPLE
    # The first InternLM has biases in attention; what followed it says `no_bias`.
    biased = kind in ("INTERNLM", "INTERNLM_MOE") and not options.flag("model.no_bias")
    experts = options.whole("model.num_experts")
    options.raw("model.norm_type", "model.layer_norm_epsilon")
    return Model.parse(
        {
            "name": "imported", "layers": options.whole("model.num_layers", least=1), "hidden": hidden, "heads": heads,
            "kv_heads": options.whole("model.num_kv_attention_heads") or heads,
            "head_dim": options.whole("model.head_dim") or hidden // max(heads, 1), "ffn": ffn,
            "vocab": options.whole("model.vocab_size", least=1), "gated": True, "norm": "rmsnorm", "tied_embeddings": False,
            "qkv_bias": biased, "attention_out_bias": biased,
            "experts": {"experts": experts, "top_k": options.whole("moe.top_k", "model.top_k", default=1), "ffn": ffn}
            if experts > 1 else None,
        },
        "model",
    )  # fmt: skip


def _size(options: Options, name: str, default: int = 1) -> int:
    """A degree, which stands by itself (`tensor=2`) or in a table (`tensor=dict(size=2)`)."""
    return int(options.number(f"parallel.{name}.size", f"parallel.{name}", default=default))


def _layout(options: Options, reading: Reading) -> None:
    layout = reading.layout
    mode = options.word("parallel.tensor.mode", default="mtp")
    tensor, weight = _size(options, "tensor"), _size(options, "weight")
    layout["pp"] = max(_size(options, "pipeline"), 1)
    if mode == "isp":
        # Sequences are dealt out as in Ulysses; weights lie in pieces that are gathered where used.
        layout |= {"cp": tensor, "cp_method": "ulysses"}
        if weight > 1:
            reading.unmodelled("parallel.weight", f"weights lie in {weight} pieces that are gathered layer by layer; whole ones are priced")  # fmt: skip
    elif mode in ("mtp", "msp", "fsp"):
        layout |= {"tp": tensor, "sequence_parallel": mode != "mtp"}
    else:
        raise SpecError("parallel.tensor.mode", mode, "one of mtp, msp, fsp, isp is expected")
    shards = _size(options, "zero1", default=-1)
    whole = options.flag("parallel.zero1.fsdp") if "parallel.zero1.fsdp" in options else False
    layout["zero"] = 3 if whole else 0 if shards == 1 else 1
    reading.shard = shards if shards > 1 else 0
    chunks = options.whole("model.num_chunks", default=1, least=1)
    if chunks > 1 and layout["pp"] > 1:
        layout |= {"virtual_stages": chunks, "schedule": "interleaved"}
    expert = _size(options, "expert")
    if expert > 1 and reading.model is not None and reading.model.experts:
        layout["ep"] = expert
    _recompute(options, reading)


def _recompute(options: Options, reading: Reading) -> None:
    """`model.checkpoint`: a switch, or the share of layers."""
    said: Any = options.raw("model.checkpoint")
    share = float(said) if isinstance(said, (int, float)) else 1.0 if str(said).lower() == "true" else 0.0  # fmt: skip
    reading.layout["recompute"] = "full" if share > 0 else "none"
    if 0 < share < 1 and reading.model is not None:
        held = reading.model.layers // max(reading.layout["pp"], 1)
        reading.layout["recompute_layers"] = max(round(share * held), 1)


def _job(options: Options, reading: Reading) -> None:
    dtype = options.word("model.dtype", default="torch.bfloat16").removeprefix("torch.")
    kind = "fp16" if dtype in ("float16", "half") else "fp32" if "32" in dtype else "bf16"
    reading.job = {
        "precision": RECIPES["tf32" if dtype == "tf32" else kind].model_dump(),
        "framework": "megatron",
        # Documents are packed to the sequence's length and attend to themselves alone.
        "document_masking": not options.flag("data.pack_sample_into_one"),
        "attention_kernel": "flash"
        if options.flag("model.use_flash_attn", default=True)
        else "unfused",
    }
    own = {"reduce_overlapped": "hybrid_zero_optimizer.overlap_sync_grad", "gather_overlapped": "hybrid_zero_optimizer.overlap_sync_param"}  # fmt: skip
    off = {name: False for name, option in own.items() if not options.flag(option)}
    if off:
        reading.job["framework_options"] = off
    reading.note("InternEvo is priced as Megatron-LM, whose parallelism it has", "framework")
    if options.word("data.rampup_batch_size"):
        reading.note("the batch grows; it is priced at its full size", "data.rampup_batch_size")
    if options.flag("hybrid_zero_optimizer.cpu_offload"):
        reading.offload.add("optimizer")
