"""io_uring behind a disk ring: set-up, refusal, chains and shutdown."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from seawall.config import DiskBackend
from seawall.errors import FullError, UnsupportedError
from seawall.io.disk import uring as uring_module
from seawall.io.disk.disk_ring import Completion, DiskRing, ServerThread
from seawall.io.disk.ring_backends import open_disk_ring
from seawall.io.disk.uring import KernelQueue, UringServer, probe
from seawall.kernels.runtime import disk_ring
from seawall.kernels.runtime import uring as kernel

needs_uring = pytest.mark.skipif(not probe().available, reason=f"io_uring does not work here: {probe().detail}")
WAIT_MS = 20_000


@pytest.fixture
def file(tmp_path: Path) -> Iterator[BinaryIO]:
    with (tmp_path / "file").open("w+b", buffering=0) as opened:
        yield opened


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@needs_uring
def test_the_probe_reports_that_a_real_write_worked() -> None:
    found = probe.__wrapped__()
    assert found.available
    assert "worked in" in found.detail


@pytest.mark.parametrize(("refusal", "reason"), [(-errno.EPERM, "not permitted"), (-errno.ENOSYS, "not implemented")])
def test_a_system_that_forbids_io_uring_is_reported(refusal: int, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uring_module, "libc_call", lambda *_: refusal)
    found = probe.__wrapped__()
    assert not found.available
    assert reason in found.detail
    with pytest.raises(UnsupportedError, match="use the resident back end"):
        open_disk_ring(DiskBackend.URING)


def test_io_uring_is_unsupported_outside_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uring_module, "IS_LINUX", False)
    with pytest.raises(UnsupportedError, match="Linux only"):
        KernelQueue(4)
    assert not probe.__wrapped__().available


@needs_uring
def test_a_queue_that_gives_wrong_results_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskRing, "reap", lambda *_, **__: [Completion(1, 512)])
    found = probe.__wrapped__()
    assert not found.available
    assert "gave {1: 512}" in found.detail


@needs_uring
def test_a_queue_that_cannot_be_mapped_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors: list[int] = []

    def fails(descriptor: int, *_: object, **__: object) -> None:
        descriptors.append(descriptor)
        raise OSError(errno.ENOMEM, "no memory to map")

    monkeypatch.setattr(mmap, "mmap", fails)
    with pytest.raises(OSError, match="no memory"):
        KernelQueue(4)
    assert not is_open(descriptors[0])


@needs_uring
def test_closing_a_queue_closes_its_descriptor_once() -> None:
    queue = KernelQueue(8)
    descriptor = queue.fd
    assert is_open(descriptor)
    assert queue.sqes.size >= 9 * 8
    assert queue.cqes.size >= 2 * 9
    queue.close()
    queue.close()
    assert not is_open(descriptor)


@needs_uring
def test_the_server_returns_the_error_of_the_kernel() -> None:
    queue = KernelQueue(4)
    ring = DiskRing(4)
    queue.layout[kernel.URING_FD] = -1
    arrays = queue.sq, queue.cq, queue.sqes, queue.cqes, queue.layout, queue.pending
    outcome = kernel.serve_uring(ring.words, ring.doorbell.wait_fd, ring.completed.signal_fd, *arrays)
    assert outcome == -errno.EBADF
    del arrays
    queue.close()
    ring.close()


@needs_uring
def test_nothing_is_in_flight_after_a_server_stops(file: BinaryIO) -> None:
    """The kernel has completed every entry, including the reads of the doorbell."""
    for round_number in range(20):
        ring = open_disk_ring(DiskBackend.URING, 2)
        if round_number % 2:
            ring.write(file, [b"x"], 0, tag=1)
            ring.submit()
        server = ring.server
        assert isinstance(server, UringServer)
        ServerThread.stop(server)
        queue = server._queue
        submitted = queue.sq[queue.layout[kernel.SQ_TAIL]]
        assert submitted == queue.cq[queue.layout[kernel.CQ_TAIL]]
        assert submitted >= round_number % 2
        assert server.outcome == 0
        ring.close()


@needs_uring
def test_completions_arrive_while_a_chain_is_partly_submitted(file: BinaryIO) -> None:
    """A ring is full in the middle of a chain: earlier operations complete, then the chain continues."""
    ring = open_disk_ring(DiskBackend.URING, 4)
    for _ in range(20):
        for tag in range(3):
            ring.write(file, [b"x"], tag, tag=tag)
        ring.write(file, [b"chain"], 3, tag=3, link=True)
        with pytest.raises(FullError):
            ring.sync(file, tag=4)
        ring.submit()
        assert sorted(done.tag for done in ring.reap(wait_ms=WAIT_MS, count=3)) == [0, 1, 2]
        assert ring.reap() == []
        ring.sync(file, tag=4)
        ring.submit()
        assert ring.reap(wait_ms=WAIT_MS, count=2) == [Completion(3, 5), Completion(4, 0)]
    ring.close()


@needs_uring
def test_a_blocked_operation_does_not_delay_later_ones(file: BinaryIO) -> None:
    """A read of an empty pipe blocks; the write after it completes."""
    ring = open_disk_ring(DiskBackend.URING, 4)
    read_end, write_end = os.pipe()
    buffer = bytearray(5)
    with open(read_end, "rb", buffering=0) as pipe:
        ring.read(pipe, [buffer], -1, tag=1)
        ring.write(file, [b"quick"], 0, tag=2)
        ring.submit()
        assert ring.reap(wait_ms=WAIT_MS) == [Completion(2, 5)]
        os.write(write_end, b"late!")
        assert ring.reap(wait_ms=WAIT_MS) == [Completion(1, 5)]
    os.close(write_end)
    assert buffer == b"late!"
    ring.close()


@needs_uring
def test_a_chain_may_contain_a_durable_write(file: BinaryIO) -> None:
    ring = open_disk_ring(DiskBackend.URING, 8)
    block = np.arange(4096, dtype=np.uint8)
    ring.write(file, [block], 0, tag=1, link=True)
    ring.write(file, [block], 4096, tag=2, link=True, sync=True)
    ring.sync(file, tag=3)
    ring.submit()
    assert ring.reap(wait_ms=WAIT_MS, count=3) == [Completion(1, 4096), Completion(2, 4096), Completion(3, 0)]
    assert os.pread(file.fileno(), 9000, 0) == block.tobytes() * 2
    assert ring.words[disk_ring.CONTROL_POISON] == 0
    ring.close()
