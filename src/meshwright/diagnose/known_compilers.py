"""Errors of the compilers below a program (Triton and LLVM, Inductor, Dynamo, Neuron), by what they refuse."""

from __future__ import annotations

from meshwright.diagnose.known_entry import known

COMPILERS = (
    known(
        r"(?:compilation error for this graph in the previous run|retry_failed_compilation)", "wrong-configuration",
        "Neuron's cache holds this graph as one that did not compile: it is not tried again",
        "NEURON_CC_FLAGS=--retry_failed_compilation once (or remove that entry of /var/tmp/neuron-compile-cache) after what failed is mended: the first run's log names it",
        "compilation cache", confidence=0.9, explains=r"compiler or runtime refused",
    ),
    known(
        r"\bNCC_E?OOM\w*|exceeds? (?:the )?(?:available )?HBM|Insufficient memory .{0,40}(?:HBM|neuron)|walrus_driver.{0,60}(?:Killed|signal 9)|neuronx-cc.{0,200}(?:died with.{0,20}SIGKILL|-9\b|Killed)", "out-of-memory",
        "Neuron's compiler ran out of memory, or found that the graph does not fit into the device's",
        "fewer compiler processes at a time (NEURON_CC_FLAGS, --jobs) and more host memory for the first; a smaller micro-batch, tensor parallelism or "
        "recomputation for the second; compile ahead (neuron_parallel_compile)", "compilation", confidence=0.7,
    ),
    known(
        r"PassManager::run failed|LLVM ERROR|Unsupported conversion from \w+ to \w+|Unsupported rounding mode|triton\.compiler\.errors|CompilationError: at \d+:\d+|failed to legalize operation"
        r"|error: .{0,80}\b(?:tt|ttg|triton_gpu|triton_nvidia_gpu)\.\w+|Cannot select: |ptxas (?:error|fatal)|Internal Triton PTX codegen error|Feature '[^']{1,60}' requires \.target sm_\d+|not supported on \.target", "wrong-configuration",
        "The compiler of a kernel (Triton, LLVM, ptxas) cannot make it for this card",
        "the release of Triton that this PyTorch was built with (pip show torch names it), or the one before where it worked; on cards before Ampere (V100, T4) fp16 in place of bf16 and "
        "no fp8; remove ~/.triton/cache; another kernel (attn_implementation='sdpa', the library's switch for its own kernels, TORCHDYNAMO_DISABLE=1) goes round it",
        "compilation", confidence=0.75, explains=r"aborting itself",
    ),
    known(
        r"BackendCompilerFailed|InductorError|torch\._inductor\.exc|LoweringException|Failed to run autotuning code block", "wrong-configuration",
        "torch.compile's back end cannot build a part of the model",
        "run once without it (TORCHDYNAMO_DISABLE=1, torch_compile false) to see that it is only that; then leave out the part that the traceback names (torch.compiler.disable) or take another "
        "release; a compiler (gcc), Triton and the CUDA headers have to be there", "compilation", confidence=0.7, shadow=True,
    ),
    known(
        r"torch\._dynamo\.exc\.\w+|FailOnRecompileLimitHit|InternalTorchDynamoError", "wrong-configuration",
        "torch.compile cannot follow a part of the program (a graph break where none is allowed, an operation that it does not know)",
        "fullgraph=False, or torch.compiler.disable on the function that the traceback names; TORCHDYNAMO_DISABLE=1 shows whether it is only that", "compilation", confidence=0.7,
        shadow=True,
    ),
)  # fmt: skip
