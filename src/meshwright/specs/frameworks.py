"""What each training framework can express: the one table that planner, exports and imports read."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from meshwright.specs.base import Spec
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.hf_carried import carried
from meshwright.specs.layout import Offload
from meshwright.specs.model import Model
from meshwright.specs.plain_families import plain_family
from meshwright.specs.presets import table

if TYPE_CHECKING:
    from meshwright.specs.job import Job

Axis = Literal["tp", "pp", "virtual_stages", "cp", "ep", "etp"]
AXIS_TITLES: dict[Axis, str] = {
    "tp": "tensor parallelism", "pp": "pipeline parallelism", "cp": "context parallelism",
    "ep": "expert parallelism", "etp": "tensor parallelism inside experts",
    "virtual_stages": "virtual pipeline stages",
}  # fmt: skip


_HOPPER = ("h100", "h200", "h800", "h20", "gh200")

Need = Literal[
    "untied embeddings",
    "no experts",
    "rotary positions",
    "Llama 3 layers",
    "plain layers",
    "attention in every layer",
]


def lacks(model: Model, needs: tuple[Need, ...]) -> list[Need]:
    """Which of the needs a model does not meet."""
    met = {
        "untied embeddings": not model.tied_embeddings,
        "no experts": model.experts is None,
        "rotary positions": model.positions == "rope",
        "Llama 3 layers": model.name.startswith("llama3"),
        "plain layers": plain_family(model) is not None,
        "attention in every layer": model.mixer is None and model.kv_share == 1,
    }
    return [need for need in needs if not met[need]]


class Framework(Spec):
    """What one framework has words for. Values and their sources: `presets/frameworks.toml`.

    A cell about sharding counts only where there is more than one data- or context-parallel rank.
    """

    name: str
    title: str
    aliases: tuple[str, ...] = Field((), description="other names of the same software")
    behaviour: str = Field(description="its row in costs/data/frameworks.toml, which prices it")
    checked: str = Field(description="the version whose code the cells were read from")
    builds_families: bool = Field(
        description="it builds a model by transformers' own class from a config.json"
    )
    families: tuple[str, ...] = Field(
        (), description="`model_type`s that it builds by code of its own; none: not said"
    )
    exported: bool = Field(True, description="exports/ writes a plan in its language")
    exported_on: tuple[str, ...] = Field(
        (), description="vendors whose devices its exported files are for; none: any"
    )
    experts_exported_on: tuple[str, ...] = Field(
        (), description="the same of a mixture's experts; none: as other models"
    )
    released: str = Field("", description="a newer version that was read too")
    axes: tuple[Axis, ...] = Field(description="axes beside dp that may be above 1")
    zero: tuple[int, ...]
    zero_with_pipeline: tuple[int, ...] = Field(description="ZeRO stages where pp > 1")
    zero_with_tensor: tuple[int, ...] = Field(description="ZeRO stages where tp > 1")
    shards_as: str = Field(
        "", description="the framework that its ZeRO-2 and ZeRO-3 are planned as, if another"
    )
    hybrid_shard: bool = Field(description="ZeRO groups may be smaller than dp · cp (HSDP)")
    hybrid_shard_zero: tuple[int, ...] = Field(description="the ZeRO stages whose groups may be")
    shard_holds_context: bool = Field(
        description="a ZeRO group is made of whole context-parallel groups"
    )
    context_needs_shards: bool = Field(description="cp > 1 needs ZeRO-2 or ZeRO-3")
    replicas_need_shards: bool = Field(
        description="with tp > 1 or cp > 1, replicas of shards need two data-parallel ranks a shard"
    )
    recompute_needs_shards: bool = Field(
        description="recomputation is switched on in the settings of ZeRO-2 and ZeRO-3"
    )
    schedules: tuple[str, ...] = Field(description="pipeline schedules")
    fills_pipeline: bool = Field(
        description="1f1b needs as many micro-batches as stages; rounds of interleaving are equal"
    )
    stage_layers: bool = Field(description="the number of layers of each stage can be said")
    equal_stages: bool = Field(description="layers must divide by stages")
    recompute: tuple[Literal["none", "selective", "full"], ...]
    recompute_modules: tuple[str, ...] = Field(description="names for selective recomputation")
    recompute_layers: bool = Field(description="full recomputation of n layers of each rank")
    stage_recompute_layers: bool = Field(description="another n in every stage")
    rank_orders: tuple[str, ...] = Field(description="empty: any")
    sequence_parallel: Literal["free", "always", "never"]
    experts_need_sequence_parallel: bool = Field(
        description="a mixture of experts with tp > 1 needs sequence parallelism"
    )
    experts_over_data: bool = Field(
        description="experts lie over the data-parallel ranks alone: ep divides dp"
    )
    experts_over_shards: bool = Field(
        description="experts lie over the ranks that shard and split layers: ep divides shards times tp"
    )
    tensor_in_pipeline: bool = Field(description="tp > 1 and pp > 1 together")
    tensor_with_adapters: bool = Field(description="tp > 1 beside low-rank adapters")
    tensor_needs: tuple[Need, ...] = Field(description="what a model must be where tp > 1")
    pipeline_needs: tuple[Need, ...] = Field(description="what a model must be where pp > 1")
    losses_with_pipeline: tuple[str, ...] = Field(
        (), description="losses that its pipeline makes; empty: any that it has"
    )
    context_needs: tuple[Need, ...] = Field(description="what a model must be where cp > 1")
    replicated_kv_heads: bool = Field(description="tp may exceed the key-value heads")
    context_methods: tuple[str, ...] = Field(description="how keys and values reach other ranks")
    context_methods_latent: tuple[str, ...] = Field(description="the same for latent attention")
    context_methods_sparse: tuple[str, ...] = Field(
        description="the same for latent attention to the keys that an indexer picks; empty: as for all of them"
    )
    context_methods_window: tuple[str, ...] = Field(description="the same for sliding windows")
    context_methods_sinks: tuple[str, ...] = Field(description="the same for attention with sinks")
    context_by_deepspeed: tuple[str, ...] = Field(
        description="methods that DeepSpeed's engine brings in place of what shards otherwise, beside whatever "
        "lives in host memory"
    )
    context_kernels: tuple[str, ...] = Field(
        description="kernels of attention where cp > 1; empty: any that it has"
    )
    context_plain_on: tuple[str, ...] = Field(
        (), description="vendors on whose devices neither windows nor packed documents are split"
    )
    context_alone: bool = Field(description="cp > 1 goes with neither tp > 1 nor pp > 1")
    context_replicates_kv_heads: bool = Field(
        description="Ulysses over more ranks than key-value heads, each sent to several"
    )
    dispatchers: tuple[str, ...] = Field(description="how tokens reach their experts")
    precisions: tuple[str, ...] = Field(description="precisions of the matrix products")
    gradients: tuple[tuple[float, float], ...] = Field(
        description="bytes of a gradient as kept and on the wire, in pairs, for 16-bit compute"
    )
    master_bytes: tuple[float, ...] = Field(
        description="bytes of the optimizer's copy of a weight, for 16-bit compute"
    )
    zero_without_master: tuple[int, ...] = Field(
        description="ZeRO stages that can keep no copy of 16-bit weights, for 16-bit compute"
    )
    zero_quantised_experts: tuple[int, ...] = Field(
        description="ZeRO stages under which a mixture's frozen experts are kept in 4 or 8 bits, too"
    )
    zero_int8: tuple[int, ...] = Field(
        description="ZeRO stages under which frozen weights are kept in 8 bits by bitsandbytes"
    )
    zero_tuning_fp16: tuple[int, ...] = Field(
        description="ZeRO stages under which all weights of a trained model train further in fp16"
    )
    moments_like_master: bool = Field(
        description="without 32-bit weights the optimizer's moments have 16 bits, too"
    )
    narrow_moments: bool = Field(
        description="moments of 16 bits may stand beside wider weights that are updated"
    )
    optimizers: tuple[str, ...]
    optimizers_sharded: tuple[str, ...] = Field(description="optimizers with ZeRO-2 and ZeRO-3")
    offload: tuple[Offload, ...] = Field(description="what can live in host memory")
    offload_parameters_zero: tuple[int, ...] = Field(
        description="ZeRO stages under which weights can live in host memory"
    )
    optimizers_with_tensor: tuple[str, ...] = Field(
        description="optimizers that go with tp > 1; empty: all of `optimizers`"
    )
    optimizers_offloaded: tuple[str, ...] = Field(
        description="optimizers that can live in host memory; empty: all of `optimizers`"
    )
    offload_optimizer_zero: tuple[int, ...] = Field(
        description="ZeRO stages under which the optimizer can live in host memory, over several replicas"
    )
    offload_with_context: tuple[Offload, ...] = Field(
        description="what can live in host memory where cp > 1"
    )
    offload_together: bool = Field(
        description="weights and optimizer leave for host memory together or not at all"
    )
    offload_activations_recomputed: bool = Field(
        description="only what full recomputation keeps can leave for host memory"
    )
    attention_kernels: tuple[Literal["flash", "unfused", "memory-efficient"], ...] = Field(
        description="kernels that attention can be told to run on"
    )
    flash_sinks_on: tuple[Literal["all", "hopper", "amd"], ...] = Field(
        description="devices whose attention with sinks keeps no scores"
    )
    losses: tuple[Literal["full", "chunked", "liger", "cut"], ...] = Field(
        description="ways to make the cross-entropy that it has words for"
    )
    graphs: tuple[Literal["none", "layers", "all"], ...] = Field(
        description="what CUDA graphs can capture: each layer, or the whole iteration"
    )
    capacity_factor: bool = Field(
        description="tokens beyond a multiple of an expert's even share can be dropped"
    )
    updates_in_backward: bool = Field(
        description="each weight can be updated as soon as its gradient is there, which then goes; without "
        "accumulation over micro-batches"
    )
    dropout: bool
    document_masking: bool
    adapters: bool = Field(description="low-rank adapters on frozen weights")

    def has(self, axis: Axis) -> bool:
        """Whether an axis may be above 1."""
        return axis in self.axes

    def is_exported_on(self, vendor: str, *, experts: bool = False) -> bool:
        """Whether a plan for a vendor's devices can be written in the framework's words; `experts`: of a mixture."""
        vendors = (self.experts_exported_on if experts else ()) or self.exported_on
        return self.exported and (not vendors or vendor in vendors)

    def context_methods_of(self, model: Model) -> tuple[str, ...]:
        """How keys and values of a model's attention can reach other context-parallel ranks."""
        methods = self.context_methods_latent if model.latent_attention else self.context_methods
        if model.latent_attention and model.indexer and self.context_methods_sparse:
            methods = self.context_methods_sparse
        if model.window:
            methods = tuple(one for one in methods if one in self.context_methods_window)
        if model.attention_sinks:
            methods = tuple(one for one in methods if one in self.context_methods_sinks)
        return methods

    def keeps_scores_of(self, model: Model, vendor: str, device: str) -> bool:
        """Whether a model's attention with sinks keeps all scores on a device, for want of a kernel that knows them."""
        on = self.flash_sinks_on
        if not model.attention_sinks or "all" in on:
            return False
        hopper = "hopper" in on and any(name in device.lower() for name in _HOPPER)
        return not hopper and not ("amd" in on and vendor == "amd")

    def lacks_family(self, model: Model) -> str:
        """The `model_type` of a model that it does not build; empty where it does, or where nobody says.

        Only of models with parts that no field describes: what fields describe is judged by them.
        """
        config = carried(model)
        if not model.counted_parameters or config is None or not self.families:
            return ""
        named = str(config.get("model_type", model.family))
        return "" if named in self.families else named

    def runs_sinks_plainly(self, model: Model, vendor: str, device: str) -> bool:
        """Whether a model's attention on a device is plain for the sake of its sinks."""
        keeps = self.keeps_scores_of(model, vendor, device)
        return keeps and "unfused" in self.attention_kernels

    def splits_nothing_of(self, model: Model, job: Job, vendor: str) -> bool:
        """Whether attention is of a kind that is not split over ranks on a vendor's devices."""
        return vendor in self.context_plain_on and bool(model.window or job.document_masking)

    def makes_whole_logits(self, job: Job) -> bool:
        """Whether a pipeline makes another loss than a job names."""
        made = self.losses_with_pipeline
        return bool(made) and job.loss not in ("framework", *made)

    def zero_stages(self, *, tp: int, pp: int) -> tuple[int, ...]:
        """ZeRO stages that run beside these degrees."""
        return tuple(
            stage
            for stage in self.zero
            if (pp == 1 or stage in self.zero_with_pipeline)
            and (tp == 1 or stage in self.zero_with_tensor)
        )


