"""Megatron-LM and its forks: a command line, a YAML of arguments or a log as a run."""

from __future__ import annotations

import re
from typing import Any

from meshwright.exports.canonical import DEFAULT_ORDER, TP_PP_DP_ORDER
from meshwright.exports.megatron import SHARDING, read_layout_string
from meshwright.imports.formats import mindspeed
from meshwright.imports.formats.deepspeed import shards_itself
from meshwright.imports.formats.megatron_bubbles import padded_stages, without_bubbles
from meshwright.imports.formats.megatron_job import (
    add_budget,
    attention_kernel,
    batch,
    deduplicates,
    optimizer_of,
    precision_recipe,
)
from meshwright.imports.formats.megatron_mixers import OF_MIXERS, by_spec, further, stage_blocks
from meshwright.imports.formats.megatron_offload import offloaded
from meshwright.imports.formats.megatron_shape import read_shape, skip_shape
from meshwright.imports.formats.megatron_switches import (
    behaviour,
    graphs_and_capacity,
    name_others,
    padding,
)
from meshwright.imports.options import Options
from meshwright.imports.reading import PROJECTOR, Given, Reading
from meshwright.imports.tasks import name_task
from meshwright.planner.dispatchers import DEDUPLICATED, OPTION
from meshwright.specs.errors import SpecError
from meshwright.specs.layout import MODULES
from meshwright.specs.model import Model

_METHODS = {
    "p2p": "ring", "all_gather": "all-gather", "allgather": "all-gather", "a2a": "ulysses", "a2a+p2p": "hierarchical",
}  # fmt: skip
_OF_ITS_LOADER = ("Megatron-LM script", "Megatron-LM YAML")
EDITS = {
    "tp": "--tensor-model-parallel-size", "pp": "--pipeline-model-parallel-size",
    "cp": "--context-parallel-size", "ep": "--expert-model-parallel-size",
    "etp": "--expert-tensor-parallel-size", "micro_batch": "--micro-batch-size",
    "virtual_stages": "--num-virtual-stages-per-pipeline-rank",
    "sequence_parallel": "--sequence-parallel", "zero1": "--use-distributed-optimizer",
    "recompute": "--recompute-granularity", "recompute_method": "--recompute-method",
    "recompute_num": "--recompute-num-layers", "overlap": "--overlap-grad-reduce",
}  # fmt: skip


def read(
    options: Options, given: Given, title: str = "Megatron-LM", dialect: str = "megatron",
    config: dict[str, Any] | None = None, more: tuple[str, ...] = (), recipe: bool = False,
) -> Reading:  # fmt: skip
    """Return what a set of flags runs.

    Args:
        dialect: `megatron`, `megatron-deepspeed` or `bloom`.
        recipe: of a tool whose recipes overlap and group what Megatron-LM's own scripts ask for by switches.
        config: of DeepSpeed, where the command names one.
        more: tables of the options that a tool around Megatron-LM adds.

    Raises:
        SpecError: a flag is missing, impossible, or of a model that is not modelled.
    """
    reading = Reading(title, options=dict(EDITS))
    options.guessing = given.guess
    more += mindspeed.translate(options)
    known = given.model or mindspeed.known_shape(options, reading) or by_spec(options, reading)
    reading.model = known or read_shape(options, reading, dialect=dialect)
    reading.model = further(options, reading, reading.model)
    if known is not None:
        skip_shape(options, reading, known)
        if known.mixer is not None or known.indexer is not None:
            options.read |= {name for name in options.values if name.startswith(OF_MIXERS)}
    fields = reading.layout
    fields |= _degrees(options, reading, reading.model)
    fields |= _stages(options, reading, reading.model, fields["pp"], dialect)
    if title.endswith("script") and not recipe:
        fields |= without_bubbles(options, reading, fields)
    fields |= _sharding(options, reading, dialect, config)
    fields |= recomputation(options, reading, fields["virtual_stages"])
    fields["offload"] = offloaded(options, reading)
    reading.offload |= {*fields["offload"]} - {"optimizer"}
    batch(options, reading, config or {})
    reading.seq_len = options.whole(
        "seq-length", "max-seq-length", "max-length", "encoder-seq-length"
    )
    reading.job = _job(options, reading, dialect, fields["zero"])
    if dialect == "megatron":
        own = behaviour(options, fields["zero"], overlaps=recipe)
        if own:
            reading.job["framework_options"] = own | reading.job.get("framework_options", {})
        if not recipe:
            name_others(options, reading, reading.model.experts, mask=title in _OF_ITS_LOADER and mindspeed.TABLE not in more, spread=fields["ep"] > 1 and reading.model.experts is not None)  # fmt: skip
    elif own := padding(options):
        reading.job["framework_options"] = own | reading.job.get("framework_options", {})
    # Megatron-Bridge's switches for a multimodal model; its projector trains unless that is said, too.
    reading.encoder_frozen = options.flag("freeze-vision-model")
    projector = not options.flag("freeze-vision-projection")
    if projector and reading.encoder_frozen:
        reading.unmodelled("--freeze-vision-projection", PROJECTOR)
    add_budget(options, reading)
    if mindspeed.TABLE in more:
        mindspeed.refine(options, reading, fields)
    # A printed table of all options has the defaults of those for rewards, too.
    if options.flag("perform-rl-step") or (
        title.endswith("script") and any(name.startswith("grpo-") for name in options.values)
    ):
        name_task(reading, "grpo")
    if options.has("num-experts") and reading.model.experts is None:  # one expert, or none
        options.read |= {name for name in options.values if name.startswith("moe-")}
    tables = ["megatron", "common"] + (["deepspeed_flags"] if dialect != "megatron" else ["forks"])
    options.finish(reading, *more, *tables, strict=given.strict)
    return reading


