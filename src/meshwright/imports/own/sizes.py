"""What a hand-written program's own lines say of sizes and settings, and how the code builds its model.

Such a program states its sizes wherever its author put them: options with defaults, constants, a
table, a dataclass, the call that makes the model. Nothing is run; each is looked for by its usual name.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import parse_python
from meshwright.imports.names import model_named
from meshwright.imports.own import option_names
from meshwright.imports.own.arguments import imported_file
from meshwright.imports.own.imported import imported_constants
from meshwright.imports.own.inputs import (
    of_drawn_tokens,
    of_loader,
    of_one_device,
    of_shape,
    of_tokens,
)
from meshwright.imports.own.loaded_config import sizes_of_loaded
from meshwright.imports.own.made_with import (
    ALIASES,
    computed_by,
    describes,
    is_plain,
    models_made,
    named_shape,
    usual_names,
)
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw, torch_moments
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text
from meshwright.specs.job import RECIPES, OptimizerRecipe
from meshwright.specs.model import Model

_MOST = 400_000
_MOST_FILES = 8


SEVERAL = "several shapes"
"""Under which `said_by` says how many tables of sizes a program has, where it has more than one."""


def said_by(
    tree: ast.Module, others: list[str], said: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Sizes and settings that a program's own lines say, by names that are usual for them.

    Args:
        said: what its command line says, by the names of its own options.
    """
    inner = [one for one in map(parse_python, others) if one is not None]
    below: dict[str, Any] = {}
    made = _made_somewhere([tree, *inner])
    for one in reversed(inner):
        body = [node for node in one.body if not isinstance(node, ast.ClassDef) or node.name in made]  # fmt: skip
        fields = Known(ast.Module(body=body, type_ignores=[])).fields
        reckoned = computed_by(one)
        below |= {key: value for key, value in fields.items() if key not in reckoned}
    known = Known(tree, said, {**imported_constants(tree, inner), **below})
    computed = computed_by(tree)
    batches = {*option_names.MICRO, *option_names.BATCHES, *option_names.LENGTHS}
    # What functions are called with first says a batch or a length where nothing else does.
    handed = [pair for node in ast.walk(tree) if isinstance(node, ast.Call) for pair in known.keywords(node)]  # fmt: skip
    found = {name: one for name, one in reversed([*handed, *known.parameters.items()]) if name in batches and is_plain(one)}  # fmt: skip
    found |= {name: value for name, value in known.names.items() if is_plain(value)}
    found |= {
        name: one
        for name, one in known.fields.items()
        if is_plain(one) and below.get(name) != one and name not in computed
    }
    tables: list[dict[str, Any]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            table = known.value(node)
            if isinstance(table, dict):
                plain = {str(key): one for key, one in table.items() if is_plain(one)}
                is_shape = describes(plain)
                plain = usual_names(plain) if is_shape else plain
                tables += [plain] if is_shape else []
                found |= plain if not is_shape or len(tables) == 1 else {}
    shapes = models_made(tree, known, inner)
    left: set[str] = set()
    for shape in shapes[:1]:
        left = shape.left
        found |= {name: one for name, one in usual_names(shape.said).items() if is_plain(one)}
    chosen = {} if shapes else usual_names(named_shape(tree, known, inner))
    found |= chosen
    found |= {name: value for name, value in known.arguments.items() if is_plain(value)}
    found = {name: value for name, value in below.items() if is_plain(value)} | found
    for name in left:  # handed to the model, and nobody could follow it: no default stands for it
        found.pop(name, None)
    named = {ALIASES.get(name.lower(), name.lower()): one for name, one in found.items()}
    _heads(named)
    of_shape(usual_names(shapes[0].said) if shapes else {}, named)
    of_loader(found, named)
    of_one_device(tree, named)
    of_drawn_tokens(ast.unparse(tree), tree, known, named)
    of_tokens(named)
    sizes = {name: one for name, one in named.items() if name in _USUAL}
    sizes = {name: one for name, one in sizes.items() if name in _WORDS or _counts(one)}
    if not chosen and not tables:
        sizes |= sizes_of_loaded(tree, known, sizes)
    if isinstance(chosen.get("model_name"), str) and model_named(chosen["model_name"]) is not None:
        sizes["model_name"] = chosen["model_name"]
    if len(tables) > 1 and not shapes and not chosen:
        sizes[SEVERAL] = len(tables)
    return sizes


def _made_somewhere(trees: list[ast.Module]) -> set[str]:
    """Names that a program calls, hands on or builds on: a class of none of these says nothing by its defaults."""
    named: list[ast.expr] = []
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                named += [node.func, *node.args, *(one.value for one in node.keywords)]
            elif isinstance(node, ast.ClassDef):
                named += node.bases
    return {one.id if isinstance(one, ast.Name) else one.attr for one in named if isinstance(one, (ast.Name, ast.Attribute))}  # fmt: skip


def _counts(value: Any) -> bool:
    return isinstance(value, (int, float)) and (isinstance(value, bool) or value > 0)


def _heads(named: dict[str, Any]) -> None:
    """Take how many heads a width has where only a head's own is said."""
    each = named.get("head_dim")
    if isinstance(each, int) and each > 0 and not set(named) & set(option_names.HEADS):
        whole = (named[one] for one in option_names.HIDDEN if isinstance(named.get(one), int))
        named["n_heads"] = next(whole, 0) // each


_USUAL = frozenset({
    *option_names.LAYERS, *option_names.HIDDEN, *option_names.HEADS, *option_names.KV_HEADS, *option_names.FFN,
    *option_names.LENGTHS, *option_names.MICRO, *option_names.STEPS, *option_names.BATCHES,
    "vocab_size", "padded_vocab_size", "head_dim", "multiple_of", "dropout", "optimizer", "use_muon", "gradient_checkpointing", "activation_checkpointing",
    "mixed_precision", "dtype", "bf16", "fp16", "use_bf16", "use_fp16", "amp", "use_amp", "use_mixed_precision", "cpu_offload", *option_names.OF_EXPERTS,
    "lora_r", "lora_rank", "lora_alpha", *option_names.TIES, "mlp_type", "norm", *option_names.DEGREES, *option_names.ROTARY, *option_names.ANSWERS, *option_names.ANSWER_LENGTHS,
})  # fmt: skip


_WORDS = frozenset({"optimizer", "mixed_precision", "dtype", "mlp_type", "norm"})


def texts_beside(text: str, folder: Path | None) -> list[str]:
    """The texts of files at hand that a program imports, and what a package of those hands on: where its model is written."""
    if folder is None:
        return []
    found: dict[Path, str] = {}
    tree = parse_python(text)
    named = _imports(tree) if tree is not None else []
    named.sort(key=lambda node: "model" not in (node.module or ""))  # what builds it first
    waiting = [(node, folder, 0) for node in named]
    while waiting and len(found) < _MOST_FILES:
        node, where, depth = waiting.pop(0)
        path = imported_file(node, where)
        if path is None or path in found:
            continue
        with contextlib.suppress(SpecError):
            found[path] = read_text(path, "file", size_bytes=_MOST)
            inner = parse_python(found[path]) if depth < _DEEPEST else None
            below = _imports(inner) if inner is not None else []
            whole = path.name == "__init__.py"
            layers = "nn.Module" in found[path]  # whose parts stand in files of its folder
            waiting += [(one, path.parent, depth + 1) for one in below if whole or _hands_on(one, node) or (layers and one.level)]  # fmt: skip
    return list(found.values())


def _hands_on(inner: ast.ImportFrom, wanted: ast.ImportFrom) -> bool:
    """Whether a module has from elsewhere what another takes from it."""
    return bool({one.name for one in inner.names} & {one.name for one in wanted.names})


_DEEPEST = 2
"""How many packages are followed that only hand on what others define."""


def _imports(tree: ast.Module) -> list[ast.ImportFrom]:
    """What a program imports, first at its top, then inside functions."""
    inner = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node not in tree.body]  # fmt: skip
    return [one for node in [*tree.body, *inner] for one in _modules(node)]


