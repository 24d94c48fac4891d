"""verl's training engines: how FSDP, Megatron, VeOmni and torchtitan lay a model out under its options.

Names and defaults: verl/trainer/config/engine/*.yaml, optim/*.yaml and model/hf_model.yaml.
"""

from __future__ import annotations

from typing import Any

from meshwright.imports.formats.megatron import recomputation, split_stages
from meshwright.imports.formats.megatron_job import optimizer_of
from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.imports.recipes import optimizer_or_adamw, weights_alone
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

_RENAMED = {
    "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
    "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
}


_POLICY = "actor_rollout_ref.model."


def sft_engine(options: Options) -> str:
    """Which engine verl's SFT trainer runs on: its group, or a field that only one of them has."""
    said = options.word("engine", "engine._group_", "engine.strategy")
    told = next((one for one in ("megatron", "veomni", "torchtitan") if said == one), "")
    if told or said.startswith("fsdp"):
        return told or "fsdp"
    if options.has("engine.tensor_model_parallel_size", "engine.pipeline_model_parallel_size"):
        return "megatron"
    if options.has("engine.ulysses_parallel_size", "engine.enable_full_shard", "engine.enable_fsdp_offload"):  # fmt: skip
        return "veomni"
    return "torchtitan" if options.has("engine.tensor_parallel_size", "engine.context_parallel_size") else "fsdp"  # fmt: skip


def engine_of(options: Options, actor: str) -> str:
    """Which engine trains: `fsdp`, `megatron`, `veomni`, `torchtitan` or `mindspeed`, Megatron's for Ascend."""
    said = options.word(f"{actor}strategy", "model_engine", default="")
    for one in ("megatron", "veomni", "torchtitan", "mindspeed"):
        if said.startswith(one) or any(
            name.startswith(f"{actor}{one}.") for name in options.values
        ):
            return one
    return "fsdp"


def _inner(options: Options, where: str, optim: str) -> tuple[Options, dict[str, str]]:
    """Options of Megatron-LM that verl hands on, by its own flags; and the names they have here."""
    flags: dict[str, Any] = {}
    outer: dict[str, str] = {}
    tables = (f"{where}override_transformer_config.", f"{where}mcore_kwargs.", f"{optim}override_optimizer_config.", optim)  # fmt: skip
    for table in tables:
        for name, value in options.values.items():
            if name.startswith(table) and "." not in name[len(table) :]:
                flag = name[len(table) :].replace("_", "-")
                flag = _RENAMED.get(flag, flag)
                flags.setdefault(flag, value)
                outer.setdefault(flag, name)
    stages = f"{where}virtual_pipeline_model_parallel_size"
    if options.whole(stages, default=1) > 1:
        flags["virtual-pipeline-model-parallel-size"] = options.whole(stages)
    return Options(flags, absent=("auto", "null", "none")), outer


def megatron_layout(
    options: Options, reading: Reading, where: str, optim: str, model: Model | None
) -> None:
    """Degrees, stages, recomputation and offload of verl's Megatron engine, whose fields lie under `where`.

    Raises:
        SpecError: a value that cannot be.
    """
    tp = options.whole(f"{where}tensor_model_parallel_size", default=1) or 1
    if not options.has(f"{where}tensor_model_parallel_size"):
        reading.guess(
            f"{where}tensor_model_parallel_size",
            "it is in verl's own configuration; 1, today's, is taken",
        )
    pp = options.whole(f"{where}pipeline_model_parallel_size", default=1) or 1
    virtual = options.whole(f"{where}virtual_pipeline_model_parallel_size", default=1) or 1
    inner, outer = _inner(options, where, optim)
    distributed = options.flag(f"{where}use_distributed_optimizer", default=True)
    reading.layout = {
        "tp": tp, "pp": pp, "cp": options.whole(f"{where}context_parallel_size", default=1) or 1,
        "ep": options.whole(f"{where}expert_model_parallel_size", default=1) or 1,
        "etp": options.whole(f"{where}expert_tensor_parallel_size", default=tp) or tp,
        "virtual_stages": virtual if pp > 1 else 1, "schedule": "interleaved" if virtual > 1 and pp > 1 else "1f1b",
        "sequence_parallel": tp > 1 and options.flag(f"{where}sequence_parallel", default=True), "zero": 1 if distributed else 0,
    }  # fmt: skip
    if reading.layout["cp"] > 1:
        reading.layout["cp_method"] = "ring"
    if model is not None and pp > 1:
        stages, split = split_stages(inner, model, pp)
        if split is not None:
            reading.layout |= {"stage_layers": split, "virtual_stages": stages}
    reading.layout |= _again(options, reading, where, inner, virtual)
    reading.job["framework"] = "megatron"
    if options.flag(f"{where}use_megatron_fsdp"):
        reading.job["framework"] = "megatron-fsdp"
        reading.layout["zero"] = 3
    reading.job["optimizer"] = optimizer_of(inner, reading).model_dump()
    options.read |= {outer[flag] for flag in inner.read if flag in outer}


