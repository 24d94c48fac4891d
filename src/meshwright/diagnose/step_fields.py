"""What logs call the figures of a step: one table of names with their units, whatever framework printed them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from functools import lru_cache

from meshwright.diagnose.text_values import size_bytes


@dataclass(slots=True)
class Step:
    """What a log says of one step (or of the steps since the line before)."""

    line: int
    number: int | None = None
    alone: bool = False
    """Its time is its own, not the mean of the steps since the line before."""
    of: int | None = None
    """Steps in all."""
    rank: int | None = None
    clock_s: float | None = None
    """Time of day that the line carries."""
    step_time_s: float | None = None
    running_s_it: float | None = None
    """A progress bar's smoothed seconds per step."""
    loss: float | None = None
    grad_norm: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    flops_per_gpu: float | None = None
    """FLOP/s, as printed."""
    mfu: float | None = None
    """As printed, 0 to 1."""
    memory_bytes: float | None = None
    reserved_bytes: float | None = None
    alloc_retries: float | None = None
    global_batch: int | None = None
    tokens: int | None = None
    """Of the step."""
    skipped: int | None = None
    skipped_so_far: int | None = None
    """Since the run began, as DeepSpeed counts."""
    nan: int | None = None
    data_s: float | None = None
    mean_s: float | None = None
    """Seconds a step, in the mean since the run began."""
    interval_s: float | None = None
    """Since the line before, of all steps in between."""
    update_s: float | None = None
    """Of a step without its wait for data, where the two are printed apart."""
    forward_s: float | None = None
    backward_s: float | None = None
    reduce_s: float | None = None
    optimizer_s: float | None = None
    generate_s: float | None = None
    train_s: float | None = None
    evaluation_s: float | None = None
    eval_loss: float | None = None
    runtime_s: float | None = None
    """Of the whole run, from its summary."""
    steps_per_s: float | None = None


FIELDS = frozenset(one.name for one in fields(Step))

