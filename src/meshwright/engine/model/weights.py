"""Hugging Face safetensors in and out.

One table per family says which tensor of a checkpoint is which parameter of `Decoder`. Tensors
are read one at a time through safetensors' memory map, so a checkpoint is never loaded whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from meshwright.engine.model.numerics import FAMILIES, Numerics, numerics_of_config
from meshwright.specs import foreign
from meshwright.specs.errors import SpecError
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.model import Experts, Model
from meshwright.specs.writing import write_atomically

_LLAMA = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_LLAMA_LAYER = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.o": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "moe.shared.gate": "mlp.shared_expert.gate_proj",
    "moe.shared.up": "mlp.shared_expert.up_proj",
    "moe.shared.down": "mlp.shared_expert.down_proj",
    "moe.shared_gate": "mlp.shared_expert_gate",
}
_GPT2 = {
    "embed.weight": "transformer.wte.weight",
    "embed.positions": "transformer.wpe.weight",
    "norm.weight": "transformer.ln_f.weight",
    "norm.bias": "transformer.ln_f.bias",
    "head.weight": "lm_head.weight",
}
_GPT2_LAYER = {
    "attention_norm": "ln_1",
    "ffn_norm": "ln_2",
    "attention.q": "attn.c_attn",
    "attention.k": "attn.c_attn",
    "attention.v": "attn.c_attn",
    "attention.o": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
_BUFFERS = re.compile(r"(rotary_emb\.inv_freq|attn\.(masked_)?bias)$")
"""What older files hold besides parameters: tables that are computed, and GPT-2's causal mask."""
_MIXTRAL_EXPERTS = {"gate": "w1", "up": "w3", "down": "w2"}


def _module_name(module: str, model: Model) -> str:
    if module == "moe.router":
        return "block_sparse_moe.gate" if model.family == "mixtral" else "mlp.gate"
    return _LLAMA_LAYER[module]


def _expert_name(number: str, expert: int, leaf: str, model: Model) -> str:
    if model.family == "mixtral":
        within = f"block_sparse_moe.experts.{expert}.{_MIXTRAL_EXPERTS[leaf]}"
    else:
        within = f"mlp.experts.{expert}.{leaf}_proj"
    return f"model.layers.{number}.{within}.weight"


