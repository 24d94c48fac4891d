"""How long a large trace takes: diagnose against HTA and TraceLens on the same file in one run.

    python benchmarks/diagnose_speed.py [--megabytes 1000] [--trace FILE]
        [--python PYTHON] [--hta] [--tracelens CHECKOUT] [--results FILE]

Without --trace one is generated: a rank's training steps as Kineto writes them (host operations,
launches, kernels on two streams with collectives, flow events), of the size asked for. Each reader
runs in a process of its own, one after the other, on one core; time is of the whole process,
imports included, memory is the most that it had resident. --python is an interpreter in which HTA
(PyPI: HolisticTraceAnalysis) and what TraceLens imports are installed; CHECKOUT is a clone of
AMD-AGI/TraceLens. Each prints the share of computing kernels, so that one sees that they read the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GOAL_S, GOAL_BYTES = 60.0, 4e9
"""Of a trace of 1 GB, on one core."""
STEP_US = 100_000.0
KERNELS = 1200
"""Of a step."""

OURS = """
from meshwright.diagnose.examine import diagnose
found, _ = diagnose([FILE])
say(found.figures["compute_share"])
"""
HTA = """
from hta.trace_analysis import TraceAnalysis
table = TraceAnalysis(trace_files={0: FILE}).get_temporal_breakdown(visualize=False)
say(float(table["compute_time_pctg"][0]) / 100)
"""
TRACELENS = """
from TraceLens import TreePerfAnalyzer
table = TreePerfAnalyzer.from_file(FILE).get_df_gpu_timeline()
row = dict(zip(table["type"], table["percent"]))
say(float(row["computation_time"]) / 100)
"""
FRAME = """
import json, os, resource, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
FILE = sys.argv[1]
def say(share):
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {"share": share, "cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": used.ru_maxrss * 1024}
    print("RESULT " + json.dumps(told), flush=True)
"""


def events(step: int, first: int) -> Iterator[str]:
    """Yield one step's events as JSON: for each kernel an operation, a launch, the kernel and its flow."""
    base = step * STEP_US
    yield json.dumps({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 7,
                      "tid": 7, "ts": base, "dur": STEP_US - 10})  # fmt: skip
    each = STEP_US * 0.9 / KERNELS
    for at in range(KERNELS):
        link, start = first + at, base + at * each
        sums = at % 20 == 19
        shared = {"External id": link, "correlation": link}
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)" if sums else (
            f"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_{at % 37}>(Params)"
        )  # fmt: skip
        more = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Group size": 8,
                "Process Group Name": "0", "dtype": "BFloat16"} if sums else {}  # fmt: skip
        for one in (
            {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_" if sums else "aten::mm", "pid": 7,
             "tid": 7, "ts": start, "dur": each * 0.8,
             "args": {"External id": link, "Record function id": 0, "Sequence number": at, "Ev Idx": link,
                      "Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7,
             "ts": start + 1, "dur": 4, "args": {"cbid": 211, **shared}},
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 20 if sums else 7,
             "ts": start + 8, "dur": each * (1.5 if sums else 0.85),
             "args": {"queued": 0, "device": 0, "context": 1, "stream": 20 if sums else 7, **shared,
                      "registers per thread": 128, "shared memory": 49152, "blocks per SM": 2.0,
                      "grid": [32, 8, 1], "block": [256, 1, 1], "est. achieved occupancy %": 50, **more}},
            {"ph": "s", "id": link, "pid": 7, "tid": 7, "ts": start + 1, "cat": "ac2g", "name": "ac2g"},
            {"ph": "f", "id": link, "pid": 0, "tid": 20 if sums else 7, "ts": start + 8, "cat": "ac2g",
             "name": "ac2g", "bp": "e"},
        ):  # fmt: skip
            yield json.dumps(one)


def generate(path: Path, size_bytes: float) -> None:
    """Write a trace of about so many bytes."""
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU", "totalGlobalMem": 8 << 30}],
            "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8}}  # fmt: skip
    with path.open("w") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        step = 0
        while file.tell() < size_bytes:
            file.write(",\n" * bool(step) + ",\n".join(events(step, step * KERNELS)))
            step += 1
        file.write('\n], "traceName": "generated"}\n')


def measure(name: str, code: str, python: str, trace: Path, path: str = "") -> dict[str, Any]:
    """Run one reader; return its time, memory and answer, or why it has none."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if path:
        environment["PYTHONPATH"] = path
    began = time.perf_counter()
    done = subprocess.run(
        [python, "-c", FRAME + code, str(trace)], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    took = time.perf_counter() - began
    told = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not told:
        reason = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        return {"reader": name, "wall_s": took, "error": reason[:200]}
    return {"reader": name, "wall_s": took, **json.loads(told[-1].removeprefix("RESULT "))}


def main() -> None:
    """Measure all readers asked for and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=1000.0)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--hta", action="store_true")
    parser.add_argument("--tracelens", default="")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="diagnose-speed-") as folder:
        trace = given.trace
        if trace is None:
            trace = Path(folder) / "trace.json"
            generate(trace, given.megabytes * 1e6)
        size = trace.stat().st_size
        print(f"{trace.name}: {size / 1e6:,.0f} MB; load {os.getloadavg()[0]:.1f}", flush=True)
        readers = [("meshwright diagnose", OURS, sys.executable, "")]
        if given.hta:
            readers.append(("HTA", HTA, given.python, ""))
        if given.tracelens:
            readers.append(("TraceLens", TRACELENS, given.python, given.tracelens))
        rows = []
        for name, code, python, path in readers:
            row = measure(name, code, python, trace, path)
            rows.append(row | {"trace_bytes": size})
            said = row.get("error") or (
                f"{row['cpu_s']:.1f} s of CPU, {row['peak_bytes'] / 1e9:.2f} GB, "
                f"computing {row['share']:.1%}"
            )
            print(f"{name}: {row['wall_s']:.1f} s by the clock, {said}", flush=True)
    if given.results is not None:
        given.results.write_text(json.dumps(rows, indent=1) + "\n")
    ours = rows[0]
    if "error" in ours:
        sys.exit(1)
    scale = size / 1e9
    met = ours["wall_s"] <= GOAL_S * max(scale, 0.1) and ours["peak_bytes"] <= GOAL_BYTES
    others = [row for row in rows[1:] if "error" not in row]
    faster = all(ours["wall_s"] < row["wall_s"] for row in others)
    names = " and ".join(row["reader"] for row in others)
    compared = (
        f"{'faster' if faster else 'not faster'} than {names}"
        if others
        else "nobody to compare with"
    )
    print(f"goal {'met' if met else 'missed'}; {compared}")
    sys.exit(not (met and faster))


if __name__ == "__main__":
    main()
