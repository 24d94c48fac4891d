"""Megatron-LM: a plan as the flags of `pretrain_gpt.py`, and flags as a layout.

Follows `megatron/training/arguments.py` of megatron-core 0.19.2.
"""

from __future__ import annotations

from math import gcd

from meshwright.exports.bundle import steps
from meshwright.exports.canonical import TP_PP_DP_ORDER, canonical, even_split
from meshwright.exports.limits import Limits
from meshwright.exports.megatron_model import Flags, model_flags, model_problems, unsaid
from meshwright.planner.dispatchers import backend, deduplicates
from meshwright.planner.graphs import graphs_of
from meshwright.specs.errors import SpecError
from meshwright.specs.layout import OFFLOAD_MODULES, Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Plan

SHARDING = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
COMMUNICATION = {
    "all-gather": "all_gather", "ring": "p2p", "ulysses": "a2a", "hierarchical": "a2a+p2p",
}  # fmt: skip
_ATTENTION = {"flash": "auto", "unfused": "unfused"}
"""Our kernel → `--attention-backend`. Flash attention is priced as Transformer Engine chooses it: cuDNN's kernel on
Hopper and newer; told `flash`, it would take FlashAttention 2 there (dot_product_attention/utils.py)."""


LIMITS = Limits("Megatron-LM", "megatron", model_problems)
VERSION = LIMITS.can.checked


def notes(plan: Plan) -> tuple[str, ...]:
    """What no flag says of a plan's model."""
    return unsaid(plan.model)


def dispatch_flags(plan: Plan) -> Flags:
    """Flags of the library that sends tokens to their experts, where it is not an all-to-all."""
    if plan.model.experts is None or not deduplicates(plan.job):
        return {}
    return {
        "moe-token-dispatcher-type": "flex",
        "moe-flex-dispatcher-backend": backend(plan.cluster),
    }


def graph_flags(plan: Plan) -> Flags:
    """Flags of CUDA graphs and of the capacity of experts, where the plan has them."""
    flags: Flags = {}
    if plan.job.routing.capacity and plan.model.experts:
        flags["moe-expert-capacity-factor"] = f"{plan.job.routing.capacity:g}"
    kind = graphs_of(plan.job)
    if kind == "none":
        return flags
    # Recorded kernels need a random state that a replay moves on.
    flags["te-rng-tracker"] = True
    if kind == "all":
        # A check for NaN waits for the device, which a captured iteration cannot.
        return flags | {
            "cuda-graph-impl": "full_iteration",
            "no-check-for-nan-in-loss-and-grad": True,
        }
    experts = plan.model.experts
    modules = ["attn"]
    if experts is None or experts.dense_layers or experts.period > 1:
        modules.append("mlp")
    if experts is not None:
        modules.append("moe_router")
        if deduplicates(plan.job) or not plan.job.routing.capacity:
            modules.append(
                "moe_preprocess"
            )  # an all-to-all that drops tokens counts them on the host
    return flags | {
        "cuda-graph-impl": "transformer_engine",
        "cuda-graph-modules": " ".join(modules),
    }


def parallel_flags(plan: Plan) -> Flags:
    """Flags that lay the job out: degrees, sharding, schedule, recomputation."""
    layout = canonical(plan.layout, plan.model)
    flags: Flags = {
        "tensor-model-parallel-size": str(layout.tp),
        "pipeline-model-parallel-size": str(layout.pp),
        "context-parallel-size": str(layout.cp),
        "micro-batch-size": str(layout.micro_batch),
        "global-batch-size": str(plan.job.global_batch),
    }
    if layout.cp > 1:
        flags["cp-comm-type"] = COMMUNICATION[layout.cp_method]
    if layout.cp > 1 and layout.cp_method == "hierarchical":
        inner = gcd(
            layout.cp, plan.cluster.fast_domain // layout.tp, plan.model.kv_heads // layout.tp
        )
        flags["hierarchical-context-parallel-sizes"] = f"{inner} {layout.cp // inner}"
    if plan.model.experts:
        flags["expert-model-parallel-size"] = str(layout.ep)
        flags["expert-tensor-parallel-size"] = str(layout.etp)
    if layout.sequence_parallel:
        flags["sequence-parallel"] = True
    if layout.rank_order == TP_PP_DP_ORDER:
        flags["use-tp-pp-dp-mapping"] = True
    flags |= _stage_flags(layout, plan.model) | _shard_flags(layout)
    moved = _offload(layout, plan.model, whole_graph=graphs_of(plan.job) == "all")
    return flags | _recompute(layout) | moved | _narrow_gradients(plan, layout)


