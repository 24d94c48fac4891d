"""Recording a torchtitan Trainer: its `train_step` is one optimizer step, its log says loss and norm."""

from __future__ import annotations

from typing import Any

from meshwright.probe import record

_IGNORED = -100
"""The label of a token that does not count, torch's and torchtitan's."""


def attach(trainer: Any, settings: dict[str, Any]) -> None:
    """See `meshwright.probe.attach`; `trainer` is built, its weights may still be loaded."""
    dims = trainer.parallel_dims
    degrees = {"dp": dims.dp_replicate * dims.dp_shard}
    degrees |= {axis: getattr(dims, axis, 1) for axis in ("cp", "tp", "pp", "ep")}
    label = " ".join(f"{axis}{size}" for axis, size in degrees.items() if size > 1)
    recorder = record(trainer.model_parts, trainer.optimizers, **{"layout": label, **settings})
    recorder.__enter__()
    train_step, log, close = trainer.train_step, trainer.metrics_processor.log, trainer.close
    # Stages before the last have no loss, and report -1 for it.
    has_loss = not dims.pp_enabled or trainer.pp_has_last_stage
    said: dict[str, float] = {}

    def logged(step: int, loss: float, most: float, grad_norm: float, *a: Any, **k: Any) -> Any:
        said.update({"grad_norm": grad_norm} | ({"loss": loss} if has_loss else {}))
        return log(step, loss, most, grad_norm, *a, **k)

    def counted(batches: Any) -> Any:
        for inputs, labels in batches:
            said["tokens"] = said.get("tokens", 0) + int((labels != _IGNORED).sum())
            yield inputs, labels

    def stepped(batches: Any) -> Any:
        said.clear()
        result = train_step(counted(batches))
        recorder.step(**said)
        return result

    def closed() -> None:
        recorder.__exit__(None, None, None)
        close()

    trainer.metrics_processor.log, trainer.train_step, trainer.close = logged, stepped, closed
