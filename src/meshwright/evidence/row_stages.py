"""How a measured run cuts its layers into stages: virtual stages, uneven splits, schedules."""

from __future__ import annotations

import re

from meshwright.evidence.batches import Degrees
from meshwright.evidence.rows import Row
from meshwright.evidence.software import SourceRule
from meshwright.specs.model import Model

INTERLEAVED = 2
"""Virtual stages of a run that says it interleaves and not how often: what torchtitan's split of layers
takes for schedules of several stages a rank."""
ENDS = 2
"""Embedding and loss, where they count as layers in dealing layers to stages."""
CHUNK_LAYERS = 2
"""Layers of a virtual stage where NeMo ran and nobody says: the median of its published runs that say."""


FEW_EACH = 2
"""Micro-batches a stage up to which it matters whether a pipeline interleaves: the bubble is a third of the step or more."""


def virtual_stages(
    row: Row,
    rule: SourceRule,
    model: Model,
    degrees: Degrees,
    assumed: list[str],
    micro_batches: int,
) -> int:
    """Virtual stages as the row says them, or as its source's and its framework's runs have them."""
    titled = re.search(
        r"\b(?:VP|VPP|virtual[-_ ]stages?|num[-_]virtual\w*)[=: ]*(\d+)",
        row["setup"],
        re.IGNORECASE,
    ) or re.search(r"vpp?[-_ =]?(\d+)", row["schedule"], re.IGNORECASE)
    vpp = row.count("vpp") or (int(titled.group(1)) if titled else 0)
    if not vpp and degrees.pp > 1 and rule.default("vpp"):
        vpp = int(rule.default("vpp"))
        assumed.append(f"vpp={vpp}")
    if not vpp and degrees.pp > 1 and "interleaved" in row["schedule"].lower():
        vpp = INTERLEAVED
        assumed.append(f"vpp={vpp}")
    if not vpp and degrees.pp > 1 and rule.framework == "nemo":
        # Of 106 published runs of NeMo with a pipeline whose vpp is stated, 104 interleave.
        vpp = max(1, round(model.layers / degrees.pp / CHUNK_LAYERS))
        assumed.append(f"vpp={vpp}")
    if not vpp and micro_batches <= FEW_EACH * degrees.pp and degrees.pp > 1:
        assumed.append("vpp=1")
    vpp = max(vpp, 1)
    by_size = rule.default("vpp_by_params_b")
    if not row["vpp"] and by_size is not None and degrees.pp > 1 and row.number("params_b"):
        vpp = next(v for k, v in by_size.items() if (row.number("params_b") or 0) <= float(k))
        assumed.append(f"vpp={vpp}")
    return 1 if degrees.pp == 1 or vpp * degrees.pp > model.layers + ENDS else vpp


def split_with_ends(layers: int, chunks: int) -> tuple[int, ...] | None:
    """Layers per chunk where they do not divide, but do with embedding and loss counted as layers.

    Megatron's --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split: the
    first and the last chunk hold one layer less, perhaps none.
    """
    if chunks < 2 or layers % chunks == 0 or (layers + ENDS) % chunks:
        return None
    each = (layers + ENDS) // chunks
    return (each - 1, *[each] * (chunks - 2), each - 1)


def stated_split(row: Row, layers: int, pp: int) -> tuple[int, ...] | None:
    """Layers per stage where a row says how many the last one has: the others share the rest."""
    stated = re.search(r"layers on last stage=(\d+)", row["setup"])
    if stated is None or pp < 2:
        return None
    last = int(stated.group(1))
    base, surplus = divmod(layers - last, pp - 1)
    # The surplus goes to the later stages: the first also has the embedding.
    return (*(base + (index >= pp - 1 - surplus) for index in range(pp - 1)), last)


_SCHEDULES = (
    (r"dual-?pipe-?v|zbv-?dual", "dualpipe-v"), (r"dual-?pipe", "dualpipe"),
    (r"v-?half|half-?v|vhalf", "v-half"), (r"v-?min|vmin", "v-min"),
    (r"zb-?v|zero-?bubble-?v", "zb-v"), (r"zb-?h2", "zb-h2"),
    (r"zb|zero-?bubble|interleaved-?zero", "zb-h1"), (r"looped-?bfs", "looped-bfs"),
    (r"g-?pipe|fill-?drain|all-?forward|afab", "gpipe"),
)  # fmt: skip
"""Schedules by how frameworks print them and our names; others are 1F1B, interleaved where vpp > 1."""


def schedule_of(row: Row, vpp: int) -> str:
    """The schedule that a row prints, by our name."""
    text = row["schedule"].lower().replace("_", "-").replace(" ", "-")
    for printed, ours in _SCHEDULES:
        if re.search(printed, text):
            return ours
    return "interleaved" if vpp > 1 else "1f1b"


def cost_balanced_layers(model: Model, pp: int, inclusive: bool = True) -> tuple[int, ...]:
    """Return nanotron's layers per pipeline rank.

    Blocks are dealt in order; a rank is full once the cumulated cost of blocks (4·h·d·heads + 3·h·f
    for a layer, h·vocab for the head) passes its share (huggingface/nanotron models/base.py).
    `inclusive` counts reaching the share exactly as passing it, as later versions do.
    """
    layer = 4 * model.heads * model.head_dim * model.hidden + 3 * model.hidden * model.ffn
    whole = layer * model.layers + model.vocab * model.hidden
    counts, rank, cumulated = [0] * pp, 0, 0
    for _ in range(model.layers):
        cumulated += layer
        counts[rank] += 1
        share = whole * (rank + 1)
        if cumulated * pp > share or (inclusive and cumulated * pp == share):
            rank = min(rank + 1, pp - 1)
    return tuple(counts)
