"""Measures whether one durable write (RWF_DSYNC) beats a write plus a sync on the disk of a directory.

The answer depends on the file system and the drive: one call saves a round trip and the sync of everything else in the
file, but some drives are slower with a forced write than with a cache flush. So this module measures: a few small
writes of each kind, alternating, into preallocated space, as a write-ahead log writes. It caches the result per device.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from time import perf_counter_ns
from typing import Final

from seawall.config import Config, Toggle
from seawall.io.disk.files import OsFile, reserve_space, write_all
from seawall.limits import PAGE_SIZE

__all__ = ["MEASURED", "configured_direct_sync", "direct_sync_wins"]

#: Writes of each kind: enough for a steady median, and still only a few milliseconds.
_WRITES = 16


#: Results of this process, by device number.
MEASURED: Final[dict[int, bool]] = {}


def direct_sync_wins(directory: str) -> bool:
    """True if RWF_DSYNC is faster on the device of `directory`; measured once per process, false where unsupported."""
    if not hasattr(os, "RWF_DSYNC"):
        return False
    device = os.stat(directory).st_dev
    if device not in MEASURED:
        MEASURED[device] = _measure(directory)
    return MEASURED[device]


def configured_direct_sync(config: Config, directory: str) -> bool:
    """The configured choice; for `auto`, the faster one on the device of `directory`."""
    choice = config.disk.direct_sync
    return direct_sync_wins(directory) if choice is Toggle.AUTO else choice is Toggle.ON


def _measure(directory: str) -> bool:
    block = os.urandom(PAGE_SIZE)
    direct_ns: list[int] = []
    synced_ns: list[int] = []
    with tempfile.TemporaryFile(dir=directory, prefix="seawall-probe-") as temporary:
        descriptor = temporary.fileno()
        file = OsFile(os.dup(descriptor), directory)
        try:
            reserve_space(descriptor, 2 * _WRITES * PAGE_SIZE)
            file.sync()
            for index in range(_WRITES):
                at = 2 * index * PAGE_SIZE
                started = perf_counter_ns()
                os.pwritev(descriptor, [block], at, os.RWF_DSYNC)
                between = perf_counter_ns()
                write_all(file, [block], at + PAGE_SIZE)
                file.sync()
                direct_ns.append(between - started)
                synced_ns.append(perf_counter_ns() - between)
        except OSError:
            # The file system refuses the flag: a write plus a sync always works.
            return False
        finally:
            file.close()
    return statistics.median(direct_ns) < statistics.median(synced_ns)
