"""Adapts the size of fetches to a link that loses connections. No I/O.

A truncated frame is discarded, so over a link that fails every few megabytes a reader that asks for 16 MiB would make
no progress. After a loss, readers ask for half as much; after several complete responses, for twice as much again.
A batch is never split: a batch that is larger than what a connection survives cannot be read over that link. Only a
smaller `batch_size` of its publisher helps.

All readers of a log share one object, because they share the link.
"""

from __future__ import annotations

from typing import Final

from seawall.limits import FETCH_SIZE_MAX, RESPONSE_SIZE_MIN

#: Consecutive complete responses of at least half the size before readers ask for more.
_COMPLETE_RESPONSES: Final = 8


class ResponseSize:
    """The most bytes of batches to ask for in one frame."""

    def __init__(self) -> None:
        self._size = FETCH_SIZE_MAX
        self._complete = 0

    def at_most(self, size: int) -> int:
        """`size`, reduced to what the link allows."""
        return min(size, self._size)

    def lost(self, size: int) -> None:
        """Ask for less: a connection was lost, or timed out, during a response of up to `size` bytes.

        Several responses of the same size that are lost with one connection count once. The loss of a very small
        response says nothing about the size.
        """
        if size > RESPONSE_SIZE_MIN:
            self._size = min(self._size, max(RESPONSE_SIZE_MIN, size // 2))
        self._complete = 0

    def arrived(self, size: int) -> None:
        """Count a frame of `size` bytes that arrived complete."""
        if self._size == FETCH_SIZE_MAX or size < self._size // 2:
            return
        self._complete += 1
        if self._complete >= _COMPLETE_RESPONSES:
            self._complete = 0
            self._size = min(FETCH_SIZE_MAX, 2 * self._size)
