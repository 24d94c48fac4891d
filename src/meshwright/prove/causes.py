"""From the pattern of a difference to its likely cause.

Every rule looks at one `Comparison` that is not equal and says how sure it is, or nothing. Rules are
tried on every finding; the surest is named, the others are kept as alternatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from meshwright.prove.bounds import SAFETY, systematic
from meshwright.prove.compare import Difference
from meshwright.prove.judge import Comparison, losses, reported_norm
from meshwright.prove.kinds import kind_of, layer_of
from meshwright.prove.read import StepLine, as_number


@dataclass(frozen=True, slots=True)
class Cause:
    """A likely cause: `name` is one of `NAMES`, `confidence` between 0 and 1."""

    name: str
    confidence: float
    sentence: str
    remedy: str


NAMES = {
    "different-data": "the runs were fed different sequences",
    "different-initial-weights": "the runs start from different weights",
    "dropout": "dropout draws other numbers",
    "not-a-number": "gradients that are not finite",
    "data-parallel-reduction-missing": "gradients are not reduced over data parallel ranks",
    "reduction-missing": "copies of a tensor are not kept equal",
    "sequence-parallel-norms": "norms and biases miss their reduction over tensor parallel ranks",
    "tied-embedding": "the two uses of a tied embedding are not summed",
    "router": "the router's gradient is wrong",
    "expert-scale": "expert gradients carry another scale",
    "loss-scale": "loss and gradients carry a wrong factor",
    "accumulation-scale": "accumulated micro-batches are summed where they are averaged, or averaged twice",
    "data-parallel-scale": "gradients are summed over ranks where they are averaged, or averaged twice",
    "gradient-scale": "all gradients carry a wrong factor",
    "partial-scale": "some gradients carry a wrong factor",
    "gradient-norm": "the gradient norm, and clipping by it, is wrong",
    "clipping-per-rank": "each rank or stage clips by a norm of its own",
    "mean-of-means": "means over unequal numbers of tokens are averaged",
    "loss-report": "the loss is reported wrongly, training is right",
    "gradient-missing": "parameters get no gradient",
    "batch-lost": "part of the batch does not reach the gradient",
    "backward": "the backward pass goes wrong at a layer",
    "positions": "positions or masks are wrong under context parallelism",
    "forward": "the forward pass differs",
    "weight-decay": "weight decay reaches other parameters",
    "learning-rate": "the learning rate differs",
    "stale-parameters": "the forward pass uses weights that the update did not reach",
    "not-updated": "parameters are not updated",
    "optimizer-state-lost": "the optimizer's moments start anew",
    "optimizer": "the update rule differs",
}  # fmt: skip


class Evidence:
    """What the rules ask about the deciding step."""

    def __init__(self, result: Comparison) -> None:
        self.result, self.view = result, result.last
        self.first, self.second = result.first, result.second
        self.shapes = self.second.parameters
        self.exact = systematic(self.first, self.second)
        self.lines_a: list[StepLine] = list(self.first.lines(self.view.step))
        self.lines_b: list[StepLine] = list(self.second.lines(self.view.step))

    def has(self, what: str) -> bool:
        """Whether a kind of check failed."""
        return bool(self.view.broken(what))

    @cached_property
    def bad(self) -> list[str]:
        """Parameters whose gradient is wrong, by size or by factor."""
        found = [c.name for c in self.view.broken("gradient")]
        return found + [
            c.name for c in self.view.broken("factor") if c.name and c.name not in found
        ]

    @cached_property
    def judged(self) -> list[str]:
        """Parameters whose gradient could be wrong: all that were held against a bound."""
        return [c.name for c in self.view.checks if c.what == "gradient"]

    def kinds(self, names: list[str]) -> set[str]:
        """The kinds of some parameters."""
        return {kind_of(name, self.shapes[name]) for name in names}

    @cached_property
    def differences(self) -> list[Difference]:
        """The wrong gradients."""
        return [self.view.gradients[name] for name in self.bad]

    @cached_property
    def common_factor(self) -> float | None:
        """The factor on all wrong gradients, where it is one and nothing else is wrong with them.

        An embedding that is tied has a second gradient, which may be right: it is left out of many.
        """
        found = self.differences
        inside = [d for d in found if layer_of(d.name) is not None]
        return one_factor(inside if len(inside) > 0.9 * len(found) else found, self.view.bound)

    @cached_property
    def shrunk(self) -> tuple[float, float]:
        """By how much clipping shrank the gradients of A and B: reported norm over the norm as used."""
        found = []
        for lines, norms in (
            (self.lines_a, [g.reference_norm for g in self.view.gradients.values()]),
            (self.lines_b, [g.norm for g in self.view.gradients.values()]),
        ):
            reported, used = reported_norm(lines), math.sqrt(sum(n * n for n in norms))
            found.append(reported / used if reported and used else 1.0)
        return found[0], found[1]

    @property
    def clipped(self) -> bool:
        """Whether both runs clipped in this step."""
        return min(self.shrunk) > 1 + 1e-3

    @property
    def before_clipping(self) -> float:
        """What turns a factor between clipped gradients into one between those before clipping."""
        ratio = self.shrunk[1] / self.shrunk[0]
        return ratio if math.isfinite(ratio) and abs(ratio - 1) > 1e-3 else 1.0

    @cached_property
    def loss_ratio(self) -> float | None:
        """Reported loss of B over A's, the pair that is closest."""
        pairs = [(a, b) for a in losses(self.lines_a) for b in losses(self.lines_b) if a]
        return min((b / a for a, b in pairs), key=lambda r: abs(r - 1)) if pairs else None

    @property
    def loss_agrees(self) -> bool:
        """Whether the losses agree, or are not known."""
        return not self.has("loss")

    @cached_property
    def micro_batches(self) -> tuple[int, int]:
        """Forward calls a step on the busiest rank of each run."""
        calls = [
            max((x.forward_calls for x in ls), default=1) for ls in (self.lines_a, self.lines_b)
        ]
        return max(1, calls[0]), max(1, calls[1])

    @cached_property
    def unequal_tokens(self) -> bool:
        """Whether ranks of B counted unequal numbers of tokens."""
        counts = {as_number(line.tokens) for line in self.lines_b} - {None}
        return len(counts) > 1


