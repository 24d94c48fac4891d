"""YAML as plain data: its events are counted before anything is built from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LONG_NUMBER = re.compile(r"[-+.0-9][0-9_:.xob]{400}")


class _Loader(_BASE):  # type: ignore[misc]
    """Keys are text as written, dates stay text; everything else as `yaml.safe_load` has it."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        letter: [pair for pair in pairs if not pair[0].endswith(":timestamp")]
        for letter, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
        self.flatten_mapping(node)
        found = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError(f"line {key.start_mark.line + 1}: a key that is not text")
            found[key.value] = self.construct_object(value, deep=deep)
        return found


@dataclass(slots=True)
class _Open:
    """A list or table whose end was not read yet."""

    anchor: str | None
    keys: set[str] | None
    nodes: int = 1
    depth: int = 1
    children: int = 0


def load(text: str, depth: int, nodes: int, last_wins: bool) -> Any:
    """Return the one document of a text.

    Raises:
        ValueError: invalid, deeper than `depth`, more than `nodes` values with every alias counted
            as what it stands for, an alias inside what it stands for, or a key given twice in one
            table (unless the last one wins).
    """
    try:
        _count(text, depth, nodes, last_wins)
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except (TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"a value that its tag does not allow: {error}") from None


def _count(text: str, depth: int, nodes: int, last_wins: bool) -> None:
    anchors: dict[str, tuple[int, int]] = {}
    stack = [_Open(None, None)]
    for event in yaml.parse(text, Loader=_BASE):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise ValueError(
                    f"{_line(event)}alias *{str(event.anchor)[:40]} inside itself or unknown"
                )
            _add(stack, event, *anchors[event.anchor], depth, nodes)
        elif isinstance(event, yaml.ScalarEvent):
            _scalar(stack[-1], event, last_wins)
            if event.anchor:
                anchors[event.anchor] = 1, 0
            _add(stack, event, 1, 0, depth, nodes)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            anchors.pop(str(event.anchor), None)
            keys: set[str] | None = set() if isinstance(event, yaml.MappingStartEvent) else None
            stack.append(_Open(event.anchor, keys))
            if len(stack) > depth + 1:
                raise ValueError(f"{_line(event)}more than {depth} levels inside each other")
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            closed = stack.pop()
            if closed.anchor:
                anchors[closed.anchor] = closed.nodes, closed.depth
            _add(stack, event, closed.nodes, closed.depth, depth, nodes)


def _add(
    stack: list[_Open], event: yaml.Event, count: int, deep: int, depth: int, nodes: int
) -> None:
    """Count a finished value into the list or table that holds it."""
    holder = stack[-1]
    holder.children += 1
    holder.nodes += count
    holder.depth = max(holder.depth, deep + 1)
    if holder.nodes > nodes:
        raise ValueError(f"{_line(event)}more than {nodes:,} values, aliases counted")
    if holder.depth + len(stack) - 2 > depth:
        raise ValueError(f"{_line(event)}more than {depth} levels inside each other")


def _scalar(holder: _Open, event: yaml.ScalarEvent, last_wins: bool) -> None:
    if event.implicit[0] and _LONG_NUMBER.match(event.value):
        raise ValueError(f"{_line(event)}a number of more than 400 digits")
    if holder.keys is None or holder.children % 2 or last_wins:
        return
    if event.value in holder.keys and event.value != "<<":
        raise ValueError(f"{_line(event)}key {event.value[:60]!r} is given twice")
    holder.keys.add(event.value)


def _line(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}: " if event.start_mark else ""
