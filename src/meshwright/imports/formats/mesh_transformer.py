"""mesh-transformer-jax (GPT-J) and its forks: the JSON that its programs take on a TPU slice."""

from __future__ import annotations

from typing import Any

from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.specs.errors import SpecError
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

_OF_JAXFORMER = {
    "model_layers": "layers", "model_dim": "d_model", "model_heads": "n_heads", "model_head_dim": "head_dim", "model_vocab_size": "n_vocab", "model_seq_len": "seq",
    "model_pe_rotary_dims": "pe_rotary_dims", "opt_per_replica_batch": "per_replica_batch", "opt_params_partitions": "cores_per_replica",
    "opt_gradient_accumulation_steps": "gradient_accumulation_steps", "opt_total_steps": "total_steps", "opt_lr_max": "lr",
}  # fmt: skip
"""What jaxformer, of the same descent (CodeGen), calls them."""
_OWN = frozenset({"layers", "d_model", "n_heads", "cores_per_replica", "per_replica_batch"})


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is one of theirs."""
    return set(data) >= _OWN or {_OF_JAXFORMER.get(name, name) for name in data} >= _OWN


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what such a JSON trains: heads and FFNs over the cores of a replica, replicas over the slice.

    Raises:
        SpecError: a value that cannot be.
    """
    options = Options(flattened({_OF_JAXFORMER.get(name, name): one for name, one in data.items()}))
    reading = Reading("mesh-transformer-jax JSON", likely="tpu-v4")
    tp = options.whole("cores_per_replica", default=8, least=1)
    cores = options.whole("tpu_size", default=tp, least=1)
    if cores % tp:
        raise SpecError("tpu_size", cores, f"a multiple of cores_per_replica = {tp} is expected")
    reading.model = given.model or _model(options)
    reading.devices, reading.dp = cores, cores // tp
    each = options.whole("per_replica_batch", default=1, least=1)
    parts = options.whole("gradient_accumulation_steps", default=1, least=1)
    reading.micro_batch, reading.global_batch = each, each * parts * (cores // tp)
    reading.seq_len = options.whole("seq", default=2048)
    reading.layout = {"tp": tp, "zero": 0, "recompute": "full"}
    wide = RECIPES["bf16-fp32-grads"].but(
        parameter_bytes=4, master_bytes=0
    )  # cast for each product
    reading.job = {"framework": "maxtext", "precision": wide.model_dump()}
    reading.note("is priced as MaxText, the JAX trainer that has been measured", "framework")
    reading.count_steps(options, "total_steps")
    options.finish(reading, "mesh_transformer", "common", strict=given.strict)
    return reading


def _model(options: Options) -> Model:
    """A decoder of GPT-J's kind."""
    if options.word("norm", default="layernorm") != "layernorm":
        raise SpecError(
            "norm", options.word("norm"), "layernorm, as GPT-J has it, is what can be read"
        )
    config = {
        "model_type": "gptj", "n_layer": options.whole("layers", least=1), "n_embd": options.whole("d_model", least=1),
        "n_head": options.whole("n_heads", least=1), "vocab_size": options.whole("n_vocab", default=50400), "tie_word_embeddings": False,
    }  # fmt: skip
    if options.word("pe", default="rotary") != "rotary":
        raise SpecError(
            "pe", options.word("pe"), "rotary positions, as GPT-J has them, are what can be read"
        )
    options.raw("pe_rotary_dims")
    model = model_from_config(config, "imported")
    head = options.whole("head_dim", default=model.head_dim, least=1)
    return model if head == model.head_dim else model.but(head_dim=head)
