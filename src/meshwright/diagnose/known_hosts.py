"""What schedulers, containers and kernels say of a job, by their wording: SLURM, Kubernetes, Docker, Linux.

Wordings as they stand in public logs and issue threads; they were not all checked against the sources that print them.
"""

from __future__ import annotations

from meshwright.diagnose.known_entry import known

HOSTS = (
    known(
        r"Attempt to free invalid pointer|(?:free|realloc|malloc|calloc|munmap_chunk)\(\): (?:invalid|unaligned|corrupted|memory corruption|mismatching|smallbin)|double free or corruption|corrupted size vs|corrupted double-linked list|"
        r"(?:free|malloc|sysmalloc)\(\): .{0,40}(?:next size|top size|tcache|double free|Assertion)", "unknown",
        "The memory of a process was corrupted by a library: two allocators or C++ runtimes in one process, or extensions built for other versions",
        "no LD_PRELOAD of tcmalloc or jemalloc as a test; packages of one release and one channel (no mix of pip and conda builds of PyTorch, XLA, NumPy, protobuf, opencv); import the framework before "
        "others; python -X faulthandler names the call", "program", confidence=0.7, explains=r"aborting itself",
    ),
    known(
        r"(?:srun|sbatch|salloc): error: (?:Unable to (?:create step|allocate resources|confirm allocation)|Batch job submission failed)[^:]{0,60}: (?P<reason>.{3,120})",
        "wrong-configuration", "The scheduler did not give what was asked for ({reason})",
        "compare what the script asks for (nodes, tasks, GPUs, CPUs and memory to a task, account, partition, time) with sinfo and the "
        "job's own allocation (scontrol show job); a step may ask for no more than its job has", "scheduler", confidence=0.9,
    ),
    known(
        r"Munge (?:en|de)code failed|munged is up|has authentication error|Job credential expired|Invalid job credential", "wrong-configuration",
        "SLURM's daemons do not accept each other: munge does not run there, or clocks or keys differ",
        "munge running with the same key and clocks in step (chrony) on this host and the nodes; inside of a container its socket "
        "(/run/munge) mounted; or start without srun", "scheduler", confidence=0.85,
    ),
    known(
        r"slurmstepd: error: (?:execve\(\)|couldn't chdir|Unable to create TMPDIR|TaskProlog failed|--task-prolog failed|_become_user)", "wrong-configuration",
        "A task could not be started on its node: the program, folder or prolog is not there or fails",
        "the same paths on every node (a shared file system, the container's image), the module or environment loaded inside of the job's "
        "script", "start-up: launcher", confidence=0.85,
    ),
    known(
        r"srun: error: (?:Task launch for .{0,40} failed|task \d+ launch failed|eio_message_socket_accept|Timed out waiting for job step"
        r"|.{0,60}(?:Zero Bytes were transmitted|Communication connection failure|Socket timed out))", "unknown",
        "srun lost or did not reach a node's daemon (slurmd)",
        "see that node (sinfo -R, its slurmd log), names and clocks of all nodes; start again without it (--exclude)", "scheduler",
        confidence=0.6, shadow=True,
    ),
    known(
        r"srun: error: Node failure on (?P<name>[\w.\[\],-]{1,80})|DUE TO NODE FAILURE", "gpu-error", "A node failed while the job ran ({name})",
        "exclude it (--exclude) and restart from the last checkpoint; sinfo -R and its kernel log tell why; time-outs of other ranks are "
        "its shadow", "node", confidence=0.85, explains=r"connection between ranks broke|collective failed or timed out|did not join",
    ),
    known(
        r"[Ee]xceeded (?:job |step )?memory limit|low on resource: ?\[?(?:memory|MemoryPressure)|memory\.max|Memory cgroup out of memory", "out-of-memory",
        "The job's memory limit (or the node's memory) was exceeded, and it was ended for it",
        "ask for more memory, or fewer loader workers, no data set or checkpoint held in memory at once, checkpoints written in pieces",
        "host memory", confidence=0.85,
    ),
    known(
        r"low on resource: ?\[?(?:ephemeral-storage|DiskPressure|inodes)|exceeds the limit \"[\w.]+\"|local ephemeral storage", "wrong-configuration",
        "A pod was evicted: its local disk (or an emptyDir) is full",
        "checkpoints, caches and logs to a volume, a larger sizeLimit of the emptyDir (one at /dev/shm counts as memory), TMPDIR and HF_HOME off "
        "the container's own disk", "disk of the pod", confidence=0.9,
    ),
    known(
        r"FailedScheduling|\d Insufficient (?:nvidia\.com/gpu|amd\.com/gpu|cpu|memory)\b|UnexpectedAdmissionError|unhealthy devices", "wrong-configuration",
        "The cluster has no node that fits the pod",
        "compare its requests (GPUs, memory, node selector, taints) with kubectl describe node; a GPU that is not listed as healthy is to be "
        "seen to first", "scheduler", confidence=0.85,
    ),
    known(
        r"ImagePullBackOff|ErrImagePull|Failed to pull image|CreateContainerConfigError|RunContainerError", "wrong-configuration",
        "The container did not start: its image or configuration is not to be had",
        "the image's name and the registry's credentials, and secrets and config maps that the pod names", "start-up: container", confidence=0.9,
    ),
    known(
        r"CrashLoopBackOff|Back-off restarting failed container", "unknown", "A container ends again and again; why, this text does not tell",
        "kubectl logs --previous of that pod: the error stands there", "program", confidence=0.6, shadow=True,
    ),
    known(
        r"NodeNotReady|node\.kubernetes\.io/(?:not-ready|unreachable)|NodeLost", "gpu-error", "A node of the cluster stopped answering",
        "kubectl describe node and its kernel log; restart without it from the last checkpoint; time-outs of other ranks are its shadow", "node",
        confidence=0.7, explains=r"connection between ranks broke|collective failed or timed out|did not join",
    ),
    known(
        r"could not select device driver|nvidia-container-cli: |libnvidia-container|driver/library version mismatch|Failed to initialize NVML: Unknown Error",
        "wrong-configuration", "The container gets no GPU: driver, its libraries and the container toolkit do not go together on this host",
        "nvidia-smi on the host first (a reboot or reload after a driver update: “version mismatch”); install the NVIDIA container toolkit and start "
        "with --gpus all; “Unknown Error” in a running container: systemd reloaded its cgroups, start it again with the devices named", "start-up: container",
        confidence=0.85,
    ),
    known(
        r"INFO: task \S{1,60} blocked for more than \d+ seconds|nfs: server \S+ not responding|Lustre: .{0,120}(?:was lost|Connection restored|timed out)"
        r"|LustreError|gpfs\b.{0,60}(?:unmount|expel)|ceph: .{0,60}(?:hung|caps stale)", "wrong-configuration",
        "A file system does not answer: processes hang in reading or writing it",
        "see its servers and this node's network; data on local disks, checkpoints written asynchronously; ranks that wait for a collective meanwhile "
        "are its shadow", "file system", confidence=0.7, explains=r"connection between ranks broke|collective failed or timed out",
    ),
    known(
        r"EXT4-fs error|XFS \(\S+\): .{0,60}(?:shutdown|error)|Remounting filesystem read-only|(?:nvme|blk_update_request|Buffer I/O).{0,40}(?:I/O error|timeout|reset)"
        r"|\[Errno 5\] Input/output error", "wrong-configuration", "A disk or its file system failed under the run",
        "look at dmesg and smartctl of that host; write elsewhere, resume from the last whole checkpoint", "file system", confidence=0.8,
    ),
    known(
        r"mlx\d_\w+ \S+(?: \S+)?: (?:.{0,40}Link down|.{0,40}Cable (?:error|unplugged)|.{0,60}health compromised|.{0,60}(?:High Temperature|fatal))"
        r"|\bib\d+: .{0,40}link (?:is )?down|NIC Link is Down", "slow-link", "A network adapter's link went down",
        "see cable, transceiver and switch port of that host (ibstat, mlxlink); restart without it; time-outs and retries elsewhere are its shadow",
        "network adapter", confidence=0.8, explains=r"lost its packets|retries ran out|connection between ranks broke|collective failed or timed out",
    ),
    known(
        r"soft lockup - CPU#\d+ stuck|rcu_sched self-detected stall|hard LOCKUP|Kernel panic", "gpu-error", "A host's kernel hung or stopped",
        "take the node out and read its kernel log to the end (driver, memory errors); restart without it", "node", confidence=0.7,
    ),
    known(
        r"\w+\[\d+\]: segfault at \S+ ip .{0,80}? in (?P<name>[\w.+-]{1,80})", "unknown", "A process died of a segmentation fault in {name}",
        "python -X faulthandler prints where; a library of another build (CUDA, NCCL, a data decoder) most often; time-outs of other ranks are its shadow",
        "program", confidence=0.7,
    ),
    known(
        r"command not found|: \d+: [\w./-]{1,60}: not found|exec format error|error: (?:argument \S+: |the following arguments are required|ambiguous option|unrecognized arguments)"
        r"|arguments are not used by the HfArgumentParser|No such option", "wrong-configuration", "The command line is refused: a program or an option that it does not know",
        "read the line: the option's spelling in this version of the launcher or script, its value, and that the program is on the PATH of every host",
        "start-up: command line", confidence=0.9,
    ),
)  # fmt: skip
