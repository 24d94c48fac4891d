"""Hydra's `defaults`: the files beside a configuration that it is made of."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside, program_beside
from meshwright.imports.code.syntax import dotted, parse_python
from meshwright.imports.interpolate import merged, read_table
from meshwright.imports.other_models import refuse_chosen
from meshwright.imports.shell.words import unmarked
from meshwright.specs.foreign import read_text

_OWN = {"main_ppo": "ppo_trainer", "fsdp_sft_trainer": "sft_trainer"}
"""Which of verl's own configurations a program starts from where the command names none."""


def own_configuration(program: str, words: list[str], folder: Path | None) -> Path | None:
    """The configuration that a command of verl's starts from, where it lies beside the script."""
    where, named = chosen(words)
    path = program_beside(folder, program)
    if path is not None and path.name not in ("train.py", "main.py"):
        usual_where, usual = of_program(read_text(path, "file"))
        name = named or usual
        at = path.parent / (where or usual_where)
        found = at / f"{name.removesuffix('.yaml')}.yaml"
        if name and not Path(usual_where).is_absolute() and found.is_file():
            return found
    if named:
        name = f"{named.removesuffix('.yaml')}.yaml"
        last = where.rsplit("/", 1)[-1]
        return beside(folder, f"{last}/{name}") or beside(folder, f"config/{name}") or beside(folder, f"verl/trainer/config/{name}")  # fmt: skip
    usual = _OWN.get(program.rsplit(".", 1)[-1], "") if program.startswith("verl.trainer.") else ""
    below = beside(folder, f"verl/trainer/config/{usual}.yaml") if usual else None
    # A file of that name elsewhere is another program's.
    return below if below is not None and below.parts[-4:-1] == ("verl", "trainer", "config") else None  # fmt: skip


def chosen(words: list[str]) -> tuple[str, str]:
    """The folder and the name of the configuration that a command says; empty where it says none."""
    split = [part for word in words for part in (word.split("=", 1) if word.startswith(("--config-", "--config_")) else [word])]  # fmt: skip
    where = name = ""
    for flag, word in pairwise(split):
        name = unmarked(word) if flag in ("--config-name", "--config_name", "-cn") else name
        where = unmarked(word) if flag in ("--config-path", "--config_path", "-cp") else where
    return where, name


def of_program(text: str) -> tuple[str, str]:
    """The folder and the name of the configuration that `@hydra.main(…)` starts from; empty where a program has none."""
    tree = parse_python(text) if "hydra.main" in text else None
    for node in ast.walk(tree) if tree is not None else []:
        if isinstance(node, ast.Call) and dotted(node.func).endswith("hydra.main"):
            words = {one.arg: one.value for one in node.keywords}
            where, name = words.get("config_path"), words.get("config_name")
            folder = _folder(where, tree) if where is not None else ""
            return folder or ".", str(name.value or "") if isinstance(name, ast.Constant) else ""
    return "", ""


def _folder(node: ast.expr, tree: ast.Module | None, depth: int = 0) -> str:
    """A folder as a program writes it, from its own: `Path(__file__).resolve().parents[1] / "configs"`; empty where that is not plain."""
    if isinstance(node, ast.Constant):
        return str(node.value or "")
    if depth > _DEEPEST:
        return ""
    if isinstance(node, ast.Name) and tree is not None:
        values = [one.value for one in tree.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == node.id]  # fmt: skip
        return _folder(values[-1], tree, depth + 1) if values else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        parts = [_folder(one, tree, depth + 1) for one in (node.left, node.right)]
        return "/".join(parts) if all(parts) else ""
    if isinstance(node, ast.Call) and dotted(node.func) in ("str", "os.path.join", "os.path.abspath"):  # fmt: skip
        parts = [_folder(one, tree, depth + 1) for one in node.args]
        return "/".join(parts) if parts and all(parts) else ""
    text = ast.unparse(node)
    if (up := _ABOVE.fullmatch(text)) is not None:
        return "/".join([".", *[".."] * (int(up[1]) if up[1] else text.count(".parent") - 1)])
    return "." if _BESIDE.fullmatch(text) else ""


_DEEPEST = 8
_ABOVE = re.compile(
    r"(?:pathlib\.)?Path\(__file__\)(?:\.(?:resolve|absolute)\(\))?(?:\.parents\[([0-4])\]|(?:\.parent){1,5})"
)
_BESIDE = re.compile(r"os\.path\.dirname\((?:os\.path\.(?:abspath|realpath)\()?__file__\)?\)")


_GROUP = re.compile(r"(?:\.\./)?[\w-]+(?:/[\w-]+)*")


