"""Where this rank stands: a Layout turned into device meshes and process groups.

Two meshes cover the same ranks. The dense one is (pp, replicate, shard, tp), whose middle two are
the dp·cp ranks that share a gradient; the expert one is (pp, edp, ep), where the ranks of one
stage are divided anew for the experts; a fourth dimension where tp cuts them too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from meshwright.engine.model.collectives import Axis
from meshwright.engine.model.layers import Axes
from meshwright.specs.layout import Layout


def rank_grid(layout: Layout) -> torch.Tensor:
    """Global ranks as `[pp, dp, cp, tp]`, numbered as `rank_order` says (fastest axis first)."""
    order = [axis for axis in reversed(layout.rank_order.split("-")) if axis != "ep"]
    sizes = {"pp": layout.pp, "dp": layout.dp, "cp": layout.cp, "tp": layout.tp}
    grid = torch.arange(layout.world).reshape([sizes[axis] for axis in order])
    return grid.permute([order.index(axis) for axis in ("pp", "dp", "cp", "tp")]).contiguous()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This rank's coordinates, meshes and groups under one layout."""

    layout: Layout
    device: torch.device
    rank: int
    dense: DeviceMesh
    experts: DeviceMesh | None
    axes: Axes
    pp: Axis
    dp_rank: int
    tied: Axis
    """First and last stage of this rank's pipeline, which hold one tied embedding."""
    control: Any
    """All ranks once more: losses and norms travel here, apart from every axis."""
    names: dict[str, str]
    """Process group name to axis, for the ledger."""
    mutant: str = ""

    @property
    def data_mesh(self) -> DeviceMesh:
        """The mesh that gradients of dense parameters are reduced over."""
        if self.mutant == "dp":
            return self.dense["alone"]
        replicate = self.dense["replicate"].size()
        if self.layout.zero == 0:
            return self.dense["replicate"]
        if self.mutant == "hsdp":
            return self.dense["shard"]
        return self.dense["replicate", "shard"] if replicate > 1 else self.dense["shard"]

    @property
    def expert_data_mesh(self) -> DeviceMesh:
        """The mesh that gradients of experts are reduced over; only with experts on many ranks."""
        assert self.experts is not None
        return self.experts["alone" if self.mutant == "edp" else "edp"]

    @property
    def data_size(self) -> int:
        """Ranks that share a dense gradient: dp · cp."""
        return self.layout.dp * self.layout.cp


def make_world(
    layout: Layout, device: torch.device, has_experts: bool = False, mutant: str = ""
) -> World:
    """Build meshes and groups; every rank of the default group calls this once.

    `mutant` names one reduction to leave out, for `verify` only.
    """
    rank = dist.get_rank()
    grid = rank_grid(layout)
    stage_ranks = grid.reshape(layout.pp, -1)
    shard = layout.shard_degree
    shape = (layout.pp, layout.dp * layout.cp // shard, shard, layout.tp)
    names = ["pp", "replicate", "shard", "tp"]
    ranks = grid.reshape(shape)
    if mutant == "dp":
        ranks, names = ranks[..., None, :], ["pp", "replicate", "shard", "alone", "tp"]
    dense = DeviceMesh(device.type, ranks, mesh_dim_names=tuple(names))
    where = [int(i) for i in (grid == rank).nonzero()[0]]
    pp_rank, dp_rank, cp_rank, tp_rank = where

    cp_lines = grid.permute(0, 1, 3, 2).reshape(-1, layout.cp)
    cp = Axis(name="cp", size=layout.cp, rank=cp_rank, group=_own_group(cp_lines, rank))
    expert_mesh, ep = None, Axis(name="ep")
    if has_experts and layout.dp * layout.cp * layout.tp > 1:
        expert_ranks = stage_ranks.reshape(layout.pp, -1, layout.ep)
        # Groups of its own, also where one spans all ranks: the ledger tells axes by group.
        own: tuple[Any, ...] = ((dist.get_backend(), None),) * 3
        parts: tuple[str, ...] = ("pp", "edp", "ep")
        if layout.etp > 1:
            expert_ranks = stage_ranks.reshape(layout.pp, -1, layout.ep, layout.etp)
            own, parts = (*own, own[0]), (*parts, "etp")
        if mutant == "edp":
            expert_ranks, own = expert_ranks[:, :, None], (*own, own[0])
            parts = ("pp", "edp", "alone", *parts[2:])
        expert_mesh = DeviceMesh(
            device.type, expert_ranks, mesh_dim_names=parts, backend_override=own
        )
        group = expert_mesh.get_group("ep")
        ep = Axis(name="ep", size=layout.ep, rank=dist.get_rank(group), group=group)
    tied = Axis(name="tied")
    if layout.pp > 1:
        ends = torch.stack([stage_ranks[0], stage_ranks[-1]], dim=1)
        group = _own_group(ends, rank)
        tied = Axis(name="tied", size=2, rank=int(pp_rank > 0), group=group)
    tp = Axis(name="tp", size=layout.tp, rank=tp_rank, group=dense.get_group("tp"))
    axes = Axes(
        tp=tp.mute() if mutant == "tp" else tp,
        cp=cp.mute() if mutant == "cp" else cp,
        ep=ep.mute() if mutant == "ep" else ep,
        sequence_parallel=layout.sequence_parallel and layout.tp > 1,
        ring=layout.cp_method == "ring",
        experts_cut=layout.etp > 1,
    )
    pp = Axis(name="pp", size=layout.pp, rank=pp_rank, group=dense.get_group("pp"))
    control = dist.new_group(list(range(layout.world)), timeout=_timeout(dist.group.WORLD))
    waits = dist.get_backend() != "fake"
    for mesh in (dense, expert_mesh) if waits else ():
        for group in mesh.get_all_groups() if mesh is not None else ():
            # Mesh groups would wait for half an hour, whatever the job's own limit.
            _set_pg_timeout(_timeout(dist.group.WORLD), group)
    return World(
        layout=layout, device=device, rank=rank, dense=dense, experts=expert_mesh, axes=axes,
        pp=pp, dp_rank=dp_rank, tied=tied, control=control,
        names=_group_names(dense, expert_mesh, cp, tied) | {control.group_name: "control"},
        mutant=mutant,
    )  # fmt: skip


def _timeout(group: Any) -> timedelta:
    """How long a group's collectives wait for a silent rank."""
    kind = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    options = group._get_backend(kind).options
    return timedelta.max if options is None else options._timeout  # a fake group waits for nobody


def _own_group(lines: torch.Tensor, rank: int) -> Any:
    """A process group per row of `lines` (made by all ranks); return the one with this rank."""
    own = None
    if lines.shape[1] == 1:
        return None
    for line in lines.tolist():
        group = dist.new_group(line, timeout=_timeout(dist.group.WORLD))
        if rank in line:
            own = group
    return own


def _group_names(
    dense: DeviceMesh, experts: DeviceMesh | None, cp: Axis, tied: Axis
) -> dict[str, str]:
    """A mesh dimension as large as the world *is* the default group, so only real ones count."""
    labels = {"pp": "pp", "replicate": "dp", "shard": "dp", "alone": "dp", "tp": "tp"}
    found = [(dense.get_group(name), labels[name]) for name in dense.mesh_dim_names or ()]
    if experts is not None:
        found += [(experts.get_group(name), name) for name in ("edp", "ep")]
        if "etp" in (experts.mesh_dim_names or ()):
            found.append((experts.get_group("etp"), "tp"))
    found += [(axis.group, axis.name) for axis in (cp, tied) if axis.group is not None]
    return {group.group_name: label for group, label in found if group.size() > 1}
