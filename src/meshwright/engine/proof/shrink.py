"""A small model and layout with the structure of a large one, for proofs on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.layout import Layout
from meshwright.specs.model import Experts, Model

SMALL_PARAMETERS = 2_000_000
"""Models up to about this size are verified as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What `verify` runs, and what was made smaller to run it."""

    model: Model
    layout: Layout
    global_batch: int
    seq_len: int
    shrunk: tuple[str, ...]
    documents: bool = False
    """Whether sequences are packed from documents that attention does not leave."""
    dropout: float = 0.0


def shrink(model: Model, layout: Layout, max_ranks: int, micro_batches: int = 0) -> Case:
    """Scale a plan down to `max_ranks` processes and a model of a few layers.

    Kept: every active axis, the schedule, ZeRO stage, recomputation, uneven splits, grouping of
    key heads (also fewer than tp), biases, norms, tying, routing. Changed sizes are listed.
    `micro_batches` fixes their number (a schedule file has its own); 0 takes two per stage.
    """
    notes: list[str] = []
    small_layout = _small_layout(layout, max_ranks)
    if small_layout.world != layout.world:
        notes.append(f"{layout.world} ranks to {small_layout.world} ({small_layout.label()})")
    if layout.micro_batch != small_layout.micro_batch:
        notes.append(f"micro-batches of {layout.micro_batch} to {small_layout.micro_batch}")
    small_model = _small_model(model, layout, small_layout)
    notes += _differences(model, small_model)
    if small_model is not model:
        small_layout = small_layout.but(**_small_splits(layout, small_layout))
    micro_batches = micro_batches or (2 * small_layout.pp if small_layout.pp > 1 else 2)
    return Case(
        model=small_model,
        layout=small_layout,
        global_batch=small_layout.dp * small_layout.micro_batch * micro_batches,
        seq_len=max(16, 2 * small_layout.cp * small_layout.tp),
        shrunk=tuple(notes),
    )


def _differences(model: Model, small: Model) -> list[str]:
    """Every size that differs, in words."""
    pairs = [
        ("layers", model.layers, small.layers),
        ("width", model.hidden, small.hidden),
        ("query/key heads", f"{model.heads}/{model.kv_heads}", f"{small.heads}/{small.kv_heads}"),
        ("head width", model.head_dim, small.head_dim),
        ("FFN", model.ffn, small.ffn),
        ("vocabulary", model.vocab, small.vocab),
        ("window", model.window, small.window),
        ("positions", model.max_positions, small.max_positions),
    ]
    if (before := model.experts) is not None and (after := small.experts) is not None:
        pairs += [
            ("experts", before.experts, after.experts),
            ("experts a token", before.top_k, after.top_k),
            ("expert FFN", before.ffn, after.ffn),
            ("shared FFN", before.shared_ffn, after.shared_ffn),
            ("leading dense layers", before.dense_layers, after.dense_layers),
            ("expert period", before.period, after.period),
        ]
    return [f"{what} {old} to {new}" for what, old, new in pairs if old != new]


def _small_layout(layout: Layout, max_ranks: int) -> Layout:
    small = layout.but(micro_batch=min(layout.micro_batch, 2))
    if small.world <= max_ranks:
        return small
    small = small.but(stage_layers=None, stage_recompute_layers=None)
    degrees = {axis: min(getattr(layout, axis), 2) for axis in ("dp", "tp", "pp", "cp")}
    if layout.zero and 0 < layout.shard < layout.dp * layout.cp:
        degrees["dp"] = 4 if degrees["cp"] == 1 else 2  # HSDP needs two groups of two
    ranks = degrees["dp"] * degrees["cp"] * degrees["tp"]
    ep = 2 if layout.ep > 1 and ranks % 2 == 0 else 1
    shard = 2 if layout.shard else 0
    chunks = min(layout.virtual_stages, 2)
    return small.but(**degrees, ep=ep, shard=shard, virtual_stages=chunks)


def _small_splits(layout: Layout, small: Layout) -> dict[str, tuple[int, ...]]:
    """Uneven splits stay uneven: longer stages get two layers, the shortest one.

    Of those, stages that recompute more than the least recompute one, the others none; where all
    recompute alike, all do.
    """
    found: dict[str, tuple[int, ...]] = {}
    if (layers := layout.stage_layers) is not None:
        found["stage_layers"] = tuple(1 + more for more in _above_least(layers, small))
    if (again := layout.stage_recompute_layers) is not None:
        alike = max(again) == min(again) > 0
        found["stage_recompute_layers"] = tuple(
            int(alike or more) for more in _above_least(again, small)
        )
    return found


def _above_least(given: tuple[int, ...], small: Layout) -> list[bool]:
    """For each stage of the small layout, whether its like has more than the least."""
    stages = small.pp * small.virtual_stages
    picked = [given[index * len(given) // stages] for index in range(stages)]
    picked[0], picked[-1] = given[0], given[-1]
    return [count > min(given) for count in picked]


def _small_model(model: Model, layout: Layout, small: Layout) -> Model:
    stages = small.pp * small.virtual_stages
    if parameters(model) <= SMALL_PARAMETERS and small.world == layout.world:
        return model
    if layout.stage_layers is not None:
        layers = sum(_small_splits(layout, small)["stage_layers"])
    else:
        whole = layout.pp * layout.virtual_stages
        layers = max(stages, min(4, model.layers)) + (model.layers % whole > 0)
    tp = small.tp
    if model.kv_heads == model.heads:
        heads = kv_heads = max(4, tp)
    elif model.kv_heads < layout.tp:
        kv_heads, heads = max(1, tp // 2), max(4, tp)
    else:
        kv_heads, heads = max(2, tp), 2 * max(2, tp)
    experts = None
    if model.experts is not None:
        count = max(4, small.ep)
        experts = Experts(
            **model.experts.model_dump()
            | {
                "experts": count,
                "top_k": min(model.experts.top_k, 2),
                "ffn": 48,
                "shared_ffn": 32 * tp if model.experts.shared_ffn else 0,
                "dense_layers": min(model.experts.dense_layers, 1),
                "period": min(model.experts.period, 2),
            }
        )
    return model.but(
        layers=layers, hidden=64, heads=heads, kv_heads=kv_heads, head_dim=16,
        ffn=32 * max(3, tp), vocab=32 * max(4, tp), max_positions=min(model.max_positions, 64),
        window=min(model.window, 7), experts=experts and experts.model_dump(),
    )  # fmt: skip


def parameters(model: Model) -> int:
    """Parameters of the decoder that the engine builds."""
    import torch

    from meshwright.engine.model.decoder import Decoder

    with torch.device("meta"):
        return sum(p.numel() for p in Decoder(model).parameters())
