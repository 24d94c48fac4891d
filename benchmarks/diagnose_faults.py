"""Faults injected into real gloo ranks, diagnosed from what they leave; gains against the fault removed.

Each run starts ranks of torch.distributed on this machine, with one fault or none, and leaves what
such a run leaves: profiler traces, flight-recorder dumps, a log. The diagnosis is asked for the
cause (and the ranks); where a gain is claimed, the same run without the fault says what it is.

    python benchmarks/diagnose_faults.py [--rounds 4] [--ranks 3]

Timings are as noisy as the machine; gains are compared on medians of steps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from meshwright.diagnose.examine import diagnose

STEPS = 8
WORK_S = 0.03
"""A rank's work in a step: a sleep, which other processes on the machine do not lengthen much."""
FAULTS = {
    "healthy": None, "slow-rank": "slow-rank", "input-bound": "input-bound", "leak": "leak",
    "frozen": "frozen-rank", "missing": ("missing-collective", "frozen-rank"),
    "shapes": "mismatched-collective", "full-disk": "wrong-configuration",
}  # fmt: skip
TRACED = ("healthy", "slow-rank", "input-bound")


def _step(
    fault: str, guilty: bool, step: int, kept: list[torch.Tensor], gradient: torch.Tensor
) -> None:
    if fault == "input-bound":
        with torch.profiler.record_function(
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        ):
            time.sleep(2 * WORK_S)
    time.sleep(WORK_S * (3 if fault == "slow-rank" and guilty else 1))
    if fault == "leak":
        kept.append(torch.ones(1 << 22))
    if fault == "missing" and guilty and step == STEPS - 2:
        return
    dist.all_reduce(
        torch.ones(gradient.numel() + (7 if fault == "shapes" and guilty and step == 4 else 0))
    )


def _worker(rank: int, world: int, fault: str, guilty: int, out: str, port: int) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
        "WORLD_SIZE": str(world), "TORCH_FR_BUFFER_SIZE": "2000",
    }  # fmt: skip
    if fault == "shapes":
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
        dist.set_debug_level_from_env()
    torch.set_num_threads(1)
    folder = Path(out)
    log = (folder / "log.txt").open("a") if rank == 0 or fault in ("shapes", "full-disk") else None
    wait = 4 if fault in ("frozen", "missing") else 60
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=wait))
    gradient, kept = torch.ones(1 << 12), list[torch.Tensor]()
    profiler = (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        if fault in TRACED
        else None
    )
    dist.barrier()
    if profiler is not None:
        profiler.start()
    try:
        for step in range(STEPS if fault != "leak" else 16):
            if fault == "frozen" and rank == guilty and step == 4:
                (folder / "pid").write_text(str(os.getpid()))
                _dump(folder, rank)
                os.kill(os.getpid(), signal.SIGSTOP)
            began = time.perf_counter()
            with torch.profiler.record_function(f"step {step + 1}"):
                _step(fault, rank == guilty, step, kept, gradient)
            took = time.perf_counter() - began
            if log is not None and rank == 0:
                memory = sum(t.numel() * 4 for t in kept) / 2**30 + 0.1
                log.write(
                    f"step: {step + 1} loss: 2.0 memory: {memory:.4f}GiB step_time: {took:.4f}s\n"
                )
                log.flush()
        if fault == "full-disk" and rank == guilty:
            with open("/dev/full", "wb", buffering=0) as full:
                full.write(b"checkpoint" * 1000)
    except Exception as error:
        if log is not None:
            log.write(f"[rank{rank}]: {type(error).__name__}: {' '.join(str(error).split())}\n")
            log.close()
    _dump(folder, rank) if fault in ("missing", "frozen") and not (
        folder / f"dump_{rank}"
    ).exists() else None
    if profiler is not None:
        profiler.stop()
        profiler.export_chrome_trace(str(folder / f"trace-{rank}.json"))
    os._exit(0)


def _dump(folder: Path, rank: int) -> None:
    from torch._C import _distributed_c10d as c10d

    (folder / f"dump_{rank}").write_bytes(c10d._dump_fr_trace())


def run(fault: str, world: int, guilty: int, out: Path, port: int) -> float:
    """Run once; return the median step in seconds."""
    out.mkdir(parents=True)
    context = mp.get_context("fork")
    workers = [
        context.Process(target=_worker, args=(rank, world, fault, guilty, str(out), port))
        for rank in range(world)
    ]
    for worker in workers:
        worker.start()
    deadline = time.time() + 120
    others = [w for rank, w in enumerate(workers) if fault != "frozen" or rank != guilty]
    for worker in others:
        worker.join(max(deadline - time.time(), 0.1))
    for worker in workers:
        if worker.is_alive():
            os.kill(worker.pid, signal.SIGKILL)  # ours, by its id
            worker.join()
    (out / "pid").unlink(missing_ok=True)
    lines = (out / "log.txt").read_text().splitlines() if (out / "log.txt").exists() else []
    times = [float(line.rpartition("step_time: ")[2][:-1]) for line in lines if "step_time" in line]
    return statistics.median(times[1:]) if len(times) > 1 else 0.0


def main() -> None:
    """Run all faults and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--json", default="")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="diagnose-faults-"))
    rows, port = [], 29700 + os.getpid() % 200
    for turn in range(given.rounds):
        calm = 0.0
        for fault, expected in FAULTS.items():
            guilty, port = turn % given.ranks, port + 1
            out = root / f"{turn}-{fault}"
            step = run(fault, given.ranks, guilty, out, port)
            calm = step if fault == "healthy" else calm
            try:
                found, _ = diagnose([str(out)])
            except Exception as error:
                print(turn, fault, "FAILED", error, flush=True)
                rows.append({"fault": fault, "right": False, "claimed": None, "measured": None})
                continue
            cause = found.causes[0] if found.causes else None
            kinds = expected if isinstance(expected, tuple) else (expected,)
            right = found.healthy if expected is None else cause is not None and cause.kind in kinds
            if right and fault in ("slow-rank", "frozen", "missing"):
                right = cause is not None and cause.ranks == (guilty,)
            claimed = cause.gain_fraction if cause is not None and fault in TRACED else None
            measured = (
                1 - calm / step if claimed is not None and step and fault != "healthy" else None
            )
            rows.append(
                {"fault": fault, "right": bool(right), "claimed": claimed, "measured": measured}
            )
            print(
                turn,
                fault,
                "right" if right else f"WRONG: {found.verdict}",
                claimed,
                measured,
                flush=True,
            )
    right = sum(row["right"] for row in rows)
    gains = [row for row in rows if row["claimed"] is not None and row["measured"]]
    off = [abs(row["claimed"] - row["measured"]) / row["measured"] for row in gains]
    print(f"cause right in {right} of {len(rows)} runs ({right / len(rows):.0%})")
    if off:
        close = sum(one <= 0.1 for one in off)
        print(
            f"gains: {close} of {len(off)} within 10 % of the measured one, median off by {statistics.median(off):.1%}"
        )
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=1))
    shutil.rmtree(root)
    sys.exit(right < 0.95 * len(rows))


if __name__ == "__main__":
    main()
