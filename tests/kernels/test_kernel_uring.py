"""Translation between a disk ring and io_uring's entries, on plain arrays without a queue of the kernel."""

from __future__ import annotations

import errno

import numpy as np
import numpy.typing as npt
import pytest

from seawall.kernels.runtime import disk_ring, rings, uring
from seawall.kernels.runtime.system import RWF_DSYNC

ENTRIES = 4
Words = npt.NDArray[np.int64]


class Queue:
    """The arrays of a queue of eight entries, with the layout of the operating system's kernel."""

    def __init__(self, tail: int = 0) -> None:
        self.ring = np.zeros(disk_ring.ring_words(ENTRIES), np.int64)
        self.sq, self.cq = np.zeros(16, np.uint32), np.zeros(4, np.uint32)
        self.sqes, self.cqes = np.full(64, -1, np.int64), np.zeros(32, np.int64)
        self.layout = np.zeros(uring.LAYOUT_WORDS, np.int64)
        self.layout[[uring.SQ_TAIL, uring.SQ_MASK, uring.SQ_ARRAY]] = 0, 1, 2
        self.layout[[uring.CQ_HEAD, uring.CQ_TAIL, uring.CQ_MASK]] = 0, 1, 2
        self.sq[:2] = tail, 7
        self.cq[:3] = tail, tail, 15
        self.pending = np.zeros(ENTRIES * uring.PENDING_WORDS, np.int64)
        self.pending[2 :: uring.PENDING_WORDS] = [1, 2, 3, uring.NO_FREE]

    def submit(self, tag: int, kind: int, *, link: bool = False) -> None:
        words = np.array([tag, kind | (disk_ring.LINK if link else 0), 5, 0x1000 + tag, 2, 4096, 10], np.int64)
        assert disk_ring.submit(self.ring, words) == 1

    def take_operations(self) -> int:
        return uring._take_operations(self.ring, self.sq, self.sqes, self.layout, self.pending)

    def chain_is_ready(self) -> int:
        return uring._chain_is_ready(self.ring, self.layout)

    def entry(self, index: int) -> Words:
        slot = int(self.sq[2 + index % 8])
        return self.sqes[slot * 8 : slot * 8 + 8]

    def complete(self, identity: int, result: int) -> None:
        tail = int(self.cq[1])
        base = (tail & 15) * 2
        # The upper half are flags that the kernel may set.
        self.cqes[base : base + 2] = identity, (result & 0xFFFFFFFF) | 3 << 32
        self.cq[1] = (tail + 1) % 2**32

    def take_results(self) -> int:
        return uring._take_results(self.ring, self.cq, self.cqes, self.layout, self.pending)

    def completions(self) -> list[tuple[int, int]]:
        taken, found = np.zeros(7, np.int64), []
        slots, counters = disk_ring.complete_slots(self.ring), disk_ring.complete_counters(self.ring)
        while rings.ring_pop(slots, counters, taken):
            found.append((int(taken[0]), int(taken[1])))
        return found


@pytest.mark.parametrize("tail", [0, 5, 2**32 - 2])
def test_operations_become_entries(tail: int) -> None:
    queue = Queue(tail)
    queue.submit(10, disk_ring.WRITE, link=True)
    queue.submit(11, disk_ring.SYNC)
    queue.submit(12, disk_ring.WRITE_SYNC)
    queue.submit(13, disk_ring.READ, link=True)
    queue.ring[disk_ring.CONTROL_STOP] = 1
    assert queue.take_operations() == 4
    assert queue.sq[0] == (tail + 4) % 2**32
    fd, flag = 5 << 32, 4 << 8
    expected = [
        [2 | flag | fd, 4096, 0x1000 + 10, 2, 0, 0, 0, 0],
        [3 | fd, 0, 0, 1 << 32, 1, 0, 0, 0],
        [2 | fd, 4096, 0x1000 + 12, 2 | RWF_DSYNC << 32, 2, 0, 0, 0],
        [1 | flag | fd, 4096, 0x1000 + 13, 2, 3, 0, 0, 0],
    ]
    assert [queue.entry(tail + index).tolist() for index in range(4)] == expected
    assert queue.layout[uring.FREE] == uring.NO_FREE
    assert queue.layout[uring.IN_FLIGHT] == 4


