"""What stands around a table, tables that lie on their side, and what remarks and machines' names say."""

import pytest

from meshwright.evidence.around import one_each
from meshwright.evidence.import_rows import import_row
from meshwright.evidence.instances import machine_of
from meshwright.evidence.possible import as_well
from meshwright.evidence.rows import Row, read_rows
from meshwright.evidence.spellings import in_the_schema
from meshwright.evidence.stated import says
from meshwright.evidence.turned import one_header, turned, uncrossed

TABLE = """
| Config | tok/s |
|---|---|
| first | 1 |
| second | 2 |
"""


def rows_of(tmp_path, text, name="page.md"):
    (tmp_path / name).write_text(text)
    return read_rows(tmp_path / name)


@pytest.mark.parametrize(
    ("prose", "column", "value"),
    [
        ("We train Qwen2.5-3B on one H100 at a sequence length of 2,048.", "model", "Qwen2.5-3B"),
        ("Llama3-8B on one H100, sequence length 2048.", "gpus", "1"),
        ("Llama3-8B on two nodes with 8 A100 GPUs each, seq 4096.", "gpus", "16"),
        ("Llama3-8B, 2 nodes, 8x GH200, seq_len=4096, experts of 768, seq_len=4096.", "gpus", "8"),
        ("Llama3-8B on 8 H100, micro batch size 4, sequence length 2048.", "micro_batch", "4"),
        ("Llama3-8B on 8 H100, batch size 1, sequence length 2048.", "micro_batch", "1"),
        ("Llama3-8B on 8 H100, seq 2048, 2**19 tokens per step.", "setup", "global batch tokens=524288"),
        ("Llama3-8B on 8 H100, seq 2048, batch size 1, per-op SAC.", "recompute", "selective"),
        ("Llama3-8B on 8 H100, seq 2048, batch size 1, ZeRO Stage 2.", "zero_or_fsdp", "zero stage 2"),
        ("GPT-2 124M (12 layers, 12 heads, d_model 768, vocab 50304) on 1 H100, seq 1024.", "vocab", "50304"),
        ("Qwen3-8B, 8 A100, seq 4096, TP2/PP1, MBS4/GBS96.", "global_batch", "96"),
        ("Qwen3-8B, H100, seq 4096. Ladder (16 GPUs, GBS 64, steps 20-40).", "gpus", "16"),
        ("Qwen3-8B on three H100 nodes: 3 nodes x 4, seq 4096, bs1 x ga2.", "gpus", "12"),
        ("Qwen3-8B, H100, seq 4096, 2 nodes of 8, bs1 x ga3.", "setup", "gradient accumulation 3"),
        ("Qwen3-8B on two GB200 nodes with four GPUs per node, seq 4096.", "gpus", "8"),
        ("Llama3-8B on TPU v5p-128, seq 8192.", "gpus", "64"),
        ("Qwen3-8B on 64 H100, all-128K sequences, MBS 1.", "seq_len", "131072"),
        ("Qwen3-8B on one RTX 9990, ctx 512.", "gpu", "RTX 9990"),
        ("A decoder (12 layers, dim 1536, 12 heads, 4 kv heads) on 4 A100, seq 2048, batch 2.", "kv_heads", "4"),
        ("A 210M-param model on 4 A100, seq 2048, batch 2.", "params_b", "0.21"),
    ],
)  # fmt: skip
def test_sentences_before_a_table_tell_of_its_runs(tmp_path, prose, column, value):
    first, second = rows_of(tmp_path, f"{prose}\n{TABLE}")
    assert value in first[column] and value in second[column]


def test_what_sentences_tell_is_said_and_no_other_number_is_a_length(tmp_path):
    first, _ = rows_of(tmp_path, f"Qwen3-8B on 8 H100, inner_dim=768, seq_len=4096\n{TABLE}")
    assert first["seq_len"] == "4096"
    assert any("seq_len=4096 (around the table)" in one for one in import_row(first).assumed)


