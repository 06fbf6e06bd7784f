"""Gathers scattered batches of the log into the contiguous bytes of a segment write."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, int64_in, kernel
from seawall.kernels.runtime.memory import Bytes, copy_bytes

Integers = npt.NDArray[Any]


@kernel(int64(bytes_out, bytes_in, int64_in, int64_in))
def join_pieces(target: Bytes, source: Bytes, starts: Integers, lengths: Integers) -> int:
    """Concatenate the pieces of `source` that begin at `starts` into `target`; returns the bytes copied."""
    at = 0
    for index in range(starts.size):
        copy_bytes(target, at, source, starts[index], lengths[index])
        at += lengths[index]
    return at