@pytest.mark.parametrize("tail", [0, 14, 2**32 - 2])
def test_results_in_any_order_free_their_entries(tail: int) -> None:
    queue = Queue(tail)
    for tag in (10, 11, 12):
        queue.submit(tag, disk_ring.WRITE)
    assert queue.take_operations() == 3
    queue.complete(2, 10)
    queue.complete(-1, 8)
    queue.complete(0, -errno.ENOSPC)
    assert queue.take_results() == 1, "the doorbell rang"
    assert queue.completions() == [(12, 10), (10, -errno.ENOSPC)]
    assert queue.layout[uring.IN_FLIGHT] == 1
    assert queue.take_results() == 0
    assert queue.cq[0] == queue.cq[1] == (tail + 3) % 2**32
    for tag in (20, 21, 22):
        queue.submit(tag, disk_ring.READ)
    assert queue.take_operations() == 3
    assert [int(queue.entry(tail + 3 + index)[4]) for index in range(3)] == [0, 2, 3]


def test_an_incomplete_chain_stays_queued() -> None:
    queue = Queue()
    queue.submit(1, disk_ring.WRITE, link=True)
    assert queue.chain_is_ready() == 0
    assert queue.take_operations() == 0
    queue.submit(2, disk_ring.WRITE, link=True)
    assert queue.take_operations() == 0
    queue.submit(3, disk_ring.SYNC)
    assert queue.chain_is_ready() == 1
    assert queue.take_operations() == 3


def test_complete_chains_are_taken_and_the_incomplete_one_stays() -> None:
    queue = Queue()
    queue.submit(1, disk_ring.WRITE, link=True)
    queue.submit(2, disk_ring.SYNC)
    queue.submit(3, disk_ring.WRITE, link=True)
    assert queue.take_operations() == 2
    assert disk_ring.has_operation(queue.ring) == 1


def test_a_chain_that_fills_the_ring_is_taken_incomplete() -> None:
    queue = Queue()
    for tag in range(ENTRIES):
        queue.submit(tag, disk_ring.WRITE, link=True)
    assert queue.take_operations() == ENTRIES


def test_an_incomplete_chain_is_taken_at_a_stop() -> None:
    queue = Queue()
    assert queue.chain_is_ready() == 0
    queue.ring[disk_ring.CONTROL_STOP] = 1
    assert queue.chain_is_ready() == 0
    queue.submit(1, disk_ring.WRITE, link=True)
    assert queue.take_operations() == 1


def test_a_poisoned_ring_executes_only_reads() -> None:
    queue = Queue()
    queue.ring[disk_ring.CONTROL_POISON] = -errno.EIO
    queue.submit(1, disk_ring.WRITE, link=True)
    queue.submit(2, disk_ring.SYNC)
    queue.submit(3, disk_ring.READ)
    assert queue.take_operations() == 1
    assert queue.completions() == [(1, -errno.EIO), (2, -errno.ECANCELED)]


def test_a_sync_that_succeeds_after_a_failed_one_is_reported_as_failed() -> None:
    queue = Queue()
    queue.submit(1, disk_ring.SYNC)
    queue.submit(2, disk_ring.SYNC)
    assert queue.take_operations() == 2
    queue.complete(0, -errno.EIO)
    queue.complete(1, 0)
    queue.take_results()
    assert queue.completions() == [(1, -errno.EIO), (2, -errno.EIO)]


@pytest.mark.parametrize("result", [0, -errno.EIO, -errno.ECANCELED])
def test_operations_after_a_sync_in_its_chain_wait_for_it(result: int) -> None:
    """INV-DISK-LINK: the operating system would continue after a failed sync."""
    queue = Queue()
    queue.submit(1, disk_ring.WRITE, link=True)
    queue.submit(2, disk_ring.SYNC, link=True)
    queue.submit(3, disk_ring.WRITE, link=True)
    queue.submit(4, disk_ring.SYNC)
    assert queue.take_operations() == 2
    assert queue.entry(1)[0] == 3 | 5 << 32, "the sync itself has no link"
    assert queue.chain_is_ready() == 0
    queue.complete(0, 10)
    queue.take_results()
    assert queue.take_operations() == 0
    queue.complete(1, result)
    queue.take_results()
    assert queue.completions() == [(1, 10), (2, result)]
    if result == 0:
        assert queue.take_operations() == 2
        assert queue.completions() == []
    else:
        assert queue.take_operations() == 0
        assert queue.completions() == [(3, -errno.ECANCELED), (4, -errno.ECANCELED)]
        assert queue.ring[disk_ring.CONTROL_CHAIN_BROKEN] == 0


def test_a_chain_after_a_broken_one_is_unaffected() -> None:
    queue = Queue()
    queue.submit(1, disk_ring.SYNC, link=True)
    queue.submit(2, disk_ring.WRITE)
    queue.submit(3, disk_ring.READ)
    assert queue.take_operations() == 1
    queue.complete(0, -errno.EINVAL)
    queue.take_results()
    assert queue.take_operations() == 1
    assert queue.completions() == [(1, -errno.EINVAL), (2, -errno.ECANCELED)]
    assert queue.entry(1)[0] == 1 | 5 << 32
