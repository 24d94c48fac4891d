"""Errors known by their wording, in texts made for these tests; hosts, sizes and names are invented."""

import pytest

from meshwright.diagnose.examine import diagnose


def _diagnose(tmp_path, text):
    path = tmp_path / "log.txt"
    path.write_text(text)
    return diagnose([str(path)])[0]


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("RuntimeError: NCCL error, unhandled system error\nLast error:\n"
         "socketStartConnect: Connect to 10.1.2.3<4000> failed : No route to host\n",
         "wrong-configuration", "(10.1.2.3: No route to host)"),
        ("n7:1:2 [0] include/socket.h:99 NCCL WARN Call to connect failed : Connection timed out\n"
         "n7:1:2 [0] include/socket.h:98 NCCL WARN Connection closed by remote peer\n",
         "wrong-configuration", "cannot reach each other"),
        ("b.cu:9: indexSelectLargeIndex: block: [1,0,0], thread: [2,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
         "[rank1]: RuntimeError: CUDA error: device-side assert triggered\n",
         "wrong-configuration", "outside of its table"),
        ("RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n",
         "wrong-configuration", "took no part in the loss"),
        ("RuntimeError: CUDA error: device-side assert triggered\n", "wrong-configuration", "index and found it out of range"),
        ("RuntimeError: expected dtype float for `end` but got dtype c10::BFloat16\n", "wrong-configuration", "another dtype or device"),
        ("DeepEP timeout check failed: rank = 3, thread = 1, value = 512)\n", "missing-collective", "exchange of tokens between experts"),
        ("RuntimeError: DeepEP error: timeout (dispatch CPU)\n", "missing-collective", "exchange of tokens between experts"),
        ("src/host/init/init.cu:9: non-zero status: 7\nnvshmem setup connections failed\n", "wrong-configuration", "NVSHMEM could not connect"),
        ("EE1002: 2026-01-02-10:00:00 Stream synchronize timeout.\n", "missing-collective", "did not end what its stream held"),
        ("step 7: detected nan/inf/spiky gradient (norm=2.4); skipping optimizer step.\n"
         "step 8: detected nan/inf/spiky gradient (norm=2.3); skipping optimizer step.\n", "wrong-configuration", "a check refuses"),
        ("RuntimeError: DataLoader worker (pid 44) is killed by signal: Killed.\n", "out-of-memory", "loader worker was killed"),
        ("RuntimeError: [enforce fail at inline_container.cc:9] . PytorchStreamWriter failed writing file data/7: file write failed\n",
         "wrong-configuration", "could not be written to its end"),
        ("RuntimeError: write(): fd 9 failed with Input/output error\n", "wrong-configuration", "could not be written to its end"),
        ("RuntimeError: File out/step9.pt cannot be opened.\n", "wrong-configuration", "file could not be made"),
        ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n",
         "wrong-configuration", "cut or damaged"),
        ("x:1:2 [5] inc/alloc.h:9 NCCL WARN Cuda failure 'out of memory'\n"
         "x:1:3 [0] misc/socket.cc:9 NCCL WARN socketProgress: Connection closed by remote peer y<1>\n",
         "out-of-memory", "(local device 5)"),
        ("h3:1:2 [0] net_ib.cc:9 NCCL WARN NET/IB : Got async event : port error\n"
         "h3:1:2 [0] net_ib.cc:8 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<5> with error 12, opcode 0, len 0\n",
         "slow-link", "port error"),
        ("ValueError: Error initializing torch.distributed: environment variable RANK expected, but not set\n",
         "wrong-configuration", "RANK is not set"),
        ("RuntimeError: output tensor must have the same type as input tensor\n", "wrong-configuration", "two types"),
        ("ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n",
         "wrong-configuration", "different things"),
        ("n2: Test CUDA failure c.cu:1 'system not yet initialized'\n", "wrong-configuration", "fabric manager"),
        ("AssertionError: model diverged with loss = NaN\n", "unknown", "the program stopped for it"),
        ("E failed (exitcode: 1) local_rank: 5 (pid: 9) of binary: python\nraise ChildFailedError(\n", "unknown",
         "local rank 5 ended with exit code 1"),
        ("RuntimeError: CUDA out of memory occurred when warming up; lower `gpu_memory_utilization`\n", "out-of-memory",
         "generation engine"),
        ("RuntimeError: CUDA error: invalid device ordinal\n", "wrong-configuration", "does not show it"),
        ("E0: SignalException: Process 11 got signal: 1\n", "wrong-configuration", "SIGHUP"),
        ("AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * x\n",
         "wrong-configuration", "do not multiply"),
        ("ResourceExhaustedError: OOM when allocating tensor with shape[64,1024,1024] and type float on GPU:0\n",
         "out-of-memory", "256.0 MiB"),
        ("ncclInternalError: Internal check failed.\nLast error:\n"
         "ncclSocketInit: connecting to address  with family 4242 is neither AF_INET(2) nor AF_INET6(10)\n",
         "wrong-configuration", "no network interface"),
        ("RuntimeError: aten.mm.default: got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor\n",
         "wrong-configuration", "together with a plain tensor"),
        ("AssertionError: Loading a checkpoint for MP=4 but world size is 2\n", "wrong-configuration", "cut for 4"),
        ("[rank3]: AssertionError: First dimension of the tensor should be divisible by tensor parallel size\n",
         "wrong-configuration", "no multiple of them"),
        ("AssertionError: num_layers value from checkpoint (12) is not equal to the input argument value (24).\n",
         "wrong-configuration", "saved of another model"),
        ("| WARNING: overflow detected, setting loss scale to: 0.5\n| WARNING: overflow detected, setting loss scale to: 0.25\n",
         "wrong-configuration", "fallen below 1"),
        ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 3.0e-05\n", "wrong-configuration",
         "fallen below 1"),
        ("FloatingPointError: Minimum loss scale reached (0.0001).\n", "wrong-configuration", "reached its floor"),
        ("[ 9.1] NVRM: GPU 0000:07:00.0: RmInitAdapter failed! (0x1:0x2:3)\n"
         "[ 9.2] NVRM: GPU 0000:07:00.0: rm_init_adapter failed, device minor number 0\n", "gpu-error", "could not be started"),
        ("amdgpu 0000:09:00.0: amdgpu: ring comp_1.0.0 timeout, signaled seq=5, emitted seq=6\n", "gpu-error",
         "(09:00.0) did not end"),
        ("amdgpu 0000:09:00.0: ring sdma0 timeout, signaled seq=5, emitted seq=6\namdgpu 0000:09:00.0: device lost from bus!\n",
         "gpu-error", "fallen off the bus"),
        ("[rank2]: AssertionError: num_layers should be divisible by pipeline_model_parallel_size\n", "wrong-configuration",
         "divi"),
        ("ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
         "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 64 : CUDA error 401 'not in the present state'.\n",
         "wrong-configuration", "NVSwitch fabric"),
        ("[rank1]: ncclInternalError: Internal check failed.\n[rank1]: Last error:\n[rank1]: Could not find NET with id 3\n",
         "wrong-configuration", "does not find again"),
        ("ValueError: No dot product attention backend is available for the provided inputs.\n", "wrong-configuration",
         "no attention kernel"),
    ],
)  # fmt: skip
def test_a_wording_that_is_known_names_its_cause(tmp_path, text, kind, says):
    found = _diagnose(tmp_path, text)
    assert found.causes[0].kind == kind
    assert says in found.verdict
    assert len(found.causes) == 1  # what follows from it is no cause of its own


