"""The real machine as one `Host`.

A role reaches the operating system only through its `Host`; this module assembles one from the real implementations.
"""

from __future__ import annotations

from seawall.io.disk.files import OsFiles
from seawall.io.interfaces import Host
from seawall.io.network.sockets import OsNetwork
from seawall.io.process.clocks import OsClock
from seawall.io.process.shared_memory import OsSharedMemory
from seawall.io.process.topology import discover

__all__ = ["os_host"]


def os_host() -> Host:
    """The machine this process runs on; shared memory comes from the NUMA node that `Topology.plan` fills first."""
    return Host(
        files=OsFiles(),
        memory=OsSharedMemory(node=discover().home_node),
        clock=OsClock(),
        network=OsNetwork(),
    )
