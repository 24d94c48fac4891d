"""Wordings by enumeration: what frameworks, libraries, schedulers, containers and kernels can print, each by what it means.

The rows hold only what a reader has to match: formats are facts of the programs that print them.
"""

from __future__ import annotations

import re

import pytest

from meshwright.diagnose import error_kinds, known_errors, known_words
from meshwright.diagnose.log_judge import judge_log, unknown_if_silent
from meshwright.diagnose.log_reading import read_log
from meshwright.diagnose.records import Part

# fmt: off
ROWS: tuple[tuple[str, str, str], ...] = (
    ('NCCL WARN Multiple Ranks are using the same GPU', 'wrong-configuration', 'Several ranks use the same GPU'),
    ('NCCL WARN Invalid NCCL_COMM_ID', 'wrong-configuration', 'NCCL finds no network interface to'),
    ('NCCL WARN NET/Socket : No usable listening interface found', 'wrong-configuration', 'NCCL finds no network interface to'),
    ('NCCL WARN Bootstrap : no socket interface found', 'wrong-configuration', 'NCCL finds no network interface to'),
    ('NCCL WARN Bootstrap Root : mismatch in info from procs', 'wrong-configuration', 'Processes that do not belong toget'),
    ('NCCL WARN socketFinalizeAccept: wrong magic 7 != ', 'wrong-configuration', 'Processes that do not belong toget'),
    ('NCCL WARN Message truncated', 'mismatched-collective', 'A rank received another size than '),
    ('NCCL WARN NET/Socket : peer tool message truncated', 'mismatched-collective', 'A rank received another size than '),
    ('NCCL WARN tool : tool allocated on device 7 mismatchs with NCCL device 7', 'wrong-configuration', 'A tensor lies on device'),
    ('NCCL WARN Blocking and nonblocking', 'wrong-configuration', 'The program calls NCCL in a way th'),
    ('NCCL WARN Either none or all communicators', 'wrong-configuration', 'The program calls NCCL in a way th'),
    ('NCCL WARN ncclGroupEnd: not in a group call', 'wrong-configuration', 'The program calls NCCL in a way th'),
    ('NCCL WARN One-sided RMA requires CUDA driver', 'wrong-configuration', 'NCCL, the driver and what the prog'),
    ('NCCL WARN NCCL library is too old', 'wrong-configuration', 'NCCL, the driver and what the prog'),
    ('NCCL WARN Mismatched NCCL version', 'wrong-configuration', "Ranks run different versions"),
    ('NCCL WARN MNNVL (cliqueSize 7) is available but not working', 'wrong-configuration', 'NVLink between hosts is there and '),
    ('NCCL WARN Detected mixed local Net device counts', 'wrong-configuration', "The hosts' network adapters do not"),
    ('NCCL WARN TOPO/NET', 'wrong-configuration', "The hosts' network adapters do not"),
    ('NCCL WARN Specified fused NIC', 'wrong-configuration', "The hosts' network adapters do not"),
    ('NCCL WARN Error : too many XML', 'wrong-configuration', 'NCCL cannot read how this host is '),
    ('NCCL WARN ncclTopoGetDevNodes : too many DEV nodes for busId', 'wrong-configuration', 'NCCL cannot read how this host is '),
    ('NCCL WARN BusId', 'wrong-configuration', 'NCCL cannot read how this host is '),
    ('NCCL WARN Error: failed to create shared memory', 'wrong-configuration', '/dev/shm is too small or not usabl'),
    ('NCCL WARN Could not map tool size', 'wrong-configuration', '/dev/shm is too small or not usabl'),
    ('NCCL WARN Call to ShmObject', 'wrong-configuration', '/dev/shm is too small or not usabl'),
    ('NCCL WARN Unrecoverable error detected: malloc(size=7) returned null', 'out-of-memory', 'The host had no memory'),
    ('NCCL WARN Intrusive address map initialization failed: calloc(7 entries)', 'out-of-memory', 'The host had no memory'),
    ('NCCL WARN Failed to CUDA host alloc', 'out-of-memory', 'The host had no memory'),
    ('NCCL WARN MemManager: cuMemExportToShareableHandle', 'wrong-configuration', 'Processes of one host cannot hand '),
    ('NCCL WARN Legacy IPC', 'wrong-configuration', 'Processes of one host cannot hand '),
    ('NCCL WARN UDS: ', 'wrong-configuration', 'Processes of one host cannot hand '),
    ('NCCL WARN GDRCOPY', 'wrong-configuration', 'GDRCopy is switched on and does no'),
    ('NCCL WARN gdr_close', 'wrong-configuration', 'GDRCopy is switched on and does no'),
    ('NCCL WARN GIN Error', 'slow-link', 'A network adapter reports a fault '),
    ('NCCL WARN NET/IB: Fatal error. Detected 7 failed devices', 'slow-link', 'A network adapter reports a fault '),
    ('NCCL WARN communicator encountered a fatal error', 'slow-link', 'A network adapter reports a fault '),
    ('NCCL WARN NUMA auto balancing enabled', 'host-bound', 'RCCL warns of a setting of the hos'),
    ('NCCL WARN Missing "iommu=pt"', 'host-bound', 'RCCL warns of a setting of the hos'),
    ('CUDA error: the provided PTX', 'wrong-configuration', 'The installed build does not fit t'),
    ('CUDA error: device kernel image is invalid', 'wrong-configuration', 'The installed build does not fit t'),
    ('CUDA error: invalid device function', 'wrong-configuration', 'The installed build does not fit t'),
    ('Cannot re-initialize CUDA in forked subprocess', 'wrong-configuration', 'CUDA is used in a process that was'),
    ('CUDA error: initialization error', 'wrong-configuration', 'CUDA is used in a process that was'),
    ('CUDA error: driver shutting down', 'wrong-configuration', 'CUDA is used in a process that was'),
    ('CUDA error: operation not permitted when stream is capturing', 'wrong-configuration', 'Something in a captured step may n'),
    ('CUDA error: too many resources requested for launch', 'wrong-configuration', 'A kernel asks for more threads, re'),
    ('CUDA error: invalid configuration argument', 'wrong-configuration', 'A kernel asks for more threads, re'),
    ('CUDA error: peer mapping resources exhausted', 'wrong-configuration', 'More GPUs of one host map each oth'),
    ('MPS client', 'wrong-configuration', 'The multi-process service'),
    ('exclusive-thread device already in use', 'wrong-configuration', 'The multi-process service'),
    ('CUDA error: operation not permitted', 'wrong-configuration', 'The driver refuses an operation on'),
    ('CUDA error: invalid resource handle', 'wrong-configuration', 'A library gave CUDA an argument th'),
    ('CUDA error: unknown error', 'unknown', 'CUDA failed without a reason'),
    ('CUBLAS_STATUS_NOT_SUPPORTED', 'wrong-configuration', 'A product or convolution of a type'),
    ('CUDNN_STATUS_NOT_SUPPORTED', 'wrong-configuration', 'A product or convolution of a type'),
    ('CUBLAS_STATUS_EXECUTION_FAILED', 'unknown', 'A product or convolution failed on'),
    ('CUDNN_STATUS_EXECUTION_FAILED', 'unknown', 'A product or convolution failed on'),
    ('srun: error: Unable to create step for job 4242: More processors requested than permitted', 'wrong-configuration', 'The scheduler did not give what wa'),
    ('sbatch: error: Batch job submission failed: Requested node configuration is not available', 'wrong-configuration', 'The scheduler did not give what wa'),
    ('slurmstepd: error: execve()', 'wrong-configuration', 'A task could not be started on its'),
    ('srun: error: Task launch for StepId=4242.0 failed', 'unknown', "srun lost or did not reach a node'"),
    ('srun: error: eio_message_socket_accept', 'unknown', "srun lost or did not reach a node'"),
    ('DUE TO NODE FAILURE', 'gpu-error', 'A node failed while the job ran'),
    ('srun: error: Node failure on gpu017', 'gpu-error', 'A node failed while the job ran'),
    ('Memory cgroup out of memory', 'out-of-memory', "The job's memory limit"),
    ('Exceeded job memory limit', 'out-of-memory', "The job's memory limit"),
    ('exceeded memory limit', 'out-of-memory', "The job's memory limit"),
    ('low on resource: ephemeral-storage', 'wrong-configuration', 'A pod was evicted: its local disk'),
    ('exceeds the limit "1Gi"', 'wrong-configuration', 'A pod was evicted: its local disk'),
    ('FailedScheduling', 'wrong-configuration', 'The cluster has no node that fits '),
    ('UnexpectedAdmissionError', 'wrong-configuration', 'The cluster has no node that fits '),
    ('Failed to pull image', 'wrong-configuration', 'The container did not start: its i'),
    ('ImagePullBackOff', 'wrong-configuration', 'The container did not start: its i'),
    ('Back-off restarting failed container', 'unknown', 'A container ends again and again; '),
    ('CrashLoopBackOff', 'unknown', 'A container ends again and again; '),
    ('NodeNotReady', 'gpu-error', 'A node of the cluster stopped answ'),
    ('could not select device driver', 'wrong-configuration', 'The container gets no GPU: driver,'),
    ('nvidia-container-cli: ', 'wrong-configuration', 'The container gets no GPU: driver,'),
    ('Driver/library version mismatch', 'wrong-configuration', 'The container gets no GPU: driver,'),
    ('INFO: task python3:31337 blocked for more than 120 seconds', 'wrong-configuration', 'A file system does not answer: pro'),
    ('nfs: server storage01 not responding', 'wrong-configuration', 'A file system does not answer: pro'),
    ('Lustre: scratch-OST0004-osc-ffff: Connection to scratch-OST0004 (at 10.0.0.4@o2ib) was lost', 'wrong-configuration', 'A file system does not answer: pro'),
    ('EXT4-fs error', 'wrong-configuration', 'A disk or its file system failed u'),
    ('Remounting filesystem read-only', 'wrong-configuration', 'A disk or its file system failed u'),
    ('[Errno 5] Input/output error', 'wrong-configuration', 'A disk or its file system failed u'),
    ('mlx5_core 0000:5d:00.0 ib0: Link down', 'slow-link', "A network adapter's link went down"),
    ('soft lockup - CPU#12 stuck', 'gpu-error', "A host's kernel hung or stopped"),
    ('python3[31337]: segfault at 0 ip 00007f12 sp 00007ffd error 4 in libnccl.so.2', 'unknown', 'A process died of a segmentation f'),
    ('command not found', 'wrong-configuration', 'The command line is refused: a pro'),
    ('error: unrecognized arguments', 'wrong-configuration', 'The command line is refused: a pro'),
    ('arguments are not used by the HfArgumentParser', 'wrong-configuration', 'The command line is refused: a pro'),
    ("Unable to initialize backend 'tpu': ABORTED: The TPU is already in use", 'wrong-configuration', 'The accelerator is held by another'),
    ("Unable to initialize backend 'tpu'", 'wrong-configuration', 'The process gets no accelerator'),
    ('Device acquire failed', 'wrong-configuration', 'The process gets no accelerator'),
    ('DEADLINE_EXCEEDED: Barrier timed out. Id: PjRT_Client_Connect', 'unknown', 'A task did not come to the coordin'),
    ('RESOURCE EXHAUSTED', 'out-of-memory', "The accelerator's memory is full"),
    ('NEFF memory allocation: Could not allocate', 'out-of-memory', "The accelerator's memory is full"),
    ('PT_DEVMEM', 'out-of-memory', "The accelerator's memory is full"),
    ('synStatus=8', 'unknown', "The accelerator's compiler or runt"),
    ('synStatus=26', 'unknown', "The accelerator's compiler or runt"),
    ('expects same model across all ranks', 'wrong-configuration', 'Ranks build different models'),
    ('sizes [10, 4] appears not to match', 'wrong-configuration', 'Ranks build different models'),
    ("is not needed when a module doesn't have any parameters that require", 'wrong-configuration', 'The wrapped model has no parameter'),
    ("uninitialized parameters can't be used", 'wrong-configuration', 'The wrapped model has no parameter'),
    ('data is not allocated yet', 'wrong-configuration', 'A sharded parameter is used outsid'),
    ('out of bounds for storage of size 0', 'wrong-configuration', 'A sharded parameter is used outsid'),
    ("'weight' must be 2-D", 'wrong-configuration', 'A sharded parameter is used outsid'),
    ('has already been reduced', 'wrong-configuration', 'A sharded parameter gets its gradi'),
    ('Cannot copy out of meta tensor', 'wrong-configuration', 'Parameters were made without memor'),
    ('before the current process has finished its bootstrapping', 'wrong-configuration', 'The script starts processes while '),
    ('DataLoader timed out after', 'input-bound', 'A loader worker did not deliver a '),
    ('stack expects each tensor to be equal size', 'wrong-configuration', 'Samples of different lengths are p'),
    ('activate truncation and/or padding', 'wrong-configuration', 'Samples of different lengths are p'),
    ('received 0 items of ancdata', 'wrong-configuration', 'The process may not open more file'),
    ('Unable to JIT load the', 'wrong-configuration', 'A kernel could not be compiled on '),
    ('DeepSpeedConfigError', 'wrong-configuration', "DeepSpeed's configuration is not f"),
    ('only supported with GPUs, no GPUs found', 'wrong-configuration', 'A collective is called with what i'),
    ('Cannot use ReduceOp.', 'wrong-configuration', 'A collective is called with what i'),
    ('data type is not supported for NCCL', 'wrong-configuration', 'A collective is called with what i'),
    ('failed to listen', 'wrong-configuration', 'The rendezvous failed: its address'),
    ('failed to bind to', 'wrong-configuration', 'The rendezvous failed: its address'),
    ('network addresses of (node01, 29500) cannot be retrieved', 'wrong-configuration', 'The rendezvous failed: its address'),
    ("NCCL WARN NET/IB: Got completion from peer 10.0.0.1<5> with status=IBV_WC_WR_FLUSH_ERR(5) opcode=a(1)", "unknown", "A connection was torn down"),
    ("NCCL WARN NET/IB : Got completion from peer 10.0.0.1<5> with status=9 opcode=32", "mismatched-collective", "An adapter was sent more than"),
    ("NCCL WARN NET/IB: Got completion from peer 10.0.0.1<5> with status=IBV_WC_REM_ACCESS_ERR(10)", "unknown", "The other side's adapter refused"),
    ("NCCL WARN NET/IB: Got completion from peer 10.0.0.1<5> with status=IBV_WC_RETRY_EXC_ERR(12)", "slow-link", "The link to 10.0.0.1<5>"),
    ("NCCL WARN Internal check of a kind that nobody listed", "unknown", "NCCL reports: Internal check"),
    ("[rank2]: ProcessGroupNCCL's watchdog got stuck for 480 seconds", "unknown", "A CUDA or NCCL call did not return"),
    ("HIP error: out of memory", "out-of-memory", ""),
    ("Allocation on device 0 would exceed allowed memory", "out-of-memory", ""),
    ("CUDA error: hardware stack error", "gpu-error", ""),
    ("CUDA error: invalid program counter", "gpu-error", ""),
    ("CUDA error: Invalid access of peer GPU memory over nvlink", "gpu-error", ""),
    ("amdgpu 0000:c6:00.0: amdgpu: GPU reset begin", "gpu-error", ""),
    ("amdgpu 0000:23:00.0: amdgpu: [gfxhub0] no-retry page fault", "gpu-error", ""),
    ("Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION", "gpu-error", ""),
    ("EDAC MC0: 1 UE memory read error", "gpu-error", ""),
    ("STEP 42.0 ON gpu001 CANCELLED AT 2025-01-02 DUE TO TASK FAILURE", "unknown", "The run ended because another task"),
    ("srun: error: Munge encode failed: no socket", "wrong-configuration", "SLURM's daemons do not accept"),
    ("run.sh: 1: srun: not found", "wrong-configuration", "The command line is refused"),
    ("amdgpu: sq_intr: error, se 1", "gpu-error", "A GPU reports an access"),
    ("NVRM: status NV_ERR_RESET_REQUIRED", "gpu-error", "A GPU could not be started"),
    ("RuntimeError: tracing error at step 42:", "wrong-configuration", "ZeRO-3 met its modules"),
    ("trl.extras.vllm_client - Server is not up yet", "wrong-configuration", "The server that generates"),
    ("ActorDiedError: gone (1) SIGKILL by OOM killer due to high memory usage. (2) or else", "unknown", "A worker process of Ray"),
    ("*** An error occurred in MPI_Init_thread", "wrong-configuration", "MPI could not start"),
    ("Error invalid configuration argument at line 1 in file /src/a.cu", "wrong-configuration", "A kernel asks for more"),
    ("CUDA error (/a/b.h:188): no kernel image is available", "wrong-configuration", "The installed build"),
    ("RuntimeError: Expected is_sm80 to be true", "wrong-configuration", "Flash attention does not run"),
    ("terminate called after throwing", "unknown", "The text's first error line"),
)
"""A line, its kind, and how what is said of it begins."""

