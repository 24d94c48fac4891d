"""Tables pasted as they stand on pages are read as their authors mean them."""

import time

import pytest

from meshwright.cli import run as command
from meshwright.evidence.around import told_by
from meshwright.evidence.heads import column_of, joined
from meshwright.evidence.import_rows import import_row
from meshwright.evidence.pasted import grids, plain, tables
from meshwright.evidence.rows import read_rows


def rows_of(tmp_path, text, name="table.md"):
    path = tmp_path / name
    path.write_text(text)
    return read_rows(path)


def runs_of(tmp_path, text):
    return [import_row(row) for row in rows_of(tmp_path, text)]


MARKDOWN = """
# Training results

We ran everything on one node | sometimes two.

| **Model** | Runnable On | `seq-len` | Per-GPU batch | Peak Memory per GPU | Tokens/sec * |
|:-:|:-:|--:|:-:|:-:|:-:|
| [Llama 3.1 8B](https://example.org/a_(b)) | 1x A6000 | 2k | 2 | 37.4 GiB[^1] | 2,579 |
| Llama 3.1 70B | 8x A100<br>80GB | 2k | **2** | – | ~1.5k |

[^1]: with a footnote
"""

HTML = """
<p>Results</p><table class="x"><thead><tr><th>Model</th><th>GPU</th><th>GPUs</th><th>Seq. length</th><th>MBS</th></tr></thead>
<tbody><tr><td rowspan="2">Llama&nbsp;2 7B</td><td colspan="1"><b>H100</b></td><td>8</td><td>4096</td><td>1</td></tr>
<tr><td>A100</td><td>16</td><td>4,096</td><td>2</td></tr></tbody></table>
"""

LATEX = r"""
\begin{table}\begin{tabular}{l|cc@{\hskip 2pt}r}
\toprule Model & \#GPUs & Seq. Len. & TP/PP/DP & MBS & GBS \\ \midrule  % a remark
\multirow{2}{*}{\textbf{Llama 2 70B}} & $8\times8$ H100 & 4{,}096 & 8/4/2 & 1 & 128 \\
 & 32 H100 & 4k & 8/4/1 & 1 & 128 \\ \bottomrule
\end{tabular}\end{table}
"""

SIMPLE = """
============  =======  ======  ===
Model         # NPUs   SeqLen  MBS
============  =======  ======  ===
Llama 2 13B   16       4096    1
Llama 2 7B    8        2048    4
============  =======  ======  ===
"""

GRID = """
+-------------+---------+---------+-----------+
| Model       | Devices | Context | micro bs  |
+=============+=========+=========+===========+
| Llama 2 13B | 16xH100 | 4096    | 1         |
+-------------+---------+---------+-----------+
"""

ALIGNED = """Model          GPUs     Seq len   Batch size
Llama 2 7B     8xA100   4096      2
Llama 2 13B    8xA100   4096      1
"""


def test_markdown_between_prose(tmp_path):
    small, large = runs_of(tmp_path, MARKDOWN)
    assert (small.cluster.device.name[:9], small.gpus, small.job.seq_len) == ("RTX A6000", 1, 2048)
    assert (large.gpus, large.layout.micro_batch) == (8, 2)
    assert "80GB" in large.cluster.device.name and large.model.layers == 80


def test_html_with_spanning_cells(tmp_path):
    first, second = runs_of(tmp_path, HTML)
    assert first.model.layers == second.model.layers == 32
    assert ("H100" in first.cluster.device.name, first.gpus) == (True, 8)
    assert ("A100" in second.cluster.device.name, second.gpus, second.job.seq_len) == (
        True,
        16,
        4096,
    )


def test_latex_with_macros_and_joined_heads(tmp_path):
    first, second = runs_of(tmp_path, LATEX)
    assert (first.layout.tp, first.layout.pp, first.layout.dp, first.gpus) == (8, 4, 2, 64)
    assert (second.layout.tp, second.layout.pp, second.layout.dp, second.gpus) == (8, 4, 1, 32)
    assert first.job.seq_len == second.job.seq_len == 4096
    assert second.model.hidden == 8192  # the model of the cell above


