"""An embedded log on a simulated disk, and a disk that holds writes back while a test acts.

disk = GatedDisk()
log = open_simulated(disk)
disk.close_gate()                   # the next write to the write-ahead log waits
...                                 # publish on another thread
disk.wait_for_write()               # now a commit is being written
disk.open_gate()
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch

from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.limits import KIB
from seawall.testing import SimClock, SimDisk
from seawall.testing.machine.faults import Call, SimCall

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB)
WAL = "*.wal"

_WAIT_S = 30


def open_simulated(disk: SimDisk, settings: StoreSettings = SMALL) -> EmbeddedLog:
    return EmbeddedLog(open_store(simulated_machine(disk), "/data", settings))


def simulated_machine(disk: SimDisk) -> Machine:
    return Machine(disk, SimClock(wall_ns=1_700_000_000_000_000_000), random.Random(1).randbytes, pid=7)


class GatedDisk(SimDisk):
    """A disk with a gate in front of the writes to some files."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self._pattern = WAL
        self._is_open, self._has_write = threading.Event(), threading.Event()
        self._is_open.set()
        #: Raised by every write that is not held back; None if they succeed.
        self.write_error: BaseException | None = None

    def close_gate(self, pattern: str = WAL) -> None:
        """Hold back the writes to matching paths from now on."""
        self._pattern = pattern
        self._has_write.clear()
        self._is_open.clear()

    def wait_for_write(self) -> None:
        """Wait until a write is held back."""
        assert self._has_write.wait(_WAIT_S)

    def open_gate(self) -> None:
        """Let all writes go on."""
        self._is_open.set()

    @contextmanager
    def call(self, name: Call, path: str, detail: str = "") -> Iterator[SimCall]:
        if name == "write" and fnmatch(path, self._pattern):
            if not self._is_open.is_set():
                self._has_write.set()
                assert self._is_open.wait(_WAIT_S)
            elif self.write_error is not None:
                raise self.write_error
        with super().call(name, path, detail) as call:
            yield call