def _degrees(options: Options, reading: Reading, model: Model) -> dict[str, Any]:
    tp = options.whole("tensor-model-parallel-size", "model-parallel-size", default=1, least=1)
    ulysses = options.whole("ds-sequence-parallel-size", default=1, least=1)
    cp = options.whole("context-parallel-size", default=1, least=1)
    kind = options.word("cp-comm-type", default="p2p" if cp > 1 else "").strip("[]'\" ").split()
    method = _METHODS.get(kind[0] if kind else "", "")
    if cp > 1 and not method:
        raise SpecError("--cp-comm-type", kind[0], f"one of {', '.join(_METHODS)} is expected")
    if len(set(kind)) > 1:
        reading.unmodelled(
            "--cp-comm-type", "layers take turns; the first one's method is priced for all"
        )
    if method == "hierarchical":
        options.raw("hierarchical-context-parallel-sizes")
    if ulysses > 1:
        cp, method = cp * ulysses, "ulysses"
    ep = options.whole(
        "expert-model-parallel-size",
        "moe-expert-parallel-size",
        "ep-world-size",
        default=1,
        least=1,
    )
    return {
        "tp": tp,
        "pp": options.whole("pipeline-model-parallel-size", default=1, least=1),
        "cp": cp,
        "cp_method": method or "all-gather",
        "ep": ep,
        "etp": options.whole(
            "expert-tensor-parallel-size", default=tp if model.experts else 1, least=1
        ),
        "sequence_parallel": options.flag("sequence-parallel"),
        "rank_order": TP_PP_DP_ORDER if options.flag("use-tp-pp-dp-mapping") else DEFAULT_ORDER,
    }


def _stages(
    options: Options, reading: Reading, model: Model, pp: int, dialect: str
) -> dict[str, Any]:
    virtual, split = split_stages(options, model, pp)
    stages = pp * max(virtual, 1)
    if dialect == "megatron" and pp > 1 and split is None and model.layers % stages:
        reading.guess("--pipeline-model-parallel-size", f"{model.layers} layers do not divide over {stages} stages, at which Megatron-LM stops; stages as even as they go are taken")  # fmt: skip
    return {
        "virtual_stages": virtual if pp > 1 else 1,
        "stage_layers": split if pp > 1 else None,
        "schedule": "interleaved" if virtual > 1 and pp > 1 else "1f1b",
    }


