"""What tables print of what was measured, under heads of their own, and what calibration makes of it."""

import json

import pytest

from meshwright.cli import run
from meshwright.cli.calibrating import gather
from meshwright.evidence.import_rows import import_row
from meshwright.evidence.measured import measured_step_time_s
from meshwright.evidence.spellings import in_the_schema
from meshwright.specs import load_cluster

RUN = {"model": "Qwen3-8B", "gpus": "4", "seq_len": "2048"}
TIME, RATE, MEMORY = (
    "measured_iter_time_s",
    "measured_tokens_per_s_per_gpu",
    "measured_peak_mem_gib",
)


@pytest.mark.parametrize(
    ("head", "cell", "column", "value"),
    [
        ("Step Time (s)", "2.5", TIME, 2.5), ("Iter Time", "1.061s", TIME, 1.061),
        ("Median step", "5,011.4 ms", TIME, 5.0114), ("ms/step", "17.2", TIME, 0.0172), ("TimePerIter (s)", "10.4", TIME, 10.4),
        ("Tokens/s/GPU", "**20,497**", RATE, 20497), ("tok/s/GPU", "~93k", RATE, 93000), ("Tokens/GPU/Second", "6325", RATE, 6325),
        ("Total Tokens/s", "8,000", RATE, 2000), ("samples/s", "8", RATE, 4096), ("TGS", "950", RATE, 950),
        ("Peak Memory (GiB)", "24.7 (62%)", MEMORY, 24.7), ("peak VRAM", "1024 MiB", MEMORY, 1.0),
        ("Memory/GPU", "107.3741824 GB", MEMORY, 100.0), ("measured peak (reserved) GB", "1.073741824", MEMORY, 1.0),
        ("GPU", "53.687091200 GB", MEMORY, 50.0),
        # Whose, in what, or of what nobody says.
        ("tok/s", "8,000", RATE, None), ("step time", "930", TIME, None), ("peak memory", "24", MEMORY, None),
        ("Step", "7", TIME, None), ("decode tok/s/GPU", "300", RATE, None), ("host memory", "200 GB", MEMORY, None),
        ("est. peak memory (GB)", "9", MEMORY, None), ("tokens seen", "6.6M", RATE, None),
    ],
)  # fmt: skip
def test_heads_say_what_was_measured_in_which_unit(head, cell, column, value):
    (row,) = in_the_schema([{**RUN, head: cell}])
    assert row.get(column) == (None if value is None else f"{value:.6g}")


PAGE = """
Llama-3-8B, H100, 1 node of 8, seq 8192, MBS 1, torchtitan FSDP, full recomputation.

| GBS | Step time (s) |
|---|---|
| 8 | 2.4 |
| 32 | 9.1 |
"""


def test_predictions_stand_beside_what_a_table_measured_and_calibration_learns_from_it(
    tmp_path, capsys
):
    (tmp_path / "runs.md").write_text(PAGE)
    assert run(["predict", str(tmp_path / "runs.md"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    beside = told["measured"]["step_time"]
    assert [one["predicted_iter_time_s"] > 0 for one in told["predictions"]] == [True, True]
    assert beside["rows"] == 2
    found = gather([str(tmp_path / "runs.md")], [], load_cluster("h100:1x8"))
    assert [measured_step_time_s(row, import_row(row)) for row in found.rows] == [2.4, 9.1]


def test_a_table_without_units_is_refused_with_what_its_heads_have_to_say(tmp_path, capsys):
    (tmp_path / "runs.md").write_text(PAGE.replace("Step time (s)", "speed"))
    assert run(["calibrate", "--cluster", "h100:1x8", "--from", str(tmp_path / "runs.md")]) == 2
    assert "tokens/s/GPU" in capsys.readouterr().err