@pytest.mark.parametrize(("text", "gpus"), [(SIMPLE, [16, 8]), (GRID, [16]), (ALIGNED, [8, 8])])
def test_restructured_and_aligned_columns(tmp_path, text, gpus):
    rows = rows_of(tmp_path, text)
    assert [int(row["gpus"]) for row in rows] == gpus
    assert rows[0]["model"].startswith("Llama 2")


def test_two_tables_of_one_page_and_a_third_of_no_runs(tmp_path):
    text = "\n\n".join((MARKDOWN, "| flag | default |\n|--|--|\n| --x | 3 |", GRID))
    assert [row["model"] for row in rows_of(tmp_path, text)] == [
        "Llama 3.1 8B",
        "Llama 3.1 70B",
        "Llama 2 13B",
    ]
    assert len({row.id for row in rows_of(tmp_path, text)}) == 3


def test_the_column_of_the_model_is_found_by_what_it_names(tmp_path):
    text = (
        "Config,hardware,SeqLength,batch_size\nllama2_7b,8xA100,4096,1\nllama2_13b,8xA100,4096,1\n"
    )
    first, second = rows_of(tmp_path, text, "cards.csv")
    assert (first["model"], second["model"]) == ("llama2_7b", "llama2_13b")


def test_what_is_missing_is_said_with_what_is_there(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("Flavour,Price\nred,3\n")
    assert command(["predict", str(path)]) == 2
    said = capsys.readouterr().err
    assert "names the model" in said and "Flavour" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("head", "column"),
    [
        ("Mic-BS", "micro_batch"), ("Glob-BS", "global_batch"), ("NHIDDEN", "hidden"), ("NLAYERS", "layers"),
        ("PP Chunks", "_accumulation"), ("micro_batch_num", "_accumulation"), ("# HPU", "gpus"), ("Number of NPUs", "gpus"),
        ("gpu-count", "gpus"), ("NPU", "gpu"), ("Runnable On", "gpu"), ("Batch size (tokens)", "_batch_tokens"),
        ("Tokens/Batch", "_batch_tokens"), ("Batch size/DP", "_replica_batch"), ("num-ckpt-layers", "_checkpointed"),
        ("cutoff length", "seq_len"), ("Seq. Len.", "seq_len"), ("pipeline_stage", "pp"), ("model_parallel", "tp"),
        ("inter-bandwidth", "interconnect"), ("recompute_modules", "recompute"), ("model_id", "model"),
        ("Peak Mem (GB)", "_measured"), ("Performance", "_measured"), ("s/iter", "_measured"), ("GPU M", "_measured"),
        ("TFLOP/s/GPU", "_measured"), ("LoRA rank", "_said"), ("Optimizer", "_said"), ("Phase", "_said"),
        ("local batch size", "micro_batch"), ("GPUs/node", "gpus_per_node"), ("Model Size", "params_b"), ("n_embd", "hidden"),
    ],
)  # fmt: skip
def test_heads_by_their_words(head, column):
    assert column_of(head) == column


def test_heads_that_join_columns():
    assert joined("TP/PP/CP") == ("tp", "pp", "cp")
    assert joined("分布式策略（TP/PP/CP）") == ("tp", "pp", "cp")
    assert joined("bs:micro/global") == ("micro_batch", "global_batch")
    assert joined("Tokens/s/GPU") == joined("TP") == joined("GPUs/node") == ()


@pytest.mark.parametrize(
    ("cell", "words"),
    [("**7B**", "7B"), ("[a](http://x)", "a"), ("N/A", ""), ("—", ""), ("12 GB<sup>1</sup>", "12 GB"), ("`bf16`", "bf16")],
)  # fmt: skip
def test_a_cells_words(cell, words):
    assert plain(cell) == words


