"""Fill `${a.b}` references and `${NAME:default}` of a configuration, as OmegaConf and its like do."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwright.imports.shell.numbers import calculated
from meshwright.imports.shell.words import mark, unset
from meshwright.specs.foreign import Limits, parse_toml, parse_yaml, read_text

_WHOLE = re.compile(r"\$\{([^${}]*)\}")
LIMITS = Limits(size_bytes=4_000_000, any_number=True, last_wins=True)


def resolved(data: dict[str, Any], variables: dict[str, str] | None = None) -> dict[str, Any]:
    """A configuration with its references filled; one that leads nowhere becomes a mark."""
    return {key: _fill(value, data, variables or {}, 0, (key,)) for key, value in data.items()}


def _fill(
    value: Any, root: dict[str, Any], variables: dict[str, str], depth: int, at: tuple[str, ...]
) -> Any:
    """A value with its references filled; `at` is its place, which `${..name}` counts from."""
    if depth > 20:
        return value
    if isinstance(value, dict):
        return {
            key: _fill(one, root, variables, depth + 1, (*at, str(key)))
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_fill(one, root, variables, depth + 1, at) for one in value]
    if not isinstance(value, str) or "$" not in value:
        return value
    alone = _WHOLE.fullmatch(value.strip())
    if alone:
        return _fill(_looked_up(alone.group(1), root, variables, at), root, variables, depth + 1, at)  # fmt: skip
    one = _is_one(value.strip())
    for _ in range(8):
        changed = _WHOLE.sub(lambda match: str(_looked_up(match.group(1), root, variables, at)), value)  # fmt: skip
        if changed == value:
            break
        value = changed[:10_000]
    return _typed(value) if one and "$" not in value and not unset(value) else value


def _is_one(text: str) -> bool:
    """Whether a text is one reference from its first letter to its last, whatever stands inside."""
    if not text.startswith("${"):
        return False
    depth = 0
    for at, letter in enumerate(text):
        depth += letter == "{"
        depth -= letter == "}"
        if not depth and letter == "}":
            return at == len(text) - 1
    return False


def _looked_up(
    text: str, root: dict[str, Any], variables: dict[str, str], at: tuple[str, ...] = ()
) -> Any:
    name, colon, default = text.partition(":")
    if name in variables:
        return _typed(variables[name])
    if name in ("oc.env", "env"):
        name, colon, default = default.partition(",")
        return (
            _typed(variables[name])
            if name in variables
            else _typed(default)
            if colon
            else mark(name)
        )
    if name == "oc.decode":
        return default if unset(default) else _typed(default)
    if name in _COMPUTED and colon:
        return _computed(name, default)
    if (name in _COMPARED or name in ("if", "oc.eval", "eval")) and colon:
        return _decided(name, default)
    if name == "oc.select":
        name, colon, default = default.partition(",")
    elif "," in default and re.fullmatch(r"[a-z][a-z0-9_]*", name) and name not in root:
        return mark(f"{name}:{default}"[:60])  # a resolver that the program brings
    bare = name.strip().lstrip(".")
    dots = len(name.strip()) - len(bare)
    if dots and at:  # one dot is the table that the reference stands in, each more the one around
        near = ".".join((*at[: max(len(at) - dots, 0)], bare))
        found = _looked_up(near, root, variables) if near != bare else mark(bare)
        if not (isinstance(found, str) and unset(found)):
            return found
    current: Any = root
    for part in bare.split("."):
        if not isinstance(current, dict) or part not in current:
            return _typed(default.lstrip("-")) if colon else mark(name.strip())
        current = current[part]
    return current


_COMPUTED: dict[str, Callable[[float, float], float]] = {
    "multiply": lambda a, b: a * b, "mul": lambda a, b: a * b, "add": lambda a, b: a + b, "sum": lambda a, b: a + b, "sub": lambda a, b: a - b, "subtract": lambda a, b: a - b,
    "div": lambda a, b: a / b, "divide": lambda a, b: a / b, "floor_div": lambda a, b: a // b, "int_div": lambda a, b: a // b,
    "ceil_div": lambda a, b: -(-a // b), "div_up": lambda a, b: -(-a // b), "min": min, "max": max,
}  # fmt: skip
"""Resolvers that NVIDIA's and other tools register under these names."""


