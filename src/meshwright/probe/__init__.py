"""Record a few steps of any training loop, to prove that a changed layout still trains the same.

    import meshwright.probe as probe

    with probe.record(model, optimizer, out="runs/a") as p:
        for batch in data:
            ...  # forward, backward
            optimizer.step()
            p.step(loss=loss, tokens=n_tokens)  # after the update

`meshwright prove runs/a runs/b` then says whether two recordings are one training. Needs torch and
nothing of the planner; calls no collective and gathers nothing.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.probe.files import LAYOUT_VARIABLE, OUT_VARIABLE, parse_layout

if TYPE_CHECKING:
    from meshwright.probe.holdings import Placement, Shard
    from meshwright.probe.recorder import Recorder

__all__ = ["Recorder", "Shard", "attach", "layout", "record"]

_HOME = {"Shard": "holdings", "Recorder": "recorder"}


def __getattr__(name: str) -> Any:
    # The files of a recording are read without torch, so what needs it is imported on use.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def record(
    model: Any,
    optimizer: Any,
    out: str | Path | None = None,
    *,
    every: int = 1,
    names: Mapping[str, str] | Callable[[str], str] | None = None,
    placement: Placement | None = None,
    layout: str | None = None,
    activations: tuple[str, ...] = (),
    seed: int = 0,
) -> Recorder:
    """A context that records every `every`-th step into the folder `out`.

    `model` and `optimizer` are what the loop steps, wrapped or not, or lists of them (pipeline
    stages); a DeepSpeed engine is model and optimizer in one. `names` maps this run's parameter names
    to the other run's; `placement` says of plain tensors how they are sharded (`Shard`), DTensor, FSDP,
    ZeRO and Megatron's layers say it themselves. `layout` names the degrees (`"tp2 dp2"`) for the
    judge's words; `activations` are patterns of module names whose outputs are compared too. Without
    `out`, the folder that `meshwright prove --script` set is used.

    Raises:
        ValueError: no folder, a wrong `every` or `layout`, or a model without trainable parameters.
    """
    from meshwright.probe.recorder import Recorder

    folder = out if out is not None else os.environ.get(OUT_VARIABLE)
    if not folder:
        raise ValueError(f"probe.record needs out=…, or the variable {OUT_VARIABLE}")
    if every < 1:
        raise ValueError(f"every = {every}: record every n-th step, n at least 1")
    if names is None:
        rename: Callable[[str], str] = str
    elif callable(names):
        rename = names
    else:
        table = dict(names)
        rename = lambda name: table.get(name, name)  # noqa: E731
    label = layout if layout is not None else os.environ.get(LAYOUT_VARIABLE, "")
    return Recorder(
        list(model) if isinstance(model, list | tuple) else [model],
        list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer],
        Path(folder),
        every=every,
        rename=rename,
        placement=placement,
        layout=parse_layout(label),
        activations=tuple(activations),
        seed=seed,
    )


def attach(trainer: Any, out: str | Path | None = None, **settings: Any) -> None:
    """Record the steps of a trainer that owns its loop; call it before `trainer.train()` or `.fit()`.

    Hugging Face's `Trainer` (TRL's included; with `logging_steps=1` loss and gradient norm are recorded
    too), Lightning's `Trainer`, and torchtitan's. `settings` are those of `record`.

    Raises:
        ValueError: it is none of these.
    """
    given = {"out": out, **settings}
    if hasattr(trainer, "add_callback"):
        from meshwright.probe.trainer import TrainerProbe

        trainer.add_callback(TrainerProbe(trainer, given))
    elif hasattr(trainer, "fit_loop"):
        from meshwright.probe import lightning

        lightning.attach(trainer, given)
    elif hasattr(trainer, "train_step") and hasattr(trainer, "model_parts"):
        from meshwright.probe import titan

        titan.attach(trainer, given)
    else:
        raise ValueError(
            f"attach knows the trainers of transformers, Lightning and torchtitan, not "
            f"{type(trainer).__name__}; use probe.record around the loop"
        )


def layout() -> dict[str, int]:
    """The degrees that `meshwright prove --script … --layouts` asks this launch for, as `{"dp": 2}`."""
    return parse_layout(os.environ.get(LAYOUT_VARIABLE, ""))
