"""One spelling of a layout: fields that change nothing get their defaults.

A tool that has one device along an axis does not say how that axis would have been split, so two
layouts are the same run when their canonical forms are equal.
"""

from __future__ import annotations

from meshwright.specs.layout import AXES, Layout, ranked
from meshwright.specs.model import Model

DEFAULT_ORDER = "-".join(AXES)
TP_PP_DP_ORDER = "tp-cp-ep-pp-dp"
"""Megatron-LM's --use-tp-pp-dp-mapping: pipeline stages inside data-parallel groups."""


def even_split(layers: int, pp: int, virtual_stages: int = 1) -> tuple[int, ...]:
    """Layers of each virtual stage in order, as even as possible.

    The surplus goes to the stages in the middle, away from embedding and head, then to the last
    but one of them, the last stage, and at the end the first: the split that `costs` prices.
    """
    stages = pp * virtual_stages
    base, surplus = divmod(layers, stages)
    order = [*range(1, stages - 1), stages - 1, 0] if stages > 1 else [0]
    extra = set(order[:surplus])
    return tuple(base + (index in extra) for index in range(stages))


def canonical(layout: Layout, model: Model | None = None) -> Layout:
    """Return the layout with every field that has no effect at its default.

    Without a model, an explicit split of layers cannot be recognised as the even one and stays.
    """
    change: dict[str, object] = {}
    if layout.pp == 1:
        change |= {"schedule": "1f1b", "virtual_stages": 1, "stage_layers": None}
    elif layout.schedule == "interleaved" and layout.virtual_stages == 1:
        change["schedule"] = "1f1b"
    elif layout.schedule == "1f1b" and layout.virtual_stages > 1:
        change["schedule"] = "interleaved"
    explicit = layout.stage_layers if model is not None else None
    if explicit is not None and model is not None:
        even = even_split(model.layers, layout.pp, layout.virtual_stages)
        # A stage without layers must be named, be it what an even split comes to.
        same = explicit == even and 0 not in explicit
        change["stage_layers"] = None if same or layout.pp == 1 else explicit
    if layout.dp * layout.cp == 1:
        change |= {"zero": 0, "shard": 0}
    if layout.zero == 0 or layout.shard == layout.dp * layout.cp:
        change["shard"] = 0
    elif layout.shard == 1:
        change |= {"zero": 0, "shard": 0}
    if layout.cp == 1:
        change["cp_method"] = Layout().cp_method
    if layout.tp == 1:
        change["sequence_parallel"] = False
    if model is not None and model.experts is None:
        change |= {"ep": 1, "etp": 1}
    if layout.recompute != "full" or (
        model is not None and layout.recompute_layers >= -(-model.layers // layout.pp)
    ):
        change["recompute_layers"] = 0
    change |= _recompute_split(layout, model) | _modules(layout, model)
    change["rank_order"] = _order(layout)
    return layout.but(**change)


def _recompute_split(layout: Layout, model: Model | None) -> dict[str, object]:
    """A split that means all layers, no layer, or one number for one stage, said shorter."""
    split = layout.stage_recompute_layers
    if split is None:
        return {}
    if not any(split):
        return {"recompute": "none", "stage_recompute_layers": None}
    held = layout.stage_layers
    if held is None and model is not None:
        held = even_split(model.layers, layout.pp, layout.virtual_stages)
    if held is not None and all(map(int.__ge__, split, held)):
        return {"stage_recompute_layers": None}
    if layout.pp == 1:
        return {"recompute_layers": sum(split), "stage_recompute_layers": None}
    return {}


def _modules(layout: Layout, model: Model | None) -> dict[str, object]:
    """Modules to run again without those that the model does not have; none left is no recomputation."""
    if model is None or layout.recompute != "selective" or not layout.recompute_modules:
        return {}
    experts = model.experts
    absent = set() if model.latent_attention else {"mla_up_proj"}
    if experts is None:
        absent |= {"moe", "moe_act", "shared_experts"}
    elif not experts.shared_ffn:
        absent.add("shared_experts")
    if experts is not None and model.moe_layers == model.layers:
        absent.add("mlp")
    kept = tuple(name for name in layout.recompute_modules if name not in absent)
    if kept:
        return {"recompute_modules": kept}
    return {"recompute": "none", "recompute_modules": ()}


def _order(layout: Layout) -> str:
    """The usual spelling of an order: axes of degree 1 have no place of their own."""
    used = [axis for axis in AXES if getattr(layout, axis) > 1]
    wanted = ranked(layout.rank_order, used)
    for usual in (DEFAULT_ORDER, TP_PP_DP_ORDER):
        if ranked(usual, used) == wanted:
            return usual
    return "-".join([*wanted, *(axis for axis in AXES if axis not in used)])
