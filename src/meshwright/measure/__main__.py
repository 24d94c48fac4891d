"""`torchrun … -m meshwright.measure -o mine.toml`: a cluster measured by all of its ranks.

One rank of a job whose processes someone else starts: torchrun, SLURM, MPI. Needs `RANK`, `WORLD_SIZE`,
`MASTER_ADDR` and `MASTER_PORT` in the environment. Rank 0 measures its host's modules and the engine's
own steps while the others wait, then all measure links together: groups inside a host, and groups of
one rank of each host.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import warnings
from typing import Any

from meshwright.engine.ranks.processes import leave
from meshwright.specs.errors import SpecError

HOST_SHARE = 0.5
"""Of the time wanted, for what one host does by itself."""


def main(arguments: list[str] | None = None) -> int:
    """Measure as one rank of an existing job; returns the exit code."""
    parser = argparse.ArgumentParser(prog="meshwright.measure", description=__doc__)
    parser.add_argument(
        "-o", "--output", required=True, help="write the cluster file here; - prints it"
    )
    parser.add_argument("--quick", action="store_true", help="30 seconds instead of two minutes")
    parser.add_argument("--seconds", type=float, default=0.0, help="deadline")
    parser.add_argument("--precision", action="append", default=[], choices=("fp32", "bf16"))
    parser.add_argument("--join-timeout", type=float, default=300.0)
    options = parser.parse_args(arguments)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        return _measure(options)
    except SpecError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:  # a peer is gone: gloo and NCCL say so at length
        rank = os.environ.get("RANK", "?")
        print(f"error: rank {rank}: {' '.join(str(error).split())[:200]}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:  # the ranks that this one started were ended on the way here
        asked = isinstance(stop, Ended)
        if os.environ.get("RANK", "0") == "0":
            why = "the launcher ended it, as it does when a rank is lost" if asked else "stopped"
            print(f"\nerror: rank 0: {why}; nothing was written", file=sys.stderr)
        return 143 if asked else 130
    finally:
        signal.signal(signal.SIGTERM, before)


class Ended(KeyboardInterrupt):
    """SIGTERM: what Ctrl-C does, with its own words."""


def _end(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the first one is being obeyed
    raise Ended


def _measure(options: Any) -> int:
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name not in os.environ]
    if missing:
        raise SpecError(
            "environment", missing, "start this with torchrun, or use `meshwright measure`"
        )
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    import torch.distributed as dist

    from meshwright.engine.ranks.rendezvous import join
    from meshwright.measure.gpus import gpu_facts
    from meshwright.measure.links import QUICK_SIZES, SIZES, Task, measure_ranks
    from meshwright.measure.local import Found, Wanted, measure
    from meshwright.measure.machine import machine_hash

    seconds = options.seconds or (30.0 if options.quick else 120.0)
    join(options.join_timeout, 2.0 * seconds + 300.0)
    began, first = time.perf_counter(), dist.get_rank() == 0
    world, per_host = dist.get_world_size(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    found, facts = Found(), {} if dist.get_backend() == "gloo" else gpu_facts()

    def tell(what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[2Kmeasuring {what}", end="", file=sys.stderr, flush=True)

    if dist.get_backend() == "gloo" and first:
        # Two ranks even where a host has one: what the engine does among ranks is its own work.
        wanted = Wanted(
            seconds=HOST_SHARE * seconds,
            ranks=2,
            quick=options.quick,
            precisions=tuple(dict.fromkeys(options.precision)) or ("fp32", "bf16"),
        )
        found = measure(wanted, lambda what, _share: tell(what), links=False)
    dist.barrier()
    task = Task(
        seconds=(1.0 - HOST_SHARE) * seconds,
        sizes=QUICK_SIZES if options.quick else SIZES,
        quick=options.quick,
        per_host=per_host if world > per_host else 0,
        machine=machine_hash() if world > per_host else 0,
    )
    links = measure_ranks(task, lambda message: tell(message["what"]))
    found.collectives, found.slowdown = links["rows"], links["slowdown"]
    found.disturbed = links["disturbed"]
    found.hosts = links["hosts"]
    found.process_bytes = max(found.process_bytes, links["process_bytes"])
    found.took_s = time.perf_counter() - began
    found.skipped += links["skipped"]
    if first:
        _write(found, facts, options.output, per_host)
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _write(found: Any, gpu: dict[str, Any], output: str, per_host: int) -> None:
    import torch.distributed as dist

    from meshwright.measure.assemble import assemble
    from meshwright.measure.gpus import gpu_cluster
    from meshwright.measure.machine import disk_bytes_s, memory_bytes, provenance

    found.disk = found.disk or disk_bytes_s()
    facts, memory = provenance() | gpu, memory_bytes() / found.hosts
    make, nodes = gpu_cluster if gpu else assemble, dist.get_world_size() // per_host
    cluster = make(found, facts, ranks=per_host, host_memory=memory, nodes=nodes)
    deliver(cluster, output)


def deliver(cluster: Any, output: str) -> None:
    """Write a cluster file, or print it (`-`): a pod's own files are gone when it ends."""
    import tomli_w

    from meshwright.specs.writing import write_atomically

    text = tomli_w.dumps(cluster.plain())
    if output == "-":
        print(f"\n{cluster.source}", file=sys.stderr, flush=True)
        print(text)
        return
    write_atomically(output, text)
    print(f"\n{cluster.source}\nwritten to {output}")


if __name__ == "__main__":
    leave(main())
