"""What copying means, byte by byte."""

from __future__ import annotations

from seawall.kernels.runtime.memory import Bytes


def copy_block(target: Bytes, target_at: int, source: Bytes, source_at: int, length: int) -> None:
    """Copy `length` bytes."""
    for index in range(length):
        target[target_at + index] = source[source_at + index]


def copy_out(target: Bytes, target_at: int, source: Bytes, source_at: int, length: int) -> None:
    """The same: whether caches are bypassed is not visible."""
    copy_block(target, target_at, source, source_at, length)
