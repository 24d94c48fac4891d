"""What whoever starts a fine-tuning tool should know of a plan: what it keeps, and what its rows are."""

from __future__ import annotations

from meshwright.exports import torchtune
from meshwright.exports.bundle import steps
from meshwright.exports.finetuning import brings_deepspeed, packed, splits_layers, tuning_of
from meshwright.exports.model_names import in_fp8, repository
from meshwright.exports.seeing import seen_by
from meshwright.specs.job_words import without_master
from meshwright.specs.plan import Plan


def notes(plan: Plan, tool: str) -> tuple[str, ...]:
    """What whoever starts a tool should know: what it keeps, and what its rows are."""
    yours = (
        "learning rate is" if plan.job.token_budget else "learning rate and length of the run are"
    )
    told = (
        f"{yours} yours: the plan knows only the cost",
        *_weights(plan, tool),
        *_masters(plan, tool),
    )
    if tool == "trl" and plan.job.loss == "framework":
        told += (
            "TRL 1.16 never makes all logits, less memory than the plan priced: plan with --loss chunked to count that",
        )
    narrow = without_master(plan.job) and not tuning_of(plan).adapts
    if tool in ("torchtune", "verl") and narrow and plan.job.optimizer.name == "adamw":
        told += (f"{tool}'s moments are as wide as the 16-bit weights, less than the plan priced: plan with "
                 "--optimizer adamw-bf16 to count that",)  # fmt: skip
    if plan.model.encoder is not None and seen_by(tool, plan):
        told += (f"rows hold {plan.model.encoder.kind} beside their words: {_ROWS[tool]}",)
    if tool == "torchtune" and plan.job.token_budget:
        told += (
            f"torchtune ends with its data: fewer than {steps(plan.job)} steps where one pass has fewer",
        )
    if tool == "torchtune":
        where = "; ".join(torchtune.downloads(plan.model))
        told += (
            (f"run.sh and SLURM bring no weights; once on every host: {where}",) if where else ()
        )
    if tool == "verl":
        # verl/utils/dataset/multiturn_sft_dataset.py: one row, one sequence; each message goes through the template.
        return (*told, "verl packs nothing: rows shorter than data.max_length train less than the plan priced; "
                "conversations need a tokenizer with a chat template")  # fmt: skip
    if (
        tool == "trl"
        and plan.layout.cp > 1
        and not packed(plan)["packing"]
        and not seen_by("trl", plan)
    ):
        return (*told, "TRL packs nothing beside context parallelism: rows shorter than max_length train less "
                "than the plan priced")  # fmt: skip
    if tool in ("trl", "llama-factory") or plan.job.document_masking:
        return told
    if seen_by(tool, plan):
        return told
    return (*told, "attention stays inside each packed document: less work than the plan priced")


_ROWS = {
    "llama-factory": "say their column to LLaMA-Factory (data/README.md)",
    "trl": "columns messages and images; the processor's own limit decides how large they are, and TRL packs none of them: "
    "rows shorter than max_length train less than the plan priced",
    "axolotl": "messages whose content names them (docs/multimodal.qmd); axolotl packs none of them: rows shorter than "
    "sequence_len train less than the plan priced",
}


def stays_in_fp8(plan: Plan) -> bool:
    """Whether weights are published in 8 bits and the plan's devices compute with them: elsewhere they are widened."""
    return in_fp8(plan.model) and "fp8" in plan.cluster.device.peak_flops


def _weights(plan: Plan, tool: str) -> tuple[str, ...]:
    """Where the weights come from, if anywhere, and what they are kept as where nobody is told so."""
    source = repository(plan.model)
    if source is None:
        return (
            f"weights named {plan.model.name} are published nowhere that is known here: name yours in the file",
        )
    told = f"weights are {source}'s: if access to them is granted by name, HF_TOKEN must be set"
    if tool == "verl" or not stays_in_fp8(plan) or tuning_of(plan).storage == "fp8":
        return (told,)
    return (told, f"{source} is published in FP8, and frozen weights stay so on these devices: half of what the plan priced; "
            'a --job file with storage = "fp8" in [finetune] prices that')  # fmt: skip


def _masters(plan: Plan, tool: str) -> tuple[str, ...]:
    """Where a tool keeps 32-bit weights that a plan did not price, or none that it priced.

    Sources: `_configure_master_weights` in deepspeed/runtime/base_optimizer.py; TRL loads weights as its `dtype`
    says, axolotl in bf16 where `bf16` is on (`resolve_dtype` in axolotl/utils/config/__init__.py), torchtune as its own;
    LLaMA-Factory trains 32-bit weights under autocast where nothing shards.
    verl's file says which (`engine.model_dtype`).
    """
    sharded = plan.layout.zero > 0
    priced = plan.job.precision.master_bytes > 0 or plan.job.precision.parameter_bytes > 2
    keeps = {
        "trl": sharded,
        "axolotl": brings_deepspeed(plan, tool),
        "llama-factory": True,
        "torchtune": False,
    }.get(tool, priced)
    if tuning_of(plan).adapts or keeps == priced:
        return ()
    if priced:
        return (f"{tool} trains 16-bit weights without 32-bit weights beside them, less than the plan priced: "
                "plan with --precision pure-bf16 --optimizer adamw-bf16 to count that",)  # fmt: skip
    who = "DeepSpeed" if sharded and not splits_layers(plan) else tool
    return (f"{who} keeps 32-bit weights and moments beside 16-bit weights, which the plan did not price: "
            "plan with --precision bf16 --optimizer adamw to count them",)  # fmt: skip
