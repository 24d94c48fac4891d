"""What a reader of a plan must know beside its figures: assumptions, doubts, disagreements."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import cache
from importlib import resources

import numpy as np

from meshwright.costs.encoder_parameters import encoder_split
from meshwright.costs.encoders import image_words, seen_of, trains
from meshwright.costs.flops import attention_flops_per_token, model_flops_per_token
from meshwright.costs.frameworks import behaviour
from meshwright.costs.step import estimate
from meshwright.planner.compared import UPPER_BOUND, asked_for
from meshwright.planner.dispatchers import OPTION, backend, deduplicates
from meshwright.planner.finalists import Choice
from meshwright.planner.flips import Replan
from meshwright.planner.legality import Question
from meshwright.planner.odds import MEMORY_MARGIN, WANTED
from meshwright.planner.search import Candidates
from meshwright.planner.solve import Solution
from meshwright.planner.space import Constraints
from meshwright.planner.tuning import usual_loss
from meshwright.specs.finetune import GROUPS
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Estimate
from meshwright.specs.quantities import format_bytes, format_seconds
from meshwright.specs.settled import ADVICE

LOSS_WORDS = {
    "chunked": "made in chunks, computed again in backward",
    "liger": "Liger's fused linear cross-entropy",
    "cut": "Cut cross-entropy",
}
LONG_CONTEXT = 0.4
"""Share of attention in a model's FLOPs from which an MFU says more of the convention than of a device."""
WORTH_ANOTHER_BATCH = 0.05
"""Share of the time per sequence that another batch must save to be named."""


def notes(
    solution: Solution,
    best: Estimate,
    constraints: Constraints,
    asked: Question,
    replan: Replan,
    by_memory: bool = False,
) -> list[str]:
    """All notes of a plan, a sentence each; `replan` answers another question as this one was answered.

    `by_memory`: layouts were ranked by the memory that they leave, whatever their time.
    """
    question, result = solution.question, solution.result
    ranked = "a pessimistic step time (communication up to 35 % slower than modelled)"
    if by_memory:
        ranked = "the memory that is left on the fullest device, whatever a step takes"
    found = [f"ranked by {ranked}; at least {MEMORY_MARGIN:.0%} of the modelled peak is kept free"]
    if question.job.framework == UPPER_BOUND:
        asked_it = asked_for(asked.job)
        found.append(
            "an upper bound: no single framework has all that `any` assumes"
            + ("" if asked_it else f"; none of those known here runs on {_device(question)}")
        )
    wanted = constraints.fit_probability or WANTED
    if result.fit_probability < wanted:
        found.append(
            f"nothing fits with {wanted:.0%}; this layout is the fastest of those that fit with "
            f"{result.fit_probability:.0%} or more"
        )
    own = usual_loss(question.job.framework) if question.job.finetune is not None else "framework"
    if question.job.loss not in (asked.job.loss, own):
        found.append(
            f"nothing fits with all logits at once: the loss is {LOSS_WORDS[question.job.loss]}, which "
            f"the job does not ask for (`--loss {question.job.loss}`)"
        )
    tune = question.job.finetune
    if (
        tune is not None
        and tune.adapts
        and question.model.experts is not None
        and not set(tune.targets) - set(GROUPS["attention"])
    ):
        found.append(
            "adapters are on attention alone: transformers holds a layer's experts as one tensor, which "
            "the fine-tuning tools' names of layers do not reach (`--targets` says otherwise)"
        )
    found += _dispatcher(solution, best, asked)
    found += [] if by_memory else _close(solution, best)
    found += _simulated(solution.choice)
    other = replace(asked, cluster=question.cluster)
    return [*found, *_poor_divisors(other, best, replan), *layout_notes(question, best)]