ENDED = (
    "slurmstepd: error: *** STEP 42.0 ON gpu001 CANCELLED AT 2025-01-02 DUE TO TIME LIMIT ***",
    "slurmstepd: error: *** JOB 42 ON gpu001 CANCELLED AT 2025-01-02 DUE TO PREEMPTION ***",
    "slurmstepd: error: *** JOB 42 ON gpu001 CANCELLED AT 2025-01-02 DUE TO JOB REQUEUE ***",
    "Normal  Preempted  2m  default-scheduler  Preempted by another pod",
)
"""No fault of the run."""

GONE_ON_WITHOUT = (
    "h:1:2 [0] init.cc:1 NCCL WARN NCCL_A_THING=7 is being ignored because it is odd",
    "h:1:2 [0] transport.cc:1 NCCL WARN Cannot initialize CollNet, using point-to-point network instead",
    "h:1:2 [0] net_ib.cc:1 NCCL WARN NET/IB : mlx5_0:1 Got non-fatal async event: port(9)",
)

ERRORS = (
    ("ValueError: --alpha must be at least 1", "", "wrong-configuration", "The framework refuses a value"),
    ("RuntimeError: alpha is not supported with beta", "", "wrong-configuration", "The framework does not have this combination"),
    ("NotImplementedError: alpha", "", "wrong-configuration", "The framework does not have this combination"),
    ("ImportError: install alpha first: pip install alpha", "", "wrong-configuration", "A package is missing"),
    ("TypeError: f() got an unexpected keyword argument 'beta'", "", "wrong-configuration", "Caller and library"),
    ("RuntimeError: shape mismatch: 3 and 4", "", "wrong-configuration", "Sizes that have to agree"),
    ("RuntimeError: no such file: /a/b", "", "wrong-configuration", "A file or folder"),
    ("TimeoutError: waited for alpha", "", "unknown", "Something was waited for"),
    ("ConnectionResetError: gone", "", "unknown", "A process or service"),
    ("AttributeError: 'NoneType' object has no attribute 'beta'", "", "unknown", "The program stopped"),
    ("RuntimeError: alpha beta gamma", "", "unknown", "The program stopped"),
    ("AssertionError", "validate_args, /site-packages/m/arguments.py:7", "wrong-configuration", "A check of the configuration"),
    ("AssertionError", "load_state, /site-packages/m/checkpointing.py:7", "wrong-configuration", "A check while loading"),
    ("AssertionError", "__getitem__, /site-packages/m/dataset.py:7", "wrong-configuration", "A check of the data"),
    ("AssertionError", "reduce, /site-packages/m/zero/stage3.py:7", "wrong-configuration", "A check of sharded"),
    ("AssertionError", "send, /site-packages/m/p2p.py:7", "wrong-configuration", "A check of what ranks send"),
    ("AssertionError", "forward, /site-packages/m/attention.py:7", "wrong-configuration", "A check of a layer"),
    ("AssertionError", "main, run.py:7", "unknown", "The program stopped"),
)
"""Class and message, frame, kind, how what is said begins."""
# fmt: on


