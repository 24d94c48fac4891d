"""Times of the engine's own modules on one rank: host time of a call, and time per unit of work.

Each module runs as it does in training, forward and backward, on inputs that take turns so that the
caches hold no more of them than in a real step. Times are the thread's processor time, which other
programs on the machine lengthen little; `sharing.py` measures what they take of the clock's time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from meshwright.engine.model.attention import attend, rotary_table, rotate
from meshwright.engine.model.collectives import Axis
from meshwright.engine.model.experts import Mixture
from meshwright.engine.model.kernels import silu_product
from meshwright.engine.model.layers import Axes, Norm
from meshwright.engine.model.loss import summed_cross_entropy
from meshwright.engine.model.masks import attention_masks
from meshwright.engine.model.numerics import Numerics
from meshwright.measure.fitting import seconds_per_unit
from meshwright.measure.sampling import Deadline, Sample, repeat
from meshwright.specs.measured import ModuleTimes
from meshwright.specs.model import Experts, Model

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TURNS_BYTES = 24 * 2**20
"""Inputs that take turns hold together about this much: more than a core's own caches."""

MOST_TURNS = 24

SLOW_PRODUCT = 5e7
"""Largest product measured in 16 bits, which processors without such units do at a tenth of the rate."""

Counts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """One module at one shape: what a call computes, from tensors that `make` gives, and its counts."""

    module: str
    forward: Counts
    backward: Counts
    make: Callable[[], tuple[torch.Tensor, ...]]
    compute: Callable[..., torch.Tensor]
    input_bytes: float


@dataclass(frozen=True, slots=True)
class Timed:
    """A case's measured times."""

    case: Case
    precision: str
    forward: Sample
    backward: Sample


def entry_s() -> float:
    """Processor time of entering autograd's engine for one operation: a step pays it once, not per call."""
    x = torch.ones(4, requires_grad=True)
    ones = torch.ones(4)

    def once(_index: int) -> tuple[float]:
        out = x.view_as(x)
        began = time.thread_time()
        torch.autograd.grad(out, [x], ones)
        return (time.thread_time() - began,)

    return repeat(once, 0.05, least=50, most=400)[0].median_s


