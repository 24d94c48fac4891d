"""Memory by phase of a step: the loss, the backward's start and end, the update.

Not everything is alive at once: logits are gone when the first layer recomputes, gradients of a
single micro-batch grow while activations shrink, an optimizer's temporaries meet no activations.
"""

from __future__ import annotations

import numpy as np

from meshwright.costs.columns import Floats, Ints

PHASES = ("loading", "loss", "backward", "backward_end", "update")

Parts = dict[str, Floats]


def phase_parts(
    parts: Parts,
    micro_batches: Ints,
    one_layer: Floats,
    update: Floats,
    loading: Floats,
    paged: bool,
) -> dict[str, Parts]:
    """Return the parts alive in each phase; arrays of shape (rows,).

    Args:
        parts: everything that the rank holds at some time.
        micro_batches: of a step; after the first one gradients are there throughout.
        one_layer: activations that are left when backward reaches its last layer.
        update: temporaries of the optimizer.
        loading: bytes of weights beside the rank's own while they are loaded.
        paged: the optimizer's states leave the device when others need the memory.
    """
    none = np.zeros_like(parts["parameters"])
    several = micro_batches > 1
    early = np.where(several, parts["gradients"], 0.0)
    base = dict(parts)
    if paged:
        base["optimizer"] = none
    nothing = dict.fromkeys(base, none)
    kept = ("parameters", "communicators", "context")
    return {
        "loading": nothing | {name: base[name] for name in kept} | {"gathered_parameters": loading},
        "loss": base | {"gradients": early, "recompute_peak": none},
        "backward": base | {"gradients": early, "logits": none},
        "backward_end": base | {"activations": one_layer, "logits": none},
        "update": base | {
            "activations": none, "recompute_peak": none, "logits": none,
            "gathered_parameters": none, "buffers": parts["buffers"] + update,
        },
    }  # fmt: skip


def total(parts: Parts) -> Floats:
    """Sum of parts."""
    return np.asarray(sum(parts.values(), np.zeros_like(parts["parameters"])))


def heaviest(phases: dict[str, Parts]) -> Parts:
    """Return each row's parts in its heaviest phase."""
    stacked = np.stack([total(parts) for parts in phases.values()])
    worst, at = np.argmax(stacked, axis=0), np.arange(stacked.shape[1])
    names = next(iter(phases.values()))
    return {name: np.stack([parts[name] for parts in phases.values()])[worst, at] for name in names}
