"""A disk ring in Python's hands: queue reads, writes and syncs, wait for their results without holding the GIL.

    ring = open_disk_ring()                                     # a resident kernel serves it from a thread
    ring.write(file, [header, block], at, tag=1, link=True)     # order holds only along a chain
    ring.sync(file, tag=2)
    ring.submit()
    for completion in ring.reap(wait_ms=1_000): ...

`kernels/runtime/disk_ring.py` has the layout and the invariants; kernels submit into the same array (`words`) directly.
Whoever serves the ring is a `RingServer`: `ResidentServer` here, `UringServer` in `uring.py`, or a Python function that
executes operations (`serve_with`), which is how a simulated disk stands in.

INV-RING-HELD: the ring references the buffers of a disk operation until its completion is taken.

A ring belongs to the process that opened it: after a fork the child has no server, and every call says so.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.config import Config, DiskBackend
from seawall.errors import FatalError, FullError, InvalidInputError, LimitError, UnsupportedError
from seawall.io.disk.direct_sync import configured_direct_sync
from seawall.io.interfaces import ReadableBuffer, WritableBuffer
from seawall.io.process.topology import discover, pin_thread
from seawall.kernels.runtime import disk_ring
from seawall.kernels.runtime.atomics import store_release_u64
from seawall.kernels.runtime.rings import CONTENT_WORDS

Words = npt.NDArray[np.int64]

#: (operation, descriptor, buffers, position) → bytes done or minus errno.
Executor: TypeAlias = Callable[[str, int, Sequence[memoryview], int], int]

#: The seven words of an operation, in the order of `disk_ring`.
_write_operation = Struct("<7q").pack_into

#: Longest sleep in one call without a look at signals and at the server.
_WAIT_SLICE_MS = 200

#: Words of a completion.
_COMPLETION = slice(disk_ring.COMPLETE_TAG, disk_ring.COMPLETE_RESULT + 1)

_NAMES = {
    disk_ring.WRITE: "write",
    disk_ring.SYNC: "sync",
    disk_ring.WRITE_SYNC: "write_sync",
    disk_ring.READ: "read",
}


class HasDescriptor(Protocol):
    """An open file of the host that serves the ring."""

    def fileno(self) -> int:
        """Its descriptor."""
        ...


class RingServer(Protocol):
    """What executes the operations of a ring."""

    @property
    def name(self) -> str:
        """Word for messages and metrics."""
        ...

    @property
    def outcome(self) -> int:
        """Minus errno if serving ended by itself; the operations under way will then never complete."""
        ...

    def stop(self) -> None:
        """Finish what was submitted, then stop serving. Nothing may be unmapped before this returns."""
        ...


class Completion(NamedTuple):
    """Result of one operation: bytes done, or minus errno."""

    tag: int
    result: int


class Event:
    """A thing one thread sleeps on and another signals: an eventfd, or a pipe where there is none.

    Who sleeps reads it, or, where it does not `block`, polls it.
    """

    def __init__(self, *, block: bool = True) -> None:
        if hasattr(os, "eventfd"):
            self.wait_fd = self.signal_fd = os.eventfd(0, os.EFD_CLOEXEC)
        else:
            self.wait_fd, self.signal_fd = os.pipe()
        os.set_blocking(self.wait_fd, block)

    def signal(self) -> None:
        """Wake who waits."""
        os.write(self.signal_fd, (1).to_bytes(8, "little"))

    def clear(self) -> None:
        """Forget signals that have come, if any; only of an event that does not block."""
        with suppress(BlockingIOError):
            os.read(self.wait_fd, 8)

    def close(self) -> None:
        """Give the descriptors back; closing twice is fine."""
        descriptors = {self.wait_fd, self.signal_fd} - {-1}
        self.wait_fd = self.signal_fd = -1
        for descriptor in descriptors:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class DiskRing:
    """One submitter's ring. Not for several threads at once: each committer has its own."""

    def __init__(self, entries: int = limits.DISK_RING_ENTRIES, *, direct_sync: bool = False) -> None:
        if entries < 2 or entries > limits.DISK_RING_ENTRIES_MAX or entries & (entries - 1):
            raise InvalidInputError(
                f"a disk ring of {entries} entries: a power of two from 2 to {limits.DISK_RING_ENTRIES_MAX} is needed"
            )
        self.entries = entries
        self.words: Words = np.zeros(disk_ring.ring_words(entries), np.int64)
        self.words[disk_ring.CONTROL_DIRECT_SYNC] = direct_sync
        self.doorbell = Event()
        self.completed = Event(block=False)
        self.server: RingServer | None = None
        self._under_way: dict[int, object] = {}
        self._operation = np.zeros(CONTENT_WORDS, np.int64)
        self._told = self._operation.data.cast("B")
        self._content = np.zeros(CONTENT_WORDS, np.int64)
        self._pid = os.getpid()

    def write(
        self,
        file: HasDescriptor,
        buffers: Sequence[ReadableBuffer],
        at: int,
        *,
        tag: int,
        link: bool = False,
        sync: bool = False,
        uncached: bool = False,
    ) -> None:
        """Queue one vectored write; with `sync` it is durable when it completes.

        One that is `uncached` goes to the disk at once, and need not stay in memory then, where the server can do that.
        """
        operation = (disk_ring.WRITE_SYNC if sync else disk_ring.WRITE) | (disk_ring.UNCACHED if uncached else 0)
        self._queue(operation, file, [np.frombuffer(buffer, np.uint8) for buffer in buffers], at, tag, link)

    def read(
        self, file: HasDescriptor, buffers: Sequence[WritableBuffer], at: int, *, tag: int, link: bool = False
    ) -> None:
        """Queue one vectored read into the buffers."""
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        if not all(each.flags.writeable for each in arrays):
            raise InvalidInputError("a read needs writable buffers")
        self._queue(disk_ring.READ, file, arrays, at, tag, link)

    def sync(self, file: HasDescriptor, *, tag: int, link: bool = False) -> None:
        """Queue a sync of the file's data."""
        self._queue(disk_ring.SYNC, file, [], 0, tag, link)

    def submit(self) -> None:
        """Wake the server if it sleeps. Operations queued before may have started already."""
        self._check_alive()
        disk_ring.wake_server(self.words, self.doorbell.signal_fd)

    def submit_signalled(self) -> bool:
        """`submit` and `ask_for_signal` at once."""
        self._check_alive()
        return bool(disk_ring.wake_server_if_asked(self.words, self.doorbell.signal_fd))

    def reap(self, *, wait_ms: int = 0, count: int = 1) -> list[Completion]:
        """Take completions: all there are, waiting up to `wait_ms` in all for the first `count`."""
        self._check_alive()
        taken: list[Completion] = []
        deadline_ns = time.monotonic_ns() + wait_ms * 1_000_000 if wait_ms else 0
        wait = 0
        while self._under_way:
            if wait_ms:
                left_ms = (deadline_ns - time.monotonic_ns() + 999_999) // 1_000_000
                # In slices, so that Ctrl-C and the end of the server are noticed.
                wait = min(left_ms, _WAIT_SLICE_MS) if len(taken) < count else 0
            if not disk_ring.take_completion(self.words, self.completed.wait_fd, self._content, wait):
                if wait <= 0:
                    break
                self._check_server()
                continue
            completion = Completion(*self._content[_COMPLETION].tolist())
            del self._under_way[completion.tag]
            taken.append(completion)
        return taken

    def ask_for_signal(self) -> bool:
        """Make `completed.wait_fd` readable when something completes, for who sleeps in an event loop.

        True if there is something to reap already: then no signal may come. `forget_signal` follows when it came.
        """
        self._check_alive()
        return bool(disk_ring.ask_for_signal(self.words))

    def forget_signal(self) -> None:
        """Take the signal back, so that the next one is seen."""
        self.completed.clear()

    @property
    def under_way(self) -> int:
        """Operations queued and not yet reaped."""
        return len(self._under_way)

    @property
    def poison(self) -> int:
        """0, or minus errno of the sync that failed: the ring then refuses every write and sync."""
        return int(self.words[disk_ring.CONTROL_POISON])

    def close(self) -> None:
        """Stop the server and give the descriptors back; operations under way are finished first."""
        if self._pid != os.getpid():
            return
        if self.server is not None:
            self.server.stop()
            self.server = None
        self._pid = -1
        self.doorbell.close()
        self.completed.close()

    def _queue(
        self,
        operation: int,
        file: HasDescriptor,
        arrays: list[npt.NDArray[np.uint8]],
        at: int,
        tag: int,
        link: bool,
    ) -> None:
        self._check_alive()
        if tag in self._under_way:
            raise InvalidInputError(f"tag {tag} is under way already in this disk ring")
        if len(self._under_way) >= self.entries:
            raise FullError(f"the disk ring has {self.entries} operations under way: reap completions first")
        if len(arrays) > limits.IOVEC_COUNT_MAX:
            raise LimitError(f"{len(arrays)} buffers in one disk operation: at most {limits.IOVEC_COUNT_MAX}")
        iovec = array("q")
        size = 0
        for each in arrays:
            # By a kernel: `ndarray.ctypes` takes three times as long.
            iovec.extend((disk_ring.buffer_address(each), each.size))
            size += each.size
        what = operation | disk_ring.LINK if link else operation
        _write_operation(self._told, 0, tag, what, file.fileno(), iovec.buffer_info()[0], len(arrays), at, size)
        self._under_way[tag] = (iovec, arrays)
        disk_ring.submit(self.words, self._operation)

    def _check_server(self) -> None:
        outcome = self.server.outcome if self.server is not None else 0
        if outcome < 0:
            raise FatalError(f"the server of this disk ring ended: {os.strerror(-outcome)}")

    def _check_alive(self) -> None:
        if self._pid == os.getpid():
            return
        if self._pid < 0:
            raise InvalidInputError("this disk ring is closed")
        raise UnsupportedError("a disk ring cannot be used in a forked child: open a new one there")


