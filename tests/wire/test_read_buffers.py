"""Read buffers: memory is reused only after its last view is gone."""

import gc

import numpy as np
import pytest

from seawall.kernels.runtime.memory import LINE_SIZE
from seawall.limits import MIB, READ_BUFFER_SIZE_MAX, READ_MEMORY_KEPT
from seawall.wire.format.read_buffers import ReadBuffers


def test_a_buffer_is_reused_only_after_its_last_view_is_gone() -> None:
    """INV-BUFFER-ALONE."""
    buffers = ReadBuffers()
    array = buffers.take(3 * MIB)
    assert array.size == 3 * MIB
    address = array.ctypes.data
    view = array.data[100:200]
    del array
    part = np.frombuffer(view, np.uint8)[10:]
    del view
    gc.collect()
    assert buffers.free_size == 0
    other = buffers.take(3 * MIB)
    assert other.ctypes.data != address
    del part
    assert buffers.free_size == 4 * MIB
    again = buffers.take(4 * MIB)
    assert again.ctypes.data == address
    assert buffers.free_size == 0


def test_a_slice_keeps_its_buffer_in_use() -> None:
    buffers = ReadBuffers()
    part = buffers.take(MIB)[5:10]
    assert buffers.free_size == 0
    del part
    assert buffers.free_size == MIB


@pytest.mark.parametrize("length", [0, 1, MIB // 2, READ_BUFFER_SIZE_MAX + 1])
def test_small_and_very_large_buffers_are_not_kept(length: int) -> None:
    buffers = ReadBuffers()
    array = buffers.take(length)
    assert array.size == length
    del array
    assert buffers.free_size == 0


def test_the_kept_memory_is_bounded() -> None:
    buffers = ReadBuffers()
    held = [buffers.take(8 * MIB) for _ in range(READ_MEMORY_KEPT // (8 * MIB) + 3)]
    held.clear()
    assert buffers.free_size == READ_MEMORY_KEPT


def test_buffers_start_on_a_cache_line() -> None:
    buffers = ReadBuffers()
    taken = [buffers.take(length) for length in (MIB, 3 * MIB, READ_BUFFER_SIZE_MAX)]
    assert [array.ctypes.data % LINE_SIZE for array in taken] == [0, 0, 0]


def test_recently_used_buffers_replace_older_ones() -> None:
    buffers = ReadBuffers()
    before = [buffers.take(2 * MIB) for _ in range(READ_MEMORY_KEPT // (2 * MIB))]
    before.clear()
    assert buffers.free_size == READ_MEMORY_KEPT
    large = buffers.take(8 * MIB)
    address = large.ctypes.data
    del large
    assert buffers.free_size == READ_MEMORY_KEPT
    assert buffers.take(8 * MIB).ctypes.data == address
