"""Rows become runs from their describing columns only, and what was left open is said."""

import re

import pytest

from meshwright.evidence.import_rows import import_row
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.row_stages import cost_balanced_layers, split_with_ends
from meshwright.evidence.rows import MEASURED, Row, published_rows, read_rows
from meshwright.evidence.software import rule_for, source_rules
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model


@pytest.fixture(scope="module")
def rows():
    return published_rows()


@pytest.fixture(scope="module")
def imported(rows):
    """What each row's run is, or why it is none; every row once."""
    return [_run_or_reason(row) for row in rows]


def _run_or_reason(row):
    try:
        return import_row(row)
    except SkipRow as skip:
        return str(skip)


def blank(row):
    hidden = dict.fromkeys((*MEASURED, "notes", "outcome"), "")
    return Row(row.table, {**row.cells, **hidden})


def test_at_least_95_percent_of_the_published_rows_are_importable(imported):
    reasons = [one for one in imported if isinstance(one, str)]
    assert all(reasons) and len(reasons) <= 0.05 * len(imported)


def test_measurements_are_never_looked_at(rows):
    for row in rows[:: max(1, len(rows) // 400)]:
        try:
            seen = import_row(row)
        except SkipRow as skip:
            with pytest.raises(SkipRow, match=str(skip)[:20].replace("(", r"\(")):
                import_row(blank(row))
            continue
        assert import_row(blank(row)) == seen


def test_a_run_uses_the_devices_and_tokens_that_the_row_prints(rows, imported):
    for row, run in zip(rows, imported, strict=True):
        if isinstance(run, str):
            continue
        if row.count("gpus"):
            assert run.layout.world == row.count("gpus") == run.cluster.gpus
        if row.count("seq_len"):
            assert run.job.seq_len == row.count("seq_len")
        if row.count("tp"):
            assert run.layout.tp == row.count("tp")
        assert run.layout.micro_batches(run.job.global_batch) >= 1


def test_what_a_blank_recompute_cell_means_is_said(rows):
    row = next(r for r in rows if r.table.startswith("nanotron"))
    assert not row["recompute"]
    assert "recompute=none" in import_row(row).assumed


def test_a_megatron_argument_overrides_the_padding_of_the_vocabulary(rows):
    row = next(r for r in rows if '"make-vocab-size-divisible-by":3232' in r["setup"])
    assert import_row(row).job.framework_options["vocab_multiple"] == 3232


def test_layers_are_dealt_by_cost_as_nanotron_deals_them():
    small = Model(
        layers=16, hidden=2048, heads=32, kv_heads=32, head_dim=64, ffn=8192, vocab=131072
    )
    assert cost_balanced_layers(small, 2) == (10, 6)
    assert cost_balanced_layers(small, 2, inclusive=False) == (11, 5)
    large = Model(
        layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=14336, vocab=131072
    )
    assert cost_balanced_layers(large, 8) == (5, 4, 4, 5, 4, 4, 4, 2)


def test_a_table_that_names_no_model_is_a_sentence(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("foo,tp\nmine,8\n")
    with pytest.raises(SpecError, match="model"):
        read_rows(path)


def test_a_row_without_anything_is_skipped_with_a_reason():
    with pytest.raises(SkipRow, match="sequence length"):
        import_row(Row("x", {"id": "1"}))


def test_a_rule_may_ask_for_a_device_and_a_precision(rows):
    table = [row for row in rows if row.table == "nvidia_megatron_bridge"]
    overlapped = {
        (row["gpu"][:5], row["precision"], row["source"].split("[")[1][:5])
        for row in table
        if "Qwen3_235B" in row["model"]
        and import_row(row).job.framework_options.get("host_kernel_s") == 0.0
    }
    assert overlapped
    for gpu, precision, release in overlapped:
        assert gpu in ("GB200", "GB300") and "MX" in precision and release >= "26.06"


def test_experts_are_split_over_tensor_parallel_ranks_unless_said_otherwise(rows):
    by_id = {row.id: row for row in rows}
    split, whole = import_row(by_id["mci-0345"]), import_row(by_id["mci-0350"])
    assert "expert-tensor-parallel-size" not in by_id["mci-0345"]["setup"]
    assert (split.layout.tp, split.layout.etp) == (2, 2)
    assert (whole.layout.tp, whole.layout.etp) == (2, 1)
    for run in (split, whole):
        layout = run.layout
        assert layout.ep * layout.etp <= layout.dp * layout.cp * layout.tp


@pytest.mark.parametrize(
    ("setup", "etp"),
    [
        ("NeMo; ETP 4", 4),
        ("etp: 2", 2),
        ("expert tp 1", 1),
        ("expert_tensor_parallel_size=2", 2),
        ("NeMo", 1),
    ],
)
def test_tensor_parallelism_inside_an_expert_is_read_where_it_is_printed(setup, etp):
    cells = {
        "gpu": "GB200", "gpus": "128", "model": "Grok1 314b", "seq_len": "8192", "precision": "BF16", "tp": "4",
        "pp": "1", "ep": "8", "micro_batch": "1", "global_batch": "256", "setup": setup,
    }  # fmt: skip
    assert import_row(Row("mine", {"id": "1", "source": "a table", **cells})).layout.etp == etp


def test_tests_keep_megatrons_dropout_unless_their_file_sets_it(rows):
    by_id = {row.id: row for row in rows}
    assert import_row(by_id["mci-0001"]).job.framework_options["dropout"] is False
    assert import_row(by_id["mci-0009"]).job.framework_options["dropout"] is True


def test_every_rule_cites_where_and_names_a_source_that_is_here(rows):
    used = {id(rule_for(row)) for row in rows}
    for rule in source_rules():
        assert re.search(r"[\w.-]+/[\w.-]+|arXiv \d{4}\.\d{5}|README|MLPerf", rule.why), rule.why
        assert id(rule) in used, f"no row of the evidence needs: {rule.why}"


def test_what_a_launcher_and_a_recipe_document_reaches_the_rows_they_are_of(rows):
    by_id = {row.id: row for row in rows}
    mended, before = by_id["nhf-1237"], by_id["nhf-1283"]
    assert "after_pp_fix=True" in mended["setup"] and "after_pp_fix=False" in before["setup"]
    assert import_row(mended).job.framework_options.get("collectives_checked") is True
    for as_user in (False, True):  # the row's own setup says which state of the pipeline it ran
        options = import_row(before, as_user).job.framework_options
        assert options["message_poll_s"] == 0.1 and options["collectives_checked"] is True
        assert import_row(mended, as_user).job.framework_options["collectives_checked"] is True
        assert "message_poll_s" not in import_row(mended, as_user).job.framework_options
    alone = Row("", by_id["nhf-0480"].cells | {"setup": before["setup"]})
    assert "collectives_checked" not in import_row(alone).job.framework_options
    # v5p/1024b.sh: two sequences a chip, 16 chips of tensor parallelism, no accumulation.
    large = import_row(by_id["tpu-0013"])
    assert (large.layout.tp, large.layout.micro_batch) == (16, 32)
    assert large.job.global_batch == 2 * large.gpus
    kept_in_host = import_row(by_id["tpu-0054"])
    assert kept_in_host.layout.offload == ("activations",)
    assert "offload=activations" in kept_in_host.assumed


@pytest.mark.parametrize(
    ("layers", "chunks", "split"),
    [
        (94, 96, (0, *[1] * 94, 0)),
        (94, 32, (2, *[3] * 30, 2)),
        (80, 16, None),
        (61, 16, None),
        (94, 1, None),
    ],
)
def test_layers_that_divide_with_embedding_and_loss_are_dealt_so(layers, chunks, split):
    found = split_with_ends(layers, chunks)
    assert found == split
    assert found is None or sum(found) == layers


def test_ninety_four_layers_keep_three_chunks_on_thirty_two_stages():
    row = next(row for row in published_rows(["xtuner"]) if row.id == "xt-0012")
    layout = import_row(row).layout
    assert (layout.pp, layout.virtual_stages) == (32, 3)
    assert (
        layout.stage_layers is not None and layout.stage_layers[0] == layout.stage_layers[-1] == 0
    )