def one_factor(found: list[Difference], bound: float) -> float | None:
    """A factor that explains several differences: they agree on it and leave only rounding."""
    usable = [d for d in found if d.reference_norm > 0 and math.isfinite(d.ratio)]
    if not usable or len(usable) < len(found):
        return None
    factor = float(np.median([d.ratio for d in usable]))
    if abs(factor) < 1e-3:
        return None
    for d in usable:
        allowed = SAFETY * d.ratio_error + 2 * bound * max(1.0, abs(factor))
        if abs(d.ratio - factor) > allowed or d.residual > 3 * bound * max(1.0, abs(factor)):
            return None
    return factor


def explain(result: Comparison) -> list[Cause]:
    """Likely causes, surest first; empty where nothing is wrong."""
    if result.equal:
        return []
    evidence = Evidence(result)
    found = [cause for rule in RULES for cause in rule(evidence)]
    best: dict[str, Cause] = {}
    for cause in found:
        if cause.name not in best or best[cause.name].confidence < cause.confidence:
            best[cause.name] = cause
    return sorted(best.values(), key=lambda c: -c.confidence)


def _data(e: Evidence) -> Iterator[Cause]:
    if e.has("data"):
        share = e.view.broken("data")[0].error
        yield Cause(
            "different-data", 0.99,
            f"{100 * share:.0f} % of the sequences of step {e.view.step} were seen by one run only",
            "feed both runs the same global batch: same seed, sampler, shard order, drop_last",
        )  # fmt: skip


def _weights(e: Evidence) -> Iterator[Cause]:
    broken = e.view.broken("weights")
    if broken:
        yield Cause(
            "different-initial-weights", 0.99,
            f"{len(broken)} of {len(e.result.pairs)} parameters start with other values, "
            f"{broken[0].name} by {broken[0].error:.1e}",
            "load one checkpoint in both, or seed the initialisation independently of the layout",
        )  # fmt: skip


