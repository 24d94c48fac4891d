"""Error texts whose cause is known by their wording: a table, one entry per fault.

These are the errors that stop a start or a step and need no figures to be understood. What needs
figures (memory) or several lines (time-outs) has a module of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshwright.diagnose.records import Evidence, Finding, Kind, of
from meshwright.diagnose.text_values import rank_number, rank_of


@dataclass(frozen=True, slots=True)
class Known:
    """One fault."""

    pattern: re.Pattern[str]
    kind: Kind
    sentence: str
    """May use the pattern's named groups."""
    remedy: str
    where: str
    confidence: float = 0.85
    shadow: bool = False
    """It follows from another error wherever there is one."""


def _known(
    pattern: str, kind: Kind, sentence: str, remedy: str, where: str, **fields: float | bool
) -> Known:
    return Known(re.compile(pattern, re.IGNORECASE), kind, sentence, remedy, where, **fields)  # type: ignore[arg-type]


TABLE = (
    _known(
        r"Duplicate GPU detected ?: rank (?P<one>\d+) and rank (?P<two>\d+) both on CUDA device (?P<device>\w+)",
        "wrong-configuration", "Ranks {one} and {two} use the same GPU ({device})",
        "set the device from LOCAL_RANK before the process group is made (torch.cuda.set_device), and give each process "
        "of a node a GPU of its own (CUDA_VISIBLE_DEVICES, --gpus-per-task)", "start-up: devices", confidence=0.95,
    ),
    _known(
        r"Address already in use|EADDRINUSE", "wrong-configuration",
        "The rendezvous port is taken: another run on this host uses it, or an earlier one did not end",
        "end what is left of the earlier run, or choose a free port (--master-port, --rdzv-endpoint host:0)",
        "start-up: rendezvous", confidence=0.9,
    ),
    _known(
        r"out of shared memory|DataLoader worker .*Bus error|unable to (?:mmap|open shared memory|write to file <?/torch)"
        r"|No space left on device.*(?:/dev/shm|shm_open)|Error while creating shared memory segment",
        "wrong-configuration", "/dev/shm is too small: loader workers or NCCL pass their data through it",
        "start the container with more of it (--shm-size=16g, or an emptyDir of medium Memory at /dev/shm), or use fewer "
        "workers", "shared memory", confidence=0.9,
    ),
    _known(
        r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<room>\d+)", "mismatched-collective",
        "A rank received {got} bytes where it expected {room}: ranks call the same collective with different sizes, or "
        "different collectives", "run with TORCH_DISTRIBUTED_DEBUG=DETAIL, which names both ranks and shapes; pad or drop "
        "the uneven last batch", "collective", confidence=0.85,
    ),
    _known(
        r"loss scale already at minimum|Attempted loss scale: (?:[01](?:\.0*)?|0?\.\d+), reducing", "wrong-configuration",
        "fp16 overflows at every step and the loss scale has reached its floor: no step is taken, nothing is learnt",
        "train in bf16 (models trained in bf16, T5 above all, do not survive fp16's range); if the card has none, keep the "
        "overflowing layers in fp32, lower the learning rate, and check the data of the first skipped step",
        "loss scale", confidence=0.9,
    ),
    _known(
        r"CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_NOT_INITIALIZED", "out-of-memory",
        "A library could not make its handle: most often the card is full before the first product",
        "see nvidia-smi at that moment: other processes, or all ranks on one card; if there is room, an index out of range "
        "(run once with CUDA_LAUNCH_BLOCKING=1)", "start-up: libraries", confidence=0.5,
    ),
    _known(
        r"NET/IB ?: ?Got completion from peer (?P<peer>\S+) with (?:status|error)[= ]12.*?(?:hca (?P<hca>\S+)|$)", "slow-link",
        "The link to {peer} (adapter {hca}) lost its packets until the retries ran out",
        "test that adapter and its peer (ib_write_bw both ways, cable, switch port, RoCE's lossless class); see first "
        "whether the peer's process had died. NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT only bridge short interruptions",
        "network adapter", confidence=0.65,
    ),
    _known(
        r"Got completion (?:from peer \S+ )?with (?:status|error)[= ]12|Transport retry count exceeded on (?P<hca>\S+)",
        "slow-link", "A network adapter's retries ran out: a link is broken or loses packets",
        "test the adapters pairwise (ib_write_bw), cable, switch port, RoCE's lossless class; see first whether the peer's "
        "process had died", "network adapter", confidence=0.6,
    ),
    _known(
        r"Got completion from peer (?P<peer>\S+) with (?:status|error)[= ]4\b", "wrong-configuration",
        "The adapter was refused the memory that it was to send from or to (local protection error, peer {peer})",
        "GPU memory is not registered for RDMA as this driver needs it: load nvidia_peermem (or use dma-buf), let the "
        "container lock memory (ulimit -l unlimited), see IOMMU and ACS; NCCL_NET_GDR_LEVEL=0 shows whether it is that",
        "network adapter", confidence=0.6,
    ),
    _known(
        r"Signal 11 \(SIGSEGV\)|exitcode ?: -11|failed \(exitcode: -11\)|Segmentation fault", "unknown",
        "A process died of a segmentation fault: a library's fault, not one of speed, memory or collectives",
        "look at what that rank loaded last (a mixed CUDA or NCCL version, a data decoder): python -X faulthandler prints "
        "where; time-outs of other ranks are its shadow", "program", confidence=0.7,
    ),
    _known(
        r"Signal 7 \((?:SIGBUS|Bus error)|exitcode ?: -7\b", "wrong-configuration",
        "A process died of a bus error: shared memory or a mapped file ran out under it",
        "more /dev/shm (--shm-size), and see that mapped data files are whole and the disk not full", "shared memory",
        confidence=0.7,
    ),
    _known(
        r"ncclUnhandledCudaError.*(?:CUDA driver version is insufficient)|CUDA driver version is insufficient|"
        r"no kernel image is available|forward compatibility was attempted", "wrong-configuration",
        "The installed build does not fit this driver or card",
        "install the build for this card's architecture and a driver new enough for its CUDA version", "start-up: versions",
        confidence=0.85,
    ),
    _known(
        r"NCCL version mismatch|mismatched NCCL|Mismatched versions detected", "wrong-configuration",
        "Ranks run different versions of NCCL or of the program", "use one image on all hosts", "start-up: versions",
    ),
    _known(
        r"Bootstrap ?: no socket interface found|No interface found in the same subnet|couldn't find any IP address",
        "wrong-configuration", "NCCL finds no network interface to start on",
        "name it (NCCL_SOCKET_IFNAME=eth0, GLOO_SOCKET_IFNAME) as `ip addr` lists it inside the container",
        "start-up: network", confidence=0.9,
    ),
    _known(
        r"RendezvousTimeoutError|The (?:client socket|IPv4 network addresses).*(?:failed to connect|timed out)"
        r"|connect\(\) to .* timed out|Timed out after \d+ seconds waiting for clients", "wrong-configuration",
        "Not all hosts reached the rendezvous: start-up, not training",
        "see that MASTER_ADDR resolves on every host to the address the first one listens on, that the port is open, and "
        "that as many nodes start as --nnodes says", "start-up: rendezvous", confidence=0.8, shadow=True,
    ),
)  # fmt: skip

