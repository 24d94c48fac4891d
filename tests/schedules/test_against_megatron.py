"""Interleaved 1F1B against megatron-core's own schedule table (stored with its source)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.schedules import Kind, build

GOLDEN = json.loads((Path(__file__).parent / "data/megatron_schedule_table.json").read_text())


@pytest.mark.parametrize(
    "case", GOLDEN["cases"], ids=lambda c: f"pp{c['pp']}-m{c['micro_batches']}-N{c['group']}"
)
def test_interleaved_runs_megatrons_table(case):
    pp, chunks = case["pp"], case["virtual_stages"]
    schedule = build(
        "interleaved",
        pp=pp,
        micro_batches=case["micro_batches"],
        virtual_stages=chunks,
        group=case["group"],
    )
    table = [tuple(entry) for entry in case["table"]]
    for rank in range(pp):
        ops = list(schedule.ops(rank))
        forwards = [(op.unit, op.stage // pp) for op in ops if op.kind == Kind.F]
        backwards = [(op.unit, chunks - 1 - op.stage // pp) for op in ops if op.kind == Kind.B]
        assert forwards == table
        assert backwards == table
        # Megatron's get_pp_rank_microbatches: this many forwards before the first backward, then
        # one forward and one backward in turn.
        warmup = min(2 * (pp - rank - 1) + (chunks - 1) * case["group"], len(table))
        letters = "".join(op.kind.name for op in ops)
        steady = len(table) - warmup
        assert letters == "F" * warmup + "FB" * steady + "B" * warmup
