"""Networks of clouds, Ascend's codes, compilers of kernels and XLA's memories, in texts made for these tests."""

import time

import pytest

from meshwright.diagnose import watchdog_lines
from meshwright.diagnose.examine import diagnose
from meshwright.diagnose.known_ascend import ASCEND
from meshwright.diagnose.known_words import Index, Sifted
from meshwright.diagnose.log_lines import read_step


def _diagnose(tmp_path, text):
    path = tmp_path / "log.txt"
    path.write_text(text)
    return diagnose([str(path)])[0]


_OFI = "h1:7:8 [0] f:1 NCCL WARN NET/OFI "


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (_OFI + "Creating new endpoint for domain 0x7f failed: Invalid argument\n", "wrong-configuration", "EFA network cannot be opened"),
        ("libfabric:9:core:core:fi_getinfo_():1<warn> fi_getinfo: provider efa output empty list\n", "wrong-configuration", "EFA network cannot be opened"),
        (_OFI + "Unable to insert remote address into address vector for device 2.\n", "wrong-configuration", "network address that another one sent"),
        (_OFI + "Request 0x7f completed with error. RC: 21. Error: unknown error.\n", "slow-link", "A transfer over EFA failed"),
        (_OFI + "Could not register memory on ctrl rail 0 with flag 0\n", "wrong-configuration", "could not be registered"),
        (_OFI + "No freelist items available\n", "unknown", "The EFA plugin reports"),
        ("RuntimeError: NCCL error, remote process exited or there was a network error\nLast error:\n"
         "socketPollConnect: connect to 10.4.5.6<4007> returned Connection timed out, exceeded error retry count after 35 attempts\n",
         "wrong-configuration", "(10.4.5.6: Connection timed out)"),
        ("Unsupported conversion from f16 to f16\nLLVM ERROR: Unsupported rounding mode for conversion.\nAborted (core dumped)\n",
         "wrong-configuration", "cannot make it for this card"),
        ("  File \"compiler.py\", line 9, in make_llir\nRuntimeError: PassManager::run failed\n", "wrong-configuration", "cannot make it for this card"),
        ("ERROR ||NCC_WRAPPER||: There was a compilation error for this graph in the previous run.\nINTERNAL: neuronx-cc compilation failed.\n",
         "wrong-configuration", "holds this graph as one that did not compile"),
        ("[rank1]: IndexError: pop from an empty deque\n", "wrong-configuration", "another order than it recorded"),
        ("FileExistsError: [Errno 17] File exists: '/000003_barrier'\n", "wrong-configuration", "shared memory of its own"),
        ("ValueError: Reused local directory: ['/d/a'] vs ['/d/a']. Provide a different one.\n", "wrong-configuration", "shared memory of its own"),
        ("  what():  [Rank:0] FATAL ERROR :: MODULE:PT_DEVICE GRAPH:: Capture must end on the same stream it began on.\n",
         "wrong-configuration", "captured in a CUDA graph"),
        ("ValueError: this schedule requires the number of microbatches to be a multiple of the number of rounds (3), but got 7.\n",
         "wrong-configuration", "no multiple of what it is divided by"),
        ("n:1:2 [1] p2p.cc:9 NCCL WARN hipIpcGetMemHandle failed : invalid argument\n"
         "n:1:2 [1] p2p.cc:9 NCCL WARN Cuda failure 'invalid argument'\n", "wrong-configuration", "cannot hand each other GPU memory"),
        ("CheckpointingException: Invalid access pattern: 4 ShardedObject are missing\n", "wrong-configuration", "does not hold what this run's model asks for"),
        ("CheckpointingException: ShardedTensor.flattened_range is not supported.\n", "wrong-configuration", "form that this release"),
        ("RuntimeError: fused_attn_f16.cu:9 in function operator(): cuDNN Error: No valid engine configs for MUL_. For more information\n",
         "wrong-configuration", "no fused attention"),
        ("RuntimeError: Caught RuntimeError in replica 1 on device 1.\nRuntimeError: Expected all tensors to be on the same device\n",
         "wrong-configuration", "DataParallel"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (7x640 and 1x204800)\n", "wrong-configuration", "packed (4 bits"),
        ("OSError: [Errno 39] Directory not empty: 'out/tmp-checkpoint-1' -> 'out/checkpoint-1'\n", "wrong-configuration", "is there already"),
        ("E rendezvous.cc:38] This thread has been waiting for `initialize clique for rank 1; stream=0` for 10 seconds and may be stuck.\n",
         "missing-collective", "did not come to the same step"),
        ("F0101 10:00:00.123456  77 tpu_init.inc:9] TpuThing_Do not available in this library.\n*** SIGABRT received by PID 7 (TID 7) on cpu 4; stack trace: ***\n",
         "wrong-configuration", "libtpu"),
        ("src/tcmalloc.cc:332] Attempt to free invalid pointer 0x7f\n*** SIGABRT received by PID 7 (TID 7) on cpu 4; stack trace: ***\n",
         "unknown", "corrupted by a library"),
        ("2026-01-02 10:00:00.1: F ./core/thing.cc:77] Something that nobody knows happened\n", "unknown", "Something that nobody knows happened"),
        ("*** SIGTERM received by PID 7 (TID 7) on cpu 4 from PID 3; stack trace: ***\n", "unknown", "told to end from outside"),
        ("['python', 'train.py'] exits with return code = -7\n", "wrong-configuration", "bus error"),
        ("['python', 'train.py'] exits with return code = -25\n", "unknown", "a file grew over its limit"),
        ("host_a: mlx5: host_a: got completion with error:\n00000000 00008813 120101af 0000e3d2\n", "slow-link", "ended a transfer with an error"),
        ("RuntimeError: (\"ZERO DDP error: the synchronization of gradients doesn't exit properly.\", 'x')\n", "wrong-configuration", "took no part in the loss"),
        ("RuntimeError: Only Tensors of floating point and complex dtype can require gradients\n", "wrong-configuration", "parameters of one kind"),
        ("FATAL: coordinator 'n0' resolved to '127.0.1.1' (loopback/empty)\n", "wrong-configuration", "loopback address"),
        ("[Rank 1] layer 0 fw [31,297 nans detected locally]\n", "unknown", "not finite"),
        ("KeyError: 'shape_of_old'\nThe above exception was the direct cause of the following exception:\nValueError: the option pp must be 1\n",
         "wrong-configuration", "option pp must be 1"),
    ],
)  # fmt: skip
def test_what_networks_and_compilers_say(tmp_path, text, kind, says):
    found = _diagnose(tmp_path, text)
    assert found.causes[0].kind == kind
    assert says in found.verdict


