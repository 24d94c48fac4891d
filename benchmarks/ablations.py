"""What each mechanism of the cost model is worth on sources that it was not fitted to.

    python benchmarks/ablations.py

Each line switches one mechanism off for every run that a fit may use (at most `RUNS` a source, every
source predicted with the constants that the others give) and scores step times and memory again. Writes
src/meshwright/evidence/data/ablations.md, which docs/accuracy.md includes.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np

from meshwright import evidence
from meshwright.costs import frameworks, kernels, layer, memory, setting, step
from meshwright.costs.ends import ends_s
from meshwright.costs.stages import StageLayers
from meshwright.costs.tables import changed
from meshwright.evidence.constants import constants_set
from meshwright.evidence.fit import Case, cases_of
from meshwright.evidence.predict import group_key, predict_runs
from meshwright.evidence.rows import published_rows
from meshwright.evidence.validation import stored

FILE = Path(evidence.__file__).parent / "data" / "ablations.md"
RUNS = 6
HOSTS = dict.fromkeys(
    ("host_kernel_s", "host_collective_s", "host_mixture_s", "host_micro_batch_s", "host_step_s"),
    0.0,
)


@contextlib.contextmanager
def options(**fields: object) -> Iterator[None]:
    """Every framework with some of its behaviour changed, whatever a run says of it."""

    def behaviour_on(job, device):
        own = {**job.framework_options, **fields}
        return frameworks.behaviour_on(job.but(framework_options=own), device)

    with mock.patch.object(setting, "behaviour_on", behaviour_on):
        changed()  # settings are kept for the questions asked last
        yield
    changed()


@contextlib.contextmanager
def without(module: object, name: str, instead: object = (0.0, 0.0)) -> Iterator[None]:
    """A function of the model that gives something else: (0, 0) for two times."""
    with mock.patch.object(module, name, return_value=instead):
        changed()
        yield
    changed()


@contextlib.contextmanager
def constant(module: object, name: str, value: float) -> Iterator[None]:
    """A constant of a module with another value."""
    with mock.patch.object(module, name, value):
        changed()
        yield
    changed()


@contextlib.contextmanager
def head_as_layers() -> Iterator[None]:
    """The head's products in as few bits as those of the layers."""
    with mock.patch.object(setting.Setting, "head_kernels", property(lambda own: own.kernels)):
        changed()
        yield
    changed()


@contextlib.contextmanager
def further_left_out() -> Iterator[None]:
    """Layers that predict further tokens cost nothing, nor do their passes of the head."""

    def plain(model, columns, layers):
        return layers

    def ends(own, columns, role):
        return ends_s(replace(own, model=own.model.but(predict_layers=0)), columns, role)

    with (
        mock.patch.object(step, "with_further", plain),
        mock.patch.object(memory, "with_further", plain),
        mock.patch.object(step, "ends_s", ends),
    ):
        changed()
        yield
    changed()