def _not_finite(e: Evidence) -> Iterator[Cause]:
    wrong = [
        n
        for n, g in e.view.gradients.items()
        if not math.isfinite(g.norm) and math.isfinite(g.reference_norm)
    ]
    if wrong and not _without_gradient(e):
        yield Cause("not-a-number", 0.95, f"{wrong[0]} has a gradient that is not finite", "look at the step's loss and loss scale")  # fmt: skip


def _without_gradient(e: Evidence) -> list[str]:
    found = []
    for name in e.bad:
        g = e.view.gradients[name]
        if g.reference_norm > 0 and (g.norm == 0 or math.isnan(g.norm)):
            found.append(name)
    return found


def _missing(e: Evidence) -> Iterator[Cause]:
    gone = _without_gradient(e)
    if not gone:
        return
    kinds = e.kinds(gone)
    sure = 0.93 if len(gone) == len(e.bad) else 0.8
    if kinds == {"router"}:
        yield Cause("router", 0.96, "the router gets no gradient: it is detached from the loss", "multiply expert outputs by the router's probabilities without detaching them")  # fmt: skip
    yield Cause(
        "gradient-missing", sure,
        f"{len(gone)} parameters get no gradient that had one, first {gone[0]}",
        "look for detach(), requires_grad, a stage that gets no gradient back, or a graph cut in two",
    )  # fmt: skip


def _copies(e: Evidence) -> Iterator[Cause]:
    apart = [c.name for c in e.view.broken("copies")]
    if not apart:
        return
    kinds = e.kinds(apart)
    ranks = e.view.copies[apart[0]].apart_ranks
    where = f"copies of {apart[0]} on ranks {ranks[0]} and {ranks[1]} are {e.view.broken('copies')[0].error:.1e} apart"
    tensor = max(e.second.layout(axis) for axis in ("tp", "sp", "tensor", "model"))
    few = len(apart) < 0.6 * len(e.result.pairs)
    if kinds <= {"norm", "bias"} and few:
        yield Cause("sequence-parallel-norms", 0.95, where, "sum the gradients of norms and row-parallel biases over the tensor parallel group")  # fmt: skip
    elif kinds <= {"router", "norm", "bias"} and few:
        yield Cause(
            "router", 0.9, where, "reduce the router's gradient over the ranks that share it"
        )
    elif kinds <= {"embedding", "head", "position"} and few:
        yield Cause("tied-embedding", 0.9, where, "sum the embedding's gradients over first and last stage")  # fmt: skip
    elif few:
        yield Cause("reduction-missing", 0.85, where, "reduce this gradient over every rank with a copy")  # fmt: skip
    else:
        sure = 0.95 if tensor == 1 else 0.85
        yield Cause("data-parallel-reduction-missing", sure, where, "reduce gradients over the data parallel group on the last micro-batch (no_sync left on? hooks not fired?)")  # fmt: skip


def _subset(e: Evidence) -> Iterator[Cause]:
    """Only parameters of one kind are wrong."""
    bad = e.bad
    if not bad or len(bad) > 0.7 * len(e.judged) or _without_gradient(e):
        return
    kinds, factor = e.kinds(bad), e.common_factor
    much = f" by the factor {factor:.4g}" if factor is not None else ""
    only = f"only {len(bad)} of {len(e.judged)} gradients are wrong{much}: {', '.join(bad[:3])}"
    tied = {name for group in (*e.first.header.tied, *e.second.header.tied) for name in group}
    if kinds <= {"norm", "bias"}:
        tensor = max(e.second.layout(axis) for axis in ("tp", "sp", "tensor", "model"))
        alone = len(bad) == 1
        yield Cause("sequence-parallel-norms", 0.6 if alone else 0.92 if tensor > 1 else 0.8, only, "sum the gradients of norms and row-parallel biases over the tensor parallel group")  # fmt: skip
        if alone or factor is not None:
            yield Cause("partial-scale", 0.75 if alone else 0.5, only, "look for what scales this gradient alone")  # fmt: skip
    elif kinds <= {"embedding", "head"}:
        sure = 0.93 if set(bad) & tied or e.second.layout("pp") > 1 else 0.75
        yield Cause("tied-embedding", sure, only, "sum the embedding's two gradients, also across pipeline stages")  # fmt: skip
    elif kinds <= {"router"}:
        yield Cause("router", 0.93, only, "reduce the router's gradient over all tokens; add the auxiliary loss once")  # fmt: skip
    elif kinds <= {"expert"}:
        yield Cause("expert-scale", 0.93, only, "divide expert gradients by the same number of tokens or ranks as the others: their group is smaller by ep")  # fmt: skip
    elif factor is not None:
        yield Cause("partial-scale", 0.85, only + _stage_words(e), "look for what these parameters share: a stage, a bucket, a group, a wrapper")  # fmt: skip
    elif _is_backward_break(e):
        yield _backward(e)
    else:
        yield Cause("partial-scale", 0.4, only + _stage_words(e), "look for what these parameters share")  # fmt: skip


