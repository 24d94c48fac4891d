"""What engines that generate, kernels of eight bits and JAX's meshes refuse, by what they lack.

Listed from the messages in the sources of vLLM, SGLang, Transformer Engine and JAX.
"""

from __future__ import annotations

from meshwright.diagnose.known_entry import known

_GENERAL = (
    r"framework refuses|check of the program refuses|Sizes that have to agree|error of its own"
)

ENGINES = (
    known(
        r"Free memory on device .{0,60}less than desired GPU memory utilization|Error in memory profiling\. Initial free memory", "out-of-memory",
        "The engine that generates (vLLM) finds less free device memory than its share: another process, often the trainer or one left behind, holds it",
        "nvidia-smi: end what is left of earlier runs; gpu_memory_utilization is a share of the whole card, so beside a trainer on it 0.3 to 0.5, else below what is free; the engine on cards of "
        "its own, or started before the trainer takes its memory", "device memory: generation", confidence=0.9, explains=_GENERAL,
    ),
    known(
        r"max seq len \(?(?P<length>\d{1,9})\)? is larger than the maximum number of tokens that can be stored in KV cache \((?P<room>\d{1,9})\)", "out-of-memory",
        "The engine that generates (vLLM) has room for {room} tokens of keys and values, a sequence may have {length}",
        "max_model_len at most what there is room for (as long as prompt and answer together need), or a higher gpu_memory_utilization where nothing else is on the card; more tensor parallelism leaves each card "
        "more room; kv_cache_dtype fp8 doubles it", "device memory: generation", confidence=0.9, explains=_GENERAL,
    ),
    known(
        r"max seq len \((?P<length>\d{1,9})\), \((?P<needs>[\d.]{1,9} GiB) KV cache is needed, which is larger than the available KV cache memory \((?P<has>[\d.]{1,9} GiB)\)", "out-of-memory",
        "The engine that generates (vLLM) needs {needs} for the keys and values of one sequence of {length} tokens, {has} is left",
        "max_model_len down to what the message estimates (prompt and answer together), or a higher gpu_memory_utilization where nothing else is on the card; more tensor parallelism leaves each "
        "card more room; kv_cache_dtype fp8 halves the need", "device memory: generation", confidence=0.9, explains=_GENERAL,
    ),
    known(
        r"No available memory for the cache blocks|Cannot auto-fit max_model_len|Not enough memory\. Please try to increase --mem-fraction-static", "out-of-memory",
        "The engine that generates (vLLM, SGLang) has no memory left for keys and values once its weights are loaded",
        "a higher gpu_memory_utilization (SGLang: mem_fraction_static) where nothing else is on the card; what else holds it (nvidia-smi: the trainer, an earlier run) has to go or be offloaded first; "
        "more tensor parallelism or quantized weights where the weights themselves fill it", "device memory: generation", confidence=0.9, explains=_GENERAL,
    ),
    known(
        r"(?:FP8 (?:execution|GEMM) requires|(?:Data|Tensor|input) .{0,60}FP8).{0,120}divisible by."
        r"|Incorrect shape .{1,80} for (?:MXFP8|NVFP4|FP8)|(?:MXFP8|NVFP4)_BLOCK_SCALING_SIZE", "wrong-configuration",
        "Eight-bit matrix products take only sizes that are multiples: tokens of a device by 8, widths by 16 (MXFP8: both by 32)",
        "make sequence × micro-batch on a device such a multiple: a padded sequence (a last batch dropped, pad_to_multiple_of=16, for MXFP8 32; with sequence or context parallelism the part of one "
        "device), experts' tokens padded (--moe-router-padding-for-fp8); where it is the vocabulary or a width, pad that", "sizes", confidence=0.9, explains=_GENERAL,
    ),
    known(
        r"given the sharding of .{1,600}?global size of its dimension (?P<dim>\d{1,2}) should be divisible by (?P<by>\d{1,6}), but it is equal to (?P<size>\d{1,12})", "wrong-configuration",
        "JAX cannot cut an array over the mesh: its dimension {dim} has {size}, the axes named for it have {by} devices",
        "choose the mesh so that the product of those axes divides it (batch axes: the global batch a multiple of data × fsdp devices; tensor axis: heads, widths and vocabulary), pad that size (a vocabulary "
        "to a multiple of 128), or leave that dimension whole in the sharding rules", "mesh", confidence=0.9, explains=_GENERAL,
    ),
    known(
        r"Buffer passed to Execute\(\) as argument .{1,60} is on device|Received incompatible devices for jitted computation|only supports destination device list of the same size|Fetching value for `?jax\.Array`? that spans non-addressable", "wrong-configuration",
        "JAX arrays lie on other devices than the program that takes them runs on",
        "put both on one mesh: jax.device_put with the sharding of that mesh, restored states (step counters too) with the sharding of the training state; over several hosts "
        "jax.make_array_from_process_local_data, and process_allgather before a value is read; the same order of devices in every mesh", "mesh", confidence=0.85, explains=_GENERAL,
    ),
)  # fmt: skip
