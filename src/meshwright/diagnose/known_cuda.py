"""Errors of the CUDA and HIP runtimes, cuBLAS and cuDNN, by their fixed texts.

The texts are those that the runtime's `cudaGetErrorString` knows (CUDA 12; HIP has the same); what each
code means is from the runtime's documentation of `cudaError_t`. Faults of devices are in `gpu_faults.py`,
memory in `oom_messages.py`.
"""

from __future__ import annotations

from meshwright.diagnose.known_entry import known

_E = r"(?:(?:CUDA|HIP)(?: driver| runtime)? error(?: \([^()]{1,200}\))?:? (?:\d+ )?|\bError (?=[\w -]{4,80} at line \d+ in file ))"
"""How PyTorch, kernels' own checks and bitsandbytes begin such a line."""

CUDA = (
    known(
        _E + r"(?:invalid device function|device kernel image is invalid|the provided PTX|shared object (?:symbol not found|initialization failed)"
        r"|named symbol not found|unsupported interaction between different versions)|CUDNN_STATUS_(?:VERSION_MISMATCH|ARCH_MISMATCH)"
        r"|CUBLAS_STATUS_ARCH_MISMATCH|cuDNN version incompatibility|for GPU arch ?: gfx\w+|Cannot read .{0,80}TensileLibrary",
        "wrong-configuration", "The installed build does not fit this driver or card, or libraries of several builds are mixed",
        "install the build for this card's architecture (CUDA: torch.cuda.get_arch_list(); ROCm: HSA_OVERRIDE_GFX_VERSION only bridges) "
        "and a driver new enough for it; nothing of another CUDA, cuDNN or ROCm in LD_LIBRARY_PATH", "start-up: versions",
        confidence=0.85,
    ),
    known(
        r"Cannot re-initialize CUDA in forked subprocess|" + _E + r"(?:initialization error|context is destroyed|driver shutting down)",
        "wrong-configuration", "CUDA is used in a process that was forked after CUDA started, or that is ending",
        "start processes by spawn (set_start_method('spawn'), multiprocessing_context='spawn' of the loader), touch no GPU before a fork or "
        "in a loader worker; at the end of a run another error comes before it", "processes and CUDA", confidence=0.75,
    ),
    known(
        _E + r"(?:operation (?:not permitted when stream is capturing|failed due to a previous error during capture|would (?:result in a merge|make the legacy))"
        r"|capture was not ended|capturing stream has unjoined|dependency created on uncaptured|the graph update was not performed"
        r"|operation not permitted on an event last recorded)|Attempting uncaptured free of a captured|Capture must end on the same stream", "wrong-configuration",
        "Something in a captured step may not be captured in a CUDA graph",
        "no .item(), printing, synchronising, copies to the host or memory of changing size inside of the capture; warm up first; or "
        "switch graphs off (mode without cudagraphs, --cuda-graph-impl none)", "CUDA graph", confidence=0.85,
    ),
    known(
        _E + r"(?:too many resources requested for launch|invalid configuration argument|too many blocks in cooperative launch)",
        "wrong-configuration", "A kernel asks for more threads, registers or shared memory than this card has, or for an empty grid",
        "see whether a tensor is empty or its size beyond 2^31; a kernel tuned for another card needs its blocks smaller; "
        "CUDA_LAUNCH_BLOCKING=1 names the line", "kernel", confidence=0.75,
    ),
    known(
        _E + r"peer mapping resources exhausted|" + _E + r"peer access (?:is already|has not been) enabled", "wrong-configuration",
        "More GPUs of one host map each other's memory than the driver allows (8 peers)",
        "NCCL_P2P_DISABLE=1, or fewer visible GPUs to a process", "start-up: links", confidence=0.7,
    ),
    known(
        r"\bMPS (?:client|server|daemon)\b|exclusive-thread device already in use", "wrong-configuration",
        "The multi-process service (MPS) of this host failed, is full, or lets one thread in",
        "restart it (nvidia-cuda-mps-control: quit, then -d) when no process holds the GPU, or train without it; see its log "
        "(/var/log/nvidia-mps) and the compute mode", "start-up: devices", confidence=0.8,
    ),
    known(
        _E + r"(?:operation not (?:permitted|supported)(?! (?:on|when|in))|limit is not supported)", "wrong-configuration",
        "The driver refuses an operation on this host: not allowed in this container or virtual machine, or not there on this card",
        "CUDA_LAUNCH_BLOCKING=1 names the call; shared or pinned memory and IPC need the container's rights (--ipc=host, --ulimit memlock=-1, "
        "no MIG or vGPU without peer access)", "device calls", confidence=0.6, shadow=True,
    ),
    known(
        _E + r"(?:invalid (?:argument|resource handle|device pointer|value|device context|symbol|pitch argument)|device not ready|resource (?:already|not) mapped"
        r"|part or all of the requested memory range)", "wrong-configuration",
        "A library gave CUDA an argument that it refuses: a stream, buffer or handle of another device or process, or a freed one",
        "torch.cuda.set_device(LOCAL_RANK) before anything is made; CUDA_LAUNCH_BLOCKING=1 names the call; an extension built for another "
        "version of PyTorch shows the same", "device calls", confidence=0.55, shadow=True,
    ),
    known(
        _E + r"(?:unknown error|unrecognized error code|api failure|startup failure)", "unknown", "CUDA failed without a reason",
        "look at dmesg (Xid) of that moment and restart the process; at a start: nvidia-modprobe -u -c=0, the same driver inside and "
        "outside of the container, the order of CUDA_VISIBLE_DEVICES set before the program starts", "device calls", confidence=0.45,
        shadow=True,
    ),
    known(
        r"CUBLAS_STATUS_(?:NOT_SUPPORTED|INVALID_VALUE)|CUDNN_STATUS_(?:NOT_SUPPORTED|BAD_PARAM)", "wrong-configuration",
        "A product or convolution of a type, layout or size that the library does not take on this card",
        "see that no dimension is 0 (an empty batch or expert) or beyond 2^31, that tensors are contiguous and bf16 or fp8 exist on this "
        "card; one cuBLAS in the environment (pip list, LD_LIBRARY_PATH)", "matrix products", confidence=0.65,
    ),
    known(
        r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)|CUDNN_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)",
        "unknown", "A product or convolution failed on the device; most often a kernel before it went wrong, or memory was full",
        "run the step with CUDA_LAUNCH_BLOCKING=1 (an index out of a table shows there), leave memory for the library's workspace, see "
        "dmesg (Xid)", "matrix products", confidence=0.5, shadow=True,
    ),
)  # fmt: skip
