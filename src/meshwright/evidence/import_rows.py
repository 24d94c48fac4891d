"""From a published row to (Model, Cluster, Job, Layout): what the planner would be given."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import cast

from meshwright.costs.frameworks import Behaviour, framework
from meshwright.evidence.architectures import model_of
from meshwright.evidence.batches import Degrees, accumulation, batches, repaired
from meshwright.evidence.finetune_rows import finetune_of
from meshwright.evidence.machines import SkipRow, cluster_of
from meshwright.evidence.optimizers import optimizer_of
from meshwright.evidence.row_stages import (
    cost_balanced_layers,
    schedule_of,
    split_with_ends,
    stated_split,
    virtual_stages,
)
from meshwright.evidence.rows import Row
from meshwright.evidence.software import (
    SourceRule,
    framework_options,
    megatron_arguments,
    modules_of,
    precision_of,
    recompute_of,
    rule_for,
    whole_in_16_bits,
    zero_of,
)
from meshwright.evidence.stated import assumed_of, loss_of, says, stated_offloads
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError, shorten
from meshwright.specs.frameworks import framework as capabilities
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.layout import ContextMethod, Layout, Offload
from meshwright.specs.model import Model

SEQUENCE_PARALLEL = ("megatron", "nemo", "torchtitan", "nanotron")
"""Frameworks whose tensor parallelism splits the sequence too, where a row does not say."""


@dataclass(frozen=True, slots=True)
class Run:
    """A row as the planner's nouns, with what had to be assumed."""

    id: str
    model: Model
    cluster: Cluster
    job: Job
    layout: Layout
    memory_convention: str
    memory_rank: str
    assumed: tuple[str, ...]

    @property
    def gpus(self) -> int:
        """Devices that the run used."""
        return self.layout.world


def import_row(row: Row, as_user: bool = False) -> Run:
    """Return the run that a row describes, from its describing columns only.

    `as_user`: knowing of its source only the framework's name (`software.rule_for`).

    Raises:
        SkipRow: the row cannot be priced; the message says why.
    """
    assumed = [one for one in (row["read_as"], *row.unread()) if one]
    row = row.described()
    if impossible := row.impossible():
        raise SkipRow(f"{impossible} is no number that a run can have")
    rule = rule_for(row, as_user)
    try:
        return _import(row, rule, assumed)
    except SpecError as error:
        raise SkipRow(str(error)) from None
    except (ValueError, ArithmeticError, LookupError) as error:
        # One row that contradicts itself must not cost the others their price.
        raise SkipRow(f"contradicts itself ({shorten(str(error), str, 30)})") from None


def _import(row: Row, rule: SourceRule, assumed: list[str]) -> Run:
    options = framework_options(row, rule)
    known = framework(rule.framework)
    known = known.but(**options) if options else known
    assumed += [] if rule.documented else assumed_of(options)
    seq_len = _count(row, rule, "seq_len", assumed)
    if seq_len is None:
        raise SkipRow(
            "no sequence length: a column of it (`seq_len`, `context`, `max length`) or --set seq_len=N is expected"
        )
    degrees = _degrees(row, rule, assumed)
    gpus = degrees.gpus
    batch, micro, accumulate = batches(row, rule, degrees, seq_len, assumed)
    if batch // (degrees.dp * micro) == 0 or batch % (degrees.dp * micro):
        batch, micro = repaired(batch, micro, degrees.dp, accumulate, assumed)
    model = model_of(row, rule, seq_len, assumed)
    cluster = cluster_of(row, rule, gpus, assumed)
    precision, optimizer = precision_of(row, rule, known, assumed), optimizer_of(row, rule, assumed)
    finetune = finetune_of(row, rule, assumed)
    if finetune is not None and not finetune.adapts and whole_in_16_bits(row, rule):
        eight = precision.compute == "fp8"  # torchao's linears over weights in bf16
        precision = RECIPES["pure-bf16"].but(compute="fp8") if eight else RECIPES["pure-bf16"]
        assumed.append("no fp32 master copy")
    if not precision.master_bytes and optimizer.name == "adamw":
        optimizer = OPTIMIZERS["adamw-bf16"]  # torch's moments have their weights' precision
    job = Job(
        seq_len=seq_len,
        global_batch=batch,
        precision=precision,
        optimizer=optimizer,
        attention_kernel=known.attention_kernel,
        framework=rule.framework,
        framework_options=options,
        finetune=finetune,
        loss=loss_of(row),
    )
    layout = _layout(row, rule, known, model, degrees, (batch, micro), assumed)
    return Run(
        id=row.id,
        model=model,
        cluster=cluster,
        job=job,
        layout=layout,
        memory_convention=_convention(row, rule, known),
        memory_rank="last" if "LAST rank" in row["setup"] else known.memory_rank,
        assumed=tuple(assumed),
    )