def _modules(node: ast.stmt) -> list[ast.ImportFrom]:
    """Modules that a statement imports, each as `from … import` names it (`import model`, `from . import model`)."""
    if isinstance(node, ast.Import):
        return [ast.ImportFrom(module=one.name, names=[], level=0) for one in node.names]
    if isinstance(node, ast.ImportFrom) and not node.module:
        return [ast.ImportFrom(module=one.name, names=[], level=node.level) for one in node.names]
    return [node] if isinstance(node, ast.ImportFrom) else []


_TOKENIZERS = {
    r"get_encoding\([\"']gpt2|GPT2Tokenizer|from_pretrained\([\"'](?:openai-community/)?gpt2": 50_257, r"cl100k_base": 100_277, r"o200k_base": 200_019,
}  # fmt: skip
"""Tokenizers that a program names, and how many tokens each knows."""


def _tokens(text: str) -> int:
    return next((size for words, size in _TOKENIZERS.items() if re.search(words, text)), 0)


_GATED = re.compile(
    r"[Ss]wi[Gg][Ll][Uu]|[Gg]e[Gg][Ll][Uu]|F\.silu\([^\n]*\*|gate_proj|\bw3\b|\* *(?:self\.|F\.)?(?:silu|swish|gelu)\("
)
_RMS = re.compile(r"RMSNorm|rms_?norm")
_ROTARY = re.compile(r"(?i)rotary|\brope\b|freqs_cis|apply_rot")
_LEARNED = re.compile(r"\bwpe\b|pos(?:ition(?:al)?)?_?emb\w*(?:_table)? *= *nn\.Embedding")
_TIED = re.compile(r"\.weight *= *self\.[\w.]+\.weight|wte\.weight *= *|tie_weights\(|wte\.weight\.t\(\)|\.weight *= *\w+\.lm_head\.weight")  # fmt: skip
_ROUNDED = re.compile(r"\bfind_multiple\(\s*\w*hidden\w*\s*,\s*([1-9]\d{0,4})\s*\)")
"""To which multiple a program rounds the width of its FFNs."""
_TWO_THIRDS = re.compile(
    r"8 */ *3|\* *8 *// *3|2 *\* *\w+(?:\.\w+)* *(?:\*[^\n]*)?//? *3\b|2 */ *3"
)


