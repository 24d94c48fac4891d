"""Recording a Hugging Face Trainer: a callback, since the loop is not the user's.

The Trainer logs a step's loss and gradient norm after it has told callbacks that the step has ended, so
a step is closed when its log comes (`logging_steps=1`), or else when the next step begins.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from meshwright.probe import record
from meshwright.probe.recorder import Recorder


class TrainerProbe(TrainerCallback):
    """See `meshwright.probe.attach`."""

    def __init__(self, trainer: Any, settings: dict[str, Any]) -> None:
        self._trainer, self._settings = trainer, settings
        self._recorder: Recorder | None = None
        self._open = False

    def on_train_begin(self, *_: Any, **given: Any) -> None:
        """Attach to model and optimizer as accelerate has wrapped them."""
        wrapped = getattr(self._trainer, "model_wrapped", None) or given["model"]
        self._recorder = record(wrapped, self._trainer.optimizer, **self._settings)
        self._recorder.__enter__()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Close a step that logged nothing."""
        self._close({})

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Remember that an update was made."""
        self._open = True

    def on_log(self, *_: Any, logs: dict[str, Any] | None = None, **__: Any) -> None:
        """Close the step with its logged loss and gradient norm."""
        if logs and "loss" in logs:
            self._close(logs)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Close the files."""
        self._close({})
        if self._recorder is not None:
            self._recorder.__exit__(None, None, None)

    def _close(self, logs: dict[str, Any]) -> None:
        if self._open and self._recorder is not None:
            self._recorder.step(loss=logs.get("loss"), grad_norm=logs.get("grad_norm"))
        self._open = False
