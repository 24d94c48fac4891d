"""Errors of Ascend devices: HCCL's codes by what the library itself says of them, and CANN's runtime codes.

The twenty codes of HCCL are those of its message table (`EI0001` to `EI0020`).
"""

from __future__ import annotations

from meshwright.diagnose.known_entry import known

_CODE = r"(?:error code|ret(?:Code|urn code)?|result|code)\W{0,8}(?:is )?"
"""What stands before a number of CANN's runtime."""

ASCEND = (
    known(
        r"\bEI0005\b", "mismatched-collective", "Ranks call a collective with different sizes, types or operations (EI0005)",
        "the line names the operator and the parameter that differs: the same batch shapes, model and group order on every rank", "collective",
        confidence=0.85,
    ),
    known(
        r"\bEI0008\b", "wrong-configuration", "Hosts have different versions of CANN or HCCL (EI0008)", "one image on all hosts; the line names both versions",
        "start-up: versions", confidence=0.95,
    ),
    known(
        r"\bEI0001\b|\bEI0016\b", "wrong-configuration", "A setting of HCCL has a value that it does not take (EI0001, EI0016)",
        "the line names the variable, its value and what is expected (HCCL_* in the environment)", "start-up: settings", confidence=0.9,
    ),
    known(
        r"\bEI0004\b|\bEI0014\b|\bEI0017\b", "wrong-configuration", "HCCL's rank table does not describe these devices, or cannot be read",
        "see RANK_TABLE_FILE: the path on every host, its JSON, device and host addresses as hccn_tool and ip addr give them, each device once; or start without "
        "one (MASTER_ADDR, MASTER_PORT)", "start-up: rank table", confidence=0.85,
    ),
    known(
        r"\bEI0003\b", "wrong-configuration", "The program calls a collective in a way that HCCL refuses (EI0003)",
        "the line names the operator, the parameter and what is expected", "collective", confidence=0.8,
    ),
    known(
        r"\bEI0007\b|\bEI0011\b|\bEL0004\b", "out-of-memory", "HCCL was refused memory or another resource of the device",
        "leave it room: its buffers take HCCL_BUFFSIZE (200 MB) for each communicator; fewer groups, a smaller micro-batch, no other process on the device (npu-smi info)",
        "device memory", confidence=0.8,
    ),
    known(
        r"\bEI0009\b|\bEI0010\b|\bEI0015\b", "wrong-configuration", "Devices could not set up the link between them (at a group's first collective)",
        "on each host hccn_tool -i N -link -g, -ip -g and -net_health -g for all N: ports up, addresses set and reached; one process to a device (a trainer and a server "
        "on devices of their own); HCCL_SOCKET_IFNAME and HCCL_IF_IP an interface that all hosts share, every rank in the group there within HCCL_CONNECT_TIMEOUT; a rank "
        "that failed first shows the same", "start-up: links between devices", confidence=0.75,
    ),
    known(
        r"\bEI0019\b|\bEI0020\b", "wrong-configuration", "HCCL's port is taken: an earlier run still lives, or two processes use one device",
        "end what npu-smi info lists there; HCCL_IF_BASE_PORT (hosts) or HCCL_NPU_SOCKET_PORT_RANGE (several processes to a device) move the ports",
        "start-up: ports", confidence=0.85,
    ),
    known(
        r"\bEI0012\b|\bEI0013\b|\bEI0018\b|\berror cqe\b", "slow-link", "A transfer between two devices failed: their link broke, or the other side's process had ended",
        "the line names both devices: hccn_tool -i N -link_stat -g and -optical -g there (cable, module, switch port); see first whether the peer's own log ends earlier with "
        "an error", "link between devices", confidence=0.65,
    ),
    known(
        r"HBM MULTI BIT ECC|\bUCE ERROR\b|SUSPECT MEM ERROR|" + _CODE + r"50705[34]\b", "gpu-error", "An Ascend device reports an error of its memory",
        "take the device or node out (npu-smi info -t ecc -i N), restart from the last checkpoint without it", "device", confidence=0.85,
    ),
    known(
        r"HCCS LINK ERROR|SUSPECT REMOTE ERROR|" + _CODE + r"50705[67]\b", "slow-link", "A link between Ascend devices, or the device at its other end, reports a fault",
        "find the device that names a fault of its own first (plogs by time, npu-smi info); restart without its node", "link between devices", confidence=0.65,
    ),
    known(
        r"(?:aicore|vector core|aicpu) (?:exception|error|execut\w* (?:is )?(?:abnormal|timeout))|AICORE_(?:TIMEOUT|EXCEPTION)|" + _CODE + r"50701[1-5]\b", "gpu-error",
        "A kernel went wrong on an Ascend device: an access out of range, a shape or type that its operator does not take, or a wait without an end",
        "ASCEND_LAUNCH_BLOCKING=1 names the operator; see indices and shapes given to it, and the plog (~/ascend/log) for its name; only if the same program runs on other "
        "devices, take this one out", "a kernel of the program", confidence=0.6,
    ),
    known(
        r"tsd client wait response fail|TsdOpen failed|open (?:davinci|device) .{0,40}fail|drv(?:Get|Device)\w+ .{0,60}fail|" + _CODE + r"507033\b", "wrong-configuration",
        "The process does not get its Ascend device: held by another one, not given to this container, or its driver's services are down",
        "npu-smi info: no process of an earlier run on it, health OK; /dev/davinciN, davinci_manager, devmm_svm and hisi_hdc in the container, the driver's version that CANN "
        "asks for; not two containers on one device", "start-up: devices", confidence=0.7,
    ),
    known(
        r"HCCL error in|call hccl api failed|\bE[EZH3]9999\b|\bE39999\b|call acl api failed", "unknown",
        "A call to an Ascend library failed; which and why, this text does not tell",
        "the code behind it (EI…, EL…, 5…) in the lines that follow or in the plogs (~/ascend/log, first error by time, all ranks) tells: give those",
        "device calls", confidence=0.5, shadow=True,
    ),
)  # fmt: skip
