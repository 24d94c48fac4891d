"""NeMo 2: recipes in Python, of the library or of one's own around it, read field by field.

What a recipe sets on the model's configuration, the strategy, the optimizer, the precision plugin and
the overlap callback are Megatron-LM's options by other names; they are read as those are, so that an
option nobody knows is named here, too.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from meshwright.imports.code.follow import call_function, follow_main, functions
from meshwright.imports.code.syntax import dotted
from meshwright.imports.code.values import Made, Module, Unknown
from meshwright.imports.formats import bridge, nemo_library
from meshwright.imports.formats.bridge_flags import flags_of
from meshwright.imports.formats.bridge_overrides import other_kinds, override, reshaped
from meshwright.imports.formats.bridge_precision import precision_words
from meshwright.imports.formats.megatron_shape import GPT2_VOCABULARY
from meshwright.imports.formats.nemo import EDITS
from meshwright.imports.names import ONLY_CALLED, PLANNED, guess_model, model_named
from meshwright.imports.options import counted
from meshwright.imports.reading import Given, Reading
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.model import Model

_STRATEGY = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "context_parallel_size", "sequence_parallel", "expert_model_parallel_size", "expert_tensor_parallel_size",
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split", "moe_extended_tp", "microbatch_group_size_per_vp_stage",
    "num_distributed_optimizer_instances", "pipeline_model_parallel_layout",
)  # fmt: skip
"""Arguments of MegatronStrategy that change memory or time; the others are about checkpoints and start-up."""
_OTHER = re.compile(
    r"mamba|nemotron_?h|hyena|ssm|bert|t5|vlm|clip|neva|llava|embedding|rerank|e5_|nano_(?:9|12)b_v2", re.I
)  # fmt: skip


_COLLECTIONS = re.compile(
    r"nemo\.collections\.(?:diffusion|vlm|multimodal|avlm|speechlm2?|asr|tts|audio)\b"
)
"""NeMo's collections of models of pictures and sound."""
_CALLED = re.compile(r"\b(?:pretrain|finetune)_recipe\b")


def is_recipe(text: str) -> bool:
    """Whether a Python file makes or changes a recipe of NeMo 2."""
    made = "run.Partial" in text or "run.Config" in text or _CALLED.search(text) is not None
    return "nemo" in text and made


def read_recipe(module: Module, name: str, given: Given) -> Reading:
    """Return what a NeMo 2 recipe runs: `pretrain_recipe` unless another is chosen.

    Raises:
        SpecError: no recipe with that name, or it cannot be followed.
    """
    chosen, others, made = _chosen(module, name, given)
    parts = _Parts(made, module)
    reading = _read(parts, module, chosen, given)
    if others and not given.config:
        reading.note(f"{chosen} is read; also here: {', '.join(others)} (--config)")
    reading.options = dict(EDITS)
    reading.hosts = counted(parts.trainer.fields.get("num_nodes"))
    reading.per_host = counted(parts.trainer.fields.get("devices"))
    reading.job["framework"] = "nemo"
    _tuned(parts, reading)
    if parts.outside and parts.known:
        reading.note(
            "what the file does not set on this recipe is the library's, as of NeMo 2.6",
            parts.outside,
        )
    elif parts.outside:
        reading.guess(
            parts.outside,
            "this recipe is the library's own and not here: what the file does not set on it is taken as the usual",
        )
    return reading