def test_lines_and_tables_of_properties_are_columns_of_all_rows(tmp_path):
    text = f"""
| Parameter | Value |
|---|---|
| Model | Qwen3-8B |
| Sequence Length | 8192 |
| GPUs | 8x MI350X |

- **Global batch size:** 128 (grad_accum=2)
- **Parallelism:** TP=2, PP=1
{TABLE}"""
    first, _ = rows_of(tmp_path, text)
    assert (first["model"], first["seq_len"], first["gpus"]) == ("Qwen3-8B", "8192", "8")
    assert (first["global_batch"], first["micro_batch"], first["tp"]) == ("128", "", "2")


def test_a_nearer_word_counts_more_than_a_page_s_properties(tmp_path):
    text = f"| Property | Value |\n|---|---|\n| Number of GPUs | 8 |\n| GPU | MI350X |\n\nQwen3-8B on one MI350X, seq 512, batch size 2.\n{TABLE}"
    first, _ = rows_of(tmp_path, text)
    assert first["gpus"] == "1"


def test_runs_in_columns_are_turned(tmp_path):
    text = """
| Metric | Megatron-LM | DeepSpeed-ZeRO3 | Ratio |
|---|---|---|---|
| Model | Qwen3-8B | Qwen3-8B | |
| GPUs | 16x A800 | 16x A800 | |
| max_length | 8192 | 8192 | |
| 训练速度 | 9.6s/it | 91.2s/it | 9.5 |
"""
    first, second = rows_of(tmp_path, text)
    assert (first["gpus"], second["seq_len"]) == ("16", "8192")
    assert "Megatron-LM" in first["setup"] and "9.6" not in first["setup"]
    assert second["zero_or_fsdp"] == "ZeRO-3"


@pytest.mark.parametrize(
    "grid",
    [
        [["框架", "配置", "耗时"], ["MindSpeed-LLM", "TP2", "1"], ["MindSpeed-MM", "TP1", "2"]],
        [["GPUs", "Size", "Time"], ["16", "7.5B", "661"], ["64", "30B", "1439"]],
        [["Model", "tok/s"], ["Llama 7B", "1"]],
    ],
)
def test_runs_in_lines_stay(grid):
    assert turned(grid) is grid


def test_a_row_s_own_program_is_not_that_of_the_heading(tmp_path):
    text = """# Qwen3-8B Speed Benchmark: torchtitan vs Megatron-LM
8 H100, sequence length 4096, batch size 8.

| Backend | tok/s |
|---|---|
| torchtitan | 1 |
| Megatron-LM | 2 |
"""
    assert [import_row(row).job.framework for row in rows_of(tmp_path, text)] == ["torchtitan", "megatron"]  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "gpus", "each", "device"),
    [
        ({"Cluster": "2x p5en.48xlarge (16x H200, 141 GB HBM3)"}, 16, 8, "H200"),
        ({"Cluster": "2x p6-b300.48xlarge"}, 16, 8, "B300"),
        ({"Instance": "p3.16xlarge", "GPUs": "8"}, 8, 8, "V100"),
        ({"instances": "trn1.32xlarge", "nodes": "16", "devices": "32 per node"}, 512, 32, "NeuronCore"),
        ({"machine": "g5.12xlarge", "gpus": "4"}, 4, 4, "A10G"),
    ],
)  # fmt: skip
def test_machines_by_their_names(cells, gpus, each, device):
    (row,) = in_the_schema([{"model": "Llama3-8B", "seq_len": "2048", "batch per gpu": "1", **cells}])  # fmt: skip
    run = import_row(Row("t", row))
    assert (run.gpus, run.cluster.gpus_per_node) == (gpus, each)
    assert device in run.cluster.device.name


def test_a_name_says_how_many_devices_its_machine_has():
    assert machine_of("a3-megagpu-8g").devices == 8 and machine_of("a2-highgpu-4g").devices == 4
    assert machine_of("a2") is None


def test_the_column_whose_cells_name_devices_is_the_devices(tmp_path):
    text = """GPT-2 124M, sequence length 1024

| pod | bs |
|---|---|
| 1 x L40S | 16 |
| 1 x RTX A4000 | 16 |
"""
    first, second = rows_of(tmp_path, text)
    assert (first["gpu"], first["gpus"], second["gpus"]) == ("L40S", "1", "1")
    # A longer number is another card.
    assert second["gpu"] == "RTX A4000"
    with pytest.raises(Exception, match="no device preset for 'RTX A4000'"):
        import_row(second)


