"""Real frameworks on CPU processes: each proven equal to plain PyTorch on one, and with mistakes.

    python benchmarks/prove_frameworks.py [--only WORD] [--markdown FILE]

The reference is always plain PyTorch on one process; every framework trains the same small Llama on
two. Mistakes are ones that users make, or that the framework's own issue tracker tells of. Ends with 1
if a run is judged wrongly.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from meshwright.prove.verdict import prove

RUN = Path(__file__).with_name("prove_framework_run.py")


@dataclass(frozen=True)
class Case:
    """A framework, what is done wrong, the causes that are right, and where it comes from."""

    framework: str
    bug: str = ""
    causes: tuple[str, ...] = ("",)
    known: str = ""

    @property
    def reference_bug(self) -> str:
        """The reference gets the same data and settings, and treats them rightly."""
        return "uneven" if "uneven" in self.bug else "decay" if self.bug == "decay" else ""


MEANS = ("mean-of-means",)
CASES = (
    *(Case(f"torch-{w}") for w in ("ddp", "fsdp1", "fsdp2", "tp")),
    *(Case(f"accelerate-{w}") for w in ("ddp", "fsdp2")),
    Case("trainer"), Case("trainer", "right-if-uneven"),
    *(Case(f"deepspeed-zero{s}") for s in range(4)),
    *(Case(f"deepspeed-zero{s}-bf16") for s in (1, 2, 3)),
    Case("torch-ddp", "no-sync", ("data-parallel-reduction-missing",), "no_sync left on for the last micro-batch"),
    Case("torch-ddp", "scaled-by-world", ("data-parallel-scale",), "loss multiplied by the world size before DDP averages"),
    Case("torch-ddp", "uneven", MEANS, "DDP averages ranks of unequal tokens"),
    Case("torch-fsdp2", "scaled-by-world", ("data-parallel-scale",), "as above under FSDP2"),
    Case("torch-fsdp2", "uneven", MEANS, "as above under FSDP2"),
    Case("torch-fsdp1", "fsdp1-clip-by-torch", ("gradient-norm", "clipping-per-rank"), "torch.nn.utils.clip_grad_norm_ on FSDP1 shards"),
    Case("accelerate-ddp", "unscaled-accumulation", ("accumulation-scale", "loss-scale"), "accumulated micro-batches not averaged"),
    Case("accelerate-fsdp2", "unscaled-accumulation", ("accumulation-scale", "loss-scale"), "as above"),
    Case("accelerate-ddp", "uneven", MEANS, "accumulation normalised per micro-batch: transformers issue 34198"),
    Case("accelerate-ddp", "never-synchronised", ("data-parallel-reduction-missing",), "no_sync around every backward"),
    Case("accelerate-ddp", "late-dropout", ("dropout",), "attention dropout left on"),
    Case("accelerate-ddp", "not-clipped", ("gradient-scale", "gradient-norm"), "clipping forgotten in one of the runs"),
    Case("accelerate-ddp", "optimizer-of-other-model", ("not-updated",), "optimizer built on parameters that are not trained"),
    Case("trainer", "tokens-per-device-uneven", MEANS, "average_tokens_across_devices=False: transformers issue 34242"),
    Case("trainer", "decay", ("weight-decay",), "the Trainer leaves norms out of weight decay, AdamW(model.parameters()) does not"),
    *(Case(f"deepspeed-zero{s}", "divided-twice", ("accumulation-scale",), "loss divided by the accumulation that DeepSpeed divides by too") for s in (0, 1, 2, 3)),
    Case("deepspeed-zero2", "uneven", MEANS, "DeepSpeed averages micro-batches and ranks of unequal tokens"),
    Case("deepspeed-zero3", "uneven", MEANS, "as above"),
    Case("deepspeed-zero1", "summed-loss", ("gradient-scale", "loss-scale"), "a summed loss where the engine expects a mean"),
)  # fmt: skip


def train(framework: str, bug: str, ranks: int, out: Path) -> str:
    """Run one; returns the end of what it said where it failed."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(ranks), str(RUN), framework, bug,
    ]  # fmt: skip
    environment = os.environ | {"MESHWRIGHT_PROBE_OUT": str(out), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr[-2000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number, case in enumerate(CASES):
            if options.only not in f"{case.framework} {case.bug}":
                continue
            reference = root / f"reference-{case.reference_bug}"
            failed = (
                "" if reference.exists() else train("torch-ddp", case.reference_bug, 1, reference)
            )
            out = root / f"run{number}"
            failed = failed or train(case.framework, case.bug, 2, out)
            if failed:
                print(f"FAILED {case.framework} {case.bug}\n{failed}", flush=True)
                wrong += 1
                continue
            verdict = prove(reference, out)
            said = "" if verdict.equal else verdict.cause.name if verdict.cause else "unknown"
            good = said in case.causes
            wrong += not good
            rows.append((case, said))
            print(
                f"{'ok   ' if good else 'WRONG'} {case.framework} {case.bug}: {said or 'equal'}",
                flush=True,
            )
            if not good:
                print(f"        {verdict.sentence}")
                for line in verdict.evidence():
                    print(f"        {line}")
    print(f"{len(rows)} judged, {wrong} wrongly or failed")
    if options.markdown:
        lines = ["| framework, 2 processes | what was done wrong | said |", "|---|---|---|"]
        lines += [
            f"| {c.framework} | {c.known or 'nothing'} | {said or 'equal'} |" for c, said in rows
        ]
        options.markdown.write_text("\n".join(lines) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
