"""Arrays of zeros that begin on a cache line.

What is 64 bytes long and lies in such an array is one line; elsewhere it is two, and each of them is a wait of its own
where memory is far. What is a line apart is on two lines, so that two writers do not disturb each other.

Zeros cost no memory until they are touched. It must not know what the arrays are for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seawall.limits import CACHE_LINE_SIZE


def line_zeros(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros of a shape and type, the first one on a cache line."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    memory = np.zeros(size + CACHE_LINE_SIZE, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE_SIZE
    return memory[first : first + size].view(kind).reshape(shape)