def read(*lines: str) -> Part:
    reading = read_log(lines, "x.log")
    part = judge_log(reading)
    silent = unknown_if_silent(part, reading)
    if silent is not None:
        part.findings.append(silent)
    return part


@pytest.mark.parametrize(("line", "kind", "said"), ROWS)
def test_a_line_is_known_by_what_it_means(line: str, kind: str, said: str) -> None:
    first = read(line).findings[0]
    assert first.cause.kind == kind
    assert first.sentence.startswith(said.rstrip(" :"))
    assert first.cause.remedy


@pytest.mark.parametrize("line", ENDED)
def test_the_scheduler_ended_it_and_nothing_is_wrong(line: str) -> None:
    part = read(line)
    assert part.findings == []
    assert "scheduler" in part.ended or "time limit" in part.ended


@pytest.mark.parametrize("line", GONE_ON_WITHOUT)
def test_what_nccl_goes_on_without_is_no_cause(line: str) -> None:
    assert "does not tell" in read(line).findings[0].sentence


@pytest.mark.parametrize(("text", "frame", "kind", "said"), ERRORS)
def test_an_error_nobody_listed_is_judged_by_its_kind(
    text: str, frame: str, kind: str, said: str
) -> None:
    finding = error_kinds.judge(error_kinds.Failure(3, text, 5, frame), "x.log")
    assert finding.cause.kind == kind
    assert finding.sentence.startswith(said)
    assert finding.cause.ranks == (5,)


