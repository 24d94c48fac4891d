"""What a proof says: its verdict, and the mutants that show that it would have noticed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.engine.foreign.architecture import Architecture
from meshwright.engine.foreign.running import has_partial
from meshwright.engine.model.init import shares_embedding
from meshwright.engine.proof.shrink import Case


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
    max_abs_error: float
    allowed: float
    """What the largest error is held against: `bound` in fp64, else what rounding explains of it."""
    worst_parameter: str
    ranks: int
    layout: str
    precision: str
    metric: str
    steps: int
    parameters: int
    mutants: tuple[Mutant, ...]
    shrunk: tuple[str, ...]
    not_covered: tuple[str, ...]
    courses: dict[str, float]
    """Largest error of each training run."""
    derivative_error: float
    """Of the reference's gradient against finite differences, relative."""
    computed_by: str = ""
    """Whose modules: the engine's own decoder, or transformers'."""
    cause: str = ""
    """What the judge of `prove` makes of a difference, in a sentence."""

    def plain(self) -> dict[str, Any]:
        """Data for `--json`."""
        caught = sum(mutant.caught for mutant in self.mutants)
        return {
            "passed": self.passed,
            "bound": self.bound,
            "max_abs_error": self.max_abs_error,
            "allowed": self.allowed,
            "worst_parameter": self.worst_parameter,
            "ranks": self.ranks,
            "mutants_caught": caught,
            "mutants_total": len(self.mutants),
            "metric": self.metric,
            "precision": self.precision,
            "computed_by": self.computed_by,
            "layout": self.layout,
            "steps": self.steps,
            "parameters": self.parameters,
            "error_by_run": self.courses,
            "derivative_error": self.derivative_error,
            "cause": self.cause,
            "mutants": [
                {
                    "axis": m.axis, "left_out": m.left_out, "error": m.error, "where": m.where,
                    "caught": m.caught,
                }
                for m in self.mutants
            ],
            "shrunk": list(self.shrunk),
            "not_covered": list(self.not_covered),
        }  # fmt: skip


def active_mutants(case: Case, foreign: Architecture | None = None) -> list[tuple[str, str]]:
    """The mutants that a layout has something to leave out for: (name, what is left out)."""
    layout, model = case.layout, case.model
    partial = layout.sequence_parallel or model.kv_heads < layout.tp or model.qk_norm != "none"
    if foreign is not None:
        partial = has_partial(foreign, model, layout.tp)
    replicas = layout.dp * layout.cp
    expert_ranks = replicas * layout.tp // layout.etp // layout.ep if model.experts else 1
    candidates = [
        ("dp", "the gradient reduction over dp · cp", replicas > 1),
        ("hsdp", "the all-reduce among shard groups", 1 < layout.shard_degree < replicas),
        ("tokens", "the count of valid tokens over all ranks", replicas > 1),
        ("tp", "tp's reduction of activation gradients", layout.tp > 1),
        ("sp", "the sum over tp of replicated parameters' gradients", layout.tp > 1 and partial),
        ("pp", "the gradient sent back to the first stage", layout.pp > 1),
        ("loss", "the sum over the vocabulary's parts in the loss", layout.tp > 1 and foreign is None),
        ("cp", "cp's reduction of key and value gradients", layout.cp > 1),
        ("ep", "the all-to-all of expert gradients", layout.ep > 1),
        ("edp", "the reduction of expert gradients", expert_ranks > 1),
        ("balance", "the sum of the experts' tokens over a sequence's ranks",
         model.experts is not None and foreign is None
         and layout.cp * (layout.tp if layout.etp == 1 else 1) > 1),
        ("tied", "the sum of the tied embedding's two gradients",
         shares_embedding(model) and layout.pp > 1),
        ("documents", "the confinement of attention to documents", case.documents),
        ("dropout", "the seed that ranks share for dropout", case.dropout > 0 and layout.world > 1),
    ]  # fmt: skip
    return [(name, left_out) for name, left_out, active in candidates if active]
