"""Texts made for these tests in the wording of real programs; the figures are invented."""

import pytest

from meshwright.diagnose.examine import diagnose


def _diagnose(tmp_path, text):
    path = tmp_path / "log.txt"
    path.write_text(text)
    return diagnose([str(path)])[0]


_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 2 has a total capacity of {total} "
    "of which {free} is free. {whose}Of the allocated memory {live} is allocated by PyTorch, and 40.00 MiB is "
    "reserved by PyTorch but unallocated.\n"
)


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        (dict(tried="2.00 GiB", total="64.00 GiB", free="512.00 MiB", whose="", live="21.00 GiB"),
         "belong to other processes"),
        (dict(tried="64.00 MiB", total="12.00 GiB", free="0 bytes", whose="", live="31.00 GiB"),
         "spilling into the host's memory"),
        (dict(tried="300.00 MiB", total="16.00 GiB", free="7.50 GiB", whose="", live="7.90 GiB"),
         "the card is not full"),
        (dict(tried="300.00 MiB", total="80.00 GiB", free="90.00 MiB", live="41.00 GiB",
              whose="Process 17 has 42.00 GiB memory in use. Process 18 has 37.00 GiB memory in use. "),
         "37.0 GiB of GPU 2"),
        (dict(tried="9.00 GiB", total="80.00 GiB", free="8.00 GiB", live="66.00 GiB",
              whose="Process 17 has 71.50 GiB memory in use. "), "the last straw"),
        (dict(tried="300.00 MiB", total="80.00 GiB", free="90.00 MiB", whose="", live="78.80 GiB"),
         "full of live tensors"),
    ],
)  # fmt: skip
def test_memory_is_accounted_for_by_the_message_s_own_figures(tmp_path, figures, says):
    found = _diagnose(tmp_path, _OOM.format(**figures))
    assert found.causes[0].kind == "out-of-memory"
    assert says in found.verdict


def _watchdog(rank, op, seq, numel):
    return (
        f"[rank{rank}]:[E110 10:00:00.1 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for "
        "600010 milliseconds before timing out.\n"
    )


def test_different_collectives_at_one_number_are_a_mismatch(tmp_path):
    text = "".join(_watchdog(rank, "ALLREDUCE", 7120, 4096) for rank in (0, 1, 2))
    found = _diagnose(tmp_path, text + _watchdog(3, "BROADCAST", 7120, 16))
    assert found.causes[0].kind == "mismatched-collective"
    assert found.causes[0].ranks == (3,)
    assert "rank 3 in broadcast" in found.verdict


def test_small_equal_numbers_of_unnamed_groups_are_no_mismatch(tmp_path):
    found = _diagnose(
        tmp_path, _watchdog(0, "ALLREDUCE", 12, 4096) + _watchdog(3, "BROADCAST", 12, 16)
    )
    assert all(cause.kind != "mismatched-collective" for cause in found.causes)


@pytest.mark.parametrize(
    ("text", "kind", "ranks"),
    [
        ("ncclInvalidUsage\nLast error:\nDuplicate GPU detected : rank 5 and rank 4 both on CUDA device 4f000\n",
         "wrong-configuration", (4, 5)),
        ("The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n",
         "wrong-configuration", ()),
        ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error.\n", "wrong-configuration", ()),
        ("  what():  [enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 512 vs 256\n"
         "[rank1]: RuntimeError: Connection closed by peer [127.0.0.1]:5\n", "mismatched-collective", ()),
        ("h:1:2 [2] NCCL WARN NET/IB : Got completion from peer 10.0.0.7<5> with status=12 opcode=0 len=0 (Send) hca mlx5_3\n"
         "[rank9]: ncclRemoteError: remote process exited or there was a network error\n", "slow-link", ()),
        ("E failed (exitcode: -11) local_rank: 1 (pid: 77)\nRoot Cause (first observed failure):\n"
         "  rank      : 9 (local_rank: 1)\n  traceback : Signal 11 (SIGSEGV) received by PID 77\n", "unknown", (9,)),
        ("[INFO] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 1\n",
         "wrong-configuration", None),
    ],
)  # fmt: skip
def test_errors_known_by_their_wording(tmp_path, text, kind, ranks):
    cause = _diagnose(tmp_path, text).causes[0]
    assert cause.kind == kind
    if ranks is not None:
        assert cause.ranks == ranks


