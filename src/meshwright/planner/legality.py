"""Which layouts can run, and the sentence that says why one cannot.

The search applies every rule to columns of layouts (`layout_rules`: what model, devices and batch allow;
`framework_rules`: what the framework has); `why_illegal` asks them one by one about a single layout.
"""

from __future__ import annotations

import numpy as np

from meshwright.costs.columns import Bools, Ints, LayoutColumns, from_layouts, layers_per_rank
from meshwright.planner.framework_rules import FRAMEWORK_RULES
from meshwright.planner.layout_rules import LAYOUT_RULES
from meshwright.planner.question import Question, Rule, asked
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model

__all__ = ["OTHER_RULES", "RULES", "SHARDING_RULES", "Question", "Rule", "legal", "why_illegal"]

RULES: tuple[Rule, ...] = (*LAYOUT_RULES, *FRAMEWORK_RULES)

SHARDING = frozenset(
    {
        "shard degree", "zero-bubble with resharding", "framework: ZeRO stage", "framework: sharded elsewhere",
        "framework: shard degree", "framework: experts", "framework: recompute", "framework: offload under ZeRO",
        "CUDA graphs",
    }
)  # fmt: skip
SHARDING_RULES = tuple(rule for rule in RULES if rule.name in SHARDING)
"""Rules that look at how states are sharded."""
OTHER_RULES = tuple(rule for rule in RULES if rule.name not in SHARDING)
"""Rules that do not: what they remove, they remove however states are sharded."""


def legal(
    question: Question,
    columns: LayoutColumns,
    rules: tuple[Rule, ...] = RULES,
    weights: Ints | None = None,
) -> tuple[Bools, dict[str, int]]:
    """Return the rows that can run, and how many each rule removed (the first rule that applies).

    `weights` says how many layouts each row stands for; None: one.
    """
    alive = np.ones(columns.rows, dtype=bool)
    removed: dict[str, int] = {}
    for rule in rules:
        hit = alive & rule.forbids(question, columns)
        count = int(hit.sum() if weights is None else weights[hit].sum())
        if count:
            removed[rule.name] = count
            alive &= ~hit
    return alive, removed


def why_illegal(question: Question, layout: Layout) -> str | None:
    """Return the sentence of the first rule that a layout breaks, or None if it can run."""
    if (wrong := _wrong_layers(question.model, layout)) is not None:
        return wrong
    columns = from_layouts([layout])
    for rule in RULES:
        if bool(rule.forbids(question, columns)[0]):
            stages = asked(question).zero_stages(tp=layout.tp, pp=layout.pp)
            if rule.name == "framework: ZeRO stage" and layout.zero not in stages:
                can = " or ".join(f"ZeRO-{stage}" for stage in stages)
                return f"{rule.sentence}: not ZeRO-{layout.zero}, but {can} with these degrees"
            return rule.sentence + _figures(question, layout, rule.name)
    return None


def _figures(question: Question, layout: Layout, rule: str) -> str:
    """The numbers that break a rule of arithmetic, to stand behind its sentence."""
    model = question.model
    broken = {
        "world size": f"dp {layout.dp} · tp {layout.tp} · pp {layout.pp} · cp {layout.cp} = "
        f"{layout.world:,}, and the cluster has {question.cluster.gpus:,}",
        "heads": f"{model.heads} heads, tp {layout.tp}",
        "kv heads": f"{model.kv_heads} kv heads, tp {layout.tp}",
        "layers": f"{model.layers} layers, pp {layout.pp} of {layout.virtual_stages} virtual stages",
    }
    return f": {broken[rule]}" if rule in broken else ""


def _wrong_layers(model: Model, layout: Layout) -> str | None:
    """What is wrong with the numbers of layers that a layout names, which columns do not hold."""
    held = layout.stage_layers
    if held is not None and sum(held) != model.layers:
        return f"stage_layers add up to {sum(held)} layers, and the model has {model.layers}"
    most = -(-model.layers // layout.pp) if held is None else max(layers_per_rank(layout, held))
    if layout.recompute_layers > most:
        return (
            f"recompute_layers = {layout.recompute_layers}, and a pipeline rank holds {most} layers "
            f"at most (0 means all of them)"
        )
    return None
