"""The Python side of a disk ring: queues reads, writes and syncs, and waits for their results without the GIL.

    ring = open_disk_ring()                                     # a resident kernel serves it from a thread
    ring.write(file, [header, block], at, tag=1, link=True)     # order holds only along a chain
    ring.sync(file, tag=2)
    ring.submit()
    for completion in ring.reap(wait_ms=1_000): ...

`kernels/runtime/disk_ring.py` has the layout and the invariants; kernels submit into the same array (`words`) directly.
A `RingServer` executes the operations: `ResidentServer` here, `UringServer` in `uring.py`; `ring_backends.py` opens a
ring with one of them. A simulated disk executes them with a Python function instead (`serve_with`).

INV-RING-HELD: the ring references the buffers of a disk operation until its completion is taken.

A ring belongs to the process that opened it: a forked child has no server, and every call there raises an error.
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
from seawall.errors import FatalError, FullError, InvalidInputError, LimitError, UnsupportedError, WrongStateError
from seawall.io.interfaces import ReadableBuffer, WritableBuffer
from seawall.io.process.topology import pin_thread
from seawall.kernels.runtime import disk_ring
from seawall.kernels.runtime.atomics import store_release_u64
from seawall.kernels.runtime.rings import CONTENT_WORDS

Words = npt.NDArray[np.int64]

#: (operation, descriptor, buffers, position) → bytes done or minus errno.
Executor: TypeAlias = Callable[[str, int, Sequence[memoryview], int], int]

#: The seven words of an operation, in the order of `disk_ring`.
_write_operation = Struct("<7q").pack_into

#: Longest wait in one call before checking for signals and for the end of the server.
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
    """Executes the operations of a ring."""

    @property
    def name(self) -> str:
        """Name for messages and metrics."""
        ...

    @property
    def outcome(self) -> int:
        """Minus errno if the server died; the operations in flight will then never complete."""
        ...

    def stop(self) -> None:
        """Finish the submitted operations, then stop. Unmap nothing before this returns."""
        ...


class Completion(NamedTuple):
    """Result of one operation: bytes done, or minus errno."""

    tag: int
    result: int


class Event:
    """An event that one thread waits for and another signals: an eventfd, or a pipe where there is none.

    The waiting thread reads it, or polls it if it was made without `block`.
    """

    def __init__(self, *, block: bool = True) -> None:
        if hasattr(os, "eventfd"):
            self.wait_fd = self.signal_fd = os.eventfd(0, os.EFD_CLOEXEC)
        else:
            self.wait_fd, self.signal_fd = os.pipe()
        os.set_blocking(self.wait_fd, block)

    def signal(self) -> None:
        """Wake the waiting thread."""
        os.write(self.signal_fd, (1).to_bytes(8, "little"))

    def clear(self) -> None:
        """Drop pending signals; only for an event without `block`."""
        with suppress(BlockingIOError):
            os.read(self.wait_fd, 8)

    def close(self) -> None:
        """Close the descriptors; closing twice is fine."""
        descriptors = {self.wait_fd, self.signal_fd} - {-1}
        self.wait_fd = self.signal_fd = -1
        for descriptor in descriptors:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class DiskRing:
    """The ring of one submitter. Not thread-safe: each committer has its own."""

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
        self._in_flight: dict[int, object] = {}
        self._operation = np.zeros(CONTENT_WORDS, np.int64)
        self._operation_bytes = self._operation.data.cast("B")
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

        `uncached` bypasses the page cache, where the server supports that.
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
        """Wake the server if it sleeps. It may already have started queued operations."""
        self._check_alive()
        disk_ring.wake_server(self.words, self.doorbell.signal_fd)

    def submit_signalled(self) -> bool:
        """`submit` and `request_signal` in one call."""
        self._check_alive()
        return bool(disk_ring.wake_server_and_request_signal(self.words, self.doorbell.signal_fd))

    def reap(self, *, wait_ms: int = 0, count: int = 1) -> list[Completion]:
        """Take all completions, waiting at most `wait_ms` until there are `count` of them."""
        self._check_alive()
        taken: list[Completion] = []
        deadline_ns = time.monotonic_ns() + wait_ms * 1_000_000 if wait_ms else 0
        wait = 0
        while self._in_flight:
            if wait_ms:
                left_ms = (deadline_ns - time.monotonic_ns() + 999_999) // 1_000_000
                # In slices, to notice Ctrl-C and the end of the server.
                wait = min(left_ms, _WAIT_SLICE_MS) if len(taken) < count else 0
            if not disk_ring.take_completion(self.words, self.completed.wait_fd, self._content, wait):
                if wait <= 0:
                    break
                self._check_server()
                continue
            completion = Completion(*self._content[_COMPLETION].tolist())
            del self._in_flight[completion.tag]
            taken.append(completion)
        return taken

    def request_signal(self) -> bool:
        """Make `completed.wait_fd` readable when an operation completes, for an event loop.

        True if there is a completion to reap already; a signal may then never come. Call `forget_signal` after one.
        """
        self._check_alive()
        return bool(disk_ring.request_signal(self.words))

    def forget_signal(self) -> None:
        """Clear the signal, so that the next one is seen."""
        self.completed.clear()

    @property
    def in_flight(self) -> int:
        """Operations queued and not yet reaped."""
        return len(self._in_flight)

    @property
    def poison(self) -> int:
        """0, or minus errno of a failed sync, after which the ring refuses every write and sync."""
        return int(self.words[disk_ring.CONTROL_POISON])

    def close(self) -> None:
        """Finish the operations in flight, stop the server, and close the descriptors."""
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
        if tag in self._in_flight:
            raise InvalidInputError(f"tag {tag} is already in flight in this disk ring")
        if len(self._in_flight) >= self.entries:
            raise FullError(f"the disk ring has {self.entries} operations in flight: reap completions first")
        if len(arrays) > limits.IOVEC_COUNT_MAX:
            raise LimitError(f"{len(arrays)} buffers in one disk operation: at most {limits.IOVEC_COUNT_MAX}")
        iovec = array("q")
        size = 0
        for each in arrays:
            # A kernel, because `ndarray.ctypes` takes three times as long.
            iovec.extend((disk_ring.buffer_address(each), each.size))
            size += each.size
        flags = operation | disk_ring.LINK if link else operation
        _write_operation(
            self._operation_bytes, 0, tag, flags, file.fileno(), iovec.buffer_info()[0], len(arrays), at, size
        )
        self._in_flight[tag] = (iovec, arrays)
        disk_ring.submit(self.words, self._operation)

    def _check_server(self) -> None:
        outcome = self.server.outcome if self.server is not None else 0
        if outcome < 0:
            raise FatalError(f"the server of this disk ring ended: {os.strerror(-outcome)}")

    def _check_alive(self) -> None:
        if self._pid == os.getpid():
            return
        if self._pid < 0:
            raise WrongStateError("this disk ring is closed")
        raise UnsupportedError("a disk ring cannot be used in a forked child: open a new one there")


class ServerThread:
    """A resident kernel on its own thread; the base of all servers that are kernels."""

    def __init__(self, ring: DiskRing, name: str, serve: Callable[[], int], cpus: Collection[int]) -> None:
        self.name = name
        self._words = ring.words
        self._doorbell = ring.doorbell
        self._outcome = 0
        self._thread = threading.Thread(target=self._run, args=(serve, cpus), name=f"seawall-disk-{name}", daemon=True)
        self._thread.start()
        # A daemon thread must not outlive the arrays it works on: stop it when the ring or the interpreter ends.
        self._finalizer = weakref.finalize(ring, _stop_thread, self._thread, self._words, self._doorbell, os.getpid())

    @property
    def outcome(self) -> int:
        """The result of the kernel: operations served, or minus errno if it failed."""
        return self._outcome

    def stop(self) -> None:
        """Let the kernel finish the submitted operations, and wait for its thread."""
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


def serve_inline(ring: DiskRing) -> int:
    """Execute the queued operations on the calling thread, without the GIL: a single writer needs no server thread."""
    return disk_ring.serve_pending(ring.words)


def serve_with(ring: DiskRing, execute: Executor) -> int:
    """Execute the queued operations with a Python function; returns how many. A simulated disk uses this."""
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