def _again(
    options: Options, reading: Reading, where: str, inner: Options, virtual: int
) -> dict[str, Any]:
    """What is recomputed: today the transformer's own field says it, in releases of 2025 the model's switch."""
    switch = options.flag(
        "actor_rollout_ref.model.enable_gradient_checkpointing",
        "model.enable_gradient_checkpointing",
    )
    told = inner.has("recompute-granularity")
    if told or inner.has("recompute-method", "recompute-num-layers"):
        return recomputation(inner, reading, virtual)
    if switch:
        reading.guess(
            "enable_gradient_checkpointing",
            "switches Megatron's recomputation on in releases of 2025, in later ones recompute_granularity does: full is taken",
        )
    return {"recompute": "full" if switch else "none"}


def sharing(options: Options, *names: str) -> int:
    """Ranks that share a sequence: the older name, `actor.ulysses_sequence_parallel_size`, counts only where it says more than one."""
    return next((many for name in names if (many := options.whole(name, default=1)) > 1), 1)


def offloaded(options: Options, reading: Reading, *strategies: str) -> None:
    """FSDP2's policy of offloading, which verl's first FSDP, its default, does not ask for."""
    if options.word(*strategies, default="fsdp") == "fsdp":
        reading.note("only fsdp2 offloads during a step; fsdp, which runs here, does not take it", "offload_policy")  # fmt: skip
    else:
        reading.offload |= {"optimizer", "parameters"}


def fsdp_layout(options: Options, reading: Reading, actor: str) -> None:
    """Sharding, recomputation and offload of verl's FSDP engine.

    Raises:
        SpecError: a value that cannot be.
    """
    where = f"{actor}fsdp_config."
    sp = sharing(options, f"{actor}ulysses_sequence_parallel_size", f"{where}ulysses_sequence_parallel_size")  # fmt: skip
    whole = options.word(f"{where}reshard_after_forward", default="true") != "false"
    reading.layout = {"zero": 3 if whole else 2, "cp": sp, "recompute": _switched(options, reading)}
    reading.shard = max(int(options.number(f"{where}fsdp_size", default=-1)), 0)
    if sp > 1:
        reading.layout["cp_method"] = "ulysses"
    if options.flag(f"{where}offload_policy"):
        offloaded(options, reading, f"{actor}strategy", f"{where}strategy")
    if options.flag(f"{where}cpu_offload"):
        reading.offload |= {"optimizer", "parameters"}
    if "bf" in options.word(f"{where}model_dtype", default="fp32"):
        reading.job["precision"] = RECIPES["pure-bf16"].model_dump()


def veomni_layout(options: Options, reading: Reading, where: str, model: str = _POLICY) -> None:
    """Sharding of verl's VeOmni engine, whose fields lie under `where` and the model's under `model`.

    Raises:
        SpecError: a value that cannot be.
    """
    sp = options.whole(f"{where}ulysses_parallel_size", default=1) or 1
    whole = options.flag(f"{where}enable_full_shard", default=True)
    reading.layout = {
        "zero": 3 if whole else 2, "cp": sp, "ep": options.whole(f"{where}expert_parallel_size", default=1) or 1,
        "recompute": _switched(options, reading, model),
    }  # fmt: skip
    reading.shard = max(int(options.number(f"{where}fsdp_size", default=-1)), 0)
    if sp > 1:
        reading.layout["cp_method"] = "ulysses"
    if options.flag(f"{where}enable_fsdp_offload"):
        reading.offload |= {"optimizer", "parameters"}


def torchtitan_layout(options: Options, reading: Reading, where: str) -> None:
    """Degrees of verl's torchtitan engine, whose fields lie under `where`.

    Raises:
        SpecError: a value that cannot be.
    """
    degrees = {
        axis: options.whole(f"{where}{name}_parallel_size", default=1) or 1
        for axis, name in (
            ("tp", "tensor"),
            ("pp", "pipeline"),
            ("cp", "context"),
            ("ep", "expert"),
        )
    }
    kind = options.word(f"{where}activation_checkpoint", default="selective")
    reading.layout = {**degrees, "zero": 3, "recompute": kind if kind in ("full", "selective") else "none"}  # fmt: skip
    reading.layout["sequence_parallel"] = degrees["tp"] > 1
    if options.word(f"{where}reshard_after_forward") in ("never", "false"):
        reading.layout["zero"] = 2
    reading.replicate = options.whole(f"{where}data_parallel_replicate_size", default=1)
    if reading.replicate <= 1:
        reading.replicate = 0
    reading.shard = max(0, options.whole(f"{where}data_parallel_shard_size", default=0))
    if reading.shard == 1:
        reading.shard, reading.layout["zero"] = 0, 0
    if options.flag(f"{where}offload_policy"):
        reading.offload |= {"optimizer", "parameters"}


