"""The lines of a file that turn the layout it runs into another, by the names of its options."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from meshwright.imports.patch import Edit, add_flags, add_key, find_edits, find_flag
from meshwright.imports.reading import Imported
from meshwright.specs.layout import Layout

_MOST = 12
_OLD = (
    "--checkpoint-activations",
    "--deepspeed-activation-checkpointing",
    "--recompute-activations",
)
"""How older versions, and DeepSpeed's, say that layers are recomputed."""
_ADDED = ("micro_batch", "accumulation", "tp", "pp")
"""Options beside which another one of the same program is added."""


def candidates_for(
    text: str, imported: Imported, old: Layout, new: Layout
) -> Iterator[tuple[Edit, ...]]:
    """Sets of edits that could turn one layout into another, the likeliest first.

    A file can name an option in several places: each is tried alone, then all together.
    """
    parts = list(_parts(text, imported, old, new))
    if not parts or any(not places for places in parts):
        return
    for chosen in itertools.islice(itertools.product(*parts), _MOST):
        yield tuple(itertools.chain.from_iterable(chosen))


_MOST_PLACES = 6
"""Lines beside which an option that a file lacks is tried."""
Places = list[tuple[Edit, ...]]


def _parts(text: str, imported: Imported, old: Layout, new: Layout) -> Iterator[Places]:
    """For each option that changes, the ways in which the file's lines can say so."""
    options = imported.options
    for name in ("tp", "pp", "cp", "ep", "micro_batch", "virtual_stages"):
        if getattr(old, name) != getattr(new, name):
            yield _set(text, options, name, str(getattr(new, name)))
    if old.sequence_parallel != new.sequence_parallel:
        option = options.get("sequence_parallel", "")
        if new.sequence_parallel and option.startswith("--"):
            yield _each(add_flags(text, option, _beside(options)))
        else:
            yield _set(text, options, "sequence_parallel", str(new.sequence_parallel).lower())
    if old.zero != new.zero:
        yield _zero(text, options, new)
    if old.recompute != new.recompute:
        yield _recompute(text, options, new)
    steps = imported.job.global_batch // (new.dp * new.micro_batch)
    before = imported.job.global_batch // (old.dp * old.micro_batch)
    if steps != before and options.get("accumulation"):
        yield _set(text, options, "accumulation", str(steps))


def _one(edit: Edit | None) -> Places:
    return [] if edit is None else [(edit,)]


def _each(edits: Iterator[Edit]) -> Places:
    return [(edit,) for edit in itertools.islice(edits, _MOST_PLACES)]


def _set(text: str, options: dict[str, str], name: str, value: str) -> Places:
    """An option with another value where the file names it, else added beside a sibling."""
    option = options.get(name, "")
    if not option:
        return []
    found = list(find_edits(text, option, value))
    places: Places = [(edit,) for edit in found]
    if len(found) > 1:
        places.append(tuple(found))
    if places:
        return places
    if option.startswith("--"):
        return _each(add_flags(text, f"{option} {value}", _beside(options)))
    siblings = tuple(options[other].rsplit(".", 1)[-1] for other in _ADDED if other in options)
    return _one(add_key(text, option.rsplit(".", 1)[-1], value, siblings))


def _zero(text: str, options: dict[str, str], new: Layout) -> Places:
    if "zero" in options:
        stage = "stage" in options["zero"]
        return _set(
            text, options, "zero", str(new.zero) if stage else "false" if new.zero == 2 else "true"
        )
    if "zero1" in options and new.zero == 1:
        return _each(add_flags(text, options["zero1"], _beside(options)))
    return []


def _beside(options: dict[str, str]) -> tuple[str, ...]:
    return tuple(
        itertools.chain(
            (options.get("tp", ""),), (v for v in options.values() if v.startswith("--"))
        )
    )


def _recompute(text: str, options: dict[str, str], new: Layout) -> Places:
    option = options.get("recompute", "")
    if "granularity" in option:
        return _granularity(text, options, new)
    if option.endswith("checkpoint.mode"):
        return _set(text, options, "recompute", new.recompute)
    if "remat" in option:
        return _set(text, options, "recompute", "full" if new.recompute == "full" else "minimal")
    if new.recompute == "selective":
        return []
    gone = _without(text, [option]) if new.recompute == "none" and option.startswith("--") else ()
    if gone and not _valued(text, option):
        return [gone]  # a switch without a value
    return _set(text, options, "recompute", "true" if new.recompute == "full" else "false")


def _valued(text: str, option: str) -> bool:
    """Whether a file gives an option a value, or only names it."""
    return re.search(rf"{re.escape(option)}[ \t=]+(?![-\\#|&])[\w\"'$]", text) is not None


def _granularity(text: str, options: dict[str, str], new: Layout) -> Places:
    """Megatron-LM's three options, which go and come together."""
    option = options["recompute"]
    extra = [options[name] for name in ("recompute_method", "recompute_num") if name in options]
    if new.recompute == "none":
        gone = _without(text, [option, *extra, *_OLD])
        return [gone] if gone else []
    value = "selective" if new.recompute == "selective" else "full"
    found: Places = []
    for edit in find_edits(text, option, value):
        rest = _without(_replaced(text, edit), extra) if value == "selective" else ()
        kept = [] if any(one.line == edit.line for one in rest) else [edit]
        found.append(
            (*kept, *(replace(one, old=edit.old) if one.line == edit.line else one for one in rest))
        )
    if found:
        return found
    words = f"{option} {value}" + (f" {extra[0]} uniform" if value == "full" and extra else "")
    return _each(add_flags(text, words, _beside(options))) if option.startswith("--") else []


def _without(text: str, names: list[str]) -> tuple[Edit, ...]:
    """The edits that take options out; several on one line are one edit."""
    found: dict[int, Edit] = {}
    for name in names:
        edit = find_flag(text, name)
        if edit is None:
            continue
        first = found.get(edit.line)
        found[edit.line] = replace(edit, old=first.old) if first is not None else edit
        text = _replaced(text, edit)
    return tuple(found.values())


def _replaced(text: str, edit: Edit) -> str:
    """A text with one line changed, as many lines as before."""
    lines = text.split("\n")
    lines[edit.line - 1] = edit.new
    return "\n".join(lines)
