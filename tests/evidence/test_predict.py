"""The predict command on tables as users have them."""

import csv

import pytest

from meshwright.cli import run
from meshwright.evidence.predict import COLUMNS, predict
from meshwright.evidence.rows import DESCRIBING, MEASURED, Row, published_rows


@pytest.fixture(scope="module")
def few():
    return published_rows()[::97]


def write(path, rows, hide=False):
    columns = (*DESCRIBING, *MEASURED, "notes", "outcome")
    with open(path, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        for row in rows:
            writer.writerow(["" if hide and c not in DESCRIBING else row[c] for c in columns])


def test_every_row_gets_a_price_or_a_reason(tmp_path, few, capsys):
    write(tmp_path / "rows.csv", few)
    assert run(["predict", str(tmp_path / "rows.csv"), "-o", str(tmp_path / "out.csv")]) == 0
    with open(tmp_path / "out.csv") as stream:
        out = list(csv.DictReader(stream))
    assert [r["id"] for r in out] == [r.id for r in few]
    assert tuple(out[0]) == COLUMNS
    for line in out:
        if line["status"] == "priced":
            assert float(line["predicted_iter_time_s"]) > 0
            assert float(line["predicted_peak_mem_gib"]) > 0
            assert line["predicted_fits"] in ("true", "false")
        else:
            assert line["status"] == "skipped" and line["reason"]
    assert "rows priced" in capsys.readouterr().out


def test_hiding_what_was_measured_changes_nothing(tmp_path, few):
    write(tmp_path / "seen.csv", few)
    write(tmp_path / "blind.csv", few, hide=True)
    for name in ("seen", "blind"):
        assert (
            run(["predict", str(tmp_path / f"{name}.csv"), "-o", str(tmp_path / f"{name}.out")])
            == 0
        )
    assert (tmp_path / "seen.out").read_bytes() == (tmp_path / "blind.out").read_bytes()


def test_a_row_costs_the_same_alone_and_in_a_table(few):
    together = predict(few)
    for row, expected in zip(few[:12], together[:12], strict=True):
        assert predict([row])[0].iter_time_s == pytest.approx(
            expected.iter_time_s, nan_ok=True, rel=0
        )


def test_a_table_of_which_nothing_can_be_priced_is_a_sentence(capsys, tmp_path):
    (tmp_path / "said.csv").write_text("model,gpus,gpu\nllama3-8b,8,h100\n")
    assert run(["predict", str(tmp_path / "said.csv")]) == 2
    assert "none of its 1 rows" in capsys.readouterr().err


def test_a_missing_file_is_a_sentence(capsys):
    assert run(["predict", "no-such.csv"]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_cached_blocks_are_reported_as_far_as_the_device_goes_and_never_decide_a_fit():
    cells = {
        "source": "mine", "gpu": "A100 80GB", "gpus": "1", "model": "Llama 3.1 8B", "seq_len": "4096",
        "precision": "bf16", "global_batch": "4", "micro_batch": "4", "recompute": "full",
    }  # fmt: skip
    told = {"a": "max_memory_allocated", "r": "max_memory_reserved"}
    rows = [
        Row("mine", {**cells, "id": f"{counter}{batch}", "micro_batch": batch, "global_batch": batch,
                     "setup": f"TRL, LoRA r=16, flash attention 2; memory {words}"})
        for batch in ("4", "24")
        for counter, words in told.items()
    ]  # fmt: skip
    allocated, reserved, most_allocated, most_reserved = predict(rows)
    moving = allocated.peak_memory_bytes - 16.1e9  # weights
    # Of what comes and goes a tenth to a half more, as eager programs show it.
    assert 0.1 < (reserved.peak_memory_bytes - allocated.peak_memory_bytes) / moving < 0.6
    assert allocated.fits and reserved.fits
    assert most_reserved.device_memory_bytes == most_allocated.device_memory_bytes
    room = 80 * 2**30 - most_reserved.device_memory_bytes
    assert most_reserved.peak_memory_bytes <= most_reserved.device_memory_bytes + max(room, 0)


def of_blanks(**cells):
    base = {
        "id": "a", "model": "Llama 2 13B", "gpu": "A100 80GB", "gpus": "64", "seq_len": "4096",
        "global_batch": "512", "setup": "Megatron-LM",
    }  # fmt: skip
    return Row("mine", {**base, **cells})


def test_blanks_are_filled_with_what_can_run():
    (plain,), (able,) = (predict([of_blanks()], possible=able) for able in (False, True))
    assert plain.impossible() and not able.impossible()
    assert able.run.layout.micro_batch < plain.run.layout.micro_batch
    assert any("does not fit" in said for said in able.run.assumed)


def test_what_a_row_prints_is_never_changed():
    row = of_blanks(micro_batch="8", recompute="none", zero_or_fsdp="ZeRO-1")
    (plain,), (able,) = (predict([row], possible=able) for able in (False, True))
    assert plain.impossible() and able.run == plain.run


def test_ranges_hold_what_blanks_may_as_well_mean():
    stated = of_blanks(interconnect="8x 200 Gb/s InfiniBand per node", seq_len="1024", micro_batch="1", recompute="none", zero_or_fsdp="FSDP", setup="FSDP", global_batch="64")  # fmt: skip
    blank = Row("mine", {**stated.cells, "interconnect": ""})
    (told,), (open_,) = (predict([row], possible=True) for row in (stated, blank))
    assert told.as_well == () and len(open_.as_well) == 1
    assert open_.iter_time_s == pytest.approx(told.iter_time_s)
    (slower, _), (time, _) = open_.as_well[0], open_.ranges()
    assert slower > 1.5 * open_.iter_time_s and time.high >= slower
    assert time.low == told.ranges()[0].low