BASE = {"model": "Llama3-8B", "gpu": "H100", "gpus": "8", "seq_len": "4096", "batch per gpu": "1"}


def run_of(**cells):
    told = {k.replace("_", " "): v for k, v in cells.items()}
    kept = {k: v for k, v in BASE.items() if k.replace("_", " ") not in told}
    (row,) = in_the_schema([{**kept, **told}])
    return import_row(Row("t", row))


@pytest.mark.parametrize(
    ("remark", "compute"),
    [
        ("float8 + torch.compile, torchtitan", "fp8"),
        ("None (bfloat16), torchtitan", "bf16"),
        ("mxfp8_cublas_rceil, torchtitan", "fp8"),
        ("torchtitan, fp8 all-gather", "bf16"),
        ("torchtitan, gradients in fp16", "bf16"),
        ("bf16 or fp8", "bf16"),
    ],
)
def test_a_precision_that_only_a_remark_names(remark, compute):
    assert run_of(Scaling_Method=remark).job.precision.compute == compute


def test_an_optimizer_nobody_knows_is_said():
    assert "the state of LOMO is not known; AdamW's is priced" in run_of(optimizer="LOMO").assumed
    for known in ("AdamW", "Distributed optimizer", "SGD", "torch.optim.AdamW"):
        assert not any("is not known" in one for one in run_of(optimizer=known).assumed)


def test_sequences_shared_in_words():
    run = run_of(setup="ring attention over 8 GPUs, deepspeed zero3 offload", batch_per_gpu="1")
    assert (run.layout.cp, run.layout.dp) == (8, 1)
    assert set(run.layout.offload) == {"optimizer", "parameters"}


def test_full_fine_tuning_by_a_column_of_methods():
    run = run_of(method="Full", dtype="torch.bfloat16", gpus="1")
    assert run.job.finetune.method == "full" and run.job.framework == "trl"
    assert run.job.precision.master_bytes == 0
    offloaded = run_of(method="Full", strategy="FSDP with CPU offloading")
    assert set(offloaded.layout.offload) == {"optimizer", "parameters"}


@pytest.mark.parametrize(("value", "said"), [("✓", True), ("yes (default)", True), ("once", False)])
def test_a_line_that_compilation_is_on_is_a_setting(value, said):
    found = one_each([("compile", value)], lambda name: False)
    assert (found.get("settings") == "torch.compile") is said


def test_a_compiled_script_has_its_loss_compiled_and_computes_nothing_again():
    script = run_of(setup="PyTorch, torch.compile")
    eager = run_of(setup="PyTorch")
    assert "logits_bytes" not in script.job.framework_options
    assert eager.job.framework_options["logits_bytes"] == 12
    assert script.layout.recompute == eager.layout.recompute == "none"
    fsdp = run_of(setup="FSDP2, torch.compile")  # its loss is outside of what it compiles
    assert fsdp.job.framework_options["logits_bytes"] == 12


def test_a_size_alone_is_of_the_family_that_a_remark_names():
    (row,) = in_the_schema([{"Params": "7B", "setup": "ZeRO-3, LLaMA, DeepSpeed"}])
    assert row["model"] == "LLaMA 7B"
    (row,) = in_the_schema([{"Params": "7B", "setup": "OPT and LLaMA"}])
    assert row["model"] == "7B"


def test_degrees_as_alpa_has_them():
    run = run_of(setup="dp=2, op=2, pp=2, use_remat=True")
    assert (run.layout.tp, run.layout.pp, run.layout.recompute) == (2, 2, "full")


def test_headers_in_two_lines_are_one(tmp_path):
    text = """<p>Llama-2-70B on 64 H100, sequence length 4096</p>
<table><tr><th rowspan="2">Framework</th><th colspan="3">Parallelism</th><th colspan="2">Batch</th><th rowspan="2">tok/s</th></tr>
<tr><th>TP</th><th>PP</th><th>DP</th><th>Micro</th><th>Global</th></tr>
<tr><td>Megatron-LM</td><td>8</td><td>2</td><td>4</td><td>1</td><td>256</td><td>1,020</td></tr></table>"""
    (row,) = rows_of(tmp_path, text, "page.html")
    assert [row[column] for column in ("tp", "pp", "dp", "micro_batch", "global_batch")] == [
        "8", "2", "4", "1", "256"
    ]  # fmt: skip
    plain = [["Model", "TP", "PP"], ["Llama 7B", "1", "2"], ["Llama 13B", "2", "2"]]
    assert one_header(plain) is plain