def _convention(row: Row, rule: SourceRule, known: Behaviour) -> str:
    text = row["setup"]
    if stated := rule.default("memory"):
        return str(stated)
    if "max_memory_reserved" in text or re.search(r"memory.*reserved", text):
        return "reserved"
    if re.search(r"nvidia-smi|whole-process|GPU memory \(GB\)", text, re.IGNORECASE):
        return "device"
    if "max_memory_allocated" in text or "max allocated" in text:
        return "allocated"
    return known.memory_convention


def _count(row: Row, rule: SourceRule, column: str, assumed: list[str]) -> int | None:
    """A whole-number cell, else the source's documented default (noted), else None."""
    value = row.count(column)
    if value:
        return value
    known = rule.default(column)
    if known is None:
        return None
    assumed.append(f"{column}={known}")
    return int(known)


def _degrees(row: Row, rule: SourceRule, assumed: list[str]) -> Degrees:
    setup = row["setup"]
    gpus = row.count("gpus")
    tp = row.count("tp")
    pp = row.count("pp")
    cp = row.count("cp")
    whole = re.search(r"model-parallel size=(\d+)", setup)
    if tp is None and whole:
        size = int(whole.group(1))
        tp = min(8, size)
        pp = size // tp
        assumed.append(f"tp={tp}, pp={pp} (of a model-parallel size of {size})")
    tp = tp or _count(row, rule, "tp", assumed) or _named(setup, "tp", assumed) or 1
    pp = pp or _count(row, rule, "pp", assumed) or _named(setup, "pp", assumed) or 1
    if not row["pp"] and not whole and rule.default("pp") is None:
        assumed.append(f"pp={pp}")
    if gpus is None:
        # The smallest world that holds the printed degrees and the experts, a host at least.
        dp = row.count("dp")
        ep = row.count("ep") or 1
        if dp is None:
            # Experts share the ranks of tp · cp · dp.
            held = ep * _expert_tensor_parallel(row, tp)
            experts_need = -(-held // (tp * (cp or 1)))
            alone = _WORKSTATION.search(row["gpu"]) or _ALONE.search(setup)
            host = 1 if alone or _adapters_alone(row, rule) else 8
            dp = max(experts_need, host // (tp * pp * (cp or 1)), 1)
            world = tp * pp * (cp or 1) * dp
            assumed.append(f"gpus={world}")
        gpus = tp * pp * (cp or 1) * dp
    if cp is None:
        cp = _context(row, rule, gpus, tp, pp, assumed)
    if gpus % (tp * pp * cp):
        raise SkipRow(f"{gpus} devices are not a multiple of tp·pp·cp = {tp}·{pp}·{cp}")
    dp = gpus // (tp * pp * cp)
    if (printed := row.count("dp")) and printed != dp:
        assumed.append(f"dp={dp} (what {gpus} devices leave, {printed} is printed)")
    ep = _count(row, rule, "ep", assumed) or 1
    if ep == 1 and says(r"deep ?ep\b|hybrid ?ep\b", setup):
        # A dispatcher between ranks has ranks to dispatch to: those of a host at least.
        ep = math.gcd(tp * cp * dp, row.count("gpus_per_node") or 8)
        assumed.append(f"ep={ep}")
    return Degrees(gpus, dp, tp, pp, cp, ep)


_WORKSTATION = re.compile(r"RTX|GeForce|[345]090|\bTitan\b|\bA[456]000\b", re.IGNORECASE)
"""Cards of which a machine has one unless its row says more; of others, eight."""
_ALONE = re.compile(r"\b(?:single|one|1)[- ](?:GPU|device|card)\b", re.IGNORECASE)


def _adapters_alone(row: Row, rule: SourceRule) -> bool:
    """Whether a run trains adapters by transformers and says nothing of several devices."""
    text = f"{row['model']}; {row['setup']}; {row['zero_or_fsdp']}"
    several = (
        r"fsdp|zero|deep ?speed|\bds[-_ ]z|\bddp\b|distributed|multi|nodes?\b|parallel|torchrun"
    )
    return (
        not rule.documented
        and framework(rule.framework).modules == "transformers"
        and bool(re.search(r"(?<![a-z])(?:Q|Do)?-?LoRA(?![a-z])|\bpeft\b", text, re.IGNORECASE))
        and not re.search(several, text, re.IGNORECASE)
    )


def _named(setup: str, axis: str, assumed: list[str]) -> int | None:
    """A degree that only the name of a configuration file in `setup` states."""
    match = re.search(rf"{axis}(\d+)", setup) if "config" in setup else None
    if match is None:
        return None
    assumed.append(f"{axis}={match.group(1)} (from the configuration's name)")
    return int(match.group(1))


def _context(row: Row, rule: SourceRule, gpus: int, tp: int, pp: int, assumed: list[str]) -> int:
    """Context-parallel degree where the row states none.

    Where a step has fewer sequences than there are replicas, the rest must share sequences; in NeMo
    where an accumulation step has.
    """
    batch, accumulate = row.count("global_batch"), accumulation(row["setup"])
    if batch and row["dp"] == "":
        replicas = gpus // (tp * pp)
        by_step = accumulate and rule.framework == "nemo"
        at_once = max(1, batch // accumulate) if by_step and accumulate else batch
        if replicas > at_once and replicas % at_once == 0:
            assumed.append(f"cp={replicas // at_once}")
            return replicas // at_once
    return 1


def _recomputed(row: Row, rule: SourceRule, model: Model, pp: int) -> int:
    """Layers of a pipeline rank that are computed again; 0: all. Rows count them over the whole model."""
    stated = re.search(r"\brecompute (\d+) layers\b", row["setup"])
    if stated is None:
        return int(rule.default("recompute_layers") or 0)
    layers = int(stated[1])
    return 0 if layers >= model.layers else max(1, math.ceil(layers / pp))


def _layout(
    row: Row,
    rule: SourceRule,
    known: Behaviour,
    model: Model,
    degrees: Degrees,
    sequences: tuple[int, int],
    assumed: list[str],
) -> Layout:
    batch, micro = sequences
    zero, shard = zero_of(row, rule, assumed)
    replicas = degrees.dp * degrees.cp
    if shard >= replicas or (shard and replicas % shard):
        shard = 0
    vpp = virtual_stages(row, rule, model, degrees, assumed, batch // (degrees.dp * micro))
    ep = degrees.ep if model.experts else 1
    if model.experts and not row["ep"]:
        ep = math.gcd(ep, model.experts.experts)
    if model.experts and model.experts.experts % ep:
        raise SkipRow(f"{model.experts.experts} experts over ep = {ep}")
    schedule = schedule_of(row, vpp)
    stage_layers = stated_split(row, model.layers, degrees.pp)
    if stage_layers is None and (documented := rule.default("stage_layers")):
        stage_layers = tuple(documented) if len(documented) == degrees.pp * vpp else None
    if stage_layers is None and capabilities(rule.framework).stage_layers:
        stage_layers = split_with_ends(model.layers, degrees.pp * vpp)
    if "vocab" in row["schedule"].lower():
        raise SkipRow("a vocabulary split over pipeline stages is not modelled")
    if degrees.pp > 1 and vpp == 1 and known.stage_split == "cost-balanced":
        stage_layers = cost_balanced_layers(model, degrees.pp)
    modules = modules_of(row, rule)
    sequence = row["sequence_parallel"].lower()
    if not sequence and degrees.tp > 1:
        default = rule.default("sequence_parallel")
        chosen = bool(default) if default is not None else rule.framework in SEQUENCE_PARALLEL
        assumed.append(f"sequence_parallel={'yes' if chosen else 'no'}")
        sequence = "yes" if chosen else "no"
    recompute = "selective" if modules else recompute_of(row, rule, assumed)
    return Layout(
        dp=degrees.dp,
        tp=degrees.tp,
        pp=degrees.pp,
        cp=degrees.cp,
        ep=ep,
        etp=_expert_tensor_parallel(row, degrees.tp) if model.experts else 1,
        virtual_stages=vpp,
        zero=zero,
        shard=shard if zero else 0,
        micro_batch=micro,
        recompute=recompute,
        recompute_layers=_recomputed(row, rule, model, degrees.pp) if recompute == "full" else 0,
        recompute_modules=modules,
        offload=_offloaded(row, rule, assumed),
        cp_method=_context_method(row, rule) if degrees.cp > 1 else "all-gather",
        sequence_parallel=sequence == "yes" and degrees.tp > 1,
        schedule=schedule,
        stage_layers=stage_layers,
    )


def _offloaded(row: Row, rule: SourceRule, assumed: list[str]) -> tuple[Offload, ...]:
    """What a run keeps in the host's memory: as its row says, else as its source documents."""
    if stated := stated_offloads(row):
        return stated
    documented: list[Offload] = rule.default("offload") or []
    assumed.extend(f"offload={name}" for name in documented)
    return tuple(documented)


_CONTEXT: tuple[tuple[str, ContextMethod], ...] = (
    (r"a2a\+p2p|hierarchical cp", "hierarchical"),
    (r"xtuner|ulysses|sequence_parallel_size|cp[-_]comm[-_]type\W+a2a", "ulysses"),
    (r"all[-_ ]?gather.{0,20}(?:cp|context)|cp[-_]comm[-_]type\W+all_gather", "all-gather"),
    (r"ring[-_ ]attention|cp[-_]comm[-_]type\W+p2p", "ring"),
)


_EXPERT_TENSOR = re.compile(
    r"\b(?:etp|expert[-_ ](?:tp|tensor[-_ ](?:model[-_ ])?parallel(?:ism)?(?:[-_ ](?:size|degree))?))\s*[:=]?\s*(\d+)\b",
    re.IGNORECASE,
)


def _context_method(row: Row, rule: SourceRule) -> ContextMethod:
    """How a row's context parallelism moves keys: as it says, else as its source or framework does."""
    for pattern, method in _CONTEXT:
        if re.search(pattern, f"{row['source']} {row['setup']}", re.IGNORECASE):
            return method
    stated = rule.default("cp_method")
    methods = capabilities(rule.framework).context_methods
    return cast("ContextMethod", stated or (methods[0] if methods else "ring"))


def _expert_tensor_parallel(row: Row, tp: int) -> int:
    """Tensor parallelism inside an expert; Megatron's arguments.py makes it tp unless it is given.

    Tables print it as a column of its own, which is part of the setup by then, or beside the other degrees.
    """
    arguments = megatron_arguments(row)
    stated = arguments.get("expert-tensor-parallel-size")
    if stated is None and (printed := _EXPERT_TENSOR.search(row["setup"])):
        stated = printed.group(1)
    if stated is not None:
        return int(stated)
    return tp if "num-experts" in arguments else 1
