"""A decoder that transformers computes: its config, and its modules without memory.

Only classes that transformers ships are built; code that a config names elsewhere is never fetched.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from meshwright.specs import foreign
from meshwright.specs.errors import SpecError
from meshwright.specs.huggingface import under_known_name
from meshwright.specs.model import Model


@dataclass(frozen=True, slots=True)
class Architecture:
    """A config.json, as data, whose causal language model transformers has."""

    config: dict[str, Any]

    @property
    def family(self) -> str:
        """Its `model_type`."""
        return str(self.config.get("model_type"))

    def made(self) -> Any:
        """transformers' configuration object.

        Raises:
            SpecError: transformers is not there, or has no such class.
        """
        if find_spec("transformers") is None:
            raise SpecError(
                "model",
                self.family,
                "the engine's own decoder lacks this architecture, and "
                "transformers, whose modules would compute it, is not installed",
            )
        import transformers

        transformers.logging.set_verbosity_error()
        if self.family not in transformers.CONFIG_MAPPING:
            raise SpecError("model_type", self.family, "transformers has no such architecture")
        fields = {k: v for k, v in self.config.items() if k not in ("auto_map", "model_type")}
        try:
            found = transformers.CONFIG_MAPPING[self.family].from_dict(fields)
        except Exception as error:
            raise SpecError(
                "config.json", self.family, f"transformers says: {_line(error)}"
            ) from None
        if getattr(found, "quantization_config", None) is not None:
            raise SpecError("quantization_config", self.family, "quantised weights do not train")
        return found

    def build(self, dtype: torch.dtype = torch.float32, *, memory: bool = False) -> Any:
        """The causal language model, in evaluation mode: its own dropout is off.

        Without `memory` parameters are on the meta device and buffers (rotary tables) are real.

        Raises:
            SpecError: transformers cannot build it as a causal language model.
        """
        import transformers

        made = self.made()
        # Grouped products have no fp64 kernel; one expert after the other has.
        how = {"experts_implementation": "eager"} if dtype == torch.float64 else {}
        try:
            with contextlib.nullcontext() if memory else _parameters_without_memory():
                built = transformers.AutoModelForCausalLM.from_config(made, dtype=dtype, **how)
        except SpecError:
            raise
        except Exception as error:
            raise SpecError(
                "model_type",
                self.family,
                f"transformers does not build it as a causal language model: {_line(error)}",
            ) from None
        for name, buffer in built.named_buffers():
            if buffer.is_meta:
                raise SpecError("model_type", self.family, f"its table {name} is too large")
        return built.eval()


def architecture_at(path: str | Path) -> Architecture:
    """The architecture of a config.json, or of the folder that holds one.

    Raises:
        SpecError: there is none, or it cannot be read.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    limits = foreign.Limits(any_number=True, last_wins=True)
    data: dict[str, Any] = foreign.read_data(file, "model", limits)
    return Architecture(under_known_name(data))


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the pieces of a causal language model are."""

    backbone: Any
    layers: nn.ModuleList
    before: dict[str, nn.Module]
    """What computes before the first layer, besides the token embedding, by name."""
    after: dict[str, nn.Module]
    """What computes after the last layer, besides the head."""
    embedding: nn.Module
    head: nn.Module | None


def parts_of(built: Any, family: str) -> Parts:
    """Take a causal language model apart.

    Raises:
        SpecError: it has no single stack of layers, or parameters in an unexpected place.
    """
    text = built.config.get_text_config()
    stacks = [
        (module, name)
        for module in built.modules()
        for name, child in module.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == text.num_hidden_layers
    ]
    if len(stacks) != 1:
        raise SpecError("model_type", family, "no single stack of decoder layers is found in it")
    backbone, stack = stacks[0]
    embedding, head = built.get_input_embeddings(), built.get_output_embeddings()
    before: dict[str, nn.Module] = {}
    after: dict[str, nn.Module] = {}
    met = False
    for name, child in backbone.named_children():
        if name == stack:
            met = True
        elif child is not embedding and any(True for _ in child.parameters()):
            (after if met or "final" in name else before)[name] = child
    parts = Parts(backbone, getattr(backbone, stack), before, after, embedding, head)
    held = {id(p) for module in _modules(parts) for p in module.parameters()}
    for name, parameter in built.named_parameters():
        if id(parameter) not in held:
            raise SpecError("model_type", family, f"its {name} belongs to no layer, norm or head")
        if not parameter.requires_grad:
            raise SpecError("model_type", family, f"its {name} is not trained")
    return parts


def _modules(parts: Parts) -> Iterator[nn.Module]:
    yield parts.embedding
    yield parts.layers
    yield from parts.before.values()
    yield from parts.after.values()
    if parts.head is not None:
        yield parts.head


def skeleton(model: Model, architecture: Architecture) -> Model:
    """What the layout's machinery asks of a model that transformers computes: sizes and tying.

    Its experts are parameters like others: every data rank holds them all.
    """
    text = architecture.made().get_text_config()
    return model.but(
        family=architecture.family, layers=text.num_hidden_layers, hidden=text.hidden_size,
        vocab=text.vocab_size, tied_embeddings=bool(text.tie_word_embeddings), experts=None,
        mixer=None, layer_kinds=(), latent_attention=None, indexer=None, encoder=None,
        extra_parameters={}, counted_parameters=0, numerics=None, qk_norm="none",
        attention_gate=False, keys_are_values=False, kv_owners=0, positions="none",
    )  # fmt: skip


_LARGE = 2**22
"""Elements from which a new tensor is a parameter: no table of positions has as many."""


class _LargeWithoutMemory(TorchFunctionMode):
    """Inside, tensors that are made large are made on the meta device."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _MAKERS and "device" not in kwargs:
            shape = kwargs.get("size", args[0] if len(args) == 1 else args)
            if math.prod([shape] if isinstance(shape, int) else shape) >= _LARGE:
                kwargs = kwargs | {"device": "meta"}
        return func(*args, **kwargs)


_MAKERS = (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn)


@contextlib.contextmanager
def _parameters_without_memory() -> Iterator[None]:
    """Inside, parameters go to the meta device as they are registered; buffers stay.

    What constructors give vectors and numbers is kept beside them (`constructed`), from one seed everywhere.
    """
    register = nn.Module.register_parameter

    def without(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        held = module._parameters[name]
        if held is not None and not held.is_meta:
            if held.dim() < 2:
                module.__dict__.setdefault("constructed", {})[name] = held.detach().clone()
            bare = nn.Parameter(held.detach().to("meta"), requires_grad=held.requires_grad)
            module._parameters[name] = bare

    nn.Module.register_parameter = without
    try:
        with _LargeWithoutMemory(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        nn.Module.register_parameter = register


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
