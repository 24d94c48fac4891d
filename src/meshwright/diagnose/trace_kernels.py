"""What a kernel does, told from its name: the vocabulary of CUDA, ROCm, Triton and their libraries."""

from __future__ import annotations

import re
from functools import lru_cache

COMMUNICATION, COMPUTE, COPY, FILL = "communication", "compute", "copy", "fill"

_COMM = re.compile(
    r"nccl|rccl|mscclpp|deep_?ep|internode::|intranode::|nvshmem|multimem_|symm_?mem|"
    r"one_shot_all_reduce|two_shot_all_reduce|cross_device_reduce|userbuffers|notify_dispatch|"
    r"cached_notify|all_?reduce_kernel|allgather_kernel|pplx|quick_?reduce",
    re.IGNORECASE,
)
_COLLECTIVES = (
    ("all_reduce", r"all_?reduce|multimem_all_reduce|cross_device_reduce|one_shot|two_shot"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?to_?all|alltoall|dispatch|combine|notify"),
    ("broadcast", r"broadcast"),
    ("send_receive", r"send_?recv|\bsend\b|\brecv\b|p2p"),
    ("reduce", r"reduce"),
)
_CLASSES = (
    ("attention", r"flash|fmha|attention|attn|sdpa|fused_softmax_dropout|ck_tile.*fmha|efficient_attention|paged"),
    ("matmul", r"gemm|matmul|cutlass|cublas|xmma|Cijk_|hipblaslt|wgmma|s\d+.*tensorop|splitK|_mm_|nvjet|mma\b|deep_gemm|addmm|bmm|cask|sm\d\d_xmma"),
    ("convolution", r"conv|cudnn.*(?:fprop|dgrad|wgrad)|winograd|implicit"),
    ("optimizer", r"adam|sgd|lamb(?!da)|multi_tensor_apply|multi_tensor|foreach|fused_optim|muon|newton_schulz|l2norm_kernel|clip_grad"),
    ("embedding", r"embedding|index_?select|gather_kernel|scatter_kernel|indexing_backward|tbe|split_embedding|fbgemm"),
    ("softmax and loss", r"softmax|cross_entropy|nll_loss|logsumexp"),
    ("norm", r"layer_?norm|rms_?norm|batch_?norm|\bbn_|group_?norm|ln_fwd|ln_bwd"),
    ("reduction", r"reduce|sum_kernel|norm_kernel|argmax|topk|sort|scan|cumsum"),
    ("elementwise", r"elementwise|vectorized|copy_kernel|fill|add|mul|gelu|silu|relu|dropout|cast|CatArray|transpose|permute|rope|rotary|triton|nchwToNhwc|nhwcToNchw"),
)  # fmt: skip
_COLLECTIVE_PATTERNS = [
    (name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _COLLECTIVES
]
_CLASS_PATTERNS = [(name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _CLASSES]

GPU_CATEGORIES = {
    "kernel": COMPUTE, "gpu_memcpy": COPY, "gpu_memset": FILL, "memcpy": COPY, "memset": FILL,
    "concurrent_kernel": COMPUTE,
}  # fmt: skip


@lru_cache(maxsize=200_000)
def is_communication(name: str) -> bool:
    """Whether a kernel moves data between devices."""
    return _COMM.search(name) is not None


@lru_cache(maxsize=200_000)
def collective_of(name: str) -> str:
    """Which collective a communication kernel or an argument names; RCCL's generic kernel names none."""
    return next((kind for kind, pattern in _COLLECTIVE_PATTERNS if pattern.search(name)), "other")


@lru_cache(maxsize=200_000)
def class_of(name: str) -> str:
    """What a compute kernel does."""
    return next((kind for kind, pattern in _CLASS_PATTERNS if pattern.search(name)), "other")
