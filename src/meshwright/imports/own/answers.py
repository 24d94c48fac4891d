"""What a loop that trains on its model's own answers adds: several of them a prompt, each behind its prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshwright.imports.own import option_names
from meshwright.imports.reading import Reading

_ROLLED = frozenset({"grpo", "rloo", "ppo"})
_PROMPTS = frozenset({"batch_size", "train_batch_size", "bs"})
"""Names of a batch that counts prompts where each has several answers; finer ones count sequences."""


def of_answers(reading: Reading, said: Mapping[str, Any], text: str) -> None:
    """Count a prompt's answers as sequences of the batch, and an answer's length behind its prompt's where the code adds them.

    Args:
        said: sizes and settings by their usual names.
        text: the code of the loop.
    """
    if reading.task not in _ROLLED:
        return
    each = next((said[one] for one in option_names.ANSWERS if isinstance(said.get(one), int)), 1)
    micro = {*option_names.MICRO} & set(said)
    if each > 1 and micro and micro <= _PROMPTS and reading.micro_batch:
        reading.micro_batch *= each
        reading.global_batch *= each
        reading.guess(min(micro), f"counts prompts, of which each has {each} answers: a device trains on {reading.micro_batch} sequences")  # fmt: skip
    more = next((one for one in option_names.ANSWER_LENGTHS if isinstance(said.get(one), int)), "")
    prompt = next((one for one in option_names.LENGTHS if said.get(one) == reading.seq_len), "")
    if more and prompt and re.search(rf"\b{prompt}\s*\+\s*(?:\w+\.)*{more}\b", text):
        reading.seq_len += said[more]
        reading.note(f"an answer of {said[more]} tokens stands behind a prompt of {said[prompt]}", prompt)  # fmt: skip