@pytest.mark.parametrize("number", range(1, 21))
def test_every_code_of_hccl_is_known_behind_the_error_that_wraps_it(tmp_path, number):
    text = (
        "[rank2]: RuntimeError: [ERROR] HCCL error in: ProcessGroupHCCL.cpp:9\n"
        f"[rank2]: EI{number:04}: [PID: 7] Something of device 2. Reason: a reason.\n"
    )
    found = _diagnose(tmp_path, text)
    assert found.causes[0].confidence >= 0.6
    assert "this text does not tell" not in found.verdict or number == 2
    assert found.causes[0].ranks == (2,)


def test_a_number_alone_is_no_code_of_a_device(tmp_path):
    assert not any(one.pattern.search("step 507053 loss 2.1 507015") for one in ASCEND)
    assert (
        "of its memory" in _diagnose(tmp_path, "ACL stream failed, error code is 507053\n").verdict
    )


@pytest.mark.parametrize(
    ("space", "used", "says"),
    [
        ("hbm", "21.90G of 7.50G", "needs 21.9 GiB where the device has 7.50 GiB"),
        ("vmem", "20.00M of 16.00M", "needs 20.0 MiB where the device has 16.0 MiB of memory inside of the chip (vmem)"),
    ],
)  # fmt: skip
def test_each_memory_of_a_chip_by_itself(tmp_path, space, used, says):
    found = _diagnose(
        tmp_path,
        f"XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space {space}. Used {used} {space}.\n",
    )
    assert says in found.verdict
    assert ("fsdp" in found.causes[0].remedy) == (space == "hbm")


_STARTED = "W run.py:851] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"


def test_errors_before_the_last_start_belong_to_another_program(tmp_path):
    before = "ModuleNotFoundError: No module named 'plots'\n"
    after = "ValueError: the option tp_size must be at least 1\n"
    assert "plots" in _diagnose(tmp_path, before + _STARTED).verdict
    assert "tp_size" in _diagnose(tmp_path, before + _STARTED + after).verdict


def test_an_error_that_comes_again_after_a_start_is_that_run_s_own(tmp_path):
    error = "RuntimeError: Trying to backward through the graph a second time\n"
    found = _diagnose(tmp_path, error + _STARTED + error)
    assert "graph used twice" in found.verdict
    assert found.causes[0].evidence[0].line == 3


def _steps(step_s, first_loss=11.0, count=12):
    return "".join(
        f"iteration {at}/ 12 | elapsed time per iteration (ms): {1e3 * step_s} | lm loss: {first_loss / (1 + 0.1 * at):.4f} |\n"
        for at in range(1, count + 1)
    )


