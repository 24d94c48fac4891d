"""The attention that a tool for fine-tuning is told: its words for a kernel, and what no kernel of it does.

Sources: transformers 5.23, `models/gemma2/modeling_gemma2.py` (`_supports_sdpa`), `models/gpt_oss/modeling_gpt_oss.py`
(`_compatible_flash_implementations`), `quantizers/quantizer_mxfp4.py`; TRL 1.16, `scripts/sft.py`; LLaMA-Factory
0.9.5, `model/model_utils/attention.py` and `quantization.py`; axolotl 0.21, `loaders/model.py`; verl 0.9.1,
`workers/engine/fsdp/transformer_impl.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.exports.hf_classes import takes_flash
from meshwright.exports.limit_rules import Problem
from meshwright.specs.cluster import Cluster
from meshwright.specs.frameworks import framework
from meshwright.specs.hf_carried import class_family
from meshwright.specs.job import Job
from meshwright.specs.model import Model
from meshwright.specs.plan import Plan

ALWAYS_FLASH = ("llama-factory", "axolotl", "verl")
"""Tools whose files ask for FlashAttention unless the plan keeps all scores."""
EAGER = "eager"
"""transformers' attention that keeps its scores."""
FLASH = "flash_attention_2"


def keeps_scores(job: Job) -> bool:
    """Whether a plan prices attention that keeps its scores."""
    return job.attention_kernel == "unfused"


def trl_words(plan: Plan) -> dict[str, str]:
    """`attn_implementation` of TRL, where it is not PyTorch's own attention.

    Rows without padding keep their documents apart by positions, which FlashAttention alone reads; accelerate
    splits sequences of PyTorch's own attention alone.
    """
    if keeps_scores(plan.job):
        return {"attn_implementation": EAGER}
    if plan.layout.cp > 1:
        return {"attn_implementation": "sdpa"}
    bent = bends_scores(plan.model) and plan.cluster.device.has_bf16
    flash = plan.job.document_masking or bent
    return {"attn_implementation": FLASH} if flash else {}


def axolotl_words(plan: Plan) -> dict[str, Any]:
    """axolotl's words for attention, and for weights of 4 bits that have to be widened to be trained."""
    words: dict[str, Any] = {"attn_implementation": EAGER if keeps_scores(plan.job) else FLASH}
    if plan.model.family == "gpt_oss":
        words |= {
            "model_quantization_config": "Mxfp4Config",
            "model_quantization_config_kwargs": {"dequantize": True},
        }
    return words


def bends_scores(model: Model) -> bool:
    """Whether scores are bent towards a limit, which PyTorch's own attention cannot do: whole scores would be kept.

    FlashAttention can, on Ampere and newer.
    """
    own = model.numerics.attention_softcap if model.numerics is not None else None
    return model.family == "gemma2" if own is None else own > 0


def kernel_problems(tool: str, model: Model, job: Job, cluster: Cluster) -> Iterator[Problem]:
    """Kernels that a plan prices and a tool does not have for this model, data or device."""
    if keeps_scores(job):
        if job.document_masking and tool in ("trl", "verl"):
            says = "keeps packed documents apart by FlashAttention alone"
            yield Problem("job.attention_kernel", job.attention_kernel, says)
    elif not takes_flash(class_family(model)) and (tool in ALWAYS_FLASH or job.document_masking):
        says = "is told FlashAttention, which transformers' class of it does not take"
        yield Problem("model.family", model.family, says)
    elif model.attention_sinks:
        yield from _sinks(tool, model, cluster)
    if tool == "verl" and model.family == "gpt_oss":
        says = "is given published weights, which stay in 4 bits (MXFP4) beside the kernels that attention with sinks needs, and those do not train"
        yield Problem("model.family", model.family, says)


def _sinks(tool: str, model: Model, cluster: Cluster) -> Iterator[Problem]:
    """FlashAttention that knows sinks is built for Hopper; transformers has another for AMD."""
    priced = 'a --job file with attention_kernel = "unfused" prices them'
    if tool == "trl":
        # The package that brings such a kernel also keeps published weights in 4 bits, and TRL has no word against it.
        yield Problem(
            "model.attention_sinks",
            True,
            f"computes attention with sinks by keeping all its scores: {priced}",
        )
        return
    device = cluster.device
    if framework(tool).keeps_scores_of(model, device.vendor, device.name):
        says = f"computes attention with sinks by FlashAttention 3, which runs on Hopper; elsewhere with all scores: {priced}"
        yield Problem("cluster", cluster.name, says)
