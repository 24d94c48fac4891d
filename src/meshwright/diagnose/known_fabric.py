"""What the plugin between NCCL and libfabric (EFA, aws-ofi-nccl) and libfabric itself say, by what happened.

Listed from the warnings in the plugin's source (github.com/aws/aws-ofi-nccl), class by class.
"""

from __future__ import annotations

from meshwright.diagnose.known_entry import known

_W = r"NET/OFI .{0,60}?"
_SHADOW = r"connection between ranks broke|NCCL was called in a way|collective failed or timed out"

FABRIC = (
    known(
        r"provider efa output empty list|" + _W + r"(?:Only EFA provider|OFI fi_getinfo\(\) call failed|No eligible providers|No valid (?:provider|NICs?)|No provider|Couldn't (?:open (?:AV|a fabric)|create fabric|open (?:the )?domain)"
        r"|Could not create address vector|Creating new endpoint|Initializing plugin failed|initialization failed|EFA provider requires|Failed to initialize \w+ protocol|Caught exception in (?:plugin|rdma_init)"
        r"|Disabling shared memory failed|Setting \S+ option failed|Couldn't enable|Couldn't allocate endpoint)",
        "wrong-configuration", "The EFA network cannot be opened on a host: no adapter in the container, or libfabric, plugin and driver of versions that do not go together",
        "fi_info -p efa inside the container must list the adapters: an instance type with EFA and its interfaces attached, /dev/infiniband/uverbs* (vpc.amazonaws.com/efa in "
        "Kubernetes), memory lock unlimited, EFA's installer and aws-ofi-nccl of one release on all hosts; FI_PROVIDER=tcp or NCCL_NET_PLUGIN=none shows whether it is that",
        "network adapter (EFA)", confidence=0.8, explains=_SHADOW,
    ),
    known(
        _W + r"(?:(?:Unable|Failed) to insert (?:\w+ )?address|Invalid (?:duplicate )?address|insert remote address|Failed to find rank for src addr|Is the address vector)",
        "wrong-configuration", "A host does not take the network address that another one sent: their adapters or plugins are not of one kind, or are not in one subnet",
        "the same instance type, EFA installer, libfabric and aws-ofi-nccl on every host, EFA visible in every container (fi_info -p efa), one subnet; the security group "
        "lets in and out all traffic from and to itself, by its own id", "network adapter (EFA)", confidence=0.8, explains=_SHADOW,
    ),
    known(
        _W + r"(?:completed with error|Remote write completed|Request .{0,80}error|Received error entry|Fatal: rx buffer|bounce buffer recv completed|Unable to retrieve completion|fi_cq_read|Error posting|Could not send request)",
        "slow-link", "A transfer over EFA failed: packets do not arrive, or the other side's process had ended",
        "in a first run: the security group must let in and out all traffic from and to itself (by its own id, in both directions), all hosts in one subnet, the same plugin "
        "everywhere (the efa tool's fi_pingpong between two hosts tells). Later on: which process ended first over all logs, then that host's adapter (rdma statistic, dmesg)",
        "network adapter (EFA)", confidence=0.65, explains=_SHADOW,
    ),
    known(
        _W + r"(?:[Uu]nable to (?:register|enable MR)|Could not register|Failed to register|[Mm]emory registration|MR key|RDMA write buffers|GDRCopy|GDRCOPY|GPUDirect|dmabuf|fi_mr_\w+)",
        "wrong-configuration", "EFA may not use the GPU's memory directly: it could not be registered",
        "the EFA kernel module with peer memory or dma-buf support, a driver and kernel that go with it, memory lock unlimited in the container; FI_EFA_USE_DEVICE_RDMA=0 (or "
        "OFI_NCCL_DISABLE_GDR_REQUIRED_CHECK) goes round it at the cost of speed", "network adapter (EFA)", confidence=0.7, explains=_SHADOW,
    ),
    known(
        _W + r"(?:topology|NIC info|PCI|Error accessing (?:plugin|device|endpoint)|properties)", "wrong-configuration",
        "The EFA plugin cannot read which adapters belong to which GPU",
        "/sys mounted into the container, the plugin built for this platform (the installer's own), no NCCL_TOPO_FILE of another machine", "network adapter (EFA)",
        confidence=0.6, explains=_SHADOW,
    ),
    known(
        _W + r"(?P<what>[A-Z].{8,110})", "unknown", "The EFA plugin reports: {what}",
        "its own check, which cause it has the line does not tell: the first NET/OFI warning of each rank (NCCL_DEBUG=INFO), one release of EFA installer and plugin on all hosts",
        "network adapter (EFA)", confidence=0.45, shadow=True, explains=_SHADOW,
    ),
)  # fmt: skip