_SCORES = re.compile(r"(?<!log_)(?<!log)softmax\(")
_FUSED = re.compile(r"scaled_dot_product_attention|flash_attn|flex_attention|memory_efficient_attention|nn\.MultiheadAttention")  # fmt: skip
_KINDS = r"(?i)adam|muon|soap|shampoo|lion|sophia|adafactor|sgd|lamb|adagrad|rmsprop|psgd|lars|optim(?:izer)?$"
_MADE = re.compile(r"(?<![\w.])(?:torch\.optim|optim|optimizers?|bnb\.optim)\.([A-Z]\w+)\(|= *((?:\w*Muon\w*|AdamW?|SOAP|Shampoo|Lion|Sophia\w*|Adafactor|SGD)\w*)\(")  # fmt: skip


_ASKS_MODEL = re.compile(r"\.((?:setup|configure|make|build|get)_optimizers?)\(")
"""A loop that has its optimizer from its model."""
_MODULES = re.compile(r"\bnn\.Module\b|\bnnx\.Module\b|\beqx\.Module\b|\bhk\.")


def optimize(reading: Reading, text: str, others: list[str]) -> None:
    """Take the optimizer that the loop makes, and the attention that its model computes.

    Args:
        others: of the files at hand that it imports.
    """
    asks = _ASKS_MODEL.search(text)
    places = [text, *(one for one in others if asks and f"def {asks.group(1)}(" in one)]
    made = dict.fromkeys(one.group(1) or one.group(2) for place in places for one in _MADE.finditer(place))  # fmt: skip
    made = {one: None for one in made if re.search(_KINDS, one)}
    if any(re.search(r"Offload|CPUAdam", one) for one in made):
        reading.offload.add("optimizer")
        made = {re.sub(r"Offload|CPU|Optimizer", "", one): None for one in made}
    muon = next((one for one in made if "muon" in one.lower()), "")
    rarer = [one for one in made if one.lower() not in ("adam", "adamw")]
    name = "muon" if muon else rarer[0] if rarer else ""
    if name:
        reading.job["optimizer"] = optimizer_or_adamw(reading, name, "optimizer", shown=name).model_dump()  # fmt: skip
        rest = [one for one in made if one not in (muon, name)]
        if rest:
            reading.unmodelled("optimizer", f"{', '.join(rest)} beside {muon or name}, whose states are priced for all")  # fmt: skip
    parts = [text, *others]
    scores = any(_SCORES.search(one) and _MODULES.search(one) for one in parts)
    if scores and not any(_FUSED.search(one) for one in parts):
        reading.job["attention_kernel"] = "unfused"


_IN_16_BITS = re.compile(
    r"(?:\bmodel|(?<!nn\.)\b(?!Embedding|Linear|Embed\b)[A-Z]\w*\([^()\n]*\))(?:\.to\([^()\n]*\))?\.(?:bfloat16\(\)|to\([^()\n]*torch\.bfloat16[^()\n]*\))|set_default_dtype\(torch\.bfloat16\)"
)


_IN_A_WIDTH = re.compile(r"\bmodel\.to\((?:[^()\n]*, *)?(?:dtype=)?(?:\w+\.)*(?:torch_)?dtype\b")
"""A model that is cast to a width by its usual name."""


def store(reading: Reading, text: str, own: Mapping[str, Any]) -> None:
    """Take weights, and with them gradients and moments, in 16 bits where the loop casts its whole model.

    Args:
        own: what the program says of sizes and settings.
    """
    named = own.get("dtype") == "bfloat16" and _IN_A_WIDTH.search(text)
    if not (named or _IN_16_BITS.search(text)) or SHARDS.search(text):
        return  # FSDP's own policies say in which width its shards are
    recipe = RECIPES["pure-bf16"]
    optimizer = OptimizerRecipe.model_validate(reading.job.get("optimizer", {}))
    reading.job |= {"precision": recipe.model_dump(), "optimizer": torch_moments(optimizer, recipe).model_dump()}  # fmt: skip
    reading.remarks = [one for one in reading.remarks if one.option != "precision"]
    reading.note("the whole model is cast to bf16: neither it nor its moments have a 32-bit copy", "precision")  # fmt: skip


