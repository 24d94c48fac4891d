"""Errors of start-up, devices, links and processes, known by their wording."""

from __future__ import annotations

from meshwright.diagnose.known_entry import known

START = (
    known(
        r"ss1\.ss_family == ss2\.ss_family", "wrong-configuration",
        "Hosts meet over addresses of two kinds, one IPv4 and one IPv6, and gloo connects neither to the other",
        "name the interface on every host (GLOO_SOCKET_IFNAME, and NCCL_SOCKET_IFNAME beside it), and let each host's name resolve to an "
        "address of one kind everywhere (/etc/hosts, no IPv6 there, or MASTER_ADDR as a number)", "start-up: addresses", confidence=0.85,
    ),
    known(
        r"Duplicate GPU detected ?: rank (?P<one>\d+) and rank (?P<two>\d+) both on CUDA device (?P<device>\w+)",
        "wrong-configuration", "Ranks {one} and {two} use the same GPU ({device})",
        "set the device from LOCAL_RANK before the process group is made (torch.cuda.set_device), and give each process "
        "of a node a GPU of its own (CUDA_VISIBLE_DEVICES, --gpus-per-task)", "start-up: devices", confidence=0.95,
    ),
    known(
        r"Address already in use|EADDRINUSE", "wrong-configuration",
        "The rendezvous port is taken: another run on this host uses it, or an earlier one did not end",
        "end what is left of the earlier run, or choose a free port (--master-port, --rdzv-endpoint host:0)",
        "start-up: rendezvous", confidence=0.9,
    ),
    known(
        r"(?:shm_open|shared memory|/dev/shm).{0,60}(?:Permission denied|Operation not permitted)", "wrong-configuration",
        "Shared memory may not be used: /dev/shm is not writable for this user",
        "chmod 1777 /dev/shm, or --ipc=host for the container; NCCL_SHM_DISABLE=1 goes round it", "shared memory", confidence=0.9,
        explains=r"/dev/shm is too small",
    ),
    known(
        r"Socket creation failed ?: ?Address family not supported", "wrong-configuration",
        "NCCL finds no network interface to start on",
        "give the container a network with an address (--network host), and name the interface (NCCL_SOCKET_IFNAME)",
        "start-up: network", confidence=0.8,
    ),
    known(
        r"out of shared memory|DataLoader worker .*Bus error|unable to (?:mmap|open shared memory|write to file <?/torch)"
        r"|No space left on device.*(?:/dev/shm|shm_open)|Error while creating shared memory segment"
        r"|(?:failed to extend|while creating|Call to posix_fallocate).{0,40}/dev/shm",
        "wrong-configuration", "/dev/shm is too small: loader workers or NCCL pass their data through it",
        "start the container with more of it (--shm-size=16g, or an emptyDir of medium Memory at /dev/shm), or use fewer "
        "workers", "shared memory", confidence=0.9,
    ),
    known(
        r"\[(?P<gpu>\d+)\] (?:\S+ )?NCCL WARN (?:Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA \w*alloc)"
        r"|NCCL WARN (?:Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA \w*alloc)|ncclUnhandledCudaError.*out of memory",
        "out-of-memory", "NCCL finds no GPU memory for its buffers: the caching allocator and the program hold it all "
        "(local device {gpu})", "leave it room: a smaller micro-batch, torch.cuda.set_per_process_memory_fraction(0.95), "
        "communicators made (one small collective each) before memory fills, or smaller buffers (NCCL_BUFFSIZE, "
        "NCCL_MAX_NCHANNELS); connections that close elsewhere are its shadow", "device memory: NCCL's buffers",
        confidence=0.85,
    ),
    known(
        r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<room>\d+)", "mismatched-collective",
        "A rank received {got} bytes where it expected {room}: ranks call the same collective with different sizes, or "
        "different collectives", "run with TORCH_DISTRIBUTED_DEBUG=DETAIL, which names both ranks and shapes; pad or drop "
        "the uneven last batch", "collective", confidence=0.85,
    ),
    known(
        r"loss scale already at minimum|Attempted loss scale: [01](?:\.0*)?, reducing|Minimum loss scale reached"
        r"|(?:reducing|setting) loss scale to:? 0(?:\.0*)?\s*$",
        "wrong-configuration",
        "fp16 overflows at every step and the loss scale has reached its floor: no step is taken, nothing is learnt",
        "train in bf16 (models trained in bf16, T5 above all, do not survive fp16's range); if the card has none, keep the "
        "overflowing layers in fp32, lower the learning rate, and check the data of the first skipped step",
        "loss scale", confidence=0.9, repeats=True,
    ),
    # DeepSpeed and Megatron-LM stop at 1 (min_loss_scale, --min-loss-scale), fairseq at 0.0001; apex and torch.amp have no floor.
    known(
        r"(?:reducing|setting) loss scale to:? (?:0?\.\d+|\d[\d.]*e-\d+)|Attempted loss scale: (?:0?\.\d+|\d[\d.]*e-\d+), reducing",
        "wrong-configuration",
        "fp16 overflows again and again: the loss scale has fallen below 1, where it no longer helps, and steps are skipped",
        "train in bf16 (models trained in bf16, T5 above all, do not survive fp16's range); if the card has none, keep the "
        "overflowing layers in fp32, lower the learning rate, and check the data of the first skipped step; a loss that is no number "
        "lets the scale fall for ever",
        "loss scale", confidence=0.85, repeats=True,
    ),
    known(
        r"system not yet initialized|CUDA error:? 802|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady"
        r"|nvls\.cc:\d+ NCCL WARN Cuda failure|Failed to bind NVLink SHARP", "wrong-configuration",
        "The NVSwitch fabric of this host is not ready: its fabric manager does not run, or not in the driver's version",
        "systemctl enable --now nvidia-fabricmanager, in the version of the driver, and restart it (or the host); "
        "NCCL_NVLS_ENABLE=0 goes round it where only the multicast fails", "start-up: NVSwitch", confidence=0.85,
    ),
    known(
        r"NCCL WARN Cuda failure (?:\d+ )?'(?P<call>[^']{1,80})'", "unknown",
        "A CUDA call inside NCCL failed ({call}), on a device that may be at fault or have been failed by the program before",
        "look for the first CUDA error of that process above this line, then for Xid lines (dmesg); NCCL and driver of one "
        "generation", "device calls of NCCL", confidence=0.5, shadow=True,
    ),
    known(
        r"environment variable (?P<name>RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK) expected, but not set",
        "wrong-configuration", "The process was not started by a launcher: {name} is not set",
        "start it with torchrun (accelerate launch, deepspeed, srun with the variables set), or set RANK, WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT for each process", "start-up: launcher", confidence=0.95,
    ),
    known(
        r"ncclUnhandledCudaError|NCCL error.{0,120}unhandled cuda error", "unknown",
        "A CUDA call inside NCCL failed; which and why, this text does not tell",
        "start once with NCCL_DEBUG=WARN: it names the call; most often a device used twice or full, a driver older than NCCL "
        "asks for, or two versions of NCCL in one environment (pip list, ldd)", "device calls of NCCL",
        confidence=0.55, shadow=True,
    ),
    known(
        r"ncclSystemError|NCCL (?:failure|error).{0,160}unhandled system error", "unknown",
        "A system call inside NCCL failed (a socket, shared memory, locking memory); which, this text does not tell",
        "start once with NCCL_DEBUG=WARN: it names the call; most often /dev/shm of the container is small (--ipc=host, "
        "--shm-size), the wrong network interface is chosen (NCCL_SOCKET_IFNAME), or another rank died first", "NCCL: system calls",
        confidence=0.55, shadow=True,
    ),
    known(
        r"nccl(?P<what>InvalidArgument|InvalidUsage|InternalError)|NCCL error.{0,160}(?P<words>invalid (?:argument|usage)|internal error)",
        "unknown", "NCCL was called in a way that it refuses ({what}{words}); which call, this text does not tell",
        "start once with NCCL_DEBUG=WARN. Most often a rank is not below the world size (more processes started than it says), a "
        "GPU is used by two ranks, or ranks differ in the device or size of a tensor", "NCCL: arguments", confidence=0.55,
        shadow=True,
    ),
    known(
        r"EI0002|HCCL.{0,80}notify wait time ?out", "missing-collective",
        "A device waited in a collective that another one did not come to (EI0002); the text does not tell which",
        "read the log of the rank whose plog has no such line first: it failed or is elsewhere; HCCL_EXEC_TIMEOUT only bridges "
        "slow saves", "collective", confidence=0.6, shadow=True,
    ),
    known(
        r"EE1002|error code is 507046|rtDeviceSynchronize execute failed, reason=\[stream sync timeout\]", "missing-collective",
        "An Ascend device did not end what its stream held within the time allowed (EE1002): mostly a collective that another "
        "device did not come to; the text does not tell which",
        "read the plogs of all ranks (~/ascend/log) for the one that failed first or is elsewhere; ACL_STREAM_TIMEOUT and "
        "HCCL_EXEC_TIMEOUT only bridge slow saves and long preprocessing", "collective", confidence=0.55, shadow=True,
    ),
    known(
        r"EI0006|HCCL.{0,80}socket.{0,20}time ?out", "wrong-configuration", "Devices did not reach each other at start-up (EI0006)",
        "the devices' network (hccn_tool), the same number of processes on all hosts, HCCL_CONNECT_TIMEOUT; a rank that failed "
        "earlier shows the same", "start-up: network", confidence=0.6, shadow=True,
    ),
    known(
        r"CU(?:BLAS|DNN)_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)", "out-of-memory",
        "A library could not make its handle: most often the card is full before the first product",
        "see nvidia-smi at that moment: other processes, or all ranks on one card; if there is room, an index out of range "
        "(run once with CUDA_LAUNCH_BLOCKING=1)", "start-up: libraries", confidence=0.5,
    ),
    known(
        r"invalid device ordinal", "wrong-configuration", "A process asks for a GPU that this host does not show it",
        "start as many processes a host as it has visible GPUs (--nproc-per-node, CUDA_VISIBLE_DEVICES), and number devices by "
        "LOCAL_RANK, not by RANK", "start-up: devices", confidence=0.95,
    ),
    known(
        r"No CUDA GPUs are available|Found no NVIDIA driver|Torch not compiled with CUDA enabled|CUDA unknown error"
        r"|no CUDA-capable device is detected|Failed to initialize NVML|couldn't communicate with the NVIDIA driver",
        "wrong-configuration", "The process sees no GPU",
        "see nvidia-smi inside the same container and job (--gpus all, --gres=gpu, CUDA_VISIBLE_DEVICES), the driver, and "
        "that the build of PyTorch is the one for CUDA", "start-up: devices", confidence=0.9,
    ),
    known(
        r"CUDA-capable device\(s\) is/are busy or unavailable|all CUDA-capable devices are busy", "wrong-configuration",
        "The GPU is taken: its mode lets one process in (exclusive), or a process that died still holds it",
        "end what nvidia-smi lists there, or set the compute mode to default (nvidia-smi -c 0)", "start-up: devices",
        confidence=0.85,
    ),
    known(
        r"peer access is not supported between these two devices|doesn'?t support faster communication (?:broadband|speedups)",
        "wrong-configuration", "These cards do not reach each other's memory directly",
        "NCCL_P2P_DISABLE=1 (and NCCL_IB_DISABLE=1 where there is no InfiniBand): transfers then pass through the host",
        "start-up: links", confidence=0.9,
    ),
    known(
        r"ibv_(?:reg_mr\w*|create_\w+|alloc_pd).{0,40}(?:Cannot allocate memory|error 12)", "wrong-configuration",
        "The adapter may not lock memory for its buffers", "ulimit -l unlimited for the job (limits.conf, "
        "--ulimit memlock=-1 of the container, LimitMEMLOCK of the service)", "network adapter", confidence=0.9,
    ),
    known(
        r"ibv_modify_qp failed.{0,40}(?:Invalid argument|No data available|Network is unreachable|Connection timed out|error 110)",
        "wrong-configuration", "Two adapters cannot make a connection: RoCE's address or the fabric is not set up for it",
        "NCCL_IB_GID_INDEX as show_gids lists it for RoCE v2 with an IP, adapters of one fabric only (NCCL_IB_HCA); "
        "NCCL_IB_DISABLE=1 shows whether it is that", "network adapter", confidence=0.8,
    ),
    known(
        r"NET/IB ?: ?(?:\S+ )?Got async (?:fatal )?event ?: ?(?:port error|client reregistration|lid change|device fatal)|link flap",
        "slow-link", "A network adapter reports that its link went down (port error)",
        "see which host says so: cable, transceiver, switch port (ibqueryerrors, the switch's counters); restart from the "
        "last checkpoint without that host; time-outs and retries elsewhere are its shadow", "network adapter",
        confidence=0.8, explains=r"lost its packets|retries ran out|connection between ranks broke",
    ),
    known(
        r"NET/IB ?: ?Got completion from peer (?P<peer>\S+) with (?:status|error)[= ](?:\w+\()?12.*?(?:hca (?P<hca>\S+)|$)", "slow-link",
        "The link to {peer} (adapter {hca}) lost its packets until the retries ran out",
        "test that adapter and its peer (ib_write_bw both ways, cable, switch port, RoCE's lossless class); see first "
        "whether the peer's process had died. NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT only bridge short interruptions",
        "network adapter", confidence=0.65,
    ),
    known(
        r"Got completion (?:from peer \S+ )?with (?:status|error)[= ](?:\w+\()?12|Transport retry count exceeded on (?P<hca>\S+)",
        "slow-link", "A network adapter's retries ran out: a link is broken or loses packets",
        "test the adapters pairwise (ib_write_bw), cable, switch port, RoCE's lossless class; see first whether the peer's "
        "process had died", "network adapter", confidence=0.6,
    ),
    known(
        r"Got completion from peer (?P<peer>\S+) with (?:status|error)[= ](?:\w+\()?4\b", "wrong-configuration",
        "The adapter was refused the memory that it was to send from or to (local protection error, peer {peer})",
        "GPU memory is not registered for RDMA as this driver needs it: load nvidia_peermem (or use dma-buf), let the "
        "container lock memory (ulimit -l unlimited), see IOMMU and ACS; NCCL_NET_GDR_LEVEL=0 shows whether it is that",
        "network adapter", confidence=0.6,
    ),
    known(
        r"Signal 11 \(SIGSEGV\)|\*\*\* SIGSEGV|exitcode ?: -11|return code = -11\b|failed \(exitcode: -11\)|Segmentation fault", "unknown",
        "A process died of a segmentation fault: a library's fault, not one of speed, memory or collectives",
        "look at what that rank loaded last (a mixed CUDA or NCCL version, a data decoder): python -X faulthandler prints "
        "where; time-outs of other ranks are its shadow", "program", confidence=0.7,
    ),
    known(
        r"Signal 7 \((?:SIGBUS|Bus error)|exitcode ?: -7\b|return code = -7\b|\*\*\* SIGBUS|exit code:? 135\b", "wrong-configuration",
        "A process died of a bus error: shared memory or a mapped file ran out under it",
        "more /dev/shm (--shm-size), and see that mapped data files are whole and the disk not full", "shared memory",
        confidence=0.7,
    ),
    known(
        r"SignalException: Process \d+ got signal: 1\b|got signal: 1$|SIGHUP", "wrong-configuration",
        "The launcher was ended with its terminal (SIGHUP)",
        "start it detached from the login: a job of the scheduler, tmux, or setsid; nohup alone is not enough for torchrun",
        "launcher", confidence=0.9,
    ),
    known(
        r"SignalException: Process \d+ got signal: (?:15|2)\b|\*\*\* SIGTERM received by PID|DUE to SIGTERM|received SIGTERM from PID", "unknown",
        "The launcher was told to end from outside (SIGTERM): preemption, a time limit, or somebody",
        "ask the scheduler why (sacct, events of the pod); save on SIGTERM and resume", "launcher", confidence=0.7, shadow=True,
    ),
    known(
        r"ncclUnhandledCudaError.*(?:CUDA driver version is insufficient)|CUDA driver version is insufficient|"
        r"no kernel image is available|forward compatibility was attempted|undefined symbol: \w*(?:nccl|cu|c10|at)\w*",
        "wrong-configuration", "The installed build does not fit this driver or card, or libraries of several builds are mixed",
        "install the build for this card's architecture and a driver new enough for its CUDA version; one environment for "
        "all of it", "start-up: versions", confidence=0.85,
    ),
    known(
        r"NCCL version mismatch|mismatched NCCL|Mismatched versions detected", "wrong-configuration",
        "Ranks run different versions of NCCL or of the program", "use one image on all hosts", "start-up: versions",
    ),
    known(
        r"Bootstrap ?: no socket interface found|No interface found in the same subnet|couldn't find any IP address"
        r"|connecting to address .{0,80}with family \d+ is neither AF_INET",
        "wrong-configuration", "NCCL finds no network interface to start on",
        "name it (NCCL_SOCKET_IFNAME=eth0, GLOO_SOCKET_IFNAME) as `ip addr` lists it inside the container; one that is set and that "
        "a host does not have fails in the same way", "start-up: network", confidence=0.9,
    ),
    known(
        r"connect(?:FullMesh)? failed.{0,120}(?:127\.0\.\d|localhost)|resolve[sd] to .{0,4}(?:127\.|loopback)|ranks would never rendezvous|Gloo connectFullMesh failed", "wrong-configuration",
        "Ranks cannot reach each other: a host takes its own name for the loopback address, or gloo chose that interface",
        "GLOO_SOCKET_IFNAME to the interface that hosts share; see that the host's name does not stand for 127.0.0.1 in "
        "/etc/hosts", "start-up: network", confidence=0.8,
    ),
    known(
        r"Connect to (?P<peer>[\w.:\[\]%-]{3,80}?)(?:<\d+>)? (?:failed ?:|returned) (?P<why>No route to host|Connection refused|Network is unreachable"
        r"|Connection timed out|Software caused connection abort|Connection reset by peer)"
        r"|Call to connect .{0,40}(?:failed|returned)\W{1,3}(?P<reason>No route to host"
        r"|Connection refused|Network is unreachable|Connection timed out)|Net : Call to connect",
        "wrong-configuration", "Ranks cannot reach each other over the interface that was chosen ({peer}: {why}{reason})",
        "NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) to the interface that all hosts share, not a bridge of Docker or a link "
        "that is down; ports between hosts open in the firewall; if other hosts work, that node's network",
        "start-up: network", confidence=0.8, explains=r"connection between ranks broke|collective failed or timed out",
    ),
    known(
        r"RendezvousTimeoutError|The (?:client socket|IPv4 network addresses).*(?:failed to connect|timed out)"
        r"|connect\(\) to .* timed out|Timed out after \d+ seconds waiting for clients|RendezvousConnectionError"
        r"|Connection to the C10d store has failed", "wrong-configuration",
        "Not all hosts reached the rendezvous: start-up, not training",
        "see that MASTER_ADDR resolves on every host to the address the first one listens on, that the port is open, and "
        "that as many nodes start as --nnodes says", "start-up: rendezvous", confidence=0.8, shadow=True,
    ),
    known(
        r"store->get\('[^']{0,80}'\) got error|(?:Timeout waiting for key|wait timeout after \d+ ?ms, keys?):? ?.{0,120}|"
        r"\[\d+\] is setting up NCCL communicator and retrieving ncclUniqueId", "unknown",
        "A rank waited at the store for one that did not come: at a group's first collective",
        "read the log of the first rank of that group: it died, or is still loading (raise the time-out if it only needs "
        "longer), or never enters the group's collective", "store: first collective of a group", confidence=0.55, shadow=True,
    ),
    known(
        r"watchdog got stuck for \d+ seconds|no(?:t detected)? (?:watchdog )?heartbeat.{0,60}watchdog", "unknown",
        "A CUDA or NCCL call did not return on a rank: its watchdog stopped counting (heartbeat)",
        "py-spy dump --native of that rank's process while it hangs, and dmesg (Xid); where all ranks say so, look for the one whose collective "
        "is missing; TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC only bridges what is slow", "watchdog", confidence=0.55, shadow=True,
    ),
    known(
        r"communicator was aborted on rank (?P<one>\d{1,7})|dump signal due to a collective timeout|remote error detected from rank:? ?(?P<two>\d{1,7})",
        "unknown", "A rank's communicators were given up after an error or time-out of this or another rank; this line is its shadow",
        "find the first error by time over all ranks' logs; the flight-recorder dumps that were written name who is missing", "collective",
        confidence=0.5, shadow=True,
    ),
    known(
        r"sendBytes failed on .{0,120}(?:Broken pipe|Connection reset)|Failed to recv, got 0 bytes|failed to check dump signal",
        "unknown", "The store's host went away: the process of rank 0 (or the launcher) ended first",
        "read rank 0's log before this moment; this line is a shadow of it", "store", confidence=0.55, shadow=True,
    ),
)  # fmt: skip