def test_a_csv_of_cells_with_bars_is_a_csv():
    assert grids("model,setup\nLlama 3 8B,a | b | c\n") == []


PROSE = """
# Results of Llama 3 8B with FSDP=8, full AC

All runs used 8 NVIDIA H100 80GB GPUs and a sequence length of 4,096.

| local batch size | tokens/s/GPU |
|--|--|
| 1 | 7,000 |
| 2 | OOM |

We also tried the setting below.

| flag | default |
|--|--|
| compile | on |
"""


def test_what_stands_around_a_table_is_of_its_rows_and_said(tmp_path):
    first, second = rows_of(tmp_path, PROSE)
    assert (first["gpus"], first["seq_len"], second["micro_batch"]) == ("8", "4096", "2")
    read = import_row(first)
    assert "H100" in read.cluster.device.name and read.model.hidden == 4096
    assert (read.layout.zero, read.layout.recompute) == (3, "full")
    assert sum("around the table" in said for said in read.assumed) == 1


def test_what_a_text_says_twice_differently_is_not_taken(tmp_path):
    text = PROSE.replace(
        "We also tried", "We compared A100 and H100 at a sequence length of 8k. We also tried"
    )
    (tmp_path / "a.md").write_text(
        text.replace("8 NVIDIA H100 80GB GPUs", "GPUs").replace(
            " 4,096", " 4,096 or a sequence length of 2,048"
        )
    )
    first, _ = read_rows(tmp_path / "a.md")
    assert not first["gpu"].strip() and not first["seq_len"].strip()


def test_columns_are_told_beside_a_table(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("Model,Batch size,Seq len\nLlama 2 7B,1,\nLlama 2 7B,2,2048\n")
    out = tmp_path / "o.csv"
    told = ["--set", "gpu=8x A100 80GB", "--set", "seq_len=4k"]
    assert command(["predict", str(path), "-o", str(out), *told]) == 0
    assert "2 of 2 rows priced" in capsys.readouterr().out
    first, second = read_rows(path, {"gpu": "8x A100 80GB", "seq_len": "4k"})
    assert (first["seq_len"], second["seq_len"], second["gpus"]) == ("4096", "2048", "8")


@pytest.mark.parametrize("pair", ["gpu", "=3", "throughput=3", "gpu="])
def test_what_is_no_column_is_refused(tmp_path, capsys, pair):
    path = tmp_path / "t.csv"
    path.write_text("Model,Seq len\nLlama 2 7B,4096\n")
    assert command(["predict", str(path), "--set", pair]) == 2
    assert "COLUMN=VALUE is expected" in capsys.readouterr().err


def test_a_model_told_beside_a_table_of_none(tmp_path):
    path = tmp_path / "t.md"
    path.write_text("| GPUs | SeqLen | MBS |\n|--|--|--|\n| 8xH100 | 4096 | 1 |\n")
    (row,) = read_rows(path, {"model": "Llama 3 8B"})
    assert import_row(row).model.layers == 32


@pytest.mark.parametrize(
    "text",
    [
        "| a |\n" + "-" * 1900 + "x\n", "\\begin{tabular}" * 5000, "**" * 20000, "[a](" * 20000, "|" * 50000, "\n" * 50000,
        "<table>" + "<tr><td colspan=100 rowspan=100>x" * 60 + "</table>", "=====  =====\n" * 5000, "sequence length " * 5000,
    ],
)  # fmt: skip
def test_hostile_texts_take_linear_time(text):
    begun = time.monotonic()
    tables(text)
    told_by(text, lambda cell: False)
    assert time.monotonic() - begun < 5.0  # quadratic readers take minutes


def test_a_row_of_dashes_is_a_row_and_a_rule_is_none():
    assert grids("| a | b |\n|:-:|--:|\n| 1 | - |\n| x | y |\n") == [
        [["a", "b"], ["1", ""], ["x", "y"]]
    ]
