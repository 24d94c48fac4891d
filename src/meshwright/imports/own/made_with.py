"""What a hand-written program makes its model with: a call's words over the defaults of the class that it calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.imports.code.branches import calls_reached
from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import defaults_of, dotted, parse_python
from meshwright.imports.own import option_names

ALIASES = {
    "hidden_dimension": "hidden_dim", "embedding_dim": "emb_dim", "embedding_size": "emb_dim", "embeddings_size": "emb_dim", "n_embed": "n_embd",
    "dim_model": "d_model", "num_blocks": "num_layers", "n_blocks": "num_layers", "number_of_layers": "num_layers", "nhead": "n_heads",
    "n_attention_heads": "n_heads", "num_attn_heads": "n_heads", "attention_heads": "n_heads", "dim_head": "head_dim", "ff_dim": "d_ff",
    "dim_ff": "d_ff", "dim_feedforward": "d_ff", "ffn_hidden_dim": "ffn_dim", "context_size": "context_length", "n_ctx": "context_length",
    "n_positions": "context_length", "seqlen": "seq_len", "max_sequence_length": "max_seq_len", "drop_rate": "dropout", "n_vocab": "vocab_size",
    "vocabulary_size": "vocab_size", "embedding_dimension": "emb_dim", "layer_count": "num_layers", "transformer_layer_count": "num_layers", "num_transformer_layers": "num_layers",
    "gradient_accumulate_every": "gradient_accumulation_steps", "grad_accum_every": "gradient_accumulation_steps", "attention_head_count": "n_heads", "head_count": "n_heads", "kv_head_count": "num_kv_heads", "feed_forward_dimension": "d_ff", "maximum_sequence_length": "max_seq_len", "train_seq_len": "max_seq_len", "train_max_seq_len": "max_seq_len",
}  # fmt: skip
"""Further names that hand-written programs give the usual sizes."""
_BARE = {
    "layers": "num_layers", "width": "hidden_size", "hidden": "hidden_size", "embed": "hidden_size", "embd": "hidden_size",
    "embedding": "hidden_size", "heads": "num_heads", "kv_heads": "num_kv_heads", "ff": "d_ff", "ffn": "d_ff", "mlp": "d_ff",
    "context": "context_length", "ctx": "context_length", "seq": "seq_len", "vocab": "vocab_size", "nlayer": "num_layers", "n_hidden": "hidden_size", "blocks": "num_layers",
    "num_embeddings": "vocab_size",
}  # fmt: skip
"""Names that say enough only where layers and a width stand together."""


def usual_names(said: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of one model by the usual names, its bare ones (`layers`, `width`) included."""
    named = {str(key).lower(): one for key, one in said.items()}
    found = {ALIASES.get(key, key): one for key, one in named.items()}
    for bare, name in _BARE.items():
        if bare in found and not isinstance(found[bare], (dict, list)):
            found.setdefault(name, found.pop(bare))
    return found


def describes(names: Iterable[str]) -> bool:
    """Whether names say how many layers a model has and how wide it is."""
    found = set(usual_names(dict.fromkeys(names, 0)))
    return bool(found & set(option_names.LAYERS)) and bool(found & set(option_names.HIDDEN))


@dataclass(slots=True)
class Made:
    """One call that makes a model: what it says and its class takes, and the names handed to it that nobody could follow."""

    said: dict[str, Any] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    rank: int = 0


def models_made(tree: ast.Module, known: Known, others: Iterable[ast.Module]) -> list[Made]:
    """The calls that make a model, the ones that say most themselves first."""
    classes: dict[str, ast.ClassDef] = {}
    for one in (*others, tree):
        classes |= {node.name: node for node in ast.walk(one) if isinstance(node, ast.ClassDef)}
    own = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = []
    left_out = _not_picked(tree, known)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call) and dotted(node.func) != "dict" and node not in left_out
        ):  # what is made of it, says it
            made = _made(node, known, classes, own)
            if made is not None:
                found.append(made)
    return sorted(found, key=lambda one: one.rank)


def picked_by(tree: ast.Module, said: Mapping[str, Any]) -> str:
    """The option by which a command picks one of several shapes that a program makes in a table; empty where it picks none."""
    for place, shapes in _tables_of_shapes(tree):
        name = dotted(place).rpartition(".")[2]
        if said.get(name) in [key for key, _shape in shapes]:
            return name
    return ""


def _not_picked(tree: ast.Module, known: Known) -> set[ast.Call]:
    """The shapes in a table (`{"d12": Config(…), "d24": Config(…)}[model]`) that the name which stands behind it does not pick."""
    found: set[ast.Call] = set()
    for place, shapes in _tables_of_shapes(tree):
        picked = known.value(place)
        if picked in [key for key, _shape in shapes]:
            found |= {one for key, one in shapes if key != picked and isinstance(one, ast.Call)}
    return found