def test_of_several_runs_in_one_log_the_last_is_judged(tmp_path):
    found = _diagnose(tmp_path, _steps(2.0) + _steps(3.0))
    assert found.healthy, found.verdict
    assert found.figures["step_time_s"] == pytest.approx(3.0)
    assert found.figures["steps_read"] == 12
    short = _diagnose(tmp_path, _steps(2.0) + _steps(3.0, count=2))
    assert short.figures["step_time_s"] == pytest.approx(2.0)


def test_a_first_loss_that_is_left_upwards_is_no_divergence_yet(tmp_path):
    lines = [f"iteration {at}/ 90 | elapsed time per iteration (ms): 900 | lm loss: {loss} |\n"
             for at, loss in enumerate((12.5, 12.6, 40.7, 39.0), 1)]  # fmt: skip
    assert _diagnose(tmp_path, "".join(lines)).healthy


def test_a_slowdown_of_the_last_three_records_is_seen(tmp_path):
    clocks, at = [], 0
    for step, took in enumerate((0, *(30,) * 7, 90, 90, 90), 1):
        at += took
        clocks.append(
            f"Training: 2026-01-02 10:{at // 60:02}:{at % 60:02},000-Speed {3000 / max(took, 30):.1f} samples/sec Loss 9.1 Global Step: {50 * step}\n"
        )
    found = _diagnose(tmp_path, "".join(clocks))
    assert "something became slow" in found.verdict
    assert found.figures["samples_per_s"] == pytest.approx(100.0)


def test_a_mean_since_the_start_becomes_times_of_steps(tmp_path):
    text = "".join(
        f"{{'loss': 1.5, 'memory(GiB)': 4.5, 'train_speed(iter/s)': {at / (10 + 2 * at):.6f}, 'global_step/max_steps': '{at}/90', 'elapsed_time': '3s'}}\n"
        for at in (1, 11, 21)
    )
    figures = _diagnose(tmp_path, text).figures
    assert figures["step_time_s"] == pytest.approx(2.0, rel=1e-3)
    assert figures["peak_memory_bytes"] == pytest.approx(4.5 * 2**30)


def test_values_with_their_mean_behind_a_stroke(tmp_path):
    line = "iteration 3/ 9 | elapsed time per iteration (ms): 2000.0/1990.0 | hip mem usage/free/total/usage_ratio: 100.5GB/99.5GB/200GB/50% | tokens per GPU (tokens/s/GPU): 4096.0/4100.0 | lm loss: 9.0 |\n"
    figures = _diagnose(tmp_path, line).figures
    assert figures["tokens_per_s_per_gpu"] == pytest.approx(4096.0)
    assert figures["peak_memory_bytes"] == pytest.approx(100.5e9)


def test_a_device_s_own_fault_asks_for_no_dumps_and_a_nameless_cause_is_not_listed(tmp_path):
    found = _diagnose(
        tmp_path,
        "NVRM: GPU 0000:b3:00.0 has fallen off the bus and is not responding to commands.\n",
    )
    assert not any("flight-recorder" in line for line in found.missing)
    two = _diagnose(
        tmp_path,
        "n:1:2 [1] a.cc:9 NCCL WARN HIP failure 'odd state'\nRuntimeError: NCCL error: unhandled cuda error\n",
    )
    assert len(two.causes) == 2
    assert "also:" not in two.verdict


def test_figures_of_nanotron_and_paddle(tmp_path):
    text = "iteration: 1 / 9 | time_per_iteration_ms: 7.03K | tokens_per_sec_per_gpu: 4.66K | lm_loss: 12.1 |\n"
    assert _diagnose(tmp_path, text).figures["step_time_s"] == pytest.approx(7.03)
    text = "ppocr INFO: epoch: [3/9], global_step: 750, loss: 2.0, avg_reader_cost: 0.00010 s, avg_batch_cost: 0.18020 s, avg_samples: 4.0, ips: 22.2 samples/s, eta: 15:13:26\n"
    figures = _diagnose(tmp_path, text).figures
    assert figures["step_time_s"] == pytest.approx(0.1802)
    assert figures["samples_per_s"] == pytest.approx(22.2)


def test_the_end_of_a_run_is_said_beside_its_faults(tmp_path):
    table = "".join(
        f"  {name} ........................ {value}\n"
        for name, value in {"global_batch_size": 2, "micro_batch_size": 1, "pipeline_model_parallel_size": 16}.items()
    )  # fmt: skip
    stopped = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***\n"
    found = _diagnose(tmp_path, table + stopped)
    assert found.causes[0].kind == "bubble"
    assert found.verdict.endswith("it was ended by the job's time limit")


