"""Hydra's `defaults`: the files beside a configuration that it is made of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.interpolate import merged, read_table
from meshwright.specs.foreign import read_text

_OWN = {"main_ppo": "ppo_trainer", "fsdp_sft_trainer": "sft_trainer"}
"""Which of verl's own configurations a program starts from where the command names none."""


def own_configuration(
    program: str, flags: dict[str, Any], named: str, folder: Path | None
) -> Path | None:
    """The configuration that a command starts from, where it lies beside the script."""
    if named:
        name = f"{named.removesuffix('.yaml')}.yaml"
        where = str(flags.get("config-path", "")).rsplit("/", 1)[-1]
        return beside(folder, f"{where}/{name}") or beside(folder, f"config/{name}") or beside(folder, f"verl/trainer/config/{name}")  # fmt: skip
    usual = _OWN.get(program.rsplit(".", 1)[-1]) if program.startswith("verl.trainer.") else None
    found = beside(folder, f"verl/trainer/config/{usual}.yaml") if usual else None
    # A file of that name elsewhere is another program's.
    return found if found is not None and found.parts[-4:-1] == ("verl", "trainer", "config") else None  # fmt: skip


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
    below: dict[str, Any] = {}
    for key, value in entries:
        group, _, package = key.partition("@")
        told = chosen.get(key, value) if key else value
        filled = re.sub(
            r"\$\{(\w+)\}", lambda found: (chosen or {}).get(found.group(1), ""), str(told or "")
        )
        named = "/".join(part for part in (group, filled) if part).removesuffix(".yaml")
        if (
            depth > 4
            or key.startswith("override ")
            or not _GROUP.fullmatch(named)
            or named == "_self_"
        ):
            continue
        other = path.parent / f"{named}.yaml"
        if not other.is_file() or not other.resolve().is_relative_to(root.resolve()):
            continue
        inner = with_defaults(other, depth + 1, root, chosen)
        where = package if package or "@" in key else group
        if _GLOBAL.match(read_text(other)):
            where = ""
        for name in reversed([part for part in re.split(r"[./]", where) if part]):
            inner = {name: inner}
        below = merged(below, inner)
    return merged(below, data)


_GLOBAL = re.compile(r"\s*#\s*@package\s+_global_")
"""A group's file whose fields stand at the root, not under the group's name."""