def test_an_error_after_which_the_run_steps_on_did_not_stop_it(tmp_path):
    error = "requests.exceptions.ConnectionError: Couldn't reach 'a/b' on the Hub (OSError)\n"
    steps = "".join(f"step: {n}  loss: {3 - n / 50}  step_time_s: 0.5\n" for n in range(1, 9))
    assert _diagnose(tmp_path, error + steps).healthy
    assert _diagnose(tmp_path, steps + error).causes[0].kind == "wrong-configuration"


@pytest.mark.parametrize(
    ("number", "own_fault"), [(31, False), (13, False), (79, True), (94, True), (74, True)]
)
def test_the_driver_s_number_tells_a_kernel_s_fault_from_the_device_s(tmp_path, number, own_fault):
    cause = _diagnose(
        tmp_path, f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=9, name=python\n"
    ).causes[0]
    assert cause.kind == "gpu-error"
    assert (cause.where == "GPU") is own_fault


_STORE = (
    "Timed out initializing process group in store based barrier on rank: {rank}, for key: store_based_barrier_key:{key} "
    "(world_size={world}, worker_count={joined}, timeout=0:30:00)\n"
)


@pytest.mark.parametrize(
    ("fields", "kind", "says"),
    [
        (dict(rank=1, key=1, world=4, joined=6), "wrong-configuration", "6 processes came to a group of 4"),
        (dict(rank=1, key=1, world=4, joined=3), "wrong-configuration", "Only 3 of 4 processes"),
        (dict(rank=1, key=7, world=4, joined=3), "missing-collective", "process group number 7"),
    ],
)  # fmt: skip
def test_a_store_barrier_counts_too_few_or_too_many(tmp_path, fields, kind, says):
    found = _diagnose(tmp_path, "RuntimeError: " + _STORE.format(**fields))
    assert found.causes[0].kind == kind
    assert says in found.verdict


