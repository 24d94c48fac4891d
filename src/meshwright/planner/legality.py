"""Which layouts a framework can run, and the sentence that says why not.

Each rule is one function over columns that returns the rows it forbids. The search applies all of
them; `why_illegal` asks them one by one about a single layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.costs.columns import Bools, LayoutColumns, from_layouts
from meshwright.costs.pipeline import CODE
from meshwright.specs.cluster import Cluster
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model


@dataclass(frozen=True)
class Question:
    """What legality depends on besides the layout."""

    model: Model
    cluster: Cluster
    job: Job


@dataclass(frozen=True)
class Rule:
    """One reason a layout cannot run; `forbids` marks the rows it excludes."""

    name: str
    sentence: str
    forbids: Callable[[Question, LayoutColumns], Bools]


ZERO_BUBBLE = ("zb-h1", "zb-h2", "zb-auto", "zb-v", "v-half", "v-min", "dualpipe-v", "dualpipe")

_CAN: dict[str, dict[str, object]] = {
    # What each framework's launcher accepts; sources in docs/planner.md.
    "any": {},
    "megatron": {"zero": (0, 1), "schedules": ("1f1b", "interleaved")},
    "nemo": {"zero": (0, 1), "schedules": ("1f1b", "interleaved")},
    "megatron-deepspeed": {
        "zero": (0, 1), "schedules": ("1f1b",), "cp": False, "virtual": False, "shard": False,
    },
    "nanotron": {
        "zero": (0, 1), "schedules": ("1f1b", "gpipe"), "cp": False, "virtual": False,
        "shard": False,
    },
    "deepspeed": {
        "zero": (0, 1, 2, 3), "schedules": ("1f1b",), "cp": False, "virtual": False,
        "zero_with_pipeline": (0, 1), "shard": False,
    },
    "torchtitan": {
        "zero": (2, 3),
        "schedules": ("1f1b", "interleaved", "gpipe", "zb-v", "dualpipe-v", "looped-bfs"),
    },
    "fsdp": {"zero": (0, 2, 3), "tp": False, "pp": False, "cp": False, "schedules": ("1f1b",)},
    "llm-foundry": {"zero": (0, 2, 3), "tp": False, "pp": False, "cp": False, "schedules": ("1f1b",)},
    "maxtext": {"zero": (3,), "pp": False, "schedules": ("1f1b",)},
    "meshwright": {
        "schedules": ("gpipe", "1f1b", "interleaved", "looped-bfs", "zb-v", "dualpipe-v"),
    },
}  # fmt: skip


def _framework(question: Question) -> dict[str, object]:
    return _CAN.get(question.job.framework, {})


def _not_in(values: object, column: np.ndarray) -> Bools:
    return ~np.isin(column, np.asarray(values))


def _micro_batches(question: Question, c: LayoutColumns) -> np.ndarray:
    return question.job.global_batch // np.maximum(c.dp * c.micro_batch, 1)


def _kv_heads(question: Question, c: LayoutColumns) -> Bools:
    if question.model.latent_attention:
        return np.zeros(c.rows, dtype=bool)
    kv = question.model.kv_heads
    return (c.tp <= kv) & (kv % c.tp != 0) | (c.tp > kv) & (c.tp % kv != 0)


def _virtual(question: Question, c: LayoutColumns) -> Bools:
    layers, chunks = question.model.layers, c.pp * c.virtual_stages
    uneven = (layers % chunks != 0) & ((layers + 2) % chunks != 0)
    return (c.virtual_stages > 1) & _is(c, ("interleaved",)) & uneven


def _framework_zero(question: Question, c: LayoutColumns) -> Bools:
    can = _framework(question)
    wrong = _not_in(can.get("zero", (0, 1, 2, 3)), c.zero)
    # With a single replica nothing is sharded, whatever the framework calls it.
    wrong &= c.dp * c.cp > 1
    if "zero_with_pipeline" in can:
        wrong |= (c.pp > 1) & _not_in(can["zero_with_pipeline"], c.zero)
    return wrong


def _framework_axis(axis: str) -> Callable[[Question, LayoutColumns], Bools]:
    def forbids(question: Question, c: LayoutColumns) -> Bools:
        if _framework(question).get(axis, True):
            return np.zeros(c.rows, dtype=bool)
        column = c.virtual_stages if axis == "virtual" else getattr(c, axis)
        return column > 1

    return forbids


def _framework_schedule(question: Question, c: LayoutColumns) -> Bools:
    names = _framework(question).get("schedules")
    if names is None:
        return np.zeros(c.rows, dtype=bool)
    return (c.pp > 1) & _not_in([CODE[name] for name in names], c.schedule)  # type: ignore[attr-defined]


def _is(c: LayoutColumns, names: tuple[str, ...]) -> Bools:
    return np.isin(c.schedule, [CODE[name] for name in names])


RULES: tuple[Rule, ...] = (
    Rule(
        "world size",
        "dp · tp · pp · cp must equal the number of devices",
        lambda q, c: c.dp * c.tp * c.pp * c.cp != q.cluster.gpus,
    ),
    Rule("heads", "attention heads must divide by tp", lambda q, c: q.model.heads % c.tp != 0),
    Rule("kv heads", "kv heads must divide by tp, or tp by kv heads (replicated)", _kv_heads),
    Rule("ffn width", "the FFN width must divide by tp", lambda q, c: q.model.ffn % c.tp != 0),
    Rule(
        "layers",
        "a pipeline needs at least one layer per virtual stage",
        lambda q, c: c.pp * c.virtual_stages > q.model.layers,
    ),
    Rule(
        "virtual stages",
        "interleaving needs layers (or layers + 2, counting embedding and head) divisible by "
        "pp · virtual stages",
        _virtual,
    ),
    Rule(
        "batch",
        "the global batch must divide by dp · micro-batch",
        lambda q, c: q.job.global_batch % (c.dp * c.micro_batch) != 0,
    ),
    Rule(
        "interleaved batch",
        # With m no multiple of pp, Megatron's only legal group is all m micro-batches: the memory
        # model then holds them all in flight.
        "interleaving needs at least pp micro-batches",
        lambda q, c: (c.pp > 1) & _is(c, ("interleaved",)) & (_micro_batches(q, c) < c.pp),
    ),
    Rule(
        "v-schedule batch",
        "DualPipeV and ZB-V need at least 2 · pp micro-batches",
        lambda q, c: (
            (c.pp > 1)
            & _is(c, ("zb-v", "dualpipe-v", "v-half", "v-min"))
            & (_micro_batches(q, c) < 2 * c.pp)
        ),
    ),
    Rule(
        "sequence",
        "the sequence must divide by 2 · cp (balanced halves of a causal mask)",
        lambda q, c: (c.cp > 1) & (q.job.seq_len % (2 * c.cp) != 0),
    ),
    Rule(
        "sequence parallel",
        "sequence parallelism needs tp > 1 and the local sequence divisible by tp",
        lambda q, c: (
            (c.sequence_parallel > 0) & ((c.tp == 1) | ((q.job.seq_len // c.cp) % c.tp != 0))
        ),
    ),
    Rule(
        "experts",
        "experts must divide by ep, and ep · etp must divide dp · cp · tp",
        lambda q, c: (
            (c.ep > 1)
            & (
                ((q.model.experts.experts if q.model.experts else 1) % c.ep != 0)
                | ((c.dp * c.cp * c.tp) % (c.ep * c.etp) != 0)
            )
        ),
    ),
    Rule(
        "shard degree",
        "the ZeRO shard degree must divide dp · cp",
        lambda q, c: (c.zero > 0) & (c.shard > 0) & ((c.dp * c.cp) % np.maximum(c.shard, 1) != 0),
    ),
    Rule(
        "zero-bubble with resharding",
        "a schedule that splits backward cannot run with ZeRO-3: weight gradients are lost",
        lambda q, c: (c.pp > 1) & _is(c, ZERO_BUBBLE) & (c.zero == 3),
    ),
    Rule("framework: ZeRO stage", "the framework cannot run this ZeRO stage", _framework_zero),
    Rule("framework: tp", "the framework has no tensor parallelism", _framework_axis("tp")),
    Rule("framework: pp", "the framework has no pipeline parallelism", _framework_axis("pp")),
    Rule("framework: cp", "the framework has no context parallelism", _framework_axis("cp")),
    Rule("framework: virtual", "the framework has no virtual stages", _framework_axis("virtual")),
    Rule(
        "framework: shard degree",
        "the framework shards over all data-parallel ranks or none",
        lambda q, c: (
            (c.zero > 0)
            & (c.shard > 0)
            & (c.shard < c.dp * c.cp)
            & (not _framework(q).get("shard", True))
        ),
    ),
    Rule("framework: schedule", "the framework cannot run this schedule", _framework_schedule),
)


def legal(question: Question, columns: LayoutColumns) -> tuple[Bools, dict[str, int]]:
    """Return the rows that can run, and how many each rule removed (the first rule that applies)."""
    alive = np.ones(columns.rows, dtype=bool)
    removed: dict[str, int] = {}
    for rule in RULES:
        hit = alive & rule.forbids(question, columns)
        count = int(hit.sum())
        if count:
            removed[rule.name] = count
            alive &= ~hit
    return alive, removed


def why_illegal(question: Question, layout: Layout) -> str | None:
    """Return the sentence of the first rule that a layout breaks, or None if it can run."""
    columns = from_layouts([layout])
    for rule in RULES:
        if bool(rule.forbids(question, columns)[0]):
            return rule.sentence
    return None
