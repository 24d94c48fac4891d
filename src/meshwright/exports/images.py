"""Where a framework comes from on a bare machine: an image that has it, or the commands that get it."""

from __future__ import annotations

from meshwright.specs.frameworks import framework
from meshwright.specs.plan import Plan

_TORCH = "pytorch/pytorch:2.13.0-cuda12.8-cudnn9-runtime"
_COMPILER = "pytorch/pytorch:2.13.0-cuda12.8-cudnn9-devel"
"""The same with nvcc, by which flash-attn and DeepSpeed's operators are built."""
_BUILDS = ("deepspeed", "nanotron", "trl", "axolotl", "llama-factory", "verl")
_NVIDIA = {
    # NVIDIA's container of Megatron-Bridge brings Transformer Engine, Megatron-Core and its sources.
    "megatron": "nvcr.io/nvidia/nemo:25.11",
    "megatron-bridge": "nvcr.io/nvidia/nemo:25.11",
    "primus": "nvcr.io/nvidia/nemo:25.11",  # AMD's own is ROCm's
}
_AMD = "rocm/primus:v26.5"
"""AMD's container with Megatron-LM, torchtitan and PyTorch for ROCm (README of AMD-AGI/Primus)."""


MAXTEXT = "0.2.5"
"""The release of MaxText whose own configuration reads our files (its page "Install MaxText")."""


def image(plan: Plan, name: str) -> str:
    """The container image for a framework on the plan's devices."""
    if plan.cluster.device.vendor == "amd":
        return _AMD
    return _NVIDIA.get(name, _COMPILER if name in _BUILDS else _TORCH)


def machine_image(plan: Plan, name: str) -> str | None:
    """The container that `setup` must run in on a machine with drivers alone; None where packages do."""
    needs = plan.cluster.device.vendor == "amd" or name in _NVIDIA
    return image(plan, name) if needs else None


def setup(plan: Plan, name: str, *, container: bool = False) -> list[str]:
    """Shell lines that bring a framework to a machine; in its own container fewer.

    Versions are those that the exports were checked against (the table of frameworks).
    """
    version = framework(name).checked
    torch = [] if container or plan.cluster.device.vendor == "amd" else ["pip install -q torch"]
    hugging = "transformers==5.23.0"
    lines = {
        "deepspeed": [*torch, f"pip install -q deepspeed=={version} {hugging}"],
        "accelerate": [*torch, f"pip install -q accelerate=={version} {hugging}"],
        "trainer": [*torch, f"pip install -q transformers=={version} accelerate=={framework('accelerate').checked}"],
        "lightning": [*torch, f"pip install -q lightning=={version}"],
        "torchtitan": [*torch, f"pip install -q torchtitan=={version}"],
        "fsdp": torch,
        "maxtext": [f"pip install -q 'maxtext[tpu]=={MAXTEXT}'", "install_tpu_pre_train_extra_deps"],
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
    extra = ["pip install -q liger-kernel"] if plan.job.loss == "liger" else []
    return [*lines.get(name, torch), *extra]


def _beside_primus(plan: Plan) -> list[str]:
    """What Primus' own code imports that NVIDIA's container may lack; AMD's holds it (its requirements.txt)."""
    return [] if plan.cluster.device.vendor == "amd" else ["pip install -q loguru pulp"]


def _tuning_tools(plan: Plan) -> dict[str, list[str]]:
    """Lines that bring a tool for fine-tuning, with what its file asks for beside it."""
    tune = plan.job.finetune
    beside = ["flash-attn --no-build-isolation"]
    if plan.layout.zero:
        beside.append("deepspeed")
    if (tune is not None and tune.storage != "16-bit") or "8bit" in plan.job.optimizer.name:
        beside.append("bitsandbytes")
    packages = {
        "trl": [f"'trl[peft]=={framework('trl').checked}'", *beside],
        "axolotl": [f"--no-build-isolation axolotl=={framework('axolotl').checked}", *beside],
        "llama-factory": [f"llamafactory=={framework('llama-factory').checked}", *beside],
        "torchtune": [f"torchao torchtune=={framework('torchtune').checked}"],
        "verl": [f"'verl[verl-core]=={framework('verl').checked}'", beside[0]],
    }
    return {name: [f"pip install -q {one}" for one in words] for name, words in packages.items()}


def _cloned(variable: str, repository: str, branch: str) -> list[str]:
    """Lines that put a repository's sources where the exported command looks for them."""
    folder = repository.rsplit("/", 1)[-1]
    address = f"https://github.com/{repository}"
    return [
        "command -v git > /dev/null || { apt-get -qq update && apt-get -qq install -y git; }",
        f'export {variable}="${{{variable}:-$PWD/{folder}}}"',
        f'[ -d "${variable}" ] || git clone -q --depth 1 --recursive -b {branch} {address} "${variable}"',
    ]
