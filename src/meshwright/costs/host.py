"""Time of the host: issuing kernels, and what the device waits for it."""

from __future__ import annotations

import numpy as np

from meshwright.costs.adapters import layer_matrices
from meshwright.costs.columns import Bools, Floats, LayoutColumns
from meshwright.costs.expert_launches import expert_launches
from meshwright.costs.frameworks import Behaviour
from meshwright.costs.mixers import layer_shares
from meshwright.costs.processors import check_s
from meshwright.costs.setting import Setting
from meshwright.costs.stages import StageLayers

ADAPTER_KERNELS = 6
"""Kernels of one adapter's forward, counted in PEFT's Linear: cast, dropout, two products, scale, add."""
UNPACK_KERNELS = 2
"""Kernels that write one quantised matrix out in 16 bits: of bitsandbytes, scales first, then values."""
NORMS = 2
"""Norms of a layer, modules with weights of their own."""


def launch_s(
    setting: Setting,
    columns: LayoutColumns,
    layers: StageLayers,
    parts: dict[str, tuple[Floats, Floats]],
    role: str,
    mixture_s: Floats,
) -> tuple[Floats, Floats]:
    """Time that the device waits for the host to issue kernels, per micro-batch.

    The host runs ahead while kernels are long; where they are short it sets the pace. Backward
    issues twice as many kernels as forward, and the forward's again when recomputing in full.
    `mixture_s` is what the device takes for the rank's mixtures in a forward, dispatch included.
    """
    framework = setting.behaviour
    host = kernels_s(setting, layers, role)
    experts, sparse = expert_launches(setting, columns), layers.moe[role]
    forward_collectives, backward_collectives = collectives_s(setting, columns, layers, role)
    fixed = framework.host_micro_batch_s * (framework.graphs != "all")
    checked, backward_checked = layer_checks_s(setting, columns, layers, role)
    gathered = module_gathers_s(setting, columns, layers, role)
    passes = host + sparse * experts.before + forward_collectives + checked + gathered
    device_forward, device_backward = np.zeros(columns.rows), np.zeros(columns.rows)
    for forward, backward in parts.values():
        device_forward, device_backward = device_forward + forward, device_backward + backward
    # The host reads how many tokens each expert got before it issues their dispatch and their kernels. There
    # the device has caught up: launches hide behind what the mixture itself takes, and behind nothing before.
    mixture = np.minimum(mixture_s, device_forward)
    mixture = np.where(experts.after > 0.0, mixture, 0.0)
    waited = wait_s(sparse * experts.after, mixture)
    again = columns.recompute == 2
    whole = 2.0 * host + sparse * experts.backward + backward_collectives + backward_checked
    whole = whole + gathered + np.where(again, passes, 0.0) + fixed * (2.0 / 3.0)
    device_backward = device_backward - np.where(again, np.minimum(mixture, device_backward), 0.0)
    return (
        waited + wait_s(passes + fixed / 3.0, device_forward - mixture),
        np.where(again, waited, 0.0) + wait_s(whole, device_backward),
    )


def kernels_s(setting: Setting, layers: StageLayers, role: str) -> Floats:
    """Host time to issue the kernels of a stage's forward, beside those that experts add."""
    framework = setting.behaviour
    if framework.graphs != "none":
        return 0.0 * layers.total(role)
    half = 0.5 * framework.kernels_per_layer
    each = [
        half * layer_shares(setting.model, moe=moe).parts + adapter_kernels(setting, moe=moe)
        for moe in (False, True)
    ]
    return (layers.dense[role] * each[0] + layers.moe[role] * each[1]) * framework.host_kernel_s


def collectives_s(
    setting: Setting, columns: LayoutColumns, layers: StageLayers, role: str
) -> tuple[Floats, Floats]:
    """Host time to issue a stage's tensor-parallel collectives in (forward, backward)."""
    framework = setting.behaviour
    pairs = layers.dense[role] * (0.5 * layer_shares(setting.model, moe=False).parts)
    pairs = pairs + layers.moe[role] * (0.5 * layer_shares(setting.model, moe=True).parts)
    one = framework.host_collective_s * pairs * (framework.graphs == "none")
    forward, backward = tensor_collectives(framework, columns)
    return forward * one, backward * one


