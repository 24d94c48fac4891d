"""Tables as people head and fill them are read as they mean them, and what they left open is said."""

import csv
import io
import math

import pytest

from meshwright.evidence.import_rows import import_row
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.measured import measured_step_time_s
from meshwright.evidence.predict import COLUMNS, predict, predictions_csv
from meshwright.evidence.rows import Row, published_rows, read_rows
from meshwright.evidence.spellings import NO_BATCH, in_the_schema


def one(**cells):
    """The row that a table of one line is read as; underscores of names are blanks of its heads."""
    return in_the_schema([{head.replace("_", " "): cell for head, cell in cells.items()}])[0]


def run(**cells):
    base = {
        "model": "Llama 3 8B",
        "gpu": "H100",
        "gpus": "8",
        "seq_len": "4096",
        "micro_batch": "1",
    }
    table = in_the_schema([{**base, **cells}])
    return import_row(Row("mine", table[0]))


@pytest.mark.parametrize(
    ("cells", "column", "value"),
    [
        ({"GPUs": "4x8"}, "gpus", "32"),
        ({"GPUs": "4 × 8"}, "gpus", "32"),
        ({"GPUs": "2x"}, "gpus", "2"),
        ({"GPUs": "2 nodes x 8"}, "gpus", "16"),
        ({"GPUs": "4 nodes (8 GPUs each)"}, "gpus", "32"),
        ({"GPUs": "8xH100"}, "gpu", "H100"),
        ({"GPUs": "4x8 H100"}, "gpu", "H100"),
        ({"GPUs": "4x8 H100"}, "gpus", "32"),
        ({"GPUs": "8 H100 80GB"}, "gpu", "H100 80GB"),
        ({"GPUs": "1x RTX 4090"}, "gpu", "RTX 4090"),
        ({"Hardware": "8 x A100-80GB"}, "gpus", "8"),
        ({"nodes": "4", "gpus per node": "4"}, "gpus", "16"),
        ({"# GPUs": "64"}, "gpus", "64"),
        ({"Sequence length": "2k"}, "seq_len", "2048"),
        ({"context": "128K"}, "seq_len", "131072"),
        ({"Seq len": "8192 tokens"}, "seq_len", "8192 tokens"),
        ({"Model size": "7B"}, "params_b", "7"),
        ({"Model size": "350M"}, "params_b", "0.35"),
        ({"TP": "TP4"}, "tp", "4"),
        ({"PP": "8-way"}, "pp", "8"),
        ({"EP": "EP8"}, "ep", "8"),
        ({"parallelism": "TP8 PP16 CP1 DP2"}, "pp", "16"),
        ({"parallelism": "zero1(dp2)+tp2+pp4"}, "tp", "2"),
        ({"MBS": "2"}, "micro_batch", "2"),
        ({"GBS": "1,536"}, "global_batch", "1,536"),
        ({"Batch size": "4", "GPUs": "8"}, "micro_batch", "4"),
        ({"Batch size": "512", "GPUs": "64", "TP": "8"}, "global_batch", "512"),
        ({"Batch size": "512 (global)", "GPUs": "512"}, "global_batch", "512"),
        ({"Batch size": "64 per GPU", "GPUs": "8"}, "micro_batch", "64"),
        ({"micro_batch": "bs 4 ga 8"}, "micro_batch", "4"),
    ],
)  # fmt: skip
def test_numbers_among_words(cells, column, value):
    assert in_the_schema([{"model": "x", **cells}])[0][column] == value


def test_a_batch_with_its_accumulation_is_a_steps():
    for cells in (
        {"micro_batch": "bs 4 ga 8"},
        {"Batch size": "4 (ga 8)"},
        {"batch": "4", "grad accum": "8"},
    ):
        found = in_the_schema(
            [{"model": "Llama 3 8B", "gpu": "H100", "gpus": "8", "seq": "4k", **cells}]
        )
        read = import_row(Row("mine", found[0]))
        assert (read.layout.micro_batch, read.job.global_batch) == (4, 4 * 8 * 8)


