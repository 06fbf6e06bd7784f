"""Disk rings: results, chains, poison and shutdown are the same for every kind of server."""

from __future__ import annotations

import errno
import gc
import os
import select
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from seawall import limits
from seawall.config import DiskBackend
from seawall.errors import FatalError, FullError, InvalidInputError, LimitError, UnsupportedError, WrongStateError
from seawall.io.disk import disk_ring as ring_module
from seawall.io.disk import ring_backends
from seawall.io.disk.disk_ring import Completion, DiskRing, Event, ServerThread, serve_inline, serve_with
from seawall.io.disk.ring_backends import open_disk_ring
from seawall.io.disk.uring import probe
from seawall.kernels.runtime import disk_ring, jit

WAIT_MS = 20_000
OPERATIONS = 300 if jit.PYTHON_MODE else 4_000

needs_uring = pytest.mark.skipif(not probe().available, reason=f"io_uring does not work here: {probe().detail}")
THREADS = ["resident", pytest.param("uring", marks=needs_uring)]
MODES = [*THREADS, "inline", "function"]


@dataclass(frozen=True)
class Descriptor:
    """A bare descriptor, as a file object."""

    number: int

    def fileno(self) -> int:
        return self.number


def execute(name: str, fd: int, buffers: Sequence[memoryview], at: int) -> int:
    """The operation itself, as a simulated disk would offer it, on a real descriptor."""
    try:
        if name == "sync":
            os.fdatasync(fd)
            return 0
        if name == "read":
            return os.preadv(fd, buffers, at)
        return os.pwritev(fd, buffers, at) if name == "write" else os.pwritev(fd, buffers, at, os.RWF_DSYNC)
    except OSError as error:
        return -(error.errno or 0)


class Served:
    """A ring, and the function that executes its operations, if no thread does."""

    def __init__(self, ring: DiskRing, serve: Callable[[DiskRing], object] | None) -> None:
        self.ring = ring
        self._serve = serve

    def results(self, count: int) -> dict[int, int]:
        self.ring.submit()
        if self._serve is not None:
            self._serve(self.ring)
        return {done.tag: done.result for done in self.ring.reap(wait_ms=WAIT_MS, count=count)}


def served_by(mode: str, entries: int = 64) -> Served:
    if mode == "inline":
        return Served(DiskRing(entries), serve_inline)
    if mode == "function":
        return Served(DiskRing(entries), lambda ring: serve_with(ring, execute))
    return Served(open_disk_ring(DiskBackend(mode), entries), None)


@pytest.fixture(params=MODES)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    made = served_by(request.param)
    yield made
    made.ring.close()