def test_a_wrapper_that_got_no_shape_still_names_both_operations(tmp_path):
    text = (
        "[rank4]: RuntimeError: Detected mismatch between collectives on ranks. Rank 4 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=9, OpType=ALLREDUCE, TensorShape=[], TensorDtypes=Float), but Rank 6 is "
        "running collective: CollectiveFingerPrint(SequenceNumber=0OpType=BROADCAST).\n"
    )
    found = _diagnose(tmp_path, text)
    assert found.causes[0].ranks == (4, 6)
    assert "rank 4 allreduce, rank 6 broadcast" in found.verdict


@pytest.mark.parametrize(
    ("op", "shapes", "says"),
    [
        ("ALLREDUCE", ("700000", "900000"), "flat buckets of gradients"),
        ("_ALLGATHER_BASE", ("8, 512", "7, 512"), "the batches are uneven"),
    ],
)
def test_shapes_that_differ_tell_what_differs(tmp_path, op, shapes, says):
    one, two = (
        f"CollectiveFingerPrint(SequenceNumber=3, OpType={op}, TensorShape=[{s}], TensorDtypes=Float)"
        for s in shapes
    )
    text = f"RuntimeError: Detected mismatch. Rank 0 is running collective: {one}, but Rank 1 is running collective: {two}.\n"
    assert says in _diagnose(tmp_path, text).verdict


def _trainer(*norms):
    return "".join(
        f"{{'loss': 2.{at}, 'grad_norm': {norm}, 'learning_rate': 1e-05, 'epoch': 0.{at}}}\n"
        for at, norm in enumerate(norms)
    )


def test_a_gradient_that_stays_no_number_is_a_fault_and_one_that_recovers_is_not(tmp_path):
    assert "gradient's norm is not a number" in _diagnose(tmp_path, _trainer(1, 2, "nan", "nan")).verdict  # fmt: skip
    assert _diagnose(tmp_path, _trainer(1, "nan", 2, 1)).healthy


def test_a_loss_of_zero_behind_a_gradient_of_nan_is_its_shadow(tmp_path):
    text = _trainer(1, "nan", "nan").replace("'loss': 2.2", "'loss': 0.0")
    found = _diagnose(tmp_path, text)
    assert "such losses filtered" in found.verdict
    assert all("labels" not in cause.remedy for cause in found.causes)


def test_waits_for_data_that_come_in_bursts_count_by_their_sum(tmp_path):
    waits = [9.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 3.0]
    text = "".join(
        f"step:{n} loss:{3 - n / 90:.3f} updt_s:0.250 data_s:{w}\n" for n, w in enumerate(waits)
    )
    cause = _diagnose(tmp_path, text).causes[0]
    assert cause.kind == "input-bound"
    assert cause.share_of_step == pytest.approx(9 / (9 + 12 * 0.25), rel=0.01)