def test_skipped_steps_while_the_loss_scale_settles_are_no_fault(tmp_path):
    text = "".join(
        f"  0%| | {n}/900 [00:{2 * n:02d}<30:00,  2.00s/it][INFO] OVERFLOW! Skipping step. Attempted loss scale: "
        f"{2.0**scale}, reducing to {2.0 ** (scale - 1)}\n"
        for n, scale in ((4, 24), (5, 23), (6, 22))
    )
    found = _diagnose(tmp_path, text)
    assert found.healthy
    assert found.figures["overflow_steps"] == 3


def test_a_loss_of_exactly_zero_is_a_fault(tmp_path):
    text = "".join(
        f"{{'loss': {loss}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': 0.0{n}}}\n"
        for n, loss in enumerate((3.2, 0.0, 0.0))
    )
    found = _diagnose(tmp_path, text)
    assert not found.healthy
    assert "exactly 0" in found.verdict


@pytest.mark.parametrize(
    ("line", "step_time_s"),
    [
        ("completed step: {n}, seconds: 2.500, TFLOP/s/device: 180.0, Tokens/s/device: 3276.8, loss: 3.5\n", 2.5),
        ("INFO:tensorflow:global step {n}: loss = 3.5 (0.750 sec/step)\n", 0.75),
        ("step: {n} loss: 3.2 lr: 0.001 step/s: 2.5 mfu: 41.2\n", 0.4),
        ("Epoch 1 | Step {n} | Loss 3.12 | 1.25 it/s | 40.1 GB\n", 0.8),
        ("step:{n} - actor/loss:0.12 - perf/mfu/actor:0.41 - timing_s/gen:3.0 - timing_s/step:70.5 - perf/throughput:9.5\n", 70.5),
    ],
)  # fmt: skip
def test_step_times_in_other_words(tmp_path, line, step_time_s):
    found = _diagnose(tmp_path, "".join(line.format(n=n) for n in range(3, 9)))
    assert found.healthy
    assert found.figures["step_time_s"] == pytest.approx(step_time_s)


def test_the_mean_loss_of_a_summary_is_no_step_s_loss(tmp_path):
    found = _diagnose(
        tmp_path,
        "{'loss': '2.5', 'grad_norm': '0.9', 'epoch': '1'}\n{'loss': '2.1', 'grad_norm': '0.9', 'epoch': '2'}\n"
        "{'train_runtime': '200', 'train_samples_per_second': '1.0',\n 'train_steps_per_second': '0.25', "
        "'train_loss': '2.3', 'epoch': '2'}\n",
    )
    assert found.figures["loss_last"] == 2.1
    assert found.figures["step_time_s"] == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        # A driver that counts nothing for the process leaves nothing to blame on others.
        (_OOM.format(tried="1.50 GiB", total="24.00 GiB", free="200.00 MiB", live="23.00 GiB",
                     whose="Including non-PyTorch memory, this process has 0 bytes memory in use. "),
         "full of live tensors"),
        (_OOM.format(tried="4.00 MiB", total="192.00 GiB", free="180.00 GiB. 2.00 GiB allowed; 180.00 GiB",
                     whose="", live="1.90 GiB"), "may take 2.00 GiB of the card's 192.0 GiB"),
        (_OOM.format(tried="100.00 MiB", total="20.00 GiB", free="600.00 MiB", whose="", live="16.00 GiB"),
         "the card is not full"),
    ],
)  # fmt: skip
def test_memory_that_is_counted_oddly(tmp_path, text, says):
    assert says in _diagnose(tmp_path, text).verdict


def test_a_small_card_that_is_mostly_fragmented_is_fragmented_first(tmp_path):
    text = _OOM.format(
        tried="1.00 GiB", total="8.00 GiB", free="0 bytes", whose="", live="4.00 GiB"
    )
    found = _diagnose(tmp_path, text.replace("40.00 MiB", "3.00 GiB"))
    assert [cause.kind for cause in found.causes] == ["fragmentation", "out-of-memory"]


def test_few_ranks_of_an_unknown_number_blame_nobody(tmp_path):
    few = "".join(_watchdog(rank, "_REDUCE_SCATTER_BASE", 900, 64) for rank in (0, 3, 4))
    found = _diagnose(tmp_path, few)
    assert found.causes[0].ranks == ()
    assert "waited in a reduce_scatter_base" in found.verdict
    assert _diagnose(tmp_path, "world_size=5\n" + few).causes[0].ranks == (1, 2)


