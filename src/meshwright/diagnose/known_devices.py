"""Errors of TPUs, AWS Neuron and Intel Gaudi, by their wording.

Wordings as they stand in public logs and issue threads; they were not all checked against the sources that print them.
"""

from __future__ import annotations

from meshwright.diagnose.known_entry import known

DEVICES = (
    known(
        r"not available in this library|libtpu.{0,60}(?:too old|incompatible|version mismatch|does not match)|PJRT (?:C )?API version|Unexpected PJRT_\w+ size", "wrong-configuration",
        "The TPU's library (libtpu) and the framework are not of one release",
        "install the libtpu that this jaxlib or torch_xla names (pip install 'jax[tpu]' or 'torch_xla[tpu]' brings it), no older one in the image (TPU_LIBRARY_PATH, /lib/libtpu.so), the VM's "
        "software version for it", "start-up: versions", confidence=0.8, explains=r"aborting itself",
    ),
    known(
        r"does not contain host cores|TPU (?:driver|system|node) .{0,60}(?:not (?:initialized|healthy)|in an? (?:bad|unrecoverable) state)|Slice health check failed", "wrong-configuration",
        "The TPU still holds what an earlier run set up, or a part of its slice is not healthy", "end every process of the earlier run on all hosts (lsof /dev/accel*, /dev/vfio/*), then restart the TPU's "
        "runtime or the slice", "start-up: devices", confidence=0.7,
    ),
    known(
        r"has been waiting for `.{1,200}` for \d+ seconds and may be stuck|not all of them arrived on time|Termination timeout for `.{1,200}` of \d+ seconds exceeded|only \d+ of them arrived on time", "missing-collective",
        "Devices wait in XLA for others that did not come to the same step or collective; the text does not tell which",
        "every process has to run the same program: the same number of jitted calls with collectives, on all processes, over all of their devices (no branch by process_index around one). A process that "
        "failed or still compiles shows the same: read the others' logs; py-spy on each while it waits", "collective", confidence=0.6, shadow=True,
    ),
    known(
        r"Did you run your code on all TPU hosts|TPU backend initialization is taking more than", "wrong-configuration",
        "Not all hosts of the TPU slice run the program: the first waits for the others",
        "start it on every worker at once (gcloud ... ssh --worker=all, or the job's controller), with the same code; a worker that "
        "crashed at its start shows the same", "start-up: hosts", confidence=0.7, shadow=True,
    ),
    known(
        r"Unable to initialize backend '\w+'.{0,60}(?:in use|ABORTED|ALREADY_EXISTS)|TPU is already in use", "wrong-configuration",
        "The accelerator is held by another process", "end it (lsof of libtpu's lock file /tmp/libtpu_lockfile, or /dev/accel*), one process a host unless the "
        "launcher splits the chips", "start-up: devices", confidence=0.85,
    ),
    known(
        r"Unable to initialize backend '\w+'|Could not open the nd\d|Device acquire failed|No (?:neuron|habana|hpu|TPU) devices? (?:found|available)|nrt_init failed|NRT_(?:INVALID|UNINITIALIZED)",
        "wrong-configuration", "The process gets no accelerator",
        "see that the host shows it (hl-smi, neuron-ls, /dev/accel*), that its driver's version goes with the installed build, and that no other process holds it",
        "start-up: devices", confidence=0.8,
    ),
    known(
        r"tasks? (?:are|is) unhealthy|stopped sending heartbeats|Heartbeat timeout from task|The tasks have crashed", "gpu-error",
        "A task of the job stopped answering the coordination service: its process or host died, or its compilation outlasted the heartbeat",
        "read that task's own log and its host's events (preemption, eviction, memory) for an earlier error; where it only compiled long, "
        "lengthen the heartbeat (heartbeat_timeout_seconds of jax.distributed.initialize)", "host of the task", confidence=0.75,
        explains=r"collective failed or timed out|did not come to the coordination",
    ),
    known(
        r"DEADLINE_EXCEEDED: .{0,120}(?:[Bb]arrier|[Cc]oordination|connect)|coordination service.{0,80}(?:timed out|unavailable|error)",
        "unknown", "A task did not come to the coordination service's barrier in time; the ones it names as timed out are the first to look at",
        "read the logs of those tasks: they died, were preempted or still load; the same number of processes on all hosts", "start-up: coordination",
        confidence=0.6, shadow=True,
    ),
    known(
        r"(?:NEFF|HBM|DEVMEM|device) ?(?:memory )?[Aa]llocation(?: failed|.{0,20}Could not allocate)|PT_DEVMEM|RESOURCE EXHAUSTED|NRT_RESOURCE|Could not allocate .{0,40}on (?:device|nec)",
        "out-of-memory", "The accelerator's memory is full",
        "a smaller micro-batch, recomputation, optimizer states sharded further, or tensor parallelism over more devices", "device memory", confidence=0.85,
    ),
    known(
        r"synStatus ?=? ?\d+|FATAL ERROR :: MODULE:\w+|Habana exception raised|Nrt::\w+ failed|nrt_\w+ status=[1-9]|ERROR +(?:TDRV|NRT|NMGR|CCOM):|Graph compile failed|NCC_E\w+|neuronx-cc .{0,60}(?:failed|error)", "unknown",
        "The accelerator's compiler or runtime refused or lost the step; the code tells which call",
        "the first error above this line (a device error in dmesg, memory, an operation that is not supported); one version of driver, firmware and build", "device runtime",
        confidence=0.5, shadow=True,
    ),
)  # fmt: skip