def test_an_allocator_that_starts_over_again_and_again_is_a_fault(tmp_path):
    line = "INFO - step: {n}  loss: 3.{n}  memory: 70.00GiB(98.00%)  tps: 4,000\nWARNING - {k} CUDA memory allocation retries.\n"
    growing = "".join(line.format(n=n, k=n) for n in range(1, 6))
    assert _diagnose(tmp_path, growing).causes[0].kind == "fragmentation"
    assert not _diagnose(tmp_path, growing).healthy
    assert _diagnose(tmp_path, "".join(line.format(n=n, k=1) for n in range(1, 6))).healthy


def test_a_loss_that_leaves_for_good_is_a_fault(tmp_path):
    losses = [4.0, 3.5, 3.4, 3.3, 9.0, 9.5, 9.1, 9.3]
    text = "".join(f"step: {n} loss: {value} step_time_s: 0.5\n" for n, value in enumerate(losses))
    found = _diagnose(tmp_path, text)
    assert not found.healthy
    assert "diverges" in found.verdict


def test_times_of_an_interval_are_divided_by_its_steps(tmp_path):
    pace = [300, 301, 299, 300, 302, 360, 361, 359, 362, 360, 361]
    text = "".join(
        f"iter: {100 * n} train_loss: 2.{n} time(s): {t}.0 s\n" for n, t in enumerate(pace, 1)
    )
    found = _diagnose(tmp_path, text)
    assert found.figures["step_time_before_s"] == pytest.approx(3.0, rel=0.02)
    assert found.figures["slowdown"] == pytest.approx(1.2, rel=0.02)


def test_steps_without_a_pace_are_not_called_steady(tmp_path):
    took = [3.1, 90.0, 3.2, 40.0, 6.2, 95.0, 3.3, 35.0, 7.0, 80.0, 3.0, 34.0]
    text = "".join(f"Training iter {n}, loss=0.4 ({t}s)\n" for n, t in enumerate(took, 7))
    found = _diagnose(tmp_path, text)
    assert not found.healthy
    assert "no steady pace" in found.verdict


def test_a_loss_that_never_moves_is_a_fault(tmp_path):
    line = "iter {n} step {n}: loss {v}, iter time: 198.{n}ms\n"
    flat = "".join(line.format(n=n, v=10.8259) for n in range(10, 40))
    assert "no update reaches" in _diagnose(tmp_path, flat).verdict
    assert _diagnose(
        tmp_path, "".join(line.format(n=n, v=10.8259 - n / 1000) for n in range(10, 40))
    ).healthy
    assert _diagnose(
        tmp_path, "".join(line.format(n=n, v=1.3) for n in range(10, 40))
    ).healthy  # coarse