def with_defaults(
    path: Path, depth: int = 0, root: Path | None = None, chosen: dict[str, str] | None = None
) -> dict[str, Any]:
    """A Hydra file with what its `defaults` name, each in its package, which the file overrides.

    `name`, `group: name`, `group@package: name` and `override group: name` are followed, inside the
    first file's folder; `${group}` in a name stands for what that group is set to.

    Args:
        chosen: what groups are set to from outside, which counts over the files.
    """
    root, chosen = root or path.parent, dict(chosen or {})
    data = read_table(path)
    entries = [
        next(((str(key), value) for key, value in one.items()), ("", "")) if isinstance(one, dict) else ("", one)
        for one in data.pop("defaults", None) or []
    ]  # fmt: skip
    for key, value in entries:
        if key and "@" not in key:
            chosen.setdefault(key.removeprefix("override ").strip(), str(value))
    places = _search_path(data, path)
    below: dict[str, Any] = {}
    for key, value in entries:
        group, _, package = key.partition("@")
        told = chosen.get(f"{path.parent.name}/{key}", chosen.get(key, value)) if key else value
        filled = re.sub(
            r"\$\{(\w+)\}", lambda found: (chosen or {}).get(found.group(1), ""), str(told or "")
        )
        written = "/".join(part for part in (group, filled) if part).removesuffix(".yaml")
        named = written.removeprefix("/")
        if (
            depth > 4
            or key.startswith("override ")
            or not _GROUP.fullmatch(named)
            or named == "_self_"
        ):
            continue
        # A name with a slash before it counts from where the first file's own name does.
        top = [*path.parents][:_ABOVE_MOST] if written.startswith("/") else [path.parent]
        at = next((at for at in (*top, *places) if (at / f"{named}.yaml").is_file()), None)
        inside = root if at == path.parent else at
        if at is None or inside is None:
            continue
        other = at / f"{named}.yaml"
        if not other.resolve().is_relative_to(inside.resolve()):
            continue
        inner = with_defaults(other, depth + 1, inside, chosen)
        where = package if package or "@" in key else group.removeprefix("/")
        lifted = inner.pop(_AT_ROOT, {})
        if _GLOBAL.match(read_text(other)):
            lifted, inner = merged(lifted, inner), {}
        if lifted:
            below = merged(below, {_AT_ROOT: lifted} if depth else lifted)
        for name in reversed([part for part in re.split(r"[./]", where) if part]):
            inner = {name: inner}
        below = merged(below, inner)
    return merged(below, data)


_AT_ROOT = "@root"
"""Where fields wait that a file inside a group puts at the root."""
_ABOVE_MOST = 4
"""Folders of a configuration that may lie in groups within each other."""


def _search_path(data: dict[str, Any], path: Path) -> list[Path]:
    """Folders that a configuration adds to those in which its `defaults` are looked for, in its own checkout."""
    table = data.get("hydra")
    named = table.get("searchpath") if isinstance(table, dict) else None
    found = [re.sub(r"^(?:file|pkg)://", "", str(one)) for one in named or []]
    places = [one if not one.count(".") or "/" in one else one.replace(".", "/") for one in found]
    kept = [beside(path.parent, f"{one}/ppo_trainer.yaml") or beside(path.parent, f"{one}/sft_trainer.yaml") for one in places]  # fmt: skip
    return [one.parent for one in kept if one is not None]


_GLOBAL = re.compile(r"\s*#\s*@package\s+_global_")
"""A group's file whose fields stand at the root, not under the group's name."""


_ROOTS = ("config", "train", "default", "main")
"""How a Hydra program calls the configuration that it starts from."""


def over_root(data: dict[str, Any], text: str, folder: Path | None) -> dict[str, Any]:
    """An experiment's file over the configuration in which a command would choose it; itself where that is not at hand.

    What its `defaults` override counts in the root's own, and what they name beside stands below it.

    Raises:
        SpecError: they choose a model without attention.
    """
    if folder is None or not _GLOBAL.match(text) or not isinstance(data.get("defaults"), list):
        return data
    places = (at / f"{name}.yaml" for at in [*folder.parents][:_ABOVE_MOST] for name in _ROOTS)
    root = next((path for path in places if path.is_file()), None)
    if root is None:
        return data
    chosen: dict[str, str] = {}
    below: list[dict[str, Any]] = []
    _gather(data, root.parent, chosen, below)
    whole = with_defaults(root, chosen=chosen)
    for one in below:
        whole = merged(whole, one)
    refuse_chosen(chosen)
    return {name: value for name, value in whole.items() if name != "defaults"}


def _gather(
    data: dict[str, Any],
    root: Path,
    chosen: dict[str, str],
    below: list[dict[str, Any]],
    depth: int = 0,
) -> None:
    """Note what an experiment's `defaults` choose, outer ones first for good, and the experiments that it stands on."""
    entries = data["defaults"] if isinstance(data.get("defaults"), list) else []
    pairs = [next(iter(one.items()), ("", "")) if isinstance(one, dict) else ("", one) for one in entries]  # fmt: skip
    overrides = {str(group).removeprefix("override "): name for group, name in pairs if str(group).startswith("override ")}  # fmt: skip
    for group, name in overrides.items():
        chosen.setdefault(group.strip().strip("/"), str(name))
    for group, name in pairs if depth < _DEEPEST else []:
        place = "/".join(part for part in (str(group), str(name)) if part).strip("/")
        path = root / f"{place.removesuffix('.yaml')}.yaml"
        if str(group).startswith("override ") or not path.is_file():
            continue
        if path.resolve().is_relative_to(root.resolve()):
            _gather(read_table(path), root, chosen, below, depth + 1)
    below.append(data)