class Checkpoint:
    """A Hugging Face checkpoint directory: its `config.json` and its safetensors files.

    Raises:
        SpecError: a file is missing or unreadable, or the family is not one the decoder computes.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        config_file = self.path / "config.json"
        # Some families' configurations hold infinities, all of them may repeat a key.
        limits = foreign.Limits(any_number=True, last_wins=True)
        self.config: dict[str, Any] = foreign.read_data(config_file, "init", limits)
        family = self.config.get("model_type")
        if not isinstance(family, str) or family not in FAMILIES:
            raise SpecError("model_type", family, f"one of {', '.join(FAMILIES)}")
        with foreign.expecting("init", str(config_file), f"a whole configuration of {family}"):
            self.numerics = numerics_of_config(self.config)
            self.model = model_of_config(self.config)
        self._files = self._index()
        positions = self.config.get("max_position_embeddings", self.config.get("n_positions"))
        self.max_positions = positions if isinstance(positions, int) else 0
        """How far the model's positions go; 0: it does not say."""

    def _index(self) -> dict[str, Path]:
        """Tensor name to file, from the index or the files themselves."""
        found: dict[str, Path] = {}
        for file in sorted(self.path.glob("*.safetensors")):
            try:
                if not file.is_file():
                    raise SpecError("init", str(file), "is no regular file")
                with safe_open(file, framework="pt") as opened:
                    found.update(dict.fromkeys(opened.keys(), file))
            except (SafetensorError, OSError) as error:
                raise SpecError("init", str(file), f"is not a safetensors file ({error})") from None
        if not found:
            raise SpecError("init", str(self.path), "holds no *.safetensors file")
        return found

    def value(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The whole tensor of decoder parameter `name`.

        Raises:
            SpecError: the checkpoint lacks the tensor, or its shape differs.
        """
        read = self._tensor
        tensor = (
            _read_gpt2(name, read)
            if self.model.family == "gpt2"
            else _read_llama(name, shape, read, self.model)
        )
        if tuple(tensor.shape) != shape:
            raise SpecError(name, tuple(tensor.shape), f"shape {shape} is expected")
        return tensor

    def check_tensors(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Account for every tensor, without reading one.

        Raises:
            SpecError: the decoder's parameters (by name) lack a tensor, or one is left over.
        """
        used: set[str] = set()
        missing: list[str] = []

        def look(name: str) -> torch.Tensor:
            try:
                found = self._stored_name(name)
            except SpecError:
                missing.append(name)
                return torch.empty(0, device="meta")
            used.add(found)
            with safe_open(self._files[found], framework="pt") as opened:
                return torch.empty(opened.get_slice(found).get_shape(), device="meta")

        wrong: list[str] = []
        for name, shape in shapes.items():
            held = len(missing)
            found = (
                _read_gpt2(name, look)
                if self.model.family == "gpt2"
                else _read_llama(name, shape, look, self.model)
            )
            if len(missing) == held and tuple(found.shape) != shape:
                wrong.append(f"{name} is {tuple(found.shape)} instead of {shape}")
        left = [n for n in self._files if n not in used and not _BUFFERS.search(n)]
        if self.model.tied_embeddings:
            left = [n for n in left if n != "lm_head.weight"]
        found_faults = [f"lacks {n}" for n in missing] + [
            f"has {n}, which nothing takes" for n in left
        ]
        if faults := wrong + found_faults:
            more = f", and {len(faults) - 3} more" if len(faults) > 3 else ""
            raise SpecError("init", str(self.path), f"{'; '.join(faults[:3])}{more}")

    def _stored_name(self, name: str) -> str:
        """Under which name a file holds a tensor.

        Raises:
            SpecError: none does.
        """
        # GPT-2's released files lack the prefix that transformers' own exports have.
        for candidate in (name, name.removeprefix("transformer.")):
            if candidate in self._files:
                return candidate
        if name == "lm_head.weight" and self.model.tied_embeddings:
            gpt2 = self.model.family == "gpt2"
            return self._stored_name("transformer.wte.weight" if gpt2 else _LLAMA["embed.weight"])
        raise SpecError("init", str(self.path), f"the checkpoint has no tensor {name}")

    def _tensor(self, name: str) -> torch.Tensor:
        stored = self._stored_name(name)
        with safe_open(self._files[stored], framework="pt") as opened:
            return opened.get_tensor(stored)


def _layer_of(name: str) -> tuple[str, str, str] | None:
    """`layers.3.mlp.up.weight` to ("3", "mlp.up", "weight")."""
    match = re.fullmatch(r"layers\.(\d+)\.(.+)\.([a-z_]+)", name)
    return (match[1], match[2], match[3]) if match else None


def _read_llama(
    name: str, shape: tuple[int, ...], read: Callable[[str], torch.Tensor], model: Model
) -> torch.Tensor:
    parts = _layer_of(name)
    if parts is None:
        return read(_LLAMA[name])
    number, module, leaf = parts
    if module == "moe.experts":
        return torch.stack(
            [read(_expert_name(number, expert, leaf, model)) for expert in range(shape[0])]
        )
    return read(f"model.layers.{number}.{_module_name(module, model)}.{leaf}")


def _read_gpt2(name: str, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
    parts = _layer_of(name)
    if parts is None:
        return read(_GPT2[name])
    number, module, leaf = parts
    tensor = read(f"transformer.h.{number}.{_GPT2_LAYER[module]}.{leaf}")
    if module in ("attention.q", "attention.k", "attention.v"):
        tensor = tensor.chunk(3, dim=-1)["qkv".index(module[-1])]
    # GPT-2 stores [in, out] (Conv1D); a Linear is [out, in].
    return tensor.t().contiguous() if tensor.dim() == 2 else tensor.contiguous()


def model_of_config(config: dict[str, Any]) -> Model:
    """The `Model` of a Hugging Face config of one of `FAMILIES`."""
    family = config["model_type"]
    if family == "gpt2":
        _refuse_variants(config)
        hidden, heads = config["n_embd"], config["n_head"]
        return Model(
            name="gpt2", family="gpt2", layers=config["n_layer"], hidden=hidden, heads=heads,
            kv_heads=heads, head_dim=hidden // heads, ffn=config.get("n_inner") or 4 * hidden,
            vocab=config["vocab_size"], gated=False, norm="layernorm",
            tied_embeddings=config.get("tie_word_embeddings", True),
            norm_bias=True, qkv_bias=True, attention_out_bias=True, ffn_bias=True,
            positions="learned", max_positions=config["n_positions"],
        )  # fmt: skip
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        raise SpecError(
            "partial_rotary_factor",
            config["partial_rotary_factor"],
            "the decoder turns whole heads",
        )
    if family in ("qwen2_moe", "qwen3_moe"):
        _window(config)
        return model_from_config(config, name=config.get("_name_or_path") or family)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    experts = None
    if family == "mixtral":
        experts = Experts(
            experts=config["num_local_experts"], top_k=config["num_experts_per_tok"],
            ffn=config["intermediate_size"],
        )  # fmt: skip
    return Model(
        name=config.get("_name_or_path") or family, family=family,
        layers=config["num_hidden_layers"], hidden=hidden, heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads, ffn=config["intermediate_size"],
        vocab=config["vocab_size"], tied_embeddings=config.get("tie_word_embeddings", False),
        qk_norm="head" if family == "qwen3" else "none",
        qkv_bias=config.get("attention_bias", family == "qwen2"),
        attention_out_bias=family != "qwen2" and config.get("attention_bias", False),
        ffn_bias=config.get("mlp_bias", False),
        window=_window(config), experts=experts,
    )  # fmt: skip


def _refuse_variants(config: dict[str, Any]) -> None:
    """GPT-2s whose attention is another one.

    Raises:
        SpecError: naming the field.
    """
    for field, usual in (
        ("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):  # fmt: skip
        if config.get(field, usual) is not usual:
            raise SpecError(field, config[field], f"the decoder computes {usual} only")


def _window(config: dict[str, Any]) -> int:
    """The window that every layer has; 0: none has one.

    Raises:
        SpecError: some layers have one and others have not.
    """
    family, layers = config["model_type"], config["num_hidden_layers"]
    if family not in ("mistral", "mixtral") and not family.startswith("qwen"):
        return 0
    usual = 4096 if family == "mistral" else None
    window = config.get("sliding_window", usual) or 0
    if family.startswith("qwen") and not config.get("use_sliding_window", False):
        window = 0
    kinds = config.get("layer_types")
    if kinds is None and family.startswith("qwen") and window:
        first = config.get("max_window_layers", 28)
        kinds = ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    kinds = set(kinds or ())
    if not window or kinds == {"full_attention"}:
        return 0
    if len(kinds) > 1:
        raise SpecError(
            "layer_types", sorted(kinds), "the decoder has a window in all layers or in none"
        )
    return int(window)


def export(
    directory: str | Path,
    values: Iterable[tuple[str, torch.Tensor]],
    model: Model,
    numerics: Numerics,
    max_positions: int,
) -> None:
    """Write a checkpoint that `transformers` loads: one safetensors file and `config.json`.

    `values` yields every decoder parameter once, whole, by name.

    Raises:
        SpecError: the model is of no Hugging Face family, or the directory cannot be written.
    """
    files = export_part(directory, values, model, 0, 1)
    write_index(directory, files, model, numerics, max_positions)


def check_export(model: Model, directory: str | Path) -> None:
    """Refuse what could not be written after training; makes the directory.

    Raises:
        SpecError: the model is of no Hugging Face family, or the directory cannot be made.
    """
    if model.family not in FAMILIES:
        raise SpecError(
            "family", model.family, f"only {', '.join(FAMILIES)} have a config to write"
        )
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError("export", str(directory), f"cannot be made ({error.strerror})") from None


def export_part(
    directory: str | Path,
    values: Iterable[tuple[str, torch.Tensor]],
    model: Model,
    part: int,
    parts: int,
) -> dict[str, str]:
    """Write some parameters as file `part` of `parts`; returns tensor name to file name.

    Raises:
        SpecError: the model is of no Hugging Face family, or the directory cannot be written.
    """
    check_export(model, directory)
    tensors: dict[str, torch.Tensor] = {}
    fused: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in values:
        for key, tensor in _written(name, value.detach().cpu(), model, fused):
            tensors[key] = tensor.contiguous().clone()
    target = Path(directory)
    file = "model.safetensors" if parts == 1 else f"model-{part + 1:05d}-of-{parts:05d}.safetensors"
    partial = target / f".{file}.partial"
    try:
        save_file(tensors, str(partial), metadata={"format": "pt"})
        partial.replace(target / file)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise SpecError("export", str(directory), f"cannot be written ({error})") from None
    return dict.fromkeys(tensors, file)


def write_index(
    directory: str | Path,
    files: dict[str, str],
    model: Model,
    numerics: Numerics,
    max_positions: int,
) -> None:
    """Write `config.json`, and the index where the weights are in several files."""
    target = Path(directory)
    _remove_stale(target, set(files.values()))
    if len(set(files.values())) > 1:
        index = {"metadata": {}, "weight_map": dict(sorted(files.items()))}
        write_atomically(
            target / "model.safetensors.index.json", json.dumps(index, indent=2) + "\n"
        )
    config = config_of(model, numerics, max_positions)
    name = next(iter(files))
    with safe_open(target / files[name], framework="pt") as opened:
        config["torch_dtype"] = str(opened.get_tensor(name).dtype).removeprefix("torch.")
    write_atomically(target / "config.json", json.dumps(config, indent=2) + "\n")


def _remove_stale(target: Path, files: set[str]) -> None:
    """Remove the weights of an earlier export, which loaders would take in place of these.

    Raises:
        SpecError: one cannot be removed.
    """
    for old in [*target.glob("model*.safetensors"), target / "model.safetensors.index.json"]:
        ours = re.fullmatch(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?", old.name)
        if ours and old.name not in files:
            try:
                old.unlink(missing_ok=True)
            except OSError as error:
                raise SpecError(
                    "export", str(old), f"is of an earlier export and stays ({error.strerror})"
                ) from None


def _written(
    name: str, value: torch.Tensor, model: Model, fused: dict[str, dict[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The checkpoint tensors that one parameter becomes (GPT-2's q, k, v once all three are in)."""
    gpt2, parts = model.family == "gpt2", _layer_of(name)
    if parts is None:
        yield (_GPT2 if gpt2 else _LLAMA)[name], value
        return
    number, module, leaf = parts
    if not gpt2 and module == "moe.experts":
        for expert, one in enumerate(value):
            yield _expert_name(number, expert, leaf, model), one
    elif not gpt2:
        yield f"model.layers.{number}.{_module_name(module, model)}.{leaf}", value
    else:
        key = f"transformer.h.{number}.{_GPT2_LAYER[module]}.{leaf}"
        value = value.t() if value.dim() == 2 else value
        if not key.endswith(("c_attn.weight", "c_attn.bias")):
            yield key, value
            return
        waiting = fused.setdefault(key, {})
        waiting[module[-1]] = value
        if len(waiting) == 3:
            yield key, torch.cat([waiting[part] for part in "qkv"], dim=-1)


_HF_ACTIVATIONS = {"silu": "silu", "relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
_ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
}  # fmt: skip


def config_of(model: Model, numerics: Numerics, max_positions: int) -> dict[str, Any]:
    """The Hugging Face `config.json` of a model, as data."""
    shared: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[model.family]],
        "model_type": model.family,
        "vocab_size": model.vocab,
        "initializer_range": numerics.init_std,
        "tie_word_embeddings": model.tied_embeddings,
    }
    if model.family == "gpt2":
        return shared | {
            "n_embd": model.hidden, "n_head": model.heads, "n_layer": model.layers,
            "n_inner": model.ffn, "n_positions": model.max_positions,
            "layer_norm_epsilon": numerics.norm_eps,
            "activation_function": _HF_ACTIVATIONS[numerics.activation],
        }  # fmt: skip
    config = shared | {
        "hidden_size": model.hidden, "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim, "max_position_embeddings": max_positions,
        "rms_norm_eps": numerics.norm_eps, "rope_theta": numerics.rope_theta,
        "hidden_act": _HF_ACTIVATIONS[numerics.activation],
        "attention_bias": model.attention_out_bias or (
            model.qkv_bias and not model.family.startswith("qwen2")
        ),
        "mlp_bias": model.ffn_bias, "intermediate_size": model.ffn,
    }  # fmt: skip
    if model.window:
        config["sliding_window"] = model.window
        if model.family.startswith("qwen"):
            config |= {"use_sliding_window": True, "max_window_layers": 0}
    elif model.family in ("mistral", "mixtral"):
        config["sliding_window"] = None
    if (scaling := numerics.rope_scaling) is not None:
        config["rope_scaling"] = {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            config["rope_scaling"] |= {
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_positions,
            }
    if model.experts is not None:
        config |= _experts_config(model, model.experts, numerics)
    return config


def _experts_config(model: Model, experts: Experts, numerics: Numerics) -> dict[str, Any]:
    if model.family == "mixtral":
        return {
            "num_local_experts": experts.experts,
            "num_experts_per_tok": experts.top_k,
            "intermediate_size": experts.ffn,
        }
    every = range(model.layers)
    candidates = [i for i in every if (i + 1) % experts.period == 0]
    if not {i for i in every if model.is_moe_layer(i)} <= set(candidates):
        raise SpecError(
            "experts.dense_layers", experts.dense_layers, "Qwen counts sparse layers from the first"
        )
    found = {
        "num_experts": experts.experts,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.ffn,
        "decoder_sparse_step": experts.period,
        "mlp_only_layers": [i for i in candidates if not model.is_moe_layer(i)],
        "norm_topk_prob": numerics.renormalize_routing,
    }
    if model.family == "qwen2_moe":
        found["shared_expert_intermediate_size"] = experts.shared_ffn
    return found
