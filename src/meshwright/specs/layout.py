"""How a job is laid out over a cluster."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from meshwright.specs.base import Spec
from meshwright.specs.errors import SpecError

Recompute = Literal["none", "selective", "full"]
ContextMethod = Literal["all-gather", "ring", "ulysses", "hierarchical"]
RecomputeModule = Literal[
    "core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"
]
"""Parts of a layer that selective recomputation runs again, as Megatron-Core names them."""
OffloadModule = Literal[
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"
]
"""Parts of a layer whose inputs live in host memory, as Megatron-Core names them: a part of `activations`."""
Offload = Literal["activations", "optimizer", "parameters", OffloadModule]
MODULES: tuple[RecomputeModule, ...] = get_args(RecomputeModule)
OFFLOAD_MODULES: tuple[OffloadModule, ...] = get_args(OffloadModule)
OFFLOADS: tuple[Offload, ...] = ("activations", "optimizer", "parameters", *OFFLOAD_MODULES)
CONTEXT_METHODS: tuple[ContextMethod, ...] = get_args(ContextMethod)
AXES = ("tp", "cp", "ep", "dp", "pp")

SCHEDULES = (
    "gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-h2", "zb-auto", "zb-v",
    "v-half", "v-min", "dualpipe", "dualpipe-v", "chimera", "hanayo", "seq-1f1b", "pipedream",
)  # fmt: skip
"""Names of pipeline schedules, spelled the same everywhere."""


def ranked(order: str, used: Collection[str]) -> tuple[str, ...]:
    """The axes of a rank order that are used, from the fastest-varying digit outwards."""
    return tuple(axis for axis in order.split("-") if axis in used)


class Layout(Spec):
    """Degrees of every parallel axis and the choices that go with them.

    The world is dp · tp · pp · cp devices. Expert parallelism reuses the ranks of dp · cp (and of
    tp where `etp` is below tp), as Megatron-Core and torchtitan do; it does not multiply the world.
    """

    dp: int = Field(1, ge=1, description="data parallel")
    tp: int = Field(1, ge=1, description="tensor parallel")
    pp: int = Field(1, ge=1, description="pipeline parallel")
    cp: int = Field(1, ge=1, description="context parallel")
    ep: int = Field(1, ge=1, description="expert parallel")
    etp: int = Field(1, ge=1, description="tensor parallel inside an expert")
    virtual_stages: int = Field(1, ge=1, description="model chunks per pipeline rank")
    zero: int = Field(
        0, ge=0, le=3, description="ZeRO stage: 1 optimizer, 2 + gradients, 3 + params"
    )
    shard: int = Field(
        0, ge=0, description="ranks that one ZeRO shard group has; 0 = all of dp·cp (HSDP if fewer)"
    )
    micro_batch: int = Field(1, ge=1, description="sequences per micro-batch per dp rank")
    recompute: Recompute = "none"
    recompute_layers: int = Field(
        0, ge=0, description="layers per pipeline rank to recompute in full; 0 = all of them"
    )
    recompute_modules: tuple[RecomputeModule, ...] = Field(
        (),
        description="what selective recomputation runs again; empty: what the framework means by it",
    )
    offload: tuple[Offload, ...] = Field(
        (),
        description="what lives in host memory and travels when it is needed: all that layers keep, or the "
        "inputs of some of their parts",
    )
    sequence_parallel: bool = Field(
        False, description="Megatron's split of norms along the sequence"
    )
    cp_method: ContextMethod = Field(
        "all-gather",
        description="how attention meets the keys of other context-parallel ranks: gathered, passed "
        "round (balanced halves of a causal mask), heads for sequence by all-to-all (Ulysses), or "
        "Ulysses inside a fast domain and a ring around it",
    )
    schedule: str = "1f1b"
    rank_order: str = Field(
        "tp-cp-ep-dp-pp", description="axes from the fastest-varying rank digit outwards"
    )
    stage_layers: tuple[int, ...] | None = Field(
        None, description="layers of each virtual stage in order; None: as even as possible"
    )

    stage_recompute_layers: tuple[int, ...] | None = Field(
        None,
        description="layers of each virtual stage to recompute in full, in order; None: as above",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.schedule not in SCHEDULES:
            raise SpecError("schedule", self.schedule, f"one of {', '.join(SCHEDULES)}")
        if sorted(self.rank_order.split("-")) != sorted(AXES):
            raise SpecError(
                "rank_order", self.rank_order, "each of tp, cp, ep, dp, pp once, as tp-cp-ep-dp-pp"
            )
        if self.shard and (self.dp * self.cp) % self.shard:
            raise SpecError(
                "shard", self.shard, f"a divisor of dp · cp = {self.dp * self.cp} is expected"
            )
        if (
            self.stage_layers is not None
            and len(self.stage_layers) != self.pp * self.virtual_stages
        ):
            raise SpecError(
                "stage_layers",
                self.stage_layers,
                f"pp · virtual_stages = {self.pp * self.virtual_stages} entries are expected",
            )
        if self.recompute_modules and self.recompute != "selective":
            raise SpecError(
                "recompute_modules",
                self.recompute_modules,
                "recompute = selective is expected with it",
            )
        if self.stage_recompute_layers is not None:
            self._check_stage_recompute(self.stage_recompute_layers)
        return self

    @field_validator("recompute_modules", "offload", mode="after")
    @classmethod
    def _in_order(cls, named: tuple[str, ...]) -> tuple[str, ...]:
        """Each once, in the order of this module: two ways to say the same are equal."""
        order = dict.fromkeys((*MODULES, *OFFLOADS))
        return tuple(name for name in order if name in named)

    def _check_stage_recompute(self, given: tuple[int, ...]) -> None:
        stages = self.pp * self.virtual_stages
        if len(given) != stages or min(given) < 0:
            raise SpecError(
                "stage_recompute_layers",
                given,
                f"pp · virtual_stages = {stages} numbers of layers are expected",
            )
        if self.recompute != "full" or self.recompute_layers:
            raise SpecError(
                "stage_recompute_layers",
                given,
                "recompute = full, and no recompute_layers, are expected with it",
            )
        if self.stage_layers is not None and any(
            again > layers for again, layers in zip(given, self.stage_layers, strict=True)
        ):
            raise SpecError(
                "stage_recompute_layers", given, f"at most stage_layers = {self.stage_layers}"
            )

    @property
    def world(self) -> int:
        """Devices that the layout uses."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def shard_degree(self) -> int:
        """Ranks in one ZeRO shard group (1 when nothing is sharded)."""
        if self.zero == 0:
            return 1
        return self.shard or self.dp * self.cp

    def recomputed_layers(self, stage: int, layers: int) -> int:
        """How many of the `layers` of a virtual stage are recomputed in full: its first ones.

        A number per rank is spread over the rank's chunks, the earlier ones first.
        """
        if self.recompute != "full":
            return 0
        if self.stage_recompute_layers is not None:
            return min(self.stage_recompute_layers[stage], layers)
        if self.recompute_layers == 0:
            return layers
        each, more = divmod(self.recompute_layers, self.virtual_stages)
        return min(each + (stage // self.pp < more), layers)

    def micro_batches(self, global_batch: int) -> int:
        """Micro-batches that one pipeline runs per step.

        Raises:
            SpecError: the global batch is not a multiple of dp · micro_batch.
        """
        per_step = self.dp * self.micro_batch
        if global_batch % per_step:
            raise SpecError(
                "global_batch",
                global_batch,
                f"a multiple of dp · micro_batch = {self.dp} · {self.micro_batch} is expected",
            )
        return global_batch // per_step

    def label(self) -> str:
        """A short name: `tp8 pp4 dp2 mb1 zero1 selective`.

        The schedule is said where it is not 1F1B (interleaved with virtual stages), the rank order
        where it ranks the axes in use otherwise than tp, cp, ep, dp, pp.
        """
        parts = [f"tp{self.tp}", f"pp{self.pp}", f"dp{self.dp}"]
        method = "" if self.cp_method == "all-gather" else f"-{self.cp_method}"
        parts += [f"cp{self.cp}{method}"] * (self.cp > 1) + [f"ep{self.ep}"] * (self.ep > 1)
        parts += [f"etp{self.etp}"] * (self.etp > 1)
        parts += [f"v{self.virtual_stages}"] * (self.virtual_stages > 1)
        parts += [f"mb{self.micro_batch}"] + [f"zero{self.zero}"] * (self.zero > 0)
        parts += [f"shard{self.shard}"] * bool(
            self.zero and self.shard not in (0, self.dp * self.cp)
        )
        again = self.stage_recompute_layers
        if again is None and self.recompute_layers:
            again = (self.recompute_layers,)
        said = self.recompute_modules if again is None else again
        split = f"({','.join(map(str, said))})" if said else ""
        parts += [self.recompute + split] * (self.recompute != "none")
        parts += ["sp"] * self.sequence_parallel
        parts += ["offload(" + ",".join(self.offload) + ")"] * bool(self.offload)
        usual = "interleaved" if self.virtual_stages > 1 else "1f1b"
        parts += [self.schedule] * (self.pp > 1 and self.schedule not in (usual, "1f1b"))
        used = [axis for axis in AXES if getattr(self, axis) > 1]
        order = ranked(self.rank_order, used)
        parts += ["order:" + "-".join(order)] * (order != ranked("-".join(AXES), used))
        return " ".join(parts)
