"""Where a framework comes from on a bare machine: an image that has it, or the commands that get it."""

from __future__ import annotations

import re

from meshwright.exports import torchtune
from meshwright.exports.fabric import MEASURED_BY
from meshwright.exports.finetuning import brings_deepspeed
from meshwright.exports.hf import needs_flash
from meshwright.exports.tuning_attention import FLASH, keeps_scores, trl_words
from meshwright.exports.tuning_notes import stays_in_fp8
from meshwright.specs.frameworks import framework
from meshwright.specs.plan import Plan

_RELEASE = "2.13.0"
_TORCH = "pytorch/pytorch:2.13.0-cuda{cuda}-cudnn9-runtime"
_COMPILER = "pytorch/pytorch:2.13.0-cuda{cuda}-cudnn9-devel"
"""The same with nvcc, by which flash-attn and DeepSpeed's operators are built."""
_CUDA = "13.0"
"""Of the releases that PyTorch 2.12 to 2.14 are built for (12.6, 13.0, 13.2; RELEASE.md, CUDA Support Matrix),
the one that its package index serves."""
_CUDA_OF_VOLTA = "12.6"
"""The last release that has kernels for V100 and older."""
_BUILDS = ("deepspeed", "nanotron", "trl", "axolotl", "llama-factory", "verl")
_NVIDIA = {
    # NVIDIA's container of Megatron-Bridge brings Transformer Engine, Megatron-Core and its sources.
    "megatron": "nvcr.io/nvidia/nemo:26.04",
    "megatron-bridge": "nvcr.io/nvidia/nemo:26.04",
    "primus": "nvcr.io/nvidia/nemo:26.04",  # AMD's own is ROCm's
}
_ARM = "nvidia/cuda:13.0.2-cudnn-devel-ubuntu24.04"
"""PyTorch publishes no container for Arm (pytorch/pytorch issues 145716 and 157139); `setup` brings it into this one."""
_AMD = "rocm/primus:v26.5"
"""AMD's container with Megatron-LM, torchtitan and PyTorch for ROCm (README of AMD-AGI/Primus)."""


_BITSANDBYTES = re.compile("8bit|paged|lion")
"""Optimizers that transformers and torchtune take from bitsandbytes."""
_HUGGING = "transformers==5.23.0"
MAXTEXT = "0.2.5"
"""The release of MaxText whose own configuration reads our files (its page "Install MaxText")."""


_GIT = "command -v git > /dev/null || { apt-get -qq update && apt-get -qq install -y git; }"
_LOSSES = {
    "liger": ["pip install -q liger-kernel"],
    # axolotl refuses any but its own (integrations/cut_cross_entropy/__init__.py of 0.21.0).
    "cut": [_GIT, "pip install -q 'cut-cross-entropy[transformers] @ git+https://github.com/axolotl-ai-cloud/ml-cross-entropy.git@v0.1.1'"],
}  # fmt: skip
"""What makes a loss that no framework brings itself."""


def image(plan: Plan, name: str) -> str:
    """The container image for a framework on the plan's devices."""
    if plan.cluster.device.vendor == "amd":
        return _AMD
    if _is_grace(plan) and name not in _NVIDIA:
        return _ARM
    own = _COMPILER if name in _BUILDS or _flashes(plan, name) else _TORCH
    return _NVIDIA.get(name, own.format(cuda=_CUDA_OF_VOLTA if _is_volta(plan) else _CUDA))


def _flashes(plan: Plan, name: str) -> bool:
    """Whether a script written here asks for a kernel that is built where no wheel fits."""
    return name in ("deepspeed", "accelerate", "trainer") and needs_flash(plan)


def unfit(plan: Plan, name: str) -> tuple[str, ...]:
    """What a container lacks for the plan's devices: CUDA 13 has no kernels for Volta (its release notes)."""
    if not _is_volta(plan) or name not in _NVIDIA:
        return ()
    return (
        f"{_NVIDIA[name]} is built for CUDA 13, which has no kernels for {plan.cluster.device.name}: take a container "
        "of CUDA 12 that holds Transformer Engine",
    )


