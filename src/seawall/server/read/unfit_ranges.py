"""Remembers file ranges that could not be sent directly: the next reader gets them read and verified instead.

A frame cannot be rolled back once its beginning is sent. If the disk fails in the middle, the server closes the
connection, and the reader requests the same range again. So the server remembers the location: it then reads the range,
reports damage as a gap, and the reader continues after it.

The unit is a block of a file, by its path. A forgotten block, or one whose file was renamed, costs one more connection.
A block remembered without need only costs speed, so nothing removes it.

At most `limits.UNFIT_BLOCKS_MAX` blocks are remembered; the oldest is dropped first.

All loops of a process share them, since a reader may reconnect to another loop. Thread-safe. A crash forgets them. This
module must not know what is in a file.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from seawall import limits

__all__ = ["UNFIT", "UnfitRanges"]

#: Size of a block.
_BLOCK_SIZE: Final = 1 * limits.MIB


class UnfitRanges:
    """Blocks of files that cannot be sent directly."""

    def __init__(self, count_max: int) -> None:
        self._count_max: Final = count_max
        self._lock = Lock()
        #: Path and number of each block, the oldest first.
        self._blocks: dict[tuple[str, int], None] = {}
        #: Number of failures.
        self.failures = 0

    def __len__(self) -> int:
        """The number of remembered blocks."""
        return len(self._blocks)

    def note(self, path: str, at: int) -> None:
        """Remember that sending a file failed at an offset."""
        block = path, at // _BLOCK_SIZE
        with self._lock:
            self.failures += 1
            self._blocks.pop(block, None)
            self._blocks[block] = None
            if len(self._blocks) > self._count_max:
                del self._blocks[next(iter(self._blocks))]

    def reach_into(self, path: str, at: int, size: int) -> bool:
        """True if a range of a file overlaps a remembered block."""
        if not self._blocks:
            return False
        return any(
            (path, block) in self._blocks for block in range(at // _BLOCK_SIZE, (at + size - 1) // _BLOCK_SIZE + 1)
        )


#: The blocks of all servers of this process.
UNFIT: Final = UnfitRanges(limits.UNFIT_BLOCKS_MAX)