def tensor_collectives(framework: Behaviour, columns: LayoutColumns) -> tuple[Floats, Floats]:
    """Number of a layer's tensor-parallel collectives in (forward, backward).

    A layer reduces its two outputs forward and the gradients of its two inputs backward. With sequence
    parallelism each is a reduce-scatter and a gather, and backward gathers the two inputs once more for
    their weights' gradients: 4 and 6 (Megatron-LM, core/tensor_parallel/layers.py and mappings.py).
    """
    several, split = columns.tp > 1, columns.sequence_parallel > 0
    gathers, reductions = framework.input_gathers, framework.input_reductions
    forward = np.where(several, np.where(split, 2.0 + gathers, 2.0), 0.0)
    return forward, np.where(several, np.where(split, 2.0 + 2.0 * gathers, reductions), 0.0)


def module_gathers_s(
    setting: Setting, columns: LayoutColumns, layers: StageLayers, role: str
) -> Floats:
    """Host time of one pass that gathers and releases parameters module by module (`zero3_gathers`).

    DeepSpeed's hooks run before and after every module with weights (runtime/zero/parameter_offload.py,
    partitioned_param_coordinator.py): look-up in the trace, prefetch, wait, release. A layer has its
    matrices and two norms, an adapter its two factors; experts are not counted (set_z3_leaf_modules).
    The hooks run on one device too.
    """
    framework = setting.behaviour
    if framework.zero3_gathers != "modules":
        return np.zeros(columns.rows)
    targets = {matrix.target for matrix in layer_matrices(setting.model, moe=False)}
    tune = setting.job.finetune
    adapted = len(targets.intersection(tune.targets)) if tune is not None and tune.adapts else 0
    modules = len(targets) + NORMS + 2 * adapted
    whole = layers.total(role) * (modules * framework.host_gather_s)
    return np.where(columns.zero == 3, whole, 0.0)


def layer_checks_s(
    setting: Setting, columns: LayoutColumns, layers: StageLayers, role: str
) -> tuple[Floats, Floats]:
    """Host time of checking the collectives of a stage in (forward, backward) (`collectives_checked`).

    Those of tensor parallelism and two all-to-alls of experts each way. Messages between pipeline
    stages and around a ring are not checked.
    """
    if not setting.behaviour.collectives_checked:
        return np.zeros(columns.rows), np.zeros(columns.rows)
    tensor = layers.total(role) * check_s(columns.tp)
    expert = 2.0 * layers.moe[role] * check_s(columns.ep)
    forward, backward = tensor_collectives(setting.behaviour, columns)
    return forward * tensor + expert, backward * tensor + expert


def adapter_kernels(setting: Setting, *, moe: bool) -> float:
    """Kernels that adapters and quantised weights add to one layer's forward, issued one by one."""
    tune = setting.job.finetune
    if tune is None:
        return 0.0
    matrices = [m for m in layer_matrices(setting.model, moe=moe) if m.target != "experts"]
    adapted = sum(1 for matrix in matrices if tune.adapts and matrix.target in tune.targets)
    unpacked = len(matrices) if tune.storage not in ("16-bit", "fp8") else 0
    return float(ADAPTER_KERNELS * adapted + UNPACK_KERNELS * unpacked)


def host_sets_the_pace(parts: dict[str, tuple[Floats, Floats]]) -> Bools:
    """Rows in which issuing a forward takes the host longer than running it takes the device."""
    device = sum((forward for name, (forward, _) in parts.items() if name != "launch"), 0.0)
    return np.asarray(parts["launch"][0] > wait_s(np.asarray(device), np.asarray(device)))


def wait_s(host: Floats, device: Floats) -> Floats:
    """Time that a device with `device` seconds of kernels waits for a host that takes `host` to issue them.

    A layer has short kernels, for which the device waits, beside long ones, behind which the host gets
    ahead, so both together take longer than the slower alone: the fourth root of the sum of their
    fourth powers, 19 % more where they are equal and nothing where one is twice the other. Two
    square roots, because they are correctly rounded and a general power is not.
    """
    square_host, square_device = host * host, device * device
    fourth = square_host * square_host + square_device * square_device
    return np.asarray(np.maximum(np.sqrt(np.sqrt(fourth)) - device, 0.0))
