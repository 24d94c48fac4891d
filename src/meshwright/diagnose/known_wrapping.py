"""Errors of wrapped models and their checks: DDP, FSDP, ZeRO, meta tensors, batches that do not stack."""

from __future__ import annotations

from meshwright.diagnose.known_entry import known

WRAPPING = (
    known(
        r"Caught \w+ in replica \d+ on device", "wrong-configuration", "One process drives several GPUs (DataParallel), which this model does not bear",
        "one process to a GPU: torchrun, accelerate launch or deepspeed (FORCE_TORCHRUN=1 for llamafactory-cli), or only one visible GPU", "start-up: launcher", confidence=0.9,
        explains=r"on different devices",
    ),
    known(
        r"shapes cannot be multiplied \(\d+x\d+ and (?:1x\d{5,}|\d{5,}x1)\)", "wrong-configuration",
        "A layer uses a weight that is packed (4 bits, or a shard) as if it were a matrix",
        "weights of 4 or 8 bits have to pass their own layers: no ZeRO-3 or FSDP that replaces or flattens them (bnb_4bit_quant_storage of the compute type for FSDP; ZeRO-2 or DDP else), versions "
        "of peft, bitsandbytes and transformers of one time; of a sharded model call the wrapped module, no part of it", "quantised or sharded weights", confidence=0.75,
    ),
    known(
        r"(?:File exists|No such file or directory): '/\d{6}_[a-z_]{3,40}'|Reused local director", "wrong-configuration",
        "The streaming data set finds shared memory of its own that is not this run's: of an earlier run that did not end cleanly, or of ranks that take themselves for rank 0",
        "clean_stale_shared_memory() of streaming.base.util once before it is made (or remove /dev/shm/0*_* while no run uses it); RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE "
        "set before it is made (by launcher); a local folder of its own for each data set and for each run on the host", "data loading", confidence=0.85,
    ),
    known(
        r"expects same model across all ranks|sizes \[[\d, ]*\] appears not to match", "wrong-configuration", "Ranks build different models",
        "the same configuration, code and (for what is drawn at random) seed on every rank; print the parameters' names and shapes on the two that the line names",
        "model differs between ranks", confidence=0.9,
    ),
    known(
        r"is not needed when a module doesn't have any parameters that require|uninitialized parameters can't be used|doesn't have any parameters", "wrong-configuration",
        "The wrapped model has no parameter to train (or not yet)", "unfreeze what is to be trained (adapters) before wrapping; run lazy modules once before",
        "wrapping", confidence=0.85,
    ),
    known(
        r"data is not allocated yet|out of bounds for storage of size 0|'weight' must be 2-D|ds_status|'status': '(?:NOT_AVAILABLE|INFLIGHT)'|still have inflight params"
        r"|size of tensor .{0,40}\(0\)|should have been all-?gathered|unsharded parameters? .{0,40}(?:freed|not available)", "wrong-configuration",
        "A sharded parameter is used outside of the module that gathers it: its memory is not there",
        "call the wrapped module itself (no part of it, no .generate() or weight read past FSDP's or ZeRO-3's hooks), tie weights inside of one wrapped unit, and use "
        "deepspeed.zero.GatheredParameters or summon_full_params where the whole weight is read", "sharded parameters", confidence=0.75,
    ),
    known(
        r"tracing error at step \d+|parameters in the parameter fetch queue|pop from an empty deque", "wrong-configuration",
        "ZeRO-3 met its modules in another order than it recorded",
        "the same modules in the same order at every step and on every rank: no branch that depends on the batch, no module called outside of the forward "
        "(under no_grad, twice, or by a hook); declare a mixture's block a leaf (set_z3_leaf_modules), or ZeRO-2", "sharded parameters", confidence=0.8,
    ),
    known(
        r"has already been reduced|[Gg]radient computed twice|Multiple gradient reduction", "wrong-configuration",
        "A sharded parameter gets its gradient twice in one step: a module used twice, or a reentrant checkpoint",
        "checkpoint with use_reentrant=False; do not call a sharded module twice between two steps (or backward each by itself)", "sharded parameters", confidence=0.8,
    ),
    known(
        r"Cannot copy out of meta tensor|is on the meta device|meta device.{0,60}(?:not|never) (?:initialized|materialized)|expected device cuda.{0,20}meta", "wrong-configuration",
        "Parameters were made without memory (meta device) and never filled",
        "to_empty() and then the weights (or the module's reset_parameters), all keys of the checkpoint loaded (strict=True names the missing ones); no device_map that leaves "
        "layers on meta under a launcher", "initialisation", confidence=0.85,
    ),
    known(
        r"before the current process has finished its bootstrapping", "wrong-configuration", "The script starts processes while it is imported",
        "put what it does under if __name__ == '__main__':", "start-up: processes", confidence=0.95,
    ),
    known(
        r"DataLoader timed out after", "input-bound", "A loader worker did not deliver a batch within the loader's time-out",
        "read the data from nearer (local copies, fewer small files), more workers, a longer timeout; run with num_workers=0 to see whether one sample hangs",
        "data loading", confidence=0.75,
    ),
    known(
        r"stack expects each tensor to be equal size|activate truncation and/or padding|expected sequence of length \d+ at dim", "wrong-configuration",
        "Samples of different lengths are put into one batch", "a collator that pads (DataCollatorWithPadding, for labels as well), or packing; truncation to the sequence "
        "length in the tokenizer", "batches", confidence=0.9,
    ),
    known(
        r"received 0 items of ancdata", "wrong-configuration", "The process may not open more files",
        "raise ulimit -n, or torch.multiprocessing.set_sharing_strategy('file_system'); fewer loader workers", "open files", confidence=0.85,
    ),
    known(
        r"Unable to JIT load the|CUDAMismatchException|NoneType' object has no attribute '\w*(?:adam|fused)\w*'|Error compiling objects for extension", "wrong-configuration",
        "A kernel could not be compiled on this host: compiler, library or CUDA toolkit are missing or of another version",
        "ds_report lists what is missing for which kernel (ninja, CUDA_HOME, libaio); or the option that does without it (offload, fused optimizer)", "start-up: versions", confidence=0.8,
    ),
    known(
        r"DeepSpeedConfigError|Expected a string path to an existing deepspeed config|DeepSpeedConfig\b.{0,80}(?:not|invalid|error)|ElasticityConfigError", "wrong-configuration",
        "DeepSpeed's configuration is not found or refused", "see the path on every host and the field that the line names", "configuration", confidence=0.85,
    ),
    known(
        r"Cannot use ReduceOp\.|data type is not supported for NCCL|NCCL only supports CUDA|only supported with GPUs, no GPUs found|not on device passed to init_process_group"
        r"|does not support (?:monitoredBarrier|recvAnysource|sparse tensors)|Unsupported Float8 type for NCCL|Tensors must be (?:contiguous|CUDA|on distinct)", "wrong-configuration",
        "A collective is called with what its back end does not take", "tensors on the rank's own GPU, contiguous, of a type that NCCL reduces (no bool, short or complex ones); or a gloo group "
        "for what lies on the host", "process group", confidence=0.8,
    ),
    known(
        r"Rendezvous(?:Closed|State|Timeout|GracefulExit)\w*|network addresses of \(.{0,80}\) cannot be retrieved|Name or service not known|failed to bind to|failed to (?:bind|listen)",
        "wrong-configuration", "The rendezvous failed: its address or port cannot be used, or the run it belongs to is over",
        "MASTER_ADDR (--rdzv-endpoint) a name that every host resolves, an open port above 1024, a new --rdzv-id for every run; a rank that ended early closes it for the others",
        "start-up: rendezvous", confidence=0.7, shadow=True,
    ),
)  # fmt: skip