@pytest.mark.parametrize(
    ("remark", "expected"),
    [
        ("QLoRA r=64 7B 4090 bs1 seq 2048", {"micro_batch": "1", "seq_len": "2048"}),
        ("Megatron-Core TP2 PP4 EP8 MBS1 GBS256", {"tp": "2", "pp": "4", "ep": "8", "micro_batch": "1", "global_batch": "256"}),
        ("FSDP2 torch.compile bs 2/GPU", {"zero_or_fsdp": "FSDP2", "micro_batch": "2"}),
        ("LLaMA-Factory, ds z3, per_device_train_batch_size 2", {"zero_or_fsdp": "ZeRO-3", "micro_batch": "2"}),
        ("DeepSpeed ZeRO-2, no gradient checkpointing", {"zero_or_fsdp": "ZeRO-2", "recompute": "none"}),
        ("torchtune, activation checkpointing off", {"recompute": "none"}),
        ("torchtitan, selective AC", {"recompute": "selective"}),
        ("full recompute, packed to 4k", {"recompute": "full", "seq_len": "4096"}),
        ("verl FSDP sp=4", {"cp": "4", "zero_or_fsdp": "FSDP"}),
        ("NeMo (TP=1, PP=41)", {"pp": "", "tp": ""}),  # 8 devices are no 41 stages
    ],
)  # fmt: skip
def test_what_only_a_remark_says(remark, expected):
    found = in_the_schema([{"model": "x", "gpus": "8", "config": remark}])[0]
    if "PP4" in remark:
        found = in_the_schema([{"model": "x", "gpus": "64", "config": remark}])[0]
    assert {column: found.get(column, "") for column in expected} == expected


@pytest.mark.parametrize(
    ("gpu", "chips"), [("TPU v5p-512", "256"), ("TPU v5e-256", "256"), ("v4-128", "64"), ("TPU v6e-64", "64")]
)  # fmt: skip
def test_slices_of_tpus_count_cores_or_chips(gpu, chips):
    assert one(gpu=gpu, model="x")["gpus"] == chips


def test_columns_of_no_schema_say_something_of_the_run():
    found = one(
        Model="7B",
        Method="QLoRA",
        LoRA_rank="64",
        Optimizer="paged_adamw_8bit",
        Throughput="12",
        Notes="OOM",
    )
    assert "Method: QLoRA" in found["setup"] and "LoRA rank: 64" in found["setup"]
    assert "12" not in found["setup"] and "OOM" not in found["setup"]
    told = run(Method="QLoRA", **{"LoRA rank": "64"}, Optimizer="paged_adamw_8bit", gpus="1")
    assert (told.job.finetune.rank, told.job.finetune.storage) == (64, "nf4")
    assert told.job.optimizer.name == "paged-adam8bit"


def test_what_was_measured_is_never_read_from_any_column():
    plain = one(model="x", seq_len="2048")
    seen = one(
        model="x",
        seq_len="2048",
        **{
            "tokens/s/GPU": "1",
            "Peak memory (GB)": "2",
            "samples/s": "3",
            "MFU": "4",
            "step_time": "5",
        },
    )
    assert seen["setup"] == plain["setup"] == "gradient accumulation 8"


def test_words_in_the_place_of_numbers_are_told():
    assert any("tp='two'" in said for said in run(tp="two").assumed)
    assert any("batch 64 is a step's" in said for said in run(micro_batch="", batch="64").assumed)


def test_a_workstations_card_is_one():
    assert run(gpus="", gpu="RTX 4090", setup="QLoRA r=8").gpus == 1
    assert run(gpus="", gpu="A100", setup="LoRA r=8 on a single GPU").gpus == 1
    assert run(gpus="", gpu="A100", setup="DeepSpeed").gpus == 8


def test_a_hosts_memory_is_not_its_devices():
    device = run(gpu="NVIDIA GH200 480GB", gpus="1").cluster.device
    assert device.memory_bytes < 110e9
    assert run(gpu="A100 40GB").cluster.device.memory_bytes < 45e9


def test_fine_tuning_without_a_programs_name_is_transformers():
    assert run(setup="full fine-tune").job.framework == "trl"
    assert run(setup="").job.framework != "trl"
    assert run(setup="FSDP", gpu="TPU v5p", tp="8").job.framework == "maxtext"