def _stage_words(e: Evidence) -> str:
    layers = sorted({layer for name in e.bad if (layer := layer_of(name)) is not None})
    if layers and len(layers) > 1 and layers == list(range(layers[0], layers[-1] + 1)):
        return f" (layers {layers[0]} to {layers[-1]})"
    return f" (layer {layers[0]})" if len(layers) == 1 else ""


def _is_backward_break(e: Evidence) -> bool:
    """Everything before some layer is wrong, everything behind it right: the gradient broke there."""
    wrong = {layer for n in e.bad if (layer := layer_of(n)) is not None}
    right = [layer_of(n) for n in e.judged if n not in e.bad]
    behind = {layer for layer in right if layer is not None}
    return len(wrong) > 1 and bool(right) and (not behind or min(behind) >= max(wrong))


def _backward(e: Evidence) -> Cause:
    layers = [layer for n in e.bad if (layer := layer_of(n)) is not None]
    return Cause(
        "backward", 0.85,
        f"gradients are right behind layer {max(layers)} and wrong from there back to the input",
        f"look at the backward of layer {max(layers)}: a reduction of activation gradients, a mask, a "
        "stage's received gradient",
    )  # fmt: skip


def _factor_everywhere(e: Evidence) -> Iterator[Cause]:
    """All gradients carry one factor."""
    factor = e.common_factor
    if e.bad and (len(e.bad) < 0.7 * len(e.judged)):
        return
    if not e.bad and e.has("factor"):
        factor = e.view.factor
    if factor is None or abs(factor - 1) <= e.exact:
        return
    norm_a, norm_b = reported_norm(e.lines_a), reported_norm(e.lines_b)
    tolerance = max(0.01, 4 * e.view.bound)
    if (
        norm_a
        and norm_b
        and abs(factor * norm_b / norm_a - 1) < tolerance < abs(norm_b / norm_a - 1)
    ):
        # Clipped gradients carry the inverse of the norm that they were divided by.
        yield Cause("gradient-norm", 0.96, f"the reported gradient norm is {norm_b / norm_a:.4g} times the reference's and all clipped gradients {factor:.4g} times", "sum squares over every axis a parameter is sharded on, and over each element once")  # fmt: skip
        return
    yield from _scale_causes(e, factor * e.before_clipping, tolerance)


def _scale_causes(e: Evidence, factor: float, tolerance: float) -> Iterator[Cause]:
    """Where a factor on all gradients, before clipping, may come from."""
    loss = e.loss_ratio
    if loss is not None and abs(loss / factor - 1) < tolerance and abs(loss - 1) > tolerance:
        yield Cause("loss-scale", 0.95, f"loss and all gradients are {factor:.4g} times the reference's", f"divide the loss once: {_number_words(e, factor)}")  # fmt: skip
        return
    micro_a, micro_b = e.micro_batches
    candidates: list[tuple[str, float, float, str]] = []
    if micro_b > 1:
        candidates.append(("accumulation-scale", micro_b, 0.93, "micro-batches a step"))
    if micro_a > 1:
        candidates.append(
            ("accumulation-scale", micro_a, 0.8, "micro-batches a step of the reference")
        )
    if micro_a != micro_b:
        ratio = max(micro_a, micro_b) / min(micro_a, micro_b)
        candidates.append(("accumulation-scale", ratio, 0.75, "times the micro-batches a step"))
    data = _degree(e, "dp", "data", "dp_shard", "dp_replicate", "shard", "zero_dp") or (
        e.second.world if not e.second.header.layout.keys() - {"zero", "accumulation"} else 0
    )
    candidates += [("data-parallel-scale", data, 0.9, "data parallel ranks")] if data > 1 else []
    for axis, words in (("tp", "tensor parallel"), ("cp", "context parallel"), ("pp", "pipeline")):
        if (degree := e.second.layout(axis)) > 1:
            candidates.append(("gradient-scale", degree, 0.85, f"{words} ranks"))
    for name, number, sure, words in candidates:
        for value in (number, 1 / number):
            if abs(factor / value - 1) < tolerance:
                yield Cause(name, sure, f"all gradients are {factor:.4g} times the reference's, and there are {number:g} {words}", _scale_remedy(name))  # fmt: skip
    yield Cause("gradient-scale", 0.7, f"all gradients are {factor:.5g} times the reference's", f"look for a factor of {factor:.5g}: loss scale, a mean over something else, clipping")  # fmt: skip