def test_a_gradient_that_is_no_number_and_a_loss_left_out(tmp_path):
    line = (
        " iteration {n}/ 90 | elapsed time per iteration (ms): 900.0 | {loss}loss scale: 1.0 | grad norm: {norm} | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )
    good = line.format(n=7, loss="lm loss: 2.5E+00 | ", norm=0.7)
    found = _diagnose(
        tmp_path,
        good + line.format(n=8, loss="", norm="nan") + line.format(n=9, loss="", norm="nan"),
    )
    assert not found.healthy
    assert "from step 8 on" in found.verdict
    assert _diagnose(tmp_path, good).healthy


def test_steps_skipped_since_the_start_are_not_added_up(tmp_path):
    text = "".join(
        f"[2030-01-01 10:00:{10 + n},000] [Rank 0] step={100 * n}, skipped={{}}, lr=[1e-05], mom=[[0.9, 0.95]]\n"
        for n in (1, 2, 3)
    )
    assert _diagnose(tmp_path, text.format(3, 3, 3)).figures["skipped_steps"] == 3
    found = _diagnose(tmp_path, text.format(98, 197, 296))
    assert found.causes[0].kind == "wrong-configuration"
    assert "296 of 300 steps were skipped" in found.verdict


def test_a_process_killed_while_it_loads_has_no_step_time(tmp_path):
    found = _diagnose(
        tmp_path,
        "Loading checkpoint shards:  40% 2/5 [00:20<00:30,  9.90s/it]ERROR:api:failed (exitcode: -9) local_rank: 0\n",
    )
    assert found.causes[0].kind == "out-of-memory"
    assert "step_time_s" not in found.figures


@pytest.mark.parametrize(
    ("line", "figures"),
    [
        ("Epoch: [2][{n}/60]\tTime 0.500 (0.731)\tData 0.020 (0.013)\tLoss 3.1 (3.4)\t\n",
         {"step_time_s": 0.5, "data_share": 0.04}),
        ("Epoch: [2]  [{n}/60]  eta: 0:00:09  lr: 0.001  loss: 3.1 (3.4)  time: 0.2500  data: 0.0050  max mem: 2048\n",
         {"step_time_s": 0.25, "peak_memory_bytes": 2048 * 2**20}),
        ("{{'loss': 2.1, 'memory/max_active (GiB)': 2.5, 'memory/max_allocated (GiB)': 11.5, 'epoch': 0}}\n",
         {"peak_memory_bytes": 11.5 * 2**30}),
    ],
)  # fmt: skip
def test_meters_and_memory_in_other_words(tmp_path, line, figures):
    found = _diagnose(tmp_path, "".join(line.format(n=n) for n in range(3, 9)))
    assert found.healthy
    assert {name: found.figures[name] for name in figures} == pytest.approx(figures)


def test_memory_without_a_unit_that_no_card_has_is_in_bytes(tmp_path):
    found = _diagnose(
        tmp_path,
        "[batch=3/9]:\n  Train memory/reserved_mem: 34359738368\n  Train loss/train/total: 9.5\n",
    )
    assert found.figures["reserved_memory_bytes"] == 2**35


def test_an_evaluation_before_any_step_is_no_share_of_the_training(tmp_path):
    found = _diagnose(tmp_path, "{'eval_loss': 1.3, 'eval_runtime': 16.2, 'epoch': 0}\n")
    assert found.causes == ()
    assert found.figures["evaluation_s"] == 16.2


def test_an_adapter_that_may_not_read_the_memory(tmp_path):
    found = _diagnose(
        tmp_path,
        "h:1:2 [1] NCCL WARN NET/IB : Got completion from peer 10.0.0.9<4> with error 4, opcode 1, len 0 (Send)\n",
    )
    assert found.causes[0].kind == "wrong-configuration"
    assert "local protection error" in found.verdict


def test_the_rank_counts_and_not_the_place_on_the_host(tmp_path):
    found = _diagnose(
        tmp_path,
        "[default0]:[rank12]:[E1] [PG 0 Rank 12] terminated: CUDA error: uncorrectable ECC error encountered\n",
    )
    assert found.causes[0].ranks == (12,)


def test_cached_of_the_first_generation_is_beside_the_live_tensors(tmp_path):
    found = _diagnose(
        tmp_path,
        "CUDA out of memory. Tried to allocate 3.00 GiB (GPU 0; 16.00 GiB total capacity; 7.00 GiB already allocated; "
        "1.50 GiB free; 6.00 GiB cached)\n",
    )
    assert found.causes[0].kind == "fragmentation"
    assert found.figures["fragmented_memory_bytes"] == 6 * 2**30


def test_a_bus_error_is_shared_memory(tmp_path):
    found = _diagnose(
        tmp_path, "[h:52 :0:57] Caught signal 7 (Bus error: nonexistent physical address)\n"
    )
    assert found.causes[0].where == "shared memory"


def test_the_prefix_of_a_line_has_the_rank_and_the_message_that_of_its_group(tmp_path):
    text = "".join(
        f"[rank{rank}]:[E1 10:00:00 ProcessGroupNCCL.cpp:9] [Rank {inner}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600010 milliseconds.\n"
        f"[rank{rank}]:[E1 10:00:00 ProcessGroupNCCL.cpp:8] [PG ID {group} PG GUID {group} Rank {inner}] Exception detected by "
        f"watchdog at work: {seq}, last enqueued NCCL work: {seq + 2}, last completed NCCL work: {seq - 1}.\n"
        for rank, inner, seq, op, group in (
            (21, 1, 300, "ALLTOALL_BASE", 14),
            (23, 0, 77, "ALLREDUCE", 15),
        )
    )
    found = _diagnose(tmp_path, text)
    assert (
        "rank 21 in an alltoall_base of group 14; rank 23 in an allreduce of group 15"
        in found.verdict
    )
    assert found.causes[0].ranks == ()


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("Rank 5 is running collective: SequenceNumber=31\nRank 2 is running collective: SequenceNumber=28\n",
         "rank 2 at number 28, rank 5 at number 31"),
        ("Rank 5: _REDUCE_SCATTER_BASE, TensorShape=[700000]\nRank 2: _REDUCE_SCATTER_BASE, TensorShape=[900000]\n",
         "gradients of different parameters"),
        ("Rank 5 is running BROADCAST, but Rank 2 is running REDUCE\n", "different collectives"),
        ("", "does not tell which"),
    ],
)  # fmt: skip
def test_a_mismatch_is_one_however_it_is_abridged(tmp_path, lines, says):
    found = _diagnose(
        tmp_path, f"RuntimeError: Detected mismatch between collectives on ranks.\n{lines}"
    )
    assert found.causes[0].kind == "mismatched-collective"
    assert says in found.verdict