def _is_grace(plan: Plan) -> bool:
    """Whether the hosts' processors are NVIDIA's own, which are Arm's."""
    return plan.cluster.device.name.startswith(("GB", "GH"))


def _is_volta(plan: Plan) -> bool:
    return plan.cluster.device.name.startswith("V100")


def machine_image(plan: Plan, name: str) -> str | None:
    """The container that `setup` must run in on a machine with drivers alone; None where packages do."""
    needs = (
        plan.cluster.device.vendor == "amd"
        or name in (*_NVIDIA, *_BUILDS)
        or _is_grace(plan)
        or _flashes(plan, name)
    )
    return image(plan, name) if needs else None


def setup(plan: Plan, name: str, *, container: bool = False) -> list[str]:
    """Shell lines that bring a framework to a machine; in its own container fewer.

    Versions are those that the exports were checked against (the table of frameworks).
    """
    version = framework(name).checked
    has = plan.cluster.device.vendor == "amd" or (container and image(plan, name) != _ARM)
    torch = [] if has else [_torch(plan)]
    jax = "tpu" if plan.cluster.device.vendor == "google" else "cuda12"
    eight = ["pip install -q torchao==0.18.0"]  # its linear layers in 8 bits are torchao's
    lines = {
        "deepspeed": [*torch, f"pip install -q deepspeed=={version} {_HUGGING}"],
        "accelerate": [*torch, f"pip install -q accelerate=={version} {_HUGGING}"],
        "trainer": [*torch, f"pip install -q transformers=={version} accelerate=={framework('accelerate').checked}"],
        "lightning": [*torch, f"pip install -q lightning=={version}"],
        "torchtitan": [*torch, f"pip install -q torchtitan=={version}", *(eight if plan.job.precision.compute == "fp8" else [])],
        "fsdp": [*torch, "pip install -q numpy"],
        MEASURED_BY: [*torch, "pip install -q 'meshwright[engine]'"],
        "maxtext": [f"pip install -q 'maxtext[{jax}]=={MAXTEXT}'", f"install_{jax}_pre_train_extra_deps"],
        "megatron": _cloned("MEGATRON", "NVIDIA/Megatron-LM", f"core_v{version}"),
        "megatron-bridge": [
            *_cloned("MEGATRON_BRIDGE", "NVIDIA-NeMo/Megatron-Bridge", "main"),
            # The clone's own packages, not those that the container was built with.
            'export PYTHONPATH="$MEGATRON_BRIDGE/src:$MEGATRON_BRIDGE/3rdparty/Megatron-LM${PYTHONPATH:+:$PYTHONPATH}"',
        ],
        "nanotron": [*torch, "pip install -q flash-attn --no-build-isolation",
                     *_cloned("NANOTRON", "huggingface/nanotron", "main"),
                     'pip install -q -e "$NANOTRON"'],
        "primus": [*_cloned("PRIMUS", "AMD-AGI/Primus", "main"), *_beside_primus(plan)],
    } | {name: [*torch, *words] for name, words in _tuning_tools(plan).items()}  # fmt: skip
    extra = list(_LOSSES.get(plan.job.loss, []))
    extra += ["pip install -q flash-attn --no-build-isolation"] if _flashes(plan, name) else []
    return [*(_allowed(plan, name) if container else []), *lines.get(name, torch), *extra]


def needs(plan: Plan, name: str) -> str:
    """Comment lines of a script that brings nothing itself: the image it is for, or what to run before it."""
    lines = "".join(f"#   {line}\n" for line in setup(plan, name) or ("nothing more",))
    where = (
        ""
        if name == "maxtext"
        else f" (in the image {image(plan, name)}, or where that is installed)"
    )
    return f"# What every host needs first{where}:\n{lines}"


