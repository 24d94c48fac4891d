"""What NCCL and RCCL warn of (lines with `NCCL WARN`), by what happened.

Listed from the warnings that NCCL's own source prints (github.com/NVIDIA/nccl and ROCm/rccl, `src/`), class
by class; the codes of completions are those of `enum ibv_wc_status` in rdma-core's `verbs.h`.
"""

from __future__ import annotations

import re

from meshwright.diagnose.known_entry import known

HARMLESS = re.compile(
    r"NCCL WARN.*(?:ignor(?:ed|ing)|fall(?:ing|s)? back|using point-to-point network instead|defaulting to|limiting (?:value )?to"
    r"|setting (?:it |\w+ )?to \d|cap it to|set (?:it|both) to|[Dd]isabling (?:CollNet|clique)|Skipping nvlink|not using it"
    r"|not dumping|Unsetting|non-fatal async event|GID table changed|unused for now|Nothing to destroy)"
)
"""What NCCL says of itself and goes on."""

NO_ADAPTER = re.compile(
    r"Failed to open libibverbs|NET/IB ?: ?No device found|Failed to initialize NET plugin IB"
)

_W = "NCCL WARN .{0,80}?"

NCCL = (
    known(
        r"mlx5: \S{1,80}: got completion with error", "slow-link", "A network adapter ended a transfer with an error (the numbers below it are its own report)",
        "which side ended or failed first, over all logs by time; then memory that may not be registered (nvidia_peermem or dma-buf, ulimit -l unlimited), the link of that host (ibqueryerrors, "
        "port counters) and its firmware", "network adapter", confidence=0.55, explains=r"connection between ranks broke",
    ),
    known(
        r"NCCL WARN Multiple Ranks are using the same GPU", "wrong-configuration", "Several ranks use the same GPU",
        "set the device from LOCAL_RANK before the process group is made (torch.cuda.set_device), and give each process "
        "of a node a GPU of its own (CUDA_VISIBLE_DEVICES, --gpus-per-task)", "start-up: devices", confidence=0.95,
    ),
    known(
        _W + r"(?:no (?:socket |usable listening )?interface found|no device found (?:matching|after excluding)|No IP interface found"
        r"|Invalid NCCL_COMM_ID|pair found$|getting address info|unsupported (?:IP|address) family)",
        "wrong-configuration", "NCCL finds no network interface to start on",
        "name one that every host has, as `ip addr` lists it inside the container (NCCL_SOCKET_IFNAME, NCCL_OOB_NET_IFNAME), "
        "or take a wrong name out of the environment; NCCL_COMM_ID is host:port", "start-up: network", confidence=0.85,
    ),
    known(
        _W + r"(?:wrong (?:magic|type) \S+ != |mismatch in (?:info|rank count) from procs|has already checked in|localId \d+ is out of range)",
        "wrong-configuration", "Processes that do not belong together met at NCCL's start: of two jobs, or of other sizes or "
        "orders of the same group", "end what is left of earlier runs on these hosts, a port of its own for each job, and the same "
        "world size, rank numbers and order of new_group calls on every rank", "start-up: bootstrap", confidence=0.75,
    ),
    known(
        r"NCCL WARN (?:NET/Socket : peer .{0,80})?message truncated", "mismatched-collective",
        "A rank received another size than it expected: ranks call the same collective with different sizes, or different collectives",
        "run with TORCH_DISTRIBUTED_DEBUG=DETAIL, which names both ranks and shapes; the same NCCL_* environment on every host; pad "
        "or drop the uneven last batch", "collective", confidence=0.75,
    ),
    known(
        _W + r"allocated on device (?P<have>\d+) mismatche?s with NCCL device (?P<want>\d+)", "wrong-configuration",
        "A tensor lies on device {have} while its communicator is of device {want}",
        "torch.cuda.set_device(LOCAL_RANK) before anything is made, tensors moved to that device, device_id of init_process_group "
        "the same", "devices", confidence=0.9,
    ),
    known(
        _W + r"(?:Invali[dg] config .{0,60}value -2147483648|Mismatched NCCL version|NCCL library is (?:too old|not backwards)|compiled with too old version of NCCL|[Dd]river version found is"
        r"|requires CUDA driver|PFN functions not found|incompatible version \d|not supported prior to CUDA|Retrieve \S+ (?:version \d+ )?failed)",
        "wrong-configuration", "NCCL, the driver and what the program was built with are of versions that do not go together",
        "one image on all hosts, one NCCL in it (pip list, ldd of the plugin), a driver new enough for it", "start-up: versions",
        confidence=0.85,
    ),
    known(
        _W + r"(?:is not a valid pointer|argument is NULL|corrupted comm object|invalid (?:root|type|reduction operation) \d|is a NCCL builtin"
        r"|[Ii]nvali[dg] (?:rank|device|device count) (?:requested|\d|\()|improper usage of ncclCommInitRank|Invali[dg] config|rank \d+ exceeds ndev"
        r"|not in a group call|Either none or all communicators|Streams given|Blocking and nonblocking|to self without a matching"
        r"|Attempt to use communicator before|already been destroyed|communicator was revoked|pass NULL socket|not initialized via NCCL_"
        r"|Data type supplied to user|symmetric registration check failed|registered with .{0,40}different)",
        "wrong-configuration", "The program calls NCCL in a way that it refuses",
        "the line names the argument: a rank below the world size, a device that exists, a root within the group, a tensor on the "
        "GPU; no use of a group after it was destroyed; captured and uncaptured calls not mixed", "NCCL: arguments", confidence=0.75,
    ),
    known(
        NO_ADAPTER.pattern, "wrong-configuration",
        "NCCL finds no InfiniBand or RoCE adapter and talks over TCP sockets: on one host that is harmless, between hosts it is slow",
        "if the hosts have such adapters: ibv_devinfo inside the container or pod must list them (libibverbs1 and its drivers "
        "installed, /dev/infiniband mounted, the RDMA resource asked for, memory lock unlimited), NCCL_IB_HCA must name them, "
        "NCCL_IB_DISABLE must be 0; then NCCL_DEBUG=INFO says NET/IB. On clouds with their own plugin (EFA, TCPX) install that",
        "start-up: network", confidence=0.55, shadow=True,
    ),
    known(
        _W + r"(?:MNNVL .{0,80}not working|IMEX)", "wrong-configuration",
        "NVLink between hosts is there and does not work: the IMEX channels or its service are not set up",
        "nvidia-imex on all hosts of the rack (nvidia-imex-ctl -N), /dev/nvidia-caps-imex-channels in the container; "
        "NCCL_MNNVL_ENABLE=0 goes round it", "start-up: NVLink between hosts", confidence=0.85,
    ),
    known(
        _W + r"(?:mixed local (?:Net|CollNet) device counts|different number of devices|incompatible devices|device is incompatible"
        r"|different link_layer|Fusing NET devices|Could not find (?:any local path|NIC|net id)|TOPO/NET|Can't make virtual NIC"
        r"|fused NIC|Trying to use non-existent virtual device|network \S+ not found|physical device \d+, max)",
        "wrong-configuration", "The hosts' network adapters do not match each other, or not what NCCL was told of them",
        "compare what each rank lists (NCCL_DEBUG=INFO, lines with NET/IB): the same adapters of one fabric on every host "
        "(NCCL_IB_HCA), all of them inside every container, no NCCL_TOPO_FILE of another machine; look for a port that is down",
        "network adapter", confidence=0.75,
    ),
    known(
        _W + r"(?:XML|Topology|Topo links|nodes of type|could not find DEV|could not find GPU|No path computed|real path|CPU close to"
        r"|libnvidia-ml|nvml\w+\(?\w*\)? failed|nvmlDevice|SMI (?:init )?failure|topo/nodes|busId|system node not found)",
        "wrong-configuration", "NCCL cannot read how this host is built (its devices and links)",
        "mount /sys and the driver's libraries into the container (libnvidia-ml.so.1), no NCCL_TOPO_FILE or NCCL_GRAPH_FILE of "
        "another machine; see that nvidia-smi topo -m works there", "start-up: topology", confidence=0.7,
    ),
    known(
        _W + r"(?:failed to (?:create shared memory|extend)|Could not map .{0,80} size|shared memory segment|ShmObject)", "wrong-configuration",
        "/dev/shm is too small or not usable: NCCL passes data through it",
        "start the container with more of it (--shm-size=16g, or an emptyDir of medium Memory at /dev/shm), or --ipc=host; "
        "NCCL_SHM_DISABLE=1 goes round it", "shared memory", confidence=0.8,
    ),
    known(
        _W + r"(?:Failed to CUDA host alloc|Failed to malloc|malloc\(size=\d+\) returned null|calloc\(\S+ entries\)|WARN Allocation failed"
        r"|Thread creation failed)", "out-of-memory", "The host had no memory (or no thread) left for NCCL",
        "see dmesg and the job's limits (memory, ulimit -l, ulimit -u); fewer loader workers, less pinned memory", "host memory",
        confidence=0.75,
    ),
    known(
        _W + r"(?:UDS: |(?:cuda|hip)Ipc\w+ failed|failed to peer with device|Legacy IPC|importFromShareable|cuMem(?:Export|Import)\w*)",
        "wrong-configuration", "Processes of one host cannot hand each other GPU memory",
        "the same container (or shared IPC and PID name spaces, --ipc=host --pid=host) and the same devices visible to all ranks of "
        "a host; NCCL_CUMEM_ENABLE=0, then NCCL_P2P_DISABLE=1 show whether it is that", "start-up: links", confidence=0.7, explains=r"CUDA call inside NCCL failed",
    ),
    known(
        _W + r"(?:GDRCOPY|gdr_\w+)", "wrong-configuration", "GDRCopy is switched on and does not work on this host",
        "load its kernel module (gdrdrv) in the version of the library, or NCCL_GDRCOPY_ENABLE=0", "start-up: GDRCopy", confidence=0.75,
    ),
    known(
        _W + r"(?:async fatal event|Fatal error\. Detected \d+ failed devices|Device \d+ marked as failed|encountered a fatal error|GIN Error)",
        "slow-link", "A network adapter reports a fault of its own or of its link",
        "see which host says so: cable, transceiver, switch port, the adapter's firmware (dmesg, ibstat); restart without that "
        "host; time-outs and retries elsewhere are its shadow", "network adapter", confidence=0.7,
    ),
    known(
        _W + r"Got completion .{0,120}?(?:status|error)[= ](?:\w+\()?5\b", "unknown",
        "A connection was torn down with work on it (flush error): the side that failed first is another one",
        "look for the first error by time over all hosts: another completion status, a process that died, a port that went down",
        "network adapter", confidence=0.5, shadow=True,
    ),
    known(
        _W + r"Got completion .{0,120}?(?:status|error)[= ](?:\w+\()?(?:1|9)\b", "mismatched-collective",
        "An adapter was sent more than the receiver had room for (length or invalid-request error): sizes differ between ranks",
        "run with TORCH_DISTRIBUTED_DEBUG=DETAIL, which names both ranks and shapes; the same NCCL_* environment and NCCL version "
        "on every host", "collective", confidence=0.55,
    ),
    known(
        _W + r"Got completion .{0,120}?(?:status|error)[= ](?:\w+\()?1[013]\b", "unknown",
        "The other side's adapter refused the access or was not ready: most often its process failed or freed its buffers",
        "read the log of the peer that the line names, from before this moment; if it is well, GPU memory is not registered for RDMA "
        "as the driver needs it (nvidia_peermem or dma-buf)", "network adapter", confidence=0.5, shadow=True,
    ),
    known(
        r"NCCL WARN (?:NUMA auto balancing enabled|Missing \"(?P<what>[\w=]{1,60})\")", "host-bound",
        "RCCL warns of a setting of the host that costs speed or stability ({what})",
        "sysctl kernel.numa_balancing=0, iommu=pt on the kernel's command line, HSA_FORCE_FINE_GRAIN_PCIE=1, as the line says",
        "host settings", confidence=0.5, shadow=True,
    ),
)  # fmt: skip

OTHER = (
    known(
        r"NCCL WARN (?!Cuda failure|Call to (?:connect|recv|send|ibv)|.{0,40}(?:\bconnect|\bsocket|NET/))(?P<what>[\[A-Za-z].{8,110})", "unknown",
        "NCCL reports: {what}", "this is NCCL's own check, which cause it has the line does not tell: read the first NCCL WARN of "
        "each rank (NCCL_DEBUG=INFO gives what led to it), the same NCCL and NCCL_* environment on every host", "NCCL",
        confidence=0.45, shadow=True,
    ),
)  # fmt: skip
