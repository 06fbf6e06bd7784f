"""Arrays that begin on a cache line."""

from __future__ import annotations

import numpy as np
import pytest

from seawall.limits import CACHE_LINE_SIZE
from seawall.sequencer.aligned_arrays import LARGE_PAGE, LARGE_PIECE, line_zeros, line_zeros_together


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.dtype([("a", np.uint64), ("b", np.uint64)])])
@pytest.mark.parametrize("shape", [0, 1, 7, (3, 8), (1_000, 8)])
def test_zeros_begin_on_a_line(shape: int | tuple[int, ...], dtype: np.dtype[np.void]) -> None:
    kept = [line_zeros(shape, dtype) for _ in range(5)]
    for array in kept:
        assert array.ctypes.data % CACHE_LINE_SIZE == 0 or not array.size
        assert array.shape == np.zeros(shape).shape
        assert array.dtype == dtype
        assert array.flags.c_contiguous
        assert not array.view(np.uint8).any()
        array.view(np.uint8)[...] = 1
    assert all(array.view(np.uint8).all() for array in kept)


def test_arrays_of_one_piece_do_not_overlap() -> None:
    kept = line_zeros_together((3, np.uint8), ((5, 8), np.uint64), (0, np.int64), (7, np.int64))
    for number, array in enumerate(kept, 1):
        assert array.ctypes.data % CACHE_LINE_SIZE == 0 or not array.size
        array[...] = number
    assert [np.unique(array).tolist() for array in kept] == [[1], [2], [], [4]]
    assert [array.shape for array in kept] == [(3,), (5, 8), (0,), (7,)]


def test_a_large_piece_begins_on_a_large_page() -> None:
    first, second = line_zeros_together((LARGE_PIECE - 64, np.uint8), (8, np.int64))
    assert first.ctypes.data % LARGE_PAGE == 0
    assert second.ctypes.data == first.ctypes.data + LARGE_PIECE - 64