@cache
def _names() -> dict[str, str]:
    names = {}
    for name, row in table("frameworks").items():
        for spelling in (name, *row.get("aliases", ())):
            names[spelling] = name
    return names


def framework_names() -> tuple[str, ...]:
    """Names of the frameworks in the table, without aliases."""
    return tuple(table("frameworks"))


def find_framework(name: str, field: str = "framework") -> str:
    """Return a framework's own name for any of its spellings.

    Raises:
        SpecError: no such framework; the remedy lists the nearest names.
    """
    found = _names().get(name.strip().lower().replace("_", "-"))
    if found is None:
        raise SpecError(field, name, nearest(name, _names()))
    return found


def _cells(name: str) -> dict[str, Any]:
    row = table("frameworks")[name]
    own = {key: value for key, value in row.items() if key not in ("base", "sources")}
    inherited = _cells(row["base"]) if "base" in row else {}
    for key in ("aliases", "released"):
        inherited.pop(key, None)
    return {**inherited, **own, "name": name}


@cache
def framework(name: str) -> Framework:
    """Return what a framework can express.

    Raises:
        SpecError: no such framework; the message names the nearest one.
    """
    name = find_framework(name)
    return Framework.parse(_cells(name), f"frameworks.{name}")


def splitting_by(method: str, model: Model, *, tuning: bool) -> tuple[str, ...]:
    """Frameworks with files written here that can split a model's sequences by a method.

    Args:
        method: how keys and values reach other ranks.
        model: whose attention it is.
        tuning: those that train further with adapters; else those that pretrain.
    """
    return tuple(
        name
        for name in framework_names()
        if (can := framework(name)).exported
        and name != "any"
        and can.has("cp")
        and can.adapters == tuning
        and method in can.context_methods_of(model)
    )


def names_of_one_program(name: str) -> tuple[str, ...]:
    """A framework and what shares its program under another name (`shards_as`)."""
    also = [one for one in framework_names() if framework(one).shards_as == name]
    return tuple(dict.fromkeys([name, framework(name).shards_as or name, *also]))


def planned_as(name: str, zero: int) -> str:
    """The name under which a layout with this ZeRO stage is planned by the same program.

    Raises:
        SpecError: no such framework.
    """
    for one in names_of_one_program(name):
        can = framework(one)
        if zero in can.zero and not (zero >= 2 and can.shards_as):
            return one
    return name


@cache
def only_shards(name: str) -> bool:
    """Whether a framework is a program's sharding alone, and what does not shard is planned under another name."""
    return any(framework(one).shards_as == name for one in framework_names())


def source_of(name: str, cell: str) -> str:
    """Return where a cell of the table comes from, following `base`.

    Raises:
        SpecError: no such framework or cell.
    """
    current: str | None = find_framework(name)
    while current is not None:
        row = table("frameworks")[current]
        if cell in row["sources"]:
            return str(row["sources"][cell])
        current = row.get("base")
    raise SpecError("cell", cell, nearest(cell, Framework.model_fields))
