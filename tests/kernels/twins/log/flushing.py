"""Gathering of pieces with slices of `bytes`."""

from __future__ import annotations

from seawall.kernels.log.flushing import Integers
from seawall.kernels.runtime.memory import Bytes


def join_pieces(target: Bytes, source: Bytes, starts: Integers, lengths: Integers) -> int:
    """Join the slices."""
    data = bytes(source)
    joined = b"".join(
        data[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    )
    target[: len(joined)] = memoryview(joined)
    return len(joined)