def test_an_option_is_named_where_the_message_names_it() -> None:
    finding = error_kinds.judge(
        error_kinds.Failure(1, "ValueError: --alpha-beta must be positive"), "x.log"
    )
    assert finding.cause.where == "option --alpha-beta"


@pytest.mark.parametrize(
    ("lines", "ranks"),
    [
        (("[0] Timeout at collective: ALLREDUCE, #12", " - ranks [5, 6] are the lagging ranks that caused this timeout."), (5, 6)),
        (("[3] finished collective #12, but didn't join collective #13 (count from 1)",), (3,)),
    ],
)  # fmt: skip
def test_the_ranks_that_a_desync_report_names(
    lines: tuple[str, ...], ranks: tuple[int, ...]
) -> None:
    first = read(*lines).findings[0]
    assert (first.cause.kind, first.cause.ranks) == ("missing-collective", ranks)


def test_what_nccl_says_behind_pytorchs_words_is_nccls() -> None:
    part = read("Last error:", "Invalid config some attribute value -2147483648")
    assert part.findings[0].sentence.startswith(
        "NCCL, the driver and what the program was built with"
    )


def test_ranks_in_other_operations_a_few_numbers_apart_issue_other_collectives() -> None:
    line = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType={}, Timeout(ms)=10) ran for 11 milliseconds"
    rows = ((2, 532339, "BROADCAST"), (1, 532339, "BROADCAST"), (0, 532341, "_ALLGATHER_BASE"))
    first = read(*(line.format(*row) for row in rows)).findings[0]
    assert (first.cause.kind, first.cause.ranks) == ("mismatched-collective", (0,))
    far = ((2, 39, "BROADCAST"), (1, 39, "BROADCAST"), (0, 532341, "_ALLGATHER_BASE"))
    assert (
        read(*(line.format(*row) for row in far)).findings[0].cause.kind != "mismatched-collective"
    )


