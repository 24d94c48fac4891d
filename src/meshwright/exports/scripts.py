"""What an exported training script brings beside itself: the reader of its tokens, its checkpoints and learning rate."""

from __future__ import annotations

from dataclasses import replace

from meshwright.exports.bundle import comment, template
from meshwright.exports.inputs import SAVED_EVERY, Inputs
from meshwright.specs.model import Model
from meshwright.specs.plan import Plan


def beside(plan: Plan, command: str, target: str) -> dict[str, str]:
    """`corpus.py`, which reads files of tokens and makes them of text, and `progress.py`."""
    values = {"STAMP": comment(plan, command, target).rstrip(), "SAVED_EVERY": SAVED_EVERY}
    return {name: template(name, values) for name in ("corpus.py", "progress.py")}


def of_script(model: Model) -> Inputs:
    """Options of the scripts written here."""
    return Inputs(
        data="files of tokens, which python corpus.py makes of text",
        mock="--data mock",
        real="--data $DATA",
        kept="--checkpoints $CHECKPOINTS",
    )


def of_trainer(model: Model) -> Inputs:
    """Options of the Trainer's script: TrainingArguments have words of their own for a folder."""
    return replace(of_script(model), kept="--output_dir $CHECKPOINTS", lost="--save_strategy no")
