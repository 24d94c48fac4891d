"""Levanter's YAML (and Marin's): a model by its sizes, a JAX trainer that shards parameters over its data axis."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.names import PLANNED
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import cast_where_used, optimizer_or_adamw
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

EDITS = {"micro_batch": "trainer.per_device_parallelism", "tp": "trainer.model_axis_size"}
_OWN = {
    "mp", "per_device_parallelism", "model_axis_size", "fsdp_axis", "tensor_parallel_axes",
    "axis_resources", "parameter_axis_resources", "num_train_steps",
}  # fmt: skip
_USUAL: dict[str, dict[str, Any]] = {
    # LlamaConfig, MistralConfig, MixtralConfig and Gpt2Config in levanter/models.
    "llama": {"hidden_dim": 4096, "intermediate_dim": 11008, "num_layers": 32, "num_heads": 32, "num_kv_heads": 32, "seq_len": 2048},
    "mistral": {"hidden_dim": 4096, "intermediate_dim": 14336, "num_layers": 32, "num_heads": 32, "num_kv_heads": 8, "seq_len": 8192},
    "mixtral": {"hidden_dim": 4096, "intermediate_dim": 14336, "num_layers": 32, "num_heads": 32, "num_kv_heads": 8, "seq_len": 8192,
                "n_routed_experts": 8, "num_experts_per_tok": 2},
    "gpt2": {"hidden_dim": 768, "num_layers": 12, "num_heads": 12, "seq_len": 512},
}  # fmt: skip
_OTHERS = {
    "gpt2_hyena": "a model that mixes tokens without attention", "whisper": "a model of speech",
    "backpack": "a model whose words are sums of senses",
}  # fmt: skip
"""Levanter's own families that are no decoder of text as planned here."""
_SIZES = {
    "hidden_dim": "hidden_size", "intermediate_dim": "intermediate_size", "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads", "num_kv_heads": "num_key_value_heads", "head_dim": "head_dim",
    "tie_word_embeddings": "tie_word_embeddings", "num_experts_per_tok": "num_experts_per_tok",
    "n_routed_experts": "num_local_experts",
}  # fmt: skip
_VOCABULARIES = (
    (r"llama-?3|meta-llama-3", 128_256), (r"llama-?2|llama-7b|llama_?1|mistral|mixtral", 32_000), (r"gpt-?neox", 50_277),
    (r"gpt-?2", 50_257), (r"gemma", 256_000), (r"olmo-?2", 100_278), (r"qwen-?3|qwen2", 151_936),
)  # fmt: skip
_OFFERED = 8
"""Devices that are taken where neither the file nor the user says any."""


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is Levanter's."""
    trainer = data.get("trainer")
    if not isinstance(trainer, dict):
        return False
    own = _OWN & set(trainer)
    model = data.get("model")
    whole = "optimizer" in data or (isinstance(model, dict) and "type" in model)
    cast = bool(re.match(r"(?:p|params|c|compute)=", str(trainer.get("mp"))))  # jmp's policies
    return whole and (
        (len(own) > 1 and ("mp" in own or "train_batch_size" in trainer)) or (cast and bool(own))
    )


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what a Levanter configuration runs.

    Raises:
        SpecError: a family that is no decoder that is known, or a value that cannot be.
    """
    options = Options(flattened(data))
    reading = Reading("Levanter YAML", options=dict(EDITS))
    reading.jax, reading.likely = True, "tpu-v5p"
    reading.model = given.model
    # What the file describes counts, unless the checkpoint's own configuration is taken.
    described = options.has("model.hidden_dim", "model.num_layers") and not options.flag("use_hf_model_config")  # fmt: skip
    name = _name(options)
    reading.model_name = "" if described else name
    if reading.model is None and not reading.model_name:
        reading.model = _model(options, reading)
    reading.seq_len = options.whole("max_seq_len", "train_seq_len", "model.seq_len", "max_tune_length", "max_length")  # fmt: skip
    if not reading.seq_len and reading.model is not None and given.model is None:
        reading.seq_len = int(_usual(options)["seq_len"])
    _layout(options, reading)
    _batch(options, reading, given)
    _job(options, reading)
    options.finish(reading, "levanter", "common", strict=given.strict)
    return reading


def _name(options: Options) -> str:
    """The checkpoint that a run begins from, where its shape is that one's."""
    begins = options.loose("initialize_from_hf", "model_name_or_path")
    return "" if begins.lower() in ("true", "false", "none", "null") else begins


def _usual(options: Options) -> dict[str, Any]:
    return _USUAL.get(options.word("model.type", default="gpt2"), _USUAL["llama"])


def _model(options: Options, reading: Reading) -> Model:
    family = options.word("model.type", default="gpt2")
    if family in _OTHERS:
        raise SpecError("model.type", family, f"trains {_OTHERS[family]}: {PLANNED}")
    usual, fields = _usual(options), {}
    for ours, theirs in _SIZES.items():
        said = options.raw(f"model.{ours}")
        fields[theirs] = usual.get(ours) if said is None else said
    if family == "gpt2":
        scale = options.whole("model.mlp_scale", default=4)
        fields["n_inner"] = scale * options.whole("model.hidden_dim", default=usual["hidden_dim"])
        fields["n_positions"] = options.whole("model.seq_len", default=usual["seq_len"])
        fields |= {"n_embd": fields["hidden_size"], "n_layer": fields["num_hidden_layers"], "n_head": fields["num_attention_heads"]}  # fmt: skip
    fields["vocab_size"] = _vocabulary(options, reading)
    known = {name: value for name, value in fields.items() if value is not None}
    try:
        return model_from_config({"model_type": family, **known}, f"levanter-{family}", "Levanter")
    except SpecError as error:
        raise SpecError("model.type", family, f"describes no decoder that is known: {error}") from None  # fmt: skip