def run(case: Case, precision: str, budget_s: float, entry: float = 0.0) -> Timed:
    """Time a case's forward and backward; of the latter the engine's `entry` is taken off."""
    turns = int(min(max(TURNS_BYTES // max(case.input_bytes, 1), 2), MOST_TURNS))
    inputs = [case.make() for _ in range(turns)]

    def once(index: int) -> tuple[float, ...]:
        given = inputs[index % turns]
        began = time.thread_time()
        out = case.compute(*given)
        middle = time.thread_time()
        gradient = torch.ones_like(out) if out.dim() else None
        wanted = [tensor for tensor in given if tensor.requires_grad]
        start = time.thread_time()
        torch.autograd.grad(out, wanted, gradient)
        return middle - began, max(time.thread_time() - start - entry, 1e-7)

    return Timed(case, precision, *repeat(once, budget_s))


def _tensor(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape) * scale).to(dtype).requires_grad_()


def linear(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> Case:
    """A product `[rows, inputs] · [inputs, outputs]` as the engine's Linear computes it."""

    def compute(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)

    counts = {
        "call": 1.0,
        "product": float(rows) * outputs * inputs,
        "output": float(rows) * outputs,
        "input": float(rows) * inputs,
        "weight": float(outputs) * inputs,
    }
    size = (rows * inputs + outputs * inputs) * dtype.itemsize
    return Case(
        "linear", counts, counts,
        lambda: (_tensor(1, rows, inputs, dtype=dtype),
                 _tensor(outputs, inputs, dtype=dtype, scale=inputs**-0.5)),
        compute, size,
    )  # fmt: skip


def norm(kind: str, rows: int, width: int, dtype: torch.dtype) -> Case:
    """The engine's norm over `[rows, width]`."""
    module = Norm(kind, width, kind == "layernorm", 1e-5).to(dtype)
    torch.nn.init.ones_(module.weight)
    if module.bias is not None:
        torch.nn.init.zeros_(module.bias)
    held = list(module.parameters())
    counts = {"call": 1.0, "element": float(rows) * width, "row": float(rows)}
    return Case(
        kind, counts, counts, lambda: (_tensor(1, rows, width, dtype=dtype), *held),
        lambda x, *_weights: module(x), rows * width * dtype.itemsize,
    )  # fmt: skip


def elementwise(name: str, rows: int, width: int, dtype: torch.dtype) -> Case:
    """A residual addition, or an activation of the FFN, over `[rows, width]`."""
    computed: dict[str, Callable[..., torch.Tensor]] = {
        "add": lambda x, y: x + y,
        "silu_product": silu_product,
        "gelu": lambda x: F.gelu(x, approximate="tanh"),
        "relu": F.relu,
        "silu": F.silu,
    }
    count = 2 if name in ("add", "silu_product") else 1
    counts = {"call": 1.0, "element": float(rows) * width}
    return Case(
        name, counts, counts,
        lambda: tuple(_tensor(1, rows, width, dtype=dtype) for _ in range(count)),
        computed[name], count * rows * width * dtype.itemsize,
    )  # fmt: skip


def rotation(sequences: int, heads: int, length: int, width: int, dtype: torch.dtype) -> Case:
    """Rotary positions of `[sequences, heads, length, width]`."""
    like = torch.empty(0, dtype=dtype)
    table = rotary_table(torch.arange(length), width, Numerics(), like)
    counts = {"call": 1.0, "element": float(sequences) * heads * length * width}

    def make() -> tuple[torch.Tensor, ...]:
        flat = torch.randn(sequences, length, heads, width).to(dtype)
        return (flat.transpose(1, 2).requires_grad_(),)

    return Case(
        "rotate", counts, counts, make, lambda x: rotate(x, table),
        counts["element"] * dtype.itemsize,
    )  # fmt: skip


def attention(
    sequences: int, heads: int, length: int, width: int, dtype: torch.dtype, *,
    kv_heads: int, kind: str = "attention",
) -> Case:  # fmt: skip
    """Causal attention; `attention_masked` with an explicit mask, as under context parallelism."""
    pairs = float(length) * length if kind == "attention_masked" else length * (length + 1) / 2.0
    counts = {
        "call": 1.0,
        "pair": sequences * heads * pairs * width,
        "score": sequences * heads * pairs,
        "row": float(sequences) * heads * length,
        "element": float(sequences) * heads * length * width,
    }

    def make() -> tuple[torch.Tensor, ...]:
        return tuple(
            torch.randn(sequences, length, count, width).to(dtype).transpose(1, 2).requires_grad_()
            for count in (heads, kv_heads, kv_heads)
        )

    masks = None
    if kind == "attention_masked":
        starts = torch.zeros(1, length, dtype=torch.int64)  # one document: hides only the future
        masks = attention_masks([0], torch.arange(length), Axis(name="cp"), starts, dtype)[0]
    return Case(
        kind, counts, counts, make,
        lambda q, k, v: attend(q, k, v, Axis(name="cp"), masks),
        3 * counts["element"] * dtype.itemsize,
    )  # fmt: skip


def embedding(tokens: int, vocab: int, width: int, dtype: torch.dtype) -> Case:
    """A table's lookup; its gradient is as large as the table."""
    rows = torch.randint(0, vocab, (1, tokens))
    forward = {"call": 1.0, "element": float(tokens) * width}
    backward = {**forward, "table": float(vocab) * width}
    return Case(
        "embedding", forward, backward, lambda: (_tensor(vocab, width, dtype=dtype),),
        lambda table: F.embedding(rows, table), vocab * width * dtype.itemsize,
    )  # fmt: skip


def loss(tokens: int, vocab: int, dtype: torch.dtype) -> Case:
    """The engine's cross-entropy over `[tokens, vocab]` logits."""
    target = torch.randint(0, vocab, (1, tokens))
    counts = {"call": 1.0, "logit": float(tokens) * vocab, "token": float(tokens)}
    axis = Axis(name="tp")
    return Case(
        "loss", counts, counts, lambda: (_tensor(1, tokens, vocab, dtype=dtype),),
        lambda logits: summed_cross_entropy(logits, target, axis), tokens * vocab * dtype.itemsize,
    )  # fmt: skip


def mixture(
    tokens: int, hidden: int, width: int, experts: int, top_k: int, dtype: torch.dtype
) -> Case:
    """A whole mixture of experts on one rank: routing, sorting, every expert's products."""
    model = Model(
        name="measured", layers=1, hidden=hidden, heads=1, kv_heads=1, head_dim=hidden, ffn=width,
        vocab=256, experts=Experts(experts=experts, top_k=top_k, ffn=width),
    )  # fmt: skip
    module = Mixture(model, Numerics(), Axes())
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    module.to(dtype)
    held = list(module.parameters())
    routed = float(tokens) * top_k
    counts = {
        "call": 1.0, "expert": float(experts), "product": routed * 3.0 * hidden * width,
        "element": routed * (hidden + width), "weight": 3.0 * experts * hidden * width,
        "token": float(tokens) * experts,
    }  # fmt: skip
    return Case(
        "mixture", counts, counts, lambda: (_tensor(1, tokens, hidden, dtype=dtype), *held),
        lambda x, *_weights: module(x), tokens * hidden * dtype.itemsize,
    )  # fmt: skip


def cases(precision: str, *, quick: bool) -> Iterator[Case]:
    """What is measured at a precision: tiny shapes for the host's time, larger ones for the rest."""
    dtype = TYPES[precision]
    shapes = [
        (8, 16, 16), (64, 64, 64), (512, 64, 64), (512, 256, 64), (512, 256, 256),
        (2048, 128, 128), (128, 512, 512), (1024, 512, 192), (512, 1024, 512),
    ]  # fmt: skip
    if not quick:
        shapes += [
            (256, 1024, 1024), (1024, 768, 768), (256, 4096, 512), (2048, 512, 512),
            (128, 768, 2048), (512, 64, 256), (4096, 64, 64),
        ]  # fmt: skip
    for shape in shapes:
        if precision == "fp32" or math.prod(shape) <= SLOW_PRODUCT:
            yield linear(*shape, dtype)
    rows = [(8, 16), (512, 64), (1024, 512)] + ([] if quick else [(2048, 128), (256, 2048)])
    for tokens, width in rows:
        for kind in ("rmsnorm", "layernorm"):
            yield norm(kind, tokens, width, dtype)
        for name in ("add", "silu_product", "gelu"):
            yield elementwise(name, tokens, width, dtype)
    heads = [(1, 2, 8, 8), (4, 4, 128, 16), (4, 8, 128, 64)]
    heads += [] if quick else [(2, 8, 256, 32), (1, 8, 512, 64)]
    for sequences, count, length, width in heads:
        yield rotation(sequences, count, length, width, dtype)
    masked = [*heads, (1, 8, 512, 32)] if quick else [*heads, (8, 4, 64, 16), (1, 4, 1024, 32)]
    for sequences, count, length, width in masked:
        for kind in ("attention", "attention_masked"):
            yield attention(sequences, count, length, width, dtype, kv_heads=count, kind=kind)
        yield attention(
            sequences, count, length, width, dtype, kv_heads=count // 2, kind="attention_grouped"
        )
    tables = [(8, 16, 16), (512, 256, 64), (1024, 4096, 256)]
    for tokens, vocab, width in tables:
        yield embedding(tokens, vocab, width, dtype)
        yield loss(tokens, vocab, dtype)
    if not quick:
        yield loss(256, 16384, dtype)
    for tokens, hidden, width, experts in (
        (16, 16, 16, 4), (16, 16, 16, 16), (512, 64, 96, 4), (512, 128, 256, 8),
    ):  # fmt: skip
        yield mixture(tokens, hidden, width, experts, 2, dtype)


def _with_two(timed: Sequence[Timed]) -> list[Timed]:
    """Timings of modules that were timed at two shapes or more."""
    names = [one.case.module for one in timed]
    return [one for one in timed if names.count(one.case.module) > 1]


def fit(timed: Sequence[Timed]) -> dict[str, ModuleTimes]:
    """Seconds per unit of each module."""
    found = {}
    for name in dict.fromkeys(one.case.module for one in timed):
        mine = [one for one in timed if one.case.module == name]
        forward, error = seconds_per_unit(
            [one.case.forward for one in mine], [one.forward.median_s for one in mine]
        )
        backward, back = seconds_per_unit(
            [one.case.backward for one in mine], [one.backward.median_s for one in mine]
        )
        spreads = sorted(one.forward.spread for one in mine)
        found[name] = ModuleTimes(
            forward=forward,
            backward=backward,
            spread=spreads[len(spreads) // 2],
            error=max(error, back),
        )
    return found


def _turns(every: Iterable[Case]) -> Iterator[tuple[int, Case]]:
    """Number each module's shapes: first ones first, so that a deadline leaves each with some."""
    seen: dict[str, int] = {}
    for case in every:
        seen[case.module] = seen.get(case.module, 0) + 1
        yield seen[case.module], case


def measure_modules(
    precisions: Sequence[str], deadline: Deadline, *, quick: bool,
    progress: Callable[[str, float], Any],
) -> tuple[dict[str, dict[str, ModuleTimes]], list[Timed], list[str]]:  # fmt: skip
    """Time every module at every precision until the deadline.

    Returns:
        Fitted times by precision and module, every timing, and what there was no time for.
    """
    ranked = [
        (turn, precision, case)
        for precision in precisions
        for turn, case in _turns(cases(precision, quick=quick))
    ]
    todo = [(precision, case) for _, precision, case in sorted(ranked, key=lambda one: one[0])]
    entry = entry_s()
    done: dict[str, list[Timed]] = {precision: [] for precision in precisions}
    skipped = []
    for index, (precision, case) in enumerate(todo):
        if deadline.over:
            skipped.append(f"{precision} {case.module}")
            continue
        progress(f"{precision} {case.module}", index / len(todo))
        done[precision].append(
            run(case, precision, min(deadline.share(len(todo) - index), 0.4), entry)
        )
    # A unit's seconds need shapes that differ; a module with one alone counts as not measured.
    fitted = {precision: fit(_with_two(timed)) for precision, timed in done.items() if timed}
    every = [one for timed in done.values() for one in timed]
    partly = {f"{precision} {name}" for precision, held in fitted.items() for name in held}
    told = [
        f"larger shapes of {name}" if name in partly else name for name in dict.fromkeys(skipped)
    ]
    return fitted, every, told