def test_a_loss_that_is_no_number_comes_before_one_long_step(tmp_path):
    took = [1000] * 9 + [30_000] + [1000] * 6
    text = "".join(
        f"iter {n}: loss {'nan' if n > 9 else 4 - n / 50}, time {t}.0ms\n"
        for n, t in enumerate(took)
    )
    assert _diagnose(tmp_path, text).verdict.startswith("The loss is not a number")


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("n3:1:2 [0] misc/ibvwrap.cc:9 NCCL WARN Call to ibv_open_device failed with error Operation not permitted\n",
         "wrong-configuration", "(open_device: Operation not permitted)"),
        ("ValueError: Size mismatch between saved torch.Size([8, 4]) and current: torch.Size([32]) for model.a.weight\n",
         "wrong-configuration", "another model, layout or form"),
        ("RuntimeError: cuda runtime error (6) : the launch timed out and was terminated at a.cu:1\n", "gpu-error", "display"),
        ("(Worker pid=3) WARN: grad_norm is not finite: inf\n", "unknown", "not finite"),
        ("    zip_file.write_record(name, ptr, n)\nMemoryError\nRuntimeError: [enforce fail] . unexpected pos 64 vs 60\n",
         "out-of-memory", "host's memory"),
        ("OSError: [Errno 122] Disk quota exceeded\n", "wrong-configuration", "quota"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory\n", "wrong-configuration",
         "shared library"),
        ("torch.utils.checkpoint.CheckpointError: Recomputed values for the following tensors have different metadata\n",
         "wrong-configuration", "Recomputation"),
        ("ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32\n",
         "wrong-configuration", "(dtype)"),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution\n", "gpu-error", "NVLink"),
        ("Unable to determine the device handle for GPU 0000:5E:00.0: Unknown Error\n", "gpu-error", "off the bus"),
        ("kernel: NVRM: Xid (PCI:0000:3b:00): 45, pid=1, name=python, Ch 1 caused by previous Xid 74\n", "gpu-error",
         "(3b:00) reports a fault of its NVLink (Xid 74)"),
        ("[ 1.0] pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0\n", "unknown", "does not tell"),
        # Ray
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n", "out-of-memory",
         "node's memory ran short"),
        ("Memory on the node (IP: 10.0.0.2, ID: ab) where the task (name=f, pid=3) was running was 70.1GB / 72.0GB (0.97), "
         "which exceeds the memory usage threshold of 0.95.\n", "out-of-memory", "(70.1GB / 72.0GB)"),
        ("(raylet) Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. "
         "(1) The process is killed by SIGKILL by OOM killer\n", "unknown", "ended without a word"),
        ("Worker exit detail: Worker exits unexpectedly by a signal. The process receives a SIGTERM.\n", "unknown", "SIGTERM"),
        ("ray.exceptions.OwnerDiedError: Failed to retrieve object 00ff. The object's owner has exited.\n", "unknown",
         "ended before its task did"),
        ("(raylet) file_system_monitor.cc:9: /tmp/ray/session_1 is over 95% full, available space: 2 GB\n", "wrong-configuration",
         "session folder is nearly full"),
        ("ValueError: Total available GPUs 0 is less than total desired GPUs 8\n", "wrong-configuration", "no node with the GPUs"),
        ("(autoscaler) Warning: The following resource request cannot be scheduled right now: {'GPU': 1.0}.\n",
         "wrong-configuration", "no node with the GPUs"),
    ],
)  # fmt: skip
def test_devices_builds_files_and_ray(tmp_path, text, kind, says):
    found = _diagnose(tmp_path, text)
    assert found.causes[0].kind == kind
    assert says in found.verdict


def test_a_lost_device_comes_before_the_kernels_that_it_lets_fail(tmp_path):
    found = _diagnose(
        tmp_path,
        "[rank2]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
        "kernel: NVRM: Xid (PCI:0000:86:00): 79, GPU has fallen off the bus.\n",
    )
    assert "fallen off the bus (Xid 79)" in found.verdict
    assert found.causes[0].ranks == (2,)


_SUMMARY = (
    "Failures:\n[1]:\n  rank      : {other} (local_rank: 1)\n  exitcode  : {told} (pid: 8)\n"
    "Root Cause (first observed failure):\n[0]:\n  host      : h2\n  rank      : {first} (local_rank: 3)\n"
    "  exitcode  : {code} (pid: 9)\n"
)


@pytest.mark.parametrize(
    ("text", "kind", "ranks", "says"),
    [
        (_SUMMARY.format(other=9, told=-15, first=11, code=-9), "out-of-memory", (11,), "rank 11 was killed"),
        (_SUMMARY.format(other=9, told=1, first=11, code=1), "unknown", (11,), "rank 11 ended with exit code 1"),
        (_SUMMARY.format(other=9, told=-15, first=2, code=-6), "unknown", (2,), "SIGABRT"),
        ("Root Cause (first observed failure) :\nrank2 (local rank: 2)exitcode: -9 (pid: 7)error file: <N/A>\n", "out-of-memory", (2,),
         "rank 2"),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:5] Connection closed by peer [10.0.0.1]:27\n" + _SUMMARY.format(other=9, told=1, first=2, code=-9),
         "out-of-memory", (2,), "rank 2 was killed"),
        ("srun: error: gn07: task 5: Killed\n", "out-of-memory", (5,), "rank 5"),
        ("mpirun noticed that process rank 6 with PID 0 on node b exited on signal 9 (Killed).\n", "out-of-memory", (6,), "rank 6"),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL\n", "out-of-memory", (1,),
         "rank 1"),
        ("[INFO] [launch.py:9:sigkill] Killing subprocess 1\n[ERROR] [launch.py:8] ['python'] exits with return code = -9\n",
         "out-of-memory", (), "killed from outside"),
        ("subprocess.CalledProcessError: Command '['python']' returned non-zero exit status 1.\n", "unknown", (), "exit code 1"),
        ("./run.sh: line 12: 4242 Killed                  python train.py\n", "out-of-memory", (), "killed from outside"),
    ],
)  # fmt: skip
def test_the_first_process_that_ended_is_named_by_any_launcher(tmp_path, text, kind, ranks, says):
    found = _diagnose(tmp_path, text)
    assert (found.causes[0].kind, found.causes[0].ranks) == (kind, ranks)
    assert says in found.verdict


