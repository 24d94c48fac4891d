"""What a run's task adds beside the plain training step: pairs, reference models, generation."""

from __future__ import annotations

import re

from meshwright.imports.options import Options
from meshwright.imports.reading import Reading

_PAIRS = "each sample is a pair of sequences"
_REFERENCE = "a frozen reference model runs, too, unless its log-probabilities are computed before"
_ROLLOUTS = "answers are generated and scored between the steps"
_ALONE = "the training of one sequence a sample is priced"
_TASKS = {
    "dpo": f"{_PAIRS}, and {_REFERENCE}; {_ALONE}",
    "ipo": f"{_PAIRS}, and {_REFERENCE}; {_ALONE}",
    "kto": f"{_REFERENCE}; {_ALONE}",
    "orpo": f"{_PAIRS}; {_ALONE}",
    "simpo": f"{_PAIRS}; {_ALONE}",
    "cpo": f"{_PAIRS}; {_ALONE}",
    "reward": f"{_PAIRS}, and the head has one output; {_ALONE}, with a head of the whole vocabulary",
    "grpo": f"{_ROLLOUTS}; the training half is priced",
    "ppo": f"{_ROLLOUTS}, and a critic may train; the training of the policy is priced",
    "rloo": f"{_ROLLOUTS}; the training half is priced",
    "gkd": "a frozen teacher is held and run, too, and answers may be generated between the steps; the student's training is priced",
}
_SAME = {"rm": "reward", "rlhf": "ppo", "dapo": "grpo", "gspo": "grpo", "dr_grpo": "grpo"}
_NAMED = re.compile(
    r"(?<![a-z])(dpo|ipo|kto|orpo|simpo|cpo|reward|rm|grpo|dapo|gspo|ppo|rloo|gkd)(?![a-z])"
)


PAIRED = frozenset({"dpo", "ipo", "orpo", "simpo", "cpo", "kto", "reward"})
"""Tasks whose sample is two sequences (KTO's: an answer, and another question's as a mismatch)."""
_REFERENCED = frozenset({"dpo", "ipo", "kto", "ppo"})


def name_task(reading: Reading, said: str) -> None:
    """Say once what the task adds that a file's program, stage or method names; nothing for others.

    DPO, IPO, KTO and PPO hold the untrained model beside; GRPO and RLOO where a weight of its divergence is set
    (trl/trainer/grpo_config.py: `beta` is zero by default).

    Args:
        said: `dpo`, `run_dpo.py`, `grpo_trainer`…
    """
    found = _NAMED.search(said.lower())
    if found is None or reading.task:
        return
    task = reading.task = _SAME.get(found.group(1), found.group(1))
    reading.reference = task in _REFERENCED
    reading.unmodelled("task", f"{task}: {_TASKS[task]}")


def name_generation(reading: Reading, options: Options) -> None:
    """Say that generation takes part of the training devices' memory, where it runs on them."""
    if not options.flag("use_vllm"):
        return
    share = options.number("vllm_gpu_memory_utilization", default=0.3)
    if options.word("vllm_mode", default="") == "colocate" or options.flag("vllm_colocate"):
        reading.unmodelled(
            "vllm_mode",
            f"generation runs on the same devices and sets {share:.0%} of their memory aside; "
            "training alone is priced",
        )
