"""What a person calls the parts of an estimate."""

PART_WORDS = {
    "matmul": "matrix products",
    "attention": "attention",
    "elementwise": "memory-bound kernels",
    "launch": "kernel launches",
    "tensor_parallel": "tensor-parallel collectives",
    "context_parallel": "context-parallel exchange",
    "expert_parallel": "expert all-to-all",
    "recompute": "recomputation",
    "embedding_and_head": "embedding and head",
    "encoder": "the encoder of images or sound",
    "pipeline_p2p": "stage-to-stage messages",
    "pipeline_bubble": "the pipeline bubble",
    "data_parallel": "exposed data-parallel traffic",
    "optimizer": "the optimizer",
    "shared_cores": "waiting for cores that ranks share",
    "offload": "traffic to host memory",
    "step_overhead": "fixed overhead",
}
"""What a person calls each time part."""

MEMORY_WORDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "gathered_parameters": "gathered layers (ZeRO-3) or unpacked ones (4 and 8 bits)",
    "activations": "activations",
    "recompute_peak": "one layer's backward",
    "logits": "logits and loss",
    "buffers": "communication buffers",
    "communicators": "NCCL communicators",
    "context": "runtime context",
    "fragmentation": "allocator fragmentation",
}
"""What a person calls each memory part."""