def _vocabulary(options: Options, reading: Reading) -> int:
    if said := options.whole("data.vocab_size"):
        return said  # of texts that are tokens already
    tokenizer = options.loose("data.tokenizer", "tokenizer")
    for pattern, size in _VOCABULARIES:
        if re.search(pattern, tokenizer, re.IGNORECASE):
            return size
    reading.guess("--model", f"the vocabulary is in the tokenizer {tokenizer[:60] or '(not named)'}; 50257, GPT-2's, is taken")  # fmt: skip
    return 50_257


def _layout(options: Options, reading: Reading) -> None:
    """Which axes are split over the mesh: parameters over data (FSDP), products over model."""
    tp = options.whole("trainer.model_axis_size", default=1, least=1)
    placed = {name: value for name, value in options.values.items() if "axis_resources." in name}
    options.read |= set(placed)
    split = options.raw("trainer.tensor_parallel_axes") or "model" in placed.values()
    if tp > 1 and not split:
        reading.note("no axis of the model is split over the model axis: its devices do the same work", "trainer.model_axis_size")  # fmt: skip
    sharded = any("parameter_axis" in name and value == "data" for name, value in placed.items())
    axis = options.values.get("trainer.fsdp_axis", "embed")
    options.read.add("trainer.fsdp_axis")
    again = options.raw("model.gradient_checkpointing")
    off = again is not None and str(again).lower() in ("false", "none", "save_all")
    reading.layout = {
        "tp": tp, "zero": 3 if axis is not None or sharded else 0,
        "recompute": "none" if off else "full",
    }  # fmt: skip
    if str(again).lower() in ("offload", "carry_offload"):
        reading.offload.add("activations")
    copies = options.whole("trainer.replica_dcn_axis_size", default=1, least=1) * options.whole("trainer.replica_ici_axis_size", default=1, least=1)  # fmt: skip
    if copies > 1:
        reading.replicate = copies


def _batch(options: Options, reading: Reading, given: Given) -> None:
    batch = options.raw("trainer.train_batch_size")
    steps = [one.get("value") for one in batch if isinstance(one, dict)] if isinstance(batch, list) else []  # fmt: skip
    if steps:
        options.values["trainer.train_batch_size"] = steps[-1]
        reading.note("the batch grows while training; the last is priced", "trainer.train_batch_size")  # fmt: skip
    each = options.whole("trainer.per_device_parallelism", default=-1, least=-1)
    filled = options.whole("trainer.train_batch_size", default=512, least=-1)
    if filled < 1 and each < 1:
        raise SpecError("trainer.train_batch_size", filled, "a batch, or trainer.per_device_parallelism beside -1, is expected")  # fmt: skip
    reading.global_batch = max(filled, 0)  # at -1, what all devices hold at once
    if each > 0:
        reading.each = reading.micro_batch = each * int(reading.layout["tp"])
        return
    devices = given.cluster.gpus if given.cluster is not None else _OFFERED
    replicas = max(1, devices // int(reading.layout["tp"]))
    reading.micro_batch = given.micro_batch or max(1, reading.global_batch // replicas)
    reading.each = reading.micro_batch
    reading.guess("--micro-batch", f"per_device_parallelism is not set: the whole batch at once, {reading.micro_batch} sequences a replica on {devices} devices")  # fmt: skip


def _job(options: Options, reading: Reading) -> None:
    policy = options.word("trainer.mp", default="f32")
    parts = dict(part.split("=", 1) for part in re.split(r"[,\s]+", policy) if "=" in part)
    compute = parts.get("c", parts.get("compute", policy))
    weights = parts.get("p", parts.get("params", policy))
    recipe = RECIPES["fp32"]
    if compute in ("bf16", "bfloat16", "half", "f16", "float16"):
        recipe = cast_where_used(wide=weights in ("f32", "float32", "full"))
    name = options.word("optimizer.type", default="adamw")
    optimizer = optimizer_or_adamw(reading, name, "optimizer.type")
    reading.job = {"framework": "maxtext", "precision": recipe.model_dump(), "optimizer": optimizer.model_dump()}  # fmt: skip
    reading.note("Levanter is priced as MaxText, the JAX trainer that has been measured", "framework")  # fmt: skip
    flash = options.flag("model.use_flash_attention", default=True)  # a switch of older releases
    if options.word("model.attn_backend") == "vanilla" or not flash:
        reading.job["attention_kernel"] = "unfused"
    said = any(name == "lora" or name.startswith("lora.") for name in options.values)
    if said or _tunes_adapters(options, reading):
        adapters(
            reading, rank=options.whole("lora.r", default=8), alpha=options.number("lora.alpha"),
            targets=options.raw("lora.target_modules"), option="lora.target_modules", dropout=options.number("lora.dropout"),
        )  # fmt: skip


def _tunes_adapters(options: Options, reading: Reading) -> bool:
    """Whether the file is of a program that trains adapters by its own defaults: it saves them, or tags its run so."""
    saves = options.has("peft_save_path", "peft_hf_upload", "merged_hf_save_path")
    tags = options.values.get("trainer.wandb.tags") or options.values.get("trainer.tracker.tags")
    found = saves or (isinstance(tags, list) and "lora" in tags)
    if found:
        reading.guess("lora", "adapters by the defaults of Levanter's LoRA programs: rank 8 on all linear layers")  # fmt: skip
    return found
