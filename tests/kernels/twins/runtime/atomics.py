"""What the atomic operations do to memory that only the caller uses.

Their purpose is to order the accesses of several threads, which a twin cannot show.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seawall.kernels.runtime.memory import Bytes

_Words = npt.NDArray[np.uint64]
_HalfWords = npt.NDArray[np.uint32]


def load_acquire_u64(array: _Words, index: int) -> int:
    """The element."""
    return int(array[index])


def store_release_u64(array: _Words, index: int, value: int) -> None:
    """Set the element."""
    array[index] = value


def fetch_add_u64(array: _Words, index: int, value: int) -> int:
    """Add modulo 2^64; returns the previous value."""
    before = int(array[index])
    array[index] = (before + value) % 2**64
    return before


def compare_exchange_u64(array: _Words, index: int, expected: int, desired: int) -> int:
    """Set the element if it is as expected; returns the previous value."""
    before = int(array[index])
    array[index] = desired if before == expected else before
    return before


def load_acquire_u32(array: _HalfWords, index: int) -> int:
    """The element."""
    return int(array[index])


def store_release_u32(array: _HalfWords, index: int, value: int) -> None:
    """Set the element."""
    array[index] = value


def fetch_add_u32(array: _HalfWords, index: int, value: int) -> int:
    """Add modulo 2^32; returns the previous value."""
    before = int(array[index])
    array[index] = (before + value) % 2**32
    return before


def compare_exchange_u32(array: _HalfWords, index: int, expected: int, desired: int) -> int:
    """Set the element if it is as expected; returns the previous value."""
    before = int(array[index])
    array[index] = desired if before == expected else before
    return before


def flush_lines(array: Bytes, start: int, end: int) -> None:
    """Change nothing: a reader cannot see where bytes are cached."""


def add_many(array: _Words, index: int, times: int) -> int:
    """Add `times` modulo 2^64."""
    fetch_add_u64(array, index, times)
    return times
