"""What a run's task adds beside the plain training step: pairs, reference models, generation."""

from __future__ import annotations

import re

from meshwright.imports.names import PLANNED
from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.specs.errors import SpecError

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
    "distill": "a frozen teacher is held and run, too; the student's training is priced",
}
_SAME = {
    "rm": "reward",
    "pair_preferences": "dpo",  # turbo-alignment's data of pairs, which its reward models have, too
    "rlhf": "ppo",
    "dapo": "grpo",
    "gspo": "grpo",
    "dr_grpo": "grpo",
    "gdpo": "grpo",
    "distillation": "distill",
}
_NAMED = re.compile(
    r"(?<![a-z])(dpo|pair_preferences|ipo|kto|orpo|simpo|cpo|reward|rm|grpo|gdpo|dapo|gspo|ppo|rloo|gkd|distill|distillation)(?![a-z])"
)


PAIRED = frozenset({"dpo", "ipo", "orpo", "simpo", "cpo", "kto", "reward"})
"""Tasks whose sample is two sequences (KTO's: an answer, and another question's as a mismatch)."""
_REFERENCED = frozenset({"dpo", "ipo", "kto", "ppo"})


def refuse_task(option: str, task: object) -> None:
    """Refuse ms-swift's tasks without a next token: classes, embeddings, rankings.

    Raises:
        SpecError: any but causal_lm.
    """
    if task not in (None, "", "causal_lm"):
        raise SpecError(option, task, f"trains a classifier, a ranking or an embedding: {PLANNED}")


def is_task(said: str) -> bool:
    """Whether a word names a task that adds something beside the plain training step."""
    return _NAMED.search(said.lower()) is not None


_MADE = re.compile(
    r"\b\w*?(GRPO|RLOO|DPO|PPO)(?:Config|Trainer|Args|Arguments|Algorithm|Loss)\(|\b(grpo|rloo|dpo|ppo)_(?:loss|step|update|train\w*)(?: *=|\()|\bdef \w*?_(grpo|rloo|dpo|ppo)\("
)
"""A program's own settings, trainer, step or loss, by the usual names of the task."""


def name_made(reading: Reading, text: str) -> None:
    """Say what a loop of one's own trains for, by what it makes: `GRPOConfig(…)`."""
    found = _MADE.search(text)
    if found is not None:
        name_task(reading, next(filter(None, found.groups())))


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


_OWN = {
    "kto": ("desirable_weight", "undesirable_weight", "kto_chosen_weight", "kto_rejected_weight"),
    "reward": ("center_rewards_coefficient",),
    "gkd": ("lmbda", "seq_kd", "teacher_model_name_or_path"),
    "simpo": ("gamma_beta_ratio", "simpo_gamma"),
    "cpo": ("cpo_alpha",),
    "orpo": ("orpo_alpha",),
    "ppo": ("reward_model_path", "cliprange_value", "vf_coef"),
}
"""Options that one task alone has (trl/trainer/*_config.py and alignment-handbook's)."""
_WRITTEN = ("hub_model_id", "output_dir", "run_name")


def name_by_options(reading: Reading, options: Options) -> None:
    """Name the task that a configuration's own options belong to, where no program or stage says it.

    A preference run without such an option goes by the name that it writes its model under (`zephyr-7b-orpo`).
    """
    for task, names in _OWN.items():
        if options.has(*names):
            name_task(reading, task)
    if options.has("beta") and options.has("max_prompt_length", "max_completion_length"):
        written = " ".join(str(options.values.get(name, "")) for name in _WRITTEN)
        if found := re.search(r"(?<![a-z])(orpo|simpo|cpo|kto)(?![a-z])", written.lower()):
            name_task(reading, found.group(1))


def name_generation(reading: Reading, options: Options) -> None:
    """Say that generation takes part of the training devices' memory, where it runs on them."""
    if not options.flag("use_vllm"):
        return
    share = options.number("vllm_gpu_memory_utilization", default=0.3)
    mode = options.word("vllm_mode", default="")
    if options.flag("vllm_enable_sleep_mode"):
        reading.unmodelled("vllm_enable_sleep_mode", "generation gives its memory back while the model trains; training alone is priced")  # fmt: skip
    elif not mode and not options.has("vllm_colocate", "vllm_server_host", "vllm_server_base_url"):
        reading.guess("vllm_mode", f"is not set: TRL 1.x generates on the training devices and sets {share:.0%} of their memory aside, older releases on a server; training alone is priced")  # fmt: skip
    elif mode == "colocate" or options.flag("vllm_colocate"):
        reading.unmodelled(
            "vllm_mode",
            f"generation runs on the same devices and sets {share:.0%} of their memory aside; "
            "training alone is priced",
        )