def _scale_remedy(name: str) -> str:
    if name == "accumulation-scale":
        return (
            "divide each micro-batch's loss by the number of micro-batches (or by all tokens), once"
        )
    if name == "data-parallel-scale":
        return "average over data parallel ranks once: DDP and FSDP already do"
    return "look for a sum over this axis where each rank holds the whole gradient"


def _degree(e: Evidence, *axes: str) -> int:
    return math.prod(e.second.layout(axis) for axis in axes)


def _number_words(e: Evidence, factor: float) -> str:
    if e.micro_batches[1] > 1 and abs(factor / e.micro_batches[1] - 1) < 0.01:
        return f"{e.micro_batches[1]} micro-batches are summed where they are averaged"
    return f"something of {factor:.4g} is summed where it is averaged"


def _norm_only(e: Evidence) -> Iterator[Cause]:
    if not e.has("grad-norm") or e.has("gradient") or e.has("factor"):
        return
    norm_a, norm_b = reported_norm(e.lines_a), reported_norm(e.lines_b)
    if norm_a and norm_b and e.clipped:
        # Clipping made the gradients equal again; what it took off tells the factor.
        yield from _scale_causes(e, norm_b / norm_a, max(0.01, 4 * e.view.bound))
        return
    broken = e.view.broken("grad-norm")[0]
    yield Cause("gradient-norm", 0.95, f"gradients agree and the reported norm is off by {100 * broken.error:.3g} %", "sum squares over every axis a parameter is sharded on, and over each element once; clipping will act on it")  # fmt: skip


def _clip_groups(e: Evidence) -> Iterator[Cause]:
    """Every gradient has the right direction, and factors of a few kinds."""
    if len(e.bad) < 2 or e.common_factor is not None or _without_gradient(e):
        return
    bound = max(e.view.bound, 1e-9)
    if any(d.residual > 0.02 + 10 * bound for d in e.differences):
        # Shards of one tensor that are clipped apart leave a residual; then the norms tell.
        norm_a, norm_b = reported_norm(e.lines_a), reported_norm(e.lines_b)
        norms = {as_number(line.grad_norm) for line in e.lines_b} - {None}
        if len(norms) > 1 and norm_a is not None and norm_b is not None:
            yield Cause("clipping-per-rank", 0.9, f"ranks report {len(norms)} different gradient norms", "reduce the norm over all ranks before clipping")  # fmt: skip
        return
    ratios = sorted(d.ratio for d in e.differences)
    groups = 1 + sum(b - a > 0.01 * abs(a) for a, b in pairwise(ratios))
    if groups <= max(2, e.second.world):
        norms = {as_number(line.grad_norm) for line in e.lines_b} - {None}
        sure = 0.92 if len(norms) > 1 else 0.75
        yield Cause("clipping-per-rank", sure, f"gradients have the right direction and {groups} different factors, {ratios[0]:.3g} to {ratios[-1]:.3g}", "reduce the norm over all ranks and stages before clipping")  # fmt: skip