def _tables_of_shapes(tree: ast.Module) -> list[tuple[ast.expr, list[tuple[Any, ast.expr]]]]:
    """Tables of which some entry makes a shape: what stands behind each, and its entries by constant keys."""
    return [
        (node.slice, [(key.value, one) for key, one in zip(node.value.keys, node.value.values, strict=True) if isinstance(key, ast.Constant)])
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict)
        and any(isinstance(one, ast.Call) and describes(word.arg for word in one.keywords if word.arg) for one in node.value.values)
    ]  # fmt: skip


def _made(
    node: ast.Call, known: Known, classes: dict[str, ast.ClassDef], own: list[ast.ClassDef]
) -> Made | None:
    called = classes.get(dotted(node.func).rpartition(".")[2])
    defaults, order = ({}, []) if called is None else _taken(called)
    words = [(one.arg, one.value) for one in node.keywords if one.arg]
    words += list(zip(order, node.args, strict=False))
    said = {name: known.value(value) for name, value in words}
    spread = {key: value for key, value in known.keywords(node) if value is not None}
    said = {**spread, **{key: value for key, value in said.items() if value is not None}}
    left = {str(name) for name, _value in words if name not in said}
    if any(one.arg is None and known.value(one.value) is None for one in node.keywords):
        left |= {
            name for name in defaults if name not in said
        }  # a table handed over that nobody could follow
    plain = {key: value for key, value in said.items() if is_plain(value)}
    whole = {key: value for key, value in defaults.items() if key not in left} | plain
    if not describes([*whole, *left]):
        return None
    rank = 0 if describes(plain) else 1 if describes([*plain, *left]) else 2
    inner: dict[str, Any] = {}
    for one in own:  # classes below it say what it hands on without a word
        inner |= {key: value for key, value in _taken(one)[0].items() if key not in {*said, *left}}
    sets = {} if called is None else _sets(called, plain, left)
    return Made(inner | {key: value for key, value in sets.items() if key not in left} | whole, left, rank)  # fmt: skip


def computed_by(tree: ast.Module) -> set[str]:
    """What classes compute of their own sizes (`self.head_dim = dim // heads`): another call of them comes to another number."""
    lines = [
        line
        for one in ast.walk(tree) if isinstance(one, ast.ClassDef)
        for line in ast.walk(one) if isinstance(line, ast.Assign)
    ]  # fmt: skip
    return {
        line.targets[0].attr
        for line in lines
        if isinstance(line.targets[0], ast.Attribute) and dotted(line.targets[0].value) == "self" and _computes(line.value)
    }  # fmt: skip


def _computes(value: ast.expr) -> bool:
    """Whether an expression reckons with names."""
    reckons = [one for one in ast.walk(value) if isinstance(one, ast.BinOp)]
    return any(isinstance(part, (ast.Name, ast.Attribute)) for one in reckons for part in ast.walk(one))  # fmt: skip


def _sets(node: ast.ClassDef, said: Mapping[str, Any], left: set[str]) -> dict[str, Any]:
    """What a class sets on itself for a call's words (`self.d_ff = 4 * d_model`), without what comes from a word nobody followed."""
    inits = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]  # fmt: skip
    alone = Known(ast.Module(body=[node], type_ignores=[]))
    alone.parameters |= said
    alone.parameters = {key: one for key, one in alone.parameters.items() if key not in left}
    alone.fields = {}
    for line in [one for init in inits for one in ast.walk(init) if isinstance(one, ast.Assign)]:
        target = line.targets[0]
        if isinstance(target, ast.Attribute) and dotted(target.value) == "self":
            value = said.get(target.attr, alone.value(line.value))
            if is_plain(value):
                alone.fields.setdefault(target.attr, value)
    return alone.fields


def _taken(node: ast.ClassDef) -> tuple[dict[str, Any], list[str]]:
    """What a class takes where nobody says it, and the order of its arguments: of `__init__`, or a dataclass's fields."""
    alone = Known(ast.Module(body=[node], type_ignores=[]))
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            said = {arg.arg: alone.value(value) for arg, value in defaults_of(one)}
            order = [arg.arg for arg in one.args.args[1:]]
            return {key: value for key, value in said.items() if is_plain(value)}, order
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]  # fmt: skip
    order = [one.target.id for one in fields if isinstance(one.target, ast.Name)]
    return {key: value for key, value in alone.fields.items() if key in order and is_plain(value)}, order  # fmt: skip