def _computed(name: str, text: str) -> Any:
    """What such a resolver makes of numbers; a mark where one of them is not said."""
    if missing := unset(text):
        return mark(missing[0])
    numbers = [_typed(one) for one in text.split(",")]
    known = [one for one in numbers if isinstance(one, (int, float)) and not isinstance(one, bool)]
    if len(known) != len(numbers) or len(known) < 2:
        return mark(f"{name}:{text}"[:60])
    found: float = known[0]
    for one in known[1:]:
        if "div" in name and not one:
            return mark(f"{name}:{text}"[:60])
        found = _COMPUTED[name](found, one)
    return int(found) if float(found).is_integer() else found


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "gt": lambda a, b: a > b, "lt": lambda a, b: a < b, "ge": lambda a, b: a >= b, "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b, "neq": lambda a, b: a != b,
}  # fmt: skip


def _decided(name: str, text: str) -> Any:
    """What a comparison, `if:test,this,that` or an expression in Python's words comes to; a mark where it cannot be said."""
    if missing := unset(text):
        return mark(missing[0])
    if name.endswith("eval"):
        found = calculated(text)
        return mark(f"{name}:{text}"[:60]) if found is None else _typed(found)
    values = [_typed(one) for one in text.split(",")]
    if name == "if" and len(values) == 3:
        return values[1] if values[0] else values[2]
    if name in _COMPARED and len(values) == 2:
        try:
            return _COMPARED[name](*values)
        except TypeError:
            pass
    return mark(f"{name}:{text}"[:60])


def _typed(text: str) -> Any:
    """A default's text as YAML has it: a number, true, or a word."""
    bare = text.strip().strip("\"'")
    if re.fullmatch(r"-?\d{1,18}", bare):
        return int(bare)
    if re.fullmatch(r"-?\d*\.\d+(?:[eE][-+]?\d{1,3})?|-?\d+(?:\.\d*)?[eE][-+]?\d{1,3}", bare):
        return float(bare)
    return {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}.get(bare, bare)  # fmt: skip


def merged(below: dict[str, Any], above: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """Two configurations, the second one's values counting."""
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        both = isinstance(old, dict) and isinstance(value, dict) and depth < 20
        found[key] = merged(old, value, depth + 1) if both and isinstance(old, dict) else value
    return found


def read_table(path: Path, field: str = "file") -> dict[str, Any]:
    """A file of YAML, JSON or TOML as a table; an empty one where it holds something else.

    Raises:
        SpecError: it cannot be read or parsed.
    """
    parse = parse_toml if path.suffix == ".toml" else parse_yaml
    data = parse(read_text(path, field), field, str(path), LIMITS)
    return data if isinstance(data, dict) else {}


GROUP = "_group_"
"""Under which a table keeps the name of the group that Hydra makes it of."""


def words_to_table(words: list[str]) -> dict[str, Any]:
    """Overrides such as `a.b=1 ++c=true` as nested tables."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.lstrip("+~-").partition("=")
        if not equals or not re.fullmatch(r"[\w@.\[\]/-]+", name):
            continue
        place = found
        *outer, last = name.split(".")
        for part in outer[:12]:
            inner = place.setdefault(part, {})
            if not isinstance(
                inner, dict
            ):  # `engine=megatron engine.tp=2`: a group, then its fields
                inner = place[part] = {GROUP: inner}
            place = inner
        made = _typed(value)
        if isinstance(place.get(last), dict) and not isinstance(made, dict):
            place[last][GROUP] = made
        else:
            place[last] = made
    return found


def suffix(path: str) -> str:
    """The end of a path's name, in small letters."""
    return os.path.splitext(path)[1].lower()