def test_the_whole_jobs_group_counts_as_the_job_does() -> None:
    text = "[rank0]: [PG ID 0 PG GUID 0(default_pg) Rank 4] [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=49120, OpType=ALLREDUCE, Timeout(ms)=10) ran for 11 milliseconds"
    assert read(text).findings[0].sentence.startswith("Rank 4 waited")


def test_gradients_of_zero_at_every_step_teach_nothing() -> None:
    rows = [
        f"{{'loss': {loss}, 'grad_norm': 0.0, 'learning_rate': 0.0, 'epoch': 0.0}}"
        for loss in (5.5, 7.3, 1.2, 4.8)
    ]
    assert "norm is exactly 0" in read(*rows).findings[0].sentence
    assert not read(*rows[:3], rows[3].replace("'grad_norm': 0.0", "'grad_norm': 0.1")).findings


def test_a_bars_mean_that_is_no_number_is_not_the_steps_loss() -> None:
    bar = "Epoch 0:   3%|3 | 56{0}/201 [02:12<04:15, 14.05s/it, loss=nan, v_num=, reduced_train_loss=3.91, gradient_norm=1.01, global_step=56{0}.0]"
    assert not read(*(bar.format(step) for step in range(4))).findings


def test_steps_that_are_not_logged_count_where_a_line_times_its_own_step() -> None:
    rows = [
        f"iter {n}: loss 2.5, time {8050 if n % 250 == 0 else 50}.00ms, mfu 6.00%"
        for n in range(0, 1010, 10)
    ]
    rows[50:50] = ["step 500: train loss 2.4000, val loss 2.5000"]
    # 4 evaluations of 8 s beside 1,000 steps of 50 ms (the first line is warm-up).
    share = read(*rows).figures["interruption_share"]
    assert share == pytest.approx(32 / (32 + 50), abs=0.02)


def test_every_entry_is_found_by_its_words() -> None:
    index = known_words.Index(known.pattern for known in known_errors.TABLE)
    for line, _, _ in ROWS:
        tried = index.candidates(line)
        for number, known in enumerate(known_errors.TABLE):
            if known.pattern.search(line):
                assert number in tried


@pytest.mark.parametrize("pattern", [r"ab|longer words", r"\d+ \w+", r"(?:long words)?"])
def test_a_pattern_without_words_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="no word"):
        known_words.needed(re.compile(pattern))