def _chosen(module: Module, name: str, given: Given) -> tuple[str, list[str], Any]:
    """The recipe that counts: its name, the others of the file, and what it makes."""
    assert module.run is not None
    known = {
        node.name: node
        for node in functions(module)
        if re.search(r"recipe|pretrain|finetune|train|main|configure", node.name) or _calls(node)
    }
    recipes = [
        one for one in known if re.search(r"recipe|pretrain|finetune", one) or _calls(known[one])
    ]
    if given.config and given.config not in known:
        raise SpecError("--config", given.config, nearest(given.config, known))
    first = "pretrain_recipe" if "pretrain_recipe" in known else next(iter(recipes or known), "")
    for chosen in [given.config] if given.config else [first, *recipes, *known]:
        if not chosen:
            continue
        before = len(module.run.made)
        made = call_function(module, known[chosen], [], {})
        for one in [made, *reversed(module.run.made[before:])]:
            if isinstance(one, Made) and _is_recipe(one):
                return chosen, [n for n in recipes if n != chosen], one
    follow_main(module)  # a program that sets fields of a recipe at its top level
    for one in reversed(module.run.made):
        if _is_recipe(one):
            return one.name.rsplit(".", 1)[-1], [], one
    if known and not recipes and not given.config:
        raise SpecError("file", name, ONLY_CALLED)
    raise SpecError(
        "--config", first or None,
        "what this recipe returns cannot be followed" if first else "no recipe was found in this file",
    )  # fmt: skip