SHARDS = re.compile(r"\bFSDP\(|\bFullyShardedDataParallel\(|\bfully_shard\(")
_BUILDS = re.compile(
    r"\bnn\.(?:Module|Embedding|Linear|Embed|Dense)\b|\bnnx\.|\beqx\.|\bhk\.|\bEmbedding\("
)
"""What code has that builds a model's layers."""


def _built_elsewhere(reading: Reading, model: Model, text: str) -> None:
    """Say that the code which builds the model is not at hand; a class called GPT is taken for one like GPT-2."""
    if re.search(r"ForCausalLM|LMHeadModel|\bAutoModel", text):
        return  # a library builds it, as its kind is
    if re.search(r"\bGPT\w{0,20}\(", text) and re.search(r"\bn_embd\b", text):
        fields = {"positions": "learned", "max_positions": max(reading.seq_len, 1), "tied_embeddings": True}  # fmt: skip
        reading.model = Model.parse({**model.model_dump(), **fields}, "model")
        reading.remarks = [one for one in reading.remarks if "FFNs are not described" not in one.text]  # fmt: skip
        what = f"two matrices of {model.ffn}, layernorm, learned positions and tied tables are taken, as GPT-2 has them"  # fmt: skip
    else:
        what = f"{'a gated' if model.gated else 'a plain'} FFN of {model.ffn}, rotary positions and separate tables are taken"  # fmt: skip
    reading.guess("--model", f"the code that builds it is not here: {what}")


_VALUES = re.compile(r"self\.value_embeds?(?:dings?)?\s*=")
"""Tables of modded-nanogpt's kind, by the attribute that holds them."""


def build(reading: Reading, text: str, given: Given, own: Mapping[str, Any]) -> None:
    """Take how the model is built from the words of the code that builds it: gates, norms, positions, tied tables.

    Args:
        own: what the program says of sizes and switches.
    """
    if given.model is not None or reading.model is None:
        return
    model = reading.model
    if not _BUILDS.search(text):
        _built_elsewhere(reading, model, text)
        return
    unit = str(own.get("mlp_type", ""))  # which of several that the code has
    gated = unit.endswith("glu") if unit else model.gated or bool(_GATED.search(text))
    rotary, learned = bool(_ROTARY.search(text)), bool(_LEARNED.search(text))
    rotary = rotary and not any(own.get(one) is False for one in option_names.ROTARY)
    fields: dict[str, Any] = {
        "gated": gated,
        "norm": own["norm"]
        if own.get("norm") in ("rmsnorm", "layernorm")
        else ("rmsnorm" if model.norm == "rmsnorm" or _RMS.search(text) else "layernorm"),
        "tied_embeddings": bool(
            next((own[one] for one in option_names.TIES if one in own), _TIED.search(text))
        ),
    }
    if learned and not rotary:
        fields |= {"positions": "learned", "max_positions": max(reading.seq_len, 1)}
    if _VALUES.search(text):
        reading.unmodelled("value embeddings", "tables of the vocabulary feed the attention's values, too; neither they nor their states are priced")  # fmt: skip
    if gated and model.ffn == 4 * model.hidden and _TWO_THIRDS.search(text):
        rounded = _ROUNDED.search(text)
        whole = own.get("multiple_of", int(rounded.group(1)) if rounded is not None else 64)
        fields["ffn"] = -(-(8 * model.hidden // 3) // whole) * whole
    if any("in a tokenizer's file" in one.text for one in reading.remarks) and (tokens := _tokens(text)):  # fmt: skip
        fields["vocab"] = tokens
        reading.remarks = [one for one in reading.remarks if "in a tokenizer's file" not in one.text]  # fmt: skip
    reading.model = Model.parse({**model.model_dump(), **fields}, "model")
    reading.remarks = [one for one in reading.remarks if "FFNs are not described" not in one.text]
    kind = f"{'a gated' if gated else 'a plain'} FFN of {reading.model.ffn}"
    where = "learned" if learned and not rotary else "rotary" if rotary else "no learned"
    tables = "tied" if fields["tied_embeddings"] else "separate"
    reading.guess("--model", f"by the words of the code that builds it: {kind}, {fields['norm']}, {where} positions, {tables} tables of {reading.model.vocab:,} tokens")  # fmt: skip