def _dispatcher(solution: Solution, best: Estimate, asked: Question) -> list[str]:
    """Say that tokens reach their experts by another library than the job asked for, and its gain."""
    question = solution.question
    if not deduplicates(question.job) or OPTION in asked.job.framework_options:
        return []
    options = {**question.job.framework_options, OPTION: "all-to-all"}
    usual = question.job.but(framework_options=options)
    other = estimate(question.model, question.cluster, usual, solution.layout)
    more = other.step_time_s / best.step_time_s - 1
    library = {"deepep": "DeepEP", "hybridep": "HybridEP"}[backend(question.cluster)]
    return [
        f"experts' tokens travel by {library}, one copy to each host and rank, which the job does not ask "
        f"for: with an all-to-all this layout takes {more:.1%} longer "
        f"(`--dispatcher alltoall` plans for that)"
    ]


def layout_notes(question: Question, best: Estimate) -> list[str]:
    """What holds of a priced layout however it was found, a sentence each."""
    seen = _encoder(question, best)
    return [
        *_mismatches(question),
        *seen,
        *_above_measured(question, best),
        *memory_too_close(best),
    ]


def _encoder(question: Question, best: Estimate) -> list[str]:
    """What the encoder of a multimodal model is taken to see, and what that costs the first stage."""
    model, job = question.model, question.job
    words = image_words(model, job)
    if not words:
        return []
    said = f"{model.name}: {words}"
    if seen_of(model, job) is None:
        return [said]
    said += " (`--images`, `--image-patches`; `--images 0` plans for text)"
    still = "" if trains(job) else ", frozen: its forward alone"
    runs = "every rank of the first stage runs its encoder whole"
    if encoder_split(model, job.framework):
        runs = "tensor-parallel ranks of the first stage share its encoder"
    said += f"; {runs}{still}"
    share = best.time_parts["encoder"] / best.step_time_s
    if len(best.stages) < 2:
        return [f"{said}, {share:.1%} of the step"]
    paces = "is for it the slowest" if share else "is not the slowest for it"
    return [f"{said}; that stage {paces}" + (f" ({share:.1%} of the step)" if share else "")]


def _device(question: Question) -> str:
    return question.cluster.device.name


def _close(solution: Solution, best: Estimate) -> list[str]:
    """Where the nominal ranking differs, or another shape is within 2 %: a measurement decides."""
    ranked, chosen = solution.result.ranked, solution.layout
    found = []
    nominal = int(np.argmin(ranked.step_time_s))
    lead = best.step_time_s / float(ranked.step_time_s[nominal]) - 1
    fastest = ranked.columns.layout(nominal)
    if lead > 0.005 and fastest != chosen:
        found.append(
            f"{fastest.label()} is {lead:.1%} faster if the model is exactly right, but does not "
            f"survive its uncertainty"
        )
    close = _too_close(ranked, chosen, best.pessimistic_s or best.step_time_s)
    return [*found, close] if close else found


def _too_close(ranked: Candidates, chosen: Layout, pessimistic_s: float) -> str | None:
    for row in range(min(ranked.columns.rows, 400)):
        gap = float(ranked.pessimistic_s[row]) / pessimistic_s - 1
        if gap > 0.02:
            return None
        layout = ranked.columns.layout(row)
        if (layout.tp, layout.pp, layout.ep) != (chosen.tp, chosen.pp, chosen.ep):
            return f"too close to call: {layout.label()} is within {abs(gap):.1%}; {ADVICE}"
    return None


@cache
def measured_mfu() -> dict[tuple[str, str], tuple[float, str]]:
    """Highest published MFU by (device, precision), with the run that reached it."""
    file = resources.files("meshwright.planner").joinpath("data/measured_mfu.toml")
    table = tomllib.loads(file.read_text("utf-8"))
    return {
        (row["device"], row["compute"]): (row["mfu"], f"{row['run']}, {row['source']}")
        for row in table["best"]
    }


def _above_measured(question: Question, best: Estimate) -> list[str]:
    """Say when the plan claims more of the device than it has, or than anyone has measured on it."""
    if best.mfu > 1.0:
        return [
            f"an MFU of {best.mfu:.1%} is more than the device has: for this model the model FLOPs "
            "count more than a step multiplies, so trust neither it nor the step time"
        ]
    known = measured_mfu().get((_device(question), question.job.precision.compute))
    if known is None or best.mfu <= known[0]:
        return []
    counted = 3.0 * attention_flops_per_token(question.model, question.job.seq_len)
    share = counted / model_flops_per_token(question.model, question.job.seq_len)
    long = (
        f"; {share:.0%} of what it counts is attention, by convention twice what a causal mask leaves"
        if share > LONG_CONTEXT
        else ""
    )
    return [
        f"an MFU of {best.mfu:.1%} is above the highest that was published for this device "
        f"({known[0]:.1%}: {known[1]}): expect less{long}"
    ]


