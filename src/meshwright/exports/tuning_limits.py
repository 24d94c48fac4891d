"""What a tool for fine-tuning cannot start whatever the layout: adapters without a place, attention without a kernel.

Sources: the modelling files of transformers 5 (names of linear layers; experts as one parameter).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from meshwright.exports.adapter_names import ADAPTED
from meshwright.exports.freezing import frozen_problems
from meshwright.exports.limit_rules import Problem
from meshwright.exports.model_names import brings_code, in_fp8, part_of
from meshwright.exports.seeing import seeing_problems
from meshwright.exports.tuning_attention import kernel_problems
from meshwright.specs.cluster import Cluster
from meshwright.specs.finetune import GROUPS, Finetune
from meshwright.specs.job import Job
from meshwright.specs.job_words import quantises_experts
from meshwright.specs.model import Model

_FFN = frozenset({"gate", "up", "down"})
_OTHERWISE_NAMED: dict[str, frozenset[str]] = {
    # Family → our names of matrices that it does not call q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj.
    "bloom": frozenset({"q", "k", "v", "o"}) | _FFN, "gpt2": frozenset({"q", "k", "v", "o"}) | _FFN,
    "gpt_neox": frozenset({"q", "k", "v", "o"}) | _FFN, "mpt": frozenset({"q", "k", "v", "o"}),
    "phi3": frozenset({"q", "k", "v", "gate", "up"}), "opt": frozenset({"o"}) | _FFN, "gptj": frozenset({"o"}) | _FFN,
    "phi": frozenset({"o"}) | _FFN, "starcoder2": _FFN,
}  # fmt: skip


def problems_of(tool: str) -> Callable[[Model, Job, Cluster], Iterator[Problem]]:
    """The rules of one tool."""

    def found(model: Model, job: Job, cluster: Cluster) -> Iterator[Problem]:
        tune = job.finetune
        if tune is None:
            yield Problem("finetune", None, "fine-tunes: plan with --finetune full, lora or qlora")
            return
        if tune.adapts:
            yield from _placeless(model, tune)
            if tool == "verl" and (tune.method != "lora" or tune.storage != "16-bit"):
                says = "trains lora over 16-bit weights with its FSDP engine"
                yield Problem("finetune.method", tune.method, says)
            if tool == "verl" and tune.dropout:
                says = "has no dropout before its adapters"
                yield Problem("finetune.dropout", tune.dropout, says)
        yield from _published(tool, model, job, tune)
        yield from frozen_problems(tool, model, tune)
        yield from seeing_problems(tool, model, job)
        if part_of(model):
            says = "loads a published checkpoint whole, and this one holds an image encoder, too, which the plan did not price: plan its config.json"
            yield Problem("model", model.name, says)
        if brings_code(model):
            says = "loads checkpoints by transformers' own classes, and this one comes with code of its own (trust_remote_code)"
            yield Problem("model", model.name, says)
        yield from kernel_problems(tool, model, job, cluster)

    return found


_TOLD = ("16-bit", "nf4", "fp4", "int8")
"""What a tool's file can ask of frozen weights."""


def _published(tool: str, model: Model, job: Job, tune: Finetune) -> Iterator[Problem]:
    """What published weights do not become: fewer bits twice, trained in 8 bits, a longer table of positions."""
    if quantises_experts(model, job) and tool != "axolotl":
        says = (
            "quantises linear layers, and transformers 5 holds experts' matrices as one parameter, which stays in "
            "16 bits: plan with --framework axolotl, or --finetune lora"
        )
        yield Problem("finetune.storage", tune.storage, says)
    narrow = in_fp8(model) and tool != "verl"
    if tune.storage not in _TOLD and not (narrow and tune.storage == "fp8"):
        says = f"keeps frozen weights in one of {', '.join(_TOLD)}, or as they are published"
        yield Problem("finetune.storage", tune.storage, says)
    elif narrow and (tune.storage not in ("16-bit", "fp8") or not tune.adapts):
        do = f"of which no {tune.storage} is made" if tune.adapts else "which do not train"
        says = f"is given weights that are published in FP8, {do}: plan with --finetune lora"
        yield Problem("finetune", tune.label(), says)
    if model.positions == "learned" and 0 < model.max_positions < job.seq_len:
        says = f"is given published weights, whose table has {model.max_positions:,} positions"
        yield Problem("seq_len", job.seq_len, says)


def _placeless(model: Model, tune: Finetune) -> Iterator[Problem]:
    """Adapters on matrices that are no linear layers of that name."""
    targets = list(tune.targets)
    if unknown := [one for one in targets if one not in ADAPTED]:
        yield Problem(
            "finetune.targets", targets, f"has no name for adapters on {', '.join(unknown)}"
        )
    if model.experts is not None and _FFN & set(targets):
        says = "adapts linear layers, and transformers 5 holds experts' matrices as one parameter: plan with --targets attention"
        yield Problem("finetune.targets", targets, says)
        return
    if tune.targets == GROUPS["all-linear"]:
        return
    other = _OTHERWISE_NAMED.get(model.family, frozenset())
    if missing := [one for one in targets if one in other]:
        says = f"finds no layer of its own for {', '.join(missing)} in {model.family}: plan with --targets all-linear"
        yield Problem("finetune.targets", targets, says)