def _calls(node: ast.FunctionDef) -> bool:
    """Whether a function begins with a recipe of the library's, whatever it is called itself."""
    called = (dotted(one.func) for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(_CALLED.search(one) for one in called) and any(isinstance(one, ast.Return) for one in ast.walk(node))  # fmt: skip


def _is_recipe(made: Made) -> bool:
    """Whether this is a run of NeMo's: it has a trainer, or is what a library's recipe returns."""
    return "trainer" in made.fields or bool(re.search(r"\.\w+_recipe$", made.name))


class _Parts:
    """The tables of one recipe: trainer, strategy, model, optimizer, data, precision, overlap."""

    def __init__(self, recipe: Made, module: Module) -> None:
        self.recipe = recipe
        library = re.search(r"(?:^|\.)(\w+)\.(?:pretrain|finetune)_recipe$", recipe.name)
        self.outside = recipe.name if library and "model" not in recipe.args else ""
        self.library = library.group(1) if library else ""
        for name, held in recipe.fields.items():
            if isinstance(held, ast.FunctionDef):  # a factory of the file, which NeMo calls
                recipe.fields[name] = call_function(module, held, [], {})
        self.known = nemo_library.fill(recipe, self.library) if self.outside else False
        self.trainer = self._part("trainer")
        strategy = self.trainer.fields.get("strategy")
        self.strategy = strategy if isinstance(strategy, Made) else Made("none")
        self.model = self._part("model")
        self.config = self._config(module)
        self.optim = self._part("optim")
        self.data = self._part("data")
        self.peft = self.recipe.fields.get("peft")

    def _part(self, name: str) -> Made:
        found = self.recipe.fields.get(name)
        return found if isinstance(found, Made) else Made("none")

    def _config(self, module: Module) -> Made:
        """The model's configuration: what the model is made with, with what is set on it after."""
        found = self.model.fields.get("config")
        made = module.run.made if module.run is not None else []
        named = [one for one in made if re.search(r"\d.{0,100}Config|Config\w{0,100}\d", one.name)
                 and "DataParallel" not in one.name and "Optimizer" not in one.name]  # fmt: skip
        first = next((one for one in self.model.args if isinstance(one, Made)), None)
        base = next(
            (one for one in (found, first) if isinstance(one, Made) and one.name in {n.name for n in named}),
            named[-1] if named else None,
        )  # fmt: skip
        fields = {
            **(base.fields if base is not None else {}),
            **(found.fields if isinstance(found, Made) else {}),
        }
        return Made(base.name if base is not None else "", [], fields)


def _read(parts: _Parts, module: Module, chosen: str, given: Given) -> Reading:
    spelled = _spelled(parts, module)
    words = _words(parts)
    flags = flags_of(words)
    strategy = parts.strategy
    if strategy.fields.get("fsdp") == "megatron":
        flags["use-megatron-fsdp"] = True
    model = given.model or (model_named(spelled) if spelled else None)
    changed: list[tuple[str, str]] = []
    if given.model is None and (known := model_named(_published(parts))):
        # A published model's, whose other fields stay as that has them.
        model, changed = _resized(known, words, flags), other_kinds(words)
    if model is not None and given.model is None and (vocab := _vocabulary(parts)):
        model = model.but(vocab=vocab)
    reading = bridge.megatron(flags, given, model, spelled, f"NeMo 2 recipe {chosen}")
    for field, what in changed:
        reading.unmodelled(field, what)
    if strategy.fields.get("fsdp") == "pytorch" or "FSDP" in strategy.name:
        reading.layout["zero"] = 3
    return reading


def _published(parts: _Parts) -> str:
    """What names a published model whose fields a recipe sets: its configuration's class, or the library's recipe that makes it."""
    bare = parts.config.name.rsplit(".", 1)[-1]
    return _of_class(bare) if bare or not parts.known else _dashed(parts.library)


def _vocabulary(parts: _Parts) -> int:
    """The size of the vocabulary of a data module's own tokenizer, which the model is built with; 0 where that is not said."""
    tokenizer = parts.data.fields.get("tokenizer")
    if not isinstance(tokenizer, Made):
        return 0
    size = tokenizer.fields.get("vocab_size")
    if isinstance(size, int) and size > 0:
        return size
    said = [one for one in (*tokenizer.args, *tokenizer.fields.values()) if isinstance(one, str)]
    if "GPT2BPETokenizer" in said:
        return GPT2_VOCABULARY
    named = next((found for one in said if (found := model_named(one)) is not None), None)
    return named.vocab if named is not None else 0


def _resized(model: Model, words: list[str], flags: dict[str, Any]) -> Model:
    """A class's model with what a recipe sets of its shape; heads are as wide as the new shape makes them."""
    made = reshaped(model, words, flags)
    derived = (
        model.head_dim * model.heads == model.hidden and model.qk_norm == "none"
    )  # Qwen3's say it
    if derived and not override(words, "model.kv_channels") and made.hidden % made.heads == 0:
        made = made.but(head_dim=made.hidden // made.heads)
    return made


def _words(parts: _Parts) -> list[str]:
    """The recipe's fields as overrides of Megatron-Bridge, whose names are the same."""
    words: list[str] = []

    def add(table: str, fields: dict[str, Any], only: tuple[str, ...] = ()) -> None:
        for key, value in fields.items():
            if only and key not in only:
                continue
            if (text := _said(value)) is not None:
                words.append(f"{table}.{key}={text}")

    add("model", parts.config.fields)
    add("model", parts.strategy.fields, _STRATEGY)
    ddp = parts.strategy.fields.get("ddp")
    # The precision plugin writes over what the strategy says of the gradients' reduction.
    plain = {k: v for k, v in ddp.fields.items() if k not in ("grad_reduce_in_fp32", "use_distributed_optimizer",
             "data_parallel_sharding_strategy")} if isinstance(ddp, Made) else {}  # fmt: skip
    add("ddp", plain)
    if parts.strategy.fields.get("fsdp") == "megatron" and isinstance(ddp, Made):
        add("ddp", ddp.fields, ("data_parallel_sharding_strategy",))
    words += _optimizer(parts.optim)
    words += precision_words(parts.trainer.fields.get("plugins"))
    callbacks = parts.trainer.fields.get("callbacks")
    for one in callbacks if isinstance(callbacks, list) else []:
        if isinstance(one, Made) and one.name.endswith("MegatronCommOverlapCallback"):
            add("comm_overlap", one.fields)
    add("train", parts.data.fields, ("global_batch_size", "micro_batch_size"))
    lengths = (part.fields.get("seq_length") for part in (parts.data, parts.recipe, parts.config))
    length = next((one for one in lengths if isinstance(one, int)), 0)
    words = [word for word in words if not word.startswith("model.seq_length=")]
    if length:
        words.append(f"model.seq_length={length}")
    if parts.data.fields.get("packed_sequence_specs") is not None:
        words.append("model.reset-attention-mask=true")
    return words


def _optimizer(optim: Made) -> list[str]:
    """The optimizer's configuration; NeMo's own factory takes Megatron-LM's distributed Adam."""
    config = optim.fields.get("config")
    fields = dict(config.fields) if isinstance(config, Made) else {}
    distributed = fields.pop("use_distributed_optimizer", None)
    if distributed is None:
        distributed = "OptimizerConfig" not in getattr(config, "name", "")
    words = [f"train.use-distributed-optimizer={str(bool(distributed)).lower()}"]
    for key, value in fields.items():
        if key in ("bf16", "fp16", "lr", "min_lr", "clip_grad") or key.startswith(
            ("adam_", "weight")
        ):
            continue  # the precision is the plugin's
        if (text := _said(value)) is not None and not isinstance(value, list):
            words.append(f"optimizer.{key}={text}")
    return words


def _said(value: Any) -> str | None:
    """A field's value as an override spells it; None where the recipe does not say it."""
    if isinstance(value, Unknown) and value.text.startswith("torch."):
        value = value.text.removeprefix("torch.")
    if not isinstance(value, (str, int, float, list)):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tuned(parts: _Parts, reading: Reading) -> None:
    """Adapters, where the recipe trains any."""
    peft = parts.peft
    scheme = parts.recipe.fields.get("peft_scheme", "lora" if parts.recipe.name.endswith("finetune_recipe") else "none")  # fmt: skip
    if not isinstance(peft, Made) and (not parts.outside or str(scheme).lower() == "none"):
        return
    fields = peft.fields if isinstance(peft, Made) else {}
    rank, alpha = counted(fields.get("dim")), fields.get("alpha")
    dora = "dora" in getattr(peft, "name", str(scheme)).lower()
    adapters(
        reading, method="dora" if dora else "lora", rank=rank or 32,
        alpha=float(alpha) if isinstance(alpha, (int, float)) else 0.0,
        targets=fields.get("target_modules"), option="peft.target_modules",
    )  # fmt: skip
    if not rank:
        reading.guess("peft.dim", "adapters of rank 32, NeMo's own, are taken")


def _spelled(parts: _Parts, module: Module) -> str:
    """The model's name as a preset or a size would be given.

    Raises:
        SpecError: it is no decoder-only transformer.
    """
    name = parts.config.name
    spelled = _of_class(name.rsplit(".", 1)[-1])
    names = [spelled, *(_dashed(one) for one in (parts.library, _constant_name(module)) if one)]
    known = [one for one in names if one and model_named(one) is not None]
    other = _OTHER.search(f"{name} {parts.recipe.name} {parts.library} {_constant_name(module)}")
    other = other or next(filter(None, (_COLLECTIONS.match(one) for one, _name in module.imports.values())), None)  # fmt: skip
    if other and not known:
        raise SpecError("file", name or parts.library or "recipe", f"a state-space, encoder, vision or diffusion model: {PLANNED}")  # fmt: skip
    sized = [one for one in names if one and guess_model(one) is not None]
    return next(iter([*known, *sized, *filter(None, names)]), "the model of another file")


def _of_class(bare: str) -> str:
    """A configuration's class as a hub name: Llama31Config8B is llama3.1-8b."""
    if len(bare) > 100:  # no class, and more ways to read it than time to try
        return bare
    match = re.fullmatch(r"([A-Za-z]+?)(\d*)(Nemotron)?([A-Za-z]*?\d*[BM]?)?Config(\w*)", bare)
    if match is None:
        return bare
    family, version, variant, inner, size = match.groups()
    version = f"{version[0]}.{version[1]}" if len(version) == 2 else version
    if (family + version).lower() == "llama4":
        inner = {"Experts16": "scout-17b-16e", "Experts128": "maverick-17b-128e"}.get(inner, inner)
    parts = (f"{family}{version}", variant, inner, size)
    return _dashed("-".join(part for part in parts if part))


def _dashed(name: str) -> str:
    return re.sub(r"(\d)p(\d)", r"\1.\2", name.lower().replace("_", "-"))


def _constant_name(module: Module) -> str:
    for node in module.tree.body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "NAME"
            and isinstance(node.value, ast.Constant)
        ):
            return str(node.value.value)
    return ""