@pytest.mark.parametrize(
    "text",
    [
        "Model;GPUs;Batch size;Seq len\nLlama 3 8B;8xH100;1;8k\n",
        "Model\tGPUs\tBatch size\tSeq len\nLlama 3 8B\t8xH100\t1\t8k\n",
        "| Model | GPUs | Batch size | Seq len |\n|---|:--|--:|:-:|\n| Llama 3 8B | 8xH100 | 1 | 8k |\n",
    ],
)  # fmt: skip
def test_tables_with_other_separators(tmp_path, text):
    path = tmp_path / "blog.txt"
    path.write_text(text)
    (row,) = read_rows(path)
    run_ = import_row(row)
    assert (run_.gpus, run_.job.seq_len, run_.layout.micro_batch) == (8, 8192, 1)


def test_every_row_keeps_its_place_and_a_name(tmp_path):
    path = tmp_path / "blog.csv"
    path.write_text("Model,GPUs,Batch size,Seq len\nLlama 3 8B,8xH100,1,8k\n,,,\n")
    rows = read_rows(path)
    assert [row.id for row in rows] == ["row 1", "row 2"]
    assert [one.priced for one in predict(rows)] == [True, False]


def test_a_table_in_the_schema_is_left_as_it_is():
    rows = published_rows()[::61]
    columns = sorted({name for row in rows for name in row.cells})
    table = [{name: row.cells.get(name, "") for name in columns} for row in rows]
    for before, after in zip(rows, in_the_schema(table), strict=True):
        try:
            expected = import_row(before)
        except SkipRow:
            continue
        assert import_row(Row(before.table, after)).layout == expected.layout


def test_ranges_contain_their_estimate():
    rows = published_rows()[::23]
    lines = list(csv.DictReader(io.StringIO(predictions_csv(predict(rows)))))
    assert tuple(lines[0]) == COLUMNS
    for line in lines:
        if line["status"] == "priced":
            time, memory = (
                float(line["predicted_iter_time_s"]),
                float(line["predicted_peak_mem_gib"]),
            )
            assert float(line["iter_time_low_s"]) <= time <= float(line["iter_time_high_s"])
            assert float(line["peak_mem_low_gib"]) <= memory <= float(line["peak_mem_high_gib"])
            assert math.isfinite(float(line["iter_time_high_s"]))


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("LLaMA V2 7B", 4096), ("LLaMA V3.1 70B", 8192), ("llama3_1_8b", 4096), ("GPT3-355M", 1024), ("GPT3-1.3B", 2048),
        ("qwen1.5-0.5b", 1024), ("qwen2-1.5b", 1536), ("glm3_6b", 4096), ("Moonlight 16B", 2048), ("llama2_70b_32p", 8192),
    ],
)  # fmt: skip
def test_models_by_the_names_of_model_cards(name, hidden):
    assert run(model=name).model.hidden == hidden


@pytest.mark.parametrize(
    ("gpu", "device"),
    [
        ("Atlas 800T A2", "Ascend 910B"), ("Atlas 900 A3 SuperPoD", "Ascend 910C"), ("Ascend910B", "Ascend 910B"),
        ("L40S", "L40S"), ("4090", "GeForce RTX 4090"),
    ],
)  # fmt: skip
def test_devices_by_their_machines_and_hosts_of_more_than_the_presets(gpu, device):
    read = run(gpu=gpu)
    assert read.cluster.device.name.startswith(device) and read.gpus == 8
    if gpu == "L40S":  # eight on PCIe are one host, though the preset's has four
        assert (read.cluster.nodes, read.cluster.gpus_per_node) == (1, 8)


def test_a_mixture_of_unknown_dimensions_is_not_priced_as_dense():
    with pytest.raises(SkipRow, match="dimensions of 'Mystery 16B' are not known"):
        run(model="Mystery 16B", ep="8")


