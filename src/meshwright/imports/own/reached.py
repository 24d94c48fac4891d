"""Calls that a training program comes to, and what it does to its model by one: recompute, keep in fp32."""

from __future__ import annotations

import ast
import re

from meshwright.imports.code.branches import case_of
from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import dotted
from meshwright.imports.own.layers import RECOMPUTES, certain


def recomputes(tree: ast.AST, known: Known) -> bool:
    """Whether a program switches recomputation on by a call, where what it depends on does not deny it."""
    for call in reached(tree, known):
        called = dotted(call.func)
        if called.endswith(RECOMPUTES):
            return True
        if called.endswith("prepare_model_for_kbit_training"):
            said = dict(known.keywords(call)).get("use_gradient_checkpointing")
            if said is None or said is True:
                return True
    return False


_NARROWED = re.compile(r"[\"'](?:lm_head|embed_tokens)[\"'] in name\b")
"""How QLoRA's script and those made from it cast head and embedding back to 16 bits."""


def upcasts(tree: ast.AST, known: Known) -> bool:
    """Whether PEFT's preparation keeps in fp32 what is not quantised, and nothing casts it back."""
    prepares = any(dotted(one.func).endswith("prepare_model_for_kbit_training") for one in reached(tree, known))  # fmt: skip
    return prepares and _NARROWED.search(ast.unparse(tree)) is None


def switches_on(tree: ast.AST, known: Known) -> bool:
    """Whether a program recomputes by a call that no unknown condition guards, whatever its trainer is told."""
    return any(dotted(call.func).endswith(RECOMPUTES) for call in certain(tree, known))


def reached(tree: ast.AST, known: Known) -> list[ast.Call]:
    """Calls of a program by line, without the branches that its own values rule out."""
    waiting: list[ast.AST] = [tree]
    found = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and (test := known.value(node.test)) is not None:
            waiting += node.body if test else node.orelse
            continue
        if isinstance(node, ast.IfExp) and (test := known.value(node.test)) is not None:
            waiting.append(node.body if test else node.orelse)
            continue
        if isinstance(node, ast.Match) and (case := case_of(node, known.value(node.subject))):
            waiting += case.body
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Call):
            found.append(node)
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))
