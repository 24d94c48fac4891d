"""Errors of installed libraries, builds, limits of the host and process groups, known by their wording."""

from __future__ import annotations

from meshwright.diagnose.known_entry import known

LIBRARIES = (
    known(
        r"flattened_range is not supported|nd_reformulated_orig_global_shape|global shape metadata for N-D flattened", "wrong-configuration",
        "The optimizer's state is in a form that this release of Megatron-Core does not write or read (flattened over ranks)",
        "the form that both sides know: distrib_optim_sharding_type dp_reshardable (or fully_reshardable) in newer releases, --dist-ckpt-optim-fully-reshardable; an old checkpoint with the "
        "release that wrote it, or its weights alone (--no-load-optim)", "checkpoint", confidence=0.8,
    ),
    known(
        r"Invalid access pattern|ShardedObject are missing|Invalid sharding pattern|Duplicate (?:shard ids loaded|ShardedObject keys)|Missing keys \(for all ranks\)|Unexpected keys \(not found in the checkpoint\)"
        r"|Global shape mismatch for loaded|is not a distributed checkpoint", "wrong-configuration",
        "A distributed checkpoint does not hold what this run's model asks for",
        "load it with the model (layers, experts, padded vocabulary) that wrote it; where only the layout changed: sizes that reshard (the extra states of Transformer Engine and the optimizer do "
        "not always: --no-load-optim, --dist-ckpt-strictness log_all shows which keys differ), or convert it by the framework's own tool", "checkpoint", confidence=0.75,
    ),
    known(
        r"DeepEP timeout check failed|DeepEP error: (?:CPU recv )?timeout|deep_ep.{0,80}timeout", "missing-collective",
        "DeepEP's exchange of tokens between experts waited in vain: ranks of one expert group did not all come to it, or the "
        "network below it (NVSHMEM) does not carry it",
        "see whether any rank failed or is elsewhere (py-spy on all of them, uneven micro-batches). If it fails in the first "
        "exchange between hosts: NVSHMEM from 3.5.19 on needs a DeepEP that knows it (or an older NVSHMEM), IBGDA needs its "
        "driver settings; nvshmem's own perftests between the hosts tell", "expert exchange", confidence=0.7,
    ),
    known(
        r"nvshmem.{0,200}(?:non-zero status|connect EPS failed|setup connections failed)|NVSHMEM API called before NVSHMEM init"
        r"|connect EPS failed", "wrong-configuration",
        "NVSHMEM could not connect its processes: expert exchanges (DeepEP) cannot start",
        "check on every host that the same NVSHMEM is loaded (nvshmem-info -a), that its RDMA devices are visible in the container "
        "(/dev/infiniband, IPC_LOCK), NVSHMEM_HCA_LIST and the bootstrap's interface; NVSHMEM_DEBUG=INFO says where it stops",
        "start-up: NVSHMEM", confidence=0.75,
    ),
    known(
        r"cannot open shared object file|version `GLIBC(?:XX)?_[\d.]+' not found|DLL load failed", "wrong-configuration",
        "A shared library is missing, or older than what the installed build asks for",
        "install what the line names (the CUDA runtime of the build's version, a newer compiler runtime) and see "
        "LD_LIBRARY_PATH; one environment, made for this image", "start-up: versions", confidence=0.85, shadow=True,
    ),
    known(
        r"detected CUDA version .{0,60}mismatches the version that was used to compile|CUDA_HOME environment variable is not set"
        r"|Error building extension|Ninja is required to load C\+\+ extensions|Failed to find C compiler|nvcc(?:: command)? not found"
        r"|ptxas fatal|Installed CUDA version .{0,40}does not match", "wrong-configuration",
        "A kernel could not be compiled on this host: compiler or CUDA toolkit are missing or of another version",
        "install the CUDA toolkit of PyTorch's version (torch.version.cuda) with a compiler and ninja and set CUDA_HOME, or take "
        "a package that is built already; remove ~/.cache/torch_extensions before the next start", "start-up: versions",
        confidence=0.85,
    ),
    known(
        r"driver on your system is too old|cudaErrorInsufficientDriver|unsupported display driver / cuda driver combination",
        "wrong-configuration", "The driver is older than the installed build asks for",
        "update the driver, or install the build for the CUDA version that nvidia-smi shows", "start-up: versions", confidence=0.95,
    ),
    known(
        r"(?:ModuleNotFoundError: No module named|ImportError: cannot import name) '?(?P<name>[\w.]{1,80})", "wrong-configuration",
        "A package is missing or of another version than the program was written for ({name})",
        "install the versions that the program's requirements name, on every host", "start-up: versions", confidence=0.85,
    ),
    known(
        r"unrecognized arguments?:.{0,80}--local[-_]rank", "wrong-configuration",
        "The launcher hands over --local-rank and the script does not know it",
        "start with torchrun and read LOCAL_RANK from the environment", "start-up: launcher", confidence=0.95,
    ),
    known(
        r"KeyError: '(?P<name>RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'", "wrong-configuration",
        "The process was not started by a launcher: {name} is not set",
        "start it with torchrun (accelerate launch, deepspeed, srun with the variables set)", "start-up: launcher",
        confidence=0.9,
    ),
    known(
        r"Default process group has not been initialized", "wrong-configuration",
        "A collective is called before init_process_group, or after the group was destroyed",
        "make the process group first (the launcher's or trainer's set-up), on every rank", "process group", confidence=0.85,
    ),
    known(
        r"No backend type associated with device type|Tensors must be CUDA and dense", "wrong-configuration",
        "A collective gets a tensor on a device that its process group has no back end for",
        "move it to the device of the group (.cuda()), or make the group with both (backend='cpu:gloo,cuda:nccl')",
        "process group", confidence=0.9,
    ),
    known(
        r"can't start new thread|libgomp: Thread creation failed|pthread_create\W{0,3}(?:failed|.{0,40}Resource temporarily)"
        r"|fork: (?:retry: )?Resource temporarily unavailable|BlockingIOError: \[Errno 11\]", "wrong-configuration",
        "The host or the job allows no more processes or threads",
        "raise the limit (ulimit -u, pids of the container), OMP_NUM_THREADS=1, fewer loader workers", "process limit",
        confidence=0.85,
    ),
    known(
        r"(?<!\w)MemoryError\b|std::bad_alloc|Errno 12\] Cannot allocate memory", "out-of-memory",
        "The host's memory ran out: a program was refused what it asked for",
        "fewer loader workers, no data set or checkpoint held in memory at once, checkpoints written in pieces; see the "
        "container's or job's limit", "host memory", confidence=0.8,
        explains=r"written to its end|file_write failed|unexpected pos",
    ),
    known(
        r"ran out of memory \(memory monitor|node running low on memory|Reason: OOMKilled|\bOOMKilled\b", "out-of-memory",
        "The host (or its container) ran out of memory and a worker was killed for it",
        "give the pod or actor more memory, or fewer workers to a node; no data set or checkpoint in memory at once",
        "host memory", confidence=0.85,
    ),
    known(
        r"the launch timed out and was terminated|cudaErrorLaunchTimeout", "gpu-error",
        "A kernel ran longer than the driver allows on a card that also drives a display, or the driver reset it (Xid 8)",
        "train on a card without a display (or raise the driver's time limit), smaller batches as a test; on a card without "
        "one look at dmesg for Xid", "GPU: time limit of a kernel", confidence=0.75,
    ),
    known(
        r"ibv_(?P<call>\w{1,40})\W{0,3}(?: call)? ?failed with error (?P<reason>[\w ]{1,60})", "wrong-configuration",
        "A call to a network adapter failed ({call}: {reason})",
        "see which adapters and ports NCCL chose (NCCL_DEBUG=INFO) and name those that all hosts share (NCCL_IB_HCA, "
        "NCCL_IB_GID_INDEX); the same devices inside the container (--device /dev/infiniband); NCCL_IB_DISABLE=1 shows "
        "whether it is that", "network adapter", confidence=0.7, explains=r"connection between ranks broke",
    ),
    known(
        r"Size mismatch between saved .{0,80}and current|Missing key in checkpoint state_dict|(?:Unexpected|Missing) key\(s\) in state_dict"
        r"|value from checkpoint \(.{0,60}\) is not equal to the input argument value"
        r"|checkpoint being loaded used a DP world size|Checkpoint .{0,60}does not (?:match|support) .{0,40}(?:world|parallel) size",
        "wrong-configuration", "The checkpoint was saved of another model, layout or form than the one that is to take it",
        "load it with the model, wrapping (use_orig_params, flat or sharded parameters) and parallel sizes it was saved with, or "
        "convert it first", "reading a checkpoint", confidence=0.85,
    ),
    known(
        r"grad(?:ient)?[_ ]norm is not finite|non-?finite grad(?:ient)?s?\b|gradients? (?:is|are|contains?) (?:nan|inf)|nan grad(?:ient)?s? (?:at|in|detected|found)|\d nans? detected|nans? (?:detected|found) in (?:activation|output|layer|forward|grad)",
        "unknown", "Gradients are not finite",
        "look at the batch and the loss of that step; lower the learning rate, bf16 instead of fp16, check masks that leave a row "
        "empty and divisions by a count of zero tokens on a rank", "gradients", confidence=0.65, repeats=True,
    ),
    known(
        r"Recomputed values for the following tensors have different metadata|A different number of tensors was saved during the original forward",
        "wrong-configuration", "Recomputation does not repeat what the forward did",
        "the checkpointed part must not depend on what changes between forward and backward (caches: use_cache=False, "
        "autocast, dropout's state, gathered or freed parameters); or the other use_reentrant", "activation checkpointing",
        confidence=0.85,
    ),
    known(
        r"(?:Must flatten tensors with|FlatParameter requires) uniform (?P<what>dtype|requires_grad)|Cannot flatten (?P<words>integer) dtype tensors|Only Tensors of floating point and complex dtype can require gradients", "wrong-configuration",
        "FSDP flattens parameters of one kind only, and a wrapped module mixes them ({what}{words})",
        "one dtype for all parameters before wrapping (weights of 4 bits: bnb_4bit_quant_storage of the compute type); frozen and trained ones apart (a wrap policy of their own, or "
        "use_orig_params=True)", "FSDP wrapping", confidence=0.9,
    ),
    known(
        r"mat1 and mat2 must have the same dtype|expected scalar type \w+ but found \w+|Input type .{0,60}and (?:weight|bias) type"
        r".{0,60}should be the same", "wrong-configuration", "An operation gets tensors of two precisions",
        "run the step under autocast, or load weights and inputs in one type (adapters and norms that a library keeps in fp32 "
        "included)", "precision", confidence=0.85,
    ),
    known(
        r"mat1 and mat2 shapes cannot be multiplied|The size of tensor a \(\d+\) must match the size of tensor b|shape '\[.{1,80}\]' is invalid for input",
        "wrong-configuration", "Two shapes of the program do not fit each other",
        "compare the configuration (hidden size, heads, vocabulary, sequence length, tensor-parallel size) with what the data and "
        "the checkpoint have; the traceback names the layer", "shapes", confidence=0.65,
    ),
    known(
        r"Trying to backward through the graph a second time|modified by an inplace operation", "wrong-configuration",
        "The backward needs what is gone or changed: a graph used twice, or a tensor changed in place",
        "detach what is kept from step to step, no in-place change of activations; torch.autograd.set_detect_anomaly(True) names "
        "the line", "gradients", confidence=0.8,
    ),
    known(
        r"loaded in 8-?bit or 4-?bit precision on a different device|You can't train a model that has been loaded .{0,60}device_map",
        "wrong-configuration", "A quantised model lies on another device than its rank's",
        "device_map={'': LOCAL_RANK} when it is loaded, no device_map='auto' under a launcher", "devices", confidence=0.9,
    ),
    known(
        r"Some tensors share memory, this will lead to duplicate memory on disk", "wrong-configuration",
        "Tied weights are saved as if they were two", "save_model of safetensors (or the trainer's save), or drop the tied copy from "
        "the state dict", "writing a checkpoint", confidence=0.9,
    ),
    known(
        r"FileNotFoundError: .{0,40}(?:No such file or directory|doesn't exist)", "wrong-configuration",
        "A file that the run needs is not there",
        "see that the path exists on every host (a shared file system, or a copy on each), and the working folder", "files",
        confidence=0.75, shadow=True,
    ),
    known(
        r"Host key verification failed|Permission denied \(publickey|pdsh: .{0,60}(?:not found|No such)|ssh: connect to host",
        "wrong-configuration", "The launcher could not log in to a host",
        "keys without a password between all hosts (ssh HOST true has to work), pdsh installed; or a launcher that starts on each "
        "host by itself (torchrun, srun)", "start-up: launcher", confidence=0.9,
    ),
    known(
        r"hit config\.(?:recompile_limit|cache_size_limit)|torch\._dynamo hit config", "host-bound",
        "The compiler gave up on a function: its inputs change too often, so that it is compiled again and again, or runs uncompiled",
        "constant shapes (pad or pack to few lengths), dynamic=True, no Python numbers that change each step as inputs; "
        "TORCH_LOGS=recompiles names what changed", "compilation", confidence=0.7, repeats=True,
    ),
    known(
        r"got mixed torch\.Tensor and DTensor", "wrong-configuration",
        "An operation gets a sharded parameter (DTensor) together with a plain tensor",
        "call the module that fully_shard wrapped, not a part or method of it, and wrap its root, too: only a wrapped module's "
        "forward gathers its parameters. Give clipping, optimizers and checkpoints DTensors throughout (no bitsandbytes states, "
        "no full state dict copied in); distribute_tensor() makes one of a plain tensor", "FSDP2, tensor parallel",
        confidence=0.8,
    ),
    known(
        r"Loading a checkpoint for MP=(?P<have>\d{1,6}) but world size is (?P<run>\w{1,8})", "wrong-configuration",
        "The checkpoint is cut for {have} model-parallel ranks, and {run} run",
        "start as many processes as the checkpoint has parts (torchrun --nproc_per_node), or convert it; MP=0 means that the "
        "folder holds no part at all", "reading a checkpoint", confidence=0.9,
    ),
    known(
        r"Could not find NET with id", "wrong-configuration",
        "NCCL's picture of the host names a network adapter that it does not find again",
        "another version of NCCL, the same on all hosts (newer ones mended such faults); the same adapters in every container, no "
        "NCCL_TOPO_FILE of another machine; NCCL_DEBUG=INFO lists what each rank found", "network adapter", confidence=0.75,
    ),
    known(
        r"vllm_client - Server is not up yet|vLLM server can't be reached|Server is not up yet\. Retrying", "wrong-configuration",
        "The server that generates (vLLM) is not reached: the trainer waits for it",
        "start it first (trl vllm-serve) on GPUs of its own, that the trainer does not see, and read its log; the same host and port on both "
        "sides, no proxy between them (NO_PROXY)", "generation server", confidence=0.8,
    ),
    known(
        r"not enough slots available", "wrong-configuration", "mpirun is asked for more processes than the hosts that it knows have slots",
        "as many slots as GPUs in its host file or -H (host1:8,host2:8; inside a SLURM job --ntasks-per-node tells), fewer processes (-np), or --oversubscribe where they may share cores", "start-up: MPI",
        confidence=0.9, explains=r"MPI could not start",
    ),
    known(
        r"An error occurred in MPI_\w+|MPI_ERRORS_ARE_FATAL|\bPMIX? ?ERROR|PMI2?_Init failed|ORTE (?:was unable|does not know)",
        "wrong-configuration", "MPI could not start: the processes were not started by an MPI launcher, or by one of another build",
        "mpirun of the same MPI (or srun --mpi=pmix) where the program needs MPI; switch off what starts it where it does not (a communication "
        "overlap with MPI as its bootstrap: NCCL or gloo instead); slots for as many ranks as are asked for", "start-up: MPI", confidence=0.8,
    ),
    known(
        r"No execution plans support the graph|No valid (?:engine configs|execution plans)|\[cudnn_frontend\]|cuDNN Frontend error|fused_attn\w*\.cu:\d+", "wrong-configuration",
        "cuDNN has no fused attention for these sizes, this mask or this card (or not in this version)",
        "NVTE_FUSED_ATTN=0 with NVTE_FLASH_ATTN=1 (--attention-backend flash) goes round it: heads whose keys and values differ in size, dropout, odd lengths and context parallelism are what it lacks; "
        "a newer cuDNN, and only one in the environment (pip's nvidia-cudnn and the system's), may have it", "attention", confidence=0.85,
    ),
    known(
        r"No dot product attention backend is available", "wrong-configuration",
        "Transformer Engine has no attention kernel for these inputs",
        "NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 says why each backend is off: a flash-attn of a version that it does not take, one chosen "
        "backend (--attention-backend, NVTE_FLASH_ATTN, NVTE_FUSED_ATTN), packed sequences or attention sinks, or context "
        "parallelism (cp_comm_type a2a, or none)", "attention", confidence=0.9,
    ),
)  # fmt: skip
