"""Stretches of files that could not be sent as they lie: the next reader gets them read and verified instead.

A frame whose beginning was sent cannot be taken back. Where the disk fails inside it the connection ends, and its
reader asks for the same range again. So the server remembers where that was: it reads the range then, tells what is
damaged as a gap, and the reader goes on behind it.

What is remembered is a block of a file, by its path. A block that is forgotten, or whose file got another name, costs
one more connection. A block that is remembered without need costs speed alone, so nothing takes it back.

At most `limits.UNFIT_BLOCKS_MAX` blocks are remembered; the one noted longest ago goes first.

All loops of a process share what is remembered: a reader that connects again may be dealt to another one. Safe from any
thread. A crash forgets it. This module must not know what is in a file.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from seawall import limits

__all__ = ["UNFIT", "UnfitRanges"]

#: Bytes of one block.
_BLOCK_SIZE: Final = 1 * limits.MIB


class UnfitRanges:
    """Blocks of files that are not fit to be sent as they lie."""

    def __init__(self, count_max: int) -> None:
        self._count_max: Final = count_max
        self._lock = Lock()
        #: Path and number of each block, in the order in which they were noted.
        self._blocks: dict[tuple[str, int], None] = {}
        #: How often a file has failed.
        self.failures = 0

    def __len__(self) -> int:
        """How many blocks are remembered."""
        return len(self._blocks)

    def note(self, path: str, at: int) -> None:
        """The file could not be sent at this position."""
        block = path, at // _BLOCK_SIZE
        with self._lock:
            self.failures += 1
            self._blocks.pop(block, None)
            self._blocks[block] = None
            if len(self._blocks) > self._count_max:
                del self._blocks[next(iter(self._blocks))]

    def reach_into(self, path: str, at: int, size: int) -> bool:
        """Whether a stretch of a file lies in a block that was noted, in part or all of it."""
        if not self._blocks:
            return False
        return any(
            (path, block) in self._blocks for block in range(at // _BLOCK_SIZE, (at + size - 1) // _BLOCK_SIZE + 1)
        )


#: What the servers of this process remember.
UNFIT: Final = UnfitRanges(limits.UNFIT_BLOCKS_MAX)