def _allowed(plan: Plan, name: str) -> list[str]:
    """What lets pip install into a container's own Python, which Ubuntu 24.04 marks as managed (PEP 668)."""
    allowed = ["export PIP_BREAK_SYSTEM_PACKAGES=1"]
    if plan.cluster.device.vendor == "amd":
        # A package that wants another PyTorch must fail here, not replace ROCm's build by one for CUDA.
        allowed += [
            "python -c 'import torch; print(\"torch==\" + torch.__version__)' > torch.txt",
            'export PIP_CONSTRAINT="$PWD/torch.txt"',
        ]
    if image(plan, name) == _ARM:
        python = "git python3-dev python3-pip python-is-python3"
        allowed.append(f"apt-get -qq update && apt-get -qq install -y {python}")
    return allowed


def _torch(plan: Plan) -> str:
    """PyTorch as its package index serves it, or built for devices that this build has left."""
    if not (_is_volta(plan) or _is_grace(plan)):
        return f"pip install -q torch=={_RELEASE}"
    cuda = (_CUDA_OF_VOLTA if _is_volta(plan) else _CUDA).replace(".", "")
    return f"pip install -q torch=={_RELEASE} --index-url https://download.pytorch.org/whl/cu{cuda}"


def _beside_primus(plan: Plan) -> list[str]:
    """What Primus' own code imports that NVIDIA's container may lack; AMD's holds it (its requirements.txt)."""
    return [] if plan.cluster.device.vendor == "amd" else ["pip install -q loguru pulp"]


def _tuning_tools(plan: Plan) -> dict[str, list[str]]:
    """Lines that bring a tool for fine-tuning, with what its file asks for beside it."""
    tune = plan.job.finetune
    flash = "flash-attn --no-build-isolation"
    flashed = [] if keeps_scores(plan.job) else [flash]
    quantised = tune is not None and tune.storage not in ("16-bit", "fp8")
    quantises = quantised or _BITSANDBYTES.search(plan.job.optimizer.name) is not None
    quantiser = ["bitsandbytes==0.50.2"] if quantises else []

    def beside(tool: str) -> list[str]:
        sharder = [f"deepspeed=={framework('deepspeed').checked}"]
        # The kernels of weights that are published in FP8 (integrations/finegrained_fp8.py).
        eight = ["kernels"] if stays_in_fp8(plan) else []
        return [*(sharder if brings_deepspeed(plan, tool) else []), *quantiser, *eight]

    packages = {
        # TRL's file asks for FlashAttention to keep packed documents apart, to bend scores, and else not.
        "trl": [f"'trl[peft]=={framework('trl').checked}' {_HUGGING}", *beside("trl"), *([flash] if FLASH in trl_words(plan).values() else [])],
        "axolotl": [f"--no-build-isolation axolotl=={framework('axolotl').checked}", *beside("axolotl"), *flashed],
        "llama-factory": [f"llamafactory=={framework('llama-factory').checked}", *beside("llama-factory"), *flashed],
        # Its newest release imports what torchao 0.15 and later no longer hold.
        "torchtune": [f"torchao==0.14.1 torchtune=={framework('torchtune').checked}", *quantiser],
        "verl": [f"'verl[verl-core]=={framework('verl').checked}'", *flashed],
    }  # fmt: skip
    found = {name: [f"pip install -q {one}" for one in words] for name, words in packages.items()}
    found["torchtune"] += torchtune.downloads(plan.model)
    return found


def _cloned(variable: str, repository: str, branch: str) -> list[str]:
    """Lines that put a repository's sources where the exported command looks for them."""
    folder = repository.rsplit("/", 1)[-1]
    address = f"https://github.com/{repository}"
    return [
        _GIT,
        f'export {variable}="${{{variable}:-$PWD/{folder}}}"',
        f'[ -d "${variable}" ] || git clone -q --depth 1 --recursive -b {branch} {address} "${variable}"',
    ]