def test_memory_of_a_host_is_no_peak_of_a_device():
    assert (
        read_step(
            "Memory on the node (IP: 10.0.0.1) where the task (memory used=17.91GB) ran was 478GB",
            1,
        )
        is None
    )


def test_a_line_without_a_pattern_s_words_is_not_searched():
    line = "2026-01-02 INFO httpx HTTP Request: GET https://example.org/resolve/main " * 8
    began = time.process_time()
    for _ in range(300):
        watchdog_lines.WATCHDOG.pattern.search(line)
    plain = time.process_time() - began
    began = time.process_time()
    for _ in range(300):
        watchdog_lines.WATCHDOG.search(line)
    assert time.process_time() - began < 0.5 * plain
    assert isinstance(watchdog_lines.WATCHDOG, Sifted)


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV cache (6048). Try increasing `gpu_memory_utilization`\n",
         "out-of-memory", "has room for 6048 tokens"),
        ("ValueError: To serve at least one request with the models's max seq len (131072), (4.54 GiB KV cache is needed, which is larger than the available KV cache memory (1.71 GiB).\n",
         "out-of-memory", "needs 4.54 GiB for the keys and values of one sequence of 131072 tokens, 1.71 GiB is left"),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`\n", "out-of-memory", "no memory left for keys and values"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n", "out-of-memory", "no memory left for keys and values"),
        ("ValueError: Free memory on device cuda:0 (2.6/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB).\n", "out-of-memory", "another process"),
        ("AssertionError: FP8 execution requires 2D input matrices with height divisible by 8 and width divisible by 16, but got tensor with dims=[4092, 4096]\n",
         "wrong-configuration", "Eight-bit matrix products"),
        ("ValueError: One of pjit outputs was given the sharding of NamedSharding(mesh=Mesh('tensor': 6)), which implies that the global size of its dimension 1 should be divisible by 6, "
         "but it is equal to 32000 (full shape: (4096, 32000))\n", "wrong-configuration", "dimension 1 has 32000, the axes named for it have 6 devices"),
        ("ValueError: Received incompatible devices for jitted computation. Got argument x\n", "wrong-configuration", "JAX arrays lie on other devices"),
        ("pyarrow.lib.ArrowInvalid: offset overflow while concatenating arrays\n", "wrong-configuration", "2 GiB that Arrow counts"),
        ("pyarrow.lib.ArrowInvalid: Column 4 named images expected length 360 but got length 352\n", "wrong-configuration", "gives column images 352 rows"),
        ("pyarrow.lib.ArrowInvalid: JSON parse error: Column() changed from object to array in row 0\n\nThe above exception was the direct cause of the following exception:\n\n"
         "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset\n", "wrong-configuration", "is no JSON of the form"),
        ("datasets.table.CastError: Couldn't cast\na: string\nto\n{}\nbecause column names don't match\n", "wrong-configuration", "not the same columns"),
        ("There are not enough slots available in the system to satisfy the 6\nslots that were requested\n", "wrong-configuration", "more processes than the hosts"),
    ],
)  # fmt: skip
def test_engines_data_and_meshes(tmp_path, text, kind, says):
    found = _diagnose(tmp_path, text)
    assert found.causes[0].kind == kind
    assert says in found.verdict


def test_a_clock_of_hours_to_milliseconds_is_no_step_time():
    step = read_step(
        "progress: 100/200, train/total_loss: 5.9, ups: 0.5, eta: 07h 54m 31s 268ms", 1
    )
    assert step is not None
    assert step.step_time_s == 2.0


def test_a_hook_s_seconds_are_those_since_the_line_before(tmp_path):
    lines = [f"INFO:tensorflow:loss = 7.1, step = {1000 + 100 * i} (50.{i} sec)\n" for i in range(5)]  # fmt: skip
    assert 0.5 <= _diagnose(tmp_path, "".join(lines)).figures["step_time_s"] < 0.51


def test_few_steps_of_no_steady_pace_are_not_called_fine(tmp_path):
    lines = [f"step {i} loss 2.{9 - i} time {t}s\n" for i, t in enumerate((0.5, 0.5, 0.8, 1.4, 1.4))]  # fmt: skip
    found = _diagnose(tmp_path, "".join(lines))
    assert found.healthy
    assert "pace is not steady" in found.verdict
    assert found.missing


def test_lines_that_differ_in_digits_alone_are_sifted_alike():
    index = Index(known.pattern for known in ASCEND)
    lines = [f"[rank{i}]: EI000{i} hccl error {i}{i}" for i in range(1, 10)]
    fresh = [Index(known.pattern for known in ASCEND).candidates(line) for line in lines]
    assert [index.candidates(line) for line in lines] == fresh
    assert any(fresh)
