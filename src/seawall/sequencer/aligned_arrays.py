"""Allocates arrays of zeros that begin on a cache line, and large ones on a huge page.

An aligned record of 64 bytes is in one cache line; otherwise it spans two, and each of them can be a cache miss.
Records a line apart are in different lines, so two writers do not slow each other down by false sharing.

With random access, a TLB miss costs as much as a cache miss. The system backs an allocation by numpy of 4 MiB or more
with huge pages, wherever it covers a whole one. So small arrays that are used together share one allocation.

Zeros cost no memory until they are touched. This module must not know the purpose of the arrays.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from seawall.limits import CACHE_LINE_SIZE, MIB

#: The size of a huge page, and the allocation size from which on memory is aligned to one.
LARGE_PAGE: Final = 2 * MIB
LARGE_PIECE: Final = 2 * LARGE_PAGE

Shape = int | tuple[int, ...]


def line_zeros(shape: Shape, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array of zeros that begins on a cache line."""
    return line_zeros_together((shape, dtype))[0]


def line_zeros_together(*wanted: tuple[Shape, npt.DTypeLike]) -> list[npt.NDArray[Any]]:
    """Arrays of zeros in one allocation, each beginning on a cache line."""
    sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in wanted]
    *starts, total = accumulate((size + -size % CACHE_LINE_SIZE for size in sizes), initial=0)
    alignment = LARGE_PAGE if total >= LARGE_PIECE else CACHE_LINE_SIZE
    memory = np.zeros(total + alignment, np.uint8)
    first = -memory.ctypes.data % alignment
    return [
        memory[first + start : first + start + size].view(dtype).reshape(shape)
        for start, size, (shape, dtype) in zip(starts, sizes, wanted, strict=True)
    ]