_WORTH = re.compile(
    r"rror|rank|already|shared|shm|mmap|fail|fatal|completion|exceeded|exitcode|SIG|fault|kernel image|driver|"
    r"loss scale|mismatch|Bootstrap|interface|timed out|Timed out", re.IGNORECASE,
)  # fmt: skip


@dataclass(slots=True)
class Hit:
    """One entry of the table found in a text."""

    known: Known
    line: int
    text: str
    sentence: str
    ranks: set[int]


def note(hits: list[Hit], number: int, line: str) -> None:
    """Add to `hits` what a line is known for; one hit per entry, ranks gathered."""
    if not _WORTH.search(line):
        return
    for known in TABLE:
        match = known.pattern.search(line)
        if match is None:
            continue
        named = {key: value or "unnamed" for key, value in match.groupdict().items()}
        said = [rank_number(named.get("one")), rank_number(named.get("two")), rank_of(line)]
        ranks = {rank for rank in said if rank is not None}
        for hit in hits:
            if hit.known is known:
                hit.ranks |= ranks
                return
        hits.append(Hit(known, number, line.strip()[:400], known.sentence.format(**named), ranks))
        return


def findings(hits: list[Hit], name: str) -> list[Finding]:
    """Return what the hits mean, the first error first; shadows only where they are alone."""
    first = [hit for hit in hits if not hit.known.shadow] or hits
    return [
        of(
            hit.known.kind, hit.sentence, hit.known.remedy, confidence=hit.known.confidence,
            ranks=tuple(sorted(hit.ranks)), where=hit.known.where,
            evidence=(Evidence(file=name, line=hit.line, text=hit.text),),
        )
        for hit in first[:3]
    ]  # fmt: skip