def split_stages(options: Options, model: Model, pp: int) -> tuple[int, tuple[int, ...] | None]:
    """Stages a rank holds, and the layers of each stage where they are not alike, by Megatron-LM's options.

    Raises:
        SpecError: layers that do not divide so.
    """
    text = options.text("pipeline-model-parallel-layout")
    blocks = options.text("pipeline-model-parallel-blocks")  # of Yuan's fork
    if blocks and options.word("pipeline-model-parallel-method", default="block") == "block":
        sizes = tuple(int(one) for one in re.findall(r"\d+", blocks))
        if len(sizes) == pp and sum(sizes) == model.layers:
            return 1, sizes
    cut = stage_blocks(options)
    if len(set(cut)) > 1 and len(cut) % pp == 0 and sum(cut) == model.layers:
        return len(cut) // pp, cut
    per_stage = options.whole("num-layers-per-virtual-pipeline-stage")
    stages = options.whole(
        "num-virtual-stages-per-pipeline-rank", "virtual-pipeline-model-parallel-size"
    )
    padded = padded_stages(options, model, pp, per_stage)
    if padded is not None:
        return padded
    ends = [options.flag(f"account-for-{end}-in-pipeline-split") for end in ("embedding", "loss")]
    if "embedding" in options.text(
        "pp-partition-method"
    ):  # BLOOM's: both of the tied one's layers count
        ends = [True, True]
    first = options.whole("decoder-first-pipeline-num-layers", "num-layers-in-first-pipeline-stage")
    last = options.whole("decoder-last-pipeline-num-layers", "num-layers-in-last-pipeline-stage")
    if text:
        split = read_layout_string(text.replace("\\", "").strip("\"' "))  # a shell's, in a table
        if len(split) % pp or sum(split) != model.layers:
            raise SpecError(
                "--pipeline-model-parallel-layout",
                text,
                f"{model.layers} layers in a multiple of {pp} stages are expected",
            )
        return len(split) // pp, split
    layers = model.layers + sum(ends)
    if per_stage and not stages:
        if layers % (pp * per_stage):
            raise SpecError(
                "--num-layers-per-virtual-pipeline-stage",
                per_stage,
                f"a divisor of the {layers // pp} layers per pipeline rank is expected",
            )
        stages = layers // (pp * per_stage)
    if any(ends) and layers % (pp * max(stages, 1)) == 0 and not (first or last):
        # Embedding and head count as a layer of the first and of the last stage.
        held = [layers // (pp * max(stages, 1))] * (pp * max(stages, 1))
        held[0] -= ends[0]
        held[-1] -= ends[1]
        return max(stages, 1), tuple(held)
    return (stages, None) if stages else (1, _first_last(model, pp, first, last))


def _first_last(model: Model, pp: int, first: int, last: int) -> tuple[int, ...] | None:
    if not (first or last) or pp == 1:
        return None
    inner = pp - bool(first) - bool(last)
    rest = model.layers - first - last
    if rest < 0 or (inner and rest % inner) or (not inner and rest):
        raise SpecError(
            "--decoder-first-pipeline-num-layers",
            first or last,
            f"the other {rest} layers do not divide over {inner} stages",
        )
    middle = [rest // inner] * inner if inner else []
    return tuple([first] * bool(first) + middle + [last] * bool(last))


def _sharding(
    options: Options, reading: Reading, dialect: str, config: dict[str, Any] | None
) -> dict[str, Any]:
    distributed = options.flag("use-distributed-optimizer")
    strategy = options.word("data-parallel-sharding-strategy", default="")
    fsdp = options.flag("use-megatron-fsdp", "use-custom-fsdp")
    torch_fsdp = options.flag("use-torch-fsdp2")
    keep = options.flag("torch-fsdp2-no-reshard-after-forward")
    reading.replicate = options.whole("num-distributed-optimizer-instances", default=1, least=1)
    zero = 1 if distributed else 0
    if dialect != "megatron":
        zero = options.whole("zero-stage", default=zero)
        table = (config or {}).get("zero_optimization")
        if isinstance(table, dict) and isinstance(table.get("stage"), int):
            zero = table["stage"]
            _offloads(table, reading)
        if options.flag("cpu-optimizer"):
            reading.offload.add("optimizer")
        options.raw("remote-device", "deepspeed", "deepspeed-config", "zero-stage")
        alone = options.flag("no-pipeline-parallel")
        if zero == 0 and options.flag("bf16") and not alone and options.has("deepspeed"):
            zero = shards_itself(reading, "--zero-stage")
        options.flag("use-torch-adam", "cpu-torch-adam")
        if zero > 3:
            raise SpecError("--zero-stage", zero, "a stage from 0 to 3 is expected")
    if fsdp:
        stages = {word: stage for stage, word in SHARDING.items()} | {"no_shard": 0}
        strategy = strategy or "optim_grads_params"
        if strategy not in stages:
            raise SpecError(
                "--data-parallel-sharding-strategy", strategy, f"one of {', '.join(stages)}"
            )
        zero = stages[strategy]
        if zero >= 2:
            reading.job["framework"] = "megatron-fsdp"
        else:
            reading.note(
                f"{strategy} shards no more than plain Megatron-LM does, and is priced as that",
                "--data-parallel-sharding-strategy",
            )
    elif torch_fsdp:
        zero = 2 if keep else 3
        reading.job["framework"] = "megatron-fsdp"
    elif strategy:
        reading.note(
            f"{strategy} has no effect without Megatron-FSDP", "--data-parallel-sharding-strategy"
        )
    return {"zero": zero}


def _offloads(table: dict[str, Any], reading: Reading) -> None:
    for key, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        part = table.get(key)
        device = part.get("device") if isinstance(part, dict) else None
        if device not in (None, "none"):
            reading.offload.add(what)
    if table.get("cpu_offload") is True:
        reading.offload.add("optimizer")


def recomputation(options: Options, reading: Reading, virtual: int) -> dict[str, Any]:
    """Fields of a layout for what Megatron-LM's options recompute.

    Raises:
        SpecError: a granularity that Megatron-LM does not have.
    """
    granularity = options.word("recompute-granularity", "activations-checkpoint-granularity", "checkpoint-activations-granularity")  # fmt: skip
    method = options.word("recompute-method", "activations-checkpoint-method", "checkpoint-method")
    layers = options.whole(
        "recompute-num-layers",
        "activations-checkpoint-num-layers",
        "checkpoint-num-layers",
        default=1,
    )
    # Megatron's own print-out shows a Python list, scripts bare words or commas.
    modules = re.sub(r"[\[\]'\",]", " ", options.text("recompute-modules")).split()
    # DeepSpeed's own functions do it where --checkpoint-activations asks for it; their switch alone recomputes nothing.
    options.flag("deepspeed-activation-checkpointing")
    old = options.flag("checkpoint-activations", "recompute-activations-full", "enable-gradient-checkpointing")  # fmt: skip
    if options.flag("recompute-activations") and not granularity:
        granularity = "selective"
    if options.flag("moe-layer-recompute") and granularity in ("", "selective"):
        # The older name of a module; attention's core is not one of its own.
        modules += ["core_attn"] * (granularity == "selective" and not modules) + ["moe"]
        granularity = "selective"
    if not granularity:
        if not old and not (method and method != "none"):
            return {"recompute": "none"}
        granularity = "full"
    if granularity == "none":
        return {"recompute": "none"}
    if granularity in ("mlp", "moe", "mlp_layer"):
        reading.unmodelled(
            "--recompute-granularity",
            f"only the {granularity} is recomputed; the estimate keeps all",
        )
        return {"recompute": "none"}
    if granularity not in ("full", "selective"):
        raise SpecError("--recompute-granularity", granularity, "full or selective is expected")
    if granularity == "selective":
        named = [name.replace("core_attention", "core_attn") for name in modules]
        if others := [name for name in named if name not in MODULES]:
            reading.unmodelled(
                "--recompute-modules",
                f"{', '.join(others)} are recomputed too; the estimate keeps their activations",
            )
        known = [name for name in named if name in MODULES]
        if modules and not known:
            return {"recompute": "none"}
        return {
            "recompute": "selective",
            "recompute_modules": [] if known == ["core_attn"] else known,
        }
    if method == "block" and not layers:
        return {"recompute": "none"}  # of the first no layers
    if method == "block":
        return {"recompute": "full", "recompute_layers": layers * virtual}
    if layers > 1:
        reading.unmodelled(
            "--recompute-num-layers",
            f"{layers} layers are recomputed from one saved input; the "
            "estimate saves every layer's",
        )
    return {"recompute": "full"}


def _job(options: Options, reading: Reading, dialect: str, zero: int) -> dict[str, Any]:
    precision = precision_recipe(options, reading, dialect, zero)
    optimizer = optimizer_of(options, reading)
    attention = options.number("attention-dropout", default=0.1)
    hidden = options.number("hidden-dropout", default=0.1)
    for field in ("attention-dropout", "hidden-dropout"):
        if field not in options:
            reading.note(
                "is Megatron-LM's default, 0.1, since the file does not set it", f"--{field}"
            )
    if attention:
        reading.unmodelled(
            "--attention-dropout", f"{attention:g} on attention weights has no term of its own"
        )
    found: dict[str, Any] = {
        "precision": precision.model_dump(),
        "optimizer": optimizer.model_dump(),
        "attention_kernel": attention_kernel(options, dialect),
        "framework": reading.job.get(
            "framework", "megatron" if dialect == "megatron" else "megatron-deepspeed"
        ),
        "dropout": hidden,
        "document_masking": options.flag("reset-attention-mask")
        or options.flag("dataloader-inter-document-masking"),
    }
    if options.flag("reset-position-ids", "eod-mask-loss") and not found["document_masking"]:
        reading.note(
            "positions or loss restart at documents, attention does not", "--reset-position-ids"
        )
    named = reading.model is not None and reading.model.experts is not None
    if (named or options.whole("num-experts", "num-moe-experts")) and deduplicates(options):
        found["framework_options"] = {OPTION: DEDUPLICATED}
    return reading.job | found | graphs_and_capacity(options, reading, found)