def _poor_divisors(asked: Question, best: Estimate, replan: Replan) -> list[str]:
    """Say when a batch close by shares better among the devices than the one that was asked for.

    Only a prime factor of the number of devices that the batch lacks can be at fault.
    """
    batch, world = asked.job.global_batch, asked.cluster.gpus
    odd = world
    while odd % 2 == 0:
        odd //= 2
    if odd == 1 or batch % odd == 0 or batch < odd:
        return []
    near = max(round(batch / odd), 1) * odd
    then = replan(replace(asked, job=asked.job.but(global_batch=near)))
    if then is None or then.choice is None:
        return []
    gain = 1 - (then.choice.closed_form_s / near) / (best.step_time_s / batch)
    if gain < WORTH_ANOTHER_BATCH:
        return []
    framework = then.question.job.framework
    return [
        f"the batch of {batch} shares badly among {world} devices: with {near} sequences, "
        f"{then.layout.label()} of {framework} takes {gain:.0%} less time per sequence"
    ]


_OF_THE_CONFIG = ("not read: ", "no reader for ", "language model of ")
"""What a reader of a config.json remarks after the name of the file (specs/huggingface.py)."""


def _of_the_model(model: Model) -> list[str]:
    """What was assumed about a model, or left out of what its file says."""
    if "assumed" in model.source:
        return [model.source]
    starts = [model.source.find(f"; {words}") for words in _OF_THE_CONFIG]
    found = [start for start in starts if start >= 0]
    if not found:
        return []
    said = model.source[min(found) + 2 :].replace(
        "not read: ", "keys that are not read, and may matter: "
    )
    return [f"of {model.name}'s file: {said}"]


def _mismatches(question: Question) -> list[str]:
    """What the model, the job and the device do not agree on, and what was assumed about it."""
    model, job, device = question.model, question.job, question.cluster.device
    notes = _of_the_model(model)
    if model.kv_share < 1:
        notes.append(
            "layers that take over keys and values are priced on the stage of the layer that makes them: where a "
            "pipeline's chunk begins at such a layer, what must be sent to it is not counted, and MindSpeed-LLM "
            "cannot run it"
        )
    if model.positions == "learned" and job.seq_len > model.max_positions:
        notes.append(
            f"{model.name} has a table of {model.max_positions:,} positions: sequences of "
            f"{job.seq_len:,} need a longer one, which is not counted"
        )
    if job.document_masking and not behaviour(job).eager:
        notes.append(
            "document masking is priced as attention over whole sequences: an upper bound, since how "
            "long the documents are is not known"
        )
    if job.precision.compute not in device.peak_flops:
        rate = device.peak(job.precision.compute)
        used = next(name for name, peak in device.peak_flops.items() if peak == rate)
        notes.append(
            f"{device.name} has no {job.precision.compute} matrix units: priced at its {used} rate"
        )
    return notes


def _simulated(choice: Choice | None) -> list[str]:
    if choice is None or choice.simulated_s is None:
        return []
    moved = choice.simulated_s / choice.closed_form_s - 1
    return [
        f"simulated operation by operation, the step takes {format_seconds(choice.simulated_s)} "
        f"({moved:+.1%} against the closed forms)"
    ]


def memory_too_close(estimate: Estimate) -> list[str]:
    """Say when the device's memory lies inside the range of the peak: then a run must decide."""
    held = estimate.peak_memory_range
    if held is None or not estimate.memory_too_close:
        return []
    return [
        f"whether it fits is too close to call: the peak may be {format_bytes(held.low)} to "
        f"{format_bytes(held.high)} of {format_bytes(estimate.capacity_bytes)}; two steps on the real "
        f"devices would settle it"
    ]
