"""What Ray says when its workers, nodes, memory or disks fail: verl, OpenRLHF, Ray Train run on it.

Wordings from ray's `python/ray/exceptions.py`, `src/ray/raylet/node_manager.cc` and
`src/ray/common/file_system_monitor.cc`.
"""

from __future__ import annotations

from meshwright.diagnose.known_entry import known

_WAITERS = r"collective failed or timed out|connection between ranks broke|did not join|worker process of Ray"

RAY = (
    known(
        r"Memory on the node.{0,300} was (?P<size>[\d.]+ ?GB / [\d.]+ ?GB).{0,60}exceeds the memory usage threshold"
        r"|[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure|killed due to the node running low on memory"
        r"|ray\.exceptions\.OutOfMemoryError|may have exceeded K8s pod memory limits",
        "out-of-memory", "A worker process of Ray was ended because the node's memory ran short ({size})",
        "fewer workers a node, no weights, optimizer or data held twice on the host (offloading, a copy for rollouts), a smaller object store "
        "(--object-store-memory); the threshold is RAY_memory_usage_threshold (0.95), and page cache and /dev/shm may count into it", "host memory",
        confidence=0.9, explains=_WAITERS,
    ),
    known(
        r"file_system_monitor\.cc.{0,200}full|/tmp/ray\S* is over \d+% full|ray\.exceptions\.OutOfDiskError|Local disk is full", "wrong-configuration",
        "The disk below Ray's session folder is nearly full: objects cannot be spilled to it",
        "free that disk, or start Ray elsewhere (ray start --temp-dir, ray.init(_temp_dir=…)); old sessions in /tmp/ray may go", "disk of the host",
        confidence=0.85, repeats=True,
    ),
    known(
        r"ObjectStoreFullError|The local object store is full of objects", "wrong-configuration", "Ray's object store is full",
        "a larger one (--object-store-memory) with /dev/shm as large (--shm-size of the container), and fewer or smaller batches held as objects "
        "(ray memory lists them)", "host memory", confidence=0.9,
    ),
    known(
        r"resource request cannot be scheduled right now|No available node types can fulfill|(?:Actor|Task)UnschedulableError|is not schedulable"
        r"|(?:Total|Not enough) available GPUs? .{0,60}(?:less than|for)", "wrong-configuration", "Ray has no node with the GPUs or CPUs that the run asks for",
        "ray status on the head node: every host is to be listed with its GPUs (ray start --address=HEAD:PORT on each); the run's nodes and GPUs a node "
        "as many, workers of several roles placed on the same GPUs only where the framework shares them, and CPUs enough for one a worker", "start-up: scheduler",
        confidence=0.8,
    ),
    known(
        r"failed to get register_center_actor|_register_center in \[", "wrong-configuration", "The first worker of Ray did not come up in time: rank 0's actor is not to be found",
        "look for its own error in /tmp/ray/session_latest/logs of the node where it was placed; ray status: all nodes joined, with GPUs; a slow file system makes "
        "imports outlast the wait (trainer.ray_wait_register_center_timeout in verl)", "start-up: workers", confidence=0.75,
    ),
    known(
        r"Raylet is terminated|LocalRayletDiedError|NodeDiedError|The node .{0,80}(?:was marked dead|has been marked dead|terminated unexpectedly)"
        r"|All copies of [0-9a-f]{20,} have been lost due to node", "gpu-error", "A node of the Ray cluster died or stopped answering",
        "that node's raylet.out and kernel log (memory, disk, GPU, network); restart without it from the last checkpoint", "node", confidence=0.8, explains=_WAITERS,
    ),
    known(
        r"unexpectedly exits with a connection error code 2", "unknown",
        "A worker process of Ray ended without a word: killed (most often for the host's memory), ended by a signal of its own, or stopped with Ray",
        "its own log (/tmp/ray/session_latest/logs/worker-*-PID.err) and the node's kernel log at that time tell which: “Out of memory: Killed process”, a segmentation fault, "
        "or neither", "worker", confidence=0.6, shadow=True,
    ),
    known(
        r"The process receives a (?P<name>SIG[A-Z]{3,5})", "unknown", "A worker process of Ray was ended by {name} from outside",
        "what sends it: the driver's own end (workers are stopped with it, harmless after the last step), the scheduler's time limit, ray stop, or the memory monitor",
        "worker", confidence=0.6, shadow=True,
    ),
    known(
        r"A worker died or was killed while executing|WorkerCrashedError|(?:The|the) actor died unexpectedly before finishing|(?:Actor(?:Died|Unavailable)|RayActor)Error|The actor is dead because"
        r"|object's owner has exited|OwnerDiedError", "unknown", "A worker process of Ray ended before its task did; why, this line does not tell",
        "the first error in time among /tmp/ray/session_latest/logs/worker-*.err of all nodes, and that node's kernel log (memory)", "worker", confidence=0.55, shadow=True,
    ),
    known(
        r"RuntimeEnvSetupError|Failed to set ?up runtime environment", "wrong-configuration", "Ray could not set up the run's environment on a node",
        "the reason stands below that line: a package that does not install, a working_dir too large or not to be had; the same image on every node avoids it",
        "start-up: environment", confidence=0.9,
    ),
)  # fmt: skip