_TAKES = re.compile(r"^\s+def from_\w+\(cls\b", re.M)


def without_takers(text: str) -> str:
    """A program without what its own classes take published weights over by (`GPT.from_pretrained`), where nothing calls it."""
    tree = parse_python(text) if _TAKES.search(text) else None
    if tree is None:
        return text
    called = {dotted(one.func) for one in ast.walk(tree) if isinstance(one, ast.Call)}
    lines = text.splitlines()
    classes = [one for one in ast.walk(tree) if isinstance(one, ast.ClassDef)]
    for owner, method in [(one, method) for one in classes for method in one.body]:
        if not isinstance(method, ast.FunctionDef) or not method.name.startswith("from_"):
            continue
        if f"{owner.name}.{method.name}" not in called:
            first = min([method.lineno, *(one.lineno for one in method.decorator_list)]) - 1
            last = method.end_lineno or method.lineno
            lines[first:last] = [""] * (last - first)
    return "\n".join(lines)


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a truth or a text that is not empty."""
    return isinstance(value, (int, float, str, bool)) and value != ""


_PARTS = r"MoE|Moe|MOE|MixtureOfExperts|Experts"
_SWITCH = ("use_moe", "moe", "moe_enabled", "enable_moe", "is_moe", "use_experts")


def mixes_experts(trees: Iterable[ast.Module], said: Mapping[str, Any]) -> bool:
    """Whether a program makes layers of experts whatever it is told, as far as its own values say."""
    if any(said.get(one) in (False, 0, "false") for one in _SWITCH):
        return False
    trees = list(trees)
    classes = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}  # fmt: skip
    mixing = {one for one in classes if re.search(_PARTS, one)}
    for tree in trees if mixing else []:
        if not any(_called(one) in mixing for one in ast.walk(tree)):
            continue
        calls = calls_reached(tree, Known(tree, dict(said)).holds, certain=True)
        if any(_called(one) in mixing for one in calls):
            return True
    return False


def _called(node: ast.AST) -> str:
    """The last part of what a call calls; empty for anything else."""
    return dotted(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


_NAMES = ("from_name", "from_preset", "from_pretrained_config")


def named_shape(tree: ast.Module, known: Known, others: Iterable[ast.Module]) -> dict[str, Any]:
    """The sizes that a program takes by a name out of a table of its own (`Config.from_name("7B")`), or the name alone."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in _NAMES):
            continue
        words = {one.arg: one.value for one in node.keywords}
        first = node.args[0] if node.args else words.get("name")
        name = known.value(first) if first is not None else None
        if not isinstance(name, str) or not name:
            continue
        for one in (tree, *others):
            inner = _of_that_name(name, one, known)
            if inner is not None:
                plain = {str(key): value for key, value in inner.items() if is_plain(value)}
                return plain | _of_lit_gpt(plain)
        return {"model_name": name}
    return {}


def _of_that_name(name: str, tree: ast.Module, known: Known) -> dict[Any, Any] | None:
    """The table of sizes that stands under a name in a table of tables, or says that it is its own."""
    for node in ast.walk(tree):
        table = known.value(node) if isinstance(node, (ast.Dict, ast.Call)) and _may_be_table(node) else None  # fmt: skip
        if not isinstance(table, dict):
            continue
        inner = table if table.get("name") == name else table.get(name)
        if isinstance(inner, dict) and describes(inner):
            return inner
    return None


def _may_be_table(node: ast.Dict | ast.Call) -> bool:
    return isinstance(node, ast.Dict) or dotted(node.func) == "dict"


def _of_lit_gpt(table: dict[str, Any]) -> dict[str, Any]:
    """What LitGPT's tables say of a model by the names of its classes (litgpt/config.py), by the usual names."""
    unit = str(table.get("mlp_class_name", table.get("_mlp_class", "")))
    norm = str(table.get("norm_class_name", table.get("_norm_class", "")))
    found = {"mlp_type": "swiglu" if unit != "GptNeoxMLP" else "plain"} if unit else {}
    return found | (
        {"norm": "rmsnorm" if norm.endswith("RMSNorm") else "layernorm"} if norm else {}
    )


def tokens_wrapped(tree: ast.Module) -> int:
    """How many tokens a model is made for that x-transformers or its relations make (`num_tokens`, a word of other things elsewhere)."""
    made = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and {"num_tokens"} < {word.arg for word in node.keywords} and {"depth", "attn_layers"} & {word.arg for word in node.keywords})  # fmt: skip
    words = (dict(Known(tree).keywords(node)) for node in made)
    return next((one["num_tokens"] for one in words if isinstance(one.get("num_tokens"), int)), 0)