def _narrow_gradients(plan: Plan, layout: Layout) -> Flags:
    """The precision-aware optimizer, by which states leave for host memory, widens gradients unless told."""
    narrow = plan.job.precision.gradient_bytes < 4 and plan.job.precision.compute != "fp32"
    return {"main-grads-dtype": "bf16"} if narrow and "optimizer" in layout.offload else {}


def _stage_flags(layout: Layout, model: Model) -> Flags:
    if layout.pp == 1:
        return {}
    even = model.layers % (layout.pp * layout.virtual_stages) == 0
    if layout.stage_layers is None and even:
        if layout.virtual_stages == 1:
            return {}
        return {"num-virtual-stages-per-pipeline-rank": str(layout.virtual_stages)}
    split = layout.stage_layers or even_split(model.layers, layout.pp, layout.virtual_stages)
    return {"pipeline-model-parallel-layout": layout_string(split)}


def layout_string(split: tuple[int, ...]) -> str:
    """The pipeline layout string: E embedding, t transformer layer, L loss, | next stage."""
    stages = ["t" * layers for layers in split]
    stages[0] = "E" + stages[0]
    stages[-1] += "L"
    return "|".join(stages)


def _shard_flags(layout: Layout) -> Flags:
    if layout.zero == 0:  # the plan prices gradients that are reduced beside the backward here, too
        return {"overlap-grad-reduce": True}
    # Megatron-FSDP turns both on itself where it shards weights, but gathers at once where it shards gradients alone.
    flags: Flags = {
        "use-distributed-optimizer": True, "overlap-grad-reduce": True, "overlap-param-gather": True,
    }  # fmt: skip
    if layout.zero > 1:
        flags |= {
            "use-megatron-fsdp": True,
            "data-parallel-sharding-strategy": SHARDING[layout.zero],
            "ckpt-format": "fsdp_dtensor",
            "no-gradient-accumulation-fusion": True,
        }
        if layout.zero == 3:
            flags["init-model-with-meta-device"] = True
    if layout.shard:
        instances = layout.dp * layout.cp // layout.shard
        flags["num-distributed-optimizer-instances"] = str(instances)
    return flags


def _recompute(layout: Layout) -> Flags:
    if layout.recompute == "selective":
        modules = " ".join(layout.recompute_modules or ("core_attn",))
        return {"recompute-granularity": "selective", "recompute-modules": modules}
    if layout.recompute == "none":
        return {}
    if layout.recompute_layers:
        per_chunk = layout.recompute_layers // layout.virtual_stages
        return {
            "recompute-granularity": "full",
            "recompute-method": "block",
            "recompute-num-layers": str(per_chunk),
        }
    return {
        "recompute-granularity": "full",
        "recompute-method": "uniform",
        "recompute-num-layers": "1",
    }


def offload_names(layout: Layout, model: Model) -> list[str]:
    """Parts of layers whose inputs leave for host memory: the named ones, or all that Megatron-Core can move."""
    if "activations" not in layout.offload:
        return [one for one in OFFLOAD_MODULES if one in layout.offload]
    names = ["attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm"]
    if model.experts and "moe" not in layout.recompute_modules:
        names += ["expert_fc1", "moe_act"]  # inside what runs again nothing can leave
    return names


def _offload(layout: Layout, model: Model, *, whole_graph: bool) -> Flags:
    """What lives in host memory: the optimizer's states, or what modules keep for backward."""
    flags: Flags = {}
    if "optimizer" in layout.offload:
        # optimizer/cpu_offloading: the hybrid optimizer reuses the precision-aware one's code.
        flags |= {
            "optimizer-cpu-offload": True,
            "optimizer-offload-fraction": "1.0",
            "use-precision-aware-optimizer": True,
        }
    if names := offload_names(layout, model):
        flags |= {"fine-grained-activation-offloading": True, "offload-modules": " ".join(names)}
        if whole_graph:
            flags["fine-grained-offloading-max-inflight-offloads"] = (
                "1"  # a graph holds a fixed number of copies
            )
    return flags