class ServerThread:
    """A resident kernel on a thread of its own; common to all servers that are kernels."""

    def __init__(self, ring: DiskRing, name: str, serve: Callable[[], int], cpus: Collection[int]) -> None:
        self.name = name
        self._words = ring.words
        self._doorbell = ring.doorbell
        self._outcome = 0
        self._thread = threading.Thread(target=self._run, args=(serve, cpus), name=f"seawall-disk-{name}", daemon=True)
        self._thread.start()
        # A daemon thread may not outlive the arrays it works on: stop it when the ring or the interpreter goes.
        self._finalizer = weakref.finalize(ring, _stop_thread, self._thread, self._words, self._doorbell, os.getpid())

    @property
    def outcome(self) -> int:
        """What the kernel returned: operations served, or minus errno if it could not go on."""
        return self._outcome

    def stop(self) -> None:
        """Let the kernel finish what was submitted, and wait for its thread."""
        self._finalizer()

    def _run(self, serve: Callable[[], int], cpus: Collection[int]) -> None:
        if cpus:
            pin_thread(cpus)
        self._outcome = serve()


class ResidentServer(ServerThread):
    """`pwritev`, `preadv` and `fdatasync` from one resident kernel, in the order of submission."""

    def __init__(self, ring: DiskRing, cpus: Collection[int] = ()) -> None:
        words, doorbell, completed = ring.words, ring.doorbell.wait_fd, ring.completed.signal_fd
        super().__init__(ring, "resident", lambda: disk_ring.serve_resident(words, doorbell, completed), cpus)