@pytest.mark.parametrize(
    ("remark", "column", "value"),
    [
        ("expert parallel 4", "ep", "4"), ("tensor parallelism = 2", "tp", "2"), ("4-way pipeline parallelism", "pp", "4"),
        ("context_parallel_size: 2", "cp", "2"), ("ds_zero3_lora", "zero_or_fsdp", "ZeRO-3"), ("ds_zero2_full", "zero_or_fsdp", "ZeRO-2"),
    ],
)  # fmt: skip
def test_degrees_and_stages_spelt_out(remark, column, value):
    assert in_the_schema([{"model": "x", "gpus": "8", "config": remark}])[0][column] == value


def test_methods_among_underscores():
    assert run(setup="ds_zero3_lora").job.finetune is not None
    assert run(model="llama2_13b_lora").job.finetune is not None
    assert run(setup="PyTorch Lightning").job.framework != "litgpt"
    assert run(setup="Lightning AI litgpt").job.framework == "litgpt"
    assert run(setup="MindFormers", tp="2", pp="2").job.framework == "megatron"


@pytest.mark.parametrize(
    ("head", "cell", "zero"), [("ZeRO", "3", 3), ("zero stage", "1", 1), ("FSDP degree", "8", 3), ("parallel optimizer", "yes", 2)]
)  # fmt: skip
def test_what_only_means_something_under_its_head(head, cell, zero):
    assert run(**{head: cell}).layout.zero == zero


def test_layers_computed_again_by_number():
    assert run(**{"num-ckpt-layers": "0"}).layout.recompute == "none"
    some = run(**{"num-ckpt-layers": "8"}).layout
    assert (some.recompute, some.recompute_layers) == ("full", 8)
    assert run(**{"num-ckpt-layers": "32"}).layout.recompute_layers == 0


def test_a_head_means_one_thing_in_all_rows():
    table = [
        {"model": "Llama 2 7B", "gpu": "H100", "# GPUs": gpus, "seq": "4096", "Batch size": batch}
        for gpus, batch in (("8", "1024"), ("64", "128"), ("1", "4"))
    ]
    first, second, alone = in_the_schema(table)
    assert (first["global_batch"], second["global_batch"]) == ("1024", "128")
    assert "step's" in second["read_as"] and alone["micro_batch"] == "4"


def test_no_device_takes_a_million_tokens_at_once():
    found = one(model="x", gpu="A100", gpus="2", seq="8192", batch="6")
    assert found["micro_batch"] == "6"
    assert one(model="x", gpu="A100", gpus="2", seq="65536", batch="6")["global_batch"] == "6"


def test_a_batch_that_nothing_tells_is_assumed_and_said():
    base = {"model": "Llama 3 8B", "gpu": "H100", "gpus": "8", "seq": "4k"}
    (row,) = in_the_schema([base])
    assert row["micro_batch"] == "1" and row["read_as"] == NO_BATCH
    read = import_row(Row("mine", row))
    assert NO_BATCH in read.assumed
    # A step time of an unknown batch is nothing to learn from or to be judged by; a rate is.
    timed = Row("mine", {**row, "measured_iter_time_s": "1.5"})
    assert math.isnan(measured_step_time_s(timed, read))
    rated = Row("mine", {**row, "measured_tokens_per_s_per_gpu": "9000"})
    assert measured_step_time_s(rated, read) > 0
    assert "micro_batch" not in in_the_schema([{**base, "setup": "batch of 4M tokens"}])[0]


def test_a_micro_batch_that_nobody_prints_holds_few_tokens():
    long = run(micro_batch="", global_batch="64", seq_len="32768")
    short = run(micro_batch="", global_batch="64", seq_len="2048")
    assert (long.layout.micro_batch, short.layout.micro_batch) == (1, 4)


def test_adapters_of_no_stated_number_of_devices_are_one_devices():
    assert run(gpus="", gpu="L40S", setup="PEFT LoRA r=16").gpus == 1
    assert run(gpus="", gpu="A100", setup="PEFT LoRA r=16, FSDP").gpus == 8


def test_megatron_on_devices_without_flash_attention_is_megatron_as_it_was():
    assert run(gpu="V100", setup="Megatron-LM", precision="fp16").job.framework == "megatron-2021"
    assert run(gpu="A100", setup="Megatron-LM").job.framework == "megatron"
    assert run(gpu="Gaudi 2", setup="Megatron DeepSpeed").job.attention_kernel == "flash"
