"""Opens disk rings with a running server: the resident kernel or io_uring.

`disk_ring.py` is the ring itself and knows no back end but the resident kernel; this module picks one.
"""

from __future__ import annotations

from collections.abc import Collection

from seawall import limits
from seawall.config import Config, DiskBackend
from seawall.io.disk.direct_sync import configured_direct_sync
from seawall.io.disk.disk_ring import DiskRing, ResidentServer
from seawall.io.process.topology import discover

__all__ = ["open_configured_ring", "open_disk_ring"]


def open_disk_ring(
    backend: DiskBackend = DiskBackend.AUTO,
    entries: int = limits.DISK_RING_ENTRIES,
    *,
    direct_sync: bool = False,
    cpus: Collection[int] = (),
) -> DiskRing:
    """A ring with its server running.

    `auto` is the resident kernel: a single write and sync completes sooner there than through io_uring
    (`seawall bench kernels` shows both). `direct_sync` makes a durable write one call; `direct_sync_wins` measures
    whether that is faster on a disk; io_uring always uses one call. The server's thread is pinned to `cpus`, if given.
    """
    ring = DiskRing(entries, direct_sync=direct_sync)
    try:
        if backend == DiskBackend.URING:
            # Imported on demand: few processes use io_uring, and its kernels take time to load.
            from seawall.io.disk.uring import UringServer

            ring.server = UringServer(ring, cpus)
        else:
            ring.server = ResidentServer(ring, cpus)
    except BaseException:
        ring.close()
        raise
    return ring


def open_configured_ring(config: Config, directory: str) -> DiskRing:
    """The ring that the configuration asks for, for files below `directory`."""
    disk = config.disk
    direct_sync = configured_direct_sync(config, directory)
    # The first CPU of a plan belongs to the caller; with fewer CPUs than roles a plan pins nothing.
    cpus = discover().plan(2)[1] if config.topology.pin else ()
    return open_disk_ring(disk.backend, disk.ring_entries, direct_sync=direct_sync, cpus=cpus)
