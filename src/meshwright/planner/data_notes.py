"""What the lengths of a data set make of a plan: tokens that count, tokens that pad, ranks that wait."""

from __future__ import annotations

from meshwright.specs.lengths import Lengths
from meshwright.specs.plan import Plan

DROPS = ("axolotl",)
"""Tools that leave out what is longer than a sequence, unless told otherwise (axolotl's `excess_length_strategy`)."""
WASTE = 0.05
"""Share of a step that padding or waiting must cost to be called a waste."""


def length_notes(plan: Plan, lengths: Lengths) -> tuple[str, ...]:
    """Sentences on packing, padding, cutting and waiting, with the tokens per second that are left."""
    layout, seq_len = plan.layout, plan.job.seq_len
    drops = plan.job.framework in DROPS
    all_tokens = sum(lengths.tokens)
    if drops:
        lengths = lengths.within(seq_len)
    dropped = 1 - sum(lengths.tokens) / all_tokens
    use = lengths.use(seq_len, layout.micro_batch, layout.dp)
    rate = plan.estimate.tokens_per_s_per_gpu
    counted = ", estimated from its text (four bytes a token)" if lengths.estimated else ""
    notes = [
        f"the data has {lengths.mean:,.0f} tokens an example in the mean{counted}; packed into "
        f"sequences of {seq_len:,}, {use.examples_per_sequence:.1f} share one and fill "
        f"{use.packed_fill:.0%} of it: {rate * use.packed_fill:,.0f} tokens of data per second and "
        f"device",
        f"without packing, each micro-batch of {layout.micro_batch} is as long as its longest "
        f"example: {1 - use.padded_fill:.0%} of what it computes is padding"
        + (
            f", and ranks wait for the longest of theirs, {use.slowest_rank - 1:.0%} of the mean"
            if layout.dp > 1 and use.slowest_rank - 1 > WASTE
            else ""
        ),
    ]
    if lengths.part:
        notes.append(f"the first {lengths.examples:,} examples of the file stand for all of it")
    if lengths.empty:
        notes.append(
            f"{lengths.empty:,} of the data's {lengths.examples:,} examples are empty and left out"
        )
    if dropped > 0:
        notes.append(
            f"{dropped:.1%} of the data's tokens are in examples beyond {seq_len:,}, which "
            f"{plan.job.framework} leaves out whole (`excess_length_strategy: truncate` cuts them)"
        )
    if use.cut > 0:
        notes.append(f"{use.cut:.1%} of the data's tokens are beyond {seq_len:,} and cut off")
    if use.packed_fill < 1 - WASTE and seq_len < 4 * lengths.mean:
        notes.append(
            f"longer sequences than {seq_len:,} would pack better: examples are long beside them"
        )
    return tuple(notes)
