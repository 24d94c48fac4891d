"""Errors of the program, its data and its files, known by their wording."""

from __future__ import annotations

from meshwright.diagnose.known_entry import known

PROGRAM = (
    known(
        r"srcIndex < srcSelectDimSize|idx_dim >= 0 && idx_dim < index_size|index out of bounds.{0,20}(?:failed|$)"
        r"|IndexError: index out of range in self|vectorized_gather_kernel.*Assertion|index -?\d+ is out of bounds for dimension",
        "wrong-configuration", "An index is outside of its table: most often a token (or position) beyond the embedding",
        "compare the largest token id with the embedding's rows (a token added to the tokenizer needs "
        "resize_token_embeddings, a padding id of -1 or -100 must not reach the embedding) and the longest sequence with "
        "the positions; run once on the CPU or with CUDA_LAUNCH_BLOCKING=1: it names the line", "index of an embedding",
        confidence=0.85, explains=r"device-side assert|illegal memory|CUBLAS|cuda error",
    ),
    known(
        r"CUDA error: device-side assert triggered|device-side assert triggered", "wrong-configuration",
        "A kernel checked an index and found it out of range: mostly a token or position beyond the embedding, or a label beyond "
        "the classes; the line above it that begins with the kernel's file says which",
        "compare the largest token id, position and label with the sizes of their tables (added tokens need "
        "resize_token_embeddings, -100 must not reach an embedding); run the batch on the CPU or with CUDA_LAUNCH_BLOCKING=1, "
        "which names the line", "index of a table", confidence=0.6, shadow=True, explains=r"device-side assert",
    ),
    known(
        r"Tensors of the same index must be on the same device and the same dtype|expected dtype \S+ for `(?:end|weight)` but got dtype",
        "wrong-configuration",
        "The optimizer meets gradients of another dtype or device than the weights and states that it was made for",
        "make the optimizer after the model is cast, wrapped and moved; load its states to the weights' device; under FSDP of "
        "transformers 4.46 take a newer release, where gradients came in 16 bits to states in 32", "optimizer", confidence=0.75,
    ),
    known(
        r"(?:spiky|nan/inf|non-?finite|too large|exploding).{0,60}grad\w*.{0,60}skipping (?:the )?(?:optimizer )?step"
        r"|grad\w*.{0,40}(?:above|exceeds|over) (?:the )?threshold.{0,60}skip", "wrong-configuration",
        "Steps are left out because a check refuses their gradients: the weights do not move in them",
        "compare the norm that is printed with the check's threshold: raise it (small batches have larger norms) or clip instead "
        "of skipping; a norm that is no number is another matter (data, learning rate, fp16)", "skipped updates",
        confidence=0.8, repeats=True,
    ),
    known(
        r"t >= 0 && t < n_classes|Target -?\d+ is out of bounds|cur_target >= 0 && cur_target < n_classes",
        "wrong-configuration", "A label is outside of the classes that the loss knows",
        "compare the largest label with the size of the last layer; what is to be left out carries ignore_index (-100)",
        "labels", confidence=0.9, explains=r"device-side assert|illegal memory|cuda error",
    ),
    known(
        r"Expected to have finished reduction in the prior iteration|parameters that were not used in producing the loss|synchronization of gradients doesn't exit properly", "wrong-configuration",
        "Parameters took no part in the loss, and what reduces gradients waits for theirs",
        "leave out or freeze (requires_grad=False, before DDP wraps) what is not used, or give DDP "
        "find_unused_parameters=True, which costs a walk of the graph each step; TORCH_DISTRIBUTED_DEBUG=DETAIL lists the "
        "parameters. If the use depends on the batch, all ranks have to take the same branch", "unused parameters",
        confidence=0.9,
    ),
    known(
        r"Expected to mark a variable ready only once|marked as ready twice", "wrong-configuration",
        "DDP gets a parameter's gradient twice in one step: a reentrant checkpoint, or a module that is used twice",
        "checkpoint with use_reentrant=False, or static_graph=True where the graph is the same each step; drop "
        "find_unused_parameters where nothing is unused", "checkpointing under DDP", confidence=0.85,
    ),
    known(
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: (?:Killed|9)", "out-of-memory",
        "A loader worker was killed from outside: most often by the host's out-of-memory killer",
        "see dmesg and the job's memory limit; fewer workers, a smaller prefetch_factor, no data set held as Python lists "
        "(each worker gets a copy as it touches them)", "host memory: loader workers", confidence=0.75,
    ),
    known(
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:exited unexpectedly|is killed by signal: (?:Aborted|Terminated|Segmentation))",
        "unknown", "A loader worker died; its own error is not in this text",
        "run with num_workers=0 to see its error; then dmesg (memory) and /dev/shm", "loader workers", confidence=0.6,
    ),
    known(
        r"PytorchStreamWriter failed writing file|unexpected pos \d+ vs \d+|write error: wrote \d+ blocks"
        r"|fd \d+ failed with (?:Input/output error|No space)|File size limit exceeded",
        "wrong-configuration", "A file could not be written to its end: most often the disk or the quota is full",
        "free space or quota where checkpoints go (df -h, quota), keep fewer of them; then resume from the last whole one",
        "writing a checkpoint", confidence=0.75,
    ),
    known(
        r"RuntimeError: File (?P<file>\S{1,200}) cannot be opened|Parent directory (?P<dir>\S{1,200}) does not exist",
        "wrong-configuration", "A checkpoint's file could not be made: the folder is missing or not writable, or the disk is full",
        "make the folder on every host that writes, and see its rights and the space left", "writing a checkpoint",
        confidence=0.7,
    ),
    known(
        r"failed finding central directory|PytorchStreamReader failed reading|deserializing header: \w+|SafetensorError"
        r"|UnpicklingError|EOFError: Ran out of input|not a ZIP archive|incomplete metadata",
        "wrong-configuration", "A file of weights or data is cut or damaged: it was not written or fetched to its end",
        "delete it and take the checkpoint before it (or fetch it again; a Git LFS pointer is a file of 130 bytes); write "
        "checkpoints under another name and rename them when whole", "reading a checkpoint", confidence=0.8,
    ),
    known(
        r"Error\(s\) in loading state_dict for (?P<who>\w{1,80})|size mismatch for (?P<name>[\w.]{1,200}): copying a param",
        "wrong-configuration", "The checkpoint's weights do not fit the model that is to take them",
        "build the model from the checkpoint's own configuration (vocabulary, layers, tensor parallel size); a checkpoint "
        "of shards has to be loaded under the same layout, or converted", "reading a checkpoint", confidence=0.85,
    ),
    known(
        r"Too many open files", "wrong-configuration", "The process may not open more files",
        "raise ulimit -n, or torch.multiprocessing.set_sharing_strategy('file_system'); fewer loader workers",
        "open files", confidence=0.9,
    ),
    known(
        r"Stale file handle|Read-only file system|Transport endpoint is not connected|Remote I/O error",
        "wrong-configuration", "A file system went away under the run",
        "see the mount on that host (dmesg, mount); resume from the last whole checkpoint when it is back", "file system",
        confidence=0.85,
    ),
    known(
        r"PermissionError|Permission denied", "wrong-configuration", "A file or folder may not be used by this user",
        "see the rights of the path that the line names (HF_HOME, cache and output folders; the same user on all hosts)",
        "file system", confidence=0.7, shadow=True,
    ),
    known(
        r"element 0 of tensors does not require grad|None of the inputs have requires_grad=True", "wrong-configuration",
        "Nothing that was computed needs a gradient",
        "with adapters and activation checkpointing call model.enable_input_require_grads() (or use_reentrant=False); see "
        "that not all parameters are frozen, and that no no_grad() is around", "gradients", confidence=0.8,
    ),
    known(
        r"Attempting to unscale FP16 gradients", "wrong-configuration",
        "The weights themselves are fp16 while a gradient scaler wants fp32 master weights",
        "load the trained weights in fp32 and let autocast compute in fp16, or train in bf16 without a scaler", "precision",
        confidence=0.95,
    ),
    known(
        r"FlashAttention only support(?:s)? (?:Ampere|fp16|.{0,20}data type)|Expected is_sm\d", "wrong-configuration",
        "Flash attention does not run on this card or in this precision",
        "bf16 or fp16 on Ampere or newer; otherwise attn_implementation='sdpa'", "attention kernel", confidence=0.95,
    ),
    known(
        r"out of resource: shared memory, Required: (?P<need>\d+), Hardware limit: (?P<limit>\d+)", "wrong-configuration",
        "A Triton kernel needs {need} bytes of on-chip memory and the card has {limit}",
        "smaller blocks or fewer num_stages for this card (autotune there), or another kernel", "kernel", confidence=0.95,
    ),
    known(
        r"Expected all tensors to be on the same device", "wrong-configuration", "Tensors of one operation lie on different devices",
        "inputs to the device of the layer that takes them; with device_map do not move the model, and set the device from "
        "LOCAL_RANK before anything is made", "devices", confidence=0.8,
    ),
    known(
        r"correct the following DeepSpeed config values that mismatch", "wrong-configuration",
        "The DeepSpeed configuration and the trainer's arguments say different things",
        "set the values that the lines below it list to 'auto' in the DeepSpeed configuration, or give both the same",
        "configuration", confidence=0.95,
    ),
    known(
        r"output tensor must have the same type as input tensor", "wrong-configuration",
        "A collective gets tensors of two types: parts of the model are held in different precisions",
        "load all weights in one type (torch_dtype, and bf16 or fp16 of the DeepSpeed or FSDP configuration the same), and cast "
        "adapters and norms that a library keeps in fp32", "precision", confidence=0.75,
    ),
    known(
        r"train_batch_size is not equal to micro_batch|Check batch related parameters", "wrong-configuration",
        "The batch sizes do not multiply: train_batch_size = micro batch × accumulation × data-parallel ranks",
        "leave one of the three out (or 'auto'), or correct it for this number of GPUs", "batch size", confidence=0.95,
    ),
    known(
        r"(?:First|Last) dimension of the tensor should be divisible by tensor parallel size", "wrong-configuration",
        "Sequence parallelism cuts the sequence over the tensor-parallel ranks, and its length is no multiple of them",
        "pad each batch to a multiple of the tensor-parallel size (and of twice the context-parallel one), or train without "
        "sequence parallelism", "sequence parallel", confidence=0.85,
    ),
    known(
        r"world[_ ]size \(?(?P<world>\d+)\)? (?:is not divisible|must be divisible) by"
        r"|Error: \d{1,12} is not divisible by \d{1,9}\b"
        r"|(?:\bnot|(?:must|should|needs? to|ha(?:s|ve) to|requires? .{3,60} to) be) (?:evenly )?(?:divisible by|a multiple of) (?:the )?"
        r"(?:number of |\(?2 ?\* ?)?(?:tensor|pipeline|virtual|expert|context|sequence[_ ]par|model|world|num|global|micro|data"
        r"|[tpcde]p\b|[tpcde]p_size)", "wrong-configuration",
        "A size is no multiple of what it is divided by",
        "make GPUs = tp × pp × cp × dp, heads, key-value groups, hidden size and the padded vocabulary multiples of tp, layers of pp × "
        "virtual stages, experts of ep, the sequence of 2 × cp, the global batch of micro batch × dp", "layout", confidence=0.85,
    ),
    known(
        r"couldn'?t connect to 'https?://|Couldn'?t reach .{1,120} on the Hub|Max retries exceeded with url|NameResolutionError"
        r"|gated repo|(?:401|403|429) Client Error|LocalEntryNotFoundError|OfflineModeIsEnabled", "wrong-configuration",
        "Something had to be fetched and could not be", "fetch weights and data before the run (one process a host), then "
        "HF_HUB_OFFLINE=1; a gated model needs a token with access", "downloads", confidence=0.75, shadow=True,
    ),
    known(
        r"Loss is \{?nan|diverged with (?:the )?loss|loss (?:is|was|became|=|:)? ?(?:nan|inf)\b.{0,40}(?:stop|exit|abort|diverg)|(?:Error: |message=.).{0,80}found (?:NaN|Inf) in|loss is NaN or Inf|Rank \d+: found NaN",
        "unknown", "The loss, or a gradient, became not a number, and the program stopped for it",
        "go back to the last good checkpoint; look at the batch and the gradient norm of the step before; lower the learning "
        "rate, prefer bf16 to fp16, check masks that leave a row empty", "loss", confidence=0.7, repeats=True,
    ),
)  # fmt: skip