def test_a_traceback_without_its_end_is_said_to_be_cut(tmp_path):
    text = (
        'Traceback (most recent call last):\n  File "t.py", line 7, in train\n    engine.step()\n'
    )
    assert "cut off, in train, t.py:7" in _diagnose(tmp_path, text).verdict
    assert "cut off" not in _diagnose(tmp_path, text + "KeyError: 'x'\n").verdict


@pytest.mark.parametrize(
    ("text", "kind", "ranks", "says"),
    [
        ("n1:1:2 [0] include/shm.h:9 NCCL WARN Call to shm_open failed : Permission denied\n"
         "n1:1:2 [0] include/shm.h:8 NCCL WARN Error while creating shared memory segment nccl-shm-1 (size 9)\n",
         "wrong-configuration", (), "not writable"),
        ("RuntimeError: NCCL error in: a.cpp:8, unhandled system error, NCCL version 2.8.3\nncclSystemError: System call failed.\n"
         "subprocess.CalledProcessError: Command '['python']' returned non-zero exit status 1.\n", "unknown", (), "system call inside"),
        ("RuntimeError: NCCL error in: a.hpp:8, invalid argument, NCCL version 2.4.8\n"
         "srun: error: h0: tasks 2-7: Exited with exit code 1\n", "unknown", (), "(invalid argument)"),
        ("what():  Error while calling cudaMalloc(&data, n) in file a.cpp:1. code: 2, reason: out of memory\n", "out-of-memory", (),
         "out of memory"),
        ("[9.1] amdgpu 0000:1c:00.0: {1}uncorrectable hardware error(X) detected!\n", "gpu-error", (), "(1c:00.0)"),
        ("Memory access fault by GPU node-2 (Agent handle: 0x5) on address 0x7f. Reason: Page not present.\n", "gpu-error", (),
         "a kernel was not allowed"),
        ('[rank3]: Traceback (most recent call last):\n[rank3]:   File "t.py", line 7, in train\n', "unknown", (3,), "cut off"),
        ('[rank3]: Traceback (most recent call last):\n[rank3]:   File "t.py", line 7, in free\n[rank3]:     assert ok\n'
         "[rank3]: AssertionError\n", "unknown", (3,), "AssertionError in free, t.py:7"),
    ],
)  # fmt: skip
def test_what_libraries_say_in_their_own_words(tmp_path, text, kind, ranks, says):
    found = _diagnose(tmp_path, text)
    assert (found.causes[0].kind, found.causes[0].ranks) == (kind, ranks)
    assert says in found.verdict


def test_what_nccl_tells_for_information_is_no_error(tmp_path):
    text = (
        "h:1:2 [3] NCCL INFO NET/Plugin: libnccl-net.so: cannot open shared object file: No such file\n"
        "h:1:2 [3] NCCL INFO Call to ibv_open_device failed with error No such device\n"
    )
    assert _diagnose(tmp_path, text).causes[0].kind == "unknown"
    assert "does not tell" in _diagnose(tmp_path, text).verdict


