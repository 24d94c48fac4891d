"""What `meshwright prove` says of hand-written loops with and without bugs.

    python benchmarks/prove_bugs.py [--only WORD] [--markdown FILE]

Every case trains a reference on one process and a changed layout on two, for four steps, and compares
the verdict's cause with what was done. Ends with 1 if a case is judged wrongly.
"""

from __future__ import annotations

import argparse
import ast
import functools
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import prove_axes
import prove_loops
from meshwright.engine.ranks.processes import run_ranks
from meshwright.prove.verdict import Verdict, prove

WITHIN_ROUNDING = "within rounding"


@dataclass(frozen=True)
class Case:
    """A loop, what is wrong with it, and the cause that should be named (empty: equal)."""

    loop: str
    bug: str
    cause: str
    settings: dict[str, Any] = field(default_factory=dict)
    reference: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """In words."""
        extra = ", ".join(f"{k} {v}" for k, v in self.settings.items())
        return f"{self.loop}: {self.bug or 'right'}" + (f" ({extra})" if extra else "")


def _dp(bug: str, cause: str, **settings: Any) -> Case:
    return Case("data_parallel", bug, cause, settings, settings)


def _axis(loop: str, bug: str, cause: str, **settings: Any) -> Case:
    reference = {k: v for k, v in settings.items() if k in ("dtype", "optimizer", "clip")}
    if loop == "pipeline":
        reference["tied"] = True
    if loop == "context_parallel":
        reference["activations"] = False
    return Case(loop, bug, cause, settings, reference)


CASES = (
    _dp("", ""), _dp("", "", dtype="bfloat16"), _dp("", "", dtype="float64"), _dp("", "", uneven=True),
    _dp("", "", optimizer="sgd"), _dp("", "", experts=4), _dp("", "", tied=True), _dp("", "", clip=0.5),
    _dp("initial-weights", "different-initial-weights"), _dp("data", "different-data"),
    _dp("accumulation-not-averaged", "accumulation-scale"),
    _dp("accumulation-not-averaged", "accumulation-scale", clip=0.5),
    _dp("accumulation-not-averaged", "accumulation-scale", dtype="bfloat16"),
    _dp("mean-of-means", "mean-of-means", uneven=True),
    _dp("last-micro-batch-lost", "batch-lost"), _dp("only-last-micro-batch", "batch-lost"),
    _dp("not-reduced", "data-parallel-reduction-missing"),
    _dp("not-reduced", "data-parallel-reduction-missing", dtype="bfloat16"),
    _dp("summed-not-averaged", "data-parallel-scale"),
    _dp("router-not-reduced", "router", experts=4), _dp("router-detached", "router", experts=4),
    _dp("experts-scaled", "expert-scale", experts=4), _dp("bucket-twice", "partial-scale"),
    _dp("norm-counted-twice", "gradient-norm", clip=0.5), _dp("norm-counted-twice", "gradient-norm"),
    _dp("all-1.01", "gradient-scale"), _dp("all-1.01", "gradient-scale", dtype="bfloat16"),
    _dp("one-norm-1.02", "partial-scale"),
    _dp("one-norm-1.02", WITHIN_ROUNDING, dtype="bfloat16"),
    _dp("embedding-half", "tied-embedding", tied=True), _dp("head-frozen", "gradient-missing"),
    _dp("half-the-layers-doubled", "partial-scale"), _dp("norms-not-updated", "not-updated"),
    _dp("decay-on-norms", "weight-decay"), _dp("learning-rate", "learning-rate"),
    _dp("epsilon", "optimizer"), _dp("state-lost", "optimizer-state-lost"),
    _dp("loss-times-4", "loss-report"), _dp("loss-mean", "loss-report", uneven=True),
    _dp("", "dropout", dropout=0.1),
    _axis("tensor_parallel", "", ""), _axis("tensor_parallel", "", "", dtype="bfloat16"),
    _axis("tensor_parallel", "norms-not-reduced", "sequence-parallel-norms"),
    _axis("tensor_parallel", "norms-not-reduced", "sequence-parallel-norms", dtype="bfloat16"),
    _axis("tensor_parallel", "no-sum-in-backward", "backward"),
    _axis("tensor_parallel", "copies-counted", "gradient-norm"),
    _axis("tensor_parallel", "copies-counted", "gradient-norm", clip=0.5),
    _axis("tensor_parallel", "local-norm", "clipping-per-rank", clip=0.5),
    _axis("pipeline", "", ""), _axis("pipeline", "", "", dtype="bfloat16"),
    _axis("pipeline", "tied-not-summed", "tied-embedding"),
    _axis("pipeline", "stage-norm", "clipping-per-rank", clip=0.5),
    _axis("pipeline", "received-gradient-lost", "backward"),
    _axis("pipeline", "doubled-in-first-stage", "partial-scale"),
    _axis("context_parallel", "", ""), _axis("context_parallel", "positions", "positions"),
    _axis("context_parallel", "mask", "positions"),
    _axis("context_parallel", "averaged", "gradient-scale"),
    _axis("context_parallel", "no-sum-in-backward", "backward"),
)  # fmt: skip


def run_loop(loop: str, out: str, bug: str, settings: dict[str, Any]) -> None:
    """One rank of a loop, found by its name."""
    home = prove_loops if loop == "data_parallel" else prove_axes
    getattr(home, loop)(out, bug, **settings)


def judge(case: Case, root: Path, reference: Path) -> Verdict:
    """Train the case on two ranks and compare it with the reference's recording."""
    out = root / f"case{abs(hash(case.title))}"
    run_ranks(run_loop, 2, case.loop, str(out), case.bug, case.settings)
    return prove(reference, out)


def answer(verdict: Verdict) -> str:
    """The cause that a verdict names."""
    if verdict.equal:
        return ""
    return verdict.cause.name if verdict.cause else "unknown"


def right(case: Case, said: str) -> bool:
    """Whether the verdict is as it should be."""
    return said == ("" if case.cause == WITHIN_ROUNDING else case.cause)


def make_reference(root: Path) -> Any:
    """A function that trains a reference once for each setting."""

    @functools.cache
    def made(key: str) -> Path:
        settings = dict(ast.literal_eval(key))
        out = root / f"reference{abs(hash(key))}"
        run_ranks(run_loop, 1, "data_parallel", str(out), "", settings)
        return out

    return lambda case: made(repr(sorted(case.reference.items())))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory() as folder:
        reference = make_reference(Path(folder))
        for case in CASES:
            if options.only and options.only not in case.title:
                continue
            verdict = judge(case, Path(folder), reference(case))
            said = answer(verdict)
            good = right(case, said)
            wrong += not good
            rows.append((case, said, good, verdict))
            print(f"{'ok   ' if good else 'WRONG'} {case.title}: {said or 'equal'}", flush=True)
            if not good:
                print(f"        wanted {case.cause or 'equal'}; {verdict.sentence}")
                for line in verdict.evidence():
                    print(f"        {line}")
    print(f"{len(rows) - wrong} of {len(rows)} judged rightly")
    if options.markdown:
        lines = ["| loop | what was done | wanted | said |", "|---|---|---|---|"]
        for case, said, _, _ in rows:
            loop, done = case.title.split(": ", 1)
            lines.append(
                f"| {loop.replace('_', ' ')} | {done} | {case.cause or 'equal'} | {said or 'equal'} |"
            )
        options.markdown.write_text("\n".join(lines) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
