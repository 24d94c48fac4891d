"""How many sequences a row's step has, and how they are cut: global batch, micro-batch, accumulation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshwright.evidence.machines import SkipRow
from meshwright.evidence.rows import Row
from meshwright.evidence.software import SourceRule
from meshwright.planner.corners import largest_divisor


@dataclass(frozen=True, slots=True)
class Degrees:
    """A run's devices and the ranks of each axis."""

    gpus: int
    dp: int
    tp: int
    pp: int
    cp: int
    ep: int


MOST_TOKENS = 2**14
"""Tokens of a micro-batch that nobody states: of published runs the median takes two sequences of 8,192 and one of any
longer ones, whatever the source."""

_ACCUMULATION = (
    r"(?:grad\w*[-_ ]?accum\w*(?:[-_ ]steps?)?|accum\w*[-_ ]steps?|\bGAS?(?=\b|\d)|micro_num(?: \([^)]*\))?)"
    r" ?(?:steps?)? ?[=:]? ?(\d+)"
)


def accumulation(setup: str) -> int | None:
    """Micro-batches per step and replica that `setup` states, as frameworks name them."""
    match = re.search(_ACCUMULATION, setup, re.IGNORECASE)
    return int(match.group(1)) if match else None


def _batch_in_tokens(setup: str, seq_len: int) -> int | None:
    """Sequences of a global batch that `setup` states in tokens: `global batch tokens=4M`."""
    match = re.search(
        r"(?:total_weights(?:\(tokens/step\))?|(?:global[-_ ])?batch[-_ ]?(?:size)?[-_ ]?(?:in )?tokens|"
        r"tokens[-_ /]*(?:per[-_ ])?step)\D{0,3}?[=:] ?(\d+(?:\.\d+)?)([KM]?)",
        setup,
        re.IGNORECASE,
    )
    if match is None:
        return None
    tokens = float(match[1]) * {"": 1, "k": 2**10, "m": 2**20}[match[2].lower()]
    return round(tokens / seq_len) or None


def batches(
    row: Row, rule: SourceRule, degrees: Degrees, seq_len: int, assumed: list[str]
) -> tuple[int, int, int | None]:
    """Global batch, micro-batch and accumulation steps; what is missing follows from the rest."""
    accumulate = accumulation(row["setup"])
    batch, micro = row.count("global_batch"), row.count("micro_batch")
    if batch is None:
        batch = _batch_in_tokens(row["setup"], seq_len)
    if batch is None and (stated := re.search(r'"Batch"=(\d+)', row["setup"])):
        micro, batch = int(stated.group(1)), int(stated.group(1)) * degrees.dp
        assumed.append(f"global_batch={batch}")
    if batch is None and micro is not None and accumulate:
        batch = micro * degrees.dp * accumulate
    if batch is None:
        known = rule.default("global_batch")
        per_device = rule.default("sequences_per_device")
        if known:
            batch = int(known)
        elif per_device:
            batch = int(per_device) * degrees.gpus
        elif micro is not None:
            batch = micro * degrees.dp * max(1, 4 * degrees.pp if degrees.pp > 1 else 1)
        else:
            raise SkipRow(
                "no batch: a global one, or sequences a device at a time and their accumulation, is expected"
            )
        assumed.append(f"global_batch={batch}")
    if micro is None:
        micro = _micro_batch(row, rule, degrees, batch, accumulate, seq_len)
        assumed.append(f"micro_batch={micro}")
    return batch, micro, accumulate


def _micro_batch(
    row: Row, rule: SourceRule, degrees: Degrees, batch: int, accumulate: int | None, seq_len: int
) -> int:
    per_replica = max(1, batch // degrees.dp)
    if accumulate:
        return max(1, per_replica // accumulate)
    by_size = rule.default("micro_batch_by_params_b")
    if by_size is not None and row.number("params_b"):
        size = row.number("params_b") or 0.0
        wanted = next(v for limit, v in by_size.items() if size <= float(limit))
    else:
        wanted = rule.default("micro_batch") or (1 if degrees.pp > 1 else 4)
    if not rule.documented:
        wanted = max(1, min(int(wanted), MOST_TOKENS // seq_len))
    return largest_divisor(per_replica, min(int(wanted), per_replica))


def repaired(
    batch: int, micro: int, dp: int, accumulate: int | None, assumed: list[str]
) -> tuple[int, int]:
    """Make the batch a multiple of dp · micro-batch, changing as little as possible, and say so."""
    if batch % dp == 0:
        micro = largest_divisor(batch // dp, micro)
        assumed.append(f"micro_batch={micro} (the batch is not a multiple of the printed one)")
        return batch, micro
    steps = accumulate or max(1, round(batch / (dp * micro)))
    assumed.append(f"global_batch={steps * dp * micro} (the printed {batch} is no multiple of dp)")
    return steps * dp * micro, micro
