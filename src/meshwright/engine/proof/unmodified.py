"""transformers' own model, whole and untouched in one process: what its stages are held against.

Built anew by transformers in fp64, trained by plain loops; of the engine's stages only the table of
names is used.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from meshwright.engine.foreign.architecture import Architecture, skeleton
from meshwright.engine.foreign.stage import ForeignStage
from meshwright.engine.foreign.trial import small
from meshwright.engine.proof.reference import Batch
from meshwright.engine.proof.reference_shapes import Tensors
from meshwright.engine.proof.shrink import (
    SEQUENCE,
    Case,
    Likeness,
    length,
    small_layers,
    small_layouts,
)
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model


class Unmodified:
    """The reference of a proof, where transformers' modules compute the model."""

    def __init__(self, architecture: Architecture, model: Model) -> None:
        self._whole = architecture.build(torch.float64, memory=True)
        stage = ForeignStage(architecture, model)
        self.shapes = {name: tuple(p.shape) for name, p in stage.named_parameters()}
        held = dict(self._whole.named_parameters())
        self._held = {name: held[theirs] for name, theirs in stage.theirs.items()}

    def gradients(self, values: Tensors, batch: Batch, step: int) -> tuple[float, Tensors]:
        """Mean loss over the counted tokens, and its gradient."""
        with torch.no_grad():
            for name, value in values.items():
                self._held[name].copy_(value)
        self._whole.zero_grad(set_to_none=True)
        logits = self._whole(input_ids=batch.tokens, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1).double(), batch.targets.flatten())
        loss.backward()
        found = {name: held.grad.clone() for name, held in self._held.items()}
        return float(loss.detach()), found


def small_cases(
    architecture: Architecture, model: Model, layout: Layout, max_ranks: int, micro_batches: int = 0
) -> tuple[Architecture, Likeness]:
    """A small config of the architecture, and the cases that stand for a plan.

    Raises:
        SpecError: not even two ranks on every axis fit.
    """
    given = skeleton(model, architecture)
    layouts, missing = small_layouts(given, layout, max_ranks)
    reduced = small(architecture, max(small_layers(given, layout, one) for one in layouts))
    likely = skeleton(model, reduced)
    names = ("layers", "hidden", "vocab")
    notes = [
        f"{name} {getattr(given, name)} to {getattr(likely, name)}"
        for name in names
        if getattr(given, name) != getattr(likely, name)
    ]
    most = getattr(reduced.made().get_text_config(), "max_position_embeddings", None)
    tokens = length(layout, SEQUENCE if not isinstance(most, int) else min(SEQUENCE, most))
    cases = []
    for one in layouts:
        if likely.layers != given.layers:
            one = one.but(stage_layers=None, stage_recompute_layers=None)
        ranks = [f"{layout.world} ranks to {one.world} ({one.label()})"]
        said = (ranks if one.world != layout.world else []) + notes
        batch = one.dp * one.micro_batch * (micro_batches or max(4, 2 * one.pp))
        cases.append(
            Case(model=likely, layout=one, global_batch=batch, seq_len=tokens, shrunk=tuple(said))
        )
    return reduced, Likeness(cases=tuple(cases), not_covered=tuple(missing))


def count(shapes: dict[str, tuple[int, ...]]) -> int:
    """Elements of all tensors."""
    return sum(math.prod(shape) for shape in shapes.values())