_T = 1e12
ALIASES: tuple[tuple[str, str, float], ...] = (
    # (pattern of the normalised name, field, factor to SI; negative: its reciprocal)
    (r"train_steps_per_second", "steps_per_s", 1.0),
    (r"elapsed(?:_time(?:_per_(?:iteration|step))?)?_(?:in_)?ms|iter_?time_ms|step_?time_ms|batch_time_ms|train_step_timing_in_ms|iteration_time_ms|time_per_(?:step|iteration)_ms|elapsed_time_per_iteration_ms", "step_time_s", 1e-3),
    (r"elapsed_time_per_iteration_s|(?:train_)?step_timing_in_s|iter_time_s|step_?time_s|step_?time_in_seconds|train_step_time_in_s|iter_?time|step_?time|time_per_(?:step|iteration)|(?:avg_)?batch_cost|seconds_per_(?:step|iteration)|sec_per_step|time_s_step|e2e_latency|average_iter_time|avg_iter_time|time_elapsed_per_step|time_metrics_end_to_end_s|train_step_timing", "step_time_s", 1.0),
    (r"dt|step_avg", "step_time_s", 1.0),
    (r"seconds|timing_s_step", "step_time_s", 1.0),
    (r"train_speed_iter_s", "mean_s", -1.0),  # a rate
    (r"train_speed_s_it", "mean_s", 1.0),
    (r"(?:train_)?(?:(?:global_)?steps?|iters?|it|iterations?)_(?:s|sec|per_sec(?:ond)?)|ups", "step_time_s", -1.0),  # a rate
    (r"time(?:_ms)?", "step_time_s", math.nan),  # only with a unit, see `put_pair`
    (r"(?:lm_|reduced_train_|train_|training_|total_|global_avg_|loss_train_)?loss(?:_train)?(?:_total)?|train_crossentropyloss|ce_loss|loss_metrics_global_avg_loss|global_avg_loss", "loss", 1.0),
    (r"loss_train_total", "loss", 1.0),
    (r"grad(?:ient)?_norm|gnorm|norm", "grad_norm", 1.0),
    (r"tokens_per_sec(?:ond)?_per_gpu|tokens_s_gpu|tgs|tgs_tokens_gpu_second|tps|tps_gpu|device_tokens_per_sec|throughput_device_tokens_per_sec(?:ond)?|tokens_per_second_per_gpu|tokens_per_gpu_per_second|tokens_sec_gpu|tok_s_gpu|tokens_per_gpu_per_sec|throughput_tps|wps|tps_per_gpu|tokens_per_sec_per_device|tokens_per_s_per_gpu|throughput_token_per_sec_per_gpu|tokens_per_second_gpu|tokens_s_device|perf_throughput|tokens_per_gpu(?:_tokens_s_gpu)?", "tokens_per_s_per_gpu", 1.0),
    (r"tokens_per_sec(?:ond)?|tokens_sec(?:ond)?|tok_s|tok_sec|tokens_s|throughput_tokens_per_sec|total_tokens_per_second|train_tokens_per_second|tokens_per_s", "tokens_per_s", 1.0),
    (r"ips|samples_sec|samples_per_sec(?:ond)?|train_samples_per_second|throughput_samples_per_sec|(?:runningavg)?samplespersec|samples_s|sequences_per_second", "samples_per_s", 1.0),
    (r"throughput_per_gpu_tflop_s_gpu|tflops?(?:_per_gpu)?|model_tflops_per_gpu|tflop_s|tflops_s_gpu|throughput_tflop_s_gpu|throughput_per_gpu|tflops_sec|estimated_tflops|actual_mfu_tflops|tflop_s_device|job_throughput", "flops_per_gpu", _T),
    (r"approx_flops_per_gpu", "flops_per_gpu", _T),
    (r"throughput_device_flops_per_sec|device_flops_per_sec", "flops_per_gpu", 1.0),
    (r"mfu|throughput_device_mfu|device_mfu|bf16_mfu|train_mfu|model_flops_utilization|throughput_mfu|mfu_percent|perf_mfu(?:_actor)?", "mfu", 1.0),
    (r"memory|mem|max_?memallocated|peak_memory(?:_active|_alloc)?(?:_gi?b)?|max_mem(?:ory)?(?:_allocated)?(?:_gi?b)?|memory_peak_mem|memory_used|mem_gb|gpu_mem|max_allocated|memory_peak_allocated_mem|memory_max_active_gib|memory_max_allocated(?:_gib)?|memory_max_mem_allocated|memory_gi?b|(?:hip|rocm|gpu)_mem_usage(?:_free_total_usage_ratio)?|cuda_memory_gi?b", "memory_bytes", 1.0),
    (r"max_reserved|reserved|max_memreserved|peak_memory_reserved|memory_reserved_mem|memory_max_reserved_gib|memory_device_reserved_gib|memory_reserved", "reserved_bytes", 1.0),
    (r"memory_peak_active_mem", "memory_bytes", 1.0),
    (r"(?:memory_)?alloc_retries|num_alloc_retries|memory_num_alloc_retries", "alloc_retries", 1.0),
    (r"(?:global|gloabl)_batch_size|batch_size_global|gbs", "global_batch", 1.0),
    (r"number_of_skipped_iterations", "skipped", 1.0),
    (r"skipped", "skipped_so_far", 1.0),
    (r"number_of_nan_iterations", "nan", 1.0),
    (r"data_time|(?:avg_)?reader_cost|data_loading_time|time_metrics_data_loading_s|batch_generator|data_s|dataloader_time|data_loading_s", "data_s", 1.0),
    (r"time_s", "interval_s", 1.0),
    (r"updt_s|update_s|update_time|train_step_s", "update_s", 1.0),
    (r"forward_microstep|forward_compute|fwd", "forward_s", 1e-3),
    (r"backward_microstep|backward_compute|bwd", "backward_s", 1e-3),
    (r"backward_allreduce_microstep|backward_allreduce|allreduce|bwd_allreduce", "reduce_s", 1e-3),
    (r"step_microstep|optimizer", "optimizer_s", 1e-3),
    (r"generate_time|timing_s_gen", "generate_s", 1.0),
    (r"training_time|timing_s_update_actor", "train_s", 1.0),
    (r"eval_runtime|evaluation_time|validation_time", "evaluation_s", 1.0),
    (r"eval_loss|validation_loss|val_loss|lm_loss_value", "eval_loss", 1.0),
    (r"train_runtime", "runtime_s", 1.0),
)  # fmt: skip
MOST_GB = 1e5
"""A number above this under a name without a unit is in bytes."""
_ANY_NUMBER = ("loss", "eval_loss", "grad_norm")
"""Fields that may be negative or not a number; nothing else that a log prints of a step can."""
_TABLE = [
    (re.compile(rf"(?:train_)?(?:{pattern})"), name, factor) for pattern, name, factor in ALIASES
]
_SCALE = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


