"""What one micro-batch takes, by part, on a rank of each role of the pipeline, and which role sets the pace."""

from __future__ import annotations

import numpy as np

from meshwright.costs import pipeline
from meshwright.costs.columns import Floats, Ints, LayoutColumns, distinct
from meshwright.costs.encoder_time import encoder_s
from meshwright.costs.ends import ends_s
from meshwright.costs.experts import dispatch_may_hide
from meshwright.costs.host import launch_s
from meshwright.costs.layer import PARTS as LAYER_PARTS
from meshwright.costs.layer import LayerTime
from meshwright.costs.layer_setting import LayerKeys
from meshwright.costs.module_times import repeated_s
from meshwright.costs.partial_training import spared
from meshwright.costs.setting import Setting
from meshwright.costs.stages import ROLES, StageLayers, roles_in


def stage_parts_by_role(
    setting: Setting, columns: LayoutColumns, layers: StageLayers, distances: dict[str, Ints]
) -> dict[str, dict[str, tuple[Floats, Floats]]]:
    """(forward, backward) seconds per part of one micro-batch on the rank of each role."""
    keys, inverse = _distinct_keys(setting, columns, distances)
    per_layer = _layer_times(setting, keys)
    parts = {
        role: _stage_parts(setting, columns, layers, per_layer, inverse, role)
        for role in roles_in(columns)
    }
    nothing = np.zeros(columns.rows)
    idle = dict.fromkeys(parts["first"], (nothing, nothing))
    return {role: parts.get(role, idle) for role in ROLES}


def _distinct_keys(
    setting: Setting, columns: LayoutColumns, distances: dict[str, Ints]
) -> tuple[LayerKeys, Ints]:
    """Return the distinct combinations that layer times depend on, and each row's position."""
    fields = [
        columns.tp, columns.cp, columns.ep, columns.etp, columns.micro_batch,
        columns.sequence_parallel,
        distances["tp"], distances["cp"], distances["ep"],
        np.where(columns.cp > 1, columns.cp_method, 0),
    ]  # fmt: skip
    first, inverse = distinct(*fields)
    return LayerKeys(*(field[first] for field in fields)), inverse


def _layer_times(setting: Setting, keys: LayerKeys) -> dict[bool, LayerTime]:
    return {moe: book.look_up(keys) for moe, book in setting.books.items()}


def _stage_parts(
    setting: Setting,
    columns: LayoutColumns,
    layers: StageLayers,
    per_layer: dict[bool, LayerTime],
    inverse: Ints,
    role: str,
) -> dict[str, tuple[Floats, Floats]]:
    """(forward, backward) seconds per part of one micro-batch on a rank of a role."""
    counts = {False: layers.dense[role], True: layers.moe[role]}
    parts: dict[str, tuple[Floats, Floats]] = {}
    for name in LAYER_PARTS:
        forward, backward = np.zeros(columns.rows), np.zeros(columns.rows)
        for moe, time in per_layer.items():
            there, back = time.forward[name][inverse], time.backward[name][inverse]
            if name == "expert_parallel" and time.hidden_dispatch is not None:
                hidden, hides = time.hidden_dispatch[inverse], dispatch_may_hide(columns)
                there, back = np.where(hides, hidden, there), np.where(hides, hidden, back)
            forward = forward + counts[moe] * there
            backward = backward + counts[moe] * back
        parts[name] = (forward, backward)
    again = np.zeros(columns.rows)
    share = layers.recomputed_share(role, columns)
    modules = columns.recompute_modules > 0
    for moe, time in per_layer.items():
        full = time.forward_s()[inverse] * share
        selective = time.selective[inverse]
        if modules.any():
            forwards = {name: one[inverse] for name, one in time.modules.items()}
            chosen = repeated_s(columns, forwards, time.forward["attention"][inverse])
            selective = np.where(modules, chosen, selective)
        each = np.where(
            columns.recompute == 2, full, np.where(columns.recompute == 1, selective, 0.0)
        )
        again = again + counts[moe] * each
    parts["recompute"] = (np.zeros(columns.rows), again)
    parts["embedding_and_head"] = ends_s(setting, columns, role)
    mixture = counts[True] * _mixture_s(per_layer, inverse) + parts["expert_parallel"][0]
    parts["launch"] = launch_s(setting, columns, layers, parts, role, mixture)
    parts["encoder"] = encoder_s(setting, columns, layers, role)
    return spared(setting.model, setting.job, columns, parts)


def _mixture_s(per_layer: dict[bool, LayerTime], inverse: Ints) -> Floats:
    """Forward of one layer's mixture on the device, but its dispatch."""
    if True not in per_layer:
        return np.zeros(len(inverse))
    time = per_layer[True]
    return (time.modules["moe"] - time.forward["expert_parallel"])[inverse]


def stage_times(
    columns: LayoutColumns, parts: dict[str, dict[str, tuple[Floats, Floats]]], middle_ranks: Floats
) -> pipeline.StageTimes:
    """Seconds of one micro-batch on the rank of each role; half of the products' backward is the weights'."""
    sums: dict[str, tuple[Floats, Floats]] = {}
    for role in ROLES:
        forward, backward = np.zeros(columns.rows), np.zeros(columns.rows)
        for one_forward, one_backward in parts[role].values():
            forward, backward = forward + one_forward, backward + one_backward
        sums[role] = (forward, backward)
    matmul = parts["first"]["matmul"][1]
    whole = sums["first"][1]
    weight = np.where(whole > 0, 0.5 * matmul / np.where(whole > 0, whole, 1.0), 0.0)
    return pipeline.StageTimes(
        *sums["first"],
        *sums["middle"],
        *sums["last"],
        weight_share=weight,
        middle_ranks=middle_ranks,
    )


def pace_parts(
    columns: LayoutColumns,
    parts: dict[str, dict[str, tuple[Floats, Floats]]],
    times: pipeline.StageTimes,
    micro_batches: Ints,
) -> dict[str, Floats]:
    """Seconds per part that the rank setting the pace is busy in one step."""
    first = times.first_forward + times.first_backward
    middle = np.where(columns.pp > 2, times.middle_forward + times.middle_backward, 0.0)
    last = np.where(columns.pp > 1, times.last_forward + times.last_backward, 0.0)
    pace = np.maximum(np.maximum(first, middle), last)
    result: dict[str, Floats] = {}
    for name in parts["first"]:
        busy = [forward + backward for forward, backward in (parts[role][name] for role in ROLES)]
        one = np.where(pace == first, busy[0], np.where(pace == last, busy[2], busy[1]))
        result[name] = micro_batches.astype(np.float64) * one
    return result
