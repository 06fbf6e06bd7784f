"""Arrays that begin on a cache line."""

from __future__ import annotations

import numpy as np
import pytest

from seawall.limits import CACHE_LINE_SIZE
from seawall.sequencer.line_memory import line_zeros


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