def put_pair(step: Step, name: str, value: str, unit: str) -> bool:
    """Put a value under the name that a log gives it into the step; False where nothing of a step is called so."""
    found = _named(re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_"))
    return found is not None and _put(step, found[0], found[1], value, unit, found[2])


_SINCE_THE_START = ("elapsed_time", "remaining_time")
"""What trainers print beside a step and that is not its time."""


@lru_cache(maxsize=4096)
def _named(key: str) -> tuple[str, str, float] | None:
    """The field that a name stands for, the part of the name that tells, and the factor to SI."""
    if key in _SINCE_THE_START:
        return None
    for _ in range(3):
        for pattern, field_name, factor in _TABLE:
            if pattern.fullmatch(key):
                return field_name, key, factor
        # `INFO - root - loss` and `... tokens consumed loss`: drop leading words.
        first, found, key = key.partition("_")
        if not found or first in ("eval", "validation", "val", "test"):  # not a step's
            return None
    return None


def _put(step: Step, field_name: str, key: str, value: str, unit: str, factor: float) -> bool:
    number = float(value.replace(",", ""))  # nan and inf are losses, too
    if field_name not in _ANY_NUMBER and not 0 <= number < math.inf:
        return False
    if math.isnan(factor):
        if unit not in ("ms", "s"):
            return False
        factor = 1.0
    if unit == "ms" or (key.endswith("_ms") and unit in ("", *_SCALE)):
        factor = 1e-3
    elif unit == "us":
        factor = 1e-6
    if key in ("dt", "step_avg") and unit not in ("ms", "s"):
        factor = 1e-3 if number > 20 else 1.0
    if field_name in ("memory_bytes", "reserved_bytes"):
        if unit and unit not in ("s", "ms", "%"):
            size = size_bytes(str(number), unit if len(unit) > 1 else unit.rstrip("B") + "B")
            if size is None:
                return False
            number = size
        elif key.endswith("gib"):
            number *= 2**30
        elif key.endswith("gb") or key.removeprefix("train_").startswith("memory_"):
            number *= 1e9 if number < MOST_GB else 1.0
        elif key == "max_mem":
            number *= 2**20
        else:
            return False
        held = getattr(step, field_name)
        if held is not None:  # several names of one thing: the peak counts
            setattr(step, field_name, max(held, number))
            return True
    elif field_name == "mfu":
        number = number / 100 if unit == "%" or number > 1.0 or key.endswith("percent") else number
    elif field_name == "flops_per_gpu" and unit.startswith("PFLOP"):
        number *= 1e15
    elif factor < 0:
        if number <= 0:
            return False
        number = 1.0 / number
    elif unit in _SCALE and field_name not in ("flops_per_gpu",):
        number *= _SCALE[unit] * factor
    else:
        number *= factor
    whole = field_name in ("global_batch", "skipped", "skipped_so_far", "nan")
    if whole and not math.isfinite(number):
        return False
    held = getattr(step, field_name)
    # Of two losses in a line, a bar's own mean can be no number where the step's is one.
    if held is None or (field_name == "loss" and math.isnan(held)):
        setattr(step, field_name, int(number) if whole else number)
    return True