def _switched(options: Options, reading: Reading, model: str = _POLICY) -> str:
    name = f"{model}enable_gradient_checkpointing"
    if not options.has(name):
        reading.guess(name, "is not set: on in verl (off in its first releases); on is taken")
    return "full" if options.flag(name, default=True) else "none"


def model_switches(options: Options, reading: Reading, where: str) -> None:
    """What the model's own table, `where`, says of memory: offload of activations, fused losses, attention's kernel."""
    if options.flag(f"{where}enable_activation_offload"):
        reading.offload.add("activations")
    if options.flag(f"{where}use_liger"):
        reading.job["loss"] = "liger"
    if options.flag(f"{where}use_fused_kernels"):
        reading.job["loss"] = "liger"  # logits are made and reduced in pieces
    kernel = options.word(
        f"{where}override_config.attn_implementation",
        f"{where}override_config._attn_implementation",
    )
    if kernel == "eager":
        reading.job["attention_kernel"] = "unfused"


def optimizer(options: Options, reading: Reading, optim: str) -> None:
    """The optimizer of FSDP's engine by its name and its library."""
    name = options.word(f"{optim}optimizer", f"{optim}name", default="adamw")
    library = options.word(f"{optim}optimizer_impl", default="torch.optim")
    found = optimizer_or_adamw(reading, name, f"{optim}optimizer")
    if library not in ("torch.optim", "torch.optim.adamw") and found.name == "adamw":
        reading.unmodelled(f"{optim}optimizer_impl", f"{library}'s states may be narrower than AdamW's")  # fmt: skip
    reading.job["optimizer"] = found.model_dump()
    weights_alone(reading.job, sharded=True)


def beside_training(options: Options, reading: Reading) -> None:
    """Name what else holds memory of the training devices, or trains beside the policy."""
    if options.flag("distillation.enabled"):
        teacher = next((str(v) for n, v in options.values.items() if n.startswith("distillation.") and n.endswith("model_path") and v), "")  # fmt: skip
        reading.unmodelled(
            "distillation",
            f"a frozen teacher{f', {teacher[:60]},' if teacher else ''} answers on {options.whole('distillation.n_gpus_per_node') or 'its'} devices of its own; not priced",
        )
    apart = not options.flag("actor_rollout_ref.hybrid_engine", default=True)
    if apart:
        reading.note("answers are generated on devices of their own; those that train are priced", "actor_rollout_ref.hybrid_engine")  # fmt: skip
    elif not options.flag("actor_rollout_ref.rollout.free_cache_engine", default=True):
        kept = options.number("actor_rollout_ref.rollout.gpu_memory_utilization", default=0.5)
        reading.unmodelled(
            "actor_rollout_ref.rollout.free_cache_engine",
            f"generation keeps its memory, up to {kept:.0%} of each device, while the policy trains there; not priced",
        )
    if options.word("trainer.device", default="cuda") == "npu":
        reading.likely = "ascend-910b"


def critic(options: Options, reading: Reading) -> None:
    """Say that a critic trains beside the policy, or leave out the words for one that none asks for.

    verl makes one where `critic.enable` says so, and else for generalised advantages, its default.
    """
    served = {name for name in options.values if name.startswith("server.")}
    if served and not options.has(
        "algorithm.adv_estimator"
    ):  # verl's recipe that trains for Tinker's clients
        options.read |= served
        reading.unmodelled("server", "trains what its clients send, by their losses and batches; the policy's own are priced")  # fmt: skip
        return
    told = options.raw("critic.enable")
    asked = options.flag("critic.enable") if told not in (None, "", "null") else options.word("algorithm.adv_estimator", default="gae").rsplit(".", 1)[-1] == "gae"  # fmt: skip
    words = {name for name in options.values if name.startswith("critic.")}
    if not asked:
        options.read |= words
    elif not words:
        reading.unmodelled("algorithm.adv_estimator", "a critic of the policy's size trains, too, and is held beside it; the policy is priced")  # fmt: skip