_TABLE = (
    "Name    Self CPU %      Self CPU   CPU total %     CPU total  CPU time avg     Self CUDA   Self CUDA %    CUDA total"
    "  CUDA time avg    # of Calls\n"
    "{first}        {share}%       {first_s}s        {share}%       {first_s}s     1.000ms       0.000us         0.00%       0.000us"
    "       0.000us           10\n"
    "aten::mm        5.00%       1.000s        5.00%       1.000s     1.000ms       1.000s         99.00%       1.000s"
    "       1.000ms           1000\n"
)


def test_a_profiler_s_table_tells_loading_in_the_training_process(tmp_path):
    text = _TABLE.format(
        first="enumerate(DataLoader)#_SingleProcessDataLoaderIter._...",
        share="60.00",
        first_s="12.000",
    )
    found = _diagnose(tmp_path, text)
    assert found.causes[0].kind == "input-bound"
    assert found.causes[0].gain_fraction == pytest.approx(0.6)
    assert "no loader workers" in found.verdict


def test_a_profiler_s_table_tells_a_device_that_waits_for_the_host(tmp_path):
    totals = "Self CPU time total: 20.000s\nSelf CUDA time total: 4.000s\n"
    found = _diagnose(
        tmp_path, _TABLE.format(first="aten::copy_", share="60.00", first_s="12.000") + totals
    )
    assert found.causes[0].kind == "host-bound"
    assert "aten::copy_ (60%)" in found.verdict
    busy = totals.replace("4.000", "16.000")
    assert _diagnose(
        tmp_path, _TABLE.format(first="aten::copy_", share="60.00", first_s="12.000") + busy
    ).healthy


