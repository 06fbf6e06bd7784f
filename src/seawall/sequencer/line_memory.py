"""Arrays of zeros that begin on a cache line, and large ones on a large page.

What is 64 bytes long and lies in such an array is one line; elsewhere it is two, and each of them is a wait of its own
where memory is far. What is a line apart is on two lines, so that two writers do not disturb each other.

Where arrays are touched at random, finding the page costs as much as the line. The system gives large pages to what
numpy has asked for in one piece of 4 MiB or more, wherever that covers a whole one. So small arrays that belong
together are parts of one piece.

Zeros cost no memory until they are touched. It must not know what the arrays are for.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from seawall.limits import CACHE_LINE_SIZE, MIB

#: Bytes of a large page, and from how many on memory begins on one.
LARGE_PAGE: Final = 2 * MIB
LARGE_PIECE: Final = 2 * LARGE_PAGE

Shape = int | tuple[int, ...]


def line_zeros(shape: Shape, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros of a shape and type, the first one on a cache line."""
    return line_zeros_together((shape, dtype))[0]


def line_zeros_together(*wanted: tuple[Shape, npt.DTypeLike]) -> list[npt.NDArray[Any]]:
    """Arrays of zeros in one piece of memory, the first of each on a cache line."""
    sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in wanted]
    *starts, total = accumulate((size + -size % CACHE_LINE_SIZE for size in sizes), initial=0)
    alignment = LARGE_PAGE if total >= LARGE_PIECE else CACHE_LINE_SIZE
    memory = np.zeros(total + alignment, np.uint8)
    first = -memory.ctypes.data % alignment
    return [
        memory[first + start : first + start + size].view(dtype).reshape(shape)
        for start, size, (shape, dtype) in zip(starts, sizes, wanted, strict=True)
    ]