def _all_wrong(e: Evidence) -> Iterator[Cause]:
    """Most gradients point elsewhere."""
    if len(e.bad) < 0.5 * len(e.judged) or e.common_factor is not None or e.has("data"):
        return
    if _is_backward_break(e):
        yield _backward(e)
    first_step = e.view is e.result.views[0]
    dropout = max(e.first.header.dropout, e.second.header.dropout)
    if dropout:
        yield Cause("dropout", 0.8, f"dropout of {dropout:g} is on; other layouts draw other numbers", "switch dropout off for the proof, or seed it by position in the whole tensor")  # fmt: skip
    if not first_step and e.result.views[-2].updates:
        yield Cause("stale-parameters", 0.85, f"step {e.result.views[-2].step} was equal with its update, and step {e.view.step} computes with other weights", "copy the updated master weights to the ones that the forward pass reads, on every rank")  # fmt: skip
        return
    tokens = e.unequal_tokens or not e.loss_agrees
    if e.loss_agrees:
        yield from _right_loss_wrong_gradient(e)
    else:
        yield from _wrong_forward(e, tokens)


def _right_loss_wrong_gradient(e: Evidence) -> Iterator[Cause]:
    sizes = [d.error for d in e.differences if math.isfinite(d.error)]
    typical = float(np.median(sizes)) if sizes else math.inf
    split = max(e.micro_batches[1], e.second.world) > 1
    if e.unequal_tokens or (split and typical < 0.3 and len(e.bad) > 0.9 * len(e.judged)):
        yield Cause("mean-of-means", 0.85 if e.unequal_tokens else 0.6, f"all gradients are off by about {100 * typical:.2g} % in direction; ranks or micro-batches count unequal tokens", "sum losses over tokens and divide once by the global count")  # fmt: skip
    if split and typical >= 0.15:
        yield Cause("batch-lost", 0.7, f"all gradients are off by about {100 * typical:.2g} % and the loss agrees", "look for micro-batches that are overwritten, zeroed or not reduced before the update")  # fmt: skip
    yield Cause("backward", 0.45, "the loss agrees and gradients do not", "look at custom backward functions, recomputation and reductions of activation gradients")  # fmt: skip


def _wrong_forward(e: Evidence, tokens: bool) -> Iterator[Cause]:
    loss = e.loss_ratio or 1.0
    where = _first_activation(e)
    if e.second.layout("cp") > 1:
        yield Cause("positions", 0.85, f"the loss is {100 * (loss - 1):+.3g} % off under context parallelism{where}", "give every rank the positions of its own chunk, and the mask of the whole sequence")  # fmt: skip
    if e.unequal_tokens:
        yield Cause("mean-of-means", 0.8, "ranks count unequal tokens and loss and gradients are off", "sum losses over tokens and divide once by the global count")  # fmt: skip
    yield Cause("forward", 0.6, f"the loss is {100 * (loss - 1):+.3g} % off and so are all gradients{where}", "record activations=(…) at the layers' borders to see the first that differs")  # fmt: skip


def _first_activation(e: Evidence) -> str:
    mine, theirs = (_activations(lines) for lines in (e.lines_a, e.lines_b))
    for name, values in mine.items():
        if name in theirs:
            apart = float(np.linalg.norm(values - theirs[name])) / max(
                float(np.linalg.norm(values)), 1e-30
            )
            if apart > 10 * max(e.view.bound, e.exact):
                return f"; the first activation that differs is {name}'s, by {apart:.1e}"
    return ""


def _activations(lines: list[StepLine]) -> dict[str, np.ndarray]:
    """Means over all tokens of all ranks, per module, in forward order."""
    sums: dict[str, np.ndarray] = {}
    for line in lines:
        for name, values in line.activations.items():
            row = np.array([as_number(v) or 0.0 for v in values])
            sums[name] = sums.get(name, np.zeros(len(row))) + row
    return {name: row[1:] / max(row[0], 1.0) for name, row in sums.items()}


def _loss_only(e: Evidence) -> Iterator[Cause]:
    if not e.has("loss") or e.bad or e.has("factor") or e.has("update"):
        return
    ratio = e.loss_ratio or 1.0
    why = (
        "ranks count unequal tokens"
        if e.unequal_tokens
        else f"it is {ratio:.4g} times the reference's"
    )
    yield Cause("loss-report", 0.93, f"gradients and updates agree, the reported loss does not: {why}", "weight the ranks' losses by their tokens and reduce over every rank that holds some")  # fmt: skip