def test_a_table_of_methods_by_models_has_a_run_in_each_cell(tmp_path):
    text = """Fine-tuning on a single RTX 4090, seq 2048, batch size 1

| Method | 7B | 13B |
|---|---|---|
| LoRA | 18 GB | OOM |
| QLoRA | 7.5 GB | 11.8 GB |
"""
    rows = rows_of(tmp_path, text)
    assert [row["model"] for row in rows] == ["7B", "13B"] * 2
    assert [import_row(row).job.finetune.method for row in rows] == ["lora"] * 2 + ["qlora"] * 2
    lengths = [["Model", "1k", "2k"], ["7B", "1", "2"]]
    assert uncrossed(lengths) is lengths


def test_a_device_that_only_a_head_names(tmp_path):
    rows = rows_of(tmp_path, "Model,# GPUs (A100),Seq,MBS\nLlama-2-7B,8,2048,1\n", "table.csv")
    assert "A100" in import_row(rows[0]).cluster.device.name


@pytest.mark.parametrize(
    ("cells", "column", "value"),
    [
        ({"seq": "4 096"}, "seq_len", "4096"),
        ({"seq": "4’096"}, "seq_len", "4096"),
        ({"seq": "4k-8k"}, "seq_len", "4096"),
        ({"gpu": "4 A100"}, "gpus", "4"),
        ({"gpu": "910B3"}, "gpu", "910B3"),
        ({"bs": "2 (x4 GPUs, GA=8)"}, "micro_batch", "2"),
    ],
)
def test_numbers_as_people_space_them(cells, column, value):
    (row,) = in_the_schema([{"model": "Llama3-8B", **cells}])
    assert row[column] == value


def test_what_is_read_out_of_place_is_said():
    first, second = in_the_schema([{"model": "Llama3-8B", "gpus": "8"}, {"model": "", "gpus": "16"}])  # fmt: skip
    assert "read_as" not in first and second["read_as"] == "model=Llama3-8B (of a row above)"
    (row,) = in_the_schema([{"model": "Llama3-8B", "seq": "4k-8k", "bs": "1"}])
    assert "of lengths 4k-8k the first is taken" in row["read_as"]
    assert "dp=2 (what 8 devices leave, 8 is printed)" in run_of(tp="2", pp="2", dp="8").assumed


@pytest.mark.parametrize("unknown", ["A1000", "RTX A4000", "H1000"])
def test_a_device_with_a_longer_number_is_another_one(unknown):
    with pytest.raises(Exception, match="no device preset"):
        run_of(gpu=unknown)


def test_what_blanks_may_as_well_mean():
    alone = {"gpus": "1", "seq_len": "2048"}
    qlora = run_of(setup="QLoRA", **alone)
    assert {one.job.precision.compute for one in as_well(qlora)} == {"bf16", "fp32"}
    told = run_of(setup="QLoRA, bnb_4bit_compute_dtype=bfloat16", **alone)
    assert {one.job.precision.compute for one in as_well(told)} == {"bf16"}
    cards = run_of(gpu="RTX 3090", setup="DDP")
    inner = cards.cluster.levels[0].bandwidth_bytes_s
    assert any(one.cluster.levels[0].bandwidth_bytes_s < inner for one in as_well(cards))
    step = {"batch_per_gpu": "", "global_batch": "160", "gpus": "4", "seq_len": "1024"}
    batches = {one.layout.micro_batch for one in as_well(run_of(setup="DeepSpeed ZeRO-3", **step))}
    assert {1, 40} <= batches


def test_eager_float8_is_not_compiled():
    eager = run_of(setup="torchtitan, float8nocompile prototype")
    assert eager.job.framework_options["kernels_per_layer"] == 36
    compiled = run_of(setup="torchtitan, float8")
    assert "kernels_per_layer" not in compiled.job.framework_options