def open_disk_ring(
    backend: DiskBackend = DiskBackend.AUTO,
    entries: int = limits.DISK_RING_ENTRIES,
    *,
    direct_sync: bool = False,
    cpus: Collection[int] = (),
) -> DiskRing:
    """A ring with its server running.

    `auto` is the resident kernel: a lone write and sync comes back sooner from it than from io_uring
    (`seawall bench kernels` shows both). `direct_sync` makes a durable write one call; ask `direct_sync_wins` whether
    that pays on a disk. io_uring always does it that way. The server's thread is tied to `cpus` if any are given.
    """
    ring = DiskRing(entries, direct_sync=direct_sync)
    try:
        if backend == DiskBackend.URING:
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
    # The first CPU of a plan is the caller's; with fewer CPUs than roles a plan pins nothing.
    cpus = discover().plan(2)[1] if config.topology.pin else ()
    return open_disk_ring(disk.backend, disk.ring_entries, direct_sync=direct_sync, cpus=cpus)


def serve_inline(ring: DiskRing) -> int:
    """Execute all that waits on the calling thread, without the GIL: how a lone writer commits with no thread."""
    return disk_ring.serve_pending(ring.words)


def serve_with(ring: DiskRing, execute: Executor) -> int:
    """Execute all that waits through a Python function; return how many. This is the door for a simulated disk."""
    operation = np.zeros(CONTENT_WORDS, np.int64)
    served = 0
    while disk_ring.next_operation(ring.words, operation):
        result = disk_ring.refusal(ring.words, operation)
        if result == 0:
            name = _NAMES[int(operation[disk_ring.SUBMIT_OPERATION]) & disk_ring.OPERATION_MASK]
            buffers = _buffers_at(int(operation[disk_ring.SUBMIT_IOVEC]), int(operation[disk_ring.SUBMIT_COUNT]))
            result = execute(name, int(operation[disk_ring.SUBMIT_FD]), buffers, int(operation[disk_ring.SUBMIT_AT]))
        disk_ring.settle(ring.words, operation, result)
        served += 1
    if served:
        disk_ring.wake_submitter(ring.words, ring.completed.signal_fd)
    return served


def _buffers_at(address: int, count: int) -> list[memoryview]:
    views = []
    for index in range(count):
        start, length = (ctypes.c_int64 * 2).from_address(address + 16 * index)
        views.append(memoryview((ctypes.c_ubyte * length).from_address(start)).cast("B"))
    return views


def _stop_thread(thread: threading.Thread, words: Words, doorbell: Event, pid: int) -> None:
    if pid == os.getpid() and thread.is_alive():
        store_release_u64(words.view(np.uint64), disk_ring.CONTROL_STOP, 1)
        doorbell.signal()
        thread.join()
