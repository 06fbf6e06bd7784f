"""Tells whether a range of a file is in the page cache, and loads it there.

Code that must not block on a disk checks first, with reads that fail instead of blocking (RWF_NOWAIT). The check reads
the last byte of every MiB of the range, because the system reads ahead in long runs. Where the system has no such
reads, every range counts as cached ("near").
"""

from __future__ import annotations

import os
from typing import Final

from seawall.limits import MIB

__all__ = ["is_cached", "load_into_cache"]

_STEP_SIZE: Final = 1 * MIB
_NO_WAIT: Final = getattr(os, "RWF_NOWAIT", None)


def is_cached(file: int, at: int, size: int) -> bool:
    """True if a range of a file can probably be read without blocking on the disk."""
    if _NO_WAIT is None:
        return True
    byte = bytearray(1)
    try:
        for end in (*range(at + _STEP_SIZE, at + size, _STEP_SIZE), at + size):
            os.preadv(file, [byte], end - 1, _NO_WAIT)
    except BlockingIOError:
        return False
    except OSError:
        # This file system does not support such reads.
        return True
    return True


def load_into_cache(file: int, at: int, size: int) -> None:
    """Read a range of a file into the page cache; ignores errors, which the caller's own read will report."""
    discarded = bytearray(_STEP_SIZE)
    end = at + size
    try:
        while at < end:
            count = os.preadv(file, [memoryview(discarded)[: end - at]], at)
            if not count:
                return
            at += count
    except OSError:
        return