@pytest.fixture(params=THREADS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backends() -> list[str]:
    """The back ends with a thread that work here: one process can try them all."""
    return ["resident", *(["uring"] if probe().available else [])]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[BinaryIO]:
    with (tmp_path / "file").open("w+b", buffering=0) as opened:
        yield opened


@pytest.fixture
def pipe_end() -> Iterator[Descriptor]:
    """A descriptor that cannot be synced."""
    ends = os.pipe()
    yield Descriptor(ends[0])
    for end in ends:
        os.close(end)


def content(file: BinaryIO) -> bytes:
    return os.pread(file.fileno(), 1 << 24, 0)


# --- operations ---------------------------------------------------------------------------------------------------


def test_write_sync_read(served: Served, file: BinaryIO) -> None:
    ring = served.ring
    ring.write(file, [b"abc", bytearray(b"def"), memoryview(b"gh")], 4, tag=1, link=True)
    ring.sync(file, tag=2)
    assert ring.in_flight == 2
    assert served.results(2) == {1: 8, 2: 0}
    assert ring.in_flight == 0
    assert content(file) == bytes(4) + b"abcdefgh"
    first, second = bytearray(3), np.zeros(20, np.uint8)
    ring.read(file, [first, second], 4, tag=-5)
    assert served.results(1) == {-5: 8}
    assert bytes(first) + second.tobytes() == b"abcdefgh" + bytes(15)
    ring.write(file, [b"durable"], 0, tag=2**62, sync=True)
    assert served.results(1) == {2**62: 7}
    assert content(file) == b"durableefgh"[:4] + b"ble" + b"defgh"


def test_writes_accept_no_buffers_and_empty_buffers(served: Served, file: BinaryIO) -> None:
    served.ring.write(file, [], 0, tag=1, link=True)
    served.ring.write(file, [b"", b"x", b""], 0, tag=2)
    assert served.results(2) == {1: 0, 2: 1}
    assert content(file) == b"x"


def test_an_operation_takes_up_to_the_most_buffers_of_one_system_call(served: Served, file: BinaryIO) -> None:
    pieces = [bytes([index % 251]) * (index % 7) for index in range(limits.IOVEC_COUNT_MAX)]
    served.ring.write(file, pieces, 0, tag=1)
    size = sum(map(len, pieces))
    assert served.results(1) == {1: size}
    assert content(file) == b"".join(pieces)
    targets = [bytearray(len(piece)) for piece in pieces]
    served.ring.read(file, targets, 0, tag=2)
    assert served.results(1) == {2: size}
    assert targets == pieces
    with pytest.raises(LimitError, match="1025 buffers"):
        served.ring.write(file, [*pieces, b"x"], 0, tag=3)
    assert served.ring.in_flight == 0


def test_a_failed_operation_returns_minus_errno(served: Served, tmp_path: Path, file: BinaryIO) -> None:
    served.ring.write(Descriptor(-1), [b"x"], 0, tag=1)
    with (tmp_path / "read only").open("xb"), (tmp_path / "read only").open("rb") as read_only:
        served.ring.write(read_only, [b"x"], 0, tag=2)
        served.ring.write(file, [b"x"], 0, tag=3)
        assert served.results(3) == {1: -errno.EBADF, 2: -errno.EBADF, 3: 1}
    assert served.ring.poison == 0


# --- chains -------------------------------------------------------------------------------------------------------


def test_a_failure_cancels_only_the_rest_of_its_chain(served: Served, file: BinaryIO) -> None:
    """INV-DISK-LINK."""
    ring = served.ring
    ring.write(file, [b"one"], 0, tag=1, link=True)
    ring.write(Descriptor(-1), [b"two"], 3, tag=2, link=True)
    ring.write(file, [b"three"], 6, tag=3, link=True)
    ring.sync(file, tag=4)
    ring.write(file, [b"next chain"], 100, tag=5, link=True)
    ring.sync(file, tag=6)
    canceled = -errno.ECANCELED
    assert served.results(6) == {1: 3, 2: -errno.EBADF, 3: canceled, 4: canceled, 5: 10, 6: 0}
    assert content(file) == b"one" + bytes(97) + b"next chain"
    assert ring.poison == 0, "a canceled sync is no failed sync"


def test_a_short_read_breaks_its_chain(served: Served, file: BinaryIO) -> None:
    file.write(b"four")
    buffer = bytearray(8)
    served.ring.read(file, [buffer], 0, tag=1, link=True)
    served.ring.write(file, [b"never"], 0, tag=2)
    assert served.results(2) == {1: 4, 2: -errno.ECANCELED}
    assert content(file) == b"four"


def test_a_short_write_breaks_its_chain(file: BinaryIO) -> None:
    with_half: list[str] = []

    def half(name: str, fd: int, buffers: Sequence[memoryview], at: int) -> int:
        with_half.append(name)
        return sum(map(len, buffers)) // 2

    ring = DiskRing(8)
    ring.write(file, [b"abcd"], 0, tag=1, link=True)
    ring.write(file, [b"efgh"], 4, tag=2, link=True)
    ring.sync(file, tag=3)
    ring.write(file, [b"ijkl"], 4, tag=4)
    assert serve_with(ring, half) == 4
    assert ring.reap() == [
        Completion(1, 2),
        Completion(2, -errno.ECANCELED),
        Completion(3, -errno.ECANCELED),
        Completion(4, 2),
    ]
    assert with_half == ["write", "write"]
    ring.close()


def test_a_chain_may_fill_the_ring(served: Served, file: BinaryIO) -> None:
    for index in range(63):
        served.ring.write(file, [bytes([index])], index, tag=index, link=True)
    served.ring.sync(file, tag=63)
    assert served.results(64) == {**dict.fromkeys(range(63), 1), 63: 0}
    assert content(file) == bytes(range(63))


# --- poison -------------------------------------------------------------------------------------------------------


def test_after_a_failed_sync_every_write_fails(served: Served, file: BinaryIO, pipe_end: Descriptor) -> None:
    """INV-SYNC-FATAL, with a sync that the operating system itself refuses."""
    ring = served.ring
    file.write(b"before")
    ring.sync(pipe_end, tag=1)
    assert served.results(1) == {1: -errno.EINVAL}
    assert ring.poison == -errno.EINVAL
    buffer = bytearray(6)
    ring.write(file, [b"after!"], 0, tag=2)
    ring.sync(file, tag=3)
    ring.write(file, [b"after!"], 0, tag=4, sync=True)
    ring.read(file, [buffer], 0, tag=5)
    assert served.results(4) == {2: -errno.EIO, 3: -errno.EIO, 4: -errno.EIO, 5: 6}
    assert content(file) == bytes(buffer) == b"before"
    assert ring.poison == -errno.EINVAL


@pytest.mark.parametrize("kind", ["sync", "write_sync"])
def test_a_failed_sync_poisons_the_ring(kind: str, file: BinaryIO) -> None:
    def fails(name: str, fd: int, buffers: Sequence[memoryview], at: int) -> int:
        return -errno.EIO if name == kind else sum(map(len, buffers))

    ring = DiskRing(8)
    if kind == "sync":
        ring.sync(file, tag=1)
    else:
        ring.write(file, [b"x"], 0, tag=1, sync=True)
    ring.write(file, [b"x"], 0, tag=2)
    ring.read(file, [bytearray(1)], 0, tag=3)
    assert serve_with(ring, fails) == 3
    assert [done.result for done in ring.reap()] == [-errno.EIO, -errno.EIO, 1]
    assert ring.poison == -errno.EIO
    ring.close()


def test_a_failed_sync_cancels_its_chain_and_poisons_the_ring(
    served: Served, file: BinaryIO, pipe_end: Descriptor
) -> None:
    served.ring.sync(pipe_end, tag=1, link=True)
    served.ring.write(file, [b"x"], 0, tag=2)
    assert served.results(2) == {1: -errno.EINVAL, 2: -errno.ECANCELED}
    assert served.ring.poison == -errno.EINVAL
    assert content(file) == b""


# --- space, tags, waiting ------------------------------------------------------------------------------------------


def test_serve_with_passes_each_operation_to_the_function(file: BinaryIO) -> None:
    seen: list[tuple[str, int, list[bytes], int]] = []

    def look(name: str, fd: int, buffers: Sequence[memoryview], at: int) -> int:
        seen.append((name, fd, [bytes(buffer) for buffer in buffers], at))
        if name == "read":
            buffers[0][:] = b"read"
        return sum(map(len, buffers))

    ring = DiskRing(4)
    buffer = bytearray(4)
    ring.write(file, [b"a", b"bc"], 7, tag=1)
    ring.write(file, [b"d"], 9, tag=2, sync=True)
    ring.sync(file, tag=3)
    ring.read(file, [buffer], 1, tag=4)
    assert serve_with(ring, look) == 4
    fd = file.fileno()
    assert seen == [
        ("write", fd, [b"a", b"bc"], 7),
        ("write_sync", fd, [b"d"], 9),
        ("sync", fd, [], 0),
        ("read", fd, [bytes(4)], 1),
    ]
    assert buffer == b"read"
    assert serve_with(ring, look) == 0
    ring.close()


def test_a_full_ring_refuses_operations_until_completions_are_reaped(file: BinaryIO) -> None:
    ring = DiskRing(4)
    for tag in range(4):
        ring.write(file, [b"x"], tag, tag=tag)
    with pytest.raises(FullError, match="4 operations in flight"):
        ring.sync(file, tag=4)
    assert serve_inline(ring) == 4
    with pytest.raises(FullError):
        ring.sync(file, tag=4)
    assert len(ring.reap()) == 4
    ring.sync(file, tag=4)
    assert serve_inline(ring) == 1
    ring.close()


def test_a_tag_in_flight_is_refused(file: BinaryIO) -> None:
    ring = DiskRing(4)
    ring.sync(file, tag=7)
    with pytest.raises(InvalidInputError, match="tag 7 is already in flight"):
        ring.write(file, [b"x"], 0, tag=7)
    serve_inline(ring)
    with pytest.raises(InvalidInputError, match="tag 7"):
        ring.sync(file, tag=7)
    ring.reap()
    ring.sync(file, tag=7)
    ring.close()


def test_reads_need_writable_buffers(file: BinaryIO) -> None:
    ring = DiskRing(4)
    for buffer in (b"bytes", memoryview(b"bytes")):
        with pytest.raises(InvalidInputError, match="writable"):
            ring.read(file, [bytearray(1), buffer], 0, tag=1)
    assert ring.in_flight == 0
    ring.close()


@pytest.mark.parametrize("entries", [-2, 0, 1, 3, 100, limits.DISK_RING_ENTRIES_MAX * 2])
def test_the_size_of_a_ring_is_a_power_of_two(entries: int) -> None:
    with pytest.raises(InvalidInputError, match="power of two"):
        DiskRing(entries)


def test_reap_returns_at_once_if_nothing_is_in_flight(file: BinaryIO) -> None:
    ring = DiskRing(4)
    assert ring.reap(wait_ms=WAIT_MS, count=3) == []
    ring.sync(file, tag=1)
    assert ring.reap() == []
    assert ring.reap(wait_ms=5) == [], "it has no server"
    serve_inline(ring)
    assert ring.reap(count=0, wait_ms=WAIT_MS) == [Completion(1, 0)]
    ring.close()


def test_the_timeout_of_reap_covers_all_completions_together(file: BinaryIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by 30 ms with each completion: the second wait gets what the first left."""
    now_ns = 1_000_000_000
    waits: list[int] = []

    def take(words: object, descriptor: int, taken: np.ndarray, wait_ms: int) -> int:
        nonlocal now_ns
        now_ns += 30_000_000
        waits.append(wait_ms)
        taken[disk_ring.COMPLETE_TAG] = len(waits)
        return 1

    ring = DiskRing(8)
    for tag in range(1, 6):
        ring.sync(file, tag=tag)
    monkeypatch.setattr(ring_module.time, "monotonic_ns", lambda: now_ns)
    monkeypatch.setattr(disk_ring, "take_completion", take)
    assert len(ring.reap(wait_ms=50, count=4)) == 5
    assert waits == [50, 20, -10, -40, 0]
    monkeypatch.undo()
    ring.close()


# --- threads ------------------------------------------------------------------------------------------------------


def test_a_small_ring_completes_many_operations(backend: str, file: BinaryIO) -> None:
    """Fifteen in flight at most, reaped in whatever order they come; each page contains its own number."""
    ring = served_by(backend, 16).ring
    order = np.random.default_rng(5).permutation(OPERATIONS).tolist()
    results: dict[int, int] = {}
    for number, slot in enumerate(order):
        while ring.in_flight == ring.entries:
            results |= {done.tag: done.result for done in ring.reap(wait_ms=WAIT_MS)}
        ring.write(file, [slot.to_bytes(4, "little"), bytes(60)], slot * 64, tag=slot, link=number % 3 == 0)
        if number % 3:
            ring.submit()
    results |= {done.tag: done.result for done in ring.reap(wait_ms=WAIT_MS)}
    ring.sync(file, tag=-1)
    ring.submit()
    while ring.in_flight:
        results |= {done.tag: done.result for done in ring.reap(wait_ms=WAIT_MS)}
    assert results.pop(-1) == 0
    assert results == dict.fromkeys(range(OPERATIONS), 64)
    slots = np.frombuffer(content(file), np.uint32).reshape(-1, 16)
    assert (slots[:, 0] == np.arange(OPERATIONS)).all()
    ring.close()


def test_single_operations_wake_a_sleeping_server_and_submitter(backend: str, file: BinaryIO) -> None:
    """Each waits for its answer, so the server and the submitter block and are woken again and again."""
    ring = served_by(backend, 2).ring
    for index in range(OPERATIONS // 10):
        ring.write(file, [bytes([index % 256])], index, tag=1, sync=index % 7 == 0)
        ring.submit()
        assert ring.reap(wait_ms=WAIT_MS) == [Completion(1, 1)]
    assert content(file) == bytes(index % 256 for index in range(OPERATIONS // 10))
    ring.close()


def test_buffers_live_until_their_completion_is_reaped(file: BinaryIO) -> None:
    """INV-RING-HELD: only the ring still refers to them."""
    ring = DiskRing(4)
    buffer = np.full(4096, 7, np.uint8)
    alive = weakref.ref(buffer)
    ring.write(file, [buffer.data], 0, tag=1)
    del buffer
    gc.collect()
    assert alive() is not None
    serve_inline(ring)
    assert alive() is not None
    assert ring.reap() == [Completion(1, 4096)]
    gc.collect()
    assert alive() is None
    assert content(file) == b"\x07" * 4096
    ring.close()


def test_close_finishes_the_operations_in_flight(backend: str, file: BinaryIO) -> None:
    ring = served_by(backend, 64).ring
    for index in range(63):
        ring.write(file, [bytes([index]) * 512], index * 512, tag=index, link=True)
    ring.sync(file, tag=63)
    server = ring.server
    ring.close()
    assert content(file) == b"".join(bytes([index]) * 512 for index in range(63))
    assert server is not None
    assert server.name == backend
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("seawall-disk")] == []


def test_close_finishes_an_incomplete_chain(backend: str, file: BinaryIO) -> None:
    ring = served_by(backend, 8).ring
    ring.write(file, [b"half a chain"], 0, tag=1, link=True)
    ring.submit()
    ring.close()
    assert content(file) == b"half a chain"


@pytest.mark.parametrize("mode", MODES)
def test_a_closed_ring_refuses_every_call(mode: str, file: BinaryIO) -> None:
    ring = served_by(mode).ring
    ring.close()
    ring.close()
    uses: list[Callable[[], object]] = [
        lambda: ring.write(file, [b"x"], 0, tag=1),
        lambda: ring.read(file, [bytearray(1)], 0, tag=1),
        lambda: ring.sync(file, tag=1),
        ring.submit,
        ring.reap,
    ]
    for use in uses:
        with pytest.raises(WrongStateError, match="closed"):
            use()
    assert ring.poison == 0
    assert ring.server is None


def test_a_garbage_collected_ring_stops_its_thread(backend: str, file: BinaryIO) -> None:
    ring = served_by(backend).ring
    events = [ring.doorbell, ring.completed]
    ring.write(file, [b"forgotten"], 0, tag=1)
    thread = next(each for each in threading.enumerate() if each.name == f"seawall-disk-{backend}")
    del ring
    gc.collect()
    assert not thread.is_alive()
    assert content(file) == b"forgotten"
    for event in events:
        event.close()


def test_the_outcome_of_a_server_counts_its_operations(file: BinaryIO) -> None:
    ring = open_disk_ring()
    server = ring.server
    assert isinstance(server, ring_module.ResidentServer)
    ring.sync(file, tag=1)
    ring.sync(file, tag=2)
    ring.close()
    assert server.outcome == 2


def test_the_outcome_of_a_failed_server_is_minus_errno() -> None:
    ring = DiskRing(4)
    server = ServerThread(ring, "broken", lambda: -errno.EIO, ())
    server.stop()
    ring.close()
    assert server.outcome == -errno.EIO


def test_a_server_that_cannot_start_closes_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    rings: list[DiskRing] = []

    def fails(ring: DiskRing, *_: object) -> None:
        rings.append(ring)
        raise OSError(errno.EAGAIN, "no more threads")

    monkeypatch.setattr(ring_backends, "ResidentServer", fails)
    with pytest.raises(OSError, match="no more threads"):
        open_disk_ring()
    with pytest.raises(WrongStateError, match="closed"):
        rings[0].submit()


def test_events_use_pipes_where_there_is_no_eventfd(file: BinaryIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)
    event = Event()
    assert event.wait_fd != event.signal_fd
    event.signal()
    assert os.read(event.wait_fd, 8) == (1).to_bytes(8, "little")
    event.close()
    ring = open_disk_ring(DiskBackend.RESIDENT, 4)
    for index in range(20):
        ring.write(file, [b"x"], index, tag=index)
        ring.submit()
        assert ring.reap(wait_ms=WAIT_MS) == [Completion(index, 1)]
    ring.close()


def test_serve_with_wakes_a_submitter_blocked_in_reap(file: BinaryIO) -> None:
    """The submitter blocks in `reap` on this thread; another thread serves."""
    ring = DiskRing(4)
    ring.sync(file, tag=1)

    def serve_once_the_submitter_waits() -> None:
        while ring.words[disk_ring.CONTROL_WAITING] == 0:
            pass
        serve_with(ring, execute)

    thread = threading.Thread(target=serve_once_the_submitter_waits)
    thread.start()
    assert ring.reap(wait_ms=WAIT_MS) == [Completion(1, 0)]
    thread.join()
    assert select.select([ring.completed.wait_fd], [], [], 0)[0] == []
    ring.close()


# --- processes ----------------------------------------------------------------------------------------------------


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", script, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)


EXIT_WITHOUT_CLOSE = """
import os, sys
from seawall.io.disk.ring_backends import open_disk_ring
class File:
    descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    def fileno(self):
        return self.descriptor
file = File()
rings = [open_disk_ring(backend) for backend in sys.argv[2:]]
for number, ring in enumerate(rings):
    for index in range(100):
        ring.write(file, [bytes([index]) * 100], (number * 100 + index) * 100, tag=index)
    ring.sync(file, tag=100)
"""


def test_a_process_that_exits_without_close_finishes_its_operations(backends: list[str], tmp_path: Path) -> None:
    done = run(EXIT_WITHOUT_CLOSE, tmp_path / "file", *backends)
    assert done.stderr == ""
    written = b"".join(bytes([index]) * 100 for index in range(100))
    assert (tmp_path / "file").read_bytes() == written * len(backends)


USE_IN_CHILD = """
import os, sys
from seawall.errors import UnsupportedError, WrongStateError
from seawall.io.disk.ring_backends import open_disk_ring
def use_in_child(path, backend):
    file = open(path, "w+b", buffering=0)
    ring = open_disk_ring(backend)
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (lambda: ring.sync(file, tag=9), ring.submit, ring.reap):
            try:
                use()
            except UnsupportedError as error:
                refused += "forked child" in str(error)
        ring.close()
        own = open_disk_ring(backend)
        own.write(file, [b"child"], 0, tag=1)
        own.submit()
        done = own.reap(wait_ms=20_000)
        own.close()
        del ring
        sys.exit(0 if refused == 3 and done[0].result == 5 else 1)
    assert os.waitpid(child, 0)[1] == 0
    ring.write(file, [b"parent"], 5, tag=2)
    ring.submit()
    assert [done.result for done in ring.reap(wait_ms=20_000)] == [6]
    ring.close()
    file.close()
for backend in sys.argv[2:]:
    use_in_child(os.path.join(sys.argv[1], backend), backend)
"""


def test_a_forked_child_opens_its_own_ring(backends: list[str], tmp_path: Path) -> None:
    run(USE_IN_CHILD, tmp_path, *backends)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(backends, b"childparent")


def test_a_ring_refuses_another_process_id(file: BinaryIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same check in this process, under another process id."""
    ring = DiskRing(4)
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    with pytest.raises(UnsupportedError, match="forked child"):
        ring.submit()
    ring.close()
    monkeypatch.undo()
    ring.submit()
    ring.close()


# --- the ring driven by a kernel ----------------------------------------------------------------------------------


def chain_words(file: BinaryIO, vector: np.ndarray) -> np.ndarray:
    words = np.zeros((2, 7), np.int64)
    words[0] = 1, disk_ring.WRITE | disk_ring.LINK, file.fileno(), vector.ctypes.data, 1, 0, vector[1]
    words[1] = 2, disk_ring.SYNC, file.fileno(), 0, 0, 0, 0
    return words.reshape(-1)


def test_a_kernel_submits_operations_and_measures_their_latency(backend: str, file: BinaryIO) -> None:
    ring = served_by(backend).ring
    page = np.full(100, 7, np.uint8)
    vector = np.array([page.ctypes.data, page.size], np.int64)
    operations, latencies = chain_words(file, vector), np.zeros(20, np.int64)
    descriptors = ring.doorbell.signal_fd, ring.completed.wait_fd
    assert disk_ring.measure_chain(ring.words, *descriptors, operations, latencies) == 0
    assert (latencies > 0).all()
    assert content(file) == page.tobytes()
    operations[disk_ring.SUBMIT_FD] = -1
    assert disk_ring.measure_chain(ring.words, *descriptors, operations, latencies) == -errno.EBADF
    ring.close()


def test_reap_raises_if_the_server_has_ended(file: BinaryIO) -> None:
    """A waiting submitter gets an error and does not wait for its timeout."""

    class Ended:
        name = "ended"
        outcome = -errno.ENXIO

        def stop(self) -> None:
            return None

    ring = DiskRing(4)
    ring.server = Ended()
    ring.sync(file, tag=1)
    try:
        with pytest.raises(FatalError, match="No such device"):
            ring.reap(wait_ms=60_000)
    finally:
        ring.close()


def test_closing_an_event_twice_closes_its_descriptors_once() -> None:
    event = Event()
    descriptor = event.wait_fd
    event.close()
    event.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
