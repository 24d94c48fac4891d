"""What slime's own options change of the training half."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.specs.errors import SpecError

_SAID = {
    "custom-model-provider-path": "a model of one's own; the described one is priced",
    "megatron-config-path": "settings by role in a file that is not read",
    "custom-loss-function-path": "a loss of one's own; the framework's is priced",
    "megatron-deepgemm-forward-layers": "forward products of these layers in 8 bits; not priced",
    "megatron-deepgemm-moe-forward-layers": "forward products of these layers' experts in 8 bits; not priced",
}


def are_of_slime(flags: dict[str, Any]) -> bool:
    """Whether a command's options are slime's, whose own rollouts may count their batch otherwise."""
    own = any(name.startswith("rollout-") for name in flags)
    return "rollout-batch-size" in flags or (own and "hf-checkpoint" in flags)


def before(options: Options) -> None:
    """Turn slime's words for the engine into Megatron-LM's.

    Raises:
        SpecError: nothing trains.
    """
    if options.flag("debug-rollout-only"):
        raise SpecError("--debug-rollout-only", True, "does not train; a training run is expected")
    if options.word("train-backend", default="megatron") == "fsdp":
        options.values.setdefault("use-torch-fsdp2", True)
        if options.flag("gradient-checkpointing"):
            options.values.setdefault("recompute-granularity", "full")
            options.values.setdefault("recompute-method", "uniform")
            options.values.setdefault("recompute-num-layers", "1")


def longest(options: Options) -> tuple[int, str]:
    """Tokens of the longest sequence (0: not said), and what has to be known about them.

    An answer of one turn ends with its response or with the context; one of several turns, made by a
    function of one's own, with the context alone.
    """
    response = options.whole("rollout-max-response-len")
    prompt, context = (
        options.whole("rollout-max-prompt-len"),
        options.whole("rollout-max-context-len"),
    )
    if context:
        turns = bool(options.raw("custom-generate-function-path")) or not (response and prompt)
        return (context if turns else min(context, response + prompt)), ""
    return (
        response + prompt,
        "" if prompt or not response else " beside their prompts, whose length is not said",
    )


def after(options: Options, reading: Reading) -> None:
    """Name what a step of such a run pays for beside Megatron-LM's."""
    if options.word("loss-type") == "sft_loss":
        reading.note("supervised: the loss is the next token's", "--loss-type")
    else:
        reading.note("the training half of reinforcement learning is priced, not the rollouts")
    if options.word("advantage-estimator") == "ppo":
        reading.unmodelled("--advantage-estimator", "a critic trains beside the actor; only the actor is priced")  # fmt: skip
    if options.number("kl-coef") or options.flag("use-kl-loss"):
        reading.unmodelled("--use-kl-loss", "the reference's weights wait in host memory and its passes stand beside the step; neither is priced")  # fmt: skip
    if options.number("entropy-coef"):
        reading.unmodelled("--entropy-coef", "the entropy of all logits; the estimate leaves it out")  # fmt: skip
    if options.number("log-probs-chunk-size") > 0:
        reading.unmodelled("--log-probs-chunk-size", "log-probabilities are taken in parts; the estimate holds all logits")  # fmt: skip
    for name, what in _SAID.items():
        if options.raw(name):  # whatever it says: a file's name may be open
            reading.unmodelled(f"--{name}", what)


_SWITCHES = {
    "OPEN_TRAINING_INT4_FAKE_QAT_FLAG": "weights are rounded to 4 bits in every product; not priced"
}


def environment(words: str, reading: Reading) -> None:
    """Name what variables of a job's environment (`--runtime-env-json`) switch on in the training half."""
    for name, what in _SWITCHES.items():
        if re.search(rf"{name}\W{{1,8}}1\b", words):
            reading.unmodelled(name, what)