CASES = [
    ("nothing switched off", contextlib.nullcontext),
    ("host time (launches, Python)", lambda: options(**HOSTS)),
    ("host time of tensor-parallel collectives", lambda: options(host_collective_s=0.0)),
    ("messages of tensor groups over hosts in turn",
     lambda: constants_set({"overlap.tensor_over_hosts.member_s": 1e-12})),
    ("checks of every collective", lambda: options(collectives_checked=False)),
    ("looks at messages with sleeps between", lambda: options(message_poll_s=0.0)),
    ("ranks in between with fewer layers than the heaviest",
     lambda: without(StageLayers, "middle_ranks", None)),
    ("slower hosts with Grace", lambda: constants_set({"host.grace.slowness": 1.0})),
    ("writing quantised weights out", lambda: without(layer, "unpack_times")),
    ("no tensor cores for heads of odd widths", lambda: constant(kernels, "ODD_HEADS", 1.0)),
    ("the wait for the experts' counts", lambda: options(experts_padded=True)),
    ("host time of mixtures beside their products", lambda: options(host_mixture_s=0.0)),
    ("collectives among the ranks of an expert", lambda: without(layer, "expert_tensor_s", 0.0)),
    ("half-filled tiles of experts", lambda: constant(kernels, "PARTIAL_TILE", 0.0)),
    ("partial waves of tiles", lambda: constant(kernels, "WHOLE_WAVES", 0.0)),
    ("accumulating gradients", lambda: options(accumulate_bytes=0.0)),
    ("passes over the logits", lambda: options(loss_bytes=0.0)),
    ("the head in 16 bits where layers have fewer", head_as_layers),
    ("generations of flash attention (all the newest)", lambda: options(flash_generation=3)),
    ("eager kernels (all fused)", lambda: options(
        fused_norm=True, fused_rotary=True, fused_softmax=True, fused_activation=True,
        moved_widths=0.0)),
    ("buckets (one message each)", lambda: options(bucket_parameters=1e15, zero1_bucketed=True)),
    ("owners of whole tensors (as if shards)", lambda: options(zero1_owners=False)),
    ("linears that gather their input by themselves",
     lambda: options(input_reductions=2.0, input_gathers=2.0)),
    ("what is not overlapped (all overlapped)", lambda: options(
        reduce_overlapped=True, gather_overlapped=True, tensor_overlapped=True,
        p2p_overlapped=True, overlapped_in_pipeline=True)),
    ("slowdown by what is overlapped",
     lambda: constants_set({"overlap.slowdown.per_hidden_second": 1e-9})),
    ("overlap of experts' all-to-alls", lambda: options(expert_overlapped=False)),
    ("deduplicating dispatch of experts", lambda: options(expert_dispatch="all-to-all")),
    ("gathering where racks' tokens go", lambda: without(layer, "routing_map_s", 0.0)),
    ("CUDA graphs", lambda: options(graphs="none")),
    ("what scans of linear mixers reach",
     lambda: constant(kernels, "SCAN_FLOPS_PER_SM", 1e18)),
    ("layers that predict further tokens",
     further_left_out),
    ("passes over biases inside experts", lambda: options(expert_bias_fused=True)),
    ("what pipelines keep gathered", lambda: options(pipeline_unsharded=False)),
    ("copies during the update", lambda: options(update_bytes=0.0)),
    ("blocks that wait for reduce-scatters", lambda: options(held_widths=0.0)),
    ("what flash attention's backward pays to start",
     lambda: constant(kernels, "BACKWARD_START", 1.0)),
    ("cached blocks of eager programs",
     lambda: constants_set({"memory.allocator.eager_cached": 1e-9})),
    ("hosts that wait for a stage's message", lambda: options(messages_wait=False)),
    ("FFN inputs in 8 bits where a configuration asks for them",
     lambda: options(ffn_inputs_8bit=False)),
    ("single matrices that compiled programs gather", lambda: options(planned_buffers=False)),
    ("FSDP's fp32 shards that need none in 16 bits",
     lambda: options(zero3_shards_are_masters=False)),
    ("ZeRO-3's hooks, module by module", lambda: options(zero3_gathers="layers")),
    ("gaps of the caching allocator",
     lambda: constants_set({"memory.allocator.fragmentation": 1e-9})),
]  # fmt: skip


def errors(by_source: dict[str, list[Case]], case) -> dict[str, tuple[list[float], list[float]]]:
    """Errors of step time and of memory by source, each left out."""
    constants = stored().constants
    found: dict[str, tuple[list[float], list[float]]] = {}
    for source, cases in by_source.items():
        groups: dict[str, list[Case]] = {}
        for one in cases:
            groups.setdefault(group_key(one.run), []).append(one)
        times, peaks = found.setdefault(source, ([], []))
        with constants_set(constants.get(source, {})), case():
            for members in groups.values():
                priced = predict_runs([one.run for one in members])
                for one, price in zip(members, priced, strict=True):
                    times.append(abs(price.iter_time_s / one.time_s - 1.0))
                    peaks.append(abs(price.peak_memory_bytes / one.memory_bytes - 1.0))
    return found


def known(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def main() -> None:
    by_source: dict[str, list[Case]] = {}
    for one in cases_of(published_rows(), RUNS):
        by_source.setdefault(one.source, []).append(one)
    lines = [
        "## Ablations",
        "",
        "Errors in percent with one mechanism switched off for every run, each source left out "
        "(`python benchmarks/ablations.py`; at most six runs of a source). The last column names the "
        "source that needs the mechanism most, with the median of its errors with and without it.",
        "",
        "| without | time, median | p90 | memory, median | p90 | needed most by |",
        "|---|--:|--:|--:|--:|---|",
    ]
    whole: dict[str, tuple[list[float], list[float]]] = {}
    for name, case in CASES:
        found = errors(by_source, case)
        whole = whole or found
        cells = []
        for kind in (0, 1):
            every = known([error for pair in found.values() for error in pair[kind]])
            cells += [f"{100 * np.median(every):.1f}", f"{100 * np.quantile(every, 0.9):.0f}"]
        medians = [
            (np.median(known(after[kind])), np.median(known(before[kind])), source, what)
            for (source, after), before in zip(found.items(), whole.values(), strict=True)
            for kind, what in ((0, "time"), (1, "memory"))
            if known(after[kind])
        ]
        worse, with_it, source, what = max(medians, key=lambda one: one[0] - one[1])
        most = f"{source}: {what} {100 * with_it:.0f} → {100 * worse:.0f}"
        cells.append(most if worse > with_it + 0.005 else "–")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        print(lines[-1], file=sys.stderr, flush=True)
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
