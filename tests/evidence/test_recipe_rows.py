"""What rows and the recipes behind them say of further tokens, dispatch, graphs and stages of mixtures."""

import pytest

from meshwright.evidence.import_rows import import_row
from meshwright.evidence.rows import MEASURED, Row, published_rows


@pytest.fixture(scope="module")
def rows():
    return published_rows()


@pytest.mark.parametrize(
    ("model", "setup", "depths"),
    [
        ("DeepSeekV3 (w/ MTP)", "", 1), ("DeepSeekV3 (w/o MTP)", "", 0), ("DeepSeek-V3", "", 0),
        ("DeepSeek-V3", "mtp_num_layers=2", 2), ("DeepSeek-V3", 'args {"mtp-num-layers": 1}', 1),
    ],
)  # fmt: skip
def test_a_row_says_how_many_further_tokens_it_predicts(model, setup, depths):
    cells = {
        "id": "x", "source": "somewhere", "gpu": "H100", "gpus": "64", "model": model, "ep": "64",
        "seq_len": "4096", "global_batch": "512", "micro_batch": "1", "setup": f"Megatron-LM; {setup}",
    }  # fmt: skip
    run = import_row(Row("", dict.fromkeys(MEASURED, "") | cells))
    assert run.model.predict_layers == depths
    assert (f"predict_layers={depths}" in run.assumed) is (depths > 0)


def test_what_recipes_of_experts_document_reaches_their_rows(rows):
    by_id = {row.id: row for row in rows}
    hosts, rack = import_row(by_id["mbr-0119"]), import_row(by_id["mbr-0015"])
    assert hosts.layout.recompute_modules and not rack.layout.recompute_modules
    assert rack.job.framework_options["graphs"] == "layers"
    assert "graphs" not in hosts.job.framework_options
    for one in (hosts, rack):
        assert one.job.framework_options["expert_dispatch"] == "deduplicated"
        assert one.model.predict_layers == 2
    staged = import_row(by_id["mbr-0256"]).layout.stage_layers
    assert staged == (*[4] * 15, 1)
