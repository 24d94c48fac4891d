"""Proof that a plan trains as one device would: parameter by parameter, step by step.

The oracle is one process, the whole batch at once, plain autograd and torch's own clipping: none
of the code that makes the plan parallel. In fp64 the two may differ only by summation order, so
the bound is 1e-10 where real mistakes are 1e-3 and more. Gradients are compared, not just losses:
Adam hides wrong scales, and a stage whose gradients are zero still lets the loss fall.

A mutant per active axis has one reduction left out; a check that passes a mutant proves nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from meshwright.engine.model.decoder import Decoder
from meshwright.engine.model.dropout import Dropout
from meshwright.engine.model.init import canonical, initial_value
from meshwright.engine.model.loss import IGNORED, summed_cross_entropy
from meshwright.engine.model.numerics import Numerics, default_numerics
from meshwright.engine.parallel.guards import check
from meshwright.engine.parallel.orders import read_csv
from meshwright.engine.parallel.parallelize import Precision
from meshwright.engine.parallel.program import Program
from meshwright.engine.proof.agreement import (
    Bounds,
    Trace,
    absolute_differences,
    derived_bounds,
    merged,
    relative_differences,
)
from meshwright.engine.proof.shrink import Case, shrink
from meshwright.engine.ranks.processes import run_ranks
from meshwright.specs.errors import SpecError
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model

PRECISIONS = {
    "fp64": Precision(master=torch.float64, compute=torch.float64, reduce=torch.float64),
    "fp32": Precision(),
    "bf16": Precision(compute=torch.bfloat16),
}
OPTIMIZERS = ("sgd", "adamw")


Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Tokens, targets and, for packed documents, where they start: `[global batch, S]` each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A run with one reduction left out."""

    axis: str
    left_out: str
    error: float
    where: str
    """The quantity whose difference is largest against its bound."""
    caught: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a proof. `max_abs_error` is relative in fp32 and bf16, as `metric` says."""

    passed: bool
    equal: bool
    """Whether the plan itself is; `passed` asks for the mutants too."""
    bound: float
    loss_bound: float
    """Of the loss and the gradient norm; in fp64 the same."""
    max_abs_error: float
    worst_parameter: str
    ranks: int
    layout: str
    precision: str
    metric: str
    steps: int
    parameters: int
    mutants: tuple[Mutant, ...]
    shrunk: tuple[str, ...]
    error_by_optimizer: dict[str, float]

    def plain(self) -> dict[str, Any]:
        """Data for `--json`."""
        caught = sum(mutant.caught for mutant in self.mutants)
        return {
            "passed": self.passed,
            "bound": self.bound,
            "max_abs_error": self.max_abs_error,
            "worst_parameter": self.worst_parameter,
            "ranks": self.ranks,
            "mutants_caught": caught,
            "mutants_total": len(self.mutants),
            "metric": self.metric,
            "precision": self.precision,
            "layout": self.layout,
            "steps": self.steps,
            "parameters": self.parameters,
            "loss_bound": self.loss_bound,
            "error_by_optimizer": self.error_by_optimizer,
            "mutants": [
                {
                    "axis": m.axis, "left_out": m.left_out, "error": m.error, "where": m.where,
                    "caught": m.caught,
                }
                for m in self.mutants
            ],
            "shrunk": list(self.shrunk),
        }  # fmt: skip


def verify(
    model: Model,
    layout: Layout,
    *,
    numerics: Numerics | None = None,
    precision: str = "fp64",
    steps: int = 3,
    mutants: bool = True,
    max_ranks: int = 16,
    seed: int = 0,
    csv: str = "",
    documents: bool = False,
    dropout: float = 0.0,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Verdict:
    """Compare a plan with one device over `steps` SGD-momentum and `steps` AdamW steps.

    With `documents` the sequences are packed from several, with attention inside each only; with
    `dropout` both sides drop numbers at that rate.

    Raises:
        SpecError: the combination is one that the engine refuses.
        RankError: a rank failed.
    """
    fixed = read_csv(csv).micro_batches if csv else 0
    # The plan itself must be one the engine runs, not only its small likeness.
    check(
        model, layout,
        global_batch=layout.dp * layout.micro_batch * (fixed or 2 * layout.pp),
        seq_len=2 * layout.cp * layout.tp, csv=csv,
    )  # fmt: skip
    case = replace(shrink(model, layout, max_ranks, fixed), documents=documents, dropout=dropout)
    if csv and case.layout.pp != layout.pp:
        raise SpecError("max_ranks", max_ranks, f"a schedule file needs all {layout.world} ranks")
    check(
        case.model, case.layout, global_batch=case.global_batch, seq_len=case.seq_len,
        csv=csv,
    )  # fmt: skip
    numbers = numerics or default_numerics(case.model)
    job = (case, numbers, steps, seed)
    on_progress("single-device oracle in fp64")
    exact = run_ranks(oracle, 1, *job, "fp64")[0]
    own = exact if precision == "fp64" else run_ranks(oracle, 1, *job, precision)[0]
    on_progress(f"{case.layout.world} ranks under {case.layout.label()}")
    ranks = run_ranks(planned, case.layout.world, *job, precision, OPTIMIZERS, "", csv)
    exactly = precision == "fp64"
    compare = absolute_differences if exactly else relative_differences
    bounds = Bounds()
    if not exactly:
        compute = PRECISIONS[precision].compute
        bounds = derived_bounds((compare(own[o], exact[o]) for o in OPTIMIZERS), compute)
    per_optimizer = {
        name: merged(compare(rank[name], exact[name]) for rank in ranks) for name in OPTIMIZERS
    }
    everything = merged(per_optimizer.values())
    error, worst = bounds.worst(everything)
    tried: list[Mutant] = []
    for axis, left_out in active_mutants(case) if mutants else ():
        if axis == "tokens" and not exactly:
            continue  # a mean of means is off by less than a router that rounding flips
        on_progress(f"mutant without {left_out}")
        short = (case, numbers, 1, seed)
        broken = run_ranks(planned, case.layout.world, *short, precision, ("sgd",), axis, csv)
        wrong = merged(compare(rank["sgd"], exact["sgd"]) for rank in broken)
        size, where = bounds.worst(wrong)
        caught = not bounds.hold(wrong)
        tried.append(Mutant(axis=axis, left_out=left_out, error=size, where=where, caught=caught))
    names = {name for rank in ranks for name in rank["sgd"].parameters}
    equal = names == set(exact["sgd"].parameters) and bounds.hold(everything)
    return Verdict(
        passed=equal and all(mutant.caught for mutant in tried), equal=equal,
        bound=bounds.tensors, loss_bound=bounds.scalars, max_abs_error=error, worst_parameter=worst, ranks=case.layout.world,
        layout=case.layout.label(), precision=precision,
        metric="absolute" if exactly else "relative to the tensor's norm",
        steps=steps, parameters=sum(p.numel() for p in exact["sgd"].parameters.values()),
        mutants=tuple(tried), shrunk=case.shrunk,
        error_by_optimizer={name: bounds.worst(t)[0] for name, t in per_optimizer.items()},
    )  # fmt: skip


def active_mutants(case: Case) -> list[tuple[str, str]]:
    """The mutants that a layout has something to leave out for: (name, what is left out)."""
    layout, model = case.layout, case.model
    partial = layout.sequence_parallel or model.kv_heads < layout.tp or model.qk_norm != "none"
    replicas = layout.dp * layout.cp
    expert_ranks = replicas * layout.tp // layout.ep if model.experts else 1
    candidates = [
        ("dp", "the gradient reduction over dp · cp", replicas > 1),
        ("hsdp", "the all-reduce among shard groups", 1 < layout.shard_degree < replicas),
        ("tokens", "the count of valid tokens over all ranks", replicas > 1),
        ("tp", "tp's reduction of activation gradients", layout.tp > 1),
        ("sp", "the sum over tp of replicated parameters' gradients", layout.tp > 1 and partial),
        ("pp", "the gradient sent back to the first stage", layout.pp > 1),
        ("loss", "the sum over the vocabulary's parts in the loss", layout.tp > 1),
        ("cp", "cp's reduction of key and value gradients", layout.cp > 1),
        ("ep", "the all-to-all of expert gradients", layout.ep > 1),
        ("edp", "the reduction of expert gradients", expert_ranks > 1),
        ("tied", "the sum of the tied embedding's two gradients",
         model.tied_embeddings and layout.pp > 1),
        ("documents", "the confinement of attention to documents", case.documents),
        ("dropout", "the seed that ranks share for dropout", case.dropout > 0 and layout.world > 1),
    ]  # fmt: skip
    return [(name, left_out) for name, left_out, active in candidates if active]


def test_value(name: str, shape: tuple[int, ...], model: Model, numerics: Numerics) -> Any:
    """Initial values for a proof: like the real ones, but no norm is one and no bias zero."""
    value = initial_value(name, shape, model, numerics, seed=0).double()
    if len(shape) > 1:
        return value * (0.1 / numerics.init_std)
    digest = hashlib.blake2b(canonical(name, model).encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    return value + 0.1 * torch.randn(shape, generator=generator, dtype=torch.float64)


def batches(case: Case, steps: int, seed: int) -> list[Batch]:
    """Random batches with some targets masked unevenly, so that a mean of means is wrong.

    Documents, where asked for, are of random length and break off anywhere.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (case.global_batch, case.seq_len + 1)
    out = []
    for _ in range(steps):
        tokens = torch.randint(0, case.model.vocab, shape, generator=generator)
        targets = tokens[:, 1:].clone()
        targets[torch.rand(targets.shape, generator=generator) < 0.2] = IGNORED
        targets[0, : case.seq_len // 2] = IGNORED
        starts = None
        if case.documents:
            begins = torch.rand(shape, generator=generator) < 3 / case.seq_len
            begins[:, 0] = True
            starts = (begins * torch.arange(shape[1])).cummax(1).values[:, :-1].contiguous()
            targets[begins[:, 1:]] = IGNORED
        out.append((tokens[:, :-1].contiguous(), targets, starts))
    return out


def make_optimizer(name: str, groups: Any) -> torch.optim.Optimizer:
    """SGD with momentum, whose steps scale with the gradient, or AdamW, whose do not."""
    if name == "sgd":
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    return torch.optim.AdamW(groups, lr=1e-3)


def _clip_of(optimizer: str) -> float:
    return 1.0 if optimizer == "adamw" else 0.0


def _decay_of(optimizer: str) -> float:
    return 0.01 if optimizer == "adamw" else 0.0


def oracle(
    case: Case, numerics: Numerics, steps: int, seed: int, precision: str
) -> dict[str, Trace]:
    """Train on one device; runs in a process of its own."""
    dtype = PRECISIONS[precision].compute
    traces = {}
    for name in OPTIMIZERS:
        decoder = Decoder(case.model, numerics).to(PRECISIONS[precision].master)
        decoder.dropout = Dropout(case.dropout)
        with torch.no_grad():
            for key, parameter in decoder.named_parameters():
                parameter.copy_(test_value(key, tuple(parameter.shape), case.model, numerics))
        matrices = [p for p in decoder.parameters() if p.dim() > 1]
        vectors = [p for p in decoder.parameters() if p.dim() == 1]
        optimizer = make_optimizer(
            name,
            [
                {"params": matrices, "weight_decay": _decay_of(name)},
                {"params": vectors, "weight_decay": 0.0},
            ],
        )
        traces[name] = _train_alone(decoder, optimizer, batches(case, steps, seed), dtype, name)
    return traces


def _train_alone(
    decoder: Decoder, optimizer: Any, data: Any, dtype: torch.dtype, name: str
) -> Trace:
    trace, axis = Trace(), decoder.axes.tp
    for number, (tokens, targets, starts) in enumerate(data):
        optimizer.zero_grad()
        casted = {key: p.to(dtype) for key, p in decoder.named_parameters()}
        assert decoder.dropout is not None
        decoder.dropout.step = number
        inputs = (tokens, starts, torch.arange(len(tokens)))
        logits = torch.func.functional_call(decoder, casted, inputs)
        loss = summed_cross_entropy(logits, targets, axis) / (targets != IGNORED).sum()
        loss.backward()
        limit = _clip_of(name) or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(decoder.parameters(), limit)
        trace.losses.append(float(loss.detach()))
        trace.norms.append(float(norm))
        trace.gradients.append(
            {key: p.grad.clone() for key, p in decoder.named_parameters() if p.grad is not None}
        )
        optimizer.step()
    trace.parameters = {key: p.detach().clone() for key, p in decoder.named_parameters()}
    return trace


def planned(
    case: Case,
    numerics: Numerics,
    steps: int,
    seed: int,
    precision: str,
    optimizers: tuple[str, ...],
    mutant: str,
    csv: str,
) -> dict[str, Trace]:
    """Train under the plan; every rank runs this and returns what its stages hold."""

    def values(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return test_value(name, shape, case.model, numerics)

    traces = {}
    for name in optimizers:
        program = Program(
            case.model, numerics, case.layout, global_batch=case.global_batch,
            seq_len=case.seq_len, precision=PRECISIONS[precision], values=values, csv=csv,
            dropout=case.dropout, mutant=mutant,
        )  # fmt: skip
        optimizer = make_optimizer(name, program.optimizer_groups(_decay_of(name)))
        trace = Trace()
        for number, (tokens, targets, starts) in enumerate(batches(case, steps, seed)):
            result = program.step(
                optimizer, tokens, targets, clip=_clip_of(name), starts=starts, number=number
            )
            trace.losses.append(result.loss)
            trace.norms.append(result.grad_norm)
            trace.gradients.append(program.gathered(gradients=True))
        trace.parameters = program.gathered()
        traces[name] = trace
    return traces
