"""Whether bytes of a file are in memory, and how to bring them there.

Whoever must not wait for a disk looks first: a read that may not wait fails where it would have to. The last byte of
every MiB of a stretch is looked at, because the system brings pages in long runs. Where it cannot tell, everything
counts as near.
"""

from __future__ import annotations

import os
from typing import Final

from seawall.limits import MIB

__all__ = ["bring_near", "is_near"]

_PIECE_SIZE: Final = 1 * MIB
_MAY_NOT_WAIT: Final = getattr(os, "RWF_NOWAIT", None)


def is_near(file: int, at: int, size: int) -> bool:
    """Whether a stretch of a file can probably be read without a wait."""
    if _MAY_NOT_WAIT is None:
        return True
    byte = bytearray(1)
    try:
        for end in (*range(at + _PIECE_SIZE, at + size, _PIECE_SIZE), at + size):
            os.preadv(file, [byte], end - 1, _MAY_NOT_WAIT)
    except BlockingIOError:
        return False
    except OSError:
        # This file system takes no such reads.
        return True
    return True


def bring_near(file: int, at: int, size: int) -> None:
    """Read a stretch of a file, so that it is in memory; an error is told to whoever reads it then."""
    space = bytearray(_PIECE_SIZE)
    end = at + size
    try:
        while at < end:
            count = os.preadv(file, [memoryview(space)[: end - at]], at)
            if not count:
                return
            at += count
    except OSError:
        return