def job_flags(plan: Plan) -> Flags:
    """Flags of precision, optimizer, kernels, data and length of the run."""
    job, model = plan.job, plan.model
    flags: Flags = {
        "attention-backend": _ATTENTION[job.attention_kernel],
        # The mask of 128k tokens would be 16 GiB a sample; every kernel here knows the causal one.
        "no-create-attention-mask-in-dataloader": True,
        "train-iters": str(steps(job)),
        "lr": "3e-4",
        "min-lr": "3e-5",
        "lr-decay-style": "cosine",
        "lr-warmup-fraction": "0.01",
        "adam-beta1": "0.9",
        "adam-beta2": "0.95",
        "adam-eps": "1e-8",
        "init-method-std": "0.02",
        "clip-grad": "1.0",
        "weight-decay": "0.1",
        "vocab-size": str(model.vocab),
        "log-interval": "1",
        "log-throughput": True,
        "eval-iters": "0",
        "distributed-timeout-minutes": "60",
    }
    if job.attention_kernel == "unfused":
        # Without a fused kernel the mask is applied by hand.
        del flags["no-create-attention-mask-in-dataloader"]
    if job.dropout:
        flags["hidden-dropout"] = str(job.dropout)
    compute = job.precision.compute
    if compute in ("bf16", "fp8", "fp4"):
        flags["bf16"] = True
        if job.precision.gradient_reduce_bytes < 4:
            flags["grad-reduce-in-bf16"] = True
    if compute == "fp16":
        flags["fp16"] = True
        if job.precision.gradient_reduce_bytes >= 4:
            flags["accumulate-allreduce-grads-in-fp32"] = True
    if compute == "fp8":
        # Scales of the tensor itself, as Megatron-Bridge's export has them: delayed ones refuse to run norms again.
        flags |= {"fp8-format": "hybrid", "fp8-recipe": "tensorwise"}
    if compute == "fp4":
        flags["fp4-format"] = "e2m1"
    optimizer = job.optimizer.name
    flags["optimizer"] = {"adamw": "adam", "sgd-momentum": "sgd"}.get(optimizer, optimizer)
    if optimizer in ("sgd", "sgd-momentum"):
        flags["sgd-momentum"] = "0.9" if optimizer == "sgd-momentum" else "0.0"
    return flags


def all_flags(plan: Plan) -> Flags:
    """Every flag of the command line, architecture first."""
    return model_flags(plan.model, plan.job.seq_len) | run_flags(plan)


def run_flags(plan: Plan) -> Flags:
    """Every flag but those of the architecture."""
    return parallel_flags(plan) | job_flags(plan) | dispatch_flags(plan) | graph_flags(plan)


LISTED = (
    "recompute-modules",
    "offload-modules",
    "cuda-graph-modules",
    "hierarchical-context-parallel-sizes",
)
"""Flags that take several words (`nargs` in Megatron-LM's parser), kept here with spaces between."""


def words(flags: Flags) -> list[str]:
    """Flags as the words of a command line."""
    found: list[str] = []
    for name, value in flags.items():
        found.append(f"--{name}")
        if value is not True:
            found += str(value).split() if name in LISTED else [str(value)]
    return found


def read_layout_string(text: str) -> tuple[int, ...]:
    """Layers of each stage of a pipeline layout string such as `Et*3|(tt|)*29,m|L`.

    Raises:
        SpecError: a letter other than E, t, m, L, or a repetition that is too long.
    """
    import re

    found = text.replace(",", "")
    for pattern in (r"\(([^()]+)\)\*(\d{1,5})", r"([A-Za-z|])\*(\d{1,5})"):
        found = re.sub(pattern, lambda match: match.group(1) * int(match.group(2)), found)
        if len(found) > 200_000:
            raise SpecError("--pipeline-model-parallel-layout", text, "is too long")
    if set(found) - set("EtmL|"):
        raise SpecError(
            "--pipeline-model-parallel-layout", text, "the letters E, t, m, L and | are expected"
        )
    return tuple(stage.count("t") for stage in found.split("|"))
