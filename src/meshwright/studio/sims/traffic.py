"""What one device sends per step for each axis, in the lessons' closed forms."""

from __future__ import annotations

from meshwright.costs.alpha_beta import ring_all_reduce
from meshwright.costs.closed_forms import (
    pipeline_traffic_bytes,
    tensor_parallel_all_reduces,
    zero_traffic_bytes,
)
from meshwright.costs.parameters import count_parameters
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model


def axis_traffic_bytes(model: Model, job: Job, layout: Layout) -> dict[str, float]:
    """Bytes that one device sends per step for tp, pp and dp, without recomputation.

    Equal shares of the layers and parameters. Tensor: ring all-reduces of one micro-batch's hidden
    state, 2 a layer in each direction. Pipeline: the hidden state forward and its gradient back.
    Data: gradients (and gathered parameters) as the ZeRO stage has it.

    Raises:
        SpecError: the global batch is not a multiple of dp · micro_batch.
    """
    micro_batches = layout.micro_batches(job.global_batch)
    hidden = float(
        job.seq_len * layout.micro_batch * model.hidden * job.precision.activation_bytes / layout.cp
    )
    layers = model.layers / layout.pp
    per_layer = sum(tensor_parallel_all_reduces(1))
    each = float(ring_all_reduce(hidden, layout.tp, 1.0).sent_bytes) if layout.tp > 1 else 0.0
    one_way, _ = pipeline_traffic_bytes(
        job.seq_len, layout.micro_batch, micro_batches, model.hidden, job.precision.activation_bytes
    )
    share = float(count_parameters(model).total) / (layout.tp * layout.pp)
    data = zero_traffic_bytes(
        share, layout.zero, layout.dp, job.precision.parameter_bytes,
        job.precision.gradient_reduce_bytes,
    )  # fmt: skip
    return {
        "tp": micro_batches * layers * per_layer * each,
        "pp": 2 * one_way / layout.tp if layout.pp > 1 else 0.0,
        "dp": float(data),
    }