def test_what_was_measured_is_no_remark():
    (row,) = in_the_schema(
        [{"model": "Llama3-8B", "t": "667.35ms", "nvidia-smi": "48182MiB / 183359MiB", "steady": "9.6 s/it", "how": "packed"}]
    )  # fmt: skip
    assert row["setup"] == "nvidia-smi; how: packed"


def test_remarks_above_a_header_and_a_rank_in_a_sentence(tmp_path):
    (row,) = rows_of(tmp_path, "# our cluster, June\nmodel,gpus,seq\nLlama3-8B,8,2048\n", "a.csv")
    assert (row["model"], row["gpus"]) == ("Llama3-8B", "8")
    (row,) = rows_of(tmp_path, "#GPUs,model,seq\n8,Llama3-8B,2048\n", "b.csv")
    assert row["gpus"] == "8"
    text = f"Llama3-8B with LoRA r=8 on 1 H100, seq 2048, batch size 1\n{TABLE}"
    assert import_row(rows_of(tmp_path, text)[0]).job.finetune.rank == 8
    (row,) = in_the_schema([{"model": "OLMo 7B", "gpus": "8", "seq": "2048", "Batch (tokens)": "~4M"}])  # fmt: skip
    assert row["setup"] == "global batch tokens=4M"


def test_a_named_model_keeps_its_own_size_whatever_sentences_count(tmp_path):
    first, _ = rows_of(tmp_path, f"Qwen3-8B, of which 2B params train, 8 H100, seq 2048.\n{TABLE}")
    assert first["model"] == "Qwen3-8B" and not first["params_b"]


def test_dimensions_of_one_table_are_those_of_the_runs_of_another(tmp_path):
    text = """
| Model | Layers | Dim | Heads |
|---|---|---|---|
| Tiny | 6 | 320 | 5 |
| Wide | 8 | 1024 | 16 |

On one H100:

| Model | Batch | Seq Len | Tokens/sec |
|---|---|---|---|
| Wide | 4 | 512 | 1 |
| Tiny | 8 | 512 | 1 |
"""
    wide, tiny = rows_of(tmp_path, text)
    assert (wide["layers"], wide["hidden"]) == ("8", "1024")
    assert (tiny["layers"], tiny["heads"]) == ("6", "5")


def test_models_and_lengths_in_heads_make_a_row_of_every_cell(tmp_path):
    text = """
In runs named lora the rank is 4. FSDP; we take per-device batch sizes of 2 and 8.

|  | Llama-3-8B (2048) | Llama-3-8B (8192) |
|---|---|---|
| (full_rank) A100-SXM4-80GB x2 | 10.5 (batch: 8) | 9 (batch: 2) |
| (lora) A100-SXM4-80GB x1 | 12 (batch: 8) | 11 (batch: 2) |
"""
    rows = rows_of(tmp_path, text)
    assert [(row["seq_len"], row["gpus"], row["micro_batch"]) for row in rows] == [
        ("2048", "2", "8"), ("8192", "2", "2"), ("2048", "1", "8"), ("8192", "1", "2"),
    ]  # fmt: skip
    runs = [import_row(row) for row in rows]
    assert [run.job.finetune is not None and run.job.finetune.adapts for run in runs] == [
        False, False, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("head", "cell", "column", "value"),
    [
        ("ckpt", "off", "recompute", "off"),
        ("GPU", "13.7GB", "gpu", None),
        ("use_liger", "true", "setup", "liger"),
        ("use_liger", "no", "setup", "no liger"),
        ("Cluster", "H100, 3 nodes x 8 GPUs (24 in all)", "gpus", "24"),
    ],
)
def test_heads_and_cells_that_say_more_than_their_words(head, cell, column, value):
    (row,) = in_the_schema([{"model": "Qwen3-8B", head: cell}])
    assert row.get(column) == value


def test_an_optimizer_that_lives_on_the_host_and_a_switch_in_backticks():
    cells = {"model": "Qwen3-8B", "gpu": "A100", "seq_len": "512", "micro_batch": "1"}
    run = import_row(Row("t", cells | {"setup": "optimizer: OffloadAdam"}))
    assert run.layout.offload == ("optimizer",)
    assert not says(r"torch\.?compile\b", "`torch.compile` disabled")