def _settings(e: Evidence) -> Iterator[Cause]:
    """What the optimizers' own settings say."""
    if not e.has("update"):
        return
    rates = [_values(lines, "lr") for lines in (e.lines_a, e.lines_b)]
    decays = [_values(lines, "weight_decay") for lines in (e.lines_a, e.lines_b)]
    if all(rates) and rates[0] != rates[1]:
        yield Cause("learning-rate", 0.95, f"the learning rates are {_few(rates[0])} and {_few(rates[1])}", "give both the same schedule, warm-up and scaling")  # fmt: skip
    elif all(decays) and decays[0] != decays[1]:
        yield Cause("weight-decay", 0.93, f"weight decay is {_few(decays[0])} and {_few(decays[1])}", "build the same parameter groups before and after wrapping")  # fmt: skip


def _values(lines: list[StepLine], key: str) -> set[float]:
    return {g[key] for line in lines for groups in line.groups for g in groups if key in g}


def _few(numbers: set[float]) -> str:
    return ", ".join(f"{x:g}" for x in sorted(numbers)[:4])


def _updates(e: Evidence) -> Iterator[Cause]:
    """Gradients agree, updates do not."""
    if not e.has("update") or e.bad or e.has("factor"):
        return
    broken = [c.name for c in e.view.broken("update")]
    still = [n for n in broken if e.view.updates[n].norm <= 1e-3 * e.view.updates[n].reference_norm]
    if still:
        yield Cause("not-updated", 0.93, f"{len(still)} parameters do not move, first {still[0]}", "check that the optimizer holds the parameters that are trained, after wrapping")  # fmt: skip
    decayed = [n for n in broken if _along_value(e, n)]
    if len(decayed) > 0.8 * len(broken):
        yield Cause("weight-decay", 0.94, f"the updates of {len(decayed)} parameters differ by a multiple of the parameters themselves, first {decayed[0]}", "give norms and biases the same weight decay in both")  # fmt: skip
    factor = one_factor([e.view.updates[n] for n in broken], max(0.02, 2 * e.view.bound))
    if factor is not None and len(broken) > 0.7 * len(e.view.updates):
        yield Cause("learning-rate", 0.85, f"all updates are {factor:.4g} times the reference's", "compare learning rate, schedule and warm-up")  # fmt: skip
    if _restarted(e):
        yield Cause("optimizer-state-lost", 0.9, "every element of the update has the size of the learning rate, as in a first step of Adam, and the reference's have not", "save and load the optimizer's state, its step count too")  # fmt: skip
    yield Cause("optimizer", 0.5, f"gradients agree and {len(broken)} updates do not, first {broken[0]}", "compare betas, epsilon, bias correction, moments and precision of the optimizer")  # fmt: skip


def _along_value(e: Evidence, name: str) -> bool:
    mine, other, value = e.view.update_pairs[name]
    apart = other.sketch - mine.sketch
    size = float(apart @ apart)
    along = float(apart @ value.sketch) ** 2 / (float(value.sketch @ value.sketch) or 1.0)
    return size > 0 and along > 0.9 * size


def _restarted(e: Evidence) -> bool:
    rates = _values(e.lines_b, "lr")
    if len(rates) != 1 or not (rate := next(iter(rates))):
        return False
    like = []
    for name, (mine, other, _) in e.view.update_pairs.items():
        count = math.prod(e.shapes[name])
        if count >= 16:
            like.append((mine.norm / math.sqrt(count) / rate, other.norm / math.sqrt(count) / rate))
    if not like:
        return False
    a, b = (float(np.median([pair[i] for pair in like])) for i in (0, 1))
    return 0.85 < b < 1.15 and a < 0.85


Rule = Callable[[Evidence], Iterator[Cause]]

RULES: tuple[Rule, ...] = (
    _weights, _data, _not_finite, _missing, _copies, _subset, _factor_everywhere, _norm_only,
    _clip_groups, _all_wrong, _loss_only, _settings, _updates,
)  # fmt: skip
