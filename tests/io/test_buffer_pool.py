"""The buffer pool: buffers of deleted files serve new files, and never two at a time."""

from __future__ import annotations

import gc
import mmap
from concurrent.futures import ThreadPoolExecutor

import pytest

from seawall.io.disk.buffer_pool import BUFFER_SIZE_MAX, BufferPool
from seawall.limits import KIB, MIB


def test_a_buffer_returns_to_the_pool_with_its_last_view() -> None:
    pool = BufferPool()
    buffer = pool.take(MIB)
    buffer[:3] = 7
    view = buffer[10:20][2:].data[1:]
    del buffer
    assert pool.size == 0
    other = pool.take(MIB)
    assert not other[:3].any()
    del view
    assert pool.size == MIB
    again = pool.take(MIB)
    assert again[:3].tolist() == [7, 7, 7]
    assert pool.size == 0


def test_buffers_of_a_few_sizes_serve_files_of_any_size() -> None:
    pool = BufferPool()
    old = [pool.take(size) for size in (4 * MIB, 4 * MIB, 64 * KIB)]
    old.clear()
    assert pool.size == 8 * MIB + 64 * KIB
    taken = [pool.take(size) for size in (64 * KIB, 128 * KIB, BUFFER_SIZE_MAX)]
    assert pool.size == 4 * MIB
    assert [len(buffer) for buffer in taken] == [64 * KIB, 128 * KIB, BUFFER_SIZE_MAX]


def test_free_bytes_are_bounded_by_a_constant_plus_half_of_the_bytes_in_use() -> None:
    pool = BufferPool()
    buffers = [pool.take(10 * MIB) for _ in range(20)]
    del buffers[:10]
    assert pool.size == 100 * MIB
    buffers.clear()
    assert pool.size == 60 * MIB
    large = [pool.take(32 * MIB) for _ in range(4)]
    large.clear()
    assert pool.size <= 64 * MIB


def test_a_buffer_dropped_during_a_take_is_collected_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BufferPool()

    class FreeLists(dict[int, list[mmap.mmap]]):
        """Drops the last view of a buffer in the middle of a lookup, as a garbage collection may."""

        def get(self, size: int, default: object = None) -> object:
            held.clear()
            gc.collect()
            return dict.get(self, size, default)

    held = [pool.take(MIB)]
    monkeypatch.setattr(pool, "_free", FreeLists())
    taken = pool.take(MIB)
    assert (len(taken), pool.size) == (MIB, MIB)


def test_threads_never_share_a_buffer() -> None:
    pool = BufferPool()

    def work(number: int) -> None:
        for _ in range(200):
            buffer, other = pool.take(64 * KIB), pool.take(128 * KIB)
            buffer[:], other[:] = number, number
            assert (buffer == number).all()
            assert (other == number).all()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(1, 9)))
    assert pool._used == 0
    assert pool.size <= 8 * 192 * KIB
