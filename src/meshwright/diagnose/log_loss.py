"""What losses and gradient norms tell: not a number, stuck, dead, spikes."""

from __future__ import annotations

import math
from statistics import median

from meshwright.diagnose.log_reading import LogReading
from meshwright.diagnose.log_speed import place, values_of
from meshwright.diagnose.records import Part, of
from meshwright.diagnose.step_fields import Step

STUCK = 10
"""Equal losses from which on it is no chance."""
FIRST_ALONE = 16
"""Losses from which on the first one by itself says where a run began; of fewer, each is a batch's."""
SETTLED = 10
"""Losses from which on one above the first is no matter of the first updates."""
FALLEN = 0.95
"""Share of the first loss below which a run has learnt something."""
FEW_NORMS = 3
"""Gradient norms up to which zeros tell nothing."""
NO_LAST_STAGE = -1.0
"""What torchtitan gives for the loss of a rank that computes none (`trainer.py`)."""


def counted(number: int, one: str, many: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {one if number == 1 else many}"


def judge_losses(part: Part, reading: LogReading, steps: list[Step]) -> None:
    """Add what the losses and gradient norms of a log tell."""
    # A run's summary gives the mean of all steps beside its times.
    losses = [
        (s, s.loss)
        for s in steps
        if s.loss is not None and s.runtime_s is None and s.steps_per_s is None
    ]
    finite = [(s, v) for s, v in losses if math.isfinite(v)]
    if len(finite) > 1 and all(v == NO_LAST_STAGE for _, v in finite):
        part.healthy.append(
            "a loss of -1 is no loss: torchtitan prints it on ranks that hold no last stage of the pipeline "
            "(LOG_RANK names the ranks that print; give one of the last stage)"
        )
        return
    if finite:
        part.figures["loss_first"], part.figures["loss_last"] = finite[0][1], finite[-1][1]
    # Megatron leaves a loss that is not a number out of its line; the gradient's norm stays.
    bad_norm = [
        s for s in steps
        if s.grad_norm is not None and not math.isfinite(s.grad_norm) and s.loss is None and not s.skipped
    ]  # fmt: skip
    bad = [s for s, v in losses if not math.isfinite(v)] + [s for s in steps if s.nan] + bad_norm
    bad.sort(key=lambda step: step.line)
    skipped = sum(int(v) for v in values_of(steps, "skipped"))
    skipped = max([skipped, *(int(v) for v in values_of(steps, "skipped_so_far"))])
    if skipped:
        part.figures["skipped_steps"] = skipped
    bad = bad or _bad_gradients(part, steps)
    if bad:
        part.figures["nan_steps"] = len(bad)
        first = bad[0]
        part.findings.append(
            of("unknown", _not_a_number(first, first in bad_norm)
               + (f"from {_named(first)} on" if len(bad) > 1 else f"at {_named(first)}")
               + _zero_after(part, first, losses),
               "go back to the last good checkpoint; look at the batch and the gradient norm of the step "
               "before; lower the learning rate or the loss scale, bf16 instead of fp16, check masks that leave a row empty",
               confidence=0.6, where=f"loss at {_named(first)}",
               evidence=(place(reading, first, "loss: nan" if first.grad_norm is None else "grad_norm: nan"),))
        )  # fmt: skip
        return
    if not losses:
        return
    _dead(part, reading, finite)
    _no_gradient(part, reading)
    _stuck(part, reading, finite)
    _spikes(part, reading, finite)


def _bad_gradients(part: Part, steps: list[Step]) -> list[Step]:
    """Steps from which on the gradient's norm stays not a number though the loss is printed.

    Single ones that are followed by good steps are what a loss scale does as it finds its place.
    """
    norms = [s for s in steps if s.grad_norm is not None]
    bad = [s for s in norms if not math.isfinite(s.grad_norm or 0.0)]
    if not bad:
        return []
    last_good = max((s.line for s in norms if math.isfinite(s.grad_norm or 0.0)), default=-1)
    lasting = [s for s in bad if s.line > last_good]
    if len(lasting) < 2:
        part.figures["nan_gradient_steps"] = len(bad)
        part.healthy.append(
            f"{counted(len(bad), 'step had', 'steps had')} a gradient norm that is no number"
            + (" and good ones followed, which is usual while the loss scale of fp16 settles" if last_good > bad[-1].line
               else " at the end of the text, which does not show whether it stays so")
        )  # fmt: skip
        return []
    return lasting


def _not_a_number(step: Step, without_loss: bool) -> str:
    if without_loss:
        return "The gradient's norm is not a number, and no loss is printed, "
    if step.loss is None or math.isfinite(step.loss):
        return "The gradient's norm is not a number while the loss still is one, "
    return "The loss is not a number "


def _zero_after(part: Part, first: Step, losses: list[tuple[Step, float]]) -> str:
    """A filter of losses that are no number prints 0 for them: said, as it looks like another fault."""
    zero = [step for step, value in losses if value == 0.0 and step.line >= first.line]
    if not zero:
        return ""
    part.figures["zero_loss_steps"] = len(zero)
    return "; the losses of 0 behind it are such losses filtered, nothing is learnt"


def _named(step: Step) -> str:
    return f"line {step.line}" if step.number is None else f"step {step.number}"


def _dead(part: Part, reading: LogReading, losses: list[tuple[Step, float]]) -> None:
    """A loss of exactly zero: nothing is learnt, and nothing crashes."""
    zero = [(step, value) for step, value in losses if value == 0.0]
    if not zero or not any(value > 0.01 for _, value in losses[: losses.index(zero[0])] or losses):
        return
    step = zero[0][0]
    part.figures["zero_loss_steps"] = len(zero)
    part.findings.append(
        of("wrong-configuration", f"The loss is exactly 0 from step {step.number or step.line} on: the run goes on and "
           "learns nothing" if losses[-1][1] == 0.0 else f"The loss is exactly 0 at {len(zero)} steps",
           "a loss of a language model is never 0: see that labels are not all masked (-100) after a change of template, "
           "packing or truncation, that half precision does not overflow (bf16, or fp32 for the loss), and that the "
           "checkpoint's weights are finite",
           confidence=0.8, where=f"loss at step {step.number or step.line}",
           evidence=(place(reading, step, "loss 0.0"),))
    )  # fmt: skip


def _stuck(part: Part, reading: LogReading, losses: list[tuple[Step, float]]) -> None:
    """A loss that is the same number at every step: no update reaches the model that computes it."""
    values = {value for _, value in losses}
    numbers = {step.number for step, _ in losses if step.number is not None}
    if len(losses) < STUCK or len(numbers) < STUCK or len(values) > 1 or 0.0 in values:
        return
    if len(f"{losses[0][1]:.10g}".split(".")[-1]) < 3:
        return  # printed too coarsely to tell
    part.findings.append(
        of("wrong-configuration", f"The loss is {losses[0][1]:g} at each of {len(losses)} steps: no update reaches the model",
           "see that the learning rate is not 0 (a warm-up or schedule of the wrong length), that the optimizer holds the "
           "parameters of the model that runs (made after wrapping, moving and sharding), that they require gradients, and "
           "that the data change from step to step", confidence=0.8, where="updates",
           evidence=(place(reading, losses[0][0]), place(reading, losses[-1][0])))
    )  # fmt: skip


def _no_gradient(part: Part, reading: LogReading) -> None:
    """Gradients of exactly zero at every step."""
    norms = [step for step in reading.steps if step.grad_norm is not None]
    # Megatron with DeepSpeed's engine prints times, and 0 for a norm that it does not have.
    timed = any(step.step_time_s is not None for step in norms)
    if len(norms) <= FEW_NORMS or timed or any(step.grad_norm for step in norms):
        return
    part.findings.append(
        of("wrong-configuration", f"The gradient's norm is exactly 0 at each of {len(norms)} steps: nothing is learnt",
           "see that what is to be trained requires gradients and the loss depends on it (frozen modules, detached outputs, labels all "
           "-100, a reentrant checkpoint without inputs that require gradients), that rewards differ within a group, and that the norm "
           "is not read before gradients are there", confidence=0.7, where="gradients",
           evidence=(place(reading, norms[0], "grad_norm 0"), place(reading, norms[-1], "grad_norm 0")))
    )  # fmt: skip


def _spikes(part: Part, reading: LogReading, losses: list[tuple[Step, float]]) -> None:
    if len(losses) < 4:
        return
    spikes = [
        (step, value)
        for at, (step, value) in enumerate(losses)
        if at >= 2
        and value > 1.5 * median([v for _, v in losses[max(0, at - 10) : at]]) > 0
        and value > losses[0][1] * 1.05
    ]
    if not spikes:
        return
    part.figures["loss_spikes"] = len(spikes)
    final = median([v for _, v in losses[-3:]])
    first = median([v for _, v in losses[: 1 if len(losses) >= FIRST_ALONE else 3]])
    # Large models without a warm-up leave their first loss upwards for some steps and come back.
    fell = min(value for step, value in losses if step.line < spikes[0][0].line) < FALLEN * first
    if (fell or len(losses) >= SETTLED) and final > 1.2 * first > 0:
        step, value = spikes[0]
        part.findings.append(
            of("unknown", f"The loss diverges: {losses[0][1]:.3g} at first, {value:.3g} at step "
               f"{step.number or step.line}, {final:.3g} at the end", "lower the learning rate, lengthen the warm-up, check "
               "initialisation and precision; speed figures of such a run are still valid",
               confidence=0.6, where=f"loss at step {step.number or step.line}",
               evidence=(place(reading, step, f"loss {value:.4g}"),))
        )  # fmt: skip