@pytest.mark.parametrize(
    ("line", "scale"),
    [
        ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 4096.0\n", "4,096"),
        ("| WARNING: overflow detected, setting loss scale to: 64.0\n", "64"),
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 512, reducing to 256\n", "256"),
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 512, but hysteresis is 2. Reducing hysteresis to 1\n",
         "512"),
    ],
)  # fmt: skip
def test_a_skipped_step_says_which_scale_it_leaves(tmp_path, line, scale):
    found = _diagnose(tmp_path, line)
    assert found.healthy
    assert f"came down to {scale}, which is usual" in found.verdict


def test_modules_in_another_order_under_zero3_are_told_and_no_fault(tmp_path):
    changed = "Invalidate trace cache @ step 7: expected module 3, but got module 5\n"
    steps = "".join(
        f"step: {n}  loss: {3 - n / 50}  step_time_s: 0.5\n{changed}" for n in range(1, 9)
    )
    found = _diagnose(tmp_path, steps)
    assert found.healthy
    assert "recorded (8 times" in found.verdict


@pytest.mark.parametrize("first", [0, 2])
def test_an_error_without_words_belongs_to_the_rank_that_raises_it(tmp_path, first):
    """Rank 0 is a rank; a line of its own goes before the traceback's rank."""
    text = (
        "[rank5]: Traceback (most recent call last):\n"
        f'[rank{first}]:   File "train.py", line 3, in step\n'
        f"[rank{first}]: AssertionError\n"
    )
    assert _diagnose(tmp_path, text).causes[0].ranks == (first,)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("AssertionError: 50257 is not divisible by 8", True),
        ("ValueError: num_query_groups (4) must be a multiple of tensor_model_parallel_size (8).", True),
        ("AssertionError: sequence length 1001 is not divisible by 2 * context_parallel_size", True),
        ("ValueError: layers of a stage should be divisible by virtual pipeline size", True),
        ("ValueError: tokens must be evenly divisible by the number of experts", True),
        ("ValueError: hidden size must be divisible by tp_size", True),
        ("ValueError: the image's height must be a multiple of 14", False),
    ],
)  # fmt: skip
def test_sizes_of_a_layout_that_do_not_divide(tmp_path, text, known):
    found = _diagnose(tmp_path, text + "\n")
    assert ("no multiple of what it is divided by" in found.verdict) is known


def test_a_workers_end_is_the_shadow_of_what_ended_it(tmp_path):
    ends = (
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    )
    found = _diagnose(tmp_path, ends + "RuntimeError: CUDA error: invalid device ordinal\n")
    assert "does not show it" in found.verdict
    assert len(found.causes) == 1


def test_the_loss_of_a_rank_without_the_last_stage_is_no_loss(tmp_path):
    line = "step:  {0}  loss: -1.0000  memory: 36.90GiB(46.63%)  tps: 4,000  tflops: 190.81  mfu: 40.29%\n"
    found = _diagnose(tmp_path, "".join(line.format(n) for n in range(1, 20)))
    assert "loss_first" not in found.figures
    assert "torchtitan prints it on ranks" in found.verdict


def test_a_task_that_stopped_its_heartbeats_is_no_late_one(tmp_path):
    text = (
        "E9 coordination_service_agent.cc:1] Polled an error from coordination service. ErrorCode UNAVAILABLE: "
        "The following tasks are unhealthy (stopped sending heartbeats):\n/job:jax_worker/replica:0/task:17\n"
    )
    assert "stopped answering" in _diagnose(tmp_path, text).verdict


def test_milliseconds_of_an_iteration_that_are_called_elapsed(tmp_path):
    line = " [2026-07-27 19:08:05] iteration {0}/9 | elapsed (ms): 35.0 | lm loss: 5.4\n"
    found = _diagnose(tmp_path, "".join(line.format(n) for n in range(1, 10)))
    assert found.figures["step_time_s"] == pytest.approx(0.035)


def test_a_rate_of_iterations_is_a_step_time(tmp_path):
    line = "Iter {0}: Train loss 3.6, It/sec 0.5, Tokens/sec 900.0\n"
    found = _diagnose(tmp_path, "".join(line.format(10 * n) for n in range(1, 6)))
    assert found.figures["step_time_s"] == pytest.approx(2.0)