def test_a_log_without_times_is_not_called_fast(tmp_path):
    found = _diagnose(tmp_path, "".join(f"step {n} loss: {3 - n / 10}\n" for n in range(1, 9)))
    assert found.healthy
    assert found.verdict.startswith("No fault shows")
    assert any("times of steps" in one for one in found.missing)


def test_long_steps_that_hardly_compute_are_not_called_healthy(tmp_path):
    line = "2025-05-28 21:{0:02d}:37,626 - root - INFO - step: {0}  loss: 9.1  memory: 36.90GiB(46.63%)  tps: 8  mfu: {1}%\n"
    slow = "".join(line.format(n, 0.58) for n in range(1, 6))
    found = _diagnose(tmp_path, slow)
    assert not found.healthy
    assert "0.6% of the device's peak" in found.verdict
    assert _diagnose(tmp_path, "".join(line.format(n, 38.0) for n in range(1, 6))).healthy


def test_a_fatal_check_in_compiled_code_is_an_error(tmp_path):
    text = " 50%|#####     | 1/2 [00:01<00:01,  1.21s/it]F0000 00:00:17.4 9049 client.cc:9] Non-OK-status: status INTERNAL: halted\n"
    found = _diagnose(tmp_path, text)
    assert not found.healthy
    assert "Non-OK-status" in found.verdict


_TRACE = """Traceback (most recent call last):
  File "train.py", line 9, in main
    trainer.train()
{frames}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 900.00 MiB is free. Of the allocated memory 22.50 GiB is allocated by PyTorch, and 40.00 MiB is reserved by PyTorch but unallocated.
"""


@pytest.mark.parametrize(
    ("frames", "says", "advises"),
    [
        ('  File "transformers/trainer.py", line 2, in evaluation_loop\n    output = model(**inputs)\n'
         '  File "transformers/loss/loss_utils.py", line 3, in ForCausalLMLoss\n    logits = logits.float()\n',
         "evaluation keeps its predictions", "eval_accumulation_steps"),
        ('  File "transformers/loss/loss_utils.py", line 3, in ForCausalLMLoss\n    logits = logits.float()\n',
         "tokens by vocabulary", "chunked cross-entropy"),
        ('  File "torch/optim/adamw.py", line 3, in _init_group\n    state["exp_avg"] = torch.zeros_like(p)\n',
         "the optimizer makes its states", "ZeRO-1"),
        ('[rank0]:   File "torch/nn/modules/module.py", line 3, in _apply\n[rank0]:     param_applied = fn(param)\n',
         "being put on the device", "meta device"),
        ('  File "transformers/models/llama/modeling_llama.py", line 3, in eager_attention_forward\n'
         '    attn_weights = nn.functional.softmax(attn_weights, dim=-1)\n', "attention holds its scores", "sdpa"),
        ('  File "transformers/trainer.py", line 2, in _save_checkpoint\n    self.save_model(output_dir)\n'
         '  File "torch/distributed/fsdp/_unshard_param_utils.py", line 3, in _summon_full_params\n    x = y\n',
         "gathers whole tensors", "offload_to_cpu"),
        ('  File "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", line 3, in unshard\n'
         '    self._all_gather_result = foreach_all_gather(\n', "made whole", "wrap smaller blocks"),
        ('  File "transformers/generation/utils.py", line 3, in _sample\n    outputs = self(**model_inputs)\n',
         "cache of keys and values", "fewer sequences"),
    ],
)  # fmt: skip
def test_a_traceback_says_what_was_being_made_as_memory_ran_out(tmp_path, frames, says, advises):
    found = _diagnose(tmp_path, _TRACE.format(frames=frames))
    assert found.causes[0].kind == "out-of-memory"
    assert says in found.verdict
    assert advises in found.causes[0].remedy


def test_sockets_where_an_adapter_was_looked_for_are_named_unless_the_text_has_an_error(tmp_path):
    sockets = "host:1:1 [0] NCCL INFO NET/IB : No device found.\nhost:1:1 [0] NCCL INFO Using network Socket\n"
    assert "TCP sockets" in _diagnose(tmp_path, sockets).verdict
    broken = (
        sockets
        + "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, EADDRINUSE\n"
    )
    assert "TCP sockets" not in _diagnose(tmp_path, broken).verdict
